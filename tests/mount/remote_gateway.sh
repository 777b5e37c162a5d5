#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_gateway.sh - the remote tier behind a gateway on a UNIX socket: the example gateway
# passes the conformance test, and two nodes share blocks through it.  The daemon
# logs and shows once each that the gateway has ended and that it is back.  A socket that other users control is refused.
. "$(dirname "$0")/lib"
install_program forget local
root=$here/../..
gateway=''
trap '[ -z "$gateway" ] || kill -KILL $gateway; cleanup' EXIT
url=http+unix:$T/run/sock
mkdir -m 700 "$T/run"
begin() {
	python3 "$root/examples/kvfs-remote-dict" "$T/run/sock" 2> "$T/gateway.log" &
	gateway=$!
	for ((i = 0; i < 100; i++)); do [ -S "$T/run/sock" ] && return; sleep 0.1; done
	fail "the gateway does not listen: $(cat "$T/gateway.log")"
}
end() { kill "$gateway"; wait "$gateway" 2> /dev/null; gateway=''; rm -f "$T/run/sock"; }
soon() { # soon WHAT COMMAND...: repeat COMMAND until it succeeds, for 30 s
	local i what=$1
	shift
	for ((i = 0; i < 300; i++)); do "$@" && return; sleep 0.1; done
	fail "$what: not within 30 seconds"
}
open() { [ "$(metric kvfs_remote_open)" = "$1" ]; }

not "without a gateway" "$T/run/sock: No such file" "$B/kvfs" -o "$BASE,control=$SOCK,remote=$url" "$S" "$M"
begin
"$root/tests/gateway.py" "$url" > "$T/conformance" || fail "$(grep FAILED "$T/conformance")"
chmod 1777 "$T/run"
not "a folder that others may write to" "$T/run: others may write to it" "$B/kvfs" -o "$BASE,control=$SOCK,remote=$url" "$S" "$M"
chmod 700 "$T/run"

"$B/kvfs" -f -o "$BASE,control=$SOCK,remote=$url,remote_threshold=1" "$S" "$M" 2> "$T/said" &
soon "the mount" mountpoint -q "$M"
N=$T/node
mkdir "$N"
"$B/kvfs" -o "$BASE,control=$T/sock2,remote=$url,remote_threshold=1" "$T/store2" "$N" || fail "the other node"
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]}],
 "tokens": 16, "keys": "engine", "share": true}
L
for node in "$M" "$N"; do mkdir "$node/s" && cp "$T/layout" "$node/s/.layout" || fail "the space"; done
for n in 1 2 3; do
	block "$T/b$n" --tensor k:BF16:4x16x64:8192 --seed "$n"
	put s $n "$T/b$n" || fail "put $n"
done
sync "$M/s" || fail sync
handed_over() { [[ $(xattr "$M/s/$(place "$1")" tier) == *+remote ]]; }
for n in 1 2 3; do soon "block $n is there" handed_over $n; done
eq "fetched" "$("$B/tests/mount/fetch" "$N" s acquire 5000 "$(key 1)" "$(key 2)" "$(key 3)" | cut -d' ' -f1)" 3
for n in 1 2 3; do same "block $n" "$T/b$n" "$N/s/$(place $n)"; done
said=$("$T/bin/kvfs-forget" "$N/s" 2>&1)
eq "the space is removed, and counted" "$said" "$N/s: $url: 3 removed, 0 not there"

# When the gateway has ended, the daemon logs one line, and requests are misses at once.
end
for n in 4 5 6 7 8 9 10 11 12 13; do
	"$B/tests/mount/fetch" "$M" s acquire 200 "$(key $n)" > /dev/null
done
soon "the tier is closed" open 0
ok "health names the cause" grep -q "remote.*$T/run/sock: No such file" <("$B/kvfs" --health "$M" 2>&1)
ok "the log names the cause" grep -q "given up.*$T/run/sock: No such file" "$T/said"
began=$(date +%s%N)
eq "a miss" "$("$B/tests/mount/fetch" "$M" s acquire 5000 "$(key 20)" | cut -d' ' -f1)" 0
[ $((($(date +%s%N) - began) / 1000000)) -lt 1000 ] || fail "a miss waits for a closed tier"
begin
soon "the tier is open" open 1
eq "lines on standard error" "$(grep -c "remote=$url" "$T/said")" 2
ok "healthy" "$B/kvfs" --health "$M"
unmount "$N"
stop
