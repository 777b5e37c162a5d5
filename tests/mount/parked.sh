#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# parked.sh - writers beyond their space's rate wait, but other writers do not.  Waiting
# writes can be interrupted, and do not keep the mount from ending.
. "$(dirname "$0")/lib"
WRITERS=60
start
block "$T/b"
ok "another space" mkdir "$M/other"
ok "a file there" put other 1 "$T/b"
ok "a space with a rate" mkdir "$M/slow"
ok "which is small" setfattr -n user.kvfs.rate.put -v 400000 "$M/slow"
pids=
for ((i = 0; i < 12; i++)); do
	put slow "$i" "$T/b" &
	pids="$pids $!"
done
for pid in $pids; do
	wait "$pid" || fail "a writer beyond the rate does not get its turn"
done
for ((i = 0; i < 12; i++)); do
	same "what it wrote" "$T/b" "$M/slow/$(place "$i")"
done

ok "a rate that is smaller" setfattr -n user.kvfs.rate.put -v 100 "$M/slow"
for ((i = 100; i < 100 + WRITERS; i++)); do
	mkdir -p "$M/slow/$(printf %02x "$i")"
	cp "$T/b" "$M/slow/$(place "$i")" 2> /dev/null &
	last=$!
done
parked() {
	local i
	for ((i = 0; i < 600; i++)); do
		[ "$(jobs -r | wc -l)" -ge $((WRITERS - 1)) ] && return
		sleep 0.1
	done
	fail "the writers do not wait"
}
parked
failed=0
for ((i = 0; i < 20; i++)); do
	timeout 60 cmp "$T/b" "$M/other/$(place 1)" || failed=$((failed + 1))
	timeout 60 ls "$M/other/01" > /dev/null || failed=$((failed + 1))
	timeout 60 sync "$M/other/$(place 1)" || failed=$((failed + 1))
	timeout 60 sync "$M/other" || failed=$((failed + 1))
	[ "$failed" -gt 2 ] && break
done
eq "calls of others that fail while $WRITERS writers wait" "$failed" 0
kill "$last"
ended=0
for ((i = 0; i < 600 && !ended; i++)); do
	kill -0 "$last" 2> /dev/null || ended=1
	sleep 0.1
done
eq "a writer that waits can be killed" "$ended" 1
pid=$(daemon_pids)
kill "$pid"
ended=0
for ((i = 0; i < 600 && !ended; i++)); do
	kill -0 "$pid" 2> /dev/null || ended=1
	sleep 0.1
done
eq "a mount with writers that wait ends" "$ended" 1
wait
