#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu.sh BUNDLE gpu-PART - unpack the bundle beside itself in a folder of its
# own, and run it.  Without a GPU one line says so, before anything is done.
set -eu
bundle=$(realpath -m "$1")
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
	echo "$2: no NVIDIA GPU here: there is no /dev/nvidiactl" >&2
	exit 1
fi
[ -e "$bundle" ] || make --no-print-directory gpu-bundle
echo "$bundle of $(date -r "$bundle" '+%Y-%m-%d %H:%M')"
work=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-gpu.XXXXXX")
trap 'rm -rf "$work"' EXIT
tar -C "$work" -xJf "$bundle"
cd "$(dirname "$bundle")" && "$work/kvfs-gpu/run.sh" "${2#gpu-}"
