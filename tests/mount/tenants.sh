#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tenants.sh - two users of one mount: owners of spaces, users who may use the mount or
# make spaces, the rights of uid 0, and the blocks that a sync of the root writes.
. "$(dirname "$0")/lib"
needs_root setpriv
A="setpriv --reuid 1000 --regid 1000 --clear-groups"
C="setpriv --reuid 1001 --regid 1001 --clear-groups"
G="setpriv --reuid 1002 --regid 1002 --groups 1000"
ask=$B/tests/mount/ask
cp "$ask" "$T/ask" && chmod 755 "$T/ask" && ask=$T/ask
E="Permission denied"
block "$T/b" && chmod 644 "$T/b"

# The user who makes a space first owns the blocks read and saved under its
# name.
start writeback=none
ok "C takes a name" $C "$ask" "$M" model make
not "A does not take it for its own" "$E" $A "$ask" "$M" model make
eq "nor did the refusal change its owner" "$(stat -c %u "$M/model")" 1001
eq "A says that it means to share" "$($A "$ask" "$M" model share)" "1001:777 0"
eq "C opens its own again" "$($C "$ask" "$M" model make)" "1001:777 0"
ok "A opens it without making it" $A "$ask" "$M" model probe
ok "an operator makes one for all" mkdir -m 777 "$M/house"
eq "A opens that" "$($A "$ask" "$M" house make)" "0:777 0"
ok "C makes one for itself" $C mkdir -m 700 "$M/own"
not "A cannot share what it may not read" "$E" $A "$ask" "$M" own share
ok "C makes one in A's group" $C mkdir -m 777 "$M/gift"
not "C gives it away" "Operation not permitted" $C chown 1000 "$M/gift"

# Only users who may read a space see its figures in the statistics.
of() { "$@" cat "$M/.kvfs/metrics" | sed -n 's/^kvfs_space_blocks{space="\(.*\)"}.*/\1/p' | sort | xargs; }
eq "A sees what it may read" "$(of $A)" "gift house model"
eq "C sees its own, too" "$(of $C)" "gift house model own"
eq "an operator sees all" "$(of)" "gift house model own"

# Only that user and operators see usage and limits of a user.
U=$M/.kvfs/tenants
not "A reads C's usage" "$E" $A cat "$U/1001"
not "A reads C's limits" "$E" $A getfattr -n user.kvfs.quota.dram "$U/1001"
eq "A finds no attributes listed" "$($A getfattr --absolute-names "$U/1001")" ""
eq "A finds no other user listed" "$($A ls "$U")" ""
eq "C finds itself listed" "$($C ls "$U")" 1001
eq "C reads its usage" "$($C grep ^spaces= "$U/1001")" spaces=3
ok "C reads its limits" $C getfattr -n user.kvfs.quota.dram "$U/1001"
eq "an operator finds all users with spaces" "$(ls "$U" | xargs)" "0 1001"
eq "an operator reads C's usage" "$(grep ^spaces= "$U/1001")" spaces=3

# A sync of the root writes only spaces to which its caller may write.
ok "C writes, to memory alone" $C mkdir "$M/own/01"
ok "C writes, to memory alone" $C cp "$T/b" "$M/own/$(place 1)"
ok "all may read here" $C mkdir -m 755 "$M/read"
ok "C writes, to memory alone" $C mkdir "$M/read/01"
ok "C writes, to memory alone" $C cp "$T/b" "$M/read/$(place 1)"
ok "A syncs the root" $A sync "$M"
eq "what A may not read stays in memory" "$($C getfattr --absolute-names --only-values -n user.kvfs.tier "$M/own/$(place 1)")" dram
eq "what A may not write stays in memory" "$(xattr "$M/read/$(place 1)" tier)" dram
ok "C syncs the root" $C sync "$M"
eq "C's is written" "$(xattr "$M/own/$(place 1)" tier)" dram+ssd

# Only users that allow= names can use the mount.
restart allow=1000:@1000
ok "A is" $A ls "$M"
ok "A is, by the socket" $A "$ask" "$M" model probe
ok "one of the group is" $G ls "$M"
ok "root is" ls "$M"
# The kernel has cached these names, and does not look them up again.
for f in config stats metrics tenants/1000; do ok "root looks" cat "$M/.kvfs/$f"; done
not "C is not" "$E" $C ls "$M"
not "C is not" "$E" $C ls "$M/own"
for f in config stats metrics tenants/1000; do not "C is not" "$E" $C cat "$M/.kvfs/$f"; done
not "C is not" "$E" $C getfattr -n user.kvfs.quota.dram "$M/.kvfs/tenants/1000"
not "C makes nothing" "$E" $C mkdir "$M/new"
not "C is not, by the socket" "not connected" $C "$ask" "$SOCK" model make

# Only users that mkdir= or root_mode= admit can make spaces.
restart mkdir=operator,allow=all
not "A does not" "$E" $A mkdir "$M/new"
not "A does not, by the socket" "$E" $A "$ask" "$M" new make
absent "nothing was made" "$M/new"
ok "an operator does" mkdir -m 777 "$M/new"
ok "A opens it" $A "$ask" "$M" new make
restart root_mode=0755
eq "the root's mode" "$(stat -c %a "$M")" 755
not "A makes no space" "$E" $A mkdir "$M/new2"
not "A makes no space, by the socket" "$E" $A "$ask" "$M" new2 make
ok "root does" mkdir "$M/new2"
restart root_mode=0700
not "nobody else is let in" "not connected" $A "$ask" "$SOCK" new make
not "nobody else is let in" "$E" $A ls "$M"

# With root=squash uid 0 has no special rights.
restart root=squash
P="Operation not permitted"
not "root lists" "$E" ls "$M/own"
not "root reads" "$E" cat "$M/own/$(place 1)"
not "root asks" "$E" "$ask" "$M" own probe
not "root writes" "$E" cp "$T/b" "$M/read/$(place 257)"
ok "what all may read, root may" cmp "$T/b" "$M/read/$(place 1)"
not "root pins" "$P" setfattr -n user.kvfs.pin -v 1 "$M/read/$(place 1)"
not "root touches" "$P" touch -a "$M/read/$(place 1)"
not "root removes a block" "$E" rm "$M/read/$(place 1)"
not "root sets a quota" "$P" setfattr -n user.kvfs.quota.dram -v 1M "$M/read"
not "root takes over" "$P" chown 0 "$M/read"
not "root changes a mode" "$P" chmod 777 "$M/read"
not "root reads C's usage" "$E" cat "$U/1001"
ok "C empties one" $C mkdir "$M/empty"
not "root removes a space" "$P" rmdir "$M/empty"
ok "root makes its own" mkdir -m 777 "$M/roots"
not "root gives its own away" "$P" chown 1000 "$M/roots"
not "it is no operator's" "$E" $A "$ask" "$M" roots make
ok "C, whose it is, lists" $C ls "$M/own"
stop
