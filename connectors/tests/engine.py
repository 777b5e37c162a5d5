# SPDX-License-Identifier: Apache-2.0
"""engine.py SOCKET - start vLLM engines on the CPU for the tests, and run their commands.

Importing vLLM takes most of an engine's start, so this process imports vLLM once.  For each
configuration received from SOCKET, with descriptors for a log, commands and answers, this process
forks a child that runs an engine.  The engine takes commands as JSON lines and answers in JSON
lines.  Answers are facts, not vLLM's counters: digests of the prefix cache's pages, and the number
of tokens that the model computed.
"""
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_WORKER_MULTIPROC_METHOD="fork")

import cpu  # first: changes torch and vLLM
import models
import torch
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.scheduler import Scheduler

forwarded = 0
whole_schedule = Scheduler.schedule


def schedule(self, *args, **kwargs):
    global forwarded
    output = whole_schedule(self, *args, **kwargs)
    forwarded += output.total_num_scheduled_tokens
    return output


Scheduler.schedule = schedule


class Engine:
    def __init__(self, config):
        options = dict(skip_tokenizer_init=True, dtype="float32", enforce_eager=True, seed=0,
                       max_model_len=4096, max_num_batched_tokens=4096, disable_log_stats=False,
                       distributed_executor_backend="uni")
        options.update(config)
        self.llm = LLM(**options)
        core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = core.scheduler
        if config.get("tensor_parallel_size", 1) == 1:  # else runners are in other processes
            self.runner = core.model_executor.driver_worker.worker.model_runner

    def generate(self, prompts, tokens=8, salt=None, lora=None, serial=False, **sampling):
        """Return each prompt's generated tokens, the number of computed tokens, and statistics."""
        global forwarded
        before, cpu, self.connector = forwarded, time.process_time(), {}
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False,
                                **sampling)
        inputs = [{"prompt_token_ids": prompt} | ({"cache_salt": salt} if salt else {})
                  for prompt in prompts]
        adapter = LoRARequest(lora[0], lora[1], lora[2]) if lora else None
        batches = [[one] for one in inputs] if serial else [inputs]
        outputs = []
        for batch in batches:
            outputs += self.llm.generate(batch, params, use_tqdm=False, lora_request=adapter)
        return {"tokens": [list(o.outputs[0].token_ids) for o in outputs],
                "finish": [o.outputs[0].finish_reason for o in outputs],
                "cached": [o.num_cached_tokens for o in outputs],
                "ttft": [o.metrics.first_token_latency for o in outputs],
                "rest": [o.metrics.last_token_ts - o.metrics.first_token_ts for o in outputs],
                "forwarded": forwarded - before, "cpu": time.process_time() - cpu,
                "connector": self.connector}

    def abort(self, prompt, steps):
        """Begin a request, take some steps, and abort it."""
        engine = self.llm.llm_engine
        engine.add_request("aborted", {"prompt_token_ids": prompt},
                           SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, detokenize=False))
        for _ in range(steps):
            engine.step()
        engine.abort_request(["aborted"])
        while engine.has_unfinished_requests():
            engine.step()
        return {}

    def pages(self):
        """SHA-256 over all layers of every block in the engine's own prefix cache."""
        found = {}
        pool = self.scheduler.kv_cache_manager.block_pool
        caches = list(self.runner.kv_caches)
        for block in pool.blocks:
            if block.block_hash is None:
                continue
            hash = hashlib.sha256()
            for cache in caches:
                hash.update(cache[block.block_id].contiguous().view(torch.uint8).numpy().tobytes())
            found[bytes(block.block_hash).hex()] = hash.hexdigest()
        return found

    def reset(self, connector=False):
        return self.llm.reset_prefix_cache(reset_connector=connector)

    def call(self, method):
        self.llm.collective_rpc(method)
        return {}

    def counters(self, name):
        """Return the metrics with @name in their names."""
        return {m.name: m.value for m in self.llm.get_metrics() if name in m.name and hasattr(m, "value")}

    def leases(self):
        """Return the number of requests and loads that the connector still tracks."""
        side = self.scheduler.connector._scheduler
        return {"requests": len(side._requests), "loads": len(side._loads)}

    def time_connector(self):
        """Count the connector's calls from now on, and their CPU time in Python's thread in
        microseconds."""
        def timed(name, method):
            def call(*args, **kwargs):
                start = time.thread_time_ns()
                try:
                    return method(*args, **kwargs)
                finally:
                    spent = time.thread_time_ns() - start
                    calls, us = self.connector.get(name, (0, 0.0))
                    self.connector[name] = calls + 1, us + spent / 1e3
            return call

        for side, names in ((self.scheduler.connector, (
                "on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc",
                "build_connector_meta", "update_connector_output", "request_finished_all_groups")),
                            (get_kv_transfer_group(), (
                "handle_preemptions", "start_load_kv", "wait_for_save", "get_transfer_results",
                "get_block_ids_with_load_errors", "build_connector_worker_meta"))):
            for name in names:
                setattr(side, name, timed(name, getattr(side, name)))
        return {}

    def save(self, on):
        """Switch the saving of blocks by the connector on or off."""
        side = self.scheduler.connector._scheduler
        side._offer = type(side)._offer.__get__(side) if on else lambda plan, offers, tables: None
        return {}

    def before_load(self, command=None, evict=None, window=False):
        """Just before the next load: run @command, or evict its block number @evict from the first group of
        layers with, or without, a sliding window."""
        worker = get_kv_transfer_group()._worker
        load = worker.load

        def hooked(plan):
            if plan.loads:
                worker.load = load
                if command:
                    subprocess.run(command)
                else:
                    group = [bool(group.window) for group in worker._spaces.groups].index(window)
                    for blocks in plan.loads:
                        worker._spaces.by_group[group][0].evict(blocks.keys[evict:evict + 1])
            load(plan)

        worker.load = hooked
        return {}

    def block_size(self):
        return self.scheduler.block_size

    def end(self):
        self.llm.llm_engine.engine_core.shutdown()
        return {}


def serve(config, commands, answers):
    def answer(what):
        answers.write(json.dumps(what) + "\n")

    try:
        engine = Engine(config)
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"ready": True})
    for line in commands:
        command = json.loads(line)
        try:
            answer(getattr(engine, command.pop("do"))(**command))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


def be_child(wanted, log, commands, answers):
    """Run an engine in this child process, or make a model and exit."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        if "make" in wanted:
            models.make(*wanted["make"])
        else:
            serve(wanted, os.fdopen(commands), os.fdopen(answers, "w", buffering=1))
    finally:
        os._exit(0)


def main():
    asks = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        wanted, fds, _, _ = socket.recv_fds(asks, 1 << 16, 3)
        if not wanted:
            return
        pid = os.fork()
        if pid == 0:
            asks.close()
            be_child(json.loads(wanted), *fds)
        for fd in fds:
            os.close(fd)
        asks.send(str(pid).encode())


if __name__ == "__main__":
    main()
