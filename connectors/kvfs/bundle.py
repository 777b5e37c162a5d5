# SPDX-License-Identifier: Apache-2.0
"""kvfs-bundle: write the blocks of a space as one stream, and import such a stream.

A bundle is a tar archive (pax) with these members in this order: the directory SPACE,
marked by the attribute user.kvfs.bundle; SPACE/.layout if the space has a layout; the
blocks SPACE/ab/ab12...; the directory SPACE again, with the number of blocks.  Each file
has its XXH3-128 digest as an attribute.  man/kvfs-bundle.1 is the reference.

The stream may come from anybody.  An import accepts only these members in this order,
under the one name that the stream begins with, and seals a block only after its bytes
agree with its digest.  The module needs Python's standard library, libkvfs and libxxhash.
"""
from __future__ import annotations

import contextlib
import ctypes
import errno
import getopt
import json
import os
import pwd
import re
import runpy
import signal
import stat
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import NoReturn

STATUS_INCOMPLETE, STATUS_ERROR, STATUS_USAGE = 1, 2, 16

BUNDLE = "user.kvfs.bundle"
DIGEST = "user.kvfs.digest"
SCHILY = "SCHILY.xattr."  # the prefix of an extended attribute in a pax header
BEGIN, END = "kvfs bundle 1", "blocks "

DIGITS = 32  # hex digits of a digest
IO_BYTES = 1 << 20
HEADER_MAX = 4 << 20  # most bytes that one tar header may ask to read
LAYOUT_MAX = 60000  # bytes
NAME_MAX = 255  # bytes of a space's name
MESSAGE_MAX = 8192  # bytes
KEY = re.compile(r"(?:[0-9a-f]{32}|[0-9a-f]{64})\Z")
ENCODING = {"encoding": "utf-8", "errors": "surrogateescape"}  # names are bytes

USAGE = """\
usage: kvfs-bundle [--json] SPACE [SNAPSHOT] >FILE
       kvfs-bundle -x [-S] [-C MOUNTPOINT] [--json] <FILE
       kvfs-bundle -t [--json] <FILE
  writes the blocks of the space at the path SPACE, or of its SNAPSHOT, to
  standard output, or
  -x    verifies and imports such a stream
  -C    imports into MOUNTPOINT instead of the current directory
  -S    imports also into a space that belongs to another user
  -t    verifies the stream and changes nothing
  --json  prints the numbers of blocks, of an export on standard error
status: 0 all blocks, 1 some blocks are missing (reported), 2 error, 16 usage
"""


class Failure(Exception):
    """Raised to end the command with STATUS_ERROR and a message."""


class Rejected(Exception):
    """Raised to leave out one block and go on with the others."""


def say(message: str) -> None:
    """Print one line on standard error, with all but printable ASCII as octal numbers."""
    raw = message.encode(**ENCODING)[:MESSAGE_MAX]
    line = "".join(chr(c) if 32 <= c <= 126 else f"\\{c:03o}" for c in raw)
    os.write(2, f"kvfs-bundle: {line}\n".encode())


def fail(what: str, error: OSError) -> NoReturn:
    raise Failure(f"{what}: {os.strerror(error.errno)}" if error.errno else f"{what}: {error}")


# ---- libraries ----

class _Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


try:
    kvfs = runpy.run_path(f"{os.path.dirname(os.path.realpath(__file__))}/local.py")["load"]()
    xxhash = ctypes.CDLL("libxxhash.so.0")
except OSError as error:
    say(f"cannot load a library that kvfs needs: {error}")
    sys.exit(STATUS_ERROR)
kvfs.kvfs_space_layout.restype = kvfs.kvfs_version_text.restype = ctypes.c_char_p
xxhash.XXH3_createState.restype = ctypes.c_void_p
xxhash.XXH3_128bits_digest.restype = _Hash


