#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# sizes.sh - a segment file has slots of one size.  A user who keeps a block in each file,
# or has blocks of many sizes, takes no file that other users are guaranteed, and beyond
# its quota no file of other users.
. "$(dirname "$0")/lib"
needs_root
BASE=$ALL,dram=64M,ssd=128M,segment=8M,hugepages=off,scrub=0
U=$M/.kvfs/tenants
py="python3 $here/sizes.py"
limit() { setfattr -n "user.kvfs.$2" -v "$3" "$U/$1"; }
# made USER SPACE: make an empty space of the user
made() { mkdir -m 755 "$M/$2" && chown "$1" "$M/$2" || fail "mkdir"; }
again() {
	[ -z "$(daemon_pids)" ] || stop
	rm -rf "$S"
	start
}

# User A's blocks fill the tier, first with a pinned block in each file, then with a block
# in each file that a process has open.
again
limit 1002 reserve.ssd 32M || fail "reserve"
made 1001 a && made 1002 c
ok "A fills all files" $py 1001 save "$M/a" 262144 0 440
ok "and pins one block in each" $py 1001 pin "$M/a" 0 440 25
ok "C has room for blocks of another size" $py 1002 save "$M/c" 1048576 0 24
eq "all of them" "$($py 0 count "$M/c" 0 24)" 24
ok "A's pinned blocks are whole" $py 1001 check "$M/a" 262144 0 440 25
[ "$(metric kvfs_moved_blocks_total)" -gt 0 ] || fail "nothing was moved"
restart
ok "A's pinned blocks are whole at the next mount" $py 1001 check "$M/a" 262144 0 440 25
ok "C's blocks, too" $py 1002 check "$M/c" 1048576 0 24 1
stop
ok "the store is sound" "$B/kvfs-fsck" "$S"

again
limit 1002 reserve.ssd 32M || fail "reserve"
made 1001 a && made 1002 c
ok "A fills all files" $py 1001 save "$M/a" 262144 0 440
mkfifo "$T/end"
$py 1001 hold "$M/a" 0 440 25 > "$T/held" < "$T/end" &
exec 9> "$T/end"
for _ in $(seq 300); do [ -s "$T/held" ] && break; sleep 0.1; done
ok "C has room while A has one open in each" $py 1002 save "$M/c" 1048576 0 24
eq "all of them" "$($py 0 count "$M/c" 0 24)" 24
exec 9>&-
wait %1 || fail "A cannot read what it has open"

# User A's pinned blocks in all files do not hold up A's saves of another size.
again
made 1001 a
ok "A fills all files" $py 1001 save "$M/a" 100000 0 1050
ok "and pins 70 blocks" $py 1001 pin "$M/a" 0 1050 15
began=$SECONDS
ok "A saves larger blocks" $py 1001 save "$M/a" 300000 5000 200
# A space that waits for a file for over a second evicts blocks of its own: on a busy machine
# some of the 200.  No other block is missing.
new=$($py 0 count "$M/a" 5000 200) old=$($py 0 count "$M/a" 0 1050)
evicted=$(metric 'kvfs_evictions_total{tier="ssd",reason="space"}')
[ "$new" -ge 150 ] || fail "only $new of 200 larger blocks are durable"
[ $((new + old + evicted)) -ge 1250 ] ||
	fail "$((1250 - new - old)) blocks are not durable, but $evicted were evicted"
[ $((SECONDS - began)) -le 30 ] || fail "200 saves took $((SECONDS - began)) s"
ok "A's pinned blocks are whole" $py 1001 check "$M/a" 100000 0 1050 15

# User A pins blocks of many sizes: each size needs a file.
again
limit 1002 reserve.ssd 32M || fail "reserve"
made 1001 a && made 1002 c
n=$($py 1001 sizes "$M/a" 40 pin) || fail "A pins"
[ "$n" -ge 4 ] && [ "$n" -le 8 ] || fail "A pins blocks of $n sizes, in 15 files"
ok "C has room for blocks of another size" $py 1002 save "$M/c" 1048576 0 24
eq "all of them" "$($py 0 count "$M/c" 0 24)" 24

# User A saves blocks of many sizes, within a quota of bytes.
again
limit 1001 quota.ssd 4M || fail "quota"
made 1001 a && made 1002 c
ok "C fills all files" $py 1002 save "$M/c" 262144 0 440
before=$($py 0 count "$M/c" 0 440)
eq "A saves" "$($py 1001 sizes "$M/a" 30)" 30
after=$($py 0 count "$M/c" 0 440)
[ $((10 * after)) -ge $((8 * before)) ] || fail "C has $after of $before blocks left"
stop
ok "the store is sound" "$B/kvfs-fsck" "$S"
