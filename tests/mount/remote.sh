#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote.sh - two nodes with a remote tier in a directory: each node finds the blocks that
# the other saved in shared spaces, but no blocks of unshared spaces, of other users,
# removed ones or damaged ones.
. "$(dirname "$0")/lib"
R=$T/remote
N=$T/node
mkdir "$R" "$N"
node1() { start "remote=dir:$R,remote_threshold=1${1:+,$1}"; }
node2() {
	"$B/kvfs" -o "$BASE,control=$T/sock2,remote=dir:$R,remote_threshold=1${1:+,$1}" "$T/store2" "$N" ||
		fail "the other node does not start"
}
# fetch MOUNT SPACE MS N...: acquire the blocks of the keys N within MS ms, and set `got` to
# how many came.
fetch() {
	local mount=$1 space=$2 ms=$3 keys=() out
	shift 3
	for n in "$@"; do keys+=("$(key "$n")"); done
	out=$("$B/tests/mount/fetch" "$mount" "$space" acquire "$ms" "${keys[@]}") || fail "fetch: $out"
	took=${out#* }
	got=${out% *}
}
# fetched WHAT WANTED MOUNT SPACE MS N...: fail unless fetch() sets `got` to WANTED
fetched() {
	local what=$1 wanted=$2
	shift 2
	fetch "$@"
	eq "$what" "$got" "$wanted"
}
objects() { find "$R" -type f -path '*/2-*' | grep -c '/[0-9a-f]\{32\}$'; }
o() { find "$R" -path '*/2-*' -name "$(key "$1")"; }
# tensors N: compare the tensors of block N with the end of its object.
PAYLOAD=16384
tensors() { cmp -s <(tail -c $PAYLOAD "$T/b$1") <(tail -c $PAYLOAD "$(o "$1")"); }
handed_over() { # handed_over N: wait until the directory has N objects
	local i
	for ((i = 0; i < 600; i++)); do
		[ "$(objects)" = "$1" ] && return
		sleep 0.1
	done
	fail "$(objects) objects, not $1"
}
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]},
             {"name": "v", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16, "keys": "engine", "share": true}
L
kv() { block "$@" --tensor k:BF16:4x16x64:8192 --tensor v:BF16:4x16x64:8192; }
make() { mkdir "$1" && cp "$T/layout" "$1/.layout" || fail "the space $1"; }

node1
node2
make "$M/s"
eq "shared by its layout" "$(xattr "$M/s" share)" 1
ok "shown" sh -c "getfattr --absolute-names -d '$M/s' | grep -q '^user.kvfs.share=\"1\"'"
for i in 1 2 3 4 5 6; do
	kv "$T/b$i" --seed "$i"
	put s $i "$T/b$i" || fail "put $i"
done
ok "durable" sync "$M/s"
handed_over 6
eq "nothing beside them" "$(find "$R" -type f | wc -l)" 6
eq "an entry in each" "$(find "$R" -type f -exec grep -l '"kvfs.object"' {} + | wc -l)" 6
for i in 1 2 3 4 5 6; do tensors $i || fail "the object $i"; done
eq "it is there, too" "$(xattr "$M/s/$(place 1)" tier)" dram+ssd+remote
ok "well" "$B/kvfs" --health "$M"
make "$N/s"
absent "nothing comes by itself" "$N/s/$(place 1)"
fetched "the other node has them" 4 "$N" s 30000 1 2 3 4
for i in 1 2 3 4; do same "block $i" "$T/b$i" "$N/s/$(place $i)"; done
eq "where it came from" "$(xattr "$N/s/$(place 2)" tier | grep -o '+remote')" +remote
eq "its digest" "$(xattr "$N/s/$(place 2)" digest)" "$(xattr "$M/s/$(place 2)" digest)"
absent "what was not wanted" "$N/s/$(place 5)"
fetched "of a chain, what is before the gap" 0 "$N" s 30000 99 5 6
eq "by prefetch" "$("$B/tests/mount/fetch" "$N" s prefetch 30000 "$(key 5)" "$(key 6)" | cut -d' ' -f1)" 2
same "block 6" "$T/b6" "$N/s/$(place 6)"
ok "in its statistics" grep -q "^remote    dir:$R: open$" "$N/.kvfs/stats"
ok "in its configuration" grep -q "^remote=dir:$R\$" "$N/.kvfs/config"
ok "sync" sync "$N/s"
sleep 1
eq "it hands nothing back" "$(objects)" 6

