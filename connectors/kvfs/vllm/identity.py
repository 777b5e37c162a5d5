# SPDX-License-Identifier: Apache-2.0
"""identity - the name of a space: a hash over everything that changes a block's bytes.

Two engines that agree on it may read each other's blocks; one that differs in anything
here has another space, so that a mistake costs a miss and never wrong output.
"""
from __future__ import annotations

import hashlib
import json
import os
import platform
from typing import Any

from kvfs.weights import fingerprint

def model(model_config: Any) -> dict[str, Any]:
    """The weights, and how they are run."""
    hf = json.loads(model_config.hf_config.to_json_string(use_diff=False))
    for key in ("_name_or_path", "transformers_version", "torch_dtype", "dtype"):
        hf.pop(key, None)
    path = model_config.model
    return {
        "weights": fingerprint(path) if os.path.isdir(path) else
        [path, model_config.revision, getattr(model_config.hf_config, "_commit_hash", None)],
        "config": hf,
        "dtype": str(model_config.dtype),
        "quantization": str(model_config.quantization),
        "seed": model_config.seed if "dummy" in str(getattr(model_config, "load_format", "")) else 0,
    }


def engine(vllm_config: Any) -> dict[str, Any]:
    """The build and the machine, as far as they choose kernels and layouts."""
    import torch
    import vllm

    parts = {"vllm": vllm.__version__, "torch": torch.__version__, "machine": platform.machine()}
    attention = getattr(vllm_config, "attention_config", None)
    parts["backend"] = str(getattr(attention, "backend", None))
    if torch.cuda.is_available():
        parts["device"] = torch.cuda.get_device_name()
    return parts


def space_name(vllm_config: Any, kv_cache_config: Any, group: int, layout: dict[str, Any],
               shard: int, shards: int, salt: str) -> str:
    """vllm-MODEL-HASH.gGROUP.rSHARD: ls shows which model it is, the hash tells the rest."""
    from vllm.v1.core import kv_cache_utils

    cache, parallel = vllm_config.cache_config, vllm_config.parallel_config
    kv_group = kv_cache_config.kv_cache_groups[group]
    parts = {
        "model": model(vllm_config.model_config),
        "engine": engine(vllm_config),
        "cache": [str(cache.cache_dtype), str(getattr(cache, "calculate_kv_scales", "")),
                  str(kv_cache_config.kv_cache_layout)],
        "hash": [str(cache.prefix_caching_hash_algo), bytes(kv_cache_utils.NONE_HASH).hex()
                 if hasattr(kv_cache_utils, "NONE_HASH") else ""],
        "parallel": [parallel.tensor_parallel_size, bool(parallel.enable_expert_parallel), shards],
        "lora": bool(vllm_config.lora_config),
        "group": [type(kv_group.kv_cache_spec).__name__, list(kv_group.layer_names)],
        "layout": layout,
        "salt": salt,
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    name = os.path.basename(vllm_config.model_config.model.rstrip("/"))
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in name)[:48].lstrip(".") or "model"
    return f"vllm-{plain}-{hashlib.sha256(text.encode()).hexdigest()[:24]}.g{group}.r{shard}"
