# SPDX-License-Identifier: Apache-2.0
"""bench_lmcache.py - KvfsClient beside LMCache's own `fs` adapter, both called by LMCache's
interface.  There is no time to first token: LMCache's connector does not run in vLLM on a CPU.

16 objects of 3 MiB, a prompt of 2,049 tokens, are stored, then looked up and loaded: from memory
(`fs`: the kernel's page cache) and from disk (`fs`: after the page cache is dropped; kvfs: after a
restart of the daemon).  Rounds of the two adapters alternate.  Results go to standard output
and to bench-lmcache.json in the build.
"""
from __future__ import annotations

import glob
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from typing import Any

import torch
from bench_machine import idle
from engines import settled
from lmcache.v1.distributed.l2_adapters import fs_l2_adapter
from lmcache.v1.memory_allocators.host_memory_allocator import HostMemoryAllocator
from mount import BUILD, Mount
from test_lmcache import Case, keys

ROUNDS, N, SHAPE = 7, 16, (2, 4, 256, 768)
results: dict[str, dict[str, list[float]]] = {}


def dropped(folder: str) -> None:
    """Sync the adapter's files to disk, and drop them from the page cache."""
    subprocess.run(["sync", "-f", folder], check=True)
    for path in glob.glob(f"{folder}/*"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class Turns:
    def __init__(self, mount: Mount, folder: str) -> None:
        self.case = Case()
        self.case.mount = mount
        self.case.memory = HostMemoryAllocator(160 << 20)
        self.stored = self.case.objects(N, SHAPE, seed=1)
        self.loaded = self.case.objects(N, SHAPE)
        self.folder, self.mount = folder, mount
        self.adapters: dict[str, Any] = {
            "kvfs": self.case.adapter(),
            "fs": fs_l2_adapter._create_fs_adapter(fs_l2_adapter.FSL2AdapterConfig.from_dict(
                {"type": "fs", "base_path": folder}))}

    def take(self, way: str, state: str, of: int) -> None:
        adapter, some = self.adapters[way], keys(N, of=of)
        start = time.monotonic()
        if state == "stored":
            assert self.case.store(adapter, some, self.stored)
        else:
            assert self.case.lookup(adapter, some) == [True] * N
            assert self.case.load(adapter, some, self.loaded) == [True] * N
        results.setdefault(state, {}).setdefault(way, []).append(time.monotonic() - start)
        if state != "stored":
            for one, two in zip(self.stored, self.loaded):
                assert torch.equal(one.tensor.view(torch.int16), two.tensor.view(torch.int16))
                two.tensor.zero_()

    def round(self, of: int) -> None:
        for state in ("stored", "from memory", "from disk"):
            if state == "from disk":
                settled(self.mount.path)
                dropped(self.folder)
                self.mount.stop()
                self.mount.start()
                time.sleep(1)  # time for the library to find the daemon
            for way in self.adapters:
                self.take(way, state, of)

    def close(self) -> None:
        self.adapters["fs"].close()
        self.case.doCleanups()


def main() -> None:
    idle()
    folder = tempfile.mkdtemp(prefix="kvfs-files.")
    try:
        with Mount("dram=1G,ssd=4G,segment=16M,hugepages=auto") as mount:
            turns = Turns(mount, folder)
            for of in range(ROUNDS):
                turns.round(of)
            turns.close()
    finally:
        shutil.rmtree(folder)
    lines = []
    for state, ways in results.items():
        took = {way: statistics.median(all) for way, all in ways.items()}
        lines.append({"state": state, "rounds": ROUNDS, "fs_of_kvfs": round(took["fs"] / took["kvfs"], 2),
                      **{f"{way}_ms": round(1e3 * one, 1) for way, one in took.items()}})
        print(f"LMCache, 48 MiB {state:12} kvfs {1e3 * took['kvfs']:6.1f} ms, its fs adapter "
              f"{1e3 * took['fs']:6.1f} ms: {took['fs'] / took['kvfs']:.2f} x")
    with open(f"{BUILD}/bench-lmcache.json", "w") as file:
        json.dump(lines, file, indent=1)


if __name__ == "__main__":
    main()
