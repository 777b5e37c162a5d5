# SPDX-License-Identifier: Apache-2.0
"""command - `kvfs WORD ...`: look at a daemon and change what it keeps, through its control socket.

kvfs(1) starts this file for the words of WORDS below.  man/kvfs-commands.1 is the reference.  The
module needs Python's standard library and libkvfs.  Bad input costs one line and status 1.
"""
from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import ctypes
import errno
import gc
import itertools
import json
import os
import pwd
import re
import runpy
import shutil
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NoReturn

STATS, CONFIG, METRICS, SPACES, USER = range(5)  # enum kvfs_text_what
QUOTAS = "quota.dram", "quota.ssd", "reserve.dram", "reserve.ssd", "rate.put", "ttl"
HERE = os.path.dirname(os.path.realpath(__file__))
LOCAL = runpy.run_path(f"{HERE}/local.py")
KEY_TEXT = re.compile("[0-9a-f]{32}|[0-9a-f]{64}")
ENTRY, NAMES = 144, "36s36s72x"  # bytes of a kvfs_entry; its key and parent
# The other members: index in an array of the format, and the format.
FIGURES: dict[str, tuple[int, Any]] = {"position": (18, "I"), "tokens": (19, "I"), "bytes.dram": (10, "Q"), "bytes.ssd": (11, "Q"),
           "last": (12, "q"), "hits": (26, "I"), "pinned": (27, "I")}
IDS: dict[str, tuple[int, Any]] = {"id": (14, "Q"), "parent_id": (15, "Q")}
CHANGES, WAIT_NS = 512, 200_000_000  # most changes in one call, and its longest wait
COPIED, FOREVER = 1, (1 << 64) - 1  # KVFS_COPIED, KVFS_FOREVER


class Failure(Exception):
    """Raised to end the command with status 1 and a line."""


# ---- libkvfs ----

class Key(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 32), ("len", ctypes.c_uint32)]


class Query(ctypes.Structure):
    _fields_ = [("space", ctypes.c_void_p), ("keys", ctypes.POINTER(Key)), ("n", ctypes.c_size_t),
                ("unused", ctypes.c_uint64 * 3)]


