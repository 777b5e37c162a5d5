#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: alone, it bounds the time of calls while a server is stopped
# remote_mooncake.sh - the remote tier in a Mooncake store behind its gateway.  The
# master, a process that owns memory, and the gateway are killed and stopped one after
# the other: no acquire exceeds its deadline, no byte is wrong, and blocks come again
# once the process is back.
. "$(dirname "$0")/lib"
install_program forget local
. "$here/tiers"
trap 'end_servers; cleanup' EXIT
fail() {
	echo "FAILED: $*"
	tail -n 5 "$T"/*.log
	exit 1
}
serve mooncake || exit $?
"$root/tests/gateway.py" "$url" not-atomic >"$T/conformance.log" || fail "the gateway: $(grep FAILED "$T/conformance.log")"
"$root/connectors/remote/kvfs-remote-mooncake" --listen "$T/none.sock" 127.0.0.1:1 2>"$T/none.log" &&
	fail "a gateway without a master"
ok "the reason" grep -q "the master 127.0.0.1:1: .*refused" "$T/none.log"

N=$T/node
mkdir "$N"
node() { # node MOUNT STORE: start a node
	"$B/kvfs" -o "$BASE,control=$2.sock,remote=$url,remote_threshold=1" "$2" "$1" || fail "kvfs does not start with remote=$url"
}
cat >"$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]},
             {"name": "v", "dtype": "BF16", "shape": [4, 16, 64]}],
 "tokens": 16, "keys": "engine", "share": true}
L
number() { sed -n "s/^kvfs_remote_$1.* //p" "$M/.kvfs/metrics"; }
handed_over() { [ "$(number put_bytes_total)" -ge $(($1 * $(stat -c %s "$T/b1"))) ]; }
count=12
node "$M" "$S"
mkdir "$M/s" && cp "$T/layout" "$M/s/.layout" || fail "the space"
for ((i = 1; i <= count; i++)); do
	block "$T/b$i" --tensor k:BF16:4x16x64:8192 --tensor v:BF16:4x16x64:8192 --seed "$i"
	put s $i "$T/b$i" || fail "put $i"
done
ok "durable" sync "$M/s"
wait_for 30 handed_over $count || fail "not handed over"

# The other node gets the blocks; whichever process is killed or stopped, no acquire exceeds
# its deadline.
node "$N" "$T/store2"
mkdir "$N/s" && cp "$T/layout" "$N/s/.layout" || fail "the space of the other"
keys=$(for ((i = 1; i <= count; i++)); do echo "$(key $i)"; done)
fetched() { # MS: acquire all blocks on the other node; print how many came, and the milliseconds
	# shellcheck disable=SC2086
	"$B/tests/mount/fetch" "$N" s acquire "$1" $keys
}
fresh() { # restart the other node with an empty store, and so without its list of removals
	unmount "$N" || fail "umount"
	gone
	rm -rf "$T/store2"
	node "$N" "$T/store2"
	mkdir "$N/s" && cp "$T/layout" "$N/s/.layout" || fail "the space of the other"
}
gone() { wait_for 60 eval '! pgrep -f -- "^[^ ]*kvfs .*$T/store2 " >/dev/null'; }
all_here() { fresh; [ "$(fetched 10000 | cut -d' ' -f1)" = $count ]; }
ok "all blocks come" test "$(fetched 30000 | cut -d' ' -f1)" = $count
for ((i = 1; i <= count; i++)); do same "block $i" "$T/b$i" "$N/s/$(place $i)"; done
for who in gateway owner master; do
	fresh
	kill -STOP "${!who}"
	for _ in 1 2 3; do
		read -r n ms < <(fetched 1000)
		[ "${ms%.*}" -le 1250 ] || fail "with a stopped $who an acquire of 1 s took $ms ms"
	done
	kill -CONT "${!who}"
	for ((i = 1; i <= count; i++)); do [ ! -e "$N/s/$(place $i)" ] || same "block $i after a stop of the $who" "$T/b$i" "$N/s/$(place $i)"; done
	wait_for 60 all_here || fail "after a stop of the $who: $(fetched 5000) of $count blocks"
done
end_one "$gateway"
fresh_ms=$(fetched 1000 | cut -d' ' -f2)
[ "${fresh_ms%.*}" -le 1250 ] || fail "without a gateway an acquire of 1 s took $fresh_ms ms"
start_gateway || fail "the gateway does not come up again"
wait_for 60 all_here || fail "after the gateway's restart"

# A whole space is removed, by a node that never had its blocks.
fresh
unmount "$N" && gone
out=$("$T/bin/kvfs-forget" "$M/s" 2>&1) || fail "kvfs-forget of the space: $out"
node "$N" "$T/store2"
eq "nothing comes" "$(fetched 2000 | cut -d' ' -f1)" 0
unmount "$N"
stop
