# SPDX-License-Identifier: Apache-2.0
"""pool - an engine's own paged memory, the target of loads and source of saves."""
from __future__ import annotations

import errno
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._native import ffi, lib
from .errors import I64, U32, U64, Error, check, not_c, numbers_not_c, text
from .handle import NO_STREAM, POOL, XFER, Handle, Owner, apart, options, within
from .keys import Keys, Name
from .lease import DTYPES
from .transfer import Stage, Transfer

if TYPE_CHECKING:
    from .lease import Lease
    from .session import Awaited
    from .space import Space


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
    """The memory of the views: a shared mapping of the file @fd (memfd, /dev/shm) from @offset
    on.  The daemon maps the file and saves directly from it."""

    address: int
    bytes: int
    fd: int
    offset: int = 0


def views_of(tensor: str, base: int, shape: Sequence[int], strides: Sequence[int], itemsize: int,
             page_dim: int = 0, by_stride: bool = False) -> list[View]:
    """Return the views of an array whose dimension @page_dim counts the pages; the other
    dimensions, in order, are the tensor.  @strides are in elements, as in torch.  @by_stride: the
    tensor has them in the order of memory instead, largest stride first, so that a page whose
    bytes lie end to end is one view of one run, whatever the order of its dimensions."""
    dims = [(n, s * itemsize) for i, (n, s) in enumerate(zip(shape, strides))
            if i != page_dim and n != 1]
    if by_stride:
        dims.sort(key=lambda dim: -dim[1])
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
        array, names = _views(views)
        name, handle = ffi.new("char[]", text("device", device)), space.handle
        try:
            desc = ffi.new("kvfs_pool_desc *", {
                "size": ffi.sizeof("kvfs_pool_desc"), "device": name, "space": handle.c,
                "views": array, "n_views": len(views), "pages": pages,
                "pages_per_block": pages_per_block})
        except (TypeError, OverflowError) as error:
            raise not_c(error, pages=(pages, U64), pages_per_block=(pages_per_block, U32)) from None
        if memory is not None:
            desc.memory, desc.memory_bytes = ffi.cast("void *", memory.address), memory.bytes
            desc.memory_fd, desc.memory_offset = memory.fd, memory.offset
        self._handle = None
        made = Handle(POOL, session, keep)
        opened = lib.kvfs_pool_register(session.c, desc, made.out)
        if opened in (-errno.EINVAL, -errno.EMEDIUMTYPE):
            raise Error(-opened, f"pool for {space.name}",
                        why=_wrong(space, views, pages, pages_per_block))
        check(opened, f"pool for {space.name}")
        self._handle = made.made()
        self._session = session
        self._pages = pages
        self._pages_per_block = pages_per_block
        self._awaited = awaited

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the pool's transfers; afterwards libkvfs does not touch the memory.
        Transfers that have not begun are abandoned (ETIMEDOUT) after some seconds if the daemon
        hangs, and after five if they wait for a stream.  If a device hangs during a copy, wait
        until the device no longer uses the memory."""
        handle, self._handle = [self._handle], None
        apart(handle.clear)

    def info(self) -> dict[str, Any]:
        """Return how bytes are copied (`path`, `reason`), and how much is pinned and in use."""
        info = ffi.new("struct kvfs_pool_info *", {"size": ffi.sizeof("struct kvfs_pool_info")})
        handle = self.handle  # owns the texts in @info
        check(lib.kvfs_pool_info(handle.c, info), "pool info")
        found: dict[str, Any] = {}
        for name, field in ffi.typeof(info[0]).fields:
            value = getattr(info, name)
            if field.type.cname == "char *":
                found[name] = bytes(ffi.string(value)).decode() if value != ffi.NULL else ""
            elif field.type.kind == "primitive" and name != "size":
                found[name] = int(value)
        return found

    def load(self, lease: Lease, pages: Iterable[int], *, first: int = 0,
             deadline: float | None = None, priority: int = 0, stream: int | None = 0,
             event: int = 0, user: int = 0) -> Transfer:
        """Copy the blocks of @lease from @first on to @pages (-1 skips a page).  Returns at
        once; the lease may be closed then.  On a GPU no page is written before the work
        submitted to @stream (0: the default stream; None: no stream), or before @event, is
        complete.  With @user, `Session.reap` reports the end under that number."""
        opts = options(first=first, deadline=deadline, priority=priority, stream=stream,
                       event=event, user=user)
        numbers, n = self._numbers(pages)
        made = Handle(XFER, self._session)
        begun = lib.kvfs_load(self.handle.c, lease.handle.c, n, numbers, opts, made.out)
        if begun == -errno.EINVAL and first + n > len(lease):
            raise Error(errno.EINVAL, "load", why=f"blocks {first} to {first + n - 1} of a lease on "
                        f"{len(lease)}")
        self._check(begun, "load", numbers, lease._spaces, True)
        keys = Keys([key for some in lease._keys for key in some]) \
            if len(lease._keys) > 1 else lease._keys[0]
        return Transfer(made, self._awaited, keys[first:first + n], n, Stage.COPIED, "load")

    def fetch(self, space: Space, keys: Iterable[Name], pages: Iterable[int], *,
              deadline: float | None = None, stream: int | None = 0, event: int = 0,
              user: int = 0, again: bool = False) -> Transfer:
        """Acquire, load and release in one call: copy the blocks @keys to @pages.  The blocks
        are brought to DRAM within @deadline, and copied within @deadline.  Absent blocks are
        misses: the transfer's result is the number of present ones.  @stream and @event are as
        for `load`.  @again: another lease has the blocks for the same use, so both count as one
        hit."""
        some = Keys.of(keys)
        numbers, n = self._numbers(pages)
        if n != len(some):
            raise ValueError(f"{len(some)} keys, but pages of {n} blocks")
        made = Handle(XFER, self._session)
        try:
            begun = lib.chain_load(self.handle.c, space.handle.c, some.c, n, numbers,
                                   within(deadline), lib.KVFS_AGAIN if again else 0, NO_STREAM if stream is None else stream,
                                   event, user, made.out)
        except (TypeError, OverflowError) as error:
            raise not_c(error, stream=(stream, U64), event=(event, U64), user=(user, U64)) from None
        if begun < 0:
            self._check(begun, f"load from {space.name}", numbers, [space], True)
        return Transfer(made, self._awaited, some, n, Stage.COPIED, "load")

    def _numbers(self, pages: Iterable[int]) -> tuple[Any, int]:
        """Return @pages as an int64_t array, and the number of blocks that they make up."""
        some = list(pages)
        if len(some) % self._pages_per_block != 0:
            raise ValueError(f"{len(some)} pages are not a whole number of blocks")
        try:
            return ffi.new(PAGES, some), len(some) // self._pages_per_block
        except (TypeError, OverflowError) as error:
            raise numbers_not_c(error, "a page", some, I64) from None

    def _check(self, begun: int, what: str, pages: Any, spaces: Sequence[Space], load: bool,
               keys: Keys | None = None) -> None:
        """If @begun, the result of libkvfs's call, is an error, raise Error with the reason."""
        if begun >= 0:
            return
        why, seen = "", set()
        if begun == -errno.EINVAL:
            for page in pages:
                if not (0 <= page < self._pages or (load and page == -1)):
                    why = f"there is no page {page}: the pool has {self._pages}"
                elif load and page in seen:
                    why = f"page {page} comes twice"
                seen.add(page)
            if not why and any(space._session is not self._session for space in spaces):
                why = "the pool is of another session"
            elif not why and keys is not None and len({len(key) for key in keys}) > 1:
                why = "keys of 16 and of 32 bytes in one chain"
            elif not why:
                why = "the space has other tensors than the pool"
        raise Error(-begun, what, why=why)

    def save(self, space: Space, keys: Iterable[Name], pages: Iterable[int], *,
             parent: Name | Keys | None = None, position: int = 0,
             places: Iterable[tuple[Name | None, int]] | None = None,
             tokens: Iterable[Sequence[int]] | None = None, extras: Iterable[bytes] | None = None,
             deadline: float | None = None, must: bool = False, hold: bool = False,
             stream: int | None = 0, user: int = 0) -> Transfer:
        """Save @pages under @keys, as blocks of a chain from @position on, after the block
        @parent; or @places has the parent (None: unknown) and position of each block.  A
        space that keeps token ids (`Space.keeps_tokens`) needs @tokens of each block, and takes
        @extras of up to 2048 bytes each, which describe other inputs of a block; other spaces
        take neither.  On a GPU no page is read before the work submitted to @stream (0: the
        default stream; None: no stream) is complete.  The pages may be changed when the
        transfer is COPIED.  With @user, `Session.reap` reports COPIED and SEALED under that
        number."""
        some = Keys.of(keys)
        flags = (lib.KVFS_MUST if must else 0) | (lib.KVFS_HOLD if hold else 0)
        numbers, n = self._numbers(pages)
        if n != len(some):
            raise ValueError(f"{len(some)} keys, but pages of {n} blocks")
        made = Handle(XFER, self._session)
        before = ffi.NULL if parent is None else \
            (parent if isinstance(parent, Keys) else Keys([parent])).c
        if places is None and tokens is None and extras is None:
            try:
                result = lib.chain_save(self.handle.c, space.handle.c, some.c, n, before, position,
                                        numbers, within(deadline), flags,
                                        NO_STREAM if stream is None else stream, user, made.out)
            except (TypeError, OverflowError) as error:
                raise not_c(error, position=(position, U32), stream=(stream, U64), user=(user, U64)
                            ) from None
        else:
            opts = options(deadline=deadline, flags=flags, stream=stream, user=user)
            metas = self._metas(places, n) if places is not None \
                else self._chain(before, position, n)
            _kept = self._told(metas, n, tokens, extras)
            result = lib.kvfs_save(self.handle.c, space.handle.c, some.c, metas, n, numbers, opts,
                                   made.out)
        if result < 0:
            self._check_save(result, space, numbers, some, tokens is not None)
        return Transfer(made, self._awaited, some, len(some), Stage.SEALED, f"save to {space.name}")

    def _check_save(self, begun: int, space: Space, pages: Any, keys: Keys, tokens: bool) -> None:
        what = f"save to {space.name}"
        if begun == -errno.EINVAL and space.keeps_tokens != tokens:
            raise Error(errno.EINVAL, what, why="the space keeps no tokens" if tokens else
                        "the space keeps tokens, and none are given")
        self._check(begun, what, pages, [space], False, keys)

    @staticmethod
    def _metas(places: Iterable[tuple[Name | None, int]], n: int) -> Any:
        metas, places = ffi.new("kvfs_meta[]", max(1, n)), list(places)
        if len(places) != n:
            raise ValueError(f"{len(places)} places of {n} blocks")
        for i, (before, at) in enumerate(places):
            _position(metas[i], at)
            if before is not None:
                one = Keys([before])
                metas[i].parent = one.c[0]
        return metas

    @staticmethod
    def _chain(before: Any, position: int, n: int) -> Any:
        metas = ffi.new("kvfs_meta[]", max(1, n))
        for i, meta in enumerate(metas[0:n]):
            _position(meta, position + i)
            meta.parent.len = lib.KVFS_CHAIN
        if before != ffi.NULL:
            metas[0].parent = before[0]
        return metas

    @staticmethod
    def _told(metas: Any, n: int, tokens: Iterable[Sequence[int]] | None,
              extras: Iterable[bytes] | None) -> list[Any]:
        """Set the tokens of each block in @metas; return the memory to which @metas then point."""
        kept: list[Any] = []
        if tokens is not None:
            ids, at = array("I"), 0
            lists = [list(some) for some in tokens]
            if len(lists) != n:
                raise ValueError(f"tokens of {len(lists)} blocks, and {n} blocks")
            for some in lists:
                try:
                    ids.extend(some)
                except (TypeError, OverflowError) as error:
                    raise numbers_not_c(error, "a token", some, U32) from None
            c = ffi.from_buffer("uint32_t[]", ids)
            for meta, some in zip(metas[0:n], lists):
                meta.token_ids, meta.tokens = c + at, len(some)
                at += len(some)
            kept += [ids, c]
        if extras is not None:
            extras = list(extras)
            if len(extras) != n:
                raise ValueError(f"extras of {len(extras)} blocks, and {n} blocks")
            for meta, extra in zip(metas[0:n], extras):
                if not isinstance(extra, bytes):
                    raise TypeError(f"extras are bytes, and not {extra!r}")
                kept.append(ffi.from_buffer(extra))
                meta.extras, meta.extras_len = kept[-1], len(extra)
        return kept


