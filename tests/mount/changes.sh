#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# changes.sh - a user's changes of spaces wait for a disk that hangs, but other requests
# do not.  The changes can be interrupted, do not keep the mount from ending, and are all
# made when the disk works again.
. "$(dirname "$0")/lib"
if [ "$(id -u)" != 0 ] || ! command -v setpriv > /dev/null || ! command -v fsfreeze > /dev/null; then
	echo "needs root, setpriv and fsfreeze"
	exit 77
fi
F=$T/fs
mkdir "$F"
truncate -s 600M "$T/disk"
mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$T/disk" || exit 77
if ! mount -o loop "$T/disk" "$F" 2> "$T/why"; then
	echo "no loop devices: $(tail -n 1 "$T/why")"
	exit 77
fi
mkdir "$T/fuse"
mount -t fusectl none "$T/fuse" || exit 77
stand() {
	connection=$(mountpoint -d "$M" | cut -d: -f2)
	fsfreeze -f "$F" || fail "fsfreeze -f"
}
go_on() { fsfreeze -u "$F"; }
trap 'go_on 2> /dev/null; cleanup' EXIT
S=$F/store
SPACES=48
A="env PATH=/usr/bin:/bin setpriv --reuid 1001 --regid 1001 --clear-groups"
C="env PATH=/usr/bin:/bin setpriv --reuid 1002 --regid 1002 --clear-groups"
layout='{"tensors":[{"name":"k","dtype":"U8","shape":[64]}]}'

# Print the number of requests that the mount has not answered.
waiting() {
	cat "$T/fuse/$connection/waiting"
}
until_waiting() { # until_waiting N: wait until N requests are unanswered
	local i
	for ((i = 0; i < 600; i++)); do
		[ "$(waiting)" -ge "$1" ] && return
		sleep 0.05
	done
	fail "$(waiting) of $1 changes come to wait"
}
ended() { # ended PID...: fail unless the processes end within 60 s
	local i pid
	for ((i = 0; i < 1200; i++)); do
		for pid; do kill -0 "$pid" 2> /dev/null && break; done
		kill -0 "$pid" 2> /dev/null || return 0
		sleep 0.05
	done
	return 1
}
# In the background, start one change of each space of user 1001, in turn of the first N
# kinds below.
change() { # change N MODE QUOTA TIME
	local i s call
	pids=()
	for ((i = 0; i < SPACES; i++)); do
		s=$M/a$i
		case $((i % $1)) in
		0) call=(chmod "$2" "$s") ;;
		1) call=(setfattr -n user.kvfs.quota.ssd -v "$3" "$s") ;;
		2) call=(touch -d "$4" "$s") ;;
		3) call=(setfattr -n user.kvfs.layout -v "$layout" "$s") ;;
		4) call=(cp "$T/layout" "$s/.layout") ;;
		# The process that made the file must live while the rename waits, so mv
		# runs in that process.
		5) call=(sh -c "echo '$layout' > '$s/.layout.tmp' && exec mv '$s/.layout.tmp' '$s/.layout'") ;;
		esac
		$A "${call[@]}" 2>> "$T/errors" &
		pids+=($!)
	done
}
tried=0
try() { # try WHAT COMMAND...: count COMMAND if it fails or hangs; a third time, fail
	local pid
	"${@:2}" > "$T/out" 2>&1 &
	pid=$!
	if ended $pid && wait $pid; then return; fi
	echo "$1: '${*:2}' fails, or does not end: $(cat "$T/out")"
	tried=$((tried + 1))
	[ $tried -lt 3 ] || fail "others wait for changes of spaces"
}
others() {
	local i
	for ((i = 0; i < 8; i++)); do
		try "stat" $C stat "$M/b" "$M/b/$(place 1)"
		try "read" $C cmp "$T/b" "$M/b/$(place 1)"
		try "list" $C ls "$M/b/01"
		try "a directory" $C mkdir "$M/b/1$i"
		try "save" $C cp "$T/b" "$M/b/1$i/1$i$(key 1 | cut -c3-)"
		try "attributes" $C getfattr -n user.kvfs.tier "$M/b/$(place 1)"
		try "pin" $C setfattr -n user.kvfs.pin -v 1 "$M/b/$(place 1)"
		try "statistics" cat "$M/.kvfs/stats"
	done
	eq "calls of others that fail" "$tried" 0
}
running() {
	local pid n=0
	for pid in "${pids[@]}"; do kill -0 "$pid" 2> /dev/null && n=$((n + 1)); done
	echo $n
}

start
block "$T/b"
echo "$layout" > "$T/layout"
chmod 644 "$T/b" "$T/layout"
for ((i = 0; i < SPACES; i++)); do
	ok "a space" $A mkdir "$M/a$i"
done
ok "a space" $C mkdir "$M/b"
ok "a directory" $C mkdir "$M/b/01"
ok "a block" $C cp "$T/b" "$M/b/$(place 1)"
ok "which is durable" sync "$M/b"
ok "statistics" cat "$M/.kvfs/stats"

# The disk hangs, and works again.
stand
change 6 0750 300M 2001-02-03T04:05:06
until_waiting $SPACES
others
eq "changes that still wait" "$(running)" $SPACES
$A mkdir "$M/made" &
mkdir=$!
$C chmod 0711 "$M/b" &
chmod=$!
until_waiting $((SPACES + 2))
go_on
for pid in "${pids[@]}" $mkdir $chmod; do
	wait "$pid" || fail "a change that waited fails: $(cat "$T/errors")"
done
check() {
	eq "a mode" "$(stat -c %a "$M/a0")" 750
	eq "a quota" "$(xattr "$M/a1" quota.ssd)" $((300 << 20))
	eq "a time" "$(TZ=UTC date -r "$M/a2" +%F)" 2001-02-03
	for i in 3 4 5; do
		eq "a layout" "$(python3 -c 'import json, sys; print(json.load(sys.stdin)["tensors"][0]["shape"])' < "$M/a$i/.layout")" "[64]"
	done
	eq "a space that was made" "$(stat -c %u "$M/made")" 1001
	eq "another's mode" "$(stat -c %a "$M/b")" 711
}
check
restart
check

# Changes that have not begun end when they are interrupted, or when the mount ends.
stand
change 3 0700 200M 2002-02-03T04:05:06
until_waiting $SPACES
$A rmdir "$M/made" &
last=$!
until_waiting $((SPACES + 1))
kill -KILL $last
ended $last || fail "a change that waits cannot be killed"
pid=$(daemon_pids)
kill "$pid"
begun=0
for ((i = 0; i < 600 && begun != 1; i++)); do
	[ "$(running)" -gt 4 ] || begun=1
	sleep 0.05
done
eq "those that have not begun end with the mount" $begun 1
grep -q 'Interrupted system call' "$T/errors" || fail "they end with $(cat "$T/errors")"
go_on
ended "$pid" || fail "a mount does not end when the disk goes on"
ended "${pids[@]}" || fail "changes do not end with the mount"
start
eq "a space that was to go" "$(stat -c %u "$M/made")" 1001
ok "a change" $A chmod 0755 "$M/a0"
stop
umount "$T/fuse" "$F" || fail "umount of the disk"