class Digest:
    """The XXH3-128 digest of bytes, in the form that the mount shows."""

    def __init__(self, data: bytes = b"") -> None:
        self._state = ctypes.c_void_p(xxhash.XXH3_createState())
        if not self._state:
            raise MemoryError
        xxhash.XXH3_128bits_reset(self._state)
        self.update(data)

    def __del__(self) -> None:
        xxhash.XXH3_freeState(self._state)

    def update(self, data: bytes) -> None:
        xxhash.XXH3_128bits_update(self._state, data, ctypes.c_size_t(len(data)))

    def text(self) -> str:
        digest = xxhash.XXH3_128bits_digest(self._state)
        return f"{digest.high:016x}{digest.low:016x}"


def canonical_layout(text: bytes) -> dict[str, object] | None:
    """Return the layout @text with every member filled in; None: @text is not a layout.

    libkvfs parses the text for a session without a daemon."""
    if not text or b"\0" in text or len(text) > LAYOUT_MAX:
        return None
    session, space = ctypes.c_void_p(), ctypes.c_void_p()
    r = kvfs.kvfs_open(b"/dev/null/no-daemon", ctypes.byref(session))
    try:
        if r == 0:
            r = kvfs.kvfs_space_open(session, b"any", text, 0, ctypes.byref(space))
        if r == -errno.EINVAL:
            return None
        if r < 0:
            fail("libkvfs", OSError(-r, ""))
        found = json.loads(kvfs.kvfs_space_layout(space))
        return {name: found[name] for name in found if name != "share"}
    finally:
        kvfs.kvfs_space_close(space)
        kvfs.kvfs_close(session)


# ---- for export and import ----

def open_directory(path: bytes | str, dir_fd: int | None = None, flags: int = 0) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags, dir_fd=dir_fd)


def read_file(fd: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = os.read(fd, size)
        if not part:
            raise OSError(errno.EIO, "")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest):]


