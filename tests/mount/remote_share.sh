#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_share.sh - the owner of a space decides whether it is shared.  Blocks that wait to
# be copied when the owner stops sharing are not copied; a user who may only write to the
# space cannot share it.  In a shared space all blocks are copied in the end: those saved
# before, those that a full backend refused, and those that waited when the daemon was
# killed.
. "$(dirname "$0")/lib"
. "$here/tiers"
trap 'end_servers; cleanup' EXIT
[ "$(id -u)" = 0 ] && chmod 755 "$T"
port=$(free_port)
"$here/web.py" "$port" "$T/fault" 2>"$T/web.log" & servers+=("$!")
wait_for 30 listens "$port" || fail "the server does not come up: $(cat "$T/web.log")"
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16, "keys": "engine"}
L
sed 's/}$/, "share": true}/' "$T/layout" > "$T/shared"
BLOCKS=12
for i in $(seq $BLOCKS); do block "$T/b$i" --seed "$i" --tensor k:BF16:4x16x64:8192; done
make() { mkdir "$M/$1" && cp "$T/layout" "$M/$1/.layout" || fail "the space $1"; }
# save SPACE: save all test blocks in SPACE, and make them durable
save() {
	local i
	for i in $(seq $BLOCKS); do put "$1" "$i" "$T/b$i" || fail "put $i"; done
	sync "$M/$1" || fail "sync"
}
there() { curl -s "http://127.0.0.1:$port/objects/" | grep "^/kv/${1:-0}/2-.*/$(key "$2")$"; }
# objects [TENANT]: print how many of the blocks that save() saves are in the backend.
objects() {
	local i n=0
	for i in $(seq $BLOCKS); do
		there "${1:-0}" "$i" >/dev/null && n=$((n + 1))
	done
	echo $n
}
empty() { curl -s -o /dev/null -X DELETE "http://127.0.0.1:$port/kv/"; }
# behind: save other blocks until one of them is copied to the remote tier, so that blocks
# saved earlier were offered to it.  An open circuit breaker closes meanwhile.
next=100
behind() {
	local i j
	for ((i = 0; i < 60; i++)); do
		next=$((next + 1))
		put after $next "$T/b1" && sync "$M/after" || fail "put $next"
		for j in 1 2 3 4 5; do
			sleep 0.1
			there 0 $next >/dev/null && return
		done
	done
	fail "nothing is handed over any more"
}
share() { setfattr -n user.kvfs.share -v "$2" "$M/$1" || fail "share $1 $2"; }

REMOTE="remote=http://127.0.0.1:$port/kv"
start "$REMOTE"
# hold: let every PUT of the operator's objects hang, and save more blocks than may be in
# flight.
hold() {
	local i
	echo "PUT /kv/0/ hang" > "$T/fault"
	for i in {1..40}; do put after $((next += 1)) "$T/b1" || fail "put $next"; done
	sync "$M/after"
}
go() { rm -f "$T/fault"; }

arrive() { # arrive WHAT [TENANT]: wait until all blocks that save() saves are in the backend
	local i
	for ((i = 0; i < 600; i++)); do [ "$(objects "${2:-0}")" = $BLOCKS ] && break; sleep 0.1; done
	eq "$1" "$(objects "${2:-0}")" $BLOCKS
	offered
	empty
}
offered() { # wait until no block is being offered to the backend
	local i
	for ((i = 0; i < 600; i++)); do
		[ "$(metric kvfs_remote_offering)" = 0 ] && return
		sleep 0.1
	done
	fail "it is offered for ever"
}

make after && share after 1
make given && share given 1
save given && behind
arrive "what is shared"

# A space is shared only after its blocks were saved.
make late
save late && behind
eq "what is not shared" "$(objects)" 0
share late 1
arrive "what is shared later"

# The backend refuses blocks until it has room.
make refused && share refused 1
echo "PUT /kv/ 507" > "$T/fault"
save refused
for ((i = 0; i < 300; i++)); do [ "$(metric kvfs_remote_dropped_total)" -ge $BLOCKS ] && break; sleep 0.1; done
eq "in a full backend" "$(objects)" 0
eq "which is used for reading still" "$(metric kvfs_remote_open)" 1
eq "tenants for which it is full" "$(metric kvfs_remote_full)" 1
not "health" "the remote tier takes no blocks: put: 507" "$B/kvfs" --health "$M"
go
arrive "what was refused"
eq "tenants for which it is full" "$(metric kvfs_remote_full)" 0
ok "health" "$B/kvfs" --health "$M"

# The owner stops sharing while all blocks of the space wait to be copied.
make taken && share taken 1
hold && save taken
share taken 0
go
behind
eq "what was taken back" "$(objects)" 0

# With a new owner nothing leaves before that owner shares the space, including new saves
# and after the next mount; the layout's share is ignored.
if [ "$(id -u)" = 0 ]; then
	mkdir "$M/sold" && cp "$T/shared" "$M/sold/.layout" || fail "the space sold"
	hold && save sold
	chown 0:1001 "$M/sold"
	eq "of another group" "$(xattr "$M/sold" share)" 1
	chown 1001 "$M/sold"
	go
	eq "of another owner" "$(xattr "$M/sold" share)" 0
	put sold 99 "$T/b1" && sync "$M/sold" || fail "put 99"
	behind
	eq "the old owner's" "$(objects)" 0
	eq "the new owner's, who did not say so" "$(objects 1001)" 0
	stop
	start "$REMOTE"
	eq "at the next mount" "$(xattr "$M/sold" share)" 0
	for space in given late refused; do share $space 0; done
	behind
	eq "of a space that is not shared" "$(curl -s "http://127.0.0.1:$port/objects/" | grep -c '^/kv/1001/')" 0
	share sold 1
	arrive "the new owner's" 1001
	share sold 0
fi

# Blocks that wait when the daemon is killed are offered by the next daemon.
make killed && share killed 1
for space in given late refused; do share $space 0; done
offered
empty
hold && save killed
pid=$(daemon_pids | head -1)
kill -KILL "$pid"
unmount "$M" || fail "umount"
gone
eq "what was not handed over" "$(objects)" 0
go
start "$REMOTE"
arrive "what waited"

# Only the owner can share a space that has no layout yet.
as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
refused() { # WHAT COMMAND...: fail unless user 1001 is refused, and no layout or share was set
	not "$1" "Operation not permitted" as 1001 "${@:2}"
	absent "$1" "$M/open/.layout"
	eq "$1" "$(xattr "$M/open" share)" 0
}
if [ "$(id -u)" = 0 ]; then
	chmod 644 "$T/layout" "$T/shared"
	mkdir "$M/open" && chmod 777 "$M/open"
	refused "another's layout" cp "$T/shared" "$M/open/.layout"
	refused "by redirection" bash -c 'echo "$1" >"$2"' sh "$(cat "$T/shared")" "$M/open/.layout"
	refused "renamed" sh -c "cp '$T/shared' '$M/open/.layout.new' && mv '$M/open/.layout.new' '$M/open/.layout'"
	refused "an attribute" setfattr -n user.kvfs.share -v 1 "$M/open"
	refused "by libkvfs" "$B/tests/mount/ask" "$M" open remote
	as 1001 cp "$T/layout" "$M/open/.layout" || fail "another's layout that does not share"
	eq "it shares nothing" "$(xattr "$M/open" share)" 0
	mkdir "$M/own" && chown 1001 "$M/own"
	as 1001 cp "$T/shared" "$M/own/.layout" || fail "the owner's layout"
	eq "the owner's" "$(xattr "$M/own" share)" 1
fi
stop
