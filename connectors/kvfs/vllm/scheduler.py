# SPDX-License-Identifier: Apache-2.0
"""scheduler - KvfsConnector in vLLM's scheduler: what is there, what to load and save.

A match is a lease: from the moment a request is told of tokens until a worker has copied
them they cannot be evicted.  It is given up when vLLM discards the match, when the load
is over and when the request ends.  Blocks on SSD are read into DRAM before a request
is told of them, which waits for them (None), at most `ssd_wait` seconds.
"""
from __future__ import annotations

import hashlib
import os
import time
from typing import Any

import kvfs
from kvfs.patience import Patience
from kvfs.space import acquire, match
from kvfs.weights import fingerprint

from .groups import Spaces
from .messages import Blocks, Plan, Report
from .settings import Settings

FAILED_MAX = 65536


class Held:
    """The blocks from @first on that are leased for a request."""

    def __init__(self, first: int, keys: list[bytes], lease: kvfs.Lease) -> None:
        self.first = first
        self.keys = keys
        self.lease = lease
        self.n: int | None = None  # once it has settled
        self.waited = False


class Request:
    """What the scheduler remembers of one of vLLM's."""

    def __init__(self, request: Any, salt: bytes) -> None:
        self.request = request
        self.held: Held | None = None
        self.salt_with(salt)

    def salt_with(self, salt: bytes) -> None:
        """Its blocks have other names from now on."""
        self.salt = salt
        self._keys: list[bytes] = []
        self.saved = 0  # blocks from the beginning that were offered

    def keys(self) -> list[bytes]:
        """Of the full blocks whose tokens are known: vLLM's hashes, or with a salt (an
        adapter's weights; the cache was reset) hashes of them."""
        hashes = self.request.block_hashes
        for i in range(len(self._keys), len(hashes)):
            hash = bytes(hashes[i])
            if self.salt:
                hash = hashlib.sha256(self.salt + hash).digest()
            elif len(hash) != 32:
                hash = kvfs.fold(hash)
            self._keys.append(hash)
        return self._keys


