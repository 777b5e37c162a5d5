#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# token_ids.sh - the daemon is killed while it saves blocks with token ids.  Blocks that
# were acknowledged as durable have their ids afterwards, in the index and in a rebuilt
# one; blocks that were removed and synced are absent, and no block has another's ids.
. "$(dirname "$0")/lib"
P=$B-points/kvfs
[ -x "$P" ] || { echo "no $P"; exit 77; }
BASE=$ALL,dram=32M,ssd=64M,segment=8M,hugepages=off,scrub=0
BLOCKS=12
key() { printf 'aa%030x' "$1"; }
ids() { echo "$1,$(($1 + 1)),4294967295"; }
for ((i = 0; i < BLOCKS; i++)); do
	python3 "$here/../mount/mkblock.py" "$T/b$i" --seed $i --tensor k:U8:16000:16000 --meta tokens=3 --meta "token_ids=$(ids $i)" --meta "extras=$(printf %04x $i)" || fail mkblock.py
done

# Save one block after the other, and remove every third, until the daemon is dead.
# $T/acked lists the acknowledged blocks, $T/removing the blocks whose removal was begun,
# and $T/removed those whose removal was synced.
work() {
	local i
	mkdir "$M/s" 2> /dev/null &&
		echo '{"tensors": [{"name": "k", "dtype": "U8", "shape": [16000]}], "tokens": 4, "token_ids": true}' 2> /dev/null > "$M/s/.layout" &&
		mkdir "$M/s/aa" 2> /dev/null || return
	for ((i = 0; i < BLOCKS; i++)); do
		cp "$T/b$i" "$M/s/aa/$(key $i)" 2> /dev/null && sync "$M/s/aa/$(key $i)" 2> /dev/null || return
		echo $i >> "$T/acked"
		[ $((i % 3)) = 2 ] || continue
		echo $((i - 1)) >> "$T/removing"
		rm "$M/s/aa/$(key $((i - 1)))" 2> /dev/null && sync "$M/s" 2> /dev/null || return
		echo $((i - 1)) >> "$T/removed"
	done
}

check() { # check WHAT: fail unless the durable blocks have their token ids
	local line i
	[ -d "$M/s" ] || { [ ! -s "$T/acked" ] || fail "$1: the space is gone"; return; }
	"$H/told" "$M" s > "$T/told" || fail "$1: $(cat "$T/told")"
	for i in $(cat "$T/acked"); do
		grep -qx $i "$T/removing" || grep -qx "$(key $i) $(ids $i) $(printf %04x $i)" "$T/told" ||
			fail "$1: block $i was durable, and tells: $(grep "$(key $i)" "$T/told")"
	done
	for i in $(cat "$T/removed"); do
		! grep -q "$(key $i)" "$T/told" || fail "$1: block $i was removed, and tells"
	done
	while read -r line; do
		i=$((16#${line:2:30}))
		[ "$line" = "$(key $i) $(ids $i) $(printf %04x $i)" ] || fail "$1: it tells $line"
	done < "$T/told"
	told=$((told + $(wc -l < "$T/told")))
}

kills=0 told=0
for point in seal.after_publish write.before_submit write.done sync.data commit.begin commit.before commit.after \
	commit.before_telling deletion.recorded tombstone.written tombstone.synced; do
	for n in 1 2 5 9; do
		rm -rf "$S"
		: > "$T/acked"; : > "$T/removing"; : > "$T/removed"
		KVFS_POINT=$point:$n "$P" -o "$BASE,control=$SOCK" "$S" "$M" > "$T/out" 2>&1 || continue
		work
		if [ -n "$(daemon_pids)" ]; then
			kill_daemon # the daemon has passed the kill point fewer than $n times
		else
			kills=$((kills + 1))
		fi
		umount -l "$M" 2> /dev/null
		gone
		start
		check "$point:$n"
		kill_daemon
		umount -l "$M"
		rm "$S/index/data.mdb"
		start
		check "$point:$n, without the index"
		stop
	done
done
[ $kills -ge 20 ] || fail "only $kills kills"
[ $told -ge 200 ] || fail "only $told blocks told anything"
echo "killed $kills times at a point; $told times a block told its tokens, all right"
