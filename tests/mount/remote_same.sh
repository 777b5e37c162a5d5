#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_same.sh - two nodes put objects of the same keys with different bytes at the same
# time: a third node gets each block complete, with the bytes of one of the two nodes, and
# finds no object damaged.
. "$(dirname "$0")/lib"
. "$here/tiers"
trap 'end_servers; cleanup' EXIT
BLOCKS=16
N=$T/node O=$T/third
mkdir "$N" "$O"
port=$(free_port)
"$here/web.py" "$port" "$T/fault" 2>"$T/web.log" & servers+=("$!")
wait_for 30 listens "$port" || fail "the server does not come up: $(cat "$T/web.log")"
for i in $(seq $BLOCKS); do
	block "$T/m$i" --seed "$i" --tensor k:BF16:4x16x64:8192
	block "$T/n$i" --seed "$((i + 1000))" --tensor k:BF16:4x16x64:8192
done
node() { # node STORE MOUNT SOCKET: mount, and make a shared space
	"$B/kvfs" -o "$BASE,control=$3,remote_threshold=1,remote=http://127.0.0.1:$port/kv" "$1" "$2" || fail "the node $2"
	mkdir "$2/s" && echo '{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]}], "keys": "engine", "share": true}' >"$2/s/.layout" ||
		fail "the space of $2"
}
save() { # save MOUNT PREFIX: save the files $T/PREFIX1, $T/PREFIX2... as blocks
	local i
	for i in $(seq $BLOCKS); do
		mkdir -p "$1/s/$(printf %02x "$i")" && cp "$T/$2$i" "$1/s/$(place "$i")" || fail "put $i"
	done
	sync "$1/s" || fail sync
}
puts() { sed -n 's/^kvfs_remote_calls_total{call="put"} //p' "$1/.kvfs/metrics"; }
put_all() { [ "$(puts "$M")" -ge $BLOCKS ] && [ "$(puts "$N")" -ge $BLOCKS ]; }

node "$S" "$M" "$SOCK"
node "$T/store2" "$N" "$T/sock2"
save "$M" m & one=$!
save "$N" n
wait $one || fail "the first node"
wait_for 60 put_all || fail "put: $(puts "$M") and $(puts "$N")"
node "$T/store3" "$O" "$T/sock3"
keys=()
for i in $(seq $BLOCKS); do keys+=("$(key "$i")"); done
eq "what the third node gets" "$("$B/tests/mount/fetch" "$O" s acquire 30000 "${keys[@]}" | cut -d' ' -f1)" $BLOCKS
for i in $(seq $BLOCKS); do
	cmp -s "$T/m$i" "$O/s/$(place "$i")" || same "block $i" "$T/n$i" "$O/s/$(place "$i")"
done
eq "damaged" "$(sed -n 's/^kvfs_remote_damaged_total //p' "$O/.kvfs/metrics")" 0
ended "$O" "$T/store3"
ended "$N" "$T/store2"
stop
