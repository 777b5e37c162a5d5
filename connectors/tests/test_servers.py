# SPDX-License-Identifier: Apache-2.0
"""KvfsConnector inside `vllm serve`, behind OpenAI's client, with servers and daemons that are killed
and stopped.  Tokens are compared with those of a server without kvfs."""
from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai

from engines import Nursery, prompt, settled, statistics
from mount import Between, Mount
from servers import Proxy, Server

BLOCK = 128  # vLLM's block size on a CPU
model = ""


def setUpModule() -> None:
    global model
    model = f"{tempfile.mkdtemp(prefix='kvfs-models.')}/chat"
    Nursery.model("chat", model)


def tearDownModule() -> None:
    shutil.rmtree(os.path.dirname(model))


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.mount = Mount("dram=256M,ssd=2G")
        self.addCleanup(self.mount.remove)

    def servers(self, *several: tuple[Any, ...]) -> list[Server]:
        """Start servers at the same time.  Each is given as the arguments after the model."""
        started = []
        for arguments in several:
            started.append(Server(model, *arguments))
            self.addCleanup(started[-1].kill)
        for server in started:
            server.ready()
        return started


class Roles(Case):
    def test_prefill_and_decode_behind_a_proxy_with_each_of_three_killed(self) -> None:
        path = self.mount.path
        plain, producer, consumer = self.servers((), (path, "kv_producer"), (path, "kv_consumer", {"ssd_wait": 30}))
        proxy = Proxy(producer.address, consumer.address)
        self.addCleanup(proxy.kill)
        prompts = [prompt(i, 700 + 100 * i) for i in range(10)]
        with ThreadPoolExecutor(4) as pool:
            wanted = list(pool.map(plain.complete, prompts))
        plain.kill()

        def handed(asked: range, at_most: int | None) -> None:
            """Check the answers, and that the consumer computed @at_most blocks for each."""
            before = consumer.computed()
            with ThreadPoolExecutor(4) as pool:
                self.assertEqual(list(pool.map(proxy.complete, prompts[asked.start:asked.stop])),
                                 wanted[asked.start:asked.stop])
            if at_most is not None:
                self.assertLessEqual(consumer.computed() - before, at_most * BLOCK * len(asked))

        handed(range(0, 3), 1)
        self.assertEqual(consumer.figures()["kvfs_saved_total"], 0)
        self.assertEqual(producer.figures()["kvfs_loads_total"], 0)
        # The daemon is killed while a prompt is handed over; without it the consumer computes.
        killer = threading.Timer(0.2, self.mount.kill)
        killer.start()
        handed(range(3, 5), None)
        killer.join()
        handed(range(4, 5), None)
        self.mount.start()
        self.found_again(consumer, producer)
        handed(range(5, 6), 1)
        # The producer is killed while it computes; then the consumer computes.
        killer = threading.Timer(0.3, producer.kill)
        killer.start()
        handed(range(6, 9), None)
        killer.join()
        handed(range(9, 10), None)
        # The consumer is killed, and both are started again.
        consumer.kill()
        producer, consumer = self.servers((path, "kv_producer"), (path, "kv_consumer", {"ssd_wait": 30}))
        proxy.kill()
        proxy = Proxy(producer.address, consumer.address)
        self.addCleanup(proxy.kill)
        handed(range(0, 10), 1)
        killer = threading.Timer(0.1, consumer.kill)
        killer.start()
        with ThreadPoolExecutor(4) as pool:  # the producer generates
            self.assertEqual(list(pool.map(proxy.complete, prompts)), wanted)
        killer.join()

    def test_prefill_and_decode_on_two_nodes_with_the_first_killed(self) -> None:
        between = Between()
        self.addCleanup(between.remove)
        options = f"dram=256M,ssd=1G,{between.option}"
        self.mount.stop()
        self.mount.start(options)
        node = Mount(options)
        self.addCleanup(node.remove)
        plain, producer, consumer = self.servers(
            (), (self.mount.path, "kv_producer", {"remote": True}),
            (node.path, "kv_consumer", {"remote": True, "ssd_wait": 30}))
        proxy = Proxy(producer.address, consumer.address)
        self.addCleanup(proxy.kill)
        prompts = [prompt(i, 700 + 100 * i) for i in range(5)]
        wanted = [plain.complete(one) for one in prompts]
        plain.kill()
        with ThreadPoolExecutor(2) as pool:
            self.assertEqual(list(pool.map(proxy.complete, prompts[:4])), wanted[:4])
        figures = consumer.figures()
        self.assertLessEqual(consumer.computed(), 4 * BLOCK)
        # Blocks that an earlier look-up has fetched are in DRAM.
        self.assertEqual(figures["kvfs_remote_hits_total"] + figures["kvfs_dram_hits_total"],
                         sum((len(one) - 1) // BLOCK for one in prompts[:4]))
        self.mount.kill()
        producer.kill()
        self.assertEqual(proxy.complete(prompts[4]), wanted[4])

    def test_the_proxy_answers_bad_requests_and_without_servers(self) -> None:
        proxy = Proxy("127.0.0.1:1", "127.0.0.1:2")
        self.addCleanup(proxy.kill)
        for body, length, status in ((b'{"prompt": "x"}', None, 502), (b"no JSON", None, 502), (b"[1]", None, 502),
                                     (b'{"kv_transfer_params": 7}', None, 502),
                                     (b'{"kv_transfer_params": ["x"]}', None, 502), (b"", "x", 411),
                                     (b"", "9" * 5000, 411)):
            asked = urllib.request.Request(f"http://{proxy.address}/v1/completions", body, method="POST")
            if length:
                asked.add_header("Content-Length", length)
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(asked, timeout=60)
            self.assertEqual(caught.exception.code, status, body)
        self.assertNotIn("Traceback", proxy.said())

    def test_the_proxy_merges_what_names_a_block_and_passes_the_rest_on(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            """The second server repeats the request, the first one answers with `answer`."""

            answer = b""

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body if self.server is servers[1] else self.answer)

            def log_message(self, *_: object) -> None:
                pass

        servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
        for server in servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.addCleanup(server.server_close)
            self.addCleanup(server.shutdown)
        proxy = Proxy(*(f"127.0.0.1:{server.server_port}" for server in servers))
        self.addCleanup(proxy.kill)
        asked = {"prompt": "x", "kv_transfer_params": {"own": 1}}
        merged = asked | {"kv_transfer_params": {"kvfs.block": "a/b", "own": 1}}
        for answer, wanted in ((b'{"kv_transfer_params": {"kvfs.block": "a/b", "own": 2}}', merged),
                               (b'{"kv_transfer_params": null}', asked), (b'{"kv_transfer_params": [1]}', asked),
                               (b"[]", asked), (b'"x"', asked), (b"{}", asked), (b"no JSON", asked),
                               (b"[" * 100000, asked)):
            Handler.answer = answer
            for body, passed in (json.dumps(asked).encode(), wanted), (b"[" * 100000, None):
                with urllib.request.urlopen(f"http://{proxy.address}/v1/completions", body, timeout=60) as reply:
                    got = reply.read()
                self.assertEqual(json.loads(got) if passed else got, passed or body, answer)
        self.assertNotIn("Traceback", proxy.said())

    def found_again(self, *servers: Server) -> None:
        """Wait until the servers have found the daemon again, which they notice with new prompts."""
        end, i = time.monotonic() + 120, 100
        while any("answers again" not in server.said() for server in servers):
            self.assertLess(time.monotonic(), end)
            for server in servers:
                server.complete(prompt(i := i + 1, 200))
            time.sleep(0.2)


class Conversations(Case):
    TURNS, STREAMS = 3, 2

    def conversation(self, number: int, *servers: Server) -> list[list[int]]:
        """Hold a conversation whose turns alternate between the @servers; return their tokens."""
        messages = [{"role": "system", "content": "Answer in one of three ways. " * 14}]
        answers = []
        for turn in range(self.TURNS):
            messages.append({"role": "user", "content": f"{number}, {turn}: " + "why so? " * (8 + number)})
            tokens, text = servers[(number + turn) % len(servers)].chat(messages, number % self.STREAMS == 0)
            self.assertEqual(len(tokens), 16)
            messages.append({"role": "assistant", "content": text})
            answers.append(tokens)
        return answers

    def all(self, numbers: range, *servers: Server) -> list[list[list[int]]]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda number: self.conversation(number, *servers), numbers))

    def test_twenty_on_two_servers_with_the_daemon_and_a_server_killed_and_stopped(self) -> None:
        plain, first, second = self.servers((), (self.mount.path,), (self.mount.path,))
        wanted = self.all(range(20), plain)
        plain.kill()
        self.assertGreater(len({str(answers) for answers in wanted}), 15, "the prompts matter")
        self.assertEqual(self.all(range(20), first, second), wanted)
        for server in first, second:
            self.assertGreater(server.figures()["kvfs_dram_hits_total"], 20)
            self.assertEqual(server.figures()["kvfs_errors_total"], 0)

        def during(seconds: float, what: Any, *arguments: Any) -> None:
            """Hold conversations, and call @what after @seconds."""
            for server in first, second:
                self.reset(server)
            timer = threading.Timer(seconds, what, arguments)
            timer.start()
            self.assertEqual(self.all(range(6), first, second), wanted[:6])
            timer.join()

        during(0.3, self.mount.signal, signal.SIGSTOP)
        during(0.3, self.mount.signal, signal.SIGCONT)
        during(0.3, self.mount.kill)
        self.mount.start()
        during(0.0, lambda: None)

        def stop_a_while() -> None:
            first.signal(signal.SIGSTOP)
            time.sleep(3)
            first.signal(signal.SIGCONT)

        during(0.3, stop_a_while)
        killer = threading.Timer(0.3, first.kill)
        killer.start()
        with contextlib.suppress(openai.APIError):
            self.all(range(8), first)
        killer.join()
        self.reset(second)
        self.assertEqual(self.all(range(20), second), wanted)

    @staticmethod
    def reset(server: Server) -> None:
        """Empty the server's own prefix cache."""
        with urllib.request.urlopen(urllib.request.Request(f"http://{server.address}/reset_prefix_cache",
                                                           method="POST"), timeout=60):
            pass


