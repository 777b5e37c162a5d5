#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# conflict.sh - save a key again: the same bytes succeed; other bytes fail with EEXIST, the
# first ones stay, and the conflict is counted.
. "$(dirname "$0")/lib"
start
block "$T/a" --seed 1
block "$T/b" --seed 2
mkdir "$M/s" "$M/s/01" || fail mkdir
D=$M/s/01 K=$(key 1)
cp "$T/a" "$D/$K" || fail cp
eq "no conflict yet" "$(metric kvfs_conflicts_total)" 0
not "open for writing" "Operation not permitted" cp "$T/b" "$D/$K"
cp "$T/a" "$D/.$K.x" && ok "the same bytes by rename" mv -f "$D/.$K.x" "$D/$K"
same "the same bytes" "$T/a" "$D/$K"
eq "that is no conflict" "$(metric kvfs_conflicts_total)" 0
cp "$T/b" "$D/.$K.x" && not "other bytes by rename" "File exists" mv -f "$D/.$K.x" "$D/$K"
same "the first stay" "$T/a" "$D/$K"
eq "counted" "$(metric kvfs_conflicts_total)" 1
rm -f "$D/.$K.x"
rm "$D/$K"

python3 - "$T/a" "$T/b" "$D/$K" <<'P' || fail "two writers of one key"
import errno, os, sys
a, b = (open(n, "rb").read() for n in sys.argv[1:3])
name = sys.argv[3]
flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
f, g, h = (os.open(name, flags) for i in range(3))
os.write(f, a[:1000])
os.write(g, b)
os.write(h, a)
os.write(f, a[1000:])
os.close(f)
assert open(name, "rb").read() == a
try:
    os.close(g)
    assert False, "other bytes were sealed"
except OSError as e:
    assert e.errno == errno.EEXIST
os.close(h)
assert open(name, "rb").read() == a
P
eq "counted" "$(metric kvfs_conflicts_total)" 2
restart
same "the first stay after a restart" "$T/a" "$D/$K"
stop
