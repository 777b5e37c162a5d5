#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_mooncake.sh - the remote tier in a Mooncake store: its master and a process
# that owns memory, from the wheel, killed and stopped one after the other.
. "$(dirname "$0")/lib"
root=$(cd "$here/../.." && pwd)
wheel=mooncake-transfer-engine-non-cuda==0.3.13.post1
venv=$B/mooncake
pids=()
end_servers() {
	[ ${#pids[@]} = 0 ] || { kill -KILL "${pids[@]}"; wait "${pids[@]}"; } 2>/dev/null
	pids=()
}
trap 'end_servers; cleanup' EXIT
fail() {
	echo "FAILED: $*"
	tail -n 20 "$T"/*.log
	exit 1
}

"$root/tests/need.sh" libibverbs1 libnuma1 libcurl4 >/dev/null 2>&1
python=$venv/bin/python
if ! "$python" -c "import mooncake.store" 2>/dev/null; then
	rm -rf "$venv"
	/usr/bin/python3 -m venv "$venv" &&
		"$venv/bin/pip" install -q --no-deps --disable-pip-version-check "$wheel" \
			>"$T/pip.log" 2>&1 || { rm -rf "$venv"; echo "no $wheel"; exit 77; }
	"$python" -c "import mooncake.store" || { echo "the wheel does not load here"; exit 77; }
fi
bin=$("$python" -c "import mooncake, os; print(os.path.dirname(mooncake.__file__))")

free_port() { "$python" -c "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])"; }
# Both in the background: $master, $owner.  A port may be somebody's by then.
servers() {
	start_servers || { end_servers; start_servers; } || fail "the owner does not come up"
}
start_servers() {
	local port metrics i
	port=$(free_port) metrics=$(free_port)
	address=127.0.0.1:$port
	GLOG_minloglevel=1 "$bin/mooncake_master" --rpc_address=127.0.0.1 --rpc_port="$port" \
		--metrics_host=127.0.0.1 --metrics_port="$metrics" --default_kv_lease_ttl=2000 \
		--enable_metric_reporting=false >"$T/master.log" 2>&1 &
	master=$!
	pids+=("$master")
	for ((i = 0; i < 100; i++)); do
		(: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
		sleep 0.1
	done
	"$python" "$root/tests/mount/mooncake_owner.py" "$address" $((256 << 20)) >"$T/owner.log" 2>&1 &
	owner=$!
	pids+=("$owner")
	for ((i = 0; i < 300; i++)); do
		grep -q ready "$T/owner.log" && break
		sleep 0.1
	done
	# As ourselves: others may not reach the build.
	url="//$address?uid=$(id -u)&python=$python&program=$root/connectors/remote/kvfs-remote-mooncake&landing=8M&patience=40"
	grep -q ready "$T/owner.log"
}

servers
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
end_servers
for who in owner master; do
	for how in kill stop; do
		servers
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
