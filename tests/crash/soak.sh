#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# soak.sh [SECONDS] - eight processes save, load, hold, evict, pin, remove, read and write
# the same blocks at once, more of them than either tier holds.  Every byte is checked, the
# cap is kept, no file is left behind, the end is clean.
. "$(dirname "$0")/lib"
seconds=${1:-20}
SSD=$((256 << 20))
BASE=$ALL,dram=64M,ssd=$SSD,segment=8M,hugepages=off,scrub=50M
seed=${KVFS_SEED:-$$}
echo "seed $seed"

"$B/kvfs" -f -o "$BASE,control=$SOCK" "$S" "$M" 2> "$T/log" &
daemon=$!
wait_until 60 mountpoint -q "$M" || fail "kvfs does not start: $(cat "$T/log")"
for i in 1 2 3 4 5 6 7 8; do
	"$H/soak" "$SOCK" "$M" $((seed + i)) >> "$T/out" &
	workers+=($!)
done
end=$((SECONDS + seconds)) most=0
while [ $SECONDS -lt $end ]; do
	sleep 0.5
	held=$(du -sB1 "$S" | cut -f1)
	[ "$held" -le "$most" ] || most=$held
	for pid in "${workers[@]}"; do
		kill -0 "$pid" 2>/dev/null || fail "a client ended: $(cat "$T/out" "$T/log")"
	done
done
[ "$most" -le $SSD ] || fail "the store had $most bytes, more than ssd="
end_load 0 3 # exit status 3: the client was opening a session when it was told to end
nothing_held() {
	[ "$(metric kvfs_leases) $(metric kvfs_saving_blocks) $(metric kvfs_connections)" = "0 0 0" ]
}
wait_until 60 nothing_held || fail "held after the clients ended: $(cat "$M/.kvfs/stats")"
wait_until 60 eval '[ "$(metric kvfs_retired_segments)" = 0 ]' || fail "retired segments stay"
eq "damaged blocks" "$(metric kvfs_corrupt_blocks_total)" 0
eq "conflicts" "$(metric kvfs_conflicts_total)" 0
eq "I/O errors" "$(metric kvfs_io_errors_total)" 0
cat "$M/.kvfs/stats"
unmount "$M" || fail umount
wait_until 60 ended $daemon || fail "the daemon does not end"
wait $daemon
rc=$?
[ ! -s "$T/log" ] || cat "$T/log"
eq "the daemon's exit status" $rc 0
grep -v " blocks found no room on SSD, and end with the mount$" "$T/log" && fail "the daemon said something"
awk -v m="$most" -v s="$seconds" '{ t += $1; c += $2 } END { printf "%d turns, %d blocks compared in %d s; store at most %d MiB\n", t, c, s, m / 1048576 }' "$T/out"
start
eq "the end was clean" "$(grep ^last_end= "$M/.kvfs/config")" last_end=clean
stop
