#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ending.sh - when the daemon ends, the bytes of leased blocks stay as they are for the
# client that leases them, although files are still open that found no room in DRAM.
. "$(dirname "$0")/lib"
start dram=32M
block "$T/b" --bytes 1000000
block "$T/c" --bytes 1000000 --seed 2
mkdir "$M/s" || fail mkdir
keys=()
for ((i = 0; i < 30; i++)); do
	put s "$i" "$T/b" || fail "block $i"
	keys+=("$(key "$i")")
done
sync "$M/s" # from here on the blocks may be evicted
mkfifo "$T/end"
"$B/tests/mount/fetch" "$M" s hold 1000 "${keys[@]}" < "$T/end" > "$T/held" &
client=$!
exec 9> "$T/end"
until [ -s "$T/held" ]; do
	kill -0 $client || fail "fetch: $(cat "$T/held")"
	sleep 0.05
done
# Files under staging names take the other slots, until several find none.
python3 - "$M/s" "$T/c" > "$T/full" 9>&- <<'P' &
import errno, os, signal, sys
space, data = sys.argv[1], open(sys.argv[2], "rb").read()
files, refused = [], 0
for n in range(100, 200):
    name = "%02x%030x" % (n, n)
    os.makedirs(f"{space}/{name[:2]}", exist_ok=True)
    files.append(os.open(f"{space}/{name[:2]}/.{name}.x", os.O_WRONLY | os.O_CREAT))
    try:
        os.write(files[-1], data[:500000])
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
        refused += 1
        if refused == 3:
            break
assert refused == 3
print(len(files), flush=True)
signal.pause()
P
writer=$!
until [ -s "$T/full" ]; do
	kill -0 $writer || fail "the files all find room"
	sleep 0.05
done
echo "$(cat "$T/held") of 30 blocks leased, $(cat "$T/full") files open, 3 of them without room"
kill "$(daemon_pids)"
gone
exec 9>&-
wait $client || fail "leased bytes have changed: $(cat "$T/held")"
kill $writer
