#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kill.sh [ROUNDS] - the daemon is killed by SIGKILL under load, again and again,
# on one store.  What was acknowledged as durable is there byte for byte, what
# was not is absent or byte for byte, what was removed and synced stays away, and
# nothing is left behind.  At the end the checker is shown to find planted faults.
. "$(dirname "$0")/lib"
rounds=${1:-50}
J=$T/journal
SSD=$((512 << 20))
BASE=dram=48M,ssd=$SSD,segment=8M,hugepages=off,scrub=0
RANDOM=${KVFS_SEED:-$$}
echo "seed ${KVFS_SEED:-$$}"

mount_timed() {
	local from=${EPOCHREALTIME/./}
	start
	echo $((${EPOCHREALTIME/./} - from)) >> "$T/times"
}
begin_load() { # ROUND
	local i
	for i in 0 1 2; do "$H/saver" "$SOCK" "$J" $i "$RANDOM" & workers+=($!); done
	for i in 3 4; do "$H/filer" "$M" "$J" $i "$RANDOM" & workers+=($!); done
	for i in 1 2; do "$H/reader" "$SOCK" "$M" "$J" "$RANDOM" & workers+=($!); done
}
# 3: it had not begun when the daemon died.
stop_load() { end_load 0 3; }
# Nothing in the store, the mount or beside the socket that should not be there.
leftovers() {
	local files
	eq "the store's directory" "$(ls -A "$S" | tr '\n' ' ')" "index lock segments "
	eq "the index's directory" "$(ls -A "$S/index" | tr '\n' ' ')" "data.mdb lock.mdb "
	eq "odd segment files" "$(ls -A "$S/segments" | grep -vE '^[0-9]{6}\.seg$')" ""
	files=$(sed -n 's/^ *\([0-9]*\) segment files.*/\1/p' "$M/.kvfs/stats")
	eq "segment files known" "$files" "$(ls -A "$S/segments" | wc -l)"
	[ "$(du -sB1 "$S" | cut -f1)" -le "$SSD" ] || fail "the store is over its cap"
	eq "being saved" "$(metric kvfs_saving_blocks)" 0
	eq "leased" "$(metric kvfs_leases)" 0
	eq "damaged blocks" "$(metric kvfs_corrupt_blocks_total)" 0
	eq "hidden files" "$(find "$M" -mindepth 2 -name '.*' ! -name .layout ! -path '*/.kvfs/*')" ""
	eq "blocks listed" "$(find "$M" -mindepth 3 -type f ! -path '*/.kvfs/*' | wc -l)" "$1"
}
check() {
	local out present
	out=$("$H/checker" "$SOCK" "$M" "$J") || fail "round $1: $out"
	present=$(awk '/^present/ { print $2 }' <<< "$out")
	checked=$((checked + $(awk '/^present/ { print $4 }' <<< "$out")))
	leftovers "$present"
}

checked=0
mount_timed
for ((round = 1; round <= rounds; round++)); do
	begin_load
	sleep "0.$((RANDOM % 800 + 150))"
	kill_daemon
	stop_load
	[ $((round % 2)) = 0 ] || umount -l "$M" || fail "umount -l"
	mount_timed # every second time over the dead mount
	grep -q '^last_end=crash' "$M/.kvfs/config" || fail "the end was no crash"
	check $round
done
totals=$("$H/checker" - - "$J") || fail "while it ran: $totals"
stop
[ ! -e "$SOCK" ] || fail "the socket is left behind"
start
check "after a clean end"
sort -n "$T/times" | awk -v r="$rounds" -v c="$checked" -v t="$totals" '{ v[NR] = $1 / 1000 }
	END { printf "%d rounds: %s; checked %d: 0 lost, 0 wrong; mount p50 %.0f ms, max %.0f ms\n",
		r, t, c, v[int((NR + 1) / 2)], v[NR] }'

# A block that is removed while it is on its way to SSD is gone once its space is
# synced: the daemon dies the moment it says so.
for ((round = 0; round < 12; round++)); do
	"$H/undo" "$SOCK" $round $((round * 800)) "$(daemon_pids)" || fail "undo"
	wait_until 10 ended "$(daemon_pids)" || fail "the daemon does not die"
	start
	"$H/undo" "$SOCK" $round || fail "removed blocks returned"
done
echo "12 times removed while being written: none returned"
stop

# The limit of huge pages is as before, although nobody could lower it.  Others
# may change it meanwhile: three tries.
if [ "$(id -u)" = 0 ] && [ -w /proc/sys/vm/nr_overcommit_hugepages ]; then
	huge() { cat /proc/sys/vm/nr_overcommit_hugepages; }
	for try in 1 2 3; do
		before=$(huge)
		for i in 1 2 3; do
			start hugepages=auto
			kill_daemon
		done
		start hugepages=auto
		stop
		after=$(huge)
		[ "$after" != "$before" ] || break
	done
	eq "nr_overcommit_hugepages" "$after" "$before"
	echo "the limit of huge pages is as before"
fi
start

# Negative controls: the same checker, and a fault that it must find.
must_find() { # WHAT VERDICT
	local out
	out=$("$H/checker" "$SOCK" "$M" "$J") && fail "the checker does not see $1"
	grep -q "$2" <<< "$out" || fail "the checker takes $1 for: $out"
	echo "found as planted: $1"
}
cp "$J" "$T/journal.saved"
restore_journal() { cp "$T/journal.saved" "$J"; }
"$H/checker" - - "$J" plant
must_find "a block of an older generation" 'returned 1$'
restore_journal
kill_daemon
rm "$S"/segments/*.seg
start
must_find "segment files that are gone" 'lost [1-9][0-9]* wrong 0 '
restore_journal
stop
rm -rf "$S"
rm -f "$J"
start
begin_load
sleep 1
stop_load
sync "$M/a"
"$H/checker" - - "$J" || fail "while it ran"
kill_daemon
python3 - "$S"/segments/*.seg <<'P' || fail "flipping bytes"
import sys
n = 0
for name in sys.argv[1:]:
    with open(name, "r+b") as f:
        data = f.read()
        at = data.find(b"TSETSFVK")
        if at < 0:
            continue
        f.seek(at + 40)
        byte = f.read(1)
        f.seek(at + 40)
        f.write(bytes([byte[0] ^ 4]))
        n += 1
assert n > 0
P
start
must_find "a bit that flipped" 'lost 0 wrong 0 damaged [1-9]'
[ "$(metric kvfs_corrupt_blocks_total)" -gt 0 ] || fail "the daemon did not see the bit"
stop
