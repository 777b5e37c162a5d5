# SPDX-License-Identifier: Apache-2.0
"""messages - the messages between scheduler and workers in every step."""
from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorMetadata,
                                                               KVConnectorWorkerMetadata)

import kvfs

NULL_BLOCK = 0  # entry of vLLM's block tables that stands for no block


@dataclass
class Blocks:
    """The blocks of a request's chain from @first on, with their pages in each group."""

    request: str
    first: int
    keys: kvfs.Keys
    parent: kvfs.Keys | None  # key of the block before @first; None: @first is 0
    pages: list[list[int]]  # a list for each group; NULL_BLOCK: no page
    tokens: list[list[int]] | None = None  # a list for each block; None: the space keeps no tokens
    extras: bytes = b""  # JSON text of the other inputs of the blocks


@dataclass
class Plan(KVConnectorMetadata):
    """Scheduler to workers.  `fresh`: the tables of pages that have a new owner since the last
    step, and may be written to from now on."""

    loads: list[Blocks]
    saves: list[Blocks]
    fresh: list[tuple[list[int], ...]]
    failures_seen: int


@dataclass
class Report(KVConnectorWorkerMetadata):
    """Workers to scheduler.  `dropped`: requests with blocks that the scheduler counts as saved
    but that are missing: a load failed, or blocks were computed from such blocks, or the save
    was abandoned because the daemon hung or was lost.  `pause`: seconds without new saves."""

    loaded: set[str] = field(default_factory=set)
    failed: set[bytes] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    failures: int = 0
    pause: float = 0.0

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        assert isinstance(other, Report)
        return Report(self.loaded | other.loaded, self.failed | other.failed,
                      self.dropped | other.dropped, self.failures + other.failures,
                      max(self.pause, other.pause))
