# SPDX-License-Identifier: Apache-2.0
"""tier - KvfsTier: kvfs behind vLLM's own CPU cache (OffloadingConnector, TieringOffloadingSpec).

    "secondary_tiers": [{"type": "KvfsTier", "module_path": "kvfs.vllm.tier", "path": "/kvfs"}]

vLLM's CPU buffer is the pool: blocks go between it and kvfs's memory by libkvfs's
threads.  All look-ups of a step are one round trip at its end.  Until then, and until other
nodes have answered for missing blocks, a block is RETRY.  A block that failed to load is a miss
until it is saved again.
"""
from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import kvfs
from kvfs import Stage, State, release
from kvfs.events import SSD
from kvfs.patience import Patience
from kvfs.settings import Tier, read

from . import ENGINE

try:
    from vllm.v1.kv_offload.base import (Locality, LookupResult, Medium, OffloadingEvent, OffloadingSpec, ReqContext,
                                         RequestOffloadingContext, ScheduleEndContext)
    from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
except ImportError as error:
    raise release.unusable(*ENGINE, error) from None
from .events import Follower, News
from .groups import check_hashes
from .identity import engine_core, identity, watch_weights
from .settings import allows

log = logging.getLogger("vllm.kvfs")
LOAD_WAIT = SAVE_WAIT = 10.0
LOST_MAX = 65536
KNOWN_MAX = 1 << 20


@dataclass
class Job:
    keys: list[bytes]
    transfer: kvfs.Transfer
    load: bool
    since: float


class Events(Follower):
    """Events of the blocks that this engine has stored: the tier cannot name the others."""

    def __init__(self, space: kvfs.Space, locality: Locality) -> None:
        self.keys: dict[bytes, bytes] = {}  # vLLM's by kvfs's, oldest first
        self._locality = locality
        super().__init__([space])

    def know(self, keys: list[bytes]) -> None:
        self.keys.update((kvfs.fold(key), key) for key in keys)
        while len(self.keys) > KNOWN_MAX:
            del self.keys[next(iter(self.keys))]

    def _tiers(self, entry: kvfs.Entry) -> int:
        return SSD if entry.dram or entry.ssd else 0

    def _known(self, space: kvfs.Space, key: bytes) -> bool:
        return key in self.keys

    def _made(self, space: kvfs.Space, news: News) -> list[OffloadingEvent]:
        events = []
        for removed in True, False:
            keys = [self.keys.get(key) for key, _, here in news if here != removed]
            if known := [key for key in keys if key is not None]:
                events.append(OffloadingEvent(known, Medium.STORAGE, removed, locality=self._locality, ownership="kvfs",
                                              removal_expected=True))
        return events


