#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# rights.sh - a running daemon and its processes have few capabilities and get no new ones.
. "$(dirname "$0")/lib"
needs_root
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
