#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_share.sh - whose word it is whether a space is shared: what waits when its
# owner takes it back stays here, and who only may write there cannot give it.  What is
# shared gets there in the end: what was saved before, what a full backend refused, and
# what waited when the daemon was killed.
. "$(dirname "$0")/lib"
O=$T/objects
mkdir -m 1777 "$O"
[ "$(id -u)" = 0 ] && chmod 755 "$T"
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16}
L
sed 's/}$/, "share": true}/' "$T/layout" > "$T/shared"
BLOCKS=12
for i in $(seq $BLOCKS); do block "$T/b$i" --seed "$i" --tensor k:BF16:4x16x64:8192; done
make() { mkdir "$M/$1" && cp "$T/layout" "$M/$1/.layout" || fail "the space $1"; }
# save SPACE: all blocks, durable
save() {
	local i
	for i in $(seq $BLOCKS); do put "$1" "$i" "$T/b$i" || fail "put $i"; done
	sync "$M/$1" || fail "sync"
}
# objects [TENANT]: of the blocks that save() saves
objects() {
	local i n=0
	for i in $(seq $BLOCKS); do
		compgen -G "$O/${1:-0}-*-$(key "$i")" >/dev/null && n=$((n + 1))
	done
	echo $n
}
# behind: later saves have been copied, so these had their turn. The backend's breaker may
# have opened: wait until it has closed.
next=100
behind() {
	local i
	for ((i = 0; i < 60; i++)); do
		next=$((next + 1))
		put after $next "$T/b1" && sync "$M/after" || fail "put $next"
		for j in 1 2 3 4 5; do
			sleep 0.1
			compgen -G "$O/0-*-$(key $next)" >/dev/null && return
		done
	done
	fail "nothing is handed over any more"
}
share() { setfattr -n user.kvfs.share -v "$2" "$M/$1" || fail "share $1 $2"; }

REMOTE="remote=helper:$here/kvfs-remote-files?dir=$O&fault=$T/fault"
start "$REMOTE"
hold() { # all helpers that there are
	pids=$(children "$(daemon_pids | head -1)")
	[ -n "$pids" ] || fail "no helper"
	for p in $pids; do freeze "$p"; done
}
go() { for p in $pids; do kill -CONT "$p"; done; }

arrive() { # WHAT [TENANT]: all of them do
	local i
	for ((i = 0; i < 600; i++)); do [ "$(objects "${2:-}")" = $BLOCKS ] && break; sleep 0.1; done
	eq "$1" "$(objects "${2:-}")" $BLOCKS
	offered
	rm -f "$O"/*
}
offered() { # until nothing is offered any more
	local i
	for ((i = 0; i < 600; i++)); do
		grep -q '^kvfs_remote_offering{backend="0"[^}]*} 0' "$M/.kvfs/metrics" && return
		sleep 0.1
	done
	fail "it is offered for ever"
}

make after && share after 1
make given && share given 1
save given && behind
arrive "what is shared"

# Shared only when it is there.
make late
save late && behind
eq "what is not shared" "$(objects)" 0
share late 1
arrive "what is shared later"

# Refused, until there is room.
make refused && share refused 1
echo full > "$T/fault"
save refused
for ((i = 0; i < 300; i++)); do
	[ "$(sed -n 's/^kvfs_remote_dropped_total{backend="0"[^}]*} //p' "$M/.kvfs/metrics")" -ge $BLOCKS ] && break
	sleep 0.1
done
eq "in a full backend" "$(objects)" 0
rm "$T/fault"
arrive "what was refused"

# Taken back while all of them wait, those included that are asked about.
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
	behind
	eq "of a space that is not shared" "$(compgen -G "$O/1001-*" | wc -l)" 0
	share sold 1
	arrive "the new owner's" 1001
	share sold 0
fi

# All that waits when the daemon is killed is offered by the next one.
make killed && share killed 1
for space in given late refused; do share $space 0; done
offered
hold && save killed
pid=$(daemon_pids | head -1)
kill -KILL "$pid"
unmount "$M" || fail "umount"
gone
eq "what was not handed over" "$(objects)" 0
start "$REMOTE"
arrive "what waited"

# Only the owner can share a space that has no layout yet.
as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
refused() { # WHAT COMMAND...: and nothing of it is there
	not "$1" "Operation not permitted" as 1001 "${@:2}"
	absent "$1" "$M/open/.layout"
	eq "$1" "$(xattr "$M/open" share)" 0
}
if [ "$(id -u)" = 0 ]; then
	chmod 644 "$T/layout" "$T/shared"
	mkdir "$M/open" && chmod 777 "$M/open"
	refused "another's layout" cp "$T/shared" "$M/open/.layout"
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
