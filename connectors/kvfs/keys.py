# SPDX-License-Identifier: Apache-2.0
"""keys - names of blocks, packed once for many calls."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from ._native import ffi, lib
from .errors import check

Name = bytes | str
KEYS = ffi.typeof("kvfs_key[]")
KEY_SIZE = ffi.sizeof("kvfs_key")
LENGTHS = {16, 32}


class Keys(Sequence[bytes]):
    """Keys in chain order, made from bytes objects of 16 or 32 bytes or from names in hex.  A
    slice shares the memory."""

    __slots__ = ("c", "_whole", "_n")

    def __init__(self, names: Iterable[Name] = ()) -> None:
        if isinstance(names, (bytes, str)):
            raise TypeError(f"one key instead of a list of keys: [{names!r}]?")
        hashes = [name if type(name) is bytes else _raw(name) for name in names]
        lengths = {len(hash) for hash in hashes}
        if not lengths <= LENGTHS:
            wrong = next(hash for hash in hashes if len(hash) not in LENGTHS)
            raise ValueError(f"a key has 16 or 32 bytes, this one {len(wrong)}: {wrong.hex()} "
                             "(kvfs.fold makes one of any)")
        self._n = len(hashes)
        self._whole: Any = ffi.new("kvfs_key[]", max(1, self._n))
        self.c: Any = self._whole
        if len(lengths) == 1:
            check(lib.keys_set(self.c, b"".join(hashes), self._n, len(hashes[0])), "keys")
            return
        for i, hash in enumerate(hashes):
            check(lib.kvfs_key_set(hash, len(hash), self.c + i), "keys")

    @classmethod
    def of(cls, names: Iterable[Name]) -> Keys:
        return names if isinstance(names, Keys) else cls(names)

    @classmethod
    def _wrap(cls, whole: Any, c: Any, n: int) -> Keys:
        keys = cls.__new__(cls)
        keys._whole, keys.c, keys._n = whole, c, n
        return keys

    @classmethod
    def from_c(cls, array: Any, n: int) -> Keys:
        return cls._wrap(array, array, n)

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, i: int) -> bytes: ...

    @overload
    def __getitem__(self, i: slice) -> Keys: ...

    def __getitem__(self, i: int | slice) -> bytes | Keys:
        if isinstance(i, slice):
            first, end, step = i.indices(self._n)
            if step != 1:
                return Keys([self[j] for j in range(first, end, step)])
            return self._wrap(self._whole, self.c + first, max(0, end - first))
        if not -self._n <= i < self._n:
            raise IndexError("no such key")
        key = self.c[i % self._n]
        return bytes(ffi.buffer(key.bytes, key.len))

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(self._n))

    def __repr__(self) -> str:
        return f"<{self._n} keys{' from ' + self[0].hex() if self._n else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return unpack, (bytes(ffi.buffer(self.c, self._n * KEY_SIZE)),)


def _raw(name: Name) -> bytes:
    """Return the bytes of a key, of any length."""
    if isinstance(name, str):
        try:
            return bytes.fromhex(name)
        except ValueError:
            raise ValueError(f"a key in hex has 32 or 64 digits of 0-9 and a-f, and is not {name!r}"
                             ) from None
    if isinstance(name, (bytes, bytearray, memoryview)):
        return bytes(name)
    raise TypeError(f"a key is bytes or a string of hex digits, not {name!r}")


def unpack(packed: bytes) -> Keys:
    """Return the Keys of a pickle."""
    n = len(packed) // KEY_SIZE
    array = ffi.new(KEYS, max(1, n))
    ffi.memmove(array, packed, n * KEY_SIZE)
    return Keys.from_c(array, n)


class Chain:
    """Keys of a growing chain.  Each is made once from an engine's hash: a hash of 16 or 32
    bytes is the key, a hash of another length goes through SHA-256; with a @salt the key is
    the SHA-256 of salt and hash."""

    __slots__ = ("_array", "_room", "_salt", "_n")

    def __init__(self, salt: bytes = b"") -> None:
        self._array: Any = None
        self._room = self._n = 0
        self._salt = salt

    def __len__(self) -> int:
        return self._n

    def extend(self, hashes: Sequence[bytes]) -> None:
        """Add keys.  All @hashes have one length.  Keys from earlier calls stay valid."""
        n = self._n + len(hashes)
        if n > self._room:
            room = max(n + 8, 2 * self._room)
            array = ffi.new(KEYS, room)
            if self._n:
                ffi.memmove(array, self._array, self._n * KEY_SIZE)
            self._array, self._room = array, room
        if n > self._n:
            length, at = len(hashes[0]), self._array + self._n
            try:
                joined = b"".join(hashes)
            except TypeError:
                raise TypeError("hashes are bytes") from None
            if len(joined) != len(hashes) * length:
                raise ValueError("hashes of several lengths")
            if self._salt:
                result = lib.keys_salted(at, joined, len(hashes), length, self._salt, len(self._salt))
            else:
                result = lib.keys_set(at, joined, len(hashes), length)
            check(result, "keys")
            self._n = n

    def keys(self, first: int, end: int) -> Keys:
        """Return keys @first to @end - 1, which share the chain's memory."""
        if not 0 <= first <= end <= self._n:
            raise IndexError("the chain has fewer keys")
        return Keys._wrap(self._array, self._array + first, end - first)


def fold(data: bytes) -> bytes:
    """Return a key of 32 bytes for data of any length, by SHA-256."""
    key = ffi.new("kvfs_key *")
    check(lib.kvfs_key_fold(data, len(data), key), "fold")
    return bytes(ffi.buffer(key.bytes, key.len))
