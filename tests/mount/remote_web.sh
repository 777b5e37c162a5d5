#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: long
# remote_web.sh - two nodes with a web server, a TLS proxy before a web server, or a bucket
# as the remote tier: each node gets the other's blocks, also after the other has ended.  If
# the server stops, refuses, is full or loses its bucket, local blocks stay readable, the
# server's error is shown, and blocks come again when the server works again.
. "$(dirname "$0")/lib"
install_program forget local
. "$here/tiers"
trap 'end_servers; cleanup' EXIT
N=$T/node
mkdir "$N"
get_moto
cd "$T" || exit 1
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]},
             {"name": "v", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16,
 "keys": "engine", "share": true}
L
kv() { block "$@" --tensor k:BF16:4x16x64:8192 --tensor v:BF16:4x16x64:8192; }
for i in 1 2 3 4 5 6; do kv "$T/b$i" --seed "$i"; done

node1() { start "remote=$1,remote_threshold=1"; }
node2() {
	"$B/kvfs" -o "$BASE,control=$T/sock2,remote=$1,remote_threshold=1" "$T/store2" "$N" ||
		fail "the other node does not start"
}
make() { mkdir "$1" && cp "$T/layout" "$1/.layout" || fail "the space $1"; }
# fetched WANTED MS N...: fail unless the other node gets WANTED of the blocks N within MS
# ms.
fetched() {
	local wanted=$1 ms=$2 keys=() out
	shift 2
	for n in "$@"; do keys+=("$(key "$n")"); done
	out=$("$B/tests/mount/fetch" "$N" s acquire "$ms" "${keys[@]}") || fail "fetch: $out"
	eq "acquired" "${out% *}" "$wanted"
}
counter() { sed -n "s/^kvfs_remote_$1 //p" "$N/.kvfs/metrics"; }
puts() { counter 'calls_total{call="put"}'; }
at_least() { [ "$($1)" -ge "$2" ]; }
is_fetched() { [ "$("$B/tests/mount/fetch" "$N" s acquire 1000 "$(key "$1")" | cut -d' ' -f1)" = 1 ]; }
handed_over() { wait_for 60 is_fetched "$1" || fail "block $1 is not handed over: $(grep -A9 ^remote "$N/.kvfs/stats")"; }
ended() { # ended MOUNT STORE: unmount, and wait until the daemon has ended
	unmount "$1" || fail "umount $1"
	wait_for 60 no_daemon "$2" || fail "the daemon of $1 does not end"
}
no_daemon() { ! pgrep -f -- "^[^ ]*kvfs .*$1 " >/dev/null; }
fill() { # fill SPACE N: make the space SPACE at the other node, and save N blocks in it
	local i
	make "$N/$1"
	for ((i = 1; i <= $2; i++)); do
		mkdir -p "$N/$1/$(printf %02x "$i")"
		cp "$T/b$((i % 6 + 1))" "$N/$1/$(place "$i")" || fail "block $i"
	done
	sync "$N/$1"
}
reported() { grep -q "$1" "$N/.kvfs/stats"; }
# between URL: copy from one node to another, and list the objects.
between() {
	node1 "$1"
	node2 "$1"
	make "$M/s"
	for i in 1 2 3 4 5 6; do put s $i "$T/b$i" || fail "put $i"; done
	ok "durable" sync "$M/s"
	make "$N/s"
	handed_over 1
	handed_over 6
	wait_for 30 has_remote "$M/s/$(place 6)" || fail "tier: $(xattr "$M/s/$(place 6)" tier)"
	has_remote "$N/s/$(place 6)" || fail "tier: $(xattr "$N/s/$(place 6)" tier)"
	ended "$M" "$T/store"
	rm -rf "$T/store"
	fetched 4 30000 1 2 3 4
	for i in 1 2 3 4 6; do same "block $i" "$T/b$i" "$N/s/$(place $i)"; done
	ok "in its statistics" grep -qF "remote    $1: open" "$N/.kvfs/stats"
	forgotten
}
has_remote() { case $(xattr "$1" tier) in *+remote) ;; *) false ;; esac; }
# kvfs-forget removes blocks from the server, then a space of more blocks than the server
# lists in one answer.
forgotten() {
	local said before
	before=$(puts)
	fill f 105
	wait_for 60 at_least puts $((before + 105)) || fail "puts: $(puts)"
	said=$("$T/bin/kvfs-forget" "$N/f/$(place 1)" "$N/f/$(place 106)") || fail "kvfs-forget: $said"
	case $said in *" 1 removed, 1 not there"*) ;; *) fail "two blocks: $said" ;; esac
	said=$("$T/bin/kvfs-forget" "$N/f") || fail "kvfs-forget: $said"
	case $said in *" removed"*) ;; *) fail "a space: $said" ;; esac
	said=$(for i in {1..105}; do echo "$N/f/$(place "$i")"; done | "$T/bin/kvfs-forget" -) || fail "kvfs-forget: $said"
	case $said in *" 0 removed, 105 not there"*) ;; *) fail "its blocks: $said" ;; esac
	rmdir "$N/f" && make "$N/f" || fail "the space, anew"
	fetched 4 300 1 2 3 4
}
# The server's process $server stops; block 5 is only there, the other blocks are also on
# this node.
without_server() {
	freeze "$server"
	fetched 0 300 5
	fetched 4 300 1 2 3 4
	end_one "$server"
	for i in 1 2 3; do fetched 0 300 5; done
	fetched 4 300 1 2 3 4
}
# A server that answers every PUT with the status $1 still serves its objects, while the
# other node goes on offering blocks.
with_a_server_that_refuses() {
	local before
	end_one "$server"
	sed -i "s/server { /server { if (\$request_method = PUT) { return $1; } /" nginx.conf
	/usr/sbin/nginx -p "$T" -c nginx.conf -e nginx.log -g "$([ "$(id -u)" != 0 ] || echo "user root;")" & server=$!
	servers+=("$server")
	wait_for 30 listens "$port" || fail "nginx does not come up: $(cat nginx.log)"
	handed_over 5
	before=$(counter dropped_total)
	fill r 40
	wait_for 30 at_least "counter dropped_total" $((before + 1)) || fail "nothing was dropped"
	wait_for 30 reported "$1 Insufficient Storage" || fail "why: $(grep -A9 ^remote "$N/.kvfs/stats")"
	rm -r "$N/s" && make "$N/s"
	fetched 4 30000 1 2 3 4
}

