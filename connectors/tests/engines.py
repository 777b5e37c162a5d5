# SPDX-License-Identifier: Apache-2.0
"""engines - start engine.py, talk to it, and take it away whatever happens."""
from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

here = os.path.dirname(os.path.abspath(__file__))


class EngineError(Exception):
    pass


class Engine:
    """One engine process.  Calls are engine.py's; each answers within a time limit."""

    def __init__(self, model: str, path: str | None = None, extra: dict[str, Any] | None = None,
                 policy: str = "recompute", **options: Any) -> None:
        config = {"model": model, **options}
        if path is not None:
            config["kv_transfer_config"] = {
                "kv_connector": "KvfsConnector", "kv_connector_module_path": "kvfs.vllm",
                "kv_role": "kv_both", "kv_load_failure_policy": policy,
                "kv_connector_extra_config": {"path": path, **(extra or {})}}
        config.update(options)
        read, write = os.pipe()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([sys.executable, f"{here}/engine.py", str(write), json.dumps(config)],
                                        stdin=subprocess.PIPE, stdout=self.log, stderr=self.log,
                                        pass_fds=(write,), text=True, start_new_session=True)
        os.close(write)
        self.answers = os.fdopen(read)
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
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

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
        """SIGKILL to it and to what it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        if not self.answers.closed:
            self.answers.close()
            self.process.stdin.close()
            self.last = self.said()
            self.log.close()


def prompt(seed: int, n: int, vocabulary: int = 1000) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, vocabulary) for _ in range(n)]


def statistics(path: str) -> str:
    with open(f"{path}/.kvfs/stats") as file:
        return file.read()


def settled(path: str, space: str = "", limit: float = 30) -> None:
    """Return when no save is under way, and all is on SSD."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        stats = statistics(path)
        if " 0 being saved" in stats and "; 0 not yet on SSD" in stats:
            return
        time.sleep(0.05)
    raise TimeoutError(stats)
