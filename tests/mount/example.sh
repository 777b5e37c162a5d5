#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# example.sh - the program in libkvfs(3), taken from the page, built as the page says
# against an installed library, shared and static, and run against a mount.  The installed
# manual has a page for each function.
. "$(dirname "$0")/lib"
. "$here/typed"
install_library

typed_page "$to/share/man/man3/libkvfs.3" >"$T/example.c"
compile() { # compile PROGRAM FLAGS OF PKG-CONFIG...: build the manual's example
	local program=$1 flags
	shift
	flags=$(pkg-config "$@" --cflags --libs kvfs) || fail "pkg-config"
	# shellcheck disable=SC2086
	ok "compile $program" ${CC:-cc} -std=c11 -Wall -Wextra -Werror "$T/example.c" \
		${1:+-static} -o "$T/$program" $flags
}
compile example
compile example-static --static
run() { LD_LIBRARY_PATH=$to/lib "$T/example" "$@"; }

start
eq "first run" "$(run "$M")" "0 blocks loaded, 8 computed and saved"
eq "second run" "$(run "$M")" "8 blocks loaded, 0 computed and saved"
eq "linked statically" "$("$T/example-static" "$M")" "8 blocks loaded, 0 computed and saved"
eq "files" "$(find "$M/example" -type f -name '????????*' | wc -l)" 8
restart
rm "$(find "$M/example" -type f -name '????????*' | head -n 1)"
out=$(run "$SOCK") || fail "third run"
eq "what is missing is computed" "$(awk '{ print $1 + $4 }' <<<"$out")" 8
stop
not "without a daemon" "connect: Transport endpoint is not connected" run "$M"

if command -v man >/dev/null; then
	for name in $(grep -oE '^[a-z].*\bkvfs_[a-z_]+\(' "$to/include/kvfs.h" | grep -oE 'kvfs_[a-z_]+\($' | tr -d '('); do
		man -M "$to/share/man" -w 3 "$name" >/dev/null || fail "no page for $name"
	done
fi
