#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_storm.sh [SECONDS] - one node wants blocks all the time that another has
# saved, while the directory between them lies, hangs and is empty, and both nodes
# are killed: never a wrong byte, and who waits waits no longer than he said.
. "$(dirname "$0")/lib"
seconds=${1:-${KVFS_SECONDS:-12}}
R=$T/remote
N=$T/node
mkdir "$R" "$N"
node2() {
	"$B/kvfs" -o "dram=16M,ssd=0,segment=8M,hugepages=off,control=$T/sock2,remote=dir:$R" "$T/store2" "$N" ||
		fail "the other node does not start"
}
storm() { "$B/tests/mount/storm" "$@"; }
number() { sed -n "s/.* $1 \([0-9.]*\).*/\1/p" <<<"$said"; }
bad() { # COMMAND: on every tenth object, but not forever
	find "$R" -type f -name '*[05]' | head -60 | while read -r f; do
		case $f in *.digest | *.layout) continue ;; esac
		"$1" "$f"
	done
}
flip() { printf X | dd of="$1" bs=1 seek=50000 conv=notrunc status=none; }
cut() { truncate -s 9999 "$1"; }
swap() { cp "$(find "$(dirname "$1")" -name '*3' | head -n 1)" "$1"; }
hang() { mv "$1.digest" "$1.was" && mkfifo "$1.digest"; }
unhang() {
	find "$R" -type p | while read -r f; do
		: <>"$f" # opened for both, it waits for nobody
		mv "${f%.digest}.was" "$f"
	done
}
trap 'unhang 2>/dev/null; cleanup' EXIT

start "remote=dir:$R"
node2
storm "$M" s save 131072 400 || fail "save"
for ((i = 0; i < 600; i++)); do [ "$(find "$R" -name '*.digest' | wc -l)" -ge 401 ] && break; sleep 0.1; done
mkdir "$N/s" && cp "$M/s/.layout" "$N/s/.layout" || fail "the space there"
said=$(storm "$N" s get 400 $((seconds / 4 + 1)) 2000) || fail "while all is well: $said"
echo "well:    $said"
[ "$(number got)" -gt 100 ] || fail "hardly any came: $said"

cp -a "$R" "$T/copy"
storm "$N" s get 400 "$seconds" 200 >"$T/said" & pid=$!
bad flip
sleep $((seconds / 6))
bad cut
bad swap
sleep $((seconds / 6))
bad hang
sleep $((seconds / 6))
unhang
kill -KILL "$(pgrep -f -- "^[^ ]*kvfs .*$T/store ")"
wait "$pid"
rc=$?
said=$(cat "$T/said")
echo "faults:  $said"
[ "$rc" = 0 ] || fail "under faults: $said"
eq "wrong blocks" "$(number wrong)" 0
late=$(number max)
[ "${late%.*}" -lt 3000 ] || fail "an acquire ended $late ms after its deadline"
umount -l "$M"

# Killed while blocks come, and mounted again.
rm -rf "$R" && mv "$T/copy" "$R"
for round in 1 2 3; do
	storm "$N" s get 400 2 500 >/dev/null & pid=$!
	sleep 0.$((RANDOM % 900 + 100))
	kill -KILL "$(pgrep -f -- "^[^ ]*kvfs .*$T/store2 ")"
	wait "$pid"
	umount -l "$N"
	node2
done
mkdir -p "$N/s" && cp "$R"/0/*/.layout "$N/s/.layout" || fail "the space after kills"
said=$(storm "$N" s get 400 2 2000) || fail "after kills: $said"
echo "after:   $said"
[ "$(number got)" -gt 100 ] || fail "hardly any came after kills: $said"
umount "$N" || fail umount
gone
