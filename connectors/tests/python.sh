#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# python.sh [PYTHON...] - for each PYTHON (default: python3) install the package of this
# checkout into an environment below the build, check the package's types, and run its
# tests on a real mount.  Prints what it downloads.
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
	echo "Python $version: pip fetches setuptools, wheel, cffi, numpy, safetensors, pyzmq, msgspec and mypy (60 MB) into $env"
	"$env/bin/pip" install -q "setuptools>=68" wheel "cffi>=1.17" numpy safetensors pyzmq msgspec mypy
	# Build in a copy, so that the checkout gets no new files, and without
	# the results of earlier builds.
	source=$(mktemp -d "$B/python/source.XXXXXX")
	cp -r "$here/.." "$source/connectors"
	rm -rf "$source/connectors/build" "$source"/connectors/*.egg-info
	rc=0
	"$env/bin/pip" wheel -q --no-build-isolation --no-deps -w "$source" "$source/connectors" &&
		"$env/bin/pip" install -q --no-deps --force-reinstall "$source"/kvfs-*-abi3-*.whl &&
		(cd "$source/connectors" && "$env/bin/mypy" --config-file pyproject.toml kvfs) &&
		(cd "$here" && B=$B timeout 600 "$env/bin/python" test_kvfs.py && B=$B timeout 600 "$env/bin/python" test_auto.py &&
			B=$B timeout 600 "$env/bin/python" test_events.py) || rc=1
	rm -rf "$source"
	[ $rc = 0 ] || exit 1
done
