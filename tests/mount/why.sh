#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# why.sh - each cause of a miss, made on purpose, is named; the log of look-ups; what other
# users learn; why=0.
. "$(dirname "$0")/lib"
needs_root setpriv
W=$B/tests/mount/why
why() { "$W" "$M" "$@"; }
cause() { why "$1" cause "$2" 1 | cut -d' ' -f1; }
limit() { setfattr -n "user.kvfs.$2" -v "$3" "$M/$1" || fail "limit $2"; }
count() { grep -F "kvfs_misses_total{cause=\"$1" "$M/.kvfs/metrics" | awk '{ n += $2 } END { print n }'; }

# Without an SSD: unseen, evicted from DRAM, removed, refused by rate and by quota.
BASE=$ALL,dram=16M,ssd=0,segment=8M,hugepages=off,scrub=0
start
eq saved "$(why s save 1 4)" 4
eq "all are there" "$(why s cause 1 4 | sort -u)" "none 0"
eq unseen "$(why s cause 99 1)" "unseen 0 now"
rm "$M/s/$(place 1)" || fail rm
eq removed "$(cause s 1)" removed
eq "a match that ends early" "$(why s match 1 4)" 0
sleep 2
why s save 1000 100 > "$T/out" || fail "save: $(cat "$T/out")"
eq evicted "$(cause s 2)" evicted-dram
[ "$(why s cause 2 1 | cut -d' ' -f2)" -ge 1 ] || fail "idle: $(why s cause 2 1)"
eq "removed before" "$(cause s 1)" removed
eq "saved again" "$(why s save 1 2)" 2
eq "there again" "$(why s cause 1 2 | sort -u)" "none 0"
rm -r "$M/s/02" || fail "rm -r"
eq "removed with its directory" "$(cause s 2)" removed
limit s rate.put 1
why s save 50 4 > "$T/out" || fail "save: $(cat "$T/out")"
eq "refused by the rate" "$(cause s 53)" rate
limit s rate.put 0
limit s quota.dram 4K
eq "none saved" "$(why s save 60 1)" 0
eq "refused by the quota" "$(cause s 60)" quota
limit s quota.dram 0

# The log and the metric of misses, and what they tell another user.
eq "first of an acquire" "$(why s acquire 60 3)" 0
why s save 1 1 > /dev/null
eq "the last key" "$(why s match 1 3)" 1
eq "the log" "$(why s misses)" "1 0/4 removed
60 0/3 quota
2 1/3 removed"
eq "removed, as counted" "$(count removed)" 2
eq "by quota, as counted" "$(count 'refused",reason="quota')" 1
sum=$(grep '^kvfs_misses_total{' "$M/.kvfs/metrics" | awk '{ n += $2 } END { print n }')
eq "all misses" "$sum" "$(grep -o '[0-9]* misses' "$M/.kvfs/stats" | cut -d' ' -f1)"
other() { setpriv --reuid 1000 --regid 1000 --clear-groups "$W" "$M" "$@"; }
chmod 755 "$M/s"
eq "another user's causes" "$(other s cause 1 2; other s cause 60 1; other s cause 99 1)" "none 0
room 0
room 0
unseen 0"
eq "another user's log" "$(other s misses)" ""
eq "another user's look-up" "$(other s match 60 1)" 0
eq "another user's log" "$(other s misses)" "60 0/1 room"
eq "an operator's log" "$(why s misses | tail -1)" "60 0/1 quota"

