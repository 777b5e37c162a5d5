#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kill.sh - SIGKILL the daemon under load, thousands of times, at any moment and at each
# of its kill points.  Blocks acknowledged as durable are present byte for byte, other
# blocks are absent or right, blocks that were removed and synced stay absent, and no file
# is left behind.  The programs that save, read and map survive: no SIGBUS, no wrong byte.
# At the end the checker is shown to find planted faults, and a daemon that acknowledges
# before it commits.
#
# 2,000 rounds, or as many as fit into 120 s (280 s in make test-all): the script prints
# the number.  run.sh: long
# KVFS_ROUNDS=10000 KVFS_SECONDS=3600: the long form.  KVFS_SEED=N: repeat a run.
. "$(dirname "$0")/lib"
rounds=${KVFS_ROUNDS:-2000}
seconds=${KVFS_SECONDS:-120}
seed=${KVFS_SEED:-$$}
J=$T/journal
SSD=$((112 << 20)) # so little room that segment files change their slot size
BASE=$ALL,dram=64M,ssd=$SSD,segment=8M,hugepages=off,scrub=0
P=$B-points/kvfs
[ -x "$P" ] || fail "$P is not built: make POINTS=1"
fsck=$B/kvfs-fsck
[ -x "$fsck" ] || fsck=
# KVFS_DIRS=2: half of the segment files are in another directory
MORE=
if [ "${KVFS_DIRS:-1}" = 2 ]; then
	export KVFS_MORE=$T/more
	MORE=$KVFS_MORE BASE+=,store=$KVFS_MORE
fi
echo "seed $seed"

# begin_load DIR: start the programs that work with the daemon of DIR
begin_load() {
	local i
	for i in 0 2 3; do "$H/saver" "$1/sock" "$1/journal" $i "$seed" & workers+=($!); done
	for i in 4 5; do "$H/filer" "$1/mnt" "$1/journal" $i "$seed" & workers+=($!); done
	for i in 1 2; do "$H/reader" "$1/sock" "$1/journal" "$seed$i" & workers+=($!); done
	"$H/mapper" "$1/mnt" "$1/journal" "$seed" & workers+=($!)
}
# Fail if the store, the mount or the socket's directory has an unexpected file.
leftovers() {
	local files
	files=$(sed -n 's/^ *\([0-9]*\) segment files.*/\1/p' "$M/.kvfs/stats")
	eq "segment files known" "$files" "$(ls -A "$S/segments" | wc -l)"
	[ "$(du -scB1 "$S" $MORE | tail -n 1 | cut -f1)" -le "$SSD" ] || fail "the store is over its cap"
	eq "being saved" "$(metric kvfs_saving_blocks)" 0
	wait_until 60 eval '[ "$(metric kvfs_leases)" = 0 ]' || fail "leases are left"
	eq "damaged blocks" "$(metric kvfs_corrupt_blocks_total)" 0
	eq "hidden files" "$(find "$M" -mindepth 2 -name '.*' ! -name .layout ! -path '*/.kvfs/*' ! -name .snapshots)" ""
	eq "blocks listed" "$(find "$M" -mindepth 3 -type f ! -path '*/.kvfs/*' | wc -l)" "$1"
}
check() {
	local out
	out=$("$H/checker" "$SOCK" "$M" "$J") || fail "$1: $out"
	echo "$1: $out"
	leftovers "$(awk '/^present/ { print $2 }' <<< "$out")"
}
fsck_clean() { [ -z "$fsck" ] || "$fsck" "$S" > "$T/fsck" 2>&1 || fail "kvfs-fsck $1: $(cat "$T/fsck")"; }

begin_load "$T"
"$H/killer" "$T" "$B/kvfs" "$P" "$rounds" "$seconds" "$seed" $fsck > "$T/out" ||
	fail "$(tail -qn 8 "$T/out" "$T/log" "$T/fsck" 2>/dev/null)"
