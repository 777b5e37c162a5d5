#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# moves.sh - the daemon is killed at each step of moving blocks from one segment file to
# another, while some of them are unpinned and removed.  Pinned blocks stay pinned and
# complete, unpinned blocks stay unpinned, removed blocks stay absent.
. "$(dirname "$0")/lib"
needs_root
P=$B-points/kvfs
[ -x "$P" ] || fail "$P is not built: make POINTS=1"
BASE=$ALL,dram=64M,ssd=128M,segment=8M,hugepages=off,scrub=0
py="python3 $here/../mount/sizes.py"
start
mkdir -m 755 "$M/a" "$M/c" && chown 1001 "$M/a" && chown 1002 "$M/c" || fail "mkdir"
ok "a reserve" setfattr -n user.kvfs.reserve.ssd -v 32M "$M/.kvfs/tenants/1002"
ok "all files are filled" $py 1001 save "$M/a" 262144 0 440
ok "a block is pinned in each, and some more" $py 1001 pin "$M/a" 0 440 5
stop
mv "$S" "$T/full"
for point in move.written:1 move.written:5 move.written:11 move.synced:1 move.synced:2 \
	move.recorded:2 move.recorded:6 move.recorded:20 commit.after:2 commit.after:6 \
	deletion.recorded:4 tombstone.synced:2 extent.reusable:3 file.cleared:1; do
	rm -rf "$S"
	cp -a --sparse=always "$T/full" "$S" || fail "cp"
	KVFS_POINT=$point "$P" -o "$BASE,control=$SOCK" "$S" "$M" || fail "$point: no mount"
	pid=$(daemon_pids)
	$py 1002 save "$M/c" 1048576 0 24 > /dev/null 2>&1 &
	$py 1001 churn "$M/a" 0 440 5 > "$T/done" 2> /dev/null
	wait $!
	[ -z "$pid" ] || wait_until 30 ended "$pid" || fail "$point: the daemon was not killed"
	umount -l "$M"
	start
	out=$($py 1001 verify "$M/a" 262144 0 440 5 < "$T/done" 2>&1) || fail "$point: $out"
	echo "$point: $(wc -l < "$T/done") changed before"
	stop
	ok "$point: the store is sound" "$B/kvfs-fsck" "$S"
done
