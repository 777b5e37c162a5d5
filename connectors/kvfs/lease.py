# SPDX-License-Identifier: Apache-2.0
"""lease - blocks held in the arena, read in place."""
from __future__ import annotations

import ctypes
import errno
import operator
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._native import ffi, lib
from .errors import Error, check
from .handle import Handle, Owner, sliced
from .keys import Keys

if TYPE_CHECKING:
    from .session import Awaited
    from .space import Space

# safetensors' type: its DLPack code, bits, and NumPy typestr (None: NumPy has no such type)
DTYPES: dict[str, tuple[int, int, str | None]] = {
    "BOOL": (6, 8, "|b1"), "U8": (1, 8, "|u1"), "I8": (0, 8, "|i1"),
    "U16": (1, 16, "<u2"), "I16": (0, 16, "<i2"), "U32": (1, 32, "<u4"), "I32": (0, 32, "<i4"),
    "U64": (1, 64, "<u8"), "I64": (0, 64, "<i8"), "F16": (2, 16, "<f2"), "F32": (2, 32, "<f4"),
    "F64": (2, 64, "<f8"), "C64": (5, 64, "<c8"), "BF16": (4, 16, None),
    "F8_E4M3": (10, 8, None), "F8_E5M2": (12, 8, None), "F8_E8M0": (14, 8, None),
}


class Lease(Owner):
    """A hold on blocks, until the lease is closed and the last array over them is gone."""

    def __init__(self, handle: Handle, awaited: Awaited, spaces: Sequence[Space],
                 keys: Sequence[Keys]) -> None:
        self._handle = handle.made()
        self._awaited = awaited
        self._spaces = spaces
        self._keys = keys
        self.n = sum(len(some) for some in keys)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lease, which ends with the last array over its blocks.  Tasks that await
        it get ValueError."""
        super().close()
        self._awaited.look()

    release = close

    def __len__(self) -> int:
        return self.n

    def _place(self, i: int) -> tuple[Space, Keys, int]:
        for space, keys in zip(self._spaces, self._keys):
            if i < len(keys):
                return space, keys, i
            i -= len(keys)
        raise IndexError("the lease has fewer blocks")

    def poll(self) -> bool:
        """Return whether the lease has settled: every block is held, or has failed."""
        return check(lib.kvfs_lease_poll(self.handle.c), "lease") == 1

    def held(self, timeout: float | None = 0.0) -> int | None:
        """Return how many blocks are held; None: not settled within @timeout seconds."""
        got = sliced(lib.kvfs_lease_wait, (self.handle.c,), timeout)
        return None if got == -errno.ETIMEDOUT else check(got, "lease")

    def wait(self, timeout: float | None = None) -> int:
        """Block until the lease settles; return how many blocks are held.  TimeoutError."""
        got = sliced(lib.kvfs_lease_wait, (self.handle.c,), timeout)
        if got == -errno.ETIMEDOUT:
            raise TimeoutError(errno.ETIMEDOUT, f"lease: not settled after {timeout} s")
        return check(got, "lease")

    async def settled(self) -> int:
        await self._awaited.until(self.poll)
        return self.wait(0)

    def __await__(self) -> Generator[Any, None, int]:
        return self.settled().__await__()

    def statuses(self) -> list[int]:
        """Return 0 or a negative errno for each block."""
        array = ffi.new("int[]", max(1, self.n))
        check(lib.kvfs_lease_statuses(self.handle.c, 0, self.n, array), "lease")
        return list(array[0:self.n])

    def states(self) -> bytes:
        """Return the kvfs.State of each block before the lease; ABSENT: the block is not held."""
        array = ffi.new("uint8_t[]", max(1, self.n))
        check(lib.kvfs_lease_states(self.handle.c, 0, self.n, array), "lease")
        return bytes(ffi.buffer(array, self.n))

    def check(self) -> None:
        """Raise Error for the first block that is not held, with its name."""
        for i, status in enumerate(self.statuses()):
            if status < 0:
                _, keys, at = self._place(i)
                raise Error(-status, "lease", keys[at].hex())

    def cancel(self) -> None:
        """Stop fetching: blocks that have not arrived fail with ECANCELED."""
        lib.kvfs_lease_cancel(self.handle.c)

    def __getitem__(self, i: int) -> Block:
        """Return block @i.  Error if it is not held."""
        i = operator.index(i)
        if not 0 <= i < self.n:
            raise IndexError("the lease has fewer blocks")
        space, keys, at = self._place(i)
        status = lib.kvfs_lease_status(self.handle.c, i)
        if status < 0:
            raise Error(-status, "lease", keys[at].hex())
        size = ffi.new("uint64_t *")
        data = lib.kvfs_lease_data(self.handle.c, i, size)
        return Block(self.handle, data, int(size[0]), space.tensors)

    def __iter__(self) -> Iterator[Block]:
        return (self[i] for i in range(self.n))


class Block(Mapping[str, "Tensor"]):
    """A block's tensors by name, in place."""

    def __init__(self, handle: Handle, data: Any, size: int,
                 tensors: list[tuple[str, str, tuple[int, ...]]]) -> None:
        self._whole = Tensor(handle, data, "U8", (size,))
        self._tensors: dict[str, Tensor] = {}
        at = 0
        for name, dtype, shape in tensors:
            tensor = Tensor(handle, ffi.cast("char *", data) + at, dtype, shape)
            self._tensors[name] = tensor
            at += tensor.nbytes

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def bytes(self) -> Tensor:
        """All bytes as U8; in a space without a layout the only tensor."""
        return self._whole


