#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: long
# upgrade.sh - another build continues with a store; a space is copied to another mount by
# tar or rsync, its files in any order; and two daemons never have the same store.
. "$(dirname "$0")/lib"
BASE=$ALL,dram=32M,ssd=64M,segment=8M,hugepages=off,scrub=0
P=$B-points/kvfs
block() { python3 "$here/../mount/mkblock.py" "$@" || fail mkblock.py; }
sums() { (cd "$1" && find . -type f | LC_ALL=C sort | xargs xxh128sum 2> /dev/null) | xxh128sum; }

start
mkdir "$M/s"
echo '{"tensors": [{"name": "k", "dtype": "U8", "shape": [5000]}], "tokens": 16}' > "$M/s/.layout" || fail layout
for i in {1..40}; do
	block "$T/b" --seed "$i" --tensor k:U8:5000:5000
	put s "$i" "$T/b" || fail "put $i"
done
whole=$(sums "$M/s")
stop

# Another build of kvfs mounts the store, then this build mounts it again.
if [ -x "$P" ]; then
	"$P" -o "$BASE,control=$SOCK" "$S" "$M" || fail "the other build does not start"
	eq "with another build" "$(sums "$M/s")" "$whole"
	block "$T/b" --seed 41 --tensor k:U8:5000:5000
	put s 41 "$T/b" || fail "put with another build"
	rm "$M/s/$(place 1)"
	stop
	start
	eq "what the other build did" "$(find "$M/s" -type f ! -name .layout | wc -l)" 40
	absent "removed by the other build" "$M/s/$(place 1)"
	whole=$(sums "$M/s")
else
	start
fi

# Copy a space to another mount, file by file in any order.
S2=$T/store2 M2=$T/mnt2
mkdir "$M2"
"$B/kvfs" -o "$BASE,control=$T/sock2" "$S2" "$M2" || fail "a second store"
for order in sort 'sort -r' 'shuf --random-source=/dev/zero'; do
	(cd "$M" && find s -type f | $order | tar -cf "$T/tar" -T -) || fail "tar of a space"
	tar -C "$M2" -xf "$T/tar" || fail "tar -x ($order)"
	eq "by tar ($order)" "$(sums "$M2/s")" "$whole"
	rm -r "$M2/s" || fail "rm of the copy"
done
rsync -a "$M/s" "$M2/" || fail rsync
eq "by rsync" "$(sums "$M2/s")" "$whole"
rsync -a --itemize-changes "$M/s" "$M2/" > "$T/out" || fail "rsync again"
! grep "^[<>c]" "$T/out" || fail "rsync sends again"
unmount "$M2" || fail "umount"
stop

# A lock file with a pid of no process, or of another program.
for pid in 999999999 1 $$ rubbish; do
	echo "$pid" > "$S/lock"
	start
	eq "with a lock of $pid" "$(sums "$M/s")" "$whole"
	stop
done

# The store's lock file is deleted while a daemon holds the lock.
start
rm "$S/lock"
not "a second daemon without a lock file" "in use by another kvfs" "$B/kvfs" -o "$BASE,control=$T/sock2" "$S" none
not "kvfs-fsck without a lock file" "in use by a daemon" "$B/kvfs-fsck" "$S"
eq "with the lock file deleted" "$(sums "$M/s")" "$whole"
stop

# Several daemons start at once, again and again: one gets the store, and the
# others give up after some seconds.
races=${KVFS_RACES:-15}
for ((i = 0; i < races; i++)); do
	for j in 1 2 3 4 5; do
		("$B/kvfs" -o "$BASE,control=$T/race$j" "$S" none > "$T/race$j.out" 2>&1; echo $? > "$T/race$j.rc") &
	done
	wait
	eq "race $i: daemons that start" "$(grep -cx 0 <(cat "$T"/race?.rc))" 1
	eq "race $i: daemons that say why not" "$(cat "$T"/race?.out | grep -c "in use by another kvfs")" 4
	pid=$(daemon_pids)
	eq "daemons" "$(wc -w <<< "$pid")" 1
	kill -KILL $pid
	wait_until 60 ended $pid || fail "the daemon does not die"
done
echo "$races times five daemons for one store: one each time"
"$B/kvfs-fsck" --data --quiet "$S" || fail "after the races"
