# SPDX-License-Identifier: Apache-2.0
"""kvfs - KV caches of LLM engines in pinned memory and on SSD.

    import kvfs
    with kvfs.open("/kvfs") as session:
        space = session.space("model")
        keys = kvfs.Keys(hashes)                  # 16 or 32 bytes each
        with space.acquire(keys[:space.match(keys)]) as lease:
            lease.wait()
            k = lease[0]["k"].numpy()             # read-only, no copy

An engine with many requests makes keys once (`Chain`), matches and holds in one call
(`Together`), loads in one (`Pool.fetch`), and collects events by numbers that it chose
(`Session.reap`).  `match_tokens` is for groups whose blocks differ in length; `Space.keys`
lists the blocks, `Space.blocks` lists blocks with their tokens if the space keeps tokens,
`Space.changes` follows which blocks enter and leave DRAM and SSD, and `Space.remove` removes the
space.

Bytes are copied by libkvfs's own threads, or not at all.  Every call releases the interpreter's
lock.  Ctrl-C ends a wait within 0.1 s, and a look-up while the daemon hangs within a second.  A
failing call raises kvfs.Error, an OSError with the key's name.
"""
from ._native import ffi, lib
from .auto import open
from .errors import Error
from .keys import Chain, Keys, fold
from .lease import Block, Lease, Tensor
from .pool import Memory, Pool, View, views_of
from .session import Event, Session, What
from .space import Cause, Entry, Miss, Space, State, Together, Tokens, acquire, match, match_tokens
from .transfer import Stage, Transfer

__version__ = "0.2.0"
__all__ = ["Block", "Cause", "Chain", "Entry", "Error", "Event", "Keys", "Lease", "Memory", "Miss", "Pool", "Session", "Space",
           "Stage", "State", "Tensor", "Together", "Tokens", "Transfer", "View", "What", "acquire", "ffi", "fold",
           "lib", "match", "match_tokens", "open", "views_of"]


def _one_library() -> None:
    """Refuse a second copy of libkvfs: each copy would have its own session with the daemon,
    and would not know the leases of the other."""
    paths = ffi.new("char[]", 4096)
    if lib.library_copies(paths, 4096) > 1:
        raise ImportError("kvfs: this process has more than one libkvfs:\n"
                          + ffi.string(paths).decode())


_one_library()
