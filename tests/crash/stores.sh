#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# stores.sh - a store with a second directory (store=DIR): files are in both, locks and
# foreign directories are refused, a missing directory costs its blocks until it is back,
# kvfs-fsck sees both, directories move and change places, and one is retired by moving its
# files.  Then the disk of the second directory fails under load: no wrong byte, its blocks
# alone are missed, one line in the log, and the next mount has them again.
. "$(dirname "$(realpath "$0")")/lib"
D=$T/more
BASE=$ALL,dram=24M,ssd=224M,segment=8M,hugepages=off,scrub=0
N=1000
blocks() { timeout 300 "$H/blocks" "$1" "$SOCK" "${@:2}" || fail "blocks $*: $?"; }
start2() { start "store=$D${1:+,$1}" 2> "$T/log" || fail "start: $(cat "$T/log")"; }
files() { find "$1/segments" -name '*.seg' -type f | wc -l; }
refused() { not "$1" "$2" "$B/kvfs" -o "$BASE,control=$T/other.sock,store=$3" "$4" none; }

# Both directories get files, and an owner keeps both.  If the disk is slow in the first
# write to one of them, that one gets few files: then once more, with a new store.
shared() { [ "$(files "$S")" -gt 5 ] && [ "$(files "$D")" -gt 5 ]; }
for try in 1 2 3; do
	start2
	eq "saved" "$(figure done "$(blocks durable 0 $N)")" $N
	! shared || break
	echo "files: $(files "$S") and $(files "$D")"
	[ $try -lt 3 ] || fail "files are not shared"
	stop
	rm -r "$S" "$D"
done
grep -qx "store_dir=$D" "$M/.kvfs/config" || fail "config lacks the directory"
refused "a directory in use" "in use by another kvfs (pid $(daemon_pids))" "$D" "$T/other"
stop
refused "another store's directory" "belongs to another store" "$D" "$T/other"
refused "another store" "a store of its own" "$S" "$T/other"
refused "a store in its own store" "a store of its own" "$S" "$S"
mkdir "$T/strange" "$T/strange/x"
refused "a strange directory" "not empty" "$T/strange" "$S"
refused "a relative path" "begins with /" more "$S"
refused "a directory given twice" "given twice" "$D,store=$D/" "$S"
not "a directory as a store" "not a kvfs store" "$B/kvfs" -o "$BASE" "$D" none
"$B/kvfs-fsck" --data "$S" > "$T/out" || fail "fsck: $(cat "$T/out")"

# Without the directory its blocks are misses, and nothing is forgotten; what is saved
# again meanwhile is right afterwards.
mv "$D" "$D.away"
mkdir "$D" # the mount point of a disk that is not mounted
start2
eq "lines" "$(grep -c 'is not there or not given' "$T/log")" 1
[ "$(metric kvfs_ssd_degraded)" = 1 ] || fail "not degraded"
out=$(blocks check 0 $N)
lost=$(figure absent "$out")
[ "$lost" -gt $((N / 4)) ] && [ "$lost" -lt $((N * 3 / 4)) ] || fail "without: $out"
eq "kept" "$(figure done "$out")" $((N - lost))
eq "saved again" "$(figure done "$(blocks durable 0 200)")" 200
stop
eq "made in the mount point" "$(ls -A "$D")" ""
not "a repair without it" "$D" "$B/kvfs-fsck" --repair "$S"
rmdir "$D"
mv "$D.away" "$D"
start2
eq "back" "$(figure done "$(blocks check 0 $N)")" $N
eq "corrupt" "$(metric kvfs_corrupt_blocks_total)" 0
stop
"$B/kvfs-fsck" --data "$S" > "$T/out" || fail "fsck after its return: $(cat "$T/out")"

# A rebuild of the index finds the blocks of both, and a kill loses none.
"$B/kvfs-fsck" --rebuild "$S" > "$T/out"
eq "rebuild" $? 1
start2
eq "after a rebuild" "$(figure done "$(blocks check 0 $N)")" $N
kill_daemon
umount -l "$M"
start2
eq "after a kill" "$(figure done "$(blocks check 0 $N)")" $N
stop

# A rebuild without the directory would forget its blocks.
cp -a "$S/index" "$T/index"
mv "$D" "$T/moved"
dd if=/dev/zero of="$S/index/data.mdb" bs=4096 count=2 conv=notrunc status=none
not "a rebuild without it" "is a link to a directory that is missing" \
	"$B/kvfs" -o "$BASE,control=$T/other.sock" "$S" none
rm -r "$S/index"
mv "$T/index" "$S/index"

