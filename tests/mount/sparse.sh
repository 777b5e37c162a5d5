#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# sparse.sh - a user saves from sparse memory: the daemon, in a control group that is
# smaller than this memory, allocates none of it and survives.
. "$(dirname "$0")/lib"
needs_root setpriv
A="setpriv --reuid 1001 --regid 1001 --clear-groups"
C="setpriv --reuid 1002 --regid 1002 --clear-groups"
cp "$B/tests/mount/sparse" "$T/sparse"
chmod 755 "$T/sparse"

# Without a control group the test still compares the sizes of files.
if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
	G=/sys/fs/cgroup/memory/kvfs-sparse.$$
	limit=memory.limit_in_bytes
else
	G=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/kvfs-sparse.$$
	limit=memory.max
fi
release() {
	cleanup
	[ -d "$G" ] || return
	for ((i = 0; i < 100; i++)); do rmdir "$G" 2> /dev/null && break; sleep 0.1; done
}
trap release EXIT
if mkdir "$G" 2> /dev/null && echo 160M > "$G/$limit" 2> /dev/null; then
	inside() { (echo "$BASHPID" > "$G/cgroup.procs" && exec "$@"); }
else
	echo "no control group with a limit can be made"
	inside() { "$@"; }
fi
attack() { # attack HOW: save from memory with holes; fail if the daemon allocates any
	ok "the daemon" inside "$B/kvfs" -o "$ALL,dram=32M,ssd=0,segment=8M,hugepages=off,scrub=0,control=$SOCK" "$S-$1" "$M"
	local pid got
	pid=$(daemon_pids)
	ok "another user before" $C "$T/sparse" probe "$SOCK"
	got=$($A "$T/sparse" "$1" "$SOCK") || fail "$1: the attacker's calls end"
	kill -0 "$pid" 2> /dev/null || fail "$1: the daemon was killed"
	eq "$1: MiB that the daemon allocated" "$got" 0
	ok "another user afterwards" $C "$T/sparse" probe "$SOCK"
	stop
}
attack staging
attack lent
