#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_hung.sh - a backend that does not answer, is slow, full, or refuses: who
# waits gets his deadline, others go on, and all is well again when it is.
. "$(dirname "$0")/lib"
R=$T/remote
N=$T/node
mkdir "$R" "$N"
HUNG=()
release() { for f in "${HUNG[@]}"; do [ -p "$f" ] && : <>"$f"; done; }
trap 'release; cleanup' EXIT
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]},
             {"name": "v", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16, "share": true}
L
make() { mkdir "$1" && cp "$T/layout" "$1/.layout" || fail "the space $1"; }
objects() { find "$R" -type f | grep -c '/[0-9a-f]\{32\}$'; }
# fetch SPACE MS N...: got and took, at the second node.
fetch() {
	local space=$1 ms=$2 keys=() out
	shift 2
	for n in "$@"; do keys+=("$(key "$n")"); done
	out=$("$B/tests/mount/fetch" "$N" "$space" acquire "$ms" "${keys[@]}") || fail "fetch: $out"
	took=${out#* }
	got=${out% *}
}
counter() { sed -n "s/^kvfs_remote_$1{backend=\"0\"[^}]*} //p" "$N/.kvfs/metrics"; }

start "remote=dir:$R"
"$B/kvfs" -o "$BASE,control=$T/sock2,remote=dir:$R,remote_threshold=1" "$T/store2" "$N" || fail "the other node"
make "$M/s"
for i in $(seq 60); do
	block "$T/b" --seed "$i" --tensor k:BF16:4x16x64:8192 --tensor v:BF16:4x16x64:8192
	put s "$i" "$T/b" || fail "put $i"
	sums[i]=$(md5sum <"$T/b")
done
sync "$M/s"
for ((i = 0; i < 600; i++)); do [ "$(objects)" = 60 ] && break; sleep 0.1; done
eq "handed over" "$(objects)" 60
make "$N/s"
fetch s 30000 1 2
eq "while it is well" "$got" 2

# Notes that nobody writes: whoever opens them hangs, as on a server that is gone.
note() { echo "$(find "$R" -name "$(key "$1")").digest"; }
mv "$(note 6)" "$T/note6" && mkfifo "$(note 6)" || fail "fifo"
HUNG=("$(note 6)")
fetch s 1500 3 4 5 6
eq "what came before the one that hangs" "$got" 3
timeout 10 bash -c "cat '$T/note6' >'$(note 6)'" || fail "nobody reads the note of 6"
mv "$T/note6" "$(note 6)"
HUNG=()
for i in $(seq 11 18); do
	f=$(note "$i")
	mv "$f" "$T/note$i" && mkfifo "$f" || fail "fifo"
	HUNG+=("$f")
done
for i in $(seq 11 18); do
	fetch s 300 "$i"
	eq "nothing came in time" "$got" 0
	[ "$took" -lt 3000 ] || fail "an acquire of 300 ms took $took"
done
fetch s 300 21 22
eq "nor of others: all is stuck" "$got" 0
[ "$took" -lt 3000 ] || fail "an acquire of 300 ms took $took"
ok "local hits" [ -s "$N/s/$(place 1)" ]
fetch s 300 1 2
eq "local blocks are leased" "$got" 2
# All that was asked is over in its time, and then the node does without.
for ((i = 0; i < 600; i++)); do [ "$(counter open)" = 0 ] && break; sleep 0.1; done
eq "it is not asked any more" "$(counter open)" 0
fetch s 30000 31 32
eq "a miss" "$got" 0
[ "$took" -lt 3000 ] || fail "without a backend an acquire took $took"
kv() { block "$@" --tensor k:BF16:4x16x64:8192 --tensor v:BF16:4x16x64:8192; }
kv "$T/new" --seed 999
ok "saves go on" sh -c "mkdir -p '$N/s/c8' && cp '$T/new' '$N/s/$(place 200)' && sync '$N/s'"

# The backend answers again: blocks come again without any action.
for f in "${HUNG[@]}"; do timeout 10 bash -c "cat '$T/note11' >'$f'" || fail "nobody reads $f"; done
for i in $(seq 11 18); do mv "$T/note$i" "$(note "$i")" || fail "note"; done
for ((i = 0; i < 600; i++)); do
	fetch s 2000 41 42
	[ "$got" = 2 ] && break
	sleep 0.2
done
eq "it is asked again" "$got" 2
eq "and is open" "$(counter open)" 1
for ((i = 0; i < 600; i++)); do
	fetch s 5000 $(seq 11 18)
	[ "$got" = 8 ] && break
	sleep 0.2
done
eq "what hung comes, too" "$got" 8
for i in $(seq 11 18); do eq "block $i" "$(md5sum <"$N/s/$(place "$i")")" "${sums[i]}"; done

# Memory that an object hangs in is the backend's until it gives it back.
f=$(find "$R" -name "$(key 55)")
rm "$f" && mkfifo "$f" || fail "fifo"
HUNG=("$f")
fetch s 300 55
eq "an object that does not come" "$got" 0
[ "$(counter lent_bytes)" -gt 0 ] || fail "its memory is not counted"
timeout 10 bash -c ": >'$f'" || fail "nobody opens $f"
for ((i = 0; i < 300; i++)); do [ "$(counter lent_bytes)" = 0 ] && break; sleep 0.1; done
eq "memory that it has in the end" "$(counter lent_bytes)" 0

# Full, and refusing: saves go on here, and it is counted.
chattr +i "$R/0"/* 2>/dev/null || mount --bind -o ro "$R" "$R" 2>/dev/null || true
kv "$T/new" --seed 1001
ok "refused: saves go on" sh -c "mkdir -p '$N/s/c9' && cp '$T/new' '$N/s/$(place 201)' && sync '$N/s'"
for ((i = 0; i < 300; i++)); do [ "$(counter dropped_total)" -ge 1 ] && break; sleep 0.1; done
chattr -i "$R/0"/* 2>/dev/null
umount "$R" 2>/dev/null
[ "$(counter dropped_total)" -ge 1 ] || fail "what was refused is not counted"
# A directory that goes away under it, and comes back.
mv "$R/0" "$R/away"
fetch s 2000 51 52
eq "gone: a miss" "$got" 0
mv "$R/away" "$R/0"
# The backend rests after failures, and misses are remembered for a second.
for ((i = 0; i < 300; i++)); do [ "$(sed -n 's/^kvfs_remote_open{backend="0"} //p' "$N/.kvfs/metrics")" = 1 ] && break; sleep 0.1; done
sleep 1.1
fetch s 30000 51 52
eq "back" "$got" 2
unmount "$N"
stop
