#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_turns.sh - two users and a web server: requests of one user that the server does
# not answer, for that user's own objects or for readable objects of another user, do not
# delay the requests of others.
. "$(dirname "$0")/lib"
needs_root setpriv
. "$here/tiers"
trap 'end_servers; cleanup' EXIT
port=$(free_port)
"$here/web.py" "$port" "$T/fault" 2>"$T/server.log" & servers+=($!)
wait_for 30 listens "$port" || fail "the server does not come up: $(cat "$T/server.log")"
N=$T/node
mkdir -m 755 "$N"
cp "$B/tests/mount/storm" "$B/tests/mount/fetch" "$T/" && chmod 755 "$T/storm" "$T/fetch"
as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
put_bytes() { sed -n 's/^kvfs_remote_put_bytes_total.* //p' "$M/.kvfs/metrics"; }
all_handed_over() { [ "$(put_bytes)" -ge $((2 * 200 * 4096)) ]; }
came() { as "$1" "$T/fetch" "$T/sock2" "$2" acquire 5000 "${@:3}" | cut -d' ' -f1; } # UID SPACE KEY...: print how many came

start "remote=http://127.0.0.1:$port/kv"
for uid in 4001 4002; do
	as $uid "$T/storm" "$SOCK" s$uid save 4096 200 || fail "save of $uid"
done
wait_for 60 all_handed_over || fail "handed over: $(put_bytes)"
cp "$M"/s4001/.layout "$T/layout" && chmod 644 "$T/layout"
stop
"$B/kvfs" -o "$BASE,ssd=0,control=$T/sock2,remote_threshold=1,remote=http://127.0.0.1:$port/kv" \
	"$T/store2" "$N" || fail "the other node"
for uid in 4001 4002; do
	as $uid sh -c "mkdir -m 755 $N/s$uid && cp $T/layout $N/s$uid/.layout" || fail "space of $uid"
done
mapfile -t keys < <("$T/storm" "$T/sock2" none keys 4096 200)
eq "while all is answered" "$(came 4001 s4001 "${keys[@]:0:20}")" 20

printf "GET %s hang\n" "${keys[@]:100:100}" >"$T/fault"
as 4002 "$T/fetch" "$T/sock2" s4001 acquire 9000 "${keys[@]:60:140}" >/dev/null & hangs=$!
sleep 1
eq "the owner's, while another waits for his" "$(came 4001 s4001 "${keys[@]:20:20}")" 20
wait $hangs

rm "$T/fault"
sleep 2
echo "GET /4002/ hang" >"$T/fault"
as 4002 "$T/fetch" "$T/sock2" s4002 acquire 9000 "${keys[@]}" >/dev/null & hangs=$!
sleep 1
eq "one user's, while another waits for his own" "$(came 4001 s4001 "${keys[@]:40:20}")" 20
wait $hangs
rm "$T/fault"
unmount "$N"
