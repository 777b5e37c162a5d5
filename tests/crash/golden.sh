#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# golden.sh - a store of each format there ever was, as a released build has made
# it, mounts with every byte right; so it does when the daemon is killed at each
# step of its migration.  A store of a format to come is refused, and untouched.
. "$(dirname "$0")/lib"
BASE=dram=32M,ssd=32M,segment=8M,hugepages=off,scrub=0
G=$here/../golden
F=$B/kvfs-fsck
P=$B-points/kvfs
unpack() { rm -rf "$S"; tar -C "$T" -xf "$G/$1.tar.xz" || fail "unpacking $1"; }
# intact NAME: the mount has the blocks of the list, and no other.
intact() {
	(cd "$M" && xxh128sum --quiet -c "$G/$1.txt") > "$T/out" 2>&1 || fail "$1: $(cat "$T/out")"
	eq "$1: blocks" "$(cd "$M" && find . -mindepth 3 -type f ! -path './.kvfs/*' | wc -l)" "$(wc -l < "$G/$1.txt")"
	eq "$1: a space's owner" "$(stat -c '%u:%g %a' "$M/plain")" "1234:4321 2750"
	grep -q '"shape": \[2000\]' "$M/typed/.layout" || fail "$1: the layout is gone"
	[ ! -d "$M/told" ] || grep -q '"token_ids": true' "$M/told/.layout" || fail "$1: the layout with token ids is gone"
}
state() { (cd "$S" && find . ! -name 'lock*' -printf '%p %s %m\n' | LC_ALL=C sort && find . -type f ! -name 'lock*' -print0 | LC_ALL=C sort -z | xargs -0 cat) | xxh128sum; }

for store in "$G"/*.tar.xz; do
	name=$(basename "$store" .tar.xz)
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
done

# Killed in the middle of the migration, and mounted again.
kills=0
if [ -x "$P" ]; then
	for point in sweep.zeroed:1 sweep.zeroed:2 beside.{written,renamed}:{1,2,3} \
		space.{before_commit,committed}:{1,2} mount.{before_dirty,dirty}:1; do
		unpack v1
		KVFS_POINT=$point "$P" -o "$BASE,control=$SOCK" "$S" "$M" > "$T/out" 2>&1 && fail "$point: the daemon was not killed"
		umount -l "$M" 2> /dev/null
		gone
		kills=$((kills + 1))
		start
		intact v1
		grep -q 'migrated from 1\|last_end=crash' "$M/.kvfs/config" || fail "$point: no migration"
		kill_daemon
		umount -l "$M"
		rm "$S/index/data.mdb"
		start
		intact v1
		stop
	done
fi
echo "killed $kills times while migrating: nothing lost"

# Without its index a store of format 1 cannot be read: it is refused, and kept.
for damage in 'rm "$S/index/data.mdb"' 'truncate -s 20000 "$S/index/data.mdb"' \
	'dd if=/dev/zero of="$S/index/data.mdb" bs=4096 count=60 conv=notrunc status=none'; do
	unpack v1
	eval "$damage"
	before=$(state)
	for options in "" ,ro; do
		not "format 1, $damage$options" "damaged" "$B/kvfs" -o "$BASE$options,control=$SOCK" "$S" "$M"
	done
	not "format 1, kvfs-fsck --rebuild" "nothing to rebuild it from" "$F" --rebuild "$S"
	eq "format 1, $damage: the store" "$(state)" "$before"
done
echo "format 1 without its index: refused, and untouched"

# A format to come: in the index, and where the index is lost.
refused() { # WHAT
	local before
	before=$(state)
	not "$1" "newer kvfs" "$B/kvfs" -o "$BASE,control=$SOCK" "$S" "$M"
	not "$1, ro" "newer kvfs" "$B/kvfs" -o "$BASE,ro,control=$SOCK" "$S" "$M"
	not "$1, kvfs-fsck --rebuild" "newer kvfs" "$F" --rebuild "$S"
	eq "$1: the store" "$(state)" "$before"
}
newer() { # FILE: its store record is of format 4
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
unpack v1
start
stop
newer "$S/store"
newer "$S/index/data.mdb"
refused "a newer store"
rm "$S/index/data.mdb"
refused "a newer store without its index"