class Scheduler:
    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
        self._spaces = Spaces(vllm_config, kv_cache_config, settings, None)
        self._flat = [space for spaces in self._spaces.by_group for space in spaces]
        self._windows = [group.window for group, spaces in
                         zip(self._spaces.groups, self._spaces.by_group) for _ in spaces]
        self._tokens: int = self._spaces.block_tokens
        self._settings = settings
        self._patience = Patience()
        self._requests: dict[str, Request] = {}
        self._loads: list[Blocks] = []
        self._failed: dict[bytes, None] = {}  # blocks that did not load, oldest first
        self._failures_seen = 0
        self._reset = b""
        self._spaces.connected

    # ---- requests come and go ----

    def new(self, request: Any) -> Request:
        known = self._requests.get(request.request_id)
        if known is None or known.request is not request:
            salt = self._reset
            adapter = getattr(request, "lora_request", None)
            if adapter is not None:
                path = adapter.lora_path
                salt += b"adapter" + (fingerprint(path) if os.path.isdir(path) else path).encode()
            known = self._requests[request.request_id] = Request(request, salt)
        return known

    def finished(self, request: Any) -> None:
        known = self._requests.pop(request.request_id, None)
        if known is not None:
            self._drop(known)

    def reset(self) -> None:
        """From now on nothing that was saved before is found, by this engine: others,
        and what they saved, are left alone."""
        self._reset = os.urandom(16)
        for known in self._requests.values():
            self._drop(known)
            known.salt_with(self._reset + known.salt)

    @staticmethod
    def _drop(known: Request) -> None:
        if known.held is not None:
            known.held.lease.close()
            known.held = None

    # ---- look-up ----

    def match(self, request: Any, computed: int) -> int | None:
        """Tokens beyond @computed that are in DRAM and held; None: ask again."""
        known = self.new(request)
        first = computed // self._tokens
        if getattr(request, "skip_reading_prefix_cache", False):
            return 0
        held = known.held
        if held is None or held.first != first or not self._whole(held):
            self._drop(known)
            held = known.held = self._hold(known, first)
        if held is None:
            return 0
        if held.n is None:
            if not held.lease.poll():
                try:
                    held.lease.wait(0.001)
                except TimeoutError:
                    held.waited = True
                    return None
            held.n = self._usable(held)
        if held.n == 0:
            self._drop(known)
            return 0
        return held.n * self._tokens

    def _whole(self, held: Held) -> bool:
        return not any(key in self._failed for key in held.keys)

    def _hold(self, known: Request, first: int) -> Held | None:
        # One token at least is left to be computed.
        end = (known.request.num_tokens - 1) // self._tokens
        keys = known.keys()[first:end]
        for i, key in enumerate(keys):
            if key in self._failed:
                keys = keys[:i]
                break
        if not keys or not self._patience.left or not self._spaces.connected:
            return None
        start = time.monotonic()
        packed = kvfs.Keys(keys)
        n = match(self._flat, [packed] * len(self._flat))
        self._patience.took(time.monotonic() - start)
        if n == 0:
            return None
        parts = [packed[max(0, n - window) if window else 0:n] for window in self._windows]
        return Held(first, keys[:n], acquire(self._flat, parts, deadline=self._settings.ssd_wait))

    def _usable(self, held: Held) -> int:
        """Blocks that every space has: of a window all, of a prefix those before the first
        that is lost."""
        statuses, at, n = held.lease.statuses(), 0, len(held.keys)
        usable = n
        for window in self._windows:
            size = min(window, n) if window else n
            good = next((i for i, s in enumerate(statuses[at:at + size]) if s != 0), size)
            at += size
            usable = min(usable, good if not window else n if good == size else 0)
        return usable if usable == n or not any(self._windows) else 0

    def allocated(self, request: Any, block_ids: tuple[list[int], ...], tokens: int) -> None:
        known = self.new(request)
        held = known.held
        if tokens == 0 or held is None:
            # Discarded; or the blocks after those that were loaded asynchronously.
            if held is not None and not any(load.request == request.request_id for load in self._loads):
                self._drop(known)
            return
        n = tokens // self._tokens
        self._loads.append(Blocks(request.request_id, held.first, held.keys[:n], None,
                                  [list(ids[held.first:held.first + n]) for ids in block_ids]))

    def waited(self, request: Any) -> bool:
        """Whether what was matched came from SSD."""
        known = self._requests.get(request.request_id)
        return bool(known and known.held and known.held.waited)

    # ---- a step ----

    def plan(self, output: Any) -> Plan:
        plan = Plan(self._loads, [], self._failures_seen)
        self._loads = []
        if not self._spaces.connected:
            return plan
        offered: set[bytes] = set()
        for id, scheduled in output.num_scheduled_tokens.items():
            known = self._requests.get(id)
            if known is None:
                continue
            # Tokens that are only promised (asynchronous scheduling) are not known yet.
            tokens = min(known.request.num_computed_tokens + scheduled, known.request.num_tokens)
            keys = known.keys()
            end = min(tokens // self._tokens, len(keys))
            if end > known.saved:
                self._offer(plan, known, end, output.kv_connector_block_state.resolve_block_ids(id),
                            offered)
        return plan

    def _offer(self, plan: Plan, known: Request, end: int, block_ids: tuple[list[int], ...],
               offered: set[bytes]) -> None:
        keys = known.keys()
        first = known.saved
        while first < end and keys[first] in offered:
            first += 1
        known.saved = end
        if first == end:
            return
        offered.update(keys[first:end])
        for key in keys[first:end]:
            self._failed.pop(key, None)
        plan.saves.append(Blocks(known.request.request_id, first, keys[first:end],
                                 keys[first - 1] if first else None,
                                 [list(ids[first:end]) for ids in block_ids]))

    def hear(self, report: Report) -> None:
        for id in report.loaded:
            if (known := self._requests.get(id)) is not None:
                self._drop(known)
        for key in report.failed:
            self._failed[key] = None
        while len(self._failed) > FAILED_MAX:
            self._failed.pop(next(iter(self._failed)))
        for id in report.dropped:
            if (known := self._requests.get(id)) is not None:
                known.saved = 0
        self._failures_seen += report.failures

    def close(self) -> None:
        for known in self._requests.values():
            self._drop(known)
        self._spaces.session.close()
