#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# removed.sh - the remote tier does not bring back blocks that were removed from a shared
# space, until they are saved again: not after the end of the mount, nor when the daemon is
# killed at any step of the removal.
. "$(dirname "$0")/lib"
R=$T/remote
P=$B-points/kvfs
mkdir "$R"
REMOTE=remote=dir:$R,remote_threshold=1
node() { start "$REMOTE"; }
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16, "keys": "engine", "share": true}
L
kv() { python3 "$here/../mount/mkblock.py" "$@" --tensor k:BF16:4x16x64:8192 || fail mkblock.py; }
make() { mkdir "$1" && cp "$T/layout" "$1/.layout" || fail "the space $1"; }
# came N: print 1 if block N is fetched from the remote tier, 0 if not
came() { "$B/tests/mount/fetch" "$M" s acquire 5000 "$(key "$1")" | cut -d' ' -f1; }
handed_over() { find "$R" -name "$(key "$1")" ! -path "*/.part/*" | grep -q .; }
crash() {
	kill_daemon
	umount -l "$M"
}
save() { # save N...: save these blocks, and make them durable
	local i
	for i in "$@"; do
		kv "$T/b$i" --seed "$i"
		put s "$i" "$T/b$i" || fail "put $i"
	done
	sync "$M/s" || fail sync
	for i in "$@"; do wait_until 60 handed_over "$i" || fail "block $i is not handed over"; done
}
forget_here() { # forget_here N: lose the block without a removal: its copy is found damaged
	python3 - "$T/b$1" "$S"/segments/*.seg <<'P' || fail "block $1 is not in the segment files"
import sys
part, n = open(sys.argv[1], "rb").read()[-4096:], 0
for path in sys.argv[2:]:
    with open(path, "r+b") as f:
        at = f.read().find(part)
        if at >= 0:
            f.seek(at)
            f.write(b"damage")
            n += 1
sys.exit(n != 1)
P
}

node
make "$M/s"
save 1 2 3 {10..19} 30 31

rm "$M/s/$(place 1)" || fail "rm"
eq "removed" "$(came 1)" 0
ok "durable" sync "$M/s"
crash
node
absent "after a crash" "$M/s/$(place 1)"
eq "after a crash" "$(came 1)" 0
rm "$M/s/$(place 2)" || fail "rm"
stop
start
rm "$M/s/$(place 3)" || fail "rm without a remote tier"
restart "$REMOTE"
for i in 1 2 3; do eq "after another mount, $i" "$(came $i)" 0; done

# A block that is saved again and then lost without rm is fetched from other
# nodes.
save 1
stop
forget_here 1
node
cat "$M/s/$(place 1)" > /dev/null 2>&1 && fail "it is not damaged"
eq "saved again" "$(came 1)" 1
same "saved again" "$T/b1" "$M/s/$(place 1)"
rm -r "$M/s" || fail "rm -r"
restart "$REMOTE"
make "$M/s"
restart "$REMOTE"
eq "of a space that is made anew" "$(came 2)" 1

# The daemon is killed at each step of a removal: the block is either still on this node, or
# is not fetched again.
kills=0 kept=0
[ -x "$P" ] || fail "no build with kill points"
for point in removed.written removed.synced commit.before commit.after \
	deletion.recorded tombstone.submitted tombstone.written; do
	n=$((kills + 10))
	eq "block $n" "$(came $n)" 1
	ok "$point: it is durable" sync "$M/s"
	stop
	KVFS_POINT=$point:1 "$P" -o "$BASE,$REMOTE,control=$SOCK" "$S" "$M" || fail "$point: no mount"
	rm "$M/s/$(place $n)" || fail "$point: rm"
	sync "$M/s" 2> /dev/null && fail "$point: nobody was killed"
	umount -l "$M"
	gone
	kills=$((kills + 1))
	node
	if [ -e "$M/s/$(place $n)" ]; then
		kept=$((kept + 1))
		same "$point: not removed" "$T/b$n" "$M/s/$(place $n)"
		case $point in commit.after | deletion.* | tombstone.*) fail "$point: it came back" ;; esac
	else
		eq "$point: removed" "$(came $n)" 0
		case $point in removed.* | commit.before) fail "$point: it was removed too soon" ;; esac
	fi
done
[ $kept -gt 0 ] && [ $kept -lt $kills ] || fail "$kept of $kills were kept"
echo "killed $kills times: $kept removals were lost, and none brought back"

# A damaged or missing file of removals does not keep the store from mounting.
stop
ok "a check" "$B/kvfs-fsck" --data --quiet "$S"
head -c 1000 /dev/urandom > "$S/removed"
node
eq "with rubbish" "$(came 30)" 1
rm "$M/s/$(place 30)" || fail "rm"
restart "$REMOTE"
eq "and a removal after it" "$(came 30)" 0
stop
rm "$S/removed"
mkdir "$S/removed"
node
ok "told" grep -q "^removed_lost=" "$M/.kvfs/config"
eq "block 31" "$(came 31)" 1
rm "$M/s/$(place 31)" || fail "rm with a folder in its place"
out=$(timeout 60 sync "$M/s" 2>&1) && fail "sync succeeds with a folder in its place"
grep -q "Is a directory" <<< "$out" || fail "sync with a folder in its place: $out"
eq "it is remembered" "$(came 31)" 0
ok "noted" grep -q "^removed=not written" "$M/.kvfs/config"
rmdir "$S/removed"
ok "sync without the folder" timeout 60 sync "$M/s"
crash
node
eq "and then kept" "$(came 31)" 0
stop
