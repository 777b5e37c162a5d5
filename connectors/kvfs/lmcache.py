# SPDX-License-Identifier: Apache-2.0
"""lmcache - kvfs as LMCache's second level (`native_plugin`).

    {"type": "native_plugin", "module_path": "kvfs.lmcache", "class_name": "KvfsClient",
     "adapter_params": {"path": "/kvfs", "model": "/models/qwen"}}

LMCache's keys have the model's name, rank, group, hash and salt; `model`, a folder,
adds its weights, so that another model of that name shares nothing.  Each size of
object is a space of its own; which sizes there are stands in a space, too, since a
look-up tells none.  Bytes go between LMCache's memory and kvfs's by libkvfs's threads.
"""
from __future__ import annotations

import hashlib
import math
import os
import select
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import kvfs
from kvfs import Stage, State

from ._native import ffi, lib
from .errors import Error
from .weights import fingerprint

WAIT = 10.0
REGION = 32  # log2 of the bytes that a pool of LMCache's memory spans
UNIT_MIN = 512
Completion = tuple[int, bool, str, list[bool] | None]


@dataclass
class Task:
    """What was submitted: bools by index, and what is still under way."""

    found: list[bool]
    parts: list[tuple[list[int], kvfs.Transfer]] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)
    error: str = ""

    def over(self) -> bool:
        return all(transfer.poll() for _, transfer in self.parts)

    def end(self) -> None:
        for indices, transfer in self.parts:
            for i, status in zip(indices, transfer.statuses()):
                self.found[i] = status >= 0
                if status < 0:
                    self.error = os.strerror(-status)


