#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# errnos.sh - every call that is not in kvfs-space(5)'s table returns its errno.
. "$(dirname "$0")/lib"
start
block "$T/b"
ok "write" put s 1 "$T/b"
mkdir -p "$M/s/02"
for p in errno_names errno_files; do
	"$B/tests/mount/$p" "$M/s" "$(key 1)" "$T/b" || fail "$p"
done
same "the block is unchanged" "$T/b" "$M/s/$(place 1)"
eq "nothing else is there" "$(find "$M/s" -type f | wc -l)" 1
stop
