#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh PART [quick] - in an unpacked bundle: run one part of the tests and figures
# on the GPU of this machine.  Each part is useful by itself and ends within nine
# minutes; results found by then are printed.  In this order, if time is short:
#
#   probe     what the driver does: registration, calls under a waiting stream,
#             capture, copies; JSON, also in ./gpu-probe.json         (1 minute)
#   test      the tests, but most layouts                           (3 minutes)
#   bench     loads and saves by layout, way, whole and by layer, against one
#             pinned copy and other ways; ./gpu-WAY.json            (5 minutes)
#   harm      to kernels, beside loads and registering; ./gpu-harm.json (2)
#   ttft      time to the first token, with its floor; needs torch  (5 minutes)
#   layouts   every layout of pages, bit for bit                    (5 minutes)
#   sanitize  memcheck and initcheck, if compute-sanitizer is there (9 minutes)
#
# The minutes are guesses: no part has run on a GPU yet.  Needs no network, no
# FUSE and no CUDA but the driver.  Ends with 1 where something failed, there is
# no GPU or the bundle is not whole, with 77 where a part needs what this machine
# does not have (it says what), with 124 when stopped.
# quick: a little of it, to see that it runs.
set -u
libraries=${LD_LIBRARY_PATH:-}
what=${1:-} quick=${2:-}
here=$(dirname "$(realpath "$0")")
export B=$here
LIMIT=540
usage() {
	sed -n '3,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0" >&2
	exit 2
}
case $what in probe | test | bench | harm | ttft | layouts | sanitize) ;; *) usage ;; esac
case $#:$quick in 1: | 2:quick) ;; *) usage ;; esac
if [ -z "${KVFS_PART:-}" ]; then
	KVFS_PART=$what timeout -k 20 "$LIMIT" "$0" "$@"
	rc=$?
	case $rc in 124 | 137) echo "$what: stopped after $LIMIT s; what is above counts" ;; esac
	exit $rc
fi

# Check that all packed pieces exist: a missing one would be a missing test.
[ -e "$here/pieces" ] || {
	echo "$here is no unpacked bundle (make gpu-bundle): it has no file pieces" >&2
	exit 1
}
lacks=
while read -r piece; do
	[ -e "$here/$piece" ] || lacks="$lacks $piece"
done <"$here/pieces"
[ -z "$lacks" ] || {
	echo "the bundle in $here lacks$lacks" >&2
	exit 1
}

# Find the driver; KVFS_STANDIN_PATH is the folder of the stand-in.
driver=
if [ -n "${KVFS_STANDIN_PATH:-}" ]; then
	driver=$KVFS_STANDIN_PATH/libcuda.so.1
else
	export KVFS_GPU=1
	for d in ${libraries//:/ } $(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null |
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
path=$(dirname "$driver")${libraries:+:$libraries}
export LD_LIBRARY_PATH=$path
"$here/kvfs" --version >/dev/null || exit 1
"$here/tests/gpu/bench" probe || exit 1
[ "$what" = probe ] || "$here/tests/gpu/bench" plugin || exit 1

# allowed COMMAND..., denied COMMAND..., text COMMAND...: run COMMAND with the driver as
# it is, with one that refuses to register read-only memory, or with one that also refuses
# compiled kernels, and so compiles the plug-in's text.
allowed() { LD_LIBRARY_PATH=$path "$@"; }
denied() {
	KVFS_DENIED=$driver LD_LIBRARY_PATH=$here/tests/gpu/denied:$path "$@"
}
text() { KVFS_DENIED_CODE=1 denied "$@"; }

failed=0 skipped=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
try() { # try NAME COMMAND...
	local name=$1 rc list
	shift
	"$@" >"$log" 2>&1
	rc=$?
	case $rc in
	0) echo "$name: ok" ;;
	77)
		echo "$name: skipped: $(tail -n 1 "$log")"
		skipped=$((skipped + 1))
		;;
	*)
		echo "$name: FAILED ($rc)"
		tail -n 40 "$log" | sed 's/^/    /'
		failed=$((failed + 1))
		;;
	esac
	# List the skipped tests: those that need the stand-in, and others.
	list=$(sed -n 's/^\[  SKIPPED \] \([a-z_]*\)$/    skipped: \1/p' "$log" | sort -u)
	[ -z "$list" ] || {
		echo "$list"
		skipped=$((skipped + $(wc -l <<<"$list")))
	}
}
sum() {
	echo "$failed failed, $skipped skipped"
	[ "$failed" = 0 ]
}

probe() {
	allowed "$here/tests/gpu/probe" gpu-probe.json $quick || exit 1
	cat gpu-probe.json
}

tests() {
	local t name
	for t in "$here"/tests/gpu/test_*; do
		name=${t##*/}
		case $name in test_layouts) continue ;; esac
		case $quick$name in quicktest_stream_sync | quicktest_paths | test_*)
			try "$name" allowed "$t" $quick ;;
		esac
		case $name in test_stream_sync | test_paths)
			try "$name, no read-only registration" denied "$t" $quick ;;
		esac
	done
	try "some layouts, kernels as text" text "$here/tests/gpu/test_layouts" quick
	sum
}

layouts() {
	try test_layouts allowed "$here/tests/gpu/test_layouts" $quick
	try "test_layouts, no read-only registration" \
		denied "$here/tests/gpu/test_layouts" $quick
	try "test_layouts, kernels as text" text "$here/tests/gpu/test_layouts" $quick
	sum
}

# Omit racecheck, which checks only shared memory: the kernels use none.  Tests of this
# script put a replacement of compute-sanitizer beside the stand-in.
sanitize() {
	local sanitizer tool
	sanitizer=$(PATH=${KVFS_STANDIN_PATH:-$PATH:/usr/local/cuda/bin} \
		command -v compute-sanitizer)
	[ -n "$sanitizer" ] || {
		echo "there is no compute-sanitizer, in PATH or /usr/local/cuda/bin"
		exit 77
	}
	for tool in memcheck initcheck; do
		try "test_layouts, under $tool" allowed "$sanitizer" --tool "$tool" \
			--error-exitcode 9 "$here/tests/gpu/test_layouts" quick
	done
	sum
}

figures() { # figures WAY...: run the benchmark once for each WAY of copying
	local way run
	for way; do
		run=denied
		case $way in registered | harm) run=allowed ;; esac
		$run "$here/tests/gpu/bench" "$way" "gpu-$way.json" $quick || {
			echo "$way: FAILED ($?)"
			failed=1
		}
	done
	[ "$failed" = 0 ]
}

first_token() {
	local why device=
	command -v python3 >/dev/null || {
		echo "there is no python3, and so no torch"
		exit 77
	}
	why=$(python3 -c 'import torch' 2>&1) || {
		echo "python3 here has no torch that can be used: ${why##*$'\n'}"
		exit 77
	}
	# torch cannot use the stand-in: with the stand-in, run a small model on the CPU.
	[ -n "${KVFS_GPU:-}" ] || {
		export OMP_NUM_THREADS=1
		device="--device cpu"
	}
	LD_LIBRARY_PATH=$path python3 "$here/ttft.py" --library "$here/lib/libkvfs.so.1" \
		--daemon "$here/kvfs" $device ${quick:+--layers 2 --tokens 128 --rounds 2}
}

case $what in
probe) probe ;;
test) tests ;;
bench) figures registered staged rw ;;
harm) figures harm ;;
ttft) first_token ;;
layouts) layouts ;;
sanitize) sanitize ;;
esac
