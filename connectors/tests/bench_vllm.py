# SPDX-License-Identifier: Apache-2.0
"""bench_vllm.py - time to first token inside vLLM on the CPU, a model of 110 M parameters.

Each cache runs in an engine of its own.  Every round measures all cases in turn, so that noise hits
all of them, and compares each with a hit in vLLM's own prefix cache in the same process.  The
program waits for an idle machine, or fails.  Results go to standard output and to
bench-engines.json in the build.
"""
from __future__ import annotations

import concurrent.futures
import glob
import json
import mmap
import os
import shutil
import statistics
import tempfile
import time

from bench_machine import idle
from engines import Engine, Nursery, prompt, settled
from mount import BUILD, Between, Mount, Web

ROUNDS = 5
LENGTHS = (2049, 4001)
OPTIONS = {"max_num_batched_tokens": 4096, "max_model_len": 4200}
# Mount options as of a user; other tests use small segments and pages.
MOUNT = "dram=1G,ssd=4G,segment=16M,hugepages=auto"
PIECE = 4 << 20
STEPS = 8  # tokens after the first, while blocks are being saved
# Seconds to the first token, for a later step, and of CPU time; CPU microseconds and number of
# the connector's calls.
Result = tuple[float, float, float, float, int]
results: dict[str, dict[str, list[Result]]] = {}


def take(way: str, n: int, state: str, engine: Engine, seed: int, tokens: int = 1,
         more: int = 0) -> None:
    got = engine.do("generate", prompts=[prompt(seed + 1000 * n, n + more)], tokens=tokens)
    calls, spent = (sum(column) for column in zip((0, 0.0), *got["connector"].values()))
    results.setdefault(f"{way} {n}", {}).setdefault(state, []).append(
        (got["ttft"][0], got["rest"][0] / max(1, tokens - 1), got["cpu"], spent, calls))
    print(f"{way:8} {n} {state:30} {got['ttft'][0]:7.3f} s  CPU {got['cpu']:7.3f} s  connector "
          f"{spent:6.0f} us in {calls} calls  forwarded {got['forwarded']}", flush=True)


def plain(model: str) -> None:
    with Engine(model, **OPTIONS) as engine:
        for n in LENGTHS:
            for seed in range(ROUNDS):
                take("none", n, "recomputed", engine, seed)
                take("none", n, "own prefix cache", engine, seed)
                engine.do("reset")


