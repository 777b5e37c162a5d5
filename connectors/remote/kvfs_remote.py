# SPDX-License-Identifier: Apache-2.0
"""The protocol between a helper of the remote tier and the daemon: kvfs-remote-helper(7).

A helper makes an engine from its URL, and serves:

    kvfs_remote.serve(lambda url, landing, tenant: Engine(...))

engine.begin(requests) starts requests and returns soon; any thread answers each once, by
kvfs_remote.answer. Only an engine with clears = True gets CLEAR. engine.cancel(ids), if
defined, receives abandoned requests; they are answered nevertheless.
"""
import array
import contextlib
import ctypes
import errno
import mmap
import os
import socket
import struct
import sys
import threading
from typing import Any, Callable, Iterable, NamedTuple

VERSION = 2
NOTE = 128  # bytes of the note before an object's own bytes, filled with NUL
TEXT = 2048
HELLO, DO, CANCEL = 1, 2, 3
EXISTS, GET, PUT, PUBLISH, REMOVE, CLEAR = range(6)
CLEARS = 1  # in the hello

_head = struct.Struct("=HHI")
_hello = struct.Struct(f"=IiQ72s{TEXT}s")
_request = struct.Struct("=QIIQQ208s")
_answer = struct.Struct("=QiIQ")
_PR_SET_DUMPABLE = 4
ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # only root may read this process's memory
_socket = socket.socket(fileno=3)
_sending = threading.Lock()


class Landing:
    """The memory through which all bytes go, at `address` in this process."""

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self.bytes = mmap.mmap(fd, size)
        self.view = memoryview(self.bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))


class Request(NamedTuple):
    """A request: `bytes` is the length of a put, or the room for a get; the object is in the
    landing memory at `at` + NOTE, after its note."""
    id: int
    call: int
    at: int
    bytes: int
    name: str

    def clears(self, name: str) -> bool:
        """Whether the object `name` is one of those that a CLEAR removes."""
        return name != self.name and \
            name.rpartition("/")[0] == self.name.rpartition("/")[0]


def answer(answers: Iterable[tuple[Request, int, int]]) -> None:
    """Answer requests with their status, 0 or -errno, and the length of a get."""
    items = [_answer.pack(request.id, status, 0, length) for request, status, length in answers]
    for at in range(0, len(items), 32):
        some = items[at:at + 32]
        with _sending, contextlib.suppress(ConnectionError):  # serve sees it, too
            _socket.send(_head.pack(DO, len(some), 0) + b"".join(some))


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode()


def _receive_hello() -> tuple[str, Landing, str]:
    packet, fds, _, _ = socket.recv_fds(_socket, _head.size + _hello.size, 1)
    version, _, size, tenant, text = _hello.unpack(packet[_head.size:])
    if version != VERSION:
        raise OSError(errno.EPROTO, f"the daemon speaks version {version} of the protocol")
    landing = Landing(fds[0], size)
    os.close(fds[0])
    return _text(text), landing, _text(tenant)


def _send_hello(status: int, why: str = "", can: int = 0) -> None:
    text = why.encode()[:TEXT - 1]
    _socket.send(_head.pack(HELLO, 1, 0) + _hello.pack(VERSION, status, can, b"", text))


def _receive() -> bytes:
    try:
        return _socket.recv(8192)
    except ConnectionError:
        return b""


def serve(make: Callable[[str, Landing, str], Any]) -> None:
    """Until the daemon hangs up; then this process ends.  The last argument is the
    tenant, or "" of the node's own helper."""
    try:
        engine = make(*_receive_hello())
    except Exception as error:
        _send_hello(-(getattr(error, "errno", None) or errno.EIO), str(error))
        sys.exit(1)
    _send_hello(0, can=CLEARS if getattr(engine, "clears", False) else 0)
    while packet := _receive():
        kind, count, _ = _head.unpack_from(packet)
        if kind == DO:
            engine.begin([Request(number, call, at, size, _text(name))
                          for number, call, _, at, size, name
                          in _request.iter_unpack(packet[_head.size:])])
        elif kind == CANCEL and hasattr(engine, "cancel"):
            engine.cancel(array.array("Q", packet[_head.size:]).tolist())
    if hasattr(engine, "close"):
        engine.close()


def options(url: str) -> tuple[str, dict[str, str]]:
    """Return the part of a URL before the ?, and the options after it by name."""
    path, _, rest = url.partition("?")
    return path, dict(word.split("=", 1) for word in rest.split("&") if word)
