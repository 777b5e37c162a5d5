#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lifecycle.sh - start and end of a daemon: umount, SIGTERM, -f, mount.kvfs, ro,
# none.
. "$(dirname "$0")/lib"
block "$T/b"
start
ok "write" put s 1 "$T/b"
F=$M/s/$(place 1)
if [ "$(id -u)" = 0 ]; then
	eq "mounted nosuid,nodev as fuse.kvfs" \
		"$(awk -v m="$M" '$5 == m { print $6 ~ /nosuid/ && $6 ~ /nodev/, $0 ~ / - fuse.kvfs / }' /proc/self/mountinfo)" "1 1"
	grep " $M " /proc/self/mountinfo | grep -q default_permissions || fail "default_permissions"
fi
stop
absent "the socket is gone" "$SOCK"
eq "the mount point is empty" "$(ls -A "$M")" ""

start
same "a block that was never synced is there after umount" "$T/b" "$F"
block "$T/b2" --seed 2
ok "write" put s 2 "$T/b2"
exec 5< "$F"
not "umount while a file is open" "busy" umount "$M"
same "and it goes on" "$T/b" "$F"
pid=$(daemon_pids)
kill -TERM "$pid"
gone
eq "SIGTERM unmounts, also with a file open" "$(grep -c " $M " /proc/self/mountinfo)" 0
absent "the socket is gone" "$SOCK"
exec 5<&-
start
same "after SIGTERM" "$T/b2" "$M/s/$(place 2)"
kill -INT "$(daemon_pids)"
gone

"$B/kvfs" -f -o "$BASE,control=$SOCK" "$S" "$M" > "$T/log" 2>&1 &
front=$!
for _ in $(seq 1200); do [ -e "$M/.kvfs" ] && break; sleep 0.05; done
same "in the foreground" "$T/b" "$F"
ok "umount" unmount "$M"
wait $front || fail "-f: the status is $?"
eq "-f says nothing" "$(cat "$T/log")" ""

ln -s "$B/kvfs" "$T/mount.kvfs"
ok "mount.kvfs -f is fake" "$T/mount.kvfs" "$S" "$M" -f -o "$BASE"
eq "nothing is mounted" "$(grep -c " $M " /proc/self/mountinfo)" 0
ok "mount.kvfs" "$T/mount.kvfs" "$S" "$M" -n -v -s -t kvfs -o "rw,nofail,_netdev,noatime,nosuid,nodev,user,$BASE,control=$SOCK"
same "mount.kvfs" "$T/b" "$F"
stop
not "mount.kvfs with a bad option" bogus "$T/mount.kvfs" "$S" "$M" -o "bogus,$BASE"

start ro
same "ro: read" "$T/b" "$F"
R="Read-only file system"
not "ro: write" "$R" cp "$T/b" "$M/s/$(place 257)"
not "ro: rm" "$R" rm -f "$F"
not "ro: mkdir" "$R" mkdir "$M/new"
not "ro: mkdir" "$R" mkdir "$M/s/cc"
not "ro: rmdir" "$R" rmdir "$M/s"
not "ro: chmod" "$R" chmod 700 "$M/s"
not "ro: pin" "$R" setfattr -n user.kvfs.pin -v 1 "$F"
not "ro: touch" "$R" touch "$F"
not "ro: mv" "$R" mv -T "$F" "$F.x"
not "ro: layout" "$R" sh -c "echo {} > $M/s/.layout"
grep -qx ro=1 "$M/.kvfs/config" || fail "config does not say ro"
stop

rm -r "$S/store" "$S/index"
not "a store without its index and its file" "not a kvfs store" "$B/kvfs" -o "$BASE" "$S" "$M"
mkdir -m 700 "$S/index"
start
same "made anew from the segment files, as kvfs-store(5) says" "$T/b" "$F"
grep -q '^index=rebuilt' "$M/.kvfs/config" || fail "config does not say that the index is new"
kill -HUP "$(daemon_pids)"
gone
eq "SIGHUP unmounts" "$(grep -c " $M " /proc/self/mountinfo)" 0