def read_alone(store: str, n: int) -> float:
    """Return the seconds of reading @n bytes of the store by O_DIRECT, with no other load: the
    least that a hit on SSD adds to one in the engine's own cache."""
    paths = sorted(glob.glob(f"{store}/segments/*"))
    places = [(path, at) for path in paths for at in range(0, os.path.getsize(path), PIECE)]

    def read(some: list[tuple[str, int]]) -> None:
        with mmap.mmap(-1, PIECE) as buffer:
            buffer[:] = bytes(PIECE)
            for path, at in some:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
                os.preadv(fd, [buffer], at)
                os.close(fd)

    places = places[:-(-n // PIECE)]
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(read, [places[i::4] for i in range(4)]))
    return time.monotonic() - start


def kvfs(model: str) -> None:
    with Mount(MOUNT) as mount, Engine(model, mount.path, **OPTIONS) as engine:
        engine.do("time_connector")
        for n in LENGTHS:
            for seed in range(ROUNDS):
                engine.do("save", on=False)
                take("kvfs", n, "recomputed, not saved", engine, 100 + seed, 1 + STEPS)
                engine.do("save", on=True)
                engine.do("reset")
                take("kvfs", n, "recomputed and saved", engine, 100 + seed, 1 + STEPS)
                take("kvfs", n, "own prefix cache", engine, 100 + seed)
                settled(mount.path)
                engine.do("reset")
                take("kvfs", n, "DRAM", engine, 100 + seed)
                engine.do("reset")
                mount.stop()
                mount.start()
                time.sleep(1)  # time for the library to find the daemon
                take("kvfs", n, "SSD, the daemon restarted", engine, 100 + seed)
                engine.do("reset")
                block = os.path.getsize(mount.blocks()[0])
                time.sleep(1)
                results[f"kvfs {n}"].setdefault("its bytes read alone", []).append(
                    (read_alone(mount.store, (n - 1) // 128 * block), 0.0, 0.0, 0.0, 0))


def nodes(model: str) -> None:
    """Measure hits in blocks that another node copied to the remote tier, while this node's store
    is empty.  The remote files are in this machine's page cache."""
    with Between() as folder, Web() as web, Mount(MOUNT) as mount, \
            Engine(model, mount.path, extra={"remote": True}, **OPTIONS) as engine:
        places = (("another node's, dir:", folder), ("another node's, http:", web))
        blocks = 0

        def anew(*options: str) -> None:
            mount.stop()
            shutil.rmtree(mount.store)
            mount.start(",".join([MOUNT, *options]))
            time.sleep(1)  # time for the library to find the daemon

        for n in LENGTHS:
            for seed in range(ROUNDS):
                blocks += (n - 1) // 128
                for state, place in places:
                    anew(place.option)
                    take("nodes", n, "recomputed and handed over", engine, 700 + seed)
                    take("nodes", n, "own prefix cache", engine, 700 + seed)
                    place.has(blocks)
                    size = (n - 1) // 128 * os.path.getsize(mount.blocks()[0])
                    engine.do("reset")
                    anew(place.option)
                    take("nodes", n, f"{state}, {size / 1e6:.0f} MB", engine, 700 + seed)
                    engine.do("reset")


def tiers(model: str, way: str, tier: dict[str, str]) -> None:
    """Measure tiers behind vLLM's CPU buffer, which Python fills on a machine without GPU."""
    id = f"kvfs-bench-{os.getpid()}-{time.monotonic_ns()}"
    try:
        with Engine(model, kv_transfer_config={
                "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "engine_id": id,
                "kv_connector_extra_config": {
                    "spec_name": "CpuTieringSpec", "spec_module_path": "cpu_spec",
                    "cpu_bytes_to_use": 1 << 30, "secondary_tiers": [tier]}}, **OPTIONS) as engine:
            for n in LENGTHS:
                for seed in range(ROUNDS):
                    take(way, n, "recomputed and saved", engine, 300 + seed)
                    take(way, n, "own prefix cache", engine, 300 + seed)
                    engine.do("generate", prompts=[prompt(999, 100)])  # steps in which vLLM saves
                    time.sleep(2)
                    engine.do("reset", connector=True)
                    take(way, n, "from the tier", engine, 300 + seed)
                    engine.do("reset", connector=True)
    finally:
        for name in os.listdir("/dev/shm"):
            if id in name:
                os.unlink(f"/dev/shm/{name}")


def example(model: str) -> None:
    """Measure vLLM's own connector to a directory, with its files in the page cache."""
    files = tempfile.mkdtemp(prefix="kvfs-files.")
    try:
        with Engine(model, kv_transfer_config={
                "kv_connector": "ExampleConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {"shared_storage_path": files}}, **OPTIONS) as engine:
            for n in LENGTHS:
                for seed in range(ROUNDS):
                    take("Example", n, "recomputed and saved", engine, 500 + seed)
                    engine.do("reset")
                    # The connector finds a prompt only if it is longer than the saved one.
                    take("Example", n, "from its files", engine, 500 + seed, more=1)
                    take("Example", n, "own prefix cache", engine, 500 + seed)
                    engine.do("reset")
    finally:
        shutil.rmtree(files)


def report() -> None:
    lines = []
    for run, states in results.items():
        own = statistics.median(one[0] for one in states["own prefix cache"])
        for state, all in states.items():
            ttft, step, cpu, spent, calls = (statistics.median(column) for column in zip(*all))
            lines.append({"run": run, "state": state, "ttft_s": round(ttft, 4), "cpu_s": round(cpu, 3),
                          "of_own_prefix_cache": round(ttft / own, 3), "step_s": round(step, 5),
                          "connector_us": round(spent), "connector_calls": round(calls), "rounds": len(all)})
            print(f"{run:14} {state:30} {ttft:7.3f} s  {ttft / own:6.2f} x own cache  CPU {cpu:6.2f} s  "
                  f"connector {spent:5.0f} us in {calls:.0f} calls"
                  + (f"  then {1e3 * step:.1f} ms a step" if step else ""))
    with open(f"{BUILD}/bench-engines.json", "w") as file:
        json.dump(lines, file, indent=1)


def main() -> None:
    idle()
    folder = tempfile.mkdtemp(prefix="kvfs-models.")
    try:
        Nursery.model("big", folder)
        plain(folder)
        kvfs(folder)
        nodes(folder)
        example(folder)
        with Mount(MOUNT) as mount:
            tiers(folder, "KvfsTier", {"type": "KvfsTier", "module_path": "kvfs.vllm.tier",
                                       "path": mount.path})
        files = tempfile.mkdtemp(prefix="kvfs-files.")
        try:
            tiers(folder, "fs tier", {"type": "fs", "root_dir": files})
        finally:
            shutil.rmtree(files)
        report()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
