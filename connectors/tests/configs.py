# SPDX-License-Identifier: Apache-2.0
"""configs - vLLM's own configuration for the connector's two sides, without an engine."""
from __future__ import annotations

import os
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

BLOCK = 128


def engine(model: str, path: str, role: str = "kv_both", extra: dict[str, Any] | None = None,
           **options: Any) -> Any:
    """A VllmConfig."""
    return EngineArgs(model=model, skip_tokenizer_init=True, dtype="float32", max_model_len=4096,
                      kv_transfer_config={
                          "kv_connector": "KvfsConnector", "kv_connector_module_path": "kvfs.vllm",
                          "kv_role": role, "kv_load_failure_policy": "recompute",
                          "kv_connector_extra_config": {"path": path, **(extra or {})}},
                      **options).create_engine_config()


def full(heads: int = 4, size: int = 64, block: int = BLOCK,
         dtype: torch.dtype = torch.float32) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=size, dtype=dtype)


def caches(*groups: tuple[list[str], Any], pages: int = 64) -> KVCacheConfig:
    """A KVCacheConfig of (layers, spec) a group."""
    return KVCacheConfig(num_blocks=pages, kv_cache_tensors=[],
                         kv_cache_groups=[KVCacheGroupSpec(layers, spec) for layers, spec in groups])
