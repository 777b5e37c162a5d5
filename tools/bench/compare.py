#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compare.py OLD NEW - compare the figures of two runs of `make bench`.

Each file is a bench.json.  A figure with a reference is compared by its ratio to the
reference of its own run, which removes the speed of the machine; another figure by its
value.  Prints how many times as good each figure is, and exits with status 1 if a figure
is more than 5 % worse, or is missing.
"""
import json
import sys

WORSE = 0.95
MORE_IS_BETTER = {"GB/s", "rate"}


def figures(path):
    with open(path) as file:
        return {row["figure"]: row for row in map(json.loads, file)}


def times_as_good(old, new):
    if old["ratio"] > 0 and new["ratio"] > 0:
        return new["ratio"] / old["ratio"]
    if min(old["value"], new["value"]) <= 0:
        return 1.0 if old["value"] == new["value"] else 0.0
    times = new["value"] / old["value"]
    return times if old["unit"] in MORE_IS_BETTER else 1 / times


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    old, new = figures(sys.argv[1]), figures(sys.argv[2])
    bad = 0
    print(f"{'figure':<32} {'old':>12} {'new':>12} {'unit':<6} {'times as good':>13}")
    for name, row in old.items():
        if name not in new:
            bad += 1
            print(f"{name:<32} {row['value']:12.4g} {'missing':>12} {row['unit']:<6}")
            continue
        times = times_as_good(row, new[name])
        bad += times < WORSE
        print(f"{name:<32} {row['value']:12.4g} {new[name]['value']:12.4g} {row['unit']:<6} "
              f"{times:13.3f}{'  WORSE' if times < WORSE else ''}")
    for name in sorted(new.keys() - old.keys()):
        print(f"{name:<32} {'-':>12} {new[name]['value']:12.4g} {new[name]['unit']:<6}")
    print(f"{len(old)} figures, {bad} worse by more than 5 % or missing")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
