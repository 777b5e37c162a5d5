#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: long
# remote_web.sh - two nodes with a web server, and a bucket, between them: what one
# saved, the other has, also after the first is gone; a server that stops or dies
# costs nobody what he has here, and is found again.
. "$(dirname "$0")/lib"
. "$here/tiers"
trap 'end_servers; cleanup' EXIT
N=$T/node
mkdir "$N"
get_moto
cd "$T" || exit 1
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]},
             {"name": "v", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16, "share": true}
L
kv() { block "$@" --tensor k:BF16:4x16x64:8192 --tensor v:BF16:4x16x64:8192; }
for i in 1 2 3 4 5 6; do kv "$T/b$i" --seed "$i"; done

node1() { start "remote=$1,remote_threshold=1"; }
node2() {
	"$B/kvfs" -o "$BASE,control=$T/sock2,remote=$1,remote_threshold=1" "$T/store2" "$N" ||
		fail "the other node does not start"
}
make() { mkdir "$1" && cp "$T/layout" "$1/.layout" || fail "the space $1"; }
# fetched WANTED MS N...: the other node has so many of them.
fetched() {
	local wanted=$1 ms=$2 keys=() out
	shift 2
	for n in "$@"; do keys+=("$(key "$n")"); done
	out=$("$B/tests/mount/fetch" "$N" s acquire "$ms" "${keys[@]}") || fail "fetch: $out"
	eq "acquired" "${out% *}" "$wanted"
}
handed_over() { # N
	local i
	for ((i = 0; i < 600; i++)); do
		[ "$("$B/tests/mount/fetch" "$N" s acquire 1000 "$(key "$1")" | cut -d' ' -f1)" = 1 ] && return
		sleep 0.1
	done
	fail "block $1 is not handed over"
}
ended() { # MOUNT STORE
	local i
	unmount "$1" || fail "umount $1"
	for ((i = 0; i < 600; i++)); do
		pgrep -f -- "^[^ ]*kvfs .*$2 " >/dev/null || return
		sleep 0.1
	done
	fail "the daemon of $1 does not end"
}
fill() { # SPACE N: a new one, at the other node, with so many blocks
	local i
	make "$N/$1"
	for ((i = 1; i <= $2; i++)); do
		mkdir -p "$N/$1/$(printf %02x "$i")"
		cp "$T/b$((i % 6 + 1))" "$N/$1/$(place "$i")" || fail "block $i"
	done
	sync "$N/$1"
}
puts() { sed -n 's/^kvfs_remote_calls_total{.*call="put"} //p' "$N/.kvfs/metrics"; }
# between URL: copy from one node to another, and list the objects.
between() {
	node1 "$1"
	node2 "$1"
	make "$M/s"
	for i in 1 2 3 4 5 6; do put s $i "$T/b$i" || fail "put $i"; done
	ok "durable" sync "$M/s"
	make "$N/s"
	eq "the first node's seed" "$(sed 's/.*"seed"//' "$N/s/.layout")" "$(sed 's/.*"seed"//' "$M/s/.layout")"
	handed_over 1
	handed_over 6
	ended "$M" "$T/store"
	rm -rf "$T/store"
	fetched 4 30000 1 2 3 4
	for i in 1 2 3 4 6; do same "block $i" "$T/b$i" "$N/s/$(place $i)"; done
	ok "in its statistics" grep -q "^remote    $1: asked" "$N/.kvfs/stats"
	forgotten "$1"
}
# Blocks, then a space of more than a server lists at a time, are removed there.
forgotten() { # URL
	local i said
	fill f 105
	for ((i = 0; i < 600; i++)); do
		[ "$(puts)" -ge 105 ] && break
		sleep 0.1
	done
	said=$(B=$B "$here/../../tools/kvfs-forget" "$N/f/$(place 1)" "$N/f/$(place 106)") || fail "kvfs-forget: $said"
	eq "two blocks" "$said" "$N/f: $1: 1 removed, 1 not there"
	said=$(B=$B "$here/../../tools/kvfs-forget" "$N/f") || fail "kvfs-forget: $said"
	eq "a space" "$said" "$N/f: $1: 1 removed, 0 not there"
	said=$(for i in {1..105}; do echo "$N/f/$(place "$i")"; done | B=$B "$here/../../tools/kvfs-forget" -) || fail "kvfs-forget: $said"
	eq "its blocks" "$said" "$N/f: $1: 0 removed, 105 not there"
	said=$(sed 's/.*"seed"//' "$N/f/.layout")
	rmdir "$N/f" && make "$N/f" || fail "the space, anew"
	eq "the seed, still" "$(sed 's/.*"seed"//' "$N/f/.layout")" "$said"
	fetched 4 300 1 2 3 4
}
# Block 5 is there, and here are the others: the server's process $server stops.
without_server() {
	freeze "$server"
	fetched 0 300 5
	fetched 4 300 1 2 3 4
	end_one "$server"
	for i in 1 2 3; do fetched 0 300 5; done
	fetched 4 300 1 2 3 4
}

