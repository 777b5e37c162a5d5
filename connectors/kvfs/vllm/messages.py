# SPDX-License-Identifier: Apache-2.0
"""messages - what scheduler and workers tell each other in every step."""
from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorMetadata,
                                                               KVConnectorWorkerMetadata)

NULL_BLOCK = 0  # of vLLM's tables: no block is here


@dataclass
class Blocks:
    """Blocks @first and on of a request's chain: the pages they have in each group."""

    request: str
    first: int
    keys: list[bytes]
    parent: bytes | None
    pages: list[list[int]]  # by group; NULL_BLOCK: none


@dataclass
class Plan(KVConnectorMetadata):
    """Scheduler to workers."""

    loads: list[Blocks] = field(default_factory=list)
    saves: list[Blocks] = field(default_factory=list)
    failures_seen: int = 0


@dataclass
class Report(KVConnectorWorkerMetadata):
    """Workers to scheduler.  `dropped`: what was to be saved for them was not, since it
    was computed from blocks that had failed to load."""

    loaded: set[str] = field(default_factory=set)
    failed: set[bytes] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    failures: int = 0

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        assert isinstance(other, Report)
        return Report(self.loaded | other.loaded, self.failed | other.failed,
                      self.dropped | other.dropped, self.failures + other.failures)
