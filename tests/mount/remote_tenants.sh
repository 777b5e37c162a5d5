#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_tenants.sh - two users with a remote tier behind a program: each has a
# process as a user of its own, one that is stopped or killed is nothing to the other
# user, for one place they take turns, and none outlives a daemon that is killed.
. "$(dirname "$0")/lib"
needs_root setpriv
root=$(cd "$here/../.." && pwd)
N=$T/node
mkdir -m 1777 "$T/remote"
mkdir "$N"
# Where whoever they run as can read them.
for f in examples/kvfs-remote-dict connectors/remote/kvfs_remote.py tests/mount/kvfs-remote-files; do
	install -D -m 755 "$root/$f" "$T/tree/$f" || fail "install $f"
done
cp "$B/tests/mount/fetch" "$T/fetch" && chmod 755 "$T/fetch"
url="helper:$T/tree/tests/mount/kvfs-remote-files?dir=$T/remote&fault=$T/fault&patience=60"
as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
cat >"$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]},
             {"name": "v", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16, "share": true}
L
chmod 644 "$T/layout"
for i in $(seq 24); do
	block "$T/b$i" --seed "$i" --tensor k:BF16:4x16x64:8192 --tensor v:BF16:4x16x64:8192
	chmod 644 "$T/b$i"
done
daemon_of() { pgrep -f -- "^[^ ]*kvfs .*$1 "; }
# helper DAEMON USER: its process.
helper() { pgrep -P "$1" -U "$2"; }
of_1001=2000001001 of_1002=2000001002 of_node=2099999999
# fetch USER MS N...: got and took, at the second node.
fetch() {
	local user=$1 ms=$2 keys=() out
	shift 2
	for n in "$@"; do keys+=("$(key "$n")"); done
	out=$(as "$user" "$T/fetch" "$N" "s$user" acquire "$ms" "${keys[@]}") || fail "fetch: $out"
	took=${out#* }
	got=${out% *}
}
# until WHAT COMMAND...
until_() {
	local i what=$1
	shift
	for ((i = 0; i < 600; i++)); do "$@" && return; sleep 0.1; done
	fail "$what"
}
objects() { [ "$(find "$T/remote" -type f ! -name '*layout*' ! -name '.*' | wc -l)" = "$1" ]; }

start "remote=$url"
one=$(daemon_of "$S")
eq "the node's own, and none besides" "$(children "$one")" "$(helper "$one" $of_node)"
for user in 1001 1002; do
	as $user mkdir -m 700 "$M/s$user" || fail mkdir
	as $user cp "$T/layout" "$M/s$user/.layout" || fail layout
	for i in $(seq 24); do
		echo "mkdir -p $M/s$user/$(printf %02x "$i") && cp $T/b$i $M/s$user/$(place "$i") || exit 1"
	done | as $user sh || fail "put"
	as $user sync "$M/s$user"
done
until_ "handed over" objects 48
eq "what the one's has kept" "$(find "$T/remote" -user $of_1001 -perm 600 -name '1001-*' | wc -l)" 24
eq "what the other's has kept" "$(find "$T/remote" -user $of_1002 -perm 600 -name '1002-*' | wc -l)" 24
eq "layouts are the node's" "$(find "$T/remote" -user $of_node -name '*.layout' | wc -l)" 2
"$B/kvfs" -o "$BASE,control=$T/sock2,remote=$url,remote_threshold=1" "$T/store2" "$N" || fail "the other node"
two=$(daemon_of "$T/store2")
for user in 1001 1002; do
	as $user mkdir -m 700 "$N/s$user" && as $user cp "$T/layout" "$N/s$user/.layout" || fail "the other's space"
	fetch $user 30000 1 2
	eq "a hit of $user's" "$got" 2
	same "block 1" "$T/b1" "$N/s$user/$(place 1)"
done
eq "the same seed" "$(cat "$N/s1001/.layout")" "$(cat "$M/s1001/.layout")"
eq "three processes" "$(children "$two" | wc -l)" 3

# A stopped helper: 1001 gets misses in time, 1002 has hits as before.
stopped=$(helper "$two" $of_1001)
kill -STOP "$stopped"
for i in 3 5; do
	fetch 1001 200 $i $((i + 1)) $((i + 10)) $((i + 11))
	eq "of one that is stopped nothing comes" "$got" 0
	fetch 1002 30000 $i $((i + 1))
	eq "what another has asked for" "$got" 2
done
# Many requests of one tenant: the other still gets its blocks.
as 1001 "$T/fetch" "$N" s1001 acquire 20000 $(for i in $(seq 3 24); do key "$i"; echo; done) >"$T/many" &
many=$!
sleep 0.3
for i in 7 9; do
	fetch 1002 30000 $i $((i + 1))
	eq "and beside many" "$got" 2
	same "block $i" "$T/b$i" "$N/s1002/$(place $i)"
done
# Told once a second.
figure() { sed -n "s/^kvfs_remote_$1{backend=\"0\"[^}]*} //p" "$N/.kvfs/metrics"; }
is() { [ "$(figure "$1")" = "$2" ]; }
until_ "two helpers" is helpers 2
n=100
unwell() { # after some questions that it does not answer
	fetch 1001 200 $((n += 2)) $((n + 1))
	is helpers_unwell 1
}
until_ "one of them is unwell" unwell
eq "nobody was without a place" "$(figure refused_total)" 0
eq "for both it is open" "$(figure open)" 1
kill -KILL "$stopped"
wait "$many"
# Killed: it is there again by itself.
mine() { fetch 1001 5000 "$@"; [ "$got" = $# ]; }
until_ "after a kill" mine 19 20
kill -KILL "$(helper "$two" $of_1001)" || fail "it is not there"
fetch 1002 30000 11 12
eq "one is killed: another's" "$got" 2
until_ "after another kill" mine 21 22
until_ "all are well" is helpers_unwell 0

# A daemon that is killed takes all with it.
helpers=$(children "$two")
kill -KILL "$two"
none() { local p; for p in $helpers; do [ ! -e "/proc/$p" ] || return 1; done; }
until_ "they end with it" none
umount -l "$N"

# One place for two: 1001 asks all the time, 1002 is served all the same.
"$B/kvfs" -o "$BASE,control=$T/sock3,remote=$url&helpers=1,remote_threshold=1" "$T/store3" "$N" || fail "a third node"
for user in 1001 1002; do
	as $user mkdir -m 700 "$N/s$user" && as $user cp "$T/layout" "$N/s$user/.layout" || fail "the third's space"
done
fetch 1001 30000 1
eq "the one has the place" "$got" 1
while [ ! -e "$T/enough" ]; do fetch 1001 300 $((n += 2)) $((n + 1)); done &
asks=$!
turn() { fetch 1002 300 1 2; [ "$got" = 2 ]; }
until_ "the other's turn" turn
>"$T/enough"
wait "$asks"
same "block 1" "$T/b1" "$N/s1002/$(place 1)"
umount "$N"
helpers=$(children "$one")
stop
until_ "and with a mount" none
