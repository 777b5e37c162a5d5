# SPDX-License-Identifier: Apache-2.0
"""session - a connection with the daemon, and its completions for asyncio."""
from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ._native import ffi, lib
from .errors import Error, check, not_c, text, U32
from .handle import FOREVER, SESSION, Handle, Owner, apart, nanoseconds
from .pool import Memory, Pool, View
from .space import Space


EVENTS = ffi.typeof("kvfs_event[]")
POLL_MOST = 2**31 - 1  # ms


class What(enum.IntEnum):
    """The kind of object that an event reports."""

    CONNECTION = lib.KVFS_EVENT_CONNECTION
    LEASE = lib.KVFS_EVENT_LEASE
    TRANSFER = lib.KVFS_EVENT_XFER
    MAP = lib.KVFS_EVENT_MAP


class Event(NamedTuple):
    """A lease has settled, or a transfer has reached @stage, with @result blocks of @n; or the
    connection was lost (@result 0, or a negative errno) or made (1).  @generation is
    the current connection's."""

    what: What
    user: int
    stage: int
    result: int
    n: int
    generation: int


class Session(Owner):
    """A connection with the daemon, for several threads.  A session does not survive a fork:
    in the child all calls raise EBADF."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._handle = None
        handle = Handle(SESSION)
        self.path = os.fsdecode(path)
        text("the path", self.path)
        check(apart(lib.kvfs_open, os.fsencode(path), handle.out), f"open {self.path}")
        self._handle = handle.made()
        self._awaited = Awaited(self._handle)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        super().close()
        self.__dict__.pop("_awaited", None)  # the futures hold the handle

    def space(self, name: str, layout: str | Mapping[str, Any] | None = None, *,
              create: bool = False, mode: int = 0o700, shared: bool = False) -> Space:
        """Open the space @name.  With @create an absent space is made with @layout and @mode;
        an existing one must belong to the caller, or with @shared to any user."""
        if layout is not None and not isinstance(layout, str):
            layout = json.dumps(layout)
        if not isinstance(mode, int) or not 0 <= mode <= 0o777:
            raise ValueError(f"mode is {mode!r}, not 0 to 0o777")
        flags = (lib.KVFS_CREATE | mode if create else 0) | (lib.KVFS_SHARED if shared else 0)
        return Space(self.handle, self._awaited, name, layout, flags)

    def pool(self, space: Space, views: Sequence[View], pages: int, *, pages_per_block: int = 1,
             device: str = "host", memory: Memory | None = None, keep: object = None) -> Pool:
        """Register memory of the caller as a pool.  @keep owns the memory, and is referenced
        until the pool has been closed.  With @memory, saves copy once instead of twice."""
        return Pool(self.handle, self._awaited, space, views, pages, pages_per_block, device, memory,
                    keep)

    @property
    def connected(self) -> bool:
        return check(lib.kvfs_connected(self.handle.c), "connected") == 1

    @property
    def generation(self) -> int:
        """The number of connections so far.  Leases of an earlier connection are lost."""
        number = ffi.new("uint64_t *")
        check(lib.kvfs_connection(self.handle.c, number), "generation")
        return int(number[0])

    def stats(self) -> str:
        """Return the daemon's figures, as in .kvfs/stats.  ENOTCONN."""
        out = ffi.new("char **")
        check(apart(lib.kvfs_stats, self.handle.c, out), "stats")
        try:
            return bytes(ffi.string(out[0])).decode()
        finally:
            lib.text_free(out[0])

    def fileno(self) -> int:
        """Return a descriptor that polls readable when something has completed since the last
        `process`."""
        return check(lib.kvfs_fd(self.handle.c), "fd")

    def process(self) -> int:
        """Return how many leases and transfers have completed since the last call."""
        return check(lib.kvfs_process(self.handle.c), "process")

    def reap(self, at_most: int = 64) -> list[Event]:
        """Return the events since the last call, oldest first: of existing leases and transfers
        that were begun with a number (`user`), and of the connection.  Use it instead of
        `process` and `await`."""
        try:
            events = ffi.new(EVENTS, at_most)
        except (TypeError, ValueError, OverflowError) as error:
            raise not_c(error, at_most=(at_most, U32)) from None
        n = check(lib.kvfs_reap(self.handle.c, events, at_most), "reap")
        return [Event(What(c.what), c.user, c.stage, c.result, c.n, c.generation)
                for c in events[0:n]]

    def wait(self, timeout: float | None = None) -> bool:
        """Block until there is an event that was not reaped or processed yet.  Return False
        if there is none within @timeout seconds."""
        poller = select.poll()
        poller.register(self.fileno(), select.POLLIN)
        ns = nanoseconds(timeout)
        return bool(poller.poll(min(-(-ns // 1000000), POLL_MOST) if ns != FOREVER else None))


Waiting = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]", Callable[[], bool]]


class Awaited:
    """Futures of any number of event loops on one kvfs_fd.  The loop that wakes up first
    completes the futures of all loops."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._waiting: list[Waiting] = []

    async def until(self, done: Callable[[], bool]) -> None:
        """Return once @done() is true.  The callback runs whenever something has completed."""
        if done():
            return
        loop = asyncio.get_running_loop()
        item = (loop, loop.create_future(), done)
        with self._lock:
            if self._fd is None:
                self._fd = check(lib.kvfs_fd(self._handle.c), "fd")
            self._waiting.append(item)
        loop.add_reader(self._fd, self._readable)
        try:
            self.look()
            await item[1]
        finally:
            with self._lock:
                if item in self._waiting:
                    self._waiting.remove(item)
                last = all(other is not loop for other, _, _ in self._waiting)
            if last:
                loop.remove_reader(self._fd)

    def _readable(self) -> None:
        lib.kvfs_process(self._handle.c)
        self.look()

    def look(self) -> None:
        """Complete the futures whose condition holds."""
        if not self._waiting:
            return
        with self._lock:
            over: list[Waiting] = []
            waiting: list[Waiting] = []
            for item in self._waiting:
                (over if _is_over(item[2]) else waiting).append(item)
            self._waiting = waiting
        for loop, future, _ in over:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(_settle, future)


def _is_over(done: Callable[[], bool]) -> bool:
    """Return whether an object is done, or closed: then the awaiting tasks get an error."""
    try:
        return done()
    except (ValueError, Error):
        return True


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


__all__ = ["Awaited", "Error", "Event", "Session", "What"]
