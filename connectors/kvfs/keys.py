# SPDX-License-Identifier: Apache-2.0
"""keys - names of blocks, packed once for many calls."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from ._native import ffi, lib
from .errors import check

Name = bytes | str


class Keys(Sequence[bytes]):
    """Keys in chain order: bytes of 16 or 32, or their names in hex.  A slice shares
    the memory."""

    __slots__ = ("c", "_whole", "_n")

    def __init__(self, names: Iterable[Name] = ()) -> None:
        hashes = [bytes.fromhex(name) if isinstance(name, str) else name for name in names]
        for hash in hashes:
            if len(hash) not in (16, 32):
                raise ValueError(f"a key has 16 or 32 bytes, this one {len(hash)}: {hash.hex()} "
                                 "(kvfs.fold makes one of any)")
        self._n = len(hashes)
        self._whole: Any = ffi.new("kvfs_key[]", max(1, self._n))
        self.c: Any = self._whole
        if len({len(hash) for hash in hashes}) == 1:
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


def fold(data: bytes) -> bytes:
    """A key of 32 bytes for one of any length, by SHA-256."""
    key = ffi.new("kvfs_key *")
    check(lib.kvfs_key_fold(data, len(data), key), "fold")
    return bytes(ffi.buffer(key.bytes, key.len))
