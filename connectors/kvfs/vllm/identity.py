# SPDX-License-Identifier: Apache-2.0
"""identity - a hash over everything that changes a block's bytes, in the names of spaces.

Engines with equal identities read each other's blocks.  An engine that differs in anything
here has another space, so that a mistake costs a miss and never wrong output.

The scheduler computes the identity once, in vLLM's EngineCore: the workers report the attention
backends that they resolved, and receive the identity.  KvfsTier does the same.  Rounding
alone (compilation, batch sizes) is not part of it: vLLM's own prefix cache has it too.
"""
from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import json
import logging
import os
import platform
from collections.abc import Callable
from typing import Any

from kvfs.weights import fingerprint

log = logging.getLogger("vllm.kvfs")

# Fields that vLLM's compute_hash() covers but that change no block, by the reason.
BLANK = {
    "ModelConfig": {
        "a path or a name; the weights are hashed instead": "model revision",
        "the code in the model's folder is hashed": "code_revision trust_remote_code",
        "contains the path; hashed below without it": "hf_config hf_text_config",
        "a permission; embeddings are part of a block's key": "allow_deprecated_quantization enable_prompt_embeds",
        "sampling": "max_logprobs generation_config override_generation_config",
        "where memory is allocated":
            "enable_sleep_mode enable_cumem_allocator enable_nccl_comm_suspend sleep_mode_backend "
            "sleep_mode_offload_cudagraph",
        "weights after sleep; any reload stops the connector": "sleep_preserve_parameter_names",
        "threads of the tokenizer": "renderer_num_workers",
    },
    "CacheConfig": {"capacity and place of blocks": "kv_offloading_size kv_offloading_backend"},
    "ParallelConfig": {
        "when idle replicas stop": "dp_sync_interval",
        "sampling": "enable_batch_sharded_sampling",
        "which bytes are read from disk": "enable_ep_weight_filter",
        "transport of scheduling decisions": "disable_nccl_for_dp_synchronization",
        "time limits": "distributed_timeout_seconds cpu_distributed_timeout_seconds",
        "reaction to a failure": "enable_fault_tolerance fault_tolerance_config",
    },
    "LoRAConfig": {"a capacity": "max_loras"},
    "SpeculativeConfig": {"hashed like the model": "draft_model_config"},
}
# Fields that compute_hash() leaves out but that may change a block.
EXTRA = {
    "ModelConfig": ("hf_overrides",),
    "CacheConfig": ("kv_sharing_fast_prefill", "swa_bounded_replay", "calculate_kv_scales",
                    "prefix_caching_hash_algo"),
    "ParallelConfig": ("disable_custom_all_reduce", "worker_cls", "worker_extension_cls"),
    "SpeculativeConfig": ("method", "num_speculative_tokens", "quantization", "draft_tensor_parallel_size",
                          "kv_cache_dtype", "moe_backend", "use_heterogeneous_vocab"),
}
# Version of the order of a block's bytes: 2 is that of the engine's memory, 1 was that of the
# dimensions as the engine counts them.
ORDER = 2
# Loaders that read the weights from the model's folder alone.
LOADERS = {"DefaultModelLoader", "RunaiModelStreamerLoader", "ShardedStateLoader"}
# Methods of vLLM's workers that change weights, or run a function that might.
CHANGING = {"reload_weights", "start_weight_update", "start_draft_weight_update", "update_weights",
            "finish_weight_update", "reset_weights", "load_model", "apply_model",
            "elastic_ep_execute"}


def caller(cls: type, but: Any = None) -> Any:
    """Return the object of type @cls, other than @but, one of whose methods is on the stack,
    else None.  vLLM gives a connector no reference to the objects that create it."""
    frame = inspect.currentframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, cls) and found is not but:
            return found
        frame = frame.f_back
    return None


def engine_core() -> Any:
    """Return the EngineCore that is being made."""
    from vllm.v1.engine.core import EngineCore

    if (core := caller(EngineCore)) is None:
        raise ValueError("kvfs: vLLM's EngineCore is not what creates the connector: its workers' "
                         "attention backends and changes of their weights cannot be seen")
    return core


