# SPDX-License-Identifier: Apache-2.0
"""handle - reference-counted handles of libkvfs; the session ends last."""
from __future__ import annotations

import _thread
import errno
import threading
import time
from functools import partial
from operator import is_
from typing import Any

from ._native import ffi, lib
from .errors import I32, U64, not_c

SESSION, SPACE, LEASE, POOL, XFER = range(5)
FOREVER = NO_STREAM = (1 << 64) - 1  # KVFS_FOREVER, KVFS_NO_STREAM


OPTIONS = ffi.typeof("kvfs_opts *")
OPTIONS_SIZE = ffi.sizeof("kvfs_opts")


def within(deadline: float | None) -> int:
    """Return @deadline for a kvfs_opts, where 0 means for ever; a @deadline of 0 seconds has
    passed at once."""
    return 0 if deadline is None else max(1, nanoseconds(deadline))


def options(*, deadline: float | None = None, user: int = 0, flags: int = 0, first: int = 0,
            priority: int = 0, stream: int | None = 0, event: int = 0) -> Any:
    """Return a kvfs_opts.  A @stream of None is KVFS_NO_STREAM, 0 the device's default stream."""
    opts = ffi.new(OPTIONS)
    opts.size = OPTIONS_SIZE
    opts.deadline = within(deadline)
    opts.flags = flags
    try:
        opts.user = user
        opts.first = first
        opts.priority = priority
        opts.stream = pointer("stream", NO_STREAM if stream is None else stream)
        opts.event = pointer("event", event)
    except (TypeError, OverflowError) as error:
        raise not_c(error, user=(user, U64), first=(first, U64), priority=(priority, I32)) from None
    return opts


def pointer(what: str, number: int) -> Any:
    """Return @number as a void *.  A cast alone would truncate a number that is too large."""
    if not isinstance(number, int) or not 0 <= number <= NO_STREAM:
        raise not_c(TypeError(f"{what} is {number!r}"), **{what: (number, U64)})
    return ffi.cast("void *", number) if number else ffi.NULL


def nanoseconds(seconds: float | None) -> int:
    """Return @seconds as C takes them.  None and numbers too large mean for ever; a negative
    time has passed."""
    if seconds is None:
        return FOREVER
    try:
        return min(max(0, int(seconds * 1e9)), FOREVER)
    except OverflowError:
        return FOREVER if seconds > 0 else 0
    except (TypeError, ValueError) as error:
        raise type(error)(f"{seconds!r} is not a time in seconds") from None


SLICE = 100_000_000  # ns between two chances to handle a signal


def sliced(wait: Any, what: tuple[Any, ...], timeout: float | None) -> int:
    """Call @wait(*@what, nanoseconds) for slices of @timeout seconds, because Python handles
    no signal, such as Ctrl-C, during a call into C."""
    ns = nanoseconds(timeout)
    end = time.monotonic_ns() + ns if ns > SLICE else 0
    while True:
        got: int = wait(*what, min(ns, SLICE))
        if got != -errno.ETIMEDOUT or end == 0 or (ns := end - time.monotonic_ns()) <= 0:
            return got


def apart(call: Any, *what: Any, keep: object = None) -> Any:
    """Return @call(*@what), which may take a second or more.  The main thread has another
    thread make the call, and handles signals meanwhile.  @keep lives until the call returns."""
    got: list[Any] = []
    done = _thread.allocate_lock()  # no signal can interrupt it half-way, as it can a Condition

    def run(_keep: object) -> None:
        try:
            got.append(call(*what))
        except BaseException as error:
            got.append(error)
        done.release()

    if threading.current_thread() is not threading.main_thread():
        return call(*what)
    done.acquire()
    try:
        _thread.start_new_thread(run, (keep,))
    except RuntimeError:  # the interpreter is shutting down
        return call(*what)
    done.acquire()
    if isinstance(got[0], BaseException):
        raise got[0]
    return got[0]


class Handle:
    """An object of libkvfs.  A call of libkvfs makes it in `out`; `made` then takes its pointer
    `c`, which has one reference of native.c's `struct held`, and @keep.  A call that uses the
    handle keeps it alive until the call returns, even if another thread closes it.  If Ctrl-C
    arrives between the two calls, the object ends with `out`."""

    __slots__ = ("c", "held", "out", "_keep", "__weakref__")

    def __init__(self, kind: int, parent: Handle | None = None, keep: object = None) -> None:
        held: Any = lib.held_new(kind, parent.held if parent else ffi.NULL)
        if held == ffi.NULL:
            raise MemoryError("kvfs")
        # The destructors are functions of C: a signal could interrupt a Python function.
        self.out: Any = ffi.gc(lib.held_out(held), lib.held_end)
        self.held: Any = held
        self._keep = keep

    def made(self) -> Handle:
        # A tuple releases its last item first, so `out` ends before _keep, as it must.
        self.c: Any = ffi.gc(lib.held_what(self.held), partial(is_, (self._keep, self.out)))
        self._keep = self.out = None
        return self


class Owner:
    """An object with one handle, which `close` releases before the object ends."""

    _handle: Handle | None

    @property
    def handle(self) -> Handle:
        if self._handle is None:
            raise ValueError(f"this {type(self).__name__.lower()} is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    def close(self) -> None:
        """Release the handle.  The object ends with the last object made from it, arrays
        included."""
        self._handle = None