# The blocks also come when the first node and its store are gone.
ended "$M" "$T/store"
rm -rf "$T/store"
rm "$N/s/$(place 1)"
fetched "what was removed here does not come back" 0 "$N" s 5000 1
eq "nor by prefetch" "$("$B/tests/mount/fetch" "$N" s prefetch 5000 "$(key 1)" | cut -d' ' -f1)" 0
rm -r "$N/s"
make "$N/s"
fetched "to a space that is made anew it does" 1 "$N" s 30000 1
node1
make "$M/s"
fetched "the first node, anew" 6 "$M" s 30000 1 2 3 4 5 6
for i in 1 2 3 4 5 6; do same "block $i" "$T/b$i" "$M/s/$(place $i)"; done

# Blocks of an unshared space stay; users do not see each other's objects; the operator maps
# their names.
mkdir "$M/private" && kv "$T/p" --seed 77 && put private 77 "$T/p" && sync "$M/private" || fail "private"
eq "not shared" "$(xattr "$M/private" share)" 0
sleep 0.5
eq "what is not shared stays here" "$(objects)" 6
ok "shared from now on" setfattr -n user.kvfs.share -v 1 "$M/private"
put private 78 "$T/p" && sync "$M/private" || fail "private 78"
handed_over 8 # wait until the blocks saved before the space was shared are copied
ended "$M" "$T/store"
node1
eq "it stays so" "$(xattr "$M/private" share)" 1
not "a value" "Invalid argument" setfattr -n user.kvfs.share -v 2 "$M/private"
mine() { chown "$1" "$N/private" && setfattr -n user.kvfs.share -v 1 "$N/private" || fail "chown $1"; }
mkdir "$N/private" && mine 1001
fetched "another user's space of that name" 0 "$N" private 3000 78
mine 0
sleep 1.1 # a missing block is not requested again within a second
fetched "one's own" 1 "$N" private 30000 78

# An object that is damaged, short, long or another block's is a miss, is counted, and is
# requested again later.
fresh() {
	rm -r "$N/s" 2>/dev/null
	ended "$N" "$T/store2"
	rm -rf "$T/store2"
	node2 "$@"
	make "$N/s"
}
fresh
printf X | dd of="$(o 1)" bs=1 seek=9000 conv=notrunc status=none
truncate -s 5000 "$(o 2)"
echo more >>"$(o 3)"
cp "$(o 5)" "$(o 4)" || fail "swap"
for i in 1 2 3 4; do
	fetched "damaged $i" 0 "$N" s 10000 $i
	absent "damaged $i" "$N/s/$(place $i)"
done
fetched "whole" 2 "$N" s 30000 5 6
[ "$(sed -n 's/^kvfs_remote_damaged_total.* //p' "$N/.kvfs/metrics")" -ge 4 ] || fail "damage is not counted"
# The node that found the damage and has the block replaces the object.
for i in 1 2 3 4; do
	echo "mkdir -p '$N/s/$(dirname "$(place $i)")' && cp '$T/b$i' '$N/s/$(place $i)'"
done | sh && sync "$N/s" || fail "damaged blocks are not saved"
for i in 1 2 3 4; do
	for ((j = 0; j < 600; j++)); do tensors $i && break; sleep 0.1; done
	tensors $i || fail "the object $i is as it was"
done

# Once the first blocks of a chain have come, the rest is fetched, however long the chain is.
for m in "$M" "$N"; do mkdir "$m/c" && setfattr -n user.kvfs.share -v 1 "$m/c" || fail "space c"; done
before=$(objects)
for i in $(seq 30); do
	block "$T/c$i" --seed "$i" --bytes $((10000 + 3000 * (i / 10)))
	put c "$i" "$T/c$i" || fail "put $i of c"
done
sync "$M/c"
handed_over $((before + 30))
fetched "all that is there" 30 "$N" c 30000 $(seq 40)
for i in $(seq 30); do same "block $i of c" "$T/c$i" "$N/c/$(place "$i")"; done