def read_layout(space: int) -> bytes | None:
    """Return the text of the space's layout; None: the space has none."""
    try:
        fd = os.open(".layout", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=space)
    except FileNotFoundError:
        return None
    try:
        return read_file(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def block_path(key: str) -> str:
    return f"{key[:2]}/{key}"


def list_blocks(space: int) -> Iterator[str]:
    """Return the keys of all blocks of a space, in the order of their names."""
    for folder in sorted(name for name in os.listdir(space) if name[0] != "."):
        fd = open_directory(folder, space)
        try:
            yield from sorted(key for key in os.listdir(fd) if KEY.match(key))
        finally:
            os.close(fd)


# ---- export ----

class Export:
    """Writes the blocks of one space or snapshot.

    All blocks are listed before the first byte is written.  A block is read whole before
    its member begins, so every block in a bundle is complete."""

    def __init__(self, path: str, snapshot: str | None, to: int) -> None:
        self.to = to
        self.written = self.missing = 0
        try:
            real = os.path.realpath(os.fsencode(path))
            self.space = open_directory(real)
        except OSError as error:
            fail(path, error)
        self.name = os.path.basename(real).decode(**ENCODING)
        try:
            snapshots = open_directory(".snapshots", self.space)
        except OSError:
            raise Failure(f"{path}: not a space of kvfs") from None
        try:
            self.keys = self._keys_of(path, snapshots, snapshot) if snapshot is not None \
                else list(list_blocks(self.space))
        except OSError as error:
            fail(self.name, error)

    def _keys_of(self, path: str, snapshots: int, snapshot: str) -> list[str]:
        """Return the blocks of a snapshot, parents before children, as its links are numbered."""
        if not snapshot or "/" in snapshot or snapshot[0] == ".":
            raise Failure(f"'{snapshot}' is not the name of a snapshot")
        try:
            links = open_directory(os.fsencode(snapshot), snapshots)
        except OSError as error:
            fail(f"{path}: snapshot '{snapshot}'", error)
        keys = []
        for link in sorted(name for name in os.listdir(links) if name[0] != "."):
            try:
                key = os.readlink(link, dir_fd=links).rpartition("/")[2]
            except FileNotFoundError:  # the block was removed after it was listed
                self.missing += 1
                continue
            if not KEY.match(key):
                raise Failure(f"{self.name}: link {link}: does not name a block")
            keys.append(key)
        return keys

    def _put(self, path: str, st: os.stat_result, kind: bytes, data: bytes, attribute: str,
             value: str) -> None:
        info = tarfile.TarInfo(f"{self.name}/{path}")
        info.type, info.size, info.mode = kind, len(data), st.st_mode & 0o777
        seconds, ns = divmod(st.st_mtime_ns, 10**9)
        info.mtime = seconds
        headers = {}
        # Names are bytes: hdrcharset=BINARY tells readers so if a name is not ASCII.  tarfile adds
        # that header itself if the name is not UTF-8, for which the str has surrogates.
        if not self.name.isascii() and not re.search("[\ud800-\udfff]", self.name):
            headers["hdrcharset"] = "BINARY"
        if ns and kind == tarfile.REGTYPE:
            headers["mtime"] = f"{seconds}.{ns:09}".rstrip("0")
        headers[SCHILY + attribute] = value
        info.pax_headers = headers
        padding = bytes(-len(data) % tarfile.BLOCKSIZE)
        self._write(info.tobuf(tarfile.PAX_FORMAT, **ENCODING) + data + padding)

    def _write(self, data: bytes) -> None:
        try:
            write_all(self.to, data)
        except OSError as error:
            fail("cannot write", error)

    def _put_block(self, key: str) -> None:
        """Write a block; count and skip one that was removed or is unreadable."""
        path = block_path(key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.space)
            try:
                digest = os.getxattr(fd, DIGEST).decode()
                st = os.fstat(fd)
                data = read_file(fd, st.st_size)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno != errno.ENOENT:
                say(f"{self.name}/{path}: {os.strerror(error.errno or 0)}")
            self.missing += 1
            return
        self.written += 1
        self._put(path, st, tarfile.REGTYPE, data, DIGEST, digest)

    def run(self) -> int:
        st = os.fstat(self.space)
        self._put("", st, tarfile.DIRTYPE, b"", BUNDLE, BEGIN)
        try:
            layout = read_layout(self.space)
            if layout is not None:
                self._put(".layout", os.stat(".layout", dir_fd=self.space), tarfile.REGTYPE,
                          layout, DIGEST, Digest(layout).text())
        except OSError as error:
            fail(f"{self.name}/.layout", error)
        for key in self.keys:
            self._put_block(key)
        self._put("", st, tarfile.DIRTYPE, b"", BUNDLE, f"{END}{self.written}")
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        self.blocks = self.written + self.missing
        if self.missing == 0:
            return 0
        say(f"blocks not there any more: {self.missing} of {self.blocks}")
        return STATUS_INCOMPLETE


# ---- import ----

class Stream:
    """A descriptor that tarfile reads forwards only.

    A header that asks for more than HEADER_MAX bytes is an error, not an allocation."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, to: int) -> None:
        if to < self._at:
            raise tarfile.ReadError("the bundle is damaged")
        while to > self._at and self.read(min(to - self._at, IO_BYTES)):
            pass

    def read(self, size: int) -> bytes:
        """Return @size bytes, or fewer at the end of the stream."""
        if not 0 <= size <= HEADER_MAX:
            raise tarfile.ReadError("the bundle is damaged")
        parts = []
        while size > 0 and (part := os.read(self._fd, size)):
            parts.append(part)
            size -= len(part)
            self._at += len(part)
        return b"".join(parts)


class Import:
    """Reads one bundle into a mount, or only checks it (@into is None)."""

    def __init__(self, into: str | None, shared: bool, source: int) -> None:
        self.into, self.shared = into, shared
        self.stream = Stream(source)
        self.name: str | None = None  # None until the first member has been read
        self.space: int | None = None  # the space's directory
        self.has_layout = False
        self.blocks = self.missing = 0  # blocks read so far; at the end, those that are missing
        self.taken: list[str] = []  # keys of blocks that were imported, or passed the check

    def _members(self) -> Iterator[tarfile.TarInfo]:
        """Yield the members of the stream, until it ends or is cut.  A stream that is no archive
        raises Failure with the reason."""
        try:
            tar = tarfile.TarFile(fileobj=self.stream, mode="r", **ENCODING)  # type: ignore
            while (info := tar.next()) is not None:
                yield info
                tar.members.clear()  # type: ignore[attr-defined]
        except OSError as error:
            raise Failure(os.strerror(error.errno) if error.errno else str(error)) from None
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise Failure("not a bundle of kvfs (cut, or compressed?)" if self.name is None
                          else f"the bundle is damaged: {error}") from None

    @staticmethod
    def _attribute(info: tarfile.TarInfo, name: str) -> str:
        return info.pax_headers.get(SCHILY + name, "")

    @staticmethod
    def _path(info: tarfile.TarInfo) -> str:
        return info.name + "/" if info.isdir() else info.name

    def run(self) -> int:
        for info in self._members():
            if self.name is None:
                self._begin(info)
            elif self._take(info):
                self._check_end()
                return self._finish()
        raise Failure("not a bundle of kvfs" if self.name is None
                      else f"the bundle is cut, after block {self.blocks}")

    def _begin(self, info: tarfile.TarInfo) -> None:
        """Check the first member: "SPACE/", with the attribute of a bundle."""
        mark, name = self._attribute(info, BUNDLE), info.name
        if mark != BEGIN:
            raise Failure("a bundle of a newer kvfs" if mark.startswith("kvfs bundle ")
                          else "not a bundle of kvfs")
        if not info.isdir() or not 0 < len(name.encode(**ENCODING)) <= NAME_MAX or \
                name[0] == "." or "/" in name or "\0" in name:
            raise Failure(f"not the name of a space: '{self._path(info)}'")
        self.name = name
        if self.into is not None:
            self._open_space(self.into, name, info.mode)

    def _open_space(self, path: str, name: str, mode: int) -> None:
        """Make the space, or take one that exists and that the caller owns."""
        raw = name.encode(**ENCODING)
        try:
            into = open_directory(os.fsencode(path))
        except OSError as error:
            fail(path, error)
        if not os.access(".kvfs", os.F_OK, dir_fd=into):
            raise Failure(f"{path}: not a mount point of kvfs")
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(raw, (mode & 0o777) | 0o700, dir_fd=into)
            self.space = open_directory(raw, into, os.O_NOFOLLOW)
            uid = os.fstat(self.space).st_uid
        except OSError as error:
            fail(name, error)
        if uid == os.geteuid() or self.shared:
            return
        try:
            owner = pwd.getpwuid(uid).pw_name
        except KeyError:
            owner = "another user"
        raise Failure(f"{name} is there, and belongs to {owner} (uid {uid}): -S imports into "
                      "it all the same")

    def _take(self, info: tarfile.TarInfo) -> bool:
        """Handle a member after the first. Return whether it is the last."""
        name, path = str(self.name), self._path(info)
        if not path.startswith(name + "/"):
            raise Failure(f"not of the bundle: '{path}'")
        file = path[len(name) + 1:]
        if not file:
            mark = self._attribute(info, BUNDLE)
            if not mark.startswith(END):
                raise Failure(f"{name}: begins twice, or its end is not one")
            if mark != f"{END}{self.blocks}":
                raise Failure(f"the bundle says it has {mark[len(END):]} blocks, and came with "
                              f"{self.blocks}")
            return True
        if info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not info.issparse():
            if file == ".layout" and not self.has_layout and self.blocks == 0:
                self._take_layout(info)
                return False
            key = file[3:]
            if KEY.match(key) and file == block_path(key):
                self._take_block(info, key)
                return False
        raise Failure(f"not of a bundle, or not in its place: '{path}'")

    def _check_end(self) -> None:
        """Only zeros may follow the last member."""
        while part := self.stream.read(IO_BYTES):
            if part.strip(b"\0"):
                raise Failure("more after the bundle's end")

    def _digest(self, info: tarfile.TarInfo) -> str:
        digest = self._attribute(info, DIGEST)
        if len(digest) != DIGITS:
            raise Failure(f"{info.name}: without a digest")
        return digest

    def _data(self, info: tarfile.TarInfo) -> Iterator[bytes]:
        """Yield the bytes of a file. Raise Failure if the stream ends too early."""
        left = info.size
        self.stream.seek(info.offset_data)
        while left > 0:
            part = self.stream.read(min(left, IO_BYTES))
            if not part:
                raise Failure(f"{info.name}: the bundle is cut")
            left -= len(part)
            yield part

    # ---- the layout ----

    def _take_layout(self, info: tarfile.TarInfo) -> None:
        """Check the layout; give it to an empty space, or compare it with the space's.

        A layout is permanent and says what blocks mean, so a space that has blocks never
        gets one."""
        name = str(self.name)
        wanted = self._digest(info)
        if info.size > LAYOUT_MAX:
            raise Failure(f"{name}/.layout: not a layout")
        text = b"".join(self._data(info))
        if Digest(text).text() != wanted:
            raise Failure(f"{name}/.layout: damaged")
        self.has_layout = True
        layout = canonical_layout(text)
        if layout is None:
            raise Failure(f"{name}/.layout: not a layout")
        if self.space is None:
            return
        try:
            if self._has(layout, text):
                return
            # An import that runs at the same time writes the layout before the first block:
            # look for the layout again after the blocks.
            if any(True for _ in list_blocks(self.space)):
                if self._has(layout, text):
                    return
                raise Failure(f"{name} has blocks and no layout here: it does not get that of "
                              "the bundle")
            # Whether blocks leave this node is decided by the importing user, not the bundle.
            given = json.loads(text)
            if given.pop("share", None) is not None:
                text = json.dumps(given).encode()
            fd = os.open(".layout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666,
                         dir_fd=self.space)
            try:
                if os.write(fd, text) != len(text):
                    raise OSError(errno.EIO, "")
            finally:
                os.close(fd)
        except OSError as error:
            fail(f"{name}/.layout", error)

    def _has(self, layout: dict[str, object], text: bytes) -> bool:
        """Return whether the space has this layout; False: it has none. Raise Failure for another.

        Members that @text leaves out, such as the seed, agree with any value."""
        assert self.space is not None
        there = read_layout(self.space)
        if not there:
            return False
        own = canonical_layout(there)
        if own is None:
            raise Failure(f"{self.name}/.layout: not a layout")
        given = json.loads(text).keys() - {"share"}
        if any(own.get(member) != layout.get(member) for member in given):
            raise Failure(f"{self.name} has another layout here: these blocks are not its own")
        return True

    # ---- blocks ----

    def _take_block(self, info: tarfile.TarInfo, key: str) -> None:
        digest = self._digest(info)
        if self.blocks == 0 and not self.has_layout and self.space is not None and \
                os.access(".layout", os.F_OK, dir_fd=self.space):
            raise Failure(f"{self.name} has a layout here, and the bundle none: these blocks are "
                          "not its own")
        self.blocks += 1
        try:
            if self.space is None or self._is_there(key, digest):
                self._copy(info, digest, lambda part: None)
            else:
                self._write_block(info, key, digest)
        except Rejected as reason:
            say(f"{info.name}: not taken: {reason}")
        except OSError as error:
            fail(info.name, error)
        else:
            self.taken.append(key)

    def _is_there(self, key: str, digest: str) -> bool:
        try:
            fd = os.open(block_path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW,
                         dir_fd=self.space)
        except OSError:
            return False
        try:
            return os.getxattr(fd, DIGEST) == digest.encode(**ENCODING)
        except OSError:
            return False
        finally:
            os.close(fd)

    def _copy(self, info: tarfile.TarInfo, wanted: str,
              put: Callable[[bytes], None]) -> None:
        """Pass the block's bytes to @put; raise Rejected if their digest is not @wanted."""
        digest = Digest()
        for part in self._data(info):
            digest.update(part)
            put(part)
        if digest.text() != wanted:
            raise Rejected("damaged")

    def _write_block(self, info: tarfile.TarInfo, key: str, digest: str
                     ) -> None:
        """Write the block under a staging name; the rename onto its key seals it."""
        staging = f"{key[:2]}/.{key}.bundle{os.getpid()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(key[:2], 0o777, dir_fd=self.space)
        fd = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666,
                     dir_fd=self.space)
        sealed = False
        try:
            try:
                self._copy(info, digest, lambda part: write_all(fd, part))
                os.utime(fd, ns=(time.time_ns(), self._mtime(info)))
                os.rename(staging, block_path(key), src_dir_fd=self.space, dst_dir_fd=self.space)
                sealed = True
            except OSError as error:
                reason = {
                    errno.EEXIST: "here with other bytes, which stay",
                    errno.EINVAL: "not a whole safetensors file",
                    errno.EFBIG: "larger than a segment of the mount, or than its header says",
                    errno.EBADMSG: "not of the space's layout",
                }.get(error.errno or 0)
                if reason is None:
                    raise
                raise Rejected(reason) from None
        finally:
            with contextlib.suppress(OSError):  # an error here would hide the first one
                if not sealed:
                    os.unlink(staging, dir_fd=self.space)
            with contextlib.suppress(OSError):
                os.close(fd)

    @staticmethod
    def _mtime(info: tarfile.TarInfo) -> int:
        """Return the block's modification time in nanoseconds, for which a float is too coarse."""
        try:
            ns = int(Decimal(info.pax_headers.get("mtime", str(info.mtime))) * 10**9)
        except (InvalidOperation, ValueError, OverflowError):
            return 0
        return ns if abs(ns) < 1 << 62 else 0

    # ---- the end ----

    def _finish(self) -> int:
        """Make the blocks durable, and report those that are missing."""
        bad, gone, r = self.blocks - len(self.taken), 0, 0
        if self.space is not None:
            try:
                os.fsync(self.space)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    say(f"{self.name}: nothing is durable there: the mount has no SSD")
                else:
                    say(f"{self.name}: not all blocks are durable: {os.strerror(error.errno or 0)}")
                    r = STATUS_INCOMPLETE if error.errno == errno.ENOSPC else STATUS_ERROR
            gone = sum(not os.access(block_path(key), os.F_OK, dir_fd=self.space)
                       for key in self.taken)
        if bad > 0:
            say(f"blocks not taken: {bad} of {self.blocks}")
        if gone > 0:
            say(f"blocks not there any more: {gone} of {self.blocks}: removed, or evicted for "
                "want of room")
        self.missing = bad + gone
        return r or (STATUS_INCOMPLETE if self.missing else 0)