class Tokens(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("position", ctypes.c_uint32), ("parent", Key), ("n", ctypes.c_uint32),
                ("extras_len", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("ids", ctypes.POINTER(ctypes.c_uint32)),
                ("extras", ctypes.c_void_p), ("unused", ctypes.c_uint64 * 2)]


class Miss(ctypes.Structure):
    _fields_ = [("key", Key), ("cause", ctypes.c_uint32), ("since", ctypes.c_int64), ("idle", ctypes.c_uint32),
                ("place", ctypes.c_uint32), ("n", ctypes.c_uint32), ("unused", ctypes.c_uint32),
                ("asked_ns", ctypes.c_int64), ("next", ctypes.c_uint64 * 2)]

    def described(self) -> dict[str, Any]:
        look_up = {"asked": self.asked_ns / 1e9, "block": self.place, "blocks": self.n} if self.asked_ns else {}
        return {**look_up, "cause": dict(enumerate(CAUSES)).get(self.cause, "unknown"), "since": self.since, "idle": self.idle,
                "key": bytes(self.key.bytes[:self.key.len]).hex()}


# The words of enum kvfs_cause: the cause, and a tier or a reason.
CAUSES = ["present", "unseen", "evicted dram", "evicted ssd", "removed", "expired", "refused quota", "refused rate",
          "refused room", "refused parent", "refused budget", "damaged", "offline"]
MISSES_MIN, LOGGED = 256, 4096


def check(result: int, what: str = "") -> int:
    if result < 0:
        raise Failure(f"{what}: {os.strerror(-result)}" if what else os.strerror(-result))
    return result


def sockets() -> Iterator[str]:
    """Yield the control sockets at which daemons of the machine and of the user listen."""
    known = LOCAL["sockets"]()
    for path in dict.fromkeys([*known, *(f"{home}/control" for home in LOCAL["homes"]())]):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe, contextlib.suppress(OSError):
            probe.setblocking(False)
            # EAGAIN: the daemon hangs.
            if (path in known or os.stat(path).st_uid == os.geteuid()) and probe.connect_ex(path) in (0, errno.EAGAIN):
                yield path


def refuses(path: str) -> bool:
    """Return True if the daemon at a mount point or control socket cuts the connections of this user."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.settimeout(1)
        try:
            asked.connect(f"{path}/.kvfs/control" if os.path.isdir(path) else path)
            return not asked.recv(1)
        except OSError as error:
            return isinstance(error, PermissionError)


class Daemon:
    """A session with the daemon at a mount point or control socket."""

    def __init__(self, path: str | None, must: bool = True) -> None:
        if path == "":  # an unset variable of a script: do not look for another daemon
            raise Failure("-p needs a MOUNTPOINT or SOCKET")
        path = path or os.environ.get("KVFS")
        if not path:
            found = list(sockets())
            if len(found) != 1:
                raise Failure(f"several daemons run: choose one with -p: {' '.join(found)}" if found else
                              "no daemon was found: name one with -p MOUNTPOINT or -p SOCKET")
            path = found[0]
        try:
            self.lib = LOCAL["load"]()
        except OSError as error:
            raise Failure(f"{error}: install the package libkvfs1") from None
        for call in "evict", "pin", "unpin", "space_keys", "space_list", "space_changes", "space_tokens", "xfer_wait", "xfer_statuses", "why", "misses", \
                "key_chain", "match_tokens":
            getattr(self.lib, f"kvfs_{call}").restype = ctypes.c_long
        self.lib.kvfs_space_layout.restype = ctypes.c_char_p
        self.session = ctypes.c_void_p()
        check(self.lib.kvfs_open(os.fsencode(path), ctypes.byref(self.session)), path)
        live = self.lib.kvfs_connection(self.session, None) if must else 1
        if live == -errno.EPROTONOSUPPORT:
            sys.exit(1)  # libkvfs has printed the versions
        if check(live, path) == 0:
            raise Failure(f"{path}: " + (
                "this user is refused (allow= in kvfs(1), or too many connections)" if refuses(path) else "no kvfs answers"))

    def text(self, what: int, uid: int = 0) -> str:
        text = ctypes.c_char_p()
        check(self.lib.kvfs_text(self.session, what, ctypes.c_uint32(uid), ctypes.byref(text)),
              f"user {uid}" if what == USER else "")
        try:
            return os.fsdecode(text.value or b"")
        finally:
            self.lib.free(text)

    def pairs(self, what: int, uid: int = 0) -> dict[str, str]:
        """Return the key=value lines of a text."""
        return dict(line.partition("=")[::2] for line in self.text(what, uid).split("\n") if line)

    def metrics(self) -> dict[str, float]:
        samples = (line.rpartition(" ") for line in self.text(METRICS).splitlines() if line[:1] != "#")
        return {name: float(value) if "." in value else int(value) for name, _, value in samples}

    def spaces(self, names: Iterable[str] = ()) -> list[dict[str, Any]]:
        """Return what the daemon tells of the spaces @names, or of all, sorted by name."""
        found = [json.loads(line) for line in self.text(SPACES).split("\n")[:-1]]
        for space in found:  # in a name that is not UTF-8 the daemon escapes all bytes above 7f
            space["name"] = os.fsdecode(os.fsencode(space["name"]))
        all_ = {space["name"]: space for space in found}
        wanted = [name.removeprefix("./") for name in names]
        for name in wanted:
            if name not in all_:
                raise Failure(f"{name}: no such space")
        return [all_[name] for name in wanted or sorted(all_)]

    def space(self, name: str) -> Space:
        return Space(self, name.removeprefix("./"))


class Space:
    """A space that exists, opened by name."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        self.lib, self.name, self.c = daemon.lib, name, ctypes.c_void_p()
        r = self.lib.kvfs_space_open(daemon.session, os.fsencode(name), None, 0, ctypes.byref(self.c))
        if -r in (errno.ENOENT, errno.EACCES, errno.EINVAL):
            raise Failure(f"{name}: no such space")
        check(r, name)

    def pages(self) -> Iterator[ctypes.Array[Key]]:
        """Yield the keys of all blocks."""
        cursor, most = ctypes.c_uint64(), 4096
        while True:
            keys = (Key * most)()
            n = check(self.lib.kvfs_space_keys(self.c, ctypes.byref(cursor), keys, ctypes.c_size_t(most)), self.name)
            yield (Key * n).from_buffer(keys)
            if cursor.value == 0:
                return

    def listing(self) -> Iterator[memoryview]:
        """Yield all blocks, as arrays of kvfs_entry.  Another thread asks for the next ones meanwhile."""
        cursor, most = ctypes.c_uint64(), 8192
        this, other = bytearray(most * ENTRY), bytearray(most * ENTRY)

        def fetch(into: bytearray) -> int:
            return int(self.lib.kvfs_space_list(self.c, ctypes.byref(cursor),
                                                (ctypes.c_char * len(into)).from_buffer(into), ctypes.c_size_t(most)))

        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            pending = thread.submit(fetch, this)
            while True:
                n, last = check(pending.result(), self.name), cursor.value == 0
                if not last:
                    pending = thread.submit(fetch, other)
                yield memoryview(this)[:n * ENTRY]
                if last:
                    return
                this, other = other, this

    def changes(self, listed: bool) -> Generator[tuple[bool, memoryview], bool | None, None]:
        """Yield whether changes were lost, and an array of kvfs_entry: the blocks that have entered or left a tier,
        or after a loss all blocks if @listed, else none.  A true value sent to the generator lists them again.
        Without a daemon there is no block; the generator waits for the next daemon."""
        cursor, room, gone = ctypes.c_uint64(), bytearray(CHANGES * ENTRY), False
        page = (ctypes.c_char * len(room)).from_buffer(room)
        while True:
            n = self.lib.kvfs_space_changes(self.c, ctypes.byref(cursor), page, ctypes.c_size_t(CHANGES),
                                            ctypes.c_uint64(WAIT_NS))
            if n >= 0:
                if (yield False, memoryview(room)[:n * ENTRY]):
                    cursor.value = 0
            elif n == -errno.ESTALE:
                all_ = bytearray()
                try:
                    for some in self.listing() if listed else ():
                        all_ += some
                except Failure:  # the next call says why, if the reason holds
                    cursor.value = 0
                    time.sleep(WAIT_NS / 1e9)
                    continue
                gone = False
                if (yield True, memoryview(all_)):
                    cursor.value = 0
            elif not gone:
                gone, cursor.value = True, 0
                yield True, memoryview(b"")
            elif -n in (errno.ENOTCONN, errno.ETIMEDOUT):
                time.sleep(WAIT_NS / 1e9)
            else:
                raise Failure(f"{self.name}: {'no such space' if n == -errno.ENOENT else os.strerror(-n)}")

    def tiers(self, page: memoryview) -> dict[bytes, int]:
        """Return of each block in an array the tiers that have it: 1 DRAM, 2 SSD.  Parents come first."""
        keys = [key[:int.from_bytes(key[32:], sys.byteorder)] for key, _ in struct.iter_unpack(NAMES, page)]
        rows = sorted(zip(column(page, "position"), keys, column(page, "bytes.dram"), column(page, "bytes.ssd")))
        return {key: (dram > 0) + 2 * (ssd > 0) for _, key, dram, ssd in rows}

    def tokens(self, keys: list[bytes]) -> list[tuple[bytes | None, list[int]] | None]:
        """Return parent and tokens of each block; None: it is absent, or not known by its tokens alone."""
        found: list[tuple[bytes | None, list[int]] | None] = []
        if self.lib.kvfs_space_keeps_tokens(self.c) != 1:
            return [(None, [])] * len(keys)
        packed = b"".join(key.ljust(32, b"\0") + len(key).to_bytes(4, sys.byteorder) for key in keys)
        array, told = (Key * len(keys)).from_buffer_copy(packed), (Tokens * CHANGES)()
        room = (ctypes.c_uint64 * (1 << 15))()
        while left := len(keys) - len(found):
            got = self.lib.kvfs_space_tokens(self.c, ctypes.byref(array, len(found) * ctypes.sizeof(Key)),
                                             ctypes.c_size_t(min(left, CHANGES)), told, room,
                                             ctypes.c_size_t(ctypes.sizeof(room)))
            if got < 0:
                raise OSError(-got, os.strerror(-got))
            found += [(bytes(one.parent.bytes)[:one.parent.len] or None, one.ids[:one.n])
                      if one.status == 0 and not one.extras_len else None for one in told[:got]]
        return found

    def each(self, call: str, keys: ctypes.Array[Key], *first: int) -> None:
        """Have libkvfs change @keys.  Report the first failure, and how many there are."""
        statuses, counts = (ctypes.c_int * len(keys))(), map(ctypes.c_size_t, (*first, len(keys)))
        check(getattr(self.lib, f"kvfs_{call}")(self.c, keys, *counts, statuses), self.name)
        self.report(zip(keys, statuses))

    def warm(self, keys: ctypes.Array[Key]) -> Iterable[tuple[Key, int]]:
        """Have the daemon bring the blocks to DRAM, and wait.  Return their statuses."""
        query, transfer = Query(self.c, keys, len(keys)), ctypes.c_void_p()
        statuses = (ctypes.c_int * len(keys))()
        check(self.lib.kvfs_prefetch(ctypes.byref(query), ctypes.c_size_t(1), None, ctypes.byref(transfer)), self.name)
        check(self.lib.kvfs_xfer_wait(transfer, COPIED, ctypes.c_uint64(FOREVER)), self.name)
        check(self.lib.kvfs_xfer_statuses(transfer, ctypes.c_size_t(0), ctypes.c_size_t(len(keys)), statuses), self.name)
        self.lib.kvfs_xfer_free(transfer)
        return zip(keys, statuses)

    def why(self, keys: ctypes.Array[Key]) -> list[Miss]:
        misses = (Miss * len(keys))()
        check(self.lib.kvfs_why(self.c, keys, ctypes.c_size_t(len(keys)), misses), self.name)
        return list(misses)

    def misses(self) -> list[Miss]:
        """Return the last look-ups that ended early, oldest first."""
        found: list[Miss] = []
        cursor, n = ctypes.c_uint64(), ctypes.c_size_t(MISSES_MIN)
        while got := check(self.lib.kvfs_misses(self.c, ctypes.byref(cursor), some := (Miss * MISSES_MIN)(), n), self.name):
            found += some[:got]
        return sorted(found, key=lambda miss: miss.asked_ns)[-LOGGED:]

    def leaves(self, tokens: list[int]) -> tuple[int, list[Miss]]:
        """Return how many of the first tokens are stored, and the absent block behind them, if it is whole."""
        if not self.lib.kvfs_space_layout(self.c):
            raise Failure(f"{self.name}: the space has no layout, which says how many tokens a block has")
        n, keys = ctypes.c_size_t(len(tokens)), (Key * len(tokens))()
        ids = (ctypes.c_uint32 * len(tokens))(*tokens)
        blocks = check(self.lib.kvfs_key_chain(self.c, None, ids, n, None, ctypes.c_size_t(0), keys, n),
                       f"{self.name}: keys of tokens")
        query = Query(self.c, keys, blocks)
        stored = check(self.lib.kvfs_match_tokens(ctypes.byref(query), ctypes.c_size_t(1)), self.name)
        at = stored // json.loads(self.lib.kvfs_space_layout(self.c))["tokens"]
        return stored, self.why((Key * 1)(keys[at])) if at < blocks else []

    def report(self, done: Iterable[tuple[Key, int]]) -> None:
        failed = [(key, -status) for key, status in done if status < 0]
        if failed:
            key, status = failed[0]
            others = f"; {len(failed) - 1} more blocks failed" if len(failed) > 1 else ""
            raise Failure(f"{self.name}: {bytes(key.bytes[:key.len]).hex()}: "
                          f"{'the block is damaged' if status == errno.EBADMSG else os.strerror(status)}{others}")


def column(page: memoryview, figure: str) -> list[int]:
    """Return one figure of all entries of a page."""
    first, form = (FIGURES | IDS)[figure]
    found: list[int] = page.cast(form)[first::ENTRY // struct.calcsize(form)].tolist()
    return found


def hexadecimal(key: bytes) -> str:
    """Return the name of a kvfs_key."""
    return key[:int.from_bytes(key[32:], sys.byteorder)].hex()


# ---- output ----

def size(n: float) -> str:
    """Return bytes in the form of `ls -h`, with one digit after the point."""
    for unit in "", "K", "M", "G":
        if n < 1024:
            return f"{n:.1f}{unit}" if unit else f"{n:.0f}"
        n /= 1024
    return f"{n:.1f}T"


def plain(name: str) -> str:
    """Return a name without what a terminal would take for a command."""
    return "".join(c if c.isprintable() else "?" for c in name)


def user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def age(when: float) -> str:
    """Return the time since @when, in the largest unit of which at least two have passed."""
    seconds = max(0, int(time.time() - when))
    for unit, n in ("d", 86400), ("h", 3600), ("m", 60):
        if seconds >= 2 * n:
            return f"{seconds // n}{unit}"
    return f"{seconds}s"


def show(value: object) -> None:
    print(json.dumps(value))


def table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows, the first of which has the titles: numbers to the right, the last column as it is."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join([cell.rjust(width) for cell, width in zip(row[:-1], widths)] + [row[-1]]))


# ---- the commands ----

def status(daemon: Daemon, args: argparse.Namespace) -> None:
    config = daemon.pairs(CONFIG)
    if args.json:
        show({"config": config, "metrics": daemon.metrics()})
        return
    for name in "version", "store", "mountpoint", "control":
        print(f"{name.removesuffix('point'):9} {plain(config.get(name, ''))}")
    print("rights   ", ", ".join(f"{name} {config.get(name, '?')}" for name in ("capabilities", "no_new_privs", "seccomp")))
    print(*map(plain, daemon.text(STATS).split("\n")), sep="\n", end="")


RATES = {"asked": "kvfs_asked_blocks_total", "dram": 'kvfs_hits_total{tier="dram"}',
         "ssd": 'kvfs_hits_total{tier="ssd"}', "miss": "kvfs_misses_total", "sealed": "kvfs_sealed_total",
         "gone": 'kvfs_evictions_total{tier="dram",reason="space"}', "read": "kvfs_ssd_read_bytes_total",
         "written": "kvfs_ssd_written_bytes_total"}


def total(metrics: dict[str, float], name: str) -> float:
    """Return a sample, or the sum of the samples of a metric."""
    return sum(value for sample, value in metrics.items() if sample == name or sample.startswith(name + "{"))


def top(daemon: Daemon, args: argparse.Namespace) -> None:
    """Print what happens in each second: lines, or a screen with the busiest spaces."""
    screen = sys.stdout.isatty() and not args.json
    before, before_ns, seen, shown = daemon.metrics(), time.monotonic_ns(), {}, 0
    if screen:
        seen = {space["name"]: space for space in daemon.spaces()}
    while args.n is None or shown < args.n:
        time.sleep(args.i)
        now, now_ns = daemon.metrics(), time.monotonic_ns()
        seconds = (now_ns - before_ns) / 1e9
        rates = {name: max(0, total(now, metric) - total(before, metric)) / seconds for name, metric in RATES.items()}
        full = {tier: now[f'kvfs_bytes{{tier="{tier}"}}'] / (now[f'kvfs_capacity_bytes{{tier="{tier}"}}'] or 1)
                for tier in ("dram", "ssd")}
        if args.json:
            show({"time": round(time.time(), 3), **{f"{name}_per_second": round(rate, 1) for name, rate in rates.items()},
                  **{f"{tier}_full": round(part, 4) for tier, part in full.items()}})
        else:
            cells = [f"{rates[name]:9.0f}" for name in RATES if name not in ("read", "written")]
            cells += [f"{size(rates[name]):>9}" for name in ("read", "written")]
            cells += [f"{100 * full[tier]:8.0f}%" for tier in ("dram", "ssd")]
            if screen:
                print("\33[H\33[J", end="")
            if screen or shown == 0:
                print(" ".join(f"{title:>9}" for title in
                               ("asked/s", "dram/s", "ssd/s", "miss/s", "sealed/s", "evict/s", "read/s", "write/s",
                                "dram", "ssd")))
            print(" ".join(cells))
            if screen:
                seen = busiest(daemon, seen, seconds)
        sys.stdout.flush()
        before, before_ns, shown = now, now_ns, shown + 1


def busiest(daemon: Daemon, before: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Print the spaces with the most look-ups, as many as fit on the screen.  Return all."""
    now = {space["name"]: space for space in daemon.spaces()}

    def rate(space: dict[str, Any], what: str) -> float:
        return float(space[what] - before.get(space["name"], space)[what]) / seconds

    order = sorted(now.values(), key=lambda space: (-rate(space, "asked"), -space["bytes.dram"], space["name"]))
    print()
    table([("asked/s", "dram/s", "ssd/s", "miss/s", "dram", "ssd", "space")] +
          [(*(f"{rate(space, what):.0f}" for what in ("asked", "hits.dram", "hits.ssd", "misses")),
            size(space["bytes.dram"]), size(space["bytes.ssd"]), plain(space["name"]))
           for space in order[:max(1, shutil.get_terminal_size().lines - 5)]])
    return now


def ls(daemon: Daemon, args: argparse.Namespace) -> None:
    if args.b:
        list_blocks([daemon.space(name) for name in args.space], args.json)
        return
    spaces = daemon.spaces(args.space)
    if args.json:
        show(spaces)
        return
    table([("mode", "owner", "blocks", "dram", "ssd", "space")] +
          [(stat.filemode(stat.S_IFDIR | space["mode"]), user(space["uid"]), str(space["blocks"]),
            size(space["bytes.dram"]), size(space["bytes.ssd"]), plain(space["name"])) for space in spaces])


def list_blocks(spaces: list[Space], as_json: bool) -> None:
    """Print a line for each block of the spaces."""
    if not as_json:
        print("position  tokens     dram      ssd    hits  last  pin  block")
    for space in spaces:
        for page in space.listing():
            names = struct.iter_unpack(NAMES, page)
            for (key, parent), *figures in zip(names, *(column(page, figure) for figure in FIGURES)):
                if as_json:
                    show({"space": space.name, "key": hexadecimal(key), "parent": hexadecimal(parent),
                          **dict(zip(FIGURES, figures))})
                    continue
                position, tokens, dram, ssd, last, hits, pinned = figures
                print(f"{position:8} {tokens:7} {size(dram):>8} {size(ssd):>8} {hits:7} {age(last):>5} {pinned:4}  "
                      f"{hexadecimal(key)}")


def du(daemon: Daemon, args: argparse.Namespace) -> None:
    """Print bytes by space, or with -u by owner, and their sum."""
    held: dict[str, list[int]] = {}
    for space in daemon.spaces(args.space):
        sums = held.setdefault(user(space["uid"]) if args.u else space["name"], [0, 0])
        sums[0] += space["bytes.dram"]
        sums[1] += space["bytes.ssd"]
    total = [sum(column) for column in zip(*held.values())] or [0, 0]
    if args.json:
        show({"total": dict(zip(("dram", "ssd"), total)),
              "users" if args.u else "spaces": {name: dict(zip(("dram", "ssd"), sums)) for name, sums in held.items()}})
        return
    table([("dram", "ssd", "both", "user" if args.u else "space")] +
          [(size(sums[0]), size(sums[1]), size(sum(sums)), plain(name)) for name, sums in held.items()] +
          [(size(total[0]), size(total[1]), size(sum(total)), "total")])


def keys_of(texts: list[str]) -> ctypes.Array[Key]:
    """Return the keys with these names; - reads names from standard input, one a line."""
    names = [name for text in texts for name in (sys.stdin.read().split() if text == "-" else [text])]
    if not names:
        raise Failure("standard input names no block")
    for name in names:
        if not KEY_TEXT.fullmatch(name):
            raise Failure(f"{name}: not the key of a block (32 or 64 hexadecimal digits)")
    return (Key * len(names))(*(Key((ctypes.c_uint8 * 32)(*bytes.fromhex(name)), len(name) // 2) for name in names))


def rm(daemon: Daemon, args: argparse.Namespace) -> None:
    """Remove blocks, or with -r spaces."""
    if args.r:
        for space in [daemon.space(name) for name in [args.space, *args.key]]:
            check(space.lib.kvfs_space_remove(space.c), space.name)
    elif args.key:
        daemon.space(args.space).each("evict", keys_of(args.key))
    else:
        raise Failure(f"{args.space}: name blocks of the space, or remove all of it with -r")


def pin(daemon: Daemon, args: argparse.Namespace) -> None:
    daemon.space(args.space).each(args.word, keys_of(args.key), 0)


def warm(daemon: Daemon, args: argparse.Namespace) -> None:
    space = daemon.space(args.space)
    pages: Iterable[ctypes.Array[Key]] = [keys_of(args.key)] if args.key else filter(len, space.pages())
    # Of a whole space, blocks that are removed meanwhile are not missed.
    space.report(done for keys in pages for done in space.warm(keys) if args.key or done[1] != -errno.ENOENT)


def set_limits(daemon: Daemon, args: argparse.Namespace) -> None:
    """Set limits of a space, or of the user whose uid is given, all or none; print those that hold."""
    uid = int(args.of) if re.fullmatch("[0-9]{1,10}", args.of) else None
    if uid is not None and uid > 0xfffffffe:
        raise Failure(f"{uid}: no uid")
    space = None if uid is not None else daemon.space(args.of)
    for limit in args.limit:
        if not re.fullmatch(rf"({'|'.join(map(re.escape, QUOTAS))})=[^ ]+", limit):
            raise Failure(f"{limit}: not one of {' '.join(QUOTAS)} with = and a value")
    if args.limit:
        limits = " ".join(args.limit)
        r = daemon.lib.kvfs_limit(daemon.session, space.c if space else None, ctypes.c_uint32(uid or 0), os.fsencode(limits))
        if r == -errno.EINVAL:
            raise Failure(f"{limits}: not bytes (with K, M, G or T), nor 1% to 100% of the tier; for rate.put, below 1T; "
                          "for ttl, seconds (or with m, h or d), at most 194 days")
        check(r, f"{args.of}: {limits}")
    if args.limit and not args.json:
        return
    held = daemon.spaces([args.of])[0] if uid is None else daemon.pairs(USER, uid)
    if args.json:
        show({what: int(held[what]) for what in QUOTAS})
    else:
        print("\n".join(f"{what}={held[what]}" for what in QUOTAS))


def why(daemon: Daemon, args: argparse.Namespace) -> None:
    """Print why blocks are absent; the look-ups that ended early; or where a prompt leaves the stored ones."""
    space, tokens, stored = daemon.space(args.space), list[int](), 0
    if args.tokens is not None and args.key:
        raise Failure("give keys or --tokens")
    if args.tokens is not None:
        with open(0 if args.tokens == "-" else args.tokens, encoding="ascii", errors="replace") as file:
            words = re.sub(r"[][,\s]+", " ", file.read()).split()
        if not words or not all(re.fullmatch("[0-9]{1,10}", word) and int(word) < 1 << 32 for word in words):
            raise Failure(f"{args.tokens}: no list of token ids")
        tokens = [int(word) for word in words]
        stored, misses = space.leaves(tokens)
    else:
        misses = space.why(keys_of(args.key)) if args.key else space.misses()
    found = [miss.described() for miss in misses]
    if args.json:
        show({"tokens": len(tokens), "stored": stored, "misses": found} if tokens else found)
        return
    if tokens:
        print(f"{stored} of {len(tokens)} tokens are stored")
    titles = [title for title in ("asked", "block", "cause", "since", "idle", "key") if found and title in found[0]]
    for miss in found:
        for title in {"asked", "since"} & miss.keys():
            miss[title] = time.strftime("%F %T", time.localtime(miss[title])) if miss[title] else "-"
    if found:
        table([tuple(titles)] + [tuple(str(miss[title]) for title in titles) for miss in found])


# ---- the prefix forest of a space ----

class Forest:
    """The blocks of a space in runs: a run ends where its last block has no child, or several.  Blocks
    are numbers, and so are runs."""

    SUMS = "tokens", "bytes.dram", "bytes.ssd", "hits", "last"

    def __init__(self, space: Space) -> None:
        entries = bytearray()
        columns: dict[str, list[int]] = {name: [] for name in ("id", "parent_id", *self.SUMS)}
        for page in space.listing():
            entries += page
            for name, values in columns.items():
                values += column(page, name)
        index = dict(zip(columns["id"], itertools.count()))
        if len(index) < len(columns["id"]):  # some were listed twice
            once = list(index.values())
            columns = {name: [values[i] for i in once] for name, values in columns.items()}
            entries = bytearray().join(entries[i * ENTRY:(i + 1) * ENTRY] for i in once)
            index = dict(zip(columns["id"], itertools.count()))
        self.entries, self.figures = entries, {name: columns[name] for name in self.SUMS}
        above: list[int | None] = list(map(index.get, columns["parent_id"]))
        only = dict(zip(above, itertools.count()))  # the child of a block that has one child
        for block, n in Counter(above).items():
            if n > 1 or block is None:
                del only[block]
        self.runs: list[list[int]] = []
        for block in [block for block, parent in enumerate(above) if parent not in only]:
            run = [block]
            while (next_ := only.get(run[-1])) is not None:
                run.append(next_)
            self.runs.append(run)
        ends: dict[int | None, int] = {run[-1]: number for number, run in enumerate(self.runs)}
        self.below: dict[int, list[int]] = {}
        self.roots: list[int] = []
        for number, run in enumerate(self.runs):
            run_above = ends.get(above[run[0]])
            (self.roots if run_above is None else self.below.setdefault(run_above, [])).append(number)
        order = self.subtree(self.roots)
        if sum(len(self.runs[number]) for number in order) < len(above):  # parents in a circle
            inside = set(self.blocks(order))
            self.roots.append(len(self.runs))
            self.runs.append([block for block in range(len(above)) if block not in inside])
        self.weights = list(map(len, self.runs))
        for number in reversed(order):
            for branch in self.below.get(number, ()):
                self.weights[number] += self.weights[branch]

    def subtree(self, runs: Iterable[int]) -> list[int]:
        """Return the runs and all below them, each before those below it."""
        found = list(runs)
        for number in found:
            found += self.below.get(number, ())
        return found

    def blocks(self, runs: Iterable[int]) -> list[int]:
        return list(itertools.chain.from_iterable(self.runs[number] for number in runs))

    def heaviest(self, runs: Iterable[int]) -> list[int]:
        return sorted(runs, key=lambda number: (-self.weights[number], self.key(number)))

    def key(self, number: int) -> str:
        """Return the name of a run's first block."""
        at = self.runs[number][0] * ENTRY
        return hexadecimal(bytes(self.entries[at:at + 36]))

    def sums(self, runs: Iterable[int]) -> dict[str, Any]:
        blocks = self.blocks(runs)
        return {"blocks": len(blocks), **{name: (max if name == "last" else sum)(map(values.__getitem__, blocks))
                                          for name, values in self.figures.items()}}

    def rows(self, runs: list[int], depth: int, most: int) -> list[dict[str, Any]]:
        """Return a row for each of @runs, and in each those below it, to the @depth; beyond @most runs, one row."""
        order = self.heaviest(runs)
        kept, rest = (order[:most], order[most:]) if most else (order, [])
        rows = [{"key": self.key(number), **self.sums([number] if depth > 1 else self.subtree([number])),
                 "branches": self.rows(self.below.get(number, []), depth - 1, most) if depth > 1 else []}
                for number in kept]
        if rest:
            rows.append({"more": len(rest), **self.sums(self.subtree(rest)), "branches": []})
        return rows


def tree(daemon: Daemon, args: argparse.Namespace) -> None:
    """Print the prefixes that blocks share: a line for each run of blocks without a branch."""
    gc.disable()  # nothing here is in a reference cycle, and a collection takes seconds
    forest = Forest(daemon.space(args.space))
    rows = forest.rows(forest.roots, min(args.d, 300), args.n)
    if args.json:
        show(rows)
        return
    lines = [("tokens", "blocks", "dram", "ssd", "hits", "last", "")]

    def add(rows: list[dict[str, Any]], above: str, top: bool) -> None:
        for row in rows:
            end = row is rows[-1]
            name = f"{row['key'][:8]}…" if "key" in row else f"{row['more']:,} more"
            lines.append((f"{row['tokens']:,}", f"{row['blocks']:,}", size(row["bytes.dram"]), size(row["bytes.ssd"]),
                          str(row["hits"]), age(row["last"]), name if top else f"{above}{'└' if end else '├'} {name}"))
            add(row["branches"], "" if top else f"{above}{' ' if end else '│'} ", False)

    add(rows, "", True)
    table(lines)


def flame(daemon: Daemon, args: argparse.Namespace) -> None:
    """Print an SVG file in which the prefixes are as wide as their bytes, hits or idle time."""
    gc.disable()
    draw = runpy.run_path(f"{HERE}/flame.py")
    forest = Forest(daemon.space(args.space))
    drawn = list(draw["frames"](forest, draw["figures"](forest, args.by, time.time())))
    if args.json:
        show(drawn)
        return
    if not drawn:
        raise Failure(f"{args.space}: no block has {args.by}" if forest.runs else f"{args.space}: no blocks")
    print(draw["svg"](plain(args.space.removeprefix("./")), args.by, drawn, size, age))


def events(daemon: Daemon, args: argparse.Namespace) -> None:
    """Print a line for each block that enters or leaves a tier, with the tiers that have it then; or publish that."""
    space, number = daemon.space(args.space), itertools.count(1)
    if args.zmq is not None:
        run = runpy.run_path(f"{HERE}/events.py")
        try:
            out = run["Publisher"](args.zmq, args.replay, args.topic or "")
        except ImportError:
            raise Failure("--zmq needs pyzmq: install the package python3-zmq") from None
        except ValueError as error:
            raise Failure(str(error)) from None
        print(json.dumps({"urls": out.urls}) if args.json else "\n".join(out.urls), flush=True)
        run["publish"](space, out)
    if args.replay is not None or args.topic is not None:
        raise Failure("--replay and --topic need --zmq")
    for lost, page in space.changes(args.l):
        if lost:
            n = next(number)
            print(json.dumps({"sequence": n, "event": "overflow"}) if args.json else f"{n} overflow")
        names = struct.iter_unpack(NAMES, page)
        for (key, parent), *figures in zip(names, *(column(page, figure) for figure in FIGURES)):
            n, block = next(number), dict(zip(FIGURES, figures))
            tiers = "+".join(tier for tier in ("dram", "ssd") if block[f"bytes.{tier}"])
            event, name = "stored" if tiers else "gone", hexadecimal(key)
            print(json.dumps({"sequence": n, "event": event, "key": name, "parent": hexadecimal(parent), **block})
                  if args.json else f"{n} {event} {tiers or '-'} {name}")
        sys.stdout.flush()


# ---- the exporter ----

# Metrics of spaces, as the daemon's .kvfs/metrics has them: name, label, member of Daemon.spaces().
OF_SPACES = [("blocks", "", "blocks")] + [
    (name, f',tier="{tier}"', f"{member}.{tier}") for name, member in
    (("bytes", "bytes"), ("quota_bytes", "quota"), ("guaranteed_bytes", "guaranteed")) for tier in ("dram", "ssd")] + [
    ("asked_blocks_total", "", "asked"), ("found_blocks_total", "", "found"), ("hits_total", ',tier="dram"', "hits.dram"),
    ("hits_total", ',tier="ssd"', "hits.ssd"), ("misses_total", "", "misses")]
SPACES_MOST, OTHERS = 100, "/other"  # not the name of a space, as it has a slash


def of_spaces(spaces: list[dict[str, Any]]) -> str:
    """Return the metrics of the largest spaces, and the sums of the others."""
    order = sorted(spaces, key=lambda s: (-s["bytes.dram"] - s["bytes.ssd"], s["name"]))
    rows, rest = order[:SPACES_MOST], order[SPACES_MOST:]
    if rest:
        rows.append({"name": OTHERS, **{member: sum(s[member] for s in rest) for _, _, member in OF_SPACES}})
    labels = [re.sub(r'["\\]', r"\\\g<0>", row["name"]).replace("\n", "\\n") for row in rows]
    # Labels are UTF-8: in another name each byte above 7f becomes /HH, which is in no name, and so do control bytes.
    labels = ["".join(chr(b) if b < 128 else f"/{b:02x}" for b in label.encode("utf-8", "surrogateescape"))
              if re.search("[\udc80-\udcff]", label) else label for label in labels]
    labels = [re.sub("[\0-\x1f\x7f]", lambda found: f"/{ord(found[0]):02x}", label) for label in labels]
    lines, last = [], ""
    for name, tier, member in OF_SPACES:
        if name != last and rows:
            lines.append(f"# TYPE kvfs_space_{name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += [f'kvfs_space_{name}{{space="{label}"{tier}}} {row[member]}' for label, row in zip(labels, rows)]
        last = name
    return "".join(f"{line}\n" for line in lines)


def listen(at: str) -> socket.socket:
    """Return a socket that listens at @at, ADDRESS:PORT or unix:PATH; the latter for this user only."""
    found = re.fullmatch(r"unix:(.+)|(?:\[(.+)\]|([^:]+)):([0-9]{1,5})", at)
    if not found or int(found[4] or 0) > 65535:
        raise Failure(f"{at}: neither ADDRESS:PORT nor unix:PATH")
    path = found[1]
    try:
        if not path:
            family, _, _, _, address = socket.getaddrinfo(found[2] or found[3], int(found[4]), type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family)
        server = socket.socket(socket.AF_UNIX)
        os.umask(0o177)
        # Another exporter must not take the socket for a stale one before it listens.
        with LOCAL["locked"](f"{path}.lock"), socket.socket(socket.AF_UNIX) as old:
            if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode) and old.connect_ex(path) == errno.ECONNREFUSED:
                os.unlink(path)  # the exporter that made the socket was killed
            server.bind(path)
            server.listen(64)
        return server
    except (OSError, ValueError) as error:  # ValueError: no host can have this name, or the lock is held
        raise Failure(f"{at}: {getattr(error, 'strerror', None) or error}") from None


def exporter(daemon: Daemon, args: argparse.Namespace) -> None:
    """Serve the metrics by HTTP until the process is ended."""
    import http.server  # not at the top: loading it takes longer than the other commands
    import socketserver

    at = listen(args.at)
    local = at.family == socket.AF_UNIX

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout, server_version, sys_version = 10, "kvfs", ""

        def do_GET(self) -> None:
            status, text = 404, "the metrics are at /metrics\n"
            if self.path.partition("?")[0] == "/metrics":
                try:
                    status, text = 200, daemon.text(METRICS)
                    if local or args.spaces:
                        text += of_spaces(daemon.spaces())
                except Failure as error:
                    status, text = 503, f"no kvfs answers: {error}\n"
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def verify_request(self, request: Any, client_address: Any) -> bool:
            return threading.active_count() <= 64  # a connection has a thread; further ones are closed

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # the client has gone

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = Server(("", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = at
    url = args.at if local else f"http://{args.at.rpartition(':')[0]}:{at.getsockname()[1]}/metrics"
    try:
        print(json.dumps({"url": url}) if args.json else url, flush=True)
        server.serve_forever()
    finally:
        if local:
            with contextlib.suppress(OSError):
                os.unlink(at.getsockname())


# ---- the command line ----

class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Failure(f"{message} (see {self.prog} --help)")


def matching(pattern: str, what: str, kind: type) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return kind(text)
    return parse


number = matching(r"(?!0*(\.0*)?$)[0-9]{1,6}(\.[0-9]{1,3})?", "a positive number", float)
whole = matching("[0-9]{1,6}", "a number from 0 to 999999", int)
count = matching("[1-9][0-9]{0,5}", "a number from 1 to 999999", int)
SPACE: tuple[str, dict[str, Any]] = "space", {"metavar": "SPACE"}
KEYS: dict[str, Any] = {"nargs": "*", "metavar": "KEY", "help": "name of a block; - reads names, one a line"}
# For each word: its function, what it does, and its arguments.
WORDS: dict[str, tuple[Callable[[Daemon, argparse.Namespace], None], str, list[tuple[str, dict[str, Any]]]]] = {
    "status": (status, "print the state of the daemon", []),
    "top": (top, "print what happens in each second", [
        ("-n", {"metavar": "COUNT", "type": count, "help": "end after so many lines or screens"}),
        ("-i", {"metavar": "SECONDS", "type": number, "default": 1.0, "help": "seconds between them (1)"})]),
    "ls": (ls, "list the spaces that you may read", [
        ("-b", {"action": "store_true", "help": "list the blocks of these spaces"}),
        ("space", {"nargs": "*", "metavar": "SPACE", "help": "these spaces only"})]),
    "du": (du, "print the bytes of spaces", [
        ("-u", {"action": "store_true", "help": "by owner"}),
        ("space", {"nargs": "*", "metavar": "SPACE", "help": "these spaces only"})]),
    "tree": (tree, "print which prefixes the blocks of a space share", [
        ("-d", {"metavar": "DEPTH", "type": whole, "default": 3, "help": "levels of branches (3)"}),
        ("-n", {"metavar": "COUNT", "type": whole, "default": 20, "help": "most branches of one level (20); 0: all"}),
        SPACE]),
    "flame": (flame, "draw these prefixes as an SVG file that zooms by click", [
        ("--by", {"choices": ["bytes", "hits", "idle"], "default": "bytes", "help": "the width of a frame (bytes)"}),
        SPACE]),
    "events": (events, "print which blocks enter and leave memory and SSD", [
        ("-l", {"action": "store_true", "help": "list all blocks at the start, and after an overflow"}),
        ("--zmq", {"metavar": "URL", "help": "publish them for routers by ZeroMQ, in the form of vLLM's events"}),
        ("--replay", {"metavar": "URL", "help": "answer requests for earlier messages"}),
        ("--topic", {"metavar": "TEXT", "help": "topic of the messages (none)"}), SPACE]),
    "rm": (rm, "remove blocks, or spaces", [
        ("-r", {"action": "store_true", "help": "remove these spaces, with all blocks"}), SPACE, ("key", KEYS)]),
    "pin": (pin, "protect blocks from eviction", [SPACE, ("key", {**KEYS, "nargs": "+"})]),
    "unpin": (pin, "end the protection", [SPACE, ("key", {**KEYS, "nargs": "+"})]),
    "warm": (warm, "bring blocks, or a whole space, to memory", [SPACE, ("key", KEYS)]),
    "why": (why, "print why blocks are absent, or the look-ups that ended early", [
        ("--tokens", {"metavar": "FILE", "help": "where a prompt of these token ids leaves the stored ones"}),
        SPACE, ("key", KEYS)]),
    "set": (set_limits, "set, or print, the limits of a space or user", [
        ("of", {"metavar": "SPACE|UID"}),
        ("limit", {"nargs": "*", "metavar": "NAME=VALUE", "help": f"NAME: {', '.join(QUOTAS)}"})]),
    "exporter": (exporter, "serve the metrics to Prometheus by HTTP", [
        ("--spaces", {"action": "store_true", "help": "also those of spaces, with their names (unix: always)"}),
        ("at", {"nargs": "?", "metavar": "ADDRESS:PORT|unix:PATH", "default": "127.0.0.1:9749"})]),
}


def main(words: list[str]) -> int:
    word = words[0]  # of the list in fs/main.c
    run, what, arguments = WORDS[word]
    try:
        if run is not exporter:  # Ctrl-C and a closed pipe end the process also while libkvfs waits
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
        parser = Parser(prog=f"kvfs {word}", description=what, allow_abbrev=False)
        parser.add_argument("-p", metavar="PATH", help="mount point or control socket of the daemon")
        parser.add_argument("--json", action="store_true", help="print JSON")
        for name, options in arguments:
            parser.add_argument(name, **options)
        # Options may stand between arguments, but the parser that takes them there takes no "--".
        args = (parser.parse_args if "--" in words else parser.parse_intermixed_args)(words[1:], argparse.Namespace(word=word))
        run(Daemon(args.p, run is not exporter), args)
        sys.stdout.flush()
        return 0
    except Failure as error:
        print(f"kvfs {word}: {plain(str(error))}", file=sys.stderr)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes it again at exit
        what = "standard output" if error.filename is None else plain(str(error.filename))
        print(f"kvfs {word}: {what}: {error.strerror}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
