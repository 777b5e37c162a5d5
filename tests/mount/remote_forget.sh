#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_forget.sh - kvfs-forget removes blocks and whole spaces from this node and from the
# backend, for users who may write to the space; other tenants' objects stay.  A backend
# that fails is named within the time limit.  A daemon that hangs or has ended costs one
# line.  `kvfs --forget` is refused and names kvfs-forget.
. "$(dirname "$0")/lib"
R=$T/remote
mkdir "$R"
install_program forget local
forget=$T/bin/kvfs-forget
REMOTES=remote=dir:$R,remote_threshold=1,remote_tenant=0:root,remote_tenant=1001:one
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16, "keys": "engine", "share": true}
L
kv() { block "$@" --tensor k:BF16:4x16x64:8192; }
make() { mkdir "$1" && cp "$T/layout" "$1/.layout" || fail "the space $1"; }
came() { "$B/tests/mount/fetch" "$M" "$1" acquire 5000 "$(key "$2")" | cut -d' ' -f1; }
objects() { find "$R" -type f -path "$R/$1/*" | grep -c '/[0-9a-f]\{32\}$'; }
handed_over() { # handed_over TENANT N: wait until the tenant has N objects
	local i
	for ((i = 0; i < 600; i++)); do
		[ "$(objects "$1")" = "$2" ] && return
		sleep 0.1
	done
	fail "$(objects "$1") objects, not $2"
}
forget() { # forget STATUS ARGUMENTS...: run kvfs-forget, with its output in $said
	local status=$1
	shift
	said=$("$forget" "$@" 2>&1)
	eq "kvfs-forget $*: the status of '$said'" $? "$status"
}
trap 'rm -f "$T/hang"; cleanup' EXIT
lines() { eq "the lines of '$said'" "$(printf '%s\n' "$said" | wc -l)" "$1"; }
says() { case $said in *"$1"*) ;; *) fail "it says '$said', not '$1'" ;; esac; }
for i in {1..9} 20 {21..23} 25; do kv "$T/b$i" --seed "$i"; done
save() { # save SPACE N...: save these blocks, and make them durable
	local i space=$1
	shift
	for i in "$@"; do put "$space" "$i" "$T/b$i" || fail "put $i"; done
	sync "$M/$space" || fail sync
}

