#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# clients.sh - an engine is killed with leases and saves under way, again and again: the
# daemon releases all its holds within a second.  And the daemon is killed again and again
# while a reader has leased blocks: the reader sees the right bytes all the time, and
# connects to each next daemon by itself.
. "$(dirname "$0")/lib"
BASE=$ALL,dram=48M,ssd=256M,segment=8M,hugepages=off,scrub=0
start
"$H/blocks" durable "$SOCK" 0 64 | grep -q '^done 64 ' || fail "saving"
find "$M/a" -type f ! -name .layout -exec setfattr -n user.kvfs.pin -v 1 {} + || fail "pinning"
daemon=$(daemon_pids)
descriptors() { ls -l "/proc/$daemon/fd" | grep -vc '\.seg$'; }
held() { [ "$(metric kvfs_leases)" -ge "$1" ]; }
# Succeed if clients hold nothing: no leases, no unfinished saves, no retired segments and
# no connections.
nothing_held() {
	awk '/^kvfs_(leases|saving_blocks|retired_segments|connections) / { n += $2 } END { exit n != 0 }' "$M/.kvfs/metrics"
}
some_retired() { [ "$(metric kvfs_retired_segments)" != 0 ]; }
before=$(descriptors) most=0 within=0 retired=0
for ((round = 0; round < 30; round++)); do
	: > "$T/out"
	"$H/engine" hold "$SOCK" $round > "$T/out" &
	engine=$!
	workers=($engine)
	wait_until 60 grep -q holds "$T/out" || fail "the engine does not start"
	held 64 || fail "round $round: no leases: $(cat "$T/out" "$M/.kvfs/stats")"
	# A stopped client keeps segments mapped that the daemon retires, because other
	# clients need segments of another access class.
	if [ $((round % 3)) = 0 ]; then
		sleep 0.2
		kill -STOP $engine
		chmod $((round % 2 ? 755 : 700)) "$M/a" || fail chmod
		for try in 1 2 3; do
			"$H/blocks" save "$SOCK" $((1000 + round * 1200 + try * 400)) 400 > /dev/null
			! some_retired || break
		done
		! some_retired || retired=$((retired + 1))
	fi
	sleep "0.0$((RANDOM % 90 + 10))"
	from=${EPOCHREALTIME/./}
	{ kill -KILL $engine; wait $engine; } 2>/dev/null
	wait_until 60 nothing_held || fail "round $round: still held: $(cat "$M/.kvfs/stats")"
	took=$((${EPOCHREALTIME/./} - from))
	workers=()
	[ $took -le $most ] || most=$took
	[ $took -ge 1000000 ] || within=$((within + 1))
done
# On a slow machine most rounds may take longer than a second: one quick round is enough.
[ $within -ge 1 ] || fail "within a second all was back $within times only, at last after $most microseconds"
[ $retired -gt 0 ] || fail "no segment was ever retired while it was held"
[ "$(descriptors)" -le $((before + 8)) ] || fail "descriptors: $before before, $(descriptors) after"
"$H/blocks" check "$SOCK" 0 64 | grep -q '^done 64 ' || fail "blocks after the engines"
echo "30 engines killed: all they held was back within $((most / 1000)) ms, within a second $within times"

"$H/engine" read "$SOCK" > "$T/out" &
workers=($!)
leased() { [ "$(grep -c '^leased' "$T/out")" -ge "$1" ]; }
wait_until 60 leased 1 || fail "the reader does not start"
most=0
for ((round = 1; round <= 20; round++)); do
	kill_daemon
	sleep 0.05
	kill -0 "${workers[0]}" || fail "the reader died: $(cat "$T/out")"
	from=${EPOCHREALTIME/./}
	start
	wait_until 60 leased $((round + 1)) || fail "round $round: the reader does not find the next daemon"
	took=$((${EPOCHREALTIME/./} - from))
	[ $took -le $most ] || most=$took
done
end_load 0
grep -q '^looked' "$T/out" || fail "the reader: $(cat "$T/out")"
eq "leased anew" "$(grep -c '^leased' "$T/out")" 21
echo "20 daemons killed: the reader $(tail -n 1 "$T/out"), and found the next one within $((most / 1000)) ms, mounting included"
wait_until 60 nothing_held || fail "held after the reader: $(cat "$M/.kvfs/stats")"
stop
