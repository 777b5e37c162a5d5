#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# example.sh - the program in libkvfs(3), taken from the page, built as the page says
# against an installed library, shared and static, and run against a mount.  The installed
# manual has a page for each function.  Also the same program and library as they were in 0.2.
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
# Programs built for 0.2 go on with this library and this daemon.  The archive has the library
# before its release, stripped, and this program: build both anew for the release, then never.
if [ "$(uname -m)" = x86_64 ]; then
	mkdir "$T/0.2"
	tar -C "$T/0.2" -xf "$here/../golden/libkvfs-0.2.tar.xz" || fail "tar"
	for lib in "$T/0.2" "$to/lib"; do
		old() { LD_LIBRARY_PATH=$lib "$T/0.2/example" "$M"; }
		eq "the program of 0.2 with $lib" "$(old)" "8 blocks loaded, 0 computed and saved"
		rm "$M"/example/*/* || fail "rm"
		eq "the program of 0.2 with $lib saves" "$(old)" "0 blocks loaded, 8 computed and saved"
		eq "today's program loads these blocks" "$(run "$M")" "8 blocks loaded, 0 computed and saved"
	done
fi
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
