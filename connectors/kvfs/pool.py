# SPDX-License-Identifier: Apache-2.0
"""pool - an engine's own paged memory, that blocks are loaded to and saved from."""
from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._native import ffi, lib
from .errors import check
from .handle import POOL, XFER, Handle, Owner, options, within
from .keys import Keys, Name
from .transfer import Stage, Transfer

if TYPE_CHECKING:
    from .lease import Lease
    from .session import Awaited
    from .space import Space


OUT = ffi.typeof("kvfs_xfer **")
PAGES = ffi.typeof("int64_t[]")


@dataclass(frozen=True)
class View:
    """A strided part of a pool: page p has @count segments of @bytes, segment s at
    @base + p * @block_stride + s * @segment_stride.  The views of one tensor, in order,
    cover it without gaps."""

    tensor: str
    base: int
    block_stride: int
    bytes: int
    count: int = 1
    segment_stride: int = 0


@dataclass(frozen=True)
class Memory:
    """Where the views lie: a shared mapping of the file @fd (memfd, /dev/shm) from
    @offset on, that the daemon maps, too, and saves from where it is."""

    address: int
    bytes: int
    fd: int
    offset: int = 0


def views_of(tensor: str, base: int, shape: Sequence[int], strides: Sequence[int], itemsize: int,
             page_dim: int = 0) -> list[View]:
    """Views of an array whose dimension @page_dim is the pages; the others, in order,
    are the tensor.  @strides are in elements, as torch's."""
    dims = [(n, s * itemsize) for i, (n, s) in enumerate(zip(shape, strides))
            if i != page_dim and n != 1]
    run = itemsize
    while dims and dims[-1][1] == run:
        run *= dims.pop()[0]
    starts = [0]
    for n, stride in dims[:-1]:
        starts = [start + i * stride for start in starts for i in range(n)]
    count, segment = dims[-1] if dims else (1, 0)
    return [View(tensor, base + start, strides[page_dim] * itemsize, run, count, segment)
            for start in starts]


