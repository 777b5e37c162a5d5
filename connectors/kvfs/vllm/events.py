# SPDX-License-Identifier: Apache-2.0
"""events - the blocks that kvfs gains and loses, as events of vLLM's.

vLLM takes them in each step, and publishes them with those of its own cache, so that they carry
the engine's instance and rank.  A thread for each space reads the daemon's changes: no step waits.
"""
from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Any

import kvfs
from kvfs.events import AT_ONCE, DRAM, SSD, Told
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

WAITING, STEP = 65536, 4096  # most events that wait, and that one step takes
KNOWN = 65536  # most blocks whose tokens are remembered
News = list[tuple[bytes, str, bool]]  # see Told.note


class Follower:
    """Follow spaces until `end`.  A subclass makes the events of news."""

    def __init__(self, spaces: list[kvfs.Space]) -> None:
        self._spaces = spaces
        self._told = Told(len(spaces))
        self._lock = threading.Lock()  # of _told
        self._events: deque[Any] = deque()
        self._ended = threading.Event()
        for at, space in enumerate(spaces):
            threading.Thread(target=self._follow, args=(at, space), name="kvfs-events", daemon=True).start()

    def take(self) -> list[Any]:
        return [self._events.popleft() for _ in range(min(len(self._events), STEP))]

    def end(self) -> None:
        """Stop, and tell that no block can be used any more."""
        self._ended.set()
        with self._lock:
            for at, space in enumerate(self._spaces):
                self._events.extend(self._made(space, self._told.note({}, at, True)))

    def _follow(self, at: int, space: kvfs.Space) -> None:
        while not self._ended.is_set():
            try:
                for entries in space.changes(0.5):
                    pages = [entries] if entries is not None else space.entries()
                    found = [entry for page in pages for entry in page
                             if self._known(space, entry.key) or not self._tiers(entry)]
                    found.sort(key=lambda entry: entry.position)  # parents first
                    self._note(at, space, {entry.key: self._tiers(entry) for entry in found}, entries is None)
                    if self._ended.is_set():
                        return
            except (kvfs.Error, ValueError):  # the daemon has gone; the space is closed
                self._note(at, space, {}, True)
                self._ended.wait(1)

    def _note(self, at: int, space: kvfs.Space, blocks: dict[bytes, int], whole: bool) -> None:
        with self._lock:
            news = self._told.note(blocks, at, whole)
            for first in range(0, len(news), AT_ONCE):
                while len(self._events) > WAITING and not self._ended.wait(0.1):
                    pass
                if self._ended.is_set():
                    return
                self._events.extend(self._made(space, news[first:first + AT_ONCE]))

    def _tiers(self, entry: kvfs.Entry) -> int:
        return (DRAM if entry.dram else 0) | (SSD if entry.ssd else 0)

    def _known(self, space: kvfs.Space, key: bytes) -> bool:
        raise NotImplementedError

    def _made(self, space: kvfs.Space, news: News) -> list[Any]:
        raise NotImplementedError


class Events(Follower):
    """The connector's events: of blocks whose tokens it has seen, or that the space keeps.  Blocks
    of adapters, images and salts are left out: tokens alone do not name them."""

    def __init__(self, spaces: list[kvfs.Space]) -> None:
        # Parent and tokens, oldest first.  The followers' threads look here while `know` runs.
        self._blocks: OrderedDict[bytes, tuple[bytes | None, list[int]]] = OrderedDict()
        super().__init__(spaces)

    def know(self, parent: bytes | None, keys: kvfs.Keys, tokens: list[int]) -> None:
        """Remember the tokens of the blocks @keys."""
        n = len(tokens) // len(keys)
        for at, key in enumerate(keys):
            self._blocks[key], parent = (parent, tokens[at * n:at * n + n]), key
            self._blocks.move_to_end(key)
        while len(self._blocks) > KNOWN:
            self._blocks.popitem(last=False)

    def _known(self, space: kvfs.Space, key: bytes) -> bool:
        return key in self._blocks or space.keeps_tokens

    def _made(self, space: kvfs.Space, news: News) -> list[Any]:
        blocks = {key: self._blocks.get(key) for key, _, here in news if here}
        if space.keeps_tokens and (others := [key for key, block in blocks.items() if block is None]):
            try:
                blocks.update((key, (found.parent, found.ids)) for key, found in zip(others, space.tokens(others))
                              if found is not None and not found.extras)
            except kvfs.Error:  # the daemon has gone, and is noticed by the next call
                pass
        events: list[Any] = []
        for key, medium, here in news:
            hashes = [maybe_convert_block_hash(key)]
            if not here:
                events.append(BlockRemoved(block_hashes=hashes, medium=medium))
            elif block := blocks[key]:
                parent, ids = block
                events.append(BlockStored(
                    block_hashes=hashes, parent_block_hash=maybe_convert_block_hash(parent) if parent else None,
                    token_ids=ids, block_size=len(ids), lora_id=None, medium=medium, lora_name=None))
            else:
                self._told.forget(key, medium, self._spaces.index(space))
        return events
