#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# basic.sh - use the mount: make a space, write and read a block, then stat, du, df, seek,
# mmap, and a restart.
. "$(dirname "$0")/lib"
start
eq "the root lists" "$(ls -A "$M")" .kvfs
eq ".kvfs lists" "$(ls -A "$M/.kvfs" | tr '\n' ' ')" "config control metrics stats tenants "
eq "control points to the socket" "$(readlink "$M/.kvfs/control")" "$SOCK"
[ -S "$SOCK" ] || fail "no socket"
grep -q "^store=$S\$" "$M/.kvfs/config" || fail "config does not name the store"
grep -vq '=' "$M/.kvfs/config" && fail "config has a line without ="
grep -q '^dram ' "$M/.kvfs/stats" || fail "stats"
for m in kvfs_conflicts_total kvfs_corrupt_blocks_total 'kvfs_misses_total{cause="unseen"}' \
	'kvfs_blocks{tier="dram"}' 'kvfs_blocks{tier="ssd"}' 'kvfs_bytes{tier="dram"}' \
	'kvfs_hits_total{tier="dram"}' 'kvfs_hits_total{tier="ssd"}'; do
	[ -n "$(metric "$m")" ] || fail "no metric $m"
done
grep -q '^kvfs_evictions_total{tier="dram",reason=' "$M/.kvfs/metrics" || fail evictions
awk '/^#/ { next } NF != 2 || $2 !~ /^[0-9.e+]+$/ { exit 1 }' "$M/.kvfs/metrics" || fail "metrics format"
not "writing config" "Operation not permitted" sh -c "echo x > $M/.kvfs/config"
not "making a file in .kvfs" "Operation not permitted" touch "$M/.kvfs/x"
[ "$(id -u)" != 0 ] || eq "the root's mode" "$(stat -c %a "$M")" 1777

block "$T/b1"
size=$(stat -c %s "$T/b1")
mkdir "$M/s" "$M/s/01" || fail mkdir
ok "copy in" cp "$T/b1" "$M/s/$(place 1)"
F=$M/s/$(place 1)
same "read back" "$T/b1" "$F"
eq "size" "$(stat -c %s "$F")" "$size"
eq "type" "$(stat -c %F "$F")" "regular file"
blocks=$(stat -c %b "$F")
[ $((blocks * 512)) -ge "$size" ] || fail "st_blocks $blocks is less than the file"
eq "the directory lists it" "$(ls -A "$M/s/01")" "$(key 1)"
eq "find finds it" "$(find "$M/s" -type f)" "$F"
eq "one link" "$(stat -c %h "$F")" 1
eq "inode by stat and by ls" "$(ls -i "$F" | cut -d' ' -f1)" "$(stat -c %i "$F")"
eq "digest" "$(xattr "$F" digest)" "$(xxh128sum "$T/b1" | cut -d' ' -f1)"
eq "stdin by redirection" "$(xxh128sum < "$F" | cut -d' ' -f1)" "$(xxh128sum < "$T/b1" | cut -d' ' -f1)"
not "no holes: a block opened for writing" "Operation not permitted" sh -c "echo >> $F"
python3 - "$F" "$T/b1" <<'P' || fail "seek, pread, mmap"
import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDONLY)
want = open(sys.argv[2], "rb").read()
n = len(want)
assert os.lseek(f, 0, os.SEEK_DATA) == 0
assert os.lseek(f, 0, os.SEEK_HOLE) == n
try:
    os.lseek(f, n, os.SEEK_DATA)
    assert False
except OSError as e:
    assert e.errno == 6
assert os.pread(f, 1000, 500) == want[500:1500]
assert os.pread(f, 1000, n - 10) == want[-10:]
assert os.pread(f, 10, n) == b"" and os.pread(f, 10, n + 5000) == b""
assert mmap.mmap(f, 0, mmap.MAP_SHARED, mmap.PROT_READ)[:] == want
assert mmap.mmap(f, 0, mmap.MAP_PRIVATE, mmap.PROT_READ)[:] == want
P
ok "direct read" dd if="$F" of="$T/direct" iflag=direct bs=64K
same "direct read" "$T/b1" "$T/direct"

for i in 2 3 260; do
	block "$T/b$i" --seed "$i" --bytes $((i * 4000 + 50000))
	ok "copy in" put s "$i" "$T/b$i"
done
eq "two in one directory" "$(ls "$M/s/04" | wc -l)" 1
ok "sync" sync "$M/s"
sleep 1.1 # longer than the kernel may cache attributes
sum=$(find "$M/s" -type f -printf '%b\n' | awk '{ s += $1 } END { print s / 2 }')
eq "du adds up" "$(du -sk "$M/s" | cut -f1)" "$sum"
total=$(df -k --output=size "$M" | tail -n 1)
eq "df's total is ssd=" $((total)) $((512 * 1024))
ok "sync of a space" sync "$M/s"
ok "sync of a block" sync "$F"
eq "durable" "$(xattr "$F" durable)" 1
used=$(df -k --output=used "$M" | tail -n 1)
[ "$used" -gt 0 ] || fail "df shows nothing used"

not "rmdir of a directory with blocks" "Directory not empty" rmdir "$M/s/01"
not "rmdir of a space with blocks" "Directory not empty" rmdir "$M/s"
ok "rm" rm "$F"
absent "after rm" "$F"
eq "nothing listed after rm" "$(ls -A "$M/s/01")" ""
ok "rmdir of an empty directory" rmdir "$M/s/01"
absent "after rmdir" "$M/s/01"
ok "mkdir again" mkdir "$M/s/01"
ok "the same key again" cp "$T/b2" "$F"
same "it has the new bytes" "$T/b2" "$F"
(cd "$M/s/01" && rm "$(key 1)" && rmdir "$M/s/01" && mkdir "$M/s/01" && cp "$T/b1" "$F") ||
	fail "a directory made again while somebody stands in the old one"
same "in the new directory" "$T/b1" "$F"

ls -lR "$M/s" > "$T/before"
restart
ls -lR "$M/s" > "$T/after"
sed -i '/^drwx/d;/^total/d' "$T/before" "$T/after"
same "the same tree after a restart" "$T/before" "$T/after"
for i in 2 3 260; do same "bytes after a restart" "$T/b$i" "$M/s/$(place $i)"; done
same "bytes after a restart" "$T/b1" "$F"
ok "rm -r" rm -r "$M/s"
absent "after rm -r" "$M/s"
stop
