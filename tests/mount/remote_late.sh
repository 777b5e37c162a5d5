#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_late.sh - a server answers late: making a space does not wait for the server,
# blocks still to be copied when a mount ends are copied before the daemon ends, and blocks
# waiting for the server take no memory from other blocks.
. "$(dirname "$0")/lib"
. "$here/tiers"
trap 'end_servers; cleanup' EXIT
LAYOUT='{"tensors":[{"name":"k","dtype":"U8","shape":[65536]}],"keys":"engine"}'
share() { # share SPACE: make a shared space
	mkdir "$1" && setfattr -n user.kvfs.share -v 1 "$1" && echo "$LAYOUT" >"$1/.layout" || fail "a space, $1"
}
begin_late() { # SECONDS [OPTIONS]: start a server that answers for objects SECONDS late, and mount
	port=$(free_port)
	echo "* /2- late:$1" >"$T/fault"
	"$here/web.py" "$port" "$T/fault" 2>"$T/web.log" & server=$!
	servers+=("$server")
	wait_for 30 listens "$port" || fail "the server does not come up: $(cat "$T/web.log")"
	start "remote=http://127.0.0.1:$port/kv${2:+,$2}"
}
end_late() {
	stop
	end_one "$server"
}

begin_late 1
before=$(date +%s%N)
for space in a b c d; do share "$M/$space"; done
took=$((($(date +%s%N) - before) / 1000000))
[ $took -lt 1000 ] || fail "four spaces took $took ms"
end_late

begin_late 0.03
share "$M/z"
block "$T/b" --tensor k:U8:65536:65536
for i in {1..40}; do put z "$i" "$T/b" || fail "put $i"; done
ok "durable" sync "$M/z"
stop
eq "all were handed over" "$(curl -s "http://127.0.0.1:$port/objects/" | wc -l)" 40
end_one "$server"

# A segment has blocks of one user: small blocks that wait for a hung server must not keep a
# segment for each user, or memory runs out.
if [ "$(id -u)" = 0 ]; then
	begin_late 60 allow_other
	as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
	chmod 644 "$T/b"
	for user in {2001..2016}; do
		as "$user" mkdir -m 700 "$M/u$user" && setfattr -n user.kvfs.share -v 1 "$M/u$user" &&
			as "$user" mkdir "$M/u$user/01" || fail "space of $user"
		as "$user" cp "$T/b" "$M/u$user/$(place 1)" || fail "a save of $user"
		as "$user" sync "$M/u$user" || fail "sync of $user"
	done
	end_late
fi
exit 0
