# SPDX-License-Identifier: Apache-2.0
"""events - which blocks routers know to be where, and vLLM's messages about them by ZeroMQ.

command.py runs this file for `kvfs events --zmq`; kvfs.vllm passes events on through vLLM.  The
module needs pyzmq to publish, else Python's standard library.
"""
from __future__ import annotations

import importlib
import struct
import time
from collections import deque
from collections.abc import Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .command import Space

DRAM, SSD = 1, 2  # bits
AT_ONCE = 512  # most events in a message
KEPT = 64 << 20  # bytes of messages for replay, beside twice those that list the space
QUEUED = 4096  # most messages for a subscriber that does not read
REQUESTS = 64  # most requests that are read at a time
END = (1 << 64) - 1, b""  # the last message of a replay
EXTRA = 200  # bytes of memory for a message, beside its own
IDLE = 10.0  # seconds after which a message without events lets subscribers notice that they lost some


class Told:
    """The tiers that have each block, as routers know them.  Of several spaces, one for each rank,
    all must have a block in a tier.  Routers call the tiers media."""

    def __init__(self, spaces: int = 1) -> None:
        self._tiers: dict[bytes, int] = {}  # two bits of each space
        self._media = [(medium, sum(bit << 2 * i for i in range(spaces)))
                       for medium, bit in (("CPU", DRAM), ("STORAGE", SSD))]

    def note(self, blocks: dict[bytes, int], space: int = 0, whole: bool = False
             ) -> list[tuple[bytes, str, bool]]:
        """Note the tiers that have @blocks, or with @whole all blocks of the space.  Return each
        block and medium where it is stored now (True), or no more."""
        if whole:
            blocks = dict.fromkeys(self._tiers, 0) | blocks
        found = []
        for key, tiers in blocks.items():
            was = self._tiers.get(key, 0)
            now = was & ~(3 << 2 * space) | tiers << 2 * space
            self._tiers[key] = now
            if not now:
                del self._tiers[key]
            found += [(key, medium, now & mask == mask) for medium, mask in self._media
                      if (was & mask == mask) != (now & mask == mask)]
        return found

    def forget(self, key: bytes, medium: str, space: int = 0) -> None:
        """Note that routers do not know the block to be in the medium."""
        self._tiers[key] &= ~((DRAM if medium == "CPU" else SSD) << 2 * space)


# ---- vLLM's messages, in msgpack ----

def text(words: str) -> bytes:
    return bytes([0xa0 | len(words)]) + words.encode()


def array(n: int) -> bytes:
    return b"\xdd" + n.to_bytes(4, "big")


def hash_of(key: bytes) -> bytes:
    """Return a block's number in vLLM's events: the last 64 bits of its hash."""
    return b"\xcf" + key[-8:]


NIL, TYPE, HASHES, MEDIUM = b"\xc0", text("type"), text("block_hashes"), text("medium")
CLEARED = b"\x81" + TYPE + text("AllBlocksCleared")
STORED = b"\x88" + TYPE + text("BlockStored") + text("lora_id") + NIL + text("lora_name") + NIL + HASHES + b"\x91"
REMOVED = b"\x83" + TYPE + text("BlockRemoved") + HASHES


def stored(key: bytes, medium: str, parent: bytes | None, ids: Sequence[int]) -> bytes:
    words = [0xce] * (2 * len(ids))
    words[1::2] = ids
    return b"".join((STORED, hash_of(key), text("parent_block_hash"), hash_of(parent) if parent else NIL,
                     text("token_ids"), array(len(ids)), struct.pack(f">{'BI' * len(ids)}", *words),
                     text("block_size"), b"\xce", len(ids).to_bytes(4, "big"), MEDIUM, text(medium)))


def removed(keys: list[bytes], medium: str) -> bytes:
    return b"".join((REMOVED, array(len(keys)), *map(hash_of, keys), MEDIUM, text(medium)))


