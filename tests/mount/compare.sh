#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# compare.sh - make bench COMPARE=: a figure that is more than 5 % worse, or missing, is an
# error; figures with a reference are compared by their ratios.
. "$(dirname "$0")/lib"
compare() { python3 "$here/../../tools/bench/compare.py" "$@"; }
row() { # row NAME VALUE UNIT RATIO: print a figure as kvfs-bench does
	echo "{\"figure\": \"$1\", \"value\": $2, \"unit\": \"$3\", \"reference\": 1, \"ratio\": $4, \"goal\": null, \"met\": null}"
}
{ row load 10 GB/s 1.5; row mount 0.5 s 0; row rate 0.2 rate 0; } >"$T/old"
{ row load 5 GB/s 1.45; row mount 0.52 s 0; row rate 0.3 rate 0; row more 1 s 0; } >"$T/new"
ok "within 5 %" compare "$T/old" "$T/new"
ok "the same" compare "$T/old" "$T/old"
{ row load 20 GB/s 1.4; row mount 0.5 s 0; row rate 0.2 rate 0; } >"$T/slow"
not "a ratio is worse" "load " compare "$T/old" "$T/slow"
{ row load 10 GB/s 1.5; row mount 0.54 s 0; row rate 0.2 rate 0; } >"$T/late"
not "a time is worse" "1 worse" compare "$T/old" "$T/late"
{ row load 10 GB/s 1.5; row mount 0.5 s 0; row rate 0.18 rate 0; } >"$T/rare"
not "a rate is worse" "1 worse" compare "$T/old" "$T/rare"
not "a figure is missing" "missing" compare "$T/new" "$T/old"
