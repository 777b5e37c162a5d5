#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# idle.sh - idle= ends a daemon that no client, message or open file has used for so long; it
# unmounts, and keeps what it has written.
. "$(dirname "$0")/lib"
OPTIONS=$BASE,idle=3,control=$SOCK
# alive WHAT: fail unless the daemon is there
alive() { [ -n "$(daemon_pids)" ] || fail "$1: the daemon has ended"; }

for value in "" -1 1s 4294967296; do
	not "idle=$value" "idle=$value" "$B/kvfs" -o "$BASE,idle=$value" "$S" "$M"
	absent "idle=$value" "$S"
done
block "$T/b"
start
ok "write" put s 1 "$T/b"
eq "the default" "$(sed -n 's/^idle=//p' "$M/.kvfs/config")" 0
stop

"$B/kvfs" -o "$OPTIONS" "$S" "$M" 2> "$T/log" || fail "kvfs does not start"
exec 5< "$M/s/$(place 1)"
sleep 5
alive "a file is open"
same "a file is open" "$T/b" "$M/s/$(place 1)"
exec 5<&-
for ((i = 0; i < 20; i++)); do
	cat "$M/.kvfs/stats" > /dev/null || fail "the mount is gone while it is used"
	sleep 0.2
done
python3 -c 'import socket, sys, time
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
time.sleep(4)
client.connect(sys.argv[1])
time.sleep(5)
client.setblocking(False)
try:
    client.recv(1)
except BlockingIOError:
    print("connected")' "$SOCK" > "$T/client" &
for ((i = 0; i < 25; i++)); do
	"$B/kvfs" --health "$SOCK" > /dev/null || fail "the daemon is gone while messages come"
	sleep 0.2
done
wait $!
eq "a client that sends nothing stays" "$(cat "$T/client")" connected
sleep 1.5
alive "a client was connected until now"
gone
eq "it unmounts" "$(grep -c " $M " /proc/self/mountinfo)" 0
absent "the socket is gone" "$SOCK"
grep -q "^kvfs: $S: unused for idle=3 seconds: ends$" "$T/log" || fail "the log is '$(cat "$T/log")'"

"$B/kvfs" -f -o "$OPTIONS" "$S" none 2> /dev/null
eq "-f and none: the status" $? 0
start
same "the next mount" "$T/b" "$M/s/$(place 1)"
stop
