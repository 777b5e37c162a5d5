#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: alone, it compares the latencies of two users
# crowd.sh - one user makes requests to the mount from many processes.  Another user's
# calls and the end of the mount do not wait for them, and killed processes end.
. "$(dirname "$0")/lib"
needs_root setpriv
A="setpriv --reuid=4001 --regid=4001 --clear-groups"
C="setpriv --reuid=4002 --regid=4002 --clear-groups"
# Copy the program for users who may not read the build.
cp "$B/tests/mount/crowd" "$T/crowd"
chmod 755 "$T/crowd"
block "$T/b" && chmod 644 "$T/b"

begin() { # begin ACT PATH: have 300 processes do ACT on PATH until end()
	exec 7> >(exec "$T/crowd" 300 "$1" "$2" >"$T/done")
	crowd=$!
}
end() {
	exec 7>&-
	wait "$crowd"
	[ "$(cat "$T/done")" -gt 0 ] || fail "the crowd did nothing"
}
# p50 USER CALLS SPACE: print the median time of the user's open, read and close
p50() {
	local out
	out=$($1 timeout 120 "$T/crowd" time "$2" "$M/$3/$(place 1)") || fail "$3 does not read"
	out=${out% *}
	echo "${out%.*}"
}

start
for i in $(seq 150); do mkdir "$M/s$i"; done
for who in A C; do
	ok "$who's space" ${!who} mkdir "$M/$who" "$M/$who/01"
	ok "$who saves" ${!who} cp "$T/b" "$M/$who/$(place 1)"
done
begin read "$M/.kvfs/metrics"
# Wait until calls of the crowd queue up at the daemon.
for ((i = 0; i < 50; i++)); do
	own=$(p50 "$A" 1 A)
	[ "$own" -gt 20000 ] && break
done
own=$(p50 "$A" 3 A)
other=$(p50 "$C" 15 C)
echo "open, read: $own us for the crowd's user, $other for another"
[ $((other * 4)) -lt "$own" ] || fail "another user waits $other us, the crowd's $own"

end
# Concurrent readers with the same rights share a text that was begun after their open.
ticks() { awk '{ print $14 + $15 }' "/proc/$(daemon_pids)/stat"; }
cost() { # cost COMMAND...: print the daemon's CPU time for an open and read, in microseconds
	local from
	from=$(ticks)
	exec 7> >(exec "$@" 100 read "$M/.kvfs/metrics" >"$T/done")
	crowd=$!
	sleep 2
	end
	echo $((($(ticks) - from) * 10000 / $(cat "$T/done")))
}
each=$(cost "$T/crowd") # the groups of these processes differ
shared=$(cost $A "$T/crowd")
echo "metrics: $each us of CPU for each reader, $shared us if they share texts"
[ $((shared * 10)) -lt $((each * 6)) ] || fail "readers of the metrics share no text"

begin read "$M/.kvfs/metrics"
until [ "$(p50 "$A" 1 A)" -gt 5000 ]; do :; done
kill -KILL "$crowd"
for ((i = 0; i < 600; i++)); do
	pgrep -u 4001 >/dev/null || break
	sleep 0.1
done
pgrep -u 4001 >/dev/null && fail "killed processes do not end"
exec 7>&-

# Changes of the root directory lock it, even changes that fail: the rate of a user's
# changes is limited.
full() { printf "$M/%s\n" $(yes "$1" | head -1100) | LC_ALL=C ${2:-} xargs rmdir 2>&1 | sed 's/.*: //' | sort -u | xargs; }
eq "an operator goes on" "$(full A)" "Directory not empty"
eq "a user does not" "$(full A "$A")" "Directory not empty Resource temporarily unavailable"
not "nor by mkdir" "Resource temporarily unavailable" $A mkdir "$M/a2"
ok "another may" $C mkdir "$M/c2"

# The mount ends while requests wait.
begin stat "$M/A"
until grep -q 1 "$T/done" 2>/dev/null || [ "$(pgrep -cu 4001)" -ge 300 ]; do sleep 0.1; done
kill -TERM $(daemon_pids)
gone
end
umount -l "$M" 2>/dev/null
start
same "what was saved is there" "$T/b" "$M/A/$(place 1)"
stop
