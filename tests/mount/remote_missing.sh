#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_missing.sh - a backend that is not there at mount is asked once it comes;
# spaces that were made, or not shared, before then agree with others upon their
# seed; what a writer left half-done is mended by the next.
. "$(dirname "$0")/lib"
R=$T/remote
N=$T/node
mkdir "$N"
OPTIONS=remote=dir:$R,remote_threshold=1,remote_optional
node1() { start "$OPTIONS"; }
node2() { "$B/kvfs" -o "$BASE,control=$T/sock2,$OPTIONS" "$T/store2" "$N" || fail "the other node does not start"; }
# A program that is not there does not end the daemon, and is asked when it is.
start "remote=helper:$T/tree/tests/mount/kvfs-remote-files?dir=$T&fault=$T/fault,remote_optional" 2> "$T/said"
grep -q "No such file" "$T/said" || fail "not said: $(cat "$T/said")"
sleep 0.3
ok "without a helper" grep -q "not there yet" "$M/.kvfs/stats"
for f in examples/kvfs-remote-dict connectors/remote/kvfs_remote.py tests/mount/kvfs-remote-files; do
	install -D -m 755 "$here/../../$f" "$T/tree/$f" || fail "install $f"
done
for ((i = 0; i < 600; i++)); do grep -q "^remote .*: asked" "$M/.kvfs/stats" && break; sleep 0.1; done
[ "$i" -lt 600 ] || fail "the helper is not asked once it is there"
stop
rm -rf "$S" "$T/tree"
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16}
L
sed 's/16}$/16, "share": true}/' "$T/layout" > "$T/sharing"
sed 's/16}$/16, "seed": "00000000000000ab"}/' "$T/layout" > "$T/given"
kv() { block "$@" --tensor k:BF16:4x16x64:8192; }
make() { mkdir "$1" && cp "$T/${2:-sharing}" "$1/.layout" || fail "the space $1"; }
seed() { grep -o '"seed": *"[0-9a-f]*"' "$1/.layout"; }
fetched() { # WANTED SPACE N: on the other node
	eq "acquired of $2" "$("$B/tests/mount/fetch" "$N" "$2" acquire 5000 "$(key "$3")" | cut -d' ' -f1)" "$1"
}
soon() { # WHAT COMMAND...
	local i what=$1
	shift
	for ((i = 0; i < 600; i++)); do
		"$@" && return
		sleep 0.1
	done
	fail "$what: not within a minute"
}
asked() { grep -q "^remote    dir:$R: asked" "$1/.kvfs/stats"; }
agreed() { [ "$(seed "$M/$1")" = "$(seed "$N/$1")" ]; }
published() { # SPACE: its seed is with others'
	grep -rqF "$(seed "$M/$1" | grep -o '[0-9a-f]\{16\}')" --include=.layout "$R"
}
has() { [ -s "$(object "$1").digest" ]; }
object() { find "$R" -name "$(key "$1")"; }
for i in 1 2 3 4 5; do kv "$T/b$i" --seed "$i"; done

# The backend appears while nobody waits for it.
node1 2> "$T/said"
node2 2>> "$T/said"
eq "told" "$(grep -c "warning: remote=dir:$R: .*No such file" "$T/said")" 2
ok "told" grep -q "^remote    dir:$R: not there yet" "$M/.kvfs/stats"
eq "told" "$(metric 'kvfs_remote_open{backend="0"}')" 0
for space in early full named; do make "$M/$space"; done
put full 1 "$T/b1" && sync "$M/full" || fail "without it"
mkdir "$R"
soon "the backend, here" asked "$M"
soon "the backend, there" asked "$N"
for space in early full named; do soon "$space, published" published "$space"; done
put early 2 "$T/b2" && sync "$M/early" || fail put
make "$N/early"
ok "a seed" agreed early
soon "handed over" has 2
soon "what was saved without it, too" has 1
fetched 1 early 2
same "what comes" "$T/b2" "$N/early/$(place 2)"

