#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_late.sh - a server that answers late.  A node that asks it which seed a space has
# and stops waiting about then makes the space, and goes on; others have that seed soon,
# and nothing is left beside it; what waits when a mount ends is handed over; and what
# waits for it takes no memory from others.
. "$(dirname "$0")/lib"
. "$here/tiers"
trap 'end_servers; cleanup' EXIT
LAYOUT='{"tensors":[{"name":"k","dtype":"U8","shape":[65536]}]}'
N=$T/node
mkdir "$N"
share() { # SPACE [LAYOUT]
	mkdir "$1" && setfattr -n user.kvfs.share -v 1 "$1" || fail "a space, $1"
	[ -z "${2:-}" ] || echo "$2" >"$1/.layout" || fail "its layout, $1"
}
begin_late() { # SECONDS [OPTIONS]: a server so late, and a mount
	port=$(free_port)
	"$here/late_web.py" "$port" "$1" 2>"$T/web.log" & server=$!
	servers+=("$server")
	wait_for 30 listens "$port" || fail "the server does not come up: $(cat "$T/web.log")"
	start "remote=http://127.0.0.1:$port/kv${2:+,$2}"
}
end_late() {
	stop
	end_one "$server"
}

for late in 0.3 0.6; do
	begin_late $late
	for space in a b c d; do share "$M/$space" "$LAYOUT"; done
	sleep $late # what is late comes
	for space in a b c d; do
		getfattr -n user.kvfs.layout "$M/$space" >/dev/null 2>&1 || fail "the layout of $space, $late s"
		rmdir "$M/$space" || fail "rmdir $space, $late s"
	done
	end_late
done

# Nothing of it is done in the time of who makes the space.
node1() { start "remote=$url"; }
node2() { "$B/kvfs" -o "$BASE,control=$T/sock2,remote=$url" "$T/store2" "$N" || fail "the other node does not start"; }
seed() { sed 's/.*"seed": *"\([0-9a-f]*\)".*/\1/' "$1/.layout"; }
agreed() { # SPACE: one seed, which is on the server
	[ "$(seed "$M/$1")" = "$(seed "$N/$1")" ] && published "$1"
}
published() { grep -rqF "$(seed "$M/$1")" --include=.layout "$files"; }
beside() { find "$files" -name '.layout.*' ! -name .layout.digest; }
nothing_beside() { [ -z "$(beside)" ] && ! ls "$files/.part"/* >/dev/null 2>&1; }
complete() { [ "$(find "$files" -name .layout | wc -l) $(find "$files" -name .layout.digest | wc -l)" = "$1 $1" ]; }
slow_layouts() { # BACKEND FOLDER: where it has its objects
	files=$2
	serve "$1" late || return 0
	node1
	node2
	harm late
	for space in a b; do share "$M/$space" "$LAYOUT"; done
	share "$N/a" "$LAYOUT"
	wait_for 60 published b || fail "$1: no layout is published"
	share "$N/b" "$LAYOUT"
	for space in a b; do wait_for 60 agreed $space || fail "$1: no seed for all of $space"; done
	wait_for 60 complete 2 || fail "$1: layouts: $(find "$files" -name '.layout*')"
	wait_for 60 nothing_beside || fail "$1: left beside the layouts: $(find "$files")"
	# Broken off by the end of the mount.
	share "$M/c" "$LAYOUT"
	before=$(seed "$M/c")
	unmount "$N" && stop || fail umount
	sleep 1 # what is late comes
	eq "$1: left by a mount that ended" "$(beside)" ""
	heal late
	node1
	eq "$1: its seed, still" "$(seed "$M/c")" "$before"
	wait_for 60 published c || fail "$1: what was broken off is not published"
	wait_for 60 complete 3 || fail "$1: layouts: $(find "$files" -name '.layout*')"
	eq "$1: left in the end" "$(beside)" ""
	stop
	rm -rf "$S" "$T/store2"
}
slow_layouts http "$T/web"
slow_layouts dir "$T/remote"

begin_late 0.03
share "$M/z"
block "$T/b" --tensor k:U8:65536:65536
for i in {1..40}; do put z "$i" "$T/b" || fail "put $i"; done
ok "durable" sync "$M/z"
stop
eq "all were handed over" "$(curl -s "http://127.0.0.1:$port/objects/")" 40
end_one "$server"

# Small blocks of each user are in a segment of their own, and must not stay there for a
# server that hangs, or memory runs out.
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
