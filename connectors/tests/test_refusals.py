# SPDX-License-Identifier: Apache-2.0
"""KvfsConnector refuses unsupported settings by their names, in one line, before an engine
starts: vLLM's own configuration, without an engine and without a daemon."""
from __future__ import annotations

import os
import shutil
import tempfile
import unittest
from unittest import mock
from typing import Any

import torch

import configs
from kvfs import local
from models import make

models: dict[str, str] = {}
folder = ""


def setUpModule() -> None:
    global folder
    folder = tempfile.mkdtemp(prefix="kvfs-models.")
    for kind in ("qwen", "deepseek"):
        models[kind] = f"{folder}/{kind}"
        make(kind, models[kind])


def tearDownModule() -> None:
    shutil.rmtree(folder)


class Refusals(unittest.TestCase):
    def made(self, config: Any, *groups: tuple[list[str], Any]) -> None:
        """Check that both sides of the connector refuse @config."""
        self.refuse(configs.Core(config), *groups)

    def refuse(self, core: configs.Core, *groups: tuple[list[str], Any]) -> None:
        for side in core.connectors(configs.caches(*(groups or [(["layers.0"], configs.full())]))):
            side.shutdown()

    def refused(self, words: str, config: Any, *groups: tuple[list[str], Any]) -> None:
        with self.assertRaises(ValueError) as caught:
            self.made(config, *groups)
        said = str(caught.exception)
        self.assertIn(words, said)
        self.assertTrue(said.startswith("kvfs: "), said)
        self.assertNotIn("\n", said)

    def config(self, **options: Any) -> Any:
        return configs.engine(models["qwen"], "/nowhere", **options)

    def test_what_is_supported_is_not_refused(self) -> None:
        self.made(self.config())
        self.made(self.config(tensor_parallel_size=2, distributed_executor_backend="mp"))

    def test_another_connector_beside_it(self) -> None:
        one = {"kv_connector": "KvfsConnector", "kv_connector_module_path": "kvfs.vllm",
               "kv_role": "kv_both", "kv_connector_extra_config": {"path": "/nowhere"}}
        config = self.config()
        config.kv_transfer_config = type(config.kv_transfer_config)(
            kv_connector="MultiConnector", kv_role="kv_both",
            kv_connector_extra_config={"connectors": [one]})
        self.refused("is inside MultiConnector", config)

    def test_weights_that_kvfs_cannot_hash(self) -> None:
        config = self.config(load_format="tensorizer")
        self.refused("load_format is 'tensorizer'", config)
        config = self.config()
        config.model_config.model_weights = "s3://bucket/model"
        self.refused("the weights are at s3://bucket/model", config)
        config = self.config()
        config.model_config.model = "nobody/nothing"
        self.refused("cannot hash the weights of nobody/nothing", config)

    def test_workers_with_several_attention_backends(self) -> None:
        core = configs.Core(self.config())
        core.backends = ["FLASH", "FLEX"]
        with self.assertRaisesRegex(ValueError, "^kvfs: .* of layer layers.0 FLASH and, in worker 1, FLEX"):
            self.refuse(core)

    def test_a_version_without_the_hash_of_its_configuration(self) -> None:
        from vllm.config import CacheConfig

        with mock.patch.object(CacheConfig, "compute_hash", side_effect=TypeError("two\nlines")):
            self.refused("CacheConfig.compute_hash() failed", self.config())

    def test_adapters_and_hashes_behind_vllms_cpu_cache(self) -> None:
        from kvfs.vllm.tier import KvfsTier

        class Core(configs.Core):
            def tier(self) -> str:
                return KvfsTier._name(mock.Mock(), mock.Mock(), {})

        for options, words in (({"enable_lora": True}, "enable_lora is set: KvfsTier"),
                               ({"prefix_caching_hash_algo": "xxhash"}, "prefix_caching_hash_algo is xxhash")):
            with self.assertRaisesRegex(ValueError, f"^kvfs: {words}"):
                Core(self.config(**options)).tier()

    def test_speculative_decoding(self) -> None:
        from vllm.v1.kv_cache_interface import SlidingWindowSpec
        from kvfs.vllm.groups import volatile

        config = self.config(speculative_config={
            "method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3})
        self.made(config)
        for method in "mtp", "ngram_gpu", "suffix", "medusa", "dflash":
            config.speculative_config.method = method
            self.refused(f"speculative_config has the method '{method}'", config)
        window = [(["layers.0"], SlidingWindowSpec(block_size=configs.BLOCK, num_kv_heads=4, head_size=64,
                                                   dtype=torch.float32, sliding_window=256))]
        for method in "eagle", "eagle3", "draft_model":
            config.speculative_config.method = method
            self.made(config)
            self.assertEqual(volatile(config), method != "draft_model")
            self.refused("never tested with sliding windows", config, *window)
            config.speculative_config.parallel_drafting = True
            self.refused("never tested with parallel_drafting", config)
            config.speculative_config.parallel_drafting = False
        config = self.config(extra={"load": "sync"}, speculative_config={
            "method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3})
        config.speculative_config.method = "draft_model"
        self.refused("never tested with 'load' \"sync\"", config)

    def test_roles_without_a_daemon_to_share(self) -> None:
        for role in ("kv_producer", "kv_consumer"):
            self.made(self.config(role=role))
            with tempfile.TemporaryDirectory() as place, \
                    mock.patch.multiple(local, MACHINE=place, TEMPORARY=place, USERS=place), \
                    mock.patch.dict(os.environ, {"XDG_CACHE_HOME": place, "XDG_RUNTIME_DIR": place}):
                os.environ.pop("KVFS", None)
                self.refused("there is no daemon", self.config(role=role, extra={"path": "auto"}))

    def test_kinds_of_parallelism(self) -> None:
        self.refused("pipeline_parallel_size is 2", self.config(
            pipeline_parallel_size=2, distributed_executor_backend="mp"))
        self.refused("data_parallel_size is 2", self.config(data_parallel_size=2))
        self.refused("decode_context_parallel_size is 2", configs.engine(
            models["deepseek"], "/nowhere", decode_context_parallel_size=2, tensor_parallel_size=2,
            distributed_executor_backend="mp"))
        # vLLM's CPU model runner refuses this setting itself, so change a valid configuration
        # object.
        config = self.config()
        self.assertEqual(config.parallel_config.prefill_context_parallel_size, 1)
        config.parallel_config.prefill_context_parallel_size = 2
        self.refused("prefill_context_parallel_size is 2", config)

    def test_hashes_that_others_do_not_find_again(self) -> None:
        self.refused("prefix_caching_hash_algo is xxhash",
                     self.config(prefix_caching_hash_algo="xxhash"))

    def test_synchronous_loads_where_vllm_cannot_recompute(self) -> None:
        two = [(["layers.0"], configs.full()), (["layers.1"], configs.full())]
        self.refused("'load' is \"sync\"", self.config(extra={"load": "sync"}), *two)
        self.refused("'load' is \"sync\"", self.config(
            extra={"load": "sync"}, tensor_parallel_size=2, distributed_executor_backend="mp"))
        self.made(self.config(extra={"load": "sync"}))

    def test_blocks_of_several_sizes(self) -> None:
        self.refused("blocks of [64, 128] tokens", self.config(), (["layers.0"], configs.full()),
                     (["layers.1"], configs.full(block=64)))
        config, two = self.config(), [([f"layers.{i}"], configs.full()) for i in range(2)]
        config.cache_config.prefix_match_unit = 64
        self.refused("prefix_match_unit is 64", config, *two)

    def test_layers_without_blocks(self) -> None:
        from vllm.v1.kv_cache_interface import MambaSpec

        self.refused("layers of kind MambaSpec", self.config(), (["layers.0"], MambaSpec(
            block_size=128, shapes=((2, 3), (4, 5)), dtypes=(torch.float32, torch.float32))))

    def test_caches_on_devices_that_kvfs_cannot_copy_from(self) -> None:
        pages = {"layers.0": torch.zeros(64, configs.full().page_size_bytes, dtype=torch.uint8, device="meta")}
        with self.assertRaisesRegex(ValueError, "^kvfs: the cache is on the device meta: [^\n]*$"):
            configs.Core(self.config()).connectors(configs.caches((["layers.0"], configs.full())), pages)

    def test_types_of_numbers_that_kvfs_has_no_name_for(self) -> None:
        self.refused("a cache of float64 has no type", self.config(),
                     (["layers.0"], configs.full(dtype=torch.float64)))

    def test_settings_that_are_wrong(self) -> None:
        self.refused("has 'pth'", self.config(extra={"pth": 1}))

    def test_settings_that_are_wrong_are_named_in_one_line(self) -> None:
        from kvfs.vllm.settings import settings

        self.assertEqual(settings({}).path, "auto")
        for extra, words in (({"path": ""}, "'path' is ''"), ({"path": "kvfs"}, "'path' is 'kvfs'"),
                             ({"path": "/k", "pth": 1}, "has 'pth'"),
                             ({"path": "/k", "load": "fast"}, "'load' is 'fast'"),
                             ({"path": "/k", "ssd_wait": "2"}, "'ssd_wait' is '2'"),
                             ({"path": "/k", "ssd_wait": True}, "'ssd_wait' is True"),
                             ({"path": "/k", "shared": 1}, "'shared' is 1"),
                             ({"path": "/k", "remote": "yes"}, "'remote' is 'yes'"),
                             ({"path": "/k", "token_ids": "yes"}, "'token_ids' is 'yes'"),
                             ({"path": "/k", "mode": "0888"}, "'mode' is '0888'"),
                             ({"path": 7}, "'path' is 7")):
            with self.assertRaises(ValueError) as caught:
                settings(extra)
            self.assertIn(words, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))


if __name__ == "__main__":
    unittest.main(verbosity=2)
