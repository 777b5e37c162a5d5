# SPDX-License-Identifier: Apache-2.0
"""metrics - the connector's figures in vLLM's log and metrics."""
from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (KVConnectorPromMetrics,
                                                                  KVConnectorStats)
from vllm.v1.metrics.utils import create_metric_per_engine

# Counters of blocks, unless the name has another unit.
WHAT = {
    "dram_hits": "Blocks that requests took from kvfs and that were in DRAM",
    "ssd_hits": "Blocks that requests took from kvfs and that were read from SSD",
    "remote_hits": "Blocks that requests took from kvfs and that other nodes had",
    "saved": "Blocks that were saved and were not there already, on each worker",
    "dropped": "Blocks that were not saved at first because the daemon hung or was lost: on each "
               "worker, and once those that were not offered to the workers",
    "errors": "Blocks that failed to be loaded or saved for other reasons, on each worker",
    "pauses": "Pauses after a daemon that did not answer in time",
    "loads": "Loads of requests, on each worker",
    "load_seconds": "Seconds that these loads took in all",
}


class Stats(KVConnectorStats):
    """Sums since the last report; sums of 0 are absent."""

    def add(self, what: str, n: float) -> None:
        if n:
            self.data[what] = self.data.get(what, 0) + n

    def take(self) -> Stats | None:
        if not self.data:
            return None
        taken = Stats(self.data)
        self.reset()
        return taken

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def is_empty(self) -> bool:
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> Stats:
        for what, n in other.data.items():
            self.add(what, n)
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"kvfs {what}": round(n, 3) for what, n in self.data.items()}


class Metrics(KVConnectorPromMetrics):
    """The metrics vllm:kvfs_WHAT_total, with vLLM's labels."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {what: create_metric_per_engine(
            self._counter_cls(name=f"vllm:kvfs_{what}", documentation=f"{text}.", labelnames=labelnames),
            per_engine_labelvalues) for what, text in WHAT.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for what, n in transfer_stats_data.items():
            self._counters[what][engine_idx].inc(n)
