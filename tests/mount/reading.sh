#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# reading.sh - large blocks that are only on SSD, read through the mount by many readers in
# small pieces: each block is read from SSD once, and that is counted.
. "$(dirname "$0")/lib"
start dram=256M
mkdir "$M/s" "$M/s/01" || fail mkdir
block "$T/b" --bytes $((7 << 20))
for i in $(seq 12); do
	F=$M/s/$(place $((i * 256 + 1)))
	cp "$T/b" "$F" || fail cp
	setfattr -n user.kvfs.tier -v ssd "$F" || fail "tier=ssd"
done
restart dram=256M
read_mib() { echo $(($(metric kvfs_ssd_read_bytes_total) >> 20)); }
eq "read before anybody reads" "$(read_mib)" 0
python3 - "$M/s/01" "$T/b" <<'P' || fail "in turns"
import os, sys
want = open(sys.argv[2], "rb").read()
files = [os.open(os.path.join(sys.argv[1], n), os.O_RDONLY) for n in os.listdir(sys.argv[1])]
assert len(files) == 12
for f in files:
    os.posix_fadvise(f, 0, 0, os.POSIX_FADV_RANDOM)
for at in range(0, len(want), 1 << 20):
    for f in files:
        assert os.pread(f, 1 << 20, at) == want[at:at + (1 << 20)]
P
got=$(read_mib)
[ "$got" -ge 84 ] && [ "$got" -le 88 ] || fail "twelve readers of 84 MiB in turns: $got MiB read from SSD"
python3 - "$M/s/01" "$T/b" <<'P' || fail "here and there"
import os, random, sys
want = open(sys.argv[2], "rb").read()
files = [os.open(os.path.join(sys.argv[1], n), os.O_RDONLY) for n in os.listdir(sys.argv[1])]
for f in files:
    os.posix_fadvise(f, 0, 0, os.POSIX_FADV_RANDOM)
    os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
r = random.Random(1)
for _ in range(90):
    at = r.randrange(len(want) // 4096) * 4096
    assert os.pread(r.choice(files), 4096, at) == want[at:at + 4096]
P
got=$(($(read_mib) - got))
[ "$got" -le 88 ] || fail "90 reads of 4 KiB of 84 MiB: $got MiB read from SSD"
stop
