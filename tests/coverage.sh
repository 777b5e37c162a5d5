#!/bin/bash
# coverage.sh - measure which branches of the index and of the SSD tier are taken by the unit
# tests, with the fuzzers' corpus and the scripts about stores of other formats and
# kvfs-fsck.  Fails below COVERAGE_GOAL percent (90) of them all.
#
# Not counted: the branch out of an assert, which a test cannot take and pass,
# and lines marked as never reached.
set -u
tests/need.sh gcovr || exit 1
B=${B:-build-coverage}
goal=${COVERAGE_GOAL:-90}
tests=$(ls tests/index/test_*.c tests/cache/test_*.c)
scripts="tests/fuzz/replay.sh tests/crash/golden.sh tests/crash/upgrade.sh tests/crash/fsck.sh"
helpers=$(ls tests/fuzz/*.c tests/crash/*.c)
tier='(io|ssd|store)/|block/(read|view)\.c|space/(quota|space)\.c|scrub\.c'

# Compile without optimization, so that each branch is one of the source, and replace _exit
# by exit, or the branches that a child took are not counted.
export CFLAGS="-O0 -g -w --coverage -D_exit=exit" LDFLAGS=--coverage
make --no-print-directory -s -j2 B="$B" all \
	$(printf "$B/%s " ${tests//.c/} ${helpers//.c/}) || exit 1
find "$B" -name '*.gcda' -delete
B=$B tests/run.sh $(printf "$B/%s " ${tests//.c/}) $scripts || exit 1

gcovr --root . --object-directory "$B" --branches \
	--filter 'index/' --filter "cache/($tier)" \
	--exclude-branches-by-pattern '\s*(kv_assert_locked|assert)\(.*' \
	--exclude-unreachable-branches --fail-under-branch "$goal" \
	--sort-percentage "$B"