class KvfsClient:
    """The object that LMCache drives; thread-safe.  `path`: mount point or socket."""

    def __init__(self, path: str, model: str = "", salt: str = "", mode: str = "0700",
                 shared: bool = False) -> None:
        if not isinstance(path, str) or not path.startswith("/"):
            raise ValueError(f"kvfs: adapter_params: 'path' is {path!r}; it must be an absolute path")
        self._session = kvfs.open(path)
        identity = fingerprint(model) if os.path.isdir(model) else model
        self._id = hashlib.sha256(f"{identity}\0{salt}".encode()).hexdigest()[:24]
        self._mode, self._shared = int(mode, 8), shared
        self._lock = threading.Lock()
        self._sizes = Sizes(self._space("sizes", 8))
        self._spaces: dict[int, kvfs.Space] = {}
        self._pools: dict[tuple[int, int, int], kvfs.Pool] = {}
        self._tasks: dict[int, Task] = {}
        self._next = 0
        self._now = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._events = select.epoll()
        self._events.register(self._now, select.EPOLLIN)
        self._events.register(self._session.fileno(), select.EPOLLIN)

    def _space(self, name: str, size: int) -> kvfs.Space:
        try:
            return self._session.space(f"lmcache-{self._id}.{name}", {"tensors": [
                {"name": "object", "dtype": "U8", "shape": [size]}]}, create=True, mode=self._mode,
                shared=self._shared)
        except Error as error:
            raise ValueError(f"kvfs: cannot use {self._session.path}: {error.strerror}") from error

    def _of(self, size: int) -> kvfs.Space:
        if size not in self._spaces:
            self._spaces[size] = self._space(str(size), size)
        return self._spaces[size]

    # ---- what LMCache calls ----

    def event_fd(self) -> int:
        return self._events.fileno()

    def submit_batch_set(self, keys: list[str], views: list[memoryview]) -> int:
        def save(space: kvfs.Space, pool: kvfs.Pool, some: list[bytes], pages: list[int]
                 ) -> kvfs.Transfer:
            return pool.save(space, some, pages, places=[(None, 0)] * len(some), deadline=WAIT)

        for size in {len(view) for view in views}:
            self._sizes.add(size, self._session)
        return self._submit(keys, views, save)

    def submit_batch_get(self, keys: list[str], views: list[memoryview]) -> int:
        def load(space: kvfs.Space, pool: kvfs.Pool, some: list[bytes], pages: list[int]
                 ) -> kvfs.Transfer:
            with space.acquire(some, deadline=WAIT) as lease:
                return pool.load(lease, pages, deadline=WAIT)

        return self._submit(keys, views, load)

    def submit_batch_exists(self, keys: list[str]) -> int:
        task = Task([False] * len(keys))
        some = kvfs.Keys([kvfs.fold(key.encode()) for key in keys])
        with self._lock:
            for size in self._sizes.read():
                for i, state in enumerate(self._of(size).probe(some)):
                    task.found[i] |= state >= State.SSD
            return self._add(task)

    def submit_batch_delete(self, keys: list[str]) -> int:
        task = Task([True] * len(keys))
        some = kvfs.Keys([kvfs.fold(key.encode()) for key in keys])
        with self._lock:
            for size in self._sizes.read():
                self._of(size).evict(some)
            return self._add(task)

    def drain_completions(self) -> list[Completion]:
        with self._lock:
            self._session.process()
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
                for _, transfer in task.parts:
                    transfer.wait(Stage.COPIED)
            self._tasks.clear()
            for pool in self._pools.values():
                pool.close()
            self._pools.clear()
            if not self._events.closed:
                self._events.close()
                os.close(self._now)
            self._session.close()

    # ---- how ----

    def _add(self, task: Task) -> int:
        self._next += 1
        self._tasks[self._next] = task
        if task.over():
            os.eventfd_write(self._now, 1)
        return self._next

    def _submit(self, keys: list[str], views: Sequence[memoryview], begin: Any) -> int:
        task = Task([False] * len(keys), keep=list(views))
        with self._lock:
            groups: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
            for i, view in enumerate(views):
                address = int(ffi.cast("uintptr_t", ffi.from_buffer(view)))
                groups.setdefault(self._where(address, len(view)), []).append((i, address))
            for where, members in groups.items():
                size, unit, base = where
                pages = [(address - base) // unit + n for _, address in members
                         for n in range(size // unit)]
                names = [kvfs.fold(keys[i].encode()) for i, _ in members]
                try:
                    transfer = begin(self._of(size), self._pool(where), names, pages)
                    task.parts.append(([i for i, _ in members], transfer))
                except Error as error:
                    task.error = str(error.strerror)
            return self._add(task)

    @staticmethod
    def _where(address: int, size: int) -> tuple[int, int, int]:
        """(size, bytes of a page, base) of the pool in which it lies: a stretch of memory
        in pages that divide all, or the object alone."""
        unit = math.gcd(4096, address, size)
        if unit < UNIT_MIN or address >> REGION != address + size - 1 >> REGION:
            return size, size, address
        return size, unit, address >> REGION << REGION

    def _pool(self, where: tuple[int, int, int]) -> kvfs.Pool:
        if where not in self._pools:
            size, unit, base = where
            self._pools[where] = self._session.pool(
                self._of(size), [kvfs.View("object", base, unit, unit)],
                1 if unit == size else (1 << REGION) // unit, pages_per_block=size // unit)
        return self._pools[where]


class Sizes:
    """Which sizes of objects there are: blocks 0, 1, ... of a space with a number each,
    pinned, so that every process finds those of the others."""

    def __init__(self, space: kvfs.Space) -> None:
        self._space = space
        self._known: list[int] = []

    def read(self) -> list[int]:
        while True:
            key = kvfs.fold(f"size {len(self._known)}".encode())
            if self._space.match([key]) == 0:
                return self._known
            with self._space.acquire([key], deadline=1) as lease:
                if lease.wait() == 0:
                    return self._known
                data = lib.kvfs_lease_data(lease.handle.c, 0, ffi.NULL)
                self._known.append(int.from_bytes(bytes(ffi.buffer(data, 8)), "little"))

    def add(self, size: int, session: kvfs.Session) -> None:
        memory = ffi.new("char[]", size.to_bytes(8, "little"))
        base = int(ffi.cast("uintptr_t", memory))
        while size not in self._known and session.connected:
            if size in self.read():
                return
            key = kvfs.fold(f"size {len(self._known)}".encode())
            with session.pool(self._space, [kvfs.View("object", base, 8, 8)], 1, keep=memory) as pool:
                transfer = pool.save(self._space, [key], [0], places=[(None, 0)], deadline=1)
                transfer.wait()
                if transfer.statuses()[0] < 0:
                    return
            self._space.pin([key])
