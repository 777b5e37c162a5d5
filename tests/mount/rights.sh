#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# rights.sh - a running daemon and its processes have few capabilities and get no new ones.
# A mount that root makes without a word on sharing is root's alone.
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
# rights: check those of all threads of the daemon, and of its gate
rights() {
	local pid file wanted
	wanted=$(printf %016x $((0x$(field /proc/self/status CapPrm) & 0x1004002)))
	pid=$(daemon_pids)
	for file in "/proc/$pid/task"/*/status "/proc/$(pgrep -P "$pid" -x kvfs-gate)/status"; do
		eq "$file: CapPrm" "$(field "$file" CapPrm)" "$wanted"
		eq "$file: CapEff" "$(field "$file" CapEff)" "$wanted"
		eq "$file: CapInh" "$(field "$file" CapInh)" 0000000000000000
		eq "$file: NoNewPrivs" "$(field "$file" NoNewPrivs)" 1
	done
}

start
rights
eq "no_new_privs" "$(config no_new_privs)" 1
[[ $(config capabilities) =~ ^(none|[a-z_ ]*dac_override[a-z_ ]*)$ ]] || fail "capabilities: $(config capabilities)"
stop

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