class Ranks(Case):
    def hits(self) -> dict[str, int]:
        found = re.search(r"^hits +(\d+) from dram, (\d+) from ssd", statistics(self.mount.path), re.M)
        return {"dram": int(found[1]), "ssd": int(found[2])}

    def test_two_ranks_with_an_adapter_and_their_figures(self) -> None:
        adapter = f"{os.path.dirname(model)}/adapter"
        Nursery.model("lora", adapter)
        options = ("--tensor-parallel-size", "2", "--enable-lora", "--max-lora-rank", "8",
                   "--lora-modules", f"adapter={adapter}")
        plain, first = self.servers((None, "", None, options), (self.mount.path, "kv_both", {"ssd_wait": 30}, options))
        asked = [(prompt(i, 900 + 50 * i), name) for i in range(4) for name in ("model", "adapter")]
        wanted = [plain.complete(*one) for one in asked]
        self.assertEqual(len({str(tokens) for tokens in wanted}), 8)
        plain.kill()
        self.assertEqual([first.complete(*one) for one in asked], wanted)
        settled(self.mount.path)
        for tier in "dram", "ssd":
            if tier == "ssd":
                self.mount.stop()
                self.mount.start()
                end = time.monotonic() + 60
                while "answers again" not in first.said() and time.monotonic() < end:
                    first.complete(prompt(time.monotonic_ns(), 200))
            Conversations.reset(first)
            hits, figures = self.hits(), first.figures()
            self.assertEqual([first.complete(*one) for one in asked], wanted)
            more = {name: first.figures()[f"kvfs_{name}_hits_total"] - figures[f"kvfs_{name}_hits_total"]
                    for name in hits}
            self.assertEqual(sum(more.values()), sum((len(tokens) - 1) // BLOCK for tokens, _ in asked))
            self.assertGreater(more[tier], 0.9 * sum(more.values()))
            # Each rank has a space, and a hit is a hit in each.
            for name, n in self.hits().items():
                self.assertAlmostEqual(2 * more[name], n - hits[name], delta=0.01 * 2 * more[name])


if __name__ == "__main__":
    unittest.main(verbosity=2)
