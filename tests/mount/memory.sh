#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: alone, as it mounts control groups that other daemons would see
# memory.sh - dram= in a control group whose limit is below the machine's memory, and the
# score by which the kernel chooses the process to kill when memory is short.
. "$(dirname "$0")/lib"
config() { sed -n "s/^$1=//p" "$M/.kvfs/config"; }
score() { cat "/proc/$(daemon_pids)/oom_score_adj"; }

# The daemon lowers its OOM score by the share of the machine's memory that is given to
# blocks.
memory=$(($(getconf _PHYS_PAGES) * $(getconf PAGESIZE)))
start dram=1G
if [ "$(cat /proc/self/oom_score_adj)" = 0 ]; then
	if (echo -1 > /proc/self/oom_score_adj) 2> /dev/null; then
		eq "the score" "$(score)" "$((-(1024 * 1024 * 1024 * 1000 / memory)))"
	else
		eq "why it is not lower" "$(config oom_score_adj)" "0 (without CAP_SYS_RESOURCE it cannot be lower)"
	fi
fi
eq "it is shown" "$(config oom_score_adj | cut -d' ' -f1)" "$(score)"
stop
# A score that the daemon inherits from its parent is kept.
if (echo 7 > /proc/self/oom_score_adj) 2> /dev/null; then
	(echo 7 > /proc/self/oom_score_adj && "$B/kvfs" -o "$BASE,control=$SOCK" "$S" "$M") || fail "kvfs does not start"
	eq "a score that was set" "$(score)" 7
	stop
fi

# Make a control group below that of this process.  If the memory controller is not of
# version 2, mount files that look like it over the control groups.
G=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup | sed 's:/$::')/kvfs-test.$$
release() {
	cleanup
	for ((i = 0; i < 100; i++)); do
		[ -e "$G/cgroup.procs" ] && ! rmdir "$G" 2> /dev/null || break
		sleep 0.1
	done
	umount "$C" 2> /dev/null && umount "$C" && rmdir "$C"
}
C=/tmp/kvfs-groups.$$
trap release EXIT
if mkdir "$G" 2> /dev/null && [ -e "$G/memory.max" ] && echo 256M > "$G/memory.max" 2> /dev/null; then
	inside() { (echo "$BASHPID" > "$G/cgroup.procs" && exec "$@"); }
else
	rmdir "$G" 2> /dev/null
	G=$C
	if ! { mkdir "$C" && mount -t cgroup2 none "$C" && mount -t tmpfs none "$C"; } 2> /dev/null; then
		echo "control groups cannot be mounted: the rest is not tested"
		exit 0
	fi
	echo 268435456 > "$G/memory.max"
	inside() { "$@"; }
fi
file=memory.max
S=$T/inside
refused() {
	local out
	out=$(inside "$B/kvfs" -o "$1,ssd=0,control=$SOCK" "$S" "$M" 2>&1) && fail "$1 is taken"
	eq "$1: one line" "$(wc -l <<< "$out")" 1
	case $out in *"$2"*"$3"*) ;; *) fail "$1: '$out'" ;; esac
	absent "$1" "$S"
}
refused dram=257M,hugepages=off "dram=257M: the control group may have only 256M" "$G/$file"
refused dram=257M "dram=257M" "$G/$file"
ok "the default" inside "$B/kvfs" -o "ssd=0,segment=8M,hugepages=off,control=$SOCK" "$S" "$M"
eq "a quarter of what the group may have" "$(config dram)" $((64 * 1024 * 1024))
eq "which is shown" "$(config memory_limit)" "$((256 * 1024 * 1024)) ($G/$file)"
stop
ok "a share" inside "$B/kvfs" -o "dram=50%,ssd=0,segment=8M,hugepages=off,control=$SOCK" "$S" "$M"
eq "of what the group may have" "$(config dram)" $((256 * 1024 * 1024 / 100 * 50))
stop
out=$(inside "$B/kvfs" -o "dram=200M,ssd=0,segment=8M,hugepages=off,control=$SOCK" "$S" "$M" 2>&1) || fail "200M: $out"
case $out in "kvfs: warning: dram: 200M of the 256M"*"$G/$file"*) ;; *) fail "200M: '$out'" ;; esac
stop
