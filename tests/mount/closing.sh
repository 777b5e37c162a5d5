#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: alone, it measures the latency of another user
# closing.sh [UID WHAT HOW] - users send descriptors whose close, fstat or fstatfs never
# returns.  The control socket still answers other users, SIGKILL frees the STORE, and
# umount ends.
. "$(dirname "$0")/lib"
needs_root setpriv
cp "$B/tests/mount/closing" "$T/closing"
chmod 755 "$T/closing"
as() { # as UID COMMAND...: run COMMAND of the program closing as a user
	setpriv --reuid "$1" --regid "$1" --clear-groups "$T/closing" "${@:2}"
}
mkdir "$T/fuse"
server=
# Calls that hang end when their FUSE server is aborted.
abort() {
	[ -n "$server" ] && kill -KILL "$server" 2> /dev/null && wait "$server" 2> /dev/null
	umount -l "$T/fuse" 2> /dev/null
	server=
}
trap 'abort; cleanup' EXIT
serve() {
	"$T/closing" serve "$T/fuse" > "$T/serving" &
	server=$!
	until grep -q ready "$T/serving"; do
		kill -0 "$server" || fail "no FUSE mount"
		sleep 0.05
	done
}
n=0
# attack UID WHAT HOW N: send N messages while the daemon is stopped, then
# continue it
attack() {
	local daemon
	n=$((n + 1))
	daemon=$(daemon_pids)
	freeze "$daemon"
	mkfifo "$T/end$n"
	sleep 1000 > "$T/end$n" &
	input=$!
	touch "$T/sent$n"
	as "$1" send "$2" "$3" "$SOCK" "$4" < "$T/end$n" > "$T/sent$n" 2>&1 &
	pid=$!
	local i
	for ((i = 0; i < 200; i++)); do
		grep -q sent "$T/sent$n" && break
		kill -0 $pid 2> /dev/null || fail "attack $*: $(cat "$T/sent$n")"
		sleep 0.05
	done
	kill -CONT "$daemon"
	[ "$i" -lt 200 ] || fail "attack $*: it hangs"
}
others() { # others WHAT: fail unless another user can probe and save
	local longest
	longest=$(as 1002 probe "$SOCK" 0.3 2>&1) || fail "$1: another user: $longest"
	as 1002 stage "$SOCK" || fail "$1: another user cannot save"
	echo "$1: another user waits for ${longest} ms at most"
}
used() { ls "/proc/$(daemon_pids)/$1" | wc -l; }
cpu() { # print the daemon's CPU time in ticks of 10 ms
	awk '{ print $14 + $15 }' "/proc/$(daemon_pids)/stat"
}

start allow=1001:1002
serve
others "before"
if [ $# = 3 ]; then
	[ "$2" = linger ] && what=$2 || what=$T/fuse/$2
	attack "$1" "$what" "$3" 2
	others "$1 sends $2 as $3"
	kill -KILL "$(daemon_pids)"
	gone
	exit 0
fi
for attacker in 1001 1003; do # user 1003 may not use the daemon
	for what in linger "$T/fuse/flush" "$T/fuse/statfs" "$T/fuse/getattr"; do
		for how in stats staging pool queued; do
			attack $attacker "$what" $how 2
			others "$attacker sends ${what##*/} as $how"
		done
	done
done
threads=$(used task) fds=$(used fd)
attack 1001 "$T/fuse/flush" stats 60
attack 1003 "$T/fuse/flush" queued 60
# The daemon does not even receive these messages; the end of the daemon releases them.
attack 1001 "$T/fuse/write" stats 8
others "a flood"
echo "of 128 messages: $(($(used fd) - fds)) descriptors, $(($(used task) - threads)) threads"
[ "$(used task)" -le $((threads + 4)) ] || fail "threads"

# The gate receives four messages of a user whose descriptors it cannot close; the
# connections with the others wait, also after their process has died.
attack 1001 linger stats 8
kill $input
wait $pid
sleep 0.5
before=$(cpu)
sleep 2
spent=$(($(cpu) - before))
echo "connections of a dead process wait: the daemon uses $spent ticks of 200"
[ "$spent" -le 20 ] || fail "the daemon spins"

kill -KILL "$(daemon_pids)"
gone
umount -l "$M"
start allow=1001:1002
others "after SIGKILL"
attack 1001 "$T/fuse/flush" stats 2
others "again"
stop
abort