if [ "$(id -u)" = 0 ]; then
	start
	# Start kvfs with the arguments that /sbin/mount.fuse passes for mount(8).
	for word in ro bogus; do
		not "remount,$word" "remount: not supported" "$B/kvfs" "$S" "$M" \
			-o "rw,nosuid,user_id=0,group_id=0,allow_other,remount,$word"
	done
	eq "nosuid,nodev" \
		"$(awk -v m="$M" '$5 == m { print $6 ~ /nosuid/ && $6 ~ /nodev/ }' /proc/self/mountinfo)" 1
	stop
fi

"$B/kvfs" -o "$BASE,control=$SOCK" "$S" none || fail "MOUNTPOINT none"
[ -S "$SOCK" ] || fail "none: no socket"
eq "none: nothing is mounted" "$(grep -c " $T/" /proc/self/mountinfo)" 0
kill -TERM "$(daemon_pids)"
gone
absent "none: the socket is gone" "$SOCK"

start "ssd=0"
total=$(df -k --output=size "$M" | tail -n 1)
eq "ssd=0: df's total is dram=" $((total)) $((64 * 1024))
stop

# A lock that the caller of kvfs holds does not stay locked by the daemon.
exec 7> "$T/lock"
flock 7
start
exec 7>&-
flock -n "$T/lock" true || fail "the daemon keeps a descriptor that it inherited"
stop

# The service manager gets READY=1 when the mount answers, not before; then WATCHDOG=1 at
# least twice in the watchdog's time, unless the control thread hangs; STOPPING=1 at the end.
for address in "$T/notify" "@${T#/}/notify"; do
	python3 - "$address" "$M" "$B/kvfs" -f -o "$BASE,control=$SOCK" "$S" "$M" <<'P' || fail "NOTIFY_SOCKET=$address"
import ctypes, os, socket, subprocess, sys, time
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
address, mount, command = sys.argv[1], sys.argv[2], sys.argv[3:]
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(address.replace("@", "\0", 1))
s.settimeout(60)
before = os.stat(mount).st_dev
kvfs = subprocess.Popen(command, env=dict(os.environ, NOTIFY_SOCKET=address, WATCHDOG_USEC="1000000"))
assert s.recv(100) == b"READY=1"
assert os.stat(mount).st_dev != before and os.stat(mount + "/.kvfs/stats").st_size >= 0
assert s.recv(100) == b"WATCHDOG=1"
before = time.monotonic()
assert [s.recv(100) for _ in range(4)] == [b"WATCHDOG=1"] * 4
assert 1.5 < time.monotonic() - before < 20
control = next(task for task in os.listdir(f"/proc/{kvfs.pid}/task")
               if open(f"/proc/{kvfs.pid}/task/{task}/comm").read() == "kvfs-control\n")
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(PTRACE_ATTACH, int(control), 0, 0) == 0  # stops this thread only
s.settimeout(3)
try:
    for _ in range(3):
        s.recv(100)
    raise SystemExit("WATCHDOG=1 comes although the control thread hangs")
except TimeoutError:
    pass
assert libc.ptrace(PTRACE_DETACH, int(control), 0, 0) == 0
s.settimeout(60)
assert s.recv(100) == b"WATCHDOG=1"
subprocess.check_call(["umount", mount])
words = []
while words[-1:] != [b"STOPPING=1"]:
    words.append(s.recv(100))
assert set(words[:-1]) <= {b"WATCHDOG=1"}
assert kvfs.wait(60) == 0
P
done

# The socket belongs to a daemon that has not ended yet: the next daemon waits for its end.
start
pid=$(daemon_pids)
freeze "$pid"
umount -l "$M" 2> /dev/null || fusermount3 -uz "$M" || fail "umount of a frozen mount"
mv "$S" "$S.before"
(sleep 0.5; kill -CONT "$pid") &
start
for ((i = 0; i < 600; i++)); do [ -e "/proc/$pid" ] || break; sleep 0.1; done
[ -S "$SOCK" ] || fail "the daemon that ended has removed the socket of the next one"
stop
