#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_late.sh - a server that answers late.  A node that asks it which seed a space has
# and stops waiting about then makes the space, and goes on; what waits when a mount
# ends is handed over; and what waits for it takes no memory from others.
. "$(dirname "$0")/lib"
. "$here/moto"
LAYOUT='{"tensors":[{"name":"k","dtype":"U8","shape":[65536]}]}'

for late in 0.3 0.6; do
	port=$(free_port)
	"$here/late_web.py" "$port" $late 2>"$T/web.log" & server=$!
	until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.1; done
	start "remote=http://127.0.0.1:$port/kv"
	for space in a b c d; do
		mkdir "$M/$space" && setfattr -n user.kvfs.share -v 1 "$M/$space" || fail "a space, $late s"
		echo "$LAYOUT" >"$M/$space/.layout" || fail "its layout, $late s"
	done
	sleep $late # what is late comes
	for space in a b c d; do
		getfattr -n user.kvfs.layout "$M/$space" >/dev/null 2>&1 || fail "the layout of $space, $late s"
		rmdir "$M/$space" || fail "rmdir $space, $late s"
	done
	stop
	kill $server
	wait $server 2>/dev/null
done

port=$(free_port)
"$here/late_web.py" "$port" 0.03 2>"$T/web.log" & server=$!
until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.1; done
start "remote=http://127.0.0.1:$port/kv"
mkdir "$M/z" && setfattr -n user.kvfs.share -v 1 "$M/z" || fail "space z"
block "$T/b" --tensor k:U8:65536:65536
for i in {1..40}; do put z "$i" "$T/b" || fail "put $i"; done
ok "durable" sync "$M/z"
stop
eq "all were handed over" "$(curl -s "http://127.0.0.1:$port/objects/")" 40
kill $server

# Each user's small blocks are in a segment of his own: they do not stay in it for the
# sake of a server that hangs, or nobody finds memory.
if [ "$(id -u)" = 0 ]; then
	port=$(free_port)
	"$here/late_web.py" "$port" 60 2>"$T/web.log" & server=$!
	until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.1; done
	start "remote=http://127.0.0.1:$port/kv,allow_other"
	as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
	chmod 644 "$T/b"
	for user in {2001..2016}; do
		as "$user" mkdir -m 700 "$M/u$user" && setfattr -n user.kvfs.share -v 1 "$M/u$user" &&
			as "$user" mkdir "$M/u$user/01" || fail "space of $user"
		as "$user" cp "$T/b" "$M/u$user/$(place 1)" || fail "a save of $user"
		as "$user" sync "$M/u$user" || fail "sync of $user"
	done
	stop
	kill -KILL $server
fi
exit 0
