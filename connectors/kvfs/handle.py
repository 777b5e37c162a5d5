# SPDX-License-Identifier: Apache-2.0
"""handle - a handle of libkvfs that ends with its last user; the session ends last."""
from __future__ import annotations

from typing import Any

from ._native import ffi, lib
from .errors import I32, U64, not_c

SESSION, SPACE, LEASE, POOL, XFER = range(5)
FOREVER = (1 << 64) - 1


OPTIONS = ffi.typeof("kvfs_opts *")
OPTIONS_SIZE = ffi.sizeof("kvfs_opts")


def within(deadline: float | None) -> int:
    """Of a kvfs_opts: 0 is for ever, and a @deadline of 0 seconds has passed at once."""
    return 0 if deadline is None else max(1, nanoseconds(deadline))


def options(*, deadline: float | None = None, user: int = 0, flags: int = 0, first: int = 0,
            priority: int = 0, stream: int = 0) -> Any:
    """A kvfs_opts."""
    opts = ffi.new(OPTIONS)
    opts.size = OPTIONS_SIZE
    opts.deadline = within(deadline)
    opts.flags = flags
    try:
        opts.user = user
        opts.first = first
        opts.priority = priority
        if stream:
            opts.stream = ffi.cast("void *", stream)
    except (TypeError, OverflowError) as error:
        raise not_c(error, user=(user, U64), first=(first, U64), priority=(priority, I32),
                    stream=(stream, U64)) from None
    return opts


def nanoseconds(seconds: float | None) -> int:
    """None is for ever, and so is what is too long for C; what is negative has passed."""
    if seconds is None:
        return FOREVER
    try:
        return min(max(0, int(seconds * 1e9)), FOREVER)
    except OverflowError:
        return FOREVER if seconds > 0 else 0
    except (TypeError, ValueError) as error:
        raise type(error)(f"{seconds!r} is no time in seconds") from None


class Handle:
    """Libkvfs's pointer `c`, which has one reference of native.c's `struct held`, and @keep.
    A call that was given it holds it till it returns, whoever closes it meanwhile."""

    __slots__ = ("c", "held", "__weakref__")

    def __init__(self, c: Any, kind: int, parent: Handle | None = None, keep: object = None) -> None:
        held: Any = lib.held_new(c, kind, parent.held if parent else ffi.NULL)
        if held == ffi.NULL:
            raise MemoryError("kvfs")

        def end(_: Any, put: Any = lib.held_put, kept: object = keep) -> None:
            put(held)

        self.c: Any = ffi.gc(c, end)
        self.held: Any = held


class Owner:
    """An object with one handle, that `close` gives up before the object goes."""

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
        """Give it up.  It ends when nothing made from it is left, arrays included."""
        self._handle = None