port=$(free_port)
start_nginx
server=$owner
url=http://127.0.0.1:$port/kv
between "$url"
object=$(find "$T/web" -name "$(key 2)")
case $object in */kv/"$(id -u)"/2-*/"$(key 2)") ;; *) fail "the object is at $object" ;; esac
ok "the object is a safetensors file with one more entry" python3 - "$T/b2" "$object" <<'P'
import json, struct, sys
def read(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + n]), data[8 + n:]
(block, bytes1), (object, bytes2) = read(sys.argv[1]), read(sys.argv[2])
entry = object["__metadata__"].pop("kvfs.object")
assert bytes1 == bytes2, "other bytes"
assert {k: v for k, v in object.items() if k != "__metadata__"} == \
    {k: v for k, v in block.items() if k != "__metadata__"}, "another header"
print(entry)
P
without_server
start_nginx
server=$owner
handed_over 5
same "after the server came back" "$T/b5" "$N/s/$(place 5)"
with_a_server_that_refuses 507
ended "$N" "$T/store2"
rm -rf "$T/store2" "$T/web"
end_one "$server"

# A proxy decrypts TLS and forwards the requests to the server.
start_nginx
server=$owner
tls=$(free_port)
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout site.key -out site.pem -subj /CN=site \
	-addext subjectAltName=IP:127.0.0.1 2>openssl.log || fail "$(cat openssl.log)"
