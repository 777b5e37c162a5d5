# SPDX-License-Identifier: Apache-2.0
"""KvfsHiCache behind SGLang's own factory and host pools, on a real mount."""
from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
import unittest

import torch

torch.cpu._is_amx_tile_supported = lambda: False
try:
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo, MLABufferInfo
except ImportError:  # SGLang 0.5.22, whose host pools take the device's pools
    MHABufferInfo = None
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.hicache_storage import (HiCacheStorageConfig, HiCacheStorageExtraInfo,
                                                  PoolHitPolicy, PoolName, PoolTransfer)
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

from mount import Between, Mount, Web

PAGE, PAGES, LAYERS = 16, 24, 3
SHAPE = dict(device_capacity_tokens=PAGE * PAGES, start_layer=0, end_layer=LAYERS)


def mha(layout: str):
    if MHABufferInfo is None:
        pool = MHATokenToKVPool(PAGE * PAGES, PAGE, torch.bfloat16, 4, 32, LAYERS, "cpu", False)
        return MHATokenToKVPoolHost(pool, 2.0, 0, PAGE, layout, pin_memory=False)
    k = tuple(torch.zeros(PAGE * PAGES, 4, 32, dtype=torch.bfloat16) for _ in range(LAYERS))
    table = torch.tensor([t.data_ptr() for t in k], dtype=torch.uint64)
    info = MHABufferInfo(buffers=KVBuffers(k=k, v=k, k_data_ptrs=table, v_data_ptrs=table,
                                           layout=KVBufferLayout.NHD), page_size=PAGE, head_num=4,
                         head_dim=32, v_head_dim=32, dtype=torch.bfloat16, device=torch.device("cpu"))
    return MHATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, pin_memory=False, **SHAPE)


def mla(layout: str):
    if MHABufferInfo is None:
        pool = MLATokenToKVPool(PAGE * PAGES, PAGE, torch.bfloat16, 64, 16, LAYERS, "cpu", False)
        return MLATokenToKVPoolHost(pool, 2.0, 0, PAGE, layout, pin_memory=False)
    buffers = tuple(torch.zeros(PAGE * PAGES, 1, 80, dtype=torch.bfloat16) for _ in range(LAYERS))
    info = MLABufferInfo(buffers=buffers, data_ptrs=torch.tensor([t.data_ptr() for t in buffers],
                                                                 dtype=torch.uint64),
                         layer_indices=tuple(range(LAYERS)), device_layer_num=LAYERS, page_size=PAGE,
                         kv_lora_rank=64, qk_rope_head_dim=16, kv_cache_dim=80, dtype=torch.bfloat16,
                         device=torch.device("cpu"))
    return MLATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, pin_memory=False,
                                target_layer_num=LAYERS, **SHAPE)


def keys(n: int, of: str = "") -> list[str]:
    return [hashlib.sha256(f"{of}{i}".encode()).hexdigest() for i in range(n)]


def indices(pages) -> torch.Tensor:
    return torch.cat([torch.arange(p * PAGE, (p + 1) * PAGE) for p in pages])


