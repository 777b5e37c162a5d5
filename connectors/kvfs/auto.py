# SPDX-License-Identifier: Apache-2.0
"""auto - sessions; with the path "auto", the search for a daemon of this machine or user, which is
started if there is none.

The order: $KVFS; a daemon of root below /run/kvfs; a daemon of the user below $XDG_RUNTIME_DIR/kvfs;
the daemon that an earlier search has started.  A lock in the user's directory lets one process
start a daemon, while others wait and then find it.
"""
from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import shutil
import signal
import socket
import stat
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import local
from ._native import ffi, lib
from .session import Session

LOG = logging.getLogger("kvfs")
CGROUPS = Path("/sys/fs/cgroup")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
IDLE = 600
DRAM_MAX = 4 << 30
DRAM_MIN = 16 << 20


def open(path: str | os.PathLike[str] = "auto", log: logging.Logger = LOG, start: bool = True) -> Session:
    """Return a session with the daemon at @path: a mount point, a control socket, or "auto".
    Succeeds without a daemon, except with "auto": everything is a miss until one answers.  The
    session reconnects by itself.  ValueError: no daemon can be found or started, or the one that
    is found speaks another version of the protocol.  Without @start none is started."""
    if os.fspath(path) != "auto":
        return Session(path)
    if given := os.environ.get("KVFS"):
        if not given.startswith("/"):
            raise ValueError(f"kvfs: KVFS is {given!r}; it must be an absolute path")
        return Session(given)
    for control in local.sockets():
        if session := _session(control):
            return session
    home = _home()
    with local.locked(f"{home}/lock"):
        if session := _session(f"{home}/control"):
            return session
        if not start:
            raise ValueError("kvfs: there is no daemon: start one, or give the path of one")
        return _started(home, log)


def _session(control: str) -> Session | None:
    """Return a session with the daemon at @control, also with one that hangs.  None: there is none,
    or it admits other users only.  ValueError: it speaks another version of the protocol."""
    if not os.path.exists(control):
        return None
    session = Session(control)
    state = lib.kvfs_connection(session.handle.c, ffi.NULL)
    if state == 1:
        return session
    pid, newest, oldest = 0, 0, 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.settimeout(1)
        try:
            asked.connect(control)
            pid = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            # wire.h: HELLO with the version 0, which the daemon answers with its own versions.
            asked.send(struct.pack("=HHIQIiQ 32x", 1, 0, 1, 1, 0, 0, 0))
            newest, oldest = struct.unpack_from("=II", asked.recv(256), 32)
        except TimeoutError:
            pass
        except (OSError, struct.error):
            state = -errno.EPERM
    if state == -errno.EPERM:
        session.close()
        return None
    if state == -errno.EPROTONOSUPPORT:
        session.close()
        raise ValueError(f"kvfs: the daemon at {control} (pid {pid}) speaks versions {oldest} to {newest} "
                         "of the protocol, and this package others: end or upgrade the daemon, or "
                         "give the path of another")
    return session


def _home() -> str:
    """Return the user's directory for the daemon, which is made if absent, where no other user can
    replace it.  ValueError: others can enter it, or there is no such place."""
    uid = os.geteuid()
    for home in local.homes():
        try:
            above = os.stat(os.path.dirname(home))
            # In a folder of another user, or one that others may write to, home could be replaced.
            if above.st_uid not in (0, uid) or above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX:
                continue
            os.mkdir(home, 0o700)
        except FileExistsError:
            pass
        except OSError:
            continue
        status = os.lstat(home)
        if status.st_uid != uid:  # another user was there first
            continue
        if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
            raise ValueError(f"kvfs: {home} must be a directory that no other may enter: remove it, "
                             "or give the path of a daemon")
        return home
    raise ValueError("kvfs: no directory for a daemon can be made: set XDG_RUNTIME_DIR to one")


def _memory() -> tuple[str, int]:
    """Return this process's control group, and the bytes of memory that it may have: the machine's,
    or the lowest limit of the group and those above it."""
    lines = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    group = next((line[3:] for line in lines if line.startswith("0::")), "/")
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    folder = CGROUPS / group.lstrip("/")
    for above in (folder, *folder.parents):
        for name in "memory.max", "memory.high":
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                limit = min(limit, int((above / name).read_text()))
    return group, limit


def _started(home: str, log: logging.Logger) -> Session:
    """Start a daemon in @home, with a mount if the system allows one, and return a session with it."""
    group, limit = _memory()
    dram = max(DRAM_MIN, min(DRAM_MAX, limit // 10))
    control, mount, error = f"{home}/control", f"{home}/mount", "/dev/fuse cannot be opened"
    options = f"dram={dram},ssd=0,hugepages=off,idle={IDLE},allow={os.geteuid()},control=" + control.replace(",", "\\,")
    out = os.open(f"{home}/log", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(mount, 0o700)
        for place in (mount, "none") if os.access("/dev/fuse", os.R_OK | os.W_OK) else ("none",):
            begin = os.fstat(out).st_size
            if done := _run([_program(), "-o", options, f"{home}/store", place], out):
                break
            error = "; ".join(os.pread(out, 4096, begin).decode(errors="replace").strip().split("\n")[-2:])
    finally:
        os.close(out)
    session = _session(control)  # if starting failed, a killed process may have started one
    if not session:
        raise ValueError(f"kvfs: no daemon can be started in {home}: {error}")
    if done and place == "none":
        log.warning("kvfs: the daemon has no mount: %s", error)
    if done:
        log.warning("kvfs: started a daemon at %s with %d MiB of memory and no SSD tier, which ends after %d "
                    "idle minutes; its control group %s may have %d MiB; it logs to %s/log", control,
                    dram >> 20, IDLE // 60, group, limit >> 20, home)
    return session


def _program() -> str:
    """Return the path of the daemon's program: the wheel's, or the one on PATH."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")
    folders = filter(None, (own, os.environ.get("PATH"), PATH))  # an empty folder would mean the current one
    if found := shutil.which("kvfs", path=":".join(folders)):
        return found
    raise ValueError("kvfs: there is no program kvfs to start a daemon: install kvfs, or give the path "
                     "of a daemon")


def _run(command: list[str], out: int) -> bool:
    """Run the program, which returns when its daemon answers, and return whether it succeeded.  The
    daemon inherits only @out: no terminal, environment, descriptors, CPUs or NUMA policy of this process."""
    def run() -> bool:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, range(4096))
        ctypes.CDLL(None).syscall(SET_MEMPOLICY.get(os.uname().machine, -1), 0, None, 0)  # MPOL_DEFAULT
        pid = os.posix_spawn(command[0], command, {"PATH": PATH}, file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, out, 2)], setsid=True, setsigmask=[],
            setsigdef=[signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD])
        try:
            return os.waitpid(pid, 0)[1] == 0
        except ChildProcessError:  # this process ignores SIGCHLD: the daemon is looked for
            return True

    with ThreadPoolExecutor(1) as pool:  # a thread: CPUs and NUMA policy belong to threads
        try:
            return pool.submit(run).result()
        except OSError as error:
            raise ValueError(f"kvfs: cannot run {command[0]}: {error.strerror}") from error
