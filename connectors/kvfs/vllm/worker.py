# SPDX-License-Identifier: Apache-2.0
"""worker - KvfsConnector beside a model runner: pages in and out.

Pages that are being saved are waited for only when another request has got one of them
(`settle`).  A load that fails makes its blocks misses: vLLM computes them again.  What
was computed from such pages in the same step is not saved.
"""
from __future__ import annotations

import errno
import logging
import os
import time
from collections import deque
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
IDLE_WAIT = 0.005  # a step that computes nothing waits for a load


class Load:
    """Blocks on their way to pages: a transfer for each group that has some."""

    __slots__ = ("blocks", "parts", "refused", "_whole")

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self._whole: bool | None = None
        self.parts: list[tuple[int, list[int] | range, kvfs.Transfer]] = []  # group, indices, copies
        self.refused = 0  # the error with which a part could not even begin

    def got(self, timeout: float = 0.0) -> bool | None:
        """Whether all is there; None: it is not over within @timeout seconds."""
        if self._whole is None:
            whole = self.refused == 0
            for _, _, transfer in self.parts:
                n = transfer.there(timeout=timeout)
                if n is None:
                    return None
                whole &= n == transfer.n
            self._whole = whole
        return self._whole


class Save:
    """Blocks on their way from @pages, which are the transfer's until it is COPIED."""

    __slots__ = ("transfer", "pages")

    def __init__(self, transfer: kvfs.Transfer, pages: list[int]) -> None:
        self.transfer = transfer
        self.pages = pages


class Worker:
    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
        self._spaces = Spaces(vllm_config, kv_cache_config, settings,
                              vllm_config.parallel_config.rank)
        self._settings = settings
        self._blocks = kv_cache_config.num_blocks
        self._sync = settings.load == "sync"
        self._patience = Patience()
        self._pools: list[kvfs.Pool] = []
        self._loads: dict[str, Load] = {}  # by request
        self._saves: deque[Save] = deque()  # that are not sealed, oldest first
        self._bad: set[int] = set()
        self._failures = 0
        self._report: Report | None = None
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
            for load in self._loads.values():
                for _, _, transfer in load.parts:
                    transfer.wait()
            self.loaded()

    def _begin(self, load: Load, group: int) -> None:
        pages, keys = load.blocks.pages[group], load.blocks.keys
        some: list[int] | range = range(len(pages))
        if NULL_BLOCK in pages:
            some = [i for i in some if pages[i] != NULL_BLOCK]
            if not some:
                return
            keys, pages = kvfs.Keys([keys[i] for i in some]), [pages[i] for i in some]
        load.parts.append((group, some, self._pools[group].fetch(
            self._spaces.by_group[group][0], keys, pages, deadline=LOAD_WAIT)))

    def rest(self) -> None:
        """Nothing is computed in this step: wait a little for a load, without the
        interpreter's lock, instead of being asked again at once."""
        if self._loads:
            next(iter(self._loads.values())).got(IDLE_WAIT)

    def loaded(self) -> tuple[set[str], set[str]]:
        """Requests whose loads are over since the last call, and those of them of which
        blocks are lost."""
        done: set[str] = set()
        failed: set[str] = set()
        if not self._loads:
            return done, failed
        for id, load in self._loads.items():
            whole = load.got()
            if whole is None:
                continue
            done.add(id)
            if not whole and self._lost(load):
                failed.add(id)
        for id in done:
            del self._loads[id]
            self._news().loaded.add(id)
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
        report = self._news()
        # What comes after a lost block is of no use to a prefix, but may be to others.
        report.failed.update(load.blocks.keys[i] for i in lost)
        report.dropped.add(load.blocks.request)
        if self._sync:
            self._failures += 1
            report.failures += 1
        return True

    def bad_pages(self) -> set[int]:
        bad, self._bad = self._bad, set()
        return bad

    # ---- saves ----

    def save(self, plan: Plan) -> None:
        if not plan.saves:
            return
        if plan.failures_seen < self._failures:
            self._news().dropped.update(blocks.request for blocks in plan.saves)
            return
        if not self._patience.left or not self._spaces.connected:
            return
        stream = self._stream() if self._stream else 0
        for blocks in plan.saves:
            for group, (pool, spaces) in enumerate(zip(self._pools, self._spaces.by_group)):
                pages = blocks.pages[group]
                try:
                    if NULL_BLOCK not in pages:
                        self._save(pool, spaces[0], blocks, pages, 0, len(pages), stream)
                        continue
                    for first, end in _runs(pages):
                        self._save(pool, spaces[0], blocks, pages[first:end], first, end, stream)
                except kvfs.Error as error:
                    self._tell(error.errno, "saves")

    def _save(self, pool: kvfs.Pool, space: kvfs.Space, blocks: Blocks, pages: list[int], first: int,
              end: int, stream: int) -> None:
        keys, before, tokens = blocks.keys, blocks.parent, blocks.tokens
        if first > 0:
            before = keys[first - 1:first]
        if end - first < len(keys):
            keys, tokens = keys[first:end], tokens and tokens[first:end]
        self._forget()
        transfer = pool.save(space, keys, pages, parent=before, position=blocks.first + first,
                             tokens=tokens, extras=[blocks.extras] * len(keys) if tokens else None,
                             stream=stream)
        self._saves.append(Save(transfer, pages))

    def _forget(self) -> None:
        """Saves that have been sealed: the oldest, two for each that begins."""
        for _ in range(2):
            if not self._saves or (good := self._saves[0].transfer.there(Stage.SEALED)) is None:
                return
            transfer = self._saves.popleft().transfer
            if good < len(transfer):
                failed = next((status for status in transfer.statuses() if status < 0), 0)
                if failed:
                    self._tell(-failed, "saves")

    def settle(self, fresh: list[tuple[list[int], ...]]) -> None:
        """When this returns the pages of @fresh may be changed."""
        if not fresh or not self._saves:
            return
        pages = set().union(*(ids for table in fresh for ids in table))
        start = 0.0
        for save in self._saves:
            if not pages.isdisjoint(save.pages):
                start = start or time.monotonic()
                self._wait(save, start + self._settings.save_wait)
        if start:
            self._patience.took(time.monotonic() - start)

    @staticmethod
    def _wait(save: Save, until: float) -> None:
        """Until its pages are its no more; from then on it is given up."""
        left = until - time.monotonic()
        if save.transfer.there(Stage.COPIED, max(0.0, left)) is None:
            save.transfer.cancel()
            save.transfer.wait(Stage.COPIED)
        save.pages = []

    def _tell(self, error: int, what: str) -> None:
        """At most once a minute for each error."""
        now = time.monotonic()
        if now - self._told.get(error, -60.0) >= 60:
            self._told[error] = now
            if error != errno.ENOTCONN:
                log.warning("kvfs: %s fail: %s (the engine goes on without)", what,
                            os.strerror(error))

    # ---- the rest ----

    def _news(self) -> Report:
        if self._report is None:
            self._report = Report()
        return self._report

    def report(self) -> Report | None:
        report, self._report = self._report, None
        return report

    def close(self) -> None:
        for wait, stage in ((self._settings.save_wait, Stage.COPIED), (5.0, Stage.SEALED)):
            end = time.monotonic() + wait
            for save in self._saves:
                save.transfer.there(stage, max(0.0, end - time.monotonic()))
        while self._saves and self._saves[0].transfer.there(Stage.SEALED) is not None:
            self._forget()
        for save in self._saves:
            save.transfer.cancel()
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
