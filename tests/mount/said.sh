#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# said.sh - messages of a daemon in the background go to the file that was its standard
# error, or to the system's log.  A log that hangs delays no request, and lines beyond the
# queue's room are counted.
if [ "$(id -u)" != 0 ] || ! unshare -m true 2>/dev/null; then
	echo "needs root, and namespaces"
	exit 77
fi
# Use a /dev of its own, with a log socket of this test.
[ "${KVFS_SAID:-}" = 1 ] || exec env KVFS_SAID=1 unshare -m "$0"
. "$(dirname "$0")/lib"
mkdir "$T/dev" && mount --rbind /dev "$T/dev" && mount -t tmpfs said /dev || fail "/dev"
for f in fuse null zero urandom; do touch /dev/$f && mount --bind "$T/dev/$f" /dev/$f || fail "/dev/$f"; done
umount -l "$T/dev"
mkdir -m 1777 /dev/shm

soon() { # soon WHAT FILE TEXT: fail unless FILE has TEXT within 30 s
	local i
	for ((i = 0; i < 300; i++)); do grep -qF "$3" "$2" 2>/dev/null && return; sleep 0.1; done
	fail "$1: $(cat "$2")"
}
optional() { # mount with a backend that does not exist yet
	rm -rf "$T/late"
	start "remote=dir:$T/late,remote_optional"
}
HERE="remote=dir:$T/late: it is back"

optional 2>>"$T/log"
mkdir "$T/late"
soon "in the file" "$T/log" "kvfs: $HERE"
stop

# The daemon keeps no pipe open that it got from its caller.
timeout 30 bash -c "'$B/kvfs' -o '$BASE,control=$SOCK' '$S' '$M' 2>&1 | cat" || fail "a pipe is kept"
stop

# The system log appears after the daemon has started.
optional 2>/dev/null
listen() { # listen FILE: the log's datagrams
	rm -f /dev/log
	python3 -c '
import socket, sys
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.bind("/dev/log")
while True:
    print(log.recv(4096).decode(), flush=True)' >"$1" &
	until [ -S /dev/log ]; do sleep 0.01; done
}
listen "$T/first"
first=$!
mkdir "$T/late"
soon "in the log" "$T/first" ": $HERE"
grep -qE '^<28>[A-Z][a-z]{2} [ 0-9]{2} [0-9:]{8} kvfs\[[0-9]+\]: remote=' "$T/first" || fail "$(cat "$T/first")"
kill $first
stop

# The system log accepts no more messages.
rm -f /dev/log
python3 -c '
import socket, time
log, to = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for i in range(2)]
log.bind("/dev/log")
to.connect("/dev/log")
to.setblocking(False)
try:
    while True: to.send(b"full")
except BlockingIOError:
    print("full", flush=True)
time.sleep(1000)' >"$T/full" &
full=$!
soon "a full log" "$T/full" full
optional 2>/dev/null
mkdir "$T/late"
for ((i = 0; i < 300; i++)); do grep -q "^remote.*: open" "$M/.kvfs/stats" && break; sleep 0.1; done
ok "the backend is asked" grep -q "^remote.*: open" "$M/.kvfs/stats"
ok "a space" mkdir "$M/s"
stop
kill $full