def _position(meta: Any, at: int) -> None:
    try:
        meta.position = at
    except (TypeError, OverflowError) as error:
        raise not_c(error, position=(at, U32)) from None


def _views(views: Sequence[View]) -> tuple[Any, dict[str, Any]]:
    """Return a kvfs_view array, and the names that it points to."""
    array = ffi.new("kvfs_view[]", len(views))
    names = {view.tensor: ffi.new("char[]", text("a tensor's name", view.tensor)) for view in views}
    for c, view in zip(array, views):
        try:
            c.tensor, c.base = names[view.tensor], ffi.cast("void *", view.base)
            c.block_stride, c.bytes = view.block_stride, view.bytes
            c.count, c.segment_stride = view.count, view.segment_stride
        except (TypeError, OverflowError) as error:
            raise not_c(error, base=(view.base, U64), block_stride=(view.block_stride, U64),
                        bytes=(view.bytes, U64), count=(view.count, U64),
                        segment_stride=(view.segment_stride, U64)) from None
    return array, names


def _wrong(space: Space, views: Sequence[View], pages: int, pages_per_block: int) -> str:
    """Return the reason why a pool was refused."""
    if space.layout is None:
        return "the space has no layout"
    if not views or pages == 0 or pages_per_block == 0:
        return "a pool has views, pages, and pages in a block"
    for name, dtype, shape in space.tensors:
        size = math.prod(shape) * DTYPES[dtype][1] // 8
        got = pages_per_block * sum(view.bytes * view.count for view in views if view.tensor == name)
        if got != size:
            return f"the views of {name} cover {got} bytes of a block, which has {size}"
    unknown = {view.tensor for view in views} - {name for name, _, _ in space.tensors}
    if unknown:
        return f"the space has no tensor {min(unknown)}"
    return "segments overlap, or lie outside the memory"
