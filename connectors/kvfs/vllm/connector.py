# SPDX-License-Identifier: Apache-2.0
"""connector - vLLM's KVConnectorBase_V1, handed on to scheduler.py or worker.py.

    --kv-transfer-config '{"kv_connector": "KvfsConnector", "kv_role": "kv_both",
      "kv_connector_module_path": "kvfs.vllm", "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"path": "/kvfs"}}'
"""
from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1,
                                                               KVConnectorMetadata,
                                                               KVConnectorRole,
                                                               KVConnectorTransferResults,
                                                               SupportsHMA)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .messages import Plan, Report
from .scheduler import Scheduler
from .settings import settings
from .worker import Worker


class KvfsConnector(KVConnectorBase_V1, SupportsHMA):
    """A saved block is one of the engine's blocks, over the layers of a group."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings = settings(self._kv_transfer_config.kv_connector_extra_config)
        self._computing = False
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = Scheduler(vllm_config, kv_cache_config, self._settings)
        else:
            self._worker = Worker(vllm_config, kv_cache_config, self._settings)

    def _plan(self) -> Plan:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        return plan

    # ---- in the scheduler ----

    def on_new_request(self, request: Any) -> None:
        self._scheduler.new(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int
                                   ) -> tuple[int | None, bool]:
        tokens = self._scheduler.match(request, num_computed_tokens)
        return tokens, bool(tokens) and self._settings.load == "async"

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int
                                       ) -> dict[CacheHitSource, int]:
        if num_external_tokens == 0:
            return {}
        source = CacheHitSource.DISK if self._scheduler.waited(request) else CacheHitSource.HOST
        return {source: num_external_tokens}

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return self._scheduler.plan(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, Report):
            self._scheduler.hear(report)

    def request_finished(self, request: Any, block_ids: list[int]
                         ) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]
                                    ) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request)
        return False, None

    def reset_cache(self) -> bool | None:
        self._scheduler.reset()
        return True

    # ---- in a worker ----

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._worker.register(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, Plan)
        self._worker.settle(kv_connector_metadata.fresh)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._computing = getattr(forward_context, "attn_metadata", None) is not None
        self._worker.load(self._plan())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are over before the forward pass, or belong to none."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any,
                      **kwargs: Any) -> None:
        """A block is saved whole, after the forward pass."""

    def wait_for_save(self) -> None:
        self._worker.save(self._plan())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if not self._computing:
            self._worker.rest()
        done, failed = self._worker.loaded()
        if not done or self._settings.load == "sync":
            return KVConnectorTransferResults()
        several = len(self._kv_cache_config.kv_cache_groups) > 1
        return KVConnectorTransferResults(finished_recving=done,
                                          failed_recving=failed if several else set())

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.bad_pages()

    def build_connector_worker_meta(self) -> Report | None:
        return self._worker.report()

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: what was not saved is a miss."""
        return False

    def shutdown(self) -> None:
        if self.role == KVConnectorRole.SCHEDULER:
            self._scheduler.close()
        else:
            self._worker.close()
