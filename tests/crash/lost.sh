#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lost.sh - the disk below the store becomes read-only: umount reports how many blocks are
# lost, and why, and exits 32; the daemon logs it.  Blocks without an SSD tier, or without
# room on it, are reported in a line, which is no error.  The same if root, who umounts, has no
# rights in the mount.
. "$(dirname "$(realpath "$0")")/disks"
ln -s "$B/kvfs" "$T/umount.kvfs"
disk_begin ext4 $((96 << 20))
mount -o remount,errors=remount-ro "$F" || fail "remount"
trigger=/sys/fs/ext4/$(basename "$loop")/trigger_fs_error
[ -w "$trigger" ] || { echo "no $trigger"; exit 77; }
S=$F/store
BASE=$ALL,dram=32M,ssd=64M,segment=8M,hugepages=off,scrub=0
python3 "$here/../mount/mkblock.py" "$T/b" --bytes 100000 || fail "mkblock.py"
save() { for i in $(seq "$1" "$2"); do put s "$i" "$T/b" || fail "cp"; done; }
put_by() { $A mkdir -p "$M/$1/$(printf %02x "$2")" && $A cp "$T/b" "$M/$1/$(place "$2")"; }
# ends STATUS TEXT: fail unless umount exits with STATUS and prints TEXT
ends() {
	local out
	out=$("$T/umount.kvfs" "$M" 2>&1)
	eq "umount, which says '$out'" $? "$1"
	case $out in *"$2"*) ;; *) fail "umount says '$out', not '$2'" ;; esac
	gone
}

start
save 1 3
ends 0 ""
start ssd=0
save 4 6
ends 0 "3 blocks are lost"
start writeback=none
save 4 6
ends 0 ""
start
mkdir "$M/full" && setfattr -n user.kvfs.quota.ssd -v 4K "$M/full" || fail "quota"
put full 1 "$T/b" || fail "cp"
ends 0 "1 blocks found no room on SSD, and end with the mount"

# Root, who umounts, may not write what others saved: the daemon tells umount what its end lost.
A="setpriv --reuid 1000 --regid 1000 --clear-groups"
for squash in mkdir=all allow=1000; do
	start ssd=16M,root=squash,$squash
	$A mkdir -p "$M/$squash" && put_by "$squash" 1 && $A sync "$M/$squash" || fail "a save by an allowed user"
	fail_data w 5 1000
	for i in 2 3 4; do put_by "$squash" "$i" || fail cp; done
	ends 32 "umount.kvfs: $M: 3 blocks are not durable, and are lost: Input/output error"
	tell heal
done

"$B/kvfs" -o "$BASE,control=$SOCK" "$S" "$M" 2> "$T/log" || fail "kvfs does not start"
sync "$M/s"
echo test > "$trigger"
touch "$F/x" 2> /dev/null && fail "the disk can be written"
save 10 28
put full 1 "$T/b" || fail "cp"
ends 32 "20 blocks are not durable, and are lost: Read-only file system"
grep -q "20 blocks could not be written to SSD, and are lost: Read-only file system" "$T/log" ||
	fail "the log says '$(cat "$T/log")'"
umount "$F" && mount -o errors=remount-ro "$loop" "$F" || fail "the disk does not come back"
start root=squash
sync "$M/s"
echo test > "$trigger"
put_by mkdir=all 5 || fail "cp"
ends 32 "some blocks may not be durable" # the result cannot be written either
umount "$F" && mount "$loop" "$F" || fail "the disk does not come back"
start
for i in 1 2 3 4 5 6; do same "block $i" "$T/b" "$M/s/$(place "$i")"; done
ends 0 ""
