#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_bundle.sh - the bundle unpacks and runs anywhere: in an empty folder, with an empty
# environment, and with the stand-in as the driver.  Without a driver run.sh reports that
# there is none.
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

# From here on the test uses the bundle, and of the build only the stand-in.
mkdir "$T/standin" && cp "$B/tests/gpu/libcuda.so.1" "$T/standin/"
within() { # within PATH of a driver, COMMAND...
	local standin=$1
	shift
	env -i PATH="$PATH" ${standin:+KVFS_STANDIN_PATH="$standin"} "$@"
}
within "$T/standin" "$run" >"$T/log" 2>&1
[ $? = 2 ] || fail "run.sh without a part"
for wrong in "nothing" "test slow" "test ''" "probe quick quick"; do
	eval "within '$T/standin' '$run' $wrong" >"$T/log" 2>&1
	[ $? = 2 ] || fail "run.sh $wrong"
	grep -q '^run.sh PART' "$T/log" || fail "run.sh $wrong does not say what there is"
done
within "$T/standin" "$run" probe quick >"$T/log" 2>&1 || fail "run.sh probe"
grep -q '"read_only_host_register_supported": 0' gpu-probe.json ||
	fail "the probe does not say what registers"
[ "$(grep -c '"call":' gpu-probe.json)" = 17 ] || fail "the probe of calls"
within "$T/standin" "$run" test quick >"$T/log" 2>&1 || fail "run.sh test"
grep -q '^0 failed, 0 skipped' "$T/log" || fail "run.sh test does not count, or skips on the stand-in"
grep -q '^test_paths: ok' "$T/log" || fail "run.sh test ran no test_paths"
grep -q '^test_stream_sync, no read-only registration: ok' "$T/log" ||
	fail "run.sh test ran no test_stream_sync without registration"
grep -q '^test_paths, no read-only registration: ok' "$T/log" ||
	fail "run.sh test registered no writable memory"
grep -q '^some layouts, kernels as text: ok' "$T/log" || fail "run.sh test loaded no text"
within "$T/standin" "$run" layouts quick >"$T/log" 2>&1 || fail "run.sh layouts"
[ "$(grep -c '^test_layouts.*: ok' "$T/log")" = 3 ] || fail "run.sh layouts ran no test_layouts"

# Replace compute-sanitizer, which may be missing, by scripts with and without findings.
within "$T/standin" "$run" sanitize quick >"$T/log" 2>&1
[ $? = 77 ] || fail "run.sh sanitize without compute-sanitizer"
grep -q 'no compute-sanitizer' "$T/log" || fail "run.sh sanitize does not say what it lacks"
cat >"$T/standin/compute-sanitizer" <<'EOF'
#!/bin/sh
case "$1 $2 $3 $4" in
"--tool memcheck --error-exitcode 9" | "--tool initcheck --error-exitcode 9") ;;
*) exit 2 ;;
esac
[ ! -e "${0%/*}/finds" ] || exit 9
shift 4
exec "$@"
EOF
chmod +x "$T/standin/compute-sanitizer"
within "$T/standin" "$run" sanitize quick >"$T/log" 2>&1 || fail "run.sh sanitize"
for tool in memcheck initcheck; do
	grep -q "^test_layouts, under $tool: ok" "$T/log" || fail "run.sh sanitize: no $tool"
done
: >"$T/standin/finds"
within "$T/standin" "$run" sanitize quick >"$T/log" 2>&1
[ $? = 1 ] || fail "run.sh sanitize where something is found"
grep -q '^2 failed' "$T/log" || fail "run.sh sanitize does not count what is found"
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
# With a real driver, tests that are skipped say why.
for t in calls faults owner standin; do
	KVFS_GPU=1 "$B/tests/gpu/test_$t" >"$T/log" 2>&1
	[ $? = 77 ] || fail "test_$t on a GPU"
	[ -s "$T/log" ] || fail "test_$t does not say why it is left out"
