#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# unsealed.sh - a block that is being written is absent under its name, even for other
# programs of the same user, until it is complete.
. "$(dirname "$0")/lib"
start
block "$T/b" --bytes 100000
mkdir "$M/s" "$M/s/01" || fail mkdir
F=$M/s/$(place 1)
exec 7> "$F"
not "reading a file just made" "No such file" cat "$F"
not "looking at a file just made" "No such file" stat "$F"
not "removing a file just made" "No such file" rm "$F"
head -c 50000 "$T/b" >&7 2> /dev/null # close reports that the block is incomplete
not "reading half a block" "No such file" cat "$F"
not "copying half a block" "No such file" cp "$F" "$T/half"
absent "half a block" "$T/half"
tail -c +50001 "$T/b" >&7
exec 7>&-
same "once it is closed" "$T/b" "$F"
rm "$F" || fail rm
python3 - "$F" "$T/b" <<'P' || fail "its own process"
import errno, mmap, os, subprocess, sys, threading
path, data = sys.argv[1], open(sys.argv[2], "rb").read()
def fails(wanted, f, *args):
    try:
        f(*args)
    except OSError as e:
        assert e.errno == wanted, e
    else:
        assert False, "it succeeds"
f = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.write(f, data[:1000])
assert os.stat(path).st_size == 1000
seen = []
t = threading.Thread(target=lambda: seen.append(os.stat(path).st_size))
t.start(); t.join()
assert seen == [1000], "another thread does not see it"
assert subprocess.run(["test", "-e", path]).returncode == 1
fails(errno.ENOENT, os.open, path, os.O_RDONLY)
early = os.open(path, os.O_PATH)
os.write(f, data[1000:])
os.fsync(f)
# A look-up before the seal must not lead to a file that cannot be mapped.
fails(errno.ESTALE, os.open, "/proc/self/fd/%d" % early, os.O_RDONLY)
r = os.open(path, os.O_RDONLY)
assert mmap.mmap(r, 0, mmap.MAP_SHARED, mmap.PROT_READ)[:] == data
os.close(f)
# A sealed block that was removed can be made again, also while its file is still open.
again = path[:-1] + "9"
kept = os.open(again, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.write(kept, data)
os.fsync(kept)
fails(errno.EEXIST, os.open, again, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.unlink(again)
fails(errno.ENOENT, os.stat, again)
f = os.open(again, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.write(f, data)
os.close(f)
os.close(kept)
assert open(again, "rb").read() == data
# Another process of the user may write the same key, and finish first.
key2 = path[:-1] + "2"
slow = os.open(key2, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.write(slow, data[:1000])
fails(errno.EEXIST, os.open, key2, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
assert subprocess.run(["cp", sys.argv[2], key2]).returncode == 0
assert open(key2, "rb").read() == data
os.write(slow, data[1000:])
os.close(slow)
other = path[:-1] + "3"
slow = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.write(slow, data[:1000])
assert subprocess.run(["cp", sys.argv[2], other]).returncode == 0
os.write(slow, data[1000:-1] + b"?")
fails(errno.EEXIST, os.close, slow)
assert open(other, "rb").read() == data
# Every process of a file's user can see its staging name.
temp = os.path.join(os.path.dirname(path), "." + os.path.basename(path) + ".x")
with open(temp, "wb") as f:
    f.write(data)
    assert subprocess.run(["test", "-e", temp]).returncode == 0
os.unlink(temp)
P

# The memory of many incomplete files returns to the system; a sanitizer keeps it.
if nm -D "$B/kvfs" | grep -qE ' U __(asan|tsan)_'; then
	stop
	exit 0
fi
python3 - "$M/s/01" "$(daemon_pids)" <<'P' || fail "the memory of incomplete files"
import os, sys, time
def memory():
    status = open("/proc/%s/status" % sys.argv[2]).read()
    return int(status.split("RssAnon:")[1].split()[0]) >> 10
before = memory()
files = [os.open("%s/01%030x" % (sys.argv[1], i), os.O_WRONLY | os.O_CREAT) for i in range(16, 916)]
for f in files:
    os.write(f, b"half")
held = memory()
for f in files:
    try:
        os.close(f)
    except OSError:
        pass
until = time.monotonic() + 40
while memory() > before + 8 and time.monotonic() < until:
    time.sleep(0.5)
print(f"{before} MiB before, {held} with 900 files, {memory()} after")
assert held > before + 20 and memory() <= before + 8
P
stop