def _hash(config: Any) -> list[Any] | None:
    """Return vLLM's hash of @config without the fields in BLANK, and the fields in EXTRA."""
    if config is None:
        return None
    kind = type(config).__name__
    blank = copy.copy(config)
    for field in " ".join(BLANK.get(kind, {}).values()).split():
        if hasattr(config, field):
            object.__setattr__(blank, field, None)
    try:
        whole = blank.compute_hash()
    except Exception as error:
        raise ValueError(f"kvfs: {kind}.compute_hash() failed, which kvfs needs to tell engines "
                         f"apart: {type(error).__name__}: {error}".split("\n")[0]) from error
    return [whole, *([field, _plain(getattr(config, field, None))] for field in EXTRA.get(kind, ()))]


def _plain(value: Any) -> Any:
    """Return @value as JSON can hold it; a function becomes its name."""
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}"
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _model(config: Any, load: Any, cache: str) -> dict[str, Any]:
    """Return the part of the identity that describes a target or draft model."""
    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(one) for key, one in value.items()
                    if key not in ("_name_or_path", "transformers_version")}
        return value

    try:
        hf = [clean(json.loads(one.to_json_string(use_diff=False)))
              for one in (config.hf_config, config.hf_text_config)]
    except (TypeError, ValueError) as error:
        raise ValueError(f"kvfs: the model's config has no form in JSON: {error}".split("\n")[0]) from error
    return {"config": _hash(config), "weights": _weights(config, load, cache), "hf": hf,
            # -1: vLLM chose the length to fit the memory, after it made rotary embeddings.
            "fitted": getattr(config, "original_max_model_len", None) == -1}


def _weights(config: Any, load: Any, cache: str) -> Any:
    """Return a hash over every byte of the weights.  ValueError: they are not local."""
    from vllm.model_executor.model_loader import get_model_loader

    loader = type(get_model_loader(load))
    if loader.__module__.startswith("vllm.") and loader.__name__ == "DummyModelLoader":
        return ["dummy", config.seed]
    if not loader.__module__.startswith("vllm.") or loader.__name__ not in LOADERS:
        raise ValueError(f"kvfs: load_format is {load.load_format!r}: kvfs cannot see which weights "
                         f"{loader.__name__} loads, and could mix up models; use \"safetensors\"")
    if config.model_weights:
        raise ValueError(f"kvfs: the weights are at {config.model_weights}: kvfs hashes weights in a "
                         "local folder only, and could mix up models; download them first")
    path = config.model
    try:
        if not os.path.exists(path):
            from huggingface_hub import snapshot_download

            path = snapshot_download(path, revision=config.revision, cache_dir=load.download_dir,
                                     local_files_only=True)
        return [load.load_format, _plain(load.model_loader_extra_config),
                fingerprint(path, log, cache)]
    except Exception as error:
        raise ValueError(f"kvfs: cannot hash the weights of {path}: {error}".split("\n")[0]) from error


def _order(cache: Any) -> str:
    """Return the dimensions of a layer's cache in the order of memory, outermost first."""
    import torch

    if not isinstance(cache, torch.Tensor):
        return ""
    dims = [i for i, n in enumerate(cache.shape) if n != 1]  # others have any stride
    return " ".join(map(str, sorted(dims, key=lambda i: -cache.stride(i))))


def resolved(worker: Any) -> tuple[dict[str, str], list[str]]:
    """Return, in a worker, the attention backend of each layer with the order of its cache's
    dimensions in memory, and models beside the main one from which weights were loaded."""
    layers = worker.vllm_config.compilation_config.static_forward_context
    model = worker.get_model()
    return ({name: f"{layer.get_attn_backend().full_cls_name()} {_order(getattr(layer, 'kv_cache', None))}"
             for name, layer in layers.items() if hasattr(layer, "get_attn_backend")},
            sorted({os.path.join(source.model_or_path, source.subfolder or "") for source in
                    getattr(model, "secondary_weights", ()) if hasattr(source, "model_or_path")}
                   - {os.path.join(worker.vllm_config.model_config.model, "")}))


