#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pages.sh - examples/pages.c, an engine without an allocator, finds what it computed before: in
# the same run, in the next one, after a restart, and with more blocks than pages.
. "$(dirname "$0")/lib"
install_library
export LD_LIBRARY_PATH=$to/lib
flags=$(pkg-config --cflags --libs kvfs) || fail "pkg-config"
# shellcheck disable=SC2086
ok "compile pages.c" ${CC:-cc} -std=c11 -Wall -Wextra -Werror "$root/examples/pages.c" -o "$T/pages" $flags

# sum PROMPT: print the sum that the example must print, of whole blocks of 4 characters.
sum() {
	local prompt=$1 i all=0
	for ((i = 0; i < ${#prompt} / 4 * 4; i++)); do
		all=$((all + 256 * $(printf %d "'${prompt:i:1}")))
	done
	echo $all
}
start
a="abcdefghijkl" b="abcdefghXXXXYYYY" long=$(seq -s '' 100 110)
long=${long:0:32}
eq "the second prompt begins like the first" "$("$T/pages" "$M" "$a" "$b" "$a")" \
	"0 blocks found, 3 computed, sum $(sum "$a")
2 blocks found, 2 computed, sum $(sum "$b")
3 blocks found, 0 computed, sum $(sum "$a")"
eq "the next run" "$("$T/pages" "$M" "$b" "abc")" "4 blocks found, 0 computed, sum $(sum "$b")"
eq "more blocks than pages" "$("$T/pages" "$M" "$long" "$a" "$b" "$long")" \
	"0 blocks found, 8 computed, sum $(sum "$long")
3 blocks found, 0 computed, sum $(sum "$a")
4 blocks found, 0 computed, sum $(sum "$b")
8 blocks found, 0 computed, sum $(sum "$long")"
sync "$M/pages"
restart
eq "after a restart" "$("$T/pages" "$M" "$a" "$long")" \
	"3 blocks found, 0 computed, sum $(sum "$a")
8 blocks found, 0 computed, sum $(sum "$long")"
