#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh - tools/demo/demo.sh, without a network on generated blocks instead of a model's:
# every step, and the build of the Python package.
. "$(dirname "$0")/lib"
# The demo's "python3" is the first one with these packages.
for python in python3 /usr/bin/python3; do
	include=$("$python" -c 'import cffi, numpy, sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)
	[ ! -e "$include/Python.h" ] || break
done
[ -e "$include/Python.h" ] || { echo "needs python3-cffi, python3-numpy and python3-dev"; exit 77; }
mkdir "$T/bin" && ln -s "$(command -v "$python")" "$T/bin/python3" && PATH=$T/bin:$PATH
if nm -D "$B/libkvfs.so" | grep -qE ' U __(asan|tsan)_'; then
	echo "Python cannot load a library built with a sanitizer"
	exit 77
fi
mkdir "$T/b" && ln -s "$B/kvfs" "$B/libkvfs.so" "$T/b/" || fail "the folder of the build"
B=$T/b "$here/../../tools/demo/demo.sh" --synthetic >"$T/out" 2>&1 || fail "the demo: $(tail -n 20 "$T/out")"
grep -q "^demo: all the same" "$T/out" || fail "the demo's end: $(tail -n 3 "$T/out")"
eq "steps" "$(grep -oE '^\([1-9]\)' "$T/out" | tr -d '()\n')" 1234567
eq "left behind" "$(find "$T/b" -mindepth 1 | wc -l)" 2