# The directory is moved, given by a link, and changes places with a third one.
start_in() { # start_in DIRECTORIES...: mount the store with these as store=
	local options
	options=$(printf ',store=%s' "$@")
	start "ssd=448M$options" 2> "$T/log" || fail "start: $(cat "$T/log")"
}
all() { # NAME N: N blocks are there, with no line in the log
	eq "$1" "$(figure done "$(blocks check 0 "$2")")" "$2"
	eq "lines, $1" "$(grep -v 'ssd is' "$T/log")" ""
	eq "degraded, $1" "$(metric kvfs_ssd_degraded)" 0
	stop
	"$B/kvfs-fsck" "$S" > "$T/out" || fail "fsck, $1: $(cat "$T/out")"
}
start_in "$T/moved"
all moved $N
ln -s "$T/moved" "$T/alias"
start_in "$T/alias"
all "by a link" $N
start_in "$T/moved" "$T/third"
eq "more saved" "$(figure done "$(blocks durable $N $N)")" $N
all "by its path" $((2 * N))
[ "$(files "$T/third")" -gt 2 ] || fail "files in the third: $(files "$T/third")"
mv "$T/moved" "$T/place"
mv "$T/third" "$T/moved"
mv "$T/place" "$T/third"
start_in "$T/third" "$T/moved"
all exchanged $((2 * N))

# Another user's directory, one with files of no known store, links to another store.
if [ "$(id -u)" = 0 ]; then
	chown 12345 "$T/third/segments"
	refused "a directory of another user" "belong to user 12345" "$T/third" "$S"
	chown 0 "$T/third/segments"
fi
mkdir -p "$T/unknown/segments"
name=$(cd "$T/third/segments" && ls ./*.seg | head -n 1)
cp "$T/third/segments/$name" "$T/unknown/segments"
refused "files of no known store" "not empty" "$T/unknown" "$T/evil"
S=$T/evil start
stop
ln -s "$(realpath "$T/third/segments")/${name#./}" "$T/evil/segments/"
not "a repair of another store's files" "has no record of this store" "$B/kvfs-fsck" --repair "$T/evil"

# Retired: its files are moved over their links.
D=$T/third
mv "$T"/moved/segments/*.seg "$S/segments/"
mv "$D"/segments/*.seg "$S/segments/"
start ssd=448M
eq "after it was retired" "$(figure done "$(blocks check 0 $((2 * N)))")" $((2 * N))
stop
echo "a missing directory cost $lost of $N blocks, none for good"

# The disk of the second directory fails under load.
rm -r "$S" "$D"
. "$(dirname "$(realpath "$0")")/disks"
disk_begin ext4 $((256 << 20))
D2=$D D=$F/more
start2
eq "saved" "$(figure done "$(blocks durable 0 $N)")" $N
(
	for ((i = 5000; ; i += 8)); do
		"$H/blocks" durable "$SOCK" $i 8
		"$H/blocks" check "$SOCK" $((i % N / 8 * 8)) 8 || exit 1
	done
) > "$T/load" 2>&1 & workers+=($!)
sleep 1
D=$D2
tell "fail.rwf.5.1000.0.$((256 << 20))"
for ((i = 0; i < 5; i++)); do blocks check 0 $N > /dev/null; done
forgotten() { [ "$(grep -c 'store_failed\|failed (' "$T/log")" = 1 ]; }
wait_until 30 forgotten || fail "no line: $(cat "$T/log")"
sleep 2
kill "${workers[@]}"; wait "${workers[@]}" 2> /dev/null; workers=()
grep -q FAILED "$T/load" && fail "load: $(cat "$T/load")"
[ -n "$(daemon_pids)" ] || fail "the daemon is gone"
out=$(blocks check 0 $N)
eq "refused" "$(figure refused "$out")" 0
[ "$(figure done "$out")" -gt 100 ] || fail "too few: $out"
eq "saved elsewhere" "$(figure done "$(blocks durable 20000 200)")" 200
eq "a flush" "$(figure done "$(blocks flush)")" 1
eq "lines" "$(grep -c 'failed (' "$T/log")" 1
echo "while it failed: $out"
stop
tell heal
D=$F/more
# The filesystem may be read-only now: the mount goes on without it.
start2
eq "saved elsewhere, next mount" "$(figure done "$(blocks check 20000 200)")" 200
stop
umount "$F" && mount -t ext4 -o noatime "$loop" "$F" || fail "mount again"
start2
out=$(blocks check 20000 200)
eq "saved elsewhere, next mount" "$(figure done "$out")" 200
now=$(blocks check 0 $N)
[ "$(figure done "$now")" -gt "$(figure done "$out")" ] || fail "not back: $now"
eq "corrupt" "$(metric kvfs_corrupt_blocks_total)" 0
eq "degraded" "$(metric kvfs_ssd_degraded)" 0
echo "mounted again: $now"
stop
D=$D2
"$B/kvfs-fsck" "$S" > "$T/out" || fail "fsck in the end: $(cat "$T/out")"
disk_end
