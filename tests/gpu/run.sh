#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh test|bench|ttft [quick] - in an unpacked bundle: the tests, or the
# figures, of the CUDA device on the GPU of this machine.  Needs no network, no
# FUSE and no CUDA but the driver; ttft also python3 with torch.  Ends with 1
# where there is no GPU.  quick: a few, small; to see that it runs.
# Figures go to ./gpu-WAY.json.
set -u
what=${1:-} quick=${2:-}
here=$(dirname "$(realpath "$0")")
export B=$here
case $what in test | bench | ttft) ;; *)
	echo "usage: run.sh test|bench|ttft [quick]" >&2
	exit 2
	;;
esac

# Where the driver is; with KVFS_STANDIN_PATH the stand-in's folder is said.
driver=
if [ -n "${KVFS_STANDIN_PATH:-}" ]; then
	driver=$KVFS_STANDIN_PATH/libcuda.so.1
else
	export KVFS_GPU=1
	for d in ${LD_LIBRARY_PATH//:/ } $(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null |
		awk '$1 == "libcuda.so.1" { sub("/[^/]*$", "", $NF); print $NF }') \
		/usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib/wsl/lib; do
		[ ! -e "$d/libcuda.so.1" ] || { driver=$d/libcuda.so.1; break; }
	done
fi
[ -e "${driver:-/nowhere}" ] || {
	echo "no NVIDIA GPU here: there is no libcuda.so.1" >&2
	exit 1
}
"$here/kvfs" --version >/dev/null 2>&1 || [ -e /lib64/ld-linux-x86-64.so.2 ] || {
	echo "this machine cannot run the bundle's programs" >&2
	exit 1
}
path=$here/lib:$(dirname "$driver")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH=$path
"$here/kvfs" --version >/dev/null || exit 1
"$here/tests/gpu/bench" probe || exit 1

# allowed COMMAND..., denied COMMAND...: with a driver that may register
# read-only memory if it can, and one that will not.
allowed() { LD_LIBRARY_PATH=$path "$@"; }
denied() {
	KVFS_DENIED=$driver LD_LIBRARY_PATH=$here/tests/gpu/denied:$path "$@"
}

failed=0
try() { # NAME COMMAND...
	local name=$1 rc
	shift
	"$@" >"$log" 2>&1
	rc=$?
	case $rc in
	0) echo "$name: ok" ;;
	77) echo "$name: skipped" ;;
	*)
		echo "$name: FAILED ($rc)"
		tail -n 40 "$log" | sed 's/^/    /'
		failed=$((failed + 1))
		;;
	esac
}

tests() {
	local t name sanitizer tool
	log=$(mktemp) || exit 1
	trap 'rm -f "$log"' EXIT
	for t in "$here"/tests/gpu/test_*; do
		name=${t##*/}
		case $quick$name in quicktest_layouts | test_*)
			try "$name" allowed "$t" $quick ;;
		esac
		case $quick$name in quicktest_stream_sync | test_layouts | test_stream_sync)
			try "$name, no read-only registration" denied "$t" $quick ;;
		esac
	done
	sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
	if [ -n "$sanitizer" ] && [ -n "${KVFS_GPU:-}" ]; then
		for tool in memcheck racecheck; do
			try "test_layouts, $tool" allowed "$sanitizer" --tool "$tool" \
				--error-exitcode 9 "$here/tests/gpu/test_layouts" quick
		done
	else
		echo "compute-sanitizer: not there, skipped"
	fi
	echo "$failed failed"
	[ "$failed" = 0 ]
}

figures() {
	allowed "$here/tests/gpu/bench" registered gpu-registered.json $quick || failed=1
	denied "$here/tests/gpu/bench" staged gpu-staged.json $quick || failed=1
	denied "$here/tests/gpu/bench" rw gpu-rw.json $quick || failed=1
	[ "$failed" = 0 ]
}

case $what in
test) tests ;;
bench) figures ;;
ttft) exec python3 "$here/ttft.py" --library "$here/lib/libkvfs.so.1" --daemon "$here/kvfs" ;;
esac