# remote_threshold counts all blocks that the request has left, however many messages it is
# split into, and also present blocks behind a missing one.
before=$(objects)
"$B/tests/mount/storm" "$M" p save 16384 144 > "$T/said" || fail "storm: $(cat "$T/said")"
handed_over $((before + 144))
read -ra keys <<< "$("$B/tests/mount/storm" "$M" p keys 16384 144 | tr '\n' ' ')"
come() { # come WHAT WANTED VERB FROM TO: fail unless VERB brings WANTED of the keys FROM to TO - 1
	eq "$1" "$("$B/tests/mount/fetch" "$N" p "$3" 30000 "${keys[@]:$4:$5-$4}" | cut -d' ' -f1)" "$2"
}
for threshold in 4 17 100; do
	fresh "remote_threshold=$threshold"
	mkdir "$N/p" && cp "$M/p/.layout" "$N/p/.layout" || fail "the space p"
	come "too short for $threshold" 0 prefetch 0 $((threshold - 1))
	come "not too short for $threshold" 129 prefetch 0 129
	come "the rest, too short for $threshold" 129 prefetch 0 $((128 + threshold < 140 ? 128 + threshold : 140))
done
fresh remote_threshold=16
mkdir "$N/p" && cp "$M/p/.layout" "$N/p/.layout" || fail "the space p"
come "before the hole" 20 acquire 0 20
come "behind it" 37 acquire 23 60
come "a short one" 60 prefetch 0 60
come "before the hole" 20 acquire 60 80
come "behind it" 37 acquire 83 120
come "a short one" 60 acquire 60 120

# The last message of a request may have fewer keys, which must count as no hole in the chain.
before=$(objects)
"$B/tests/mount/storm" "$M" q save 4096 608 > "$T/said" || fail "storm: $(cat "$T/said")"
handed_over $((before + 608))
read -ra more <<< "$("$B/tests/mount/storm" "$M" q keys 4096 608 | tr '\n' ' ')"
mkdir "$N/q" && cp "$M/q/.layout" "$N/q/.layout" || fail "the space q"
fetch_of_q() { # fetch_of_q WHAT WANTED VERB N: the same for the first N keys of the space q
	eq "$1" "$("$B/tests/mount/fetch" "$N" q "$3" 30000 "${more[@]:0:$4}" | cut -d' ' -f1)" "$2"
}
fetch_of_q "nearly a part" 510 acquire 510
fetch_of_q "and the next" 608 prefetch 608

# A read-only mount cannot keep blocks, so its daemon requests none.
ended "$N" "$T/store2"
node2 ro
come "with ro, what is here" 120 acquire 0 128
eq "with ro, but for the mount's question" "$(awk '/^kvfs_remote_calls_total/ { n += $2 } END { print n + 0 }' "$N/.kvfs/metrics")" 1

# A missing directory is an error at mount, reported at once.
ended "$N" "$T/store2"
not "no directory" "$T/none: No such file" "$B/kvfs" -o "$BASE,remote=dir:$T/none" "$T/store2" "$N"
not "two" "there is one remote tier" "$B/kvfs" -o "$BASE,remote=dir:$R,remote=dir:$T" "$T/store2" "$N"
for withdrawn in "helper:/bin/true" "mooncake://127.0.0.1:1"; do
	not "withdrawn" "run a gateway" "$B/kvfs" -o "$BASE,remote=$withdrawn" "$T/store2" "$N"
done
not "no scheme" "not one of dir:PATH, http://HOST" "$B/kvfs" -o "$BASE,remote=ftp:x" "$T/store2" "$N"
not "no tenant" "not UID:NAME" "$B/kvfs" -o "$BASE,remote_tenant=x" "$T/store2" "$N"
"$B/kvfs" -o "$BASE,control=$T/sock2,remote=dir:$T/none,remote_optional" "$T/store2" "$N" 2>"$T/said" ||
	fail "remote_optional"
grep -q "$T/none: No such file" "$T/said" || fail "not said: $(cat "$T/said")"
fetched "without it" 0 "$N" s 3000 8
ended "$N" "$T/store2"
stop
