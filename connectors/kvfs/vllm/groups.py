# SPDX-License-Identifier: Apache-2.0
"""groups - the layer groups of a model as spaces of kvfs, and refused configurations."""
from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import kvfs

from .identity import space_name
from .settings import Settings

log = logging.getLogger("vllm.kvfs")

# torch's types, and their names in safetensors
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float8_e4m3fn": "F8_E4M3",
          "float8_e5m2": "F8_E5M2", "uint8": "U8", "int8": "I8"}
# Methods of speculative decoding with a draft model, whose layers are saved with those of the model.
DRAFTS = "eagle", "eagle3", "draft_model"


@dataclass
class Group:
    """One layer group.  `window`: number of blocks before a hit that the group needs; 0: all."""

    index: int
    layers: list[str]
    pages: list[int]  # bytes of a block in each layer
    layout: dict[str, Any]
    window: int


def check_engine(vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
    """Raise ValueError, in one line, for configurations that would give wrong results or were
    never tested."""
    config, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
    method = getattr(vllm_config.speculative_config, "method", None)
    if method not in (None, "ngram", *DRAFTS):
        raise ValueError(f"kvfs: speculative_config has the method {method!r}: its draft layers were never "
                         f"tested; use one of {('ngram', *DRAFTS)}, or run without it")
    if method in DRAFTS:
        for what, found in (("parallel_drafting", vllm_config.speculative_config.parallel_drafting),
                            ("'load' \"sync\"", settings.load == "sync"),
                            ("sliding windows", any(group.window for group in groups(kv_cache_config)))):
            if found:
                raise ValueError(f"kvfs: speculative_config has the method {method!r}, which was never tested "
                                 f"with {what}; use \"ngram\", or run without it")
    for key in ("pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size",
                "prefill_context_parallel_size"):
        if getattr(parallel, key, 1) != 1:
            raise ValueError(f"kvfs: {key} is {getattr(parallel, key)}: KvfsConnector supports 1 "
                             "(tensor parallelism is fine)")
    several = len(kv_cache_config.kv_cache_groups) > 1
    if settings.load == "sync" and (several or parallel.tensor_parallel_size > 1
                                    or vllm_config.use_v2_model_runner):
        raise ValueError("kvfs: 'load' is \"sync\": vLLM cannot recompute a block that fails to load "
                         "synchronously with several layer groups, tensor parallelism or its V2 "
                         "model runner; use \"async\"")
    unit = vllm_config.cache_config.prefix_match_unit
    size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
    if several and unit not in (None, size):
        raise ValueError(f"kvfs: prefix_match_unit is {unit}, and blocks have {size} tokens: KvfsConnector "
                         "supports one size")
    check_hashes(vllm_config)
    if config.kv_load_failure_policy != "recompute":
        log.warning("kvfs: kv_load_failure_policy is %r: a block that is lost between look-up and "
                    "load ends its request with an error; with \"recompute\" it is computed again",
                    config.kv_load_failure_policy)


def volatile(vllm_config: Any) -> int:
    """Return how many blocks at the end of a match are not used: 1 for EAGLE, whose layers at the last
    position of a block depend on the next token, so that requests which differ there share the key."""
    config = vllm_config.speculative_config
    return int(getattr(config, "method", None) in ("eagle", "eagle3")
               and not getattr(config, "disable_eagle_block_drop", False))


def check_hashes(vllm_config: Any) -> None:
    """Raise ValueError, in one line, for hashes of which anybody can make two equal ones."""
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    if "xxhash" in algorithm:
        raise ValueError(f"kvfs: prefix_caching_hash_algo is {algorithm}: anybody can make two texts "
                         "with the same hash; use sha256")


def groups(kv_cache_config: Any, token_ids: bool = False) -> list[Group]:
    """Return the layer groups.  ValueError: a kind of layer without blocks, or blocks of
    several sizes."""
    found = []
    sizes = {group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups}
    hashed = getattr(kv_cache_config, "hash_block_size", None)  # not in vLLM 0.31
    if len(sizes) != 1 or hashed not in (None, *sizes):
        raise ValueError(f"kvfs: layer groups with blocks of {sorted(sizes)} tokens, hashed by "
                         f"{hashed}: KvfsConnector supports one size")
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = group.kv_cache_spec
        per_layer = getattr(spec, "kv_cache_specs", None) or {name: spec for name in group.layer_names}
        kinds = {type(one).__name__ for one in per_layer.values()}
        if unknown := kinds - {"FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec",
                               "SlidingWindowMLASpec"}:
            raise ValueError(f"kvfs: layers of kind {', '.join(sorted(unknown))}: KvfsConnector "
                             "supports full, sliding-window and latent attention")
        windows: set[int] = {one.sliding_window for one in per_layer.values()
                   if type(one).__name__.startswith("SlidingWindow")}
        window = max((-(-(w - 1) // spec.block_size) for w in windows), default=0)
        pages = [per_layer[name].page_size_bytes for name in group.layer_names]
        found.append(Group(index, list(group.layer_names), pages,
                           {**_layout(group.layer_names, per_layer, pages, spec.block_size, window),
                            **({"token_ids": True} if token_ids else {})},
                           max(window, 1) if windows else 0))
    return found


def _layout(layers: list[str], specs: dict[str, Any], pages: list[int], tokens: int,
            window: int) -> dict[str, Any]:
    """Return one tensor with a row for each layer if all layers are alike, else a tensor for
    each layer."""
    dtypes = [str(specs[name].dtype).removeprefix("torch.") for name in layers]
    if unknown := set(dtypes) - DTYPES.keys():
        raise ValueError(f"kvfs: a cache of {', '.join(sorted(unknown))} has no type in kvfs")
    sizes = [specs[name].dtype.itemsize for name in layers]
    if len(set(pages)) == len(set(dtypes)) == 1:
        tensors = [{"name": "kv", "dtype": DTYPES[dtypes[0]],
                    "shape": [len(layers), pages[0] // sizes[0]]}]
    else:
        tensors = [{"name": name, "dtype": DTYPES[dtype], "shape": [page // size]}
                   for name, dtype, page, size in zip(layers, dtypes, pages, sizes)]
    return {"tensors": tensors, "tokens": tokens, "layers": 0 if len(tensors) == 1 else "tensors",
            "reuse": f"window:{window}" if window else "prefix"}


class Spaces:
    """A session with the spaces that one process needs: the scheduler opens those of every
    rank, a worker its own."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings,
                 identity: str, rank: int | None) -> None:
        self.groups = groups(kv_cache_config, settings.token_ids)
        self._identity = identity
        self.block_tokens = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        replicas = getattr(kv_cache_config, "kv_tp_replicas", 1) or 1
        size = vllm_config.parallel_config.tensor_parallel_size
        shards = max(1, size // replicas)
        mine = range(shards) if rank is None else [rank % size // replicas]
        # Engines with one role share a daemon that neither of them may own.
        self.session = kvfs.open(settings.path, log,
                                 start=vllm_config.kv_transfer_config.kv_role == "kv_both")
        self._was_connected: bool | None = None
        # For each layer group a list of its spaces, one for each rank.
        self.by_group = [[self._open(vllm_config, kv_cache_config, settings, group, shard, shards)
                          for shard in mine] for group in self.groups]

    def _open(self, vllm_config: Any, kv_cache_config: Any, settings: Settings, group: Group,
              shard: int, shards: int) -> kvfs.Space:
        name = space_name(vllm_config, kv_cache_config, self._identity, group.index, group.layout,
                          shard, shards)
        return settings.space(self.session, name, group.layout)

    @property
    def connected(self) -> bool:
        """Return whether the daemon is connected; log when that changes."""
        now = self.session.connected
        if now != self._was_connected:
            if not now:
                log.warning("kvfs: no daemon answers at %s, or none that admits this user: nothing is loaded or saved until one does "
                            "(it is found by itself)", self.session.path)
            elif self._was_connected is not None:
                log.warning("kvfs: the daemon at %s answers again", self.session.path)
            self._was_connected = now
        return now
