#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_text.sh - the plug-in's kernels as text (PTX): assembled by nvcc for every GPU that it
# knows, they use no more registers than a launch beside other kernels may, and spill none.
# The oldest driver that libkvfs-cuda(7) names is the first with all symbols in driver.h.
set -u
B=$(realpath "${B:-build}")
root=$(realpath "$(dirname "$0")/../..")
nvcc=$(command -v nvcc || ls "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc 2>/dev/null | head -n 1)
[ -n "$nvcc" ] || { echo "there is no nvcc"; exit 77; }
text=$B/kernels/cuda/kernels.ptx
fail() {
	echo "FAILED: $*"
	exit 1
}
[ "$(grep -c '^\.version 6\.3$' "$text")" = 1 ] || fail "$text is not PTX 6.3"
for gpu in $("$nvcc" --list-gpu-code | sort -u); do
	case $gpu in sm_[1-6]? | sm_7[0-4]) continue ;; esac
	"$nvcc" -Xptxas -v -arch="$gpu" -cubin "$text" -o /dev/null >"$B/text.log" 2>&1 ||
		fail "$gpu: $(cat "$B/text.log")"
	[ "$(grep -c ' 0 bytes spill stores, 0 bytes spill loads' "$B/text.log")" = 2 ] ||
		fail "$gpu: $(cat "$B/text.log")"
	most=$(sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' "$B/text.log" | sort -n | tail -n 1)
	[ "$most" -le 80 ] || fail "$gpu: $most registers"
	echo "$gpu: $most registers"
done
rm -f "$B/text.log"

types=$(dirname "$(dirname "$(realpath "$nvcc")")")/include/cudaTypedefs.h
[ -e "$types" ] || types=$(ls /usr/local/cuda/include/cudaTypedefs.h 2>/dev/null)
[ -n "$types" ] || { echo "there is no cudaTypedefs.h"; exit 77; }
oldest=0
for symbol in $(grep -oE '\bcu[A-Z][A-Za-z0-9]+(_v2)?,' "$root/kernels/cuda/driver.h" | tr -d ,); do
	# The header lists each variant of a call with the version that added it.  A symbol
	# without a suffix is the first of them.
	first=$(grep -oE "PFN_${symbol%_v2}_v[0-9]+\b" "$types" | sed 's/.*_v//' | sort -nu |
		case $symbol in *_v2) sed -n 2p ;; *) sed -n 1p ;; esac)
	[ -n "$first" ] || fail "$types has no $symbol"
	[ "$first" -le "$oldest" ] || oldest=$first
done
echo "symbols: driver of $oldest"
[ "$oldest" = 11000 ] || fail "the manual names CUDA 11.0, but the calls need $oldest"