# The command: causes of keys, the log, and where a prompt leaves the stored ones.
line() { tail -n 1 | sed 's/  */ /g; s/[0-9-]* [0-9:]* \([0-9]* [0-9a-f]*\)$/\1/'; }
command() { "$B/kvfs" why -p "$SOCK" "$@"; }
eq "a key" "$(command s "$(key 2)" | line | sed 's/ [0-9]* / IDLE /')" "removed IDLE $(key 2)"
eq "a present one" "$(command --json s "$(key 1)" | grep -o '"cause": "[^"]*"')" '"cause": "present"'
eq "one of each kind" "$(command s "$(key 99)" "$(key 60)" | sed 's/^ *//; s/  .*//' | xargs -d '\n')" "cause unseen refused quota"
eq "the log" "$(command s | line | cut -d' ' -f3-)" "0 refused quota 0 $(key 60)"
eq "its length" "$(command s | wc -l)" 5
eq "another user's log" "$(setpriv --reuid 1000 --regid 1000 --clear-groups "$B/kvfs" why -p "$SOCK" s | line | cut -d' ' -f3-)" \
	"0 refused room - 0 $(key 60)"
eq "the blocks of a prompt" "$(why p tokens 1 100)" 6
seq 1 80 > "$T/tokens" && seq 1000 1030 >> "$T/tokens"
command p --tokens <(cat "$T/tokens") > "$T/out" || fail "--tokens"
eq "where it leaves" "$(head -n 1 "$T/out")" "80 of 111 tokens are stored"
grep -q '^ *unseen ' "$T/out" || fail "--tokens: $(cat "$T/out")"
eq "a prompt with another beginning" "$(echo '[7, 8, 9' $(seq 20)']' | command p --tokens - | head -n 1)" "0 of 23 tokens are stored"
eq "all blocks of a prompt" "$(seq 100 | command --json --tokens - p)" '{"tokens": 100, "stored": 96, "misses": []}'
refused() { not "$1" "kvfs why: $1" command "${@:2}"; }
refused "no: no such space" no
refused "xyz: not the key" s xyz
refused "$T/no: No such file" s --tokens "$T/no"
for bad in x 1.5 -1 4294967296 ""; do
	echo "$bad" > "$T/bad"
	refused "$T/bad: no list of token ids" s --tokens "$T/bad"
done
mkdir "$M/bare" || fail mkdir
refused "bare: the space has no layout" bare --tokens "$T/tokens"
refused "give keys or --tokens" s "$(key 1)" --tokens "$T/tokens"
chmod 700 "$M/s"
not "a space that may not be read" "Permission denied" other s cause 1 1
stop

# With an SSD: blocks evicted from it, and blocks refused for lack of their parent, by
# the daily budget and by the quota.
BASE=$ALL,dram=16M,ssd=48M,segment=8M,hugepages=off,scrub=0
start
eq "causes end with the mount" "$(why s cause 60 1)" "unseen 0 now"
eq saved "$(why s save 1 8)" 8
sync "$M/s"
for i in 1 2 3 4; do why s save ${i}000 40 > /dev/null; sync "$M/s"; done
eq "evicted from SSD" "$(cause s 1)" evicted-ssd
eq "orphans" "$(why s save 20 4 orphan)" 4
sleep 1
for i in 5 6 7; do why s save ${i}000 40 > /dev/null; sleep 0.5; done
sync "$M/s"
eq "refused for want of its parent" "$(cause s 20)" parent
# Damage: the bytes on SSD change while the store is not in use.
stop
start
key=$(printf '7%03d' 30)
eq "there" "$(cause s "$key")" none
stop
for f in "$S"/segments/*.seg; do
	python3 - "$f" <<'END' || fail "damage"
import sys
with open(sys.argv[1], "r+b") as f:
    data = bytearray(f.read())
    for at in range(4096 + 200000, len(data), 65536):
        data[at:at + 64] = b"x" * 64
    f.seek(0)
    f.write(data)
END
done
start
not "warm" "$(key "$key"): the block is damaged" "$B/kvfs" warm s "$(key "$key")" -p "$M"
eq "no block is read" "$(why s acquire "$key" 1)" 0
eq damaged "$(cause s "$key")" damaged
stop
rm -r "$S"
start ssd_write=4M
eq saved "$(why s save 1 24)" 24
sleep 1
why s save 100 100 > /dev/null
[ "$(metric 'kvfs_unwritten_total{reason="budget"}')" -gt 0 ] || fail "no block was beyond the budget"
why s cause 1 24 | grep -q '^budget' || fail "the budget: $(why s cause 1 24 | sort | uniq -c)"
stop
rm -r "$S"
start
why s save 1 1 > /dev/null
limit s quota.ssd 4K
eq saved "$(why s save 10 20)" 20
sleep 1
why s save 100 100 > /dev/null
eq "refused by the quota of SSD" "$(cause s 10)" quota
limit s quota.ssd 0
stop
rm -r "$S"

# Pinned blocks fill the SSD, and new ones find no room there.
start
why s save 1 1 > /dev/null
for i in $(seq 300); do
	why s save "$i" 1 > /dev/null
	setfattr -n user.kvfs.pin -v 1 "$M/s/$(place "$i")" 2> /dev/null || break
	sync "$M/s"
done
why s save 2000 400 > /dev/null
why s cause 2000 400 | sort | uniq -c > "$T/room"
grep -q room "$T/room" || fail "no room: $i pinned, $(cat "$T/room")"
stop
rm -r "$S"

# why=0 reports and logs nothing, but flushes know of evicted blocks (tests/cache/test_causes.c).
start why=0
why s save 1 2 > /dev/null
rm "$M/s/$(place 1)"
eq "nothing is remembered" "$(cause s 1)" unseen
why s match 1 2 > /dev/null
eq "nothing is logged" "$(why s misses)" ""
eq "a miss is counted" "$(count other)" 1
stop
