#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# umount.sh - promises of an unmount: with the helper that umount(8) calls, all blocks are
# durable and the store is free; without the helper, the next user of the store waits.
. "$(dirname "$0")/lib"
ln -s "$B/kvfs" "$T/umount.kvfs"
helper() { "$T/umount.kvfs" "$@"; }
block "$T/b" --bytes 2000000
mkdir "$T/in"
for i in $(seq 60); do put_() { mkdir -p "$T/in/$(printf %02x "$i")" && cp "$T/b" "$T/in/$(place "$i")"; }; put_; done

for round in 1 2 3 4; do
	start dram=256M
	cp -r "$T/in" "$M/s$round" || fail "cp -r"
	ok "umount by the helper" helper "$M"
	eq "daemons that are left, round $round" "$(daemon_pids)" ""
	start dram=256M
	diff -r "$T/in" "$M/s$round" || fail "round $round: blocks are lost"
	ok "umount by the helper" helper -n -v -t fuse.kvfs "$M"
done

# The daemon is killed as soon as umount has returned.
start dram=256M
cp -r "$T/in" "$M/killed" || fail "cp -r"
pid=$(daemon_pids)
ok "umount by the helper" helper "$M"
kill -KILL "$pid" 2>/dev/null
start dram=256M
diff -r "$T/in" "$M/killed" || fail "blocks are lost"

# Unmount without the helper umount.kvfs.
for round in $(seq 10); do
	cp "$T/b" "$M/killed/00/$(printf '00%030x' "$round")" 2>/dev/null ||
		put killed $((round * 256)) "$T/b" || fail cp
	umount2=$(umount -i "$M" 2>&1 || fusermount3 -u "$M" 2>&1) || fail "umount: $umount2"
	if [ $((round % 2)) = 0 ]; then
		"$B/kvfs-fsck" "$S" > "$T/out" 2>&1
		[ $? -le 1 ] || fail "kvfs-fsck right after umount: $(cat "$T/out")"
	fi
	start dram=256M
done

# The daemon's end is announced at once, also while its main thread gets no CPU time, here as
# that thread is traced.
if [ "$(id -u)" = 0 ]; then
	coproc tracer { exec python3 -c '
import ctypes, os, sys
trace, pid = ctypes.CDLL(None).ptrace, int(sys.argv[1])
assert trace(0x4206, pid, 0, 0) == 0  # PTRACE_SEIZE
assert trace(0x4207, pid, 0, 0) == 0  # PTRACE_INTERRUPT
os.waitpid(pid, 0x40000000)  # __WALL
print(flush=True)
sys.stdin.read()' "$(daemon_pids)"; }
	read -r -u "${tracer[0]}" || fail "ptrace"
	ok "umount without the helper" umount -i "$M"
	"$B/kvfs-fsck" "$S" > "$T/ending" 2>&1 &
	fsck=$!
	until [ -s "$T/ending" ]; do sleep 0.01; done
	exec {tracer[1]}>&-
	wait "$fsck" || fail "kvfs-fsck while the daemon ends: $(cat "$T/ending")"
	eq "fsck waits" "$(grep -c "still ending, waiting" "$T/ending")" 1
	gone
	start dram=256M
fi

# Root, who umounts, may not list a mount with root=squash, nor sync what others saved.
if [ "$(id -u)" = 0 ] && command -v setpriv > /dev/null; then
	A="setpriv --reuid 1000 --regid 1000 --clear-groups"
	ok "umount by the helper" helper "$M"
	start dram=256M,root=squash,allow=1000
	$A mkdir "$M/squashed" "$M/squashed/01" && $A cp "$T/b" "$M/squashed/$(place 1)" || fail "a save by an allowed user"
	not "squashed root lists" "Permission denied" ls "$M"
	eq "umount of root=squash" "$(helper "$M" 2>&1; echo $?)" 0
	start dram=256M
	same "what an allowed user saved" "$T/b" "$M/squashed/$(place 1)"
fi

exec 5< "$M/killed/$(place 1)"
not "umount of what is in use" "busy" helper "$M"
same "it goes on" "$T/b" "$M/killed/$(place 1)"
exec 5<&-
not "umount of nothing" "no kvfs is mounted" helper "$T/in"
not "umount without an argument" "usage" helper
not "a second daemon while the first goes on" "in use by another kvfs" \
	"$B/kvfs" -o "$BASE,control=$T/sock2" "$S" none

# Unmounting a bind mount does not end the daemon.
if [ "$(id -u)" = 0 ]; then
	mkdir "$T/bound" && mount --bind "$M" "$T/bound" || fail "mount --bind"
	ok "umount of the bind mount" helper "$T/bound"
	same "it goes on" "$T/b" "$M/killed/$(place 1)"
fi

# A copy of the mount in another mount namespace keeps the daemon.
if [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
	unshare -m sleep infinity &
	copy=$!
	until [ "$(cat "/proc/$copy/comm")" = sleep ]; do sleep 0.01; done
	eq "umount with a copy of the mount" "$(helper "$M" 2>&1)" \
		"umount.kvfs: $S: another mount namespace has the mount: Device or resource busy"
	kill "$copy"
	gone
	start dram=256M
fi

# Unmount while the daemon is dead, and while it is hung.
pid=$(daemon_pids)
kill -KILL "$pid"
ok "umount of a dead one" helper "$M"
gone
start dram=256M
pid=$(daemon_pids)
freeze "$pid"
ok "umount -l of a hung one" timeout 60 "$T/umount.kvfs" -l "$M"
kill -CONT "$pid"
gone

# umount(8) finds the helper in /sbin.
if [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
	mkdir "$T/sbin"
	ln -s "$B/kvfs" "$T/sbin/umount.kvfs"
	unshare -m bash -c '
		sbin=$(realpath /sbin)
		mount -t overlay overlay -o "lowerdir=$1/sbin:$sbin" "$sbin" || exit 77
		mkdir -p /run/mount && mount -t tmpfs none /run/mount || exit 77
		for end in umount kill umount copies; do
			"$2/kvfs" -o "$3" "$1/store" "$1/mnt" && cp -r "$1/in" "$1/mnt/$end$RANDOM" || exit 1
			if [ $end = kill ]; then
				fusermount3 -u "$1/mnt" || exit 1
				continue
			fi
			if [ $end = copies ]; then
				mount --bind "$1/mnt" "$1/bound" && umount "$1/mnt" || exit 1
				mkdir "$1/bound/last" && mount --bind "$1/bound/last" "$1/mnt" && cp -r "$1/in" "$1/bound/copy" || exit 1
				umount "$1/bound" || exit 1
			fi
			umount "$1/mnt" || exit 1
			flock -n "$1/store" true || exit 1
		done
		[ "$(wc -l < /run/mount/utab)" -le 1 ]
	' - "$T" "$B" "$BASE,control=$SOCK,dram=256M"
	case $? in
	0 | 77) ;;
	*) fail "umount(8) does not wait" ;;
	esac
fi