# ---- the command line ----

def main() -> int:
    # A closed pipe or Ctrl-C ends the program as it ends a program in C.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    extract = test = shared = as_json = False
    into = None
    try:
        options, names = getopt.gnu_getopt(
            sys.argv[1:], "xtSC:h",
            ["extract", "test", "shared", "directory=", "json", "help", "version"])
    except getopt.GetoptError as error:
        say(str(error))
        sys.stderr.write(USAGE)
        return STATUS_USAGE
    for option, value in options:
        extract |= option in ("-x", "--extract")
        test |= option in ("-t", "--test")
        shared |= option in ("-S", "--shared")
        as_json |= option == "--json"
        if option in ("-C", "--directory"):
            into = value
        if option in ("-h", "--help"):
            sys.stdout.write(USAGE)
            return 0
        if option == "--version":
            print(f"kvfs-bundle {kvfs.kvfs_version_text().decode()}")
            return 0
    exports = not extract and not test
    if (extract and test) or ((into is not None or shared) and not extract) or \
            not (1 <= len(names) <= 2 if exports else len(names) == 0):
        sys.stderr.write(USAGE)
        return STATUS_USAGE
    try:
        if exports:
            if stat.S_ISCHR(os.fstat(1).st_mode) and os.isatty(1):
                raise Failure("standard output is a terminal")
            work: Export | Import = Export(names[0], names[1] if len(names) > 1 else None, 1)
        elif os.isatty(0):
            raise Failure("standard input is a terminal")
        else:
            work = Import(None if test else into or ".", shared, 0)
        status = work.run()
        if as_json:
            print(json.dumps({"space": work.name, "blocks": work.blocks, "missing": work.missing, "status": status}),
                  file=sys.stderr if exports else sys.stdout, flush=True)
        return status
    except Failure as error:
        say(str(error))
    except OSError as error:
        say(os.strerror(error.errno) if error.errno else str(error))
    except MemoryError:
        say("no memory")
    return STATUS_ERROR


if __name__ == "__main__":
    sys.exit(main())
