#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# snapshots.sh - <space>/.snapshots/<name>/: links that real programs read, follow, archive
# and remove, and the effect of removing them on pins.
. "$(dirname "$0")/lib"
start
snap() { "$B/tests/mount/snap" "$M" "$@"; }
mkdir "$M/s" || fail mkdir
keys=()
for i in 0 1 2 3 4; do
	block "$T/b$i" --seed "$i"
	put s $i "$T/b$i" || fail "put $i"
	keys+=("$(key $i)")
done
D=$M/s/.snapshots

# .snapshots exists in every space, but is not listed: cp, tar and rsync of a
# space copy blocks only.
eq "no snapshots" "$(ls "$D")" ""
not "no such snapshot" "No such file" ls "$D/a"
ok "make" snap s make "turn 1" "${keys[@]}"
not "again" "File exists" snap s make "turn 1" "${keys[@]}"
not "of a block that is not there" "key 1: No such file" snap s make x "${keys[0]}" "$(key 99)"
ok "another" snap s make b "${keys[@]:2}"
eq "names" "$(ls "$D")" $'b\nturn 1'
eq "how many" "$(metric kvfs_snapshots)" 2
[ "$(metric kvfs_pinned_bytes)" -gt 0 ] || fail "pinned bytes"
grep -q '^held .* MiB of dram) with 2 snapshots' "$M/.kvfs/stats" || fail "not in stats"
eq "names by the library" "$(snap s list)" $'turn 1\nb'
eq "hidden" "$(ls -A "$M/s" | grep -c snap)" 0
A=$D/turn\ 1
eq "links" "$(ls "$A" | tr '\n' ' ')" "00000000 00000001 00000002 00000003 00000004 "
eq "readlink" "$(readlink "$A/00000003")" "../../$(place 3)"
eq "keys by the library" "$(snap s keys b)" "$(for i in 0 1 2; do printf '%08d %s\n' $i "${keys[$((i + 2))]}"; done)"
eq "links are links" "$(stat -c '%F %h' "$A/00000003")" "symbolic link 1"
eq "their size" "$(stat -c %s "$A/00000003")" "$(readlink -n "$A/00000003" | wc -c)"
eq "dots" "$(stat -c %i "$A/..")" "$(stat -c %i "$D")"
eq "and up" "$(stat -c %i "$D/..")" "$(stat -c %i "$M/s")"
for i in 0 1 2 3 4; do same "through the link" "$T/b$i" "$A/0000000$i"; done
eq "ls -l" "$(ls -l "$A" | grep -c -- '-> ../../')" 5
eq "find" "$(find "$D" -type l | wc -l)" 8
eq "find -L" "$(find -L "$D" -type f | wc -l)" 8
eq "du counts no block twice" "$(du -s "$D" | cut -f1)" 0
ok "tar" tar -C "$D" -chf "$T/a.tar" "turn 1"
mkdir "$T/x" && tar -C "$T/x" -xf "$T/a.tar" || fail "tar -x"
same "from the archive" "$T/b4" "$T/x/turn 1/00000004"
ok "tar of the links" tar -C "$M/s" -cf "$T/l.tar" .snapshots
eq "links in it" "$(tar -tvf "$T/l.tar" | grep -c -- '-> ../../')" 8

# Snapshots and links that do not exist.
for n in 0 000000000 0000000a 00000005 +0000001 " 0000001" 99999999; do
	not "no link '$n'" "No such file" readlink -v "$A/$n"
done
not "mkdir" "Operation not permitted" mkdir "$D/new"
not "mkdir below" "Operation not permitted" mkdir "$A/new"
not "mkdir of the directory itself" "File exists" mkdir "$D"
not "a file" "Operation not permitted" touch "$A/00000009"
not "a file beside" "Operation not permitted" cp "$T/b0" "$D/${keys[0]}"
not "a link" "Operation not permitted" ln -s x "$A/00000009"
not "rename of a link" "Operation not permitted" mv "$A/00000001" "$A/00000009"
not "rename of a snapshot" "Operation not permitted" mv "$D/b" "$D/c"
not "rmdir with links" "not empty" rmdir "$A"
not "rmdir of all" "not empty" rmdir "$D"
ok "chmod changes nothing" chmod 0700 "$A"
ok "touch of a link" touch -h "$A/00000001"
eq "xattrs" "$(getfattr -h --absolute-names -d -m - "$A/00000001")" ""

