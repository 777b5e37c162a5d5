#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shrink.sh - a store is mounted with a smaller ssd=.  A size without room for pinned
# blocks is refused and changes nothing; the daemon is killed at each step of shrinking,
# and pinned blocks are present and complete; ssd=0 leaves the tier as it is.
. "$(dirname "$0")/lib"
needs_root
P=$B-points/kvfs
[ -x "$P" ] || fail "$P is not built: make POINTS=1"
BASE=$ALL,dram=64M,segment=8M,hugepages=off,scrub=0
py="python3 $here/../mount/sizes.py"
start ssd=128M
mkdir -m 755 "$M/a" && chown 1001 "$M/a" || fail "mkdir"
ok "all files are filled" $py 1001 save "$M/a" 262144 0 440
ok "blocks are pinned in each" $py 1001 pin "$M/a" 0 440 5
ok "a reserve of most of the tier" setfattr -n user.kvfs.reserve.ssd -v 96M "$M/a"
stop
mv "$S" "$T/full"
again() { rm -rf "$S" && cp -a --sparse=always "$T/full" "$S" || fail "cp"; }

again
sum=$(cd "$S" && find . -type f ! -name lock ! -name lock.mdb -exec md5sum {} + | sort | md5sum)
not "a size without room for pinned blocks" "ssd=24M is too small: pinned blocks need " \
	"$B/kvfs" -o "$BASE,ssd=24M,control=$SOCK" "$S" "$M"
eq "the store" "$(cd "$S" && find . -type f ! -name lock ! -name lock.mdb -exec md5sum {} + | sort | md5sum)" "$sum"

for point in shrink.begun:1 shrink.deleted:1 shrink.copied:1 shrink.copied:3 shrink.committed:1 \
	shrink.committed:4 shrink.unlinked:1 shrink.unlinked:3; do
	again
	KVFS_POINT=$point "$P" -o "$BASE,ssd=48M,control=$SOCK" "$S" "$M" 2> /dev/null &&
		fail "$point: the daemon was not killed"
	ok "$point: the store is sound" "$B/kvfs-fsck" "$S"
	start ssd=48M 2> "$T/err"
	grep -q ' blocks evicted' "$T/err" || [ "${point#shrink.begun}" = "$point" ] ||
		fail "$point: stderr says '$(cat "$T/err")'"
	out=$($py 1001 verify "$M/a" 262144 0 440 5 < /dev/null 2>&1) || fail "$point: $out"
	[ "$(du -sB1 "$S" | cut -f1)" -le $((48 << 20)) ] || fail "$point: $(du -sh "$S")"
	# When a reserve has shrunk, users who are no operators can still read the blocks.
	ok "$point: another user reads" setpriv --reuid 1002 --clear-groups \
		cat "$M/a/00/$(printf '%02x%030x' 0 0)"
	stop
	ok "$point: the store is sound at the end" "$B/kvfs-fsck" --data "$S"
done

again
start ssd=0
eq "df shows memory" "$(df -B1 --output=size "$M" | tail -1 | tr -d ' ')" $((64 << 20))
rm "$M/a/00/$(printf '%02x%030x' 0 0)" && chmod 700 "$M/a" || fail "changes without the tier"
ok "sync without the tier" sync "$M/a"
kill_daemon
umount -l "$M"
start
absent "what was removed before the kill" "$M/a/00/$(printf '%02x%030x' 0 0)"
eq "the mode" "$(stat -c %a "$M/a")" 700
grep -qx "ssd=$((128 << 20))" "$M/.kvfs/config" || fail "the stored size is lost"
out=$($py 1001 verify "$M/a" 262144 5 435 5 < /dev/null 2>&1) || fail "without the tier: $out"
stop
start ssd=0
rm "$M/a/01/$(printf '%02x%030x' 1 1)" || fail "rm"
restart
absent "what was removed without the tier" "$M/a/01/$(printf '%02x%030x' 1 1)"
