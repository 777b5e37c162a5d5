#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# permissions.sh - two users: neither can see or change the other's private
# spaces.
. "$(dirname "$0")/lib"
needs_root setpriv
start
block "$T/b"
chmod 644 "$T/b"
A="setpriv --reuid 1001 --regid 1001 --clear-groups"
C="setpriv --reuid 1002 --regid 1002 --clear-groups"
G="setpriv --reuid 1003 --regid 1003 --groups 1001"
ok "A makes a space" $A mkdir -m 700 "$M/a"
eq "its owner" "$(stat -c %u:%g:%a "$M/a")" 1001:1001:700
ok "A makes a directory" $A mkdir "$M/a/01"
F=$M/a/$(place 1)
ok "A writes" $A cp "$T/b" "$F"
eq "a block's owner" "$(stat -c %u:%g:%a "$F")" 1001:1001:600
eq "the directory's" "$(stat -c %u:%g:%a "$M/a/01")" 1001:1001:700
ok "A reads" $A cmp "$T/b" "$F"
E="Permission denied"
not "C lists" "$E" $C ls "$M/a"
not "C reads" "$E" $C cat "$F"
not "C stats a block" "$E" $C stat "$F"
not "C stats what is not there: the same answer" "$E" $C stat "$M/a/$(place 257)"
not "C writes" "$E" $C cp "$T/b" "$M/a/$(place 257)"
not "C removes" "$E" $C rm -f "$F"
not "C removes the space" "Operation not permitted" $C rmdir "$M/a"
not "C renames the space" "Operation not permitted" $C mv -T "$M/a" "$M/c"
not "C changes its mode" "Operation not permitted" $C chmod 777 "$M/a"
not "C changes its owner" "Operation not permitted" $C chown 1002 "$M/a"
not "C sets a quota" "$E" $C setfattr -n user.kvfs.quota.ssd -v 1M "$M/a"
ok "A sets a quota" $A setfattr -n user.kvfs.quota.ssd -v 64M "$M/a"
ok "A lowers it" $A setfattr -n user.kvfs.quota.ssd -v 32M "$M/a"
for v in 33M 0; do
	not "A raises it" "Operation not permitted" $A setfattr -n user.kvfs.quota.ssd -v $v "$M/a"
done
not "A takes a reserve" "Operation not permitted" $A setfattr -n user.kvfs.reserve.dram -v 1M "$M/a"
ok "root gives one" setfattr -n user.kvfs.reserve.dram -v 2M "$M/a"
ok "A lowers it" $A setfattr -n user.kvfs.reserve.dram -v 1M "$M/a"
ok "root lifts the quota" setfattr -n user.kvfs.quota.ssd -v 0 "$M/a"
not "G, of A's group, may not either" "$E" $G ls "$M/a"

ok "A opens it to its group" $A chmod 750 "$M/a"
ok "G lists" $G ls "$M/a"
ok "G reads" $G cmp "$T/b" "$F"
not "G writes" "$E" $G cp "$T/b" "$M/a/$(place 257)"
not "G removes" "$E" $G rm -f "$F"
not "G pins" "$E" $G setfattr -n user.kvfs.pin -v 1 "$F"
not "C still does not" "$E" $C cat "$F"
ok "the group may write" $A chmod 770 "$M/a"
ok "G writes" $G cp "$T/b" "$M/a/$(place 257)"
eq "what G wrote is the space's" "$(stat -c %u "$M/a/$(place 257)")" 1001
ok "G removes" $G rm -f "$M/a/$(place 257)"
ok "all may read" $A chmod 755 "$M/a"
ok "C reads" $C cmp "$T/b" "$F"
not "C writes" "$E" $C cp "$T/b" "$M/a/$(place 257)"
ok "C may not, but root may" cp "$T/b" "$M/a/$(place 257)"
ok "chown by root" chown 1002:1002 "$M/a"
ok "chmod by the new owner" $C chmod 700 "$M/a"
not "A is out" "$E" $A cat "$F"
ok "C is in" $C cmp "$T/b" "$F"
ok "chown back" chown 1001:1001 "$M/a"
# Wait until the kernel knows the new owner of the blocks.
for _ in $(seq 1200); do [ "$(stat -c %u "$F")" = 1001 ] && break; sleep 0.1; done
ok "chmod and chown of a block succeed" $A chmod 777 "$F"
ok "chmod and chown of a block succeed" chown 0:0 "$F"
eq "and change nothing" "$(stat -c %u:%g:%a "$F")" 1001:1001:600

# Only the process that writes a file can see it before its seal.
ok "both may write here" mkdir -m 777 "$M/both"
mkdir "$M/both/01" "$M/both/02"
K=$M/both/$(place 1)
mkfifo "$T/go" && : > "$T/begun" && chmod 666 "$T/go" "$T/begun"
timeout 120 $A sh -c "exec 3> $K; head -c 1000 $T/b >&3; echo > $T/begun; cat $T/go; tail -c +1001 $T/b >&3; exec 3>&-" > /dev/null 2>&1 &
writer=$!
for _ in $(seq 1200); do [ -s "$T/begun" ] && break; sleep 0.05; done
not "another process of its user cannot see it" "No such file" $A stat "$K"
not "others cannot" "No such file" $C stat "$K"
eq "nobody sees it listed" "$(ls -A "$M/both/01")" ""
ok "another may write the same key" $C cp "$T/b" "$K"
same "and be first" "$T/b" "$K"
echo > "$T/go"
wait $writer || fail "the slow one, with the same bytes, succeeds too"
D=$M/both/02
ok "A's staging file" $A cp "$T/b" "$D/.$(key 2).t"
not "C cannot see it" "No such file" $C stat "$D/.$(key 2).t"
not "C cannot seal it" "No such file" $C mv -T "$D/.$(key 2).t" "$D/$(key 2)"
not "C cannot remove it" "No such file" $C rm "$D/.$(key 2).t"
ok "C may have one of the same name" $C cp "$T/b" "$D/.$(key 2).t"
ok "A seals its own" $A mv -T "$D/.$(key 2).t" "$D/$(key 2)"
ok "the root's sticky bit: a space's owner removes it" $A sh -c "rm -r $M/a"
restart uid=1001,gid=1001,umask=077
eq "uid=, gid=" "$(stat -c %u:%g "$M")" 1001:1001
(umask 0 && mkdir "$M/masked") || fail "umask="
eq "umask=" "$(stat -c %a "$M/masked")" 700
eq "modes persist" "$(stat -c %a "$M/both")" 777
stop
