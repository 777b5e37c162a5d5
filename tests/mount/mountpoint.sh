#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mountpoint.sh - mount points that are missing, busy or dead; STOREs that are in use or
# belong to another user.
. "$(dirname "$0")/lib"
K="$B/kvfs -o $BASE,control=$SOCK"
refused() { # refused WHAT TEXT STORE MOUNTPOINT: fail unless the mount fails with one line, TEXT
	$K "$3" "$4" > "$T/out" 2> "$T/err" < /dev/null && fail "$1: succeeds"
	eq "$1: one line" "$(cat "$T/out" "$T/err" | wc -l)" 1
	grep -qi -e "$2" "$T/err" || fail "$1: says '$(cat "$T/err")', not '$2'"
}
refused "a missing mount point" "No such file" "$S" "$T/nothing"
absent "no STORE is made" "$S"
touch "$T/file"
refused "a file" "not a directory" "$S" "$T/file"
absent "no STORE is made" "$S"
refused "STORE below the mount point" "must not contain each other" "$M/store" "$M"
refused "the same twice" "must not contain each other" "$M" "$M"
mkdir -p "$S/m"
refused "the mount point below STORE" "must not contain each other" "$S" "$S/m"
rm -r "$S"

mkdir "$T/full"
touch "$T/full/something"
refused "a STORE that holds something else" "" "$T/full" "$M"
eq "it is untouched" "$(ls -A "$T/full")" something
refused "a STORE that is a file" "" "$T/file" "$M"
refused "a STORE that cannot be made" "" "$T/file/x" "$M"
refused "a STORE whose parent is missing" "" "$T/nothing/x" "$M"

start
block "$T/b"
ok "write" put s 1 "$T/b"
mkdir "$T/mnt2"
refused "a busy mount point" "is mounted" "$T/store2" "$M"
absent "no second STORE" "$T/store2"
SOCK=$T/sock2 K="$B/kvfs -o $BASE,control=$T/sock2"
refused "a STORE in use" "" "$S" "$T/mnt2"
same "the first does not notice" "$T/b" "$M/s/$(place 1)"
SOCK=$T/sock K="$B/kvfs -o $BASE,control=$T/sock"
refused "a control socket in use" "" "$T/store2" "$T/mnt2"
eq "nothing is mounted there" "$(grep -c " $T/mnt2 " /proc/self/mountinfo)" 0
sync "$M/s"

pid=$(daemon_pids)
kill -KILL "$pid"
gone
stat "$M" > "$T/out" 2>&1 && fail "a dead mount answers"
not "a dead mount" "not connected" ls "$M"
start
same "it is replaced, and the block is there" "$T/b" "$M/s/$(place 1)"
eq "mounted once" "$(grep -c " $M " /proc/self/mountinfo)" 1
stop
