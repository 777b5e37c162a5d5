#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# times.sh - the times of directories: the times that stat(2) returns right after a block
# was closed stay the same, so that a backup sees no change.  A mount begins with the time that
# was last set.
. "$(dirname "$0")/lib"
start
block "$T/b"
mkdir "$M/s" "$M/s/01" "$M/s/02" || fail mkdir
python3 - "$M/s" "$T/b" <<'P' || fail "times"
import os, sys, time
space, data = sys.argv[1], open(sys.argv[2], "rb").read()
dirs = [space, space + "/01", space + "/02"]
def times():
    return [os.stat(d).st_mtime_ns for d in dirs]
def later(what):
    first = times()
    time.sleep(1.2)
    assert times() == first, "%s: %s became %s" % (what, first, times())
    return first
before = later("after mkdir")
for i in range(20):
    path = "%s/01/%02x%030x" % (space, 1, i)
    with open(path, "wb") as f:
        f.write(data[:5000])
        times()
        f.write(data[5000:])
after = later("after a close")
assert after[0] == before[0], "the space's moves with a block in its directory"
assert after[1] > before[1], "the directory's does not move"
assert after[2] == before[2], "another directory's moves"
os.unlink(path)
removed = later("after an unlink")
assert removed[1] > after[1] and removed[0] == after[0]
os.rmdir(space + "/02")
dirs.pop()
assert later("after a rmdir")[0] > removed[0]
os.mkdir(space + "/03")
P
for i in $(seq 10); do
	cp "$T/b" "$M/s/03/$(printf '03%030x' "$i")" || fail cp
	out=$(tar -C "$M" -cf "$T/s.tar" s 2>&1) || fail "tar after a copy: $out"
	sleep 0.2
done
ok "touch" touch -d @1000000000 "$M/s"
put s 5 "$T/b" || fail cp
times() { stat -c %Y "$M/s" "$M/s/03" "$M/s/05" | sort -u; }
times | grep -x 1000000000 && fail "a new directory does not change the time of its space"
restart
eq "after another mount" "$(times)" 1000000000
stop
