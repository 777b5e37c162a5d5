#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# token_ids.sh - blocks with token ids, as files: accepted with ids, refused without,
# unchanged after tar and a restart, and readable only by users who may read the space.
. "$(dirname "$0")/lib"
start
LAYOUT='{"tensors": [{"name": "k", "dtype": "U8", "shape": [4, 1024]}], "tokens": 4, "token_ids": true}'
kept() { block "$1" --seed "${#1}" --tensor k:U8:4x1024:4096 "${@:2}"; } # kept FILE META...: make a block of this layout
key() { printf '%s%030x' "$1" "$2"; }
ids() { # ids FILE: print the token ids in its header
	python3 -c '
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    m = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))["__metadata__"]
print(m["token_ids"], m.get("extras", "-"))' "$1"
}
mkdir "$M/s" "$M/late" && echo "$LAYOUT" > "$M/s/.layout" || fail "a space"
grep -q '"token_ids": true' "$M/s/.layout" || fail "the layout: $(cat "$M/s/.layout")"
mkdir "$M/none"
for bad in '"token_ids": true' '"tokens": 0, "token_ids": true' '"tokens": 8193, "token_ids": true' '"tokens": 4, "token_ids": 1'; do
	printf '{"tensors": [{"name": "k", "dtype": "U8", "shape": [4]}], %s}' "$bad" > "$T/bad"
	not "layout $bad" "Invalid argument" cp "$T/bad" "$M/none/.layout"
done

mkdir "$M/s/aa"
kept "$T/good" --meta tokens=4 --meta token_ids=1,2,3,4294967295 --meta extras=00ff
kept "$T/tail" --meta token_ids=7
ok "a block with ids" cp "$T/good" "$M/s/aa/$(key aa 1)"
ok "a tail, which says as many tokens" cp "$T/tail" "$M/s/aa/$(key aa 2)"
eq "its tokens" "$(xattr "$M/s/aa/$(key aa 2)" tokens)" 1
eq "its ids" "$(ids "$M/s/aa/$(key aa 1)")" "1,2,3,4294967295 00ff"
n=0
for meta in "" tokens=4 token_ids=1,2,3 token_ids=1,2,3,4,5 token_ids= token_ids=1,2,3,x token_ids=1,02,3,4 \
	token_ids=1,2,3,4294967296 "token_ids=1, 2"; do
	n=$((n + 1))
	kept "$T/bad" --meta tokens=4 ${meta:+--meta "$meta"}
	not "a block with '$meta'" "Invalid argument" cp "$T/bad" "$M/s/aa/$(key aa 9)"
	absent "a block with '$meta'" "$M/s/aa/$(key aa 9)"
	cp "$T/bad" "$M/s/aa/.$(key aa 9).x" 2> "$T/out" && fail "as a staging file, '$meta'"
	absent "after it" "$M/s/aa/$(key aa 9)"
done
for tokens in 04 " 4" "4 " +4 4x "" 5; do
	kept "$T/bad" --meta "tokens=$tokens" --meta token_ids=1,2,3,4
	not "a block of '$tokens' tokens" "Invalid argument" cp "$T/bad" "$M/s/aa/$(key aa 9)"
	n=$((n + 1))
done
kept "$T/bad" --meta tokens=4 --meta token_ids=1,2,3,4 --meta extras=0g
not "extras that are no hex" "Invalid argument" cp "$T/bad" "$M/s/aa/$(key aa 9)"
cp "$T/good" "$M/s/aa/.$(key aa 3).tmp" || fail "a staging file"
ok "renamed onto its key" mv "$M/s/aa/.$(key aa 3).tmp" "$M/s/aa/$(key aa 3)"
eq "its ids" "$(ids "$M/s/aa/$(key aa 3)")" "1,2,3,4294967295 00ff"

# A space gets a layout after its blocks only if all blocks have token ids.
mkdir "$M/late/aa"
cp "$T/good" "$M/late/aa/$(key aa 1)" && kept "$T/bad" --meta tokens=4 && cp "$T/bad" "$M/late/aa/$(key aa 2)" ||
	fail "blocks of an untyped space"
echo "$LAYOUT" > "$T/layout"
not "a layout where a block has none" "Bad message" cp "$T/layout" "$M/late/.layout"
rm "$M/late/aa/$(key aa 2)"
ok "a layout where all have them" cp "$T/layout" "$M/late/.layout"

# Token ids survive a copy to another space, a restart, and the loss of the index.
ok "tar" sh -c "mkdir $M/copy && tar --format=pax -C $M/s -cf - . | tar -C $M/copy -xf -"
ok sync sync "$M/s" "$M/copy" "$M/late"
list() { (cd "$M" && find s copy late -type f ! -name .layout -print0 | LC_ALL=C sort -z | xargs -0 xxh128sum); }
list > "$T/before"
eq "blocks" "$(wc -l < "$T/before")" 7
restart
list > "$T/after"
same "after a restart" "$T/before" "$T/after"
pid=$(daemon_pids)
kill -KILL $pid
umount -l "$M"
gone
rm "$S/index/data.mdb"
start
list > "$T/after"
same "after the loss of the index" "$T/before" "$T/after"
ok fsck-ready sync "$M/s"

# A user without the right to read the space cannot read its blocks.
if [ "$(id -u)" = 0 ]; then
	chmod 700 "$M/s"
	not "another user" "Permission denied" setpriv --reuid 12345 --regid 12345 --clear-groups cat "$M/s/aa/$(key aa 1)"
	chmod 755 "$M/copy"
	ok "who may read" setpriv --reuid 12345 --regid 12345 --clear-groups cat "$M/copy/aa/$(key aa 1)"
fi
rm "$M/s/aa/$(key aa 1)" "$M/s/aa/$(key aa 2)" "$M/s/aa/$(key aa 3)" && rmdir "$M/s/aa" "$M/s" || fail "taking the space away"
stop
"$B/kvfs-fsck" --data "$S" > "$T/out" 2>&1 || fail "kvfs-fsck: $(cat "$T/out")"
echo "$n headers refused; 7 blocks as they were"