class Tensor:
    """Read-only memory of the arena, for NumPy (`numpy`, `numpy.asarray`) and by DLPack
    (`torch.from_dlpack`).  Arrays and tensors made from it hold the lease."""

    def __init__(self, handle: Handle, data: Any, dtype: str, shape: tuple[int, ...]) -> None:
        self._handle = handle
        self._data = data
        self.dtype = dtype
        self.shape = shape
        self.nbytes = DTYPES[dtype][1] // 8
        for dim in shape:
            self.nbytes *= dim

    def __repr__(self) -> str:
        return f"<{self.dtype} {list(self.shape)} in kvfs>"

    @property
    def __array_interface__(self) -> dict[str, Any]:
        typestr = DTYPES[self.dtype][2]
        if typestr is None:
            raise AttributeError(f"NumPy has no {self.dtype}")
        return {"version": 3, "typestr": typestr, "shape": self.shape,
                "data": (int(ffi.cast("uintptr_t", self._data)), True)}

    def numpy(self, dtype: Any = None) -> Any:
        """Return a read-only array.  A type that NumPy lacks (BF16, FP8) needs a @dtype of the
        same size, e.g. numpy.uint16."""
        import numpy

        if dtype is None:
            if DTYPES[self.dtype][2] is None:
                raise TypeError(f"NumPy has no {self.dtype}: numpy({'numpy.uint16' if self.dtype == 'BF16' else 'numpy.uint8'}) "
                                "gives the bits, torch.from_dlpack the tensor")
            return numpy.asarray(self)
        raw = Tensor(self._handle, self._data, "U8", (self.nbytes,))
        array = numpy.asarray(raw).view(dtype)
        if array.itemsize * 8 != DTYPES[self.dtype][1]:
            raise TypeError(f"{numpy.dtype(dtype)} has another size than {self.dtype}")
        return array.reshape(self.shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        if copy or dl_device not in (None, (1, 0)):
            raise BufferError("kvfs: memory of the arena is shared in place, on the CPU")
        if max_version is None or max_version < (1, 0):
            # Consumers of older DLPack versions would write to the memory, and crash.
            raise BufferError("kvfs: read-only memory needs DLPack 1.0 (max_version)")
        code, bits, _ = DTYPES[self.dtype]
        shape = ffi.new("int64_t[]", list(self.shape) or [0])
        managed = lib.dlpack_new(self._handle.held, self._data, code, bits, len(self.shape), shape)
        if managed == ffi.NULL:
            raise MemoryError("kvfs")
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(int(ffi.cast("uintptr_t", managed)), b"dltensor_versioned",
                   int(ffi.cast("uintptr_t", lib.dlpack_destructor())))
