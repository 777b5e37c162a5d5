#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# flame.sh - `kvfs flame`: widths that are the sums of the blocks, names that are no markup, one
# file; in chromium, if that is installed, a click zooms and no script fails.  PICTURE=FILE.png
# writes the picture of OPERATING.md, and prints the tree beside it.
. "$(dirname "$0")/lib"
start
kvfs() { "$B/kvfs" "$@"; }
key() { md5sum <<<"$1" | cut -c 1-32; }
place() { key "$1" | sed 's,..,&/&,'; }
put() { mkdir -p "$(dirname "$M/$1/$(place "$2")")" && cp "$3" "$M/$1/$(place "$2")"; }
bytes=20000
chain() { # chain PARENT KEY...: save blocks, each with the one before as parent
	local parent=${1:+$(key "$1")} i
	shift
	for i; do
		block "$T/b" --seed "$i" --bytes $bytes --meta "parent=$parent" --meta "position=$((i % 16))" --meta tokens=16
		put "$space" "$i" "$T/b"
		parent=$(key "$i")
	done
}
space='a<script>&"]]>'
mkdir "$M/$space"
chain "" 16 17 18 19
chain 19 36 37 38
chain 19 52 53
chain "" 64
sync "$M/$space"
kvfs flame "$space" -p "$SOCK" >"$T/x.svg" || fail "flame"
python3 - "$T/x.svg" <<'END' || fail "the picture: $(cat "$T/x.svg")"
import sys, xml.etree.ElementTree as tree
svg = "{http://www.w3.org/2000/svg}"
root = tree.parse(sys.argv[1]).getroot()
frames = [frame for frame in root.iter(f"{svg}g")]
assert root.find(f"{svg}title").text == 'a<script>&"]]>'
assert len(root.findall(f".//{svg}script")) == 1
about = [frame.find(f"{svg}title").text for frame in frames]
assert [frame.get("data-d") for frame in frames] == ["0", "1", "1", "2", "2"], about
widths = [round(10 * float(frame.get("data-w"))) for frame in frames]
assert widths == [10, 9, 1, 3, 2], widths
assert "64 tokens in 4 blocks" in about[1] and "90.00 %" in about[1], about[1]
END
cat "$M/$space/$(place 64)" >/dev/null
for by in hits idle; do
	kvfs flame "$space" --by $by --json -p "$M" >"$T/$by" || fail "by $by: $(cat "$T/$by")"
done
space=narrow # runs that are too narrow for a frame share one
mkdir "$M/narrow"
bytes=6000000
chain "" 1 2 3 4 7 8
bytes=16
chain "" 5
chain "" 6
sync "$M/narrow"
kvfs flame narrow -p "$SOCK" >"$T/narrow.svg" || fail "narrow runs"
grep -q 'data-name="2 more  32 tokens"><title>2 more' "$T/narrow.svg" || fail "narrow runs: $(cat "$T/narrow.svg")"
mkdir "$M/empty"
not "an empty space" "empty: no blocks" "$B/kvfs" flame empty -p "$SOCK"
not "an unknown figure" "invalid choice" "$B/kvfs" flame empty --by x -p "$SOCK"
not "no such space" "nothing: no such space" "$B/kvfs" flame nothing -p "$SOCK"
if command -v chromium >/dev/null; then
	timeout 120 python3 "$here/browser.py" "$T/x.svg" || fail "in chromium"
else
	echo "not tested in chromium, which is not installed"
fi
if [ -n "${PICTURE:-}" ]; then
	space=qwen3-4b.tp0 bytes=20000
	mkdir "$M/$space"
	chain "" {1..12} # a system prompt, and conversations that begin with it
	chain 12 {100..109}
	sleep 3
	chain 12 {200..203}
	chain 203 {210..215}
	sleep 3
	chain 203 {220..222}
	chain 12 {300..302}
	chain "" {400..405}
	sync "$M/$space"
	kvfs tree $space -d 9 -p "$SOCK"
	kvfs flame $space -p "$SOCK" >"$T/x.svg"
	timeout 120 python3 "$here/browser.py" "$T/x.svg" "$PICTURE" || fail "the picture"
fi
stop
