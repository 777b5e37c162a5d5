# SPDX-License-Identifier: Apache-2.0
"""The parts of an engine's identity: vLLM's own configuration, without an engine and without a
daemon."""
from __future__ import annotations

import inspect
import shutil
import tempfile
import unittest
from unittest import mock
from typing import Any

import configs
import torch
from models import make

folder = ""
N_GRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}


def setUpModule() -> None:
    global folder
    folder = tempfile.mkdtemp(prefix="kvfs-models.")
    make("qwen", f"{folder}/qwen")
    shutil.copytree(f"{folder}/qwen", f"{folder}/copy")
    for seed in 1, 2:
        make("eagle", f"{folder}/eagle{seed}", seed)
        make("qwen", f"{folder}/draft{seed}", seed)


def tearDownModule() -> None:
    shutil.rmtree(folder)


class Identity(unittest.TestCase):
    def identity(self, model: str = "qwen", backend: str = "FLASH", change: Any = None,
                 **options: Any) -> str:
        from kvfs.vllm.identity import identity

        core = configs.Core(configs.engine(f"{folder}/{model}", "/nowhere", **options))
        core.backends = [backend]
        if change:
            change(core.vllm_config)
        return identity(core, f"{folder}/digests", "")

    def test_what_changes_no_block_is_no_part_of_it(self) -> None:
        plain = self.identity()
        for options in ({"model": "copy"}, {"max_logprobs": 7}, {"generation_config": "vllm"},
                        {"served_model_name": "x"}, {"tokenizer": f"{folder}/copy"}, {"seed": 3},
                        {"gpu_memory_utilization": 0.3}, {"max_num_seqs": 3},
                        {"max_num_batched_tokens": 5000}, {"distributed_timeout_seconds": 77},
                        {"override_generation_config": {"temperature": 0.5}},
                        {"num_gpu_blocks_override": 99}, {"trust_remote_code": True},
                        {"speculative_config": N_GRAM}):
            self.assertEqual(self.identity(**options), plain, options)

    def test_what_changes_blocks_is_part_of_it(self) -> None:
        def fitted(config: Any) -> None:
            config.model_config.original_max_model_len = -1

        def length(config: Any) -> None:
            config.model_config.max_model_len = 512

        def draft(method: str, model: str, n: int = 2, **options: Any) -> dict[str, Any]:
            return {"speculative_config": {"method": method, "model": f"{folder}/{model}",
                                           "num_speculative_tokens": n} | options}

        found = {self.identity(**options) for options in (
            {}, {"backend": "FLEX"}, {"hf_overrides": {"rms_norm_eps": 1e-3}}, {"block_size": 64},
            {"hf_overrides": {"rope_parameters": {"rope_type": "linear", "factor": 2.0,
                                                  "rope_theta": 10000.0}}},
            {"kv_cache_dtype": "fp8_e5m2"}, {"enable_lora": True}, {"load_format": "dummy"},
            {"load_format": "dummy", "seed": 1}, {"change": length}, {"change": fitted},
            {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
            draft("eagle", "eagle1"), draft("eagle", "eagle2"), draft("eagle", "eagle1", 3),
            draft("draft_model", "draft1"), draft("draft_model", "draft2"), draft("draft_model", "copy"),
            draft("draft_model", "draft1", moe_backend="triton"))}
        self.assertEqual(len(found), 18, "draft1 and copy are the same weights")

    def test_models_beside_the_one_that_is_hashed_are_reported(self) -> None:
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
        from kvfs.vllm.identity import resolved

        worker = mock.MagicMock()
        worker.vllm_config.model_config.model = "/model"
        for path, subfolder, found in (("/model", None, []), ("/model", "audio", ["/model/audio"]),
                                       ("/other", "x", ["/other/x"])):
            worker.get_model().secondary_weights = [DefaultModelLoader.Source(path, None, subfolder)]
            self.assertEqual(resolved(worker)[1], found)

    def test_the_order_of_a_cache_in_memory_is_part_of_it(self) -> None:
        from kvfs.vllm.identity import resolved

        heads_last, heads_first = torch.zeros(9, 2, 16, 4, 8), torch.zeros(9, 2, 4, 16, 8).transpose(2, 3)
        self.assertEqual(heads_last.shape, heads_first.shape)
        worker, found = mock.MagicMock(), []
        for cache in heads_last, heads_first, [], heads_last[:, :, :, :1]:
            layer = mock.MagicMock(kv_cache=cache)
            layer.get_attn_backend().full_cls_name.return_value = "FLASH"
            worker.vllm_config.compilation_config.static_forward_context = {"layer": layer}
            found.append(resolved(worker)[0]["layer"])
        self.assertEqual(found, ["FLASH 0 1 2 3 4", "FLASH 0 1 3 2 4", "FLASH ", "FLASH 0 1 2 4"])

    def test_after_the_weights_may_have_changed_nothing_is_shared(self) -> None:
        from kvfs.vllm.identity import watch_weights

        def function(worker: Any) -> None:
            pass

        for method, stops in (("reload_weights", 1), ("update_weights", 1), ("start_weight_update", 1),
                              ("apply_model", 1), ("of_an_extension", 1), (function, 1),
                              ("list_loras", 0), ("execute_model", 0)):
            core, stopped = configs.Core(configs.engine(f"{folder}/qwen", "/nowhere")), []
            watch_weights(core, lambda: stopped.append(list(core.called)))
            for _ in range(2):
                arguments = (method, None, (), {})  # vLLM checks arguments by the method's signature
                self.assertEqual(len(inspect.signature(core.collective_rpc).parameters), len(arguments))
                core.collective_rpc(*arguments)
            self.assertEqual(stopped, [[]] * stops, method)
            self.assertEqual(core.called, [method] * 2)

    def test_an_adapter_is_seen_before_vllm_loads_it(self) -> None:
        from kvfs.vllm.identity import watch_adapters

        core, seen = configs.Core(configs.engine(f"{folder}/qwen", "/nowhere")), []
        core.model_executor = mock.Mock()
        core.model_executor.add_lora.side_effect = lambda adapter: seen.append("loaded") or True
        wanted = inspect.signature(core.add_lora)
        watch_adapters(core, seen.append)
        self.assertEqual(inspect.signature(core.add_lora), wanted)  # vLLM converts arguments by it
        self.assertTrue(core.add_lora("adapter"))
        self.assertEqual(seen, ["adapter", "loaded"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
