#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# readonly.sh - ro mounts a store on a read-only filesystem, by several daemons at a time;
# a daemon that writes is refused there.
. "$(dirname "$0")/lib"
[ "$(id -u)" = 0 ] || { echo "needs root to mount"; exit 77; }
block "$T/b" --bytes 100000
start
for i in 1 2 3; do put s "$i" "$T/b" || fail cp; done
sync "$M/s" || fail sync
kill -KILL $(daemon_pids) # so that the store is not left clean
umount -l "$M" && gone
mount --bind "$S" "$S" && mount -o remount,bind,ro "$S" 2> /dev/null || { echo "no bind mounts"; exit 77; }
not "a daemon that writes" "Read-only file system" "$B/kvfs" -o "$BASE,control=$SOCK" "$S" "$M"
start ro
for i in 1 2 3; do same "block $i" "$T/b" "$M/s/$(place "$i")"; done
not "a new block" "Read-only file system" cp "$T/b" "$M/s/$(place 257)"
not "rm" "Read-only file system" rm -f "$M/s/$(place 1)"
grep -q '^lock=shared' "$M/.kvfs/config" || fail "config does not say that the lock is shared"
mkdir "$T/mnt2"
ok "another one" "$B/kvfs" -o "$BASE,control=$T/sock2,ro" "$S" "$T/mnt2"
same "the block there" "$T/b" "$T/mnt2/s/$(place 2)"
ok "kvfs-fsck beside them" "$B/kvfs-fsck" "$S"
umount "$S" 2> /dev/null || umount -l "$S"
not "a daemon that writes beside them" "in use by another kvfs" "$B/kvfs" -o "$BASE,control=$T/sock3" "$S" none
umount "$T/mnt2" "$M" && gone
start
same "written again" "$T/b" "$M/s/$(place 3)"
rm "$M/s/$(place 1)" || fail rm
stop
