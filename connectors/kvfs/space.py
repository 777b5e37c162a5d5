# SPDX-License-Identifier: Apache-2.0
"""space - the blocks of one model, layout, rank and tenant."""
from __future__ import annotations

import dataclasses
import enum
import errno
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ._native import ffi, lib
from .errors import U32, U64, Error, check, not_c, numbers_not_c, text
from .handle import (LEASE, SLICE, SPACE, XFER, Handle, Owner, apart, nanoseconds, options, within)
from .keys import KEYS, Keys, Name
from .lease import Lease
from .transfer import Stage, Transfer

if TYPE_CHECKING:
    from .session import Awaited


class State(enum.IntEnum):
    """The state of a block: absent, being saved, or the tier that has it."""

    ABSENT = lib.KVFS_ABSENT
    SAVING = lib.KVFS_SAVING
    REMOTE = lib.KVFS_REMOTE
    SSD = lib.KVFS_SSD
    DRAM = lib.KVFS_DRAM


# Why a block is absent, as enum kvfs_cause; QUOTA to BUDGET: the block was refused.
Cause = enum.IntEnum("Cause", "NONE UNSEEN EVICTED_DRAM EVICTED_SSD REMOVED EXPIRED QUOTA RATE ROOM PARENT BUDGET "
                              "DAMAGED OFFLINE", start=0)


@dataclasses.dataclass(frozen=True)
class Miss:
    """A key, and why its block is absent; of a look-up also its time, its number of keys and
    the key's place among them."""

    key: bytes
    cause: Cause
    since: int  # Unix time of the cause; UNSEEN: since when nothing is known; 0: hidden
    idle: int  # seconds between the block's last use and `since`
    asked: float  # Unix time
    place: int
    n: int

    @classmethod
    def from_c(cls, c: Any) -> Miss:
        return cls(bytes(ffi.buffer(c.key.bytes, c.key.len)), Cause(c.cause), c.since, c.idle,
                   c.asked_ns / 1e9, c.place, c.n)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A block in a listing."""

    key: bytes
    parent: bytes | None  # None: unknown
    position: int
    tokens: int  # number of its tokens; 0: unknown
    dram: int  # bytes that it holds in DRAM
    ssd: int
    used: int  # last use, in seconds of Unix time
    hits: int
    pinned: bool

    @classmethod
    def from_c(cls, c: Any) -> Entry:
        parent = bytes(ffi.buffer(c.parent.bytes, c.parent.len)) if c.parent.len else None
        return cls(bytes(ffi.buffer(c.key.bytes, c.key.len)), parent, c.position, c.tokens,
                   c.bytes_dram, c.bytes_ssd, c.used, c.hits, bool(c.pinned))


LIST_MIN = lib.KVFS_LIST_MIN
CHANGES_AT_ONCE = 512
TOKENS_ROOM = 4 * lib.KVFS_TOKENS_ROOM
TOKENS_AT_ONCE = 512


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of a block, in a space that keeps them."""

    ids: list[int]
    extras: bytes
    parent: bytes | None  # None: unknown
    position: int

    @classmethod
    def from_c(cls, c: Any) -> Tokens:
        parent = bytes(ffi.buffer(c.parent.bytes, c.parent.len)) if c.parent.len else None
        return cls(ffi.unpack(c.ids, c.n), bytes(ffi.buffer(c.extras, c.extras_len)), parent,
                   c.position)


def query(spaces: Sequence[Space], keys: Sequence[Keys]) -> tuple[Any, list[Any]]:
    """Return a kvfs_query array, and the objects that it points to."""
    if len(spaces) != len(keys) or not spaces:
        raise ValueError(f"{len(spaces)} spaces, but keys of {len(keys)}: each space needs keys")
    array, kept = ffi.new("kvfs_query[]", len(spaces)), []
    for i, space in enumerate(spaces):
        some, handle = Keys.of(keys[i]), space.handle
        array[i].space, array[i].keys, array[i].n = handle.c, some.c, len(some)
        kept += [some, handle]
    return array, kept


def match(spaces: Sequence[Space], keys: Sequence[Keys]) -> int:
    """Return the number of blocks of the prefix that every space can reuse, by its reuse
    rule.  There is one space for each rank or layer group of a model, with its keys."""
    array, kept = query(spaces, keys)
    return check(apart(lib.kvfs_match, array, len(spaces), keep=kept), "match")


