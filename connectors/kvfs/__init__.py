# SPDX-License-Identifier: Apache-2.0
"""kvfs - KV caches of LLM engines in pinned memory and on SSD.

    import kvfs
    with kvfs.open("/kvfs") as session:
        space = session.space("model")
        keys = kvfs.Keys(hashes)                  # 16 or 32 bytes each
        with space.acquire(keys[:space.match(keys)]) as lease:
            lease.wait()
            k = lease[0]["k"].numpy()             # read-only, no copy

Bytes are copied by libkvfs's own threads, or not at all.  Every call lets the
interpreter's lock go.  What fails raises kvfs.Error, an OSError with the key's name.
"""
from ._native import ffi, lib
from .errors import Error
from .keys import Keys, fold
from .lease import Block, Lease, Tensor
from .pool import Memory, Pool, View, views_of
from .session import Session, open
from .space import Space, State
from .transfer import Stage, Transfer

__version__ = "0.2.0"
__all__ = ["Block", "Error", "Keys", "Lease", "Memory", "Pool", "Session", "Space", "Stage", "State",
           "Tensor", "Transfer", "View", "ffi", "fold", "lib", "open", "views_of"]


def _one_library() -> None:
    """Two copies would have two sessions with a daemon each, and leases that the
    other does not know."""
    paths = ffi.new("char[]", 4096)
    if lib.library_copies(paths, 4096) > 1:
        raise ImportError("kvfs: this process has more than one libkvfs:\n"
                          + ffi.string(paths).decode())


_one_library()