start "$REMOTES"
make "$M/s"
save s {1..8} 20
make "$M/other"
save other 1 2 3
handed_over root 12
chown 1001 "$M/other"
setfattr -n user.kvfs.share -v 1 "$M/other"
# The first owner's objects do not count for the new owner: its blocks are copied again.
rm "$M/other/"*/* && save other 1 2 3 && handed_over one 3

# Forget one block, several, and those whose paths come from a pipe; also absent blocks, and
# paths that do not exist.
forget 0 "$M/s/$(place 1)"
says "dir:$R: 1 removed, 0 not there"
lines 1
absent "here" "$M/s/$(place 1)"
eq "objects" "$(objects root)" 11
eq "it is not brought back" "$(came s 1)" 0
where=$(dirname "$(find "$R/root" -name "$(key 20)")")
cp "$where/$(key 2)" "$T/two" || fail cp
(cd "$M/s" && { for i in 2 3 4; do place $i; echo; done; } | "$forget" -) > "$T/out" || fail "from a pipe: $(cat "$T/out")"
grep -q "dir:$R: 3 removed, 0 not there" "$T/out" || fail "from a pipe: $(cat "$T/out")"
forget 0 "$M/s/$(place 3)" "$M/s/$(place 5)" "$M/other/$(place 1)"
says "/s: dir:$R: 1 removed, 1 not there"
says "/other: dir:$R: 1 removed, 0 not there"
eq "another tenant's space" "$(objects one)" 2
# A block may be named by a symbolic link, or by a path from within its space.
ln -s "$M/s/$(place 8)" "$T/link" && forget 0 "$T/link"
says "dir:$R: 1 removed, 0 not there"
said=$(cd "$M/s/07" && "$forget" "./$(key 7)" 2>&1) || fail "from within: $said"
says "dir:$R: 1 removed, 0 not there"
save s 7 8 && handed_over root 7
# Another node puts a removed block again: this node does not fetch it, another node does.
cp "$T/two" "$where/$(key 2)"
eq "put again by another node" "$(came s 2)" 0
stop
start "$REMOTES"
eq "after another mount" "$(came s 2)" 0
save s 2
eq "saved again" "$(came s 2)" 1
handed_over root 8

# Forget a whole space, including objects of blocks that this node never had.
save s {21..23} 25 && handed_over root 12
cp "$T/two" "$where/$(key 99)"
said=$("$forget" --json "$M/s" | tr -d '\n')
eq "JSON" "$said" "[{\"path\": \"$M/s\", \"text\": \"dir:$R: 10 removed, 0 not there\", \"status\": 0}]"
eq "the space" "$(find "$M/s" -type f ! -name .layout | wc -l)" 0
eq "its objects" "$(find "$where" -type f 2>/dev/null | wc -l)" 0
eq "objects of the other space" "$(objects one)" 2
eq "not brought back" "$(came s 25)" 0
save s 25 && handed_over root 4

# Paths that reach the pipe after the time limit are read as well.
{ sleep 3; echo "$M/s/$(place 25)"; } | "$forget" -t 2 - >"$T/out" 2>&1 || fail "late lines: $(cat "$T/out")"
grep -q "dir:$R: 1 removed" "$T/out" || fail "late lines: $(cat "$T/out")"
save s 25 && handed_over root 4

# A user with read permission only is refused, and so are paths outside of a space.
as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
if [ "$(id -u)" = 0 ]; then
	chmod 700 "$M/other"
	for path in "s/$(place 25)" s "other/$(place 2)" other; do
		said=$(as 1002 "$forget" "$M/$path" 2>&1)
		eq "another user's try at $path: the status of '$said'" $? 1
		says "Permission denied"
		lines 1
	done
	eq "another user's try" "$(objects root)" 4
	as 1001 "$forget" "$M/other/$(place 2)" > "$T/out" 2>&1 || fail "its owner: $(cat "$T/out")"
	eq "its owner's" "$(objects one)" 1
fi
forget 1 "$M/none"
forget 1 "$T"
says "neither a space of kvfs nor a block of one"
forget 1 "$M"
forget 1 "$M/.kvfs"
says "neither a space of kvfs nor a block of one"
lines 1
forget 1
says "usage: kvfs-forget"
forget 1 -t 0 "$M/s"
forget 1 -t 0x "$M/s"
says "usage: kvfs-forget"
said=$("$forget" --json "$M/none/s" "$T" 2>&1)
eq "JSON: status" $? 1
eq "JSON of errors" "$(python3 -c 'import json, sys; print([row["status"] for row in json.loads(sys.argv[1])])' "$said")" "[1, 1]"
[ "$("$forget" --help | head -n 1)" = "usage: kvfs-forget [-t SECONDS] [--json] PATH..." ] || fail help
forget 1 "$M/none/s" "$M/other"$'\e[m\n'
says "/other?[m?: "
lines 2
"$B/kvfs" --forget "$M/s" 2> "$T/out" && fail "kvfs --forget is accepted"
grep -qx "kvfs: --forget: use kvfs-forget(1)" "$T/out" || fail "kvfs --forget: $(cat "$T/out")"
# A bad option is refused before anything is removed.
for option in -T --time -t5; do
	forget 1 "$M/s" $option
	says "usage: kvfs-forget"
done
eq "the space, after wrong options" "$(objects root)" 4
said=$("$forget" - <"$T" 2>&1) && fail "a directory as standard input"
said=$(printf '%s\0\n' "$M/s/$(place 25)" | "$forget" - 2>&1) && fail "a NUL in a path"
says "a NUL"
lines 1
said=$("$forget" "$M/s/$(place 1)" 2>&1 >/dev/full) && fail "a full disk for what is printed"
says "standard output"

# A failing backend is reported in time, with its error.
save s 6 7 8 9 && handed_over root 8
where=$(dirname "$(find "$R/root" -name "$(key 6)")")
rm "$where/$(key 6)" && mkdir "$where/$(key 6)" && touch "$where/$(key 6)/x"
forget 3 "$M/s/$(place 6)" "$M/s/$(place 9)"
says "kvfs-forget: $M/s: dir:$R: 1 removed, 0 not there; 1 block removed here may be there still: "
says "irectory"
rm -r "$where/$(key 6)"
stop
start
forget 1 "$M/s/$(place 8)"
says "no remote tier"
forget 1 "$M/s"
says "no remote tier"
lines 1
[ -e "$M/s/$(place 8)" ] || fail "without a remote tier the space was cleared"
stop

# Behind a web server: remove many blocks in one call, and a space that the server does not
# have.
. "$here/tiers"
trap 'rm -f "$T/hang"; end_servers; cleanup' EXIT
S=$T/webbed
port=$(free_port)
"$here/web.py" "$port" "$T/fault" 2>"$T/web.log" & servers+=("$!")
wait_for 30 listens "$port" || fail "the server does not come up: $(cat "$T/web.log")"
webbed() { curl -s "http://127.0.0.1:$port/objects/" | wc -l; }
start "remote=http://127.0.0.1:$port/kv,remote_threshold=1"
make "$M/h"
make "$M/i"
save h 1 2 3
save i 4
"$B/tests/mount/storm" "$M" many save 4096 400 > "$T/said" || fail "storm: $(cat "$T/said")"
for ((i = 0; i < 600; i++)); do [ "$(webbed)" = 404 ] && break; sleep 0.1; done
eq "objects" "$(webbed)" 404
echo "DELETE / late:0.1" > "$T/fault"
begun=$(date +%s%N)
find "$M/many" -type f -name '[0-9a-f]*' | "$forget" -t 60 - > "$T/out" 2>&1 || fail "many: $(cat "$T/out")"
took=$((($(date +%s%N) - begun) / 1000000))
grep -q "400 removed, 0 not there" "$T/out" || fail "many: $(cat "$T/out")"
[ "$took" -lt 20000 ] || fail "400 removals of 0.1 s took $took ms"
rm "$T/fault"
echo "DELETE / 403:AccessDenied" > "$T/fault"
forget 3 "$M/h/$(place 1)"
says "1 block removed here may be there still: "
says "403"
# When failures have opened the breaker, kvfs-forget still reports the server's error.
echo "* / 503:Unwell" > "$T/fault"
forget 3 $(for i in {201..220}; do echo "$M/h/$(place $i)"; done)
says "20 blocks removed here may be there still: "
for ((i = 0; i < 100; i++)); do [ "$(metric kvfs_remote_open)" = 0 ] && break; sleep 0.1; done
forget 3 "$M/h/$(place 201)"
says "503 Unwell"
rm "$T/fault"
for ((i = 0; i < 300; i++)); do [ "$(metric kvfs_remote_open) $(metric kvfs_remote_tenants_closed)" = "1 0" ] && break; sleep 0.1; done
forget 0 "$M/h"
says "all removed; the server did not tell how many"
lines 1
eq "objects of the other space" "$(webbed)" 1
eq "not brought back" "$(came h 2)" 0
forget 0 "$M/h"
says " 0 removed, 1 not there"

# kvfs-forget and the reader of its output end in time, even if a daemon hangs or a call of
# another filesystem cannot be interrupted.
begin() { # NAME ARGUMENTS...: start kvfs-forget in the background, with its output in $T/NAME.said
	local name=$1
	shift
	{ "$forget" "$@" 2>&1; echo "status $?"; } | cat >"$T/$name.said" &
	pids[$name]=$!
}
daemon() { pgrep -f -- "^[^ ]*kvfs -o .*$T/"; }
ended() { # ended NAME TEXT: fail unless it printed one line with TEXT, and status 3
	wait "${pids[$1]}"
	said=$(cat "$T/$1.said")
	says "status 3"
	says "$2"
	lines 2
}
declare -A pids
mkdir "$T/lazy"
"$B/tests/mount/lazy" "$R" "$T/hang" "$T/lazy" &
for ((i = 0; i < 300; i++)); do mountpoint -q "$T/lazy" && break; sleep 0.1; done
touch "$T/hang"
pid=$(daemon)
freeze "$pid"
begin looks -t 1 "$M/h/$(place 2)" "$M/i"
begin other -t 1 "$T/lazy/root/$(place 3)"
ended looks "kvfs-forget: kvfs does not answer"
ended other "kvfs-forget: kvfs does not answer"
rm "$T/hang"

# The daemon is killed while it hangs, or has ended before kvfs-forget starts.
begin looks -t 20 "$M/h/$(place 2)"
kill -KILL "$pid"
ended looks "$(place 2): its daemon has ended"
gone
forget 3 "$M/h" "$M/h/$(place 3)" "$M/i"
says "h: its daemon has ended"
lines 1
