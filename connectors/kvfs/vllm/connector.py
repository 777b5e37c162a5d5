# SPDX-License-Identifier: Apache-2.0
"""connector - vLLM's KVConnectorBase_V1, which forwards to scheduler.py or worker.py.

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
from vllm.config import CacheConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import (CachedRequestData, KVConnectorBlockState, NewRequestData,
                                       SchedulerOutput)
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from .groups import check_engine, groups
from .identity import caller, engine_core, identity, watch_adapters, watch_weights
from .messages import Plan, Report
from .metrics import Metrics, Stats
from .scheduler import Scheduler
from .settings import settings
from .worker import Worker


# Attributes of vLLM's objects that kvfs uses, beside the methods that KvfsConnector overrides.
USED = {
    KVConnectorBase_V1: "role _get_connector_metadata _kv_transfer_config _kv_cache_config",
    KVCacheBlocks: "get_block_ids", KVConnectorOutput: "kv_connector_worker_meta",
    SchedulerOutput: "num_scheduled_tokens scheduled_new_reqs scheduled_cached_reqs kv_connector_block_state "
                     "kv_cache_block_copies",
    NewRequestData: "block_ids", CachedRequestData: "new_block_ids",
    KVConnectorBlockState: "resolve_block_ids",
    Request: "request_id kv_transfer_params block_hashes num_tokens num_prompt_tokens num_computed_tokens "
             "all_token_ids lora_request cache_salt mm_features skip_reading_prefix_cache resumable",
    EngineCore: "collective_rpc vllm_config add_lora", CacheConfig: "prefix_match_unit prefix_caching_hash_algo",
}


def open_spaces(worker: Any, identity: str) -> None:
    """Open, in a worker, the spaces of the engine with @identity."""
    get_kv_transfer_group()._worker.open(identity)


class KvfsConnector(KVConnectorBase_V1, SupportsHMA):
    """A saved block is one of the engine's blocks, over the layers of a group."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings = settings(self._kv_transfer_config.kv_connector_extra_config)
        self._computing = False
        if (outer := caller(KVConnectorBase_V1, but=self)) is not None:
            raise ValueError(f"kvfs: KvfsConnector is inside {type(outer).__name__}: another connector "
                             "may receive into pages while KvfsConnector saves them; use it alone")
        check_engine(vllm_config, kv_cache_config, self._settings)
        groups(kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            # vLLM has made the workers' connectors before: pass the identity to them.
            core = engine_core()
            found = identity(core, self._settings.weights_cache, self._settings.salt)
            self._scheduler = Scheduler(vllm_config, kv_cache_config, self._settings, found)
            core.collective_rpc(open_spaces, args=(found,))
            watch_weights(core, self._scheduler.stop)
            watch_adapters(core, self._scheduler.adapter)
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

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource  # vLLM 0.31 has none, and does not ask

        disk, nodes = self._scheduler.sources(request, num_external_tokens)
        sources = {CacheHitSource.HOST: num_external_tokens - disk - nodes,
                   CacheHitSource.DISK: disk, CacheHitSource.P2P: nodes}
        return {source: n for source, n in sources.items() if n}

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return self._scheduler.plan(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, Report):
            self._scheduler.hear(report)

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]
                                    ) -> tuple[bool, dict[str, Any] | None]:
        return False, self._scheduler.finished(request)

    def reset_cache(self) -> bool | None:
        self._scheduler.reset()
        return True

    def take_events(self) -> list[Any]:
        return self._scheduler.take_events()

    # ---- figures ----

    def get_kv_connector_stats(self) -> Stats | None:
        side = self._scheduler if self.role == KVConnectorRole.SCHEDULER else self._worker
        side.stats.add("pauses", side.patience.new_pauses())
        return side.stats.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> Metrics:
        return Metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

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
        """Do nothing: loads end before the forward pass, or belong to no forward pass."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: a block is saved whole, after the forward pass."""

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
        """Return False: kvfs is a cache, and unsaved blocks are misses."""
        return False

    def shutdown(self) -> None:
        if self.role == KVConnectorRole.SCHEDULER:
            self._scheduler.close()
        else:
            self._worker.close()
