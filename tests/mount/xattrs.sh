#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# xattrs.sh - user.kvfs.* of blocks and spaces: read, set, refused, kept over a
# restart.
. "$(dirname "$0")/lib"
start
P=cd00000000000000000000000000000f
block "$T/b" --meta kvfs=1 --meta "key=$(key 1)" --meta parent=$P --meta position=7 --meta tokens=16
mkdir "$M/s" "$M/s/01" || fail mkdir
F=$M/s/$(place 1)
cp "$T/b" "$F" || fail cp
set_() { setfattr -n "user.kvfs.$2" -v "$3" "$1"; }
eq "digest" "$(xattr "$F" digest)" "$(xxh128sum "$T/b" | cut -d' ' -f1)"
eq "parent" "$(xattr "$F" parent)" $P
eq "position" "$(xattr "$F" position)" 7
eq "tokens" "$(xattr "$F" tokens)" 16
eq "leases" "$(xattr "$F" leases)" 0
eq "pin" "$(xattr "$F" pin)" 0
eq "only the pin is listed" "$(getfattr --absolute-names -d -m - "$F" | grep -c =)" 1
eq "nothing is listed on a space" "$(getfattr --absolute-names -d -m - "$M/s")" ""
sync "$F"
eq "durable" "$(xattr "$F" durable)" 1
eq "tier" "$(xattr "$F" tier)" dram+ssd
ok "drop from DRAM" set_ "$F" tier ssd
eq "tier" "$(xattr "$F" tier)" ssd
same "read from SSD" "$T/b" "$F"
eq "reading does not promote" "$(xattr "$F" tier)" ssd
ok "promote" set_ "$F" tier dram
eq "tier" "$(xattr "$F" tier)" dram+ssd
same "after promotion" "$T/b" "$F"
for v in "" remote DRAM dram+ssd x 1; do not "tier=$v" "Invalid argument" set_ "$F" tier "$v"; done
for n in digest parent position tokens hits durable leases; do
	not "$n is read-only" "Operation not permitted" set_ "$F" $n 1
	not "$n cannot be removed" "Operation not permitted" setfattr -x user.kvfs.$n "$F"
done
for v in "" 2 -1 yes 01 "1 "; do not "pin=$v" "Invalid argument" set_ "$F" pin "$v"; done
not "another attribute" "Operation not supported" setfattr -n user.other -v 1 "$F"
not "another of ours" "Operation not supported" set_ "$F" other 1
not "reading another" "No such attribute" getfattr -n user.other "$F"
not "reading of another namespace" "Operation not supported" getfattr -n security.selinux "$F"
not "reading of an ACL" "Operation not supported" getfattr -n system.posix_acl_access "$F"
not "reading another of ours" "No such attribute" getfattr -n user.kvfs.other "$F"
ok "a conversation is over" set_ "$F" ended 1
for v in "" 0 2 yes; do not "ended=$v" "Invalid argument" set_ "$F" ended "$v"; done
not "ended is not kept" "No such attribute" getfattr -n user.kvfs.ended "$F"
not "ended is not there to be removed" "No such attribute" setfattr -x user.kvfs.ended "$F"
hits=$(xattr "$F" hits)
cat "$F" > /dev/null
[ "$(xattr "$F" hits)" -gt "$hits" ] || fail "hits do not grow by a read"
hits=$(xattr "$F" hits)
touch -a "$F"
[ "$(xattr "$F" hits)" -gt "$hits" ] || fail "hits do not grow by touch -a"
ok "pin" set_ "$F" pin 1
eq "pin" "$(xattr "$F" pin)" 1
eq "getfattr -R finds it" "$(getfattr -R -d -m '^user.kvfs' --absolute-names "$M/s" | grep -B1 '^user.kvfs.pin="1"$' | head -1)" "# file: $F"
cp -a "$M/s" "$M/copy" || fail "cp -a"
eq "cp -a carries the pin" "$(xattr "$M/copy/$(place 1)" pin)" 1
rsync -aX "$M/s/" "$M/copy2/" || fail "rsync -aX"
eq "rsync -aX carries the pin" "$(xattr "$M/copy2/$(place 1)" pin)" 1
touch -d @0 "$F"
eq "the epoch" "$(stat -c %Y "$F")" 0
touch -d 2500-01-01 "$F"
eq "a time beyond 64 bits" "$(stat -c %Y "$F")" 9000000000
touch -d '2023-02-03 04:05:06.5' "$F"

for q in quota.dram quota.ssd reserve.dram reserve.ssd rate.put; do
	eq "$q is 0" "$(xattr "$M/s" $q)" 0
	ok "$q" set_ "$M/s" $q 8M
	eq "$q in bytes" "$(xattr "$M/s" $q)" $((8 << 20))
	for v in "" -1 +8M 8MB 1.5G 0% 101% 99999999999999999999 " 8M"; do
		not "$q=$v" "Invalid argument" set_ "$M/s" $q "$v"
	done
	eq "$q is unchanged" "$(xattr "$M/s" $q)" $((8 << 20))
done
ok "no reserve" set_ "$M/s" reserve.dram 0
not "more than there is" "No space left" set_ "$M/s" reserve.dram 1T
not "another of a space" "Operation not supported" set_ "$M/s" pin 1
not "no layout" "No such attribute" getfattr -n user.kvfs.layout "$M/s"
not "an attribute of the root" "Operation not supported" set_ "$M" quota.ssd 1M
restart
eq "pin after a restart" "$(xattr "$F" pin)" 1
eq "parent after a restart" "$(xattr "$F" parent)" $P
eq "position after a restart" "$(xattr "$F" position)" 7
eq "quota after a restart" "$(xattr "$M/s" quota.ssd)" $((8 << 20))
eq "time after a restart" "$(stat -c %Y.%y "$F" | cut -c1-30)" "$(date -d '2023-02-03 04:05:06.5' '+%s.%Y-%m-%d %H:%M:%S' | cut -c1-30)"
ok "unpin" setfattr -x user.kvfs.pin "$F"
eq "pin" "$(xattr "$F" pin)" 0
stop
