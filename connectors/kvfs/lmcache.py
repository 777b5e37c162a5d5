# SPDX-License-Identifier: Apache-2.0
"""lmcache - kvfs as LMCache's second level (`native_plugin`).

    {"type": "native_plugin", "module_path": "kvfs.lmcache", "class_name": "KvfsClient",
     "adapter_params": {"path": "/kvfs", "model": "/models/qwen"}}

LMCache's keys have the model's name, rank, group, hash and salt; `model`, a folder, adds its weights,
so that another model of that name shares nothing.  LMCache tells a plug-in neither dtype nor
quantization nor adapters, so these belong into `salt`.  Each size of object has a space of its own.
Another space lists the sizes, because a look-up has none.  For missing objects other nodes are asked, while
LMCache waits for the look-up's completion.  Bytes go between LMCache's memory and kvfs's by libkvfs's threads.
"""
from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import select
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from typing import Any

import kvfs
from kvfs import Stage, State, release

from ._native import ffi, lib
from .errors import Error
from .patience import Patience
from .settings import Tier, read
from .weights import fingerprint

ENGINE = ("LMCache", next((one.version for one in distributions(name="lmcache")), "unknown"), ("0.5.5", "0.5.6"))

try:
    from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import NativeConnectorL2Adapter
except ImportError as error:
    raise release.unusable(*ENGINE, error) from None

log = logging.getLogger("lmcache.kvfs")
WAIT = 10.0
REGION = 32  # log2 of the bytes of LMCache's memory in a pool
UNIT_MIN = 512
SIZES_MAX = 16  # most sizes of objects of a scope
SCOPE = re.compile(r"(.*@[0-9a-f]{8}@[0-9a-f]+)@[0-9a-f]+(@.*)?")
Completion = tuple[int, bool, str, list[bool] | None]


@dataclass(frozen=True)
class Settings(Tier):
    """The settings of Tier, and `model`: the name of a model, or the folder of its weights."""

    model: str = ""


def scope(key: str) -> str:
    """Return the scope of a key, which decides its object's size: model, rank and group."""
    found = SCOPE.fullmatch(key)
    return found[1] if found else ""


@dataclass
class Task:
    """A submitted batch: results by index, and the transfers in flight."""

    found: list[bool]
    parts: list[tuple[list[int], kvfs.Transfer]] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)
    error: str = ""

    def over(self) -> bool:
        return all(transfer.poll() for _, transfer in self.parts)

    def wait(self) -> None:
        for _, transfer in self.parts:
            transfer.wait(Stage.COPIED)

    def end(self) -> None:
        for indices, transfer in self.parts:
            for i, status in zip(indices, transfer.statuses()):
                self.found[i] = status >= 0
                if status < 0:
                    self.error = os.strerror(-status)


class Look:
    """A look-up of keys: on this node at once, then on other nodes for @wait seconds.  Known
    spaces are searched first, while other nodes are asked for more spaces."""

    error = ""

    def __init__(self, client: KvfsClient, keys: list[str], wait: float) -> None:
        self.found = [False] * len(keys)
        self._client = client
        self._names = [kvfs.fold(key.encode()) for key in keys]
        self._until = time.monotonic() + wait
        self._asked: list[tuple[list[int], kvfs.Lease]] = []
        self._sizes: list[tuple[str, list[int], kvfs.Lease]] = []
        self._scopes: dict[str, list[int]] = {}
        for i, key in enumerate(keys):
            self._scopes.setdefault(scope(key), []).append(i)
        for name in self._scopes:
            self._look(name, client.sizes.read(name))
            if self._missing(name) and (asked := client.sizes.ask(name, wait)):
                self._sizes.append((name, *asked))

    def _missing(self, name: str) -> list[int]:
        return [i for i in self._scopes[name] if not self.found[i]]

    def _look(self, name: str, sizes: Iterable[int]) -> None:
        try:
            spaces = [self._client.of(size) for size in sizes if self._client.patience.left]
            for space in spaces:
                missing = self._missing(name)
                states = self._client.answer(space.probe, [self._names[i] for i in missing])
                for i, state in zip(missing, states):
                    self.found[i] = state >= State.SSD
            missing, left = self._missing(name), self._until - time.monotonic()
            if missing and left > 0 and self._client.patience.left:
                names = kvfs.Keys([self._names[i] for i in missing])
                self._asked += [(missing, space.acquire(names, deadline=left)) for space in spaces]
        except (Error, ValueError) as error:
            self.error = str(error)

    def over(self) -> bool:
        for one in [one for one in self._sizes if one[2].poll()]:
            self._sizes.remove(one)
            self._look(one[0], self._client.sizes.learn(*one))
        return not self._sizes and all(lease.poll() for _, lease in self._asked)

    def end(self) -> None:
        for indices, lease in self._asked:
            with lease:
                for i, status in zip(indices, lease.statuses()):
                    self.found[i] |= status == 0

    def wait(self) -> None:
        """Return at once: a look-up uses no memory of LMCache."""


