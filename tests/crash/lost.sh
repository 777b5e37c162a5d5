#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lost.sh - the disk below the store becomes read-only: umount reports how many blocks are
# lost, and why, and exits 32; the daemon logs it.  Blocks without an SSD tier, or without
# room on it, are reported in a line, which is no error.
. "$(dirname "$0")/lib"
[ "$(id -u)" = 0 ] || { echo "needs root for a loop device"; exit 77; }
command -v mkfs.ext4 > /dev/null || { echo "no mkfs.ext4"; exit 77; }
ln -s "$B/kvfs" "$T/umount.kvfs"
D=$T/disk
mkdir "$D"
truncate -s 96M "$T/image"
mkfs.ext4 -q -m 0 "$T/image" || fail mkfs
mount -o loop,errors=remount-ro "$T/image" "$D" 2> /dev/null || { echo "no loop devices"; exit 77; }
trigger=/sys/fs/ext4/$(basename "$(findmnt -no SOURCE "$D")")/trigger_fs_error
[ -w "$trigger" ] || { echo "no $trigger"; exit 77; }
S=$D/store
BASE=$ALL,dram=32M,ssd=64M,segment=8M,hugepages=off,scrub=0
python3 "$here/../mount/mkblock.py" "$T/b" --bytes 100000 || fail "mkblock.py"
save() { for i in $(seq "$1" "$2"); do put s "$i" "$T/b" || fail "cp"; done; }
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

"$B/kvfs" -o "$BASE,control=$SOCK" "$S" "$M" 2> "$T/log" || fail "kvfs does not start"
sync "$M/s"
echo test > "$trigger"
touch "$D/x" 2> /dev/null && fail "the disk can be written"
save 10 28
put full 1 "$T/b" || fail "cp"
ends 32 "20 blocks are not durable, and are lost: Read-only file system"
grep -q "20 blocks could not be written to SSD, and are lost: Read-only file system" "$T/log" ||
	fail "the log says '$(cat "$T/log")'"
umount "$D" && mount -o loop "$T/image" "$D" || fail "the disk does not come back"
start
for i in 1 2 3 4 5 6; do same "block $i" "$T/b" "$M/s/$(place "$i")"; done
ends 0 ""
