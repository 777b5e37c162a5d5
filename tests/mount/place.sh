#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# place.sh - places of the store and the socket: a filesystem too small for the limit, a
# store in memory, no place for the socket.  All are reported.
. "$(dirname "$0")/lib"
try() { "$B/kvfs" -o "$ALL,dram=64M,segment=8M,hugepages=off,scrub=0,control=$SOCK,$1" "${2:-$S}" "$M" > "$T/out" 2>&1; }
block "$T/b"
try ssd=512M || fail "ssd=512M"
eq "nothing is said where there is room" "$(cat "$T/out")" ""
stop
rm -rf "$S"
try ssd=1000T || fail "ssd=1000T: $(cat "$T/out")"
grep -q "^kvfs: warning: ssd is 1048576000M, and its filesystem has room for [0-9]*M$" "$T/out" ||
	fail "ssd=1000T: it says '$(cat "$T/out")'"
grep -q "^ssd_short=" "$M/.kvfs/config" || fail "config does not say that the SSD is short"
ok "it works all the same" put s 1 "$T/b"
stop

# The daemon makes the socket's directory, and removes it; a path with more
# missing directories is an error.
SOCK=$T/ctl/sock
try ssd=64M || fail "a missing directory: $(cat "$T/out")"
[ -S "$SOCK" ] || fail "no socket"
stop
absent "the socket's directory" "$T/ctl"
SOCK=$T/ctl/a/b/sock
try ssd=64M && fail "a mistyped path is taken"
eq "a mistyped path" "$(cat "$T/out")" "kvfs: control socket $SOCK: No such file or directory"
absent "a mistyped path" "$T/ctl"
SOCK=$T/sock

if [ "$(id -u)" = 0 ]; then
	mkdir "$T/memory" && mount -t tmpfs -o size=300M none "$T/memory" || fail tmpfs
	try ssd=200M "$T/memory/store" || fail "a store on tmpfs: $(cat "$T/out")"
	grep -q "^kvfs: warning: $T/memory/store is on a filesystem in memory" "$T/out" ||
		fail "a store on tmpfs: it says '$(cat "$T/out")'"
	ok "it works" put s 1 "$T/b"
	ok "and is synced" sync "$M/s"
	stop
	try ssd=200M "$T/memory/store" || fail "again: $(cat "$T/out")"
	same "what it holds is there after umount" "$T/b" "$M/s/$(place 1)"
	stop

	mkdir -m 777 "$T/own" "$T/own/mnt"
	env -u XDG_RUNTIME_DIR setpriv --reuid 54321 --regid 54321 --clear-groups \
		"$B/kvfs" -o "$BASE" "$T/own/store" "$T/own/mnt" > "$T/out" 2>&1 && fail "a socket without a place"
	eq "one line besides warnings" "$(grep -vc "^kvfs: warning: " "$T/out")" 1
	grep -q "XDG_RUNTIME_DIR is not set: give control=PATH" "$T/out" || fail "it says '$(cat "$T/out")'"
fi
