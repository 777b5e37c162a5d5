#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sizes.py UID WHAT SPACE ... - blocks of a user, by number, of some size:

save SPACE BYTES FIRST N         save N blocks from FIRST on, and sync
pin SPACE FIRST N STEP           pin each STEP-th block
count SPACE FIRST N              print how many blocks are durable
check SPACE BYTES FIRST N STEP   check that each STEP-th block is intact and durable
hold SPACE FIRST N STEP          keep each STEP-th block open until standard input ends
sizes SPACE N [pin]              save N blocks of different sizes, print how many succeeded
churn SPACE FIRST N STEP         unpin or remove each STEP-th block in turn, and print
                                 its number when done
verify SPACE BYTES FIRST N STEP  check that blocks that `churn` printed (standard input)
                                 are unpinned or removed, and others pinned and intact
"""
import errno, json, os, struct, sys, time

uid, what, space, *rest = sys.argv[1:]
os.setgroups([])
os.setgid(int(uid))
os.setuid(int(uid))
rest = [int(x) for x in rest if x.isdigit()]

def block(n, size):
    text = json.dumps({"kv": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    text += b" " * (-(8 + len(text)) % 8)
    return struct.pack("<Q", len(text)) + text + struct.pack("<Q", n) * (size // 8)

def place(n):
    return "%s/%02x/%02x%030x" % (space, n % 256, n % 256, n)

def save(n, size):
    os.makedirs(os.path.dirname(place(n)), exist_ok=True)
    for _ in range(600):
        try:
            with open(place(n), "xb") as f:
                f.write(block(n, size))
            return
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
            time.sleep(0.05)  # DRAM is full of blocks that wait for the SSD
    sys.exit("no room in memory")

def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

def durable(n):
    try:
        return os.getxattr(place(n), "user.kvfs.durable") == b"1"
    except FileNotFoundError:
        return False

def pin(n):
    os.setxattr(place(n), "user.kvfs.tier", b"ssd")  # evict from DRAM, which has limits of its own
    os.setxattr(place(n), "user.kvfs.pin", b"1")

if what == "save":
    size, first, n = rest
    for i in range(first, first + n):
        save(i, size)
        if i % 64 == 63:
            sync(space)
    sync(space)
elif what == "pin":
    first, n, step = rest
    for i in range(first, first + n, step):
        pin(i)
    sync(space)
elif what == "count":
    first, n = rest
    print(sum(durable(i) for i in range(first, first + n)))
elif what == "check":
    size, first, n, step = rest
    for i in range(first, first + n, step):
        os.setxattr(place(i), "user.kvfs.tier", b"ssd")
        assert open(place(i), "rb").read() == block(i, size), i
        assert durable(i), i
elif what == "hold":
    first, n, step = rest
    held = [open(place(i), "rb") for i in range(first, first + n, step)]
    print("held", flush=True)
    sys.stdin.read()
    for f in held:
        f.read(4096)
elif what == "sizes":
    n = 0
    for i in range(rest[0]):
        save(900000 + i, int(20000 * 1.2**i) // 8 * 8)
        sync(space)
        try:
            if "pin" in sys.argv:
                pin(900000 + i)
            n += 1
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
            break
    print(n)
elif what == "churn":
    first, n, step = rest
    for i in range(first, first + n, step):
        if i // step % 3 == 0:
            os.setxattr(place(i), "user.kvfs.pin", b"0")
        elif i // step % 3 == 1:
            os.unlink(place(i))
        sync(space)
        print(i, flush=True)
        time.sleep(0.02)
elif what == "verify":
    size, first, n, step = rest
    done = {int(line) for line in sys.stdin.read().split()}
    for i in range(first, first + n, step):
        turn = i // step % 3
        # The first block that was not saved may be under way.
        begun = i in done or i == first or i - step in done
        there = os.path.exists(place(i))
        assert there or (turn != 2 and begun), i
        assert not there or turn != 1 or i not in done, i
        if not there:
            continue  # removed; or unpinned and then evicted
        assert open(place(i), "rb").read() == block(i, size), i
        pinned = os.getxattr(place(i), "user.kvfs.pin") == b"1"
        assert pinned or (turn == 0 and begun), i
        assert not pinned or turn != 0 or i not in done, i
