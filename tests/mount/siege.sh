#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# siege.sh [SECONDS] - one user takes as much as it can, in every way at once.  No call of
# another user, who stays within its guarantees, fails.  Prints the latencies of that user,
# alone and during the siege.  The control thread maps and unmaps no staging memory.
. "$(dirname "$0")/lib"
seconds=${1:-8}
needs_root setpriv
A="setpriv --reuid 1001 --regid 1001 --clear-groups"
C="setpriv --reuid 1002 --regid 1002 --clear-groups"
cp "$B/tests/mount/siege" "$T/siege"
chmod 755 "$T/siege"
start
ok "a guarantee" setfattr -n user.kvfs.reserve.dram -v 8M "$M/.kvfs/tenants/1002"
ok "a guarantee" setfattr -n user.kvfs.reserve.ssd -v 32M "$M/.kvfs/tenants/1002"
echo "alone:"
$C "$T/siege" work "$SOCK" "$M" 5 || fail "calls fail without anybody else"
$A "$T/siege" attack "$SOCK" "$M" $((seconds + 2)) > /dev/null 2>&1 &
attack=$!
sleep 1
echo "besieged:"
$C "$T/siege" work "$SOCK" "$M" "$seconds" || fail "calls fail"
wait "$attack"
echo "afterwards:"
$C "$T/siege" work "$SOCK" "$M" 3 || fail "calls fail afterwards"
stop

start
$A "$T/siege" read "$SOCK" "$M" 10 > "$T/readers" &
readers=$!
until grep -q ready "$T/readers"; do
	kill -0 "$readers" || fail "$(cat "$T/readers")"
	sleep 0.05
done
echo "while three clients acquire 8 blocks of 1 MiB each from SSD:"
$C "$T/siege" work "$SOCK" "$M" 3 || fail "calls fail"
wait "$readers" || fail "acquires fail: $(cat "$T/readers")"
echo "those acquires:"
grep -v ready "$T/readers"
stop

start dram=128M,writeback=none
$A "$T/siege" remap "$SOCK" "$M" 8 > "$T/mapped" &
attack=$!
until grep -q memfd:staging "/proc/$(daemon_pids)/maps"; do
	kill -0 "$attack" || fail "the daemon maps nothing"
	sleep 0.05
done
echo "while staging memory is mapped:"
cpu() { # cpu THREADS: their CPU time in microseconds
	local task
	for task in $(grep -lx "$1" "/proc/$(daemon_pids)"/task/*/comm); do
		cut -d' ' -f1 "${task%comm}schedstat"
	done | awk '{ n += $1 } END { print int(n / 1000) }'
}
$C "$T/siege" work "$SOCK" "$M" 3 || fail "calls fail"
control=$(cpu kvfs-control) workers=$(cpu kvfs-waits)
kill -0 "$attack" || fail "the attack has ended"
wait "$attack"
control=$(($(cpu kvfs-control) - control)) workers=$(($(cpu kvfs-waits) - workers))
echo "$(cat "$T/mapped") changes between two files of 512 MiB; then $workers us of workers, $control us of the control thread"
[ "$workers" -gt "$control" ] || fail "the control thread maps or unmaps"
stop
