# SPDX-License-Identifier: Apache-2.0
"""What KvfsConnector does not support is refused by its name, in one line, before an
engine starts: vLLM's own configuration, without an engine and without a daemon."""
from __future__ import annotations

import shutil
import tempfile
import unittest
from typing import Any

import torch

import configs
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
        """Both sides of the connector."""
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        from kvfs.vllm import KvfsConnector

        caches = configs.caches(*(groups or [(["layers.0"], configs.full())]))
        for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
            KvfsConnector(config, role, caches).shutdown()

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

    def test_speculative_decoding(self) -> None:
        self.refused("speculative_config is set", self.config(speculative_config={
            "method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}))

    def test_prefill_and_decode_in_two_engines(self) -> None:
        for role in ("kv_producer", "kv_consumer"):
            self.refused(f"kv_role is '{role}'", self.config(role=role))

    def test_kinds_of_parallelism(self) -> None:
        self.refused("pipeline_parallel_size is 2", self.config(
            pipeline_parallel_size=2, distributed_executor_backend="mp"))
        self.refused("data_parallel_size is 2", self.config(data_parallel_size=2))
        self.refused("decode_context_parallel_size is 2", configs.engine(
            models["deepseek"], "/nowhere", decode_context_parallel_size=2, tensor_parallel_size=2,
            distributed_executor_backend="mp"))
        # vLLM itself refuses this one with the model runner that a CPU has: the object of
        # another configuration is changed.
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

    def test_layers_without_blocks(self) -> None:
        from vllm.v1.kv_cache_interface import MambaSpec

        self.refused("layers of kind MambaSpec", self.config(), (["layers.0"], MambaSpec(
            block_size=128, shapes=((2, 3), (4, 5)), dtypes=(torch.float32, torch.float32))))

    def test_types_of_numbers_that_kvfs_has_no_name_for(self) -> None:
        self.refused("a cache of float64 has no name", self.config(),
                     (["layers.0"], configs.full(dtype=torch.float64)))

    def test_settings_that_are_wrong(self) -> None:
        self.refused("has 'pth'", self.config(extra={"pth": 1}))

    def test_settings_that_are_wrong_are_named_in_one_line(self) -> None:
        from kvfs.vllm.settings import settings

        for extra, words in (({}, "lacks 'path'"), ({"path": "kvfs"}, "'path' is 'kvfs'"),
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
