#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_hung.sh - the remote tier's directory does not answer, is full, or refuses:
# acquires end at their deadline, local blocks can be read and saved, the daemon ends, and
# blocks come again when the directory works again.
. "$(dirname "$0")/lib"
. "$here/tiers"
trap 'end_servers; cleanup' EXIT
N=$T/node
mkdir "$N"
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]},
             {"name": "v", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16,
 "keys": "engine", "share": true}
L
make() { mkdir "$1" && cp "$T/layout" "$1/.layout" || fail "the space $1"; }
kv() { block "$@" --tensor k:BF16:4x16x64:8192 --tensor v:BF16:4x16x64:8192; }
objects() { find "$T/remote" -type f -path '*/2-*' | wc -l; }
has_objects() { [ "$(objects)" -ge "$1" ]; }
# fetch MS N...: acquire the blocks N at the second node; set `got` to how many came, `took`
# to the milliseconds.
fetch() {
	local ms=$1 keys=() out
	shift
	for n in "$@"; do keys+=("$(key "$n")"); done
	out=$("$B/tests/mount/fetch" "$N" s acquire "$ms" "${keys[@]}") || fail "fetch: $out"
	took=${out#* }
	got=${out% *}
}
gets() { # gets WANTED MS N...: fetch(), and return whether WANTED blocks came
	local wanted=$1
	shift
	fetch "$@"
	[ "$got" = "$wanted" ]
}
counter() { sed -n "s/^kvfs_remote_$1 //p" "$N/.kvfs/metrics"; }
is() { [ "$(counter "$1")" = "$2" ]; }
stats() { grep -A9 ^remote "$N/.kvfs/stats"; }
save() { # save N: save block N at the second node, and make it durable
	kv "$T/new" --seed "$1"
	ok "saves go on" sh -c "mkdir -p '$N/s/$(printf %02x "$1")' && cp '$T/new' '$N/s/$(place "$1")' && sync '$N/s'"
}
in_time() { [ "$took" -lt 3000 ] || fail "an acquire of 300 ms took $took"; }

serve dir
start "remote=$url"
"$B/kvfs" -o "$BASE,control=$T/sock2,remote=$url,remote_threshold=1" "$T/store2" "$N" 2>"$T/log2" ||
	fail "the other node: $(cat "$T/log2")"
make "$M/s"
for i in $(seq 60); do
	kv "$T/b" --seed "$i"
	put s "$i" "$T/b" || fail "put $i"
	sums[i]=$(md5sum <"$T/b")
done
sync "$M/s"
wait_for 60 has_objects 60 || fail "handed over: $(objects)"
make "$N/s"
fetch 30000 1 2
eq "while it is well" "$got" 2

# No call on the directory returns.
: >"$TROUBLE"
for i in $(seq 11 18); do
	fetch 300 "$i"
	eq "nothing came in time" "$got" 0
	in_time
done
fetch 300 21 22
eq "nor of others: all is stuck" "$got" 0
in_time
ok "local hits" [ -s "$N/s/$(place 1)" ]
fetch 300 1 2
eq "local blocks are leased" "$got" 2
wait_for 60 is open 0 || fail "a directory that hangs is still used: $(stats)"
fetch 30000 31 32
eq "a miss" "$got" 0
in_time
not "health" "the remote tier is not used" "$B/kvfs" --health "$N"
save 200

# The directory answers again: blocks come again by themselves, and memory is given back.
rm "$TROUBLE"
wait_for 120 gets 2 2000 41 42 || fail "it is not asked again: $(stats)"
eq "and is open" "$(counter open)" 1
wait_for 60 gets 8 5000 $(seq 11 18) || fail "what hung does not come: $(stats)"
for i in $(seq 11 18); do eq "block $i" "$(md5sum <"$N/s/$(place "$i")")" "${sums[i]}"; done
wait_for 60 is lent_bytes 0 || fail "memory does not come back: $(stats)"
ok "health" "$B/kvfs" --health "$N"
wait_for 60 has_objects 61 || fail "what was saved meanwhile is not handed over"

# A full directory takes no new objects, but its objects can be read.
dropped=$(counter dropped_total)
echo full >"$TROUBLE"
save 201
more_dropped() { [ "$(counter dropped_total)" -gt "$dropped" ]; }
wait_for 60 more_dropped || fail "what did not fit is not counted: $(stats)"
wait_for 30 gets 2 2000 45 46 || fail "a full directory gives nothing: $(stats)"
eq "it is open" "$(counter open)" 1
ok "why" sh -c "grep -q 'No space left' '$N/.kvfs/stats'"
rm "$TROUBLE"
wait_for 120 has_objects 62 || fail "what did not fit is not handed over later: $(stats)"

# All calls on the directory fail, then succeed again.
echo refusing >"$TROUBLE"
fetch 2000 51 52
eq "gone: a miss" "$got" 0
rm "$TROUBLE"
wait_for 60 gets 2 2000 51 52 || fail "it is not back: $(stats)"

# The folder of a tenant disappears and returns: its blocks are misses, and a miss is
# remembered for a second.
mv "$T/remote/$(id -u)" "$T/away"
fetch 2000 53 54
eq "gone: a miss" "$got" 0
rm -rf "${T:?}/remote/$(id -u)"
mv "$T/away" "$T/remote/$(id -u)"
wait_for 60 gets 2 2000 53 54 || fail "it is not back: $(stats)"

# A daemon ends while its calls hang.  The daemon's count of blocks that were not handed over
# includes those whose PUT has begun.
: >"$TROUBLE"
fetch 300 55
for i in 203 204 205; do save $i; done
unmount "$N" || fail "umount"
no_daemon() { [ -z "$(ps -C kvfs -o args= | grep -- "$T/store2 ")" ]; }
wait_for 30 no_daemon || fail "the daemon waits for the directory"
ok "the count: $(cat "$T/log2")" grep -q "3 blocks of shared spaces were not handed over" "$T/log2"
rm "$TROUBLE"
stop