class Publisher:
    """A socket for messages with topic, number and events, and one that answers requests for
    earlier ones.  As in vLLM, an address with * or :: or of the kind ipc: is bound, and any other
    connected to.  ValueError: no such address."""

    def __init__(self, url: str, replay: str | None, topic: str) -> None:
        zmq: Any = importlib.import_module("zmq")
        self._zmq = zmq
        self._topic, self._next = topic.encode(), time.time_ns() // 1000  # above those of an earlier publisher
        self._out, self._replay = zmq.Context.instance().socket(zmq.PUB), zmq.Context.instance().socket(zmq.ROUTER)
        self._out.sndhwm = self._replay.sndhwm = QUEUED
        self._replay.router_mandatory, self._replay.maxmsgsize = True, 64
        self.urls = []
        for socket, at in ((self._out, url), (self._replay, replay)):
            socket.linger = 1000  # ms at the end
            try:
                if at is None:
                    continue
                socket.ipv6 = "[" in at
                if socket is self._replay or at.startswith(("ipc:", "inproc:")) or "*" in at or "::" in at:
                    socket.bind(at)
                    at = socket.last_endpoint.rstrip(b"\0").decode()
                else:
                    socket.connect(at)
                self.urls.append(at)
            except zmq.ZMQError as error:
                raise ValueError(f"{at}: {zmq.strerror(error.errno)}") from None
        # The last request of each subscriber: the next number for it, and whether it was sent some.
        self._asked: dict[bytes, tuple[int, bool]] = {}
        self.begin()

    def begin(self) -> None:
        """Tell that no block is stored.  Replays begin here, until too much has been sent."""
        self._sent: deque[tuple[int, bytes]] = deque()
        self._bytes, self._most, self._first = 0, 1 << 63, self._next
        self.send([CLEARED])

    def listed(self) -> None:
        """All blocks of the space were sent since the beginning."""
        self._most = 2 * self._bytes + KEPT

    def send(self, events: Sequence[bytes]) -> None:
        message = b"".join((b"\x93\xcb", struct.pack(">d", time.time()), array(len(events)), *events, b"\0"))
        self._out.send_multipart((self._topic, self._next.to_bytes(8, "big"), message))
        self._sent.append((self._next, message))
        self._next, self.last = self._next + 1, time.monotonic()
        self._bytes += len(message) + EXTRA
        while self._bytes > self._most:
            self._bytes -= len(self._sent.popleft()[1]) + EXTRA

    def answer(self) -> bool:
        """Send the messages that subscribers asked for, as many as they take now.  Return False if
        some are not kept, so that the caller must begin again."""
        for _ in range(REQUESTS):
            if not self._replay.poll(0):
                break
            client, *frames = self._replay.recv_multipart()
            if len(frames) == 2 and len(frames[1]) == 8:
                self._asked[client] = int.from_bytes(frames[1], "big"), False
        start, kept = self._sent[0][0], True
        for client, (first, begun) in list(self._asked.items()):
            lost = first < start != self._first
            if lost and not begun:
                kept = False
            elif lost or self._send_from(client, max(first - start, 0)):  # one that reads too slowly gets no more
                del self._asked[client]
        return kept

    def _send_from(self, client: bytes, at: int) -> bool:
        """Send the kept messages from the @at-th on.  Return False if the client does not read them now."""
        try:
            for number, message in chain(islice(self._sent, min(at, len(self._sent)), None), [END]):
                self._replay.send_multipart((client, b"", number.to_bytes(8, "big"), message), self._zmq.NOBLOCK)
                self._asked[client] = number + 1, True
        except self._zmq.Again:
            return False
        except self._zmq.ZMQError:  # the client has gone
            pass
        return True


def publish(space: Space, out: Publisher) -> None:
    """Publish which blocks of the space are where, until the space is removed."""
    told, changes = Told(), space.changes(True)
    lost, page = next(changes)
    while True:
        news = told.note(space.tiers(page), whole=lost)
        try:
            for some in (news[at:at + AT_ONCE] for at in range(0, len(news), AT_ONCE)):
                keys = list({key: None for key, _, here in some if here})
                blocks = dict(zip(keys, space.tokens(keys)))
                events = [removed(gone, medium) for medium in ("CPU", "STORAGE")
                          if (gone := [key for key, other, here in some if not here and other == medium])]
                for key, medium, here in some:
                    if here and (block := blocks[key]):
                        events.append(stored(key, medium, *block))
                    elif here:
                        told.forget(key, medium)
                if events:
                    out.send(events)
            if lost:
                out.listed()
            if time.monotonic() - out.last > IDLE:
                out.send([])
            again = not out.answer()
        except OSError:  # the daemon does not answer
            again = True
        if again:
            told = Told()
            out.begin()
        lost, page = changes.send(again)
