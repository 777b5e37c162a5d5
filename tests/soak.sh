#!/bin/sh
# soak.sh - run the long forms of the tests; takes hours.
cd "$(dirname "$0")/.." || exit 1
KVFS_ROUNDS=10000 KVFS_SECONDS=7200 tests/crash/kill.sh || exit 1
for cuts in tests/crash/powercut*.sh; do
	KVFS_IMAGES=1000 "$cuts" || exit 1
done
tests/gpu/test_modes.sh all || exit 1
tests/crash/soak.sh 600 || exit 1
failed=0
for backend in dir http s3 mooncake helper; do
	for fault in none owner-kill owner-stop master-kill master-stop slow lying full \
		refusing dns; do
		tests/mount/remote_faults.sh $backend $fault 120
		rc=$?
		[ $rc = 0 ] || [ $rc = 77 ] || failed=1
	done
	tests/mount/remote_storm.sh 600 $backend
	rc=$?
	[ $rc = 0 ] || [ $rc = 77 ] || failed=1
done
exit $failed
