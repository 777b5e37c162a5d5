#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_storm.sh [SECONDS [BACKEND]] - two nodes save and request the same blocks all the
# time, more of them than either node holds, while at random moments one of the daemons or a
# server of the BACKEND is killed (s3: stopped).  No byte is wrong, acquires end in time,
# and in the end each node gets blocks of the other and all memory is free.
. "$(dirname "$0")/lib"
. "$here/tiers"
seconds=${1:-${KVFS_SECONDS:-12}}
kind=${2:-dir}
BYTES=32768 BLOCKS=1200
N=$T/node
mkdir "$N"
trap 'end_servers; cleanup' EXIT
storm() { "$B/tests/mount/storm" "$@"; }
word() { sed -n "s/.*\\b$1 \\([-0-9.]*\\).*/\\1/p" "$2"; }
remote_metric() { # remote_metric MOUNT NAME: print the value of kvfs_remote_NAME
	sed -n "s/^kvfs_remote_$2 //p" "$1/.kvfs/metrics"
}
node() { # node NODE: mount node 1 or 2; retry while a killed daemon still has the store
	local options="dram=16M,ssd=32M,segment=8M,hugepages=off,remote_threshold=1,remote=$url" i
	for ((i = 0; i < 100; i++)); do
		if [ "$1" = 1 ]; then
			"$B/kvfs" -o "$options,control=$SOCK" "$S" "$M" && return
		else
			"$B/kvfs" -o "$options,control=$T/sock2" "$T/store2" "$N" && return
		fi 2>"$T/start.log"
		sleep 0.1
	done
	fail "node $1 does not start: $(cat "$T/start.log")"
}
mount_of() { [ "$1" = 1 ] && echo "$M" || echo "$N"; }
store_of() { [ "$1" = 1 ] && echo "$S" || echo "$T/store2"; }
count_gets() { # count_gets NODE: add the blocks that the node got, before its counters are lost
	local bytes
	bytes=$(remote_metric "$(mount_of "$1")" got_bytes_total)
	gets=$((gets + ${bytes:-0} / BYTES))
}
kill_node() {
	count_gets "$1"
	kill -KILL "$(pgrep -f -- "^[^ ]*kvfs .*$(store_of "$1") ")" || fail "node $1 is not there"
	sleep 0.$((RANDOM % 10))
	umount -l "$(mount_of "$1")"
	node "$1"
}
kill_server() { # ROLE: kill or stop the server that is `owner` or `master` (see tiers), and restart it
	local how=kill
	[ "$kind" != s3 ] || how=stop # moto keeps its objects in memory only
	harm "$1-$how"
	sleep 0.$((RANDOM % 10))
	heal "$1-$how"
}
strike() {
	case $((RANDOM % 4))-$kind in
	0-* | 1-*) kill_node $((RANDOM % 2 + 1)); daemons=$((daemons + 1)) ;;
	2-mooncake) kill_server master; killed=$((killed + 1)) ;;
	2-* | 3-*) kill_server owner; killed=$((killed + 1)) ;;
	esac
}
memory_back() { # memory_back NODE: succeed if the node has no lease and has lent no memory
	grep -q '^kvfs_leases 0$' "$(mount_of "$1")/.kvfs/metrics" &&
		[ "$(remote_metric "$(mount_of "$1")" lent_bytes)" = 0 ]
}
brings() { # brings NODE: request blocks until the node gets some from the remote tier
	local before
	before=$(remote_metric "$(mount_of "$1")" got_bytes_total)
	storm "$(socket_of "$1")" s get $BYTES $BLOCKS 1 2000 4 >"$T/last" || fail "in the end: $(cat "$T/last")"
	[ "$(remote_metric "$(mount_of "$1")" got_bytes_total)" -gt "$before" ]
}
socket_of() { [ "$1" = 1 ] && echo "$SOCK" || echo "$T/sock2"; }

serve "$kind" || exit $?
node 1
node 2
storm "$SOCK" s save $BYTES 400 || fail "save"
gets=0 daemons=0 killed=0 clients=()
for i in 1 2; do
	storm "$(socket_of $i)" s get $BYTES $BLOCKS "$seconds" 200 8 >"$T/get$i" & clients+=($!)
	storm "$(socket_of $i)" s churn $BYTES $BLOCKS "$seconds" 0 >"$T/churn$i" & clients+=($!)
done
end=$((SECONDS + seconds - 1))
sleep 1
while [ $SECONDS -lt $end ]; do
	sleep $((RANDOM % 2)).$((RANDOM % 10))
	strike
done
rc=0
for pid in "${clients[@]}"; do wait "$pid" || rc=1; done
[ $rc = 0 ] || fail "$(cat "$T"/get? "$T"/churn?)"
count_gets 1
count_gets 2
for i in 1 2; do
	wait_for 60 brings $i || fail "node $i has nothing brought any more: $(grep ^remote "$(mount_of $i)/.kvfs/stats")"
	wait_for 60 memory_back $i || fail "memory of node $i does not come back: $(grep ^remote "$(mount_of $i)/.kvfs/stats")"
	eq "wrong blocks at node $i" "$(word wrong "$T/get$i")" 0
	late=$(word max "$T/get$i")
	[ "${late%.*}" -lt 3000 ] || fail "an acquire ended $late ms after its deadline"
done
printf '%s: %d s, %d daemons and %d servers killed; gets %d, compared %d, wrong 0; saved %d; end_ms p99.9 %s %s max %s %s, machine late %s %s\n' \
	"$kind" "$seconds" $daemons $killed $gets $(($(word hits "$T/get1") + $(word hits "$T/get2"))) \
	$(($(word saved "$T/churn1") + $(word saved "$T/churn2"))) \
	"$(word p99.9 "$T/get1")" "$(word p99.9 "$T/get2")" "$(word max "$T/get1")" "$(word max "$T/get2")" \
	"$(word machine_late "$T/get1")" "$(word machine_late "$T/get2")"
for i in 1 2; do unmount "$(mount_of $i)" || fail "umount of node $i"; done
gone
