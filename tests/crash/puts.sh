#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# puts.sh - the daemon is killed while it puts blocks to a directory, again and again.  Every
# object is whole, and in the end another node gets every block with the right bytes.
# KVFS_KILLS=300: the long form.
. "$(dirname "$0")/lib"
kills=${KVFS_KILLS:-12}
BYTES=131072 EACH=8 # number of new blocks in each round
N=$T/node R=$T/remote
mkdir "$N" "$R"
storm() { "$B/tests/mount/storm" "$@"; }
objects() { find "$R" -type f -path '*/2-*'; }
all_there() { [ "$(objects | wc -l)" = $((kills * EACH)) ]; }
had() { [ "$(objects | wc -l)" -gt "$1" ]; }
# parts: print the number of files that interrupted PUTs have left.
parts() { find "$R/.part" -type f | wc -l; }

for ((i = 1; i <= kills; i++)); do
	# Half of the objects are lost.  The daemon offers their blocks again, beside the
	# new blocks.
	objects | awk 'NR % 2' | xargs -r rm
	left=$(objects | wc -l)
	start "remote=dir:$R"
	storm "$SOCK" s save $BYTES $((i * EACH)) >"$T/out" 2>&1 &
	workers=($!)
	wait_until 20 had "$left" || fail "round $i: nothing is put: $(cat "$T/out")"
	sleep "0.0$((RANDOM % 5))"
	kill_daemon
	end_workers
	workers=()
	umount -l "$M"
done
echo "$kills kills, $(parts) of them within a put"
[ "$(parts)" -gt 0 ] || [ "$kills" -lt 100 ] || fail "no kill was within a put"

start "remote=dir:$R"
said=$(storm "$SOCK" s save $BYTES $((kills * EACH)))
eq "saving all" "$said" ""
wait_until 120 all_there || fail "$(objects | wc -l) objects of $((kills * EACH)): $(grep -A9 ^remote "$M/.kvfs/stats")"
stop
# The checking node leases all blocks at once.
"$B/kvfs" -o "segment=8M,hugepages=off,dram=$((64 + kills * 2))M,ssd=0,control=$T/sock2,remote_threshold=1,remote=dir:$R" "$T/store2" "$N" || fail "the other node"
said=$(storm "$T/sock2" s pull $BYTES $((kills * EACH)) $EACH) || fail "the other node: $said"
case $said in "pulled $((kills * EACH)) wrong 0 "*) ;; *) fail "the other node: $said" ;; esac
eq "damaged objects" "$(sed -n 's/^kvfs_remote_damaged_total //p' "$N/.kvfs/metrics")" 0
unmount "$N"
gone
