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
within "$T/standin" "$run" >"$T/log" 2>&1
[ $? = 2 ] || fail "run.sh without a part"
within "$T/standin" "$run" probe quick >"$T/log" 2>&1 || fail "run.sh probe"
grep -q '"read_only_host_register_supported": 0' gpu-probe.json ||
	fail "the probe does not say what registers"
[ "$(grep -c '"call":' gpu-probe.json)" = 17 ] || fail "the probe of calls"
within "$T/standin" "$run" test quick >"$T/log" 2>&1 || fail "run.sh test"
grep -q '^0 failed' "$T/log" || fail "run.sh test does not count"
grep -q '^test_paths: ok' "$T/log" || fail "run.sh test ran no test_paths"
grep -q '^test_stream_sync, no read-only registration: ok' "$T/log" ||
	fail "run.sh test ran no test_stream_sync without registration"
for part in layouts sanitize; do
	within "$T/standin" "$run" $part quick >"$T/log" 2>&1 || fail "run.sh $part"
	grep -q '^test_layouts.*: ok' "$T/log" || fail "run.sh $part ran no test_layouts"
done
within "$T/standin" "$run" ttft quick >"$T/log" 2>&1
case $? in
0) grep -q 'must be 0' "$T/log" || fail "run.sh ttft compared nothing" ;;
77) grep -q 'no torch' "$T/log" || fail "run.sh ttft does not say what it lacks" ;;
*) fail "run.sh ttft" ;;
esac
within "$T/standin" "$run" harm quick >"$T/log" 2>&1 || fail "run.sh harm"
within "$T/standin" "$run" bench quick >"$T/log" 2>&1 || fail "run.sh bench"
grep -q 'STAND-IN' "$T/log" || fail "run.sh bench does not say what it ran on"
for way in registered:25 staged:6 rw:6 harm:6; do
	[ "$(grep -c '"figure"' "gpu-${way%:*}.json")" = "${way#*:}" ] ||
		fail "gpu-${way%:*}.json"
done
# Ubuntu 22.04 has glibc 2.35.
newer=$(find "$T/empty/kvfs-gpu" -type f -exec objdump -T {} + 2>/dev/null |
	grep -oE 'GLIBC_2\.[0-9]+' | sort -uV | awk -F. '$2 > 35')
[ -z "$newer" ] || fail "the bundle needs" $newer
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
