# SPDX-License-Identifier: Apache-2.0
"""space - the blocks of one model, layout, rank and tenant."""
from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ._native import ffi, lib
from .errors import check
from .handle import SPACE, XFER, Handle, Owner, options
from .keys import Keys, Name
from .lease import Lease
from .transfer import Stage, Transfer

if TYPE_CHECKING:
    from .session import Awaited


class State(enum.IntEnum):
    """Where a block is."""

    ABSENT = lib.KVFS_ABSENT
    SAVING = lib.KVFS_SAVING
    REMOTE = lib.KVFS_REMOTE
    SSD = lib.KVFS_SSD
    DRAM = lib.KVFS_DRAM


def query(spaces: Sequence[Space], keys: Sequence[Keys]) -> tuple[Any, list[Any]]:
    """(kvfs_query array, what it points to)"""
    array = ffi.new("kvfs_query[]", len(spaces))
    for i, (space, some) in enumerate(zip(spaces, keys)):
        array[i].space, array[i].keys, array[i].n = space.handle.c, some.c, len(some)
    return array, [spaces, keys]


def match(spaces: Sequence[Space], keys: Sequence[Keys]) -> int:
    """Blocks of the prefix from which every space can go on, by its reuse rule: one
    space for each rank or layer group of a model, with its keys."""
    array, _kept = query(spaces, keys)
    return check(lib.kvfs_match(array, len(spaces)), "match")


def acquire(spaces: Sequence[Space], keys: Sequence[Keys], *, deadline: float | None = None,
            wait_saving: bool = False, read_ahead: bool = False) -> Lease:
    """One lease on blocks of several spaces; indices run through all keys."""
    array, _kept = query(spaces, keys)
    out = ffi.new("kvfs_lease **")
    flags = (lib.KVFS_WAIT_SAVING if wait_saving else 0) | (lib.KVFS_READ_AHEAD if read_ahead else 0)
    opts = options(deadline=deadline, flags=flags)
    check(lib.kvfs_acquire(array, len(spaces), opts, out), "acquire")
    return Lease(out[0], spaces[0]._session, spaces[0]._awaited, spaces, keys)


