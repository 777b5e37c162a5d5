#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# files.sh - files that are no valid block: each fails at close or before, with its errno,
# and leaves nothing behind.
. "$(dirname "$0")/lib"
start
block "$T/b"
size=$(stat -c %s "$T/b")
mkdir "$M/s" "$M/s/01" || fail mkdir
F=$M/s/$(place 1)
try() { # try WHAT ERROR FILE: fail unless saving FILE fails with ERROR and leaves no file
	not "$1" "$2" cp "$3" "$F"
	absent "$1" "$F"
	eq "$1: nothing is listed" "$(ls -A "$M/s/01")" ""
}
head -c $((size - 1)) "$T/b" > "$T/short"
try "cut by one byte" "Invalid argument" "$T/short"
head -c 5 "$T/b" > "$T/five"
try "cut in the length" "Invalid argument" "$T/five"
head -c 20 "$T/b" > "$T/twenty"
try "cut in the header" "Invalid argument" "$T/twenty"
(cat "$T/b"; printf x) > "$T/long"
try "one byte too long" "File too large" "$T/long"
printf 'hello, this is no safetensors file at all' > "$T/text"
try "a text" "" "$T/text"
head -c 100000 /dev/zero > "$T/zeros"
try "zeros" "Invalid argument" "$T/zeros"
printf '\377\377\377\377\377\377\377\377{' > "$T/huge"
try "a header of 2^64 bytes" "File too large" "$T/huge"
printf '\x10\0\0\0\0\0\0\0{"a":{"dtype":"U' > "$T/badjson"
try "a header that is no JSON" "Invalid argument" "$T/badjson"
printf '\x10\0\0\0\0\0\0\0[1,2,3]         ' > "$T/array"
try "a header that is an array" "Invalid argument" "$T/array"
printf '\x02\0\0\0\0\0\0\0{}' > "$T/empty"
try "no tensors" "Invalid argument" "$T/empty"
block "$T/big" --bytes $((20 << 20))
try "larger than a segment" "File too large" "$T/big"
: > "$F" || fail "an empty file is no error"
absent "an empty file" "$F"
ok "touch makes nothing" touch "$F"
absent "touch" "$F"

python3 - "$T/b" "$F" <<'P' || fail "holes and restarts"
import errno, os, sys
data = open(sys.argv[1], "rb").read()
name = sys.argv[2]
n = len(data)

def error(call, *args):
    try:
        call(*args)
    except OSError as e:
        return errno.errorcode[e.errno]
    return "none"

def create(flags=0):
    return os.open(name, os.O_RDWR | os.O_CREAT | flags)

f = create()                            # a hole in the middle
os.pwrite(f, data[:5000], 0)
os.pwrite(f, data[6000:], 6000)
assert error(os.fsync, f) == "EINVAL"
assert error(os.close, f) == "EINVAL"
assert not os.path.exists(name)

f = create()                            # a write behind the block's end
os.pwrite(f, data[:5000], 0)
assert error(os.pwrite, f, b"x", n) == "EFBIG"
assert error(os.fsync, f) == "EFBIG"
assert error(os.close, f) == "EFBIG"
assert not os.path.exists(name)

f = create()                            # wrong, then begun anew
error(os.pwrite, f, b"\0" * 100, 0)
assert error(os.fsync, f) == "EINVAL"
os.ftruncate(f, 0)
os.pwrite(f, data, 0)
assert error(os.ftruncate, f, n + 1) == "EINVAL"
assert error(os.ftruncate, f, n - 1) == "EINVAL"
assert error(os.ftruncate, f, n) == "none"
assert os.fstat(f).st_size == n
os.fsync(f)                             # sealed here
assert os.path.exists(name)
assert error(os.pwrite, f, b"x", 0) == "EPERM"
assert error(os.ftruncate, f, 0) == "EPERM"
assert os.pread(f, n, 0) == data
os.close(f)
assert open(name, "rb").read() == data
os.unlink(name)

f = create()                            # its header changes before the last byte comes
os.pwrite(f, data[:n - 1], 0)
os.pwrite(f, b"\1", 0)
os.pwrite(f, data[n - 1:], n - 1)
assert error(os.close, f) == "EINVAL"
assert not os.path.exists(name)

f = create()                            # removed while it is being written
os.pwrite(f, data[:5000], 0)
os.unlink(name)
os.pwrite(f, data[5000:], 5000)
os.close(f)
assert not os.path.exists(name)

a = create()                            # two writers do not mix
os.pwrite(a, data[:50000], 0)
b = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
assert error(os.open, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) == "EEXIST"
os.pwrite(b, data[:100], 0)
os.pwrite(a, data[50000:], 50000)
os.close(a)
assert open(name, "rb").read() == data
assert error(os.close, b) == "EINVAL"
assert open(name, "rb").read() == data
os.unlink(name)
P

python3 - "$T/b" "$F" <<'P' || fail "a writer that dies"
import os, signal, sys, time
data = open(sys.argv[1], "rb").read()
pid = os.fork()
if pid == 0:
    f = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
    os.write(f, data[:50000])
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(pid, 0)
for i in range(1200):
    if not os.path.exists(sys.argv[2]):
        sys.exit(0)
    time.sleep(0.05)
sys.exit(1)
P
eq "nothing is left" "$(ls -A "$M/s/01")" ""
eq "nothing is being saved" "$(metric kvfs_saving_blocks)" 0
ok "a good file still goes in" cp "$T/b" "$F"
same "a good file" "$T/b" "$F"

# Files with staging names are made beside the file of their key, and sealed by the rename
# to it.
D=$M/s/01
stage() { cp "$1" "$D/.$(key 257).x"; }
not "a cut staging file" "Invalid argument" stage "$T/short"
absent "a cut staging file" "$D/.$(key 257).x"
stage "$T/b" || fail "staging"
mkdir "$M/other" "$M/other/01"
not "onto another key" "cannot move" mv -T "$D/.$(key 257).x" "$D/$(key 513)"
ok "into another space it is copied" mv -T "$D/.$(key 257).x" "$M/other/$(place 257)"
same "in the other space" "$T/b" "$M/other/$(place 257)"
stage "$T/b" || fail "staging"
ok "rm of a staging file" rm "$D/.$(key 257).x"
absent "rm of a staging file" "$D/.$(key 257).x"
stage "$T/b" || fail "staging"
ok "onto its own key" mv -T "$D/.$(key 257).x" "$D/$(key 257)"
same "onto its own key" "$T/b" "$D/$(key 257)"
absent "the staging name is gone" "$D/.$(key 257).x"
not "rename of a sealed block" "Operation not permitted" mv -T "$D/$(key 257)" "$D/.$(key 257).x"
stop
