#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_missing.sh - a backend that is missing at mount, or disappears later, is used as
# soon as it is there, and then gets the blocks that were saved meanwhile.  Another
# directory at its path is reported.  Damaged objects are replaced.
. "$(dirname "$0")/lib"
R=$T/remote
N=$T/node
mkdir "$N"
OPTIONS=remote=dir:$R,remote_threshold=1,remote_optional
node1() { start "$OPTIONS"; }
node2() { "$B/kvfs" -o "$BASE,control=$T/sock2,$OPTIONS" "$T/store2" "$N" || fail "the other node does not start"; }
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]}], "keys": "engine"}
L
sed 's/}$/, "share": true}/' "$T/layout" > "$T/sharing"
kv() { block "$@" --tensor k:BF16:4x16x64:8192; }
make() { mkdir "$1" && cp "$T/${2:-sharing}" "$1/.layout" || fail "the space $1"; }
fetched() { # WANTED SPACE N: fail unless the other node gets WANTED (0 or 1) blocks of key N
	eq "acquired of $2" "$("$B/tests/mount/fetch" "$N" "$2" acquire 5000 "$(key "$3")" | cut -d' ' -f1)" "$1"
}
soon() { # soon WHAT COMMAND...: repeat COMMAND until it succeeds
	local i what=$1
	shift
	for ((i = 0; i < 600; i++)); do
		"$@" && return
		sleep 0.1
	done
	fail "$what: not within a minute"
}
used() { grep -q "^remote    dir:$R: open$" "$1/.kvfs/stats"; }
has() { [ -s "$(object "$1")" ]; }
object() { find "$R" -path '*/2-*' -name "$(key "$1")"; }
payload() { cmp -s <(tail -c 8192 "$T/b$1") <(tail -c 8192 "$(object "$1")"); }
for i in 1 2 3 4 5 6; do kv "$T/b$i" --seed "$i"; done

# The backend appears while no request waits for it.
node1 2> "$T/said"
node2 2>> "$T/said"
eq "told" "$(grep -c "remote=dir:$R: .*No such file" "$T/said")" 2
ok "told" grep -q "^remote    dir:$R: closed$" "$M/.kvfs/stats"
eq "told" "$(metric kvfs_remote_open)" 0
for space in early full; do make "$M/$space"; done
make "$M/late" layout
put full 1 "$T/b1" && sync "$M/full" || fail "without it"
put late 6 "$T/b6" && sync "$M/late" || fail "not shared"
mkdir "$R"
soon "the backend, here" used "$M"
soon "the backend, there" used "$N"
put early 2 "$T/b2" && sync "$M/early" || fail put
make "$N/early"
make "$N/full"
soon "handed over" has 2
soon "what was saved without it, too" has 1
fetched 1 early 2
same "what comes" "$T/b2" "$N/early/$(place 2)"
fetched 1 full 1
eq "what is not shared" "$(object 6)" ""
ok "shared" setfattr -n user.kvfs.share -v 1 "$M/late"
soon "handed over" has 6

# A damaged object is a miss, until the next node that saves the block replaces it.
make "$M/mend"
make "$N/mend"
for i in 4 5; do put mend $i "$T/b$i" || fail "put $i"; done
sync "$M/mend"
for i in 4 5; do soon "handed over" has $i; done
truncate -s 100 "$(object 4)"
printf 'kvfs?' | dd of="$(object 5)" bs=1 seek=12 conv=notrunc status=none
for i in 4 5; do
	fetched 0 mend $i
	mkdir -p "$N/mend/0$i" && cp "$T/b$i" "$N/mend/$(place $i)" && sync "$N/mend" || fail "saved elsewhere"
	soon "the object $i is mended" payload $i
done
unmount "$N" || fail umount
stop

# Another directory at the same path is reported, and the old one is not used at its new
# path.
rm -rf "$T/store2"
"$B/kvfs" -f -o "$BASE,control=$SOCK,$OPTIONS" "$S" "$M" 2> "$T/said" &
node=$!
soon "mounted" mountpoint -q "$M"
soon "used" used "$M"
# The daemon is stopped, so that it never finds the path without a directory.
kill -STOP "$node" && mv "$R" "$T/away" && mkdir "$R" && kill -CONT "$node" || fail "another directory"
make "$M/moved"
for i in 3 {31..42}; do put moved $i "$T/b3" || fail "put $i"; done
sync "$M/moved"
soon "what is wrong is told" grep -q "the last failure: .*: another directory stands there, without .part" "$M/.kvfs/stats"
soon "printed" grep -q "given up.*another directory stands" "$T/said"
eq "and said once" "$(grep -c "^kvfs: warning: remote=dir:$R: " "$T/said")" 1
eq "nothing in the new one" "$(ls -A "$R")" ""
if [ "$(id -u)" = 0 ]; then
	mkdir "$R/.part" && chown -R 1001 "$R" || fail "another user's"
	sleep 3 # some trials
	eq "another owner's" "$(has 3 && echo used)" ""
	rmdir "$R/.part" && chown 0 "$R" || fail "no other user's"
fi
mkdir "$R/.part" || fail "it is meant"
soon "the backend" used "$M"
soon "handed over" has 3
stop
rm -rf "$R"
mv "$T/away" "$R"

# A backend directory without write access can be used only with remote_write=none or ro.
R3=$T/ro
mkdir "$R3"
protect() { if [ "$(id -u)" = 0 ]; then mount --bind "$R3" "$R3" && mount -o remount,bind,ro "$R3"; else chmod 555 "$R3"; fi; }
expose() { if [ "$(id -u)" = 0 ]; then umount "$R3"; else chmod 755 "$R3"; fi; }
for part in "" .part; do
	mkdir -p "$R3/$part"
	protect || fail "a directory that cannot be written to"
	not "written to" "remote=dir:$R3: " "$B/kvfs" -o "$BASE,control=$SOCK,remote=dir:$R3" "$S" "$M"
	for option in remote_write=none ro; do
		start "remote=dir:$R3,$option"
		ok "used" grep -q "^remote    dir:$R3: open$" "$M/.kvfs/stats"
		stop
	done
	expose || fail "a directory"
done

# A bad URL is reported.
not "none" "$T/none: No such file or directory" "$B/kvfs" -o "$BASE,control=$SOCK,remote=dir:$T/none" "$S" "$M"
not "no path" "without a directory" "$B/kvfs" -o "$BASE,control=$SOCK,remote=dir:" "$S" "$M"
exit 0
