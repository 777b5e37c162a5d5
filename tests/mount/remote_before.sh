#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_before.sh - a store and a remote directory that kvfs before 0.2 wrote, with objects
# of another format and other names.  Every block is read from the store with the right
# bytes.  The old objects count neither as present nor as damaged and are left alone.  In
# the end another node gets every block.
. "$(dirname "$0")/lib"
. "$here/tiers" # for wait_for
BASE=$ALL,dram=32M,ssd=32M,segment=8M,hugepages=off,scrub=0
N=$T/node R=$T/remote
mkdir "$N"
tar -C "$T" -xf "$here/../golden/remote1.tar.xz" || fail "unpacking"
old() { find "$R" -type f ! -path '*/2-*' ! -path '*/.part/*' | LC_ALL=C sort | xargs xxh128sum; }
figure() { awk -v n="kvfs_remote_$2" '$1 == n { print $2 }' "$1/.kvfs/metrics"; }
intact() { (cd "$1" && xxh128sum --quiet -c "$here/../golden/remote1.txt") >"$T/out" 2>&1 || fail "$2: $(cat "$T/out")"; }
all_there() { [ "$(find "$R" -type f -path '*/2-*' | wc -l)" = 18 ]; }
node() { "$B/kvfs" -o "$BASE,control=$T/sock2,remote_threshold=1,remote=dir:$R" "$T/store2" "$N" || fail "the other node"; }
spaces() { # make the spaces on the other node
	local space
	for space in agreed seeded; do
		mkdir "$N/$space" && cp "$M/$space/.layout" "$N/$space/.layout" || fail "the space $space"
	done
	mkdir "$N/plain" && setfattr -n user.kvfs.share -v 1 "$N/plain" || fail "the space plain"
}
keys=()
for i in 1 2 3 4 5 6; do keys+=("$(printf 'aa%030x' "$i")"); done
came() { "$B/tests/mount/fetch" "$N" "$1" acquire 5000 "${keys[@]}" | cut -d' ' -f1; }

before=$(old)
# Until the old store is mounted with the remote tier, the other node finds none of the old
# objects, and counts no damage.
start ro
node
spaces
ended "$M" "$S"
for space in agreed seeded plain; do eq "$space, of before" "$(came $space)" 0; done
eq "damaged" "$(figure "$N" damaged_total)" 0
eq "refused or failed" "$(figure "$N" refused_total) $(figure "$N" failed_total)" "0 0"

start "remote=dir:$R"
intact "$M" "the store of before"
eq "its spaces are shared" "$(getfattr --absolute-names --only-values -n user.kvfs.share "$M/agreed" "$M/seeded" "$M/plain")" 111
wait_for 60 all_there || fail "offered: $(find "$R" -type f)"
for space in agreed seeded plain; do
	for ((i = 0; i < 50; i++)); do [ "$(came $space)" = 6 ] && break; sleep 0.2; done
	eq "$space, at another node" "$(came $space)" 6
done
intact "$N" "another node"
eq "damaged" "$(figure "$N" damaged_total) $(figure "$M" damaged_total)" "0 0"
eq "objects of before" "$(old)" "$before"
ended "$N" "$T/store2"
stop
ok "the store" "$B/kvfs-fsck" --data "$S"
