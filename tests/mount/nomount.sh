#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nomount.sh - MOUNTPOINT none, as in a container: no /dev/fuse, no mount, a control socket
# at a path of the user's choice, and all operations by libkvfs.
set -u
B=$(realpath "${B:-build}")
T=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-test.XXXXXX")
S=$T/store
SOCK=$T/run/sock
BASE=dram=64M,ssd=256M,segment=8M,hugepages=off,scrub=0,control=$SOCK
blocks=$B/tests/crash/blocks

daemon_pids() { pgrep -f -- "^[^ ]*kvfs .*$T/" || true; }
cleanup() {
	local pid
	for pid in $(daemon_pids); do kill -KILL "$pid" 2>/dev/null; done
	rm -rf "$T"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
fail() {
	echo "FAILED: $*"
	exit 1
}
eq() { [ "$2" = "$3" ] || fail "$1: got '$2', expected '$3'"; }
gone() {
	local i
	for ((i = 0; i < 600; i++)); do
		[ -z "$(daemon_pids)" ] && return
		sleep 0.1
	done
	fail "the daemon does not end"
}
# hidden COMMAND...: run COMMAND without /dev/fuse, or as it is if the machine allows no
# mounts at all
hidden() { "$@"; }
mkdir "$T/dev" "$T/run" && cp -a /dev/null /dev/zero /dev/random /dev/urandom "$T/dev/"
if unshare -m mount --bind "$T/dev" /dev 2>/dev/null; then
	hidden() {
		unshare -m sh -c 'mount --bind "$0" /dev && exec "$@"' "$T/dev" "$@"
	}
	hidden test ! -e /dev/fuse || fail "/dev/fuse is still there"
fi
start() { hidden "$B/kvfs" -o "$BASE" "$S" none; }

# A directory called `none` is not used as a mount point.
cd "$T" && mkdir none
(umask 077 && start) || fail "kvfs does not start"
[ -S "$SOCK" ] || fail "no socket"
eq "one daemon" "$(daemon_pids | wc -l)" 1
eq "nothing is mounted" "$(grep -c -F " $T/" /proc/self/mountinfo)" 0
pid=$(daemon_pids)
eq "it left the directory" "$(readlink "/proc/$pid/cwd")" /
eq "it is its own session" "$(ps -o sid= -p "$pid" | tr -d ' ')" "$pid"

hidden "$blocks" durable "$SOCK" 0 24 || fail "save"
hidden "$blocks" check "$SOCK" 0 24 | grep -q '\b24\b' || fail "read back"
out=$(start 2>&1) && fail "a second daemon on the store"
eq "one line says why" "$(wc -l <<<"$out")" 1
"$blocks" check "$SOCK" 0 24 | grep -q '\b24\b' ||
	fail "a refused second daemon harmed the first"

# SIGTERM ends the daemon cleanly; the next daemon has every block.
kill -TERM "$pid" || fail "kill"
gone
[ ! -e "$SOCK" ] || fail "the socket is left"
start || fail "the second start"
out=$("$blocks" check "$SOCK" 0 24)
grep -q '\b24\b' <<<"$out" || fail "after SIGTERM: $out"
kill -TERM "$(daemon_pids)"
gone

# In the foreground (-f) kvfs ends with the exit status of the daemon.
hidden "$B/kvfs" -f -o "$BASE" "$S" none &
for ((i = 0; i < 600; i++)); do [ -S "$SOCK" ] && break; sleep 0.1; done
[ -S "$SOCK" ] || fail "-f: no socket"
kill -INT "$(daemon_pids)"
wait $!
eq "-f: exit status" $? 0

# If the socket cannot be made, because its path lies below a file, the daemon prints one
# line and ends.
out=$(hidden "$B/kvfs" -o "${BASE%control=*}control=$S/lock/sock" "$S" none 2>&1) &&
	fail "a socket below a file"
eq "one line says why" "$(wc -l <<<"$out")" 1
gone
echo ok