def match_tokens(spaces: Sequence[Space], keys: Sequence[Keys], *, tokens: int = 0,
                 starts: Sequence[int] | None = None) -> int:
    """Return the number of tokens that every space can reuse, for spaces with different block
    lengths.  The keys of a space belong to the blocks from token @starts on (default: 0); tokens
    before count as present.  If @tokens is not 0, the prompt has that many tokens, and a block that ends
    later does not count."""
    array, kept = query(spaces, keys)
    first = [0] * len(spaces) if starts is None else list(starts)
    if len(first) != len(spaces):
        raise ValueError(f"{len(first)} starts for {len(spaces)} spaces")
    for c, start in zip(array, first):
        try:
            c.start, c.tokens = start, tokens
        except (TypeError, OverflowError) as error:
            raise not_c(error, starts=(start, U64), tokens=(tokens, U64)) from None
    found = int(apart(lib.kvfs_match_tokens, array, len(spaces), keep=kept))
    if found == -errno.EINVAL:
        raise Error(errno.EINVAL, "match", why="a start within a block, keys of several lengths, or "
                    "a layout that does not say how many tokens a block has")
    return check(found, "match")


def acquire(spaces: Sequence[Space], keys: Sequence[Keys], *, deadline: float | None = None,
            wait_saving: bool = False, read_ahead: bool = False, user: int = 0) -> Lease:
    """Return one lease on blocks of several spaces; indices run through all keys.  With @user,
    `Session.reap` reports under that number that the lease has settled."""
    keys = [Keys.of(some) for some in keys]
    array, _kept = query(spaces, keys)
    handle = Handle(LEASE, spaces[0]._session)
    flags = (lib.KVFS_WAIT_SAVING if wait_saving else 0) | (lib.KVFS_READ_AHEAD if read_ahead else 0)
    opts = options(deadline=deadline, flags=flags, user=user)
    check(lib.kvfs_acquire(array, len(spaces), opts, handle.out), "acquire")
    return Lease(handle, spaces[0]._awaited, spaces, keys)


class Together:
    """The spaces of one model, one for each layer group and rank.  One call matches and holds
    the blocks that all of them have.  Of a space with a window of blocks (0: none) only the
    last blocks are held."""

    def __init__(self, spaces: Sequence[Space], windows: Sequence[int] | None = None) -> None:
        self._spaces = list(spaces)
        self._windows = list(windows) if windows is not None else [0] * len(spaces)
        if not spaces or len(self._windows) != len(self._spaces):
            raise ValueError("each space needs a window, and at least one space is needed")
        self._handles = [space.handle for space in self._spaces]  # keeps a closed space's handle
        try:
            self._c_windows = ffi.new("uint32_t[]", self._windows)
        except (TypeError, OverflowError) as error:
            raise numbers_not_c(error, "a window", self._windows, U32) from None
        self._queries, _ = query(self._spaces, [Keys()] * len(self._spaces))

    def hold(self, keys: Keys, *, deadline: float | None = None, wait: float = 0.0, user: int = 0,
             missing: bool = False) -> tuple[int, Lease | None, int | None]:
        """Return the number of @keys that match, a lease on the needed blocks, and the number
        of held blocks.  The lease is None if no block matches or is held; the last number is
        None if the lease has not settled within @wait seconds.  The lease's indices run
        through the spaces.  With @missing, and if no space has a window, all @keys count as
        matches, which saves a round trip: the lease then shows which blocks came within
        @deadline, also from other nodes."""
        keys, one, ns = Keys.of(keys), self._spaces[0], nanoseconds(wait)
        handle, count = Handle(LEASE, one._session), ffi.new("long *")
        queries = ffi.new("kvfs_query[]", len(self._spaces))
        ffi.memmove(queries, self._queries, ffi.sizeof(queries))
        what = (queries, self._c_windows, len(self._spaces), keys.c, len(keys), within(deadline),
                min(ns, SLICE), user, missing, handle.out, count)
        try:
            # Without a look-up the call does not wait for the daemon.
            hit = check(lib.chain_hold(*what) if missing and not any(self._windows) else
                        apart(lib.chain_hold, *what, keep=(self._handles, keys)), "hold")
        except (TypeError, OverflowError) as error:
            raise not_c(error, user=(user, U64)) from None
        if hit == 0:
            return 0, None, None
        whole = keys if hit == len(keys) else keys[:hit]
        parts = [whole[hit - window:] if 0 < window < hit else whole for window in self._windows]
        lease, held = Lease(handle, one._awaited, self._spaces, parts), count[0]
        if held != -errno.ETIMEDOUT:
            return hit, lease, check(held, "hold")
        if ns > SLICE and (held := lease.held((ns - SLICE) / 1e9)) == 0:
            return 0, None, None
        return hit, lease, None if ns <= SLICE else held


