#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# cap.sh - the store is measured all the time while it works: it never has a byte more
# than ssd=, even if the daemon saves, removes, compacts, is killed, starts again with a
# smaller cap, or shares its disk with other writers.
. "$(dirname "$0")/lib"
M1=$((1 << 20))
seed=${KVFS_SEED:-$RANDOM}
echo "seed $seed"
cap() { timeout 300 "$H/cap" "$1" "$S" "${@:2}" || fail "cap $*"; }

# Save and remove blocks of all sizes, twice as many as fit.  The segment files alone can
# fill this cap to the last byte.
cap churn $((68 * M1)) 0 2 "$seed"
"$H/cap" churn "$S" $((68 * M1)) 0 60 $((seed + 1)) & workers+=($!)
sleep 1.5
end_workers
cap churn $((68 * M1)) 0 2 $((seed + 2))
cap open $((52 * M1)) $((68 * M1))
cap churn $((52 * M1)) 0 2 $((seed + 3))
rm -rf "$S"

# The index must be compacted: blocks were removed, and the index is too large for the
# smaller cap.
cap fill $((1024 * M1)) 0 24000 4000
cap thin $((1024 * M1)) 0 3
cap open $((60 * M1)) $((1024 * M1))
[ "$(stat -c %s "$S/index/data.mdb")" -le $((2 * M1)) ] || fail "the index was not compacted"
cap churn $((60 * M1)) 0 2 $((seed + 4))
rm -rf "$S"

# Other writers fill the daemon's disk, and empty it again.
disk=$T/disk
mkdir "$disk"
truncate -s 96M "$T/image"
mkfs.ext4 -q -m 0 "$T/image" && mount -o loop "$T/image" "$disk" 2> /dev/null ||
	{ echo "no loop devices, the rest is left out"; exit 0; }
S=$disk/store
BASE=$ALL,dram=32M,ssd=64M,segment=8M,hugepages=off,scrub=0
start
"$H/cap" watch "$S" $((64 * M1)) > "$T/watched" & watch=$!
blocks() { timeout 300 "$H/blocks" "$1" "$SOCK" "${@:2}" > /dev/null || fail "blocks $*"; }
blocks save 0 100
dd if=/dev/zero of="$disk/balloon" bs=1M status=none 2> /dev/null
blocks durable 1000 300
rm "$disk/balloon"
blocks durable 2000 600
rm -rf "$M/a"/*
blocks durable 3000 300
stop
kill -TERM $watch
wait $watch || fail "watched: $(cat "$T/watched")"
cat "$T/watched"
umount "$disk"
