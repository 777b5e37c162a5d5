# SPDX-License-Identifier: Apache-2.0
"""panels.py PROMETHEUS DASHBOARD.json SECONDS >FILE.svg - draw the panels of a dashboard from the
answers of Prometheus, at the URL PROMETHEUS, to their queries over the last SECONDS."""
import html
import json
import re
import sys
import time
import urllib.parse
import urllib.request

WIDTH, CELL, LEFT, TOP = 1200, 20, 58, 28  # pixels; CELL: of a unit of Grafana's grid, in height
COLOURS = "#3b78b8", "#d9822b", "#3f9a4f", "#b5443f", "#7d5ba6", "#7a6a55", "#c06a9e", "#5f6b73", "#a3a035", "#3aa3a8"


def ask(prometheus, query, end, seconds):
    """Return the labels and points of each series."""
    text = urllib.parse.urlencode({"query": query, "start": end - seconds, "end": end, "step": 1})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{text}", timeout=20) as file:
        rows = json.load(file)["data"]["result"]
    return [(row["metric"], [(t, float(v)) for t, v in row["values"] if v not in ("NaN", "+Inf")]) for row in rows]


def amount(value, unit):
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    if unit == "s" and value < 1:
        return f"{1000 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"
    for power, letter in (30, "G"), (20, "M"), (10, "K"):
        if unit == "Bps" and value >= 1 << power:
            return f"{value / (1 << power):.3g} {letter}B/s"
    return f"{value:.3g}" + {"s": " s", "Bps": " B/s", "ops": "/s"}.get(unit, "")


def draw(panel, lines, end, seconds):
    """Yield the SVG of a panel at its place in the grid."""
    place, unit = panel["gridPos"], panel["fieldConfig"]["defaults"]["unit"]
    x, y = place["x"] * WIDTH / 24, place["y"] * CELL
    wide, high = place["w"] * WIDTH / 24 - 6, place["h"] * CELL - 6
    right, bottom = wide - LEFT - 8, high - 34
    top = max([value for _, points in lines for _, value in points], default=0) or 1
    yield (f'<g transform="translate({x},{y})"><rect width="{wide}" height="{high}" fill="#fff" stroke="#ccc"/>'
           f'<text x="8" y="15" font-weight="bold">{html.escape(panel["title"])}</text>')
    for part in 0, 0.5, 1:
        at = bottom - (bottom - TOP) * part
        yield (f'<path d="M{LEFT} {at}h{right}" stroke="#eee"/>'
               f'<text x="{LEFT - 4}" y="{at + 4}" text-anchor="end" fill="#777">{amount(top * part, unit)}</text>')
    x_of = LEFT
    for (name, points), colour in zip(lines, COLOURS):
        path = " ".join(f"{LEFT + right * (1 - (end - t) / seconds):.1f},{bottom - (bottom - TOP) * value / top:.1f}"
                        for t, value in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        if x_of + 7 * len(name) < wide:
            yield (f'<rect x="{x_of - 36}" y="{high - 16}" width="8" height="3" fill="{colour}"/>'
                   f'<text x="{x_of - 24}" y="{high - 10}">{html.escape(name)}</text>')
        x_of += 20 + 6 * len(name)
    yield "</g>"


def main():
    prometheus, seconds, end = sys.argv[1], int(sys.argv[3]), int(time.time())
    with open(sys.argv[2]) as file:
        panels = json.load(file)["panels"]
    high = CELL * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{high}" font-family="sans-serif" '
          f'font-size="10"><rect width="{WIDTH}" height="{high}" fill="#f4f5f5"/>')
    for panel in panels:
        if panel["type"] == "row":
            print(f'<text x="4" y="{panel["gridPos"]["y"] * CELL + 15}" font-size="14">{html.escape(panel["title"])}</text>')
            continue
        lines = []
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*")
            for labels, points in ask(prometheus, query, end, seconds):
                labels["instance"] = "node"  # the address of the test says nothing
                legend = re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), target["legendFormat"])
                lines.append((legend, points))
        print("".join(draw(panel, lines, end, seconds)))
    print("</svg>")


main()
