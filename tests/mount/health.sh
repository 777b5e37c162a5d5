#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# health.sh - `kvfs --health` for a daemon that works, hangs, was killed, has no mount, has
# no socket, or whose SSD fails; the command never waits longer than its time limit.
. "$(dirname "$0")/lib"
# is STATUS TEXT ARGUMENTS...: fail unless `kvfs --health ARGUMENTS` exits so and prints TEXT
is() {
	local status=$1 text=$2 out began=$SECONDS
	shift 2
	out=$("$B/kvfs" --health "$@" 2>&1)
	eq "--health $*: the status of '$out'" $? "$status"
	eq "--health $*: one line" "$(wc -l <<< "$out")" 1
	case $out in *"$text"*) ;; *) fail "--health $*: '$out', not '$text'" ;; esac
	[ $((SECONDS - began)) -lt 60 ] || fail "--health $*: it took $((SECONDS - began)) s"
}
is 1 usage
is 1 usage "$M" 5 5
is 1 usage "$M" soon
is 1 usage "$M" 3601
is 1 usage "$M" 0
is 1 usage ""
is 1 "No such file" "$T/nothing"
is 1 "no kvfs is mounted" "$M"
: > "$T/file"
is 1 "no kvfs is mounted" "$T/file"
start
is 0 "well; the SSD tier: online" "$M"
is 0 "well; the SSD tier: online" "$SOCK"
is 0 "well; the SSD tier: online" "$M" 60
# A daemon hangs: its health is asked repeatedly, by the mount and by the socket.
pid=$(daemon_pids)
freeze "$pid"
for i in 1 2 3; do is 1 "the mount does not answer" "$M" 1; done
is 1 "the socket $SOCK does not answer" "$SOCK" 1
kill -CONT "$pid"
is 0 well "$M" 60
eq "nobody is left asking" "$(pgrep -c -f -- "--health $M")" 0
# A socket that was removed, or moved to a path where no daemon listens.
mv "$SOCK" "$SOCK.away"
is 1 "the socket $SOCK: No such file" "$M"
mv "$SOCK.away" "$SOCK"
is 0 well "$M"
kill -KILL "$pid"
gone
is 1 onnect "$M" # "not connected" or "connection abort", by the time of the kernel's abort
is 1 "refused" "$SOCK"
# A daemon without an SSD tier is healthy.
S=$T/memory
start ssd=0
is 0 "well; the SSD tier: off" "$M"
stop
# A server that takes connections and sends nothing, or nonsense.
python3 - "$T/mute" << 'P' &
import socket, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(sys.argv[1])
s.listen(1)
kept = []
while True:
    c, _ = s.accept()
    kept.append(c)
    if len(kept) > 1:
        c.recv(65536)
        c.send(b"nonsense")
P
for ((i = 0; i < 600; i++)); do [ -S "$T/mute" ] && break; sleep 0.1; done
is 1 "does not answer" "$T/mute" 1
is 1 "Protocol error" "$T/mute"
# The state of a tier is printed whole, with commas in it.
python3 - "$T/degraded" << 'P' &
import socket, struct, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(sys.argv[1])
s.listen(1)
while True:
    c, _ = s.accept()
    for text in b"", b"dram      0.0 of 64.0 MiB (0%), 0 blocks\nssd       0.0 of 9.0 MiB (0%), 3 blocks, no disk, at all\n":
        c.recv(65536)
        c.send(struct.pack("=HHIQIiQ", 0, 1, 0, 0, 0, 0, 0) + text)  # the flag of a reply
P
for ((i = 0; i < 600; i++)); do [ -S "$T/degraded" ] && break; sleep 0.1; done
is 3 "the SSD tier: no disk, at all" "$T/degraded"
