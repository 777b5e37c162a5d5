#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_modes.sh [all] - run the tests of the CUDA device in other modes of the stand-in
# driver than its default, in which every kind of call that may wait does wait and there are
# eight hardware queues: all kinds with one queue; half of the kinds, then the other half;
# and no kind.  all: each kind alone, all kinds and none, with one queue and with eight,
# every test whole (under an hour on two busy cores).
set -u
B=$(realpath "${B:-build}")
export B
T=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-test.XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$T"' EXIT
trap 'exit 1' INT TERM
[ -z "${KVFS_GPU:-}" ] || { echo "only the stand-in driver has modes"; exit 77; }

half=launch+alloc+register other=load+free+unregister
modes="1:strict=1 1:sync=$half 8:sync=$other 8:sync=none"
programs="event_wait stream_sync paths faults buffers paged_pool layouts"
short=quick seconds=300
case $#:${1:-} in
0:) ;;
1:all)
	modes=
	for what in strict=1 sync={none,launch,load,alloc,free,register,unregister}; do
		modes="$modes 1:$what 8:$what"
	done
	programs="$programs calls owner"
	short='' seconds=3600
	;;
*)
	sed -n '3,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0" >&2
	exit 2
	;;
esac

# run MODE NUMBER: run the tests, and write failed ones to $T/failed.NUMBER.
run() {
	local connections=${1%%:*} kind=${1#*:} at=$T/$2 program
	[ "$kind" = strict=1 ] || kind="strict=0,queues=$connections,$kind"
	for program in $programs; do
		mkdir "$at"
		(cd "$at" && KVFS_STANDIN=$kind CUDA_DEVICE_MAX_CONNECTIONS=$connections \
			exec timeout --foreground $seconds "$B/tests/gpu/test_$program" $short) >"$at.log" 2>&1 </dev/null ||
			{
				echo "test_$program, KVFS_STANDIN=$kind, $connections connections: FAILED"
				tail -n 30 "$at.log"
			} >>"$T/failed.$2"
		rm -rf "$at"
	done
	[ -e "$T/failed.$2" ] || echo "$kind, $connections connections: ok"
}

# These tests wait more than they compute, so run several for each processor.
n=0
for mode in $modes; do
	while [ "$(jobs -pr | wc -l)" -ge $((2 * $(nproc))) ]; do wait -n; done
	n=$((n + 1))
	run "$mode" $n &
done
wait
! cat "$T"/failed.* 2>/dev/null
