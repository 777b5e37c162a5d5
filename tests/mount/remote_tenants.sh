#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_tenants.sh - two users with a remote tier: requests that hang, are forbidden or
# fail for one user have no effect on the other, and blocks of the first come again when the
# fault ends.  In a directory to which users may write, no user reaches another's blocks.
. "$(dirname "$0")/lib"
install_program forget local
needs_root setpriv
. "$here/tiers"
trap 'end_servers; cleanup' EXIT
N=$T/node
mkdir "$N"
port=$(free_port)
"$here/web.py" "$port" "$T/fault" 2>"$T/web.log" & servers+=("$!")
wait_for 30 listens "$port" || fail "the server does not come up: $(cat "$T/web.log")"
cp "$B/tests/mount/fetch" "$T/fetch" && chmod 755 "$T/fetch"
as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
cat >"$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]}], "keys": "engine", "share": true}
L
chmod 644 "$T/layout"
for i in $(seq 40); do
	block "$T/b$i" --seed "$i" --tensor k:BF16:4x16x64:8192
	chmod 644 "$T/b$i"
done
# fetch USER MS N...: acquire the blocks N at the second node; set `got` to how many came,
# `took` to the milliseconds.
fetch() {
	local user=$1 ms=$2 keys=() out
	shift 2
	for n in "$@"; do keys+=("$(key "$n")"); done
	out=$(as "$user" "$T/fetch" "$N" "s$user" acquire "$ms" "${keys[@]}") || fail "fetch: $out"
	took=${out#* }
	got=${out% *}
}
# until_ WHAT COMMAND...: repeat COMMAND until it succeeds
until_() {
	local i what=$1
	shift
	for ((i = 0; i < 600; i++)); do "$@" && return; sleep 0.1; done
	fail "$what"
}
spaces() { # spaces MOUNT: make a space for each of two users
	local user
	for user in 1001 1002; do
		as $user mkdir -m 700 "$1/s$user" && as $user cp "$T/layout" "$1/s$user/.layout" || fail "the space of $user"
	done
}
handed_over() { [ "$(metric 'kvfs_remote_calls_total{call="put"}')" -ge 80 ]; }
save() {
	local user i
	for user in 1001 1002; do
		for i in $(seq 40); do
			echo "mkdir -p $M/s$user/$(printf %02x "$i") && cp $T/b$i $M/s$user/$(place "$i") || exit 1"
		done | as $user sh || fail "put"
		as $user sync "$M/s$user"
	done
	until_ "handed over" handed_over
}
node2() {
	"$B/kvfs" -o "$BASE,control=$T/sock2,remote=$1,remote_threshold=1" "$T/store2" "$N" || fail "the other node"
}
end_node2() {
	local i
	unmount "$N"
	for ((i = 0; i < 600; i++)); do pgrep -f -- "^[^ ]*kvfs .*$T/store2 " >/dev/null || break; sleep 0.1; done
	rm -rf "$T/store2"
}
figure() { awk -v n="kvfs_remote_$1" '$1 == n { print $2 }' "$N/.kvfs/metrics"; }
is() { [ "$(figure "$1")" = "$2" ]; }

web=http://127.0.0.1:$port/kv
start "remote=$web"
spaces "$M"
save
stop
node2 "$web"
spaces "$N"
for user in 1001 1002; do
	fetch $user 30000 1 2
	eq "a hit of $user's" "$got" 2
	same "block 1" "$T/b1" "$N/s$user/$(place 1)"
done

# Refused objects may be a few only: a tenant that is closed for them is tried again.
closes() {
	fetch 1001 400 $((asked += 1))
	is tenants_closed 1
}
at=3 asked=1000
# harm FAULT WHAT: give the requests of user 1001 the FAULT until the daemon has noticed;
# user 1002 has hits all the while.
harm() {
	local i
	echo "* /kv/1001/ $1" >"$T/fault"
	for ((i = 0; i < 12; i++)); do
		fetch 1001 400 $((asked += 1)) $((asked + 1000)) $((asked + 2000)) $((asked + 3000))
		eq "$2: nothing comes" "$got" 0
		[ "$took" -lt 1200 ] || fail "$2: it took $took ms of 400"
		[ $((i % 4)) = 0 ] || continue
		fetch 1002 30000 $at
		eq "$2: what another asks for" "$got" 1
		same "block $at" "$T/b$at" "$N/s1002/$(place $at)"
		at=$((at + 1))
	done
	until_ "$2: the one is not asked for" closes
	eq "$2: the backend is used" "$(figure open)" 1
	fetch 1002 30000 $at $((at + 1))
	eq "$2: what another asks for" "$got" 2
	at=$((at + 2))
	ok "$2: well" "$B/kvfs" --health "$N"
	rm "$T/fault"
	until_ "$2: over" is tenants_closed 0
}
harm 403 "forbidden"
harm 503 "failing"
harm hang "hanging"
fetch 1001 30000 3 4 5
eq "well again" "$got" 3
for i in 3 4 5; do same "block $i" "$T/b$i" "$N/s1001/$(place $i)"; done

# User 1001 removes more blocks than the daemon has requests in flight, and no removal is
# answered.
echo "DELETE /kv/1001/ hang" >"$T/fault"
floods=()
for i in $(seq 20); do
	for n in $(seq 20); do echo "$N/s1001/$(place $((i * 100 + n)))"; done |
		"$T/bin/kvfs-forget" -t 60 - >/dev/null 2>&1 & floods+=($!)
done
sleep 6
fetch 1002 10000 $at $((at + 1)) $((at + 2))
eq "what another asks for, behind a flood of removals" "$got" 3
rm "$T/fault"
wait "${floods[@]}"
end_node2

# The remote tier is a directory to which users may write.
R=$T/remote
mkdir -m 1777 "$R" "$T/elsewhere"
not "writable by others" remote_unsafe "$B/kvfs" -o "$BASE,control=$SOCK,remote=dir:$R" "$S" "$M"
as 1002 ln -s 1001 "$R/1002"
as 1002 ln -s "$T/elsewhere" "$R/1003"
start "remote=dir:$R,remote_unsafe"
handed() { [ "$(find "$R/1001" -type f 2>/dev/null | wc -l)" = 40 ]; }
until_ "handed over, beside what another has planted" handed
mkdir "$M/s1003" && cp "$T/layout" "$M/s1003/.layout" && chown 1003 "$M/s1003" || fail "the space of 1003"
setfattr -n user.kvfs.share -v 1 "$M/s1003"
put s1003 1 "$T/b1" && sync "$M/s1003"
"$B/kvfs" -o "$BASE,control=$T/sock2,remote=dir:$R,remote_unsafe,remote_threshold=1" "$T/store2" "$N" || fail "the other node"
spaces "$N"
for i in 1 2 3 4 5 6 7 8 9; do
	fetch 1002 1000 "$i"
	eq "by way of the other's folder" "$got" 0
done
fetch 1001 30000 1 2 3
eq "one's own" "$got" 3
eq "made elsewhere" "$(find "$T/elsewhere" -mindepth 1)" ""
eq "the backend is used" "$(figure open)" 1
end_node2
stop
