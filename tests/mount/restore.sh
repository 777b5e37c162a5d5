#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# restore.sh - examples/restore.c restores a snapshot of 128K tokens that is larger than
# dram=, byte for byte, its head and tail first; and fails cleanly when a block is missing.
. "$(dirname "$0")/lib"
install_library
export LD_LIBRARY_PATH=$to/lib
flags=$(pkg-config --cflags --libs kvfs) || fail "pkg-config"
# shellcheck disable=SC2086
ok "compile restore.c" ${CC:-cc} -std=c11 -Wall -Werror "$root/examples/restore.c" -o "$T/restore" $flags
[ "$(wc -l <"$root/examples/restore.c")" -le 60 ] || fail "the example is longer than 60 lines"

# 8,192 blocks of 16 tokens and 16 KiB: 128 MiB, with dram=64M.
head -c $((8192 * 16384)) /dev/urandom >"$T/context" || fail "no room for a context"
start
ok "save and snapshot" "$B/tests/mount/snap" "$M" s fill turn "$T/context" 16384
"$T/restore" "$M" s turn >"$T/restored" 2>"$T/order" || fail "restore: $(cat "$T/order")"
cmp "$T/context" "$T/restored" || fail "the restored bytes differ"
eq "the head and the tail come first" "$(head -n 3 "$T/order")" \
	$'64 blocks from 0 on\n64 blocks from 8128 on\n64 blocks from 64 on'
eq "windows" "$(wc -l <"$T/order")" 128

# Restore the snapshot again after a restart, when its blocks are on SSD only.
restart
"$T/restore" "$M" s turn 2>/dev/null | cmp - "$T/context" || fail "bytes after a restart differ"

rm "$M/s/$(printf 00/00100000000000000000000000000000)" || fail "rm of a block"
not "a block that is gone" "some of 64 blocks are not there" "$T/restore" "$M" s turn
not "no such snapshot" "No such file" "$T/restore" "$M" s other
