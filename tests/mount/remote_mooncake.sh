#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: alone, it bounds the time of calls while a server is stopped
# remote_mooncake.sh - the remote tier in a Mooncake store: its master and a process
# that owns memory, from the wheel, killed and stopped one after the other.
. "$(dirname "$0")/lib"
. "$here/tiers"
trap 'end_servers; cleanup' EXIT
fail() {
	echo "FAILED: $*"
	tail -n 20 "$T"/*.log
	exit 1
}

begin() { # in the background: $master, $owner
	serve mooncake || exit $?
	url=${url#mooncake:}
	url=${url/patience=*/patience=40}
}

begin
"$B/tests/cache/mooncake" "$url" >"$T/test.log" 2>&1 || fail "what every backend does"
why=$("$B/tests/cache/mooncake" "${url/python=$python/python=/usr/bin/python3}" 2>&1) && fail "opened without the wheel"
case $why in
*"/usr/bin/python3: No module named 'mooncake'"*) ;;
*) fail "without the wheel: $why" ;;
esac

# Two nodes with it between them; what one saved the other has, also when the first
# is gone.
N=$T/node
mkdir "$N"
node() { # MOUNT STORE
	"$B/kvfs" -o "$BASE,control=$2.sock,remote=mooncake:$url,remote_threshold=1" "$2" "$1" ||
		fail "kvfs does not start with remote=mooncake:$url"
}
cat >"$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]},
             {"name": "v", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16, "share": true}
L
node "$M" "$S"
mkdir "$M/s" && cp "$T/layout" "$M/s/.layout" || fail "the space"
for i in 1 2 3 4 5 6; do
	block "$T/b$i" --tensor k:BF16:4x16x64:8192 --tensor v:BF16:4x16x64:8192 --seed "$i"
	put s $i "$T/b$i" || fail "put $i"
done
ok "durable" sync "$M/s"
for ((i = 0; i < 300; i++)); do
	[ "$(sed -n 's/^kvfs_remote_put_bytes_total.* //p' "$M/.kvfs/metrics")" -ge $((6 * $(stat -c %s "$T/b1"))) ] && break
	sleep 0.1
done
stop
node "$N" "$T/store2"
mkdir "$N/s" && cp "$T/layout" "$N/s/.layout" || fail "the space of the other"
eq "the other node has them" "$("$B/tests/mount/fetch" "$N" s acquire 30000 \
	$(for i in 1 2 3 4 5 6; do echo "$(key $i)"; done) | cut -d' ' -f1)" 6
for i in 1 2 3 4 5 6; do same "block $i" "$T/b$i" "$N/s/$(place $i)"; done
unmount "$N" || fail "umount"
gone

# All of a space is taken away, by a node that never had any of it.
node "$M" "$T/store3"
mkdir "$M/s" && cp "$T/layout" "$M/s/.layout" || fail "the space of the third"
out=$(B=$B "$here/../../tools/kvfs-forget" "$M/s" 2>&1) || fail "kvfs-forget of the space: $out"
case $out in *" 1 removed, 0 not there") ;; *) fail "kvfs-forget of the space: $out" ;; esac
out=$(B=$B "$here/../../tools/kvfs-forget" "$M/s/$(place 1)" "$M/s/$(place 6)" 2>&1) || fail "kvfs-forget of blocks: $out"
case $out in *" 0 removed, 2 not there") ;; *) fail "blocks are left: $out" ;; esac
stop
end_servers
for who in owner master; do
	for how in kill stop; do
		begin
		"$B/tests/cache/mooncake" "$url" "${!who}" $how >"$T/test.log" 2>&1 || fail "$how the $who"
		echo "$how the $who: $(grep 'in time' "$T/test.log")"
		end_servers
	done
done

# Nobody there: said at once.
why=$("$B/tests/cache/mooncake" "//127.0.0.1:1?${url#*\?}" 2>&1) && fail "opened without a master"
case $why in
*"the master 127.0.0.1:1: "*refused*) ;;
*) fail "without a master: $why" ;;
esac
