#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: long
# diskfaults.sh - the disk below the store fails: first single reads and writes of
# blocks, then all requests, and then the disk disappears.  The daemon serves no wrong
# byte, keeps running, still serves blocks in DRAM, shows its state, and recovers when the
# fault ends.  KVFS_FAULTS=N: that many faults instead of 900.
. "$(dirname "$(realpath "$0")")/disks"
want=${KVFS_FAULTS:-900}
S=$F/store
BASE=$ALL,dram=32M,ssd=128M,segment=8M,hugepages=off,scrub=0
N=200 # blocks that fit into DRAM
blocks() { timeout 300 "$H/blocks" "$1" "$SOCK" "${@:2}" || fail "blocks $*: $?"; }
degraded() { [ "$(metric kvfs_ssd_degraded)" = "$1" ]; }
online() { grep -q '^ssd  .*online' "$M/.kvfs/stats"; }
alive() { [ -n "$(daemon_pids)" ] && [ -e "$M/.kvfs/stats" ]; }
# again COUNT COMMAND...: repeat COMMAND until COUNT more requests have failed
again() {
	local end=$(($(faults) + $1)) i
	shift
	for ((i = 0; i < 2000 && $(faults) < end; i++)); do "$@" "$i"; done
	[ "$(faults)" -ge "$end" ] || fail "$*: only $(faults) of $end requests failed"
}

disk_begin ext4 $((256 << 20))
start
saved=0 # number of durable blocks, from block 0 on
add() {
	eq "saved" "$(figure done "$(blocks durable $saved "$1")")" "$1"
	saved=$((saved + $1))
}
add 400

# Reads of blocks that are only on SSD fail now and then.  A block whose read failed
# twice is a miss from then on, and can be saved again.
read_some() {
	blocks check $(($1 % 4 * 100)) 100 > /dev/null
	[ $(($1 % 4)) != 3 ] || blocks durable 0 400 > /dev/null
}
fail_data r 5 300
again $((want / 3)) read_some
alive || fail "the daemon is gone after failed reads"
[ "$(metric kvfs_io_errors_total)" -gt 0 ] || fail "failed reads are not counted"
tell heal
wait_until 60 degraded 0 || fail "still degraded after failed reads"
eq "failures after failed reads" "$(figure refused "$(blocks check 0 400)")" 0
eq "saved again" "$(figure done "$(blocks durable 0 400)")" 400
eq "after failed reads" "$(figure done "$(blocks check 0 400)")" 400

# Writes fail now and then, with two different errors.
fresh=10000
write_some() {
	blocks save $fresh 16 > /dev/null
	blocks flush > /dev/null
	fresh=$((fresh + 16))
}
for error in 5 28; do
	fail_data w $error 500
	again $((want / 3)) write_some
	alive || fail "the daemon is gone after failed writes"
	blocks check $((fresh - 64)) 64 > /dev/null
	tell heal
	wait_until 60 degraded 0 || fail "still degraded after error $error"
	wait_until 60 online || fail "not online after error $error: $(cat "$M/.kvfs/stats")"
	eq "a flush after error $error" "$(figure done "$(blocks flush)")" 1
	add 16
done

# No write succeeds.  The disk's rules do not cover a segment file that is made later, and a
# write into that file ends the degraded state: then set the rules again.
nothing_written() {
	fail_data w 5 1000
	fresh=$((fresh + 8))
	eq "sealed while nothing can be written" "$(figure done "$(blocks save $fresh 8)")" 8
	[ "$(figure refused "$(blocks flush)")" = 1 ] && degraded 1 && ! online
}
for ((i = 0; i < 20; i++)); do
	nothing_written && break
	tell heal
done
[ $i -lt 20 ] || fail "the state cannot be seen: $(grep '^ssd  ' "$M/.kvfs/stats")"
eq "read from DRAM" "$(figure done "$(blocks check $fresh 8)")" 8
tell heal
wait_until 60 degraded 0 || fail "still degraded"
stop
start
out=$(blocks check $fresh 8)
eq "written in the end" "$(figure done "$out")" 8
blocks check 0 400 > /dev/null
eq "corrupt blocks" "$(metric kvfs_corrupt_blocks_total)" 0
echo "data: $(faults) requests failed"

seen_or_dead() { ! alive || degraded 1; }
# Check that the daemon works in DRAM while its disk is unusable; `begun` is when that
# began.
dram_only() { # dram_only WHAT FIRST
	wait_until 60 seen_or_dead
	alive || fail "$1: the daemon is gone"
	degraded 1 || fail "$1: the state cannot be seen"
	stop_load # the load would evict the blocks that are read below
	echo "$1: seen in $(((${EPOCHREALTIME/./} - begun) / 1000)) ms: $(grep '^ssd  ' "$M/.kvfs/stats")"
	online && fail "$1: stats says online"
	eq "$1: sealed in DRAM" "$(figure done "$(blocks save "$2" 32)")" 32
	eq "$1: read from DRAM" "$(figure done "$(blocks check "$2" 32)")" 32
	blocks check 0 400 > /dev/null # blocks on SSD are exact or absent
	eq "$1: a flush" "$(figure refused "$(blocks flush)")" 1
	alive || fail "$1: the daemon is gone"
}
begin_load() {
	(
		trap 'kill "$p" 2> /dev/null; exit' TERM
		for ((i = 100000; ; i += 8)); do
			"$H/blocks" durable "$SOCK" $i 8 & p=$!
			wait "$p"
			sleep 0.02
		done
	) > "$T/load" 2>&1 & workers+=($!)
	sleep 0.5
}
stop_load() {
	[ ${#workers[@]} != 0 ] || return
	kill "${workers[@]}"
	wait "${workers[@]}" 2> /dev/null
	workers=()
}

# All reads and writes fail, and the filesystem stops working.  Pinned blocks are checked
# afterwards: they are never evicted, so a missing one is lost.
add 32
eq "pinned" "$(figure done "$(blocks pin $((saved - 32)) 32)")" 32
eq "pins are durable" "$(figure done "$(blocks flush)")" 1
begin_load
begun=${EPOCHREALTIME/./}
tell fail.rwf.5.1000.0.$((1 << 40))
dram_only "the disk fails" 300000
bounded unmount "$M"
gone
tell heal
bounded umount "$F"
mount -t ext4 -o noatime "$loop" "$F" || fail "mount after the fault"
start
eq "last end" "$(grep ^last_end= "$M/.kvfs/config")" last_end=crash
eq "durable before the fault" "$(figure done "$(blocks check $((saved - 32)) 32)")" 32
eq "corrupt blocks" "$(metric kvfs_corrupt_blocks_total)" 0
add 32

# The disk disappears during all kinds of requests.
begin_load
begun=${EPOCHREALTIME/./}
kill -KILL "$disk_pid"
dram_only "the disk is gone" 310000
bounded unmount "$M"
gone
disk_lost

# The disk disappears, so that pages of the index that are not in memory cannot be read.
disk_begin ext4 $((256 << 20))
saved=0
start
add 400
stop
start
dd if="$S/index/data.mdb" of=/dev/null iflag=nocache count=0 status=none
begun=${EPOCHREALTIME/./}
kill -KILL "$disk_pid"
rm -f "$M"/a/0*/*
timeout 60 "$H/blocks" flush "$SOCK" > /dev/null
dram_only "the disk is gone, and the index" 320000
bounded unmount "$M"
gone
disk_lost
