# SPDX-License-Identifier: Apache-2.0
"""sglang - kvfs as SGLang's HiCache storage (backend `dynamic`).

    --enable-hierarchical-cache --hicache-mem-layout page_first_direct
    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "kvfs", "module_path": "kvfs.sglang", "class_name": "KvfsHiCache",
      "interface_v1": 1, "path": "/kvfs"}'

SGLang calls from its prefetch and backup threads, at most 128 pages at a time.  An exception
would end such a thread for good, so every call returns a list.  A look-up asks other nodes for
missing pages; its thread waits, running requests do not.  Bytes go between SGLang's host pool
and kvfs's memory by libkvfs's threads.
"""
from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from sglang.version import __version__ as version

import kvfs
from kvfs import Stage, State, release
from kvfs.patience import Patience
from kvfs.settings import Tier, read
from kvfs.weights import fingerprint

TESTED = ("0.5.22", "0.5.23")
ENGINE = ("SGLang", version, TESTED)

try:
    from sglang.srt.mem_cache.hicache_storage import (HiCacheStorage, HiCacheStorageConfig,
                                                      HiCacheStorageExtraInfo, PoolHitPolicy, PoolName,
                                                      PoolTransfer, PoolTransferResult)
except ImportError as error:
    raise release.unusable(*ENGINE, error) from None

log = logging.getLogger("sglang.kvfs")
WAIT = 10.0
QUIET = 60.0  # seconds without further warnings after an error
SETTINGS = [field.name for field in dataclasses.fields(Tier)]
KNOWN = {"backend_name", "module_path", "class_name", "interface_v1"}
# Pools (sliding window, state) of which a prefix needs only the last pages.
TRAILING = ("swa", "mamba", "state")


