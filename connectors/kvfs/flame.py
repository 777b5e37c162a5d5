# SPDX-License-Identifier: Apache-2.0
"""flame - draw the prefixes that the blocks of a space share as one SVG file.

A frame is a run of blocks without a branch; below it are the runs that continue it.  The width is
bytes, hits or idle time of a frame and all below it.  A click makes a frame as wide as the
picture; the script in the file does that, and loads nothing.  command.py runs this file.
"""
from __future__ import annotations

import html
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .command import Forest

WIDTH, HEIGHT, LETTER, TOP = 1200, 18, 6.6, 44
NARROW = 1 / 4000  # frames below this part of the whole width become one frame
DEEP = 200  # most levels of frames; deeper blocks belong to the last level

STYLE = """
text { font: 11px monospace; pointer-events: none; }
g.frame { cursor: pointer; }
g.frame rect { stroke: #fff; stroke-width: .5; }
g.frame:hover rect { stroke: #000; stroke-width: 1; }
g.above rect { opacity: .5; }
"""

# Each frame has data-x and data-w, parts of the whole, and its level data-d.
SCRIPT = """
const frames = [...document.querySelectorAll("g.frame")];
const of = (frame, name) => Number(frame.dataset[name]);
function zoom(to) {
	const left = of(to, "x"), width = of(to, "w"), tiny = 1e-9;
	for (const frame of frames) {
		const x = of(frame, "x"), w = of(frame, "w");
		const above = of(frame, "d") < of(to, "d");
		const shown = above ? x <= left + tiny && x + w >= left + width - tiny
			: x >= left - tiny && x + w <= left + width + tiny;
		const at = above ? 0 : (x - left) / width * WIDTH;
		const wide = above ? WIDTH : w / width * WIDTH;
		frame.style.display = shown ? "" : "none";
		frame.classList.toggle("above", above);
		const [rect, text] = [frame.querySelector("rect"), frame.querySelector("text")];
		rect.setAttribute("x", at);
		rect.setAttribute("width", wide);
		text.setAttribute("x", at + 3);
		text.textContent = frame.dataset.name.slice(0, Math.max(0, (wide - 6) / LETTER));
	}
}
for (const frame of frames)
	frame.addEventListener("click", () => zoom(frame));
document.addEventListener("keydown", event => event.key === "Escape" && zoom(frames[0]));
"""


def frames(forest: Forest, figure: list[float]) -> Iterator[dict[str, Any]]:
    """Yield the frames, each after the one above it; x and width are parts of the whole."""
    order = forest.subtree(forest.roots)
    own = [math.fsum(map(figure.__getitem__, run)) for run in forest.runs]
    sums = own[:]
    for number in reversed(order):
        sums[number] += math.fsum(sums[branch] for branch in forest.below.get(number, ()))
    whole = math.fsum(sums[number] for number in forest.roots)
    if not whole:
        return
    yield {"key": "", "depth": 0, "x": 0.0, "width": 1.0, **forest.sums(order)}
    pending = [(forest.roots, 0.0, 1)]
    while pending:
        runs, x, depth = pending.pop()
        narrow = []
        for number in sorted(runs, key=lambda number: (-sums[number], forest.key(number))):
            width = sums[number] / whole
            if width < NARROW:
                narrow.append(number)
                continue
            deep = depth == DEEP
            yield {"key": forest.key(number), "depth": depth, "x": x, "width": width,
                   **forest.sums(forest.subtree([number]) if deep else [number])}
            if not deep:
                pending.append((forest.below.get(number, []), x, depth + 1))
            x += width
        width = math.fsum(sums[number] for number in narrow) / whole
        if width:
            yield {"more": len(narrow), "depth": depth, "x": x, "width": width,
                   **forest.sums(forest.subtree(narrow))}


def figures(forest: Forest, by: str, now: float) -> list[float]:
    """Return the width of each block's frame: its bytes, hits or idle seconds."""
    if by == "hits":
        return list(map(float, forest.figures["hits"]))
    if by == "idle":
        return [max(0.0, now - last) for last in forest.figures["last"]]
    return [float(sum(both)) for both in zip(forest.figures["bytes.dram"], forest.figures["bytes.ssd"])]


def svg(space: str, by: str, drawn: list[dict[str, Any]], size: Any, age: Any) -> str:
    """Return the SVG text of the frames @drawn. @size and @age format bytes and times."""
    what = {"bytes": "bytes in DRAM and on SSD", "hits": "hits", "idle": "time since the last use, summed over blocks"}
    now = time.time()
    oldest = max(math.log1p(max(0.0, now - frame["last"])) for frame in drawn) or 1.0
    height = TOP + HEIGHT * (1 + max(frame["depth"] for frame in drawn)) + 6
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%">',
             f"<title>{html.escape(space)}</title>", f"<style>{STYLE}</style>",
             '<rect width="100%" height="100%" fill="#fff"/>',
             f'<text x="6" y="17">{html.escape(space)}: shared prefixes; width: {what[by]}; '
             "color: red used now, blue idle longest</text>",
             '<text x="6" y="33">A click zooms to a frame; the top frame or Escape shows all.</text>']
    for frame in drawn:
        name = space if not frame["depth"] else f"{frame['more']:,} more" if "more" in frame else f"{frame['key'][:16]}…"
        label = f"{name}  {frame['tokens']:,} tokens"
        about = (f"{frame.get('key') or name}\n{frame['tokens']:,} tokens in {frame['blocks']:,} blocks\n"
                 f"{size(frame['bytes.dram'])} in DRAM, {size(frame['bytes.ssd'])} on SSD\n{frame['hits']:,} hits, "
                 f"last used {age(frame['last'])} ago\nwith all that follows: {100 * frame['width']:.2f} % of {what[by]}")
        x, y, wide = frame["x"] * WIDTH, TOP + HEIGHT * frame["depth"], frame["width"] * WIDTH
        hue = 230 * math.log1p(max(0.0, now - frame["last"])) / oldest
        shown = label[:max(0, int((wide - 6) / LETTER))]
        lines.append(
            f'<g class="frame" data-x="{frame["x"]:.12g}" data-w="{frame["width"]:.12g}" data-d="{frame["depth"]}" '
            f'data-name="{html.escape(label)}"><title>{html.escape(about)}</title>'
            f'<rect x="{x:.3f}" y="{y}" width="{wide:.3f}" height="{HEIGHT}" fill="hsl({hue:.0f},65%,78%)"/>'
            f'<text x="{x + 3:.3f}" y="{y + 13}">{html.escape(shown)}</text></g>')
    script = SCRIPT.replace("WIDTH", str(WIDTH)).replace("LETTER", str(LETTER))
    return "\n".join([*lines, f"<script><![CDATA[{script}]]></script>", "</svg>"])