done

# If a piece of the bundle is missing or unusable, run.sh prints its name.
plugin=$T/empty/kvfs-gpu/lib/libkvfs-cuda.so.1
without() { # without PART, FILE of the bundle
	mv "$T/empty/kvfs-gpu/$2" "$T/away"
	within "$T/standin" "$run" "$1" quick >"$T/log" 2>&1
	[ $? = 1 ] || fail "run.sh $1 without $2"
	grep -q "lacks ./$2\$" "$T/log" || fail "run.sh $1 does not say that $2 is not there"
	mv "$T/away" "$T/empty/kvfs-gpu/$2"
}
without test tests/gpu/test_paths
without ttft ttft.py
without bench lib/libkvfs-cuda.so.1
mv "$plugin" "$T/away" && echo text >"$plugin"
for part in bench harm test layouts; do
	within "$T/standin" "$run" $part quick >"$T/log" 2>&1
	[ $? = 1 ] || fail "run.sh $part with a plug-in that cannot be loaded"
	grep -q 'no device "cuda": .*libkvfs-cuda' "$T/log" ||
		fail "run.sh $part does not say why the plug-in cannot be loaded"
done
mv "$T/away" "$plugin"

# Ubuntu 22.04 has glibc 2.35.
newer=$(find "$T/empty/kvfs-gpu" -type f -exec objdump -T {} + 2>/dev/null |
	grep -oE 'GLIBC_2\.[0-9]+' | sort -uV | awk -F. '$2 > 35')
[ -z "$newer" ] || fail "the bundle needs" $newer
missing=$(ldd "$T/empty/kvfs-gpu/kvfs" \
	"$T/empty/kvfs-gpu/lib"/*.so.* | awk '/not found/ { print $1 }')
[ -z "$missing" ] || fail "the bundle lacks $missing"

# A process that has an OpenSSL of its own, as Python may, keeps it when libkvfs is loaded,
# in either order.  So libkvfs neither loads nor links one, and the search path names none.
[ "$(readelf -d "$T/empty/kvfs-gpu/kvfs" "$T/empty/kvfs-gpu/lib/libkvfs.so.1" | grep -c '(RPATH).*\$ORIGIN')" = 2 ] ||
	fail "the bundle's programs have no DT_RPATH"
cat >"$T/load.py" <<'EOF'
import ctypes, sys
library, ssl_first = sys.argv[1], sys.argv[2] == "first"
if ssl_first:
    import ssl
kvfs = ctypes.CDLL(library)
key = (ctypes.c_ubyte * 64)()
assert kvfs.kvfs_key_fold(b"abc", ctypes.c_size_t(3), key) == 0
assert "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" in bytes(key).hex()
before = {line.split()[-1] for line in open("/proc/self/maps") if "libcrypto" in line}
if not ssl_first:
    assert not before, before
    import ssl
assert ssl.create_default_context()
after = {line.split()[-1] for line in open("/proc/self/maps") if "libcrypto" in line or "libssl" in line}
assert not [path for path in after if "kvfs-gpu" in path], after
EOF
for order in first last; do
	within "" python3 "$T/load.py" "$T/empty/kvfs-gpu/lib/libkvfs.so.1" $order >"$T/log" 2>&1 ||
		fail "libkvfs beside Python's OpenSSL, which comes $order"
done

# Without a GPU run.sh prints one line and exits with 1.
if [ ! -e /dev/nvidiactl ]; then
	out=$(within "$T/absent" "$run" test 2>&1) && fail "no driver, and no error"
	[ "$(wc -l <<<"$out")" = 1 ] || fail "no driver: $out"
	out=$("$here/gpu.sh" "$T/bundle.tar.xz" gpu-test 2>&1) && fail "no GPU, and no error"
	[ "$(wc -l <<<"$out")" = 1 ] || fail "no GPU: $out"
fi
echo ok