# Away at the next mount: what is empty when it comes takes the others' seed, and
# keeps it; what is not, keeps its own, and says so.
unmount "$N" || fail umount
stop
mv "$R" "$T/away"
rm -rf "$T/store2"
node2 2> "$T/said"
make "$N/named"
make "$N/full"
mkdir -p "$N/full/03" && cp "$T/b3" "$N/full/$(place 3)" || fail put
node1 2> "$T/said"
agreed named && fail "a seed that nobody could know"
before=$(seed "$N/full")
mv "$T/away" "$R"
soon "the backend, there" asked "$N"
soon "the others' seed" agreed named
soon "told" grep -q "^seed_differs=full" "$N/.kvfs/config"
eq "with blocks, its own" "$(seed "$N/full")" "$before"
rm -r "$N/full/03" || fail rm
ok "asked again" setfattr -n user.kvfs.share -v 1 "$N/full"
soon "without blocks, the others'" agreed full
not "told no more" "" grep "^seed_differs" "$N/.kvfs/config"
wanted=$(seed "$N/full") also=$(seed "$N/named")
unmount "$N" || fail umount
for ((i = 0; i < 600; i++)); do pgrep -f -- "^[^ ]*kvfs .*$T/store2 " > /dev/null || break; sleep 0.1; done
node2
eq "it stays so" "$(seed "$N/full") $(seed "$N/named")" "$wanted $also"

# A space shared after its creation: its layout is published, and a given seed stays.
make "$M/private" layout
make "$M/theirs" given
sleep 1.5
published private && fail "what is not shared was published"
ok "shared" setfattr -n user.kvfs.share -v 1 "$M/private"
soon "published" published private
ok "shared" setfattr -n user.kvfs.share -v 1 "$M/theirs"
soon "published" published theirs
make "$N/private"
ok "the first's seed" agreed private
make "$N/theirs" layout
ok "shared" setfattr -n user.kvfs.share -v 1 "$N/theirs"
soon "the given seed" agreed theirs

# A writer that dies leaves an object without its note, or with half a note: a miss,
# which the next one to save it mends.
put private 4 "$T/b4" && sync "$M/private" || fail put
soon "handed over" has 4
rm "$(object 4).digest" || fail "no note"
fetched 0 private 4
sleep 1.1
mkdir -p "$N/private/04" && cp "$T/b4" "$N/private/$(place 4)" && sync "$N/private" || fail "saved elsewhere"
soon "its note is back" has 4
rm -r "$M/private/04"
put private 5 "$T/b5" && sync "$M/private" || fail put
soon "handed over" has 5
truncate -s 10 "$(object 5).digest"
fetched 0 private 5
mkdir -p "$N/private/05" && cp "$T/b5" "$N/private/$(place 5)" && sync "$N/private" || fail "saved elsewhere"
soon "half a note is made whole" grep -q "$(xattr "$N/private/$(place 5)" digest)" "$(object 5).digest"

# So it is with one that published a layout.
make "$M/halfway"
at=$(grep -rlF "$(seed "$M/halfway" | grep -o '[0-9a-f]\{16\}')" --include=.layout "$R")
rm "$at.digest" && make "$N/halfway" || fail "no note of a layout"
ok "the first's seed" agreed halfway
unmount "$N" || fail umount
stop

# Another directory, of the same name, is not taken in silence, nor is the old one that
# stands there no more.
rm -rf "$T/store2"
"$B/kvfs" -f -o "$BASE,control=$SOCK,$OPTIONS" "$S" "$M" 2> "$T/said" &
node=$!
soon "mounted" mountpoint -q "$M"
# The daemon must not see the moment between the two: "No such file" would be the one
# line that it prints of the backend.
kill -STOP "$node" && mv "$R" "$T/away" && mkdir "$R" && kill -CONT "$node" || fail "another directory"
make "$M/moved"
put moved 5 "$T/b5" && sync "$M/moved" || fail put
soon "what is wrong is told" grep -q "; the last failure: .*: another directory stands there, without .part" "$M/.kvfs/stats"
soon "printed" grep -q "another directory stands" "$T/said"
eq "and said once" "$(grep -c "^kvfs: warning: remote=dir:$R: .*: another directory stands" "$T/said")" 1
eq "nothing in the new one" "$(ls -A "$R")" ""
mkdir "$R/.part" || fail "it is meant"
soon "the backend" asked "$M"
soon "its layout" published moved
soon "handed over" has 5
stop
rm -rf "$R"
mv "$T/away" "$R"

