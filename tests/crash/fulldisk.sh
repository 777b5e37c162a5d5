#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fulldisk.sh - STORE on a disk that is full, that fills up, and that has room again: the
# SSD tier shows its state, fsync fails and does not hang, reads go on, and the tier
# recovers.  On a disk with room, the store never exceeds ssd=.
. "$(dirname "$0")/lib"
[ "$(id -u)" = 0 ] || { echo "needs root for a loop device"; exit 77; }
command -v mkfs.ext4 > /dev/null || { echo "no mkfs.ext4"; exit 77; }
D=$T/disk
mkdir "$D"
truncate -s 96M "$T/image"
mkfs.ext4 -q -m 0 "$T/image" || fail mkfs
mount -o loop "$T/image" "$D" 2> /dev/null || { echo "no loop devices"; exit 77; }
S=$D/store
BASE=$ALL,dram=32M,ssd=256M,segment=8M,hugepages=off,scrub=0
blocks() { "$H/blocks" "$1" "$SOCK" "${@:2}" || fail "blocks $*"; }
degraded() { [ "$(metric kvfs_ssd_degraded)" = "$1" ]; }
# balloon KIB: leave that much room on the disk
balloon() {
	local room
	room=$(df -k --output=avail "$D" | tail -n 1)
	dd if=/dev/zero of="$D/balloon" bs=1K count=$((room - $1)) oflag=append conv=notrunc status=none 2> /dev/null
	sync "$D/balloon"
}
B1=$T/b1
"$H/blocks" file 5000 "$B1"

# The disk is full before the mount: the index has room, but no segment file.
balloon 6000
start
out=$(blocks save 0 64)
eq "sealed in DRAM" "$(figure done "$out")" 64
out=$(blocks flush)
grep -q "refused 1 .*No space left" <<< "$out" || fail "a flush on a full disk: $out"
[ "$(figure slowest "$out")" -lt 30000 ] || fail "a flush on a full disk took long: $out"
degraded 1 || fail "kvfs_ssd_degraded is 0 on a full disk"
out=$("$B/kvfs" --health "$M" 2>&1)
eq "--health on a full disk: $out" $? 3
grep '^ssd .*online' "$M/.kvfs/stats" && fail "stats says online on a full disk"
out=$(blocks check 0 64)
eq "read on a full disk" "$(figure done "$out")" 64
mkdir "$M/files" "$M/files/00"
key=00000000000000000000000000000001
cp "$B1" "$M/files/00/$key" || fail "cp on a full disk"
not "fsync on a full disk" "No space left" timeout 60 sync "$M/files/00/$key"
same "after the failed fsync" "$B1" "$M/files/00/$key"
# Save more than DRAM holds: old blocks are evicted, the daemon goes on.
out=$(blocks save 64 512)
eq "saved while older ones give way" "$(figure done "$out")" 512
[ "$(figure slowest "$out")" -lt 30000 ] || fail "a save on a full disk took long: $out"
blocks check 0 600 > /dev/null

# The disk has room again: the SSD tier recovers.
rm "$D/balloon"
wait_until 30 degraded 0 || fail "still degraded with room on the disk"
eq "flush with room again" "$(figure done "$(blocks flush)")" 1
out=$(blocks durable 1000 32)
eq "durable with room again" "$(figure done "$out")" 32
ok "fsync with room again" timeout 60 sync "$M/files/00/$key"
wait_until 30 degraded 0 || fail "degraded with room on the disk"

# Save twice what the disk holds, although ssd= would allow it.
out=$(blocks durable 2000 1600)
[ "$(figure slowest "$out")" -lt 60000 ] || fail "saves on a small disk: $out"
[ "$(figure done "$out")" -gt 200 ] || fail "saves on a small disk: $out"
out=$(blocks check 3200 400)
[ "$(figure done "$out")" -gt 200 ] || fail "the latest blocks are gone: $out"
grep -q 'no room on the disk' "$M/.kvfs/stats" || fail "stats does not tell that the disk is full"
# The block may have been evicted; if it is present, it must be unchanged.
[ ! -e "$M/files/00/$key" ] || same "a file on a full disk" "$B1" "$M/files/00/$key"
[ -e "$M/files/00/$key" ] || cp "$B1" "$M/files/00/$key" || fail "cp once more"
ok "fsync once more" timeout 60 sync "$M/files/00/$key"
ok "pin" setfattr -n user.kvfs.pin -v 1 "$M/files/00/$key"

# Another writer fills the disk while the daemon runs: not even the index can
# grow.
balloon 0
out=$(blocks save 6000 256)
[ "$(figure slowest "$out")" -lt 30000 ] || fail "saves on a full disk: $out"
blocks flush > /dev/null
ok "rm on a full disk" rm "$M/files/00/$key"
rm "$D/balloon"
out=$(blocks durable 7000 32)
eq "durable after all" "$(figure done "$out")" 32
stop
start
eq "the end was clean" "$(grep ^last_end= "$M/.kvfs/config")" last_end=clean
out=$(blocks check 7000 32)
eq "after a restart" "$(figure done "$out")" 32
absent "removed on a full disk" "$M/files/00/$key"
eq "damaged blocks" "$(metric kvfs_corrupt_blocks_total)" 0
kill_daemon
start
out=$(blocks check 7000 32)
eq "after a crash" "$(figure done "$out")" 32
stop

# The disk is filled to the last byte before the mount.
cat /dev/zero >> "$D/balloon" 2> /dev/null
for ((i = 0; i < 10000; i++)); do mkdir "$D/balloon.$i" 2> /dev/null || break; done
sync -f "$D"
eq "room on the disk" "$(df -k --output=avail "$D" | tail -n 1 | tr -d ' ')" 0
mounts_while_full 7000 32
umount "$D" || fail "umount of the disk"

# The cap holds when three times ssd= is saved, as files and by libkvfs.
S=$T/store
CAP=$((64 << 20))
BASE=$ALL,dram=32M,ssd=64M,segment=8M,hugepages=off,scrub=0
start
(blocks durable 10000 1536 > "$T/saved") & workers+=($!)
most=0
while kill -0 "${workers[0]}" 2>/dev/null; do
	held=$(du -sB1 "$S" | cut -f1)
	[ "$held" -le "$most" ] || most=$held
	sleep 0.05
done
wait "${workers[0]}" || fail "saving"
workers=()
[ "$most" -le $CAP ] || fail "the store had $most bytes of $CAP"
[ "$most" -ge $((CAP / 2)) ] || fail "the store had only $most bytes of $CAP"
out=$(blocks check 10000 1536)
echo "cap: at most $most of $CAP bytes; saved: $(cat "$T/saved"); kept: $out"
[ "$(figure done "$out")" -ge 256 ] || fail "too little is kept: $out"
stop
