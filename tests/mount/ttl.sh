#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ttl.sh - blocks that were unused for the ttl of their space or user are removed; which
# users may set one, and its format; open, pinned and snapshot blocks stay; other nodes'
# objects stay; restart; SIGKILL while blocks expire.
. "$(dirname "$0")/lib"
needs_root setpriv
A="setpriv --reuid 1000 --regid 1000 --clear-groups"
C="setpriv --reuid 1001 --regid 1001 --clear-groups"
P="Operation not permitted"
W=$B/tests/mount/why
R=$T/remote
mkdir "$R"
REMOTES=remote=dir:$R,remote_threshold=1,remote_tenant=0:root
set_ttl() { setfattr -n user.kvfs.ttl -v "$2" "$M/$1"; }
blocks() { find "$M/$1" -type f ! -name '.*' | wc -l; }
cause() { "$W" "$M" "$1" cause "$2" 1 | cut -d' ' -f1; }
# left SPACE N: wait until the space has N blocks
left() {
	local i
	for ((i = 0; i < 600; i++)); do
		[ "$(blocks "$1")" = "$2" ] && return
		sleep 0.1
	done
	fail "$(blocks "$1") blocks in $1, not $2"
}
start "$REMOTES"

# Values and rights
chmod 1777 "$M"
$A mkdir "$M/own" || fail mkdir
eq "no ttl at first" "$(xattr "$M/own" ttl)" 0
for v in "" -1 1.5h 1w 1M 5% 195d 18446744073709551615 "1 h"; do
	not "'$v' is no ttl" "Invalid argument" set_ttl own "$v"
done
for pair in 90s:90 90:90 3m:180 2h:7200 194d:16761600; do
	ok "${pair%:*}" set_ttl own "${pair%:*}"
	eq "${pair%:*}" "$(xattr "$M/own" ttl)" "${pair#*:}"
done
not "a rate beyond the record" "Invalid argument" setfattr -n user.kvfs.rate.put -v 1T "$M/own"
ok "a high rate beside a ttl" setfattr -n user.kvfs.rate.put -v 1023G "$M/own"
not "C sets one" "Permission denied" $C setfattr -n user.kvfs.ttl -v 1s "$M/own"
not "C sets one, by the socket" "$P" $C "$B/kvfs" set own ttl=1 -p "$SOCK"
ok "A sets a shorter one" $A setfattr -n user.kvfs.ttl -v 1d "$M/own"
not "A lifts it" "$P" $A setfattr -n user.kvfs.ttl -v 0 "$M/own"
not "A sets its own as a user" "Permission denied" $A setfattr -n user.kvfs.ttl -v 1h "$M/.kvfs/tenants/1000"
ok "an operator sets a user's" "$B/kvfs" set 1000 ttl=30d -p "$SOCK"
eq "the user's" "$(xattr "$M/.kvfs/tenants/1000" ttl)" 2592000
eq "in its file" "$(sed -n 's/^ttl=//p' "$M/.kvfs/tenants/1000")" 2592000
eq "as kvfs set prints it" "$($A "$B/kvfs" set own -p "$SOCK" | tail -n 1)" ttl=86400
eq "in a listing" "$($A "$B/kvfs" ls own --json -p "$SOCK" | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["ttl"])')" 86400
for v in ttl=1w ttl=10% ttl=1.5h; do
	not "$v" "for ttl, seconds (or with m, h or d), at most 194 days" "$B/kvfs" set own "$v" -p "$SOCK"
done
not "too long" "at most 194 days" "$B/kvfs" set own ttl=200d -p "$SOCK"

# Unused blocks are removed, within a minute; those in use stay.
"$W" "$M" s save 1 12 > /dev/null || fail save
"$W" "$M" t save 1 12 > /dev/null || fail save
sync "$M/s" "$M/t"
setfattr -n user.kvfs.pin -v 1 "$M/s/$(place 3)" || fail pin
"$B/tests/mount/snap" "$M" s make kept "$(key 4)" || fail snapshot
exec 7< "$M/s/$(place 5)"
ok "a ttl" "$B/kvfs" set s ttl=3s -p "$SOCK"
for i in 1 2 3 4 5 6; do
	"$W" "$M" s acquire 1 1 > "$T/out" && eq "block 1 is used" "$(cat "$T/out")" 1
	sleep 1
