#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# rights.sh - a running daemon and its processes have few capabilities and get no new ones,
# and other system calls than theirs are refused and logged.  A mount that root makes
# without a word on sharing is root's alone.
. "$(dirname "$0")/lib"
needs_root setpriv
A="setpriv --reuid 1001 --regid 1001 --clear-groups"
C="setpriv --reuid 1002 --regid 1002 --clear-groups"
E="Permission denied"
ask=$B/tests/mount/ask
OWN=${BASE#"$ALL",}
config() { sed -n "s/^$1=//p" "$M/.kvfs/config"; }
# field FILE NAME: a field of a status file of /proc
field() { sed -n "s/^$2:[[:space:]]*//p" "$1"; }
outside=$(field /proc/self/status Seccomp)
# rights SECCOMP: check those of all threads of the daemon, and of its gate
rights() {
	local pid file files wanted
	wanted=$(printf %016x $((0x$(field /proc/self/status CapPrm) & 0x1004002)))
	pid=$(daemon_pids)
	files=("/proc/$pid/task"/*/status)
	# TSan has a thread that is older than main().
	[[ $B != *thread* ]] || files=("/proc/$pid/status")
	for file in "${files[@]}" "/proc/$(pgrep -P "$pid" -x kvfs-gate)/status"; do
		eq "$file: CapPrm" "$(field "$file" CapPrm)" "$wanted"
		eq "$file: CapEff" "$(field "$file" CapEff)" "$wanted"
		eq "$file: CapInh" "$(field "$file" CapInh)" 0000000000000000
		eq "$file: NoNewPrivs" "$(field "$file" NoNewPrivs)" 1
		eq "$file: Seccomp" "$(field "$file" Seccomp)" "$1"
	done
}

start seccomp=on
rights 2
eq "no_new_privs" "$(config no_new_privs)" 1
eq "seccomp" "$(config seccomp)" on
[[ $(config capabilities) =~ ^(none|[a-z_ ]*dac_override[a-z_ ]*)$ ]] || fail "capabilities: $(config capabilities)"
restart seccomp=off
rights "$outside"
eq "seccomp=off" "$(config seccomp)" off
stop
# A system that lacks seccomp(2) has prctl(2).
if "$B/tests/crash/without" seccomp true; then
	"$B/tests/crash/without" seccomp "$B/kvfs" -o "$BASE,control=$SOCK" "$S" "$M" || fail "kvfs does not start"
	rights 2
	eq "seccomp by prctl" "$(config seccomp)" on
	stop
fi
not "seccomp=maybe" "not one of on|off" "$B/kvfs" -o "$BASE,seccomp=maybe" "$S" "$M"

not "no process" "kvfs: no more processes may run (ulimit -u, pids.max)" \
	prlimit --nproc=1 setpriv --reuid 54321 --clear-groups "$B/kvfs" -f -o "dram=16M,ssd=0,hugepages=off,control=$T/own/sock" "$T/own/store" none

# A daemon that is made to run a program goes on, and the attempt is logged.
if ! nm -D "$B/kvfs" | grep -qE ' U __(asan|tsan)_'; then
	cat >"$T/run.c" <<'C'
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>

int pthread_setname_np(pthread_t thread, const char *name)
{
	(void)thread;
	(void)name;
	return execl("/bin/sh", "sh", "-c", "echo broken >&2", NULL);
}
C
	cc -shared -fPIC -o "$T/run.so" "$T/run.c" || fail "cc"
	LD_PRELOAD=$T/run.so "$B/kvfs" -f -o "$BASE,control=$SOCK" "$S" "$M" 2>"$T/log" &
	for ((i = 0; i < 600; i++)); do mountpoint -q "$M" && [ -e "$M/.kvfs/config" ] && break; sleep 0.1; done
	ok "the daemon goes on" mkdir "$M/on"
	eq "the log" "$(sed 's/thread [0-9]*/thread N/' "$T/log")" \
		"kvfs: warning: seccomp: refused execve (system call $(printf '#include <sys/syscall.h>\nSYS_execve' | cc -E - | tail -n 1)) \
to thread N; if kvfs needs it, report that, and mount with seccomp=off"
	stop
fi

# Without the process that mounts, the daemon ends, and the next one takes the dead mount away.
start
kill -KILL "$(pgrep -P "$(daemon_pids)" -x kvfs-warden)"
ok "the mount works" mkdir -p "$M/on"
kill "$(daemon_pids)"
gone
start
ok "the mount works" ls "$M/on"
stop

# Without a word on other users, a mount of root is root's own.
own() { # own [OPTIONS]: mount with them
	"$B/kvfs" -o "$OWN,control=$SOCK${1:+,$1}" "$S" "$M" 2>"$T/said" || fail "kvfs does not start: $(cat "$T/said")"
}
closed="kvfs: $M: only root may use it; to admit others, mount with allow=UID:... or mkdir=all"
for options in "" root_mode=1777 mkdir=operator root=squash; do
	own "$options"
	eq "'$options': one line says so" "$(cat "$T/said")" "$closed"
	eq "'$options'" "$(config mkdir) $(config allow) $(config allow_other)" "operator 0 0"
	ok "root is admitted" ls "$M/on"
	not "another user is not" "$E" $A ls "$M"
	not "another user is not, by the socket" "not connected" $A "$ask" "$SOCK" model make
	for path in "$M" "$SOCK"; do
		not "nor by a command" "$path: this user is refused (allow= in kvfs(1)" $A "$B/kvfs" ls -p "$path"
	done
	stop
done
own allow_other
not "another user is not, although the kernel would" "$E" $A ls "$M"
stop
own allow=1001
eq "allow=" "$(cat "$T/said") $(config mkdir) $(config allow) $(config allow_other)" " all 1001 1"
ok "the named user makes a space" $A mkdir "$M/a"
not "another user does not" "$E" $C ls "$M"
stop
own mkdir=all
eq "mkdir=all" "$(cat "$T/said") $(config mkdir) $(config allow) $(config allow_other)" " all all 1"
ok "all users make spaces" $C mkdir "$M/c"
stop
own allow=all,mkdir=operator
eq "allow=all" "$(cat "$T/said") $(config mkdir) $(config allow) $(config allow_other)" " operator all 1"
ok "all users look" $C ls "$M/c"
not "only root makes spaces" "$E" $C mkdir "$M/d"
stop