cat "$T/out"
end_load 0 3 # exit status 3: the client was opening a session when it was told to end
grep -vE ' blocks (evicted|found no room on SSD, and end with the mount)$|: the index was rebuilt \(missing\): ' "$T/log" > "$T/said" && fail "a daemon said: $(cat "$T/said")"
check "after the last daemon's start"
stop
[ ! -e "$SOCK" ] || fail "the socket is left behind"
fsck_clean "after a clean end"
start
check "after a clean end"

# A block that is removed while it is being written to SSD is absent once its space was
# synced: the daemon is killed when the sync is answered.
for ((round = 0; round < 12; round++)); do
	pid=$(daemon_pids)
	"$H/undo" "$SOCK" $round $((round * 800)) "$pid" || fail "undo"
	wait_until 60 ended "$pid" || fail "the daemon does not die"
	start
	"$H/undo" "$SOCK" $round || fail "removed blocks returned"
done
echo "12 times removed while being written: none returned"

# A chain that is saved and left alone reaches the SSD completely: no client flushes, and
# the daemon is killed as soon as no block is dirty.
at_rest() { [ "$(metric kvfs_dirty_blocks)" = 0 ]; }
for ((round = 0; round < 18; round++)); do
	"$H/chain" "$SOCK" $round save || fail "chain"
	wait_until 60 at_rest || fail "the daemon does not come to rest"
	kill_daemon
	start
	"$H/chain" "$SOCK" $round || fail "blocks of a chain that was left alone are missing"
done
echo "18 chains left alone and killed: each was whole"
stop

# The system's limit of huge pages is as before, although the killed daemons could not lower
# it.  Other programs may change the limit meanwhile, so try three times.
if [ "$(id -u)" = 0 ] && [ -w /proc/sys/vm/nr_overcommit_hugepages ]; then
	huge() { cat /proc/sys/vm/nr_overcommit_hugepages; }
	for try in 1 2 3; do
		before=$(huge)
		for i in 1 2 3; do
			start hugepages=auto
			kill_daemon
		done
		cp -a "$S" "$T/copy" # mounting a copy must not lower the limit
		"$B/kvfs" -f -o "$BASE,control=$T/copied" "$T/copy" none &
		wait_until 60 [ -S "$T/copied" ] || fail "the copy does not start"
		kill $! && wait $! || fail "the copy does not end"
		rm -rf "$T/copy"
		start hugepages=auto
		stop
		after=$(huge)
		[ "$after" != "$before" ] || break
	done
	eq "nr_overcommit_hugepages" "$after" "$before"
	echo "the limit of huge pages is as before"
fi
start

# Negative controls: the checker must find a planted fault.
must_find() { # must_find WHAT VERDICT: fail unless the checker reports VERDICT for the fault WHAT
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
files=("$S"/segments/*.seg)
rm "${files[@]:0:${#files[@]} / 2}" || fail rm # with more files removed the daemon would not start
start
must_find "segment files that are gone" 'lost [1-9][0-9]* wrong 0 '
restore_journal
stop
rm -rf "$S" $MORE
rm -f "$J"
BASE=${BASE/ssd=$SSD/ssd=512M} # nothing is evicted
start
begin_load "$T"
sleep 1
end_load 0 3
sync "$M/e"
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

# The checker must find a daemon that acknowledges before it commits.
mkdir -p "$T/lie/mnt"
[ -z "$MORE" ] || KVFS_MORE=$T/lie/more
begin_load "$T/lie" > "$T/lie/out"
KVFS_LIE=ack "$H/killer" "$T/lie" "$P" "$P" 1000 20 "$seed" > "$T/out" &&
	fail "a daemon that lies is not noticed: $(tail -n 5 "$T/out")"
grep -Eq '(lost|returned) [1-9]' "$T/out" || fail "what a daemon that lies did is not seen: $(tail -n 5 "$T/out")"
end_load 0 3
echo "found: a daemon that acknowledges before it commits: $(grep '^acknowledged' "$T/out")"
