# SPDX-License-Identifier: Apache-2.0
"""engines - start engine.py, send commands to its engines, and always end them."""
from __future__ import annotations

import contextlib
import glob
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

here = os.path.dirname(os.path.abspath(__file__))


class EngineError(Exception):
    pass


class Nursery:
    """The process engine.py, which forks all engines of this test program, and ends with it."""

    process: subprocess.Popen[bytes] | None = None
    socket: socket.socket

    @classmethod
    def model(cls, kind: str, folder: str, seed: int = 1) -> str:
        """Make the model @kind of models.py in @folder, and return @folder."""
        with tempfile.TemporaryFile("w+") as log, open(os.devnull, "r+") as nothing:
            pid = cls.child({"make": [kind, folder, seed]}, log.fileno(), nothing.fileno(),
                            nothing.fileno())
            with contextlib.suppress(ProcessLookupError):
                maker = os.pidfd_open(pid)
                select.select([maker], [], [])
                os.close(maker)
            if not glob.glob(f"{folder}/*.safetensors"):
                log.seek(0)
                raise EngineError(f"no model:\n{log.read()[-6000:]}")
        return folder

    @classmethod
    def child(cls, wanted: dict[str, Any], *fds: int) -> int:
        """Have engine.py fork a child for the configuration @wanted, with @fds for its log,
        commands and answers.  Return its pid."""
        if cls.process is None:
            cls.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            cls.process = subprocess.Popen([sys.executable, f"{here}/engine.py", str(other.fileno())],
                                           pass_fds=(other.fileno(),), stdin=subprocess.DEVNULL,
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            other.close()
        socket.send_fds(cls.socket, [json.dumps(wanted).encode()], fds)
        pid = cls.socket.recv(64)
        if not pid:
            raise EngineError("engine.py ended")
        return int(pid)


class Engine:
    """One engine process.  `do` runs a method of engine.py's engine, within a time limit."""

    def __init__(self, model: str, path: str | None = None, extra: dict[str, Any] | None = None,
                 policy: str = "recompute", **options: Any) -> None:
        config = {"model": model, **options}
        if path is not None:
            config["kv_transfer_config"] = {
                "kv_connector": "KvfsConnector", "kv_connector_module_path": "kvfs.vllm",
                "kv_role": "kv_both", "kv_load_failure_policy": policy,
                "kv_connector_extra_config": {
                    "path": path, "weights_cache": f"{os.path.dirname(model)}/digests", **(extra or {})}}
        config.update(options)
        answers, write = os.pipe()
        read, commands = os.pipe()
        self.log = tempfile.TemporaryFile("w+")
        try:
            self.pid = Nursery.child(config, self.log.fileno(), read, write)
            self._process = os.pidfd_open(self.pid)
        finally:
            os.close(read)
            os.close(write)
            self.answers, self.commands = os.fdopen(answers), os.fdopen(commands, "w")
        try:
            self._answer(240)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _answer(self, limit: float) -> Any:
        ready, _, _ = select.select([self.answers], [], [], limit)
        line = self.answers.readline() if ready else None
        if not line:
            raise EngineError(f"no answer{'' if ready else ' in time'}:\n{self.said()[-6000:]}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def begin(self, do: str, **arguments: Any) -> None:
        self.commands.write(json.dumps({"do": do, **arguments}) + "\n")
        self.commands.flush()

    def result(self, limit: float = 240) -> Any:
        return self._answer(limit)

    def do(self, do: str, limit: float = 240, **arguments: Any) -> Any:
        self.begin(do, **arguments)
        return self._answer(limit)

    def said(self) -> str:
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def kill(self) -> None:
        """Send SIGKILL to the engine and to its children."""
        if self.answers.closed:
            return
        kill_group(self.pid, self._process)
        os.close(self._process)
        self.answers.close()
        self.commands.close()
        self.last = self.said()
        self.log.close()


def kill_group(pid: int, process: int) -> None:
    """Kill the process group @pid by SIGKILL, and wait for its leader, the pidfd @process.  Remove the
    files in /dev/shm that ranks communicate by, which stay after a kill."""
    inodes: set[int] = set()
    for one in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getpgid(int(one)) == pid:
                with open(f"/proc/{one}/maps") as maps:
                    inodes |= {int(line.split()[4]) for line in maps if "/dev/shm/" in line}
    with os.scandir("/dev/shm") as files:
        shared = [file.path for file in files if file.is_file() and file.inode() in inodes]
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
        os.killpg(pid, signal.SIGKILL)
    select.select([process], [], [])
    for path in shared:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def prompt(seed: int, n: int, vocabulary: int = 1000) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, vocabulary) for _ in range(n)]


def statistics(path: str) -> str:
    with open(f"{path}/.kvfs/stats") as file:
        return file.read()


def settled(path: str, space: str = "", limit: float = 30) -> None:
    """Wait until no save is in flight and all blocks are on SSD."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        stats = statistics(path)
        if " 0 being saved" in stats and "; 0 not yet on SSD" in stats:
            return
        time.sleep(0.05)
    raise TimeoutError(stats)
