# SPDX-License-Identifier: Apache-2.0
"""steps - call KvfsConnector's scheduler and worker sides as vLLM's steps do, with vLLM's
configuration and a real mount, but without a model."""
from __future__ import annotations

import pickle
import time
from typing import Any

import configs
import torch
from configs import BLOCK
from engines import prompt
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

HIT, LAYERS, HEADS, DIM, PAGES = 12, 12, 4, 64, 64
TOKENS = HIT * BLOCK + 1


class Step:
    """The part of a scheduler's output that the connector reads: @tokens by request, each
    with the table @pages, which is new to it."""

    kv_cache_block_copies = None

    def __init__(self, tokens: dict[str, int], pages: list[int]) -> None:
        self.num_scheduled_tokens = tokens
        self.block_ids = (pages,)
        self.scheduled_new_reqs = [self] if tokens else []
        self.scheduled_cached_reqs = self.kv_connector_block_state = self
        self.new_block_ids: list[tuple[list[int], ...] | None] = [None] * len(tokens)

    def resolve_block_ids(self, id: str) -> tuple[list[int], ...]:
        return self.block_ids

    def get_block_ids(self) -> tuple[list[int], ...]:
        return self.block_ids


class Forward:
    def __init__(self, computes: bool) -> None:
        self.attn_metadata = self if computes else None


class Driver:
    """Make the calls of vLLM's scheduler and model runner to a connector.  Counts the calls, and
    their CPU time in this thread in microseconds."""

    def __init__(self, model: str, path: str, role: str = "kv_both", heads_first: bool = True,
                 **extra: Any) -> None:
        config = self.config = configs.engine(model, path, role, extra)
        hash = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash)
        self.hasher = get_request_block_hasher(BLOCK, hash)
        layers = [f"layers.{i}" for i in range(LAYERS)]
        caches = configs.caches((layers, configs.full(HEADS, DIM)), pages=PAGES)
        self.pages = {name: torch.randn(PAGES, HEADS, BLOCK, 2 * DIM) for name in layers}
        if not heads_first:  # the same memory, with its dimensions in another order
            self.pages = {name: pages.transpose(1, 2) for name, pages in self.pages.items()}
        self.core = configs.Core(config)
        self.scheduler, self.worker = self.core.connectors(caches, self.pages)
        self.times: dict[str, float] = {}
        self.calls = 0

    def close(self) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()

    def connected(self) -> bool:
        return bool(self.scheduler._scheduler._spaces.connected
                    and self.worker._worker._spaces.connected)

    def call(self, side: Any, name: str, *arguments: Any) -> Any:
        method = getattr(side, name)
        start = time.thread_time_ns()
        result = method(*arguments)
        spent = time.thread_time_ns() - start
        self.times[name] = self.times.get(name, 0) + spent / 1e3
        self.calls += 1
        return result

    def request(self, id: str, seed: int, params: dict[str, Any] | None = None,
                **options: Any) -> Request:
        """Begin a request; @params: its kv_transfer_params."""
        sampling = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": params})
        made = Request(id, prompt(seed, TOKENS), sampling, None, block_hasher=self.hasher, **options)
        self.times, self.calls = {}, 0
        self.call(self.scheduler, "on_new_request", made)
        return made

    def match(self, request: Request, computed: int = 0) -> int | None:
        return self.call(self.scheduler, "get_num_new_matched_tokens", request, computed)[0]

    def matched(self, request: Request) -> int:
        """Repeat match(), a step each time, until the result is not None."""
        while (hit := self.match(request)) is None:
            self.step({}, [])
        return hit

    def allocate(self, request: Request, pages: list[int], tokens: int) -> None:
        self.call(self.scheduler, "update_state_after_alloc", request, Step({}, pages), tokens)

    def finish(self, request: Request, pages: list[int]) -> dict[str, Any] | None:
        """End a request, and return its kv_transfer_params."""
        return self.call(self.scheduler, "request_finished_all_groups", request, (pages,))[1]

    def step(self, tokens: dict[str, int], pages: list[int]) -> KVConnectorOutput:
        """Do one step with the calls of vLLM's mixin for model runners.  Messages between scheduler
        and worker are pickled, as between processes."""
        plan = self.call(self.scheduler, "build_connector_meta", Step(tokens, pages))
        plan = pickle.loads(pickle.dumps(plan))
        worker, output = self.worker, KVConnectorOutput()
        self.call(worker, "handle_preemptions", plan)
        worker.bind_connector_metadata(plan)
        self.call(worker, "start_load_kv", Forward(bool(tokens)))
        self.call(worker, "wait_for_save")
        results = self.call(worker, "get_transfer_results", set())
        output.finished_recving = results.finished_recving
        output.invalid_block_ids = self.call(worker, "get_block_ids_with_load_errors")
        output.kv_connector_worker_meta = pickle.loads(pickle.dumps(
            self.call(worker, "build_connector_worker_meta")))
        worker.clear_connector_metadata()
        if not output.is_empty():
            self.call(self.scheduler, "update_connector_output", output)
        return output

    def sealed(self) -> None:
        """Wait for all saves."""
        for save in self.worker._worker._saves:
            save.transfer.wait()

    def save(self, id: str, seed: int, pages: list[int], params: dict[str, Any] | None = None
             ) -> dict[str, Any] | None:
        """Run and save a request without cached blocks in one step, and do another step.  Return the
        kv_transfer_params of its answer."""
        request = self.request(id, seed, params)
        hit = self.matched(request)
        assert hit == 0, hit
        self.allocate(request, pages, 0)
        self.step({id: TOKENS}, pages)
        self.sealed()
        answer = self.finish(request, pages)
        self.step({}, pages)
        return answer

    def load(self, id: str, seed: int, pages: list[int]) -> int:
        """Run a request all of whose tokens but the last are cached.  Return how often the match
        had to be repeated."""
        request, asked = self.request(id, seed), 0
        while (hit := self.match(request)) is None:
            asked += 1
            self.step({}, pages)
        assert hit == HIT * BLOCK, hit
        self.allocate(request, pages, hit)
        while not self.step({}, pages).finished_recving:
            pass
        request.num_computed_tokens = hit
        self.allocate(request, pages, 0)
        self.step({id: 1}, pages)
        self.finish(request, pages)
        self.step({}, pages)
        return asked
