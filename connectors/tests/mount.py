# SPDX-License-Identifier: Apache-2.0
"""mount - a daemon on a real mount for one test, and remote tiers that nodes share; both are always
removed."""
from __future__ import annotations

import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

BUILD = os.path.realpath(os.environ.get("B", os.path.join(os.path.dirname(__file__), "../../build")))


class Mount:
    """A mount; `with` unmounts it, and removes its store and mount point."""

    def __init__(self, options: str = "dram=64M,ssd=512M", mounted: bool = True) -> None:
        self.options = options
        self.root = tempfile.mkdtemp(prefix="kvfs-python.")
        self.path = f"{self.root}/mnt"
        self.store = f"{self.root}/store"
        os.mkdir(self.path)
        try:
            if mounted:
                self.start()
        except BaseException:
            self.remove()
            raise

    def __enter__(self) -> Mount:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def start(self, options: str | None = None) -> None:
        subprocess.run([f"{BUILD}/kvfs", "-o", f"hugepages=off,scrub=0,segment=8M,mkdir=all,{options or self.options}",
                        self.store, self.path], check=True)

    def pids(self) -> list[int]:
        out = subprocess.run(["pgrep", "-f", "--", f"^[^ ]*kvfs .*{self.root}/"],
                             capture_output=True, text=True).stdout
        return [int(pid) for pid in out.split()]

    def signal(self, number: int) -> None:
        for pid in self.pids():
            os.kill(pid, number)
            while number == signal.SIGSTOP and not self._stopped(pid):
                time.sleep(0.001)

    @staticmethod
    def _stopped(pid: int) -> bool:
        """Return whether all threads of the process are stopped by a signal."""
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/status") as file:
                if "State:\tT" not in file.read():
                    return False
        return True

    def kill(self) -> None:
        """Kill the daemon by SIGKILL, and detach the dead mount."""
        self.signal(signal.SIGKILL)
        self._gone()
        subprocess.run(["umount", "-l", self.path], capture_output=True)

    def stop(self) -> None:
        subprocess.run(["umount", self.path], check=True)
        self._gone()

    def _gone(self) -> None:
        end = time.monotonic() + 60
        while self.pids():
            if time.monotonic() > end:
                raise TimeoutError(f"the daemon of {self.path} has not ended")
            time.sleep(0.05)

    def remove(self) -> None:
        self.signal(signal.SIGCONT)
        self.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def blocks(self, space: str | None = None) -> list[str]:
        """Return the paths of the blocks of all spaces, or of one."""
        found = []
        for folder, _, files in os.walk(f"{self.path}/{space}" if space else self.path):
            found += [f"{folder}/{file}" for file in files
                      if len(file) in (32, 64) and "/." not in folder[len(self.path):]]
        return sorted(found)


class Between:
    """A remote tier in a directory, for mounts with `option`; `with` removes it."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="kvfs-between.")
        self.option = f"remote=dir:{self.path}"

    def __enter__(self) -> Between:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def blocks(self) -> list[str]:
        """Return the paths of the blocks' objects in the remote tier."""
        return glob.glob(f"{self.path}/*/2-*/*")

    def has(self, n: int, limit: float = 60) -> None:
        """Wait until the remote tier has @n blocks."""
        end = time.monotonic() + limit
        while len(found := self.blocks()) < n:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(found)} of {n} blocks were handed over")
            time.sleep(0.05)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Web(Between):
    """A remote tier served by nginx on this machine.  FileNotFoundError: nginx is not installed."""

    def __init__(self) -> None:
        super().__init__()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.option = f"remote=http://127.0.0.1:{port}"
        self.home = tempfile.mkdtemp(prefix="kvfs-nginx.")
        with open(f"{self.home}/nginx.conf", "w") as file:
            file.write("daemon off; master_process off; pid nginx.pid; events { }\n"
                       "http { access_log off; client_max_body_size 0; client_body_temp_path body;\n"
                       f"root {self.path}; dav_methods PUT DELETE; create_full_put_path on;\n"
                       f"server {{ listen 127.0.0.1:{port}; }} }}\n")
        user = ["-g", "user root;"] if os.getuid() == 0 else []
        try:
            self._server = subprocess.Popen(["/usr/sbin/nginx", "-p", self.home, "-c", "nginx.conf",
                                             "-e", "nginx.log", *user])
            self._answers(port)
        except BaseException:
            self.remove()
            raise

    def _answers(self, port: int) -> None:
        while self._server.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.02)
        with open(f"{self.home}/nginx.log") as log:
            raise OSError(f"nginx ended: {log.read()}")

    def hang(self) -> None:
        """Stop nginx: the kernel still accepts connections, but no request is answered."""
        self._server.send_signal(signal.SIGSTOP)

    def answer(self) -> None:
        """Continue nginx, which answers the waiting requests."""
        self._server.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        if hasattr(self, "_server"):
            self._server.kill()
            self._server.wait()
        shutil.rmtree(self.home, ignore_errors=True)
        super().remove()
