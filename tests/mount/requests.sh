#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# requests.sh - how many requests a command costs: names that the kernel may cache are not
# looked up again, ls does not ask again for attributes that no file has, and the mount
# sends no notice for files that were removed through the mount.
. "$(dirname "$0")/lib"
"$B/kvfs" -f -d -o "$BASE,control=$SOCK" "$S" "$M" > "$T/log" 2>&1 &
for _ in $(seq 600); do [ -e "$M/.kvfs/config" ] && break; sleep 0.1; done
block "$T/b"
mkdir "$M/s" "$M/s/01" || fail mkdir
for n in 1 257 513 769; do cp "$T/b" "$M/s/$(place $n)" || fail cp; done
begin() { : > "$T/log"; }
# The daemon logs a request before it answers, so the log has all requests of
# finished commands.
count() { grep -c -- "$1" "$T/log"; }

# Names are cached for a second, which may pass on a busy machine; wait until
# mkdir's entry has expired.
sleep 1.2
for _ in $(seq 20); do
	stat "$M/s/$(place 1)" > "$T/stat"
	begin
	cat "$M/s/$(place 1)" > "$T/out" || fail cat
	looked_up=$(count 'opcode: LOOKUP')
	[ "$looked_up" = 0 ] && break
done
eq "look-ups by the second walk of a path" "$looked_up" 0

begin
ls -l "$M/s/01" > "$T/out" || fail "ls -l"
asked=$(count 'opcode: GETXATTR')
[ "$asked" -le 2 ] || fail "ls -l of four blocks asks $asked times for attributes"

begin
rm "$M/s/$(place 1)" || fail rm
rm -r "$M/s/01" || fail "rm -r"
sleep 0.5
eq "notices of what rm removed" "$(count NOTIFY)" 0
ok umount unmount "$M"
gone