# One that cannot be written to does for reading alone.
R3=$T/ro
mkdir "$R3"
protect() { if [ "$(id -u)" = 0 ]; then mount --bind "$R3" "$R3" && mount -o remount,bind,ro "$R3"; else chmod 555 "$R3"; fi; }
expose() { if [ "$(id -u)" = 0 ]; then umount "$R3"; else chmod 755 "$R3"; fi; }
for part in "" .part; do
	mkdir -p "$R3/$part"
	protect || fail "a directory that cannot be written to"
	not "written to" "remote=dir:$R3: it cannot be written to" "$B/kvfs" -o "$BASE,control=$SOCK,remote=dir:$R3" "$S" "$M"
	start "remote=dir:$R3,remote_write=none"
	ok "asked" grep -q "^remote    dir:$R3: asked" "$M/.kvfs/stats"
	stop
	expose || fail "a directory"
done

# A bad URL is reported once.
wrong() { not "$1" "kvfs: remote=$1: $2" "$B/kvfs" -o "$BASE,control=$SOCK,remote=$1" "$S" "$M"; }
wrong mooncake://127.0.0.1 "its master is //HOST:PORT"
wrong helper: "a program's path begins with /"
wrong "helper:$T/none?uid=$(id -u)" "$T/none: No such file or directory"
wrong "dir:$T/none" "No such file or directory"

# Each backend gets the layouts, also one that comes later: a node that asks only that
# has the same seeds.
R2=$T/remote2
of_two() { start "remote=dir:$R,remote=dir:$R2,remote_threshold=1,remote_optional" 2> /dev/null; }
end_other() {
	unmount "$N" || fail umount
	for ((i = 0; i < 600; i++)); do pgrep -f -- "^[^ ]*kvfs .*$T/store2 " > /dev/null || break; sleep 0.1; done
	rm -rf "$T/store2"
}
there() { # SPACE FOLDER: its seed is there
	grep -rqF "$(seed "$M/$1" | grep -o '[0-9a-f]\{16\}')" --include=.layout "$2"
}
rm -rf "$T/store2"
of_two
make "$M/both"
soon "in the first" there both "$R"
mkdir "$R2"
for space in both early theirs; do soon "$space, in the other" there $space "$R2"; done
OPTIONS=remote=dir:$R2 node2
for space in both early theirs; do make "$N/$space"; ok "one seed of $space" agreed $space; done
make "$M/new"
soon "in the other" there new "$R2"
make "$N/new"
ok "one seed" agreed new
if [ "$(id -u)" = 0 ]; then
	ok "another's" chown 1234 "$M/new"
	ok "who shares it" setfattr -n user.kvfs.share -v 1 "$M/new"
	soon "where its new owner's are" there new "$R2/1234"
fi
end_other
stop

# Two backends with different seeds: reported once, and the first seed is taken.
node1
OPTIONS=remote=dir:$R2 node2
make "$M/split"
make "$N/split"
agreed split && fail "a seed that nobody could know"
wanted=$(seed "$M/split")
end_other
stop
of_two
soon "told" grep -q "^seeds_differ=split (of dir:$R and of dir:$R2)" "$M/.kvfs/config"
ok "shared once more" setfattr -n user.kvfs.share -v 1 "$M/split"
make "$M/last"
soon "asked again" there last "$R2"
eq "told once" "$(grep -c ^seeds_differ "$M/.kvfs/config")" 1
eq "it stays" "$(seed "$M/split")" "$wanted"
OPTIONS=remote=dir:$R,remote=dir:$R2 node2
make "$N/split"
eq "the first one's" "$(seed "$N/split")" "$wanted"
end_other
stop
