#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fulldisk_xfs.sh - a store on an XFS that was full before the mount: its blocks can be
# read, however the last daemon ended.  A full XFS makes no file, not even in the place of
# one that was removed.
. "$(dirname "$0")/lib"
[ "$(id -u)" = 0 ] || { echo "needs root for a loop device"; exit 77; }
command -v mkfs.xfs > /dev/null || { echo "no mkfs.xfs"; exit 77; }
D=$T/disk
mkdir "$D"
truncate -s 320M "$T/image"
mkfs.xfs -q "$T/image" || fail mkfs
mount -o loop "$T/image" "$D" 2> /dev/null || { echo "cannot mount an XFS"; exit 77; }
S=$D/store
BASE=$ALL,dram=32M,ssd=64M,segment=8M,hugepages=off,scrub=0
blocks() { "$H/blocks" "$1" "$SOCK" "${@:2}" || fail "blocks $*"; }

start
out=$(blocks durable 0 64)
eq "durable" "$(figure done "$out")" 64
stop
dd if=/dev/zero of="$D/balloon" bs=1M status=none 2> /dev/null
sync -f "$D"
dd if=/dev/zero of="$D/balloon" bs=4K oflag=append conv=notrunc status=none 2> /dev/null
sync -f "$D"
for ((i = 0; i < 10000; i++)); do mkdir "$D/balloon.$i" 2> /dev/null || break; done
touch "$D/file" 2> /dev/null && fail "a file can be made on the full disk"
mounts_while_full 0 64
umount "$D" || fail "umount of the disk"
