# SPDX-License-Identifier: Apache-2.0
"""configs - make vLLM's configuration and both sides of the connector without an engine."""
from __future__ import annotations

import os
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")

import torch
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

BLOCK = 128


def engine(model: str, path: str, role: str = "kv_both", extra: dict[str, Any] | None = None,
           **options: Any) -> Any:
    """A VllmConfig."""
    return EngineArgs(model=model, skip_tokenizer_init=True, dtype="float32", max_model_len=4096,
                      kv_transfer_config={
                          "kv_connector": "KvfsConnector", "kv_connector_module_path": "kvfs.vllm",
                          "kv_role": role, "kv_load_failure_policy": "recompute",
                          "kv_connector_extra_config": {
                              "path": path, "weights_cache": f"{os.path.dirname(model)}/digests",
                              **(extra or {})}},
                      **options).create_engine_config()


def full(heads: int = 4, size: int = 64, block: int = BLOCK,
         dtype: torch.dtype = torch.float32) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=size, dtype=dtype)


def caches(*groups: tuple[list[str], Any], pages: int = 64) -> KVCacheConfig:
    """Return a KVCacheConfig; each group is a pair of layer names and spec."""
    return KVCacheConfig(num_blocks=pages, kv_cache_tensors=[],
                         kv_cache_groups=[KVCacheGroupSpec(layers, spec) for layers, spec in groups])


class Core(EngineCore):
    """An EngineCore with two workers that have no model, and share one connector."""

    def __init__(self, config: Any) -> None:
        self.vllm_config = config
        self.backends = ["FLASH", "FLASH"]  # attention backend of each worker
        self.called: list[Any] = []
        self.model_executor = self

    def connectors(self, caches: KVCacheConfig, pages: dict[str, torch.Tensor] | None = None
                   ) -> tuple[Any, Any]:
        """Make the scheduler's and the worker's connector, in vLLM's order."""
        create = KVConnectorFactory.create_connector
        worker = create(self.vllm_config, KVConnectorRole.WORKER, caches)
        worker.register_kv_caches(pages or {
            name: torch.zeros(caches.num_blocks, group.kv_cache_spec.page_size_bytes, dtype=torch.uint8)
            for group in caches.kv_cache_groups for name in group.layer_names})
        kv_transfer_state._KV_CONNECTOR_AGENT = worker
        return create(self.vllm_config, KVConnectorRole.SCHEDULER, caches), worker

    def collective_rpc(self, method: Any, timeout: float | None = None, args: Any = (),
                       kwargs: Any = None) -> list[Any]:
        if getattr(method, "__name__", "") == "resolved":
            return [({"layers.0": backend}, []) for backend in self.backends]
        self.called.append(method)
        return [method(self, *args)] if callable(method) else [None]
