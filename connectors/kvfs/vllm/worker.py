# SPDX-License-Identifier: Apache-2.0
"""worker - KvfsConnector beside a model runner: pages in and out.

Pages that are being saved are not waited for in the step that saves them, but before
the next one may change them (`settle`).  A load that fails makes its blocks misses: vLLM
computes them again.  What was computed from such pages in the same step is not saved.
"""
from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import kvfs
from kvfs import Stage
from kvfs.patience import Patience

from .groups import Group, Spaces
from .messages import NULL_BLOCK, Blocks, Plan, Report
from .settings import Settings

log = logging.getLogger("vllm.kvfs")
LOAD_WAIT = 5.0  # the scheduler holds the blocks in DRAM: they come at once or never


class Load:
    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.parts: list[tuple[int, list[int], kvfs.Transfer]] = []  # group, indices, copies
        self.refused = 0  # the error with which a part could not even begin

    def over(self) -> bool:
        return all(transfer.poll() for _, _, transfer in self.parts)


class Worker:
    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
        self._spaces = Spaces(vllm_config, kv_cache_config, settings,
                              vllm_config.parallel_config.rank)
        self._settings = settings
        self._blocks = kv_cache_config.num_blocks
        self._sync = settings.load == "sync"
        self._patience = Patience()
        self._pools: list[kvfs.Pool] = []
        self._loads: dict[str, Load] = {}
        self._copying: list[kvfs.Transfer] = []
        self._sealing: list[kvfs.Transfer] = []
        self._bad: set[int] = set()
        self._failures = 0
        self._report = Report()
        self._told: dict[int, float] = {}
        self._stream: Any = None
        self._spaces.connected

    def register(self, caches: dict[str, Any]) -> None:
        for group, spaces in zip(self._spaces.groups, self._spaces.by_group):
            views: list[kvfs.View] = []
            device = "host"
            for layer, page in zip(group.layers, group.pages):
                tensor = caches[layer]
                if tensor.is_cuda:
                    device = f"cuda:{tensor.device.index}"
                views += self._views(group, layer, tensor, page)
            if device != "host":
                import torch

                self._stream = lambda: torch.cuda.current_stream().cuda_stream
            self._pools.append(self._spaces.session.pool(spaces[0], views, self._blocks,
                                                         device=device, keep=caches))

    def _views(self, group: Group, layer: str, tensor: Any, page: int) -> list[kvfs.View]:
        size = tensor.element_size()
        dim = next((i for i, n in enumerate(tensor.shape) if n == self._blocks), None)
        if dim is None:
            # A kernel's blocks may be parts of the engine's.
            dim = next((i for i, n in enumerate(tensor.shape) if n % self._blocks == 0), None)
            if dim is not None:
                tensor = tensor.unflatten(dim, (self._blocks, -1))
        if dim is None or tensor.numel() * size != self._blocks * page:
            raise ValueError(f"kvfs: the cache of layer {layer} has the shape {tuple(tensor.shape)}, "
                             f"not {self._blocks} blocks of {page} bytes")
        name = "kv" if len(group.layout["tensors"]) == 1 else layer
        return kvfs.views_of(name, tensor.data_ptr(), tensor.shape, tensor.stride(), size, dim)

    # ---- loads ----

    def load(self, plan: Plan) -> None:
        for blocks in plan.loads:
            load = self._loads[blocks.request] = Load(blocks)
            try:
                for group in range(len(self._pools)):
                    self._begin(load, group)
            except kvfs.Error as error:
                load.refused = -error.errno
        if self._sync:
            for load in list(self._loads.values()):
                for _, _, transfer in load.parts:
                    transfer.wait()
            self.loaded()

    def _begin(self, load: Load, group: int) -> None:
        pages = load.blocks.pages[group]
        some = [i for i, page in enumerate(pages) if page != NULL_BLOCK]
        if not some:
            return
        space = self._spaces.by_group[group][0]
        with space.acquire([load.blocks.keys[i] for i in some], deadline=LOAD_WAIT) as lease:
            load.parts.append((group, some, self._pools[group].load(
                lease, [pages[i] for i in some], deadline=LOAD_WAIT)))

    def rest(self) -> None:
        """Nothing is computed in this step: wait a little for a load, without the
        interpreter's lock, instead of being asked again at once."""
        for load in self._loads.values():
            for _, _, transfer in load.parts:
                if not transfer.poll():
                    try:
                        transfer.wait(Stage.COPIED, 0.002)
                    except TimeoutError:
                        pass
                    return

    def loaded(self) -> tuple[set[str], set[str]]:
        """Requests whose loads are over since the last call, and those of them of which
        blocks are lost."""
        done, failed = set(), set()
        for id, load in list(self._loads.items()):
            if not load.over():
                continue
            del self._loads[id]
            done.add(id)
            self._report.loaded.add(id)
            if self._lost(load):
                failed.add(id)
        return done, failed

    def _lost(self, load: Load) -> bool:
        lost: dict[int, int] = {}
        if load.refused:
            lost = dict.fromkeys(range(len(load.blocks.keys)), load.refused)
            self._bad.update(page for page in load.blocks.pages[0] if len(self._pools) == 1)
        for group, some, transfer in load.parts:
            for i, status in zip(some, transfer.statuses()):
                if status != 0:
                    lost[i] = status
                    if len(self._pools) == 1:
                        self._bad.add(load.blocks.pages[group][i])
        if not lost:
            return False
        self._tell(-next(iter(lost.values())), "loads")
        # What comes after a lost block is of no use to a prefix, but may be to others.
        self._report.failed.update(load.blocks.keys[i] for i in lost)
        if self._sync:
            self._failures += 1
            self._report.failures += 1
        return True

    def bad_pages(self) -> set[int]:
        bad, self._bad = self._bad, set()
        return bad

    # ---- saves ----

    def save(self, plan: Plan) -> None:
        if plan.failures_seen < self._failures:
            self._report.dropped.update(blocks.request for blocks in plan.saves)
            return
        if not self._patience.left or not self._spaces.connected:
            return
        stream = self._stream() if self._stream else 0
        for blocks in plan.saves:
            for group, (pool, spaces) in enumerate(zip(self._pools, self._spaces.by_group)):
                for first, end in _runs(blocks.pages[group]):
                    before = blocks.keys[first - 1] if first else blocks.parent
                    try:
                        self._copying.append(pool.save(
                            spaces[0], blocks.keys[first:end], blocks.pages[group][first:end],
                            parent=before, position=blocks.first + first, stream=stream))
                    except kvfs.Error as error:
                        self._tell(error.errno, "saves")

    def settle(self) -> None:
        """Whatever is being saved may be changed when this returns."""
        start = time.monotonic()
        for transfer in self._copying:
            left = start + self._settings.save_wait - time.monotonic()
            try:
                transfer.wait(Stage.COPIED, max(0.0, left))
            except TimeoutError:
                transfer.cancel()
                transfer.wait(Stage.COPIED)
        self._patience.took(time.monotonic() - start)
        self._sealing += self._copying
        self._copying = []
        self._reap()

    def _reap(self) -> None:
        rest = []
        for transfer in self._sealing:
            if not transfer.poll(Stage.SEALED):
                rest.append(transfer)
                continue
            failed = next((status for status in transfer.statuses() if status < 0), 0)
            if failed:
                self._tell(-failed, "saves")
        self._sealing = rest

    def _tell(self, error: int, what: str) -> None:
        """At most once a minute for each error."""
        now = time.monotonic()
        if now - self._told.get(error, -60.0) >= 60:
            self._told[error] = now
            if error != errno.ENOTCONN:
                log.warning("kvfs: %s fail: %s (the engine goes on without)", what,
                            os.strerror(error))

    # ---- the rest ----

    def report(self) -> Report | None:
        report, self._report = self._report, Report()
        return report if report != Report() else None

    def close(self) -> None:
        self.settle()
        end = time.monotonic() + 5
        for transfer in self._sealing:
            try:
                transfer.wait(Stage.SEALED, max(0.0, end - time.monotonic()))
            except TimeoutError:
                break
        self._reap()
        for pool in self._pools:
            pool.close()
        self._pools = []
        self._spaces.session.close()


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges of pages that are there."""
    first = None
    for i, page in enumerate([*pages, NULL_BLOCK]):
        if page != NULL_BLOCK and first is None:
            first = i
        elif page == NULL_BLOCK and first is not None:
            yield first, i
            first = None
