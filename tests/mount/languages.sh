#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# languages.sh - the examples in C++ and Rust, built against an installed library as their
# first lines describe, and README's example in Python, run against a mount.  kvfs.h must be valid C and C++ of every
# standard that the compilers have.
. "$(dirname "$0")/lib"
install_library
export LD_LIBRARY_PATH=$to/lib
flags=$(pkg-config --cflags --libs kvfs) || fail "pkg-config"
cc=${CC:-cc}
missing=
try() { # try PROGRAM: fails without a daemon; a first run saves, a second run loads
	not "$1 without a daemon" "no kvfs answers" "$T/$1" "$M"
	start
	eq "$1, first run" "$("$T/$1" "$M" 2>/dev/null)" "0 blocks loaded, 8 saved"
	eq "$1, second run" "$("$T/$1" "$M" 2>/dev/null)" "8 blocks loaded, 0 saved"
	stop
}

printf '#include <kvfs.h>\nkvfs_opts opts = KVFS_OPTS_INIT;\nstruct kvfs_pool_info info = KVFS_POOL_INFO_INIT;\n' >"$T/header.c"
for std in c99 c11 c17; do
	ok "kvfs.h as $std" "${cc##* }" -std=$std -Wall -Wextra -Wpedantic -Werror "-I$to/include" -c "$T/header.c" -o "$T/header.o"
done
cxx=$(command -v c++ || command -v g++ || command -v clang++)
if [ -n "$cxx" ]; then
	cp "$T/header.c" "$T/header.cpp"
	for std in c++11 c++17 c++20; do
		ok "kvfs.h as $std" "$cxx" -std=$std -Wall -Wpedantic -Werror "-I$to/include" -c "$T/header.cpp" -o "$T/header.o"
	done
	# shellcheck disable=SC2086
	ok "compile prompt.cpp" "$cxx" -std=c++17 -Wall -Wextra -Werror "$root/examples/prompt.cpp" -o "$T/cpp" $flags
	try cpp
else
	missing="a C++ compiler (g++)"
fi
if command -v rustc >/dev/null && command -v bindgen >/dev/null; then
	ok "bindgen kvfs.h" bindgen --allowlist-function 'kvfs_.*' --allowlist-type 'kvfs_.*' --allowlist-var 'KVFS_.*' \
		"$to/include/kvfs.h" -o "$T/kvfs.rs"
	cp "$root/examples/prompt.rs" "$T"
	ok "compile prompt.rs" rustc --edition 2021 -A warnings "$T/prompt.rs" \
		-L "$to/lib" -l kvfs -o "$T/rs"
	try rs
else
	missing="${missing:+$missing, }rustc and bindgen"
fi
py=/usr/bin/python3 # Debian has cffi and numpy for this one
if $py -c 'import cffi, numpy, sysconfig; open(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; then
	mkdir "$T/py" && cp -r "$root/connectors/kvfs" "$T/py"
	(cd "$T/py" && $py "$root/connectors/build_native.py") > "$T/cffi" 2>&1 || fail "build_native.py: $(tail -n 5 "$T/cffi")"
	sed -n '/^import kvfs, numpy/,/^```/{/^```/d;p}' "$root/README.md" | sed "s#\"/kvfs\"#\"$M\"#" > "$T/py/example.py"
	not "example.py without a daemon" "no kvfs answers" $py "$T/py/example.py"
	start
	eq "example.py" "$($py "$T/py/example.py")" "4 blocks saved, 4 loaded"
	stop
else
	missing="${missing:+$missing, }python3-dev, cffi and numpy"
fi
if [ -n "$missing" ]; then
	echo "not there: $missing (\"make deps FOR=check\" installs them); the rest passed"
	exit 77
fi