class KvfsTier(SecondaryTierManager):
    """A secondary tier for vLLM.  The settings are those of kvfs.settings.Tier."""

    medium = Medium.STORAGE
    _stopped = False
    _events: Events | None = None

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str,
                 backpressure_detector: Any = None, locality: str | None = None,
                 **config: Any) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        chosen = self._settings = read("secondary tier", config, Tier)
        self.locality = Locality(locality) if locality is not None else Locality.LOCAL
        self._view = primary_kv_view.cast("B")
        chunks = len(self._view) // self.block_size_bytes
        self._session = kvfs.open(chosen.path, log)
        layout = {"tensors": [{"name": "kv", "dtype": "U8", "shape": [self.block_size_bytes]}]}
        self._space = chosen.space(self._session, self._name(offloading_spec, layout), layout)
        base = int(kvfs.ffi.cast("uintptr_t", kvfs.ffi.from_buffer(self._view)))
        self._pool = self._session.pool(
            self._space, [kvfs.View("kv", base, self.block_size_bytes, self.block_size_bytes)],
            chunks, memory=self._memory(offloading_spec, base), keep=self._view)
        if getattr(engine_core().vllm_config.kv_events_config, "enable_kv_cache_events", False):
            self._events = Events(self._space, self.locality)
        self._jobs: dict[int, Job] = {}
        self._dropped: list[int] = []  # ids of jobs that saved nothing
        self._patience = Patience(log, "look-ups", self._session.stats)
        self._asked: dict[str, dict[bytes, bool | None]] = {}  # by request, key; None: no answer
        self._places: dict[str, dict[tuple[bytes, int], bytes]] = {}
        self._wanted: list[tuple[list[bytes], kvfs.Lease]] = []  # keys requested from other nodes
        self._coming: set[bytes] = set()  # the set of all keys in _wanted
        self._lost: dict[bytes, None] = {}  # oldest first
        if not self._session.connected:
            log.warning("kvfs: no daemon answers at %s, or none that admits this user: the tier is empty until one does",
                        self._session.path)

    def _name(self, spec: Any, layout: dict[str, Any]) -> str:
        """Return the identity from the EngineCore that creates the tier: vLLM passes no config."""
        core, config = engine_core(), spec.config
        check_hashes(core.vllm_config)
        if core.vllm_config.lora_config is not None:
            raise ValueError("kvfs: enable_lora is set: KvfsTier does not see an adapter's weights, only "
                             "its name and path; use KvfsConnector")
        parts = [identity(core, self._settings.weights_cache, self._settings.salt),
                 [str(group) for group in config.groups], str(config.cache), str(config.parallel),
                 config.kv_cache_layout, config.canonical_layout, config.replicated_layout, layout]
        watch_weights(core, self._stop)
        return f"vllm-tier-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]}"

    def _stop(self) -> None:
        """Stop look-ups and saves. Loads of blocks that were found before still end."""
        self._stopped = True
        if self._events is not None:
            self._events.end()

    def _memory(self, spec: Any, base: int) -> kvfs.Memory | None:
        """Return vLLM's buffer, a file in /dev/shm, from which the daemon saves directly."""
        region = getattr(spec, "_scheduler_mmap", None)
        fd = getattr(region, "fd", None)
        if not isinstance(fd, int) or os.fstat(fd).st_size != len(self._view):
            return None
        return kvfs.Memory(base, len(self._view), fd)

    # ---- look-up ----

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        if self._stopped or key in self._lost or not self._patience.left or \
                not allows(req_context.kv_transfer_params, "load"):
            return LookupResult.MISS
        asked = self._asked.setdefault(req_context.req_id, {})
        found = asked.setdefault(key, None)
        self._place(key, req_context)
        return {None: LookupResult.RETRY, True: LookupResult.HIT, False: LookupResult.MISS}[found]

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Look up all keys of this step in one round trip."""
        self._arrived()
        wanted = list({key for asked in self._asked.values() for key, found in asked.items()
                       if found is None and key not in self._coming})
        if not wanted:
            return
        start = time.monotonic()
        states = self._space.probe([kvfs.fold(key) for key in wanted])
        self._patience.took(time.monotonic() - start)
        found = {key: state >= State.SSD for key, state in zip(wanted, states)}
        if self._settings.remote and self._patience.left and not all(found.values()):
            self._ask({key for key, here in found.items() if not here})
        self._answer(found)

    def _answer(self, found: dict[bytes, bool]) -> None:
        for asked in self._asked.values():
            for key in asked.keys() & found.keys() - self._coming:
                asked[key] = found[key]

    def _ask(self, missing: set[bytes]) -> None:
        """Ask other nodes for @missing, one chain for each request and layer group."""
        for id, asked in self._asked.items():
            ends = {key: at for at, key in self._places.get(id, {}).items()}
            chains: dict[bytes, list[bytes]] = {}
            for key in sorted(asked.keys() & missing - self._coming,
                              key=lambda key: ends.get(key, (key[-4:], 0))[1]):
                chains.setdefault(key[-4:], []).append(key)
            if chains:
                keys = [key for chain in chains.values() for key in chain]
                lease = kvfs.acquire(
                    [self._space] * len(chains),
                    [kvfs.Keys([kvfs.fold(key) for key in chain]) for chain in chains.values()],
                    deadline=self._settings.remote_wait)
                self._wanted.append((keys, lease))
                self._coming.update(keys)

    def _arrived(self) -> None:
        """Blocks that arrived in time are present; the others are misses."""
        for one in [one for one in self._wanted if one[1].poll()]:
            keys, lease = one
            self._wanted.remove(one)
            self._coming.difference_update(keys)
            with lease:
                self._answer({key: status == 0 for key, status in zip(keys, lease.statuses())})

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._asked.pop(req_context.req_id, None)
        self._places.pop(req_context.req_id, None)

    def _place(self, key: bytes, req_context: ReqContext) -> int | None:
        """Return the token position at the block's end, by which later blocks find their parent."""
        end: int | None = req_context.get_offload_key_position(key)
        if end is not None:
            self._places.setdefault(req_context.req_id, {})[key[-4:], end] = key
        return end

    # ---- transfers ----

    def submit_store(self, job_metadata: TransferJob) -> None:
        keys, context = list(job_metadata.keys), job_metadata.req_context
        if self._stopped or not allows(context.kv_transfer_params, "save"):
            self._dropped.append(job_metadata.job_id)
            return
        if self._events is not None:
            self._events.know(keys)
        for key in keys:
            self._lost.pop(key, None)
        tokens = {key: self._place(key, context) for key in keys}
        places = self._places.get(context.req_id, {})
        transfer = self._pool.save(
            self._space, [kvfs.fold(key) for key in keys], [int(id) for id in job_metadata.chunk_ids],
            places=[self._parent(key, tokens[key], places) for key in keys], deadline=SAVE_WAIT)
        self._jobs[job_metadata.job_id] = Job(keys, transfer, False, time.monotonic())

    def _parent(self, key: bytes, end: int | None, places: dict[tuple[bytes, int], bytes]
                ) -> tuple[bytes | None, int]:
        group = int.from_bytes(key[-4:], "big")
        step = self._offloading_spec.tokens_per_block[group] * self._offloading_spec.blocks_per_chunk
        if end is None or end % step != 0:
            return None, 0
        before = places.get((key[-4:], end - step))
        return kvfs.fold(before) if before is not None else None, end // step - 1

    def submit_load(self, job_metadata: TransferJob) -> None:
        keys = list(job_metadata.keys)
        with self._space.acquire([kvfs.fold(key) for key in keys],
                                 deadline=self._settings.patience(LOAD_WAIT)) as lease:
            transfer = self._pool.load(lease, [int(id) for id in job_metadata.chunk_ids],
                                       deadline=LOAD_WAIT)
        self._jobs[job_metadata.job_id] = Job(keys, transfer, True, time.monotonic())

    def get_finished_jobs(self) -> Iterable[JobResult]:
        results = [JobResult(id, False, transfer_time=0.0, transfer_bytes=0) for id in self._dropped]
        self._dropped = []
        for id, job in list(self._jobs.items()):
            if job.transfer.poll():
                del self._jobs[id]
                results.append(self._result(id, job))
        return results

    def _result(self, id: int, job: Job) -> JobResult:
        statuses = job.transfer.statuses()
        good = [key for key, status in zip(job.keys, statuses) if status >= 0]
        for key, status in zip(job.keys, statuses):
            if job.load and status < 0:
                self._lose(key)
        took = time.monotonic() - job.since
        return JobResult(id, len(good) == len(job.keys),
                         tuple(good) if job.load and 0 < len(good) < len(job.keys) else None,
                         transfer_time=took, transfer_bytes=len(good) * self.block_size_bytes)

    def _lose(self, key: bytes) -> None:
        self._lost[key] = None
        while len(self._lost) > LOST_MAX:
            self._lost.pop(next(iter(self._lost)))
        for asked in self._asked.values():
            if key in asked:
                asked[key] = False

    def take_events(self) -> list[OffloadingEvent]:
        return self._events.take() if self._events is not None else []

    def has_pending_work(self) -> bool:
        return bool(self._jobs or self._dropped or self._wanted)

    def drain_jobs(self) -> None:
        for job in self._jobs.values():
            job.transfer.wait(Stage.COPIED if job.load else Stage.SEALED)

    def shutdown(self) -> None:
        self.drain_jobs()
        self._jobs.clear()
        self._wanted.clear()
        if self._events is not None:
            self._events.end()
        self._pool.close()
        self._session.close()
        self._view = memoryview(b"")


release.check(*ENGINE, KvfsTier, {
    TransferJob: "job_id keys chunk_ids req_context", OffloadingSpec: "tokens_per_block blocks_per_chunk",
    ReqContext: "req_id kv_transfer_params get_offload_key_position",
    SecondaryTierManager: "block_size_bytes _offloading_spec"})
