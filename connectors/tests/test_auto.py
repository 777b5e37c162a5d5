# SPDX-License-Identifier: Apache-2.0
"""kvfs.open("auto"): real daemons, found, started by several processes at once, and replaced."""
from __future__ import annotations

import contextlib
import glob
import logging
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import kvfs
from kvfs import auto, local

from mount import BUILD

MIB = 1 << 20
OPTIONS = "dram=32M,ssd=0,segment=8M,hugepages=off,scrub=0"
PLACES = ((auto, ("DRAM_MAX", "IDLE")), (local, ("MACHINE", "USERS", "TEMPORARY")))


class Auto(unittest.TestCase):
    def setUp(self) -> None:
        self.root = tempfile.mkdtemp(prefix="kvfs-auto.")
        self.addCleanup(self.remove)
        for name in "run", "tmp", "cache", "users":
            os.mkdir(f"{self.root}/{name}", 0o700)
        self.set(MACHINE=f"{self.root}/machine", USERS=f"{self.root}/users", TEMPORARY=f"{self.root}/tmp",
                 DRAM_MAX=32 * MIB, IDLE=600)
        environment = {"XDG_RUNTIME_DIR": f"{self.root}/run", "XDG_CACHE_HOME": f"{self.root}/cache",
                       "PATH": f"{BUILD}:{os.environ['PATH']}"}
        changed = mock.patch.dict(os.environ, environment)
        changed.start()
        self.addCleanup(changed.stop)
        os.environ.pop("KVFS", None)
        self.home = f"{self.root}/run/kvfs-{os.geteuid()}"

    def set(self, **constants: Any) -> None:
        for name, value in constants.items():
            patch = mock.patch.object(local if hasattr(local, name) else auto, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def daemons(self) -> list[int]:
        out = subprocess.run(["pgrep", "-f", "--", f"^[^ ]*kvfs .*{self.root}/"], capture_output=True, text=True)
        return [int(pid) for pid in out.stdout.split()]

    def ended(self) -> None:
        end = time.monotonic() + 60
        while self.daemons():
            self.assertLess(time.monotonic(), end, "the daemon does not end")
            time.sleep(0.05)

    def remove(self) -> None:
        for number in signal.SIGCONT, signal.SIGKILL:
            for pid in self.daemons():
                os.kill(pid, number)
        self.ended()
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for place in mounts:
            if place.startswith(f"{self.root}/"):
                subprocess.run(["umount", "-l", place], check=True)
        shutil.rmtree(self.root)

    def open(self, lines: int = 1) -> kvfs.Session:
        """Open a session, and check that @lines lines are logged."""
        with self.assertLogs("kvfs", logging.INFO) if lines else self.assertNoLogs("kvfs") as logged:
            session = kvfs.open()
        self.addCleanup(session.close)
        self.logged = logged.output if logged else []
        self.assertEqual(len(self.logged), lines, self.logged)
        return session

    def command(self, code: str = "print(kvfs.open().path, flush=True)") -> list[str]:
        """Return the command of a process that runs @code with the same places."""
        set_ = "".join(f"{module.__name__}.{name} = {getattr(module, name)!r}\n" for module, names in PLACES for name in names)
        return [sys.executable, "-c", f"import kvfs, kvfs.auto, kvfs.local, logging, sys\n{set_}{code}"]

    def refused(self, *words: str) -> None:
        with self.assertRaises(ValueError) as caught:
            kvfs.open()
        message = str(caught.exception)
        for word in ("kvfs: ", *words):
            self.assertIn(word, message)
        self.assertNotIn("\n", message)
        self.assertEqual(self.daemons(), [])

    def daemon(self, control: str) -> int:
        """Start a daemon of an operator at the socket @control."""
        os.makedirs(os.path.dirname(os.path.dirname(control)), exist_ok=True)
        subprocess.run([f"{BUILD}/kvfs", "-o", f"{OPTIONS},control={control}", f"{os.path.dirname(control)}.store",
                        "none"], check=True)
        return self.daemons()[-1]

    # ---- the search ----

    def test_the_order_of_the_search(self) -> None:
        self.assertEqual(self.open().path, f"{self.home}/control")
        self.daemon(f"{self.root}/run/kvfs/0123/control")
        self.assertEqual(self.open(0).path, f"{self.root}/run/kvfs/0123/control")
        self.daemon(f"{self.root}/machine/4567/control")
        self.assertEqual(self.open(0).path, f"{self.root}/machine/4567/control")
        os.environ["KVFS"] = "/nowhere"
        session = self.open(0)
        self.assertEqual((session.path, session.connected), ("/nowhere", False))
        os.environ["KVFS"] = "kvfs"
        with self.assertRaisesRegex(ValueError, "KVFS is 'kvfs'"):
            kvfs.open()

    def test_a_path_is_used_as_it_is(self) -> None:
        session = kvfs.open(f"{self.root}/nothing")
        self.assertEqual((session.path, session.connected), (f"{self.root}/nothing", False))
        self.assertEqual(self.daemons(), [])

    def test_a_socket_without_a_daemon_is_passed_over(self) -> None:
        pid = self.daemon(f"{self.root}/machine/4567/control")
        os.kill(pid, signal.SIGKILL)
        self.ended()
        self.assertTrue(os.path.exists(f"{self.root}/machine/4567/control"))
        self.assertEqual(self.open().path, f"{self.home}/control")

    def test_a_daemon_that_admits_others_only_is_passed_over(self) -> None:
        control = f"{self.root}/machine/4567/control"
        with self.serving(control, lambda connection: None):
            self.assertEqual(self.open().path, f"{self.home}/control")

    # ---- the start ----

    def test_what_the_daemon_inherits(self) -> None:
        code = """
import ctypes, os, signal
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
ctypes.CDLL(None).syscall({"x86_64": 238, "aarch64": 237}[os.uname().machine], 2, ctypes.byref(ctypes.c_ulong(1)), 64)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.set_inheritable(os.open("/dev/zero", os.O_RDONLY), True)
kvfs.open()
print(len(os.sched_getaffinity(0)))
"""
        environment = os.environ | {"NOTIFY_SOCKET": f"{self.root}/notify", "SECRET": "1"}
        out = subprocess.run(self.command(code), env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(out.stdout, "1\n", out.stderr)
        pid = self.daemons()[0]
        self.assertEqual(os.getsid(pid), pid)
        self.assertEqual(Path(f"/proc/{pid}/environ").read_text(), f"PATH={auto.PATH}\0")
        self.assertEqual(os.readlink(f"/proc/{pid}/cwd"), "/")
        self.assertEqual(len(os.sched_getaffinity(pid)), len(os.sched_getaffinity(1)))
        with contextlib.suppress(FileNotFoundError):
            self.assertNotIn(" bind:", Path(f"/proc/{pid}/numa_maps").read_text())
        files = [os.readlink(file) for file in glob.glob(f"/proc/{pid}/fd/*")]
        self.assertNotIn("/dev/zero", files)
        self.assertEqual([os.readlink(f"/proc/{pid}/fd/{n}") for n in range(3)],
                         ["/dev/null", "/dev/null", f"{self.home}/log"])
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        self.assertEqual(int(status["SigIgn"], 16) & 1 << signal.SIGHUP - 1, 0)
        self.assertEqual(int(status["SigBlk"], 16) & 1 << signal.SIGUSR1 - 1, 0)

    def test_the_line_names_path_group_and_limits(self) -> None:
        group = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines()
                     if line.startswith("0::"))
        folder = Path(f"{self.root}/groups/{group}/below")
        folder.mkdir(parents=True)
        (folder / "memory.max").write_text("max\n")
        (folder / "memory.high").write_text(f"{240 * MIB}\n")
        (folder.parent / "memory.max").write_text(f"{280 * MIB}\n")
        self.set(CGROUPS=Path(f"{self.root}/groups"))
        with mock.patch.object(Path, "read_text", self.in_group(f"0::{group.rstrip('/')}/below\n")):
            session = self.open()
        self.assertIn(f"{self.home}/control with 24 MiB", self.logged[0])
        self.assertIn(f"group {group.rstrip('/')}/below may have 240 MiB", self.logged[0])
        self.assertIn("24.0 MiB", session.stats().split("\n")[0])
        self.assertEqual(os.stat(self.home).st_mode & 0o777, 0o700)

    @staticmethod
    def in_group(line: str) -> Any:
        """Return Path.read_text with another /proc/self/cgroup."""
        read = Path.read_text
        return lambda path: line if str(path) == "/proc/self/cgroup" else read(path)

    def test_the_memory_has_bounds(self) -> None:
        self.set(CGROUPS=Path(f"{self.root}/groups"))
        os.mkdir(auto.CGROUPS)
        (auto.CGROUPS / "memory.max").write_text(f"{100 * MIB}\n")
        with mock.patch.object(Path, "read_text", self.in_group("0::/a/b\n")):
            self.open()
        self.assertIn("with 16 MiB", self.logged[0])

    def test_commands_find_the_daemon(self) -> None:
        control = self.open().path
        out = subprocess.run([sys.executable, f"{os.path.dirname(kvfs.__file__)}/command.py", "status"],
                             env=os.environ | {"LD_LIBRARY_PATH": BUILD}, capture_output=True, text=True)
        self.assertIn(control, out.stdout + out.stderr)

    def test_processes_that_start_at_once_get_one_daemon(self) -> None:
        for n in range(3):
            processes = [subprocess.Popen(self.command("s = kvfs.open()\nprint(s.path, s.connected, flush=True)\n"
                                                       "sys.stdin.read()"), stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, text=True) for _ in range(4)]
            lines = [process.stdout.readline() for process in processes if process.stdout]
            daemons = self.daemons()
            for process in processes:
                process.communicate()
            self.assertEqual(lines, [f"{self.home}/control True\n"] * 4)
            self.assertEqual(len(daemons), 1)
            self.assertNotIn("in use", Path(f"{self.home}/log").read_text())  # no process tried in vain
            os.kill(self.daemons()[0], signal.SIGKILL if n else signal.SIGTERM)
            self.ended()

    def test_a_killed_daemon_is_replaced(self) -> None:
        before = self.open()
        self.assertTrue(os.path.exists(f"{self.home}/mount/.kvfs/stats") or not os.path.exists("/dev/fuse"))
        os.kill(self.daemons()[0], signal.SIGKILL)
        self.ended()
        self.assertTrue(os.path.exists(f"{self.home}/control"))
        self.assertTrue(self.open().connected)
        self.assertFalse(os.path.exists(f"{self.home}/control.lock"))
        end = time.monotonic() + 10
        while not before.connected:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def test_a_daemon_whose_starter_was_killed_is_found_late(self) -> None:
        os.mkdir(self.home, 0o700)
        with subprocess.Popen([f"{BUILD}/kvfs", "-o", f"{OPTIONS},control={self.home}/control",
                               f"{self.home}/store", "none"]):
            end = time.monotonic() + 60
            # A daemon that does not hold the store yet would give it to the one that open() starts.
            while not (os.path.exists(lock := f"{self.home}/store/lock") and os.path.getsize(lock)):
                self.assertLess(time.monotonic(), end)
                time.sleep(0.001)
            self.assertTrue(self.open(0).connected)
        self.assertEqual(len(self.daemons()), 1)

    def test_a_daemon_that_hangs_is_waited_for(self) -> None:
        self.open().close()
        pid = self.daemons()[0]
        os.kill(pid, signal.SIGSTOP)
        session = self.open(0)
        self.assertFalse(session.connected)
        os.kill(pid, signal.SIGCONT)
        end = time.monotonic() + 10
        while not session.connected:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        self.assertEqual(self.daemons(), [pid])

    def test_an_idle_daemon_ends_and_leaves_no_mount(self) -> None:
        self.set(IDLE=1)
        code = "import time; s = kvfs.open(); time.sleep(2.5); print(s.connected)"
        out = subprocess.run(self.command(code), capture_output=True, text=True, check=True)
        self.assertEqual(out.stdout, "True\n")
        self.ended()
        self.assertNotIn(self.root, Path("/proc/self/mountinfo").read_text())
        self.assertEqual(glob.glob(f"{self.home}/control*"), [])
        self.assertIn("unused for idle=1 seconds", Path(f"{self.home}/log").read_text())

    # ---- what is refused ----

    def test_a_directory_that_others_can_change(self) -> None:
        os.mkdir(self.home, 0o755)
        self.refused(self.home, "no other may enter")
        os.rmdir(self.home)
        os.mkdir(f"{self.root}/elsewhere", 0o700)
        os.symlink(f"{self.root}/elsewhere", self.home)
        self.refused(self.home)
        os.unlink(self.home)
        if os.geteuid() == 0:
            os.mkdir(self.home, 0o700)
            os.chown(self.home, 65534, -1)
            self.assertEqual(auto._home(), f"{self.root}/tmp/kvfs-0")
            os.rmdir(self.home)
            for owner, mode in (65534, 0o700), (0, 0o777):
                os.chown(f"{self.root}/run", owner, -1)
                os.chmod(f"{self.root}/run", mode)
                self.assertEqual(auto._home(), f"{self.root}/tmp/kvfs-0")
                self.assertFalse(os.path.exists(self.home))
            os.chmod(f"{self.root}/run", 0o700)
        Path(self.home).touch()
        self.refused(self.home)

    def test_a_lock_or_log_that_is_a_symbolic_link(self) -> None:
        for name in "lock", "log":
            os.makedirs(self.home, 0o700, exist_ok=True)
            os.symlink(f"{self.root}/victim", f"{self.home}/{name}")
            with self.assertRaises(OSError):
                kvfs.open()
            os.unlink(f"{self.home}/{name}")
            self.assertFalse(os.path.exists(f"{self.root}/victim"))

    def test_a_lock_that_is_not_released(self) -> None:
        self.set(LOCK_WAIT=0.2)
        os.mkdir(self.home, 0o700)
        with local.locked(f"{self.home}/lock"):
            self.refused(f"{self.home}/lock", "another process")

    def test_a_daemon_of_another_version(self) -> None:
        def answer(connection: socket.socket) -> None:
            connection.settimeout(1)
            kind, _, count, tag, *_ = struct.unpack_from("=HHIQIiQ", connection.recv(256))
            connection.send(struct.pack("=HHIQIiQ IIQ16x", kind, 1, count, tag, 0, -93, 0, 99, 98, 0))

        for control in f"{self.root}/machine/4567/control", f"{self.home}/control":
            with self.serving(control, answer):
                self.refused(control, f"pid {os.getpid()}", "versions 98 to 99")

    @contextlib.contextmanager
    def serving(self, control: str, answer: Callable[[socket.socket], None]) -> Iterator[None]:
        """Listen at @control as a daemon does, and answer a connection's first message only."""
        os.makedirs(os.path.dirname(control), 0o700)
        stopped = threading.Event()

        def serve() -> None:
            while not stopped.is_set():
                with contextlib.suppress(TimeoutError, ConnectionError), listening.accept()[0] as connection:
                    answer(connection)

        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.settimeout(0.05)
            listening.bind(control)
            listening.listen()
            thread = threading.Thread(target=serve)
            thread.start()
            try:
                yield
            finally:
                stopped.set()
                thread.join()
        os.unlink(control)

    def test_no_program(self) -> None:
        self.set(PATH="/nowhere")
        with mock.patch.dict(os.environ, {"PATH": ""}), self.assertRaisesRegex(ValueError, "no program kvfs"):
            kvfs.open()

    def test_a_program_that_cannot_run(self) -> None:
        os.mkdir(f"{self.root}/bin")
        Path(f"{self.root}/bin/kvfs").write_bytes(b"\x7fELF")
        os.chmod(f"{self.root}/bin/kvfs", 0o755)
        with mock.patch.dict(os.environ, {"PATH": f"{self.root}/bin"}), \
                self.assertRaisesRegex(ValueError, "cannot run .*/bin/kvfs: "):
            kvfs.open()

    def test_a_store_that_another_daemon_has(self) -> None:
        os.mkdir(self.home, 0o700)
        subprocess.run([f"{BUILD}/kvfs", "-o", f"{OPTIONS},control={self.root}/other", f"{self.home}/store", "none"],
                       check=True)
        with self.assertRaisesRegex(ValueError, "no daemon can be started in .*in use"):
            kvfs.open()
        self.assertEqual(len(self.daemons()), 1)

    # ---- where ----

    def test_without_XDG_RUNTIME_DIR(self) -> None:
        del os.environ["XDG_RUNTIME_DIR"]
        uid = os.geteuid()
        self.assertEqual(auto._home(), f"{self.root}/tmp/kvfs-{uid}")
        os.mkdir(f"{self.root}/users/{uid}", 0o700)
        self.assertEqual(auto._home(), f"{self.root}/users/{uid}/kvfs-{uid}")
        os.rmdir(f"{self.root}/users/{uid}/kvfs-{uid}")
        os.rmdir(f"{self.root}/users/{uid}")
        self.assertEqual(self.open().path, f"{self.root}/tmp/kvfs-{uid}/control")
        self.set(TEMPORARY=f"{self.root}/nowhere")
        self.assertEqual(auto._home(), f"{self.root}/cache/kvfs-{os.uname().nodename}")
        os.environ["XDG_CACHE_HOME"] = "/nowhere"
        with self.assertRaisesRegex(ValueError, "set XDG_RUNTIME_DIR"):
            auto._home()

    @unittest.skipUnless(os.geteuid() == 0, "needs root")
    def test_without_a_mount_one_line_says_so(self) -> None:
        os.mkdir(f"{self.root}/dev")
        for name in "null", "zero", "random", "urandom":
            subprocess.run(["cp", "-a", f"/dev/{name}", f"{self.root}/dev"], check=True)
        code = "import logging; logging.basicConfig(); s = kvfs.open(); print(s.connected)"
        out = subprocess.run(["unshare", "-m", "sh", "-c", 'mount --bind "$0" /dev && exec "$@"', f"{self.root}/dev",
                              *self.command(code)], capture_output=True, text=True, check=True)
        self.assertEqual(out.stdout, "True\n")
        self.assertEqual(out.stderr.count("\n"), 2, out.stderr)
        self.assertIn("the daemon has no mount: /dev/fuse cannot be opened", out.stderr)
        self.assertIn("started a daemon", out.stderr)


if __name__ == "__main__":
    unittest.main()
