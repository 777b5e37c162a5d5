# SPDX-License-Identifier: Apache-2.0
"""worker - KvfsConnector beside a model runner: loads and saves of pages.

A step waits for pages that are being saved only if another request gets one of them (`settle`).
A load that fails makes its blocks misses: vLLM computes them again.  Blocks computed from such
pages in the same step are not saved.
"""
from __future__ import annotations

import errno
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import kvfs
from kvfs import Stage
from kvfs.patience import Patience
from kvfs.transfer import PRESENT

from .groups import Group, Spaces
from .messages import NULL_BLOCK, Blocks, Plan, Report
from .metrics import Stats
from .settings import Settings

log = logging.getLogger("vllm.kvfs")
LOAD_WAIT = 5.0  # seconds for a load: its blocks are leased in DRAM, so it is fast or lost
# Errors of a save that may succeed if it is repeated at once.
LOST = {errno.ECANCELED, errno.ETIMEDOUT, errno.ENOTCONN}
IDLE_WAIT = 0.005  # seconds that a step without computation waits for a load


class Load:
    """A load of blocks to pages: one transfer for each group with blocks."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.began = time.monotonic()
        self._whole: bool | None = None
        self.parts: list[tuple[int, list[int] | range, kvfs.Transfer]] = []  # group, indices, copies
        self.refused = 0  # errno of a transfer that could not begin; 0: all began

    def got(self, timeout: float = 0.0) -> bool | None:
        """Return whether all blocks are loaded; None: not finished within @timeout seconds."""
        if self._whole is None:
            whole = self.refused == 0
            for _, _, transfer in self.parts:
                n = transfer.there(timeout=timeout)
                if n is None:
                    return None
                whole &= n == transfer.n
            self._whole = whole
        return self._whole


@dataclass
class Save:
    """A save of blocks of a request."""

    request: str
    transfer: kvfs.Transfer
    pages: list[int]  # read by the transfer until it is COPIED


class Worker:
    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
        self._configs = vllm_config, kv_cache_config
        self._settings = settings
        self._blocks = kv_cache_config.num_blocks
        self._sync = settings.load == "sync"
        self.patience = Patience(log, "saves", lambda: self._spaces.session.stats())
        self._pools: list[kvfs.Pool] = []
        self._loads: dict[str, Load] = {}  # by request
        self._saves: deque[Save] = deque()  # saves that are not sealed yet, oldest first
        self._bad: set[int] = set()
        self._failures = 0
        self._report: Report | None = None
        self.stats = Stats()
        self._told: dict[int, float] = {}
        self._stream: Any = None  # the model's stream; None: no GPU
        self._before: Any = None  # torch's event recorded before the current forward pass

    def register(self, caches: dict[str, Any]) -> None:
        self._caches = caches

    def open(self, identity: str) -> None:
        """Open the spaces of the engine with @identity, once, before the first step."""
        vllm_config, kv_cache_config = self._configs
        caches = self._caches
        self._spaces = Spaces(vllm_config, kv_cache_config, self._settings, identity,
                              vllm_config.parallel_config.rank)
        self._spaces.connected
        for group, spaces in zip(self._spaces.groups, self._spaces.by_group):
            views: list[kvfs.View] = []
            device = "host"
            for layer, page in zip(group.layers, group.pages):
                tensor = caches[layer]
                if tensor.is_cuda:
                    device = f"cuda:{tensor.device.index}"
                elif tensor.device.type != "cpu":
                    raise ValueError(f"kvfs: the cache is on the device {tensor.device}: KvfsConnector "
                                     "copies from and to CPUs and CUDA's GPUs only")
                views += self._views(group, layer, tensor, page)
            if device != "host":
                import torch

                self._stream = lambda: torch.cuda.current_stream().cuda_stream
                self._before = torch.cuda.Event()
            self._pools.append(self._spaces.session.pool(spaces[0], views, self._blocks,
                                                         device=device, keep=caches))

    def _views(self, group: Group, layer: str, tensor: Any, page: int) -> list[kvfs.View]:
        size = tensor.element_size()
        dim = next((i for i, n in enumerate(tensor.shape) if n == self._blocks), None)
        if dim is None:
            # The blocks of an attention kernel may be parts of the engine's blocks.
            dim = next((i for i, n in enumerate(tensor.shape) if n % self._blocks == 0), None)
            if dim is not None:
                tensor = tensor.unflatten(dim, (self._blocks, -1))
        if dim is None or tensor.numel() * size != self._blocks * page:
            raise ValueError(f"kvfs: the cache of layer {layer} has the shape {tuple(tensor.shape)}, "
                             f"not {self._blocks} blocks of {page} bytes")
        name = "kv" if len(group.layout["tensors"]) == 1 else layer
        return kvfs.views_of(name, tensor.data_ptr(), tensor.shape, tensor.stride(), size, dim,
                             by_stride=True)

    # ---- loads ----

    def load(self, plan: Plan) -> None:
        # vLLM starts an asynchronous load after it has launched the forward pass, which does
        # not touch its pages, but the pass before may.  vLLM may zero pages of a synchronous load
        # just before, but none of an asynchronous load (skip_zeroing_group_ids).
        order = {}
        if plan.loads and self._stream:
            order = {"stream": self._stream()} if self._sync else {"event": self._before.cuda_event}
        for blocks in plan.loads:
            load = self._loads[blocks.request] = Load(blocks)
            try:
                for group in range(len(self._pools)):
                    self._begin(load, group, order)
            except kvfs.Error as error:
                load.refused = -error.errno
        if self._sync:
            for load in self._loads.values():
                for _, _, transfer in load.parts:
                    transfer.wait()
            self.loaded()

    def _begin(self, load: Load, group: int, order: dict[str, int]) -> None:
        pages, keys = load.blocks.pages[group], load.blocks.keys
        some: list[int] | range = range(len(pages))
        if NULL_BLOCK in pages:
            some = [i for i in some if pages[i] != NULL_BLOCK]
            if not some:
                return
            keys, pages = kvfs.Keys([keys[i] for i in some]), [pages[i] for i in some]
        load.parts.append((group, some, self._pools[group].fetch(
            self._spaces.by_group[group][0], keys, pages, deadline=LOAD_WAIT, again=True, **order)))

    def rest(self) -> None:
        """Wait a little for a load in a step without computation, without the interpreter's
        lock: otherwise vLLM would ask again at once."""
        if self._loads:
            next(iter(self._loads.values())).got(IDLE_WAIT)

    def loaded(self) -> tuple[set[str], set[str]]:
        """Return the requests whose loads have ended since the last call, and those among them
        that lost blocks."""
        done: set[str] = set()
        failed: set[str] = set()
        if not self._loads:
            return done, failed
        for id, load in self._loads.items():
            whole = load.got()
            if whole is None:
                continue
            done.add(id)
            self.stats.add("loads", 1)
            self.stats.add("load_seconds", time.monotonic() - load.began)
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
        self.stats.add("errors", len(lost))
        report = self._news()
        # Blocks after a lost one are useless for a prefix, but not for other groups.
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
        self._forget()
        if pause := self.patience.rest:
            self._news().pause = pause
        if not plan.saves:
            return
        if plan.failures_seen < self._failures or pause or not self._spaces.connected:
            for blocks in plan.saves:
                self._drop(blocks.request, len(blocks.keys))
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
                    self._save_failed(blocks.request, error.errno, len(blocks.keys))

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
        self._saves.append(Save(blocks.request, transfer, pages))

    def _forget(self) -> None:
        """Finish the oldest saves that are sealed: two in each step, and two for each new save."""
        for _ in range(2):
            if not self._saves or self._saves[0].transfer.there(Stage.SEALED) is None:
                return
            save = self._saves.popleft()
            for status, n in Counter(save.transfer.statuses()).items():
                if status < 0:
                    self._save_failed(save.request, -status, n)
                elif status != PRESENT:
                    self.stats.add("saved", n)

    def _save_failed(self, request: str, error: int, blocks: int) -> None:
        self._tell(error, "saves")
        if error in LOST:
            self._drop(request, blocks)
        else:
            self.stats.add("errors", blocks)

    def _drop(self, request: str, blocks: int) -> None:
        self._news().dropped.add(request)
        self.stats.add("dropped", blocks)

    def settle(self, fresh: list[tuple[list[int], ...]]) -> None:
        """Wait until the pages of @fresh may be changed.  Called before each forward pass."""
        if self._before is not None:
            self._before.record()
        if not fresh or not self._saves:
            return
        pages = set().union(*(ids for table in fresh for ids in table))
        start = 0.0
        limit = self._settings.save_wait if self.patience.left else 0.0
        for save in self._saves:
            if not pages.isdisjoint(save.pages):
                start = start or time.monotonic()
                self._wait(save, start + limit)
        if start:
            self.patience.took(time.monotonic() - start)

    @staticmethod
    def _wait(save: Save, until: float) -> None:
        """Wait until the save no longer reads its pages; then abandon it."""
        left = until - time.monotonic()
        if save.transfer.there(Stage.COPIED, max(0.0, left)) is None:
            save.transfer.cancel()
            save.transfer.wait(Stage.COPIED)
        save.pages = []

    def _tell(self, error: int, what: str) -> None:
        """Log an error at most once a minute."""
        now = time.monotonic()
        if now - self._told.get(error, -60.0) >= 60:
            self._told[error] = now
            if error != errno.ENOTCONN:
                log.warning("kvfs: %s fail: %s (the engine goes on without)", what, os.strerror(error))

    # ---- statistics and shutdown ----

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
        if hasattr(self, "_spaces"):
            self._spaces.session.close()


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of indices in @pages without a NULL_BLOCK."""
    first = None
    for i, page in enumerate([*pages, NULL_BLOCK]):
        if page != NULL_BLOCK and first is None:
            first = i
        elif page == NULL_BLOCK and first is not None:
            yield first, i
            first = None
