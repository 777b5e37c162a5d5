# SPDX-License-Identifier: Apache-2.0
"""weights - a hash over every byte of a model's or an adapter's files.

Each large file is read once per node: one process hashes at a time, with several threads, and
keeps each file's digest in a cache directory, under the file's path, device, inode, size,
mtime and ctime.
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".npy", ".json", ".py")
# Files that change no block: a tokenizer's result is part of a block's key.
IGNORED = {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json",
           "special_tokens_map.json", "added_tokens.json", "chat_template.json"}
PIECE = 64 << 20  # bytes that one thread hashes
BUFFER = 1 << 20
SMALL = 1 << 20  # files below this size are not cached
FRESH = 2.0  # seconds: a file that changed so recently may change again within one timestamp
PROGRESS = 10.0  # seconds between two lines of progress

Id = tuple[int, ...]


def fingerprint(path: str, log: logging.Logger, cache: str = "") -> str:
    """Return a hash over names, sizes and all bytes of the files in the folder @path, or of
    the file @path.  The same files in another place have the same hash.  @cache: the
    directory of digests; default: kvfs in the user's cache directory.  OSError: a file cannot
    be read, or changed meanwhile."""
    names = sorted(os.listdir(path)) if os.path.isdir(path) else [""]
    files = {name: os.path.join(path, name) if name else path for name in names
             if not name or (name.endswith(WEIGHTS) and name not in IGNORED)}
    files = {name: file for name, file in files.items() if os.path.isfile(file)}
    if not files:
        raise FileNotFoundError(errno.ENOENT, "no weights", path)
    store = Store(cache or os.path.join(os.environ.get("XDG_CACHE_HOME")
                                        or os.path.expanduser("~/.cache"), "kvfs"))
    found = {name: store.find(file) for name, file in files.items()}
    if missing := [name for name, digest in found.items() if digest is None]:
        with store.locked(log):
            # Another process may have hashed the files meanwhile.
            found.update((name, store.find(files[name])) for name in missing)
            if rest := {name: files[name] for name in missing if found[name] is None}:
                found.update(_hash(rest, path, store, log))
    return hashlib.sha256(json.dumps([[name, found[name]] for name in files]).encode()).hexdigest()


def _hash(files: dict[str, str], path: str, store: Store, log: logging.Logger) -> dict[str, str]:
    """Return the digest of each of @files, in pieces over several threads."""
    began, stopped = time.time(), threading.Event()

    def piece(fd: int, at: int) -> bytes:
        hash, end = hashlib.sha256(), at + PIECE
        while at < end and not stopped.is_set() and (data := os.pread(fd, min(BUFFER, end - at), at)):
            hash.update(data)
            at += len(data)
        return hash.digest()

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        opened = {name: stack.enter_context(open(file, "rb")) for name, file in files.items()}
        before = {name: _id(os.fstat(file.fileno())) for name, file in opened.items()}
        total = sum(id[2] for id in before.values())
        start = told = time.monotonic()
        log.info("kvfs: hashing %.1f GB of weights in %s (once: digests are kept in %s)",
                 total / 1e9, path, store.folder)
        pieces = {name: [pool.submit(piece, file.fileno(), at)
                         for at in range(0, max(1, before[name][2]), PIECE)]
                  for name, file in opened.items()}
        everything = [one for some in pieces.values() for one in some]
        try:
            for n, _ in enumerate(as_completed(everything), 1):
                if time.monotonic() >= told + PROGRESS:
                    told = time.monotonic()
                    log.info("kvfs: hashed %d %% of the weights in %s", 100 * n // len(everything), path)
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
        digests = {}
        for name, file in opened.items():
            hash = hashlib.sha256(b"".join(one.result() for one in pieces[name]))
            digests[name] = hash.hexdigest()
            if before[name] != _id(os.fstat(file.fileno())) or before[name] != _id(os.stat(files[name])):
                raise OSError(f"{files[name]} changed while its bytes were hashed")
            store.keep(files[name], before[name], digests[name], began)
        log.info("kvfs: hashed %.1f GB in %.1f s", total / 1e9, time.monotonic() - start)
    return digests


def _id(status: os.stat_result) -> Id:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Store:
    """The digests of files: in this process, and in a small file of this user for each."""

    known: dict[str, str] = {}  # a file's path, inode, size and times: its digest

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def _entry(self, path: str) -> str:
        return os.path.join(self.folder, hashlib.sha256(os.path.realpath(path).encode()).hexdigest())

    @staticmethod
    def _text(path: str, id: Id, digest: str) -> str:
        plain = json.dumps([os.path.realpath(path), *id, digest])
        return f"{plain}\n{hashlib.sha256(plain.encode()).hexdigest()}\n"

    def find(self, path: str) -> str | None:
        """Return the digest of the file as it is now, None if it must be hashed.  An entry that
        is damaged, or that another user could have written, is ignored."""
        id = _id(os.stat(path))
        if id[2] < SMALL:
            with open(path, "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        if digest := self.known.get(self._text(path, id, "")):
            return digest
        try:
            fd = os.open(self._entry(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(fd) as entry:
                status = os.fstat(fd)
                if (not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid()
                        or status.st_mode & 0o22):
                    return None
                text = entry.read(65536)
            digest = str(json.loads(text.split("\n")[0])[-1])
            return digest if text == self._text(path, id, digest) else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def keep(self, path: str, id: Id, digest: str, began: float) -> None:
        """Cache the digest, unless the file changed just before it was hashed, at @began."""
        if began - max(id[3], id[4]) / 1e9 < FRESH:
            return
        self.known[self._text(path, id, "")] = digest
        with contextlib.suppress(OSError):
            with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False) as file:
                file.write(self._text(path, id, digest))
            os.replace(file.name, self._entry(path))

    @contextlib.contextmanager
    def locked(self, log: logging.Logger) -> Iterator[None]:
        """One process hashes at a time; without the directory there is no lock."""
        with contextlib.ExitStack() as stack:
            try:
                os.makedirs(self.folder, 0o700, exist_ok=True)
                lock = os.open(f"{self.folder}/lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                               0o600)
                stack.callback(os.close, lock)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    log.info("kvfs: another process hashes weights: waiting for %s/lock", self.folder)
                    fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                log.warning("kvfs: cannot use %s (%s): every start hashes all weights; set "
                            "'weights_cache'", self.folder, error.strerror)
            yield
