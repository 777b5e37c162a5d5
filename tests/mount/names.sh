#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# names.sh - names that are not keys are refused in every directory, and the failed calls
# leave nothing behind.
. "$(dirname "$0")/lib"
start
block "$T/b"
mkdir "$M/s" "$M/s/ab" || fail mkdir
K=ab000000000000000000000000000001
for name in x "$K.tmp" "AB000000000000000000000000000001" "${K}0" "${K%1}" ".x" ".$K" ".$K." \
	"cd000000000000000000000000000001" ".cd000000000000000000000000000001.x" \
	".layout" "$K$K$K" "ab" "-x" "a b" 'a\b' "ab00000000000000000000000000000g"; do
	not "create $name" "Invalid argument" cp "$T/b" "$M/s/ab/$name"
	not "$name is absent" "No such file" stat "$M/s/ab/$name"
	not "mkdir $name in a directory" "Operation not permitted" mkdir "$M/s/ab/$name.d"
done
long=$(printf 'a%.0s' $(seq 256))
not "a name of 256 bytes" "File name too long" cp "$T/b" "$M/s/ab/$long"
not "a name of 256 bytes in the root" "File name too long" mkdir "$M/$long"
not "a name of 256 bytes in a space" "File name too long" mkdir "$M/s/$long"
eq "nothing is left" "$(ls -A "$M/s/ab")" ""

for name in x abc AB g0 0x a .x 000; do
	not "mkdir s/$name" "Invalid argument" mkdir "$M/s/$name"
done
for name in x "$K" ab .ab.x; do
	[ "$name" = ab ] || not "create s/$name" "Invalid argument" cp "$T/b" "$M/s/$name"
done
not "mkdir of one that is there" "File exists" mkdir "$M/s/ab"
not "mkdir of a space that is there" "File exists" mkdir "$M/s"
not "a file in the root" "Operation not permitted" cp "$T/b" "$M/x"
not "a space with a dot" "Invalid argument" mkdir "$M/.x"
not "a directory in .kvfs" "Operation not permitted" mkdir "$M/.kvfs/x"
not "rmdir of .kvfs" "Operation not permitted" rmdir "$M/.kvfs"
not "rm in .kvfs" "Operation not permitted" rm "$M/.kvfs/config"
not "rmdir of what is not there" "No such file" rmdir "$M/nothing"
not "rmdir of a directory that is not there" "No such file" rmdir "$M/s/cd"
not "rm of what is not there" "No such file" rm "$M/s/ab/$K"
not "a block in a directory that is not there" "No such file" cp "$T/b" "$M/s/cd/$K"
for name in "a b" "ä" "$(printf 'x%.0s' $(seq 255))" "a,b" 'c\d' "#x"; do
	ok "mkdir '$name'" mkdir "$M/$name"
	ok "rmdir '$name'" rmdir "$M/$name"
done
cp "$T/b" "$M/s/ab/$K" || fail cp
cp "$T/b" "$M/s/ab/$K$K" || fail "cp to a name of 64 digits"
same "32 digits" "$T/b" "$M/s/ab/$K"
same "64 digits" "$T/b" "$M/s/ab/$K$K"
rm "$M/s/ab/$K"
same "they are two blocks" "$T/b" "$M/s/ab/$K$K"
not "and the first is gone" "No such file" stat "$M/s/ab/$K"
stop