done
left s 4
for n in 1 3 4 5; do [ -e "$M/s/$(place "$n")" ] || fail "block $n is gone"; done
eq "the cause" "$(cause s 2)" expired
eq "as the command names it" "$("$B/kvfs" why s "$(key 2)" -p "$M" | tail -n 1 | cut -d' ' -f1)" expired
eq "the metric" "$(metric kvfs_expired_total)" 8
grep -q "0 removed, 8 expired" "$M/.kvfs/stats" || fail "stats: $(grep gone "$M/.kvfs/stats")"
"$W" "$M" s match 2 1 > /dev/null
eq "misses by cause" "$(metric 'kvfs_misses_total{cause="expired"}')" 1
eq "another space" "$(blocks t)" 12
timeout 60 cat <&7 | cmp - "$M/s/$(place 5)" || fail "the open file"
exec 7<&-
setfattr -n user.kvfs.pin -v 0 "$M/s/$(place 3)" || fail unpin
"$B/tests/mount/snap" "$M" s drop kept || fail drop
left s 0

# A user's ttl holds in all its spaces, and of two the shorter one.
$A mkdir "$M/own2" || fail mkdir
block "$T/b" --seed 1 --bytes 5000
chmod 644 "$T/b"
for s in own own2; do
	$A mkdir "$M/$s/01" && $A cp "$T/b" "$M/$s/$(place 1)" || fail cp
done
ok "a short one of the user" "$B/kvfs" set 1000 ttl=2 -p "$SOCK"
left own 0
left own2 0
ok "it is lifted" "$B/kvfs" set 1000 ttl=0 -p "$SOCK"

# Objects of the remote tier stay, there is no tombstone, and the block comes back.
mkdir "$M/far" || fail mkdir
echo '{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16, "keys": "engine", "share": true}' \
	> "$M/far/.layout" || fail layout
block "$T/far" --seed 9 --tensor k:BF16:4x16x64:8192
put far 9 "$T/far" || fail put
sync "$M/far"
objects() { find "$R" -type f | grep -c '/[0-9a-f]\{32\}$'; }
for ((i = 0; i < 600; i++)); do [ "$(objects)" = 1 ] && break; sleep 0.1; done
eq "copied" "$(objects)" 1
set_ttl far 2 || fail ttl
left far 0
set_ttl far 0 || fail ttl
eq "the object" "$(objects)" 1
[ ! -s "$S/removed" ] || fail "a tombstone: $(stat -c %s "$S/removed")"
eq "it comes back" "$("$B/tests/mount/fetch" "$M" far acquire 20000 "$(key 9)" | cut -d' ' -f1)" 1
same "the block" "$T/far" "$M/far/$(place 9)"

# Idle time goes on after a restart, and does not count while no daemon runs.
"$W" "$M" s save 1 4 > /dev/null || fail save
sync "$M/s"
set_ttl s 24 || fail ttl
sleep 8
stop
sleep 18
start
begun=$(date +%s)
eq "after a pause" "$(blocks s)" 4
eq "the ttl" "$(xattr "$M/s" ttl) $(xattr "$M/own" ttl) $(xattr "$M/own" rate.put)" "24 86400 $((1023 << 30))"
sleep 3
eq "before the time" "$(blocks s)" 4
left s 0
[ $(($(date +%s) - begun)) -lt 23 ] || fail "idle time began anew"
eq "t" "$(blocks t)" 12

# SIGKILL while thousands of blocks expire: those of other spaces are all there, the index
# is sound, and the rest expires later.
set_ttl s 0 || fail ttl
"$B/tests/mount/storm" "$SOCK" e save 4000 20000 > "$T/out" 2>&1 || fail "storm: $(cat "$T/out")"
sync "$M/e"
saved=$(metric 'kvfs_space_blocks{space="e"}')
[ "$saved" -gt 15000 ] || fail "only $saved blocks"
set_ttl e 2 || fail ttl
for ((i = 0; i < 3000; i++)); do
	[ "$(metric 'kvfs_space_blocks{space="e"}')" -lt "$saved" ] && break
	sleep 0.01
done
kill -KILL "$(daemon_pids)"
umount -l "$M" 2> /dev/null || fusermount3 -uz "$M"
gone
ok "a sound store" "$B/kvfs-fsck" --data "$S"
start
eq "t, after SIGKILL" "$(blocks t)" 12
for ((i = 1; i <= 12; i++)); do
	ok "block $i" timeout 60 cksum "$M/t/$(place "$i")"
done
left e 0
[ "$(metric kvfs_corrupt_blocks_total)" = 0 ] || fail "damaged blocks"
stop
ok "a sound store" "$B/kvfs-fsck" --data "$S"
start ro
eq "read-only" "$(xattr "$M/s" ttl) $(blocks t)" "0 12"