class Pages:
    """A host pool of SGLang's: its pages as a pool of kvfs, in a space of its own."""

    def __init__(self, owner: KvfsHiCache, name: str, host: Any) -> None:
        size = host.page_size
        first, sizes = host.get_page_buffer_meta(torch.arange(0, 2 * size))
        half = len(first) // 2
        views = [kvfs.View(f"part{i}", first[i], first[half + i] - first[i], sizes[i])
                 for i in range(half)]
        layout = {"tensors": [{"name": f"part{i}", "dtype": "U8", "shape": [sizes[i]]}
                              for i in range(half)], "layers": "tensors",
                  **({"reuse": "last"} if name.endswith(TRAILING) else {})}
        self.page_size = size
        self.space = owner.open(name, layout, host)
        self.pool = owner.session.pool(self.space, views, host.size // size, keep=host)

    def numbers(self, keys: list[str], indices: Any) -> list[int]:
        if len(indices) != len(keys) * self.page_size:
            raise ValueError(f"{len(keys)} keys, but {len(indices)} tokens of memory")
        return [index // self.page_size for index in indices[::self.page_size].tolist()]


class KvfsHiCache(HiCacheStorage):
    """SGLang's storage backend, with the settings of SGLang and kvfs.settings.Tier."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any]) -> None:
        self.config = storage_config
        extra = dict(storage_config.extra_config or {})
        for key in extra.keys() - KNOWN - set(SETTINGS):
            log.warning("kvfs: extra config has %r, which is none of %s", key, ", ".join(SETTINGS))
        self._settings = read("extra config", {key: extra[key] for key in SETTINGS if key in extra},
                              Tier)
        self.session = kvfs.open(self._settings.path, log)
        self._pages: dict[str, Pages] = {}
        self._patience = Patience(log, "look-ups", self.session.stats)
        self._quiet = 0.0  # time until which errors are not logged
        if not self.session.connected:
            log.warning("kvfs: no daemon answers at %s, or none that admits this user: everything is a miss until one does",
                        self.session.path)
        if not extra.get("interface_v1"):
            log.warning("kvfs: without \"interface_v1\": 1 SGLang copies every page in Python, and "
                        "kvfs answers that path with misses")

    def open(self, name: str, layout: dict[str, Any], host: Any) -> kvfs.Space:
        """Return the space of a pool.  The space's name covers everything that changes the bytes."""
        c = self.config
        model = c.model_name or ""
        if os.path.isdir(model):
            model = fingerprint(model, log, self._settings.weights_cache)
        shard = [0, 1] if c.is_mla_model else [c.tp_rank, c.tp_size]
        parts = {
            "model": model, "pool": str(name),
            "host": [type(host).__name__, str(getattr(host, "dtype", "")), host.layout, host.page_size],
            "shard": shard, "pp": [c.pp_rank, c.pp_size], "cp": [c.attn_cp_rank, c.attn_cp_size],
            # SGLang 0.5.22 has none of these three.
            "dcp": [getattr(c, "dcp_rank", 0), getattr(c, "dcp_size", 1), getattr(c, "logical_page_size", None)],
            "split": c.should_split_heads,
            "engine": [version, torch.__version__], "salt": self._settings.salt,
            "layout": layout,
        }
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
        return self._settings.space(self.session, f"sglang-{digest[:24]}.{name}.r{shard[0]}", layout)

    # ---- pools ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._pages[PoolName.KV.value] = Pages(self, PoolName.KV.value, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        if name not in self._pages:
            self._pages[name] = Pages(self, name, host_pool)

    # ---- look-up ----

    def _until(self) -> float:
        return time.monotonic() + self._settings.remote_wait

    def _there(self, pages: Pages, keys: list[str], until: float, first: int = 0) -> list[bool]:
        """Return for each key whether this node has the block. From @first on, other nodes are
        asked for missing keys, until @until."""
        if not self._patience.left or not keys:
            return [False] * len(keys)
        names, start = _keys(keys), time.monotonic()
        there = [state >= State.SSD for state in pages.space.probe(names)]
        self._patience.took(time.monotonic() - start)
        left = until - time.monotonic()
        if self._settings.remote and False in there[first:] and left > 0 and self._patience.left:
            first = there.index(False, first)
            with pages.space.acquire(names[first:], deadline=left) as lease:
                lease.wait()
                for i, status in enumerate(lease.statuses(), first):
                    there[i] |= status == 0
        return there

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        return int(self._safe(lambda: _run(self._there(self._pages["kv"], keys, self._until())), 0))

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists_v2(self, keys: list[str], pool_transfers: list[PoolTransfer] | None = None,
                        extra_info: HiCacheStorageExtraInfo | None = None) -> PoolTransferResult:
        def look() -> PoolTransferResult:
            until = self._until()
            hit = _run(self._there(self._pages["kv"], keys, until))
            counts: dict[str, int] = {PoolName.KV: hit} if hit else {}
            usable = set(range(1, hit + 1))
            for transfer in pool_transfers or []:
                pages, last = self._pages[str(transfer.name)], max(1, len(transfer.keys or [1]))
                if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                    there = self._there(pages, keys[:hit], until, max(0, hit - last))
                    good = {n for n in range(1, hit + 1) if all(there[max(0, n - last):n])}
                elif transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                    good = set(range(1, _run(self._there(pages, keys[:hit], until)) + 1))
                else:
                    continue  # a pool that shares the KV pages, which were looked up above
                counts[transfer.name] = max(good, default=0)
                usable &= good
            return PoolTransferResult(max(usable, default=0), counts, sorted(usable))

        result = self._safe(look, PoolTransferResult.empty())
        assert isinstance(result, PoolTransferResult)
        return result

    # ---- transfers ----

    def _get(self, pages: Pages, keys: list[str], indices: Any) -> list[bool]:
        within = self._settings.patience(WAIT)
        with pages.space.acquire(_keys(keys), deadline=within) as lease:
            transfer = pages.pool.load(lease, pages.numbers(keys, indices), deadline=WAIT)
        transfer.wait(Stage.COPIED)
        return [status == 0 for status in transfer.statuses()]

    def _set(self, pages: Pages, keys: list[str], indices: Any,
             extra_info: HiCacheStorageExtraInfo | None) -> list[bool]:
        c = self.config
        if not getattr(c, "is_storage_writer", c.tp_rank == 0 or not c.is_mla_model):  # not in SGLang 0.5.22
            return [True] * len(keys)
        before = (extra_info.prefix_keys if extra_info else None) or []
        transfer = pages.pool.save(pages.space, _keys(keys), pages.numbers(keys, indices),
                                   parent=_name(before[-1]) if before else None, position=len(before),
                                   deadline=WAIT)
        transfer.wait(Stage.COPIED)
        transfer.wait(Stage.SEALED)
        return [status >= 0 for status in transfer.statuses()]

    def batch_get_v1(self, keys: list[str], host_indices: Any,
                     extra_info: HiCacheStorageExtraInfo | None = None) -> list[bool]:
        return self._list("kv", keys, host_indices, self._get)

    def batch_set_v1(self, keys: list[str], host_indices: Any,
                     extra_info: HiCacheStorageExtraInfo | None = None) -> list[bool]:
        return self._list("kv", keys, host_indices, lambda pages, some, at: self._set(pages, some, at, extra_info))

    def batch_get_v2(self, transfers: list[PoolTransfer],
                     extra_info: HiCacheStorageExtraInfo | None = None) -> dict[str, list[bool]]:
        return {one.name: self._list(one.name, one.keys or [], one.host_indices, self._get)
                for one in transfers}

    def batch_set_v2(self, transfers: list[PoolTransfer],
                     extra_info: HiCacheStorageExtraInfo | None = None) -> dict[str, list[bool]]:
        return {one.name: self._list(one.name, one.keys or [], one.host_indices,
                                     lambda pages, some, at: self._set(pages, some, at, extra_info)) for one in transfers}

    def _list(self, pool: str, keys: list[str], indices: Any, do: Callable[..., list[bool]]) -> list[bool]:
        """Return whether @do loaded or saved the page of each key."""
        if not keys or not self._patience.left:
            return [False] * len(keys)
        result = self._safe(lambda: do(self._pages[str(pool)], keys, indices), None)
        return result if isinstance(result, list) else [False] * len(keys)

    def _safe(self, do: Callable[[], object], otherwise: Any) -> Any:
        try:
            return do()
        except Exception as error:  # an exception would end SGLang's thread
            if (now := time.monotonic()) >= self._quiet:
                self._quiet = now + QUIET
                log.warning("kvfs: %s: %s (no more errors are logged for %.0f s)",
                            type(error).__name__, error, QUIET)
            return otherwise

    # ---- the interface that copies in Python: always a miss ----

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> None:
        return None

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
                  ) -> list[None]:
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None,
            target_sizes: Any = None) -> bool:
        return False

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        return False

    def clear(self) -> None:
        """Remove the blocks of this engine's spaces."""
        for pages in self._pages.values():
            self._safe(pages.space.clear, None)


def _name(key: str) -> bytes:
    """Return a key for a name: SGLang's names are 64 hexadecimal digits, others are hashed."""
    try:
        raw = bytes.fromhex(key)
    except ValueError:
        raw = key.encode()
    return raw if len(raw) == 32 else kvfs.fold(key.encode())


def _keys(keys: list[str]) -> kvfs.Keys:
    return kvfs.Keys([_name(key) for key in keys])


def _run(there: list[bool]) -> int:
    """Return the number of leading true values."""
    return there.index(False) if False in there else len(there)


release.check(*ENGINE, KvfsHiCache, {
    HiCacheStorageConfig: "model_name is_mla_model tp_rank tp_size pp_rank pp_size attn_cp_rank attn_cp_size "
                          "should_split_heads extra_config",
    HiCacheStorageExtraInfo: "prefix_keys", PoolTransfer: "name keys hit_policy host_indices",
    PoolTransferResult: "empty restorable_prefix_pages", PoolHitPolicy: "ALL_PAGES TRAILING_PAGES"}, "open")
release.warn(*ENGINE, log)