class Space(Owner):
    """Look-ups block for one round trip to the daemon, at most a second; then they miss."""

    def __init__(self, session: Handle, awaited: Awaited, name: str, layout: str | None,
                 flags: int) -> None:
        out = ffi.new("kvfs_space **")
        self._handle = None
        self.name = name
        check(lib.kvfs_space_open(session.c, name.encode(),
                                  layout.encode() if layout is not None else ffi.NULL, flags, out),
              f"space {name}")
        self._handle = Handle(out[0], SPACE, session)
        self._session = session
        self._awaited = awaited
        self._tensors: list[tuple[str, str, tuple[int, ...]]] | None = None

    def __enter__(self) -> Space:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<space {self.name}>"

    # ---- what it is ----

    @property
    def layout(self) -> dict[str, Any] | None:
        """The canonical layout; None: untyped."""
        text = lib.kvfs_space_layout(self.handle.c)
        return None if text == ffi.NULL else dict(json.loads(ffi.string(text)))

    @property
    def tensors(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """(name, dtype, shape) of a block's tensors, in file order."""
        if self._tensors is None:
            self._tensors = [(t["name"], t["dtype"], tuple(t["shape"]))
                             for t in (self.layout or {"tensors": []})["tensors"]]
        return self._tensors

    @property
    def payload(self) -> int:
        """Bytes of a block's tensors; 0: untyped."""
        return int(lib.kvfs_space_payload(self.handle.c))

    def owner(self) -> tuple[int, int]:
        """(uid, mode) when the daemon was last asked.  ENOTCONN."""
        uid, mode = ffi.new("uint32_t *"), ffi.new("uint32_t *")
        check(lib.kvfs_space_owner(self.handle.c, uid, mode), f"owner of {self.name}")
        return int(uid[0]), int(mode[0])

    def chain(self, tokens: Sequence[int], parent: Name | None = None) -> Keys:
        """kvfs's own keys of the full blocks of @tokens, for engines that have none."""
        array = ffi.new("uint32_t[]", list(tokens))
        keys = ffi.new("kvfs_key[]", max(1, len(tokens)))
        before = Keys([parent]).c if parent is not None else ffi.NULL
        n = check(lib.kvfs_key_chain(self.handle.c, before, array, len(tokens), ffi.NULL, 0, keys,
                                     len(tokens)), f"keys of {self.name}")
        return Keys.from_c(keys, n)

    # ---- look-up ----

    def match(self, keys: Iterable[Name]) -> int:
        """Blocks of the usable prefix of @keys."""
        return match([self], [Keys.of(keys)])

    def probe(self, keys: Iterable[Name]) -> list[State]:
        """Where each is."""
        some = Keys.of(keys)
        array, _kept = query([self], [some])
        states = ffi.new("uint8_t[]", max(1, len(some)))
        check(lib.kvfs_probe(array, 1, states), f"probe {self.name}")
        return [State(state) for state in states[0:len(some)]]

    def acquire(self, keys: Iterable[Name], *, deadline: float | None = None,
                wait_saving: bool = False, read_ahead: bool = False) -> Lease:
        """Bring @keys into DRAM and hold them there, within @deadline seconds.  Returns
        at once; `wait` for it."""
        return acquire([self], [Keys.of(keys)], deadline=deadline, wait_saving=wait_saving,
                       read_ahead=read_ahead)

    def prefetch(self, keys: Iterable[Name], *, deadline: float | None = None) -> Transfer:
        """A hint: these will be wanted soon."""
        some = Keys.of(keys)
        array, _kept = query([self], [some])
        out = ffi.new("kvfs_xfer **")
        check(lib.kvfs_prefetch(array, 1, options(deadline=deadline), out), f"prefetch {self.name}")
        return self._transfer(out[0], some, Stage.COPIED, "prefetch")

    # ---- housekeeping ----

    def flush(self, stage: Stage = Stage.DURABLE) -> Transfer:
        """A barrier: all that was saved before is sealed, or durable."""
        out = ffi.new("kvfs_xfer **")
        check(lib.kvfs_flush(self.handle.c, stage, ffi.NULL, out), f"flush {self.name}")
        return Transfer(Handle(out[0], XFER, self._session), self._awaited, None, 1, stage,
                        f"flush {self.name}")

    def evict(self, keys: Iterable[Name]) -> int:
        """Remove from all tiers; returns how many there were."""
        some = Keys.of(keys)
        return check(lib.kvfs_evict(self.handle.c, some.c, len(some), ffi.NULL),
                     f"evict {self.name}")

    def ended(self, keys: Iterable[Name]) -> None:
        """A hint: the conversation with these is over, they may go before others."""
        some = Keys.of(keys)
        check(lib.kvfs_ended(self.handle.c, some.c, len(some)), f"ended {self.name}")

    def pin(self, keys: Iterable[Name]) -> int:
        some = Keys.of(keys)
        return check(lib.kvfs_pin(self.handle.c, some.c, 0, len(some), ffi.NULL),
                     f"pin {self.name}")

    def unpin(self, keys: Iterable[Name]) -> int:
        some = Keys.of(keys)
        return check(lib.kvfs_unpin(self.handle.c, some.c, 0, len(some), ffi.NULL),
                     f"unpin {self.name}")

    def clear(self) -> None:
        """Drop every block; a minute at most."""
        check(lib.kvfs_space_clear(self.handle.c), f"clear {self.name}")

    def _transfer(self, c: Any, keys: Keys, stage: Stage, what: str) -> Transfer:
        return Transfer(Handle(c, XFER, self._session), self._awaited, keys, len(keys), stage,
                        f"{what} {self.name}")