# A server that takes nothing, $1 its word for it, still gives what it has: while
# the other node offers it block upon block.
with_a_server_that_refuses() {
	local i before
	end_one "$server"
	sed -i "s/server { /server { if (\$request_method = PUT) { return $1; } /" nginx.conf
	/usr/sbin/nginx -p "$T" -c nginx.conf -e nginx.log -g "$([ "$(id -u)" != 0 ] || echo "user root;")" & server=$!
	servers+=("$server")
	wait_for 30 listens "$port" || fail "nginx does not come up: $(cat nginx.log)"
	for ((i = 0; i < 300; i++)); do
		[ "$("$B/tests/mount/fetch" "$N" s acquire 1000 "$(key 5)" | cut -d' ' -f1)" = 1 ] && break
		sleep 0.1
	done
	before=$(puts)
	fill r 40
	for ((i = 0; i < 300; i++)); do
		[ "$(sed -n 's/^kvfs_remote_dropped_total{backend="0"[^}]*} //p' "$N/.kvfs/metrics")" -ge 40 ] && break
		sleep 0.1
	done
	[ $(($(puts) - before)) -ge 40 ] || fail "after $1 it is not asked any more: $(($(puts) - before)) puts"
	ok "why" grep -q "; the last failure: put: .* (status $1)\$" "$N/.kvfs/stats"
	rm -r "$N/s" && make "$N/s"
	fetched 4 30000 1 2 3 4
}

port=$(free_port)
start_nginx
server=$owner
url=http://127.0.0.1:$port/kv
between "$url"
object=$(find "$T/web" -name "$(key 2)")
same "the object is the block's file" "$T/b2" "$object"
eq "a note beside it" "$(cut -d' ' -f1,2 "$object.digest")" "$(key 2) $(xattr "$N/s/$(place 2)" digest)"
without_server
start_nginx
server=$owner
handed_over 5
same "after the server came back" "$T/b5" "$N/s/$(place 5)"
with_a_server_that_refuses 507
ended "$N" "$T/store2"
rm -rf "$T/store2"
end_one "$server"

start_moto
server=$moto
servers+=("$moto")
url="s3://kvfs/some/prefix?endpoint=http://127.0.0.1:$port&credentials=$T/good"
between "$url"
ok "no secret in it" test -z "$(grep -rF "$(sed -n 's/.*secret.*= //p' good)" "$N/.kvfs" 2>/dev/null)"
without_server
ended "$N" "$T/store2"
not "credentials" "mode is 0644" sh -c "chmod 644 good; exec $B/kvfs -o $BASE,'remote=$url' $S $M"
chmod 600 good
not "no server" "onnect" "$B/kvfs" -o "$BASE,remote=$url" "$S" "$M"
start "remote=$url,remote_optional" 2>warning
ok "a warning" grep -q "warning: remote=.*onnect" warning
make "$M/s" && put s 1 "$T/b1" && same "without it" "$T/b1" "$M/s/$(place 1)"