printf '%s\n' "daemon off; master_process off; pid proxy.pid;" "events { }" \
	"http { access_log off; client_max_body_size 0; client_body_temp_path body; proxy_temp_path body;" \
	"server { listen 127.0.0.1:$tls ssl; ssl_certificate site.pem; ssl_certificate_key site.key;" \
	"location / { proxy_pass http://127.0.0.1:$port; } } }" >proxy.conf
/usr/sbin/nginx -p "$T" -c proxy.conf -e proxy.log -g "$([ "$(id -u)" != 0 ] || echo "user root;")" & servers+=($!)
wait_for 30 listens "$tls" || fail "the proxy does not come up: $(cat proxy.log)"
between "https://127.0.0.1:$tls/kv?ca=$T/site.pem"
end_one "$server"
asks_in_vain() { fetched 0 300 5; reported "$1"; }
wait_for 30 asks_in_vain "502 Bad Gateway" || fail "the proxy's error: $(grep -A9 ^remote "$N/.kvfs/stats")"
ended "$N" "$T/store2"
rm -rf "$T/store2"

start_moto
server=$moto
servers+=("$moto")
s3() { # s3 PYTHON: run PYTHON with boto3's resource `s3`, authorized by the file good
	AWS_ACCESS_KEY_ID=$(sed -n 's/.*id = //p' good) AWS_SECRET_ACCESS_KEY=$(sed -n 's/.*secret.* = //p' good) \
		AWS_DEFAULT_REGION=us-east-1 "$B/moto/bin/python" -c "import boto3
s3 = boto3.resource('s3', endpoint_url='http://127.0.0.1:$port')
$1" || fail "boto3: $1"
}
url="s3://kvfs/some/prefix?endpoint=http://127.0.0.1:$port&credentials=$T/good"
between "$url"
ok "no secret in it" test -z "$(grep -rF "$(sed -n 's/.*secret.*= //p' good)" "$N/.kvfs" 2>/dev/null)"
# The bucket is deleted: requests fail, and blocks are not copied.
s3 "s3.Bucket('kvfs').objects.delete(); s3.Bucket('kvfs').delete()"
before=$(counter failed_total)
fill gone 20
wait_for 30 reported "NoSuchBucket (404)" || fail "why: $(grep -A9 ^remote "$N/.kvfs/stats")"
wait_for 30 at_least "counter failed_total" $((before + 1)) || fail "nothing failed"
wait_for 30 at_least "counter dropped_total" 1 || fail "nothing was dropped"
fetched 4 300 1 2 3 4
is_closed() { [ "$(counter open)" = 0 ]; }
is_open() { [ "$(counter open)" = 1 ]; }
wait_for 30 is_closed || fail "a backend without its bucket is still used"
ok "health" sh -c "'$B/kvfs' --health '$N' 2>&1 | grep -i remote.*NoSuchBucket"
s3 "s3.create_bucket(Bucket='kvfs')"
wait_for 60 is_open || fail "the bucket is not found again"
ended "$N" "$T/store2"
rm -rf "$T/store2"
node1 "$url"
node2 "$url"
make "$M/s"
for i in 1 2 3 4 5 6; do put s $i "$T/b$i" || fail "put $i"; done
sync "$M/s"
make "$N/s"
for i in 1 2 3 4; do handed_over $i; done
ended "$M" "$T/store"
rm -rf "$T/store"
without_server
ended "$N" "$T/store2"
not "credentials" "mode is 0644" sh -c "chmod 644 good; exec $B/kvfs -o $BASE,'remote=$url' $S $M"
chmod 600 good
not "no server" "onnect" "$B/kvfs" -o "$BASE,remote=$url" "$S" "$M"
start "remote=$url,remote_optional" 2>warning
ok "a warning" grep -q "remote.*onnect" warning
make "$M/s" && put s 1 "$T/b1" && same "without it" "$T/b1" "$M/s/$(place 1)"
