# SPDX-License-Identifier: Apache-2.0
"""bench_calls.py - CPU time of KvfsConnector's calls in Python's thread, without a model.

12 blocks of 3 MiB are saved, matched and loaded from DRAM, and matched and loaded from SSD,
by the calls of vLLM's steps (steps.py).  CPU time is that of the calling thread, in C and
in Python.  Results go to standard output and to bench-calls.json in the build.
"""
from __future__ import annotations

import json
import shutil
import statistics
import tempfile

from steps import Driver, HIT

import torch
from bench_machine import idle
from engines import settled
from models import make
from mount import BUILD, Mount

ROUNDS = 40
BEHIND = 20  # requests that evict an earlier prompt's blocks from DRAM


def measure(model: str) -> dict[str, list[tuple[float, int, dict[str, float]]]]:
    results: dict[str, list[tuple[float, int, dict[str, float]]]] = {}
    pages, others = list(range(1, HIT + 2)), list(range(20, HIT + 21))
    with Mount("dram=384M,ssd=8G") as mount:
        driver = Driver(model, mount.path)

        def take(state: str) -> None:
            results.setdefault(state, []).append(
                (sum(driver.times.values()), driver.calls, driver.times))

        for turn in range(ROUNDS):
            driver.save(f"s{turn}", turn, pages)
            take("saved")
            settled(mount.path)
            driver.load(f"d{turn}", turn, others)
            take("from DRAM")
            for tensor in driver.pages.values():
                assert torch.equal(tensor[pages[:HIT]], tensor[others[:HIT]])
            if turn >= BEHIND and driver.load(f"r{turn}", turn - BEHIND, others) > 0:
                take("from SSD")
        driver.close()
    return results


def main() -> None:
    idle()
    folder = tempfile.mkdtemp(prefix="kvfs-models.")
    try:
        make("qwen", folder)
        results = measure(folder)
    finally:
        shutil.rmtree(folder)
    lines = []
    for state, all in results.items():
        all = all[len(all) // 8:]  # the first calls include connecting to the daemon
        whole, calls = (statistics.median(column) for column in list(zip(*all))[:2])
        least = min(one[0] for one in all)
        parts = {name: round(statistics.median(one[2].get(name, 0.0) for one in all), 1)
                 for name in all[0][2]}
        lines.append({"state": state, "cpu_us": round(whole), "least_us": round(least),
                      "calls": round(calls), "parts_us": parts, "rounds": len(all)})
        print(f"{state:10} {whole:6.0f} us of the thread (least {least:.0f}) in {calls:.0f} calls: "
              + ", ".join(f"{name} {spent:.0f}" for name, spent in parts.items()))
    with open(f"{BUILD}/bench-calls.json", "w") as file:
        json.dump(lines, file, indent=1)


if __name__ == "__main__":
    main()