def whole(host) -> torch.Tensor:
    return host.kv_buffer.reshape(-1).view(torch.uint8)


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.mount = Mount()
        self.addCleanup(self.mount.remove)

    def backend(self, host, model: str = "model", rank: int = 0, **extra):
        config = HiCacheStorageConfig(
            tp_rank=rank, tp_size=2, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
            is_mla_model=isinstance(host, MLATokenToKVPoolHost), enable_storage_metrics=False,
            is_page_first_layout=True, model_name=model,
            extra_config={"backend_name": "kvfs", "module_path": "kvfs.sglang",
                          "class_name": "KvfsHiCache", "interface_v1": 1, "path": self.mount.path} | extra)
        backend = StorageBackendFactory.create_backend("dynamic", config, host)
        backend.register_mem_pool_host(host)
        return backend

    def fill(self, host, seed: int) -> None:
        torch.manual_seed(seed)
        whole(host).copy_(torch.randint(0, 256, whole(host).shape, dtype=torch.uint8))

    def test_pages_come_back_bit_exact_in_every_layout_and_another_place(self) -> None:
        for make in (mha, mla):
            for layout in ("page_first", "page_first_direct", "layer_first"):
                with self.subTest(pool=make.__name__, layout=layout):
                    host = make(layout)
                    self.fill(host, 1)
                    backend = self.backend(host)
                    n = 8
                    self.assertEqual(backend.batch_set_v1(keys(n), indices(range(n))), [True] * n)
                    self.assertEqual(backend.batch_exists(keys(n) + keys(1, "x")), n)
                    other = make(layout)
                    self.fill(other, 2)
                    before, wanted = whole(other).clone(), host.get_page_buffer_meta(indices(range(n)))
                    reader = self.backend(other)
                    places = range(PAGES - 1, PAGES - 1 - n, -1)
                    self.assertEqual(reader.batch_get_v1(keys(n), indices(places)), [True] * n)
                    got = other.get_page_buffer_meta(indices(places))
                    self.assertEqual(self.bytes(*got), self.bytes(*wanted))
                    # The load changed no other page.
                    touched = (whole(other) != before).sum().item()
                    self.assertLessEqual(touched, sum(got[1]))
                    self.assertGreater(touched, 0.9 * sum(got[1]))

    @staticmethod
    def bytes(pointers: list, sizes: list) -> list:
        import ctypes
        return [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes)]

    def test_lists_are_returned_whatever_happens(self) -> None:
        host = mha("page_first_direct")
        self.fill(host, 1)
        backend = self.backend(host)
        self.assertEqual(backend.batch_set_v1(keys(4), indices(range(4))), [True] * 4)
        self.assertEqual(backend.batch_get_v1(keys(4) + keys(2, "x"), indices(range(6, 12))),
                         [True] * 4 + [False] * 2)
        self.assertEqual(backend.batch_get_v1([], indices([0])[:0]), [])
        self.assertEqual(backend.batch_get_v1(keys(2), indices([0])), [False] * 2)  # one page, two keys
        self.assertEqual(backend.batch_get_v1(keys(1), torch.tensor([1 << 40] * PAGE)), [False])
        self.assertEqual(backend.batch_exists(["not hex"]), 0)
        self.assertEqual(backend.batch_set_v1(["not hex"], indices([0])), [True])
        self.assertEqual(backend.batch_exists(["not hex"]), 1)
        self.assertIsNone(backend.get("x"))
        self.assertEqual(backend.batch_get(["x", "y"]), [None, None])
        self.assertFalse(backend.set("x"))
        self.mount.signal(signal.SIGSTOP)
        start = time.monotonic()
        self.assertEqual(backend.batch_exists(keys(4)), 0)
        self.assertEqual(backend.batch_get_v1(keys(4), indices(range(4))), [False] * 4)
        self.assertLess(time.monotonic() - start, 20)
        self.mount.signal(signal.SIGCONT)
        self.mount.kill()
        self.assertEqual(backend.batch_set_v1(keys(4, "z"), indices(range(4))), [False] * 4)
        self.mount.start()
        for _ in range(100):
            if backend.batch_set_v1(keys(4, "z"), indices(range(4))) == [True] * 4:
                break
            time.sleep(0.1)
        self.assertEqual(backend.batch_exists(keys(4, "z")), 4)

    def test_errors_are_logged_once_a_minute(self) -> None:
        backend = self.backend(mha("page_first"))
        with self.assertLogs("sglang.kvfs", "WARNING") as logs:
            for _ in range(3):
                self.assertEqual(backend.batch_get_v1(keys(2), indices([0])), [False] * 2)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("2 keys, but 16 tokens of memory", logs.output[0])

    def test_a_release_that_lacks_something_is_refused(self) -> None:
        from kvfs import release
        from kvfs.sglang import ENGINE, KvfsHiCache

        with self.assertRaisesRegex(RuntimeError, "^kvfs: SGLang [^ ]* cannot be used: it lacks PoolTransfer.x "):
            release.check(*ENGINE, KvfsHiCache, {PoolTransfer: "name x"}, "open")
        code = ("import sys; sys.modules['sglang.srt.mem_cache.hicache_storage'] = None\n"
                "try: import kvfs.sglang\nexcept RuntimeError as error: print(error)")
        out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True).stdout
        self.assertRegex(out, "kvfs: SGLang [^ ]* cannot be used: ")

    def test_pools_of_a_hybrid_by_their_policies(self) -> None:
        host, side = mha("page_first"), mla("page_first")
        self.fill(host, 1)
        self.fill(side, 2)
        backend = self.backend(host)
        backend.register_mem_host_pool_v2(host, PoolName.KV)
        backend.register_mem_host_pool_v2(side, PoolName.SWA)
        all = keys(8)
        done = backend.batch_set_v2([
            PoolTransfer(PoolName.KV, host_indices=indices(range(8)), keys=all),
            PoolTransfer(PoolName.SWA, host_indices=indices(range(3)), keys=all[2:5])],
            HiCacheStorageExtraInfo(prefix_keys=keys(1, "before")))
        self.assertEqual(done, {PoolName.KV: [True] * 8, PoolName.SWA: [True] * 3})
        trailing = PoolTransfer(PoolName.SWA, keys=all[6:8], hit_policy=PoolHitPolicy.TRAILING_PAGES)
        found = backend.batch_exists_v2(all, [trailing])
        self.assertEqual((found.kv_hit_pages, found.restorable_prefix_pages), (5, [4, 5]))
        found = backend.batch_exists_v2(all, [PoolTransfer(PoolName.SWA, keys=all)])
        self.assertEqual(found.kv_hit_pages, 0)
        self.assertEqual(backend.batch_exists_v2(all).kv_hit_pages, 8)
        wanted = self.bytes(*side.get_page_buffer_meta(indices(range(3))))
        got = backend.batch_get_v2([PoolTransfer(PoolName.SWA, host_indices=indices([9, 10, 11]),
                                                 keys=all[2:5])])
        self.assertEqual(got, {PoolName.SWA: [True] * 3})
        self.assertEqual(self.bytes(*side.get_page_buffer_meta(indices([9, 10, 11]))), wanted)

    def test_models_ranks_and_salts_share_nothing(self) -> None:
        host = mha("page_first")
        self.backend(host).batch_set_v1(keys(4), indices(range(4)))
        self.assertEqual(self.backend(mha("page_first")).batch_exists(keys(4)), 4)
        for other in (self.backend(host, model="other"), self.backend(host, rank=1),
                      self.backend(host, salt="s"), self.backend(mha("page_first_direct"))):
            self.assertEqual(other.batch_exists(keys(4)), 0)
        latent = mla("page_first")
        self.backend(latent).batch_set_v1(keys(4), indices(range(4)))
        self.assertEqual(self.backend(latent, rank=1).batch_exists(keys(4)), 4)

    def test_a_wrong_setting_is_named(self) -> None:
        for extra, words in (({"path": ""}, "'path' is ''"), ({"salt": 1}, "'salt' is 1"),
                             ({"remote": "yes"}, "'remote' is 'yes'"),
                             ({"remote_wait": -1}, "'remote_wait' is -1"),
                             ({"mode": "9"}, "'mode' is '9'")):
            with self.assertRaisesRegex(ValueError, words):
                self.backend(mha("page_first"), **extra)

    def nodes(self, kind: type[Between] = Between, **extra):
        """Copy eight pages of two pools to the remote tier, kill that node, and start another."""
        between = kind()
        self.addCleanup(between.remove)
        self.mount.stop()
        self.mount.start(f"dram=64M,ssd=512M,{between.option}")
        host, side = mha("page_first"), mla("page_first")
        self.fill(host, 1)
        self.fill(side, 2)
        backend = self.backend(host, remote=True, **extra)
        backend.register_mem_host_pool_v2(side, PoolName.SWA)
        done = backend.batch_set_v2([
            PoolTransfer(PoolName.KV, host_indices=indices(range(8)), keys=keys(8)),
            PoolTransfer(PoolName.SWA, host_indices=indices(range(2)), keys=keys(8)[6:])])
        self.assertEqual(done, {PoolName.KV: [True] * 8, PoolName.SWA: [True] * 2})
        between.has(10)
        self.mount.kill()
        other = Mount(f"dram=64M,ssd=512M,{between.option}")
        self.addCleanup(other.remove)
        return between, other, host, side

    def test_another_node_has_what_one_stored_also_when_that_is_gone(self) -> None:
        between, other, host, side = self.nodes()
        wanted = [self.bytes(*host.get_page_buffer_meta(indices(range(8)))),
                  self.bytes(*side.get_page_buffer_meta(indices(range(2))))]
        places, swa = mha("page_first"), mla("page_first")
        reader = self.backend(places, path=other.path, remote=True)
        reader.register_mem_host_pool_v2(swa, PoolName.SWA)
        self.assertEqual(reader.batch_exists(keys(8, "x")), 0)
        trailing = PoolTransfer(PoolName.SWA, keys=keys(8)[6:], hit_policy=PoolHitPolicy.TRAILING_PAGES)
        found = reader.batch_exists_v2(keys(8) + keys(2, "x"), [trailing])
        self.assertEqual((found.kv_hit_pages, found.extra_pool_hit_pages), (8, {PoolName.KV: 8, PoolName.SWA: 8}))
        there = indices(range(12, 20))
        self.assertEqual(reader.batch_get_v1(keys(8), there), [True] * 8)
        self.assertEqual(reader.batch_get_v2([PoolTransfer(
            PoolName.SWA, host_indices=indices([5, 6]), keys=keys(8)[6:])]), {PoolName.SWA: [True] * 2})
        self.assertEqual([self.bytes(*places.get_page_buffer_meta(there)),
                          self.bytes(*swa.get_page_buffer_meta(indices([5, 6])))], wanted)

    def test_without_the_setting_nothing_is_looked_for_elsewhere(self) -> None:
        between, other, host, side = self.nodes()
        self.assertEqual(self.backend(mha("page_first"), path=other.path).batch_exists(keys(8)), 0)

    def test_a_hung_other_node_costs_no_more_than_was_said(self) -> None:
        between, other, host, side = self.nodes(Web)
        assert isinstance(between, Web)
        between.hang()
        reader = self.backend(mha("page_first"), path=other.path, remote=True, remote_wait=0.2)
        self.assertEqual(reader.batch_set_v1(keys(4, "own"), indices(range(4))), [True] * 4)
        start = time.monotonic()
        self.assertEqual(reader.batch_exists(keys(8)), 0)
        self.assertEqual(reader.batch_get_v1(keys(8), indices(range(8))), [False] * 8)
        # Look-up and load each gave up before the two seconds that the daemon waits.
        self.assertLess(time.monotonic() - start, 2)
        self.assertEqual(reader.batch_exists(keys(4, "own")), 4)
        self.assertEqual(reader.batch_get_v1(keys(4, "own"), indices(range(4, 8))), [True] * 4)
        between.answer()
        for _ in range(100):
            if reader.batch_exists(keys(8)) == 8:
                break
            time.sleep(0.1)
        self.assertEqual(reader.batch_get_v1(keys(8), indices(range(8))), [True] * 8)

    def test_another_process_finds_all_after_a_kill_of_everything(self) -> None:
        if os.environ.get("KVFS_READ"):
            self.skipTest("the other process")
        host = mha("page_first_direct")
        self.fill(host, 7)
        backend = self.backend(host)
        backend.batch_set_v1(keys(6), indices(range(6)))
        for page in backend._pages.values():
            page.space.flush().wait()
        self.mount.kill()
        self.mount.start()
        code = ("import test_sglang as t, mount, torch; h = t.mha('page_first_direct');"
                f"c = t.Case(); c.mount = type('M', (), {{'path': {self.mount.path!r}}});"
                "b = c.backend(h); print(b.batch_get_v1(t.keys(6), t.indices(range(6))));"
                "import hashlib; d = c.bytes(*h.get_page_buffer_meta(t.indices(range(6))));"
                "print(hashlib.sha256(b''.join(d)).hexdigest())")
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        wanted = hashlib.sha256(b"".join(self.bytes(*host.get_page_buffer_meta(indices(range(6))))))
        self.assertIn(str([True] * 6), out)
        self.assertIn(wanted.hexdigest(), out)


if __name__ == "__main__":
    unittest.main()