# A block is pinned as long as a snapshot has it.
for i in 0 4; do eq "pinned $i" "$(xattr "$M/s/$(place $i)" pin)" 1; done
ok "unlink" rm "$A/00000000"
eq "one link unpins its block" "$(xattr "$M/s/$(place 0)" pin)" 0
not "it is gone" "No such file" readlink -v "$A/00000000"
setfattr -n user.kvfs.pin -v 1 "$M/s/$(place 1)" || fail "pin"
ok "rm -r" rm -r "$A"
absent "gone" "$A"
eq "the user's pin stays" "$(xattr "$M/s/$(place 1)" pin)" 1
eq "the other snapshot's stays" "$(xattr "$M/s/$(place 3)" pin)" 1
setfattr -n user.kvfs.pin -v 0 "$M/s/$(place 3)" || fail "unpin"
eq "and is not the user's to undo" "$(xattr "$M/s/$(place 3)" pin)" 1
ok "drop" snap s drop b
eq "unpinned" "$(xattr "$M/s/$(place 3)" pin)" 0
eq "none left" "$(ls -A "$D")" ""

# A removed block leaves a dangling link, and is pinned again if it is saved
# again.
ok "make" snap s make d "${keys[@]}"
ok "rm of a pinned block" rm "$M/s/$(place 2)"
eq "the link stays" "$(readlink "$D/d/00000002")" "../../$(place 2)"
not "and dangles" "No such file" cat "$D/d/00000002"
put s 2 "$T/b2" || fail "put again"
same "it is back" "$T/b2" "$D/d/00000002"
eq "pinned again" "$(xattr "$M/s/$(place 2)" pin)" 1

# A snapshot survives a clean end of the daemon, and after a flush a SIGKILL.
restart
eq "after a clean end" "$(ls "$D/d" | wc -l)" 5
eq "pinned" "$(xattr "$M/s/$(place 2)" pin)" 1
rm "$D/d/00000004" || fail "unlink"
ok "make e" snap s make e "${keys[0]}"
sync "$M/s" || fail sync
pid=$(daemon_pids)
kill -KILL "$pid"
umount -l "$M"
for ((i = 0; i < 600; i++)); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
start
eq "after SIGKILL" "$(ls "$D" | tr '\n' ' ')" "d e "
eq "the unlinked one is gone" "$(ls "$D/d" | wc -l)" 4
eq "and unpinned" "$(xattr "$M/s/$(place 4)" pin)" 0
eq "the others are not" "$(xattr "$M/s/$(place 0)" pin)" 1

# Whole spaces are copied without their snapshots, and removed with them.
ok "cp -a" cp -a "$M/s" "$M/copy"
eq "no snapshots in the copy" "$(ls -A "$M/copy/.snapshots")" ""
ok "rsync" rsync -a "$M/s/" "$T/out/"
ok "tar" tar -C "$M" -cf "$T/s.tar" s
eq "no links in it" "$(tar -tvf "$T/s.tar" | grep -c ' -> ')" 0
not "rmdir with blocks" "not empty" rmdir "$M/s"
ok "rm -r of a space" rm -r "$M/s"
mkdir "$M/s" || fail "mkdir again"
eq "a new space has none" "$(ls -A "$D")" ""

# Other users can read a snapshot, but not change it; nobody can in a read-only mount.
chmod 755 "$M/copy" && snap copy make f "$(key 1)" || fail "make f"
su nobody -s /bin/sh -c "readlink '$M/copy/.snapshots/f/00000000'" >/dev/null || fail "a reader may read"
not "but not unpin" "ermission" su nobody -s /bin/sh -c "rm -f '$M/copy/.snapshots/f/00000000'"
not "nor drop" "Permission denied" su nobody -s /bin/sh -c "'$B/tests/mount/snap' '$SOCK' copy drop f"
chmod 700 "$M/copy"
not "nor look" "Permission denied" su nobody -s /bin/sh -c "ls '$M/copy/.snapshots'"
stop
start ro
not "read-only" "Read-only" rm -r "$M/copy/.snapshots/f"
not "read-only, too" "Read-only" snap copy make g "$(key 1)"
eq "it can be read" "$(ls "$M/copy/.snapshots/f")" 00000000
stop
