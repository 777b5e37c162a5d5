#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nomount.sh - MOUNTPOINT none, as in a container: no /dev/fuse, no mount, a control socket
# at a path of the user's choice, and all operations by libkvfs.
set -u
B=$(realpath "${B:-build}")
T=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-test.XXXXXX")
S=$T/store
SOCK=$T/run/sock
BASE=mkdir=all,dram=64M,ssd=256M,segment=8M,hugepages=off,scrub=0,control=$SOCK
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

# A daemon of another user is trusted if only root may write the socket's directories.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null && unshare -m true 2>/dev/null; then
	unshare -m bash -s "$B/kvfs" "$blocks" "${BASE%control=*}" <<'END' || fail "trust in another user's daemon"
mount -t tmpfs -o mode=755 tmpfs /mnt && cp "$1" "$2" /mnt || exit 1
install -d -o 1001 /mnt/run /mnt/store
A="setpriv --reuid 1001 --regid 1001 --clear-groups"
C="timeout 20 setpriv --reuid 1002 --regid 1002 --clear-groups /mnt/blocks"
$A /mnt/kvfs -f -o "$3root_mode=1777,control=/mnt/run/control" /mnt/store none & daemon=$!
until [ -S /mnt/run/control ]; do sleep 0.1; kill -0 $daemon || exit 1; done
trusts() { $C durable /mnt/run/control 0 2 >/mnt/out 2>&1; }
trusts && echo "a socket in a directory of the daemon's user is trusted" && bad=1
chown 0:0 /mnt/run
trusts || { cat /mnt/out; echo "a socket in directories of root is not trusted"; bad=1; }
chmod 775 /mnt/run
trusts && echo "a socket in a directory that a group may write is trusted" && bad=1
chmod 755 /mnt/run; chown 1003 /mnt/run/control
trusts && echo "a socket that the daemon's user does not own is trusted" && bad=1
kill $daemon && wait $daemon && exit ${bad:-0}
END
fi

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
