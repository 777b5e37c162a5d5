#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# python.sh [PYTHON...] - install the package from the path into an environment of
# its own below the build, check its types, and run its tests on a real mount; with
# each PYTHON named (default: python3).  Says what it downloads.
set -eu
B=$(realpath "${B:-build}")
here=$(dirname "$(realpath "$0")")
[ -w /dev/fuse ] || { echo "no /dev/fuse"; exit 77; }
prefix=$B/python/prefix
B=$B DESTDIR='' PREFIX=$prefix VERSION=0 "$here/../../tools/install.sh" install >/dev/null
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig PIP_DISABLE_PIP_VERSION_CHECK=1
[ $# -gt 0 ] || set -- python3
for python; do
	version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	env=$B/python/$version
	[ -x "$env/bin/pip" ] || "$python" -m venv "$env"
	echo "Python $version: pip fetches setuptools, wheel, cffi, numpy, safetensors and mypy (60 MB) into $env"
	"$env/bin/pip" install -q "setuptools>=68" wheel "cffi>=1.17" numpy safetensors mypy
	# Built in a copy: nothing is left in the checkout, and nothing of it is used but
	# what git has, or would have.
	source=$(mktemp -d "$B/python/source.XXXXXX")
	cp -r "$here/.." "$source/connectors"
	rm -rf "$source/connectors/build" "$source"/connectors/*.egg-info
	rc=0
	"$env/bin/pip" wheel -q --no-build-isolation --no-deps -w "$source" "$source/connectors" &&
		"$env/bin/pip" install -q --no-deps --force-reinstall "$source"/kvfs-*-abi3-*.whl &&
		(cd "$source/connectors" && "$env/bin/mypy" --config-file pyproject.toml kvfs) &&
		(cd "$here" && B=$B timeout 600 "$env/bin/python" test_kvfs.py) || rc=1
	rm -rf "$source"
	[ $rc = 0 ] || exit 1
done
