#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_bundle.sh - the bundle unpacks and runs anywhere: in an empty folder, with
# an empty environment, and the stand-in for a driver; and says so without one.
set -u
[ "$(uname -m)" = x86_64 ] || { echo "the bundle is for x86-64"; exit 77; }
B=$(realpath "${B:-build}")
here=$(dirname "$(realpath "$0")")
T=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-test.XXXXXX")
trap 'rm -rf "$T"' EXIT
trap 'exit 1' INT TERM
fail() {
	echo "FAILED: $*"
	[ ! -e "$T/log" ] || cat "$T/log"
	exit 1
}
"$here/bundle.sh" "$B" "$T/bundle.tar.xz" any || fail "bundle.sh"
mkdir "$T/empty" "$T/cwd"
tar -C "$T/empty" -xJf "$T/bundle.tar.xz" || fail "unpack"
run=$T/empty/kvfs-gpu/run.sh
cd "$T/cwd" || exit 1

# Nothing comes from the build any more but the stand-in.
mkdir "$T/standin" && cp "$B/tests/gpu/libcuda.so.1" "$T/standin/"
within() { # PATH of a driver, COMMAND...
	local standin=$1
	shift
	env -i PATH="$PATH" ${standin:+KVFS_STANDIN_PATH="$standin"} "$@"
}
within "$T/standin" "$run" test quick >"$T/log" 2>&1 || fail "run.sh test"
grep -q '^0 failed' "$T/log" || fail "run.sh test does not count"
grep -q '^test_layouts: ok' "$T/log" || fail "run.sh test ran no test_layouts"
grep -q '^test_stream_sync, no read-only registration: ok' "$T/log" ||
	fail "run.sh test ran no test_stream_sync without registration"
within "$T/standin" "$run" bench quick >"$T/log" 2>&1 || fail "run.sh bench"
grep -q 'STAND-IN' "$T/log" || fail "run.sh bench does not say what it ran on"
for way in registered:19 staged:7 rw:7; do
	[ "$(grep -c '"figure"' "gpu-${way%:*}.json")" = "${way#*:}" ] ||
		fail "gpu-${way%:*}.json"
done
missing=$(LD_LIBRARY_PATH=$T/empty/kvfs-gpu/lib ldd "$T/empty/kvfs-gpu/kvfs" \
	"$T/empty/kvfs-gpu/lib"/*.so.* | awk '/not found/ { print $1 }')
[ -z "$missing" ] || fail "the bundle lacks $missing"

# Without a GPU: one line, and 1.
if [ ! -e /dev/nvidiactl ]; then
	out=$(within "$T/absent" "$run" test 2>&1) && fail "no driver, and no error"
	[ "$(wc -l <<<"$out")" = 1 ] || fail "no driver: $out"
	out=$("$here/gpu.sh" "$T/bundle.tar.xz" gpu-test 2>&1) && fail "no GPU, and no error"
	[ "$(wc -l <<<"$out")" = 1 ] || fail "no GPU: $out"
fi
echo ok