def identity(core: Any, cache: str, salt: str) -> str:
    """Return the identity of the engine @core.  ValueError, in one line: its blocks cannot be
    distinguished from other engines' blocks."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    config = core.vllm_config
    first, *others = core.collective_rpc(resolved)
    for rank, other in enumerate(others, 1):
        if other[0] != first[0]:
            layer = next(name for name in first[0].keys() | other[0].keys()
                         if first[0].get(name) != other[0].get(name))
            raise ValueError(f"kvfs: the workers chose several attention backends: of layer {layer} "
                             f"{first[0].get(layer)} and, in worker {rank}, {other[0].get(layer)}; "
                             "set --attention-backend")
    if first[1]:
        raise ValueError(f"kvfs: the model loads weights from {', '.join(first[1])}, too: kvfs "
                         "hashes those of one folder only, and could mix up models")
    load, speculative = config.load_config, config.speculative_config
    if speculative is not None and speculative.method == "ngram":
        speculative = None  # proposes tokens without a draft model, so blocks are those of other engines
    parts = {
        "model": _model(config.model_config, load, cache),
        "cache": _hash(config.cache_config), "parallel": _hash(config.parallel_config),
        "attention": _hash(config.attention_config), "kernels": _hash(config.kernel_config),
        "lora": _hash(config.lora_config), "speculative": _hash(speculative),
        "draft": [_model(speculative.draft_model_config, one, cache)
                  for one in (load, getattr(speculative, "draft_load_config", None) or load)]
        if getattr(speculative, "draft_model_config", None) else None,
        "additional": _plain(config.additional_config), "backends": first[0],
        "engine": [vllm.__version__, torch.__version__, platform.machine(),
                   current_platform.get_device_name()],
        "salt": salt,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def watch_weights(core: Any, stop: Callable[[], None]) -> None:
    """Call @stop once, before anything runs in the workers that may change their weights: the
    methods CHANGING, and methods and functions that are not vLLM's own."""
    from vllm.utils.import_utils import resolve_obj_by_qualname

    worker, whole, stopped = core.vllm_config.parallel_config.worker_cls, core.collective_rpc, False

    @functools.wraps(whole)  # vLLM inspects the method's signature
    def collective_rpc(method: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal stopped
        known = getattr(resolve_obj_by_qualname(worker), method, None) if isinstance(method, str) else None
        if not stopped and (method in CHANGING
                            or not str(getattr(known, "__module__", "")).startswith("vllm.")):
            stopped = True
            log.warning("kvfs: %s may change the model's weights: nothing is loaded or saved until the "
                        "engine restarts", method if isinstance(method, str) else
                        f"the function {_plain(method)}")
            stop()
        return whole(method, *args, **kwargs)

    core.collective_rpc = collective_rpc


def watch_adapters(core: Any, see: Callable[[Any], object]) -> None:
    """Call @see with each adapter just before vLLM loads it without a request."""
    whole = core.add_lora

    @functools.wraps(whole)
    def add_lora(adapter: Any) -> Any:
        see(adapter)
        return whole(adapter)

    core.add_lora = add_lora


def space_name(vllm_config: Any, kv_cache_config: Any, identity: str, group: int,
               layout: dict[str, Any], shard: int, shards: int) -> str:
    """Return vllm-TYPE-HASH.gGROUP.rSHARD: people read the model's type, the hash identifies the engine."""
    kv_group = kv_cache_config.kv_cache_groups[group]
    text = json.dumps([ORDER, identity, type(kv_group.kv_cache_spec).__name__, list(kv_group.layer_names),
                       layout, shards], sort_keys=True, default=str)
    name = str(getattr(vllm_config.model_config.hf_config, "model_type", ""))
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in name)[:48].lstrip(".") or "model"
    return f"vllm-{plain}-{hashlib.sha256(text.encode()).hexdigest()[:24]}.g{group}.r{shard}"
