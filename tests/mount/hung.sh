#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hung.sh - sessions by the mount point of a hung daemon: no call waits for the daemon, and
# a session finds the next daemon that is mounted there.
. "$(dirname "$0")/lib"
H=$B/tests/mount/hung
start
pid=$(daemon_pids)
"$H" "$M" "$pid" || fail "a call waits for a daemon that hangs (status $?)"

freeze "$pid"
"$H" "$M" > "$T/out" 2>&1 &
for ((i = 0; i < 600; i++)); do [ -s "$T/out" ] && break; sleep 0.1; done
eq "a session of a daemon that hangs" "$(cat "$T/out")" open
umount -l "$M" 2> /dev/null || fusermount3 -uz "$M" || fail "umount -l"
S=$T/other SOCK=$T/othersock
start
wait $! || fail "a session does not find the next daemon (status $?)"
unmount "$M"
kill -CONT "$pid"
gone
