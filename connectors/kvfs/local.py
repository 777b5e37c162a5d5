# SPDX-License-Identifier: Apache-2.0
"""local - libkvfs of this installation, the places where daemons of this machine listen, and locks.

auto.py imports this file; command.py, bundle.py and kvfs-forget, which do not import the package, run it.
"""
from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import os
import time
from collections.abc import Iterator

MACHINE, USERS, TEMPORARY = "/run/kvfs", "/run/user", "/tmp"
LOCK_WAIT = 60.0


def load() -> ctypes.CDLL:
    """Load libkvfs of the wheel, installation or checkout that has this file, else the system's."""
    here = os.path.dirname(os.path.realpath(__file__))
    for path in "lib/libkvfs.so.1", "../../lib/libkvfs.so.1", "../../build/libkvfs.so":
        if os.path.exists(f"{here}/{path}"):
            return ctypes.CDLL(f"{here}/{path}")
    return ctypes.CDLL("libkvfs.so.1")


def runtime() -> str:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    return given if given.startswith("/") else f"{USERS}/{os.geteuid()}"


def sockets() -> list[str]:
    """Return the control sockets of root's and of the user's daemons, also of ended ones."""
    return [path for base in (MACHINE, f"{runtime()}/kvfs") for path in sorted(
        glob.glob(f"{glob.escape(base)}/control") + glob.glob(f"{glob.escape(base)}/*/control"))]


def homes() -> list[str]:
    """Return where auto.py may start the user's daemon.  Another user may have made such a folder."""
    uid, cache = os.geteuid(), os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Nodes may share the cache directory.
    return [f"{runtime()}/kvfs-{uid}", f"{TEMPORARY}/kvfs-{uid}", f"{cache}/kvfs-{os.uname().nodename}"]


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock @path, a file that exists meanwhile.  ValueError: another process holds it."""
    end = time.monotonic() + LOCK_WAIT
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):  # the last holder has not removed it
                break
        os.close(fd)
        if time.monotonic() > end:
            raise ValueError(f"kvfs: another process has held {path} for {LOCK_WAIT:.0f} s: end it, or choose another path")
        time.sleep(0.02)
    try:
        yield
    finally:
        os.unlink(path)
        os.close(fd)
