#!/bin/sh
# soak.sh - the long forms of what tests/crash does in short; hours.
cd "$(dirname "$0")/.." || exit 1
KVFS_ROUNDS=10000 KVFS_SECONDS=7200 tests/crash/kill.sh || exit 1
for cuts in tests/crash/powercut*.sh; do
	KVFS_IMAGES=1000 "$cuts" || exit 1
done
tests/crash/soak.sh 600
