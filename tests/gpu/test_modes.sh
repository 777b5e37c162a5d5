#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_modes.sh - every test of the CUDA device with each kind of call alone
# waiting for all streams, with all of them, and with none, where streams share
# one hardware queue and where they share eight.
set -u
B=$(realpath "${B:-build}")
export B
T=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-test.XXXXXX")
trap 'rm -rf "$T"' EXIT
trap 'exit 1' INT TERM
[ -z "${KVFS_GPU:-}" ] || { echo "only the stand-in driver has modes"; exit 77; }

modes="sync=none sync=launch sync=load sync=alloc sync=free sync=register
	sync=unregister strict=1"

# run CONNECTIONS: all modes with so many; what fails is in $T/CONNECTIONS.
run() {
	local mode test kind
	for mode in $modes; do
		kind=$mode
		[ "$mode" = strict=1 ] || kind="strict=0,queues=$1,$mode"
		for test in event_wait stream_sync paths faults buffers paged_pool layouts; do
			mkdir "$T/cwd.$1"
			(cd "$T/cwd.$1" && KVFS_STANDIN=$kind CUDA_DEVICE_MAX_CONNECTIONS=$1 \
				timeout 300 "$B/tests/gpu/test_$test" quick) >"$T/log.$1" 2>&1 </dev/null ||
				{
					echo "test_$test, KVFS_STANDIN=$kind, $1 connections: FAILED"
					tail -n 30 "$T/log.$1"
				} >>"$T/failed.$1"
			rm -rf "$T/cwd.$1"
		done
	done
}

run 1 &
one=$!
run 8
wait "$one"
! cat "$T"/failed.* 2>/dev/null