class Pool(Owner):
    def __init__(self, session: Handle, awaited: Awaited, space: Space, views: Sequence[View],
                 pages: int, pages_per_block: int, device: str, memory: Memory | None,
                 keep: object) -> None:
        array = ffi.new("kvfs_view[]", len(views))
        names = {view.tensor: ffi.new("char[]", view.tensor.encode()) for view in views}
        for c, view in zip(array, views):
            c.tensor, c.base = names[view.tensor], ffi.cast("void *", view.base)
            c.block_stride, c.bytes = view.block_stride, view.bytes
            c.count, c.segment_stride = view.count, view.segment_stride
        name = ffi.new("char[]", device.encode())
        desc = ffi.new("kvfs_pool_desc *", {
            "size": ffi.sizeof("kvfs_pool_desc"), "device": name, "space": space.handle.c, "views": array, "n_views": len(views),
            "pages": pages, "pages_per_block": pages_per_block})
        if memory is not None:
            desc.memory, desc.memory_bytes = ffi.cast("void *", memory.address), memory.bytes
            desc.memory_fd, desc.memory_offset = memory.fd, memory.offset
        out = ffi.new("kvfs_pool **")
        self._handle = None
        check(lib.kvfs_pool_register(session.c, desc, out), f"pool for {space.name}")
        self._handle = Handle(out[0], POOL, session)
        self._session = session
        self._pages_per_block = pages_per_block
        self._awaited = awaited
        self._keep = keep

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for its transfers; then nobody touches the memory any more."""
        super().close()
        self._keep = None

    def info(self) -> dict[str, Any]:
        """How bytes travel (`path`, `reason`), and what is pinned and in use."""
        info = ffi.new("struct kvfs_pool_info *", {"size": ffi.sizeof("struct kvfs_pool_info")})
        check(lib.kvfs_pool_info(self.handle.c, info), "pool info")
        found: dict[str, Any] = {}
        for name, field in ffi.typeof(info[0]).fields:
            value = getattr(info, name)
            if field.type.cname == "char *":
                found[name] = bytes(ffi.string(value)).decode() if value != ffi.NULL else ""
            elif field.type.kind == "primitive" and name != "size":
                found[name] = int(value)
        return found

    def load(self, lease: Lease, pages: Iterable[int], *, first: int = 0,
             deadline: float | None = None, priority: int = 0, user: int = 0) -> Transfer:
        """Copy blocks @first and on of @lease to @pages (-1 skips a page).  Returns at
        once; the lease may be closed then.  With @user, `Session.reap` tells by that word
        when it is over."""
        opts = options(first=first, deadline=deadline, priority=priority, user=user)
        numbers, n = self._numbers(pages)
        out = ffi.new("kvfs_xfer **")
        check(lib.kvfs_load(self.handle.c, lease.handle.c, n, numbers, opts, out), "load")
        keys = Keys([key for some in lease._keys for key in some]) \
            if len(lease._keys) > 1 else lease._keys[0]
        return Transfer(Handle(out[0], XFER, self._session), self._awaited,
                        keys[first:first + n], n, Stage.COPIED, "load")

    def fetch(self, space: Space, keys: Iterable[Name], pages: Iterable[int], *,
              deadline: float | None = None, user: int = 0) -> Transfer:
        """Acquire, load and release in one call: copy the blocks @keys to @pages.  They are
        brought to DRAM within @deadline, and copied within another."""
        some = Keys.of(keys)
        numbers, n = self._numbers(pages)
        if n != len(some):
            raise ValueError(f"{len(some)} keys, but pages of {n} blocks")
        out = ffi.new(OUT)
        check(lib.chain_load(self.handle.c, space.handle.c, some.c, n, numbers, within(deadline),
                             user, out), f"load from {space.name}")
        return Transfer(Handle(out[0], XFER, self._session), self._awaited, some, n, Stage.COPIED,
                        "load")

    def _numbers(self, pages: Iterable[int]) -> tuple[Any, int]:
        """(int64_t array, how many blocks it is)"""
        some = list(pages)
        if len(some) % self._pages_per_block != 0:
            raise ValueError(f"{len(some)} pages are no whole number of blocks")
        return ffi.new(PAGES, some), len(some) // self._pages_per_block

    def save(self, space: Space, keys: Iterable[Name], pages: Iterable[int], *,
             parent: Name | Keys | None = None, position: int = 0,
             places: Iterable[tuple[Name | None, int]] | None = None,
             tokens: Iterable[Sequence[int]] | None = None, extras: Iterable[bytes] | None = None,
             deadline: float | None = None, must: bool = False, hold: bool = False,
             stream: int = 0, user: int = 0) -> Transfer:
        """Save @pages under @keys: blocks @position and on of a chain in which @parent
        comes before the first; or @places says parent (None: unknown) and position of
        each.  A space that keeps token ids (`Space.keeps_tokens`) needs @tokens, those of
        each block, and takes @extras, up to 2048 bytes each, on what else it depends on;
        others take neither.  The pages may be changed when it is COPIED.  With @user, `Session.reap`
        tells by that word when it is COPIED, and when SEALED."""
        some = Keys.of(keys)
        flags = (lib.KVFS_MUST if must else 0) | (lib.KVFS_HOLD if hold else 0)
        numbers, n = self._numbers(pages)
        if n != len(some):
            raise ValueError(f"{len(some)} keys, but pages of {n} blocks")
        out = ffi.new(OUT)
        before = Keys.of(parent if isinstance(parent, Keys) else [parent]).c \
            if parent is not None else ffi.NULL
        if places is None and tokens is None and extras is None:
            result = lib.chain_save(self.handle.c, space.handle.c, some.c, n, before, position,
                                    numbers, within(deadline), flags, stream, user, out)
        else:
            opts = options(deadline=deadline, flags=flags, stream=stream, user=user)
            metas = self._metas(places, n) if places is not None \
                else self._chain(before, position, n)
            _kept = self._told(metas, n, tokens, extras)
            result = lib.kvfs_save(self.handle.c, space.handle.c, some.c, metas, n, numbers, opts,
                                   out)
        check(result, f"save to {space.name}")
        return Transfer(Handle(out[0], XFER, self._session), self._awaited, some, len(some),
                        Stage.SEALED, f"save to {space.name}")

    @staticmethod
    def _metas(places: Iterable[tuple[Name | None, int]], n: int) -> Any:
        metas = ffi.new("kvfs_meta[]", max(1, n))
        for meta, (before, at) in zip(metas[0:n], places, strict=True):
            meta.position = at
            if before is not None:
                meta.parent = Keys([before]).c[0]
        return metas

    @staticmethod
    def _chain(before: Any, position: int, n: int) -> Any:
        metas = ffi.new("kvfs_meta[]", max(1, n))
        for i, meta in enumerate(metas[0:n]):
            meta.position, meta.parent.len = position + i, lib.KVFS_CHAIN
        if before != ffi.NULL:
            metas[0].parent = before[0]
        return metas

    @staticmethod
    def _told(metas: Any, n: int, tokens: Iterable[Sequence[int]] | None,
              extras: Iterable[bytes] | None) -> list[Any]:
        """Tell the tokens of each block in @metas; what these point to then."""
        kept: list[Any] = []
        if tokens is not None:
            ids, ends = array("I"), []
            for some in tokens:
                ids.extend(some)
                ends.append(len(ids))
            c = ffi.from_buffer("uint32_t[]", ids)
            for meta, begin, end in zip(metas[0:n], [0, *ends[:-1]], ends, strict=True):
                meta.token_ids, meta.tokens = c + begin, end - begin
            kept += [ids, c]
        if extras is not None:
            for meta, extra in zip(metas[0:n], extras, strict=True):
                kept.append(ffi.from_buffer(extra))
                meta.extras, meta.extras_len = kept[-1], len(extra)
        return kept
