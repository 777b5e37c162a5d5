# SPDX-License-Identifier: Apache-2.0
"""transfer - a load, save or flush in flight."""
from __future__ import annotations

import enum
import errno
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from ._native import ffi, lib
from .errors import Error, check
from .handle import Handle, Owner, sliced
from .keys import Keys

if TYPE_CHECKING:
    from .session import Awaited

PRESENT = lib.KVFS_PRESENT
EVICTED = lib.KVFS_EVICTED


class Stage(enum.IntEnum):
    """SUBMITTED: all copies are submitted to the GPU; COPIED: the pages may be reused, or
    read; SEALED: other clients find the blocks; DURABLE: the blocks survive power loss."""

    SUBMITTED = lib.KVFS_SUBMITTED
    COPIED = lib.KVFS_COPIED
    SEALED = lib.KVFS_SEALED
    DURABLE = lib.KVFS_DURABLE


class Transfer(Owner):
    """A transfer in flight.  `await` waits for its usual end: COPIED of a load, SEALED of a save.
    The result is the number of blocks that got there.  A block that did not is a miss, not an
    error (`statuses` shows which, `check` raises Error).  A transfer continues without its
    object; its memory must stay until it is COPIED."""

    def __init__(self, handle: Handle, awaited: Awaited, keys: Keys | None, n: int, end: Stage,
                 what: str) -> None:
        self._handle = handle.made()
        self._awaited = awaited
        self.keys = keys
        self.n = n
        self.end = end
        self._what = what

    def __len__(self) -> int:
        return self.n

    def close(self) -> None:
        """Release the transfer, which continues.  Tasks that await it get ValueError."""
        super().close()
        self._awaited.look()

    def _stage(self, stage: Stage | None) -> Stage:
        if stage is None:
            return self.end
        return stage if type(stage) is Stage else Stage(stage)

    def poll(self, stage: Stage | None = None) -> bool:
        """Return whether every block has reached @stage, or failed."""
        return check(lib.kvfs_xfer_poll(self.handle.c, self._stage(stage)), self._what) == 1

    def there(self, stage: Stage | None = None, timeout: float | None = 0.0) -> int | None:
        """Return how many blocks have reached @stage; None: some are still in flight after
        @timeout seconds."""
        got = sliced(lib.kvfs_xfer_wait, (self.handle.c, self._stage(stage)), timeout)
        return None if got == -errno.ETIMEDOUT else check(got, self._what)

    def wait(self, stage: Stage | None = None, timeout: float | None = None) -> int:
        """Block until the stage; return how many blocks got there.  0 is no error: no block
        was available (`check` raises an error).  TimeoutError."""
        got = sliced(lib.kvfs_xfer_wait, (self.handle.c, self._stage(stage)), timeout)
        if got == -errno.ETIMEDOUT:
            raise TimeoutError(errno.ETIMEDOUT, f"{self._what}: not done after {timeout} s")
        return check(got, self._what)

    async def reached(self, stage: Stage | None = None) -> int:
        """Wait in an event loop, without a thread."""
        await self._awaited.until(lambda: self.poll(stage))
        return self.wait(stage, 0)

    def __await__(self) -> Generator[Any, None, int]:
        return self.reached().__await__()

    def statuses(self) -> list[int]:
        """Return for each block 0, PRESENT (1), EVICTED (2), or a negative errno; -EINPROGRESS
        until the block has ended."""
        array = ffi.new("int[]", max(1, self.n))
        check(lib.kvfs_xfer_statuses(self.handle.c, 0, self.n, array), self._what)
        return list(array[0:self.n])

    def check(self) -> None:
        """Raise Error for the first block that failed, with its name."""
        for i, status in enumerate(self.statuses()):
            if status < 0:
                raise Error(-status, self._what, self.keys[i].hex() if self.keys else None)

    def cancel(self) -> None:
        """Stop blocks that have not begun.  Copies under way continue until COPIED."""
        lib.kvfs_xfer_cancel(self.handle.c)
