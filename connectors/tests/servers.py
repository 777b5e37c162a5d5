# SPDX-License-Identifier: Apache-2.0
"""servers - start `vllm serve` and the example's proxy on this machine, ask them by OpenAI's client,
and always end them."""
from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

import openai

from engines import here, kill_group


class Process:
    """A process with a port, in a process group of its own."""

    def __init__(self, *command: str) -> None:
        self.log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
                                         start_new_session=True)
        self._pidfd = os.pidfd_open(self._process.pid)

    @staticmethod
    def port() -> int:
        with socket.create_server(("127.0.0.1", 0)) as free:
            return free.getsockname()[1]

    def said(self) -> str:
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        if self._process.returncode is None:
            kill_group(self._process.pid, self._pidfd)
            self._process.wait()
            os.close(self._pidfd)


class Asked:
    """A server at @port, as OpenAI's client sees it."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.client = openai.OpenAI(base_url=f"http://{self.address}/v1", api_key="none", max_retries=0,
                                    timeout=240)

    def complete(self, prompt: list[int], model: str = "model", **more: Any) -> list[int]:
        """Return the tokens that continue @prompt."""
        answer = self.client.completions.create(
            model=model, prompt=prompt, max_tokens=8, temperature=0,
            extra_body={"return_token_ids": True, "ignore_eos": True} | more)
        return answer.choices[0].token_ids

    def chat(self, messages: list[dict[str, str]], stream: bool) -> tuple[list[int], str]:
        """Return the tokens and the text of the answer."""
        answer = self.client.chat.completions.create(
            model="model", messages=messages, max_tokens=16, temperature=0, stream=stream,
            extra_body={"return_token_ids": True, "ignore_eos": True})
        if not stream:
            return answer.choices[0].token_ids, answer.choices[0].message.content
        tokens: list[int] = []
        text = ""
        for chunk in answer:
            for choice in chunk.choices:
                tokens += getattr(choice, "token_ids", None) or []
                text += choice.delta.content or ""
        return tokens, text


class Server(Process, Asked):
    """`vllm serve`, with kvfs at @path if given.  ready() waits until it answers."""

    def __init__(self, model: str, path: str | None = None, role: str = "kv_both",
                 extra: dict[str, Any] | None = None, arguments: tuple[str, ...] = ()) -> None:
        port = self.port()
        Asked.__init__(self, port)
        if path is not None:
            arguments = (*arguments, "--kv-transfer-config", json.dumps({
                "kv_connector": "KvfsConnector", "kv_connector_module_path": "kvfs.vllm", "kv_role": role,
                "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {
                    "path": path, "weights_cache": f"{os.path.dirname(model)}/digests", **(extra or {})}}))
        Process.__init__(self, sys.executable, "-W", "ignore", f"{here}/serve.py", "serve", model,
                         "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model",
                         "--dtype", "float32", "--enforce-eager", "--max-model-len", "4096",
                         "--max-num-seqs", "16", "--uvicorn-log-level", "warning", *arguments)

    def ready(self, limit: float = 400) -> None:
        end = time.monotonic() + limit
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.address}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                if self._process.poll() is not None or time.monotonic() > end:
                    raise TimeoutError(f"vllm serve does not answer:\n{self.said()[-6000:]}") from None
            time.sleep(0.2)

    def figures(self) -> dict[str, float]:
        """Return vLLM's metrics, with the labels other than engine and model."""
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        found = {}
        for name, labels, value in re.findall(r"^vllm:(\w+)\{(.*)\} (\S+)$", text, re.M):
            rest = [label for label in labels.split(",") if not label.startswith(("engine=", "model_name="))]
            found[name + ",".join(rest)] = float(value)
        return found

    def computed(self) -> float:
        """Return how many prompt tokens were neither in vLLM's cache nor in kvfs.  Exact only while
        no load fails."""
        return self.figures()['prompt_tokens_by_source_totalsource="local_compute"']


class Proxy(Process, Asked):
    """The example's proxy before two servers."""

    def __init__(self, prefill: str, decode: str) -> None:
        port = self.port()
        Asked.__init__(self, port)
        Process.__init__(self, sys.executable, f"{here}/../../examples/vllm_proxy.py", str(port), prefill, decode)
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.02)
