#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# parallel.sh - many processes write, read, list and remove the same few blocks at the same
# time: every read returns one of the complete blocks ever written.
. "$(dirname "$0")/lib"
if [ "$(id -u)" != 0 ]; then
	echo "needs root: readers are another user than writers"
	exit 77
fi
start
(umask 0 && mkdir "$M/s") || fail mkdir
for i in 0 1 2; do block "$T/v$i" --seed $i --bytes $((300000 + i)); done
python3 - "$M/s" "$T" <<'P' || fail "parallel"
import errno, mmap, os, random, sys, time
space, tmp = sys.argv[1:]
data = [open("%s/v%d" % (tmp, i), "rb").read() for i in range(3)]
keys = ["%02x%030x" % (i % 4, i) for i in range(12)]
path = lambda k: "%s/%s/%s" % (space, k[:2], k)
fine = {errno.ENOENT, errno.EEXIST, errno.EPERM, errno.ENOTEMPTY, errno.ESTALE}
until = time.time() + 6

def write(r, k):
    os.makedirs(os.path.dirname(path(k)), exist_ok=True)
    f = os.open(path(k), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        d, at = r.choice(data), 0
        while at < len(d):
            n = r.choice([4096, 70000, 1 << 20])
            at += os.write(f, d[at:at + n])
    finally:
        os.close(f)

def stage(r, k):
    t = "%s/%s/.%s.%d" % (space, k[:2], k, os.getpid())
    with open(t, "wb") as f:
        f.write(r.choice(data))
    try:
        os.rename(t, path(k))
    except OSError:
        os.unlink(t)
        raise

def read(r, k):
    f = os.open(path(k), os.O_RDONLY)
    try:
        n = os.fstat(f).st_size
        if r.random() < 0.3:
            got = mmap.mmap(f, 0, mmap.MAP_SHARED, mmap.PROT_READ)[:]
        else:
            got = b"".join(iter(lambda: os.read(f, 1 << 17), b""))
        if got not in data or n != len(got):
            print("wrong bytes", k, n, len(got))
            os._exit(1)
    finally:
        os.close(f)

def remove(r, k):
    os.unlink(path(k))

def rmdir(r, k):
    os.rmdir(os.path.dirname(path(k)))

def ls(r, k):
    names = os.listdir(os.path.dirname(path(k)))
    if len(names) != len(set(names)) or any(n not in keys for n in names):
        print("listing", names)
        os._exit(1)

def demote(r, k):
    try:
        os.setxattr(path(k), "user.kvfs.tier", r.choice([b"ssd", b"dram"]))
    except OSError as e:  # expected if the block is leased, not durable or not sealed yet
        if e.errno not in fine | {errno.EBUSY, errno.ENOSPC, errno.EOPNOTSUPP}:
            raise

def touch(r, k):
    os.utime(path(k))

def worker(seed):
    r = random.Random(seed)
    calls = [write, write, stage, remove, rmdir, ls, demote, touch]
    if seed % 2:
        os.setuid(1001)  # this user cannot see files being written
        calls = [read, read, read, ls, remove]
    while time.time() < until:
        try:
            r.choice(calls)(r, r.choice(keys))
        except OSError as e:
            if e.errno not in fine:
                print("seed", seed, e)
                os._exit(1)
    os._exit(0)

pids = []
for seed in range(8):
    pid = os.fork()
    if pid == 0:
        worker(seed)
    pids.append(pid)
sys.exit(max(os.waitpid(p, 0)[1] for p in pids) != 0)
P
for i in $(seq 600); do
	[ "$(metric kvfs_saving_blocks)" = 0 ] && break
	sleep 0.1
done
eq "nothing is being saved" "$(metric kvfs_saving_blocks)" 0
eq "nothing is corrupt" "$(metric kvfs_corrupt_blocks_total)" 0
find "$M/s" -type f | sort > "$T/names"
(cd "$M" && find s -type f -exec xxh128sum {} +) | sort > "$T/sums"
restart
(cd "$M" && find s -type f -exec xxh128sum {} +) | sort > "$T/sums2"
same "the same after a restart" "$T/sums" "$T/sums2"
stop
