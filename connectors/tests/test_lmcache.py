# SPDX-License-Identifier: Apache-2.0
"""KvfsClient driven by LMCache's own native_plugin adapter and memory, on a real mount."""
from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import unittest
from unittest import mock

import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import native_plugin_l2_adapter as plugin
from lmcache.v1.memory_allocators.host_memory_allocator import HostMemoryAllocator

import kvfs
from mount import Between, Mount, Web


def keys(n: int, model: str = "model", salt: str = "", of: int = 0) -> list[ObjectKey]:
    return [ObjectKey(chunk_hash=bytes([i, of]) * 16, model_name=model, kv_rank=0, cache_salt=salt)
            for i in range(n)]


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.mount = Mount()
        self.addCleanup(self.mount.remove)
        self.memory = HostMemoryAllocator(96 << 20)

    def adapter(self, **params):
        config = plugin.NativePluginL2AdapterConfig.from_dict({
            "type": "native_plugin", "module_path": "kvfs.lmcache", "class_name": "KvfsClient",
            "adapter_params": {"path": self.mount.path, **params}})
        adapter = plugin._create_native_plugin_l2_adapter(config)
        self.addCleanup(adapter.close)
        return adapter

    def objects(self, n: int, shape: tuple = (2, 4, 256, 128), seed: int | None = None) -> list:
        made = [self.memory.allocate(torch.Size(shape), torch.bfloat16) for _ in range(n)]
        self.addCleanup(lambda: [one.ref_count_down() for one in made])
        if seed is not None:
            torch.manual_seed(seed)
            for one in made:
                one.tensor.copy_(torch.randn(shape))
        return made

    def wait(self, fd: int, result):
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            poller.poll(100)
            if (got := result()) is not None:
                return got
        self.fail("no completion")

    def store(self, adapter, some, objects) -> bool:
        task = adapter.submit_store_task(some, objects)
        done = {}

        def result():
            done.update(adapter.pop_completed_store_tasks())
            return done.get(task)

        return self.wait(adapter.get_store_event_fd(), result).is_successful()

    def lookup(self, adapter, some) -> list[bool]:
        task = adapter.submit_lookup_and_lock_task(some, {})
        bitmap = self.wait(adapter.get_lookup_and_lock_event_fd(),
                           lambda: adapter.query_lookup_and_lock_result(task))
        return [bitmap.test(i) for i in range(len(some))]

    def load(self, adapter, some, objects) -> list[bool]:
        task = adapter.submit_load_task(some, objects)
        bitmap = self.wait(adapter.get_load_event_fd(), lambda: adapter.query_load_result(task))
        return [bitmap.test(i) for i in range(len(some))]

    def test_stored_looked_up_and_loaded_by_another_bit_exact(self) -> None:
        first = self.adapter()
        stored = self.objects(6, seed=1)
        odd = self.objects(1, (3, 7, 5), seed=2)  # no page size divides this size
        self.assertTrue(self.store(first, keys(6), stored))
        self.assertTrue(self.store(first, keys(1, of=9), odd))
        client = first._client
        for space in client._spaces.values():
            space.flush().wait()
        self.mount.kill()
        self.mount.start()
        second = self.adapter()
        found = self.until(lambda: self.lookup(second, keys(8)), [True] * 6 + [False] * 2)
        self.assertEqual(found, [True] * 6 + [False] * 2)
        loaded = self.objects(8)
        self.assertEqual(self.load(second, keys(8), loaded), found)
        for i in range(6):
            self.assertTrue(torch.equal(loaded[i].tensor.view(torch.int16), stored[i].tensor.view(torch.int16)))
        again = self.objects(1, (3, 7, 5))
        self.assertEqual(self.lookup(second, keys(1, of=9)), [True])
        self.assertEqual(self.load(second, keys(1, of=9), again), [True])
        self.assertTrue(torch.equal(again[0].tensor.view(torch.int16), odd[0].tensor.view(torch.int16)))
        second.delete(keys(3))
        self.assertEqual(self.lookup(second, keys(6)), [False] * 3 + [True] * 3)

    def until(self, ask, wanted):
        for _ in range(100):
            if (got := ask()) == wanted:
                break
            time.sleep(0.1)
        return got

    def test_models_and_salts_share_nothing(self) -> None:
        first = self.adapter()
        self.assertTrue(self.store(first, keys(2), self.objects(2, seed=1)))
        self.assertEqual(self.lookup(first, keys(2)), [True] * 2)
        self.assertEqual(self.lookup(first, keys(2, salt="s")), [False] * 2)
        self.assertEqual(self.lookup(first, keys(2, model="other")), [False] * 2)
        self.assertEqual(self.lookup(self.adapter(salt="s"), keys(2)), [False] * 2)
        self.assertEqual(self.lookup(self.adapter(model="/m"), keys(2)), [False] * 2)

    def test_hung_and_gone_everything_is_a_miss(self) -> None:
        adapter = self.adapter()
        objects = self.objects(2, seed=1)
        self.assertTrue(self.store(adapter, keys(2), objects))
        self.mount.signal(signal.SIGSTOP)
        self.assertEqual(self.lookup(adapter, keys(2)), [False] * 2)
        self.assertEqual(self.load(adapter, keys(2), objects), [False] * 2)
        self.mount.signal(signal.SIGCONT)
        self.mount.kill()
        self.assertEqual(self.lookup(adapter, keys(2)), [False] * 2)
        self.assertFalse(self.store(adapter, keys(2, of=1), objects))

    def test_what_lmcache_does_not_tell_must_be_in_the_salt(self) -> None:
        from kvfs import lmcache

        for model in "", "/m":
            with self.assertLogs("lmcache.kvfs", "WARNING") as logs:
                first = self.adapter(model=model)
            self.assertEqual(len(logs.output), 1, logs.output)
            for words in f"'model' is '{model}'", "dtype", "quantization", "adapters", "'salt'":
                self.assertIn(words, logs.output[0])
        self.assertTrue(self.store(first, keys(1), self.objects(1, seed=1)))
        with mock.patch.object(lmcache, "ENGINE", ("LMCache", "0.99", lmcache.ENGINE[2])):
            self.assertEqual(self.lookup(self.adapter(model="/m"), keys(1)), [False], "another release")
        self.assertEqual(self.lookup(self.adapter(model="/m"), keys(1)), [True])
        folder = f"{self.mount.root}/model"
        os.mkdir(folder)
        with open(f"{folder}/model.safetensors", "wb") as file:
            file.write(bytes(1000))
        with mock.patch("kvfs.lmcache.log.warning") as warning:
            self.adapter(model=folder, weights_cache=self.mount.root)
        self.assertEqual(warning.call_args_list, [])

    def test_a_stopped_daemon_delays_one_call_until_it_answers(self) -> None:
        adapter = self.adapter(remote=True)
        shapes = [(2, n, 256) for n in (1, 2, 3)]
        for of, shape in enumerate(shapes):
            self.assertTrue(self.store(adapter, keys(1, of=of), self.objects(1, shape, seed=of)))
        some, asked, probe = self.objects(1), [0], kvfs.Space.probe

        def counted(*arguments):
            asked[0] += 1
            return probe(*arguments)

        kvfs.Space.probe = counted
        self.addCleanup(setattr, kvfs.Space, "probe", probe)
        with self.assertLogs("lmcache.kvfs", "WARNING") as logs:
            self.mount.signal(signal.SIGSTOP)
            start = time.monotonic()
            self.assertEqual(self.lookup(adapter, keys(1)), [False])
            self.assertEqual(self.lookup(adapter, keys(1, model="new")), [False])
            adapter.delete(keys(1))
            self.assertFalse(self.store(adapter, keys(1, model="new"), some))
            self.assertEqual(self.load(adapter, keys(1), some), [False])
            self.assertLess(time.monotonic() - start, 2)
            self.assertEqual(asked, [1])
            self.mount.signal(signal.SIGCONT)
            self.assertEqual(self.until(lambda: self.lookup(adapter, keys(1)), [True]), [True])
        self.assertEqual(len(logs.output), 2, logs.output)

    def test_a_wrong_setting_is_named(self) -> None:
        for params, words in (({"path": "kvfs"}, "'path' is 'kvfs'"), ({"pth": 1}, "has 'pth'"),
                              ({"remote": 1}, "'remote' is 1"),
                              ({"remote_wait": "2"}, "'remote_wait' is '2'"),
                              ({"model": None}, "'model' is None")):
            with self.assertRaisesRegex(ValueError, words):
                self.adapter(**params)

    def test_a_release_that_lacks_something_is_refused(self) -> None:
        from kvfs import lmcache, release

        adapter = lmcache.NativeConnectorL2Adapter
        words = f"^kvfs: LMCache [^ ]* cannot be used: it lacks {adapter.__name__}.x "
        with self.assertRaisesRegex(RuntimeError, words):
            release.check(*lmcache.ENGINE, object, {adapter: "event_fd x"})
        code = (f"import sys; sys.modules['{adapter.__module__}'] = None\n"
                "try: import kvfs.lmcache\nexcept RuntimeError as error: print(error)")
        out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True).stdout
        self.assertRegex(out, "kvfs: LMCache [^ ]* cannot be used: ")

    def nodes(self, kind: type[Between] = Between) -> tuple[Between, Mount, list]:
        """Start a node, copy six objects of one size and four of another to the remote tier, and
        kill the node.  Return the tier, a second node and the objects."""
        between = kind()
        self.addCleanup(between.remove)
        self.mount.stop()
        self.mount.start(f"dram=64M,ssd=512M,{between.option}")
        stored = self.objects(6, seed=1) + self.objects(4, (3, 7, 5), seed=2)
        adapter = self.adapter(remote=True)
        self.assertTrue(self.store(adapter, keys(6) + keys(4, of=9), stored))
        between.has(10 + 2)  # the objects, and two blocks with their sizes
        self.mount.kill()
        other = Mount(f"dram=64M,ssd=512M,{between.option}")
        self.addCleanup(other.remove)
        return between, other, stored

    def same(self, got: list, wanted: list) -> None:
        for one, two in zip(got, wanted, strict=True):
            self.assertTrue(torch.equal(one.tensor.view(torch.int16), two.tensor.view(torch.int16)))

    def test_another_node_has_what_one_stored_also_when_that_is_gone(self) -> None:
        between, other, stored = self.nodes()
        reader = self.adapter(path=other.path, remote=True)
        self.assertEqual(self.lookup(reader, keys(6, of=5)), [False] * 6)
        self.assertEqual(self.lookup(reader, keys(8)), [True] * 6 + [False] * 2)
        loaded = self.objects(6)
        self.assertEqual(self.load(reader, keys(6), loaded), [True] * 6)
        self.same(loaded, stored[:6])
        odd = self.objects(4, (3, 7, 5))
        self.assertEqual(self.lookup(reader, keys(4, of=9)), [True] * 4)
        self.assertEqual(self.load(reader, keys(4, of=9), odd), [True] * 4)
        self.same(odd, stored[6:])
        # The reader also stores objects of the sizes that it learnt from the other node.
        self.assertTrue(self.store(reader, keys(2, of=7), loaded[:2]))
        self.assertEqual(self.lookup(self.adapter(path=other.path), keys(2, of=7)), [True] * 2)

    def test_without_the_setting_nothing_is_looked_for_elsewhere(self) -> None:
        between, other, stored = self.nodes()
        self.assertEqual(self.lookup(self.adapter(path=other.path), keys(6)), [False] * 6)

    def test_a_hung_other_node_costs_no_more_than_was_said(self) -> None:
        between, other, stored = self.nodes(Web)
        assert isinstance(between, Web)
        reader = self.adapter(path=other.path, remote=True, remote_wait=0.2)
        self.assertTrue(self.store(reader, keys(2, of=3), stored[:2]))
        between.hang()
        start = time.monotonic()
        self.assertEqual(self.lookup(reader, keys(6)), [False] * 6)
        self.assertEqual(self.load(reader, keys(6), self.objects(6)), [False] * 6)
        # Look-up and load each gave up before the two seconds that the daemon waits.
        self.assertLess(time.monotonic() - start, 2)
        self.assertEqual(self.lookup(reader, keys(2, of=3)), [True] * 2)
        between.answer()
        self.assertEqual(self.until(lambda: self.lookup(reader, keys(6)), [True] * 6), [True] * 6)

    def test_a_size_whose_space_cannot_be_used_is_a_miss(self) -> None:
        between, other, stored = self.nodes()
        reader = self.adapter(path=other.path, remote=True)
        opens = reader._client._space

        def refuse(name: str, size: int):
            if size == stored[0].get_size():
                raise ValueError("kvfs: cannot use the space")
            return opens(name, size)

        reader._client._space = refuse
        self.assertEqual(self.lookup(reader, keys(6)), [False] * 6, "sizes that other nodes told")
        self.assertEqual(self.lookup(reader, keys(6)), [False] * 6, "sizes that are known")
        self.assertFalse(self.store(reader, keys(1, of=7), stored[:1]))
        self.assertEqual(self.load(reader, keys(6), stored[:6]), [False] * 6)
        self.assertTrue(self.store(reader, keys(1, of=8), stored[6:7]))
        reader._client._space = opens
        self.assertEqual(self.lookup(reader, keys(6)), [True] * 6)

    def test_more_sizes_of_a_scope_than_are_kept_are_misses(self) -> None:
        adapter = self.adapter()
        sizes = [(2, n, 256) for n in range(1, 19)]
        for of, shape in enumerate(sizes):
            self.store(adapter, keys(1, of=of), self.objects(1, shape, seed=of))
        other = self.adapter()
        found = [self.lookup(other, keys(1, of=of)) == [True] for of in range(len(sizes))]
        self.assertEqual(found, [True] * 16 + [False] * 2)


if __name__ == "__main__":
    unittest.main()