class Space(Owner):
    """A space of blocks.  Look-ups block for one round trip to the daemon; after a second
    without an answer they miss."""

    def __init__(self, session: Handle, awaited: Awaited, name: str, layout: str | None,
                 flags: int) -> None:
        self._handle = None
        handle = Handle(SPACE, session)
        self.name = name
        opened = apart(lib.kvfs_space_open, session.c, text("a space's name", name),
                       text("a layout", layout) if layout is not None else ffi.NULL, flags, handle.out)
        if opened == -errno.EINVAL:
            raise Error(errno.EINVAL, f"space {name}", why=self._wrong(name, layout))
        check(opened, f"space {name}")
        self._handle = handle.made()
        self._session = session
        self._awaited = awaited
        self._tensors: list[tuple[str, str, tuple[int, ...]]] | None = None

    @staticmethod
    def _wrong(name: str, layout: str | None) -> str:
        if not 0 < len(name.encode()) < 256 or name[0] == "." or "/" in name:
            return "a name has 1 to 255 bytes and no slash, and does not begin with a dot"
        if layout is None:
            return ""
        shared = ', or one whose "share" is refused' if '"share"' in layout else ""
        return f"no layout{shared}, see kvfs-space(5): {layout:.200}"

    def __enter__(self) -> Space:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<space {self.name}>"

    # ---- properties ----

    @property
    def layout(self) -> dict[str, Any] | None:
        """Return the canonical layout; None: the space has none."""
        handle = self.handle  # owns the text of @layout
        layout = lib.kvfs_space_layout(handle.c)
        return None if layout == ffi.NULL else dict(json.loads(ffi.string(layout)))

    @property
    def tensors(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Return name, dtype and shape of a block's tensors, in file order."""
        if self._tensors is None:
            self._tensors = [(t["name"], t["dtype"], tuple(t["shape"]))
                             for t in (self.layout or {"tensors": []})["tensors"]]
        return self._tensors

    @property
    def payload(self) -> int:
        """Return the bytes of a block's tensors; 0: the space has no layout."""
        return int(lib.kvfs_space_payload(self.handle.c))

    @property
    def keeps_tokens(self) -> bool:
        """Return whether the layout has "token_ids": if so, prompts are stored on disk."""
        return bool(lib.kvfs_space_keeps_tokens(self.handle.c) == 1)

    def owner(self) -> tuple[int, int]:
        """Return uid and mode, as of the last answer of the daemon.  ENOTCONN."""
        uid, mode = ffi.new("uint32_t *"), ffi.new("uint32_t *")
        check(lib.kvfs_space_owner(self.handle.c, uid, mode), f"owner of {self.name}")
        return int(uid[0]), int(mode[0])

    def chain(self, tokens: Sequence[int], parent: Name | None = None) -> Keys:
        """Return keys that kvfs computes for the full blocks of @tokens, for engines without
        keys of their own."""
        tokens = list(tokens)
        try:
            array = ffi.new("uint32_t[]", tokens)
        except (TypeError, OverflowError) as error:
            raise numbers_not_c(error, "a token", tokens, U32) from None
        keys = ffi.new("kvfs_key[]", max(1, len(tokens)))
        before = Keys([parent]) if parent is not None else None
        n = lib.kvfs_key_chain(self.handle.c, before.c if before is not None else ffi.NULL, array,
                               len(tokens), ffi.NULL, 0, keys, len(tokens))
        if n == -errno.EINVAL:
            raise Error(errno.EINVAL, f"keys of {self.name}", why="the layout does not say how many "
                        "tokens a block has, or the parent is none of its keys")
        return Keys.from_c(keys, check(n, f"keys of {self.name}"))

    # ---- look-up ----

    def match(self, keys: Iterable[Name]) -> int:
        """Return the number of blocks of the usable prefix of @keys."""
        return match([self], [Keys.of(keys)])

    def probe(self, keys: Iterable[Name]) -> list[State]:
        """Return the state of each block."""
        some = Keys.of(keys)
        array, kept = query([self], [some])
        states = ffi.new("uint8_t[]", max(1, len(some)))
        check(apart(lib.kvfs_probe, array, 1, states, keep=kept), f"probe {self.name}")
        return [State(state) for state in states[0:len(some)]]

    def why(self, keys: Iterable[Name]) -> list[Miss]:
        """Return why each block is absent."""
        some = Keys.of(keys)
        misses = ffi.new("kvfs_miss[]", max(1, len(some)))
        check(apart(lib.kvfs_why, self.handle.c, some.c, len(some), misses, keep=some), f"why {self.name}")
        return [Miss.from_c(c) for c in misses[0:len(some)]]

    def misses(self) -> list[Miss]:
        """Return the look-ups that ended early, oldest first, each with its first absent key:
        those of this user, or for an operator those of all users."""
        found: list[Miss] = []
        cursor, misses = ffi.new("uint64_t *"), ffi.new("kvfs_miss[]", lib.KVFS_MISSES_MIN)
        while n := check(apart(lib.kvfs_misses, self.handle.c, cursor, misses, lib.KVFS_MISSES_MIN),
                         f"misses of {self.name}"):
            found += map(Miss.from_c, misses[0:n])
        return sorted(found, key=lambda miss: miss.asked)

    def acquire(self, keys: Iterable[Name], *, deadline: float | None = None,
                wait_saving: bool = False, read_ahead: bool = False, user: int = 0) -> Lease:
        """Bring the blocks into DRAM and hold them there, within @deadline seconds.  Returns
        at once; `wait` for the lease."""
        return acquire([self], [Keys.of(keys)], deadline=deadline, wait_saving=wait_saving,
                       read_ahead=read_ahead, user=user)

    def prefetch(self, keys: Iterable[Name], *, deadline: float | None = None, user: int = 0
                 ) -> Transfer:
        """Hint that these blocks will be needed soon."""
        some = Keys.of(keys)
        array, _kept = query([self], [some])
        handle = Handle(XFER, self._session)
        check(lib.kvfs_prefetch(array, 1, options(deadline=deadline, user=user), handle.out),
              f"prefetch {self.name}")
        return Transfer(handle, self._awaited, some, len(some), Stage.COPIED,
                        f"prefetch {self.name}")

    # ---- housekeeping ----

    def flush(self, stage: Stage = Stage.DURABLE, *, user: int = 0) -> Transfer:
        """Return a barrier: it completes when all earlier saves are sealed, or durable."""
        handle = Handle(XFER, self._session)
        if stage not in (Stage.SEALED, Stage.DURABLE):
            raise ValueError(f"stage is {stage!r}, not SEALED or DURABLE")
        check(lib.kvfs_flush(self.handle.c, stage, options(user=user), handle.out), f"flush {self.name}")
        return Transfer(handle, self._awaited, None, 1, stage, f"flush {self.name}")

    def evict(self, keys: Iterable[Name]) -> int:
        """Remove the blocks from all tiers; return how many there were."""
        return self._each("evict", lib.kvfs_evict, keys)

    def ended(self, keys: Iterable[Name]) -> None:
        """Hint that the conversation is over: these blocks may be evicted before others."""
        some = Keys.of(keys)
        check(lib.kvfs_ended(self.handle.c, some.c, len(some)), f"ended {self.name}")

    def pin(self, keys: Iterable[Name]) -> int:
        return self._each("pin", lib.kvfs_pin, keys, 0)

    def unpin(self, keys: Iterable[Name]) -> int:
        return self._each("unpin", lib.kvfs_unpin, keys, 0)

    def _each(self, what: str, call: Any, keys: Iterable[Name], *first: int) -> int:
        some = Keys.of(keys)
        return check(apart(call, self.handle.c, some.c, *first, len(some), ffi.NULL, keep=some),
                     f"{what} {self.name}")

    def clear(self) -> None:
        """Remove every block; takes a minute at most."""
        check(apart(lib.kvfs_space_clear, self.handle.c), f"clear {self.name}")

    def remove(self) -> None:
        """Remove every block, and the space with its layout and snapshots; later look-ups
        miss.  ENOTEMPTY: other clients go on saving to the space; EACCES: another user owns
        the space."""
        check(apart(lib.kvfs_space_remove, self.handle.c), f"remove {self.name}")

    def pages(self, at_most: int = 4096) -> Iterator[Keys]:
        """Yield the keys of all blocks, in no order, some at a time. A block that exists during
        the whole listing appears once, seldom twice; a block that is saved or removed meanwhile
        may be missing.
        ENOENT: no such space, or no right to read it."""
        cursor = ffi.new("uint64_t *")
        at_most = max(at_most, LIST_MIN)
        while True:
            array = ffi.new(KEYS, at_most)
            n = check(apart(lib.kvfs_space_keys, self.handle.c, cursor, array, at_most), f"keys of {self.name}")
            if n:
                yield Keys.from_c(array, n)
            if cursor[0] == 0:
                return

    def keys(self) -> Iterator[bytes]:
        """Yield the keys of all blocks, one at a time."""
        for some in self.pages():
            yield from some

    def entries(self, at_most: int = 4096) -> Iterator[list[Entry]]:
        """Yield all blocks with their tiers and other facts, some at a time, as `pages` yields
        keys; blocks that are not on SSD come first."""
        cursor, entries = ffi.new("uint64_t *"), ffi.new("kvfs_entry[]", max(at_most, LIST_MIN))
        while True:
            n = check(apart(lib.kvfs_space_list, self.handle.c, cursor, entries, len(entries)),
                      f"blocks of {self.name}")
            yield list(map(Entry.from_c, entries[0:n]))
            if cursor[0] == 0:
                return

    def changes(self, wait: float = 1.0) -> Iterator[list[Entry] | None]:
        """Yield the blocks that have entered or left DRAM or SSD since the previous list, each
        with its present state (no bytes: the block is gone); an empty list if there was no change
        within @wait seconds, a minute at most.  None comes first, and after changes were
        lost: forget all blocks, list them by `entries`, and go on.
        ENOTCONN: begin again.  ENOENT: no such space, or no right to read it."""
        cursor, entries = ffi.new("uint64_t *"), ffi.new("kvfs_entry[]", CHANGES_AT_ONCE)
        while True:
            n = apart(lib.kvfs_space_changes, self.handle.c, cursor, entries, CHANGES_AT_ONCE, nanoseconds(wait))
            yield None if n == -errno.ESTALE else \
                list(map(Entry.from_c, entries[0:check(n, f"changes of {self.name}")]))

    def tokens(self, keys: Iterable[Name]) -> list[Tokens | None]:
        """Return the tokens of each block; None: absent. No data is read from disk.
        EINVAL: the space keeps no tokens."""
        some = Keys.of(keys)
        if not self.keeps_tokens:
            raise Error(errno.EINVAL, f"tokens of {self.name}", why="the layout has no \"token_ids\"")
        found: list[Tokens | None] = []
        told = ffi.new("kvfs_tokens[]", TOKENS_AT_ONCE)
        room = ffi.new("uint64_t[]", TOKENS_ROOM // 8)
        while len(found) < len(some):
            n = check(apart(lib.kvfs_space_tokens, self.handle.c, some.c + len(found),
                            min(len(some) - len(found), TOKENS_AT_ONCE), told, room, TOKENS_ROOM,
                            keep=some), f"tokens of {self.name}")
            for c in told[0:n]:
                if c.status != -errno.ENOENT:
                    check(c.status, f"tokens of {self.name}")
                found.append(Tokens.from_c(c) if c.status == 0 else None)
        return found

    def blocks(self) -> Iterator[tuple[bytes, Tokens]]:
        """Yield all blocks with their tokens, in the order of `pages`."""
        for some in self.pages(TOKENS_AT_ONCE):
            for key, tokens in zip(some, self.tokens(some)):
                if tokens is not None:
                    yield key, tokens
