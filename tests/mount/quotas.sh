#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# quotas.sh - quotas of users, in .kvfs/tenants: which users may set them, which blocks
# they limit, their format, and that they survive a restart.
. "$(dirname "$0")/lib"
needs_root setpriv
A="setpriv --reuid 1000 --regid 1000 --clear-groups"
C="setpriv --reuid 1001 --regid 1001 --clear-groups"
block "$T/b" --bytes 500000 && chmod 644 "$T/b"
limit() { setfattr -n "user.kvfs.$2" -v "$3" "$U/$1"; }
save() { # save AS SPACE N: save block N; AS runs a command as a user
	$1 mkdir -p "$M/$2/$(printf %02x $(($3 % 256)))" && $1 cp "$T/b" "$M/$2/$(place "$3")"
}
field() { sed -n "s/^$2=//p" "$U/$1"; }
start
U=$M/.kvfs/tenants
eq "a user without spaces" "$(field 1000 spaces)" 0
eq "has no quota" "$(xattr "$U/1000" quota.dram)" 0
for name in x 01 -1 4294967295 1000x 99999999999999999999; do
	not "no user is called '$name'" "No such file" stat "$U/$name"
done
P="Operation not permitted"
not "a user sets none" "Permission denied" $A setfattr -n user.kvfs.quota.dram -v 1M "$U/1000"
not "nor another's" "Permission denied" $A setfattr -n user.kvfs.quota.dram -v 1M "$U/1001"
not "nobody makes one" "$P" mkdir "$U/name"
not "nobody makes one" "$P" touch "$U/name"
not "nobody removes one" "$P" rm "$U/1000"
not "nobody writes one" "$P" sh -c "echo 1 > $U/1000"
not "its owner stays" "$P" chown 1 "$U/1000"
for v in "" -1 1.5M 0% 101% 5MB; do not "'$v' is no size" "Invalid argument" limit 1000 quota.dram "$v"; done
not "a rate has no whole" "Invalid argument" limit 1000 rate.put 5%
not "no such limit" "not supported" limit 1000 quota.gpu 1M
not "more than there is" "No space left" limit 1000 reserve.dram 1G
ok "of memory" limit 1000 quota.dram 25%
eq "a quarter of 64M" "$(xattr "$U/1000" quota.dram)" $((16 << 20))
ok "of SSD" limit 1000 reserve.ssd 10%
eq "a tenth of 512M" "$(xattr "$U/1000" reserve.ssd)" 53687091
ok "none again" limit 1000 reserve.ssd 0

# The limits hold for any number of spaces, even if they are removed and made
# again.
ok "a quota" limit 1000 quota.dram 4M
ok "a quota" limit 1000 quota.ssd 8M
for n in $(seq 40); do
	ok "A saves" save "$A" "a$((n % 5))" "$n"
	ok "C saves" save "$C" c "$n"
done
used=$(field 1000 bytes.dram)
[ "$used" -gt 0 ] && [ "$used" -le $((4 << 20)) ] || fail "A has $used bytes in memory"
[ "$(field 1001 bytes.dram)" -gt $((15 << 20)) ] || fail "C has $(field 1001 bytes.dram)"
sync "$M"
[ "$(field 1000 bytes.ssd)" -le $((8 << 20)) ] || fail "A has $(field 1000 bytes.ssd) on SSD"
eq "A's spaces" "$(field 1000 spaces)" 5
eq "listed" "$(ls "$U" | tr '\n' ' ')" "1000 1001 "
ok "A removes one" $A rm -r "$M/a1"
ok "and makes it again" save "$A" a1 1
[ "$(field 1000 bytes.dram)" -le $((4 << 20)) ] || fail "A has $(field 1000 bytes.dram) bytes in memory"
ok "C removes its own" $C rm -r "$M/c"
eq "not listed without spaces and quotas" "$(ls "$U")" 1000

restart
eq "it lasts" "$(xattr "$U/1000" quota.dram)" $((4 << 20))
# When a quota becomes smaller, blocks in all spaces of the user are evicted.
ok "less" limit 1000 quota.ssd 2M
for _ in $(seq 600); do
	[ "$(field 1000 bytes.ssd)" -le $((2 << 20)) ] && break
	sleep 0.1
done
[ "$(field 1000 bytes.ssd)" -le $((2 << 20)) ] || fail "still $(field 1000 bytes.ssd)"
# When the SSD tier becomes smaller, reserves are scaled down, and the attributes show the
# new values.
ok "a reserve" limit 1002 reserve.ssd 192M
eq "in force" "$(field 1002 guaranteed.ssd)" $((192 << 20))
restart ssd=64M
eq "as set" "$(field 1002 reserve.ssd)" $((192 << 20))
[ "$(field 1002 guaranteed.ssd)" -gt $((16 << 20)) ] && [ "$(field 1002 guaranteed.ssd)" -le $((48 << 20)) ] ||
	fail "$(field 1002 guaranteed.ssd) guaranteed of 64M"
restart
eq "in force again" "$(field 1002 guaranteed.ssd)" $((192 << 20))
restart root=squash
not "a squashed root is no operator" "$P" limit 1000 quota.ssd 0
restart ro
not "read-only" "Read-only" limit 1000 quota.ssd 0
eq "but there" "$(xattr "$U/1000" quota.ssd)" $((2 << 20))
stop
ok "a store with them is sound" "$B/kvfs-fsck" "$S"
