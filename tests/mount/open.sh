#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# open.sh - a block that is open or mapped keeps its bytes when it is removed, replaced or
# dropped from DRAM.
. "$(dirname "$0")/lib"
start
block "$T/a" --seed 1 --bytes 3000000
block "$T/b" --seed 2 --bytes 3000000
mkdir "$M/s" "$M/s/01" "$M/s/02" || fail mkdir
for i in 1 2 257; do ok "write" put s $i "$T/a"; done
sync "$M/s"
setfattr -n user.kvfs.tier -v ssd "$M/s/$(place 257)" || fail "drop from DRAM"
python3 - "$T/a" "$T/b" "$M/s/$(place 1)" "$M/s/$(place 257)" <<'P' || fail "removed while open"
import mmap, os, subprocess, sys
a, b = (open(n, "rb").read() for n in sys.argv[1:3])
for name in sys.argv[3:]:
    f = os.open(name, os.O_RDONLY)
    g = os.open(name, os.O_RDONLY)
    m = mmap.mmap(g, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    os.close(g)
    assert os.pread(f, 4096, 0) == a[:4096]
    os.unlink(name)
    assert not os.path.exists(name)
    assert os.fstat(f).st_size == len(a)
    assert os.fstat(f).st_nlink == 0
    with open(name, "wb") as h:          # the same key, other bytes
        h.write(b)
    os.sync()
    assert os.pread(f, len(a), 0) == a, "pread after unlink"
    assert m[:] == a, "map after unlink"
    assert open(name, "rb").read() == b
    os.close(f)
    m.close()
    os.unlink(name)
P
python3 - "$T/a" "$M/s/$(place 2)" <<'P' || fail "dropped from DRAM while open"
import os, sys
a = open(sys.argv[1], "rb").read()
f = os.open(sys.argv[2], os.O_RDONLY)
try:
    os.setxattr(sys.argv[2], "user.kvfs.tier", b"ssd")
except OSError:
    pass                                 # in use: the removal may also be refused
assert os.pread(f, len(a), 0) == a
os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
assert os.pread(f, len(a), 0) == a
os.close(f)
P
exec 6< "$M/s/$(place 2)"
rm "$M/s/$(place 2)"
for i in $(seq 3 40); do put s "$i" "$T/b" || fail "fill the cache"; done
cmp "$T/a" <(cat <&6) || fail "evicted while open"
exec 6<&-
stop
