#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bundle.sh BUILD FILE [any] - pack what a machine with an NVIDIA GPU needs to
# run the GPU's tests and figures into one FILE: programs, the plug-in, and the
# libraries that they need but that machine's own C library and driver.
# With `any` also without the kernels, for the stand-in driver, and packed fast.
set -eu
[ "$(uname -m)" = x86_64 ] || {
	echo "gpu-bundle: only for x86-64" >&2
	exit 1
}
b=$(realpath "$1") file=$(realpath "$2") here=$(dirname "$(realpath "$0")")
plugin=$b/libkvfs-cuda.so level=3
[ "${3:-}" != any ] || level=0
if [ ! -e "$plugin" ]; then
	plugin=$b/tests/gpu/libkvfs-cuda.so.1
	[ "${3:-}" = any ] || {
		echo "gpu-bundle: libkvfs-cuda.so is not built: no nvcc" >&2
		exit 1
	}
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-bundle.XXXXXX")
trap 'rm -rf "$work"' EXIT
to=$work/kvfs-gpu
mkdir -p "$to/lib" "$to/tests/gpu/denied"
cp "$b/tests/gpu/bundle/kvfs" "$to/"
cp "$b/tests/gpu/bundle/libkvfs.so" "$to/lib/libkvfs.so.1"
cp "$plugin" "$to/lib/libkvfs-cuda.so.1"
for program in "$b"/tests/gpu/test_* "$b/tests/gpu/bench" "$b/tests/gpu/probe"; do
	case $program in *.[od] | *.sh) continue ;; esac
	cp "$program" "$to/tests/gpu/"
done
for library in "$b"/tests/gpu/libkvfs-*.so.1; do
	case $library in */libkvfs-cuda.so.1) continue ;; esac
	cp -a "$library" "$to/tests/gpu/"
done
cp "$b/tests/gpu/denied/libcuda.so.1" "$to/tests/gpu/denied/"
cp "$here/run.sh" "$to/"
[ ! -e "$here/ttft.py" ] || cp "$here/ttft.py" "$to/"

# On the target machine the driver needs the C library of that machine.
find "$to" -type f -exec ldd {} + 2>/dev/null |
	awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
	while read -r library; do
		case ${library##*/} in
		lib[cm].so.* | libpthread.so.* | libdl.so.* | librt.so.* | \
			libresolv.so.* | libcuda.so.* | libkvfs*) ;;
		*) cp -L "$library" "$to/lib/" ;;
		esac
	done
find "$to" -type f ! -name '*.sh' ! -name '*.py' -exec strip --strip-debug {} + 2>/dev/null || true
(cd "$to" && find . ! -type d | sort) >"$work/pieces"
mv "$work/pieces" "$to/"
tar -C "$work" -cf - kvfs-gpu | xz -T0 "-$level" >"$file.new"
mv "$file.new" "$file"
size=$(stat -c %s "$file")
[ "$size" -lt $((48 << 20)) ] || {
	echo "gpu-bundle: $file has $size bytes, more than 48 MiB" >&2
	exit 1
}