class KvfsClient:
    """The object that LMCache drives; thread-safe.  Parameters: Settings."""

    def __init__(self, **params: Any) -> None:
        chosen = self.settings = read("adapter_params", params, Settings)
        self.session = kvfs.open(chosen.path, log)
        self.patience = Patience(log, "look-ups", self.session.stats)
        identity = chosen.model
        if os.path.isdir(chosen.model):
            identity = fingerprint(chosen.model, log, chosen.weights_cache)
        else:
            log.warning("kvfs: 'model' is %r, no folder: name the weights, dtype, quantization and adapters in "
                        "'salt', because LMCache's keys do not", chosen.model)
        self._id = hashlib.sha256(f"{identity}\0{chosen.salt}\0{ENGINE[1]}".encode()).hexdigest()[:24]
        self._lock = threading.Lock()
        # Blocks of this space form no chain, so each is requested from other nodes by itself.
        self.sizes = Sizes(self, self._space("size", 8, reuse="last"))
        self._spaces: dict[int, kvfs.Space] = {}
        self._pools: dict[tuple[int, int, int], kvfs.Pool] = {}
        self._tasks: dict[int, Task | Look] = {}
        self._next = 0
        self._now = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._events = select.epoll()
        self._events.register(self._now, select.EPOLLIN)
        self._events.register(self.session.fileno(), select.EPOLLIN)

    def _space(self, name: str, size: int, **layout: str) -> kvfs.Space:
        return self.settings.space(self.session, f"lmcache-{self._id}.{name}", {
            "tensors": [{"name": "object", "dtype": "U8", "shape": [size]}], **layout})

    def of(self, size: int) -> kvfs.Space:
        """Return the space of objects of @size bytes."""
        if size not in self._spaces:
            self._spaces[size] = self._space(str(size), size)
        return self._spaces[size]

    def answer(self, call: Any, *arguments: Any) -> Any:
        """Return the daemon's answer; (): it was not asked, in the pause after a slow answer."""
        start = time.monotonic()
        answer = call(*arguments) if self.patience.left else ()
        self.patience.took(time.monotonic() - start)
        return answer

    # ---- the interface for LMCache ----

    def event_fd(self) -> int:
        return self._events.fileno()

    def submit_batch_set(self, keys: list[str], views: list[memoryview]) -> int:
        with self._lock:
            for name, size in {(scope(key), len(view)) for key, view in zip(keys, views)}:
                self.sizes.add(name, size)
        return self._submit(keys, views, lambda space, pool, some, pages: pool.save(
            space, some, pages, places=[(None, 0)] * len(some), deadline=WAIT))

    def submit_batch_get(self, keys: list[str], views: list[memoryview]) -> int:
        def load(space: kvfs.Space, pool: kvfs.Pool, some: list[bytes], pages: list[int]) -> kvfs.Transfer:
            with space.acquire(some, deadline=self.settings.patience(WAIT)) as lease:
                return pool.load(lease, pages, deadline=WAIT)

        return self._submit(keys, views, load)

    def submit_batch_exists(self, keys: list[str]) -> int:
        with self._lock:
            return self._add(Look(self, keys, self.settings.remote_wait if self.settings.remote else 0.0))

    def submit_batch_delete(self, keys: list[str]) -> int:
        task = Task([True] * len(keys))
        some = kvfs.Keys([kvfs.fold(key.encode()) for key in keys])
        with self._lock:
            for size in {size for name in {scope(key) for key in keys} for size in self.sizes.read(name)}:
                self.answer(self.of(size).evict, some)
            return self._add(task)

    def drain_completions(self) -> list[Completion]:
        with self._lock:
            self.session.process()
            try:
                os.eventfd_read(self._now)
            except BlockingIOError:
                pass
            done = [(id, task) for id, task in self._tasks.items() if task.over()]
            for id, task in done:
                del self._tasks[id]
                task.end()
        return [(id, all(task.found) or not task.error, task.error, task.found) for id, task in done]

    def close(self) -> None:
        with self._lock:
            for task in self._tasks.values():
                task.wait()
            self._tasks.clear()
            for pool in self._pools.values():
                pool.close()
            self._pools.clear()
            if not self._events.closed:
                self._events.close()
                os.close(self._now)
            self.session.close()

    # ---- helpers ----

    def _add(self, task: Task | Look) -> int:
        self._next += 1
        self._tasks[self._next] = task
        if task.over():
            os.eventfd_write(self._now, 1)
        return self._next

    def _submit(self, keys: list[str], views: Sequence[memoryview], begin: Any) -> int:
        task = Task([False] * len(keys), keep=list(views))
        with self._lock:
            groups: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
            if not self.patience.left:
                task.error, views = "the daemon does not answer", []
            for i, view in enumerate(views):
                address = int(ffi.cast("uintptr_t", ffi.from_buffer(view)))
                groups.setdefault(self._where(address, len(view)), []).append((i, address))
            for where, members in groups.items():
                size, unit, base = where
                pages = [(address - base) // unit + n for _, address in members for n in range(size // unit)]
                names = [kvfs.fold(keys[i].encode()) for i, _ in members]
                try:
                    transfer = begin(self.of(size), self._pool(where), names, pages)
                    task.parts.append(([i for i, _ in members], transfer))
                except (Error, ValueError) as error:
                    task.error = str(error)
            return self._add(task)

    @staticmethod
    def _where(address: int, size: int) -> tuple[int, int, int]:
        """Return size, page bytes and base of the pool of an object: a region of memory in pages
        of a common divisor, or the object alone."""
        unit = math.gcd(4096, address, size)
        if unit < UNIT_MIN or address >> REGION != address + size - 1 >> REGION:
            return size, size, address
        return size, unit, address >> REGION << REGION

    def _pool(self, where: tuple[int, int, int]) -> kvfs.Pool:
        if where not in self._pools:
            size, unit, base = where
            self._pools[where] = self.session.pool(
                self.of(size), [kvfs.View("object", base, unit, unit)],
                1 if unit == size else (1 << REGION) // unit, pages_per_block=size // unit)
        return self._pools[where]


class Sizes:
    """The sizes of objects of a scope: a model, rank and group.  Each size is a number in a
    pinned block that every process finds.  The number determines its block, so nodes agree
    without messages."""

    def __init__(self, client: KvfsClient, space: kvfs.Space) -> None:
        self._client = client
        self._space = space
        self._known: dict[str, dict[int, int]] = {}  # for each scope: its known sizes by their number

    @staticmethod
    def _keys(name: str, places: Iterable[int]) -> kvfs.Keys:
        return kvfs.Keys([kvfs.fold(f"size {place} of {name}".encode()) for place in places])

    def _unknown(self, name: str) -> list[int]:
        known = self._known.setdefault(name, {})
        return [place for place in range(SIZES_MAX) if place not in known]

    def read(self, name: str) -> set[int]:
        """Return the sizes that this node knows."""
        places = self._unknown(name)
        if places:
            states = self._client.answer(self._space.probe, self._keys(name, places))
            here = [place for place, state in zip(places, states) if state >= State.SSD]
            if here:
                with self._space.acquire(self._keys(name, here), deadline=1) as lease:
                    self._client.answer(lease.wait)
                    self._take(name, here, lease)
        return set(self._known[name].values())

    def ask(self, name: str, wait: float) -> tuple[list[int], kvfs.Lease] | None:
        """Ask other nodes for more sizes.  Pass the lease to `learn` once it has settled."""
        places = self._unknown(name)
        if not self._client.settings.remote or not places or not self._client.patience.left:
            return None
        return places, self._space.acquire(self._keys(name, places), deadline=wait)

    def learn(self, name: str, places: list[int], lease: kvfs.Lease) -> set[int]:
        """Return the sizes that were unknown at the look-up."""
        with lease:
            self._take(name, places, lease)
        return {self._known[name][place] for place in places if place in self._known[name]}

    def _take(self, name: str, places: list[int], lease: kvfs.Lease) -> None:
        for i, (place, status) in enumerate(zip(places, lease.statuses())):
            if status == 0:
                data = lib.kvfs_lease_data(lease.handle.c, i, ffi.NULL)
                self._known[name][place] = int.from_bytes(bytes(ffi.buffer(data, 8)), "little")

    def add(self, name: str, size: int) -> None:
        memory = ffi.new("char[]", size.to_bytes(8, "little"))
        base, first = int(ffi.cast("uintptr_t", memory)), size % (SIZES_MAX - 1)
        for i in range(SIZES_MAX):
            place = (first + i) % SIZES_MAX
            if size in self._known.get(name, {}).values() or size in self.read(name):
                return
            if place in self._known[name] or not self._client.patience.left:
                continue
            key = self._keys(name, [place])
            with self._client.session.pool(self._space, [kvfs.View("object", base, 8, 8)], 1, keep=memory) as pool:
                transfer = pool.save(self._space, key, [0], places=[(None, 0)], deadline=1)
                self._client.answer(transfer.wait)
                if transfer.statuses()[0] < 0:
                    return
            self._space.pin(key)


# LMCache verifies itself that KvfsClient has the methods that its adapter calls.
release.check(*ENGINE, object, {NativeConnectorL2Adapter: "event_fd submit_store_task submit_load_task delete"})
release.warn(*ENGINE, log)
