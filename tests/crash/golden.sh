#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# golden.sh - a store of the current format that a released build made mounts with every
# byte right.  A store of any other format, older or newer, is refused and not changed.
. "$(dirname "$0")/lib"
BASE=$ALL,dram=32M,ssd=32M,segment=8M,hugepages=off,scrub=0
G=$here/../golden
F=$B/kvfs-fsck
unpack() { rm -rf "$S"; tar -C "$T" -xf "$G/$1.tar.xz" || fail "unpacking $1"; }
# intact NAME: fail unless the mount has exactly the blocks of the list
intact() {
	(cd "$M" && xxh128sum --quiet -c "$G/$1.txt") > "$T/out" 2>&1 || fail "$1: $(cat "$T/out")"
	eq "$1: blocks" "$(cd "$M" && find . -mindepth 3 -type f ! -path './.kvfs/*' | wc -l)" "$(wc -l < "$G/$1.txt")"
	eq "$1: a space's owner" "$(stat -c '%u:%g %a' "$M/plain")" "1234:4321 2750"
	grep -q '"shape": \[2000\]' "$M/typed/.layout" || fail "$1: the layout is gone"
	[ ! -d "$M/told" ] || grep -q '"token_ids": true' "$M/told/.layout" || fail "$1: the layout with token ids is gone"
}
state() { (cd "$S" && find . ! -name 'lock*' -printf '%p %s %m\n' | LC_ALL=C sort && find . -type f ! -name 'lock*' -print0 | LC_ALL=C sort -z | xargs -0 cat) | xxh128sum; }

name=v3
unpack "$name"
before=$(state)
"$F" --data "$S" > "$T/out" 2>&1 || fail "$name: kvfs-fsck: $(cat "$T/out")"
eq "$name after a check" "$(state)" "$before"
start ro
intact "$name"
stop
eq "$name after a read-only mount" "$(state)" "$before"
start
intact "$name"
pinned=$M/plain/aa/aa$(printf %030x 2)
eq "$name: a pin" "$(xattr "$pinned" pin)" 1
eq "$name: a quota" "$(xattr "$M/typed" quota.ssd)" $((1 << 30))
stop
"$F" --data "$S" > "$T/out" 2>&1 || fail "$name: kvfs-fsck: $(cat "$T/out")"
grep -q "format 3, last end clean" "$T/out" || fail "$name: $(cat "$T/out")"
rm "$S/index/data.mdb"
start
intact "$name"
stop
echo "$name: mounted, checked, rebuilt"

# Stores of other formats are refused, with their index and without it.
refused() { # refused WHAT: fail if the store in $S is mounted, rebuilt or changed
	local before
	before=$(state)
	not "$1" "newer kvfs" "$B/kvfs" -o "$BASE,control=$SOCK" "$S" "$M"
	not "$1, ro" "newer kvfs" "$B/kvfs" -o "$BASE,ro,control=$SOCK" "$S" "$M"
	not "$1, kvfs-fsck --rebuild" "newer kvfs" "$F" --rebuild "$S"
	eq "$1, kvfs-fsck --rebuild: lines" "$("$F" --rebuild "$S" 2>&1 | wc -l)" 1
	eq "$1: the store" "$(state)" "$before"
}
unpack v1
refused "a store of format 1"
unpack v2
refused "a store of format 2"
not "a store of format 2, kvfs-fsck" "newer kvfs" "$F" "$S"
rm "$S/index/data.mdb"
refused "a store of format 2 without its index"
newer() { # newer FILE: gives the store record format 4
	python3 - "$1" <<'P' || fail "no store record in $1"
import sys
with open(sys.argv[1], "r+b") as f:
    data = f.read()
    at, n = data.find(b"KVSTORE1"), 0
    while at >= 0:
        f.seek(at + 8)
        f.write(b"\4\0\0\0")
        n, at = n + 1, data.find(b"KVSTORE1", at + 1)
sys.exit(n == 0)
P
}
unpack v3
start
stop
newer "$S/store"
newer "$S/index/data.mdb"
refused "a newer store"
rm "$S/index/data.mdb"
refused "a newer store without its index"
