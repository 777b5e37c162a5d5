# SPDX-License-Identifier: Apache-2.0
"""The package kvfs without an engine, on a real mount."""
from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import gc
import glob
import hashlib
import json
import logging
import mmap
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import numpy
import safetensors

import kvfs
from kvfs import Stage, State, What, release, weights
from kvfs._native import ffi, lib
from mount import BUILD, Mount

LAYOUT = {"tensors": [{"name": "k", "dtype": "F32", "shape": [4, 16, 32]},
                      {"name": "v", "dtype": "BF16", "shape": [4, 16, 32]}], "tokens": 16}
log = logging.getLogger("kvfs")
K, V = 4 * 16 * 32 * 4, 4 * 16 * 32 * 2


def names(n: int, of: str = "") -> list[bytes]:
    return [hashlib.sha256(f"{of}{i}".encode()).digest() for i in range(n)]


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.mount = self.enterContext(Mount()) if hasattr(self, "enterContext") else Mount()
        if not hasattr(self, "enterContext"):
            self.addCleanup(self.mount.remove)
        self.session = kvfs.open(self.mount.path)
        self.space = self.session.space("model", LAYOUT, create=True)

    def pool(self, pages: int = 32, seed: int = 1) -> tuple[kvfs.Pool, numpy.ndarray, numpy.ndarray]:
        random = numpy.random.default_rng(seed)
        k = random.integers(0, 256, (pages, K), dtype=numpy.uint8)
        v = random.integers(0, 256, (pages, V), dtype=numpy.uint8)
        views = [kvfs.View("k", k.ctypes.data, K, K), kvfs.View("v", v.ctypes.data, V, V)]
        return self.session.pool(self.space, views, pages, keep=(k, v)), k, v


class Blocks(Case):
    def test_what_is_saved_is_matched_loaded_and_read_in_place(self) -> None:
        pool, k, v = self.pool()
        keys = kvfs.Keys(names(8))
        pool.save(self.space, keys, range(8)).wait()
        self.assertEqual(self.space.match(keys), 8)
        self.assertEqual(self.space.match(names(4) + names(4, "other")), 4)
        self.assertEqual(set(self.space.probe(keys)), {State.DRAM})
        k0, v0 = k[:8].copy(), v[:8].copy()
        k[:], v[:] = 0, 0
        with self.space.acquire(keys) as lease:
            self.assertEqual(lease.wait(5), 8)
            transfer = pool.load(lease, range(31, 23, -1))
            self.assertEqual(transfer.wait(), 8)
            transfer.check()
            for i, block in enumerate(lease):
                self.assertEqual(block["k"].numpy().tobytes(), k0[i].tobytes())
                self.assertEqual(block["v"].numpy(numpy.uint16).tobytes(), v0[i].tobytes())
                self.assertEqual(block.bytes.nbytes, K + V)
        self.assertEqual(k[31:23:-1].tobytes(), k0.tobytes())
        self.assertEqual(v[31:23:-1].tobytes(), v0.tobytes())
        self.assertFalse(k[:24].any())

    def test_the_safetensors_library_reads_a_block(self) -> None:
        pool, k, v = self.pool()
        pool.save(self.space, names(1), [2]).wait()
        with open(self.mount.blocks()[0], "rb") as file:
            tensors = dict(safetensors.deserialize(file.read()))
        self.assertEqual({name: list(tensor["shape"]) for name, tensor in tensors.items()},
                         {"k": [4, 16, 32], "v": [4, 16, 32]})
        self.assertEqual(bytes(tensors["k"]["data"]), k[2].tobytes())
        self.assertEqual(bytes(tensors["v"]["data"]), v[2].tobytes())

    def test_host_memory_has_no_streams(self) -> None:
        pool, _, _ = self.pool()
        for stream in (0, None):  # default stream; no stream
            keys = names(2, f"{stream}")
            self.assertEqual(pool.save(self.space, keys, range(2), stream=stream).wait(), 2)
            self.assertEqual(pool.fetch(self.space, keys, range(2), stream=stream).wait(), 2)
        lease = self.space.acquire(keys)
        self.assertEqual(lease.wait(5), 2)
        for order in ({"stream": 1}, {"event": 1}):
            for call in (lambda: pool.fetch(self.space, keys, range(2), **order),
                         lambda: pool.load(lease, range(2), **order)):
                with self.assertRaises(kvfs.Error) as caught:
                    call()
                self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)
        for wrong in (-1, 1 << 64):
            with self.assertRaisesRegex(ValueError, "stream is"):
                pool.load(lease, range(2), stream=wrong)

    def test_a_use_by_two_leases_is_counted_once(self) -> None:
        pool, _, _ = self.pool()
        keys = kvfs.Keys(names(4))
        pool.save(self.space, keys, range(4)).wait()
        lease = self.space.acquire(keys)
        self.assertEqual(lease.wait(5), 4)
        self.assertEqual(pool.fetch(self.space, keys, range(4), again=True).wait(), 4)
        with open(f"{self.mount.path}/.kvfs/stats") as file:
            self.assertIn("hits      4 from dram, 0 from ssd", file.read())
        self.assertEqual({os.getxattr(block, "user.kvfs.hits") for block in self.mount.blocks()}, {b"1"})

    def test_saved_again_is_present_and_not_copied(self) -> None:
        pool, k, _ = self.pool()
        for turn in (0, kvfs.transfer.PRESENT):
            transfer = pool.save(self.space, names(2), [0, 1])
            transfer.wait()
            self.assertEqual(transfer.statuses(), [turn, turn])

    def test_arrays_are_read_only_and_hold_the_lease(self) -> None:
        pool, k, _ = self.pool()
        pool.save(self.space, names(1), [3]).wait()
        lease = self.space.acquire(names(1))
        lease.wait(5)
        array = lease[0]["k"].numpy()
        self.assertFalse(array.flags.writeable)
        with self.assertRaises(ValueError):
            array[0] = 1
        lease.close()
        with self.assertRaises(ValueError):
            lease.poll()
        self.space.evict(names(1))
        pool.save(self.space, names(24, "more"), range(24)).wait()
        gc.collect()
        self.assertEqual(array.tobytes(), k[3].tobytes())
        self.assertEqual(self.held(), 1)
        del array
        self.assertEqual(self.held(), 0)

    def held(self) -> int:
        """Return the number of leased blocks, after the daemon has handled all releases."""
        for _ in range(100):
            held = int(re.search(r"(\d+) leased", self.session.stats())[1])
            if held == 0:
                break
            time.sleep(0.01)
        return held

    def test_dlpack_is_shared_and_says_read_only(self) -> None:
        pool, k, _ = self.pool()
        pool.save(self.space, names(1), [3]).wait()
        with self.space.acquire(names(1)) as lease:
            lease.wait(5)
            tensor = lease[0]["k"]
            with self.assertRaises(BufferError):
                tensor.__dlpack__()
            tensor.__dlpack__(max_version=(1, 0))  # a capsule that no consumer takes
        array = numpy.from_dlpack(tensor) if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0" \
            else numpy.asarray(tensor)
        self.assertEqual(array.ctypes.data, numpy.asarray(tensor).ctypes.data)
        self.assertFalse(array.flags.writeable)
        del tensor
        self.assertEqual(array.tobytes(), k[3].tobytes())

    def test_numpy_says_what_it_lacks(self) -> None:
        pool, _, _ = self.pool()
        pool.save(self.space, names(1), [0]).wait()
        with self.space.acquire(names(1)) as lease:
            lease.wait(5)
            with self.assertRaisesRegex(TypeError, "BF16.*uint16"):
                lease[0]["v"].numpy()
            with self.assertRaisesRegex(TypeError, "another size"):
                lease[0]["v"].numpy(numpy.uint8)

    def test_a_missing_block_is_named(self) -> None:
        pool, _, _ = self.pool()
        pool.save(self.space, names(1), [0]).wait()
        lease = self.space.acquire(names(2))
        self.assertEqual(lease.wait(5), 1)
        with self.assertRaises(kvfs.Error) as caught:
            lease.check()
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        self.assertEqual(caught.exception.key, names(2)[1].hex())
        self.assertIn(names(2)[1].hex(), str(caught.exception))
        transfer = pool.load(lease, [0, 1])
        transfer.wait()
        with self.assertRaises(kvfs.Error) as caught:
            transfer.check()
        self.assertEqual(caught.exception.key, names(2)[1].hex())

    def test_bad_arguments_are_errors_not_crashes(self) -> None:
        pool, _, _ = self.pool()
        with self.assertRaisesRegex(ValueError, "16 or 32 bytes"):
            kvfs.Keys([b"x" * 20])
        with self.assertRaisesRegex(kvfs.Error, "Invalid argument"):
            pool.save(self.space, names(1), [32])
        with self.assertRaisesRegex(ValueError, "2 keys, but pages of 1"):
            pool.save(self.space, names(2), [0])
        with self.assertRaisesRegex(kvfs.Error, "space model: File exists"):
            self.session.space("model", {"tensors": []} | LAYOUT | {"tokens": 8}, create=True)
        with self.assertRaisesRegex(kvfs.Error, "nothing: No such file"):
            self.session.space("nothing")
        with self.assertRaises(IndexError):
            kvfs.Keys(names(1))[1]
        with self.assertRaises(IndexError):
            self.space.acquire(names(1))[1]

    def test_keys_of_other_lengths_are_folded(self) -> None:
        hashes = [b"a" * 36, b"b" * 20]
        folded = [kvfs.fold(hash) for hash in hashes]
        self.assertEqual(folded, [hashlib.sha256(hash).digest() for hash in hashes])
        mixed = kvfs.Keys([b"m" * 16, *folded, names(1)[0].hex()])
        self.assertEqual(list(mixed), [b"m" * 16, *folded, names(1)[0]])
        self.assertEqual(list(mixed[1:3]), folded)
        self.assertEqual(mixed[-1], names(1)[0])

    def test_views_of_any_strides(self) -> None:
        pages = numpy.arange(2 * 6 * 4 * 3 * 8, dtype=numpy.uint8).reshape(2, 6, 4, 3, 8)
        for axes, dim in (((0, 1, 2, 3, 4), 1), ((1, 0, 2, 3, 4), 0), ((4, 1, 3, 2, 0), 1),
                          ((3, 2, 4, 0, 1), 4)):
            array = pages.transpose(axes)
            shape = [n for i, n in enumerate(array.shape) if i != dim]
            space = self.session.space(f"views{axes}".replace(" ", ""), {"tensors": [
                {"name": "t", "dtype": "U8", "shape": shape}]}, create=True)
            views = kvfs.views_of("t", array.ctypes.data, array.shape, array.strides, 1, dim)
            with self.session.pool(space, views, array.shape[dim], keep=pages) as pool:
                pool.save(space, names(2), [4, 1] if dim != 4 else [4, 1]).wait()
            with space.acquire(names(2)) as lease:
                lease.wait(5)
                for i, page in enumerate((4, 1)):
                    numpy.testing.assert_array_equal(lease[i]["t"].numpy(),
                                                     numpy.take(array, page, axis=dim))

    def test_views_by_stride_are_one_run_of_a_page_in_any_order(self) -> None:
        memory = numpy.arange(6 * 2 * 4 * 3 * 8, dtype=numpy.uint8).reshape(6, 2, 4, 3, 8)
        space = self.session.space("bystride", {"tensors": [
            {"name": "t", "dtype": "U8", "shape": [2 * 4 * 3 * 8]}]}, create=True)
        for i, (axes, dim) in enumerate((((0, 1, 2, 3, 4), 0), ((0, 1, 3, 2, 4), 0), ((1, 0, 2, 4, 3), 1),
                                         ((4, 3, 2, 1, 0), 4))):
            array = memory.transpose(axes)
            views = kvfs.views_of("t", array.ctypes.data, array.shape, array.strides, 1, dim, True)
            self.assertEqual([(view.block_stride, view.bytes, view.count) for view in views],
                             [(192, 192, 1)])
            key = names(10)[i:i + 1]
            with self.session.pool(space, views, 6, keep=memory) as pool:
                pool.save(space, key, [5]).wait()
            with space.acquire(key) as lease:
                lease.wait(5)
                numpy.testing.assert_array_equal(lease[0]["t"].numpy(), memory[5].ravel())
        # Pages inside each half of the memory: a view for each run.
        array = memory.transpose(1, 0, 2, 3, 4).copy().transpose(1, 0, 3, 2, 4)
        views = kvfs.views_of("t", array.ctypes.data, array.shape, array.strides, 1, 0, True)
        self.assertEqual([(view.bytes, view.count) for view in views], [(96, 2)])

    def test_keys_by_tokens_chain(self) -> None:
        all = self.space.chain(range(64))
        self.assertEqual(len(all), 4)
        self.assertEqual(list(self.space.chain(range(32, 64), parent=all[1])), list(all[2:]))


    def test_memory_by_descriptor_is_saved_from_where_it_is(self) -> None:
        fd = os.memfd_create("pages")
        self.addCleanup(os.close, fd)
        os.write(fd, os.urandom(8 * (K + V)))
        mapped = mmap.mmap(fd, 8 * (K + V))
        base = numpy.frombuffer(mapped, numpy.uint8).ctypes.data
        views = [kvfs.View("k", base, K + V, K), kvfs.View("v", base + K, K + V, V)]
        with self.session.pool(self.space, views, 8, keep=mapped,
                               memory=kvfs.Memory(base, len(mapped), fd)) as pool:
            for _ in range(100):
                if pool.info()["lent"]:
                    break
                time.sleep(0.01)
            self.assertEqual(pool.info()["lent"], 1)
            pool.save(self.space, names(4), range(4)).wait()
        with self.space.acquire(names(4)) as lease:
            lease.wait(5)
            for i, block in enumerate(lease):
                self.assertEqual(block.bytes.numpy().tobytes(), mapped[i * (K + V):(i + 1) * (K + V)])


class Chains(Case):
    """Chain and Together: an engine makes keys once, and matches and leases in one call."""

    def test_keys_grow_with_their_chain(self) -> None:
        for length, salt in ((32, b""), (16, b""), (36, b""), (32, b"adapter")):
            hashes = [(name * 2)[:length] for name in names(100)]
            wanted = [hash if length in (16, 32) and not salt
                      else hashlib.sha256(salt + hash).digest() for hash in hashes]
            chain = kvfs.Chain(salt)
            chain.extend(hashes[:3])
            before = chain.keys(1, 3)
            for i in range(3, 100):
                chain.extend(hashes[i:i + 1])
            chain.extend([])
            self.assertEqual(len(chain), 100)
            self.assertEqual(list(chain.keys(0, 100)), wanted)
            self.assertEqual(list(before), wanted[1:3])
            self.assertEqual(list(pickle.loads(pickle.dumps(chain.keys(7, 20)))), wanted[7:20])
            for first, end in ((-1, 2), (3, 2), (0, 101)):
                with self.assertRaises(IndexError):
                    chain.keys(first, end)
        with self.assertRaisesRegex(ValueError, "several lengths"):
            chain.extend([b"a" * 32, b"b" * 16])
        self.assertEqual(len(chain), 100)

    def test_groups_are_matched_and_held_by_one_call(self) -> None:
        window = self.session.space("window", LAYOUT | {"reuse": "window:2"}, create=True)
        pool, _, _ = self.pool()
        keys = kvfs.Keys(names(8))
        together = kvfs.Together([self.space, window], [0, 2])
        self.assertEqual(together.hold(keys), (0, None, None))
        pool.save(self.space, keys, range(8)).wait()
        pool.save(window, keys[3:6], range(3, 6)).wait()
        hit, lease, held = together.hold(keys, deadline=5, wait=5)
        assert lease is not None
        self.assertEqual((hit, len(lease), held), (6, 8, 8))
        self.assertEqual(lease.held(), 8)
        self.assertEqual(lease[7]["k"].numpy().tobytes(), lease[5]["k"].numpy().tobytes())
        self.assertEqual(together.hold(kvfs.Keys(names(3, "none"))), (0, None, None))
        alone = kvfs.Together([self.space])
        self.assertEqual(alone.hold(kvfs.Keys(names(3, "none")), wait=5, missing=True), (0, None, None))
        hit, some, held = alone.hold(kvfs.Keys(names(8) + names(2, "none")), wait=5, missing=True)
        assert some is not None
        self.assertEqual((hit, held, some.statuses()), (10, 8, [0] * 8 + [-errno.ENOENT] * 2))
        self.assertEqual(list(some.states()), [State.DRAM] * 8 + [State.ABSENT] * 2)
        with self.assertRaisesRegex(ValueError, "needs a window"):
            kvfs.Together([self.space], [0, 0])
        # Closed spaces stay alive for the objects made from them.
        self.space.close()
        window.close()
        gc.collect()
        self.assertEqual(together.hold(keys, deadline=5, wait=5)[0], 6)

    def test_other_nodes_have_what_is_missing(self) -> None:
        between = self.enterContext(tempfile.TemporaryDirectory())
        nodes = [self.enterContext(Mount(f"dram=64M,ssd=128M,remote=dir:{between},remote_threshold=1"))
                 for _ in range(2)]
        keys, spaces = kvfs.Keys(names(8)), []
        for node in nodes:
            self.session = kvfs.open(node.path)
            self.space = self.session.space("model", {**LAYOUT, "keys": "engine", "share": True}, create=True)
            spaces.append(self.space)
            if len(spaces) == 1:
                pool, _, _ = self.pool()
                pool.save(self.space, keys, range(8)).wait(Stage.DURABLE)
                while len(glob.glob(f"{between}/*/2-*/*")) < 8:
                    time.sleep(0.01)
        here, there = spaces
        self.assertEqual({**here.layout, "seed": ""}, {**there.layout, "seed": ""})
        together = kvfs.Together([there])
        self.assertEqual(together.hold(keys), (0, None, None))
        some = kvfs.Keys(names(8) + names(2, "none"))
        hit, lease, held = together.hold(some, deadline=30, wait=30, missing=True)
        assert lease is not None
        self.assertEqual((hit, held, lease.statuses()), (10, 8, [0] * 8 + [-errno.ENOENT] * 2))
        with here.acquire(keys) as mine:
            mine.wait()
            self.assertEqual([lease[i]["k"].numpy().tobytes() for i in range(8)],
                             [b["k"].numpy().tobytes() for b in mine])
        lease.close()
        self.assertEqual(there.match(keys), 8)

    def test_blocks_are_fetched_by_one_call(self) -> None:
        pool, k, v = self.pool()
        keys = kvfs.Keys(names(8))
        pool.save(self.space, keys, range(8), parent=kvfs.Keys(names(1, "before")), position=7).wait()
        transfer = pool.fetch(self.space, keys, range(16, 24), deadline=5)
        self.assertEqual(transfer.there(timeout=10), 8)
        self.assertEqual(k[16:24].tobytes(), k[:8].tobytes())
        self.assertEqual(v[16:24].tobytes(), v[:8].tobytes())
        missing = pool.fetch(self.space, names(2, "none"), [30, 31])
        self.assertEqual(missing.there(timeout=10), 0)
        with self.assertRaisesRegex(kvfs.Error, names(2, "none")[0].hex()):
            missing.check()
        with self.assertRaisesRegex(ValueError, "2 keys, but pages of 1"):
            pool.fetch(self.space, names(2), [0])
        with self.assertRaisesRegex(kvfs.Error, "load from model: Invalid argument"):
            pool.fetch(self.space, names(1), [32])

    def test_what_has_not_come_yet_is_none(self) -> None:
        pool, _, _ = self.pool()
        pool.save(self.space, names(2), [0, 1]).wait()
        self.mount.signal(signal.SIGSTOP)
        lease = self.space.acquire(names(2))
        self.assertIsNone(lease.held())
        self.assertIsNone(lease.held(0.01))
        save = pool.save(self.space, names(2, "new"), [2, 3])
        self.assertIsNone(save.there(Stage.SEALED, 0.01))
        self.mount.signal(signal.SIGCONT)
        self.assertEqual(lease.held(10), 2)
        self.assertEqual(save.there(Stage.SEALED, 10), 2)

    def test_a_miss_has_a_cause(self) -> None:
        pool, _, _ = self.pool()
        keys, begun = kvfs.Keys(names(4)), time.time() - 1
        pool.save(self.space, keys[:3], range(3)).wait()
        self.space.evict(keys[1:2])
        why = self.space.why(keys)
        self.assertEqual([miss.cause for miss in why],
                         [kvfs.Cause.NONE, kvfs.Cause.REMOVED, kvfs.Cause.NONE, kvfs.Cause.UNSEEN])
        self.assertEqual([miss.key for miss in why], list(keys))
        self.assertLessEqual(begun, why[1].since + 1)
        self.assertEqual(self.space.misses(), [])
        self.assertEqual(self.space.match(keys), 1)
        self.assertEqual(self.space.match(keys[3:]), 0)
        first, last = self.space.misses()
        self.assertEqual((first.key, first.cause, first.place, first.n), (keys[1], kvfs.Cause.REMOVED, 1, 4))
        self.assertEqual((last.key, last.cause, last.place, last.n), (keys[3], kvfs.Cause.UNSEEN, 0, 1))
        self.assertTrue(begun < first.asked <= last.asked < time.time() + 1)

    def test_matching_in_tokens(self) -> None:
        large = self.session.space("large", LAYOUT | {"tokens": 64}, create=True)
        pool, _, _ = self.pool()
        small = kvfs.Keys(names(12))
        pool.save(self.space, small[:9], range(9)).wait()
        pool.save(large, names(3, "large"), range(3)).wait()
        both, keys = [self.space, large], [small, kvfs.Keys(names(3, "large"))]
        # 9 blocks of 16 tokens and 3 of 64: the match is a multiple of both sizes.
        self.assertEqual(kvfs.match_tokens(both, keys), 128)
        # The prompt ends within the second large block.
        self.assertEqual(kvfs.match_tokens(both, keys, tokens=100), 64)
        # The first 64 tokens are in the engine's own cache.
        self.assertEqual(kvfs.match_tokens(both, [small[4:], keys[1][1:]], starts=[64, 64]), 128)
        with self.assertRaises(ValueError):
            kvfs.match_tokens(both, keys, starts=[0])
        with self.assertRaisesRegex(kvfs.Error, "Invalid argument"):
            kvfs.match_tokens(both, keys, starts=[8, 0])


class Readme(Case):
    def test_its_python_runs_as_it_is_written(self) -> None:
        with open(f"{os.path.dirname(os.path.abspath(__file__))}/../../README.md") as file:
            (code,) = re.findall(r"```python\n(.*?)```", file.read(), re.S)
        self.session.space("model").remove()
        there: dict[str, object] = {}
        exec(code.replace("/kvfs", self.mount.path), there)
        self.assertEqual(there["hit"], 4)
        self.assertTrue((there["memory"][4:8] == 1).all() and (there["k"] == 1).all())


class Misuse(Case):
    """Errors name the caller's arguments, not those of cffi or of inner functions."""

    def refused(self, call: object, kind: type, words: str) -> None:
        with self.assertRaisesRegex(kind, words) as caught:
            call()
        said = str(caught.exception)
        self.assertNotRegex(said, r"zip\(\)|fromhex|ctype|cdata|unpack|initializer|NoneType|^$")
        self.assertFalse(re.search("Invalid argument$", said), said)

    def test_keys(self) -> None:
        half = kvfs.Keys([b"x" * 16])
        pool, _, _ = self.pool()
        for wrong, kind, words in (
                (["xyz"], ValueError, "32 or 64 digits of 0-9 and a-f, and is not 'xyz'"),
                (["abc"], ValueError, "32 or 64 digits"), ([b""], ValueError, "16 or 32 bytes, this one 0"),
                ([b"x" * 31], ValueError, "this one 31"), (["00" * 17], ValueError, "this one 17"),
                ([7], TypeError, "a key is bytes.* not 7"), ([None], TypeError, "a key is bytes"),
                (b"x" * 16, TypeError, "one key instead of a list"), ("00" * 16, TypeError, "one key instead of a list")):
            for call in (kvfs.Keys, self.space.match, self.space.probe, self.space.acquire, self.space.evict,
                         self.space.prefetch, self.space.pin, self.space.ended,
                         lambda names: pool.save(self.space, names, [0])):
                self.refused(lambda: call(wrong), kind, words)
        self.refused(lambda: kvfs.Chain().extend([1]), TypeError, "whole|bytes|int")
        self.refused(lambda: kvfs.Chain().extend(["a"]), TypeError, "hashes are bytes")
        self.refused(lambda: pool.save(self.space, [*half, *names(1)], [0, 1]), kvfs.Error, "16 and of 32")
        self.assertEqual(list(kvfs.Keys([bytearray(16), memoryview(bytes(32))])), [bytes(16), bytes(32)])

    def test_spaces(self) -> None:
        for name in ("", ".x", "a/b", "n" * 256):
            self.refused(lambda: self.session.space(name), kvfs.Error, "a name has 1 to 255 bytes")
        self.refused(lambda: self.session.space("model\0x"), ValueError, "a space's name has a NUL")
        self.refused(lambda: self.session.space(7), TypeError, "a space's name is 7")
        for layout in ({}, {"tensors": []}, {"tensors": [{"name": "k", "dtype": "Q4", "shape": [4]}]}, "no",
                       {**LAYOUT, "unknown": 1}, {**LAYOUT, "tokens": -1}):
            self.refused(lambda: self.session.space("new", layout, create=True), kvfs.Error, "no layout, see")
        self.refused(lambda: self.session.space("new", {**LAYOUT, "share": True}, create=True), kvfs.Error,
                     'no layout, or one whose "share" is refused')
        for mode in (-1, 0o1000, "0700"):
            self.refused(lambda: self.session.space("new", LAYOUT, create=True, mode=mode), ValueError,
                         "mode is .* not 0 to 0o777")
        self.refused(lambda: kvfs.open("/a\0b"), ValueError, "the path has a NUL")
        self.refused(lambda: kvfs.match([self.space], []), ValueError, "1 spaces, but keys of 0")
        self.refused(lambda: kvfs.acquire([], []), ValueError, "0 spaces")
        self.refused(lambda: kvfs.match_tokens([self.space], [names(1)], starts=[]), ValueError, "0 starts for 1")
        self.refused(lambda: kvfs.match_tokens([self.space], [names(1)], starts=[-1]), ValueError, "starts is -1")
        self.refused(lambda: kvfs.match_tokens([self.space], [names(1)], starts=[3]), kvfs.Error, "within a block")
        self.refused(lambda: kvfs.Together([self.space], [-1]), ValueError, "a window is -1")
        self.refused(lambda: kvfs.Together([self.space]).hold(names(1), user=-1), ValueError, "user is -1")
        self.refused(lambda: self.space.chain([1, -1] * 16), ValueError, "a token is -1")
        self.refused(lambda: self.space.flush(Stage.COPIED), ValueError, "not SEALED or DURABLE")
        self.refused(lambda: self.space.tokens(names(1)), kvfs.Error, 'no "token_ids"')
        self.refused(lambda: self.session.reap(-1), ValueError, "at_most is -1")
        os.mkdir(f"{self.mount.path}/untyped")
        self.refused(lambda: self.session.space("untyped").chain([1] * 16), kvfs.Error, "how many tokens")
        self.refused(lambda: self.session.pool(self.session.space("untyped"), [kvfs.View("k", 4096, 1, 1)], 1),
                     kvfs.Error, "the space has no layout")

    def test_pools(self) -> None:
        pool, k, v = self.pool()
        at = k.ctypes.data
        good = [kvfs.View("k", at, K, K), kvfs.View("v", v.ctypes.data, V, V)]
        for views, pages, words in (
                ([], 8, "a pool has views"), (good, 0, "pages"), (good[:1], 8, "views of v cover 0 bytes"),
                ([kvfs.View("k", at, K, K - 4), good[1]], 8, f"cover {K - 4} bytes of a block, which has {K}"),
                ([*good, kvfs.View("x", at, K, K)], 8, "no tensor x"),
                ([kvfs.View("k", at, 4, K), good[1]], 8, "overlap"),
                ([kvfs.View("k", 0, K, K), good[1]], 8, "overlap, or lie outside")):
            self.refused(lambda: self.session.pool(self.space, views, pages), kvfs.Error, words)
        self.refused(lambda: self.session.pool(self.space, good, -1), ValueError, "pages is -1")
        self.refused(lambda: self.session.pool(self.space, good, 8, pages_per_block=-1), ValueError, "pages_per_block is -1")
        self.refused(lambda: self.session.pool(self.space, [kvfs.View("k", at, -K, K), good[1]], 8),
                     ValueError, "block_stride is -")
        self.refused(lambda: self.session.pool(self.space, good, 8, device=0), TypeError, "device is 0")

    def test_transfers(self) -> None:
        pool, _, _ = self.pool()
        pool.save(self.space, names(4), range(4)).wait()
        lease = self.space.acquire(names(4))
        lease.wait(5)
        for page, words in ((32, "no page 32: the pool has 32"), (-1, "no page -1"), (2**40, "no page")):
            self.refused(lambda: pool.save(self.space, names(1), [page]), kvfs.Error, words)
        for page, kind in ((2**64, ValueError), (1.5, TypeError), (None, TypeError), ("1", TypeError)):
            for call in (lambda: pool.save(self.space, names(1), [page]), lambda: pool.load(lease, [page]),
                         lambda: pool.fetch(self.space, names(1), [page])):
                self.refused(call, kind, "a page is")
        self.refused(lambda: pool.load(lease, [0, 0]), kvfs.Error, "page 0 comes twice")
        self.refused(lambda: pool.load(lease, range(5)), kvfs.Error, "blocks 0 to 4 of a lease on 4")
        self.refused(lambda: pool.load(lease, [0], first=4), kvfs.Error, "blocks 4 to 4 of a lease on 4")
        self.refused(lambda: pool.load(lease, [0], first=-1), ValueError, "first is -1")
        self.refused(lambda: pool.load(lease, [0], priority=2**31), ValueError, "priority is")
        for field in ("position", "user", "stream"):
            for value, kind in ((-1, ValueError), ("x", TypeError)):
                self.refused(lambda: pool.save(self.space, names(1, "p"), [0], **{field: value}), kind, f"{field} is")
        self.refused(lambda: pool.fetch(self.space, names(1), [0], user=-1), ValueError, "user is -1")
        for more, words in (({"places": []}, "0 places of 1"), ({"places": [(None, 0)] * 2}, "2 places of 1"),
                            ({"tokens": []}, "tokens of 0 blocks"), ({"extras": [b""] * 2}, "extras of 2 blocks"),
                            ({"places": [(None, -1)]}, "position is -1"), ({"tokens": [[-1]]}, "a token is -1")):
            self.refused(lambda: pool.save(self.space, names(1, "p"), [0], **more), ValueError, words)
        self.refused(lambda: pool.save(self.space, names(1, "p"), [0], tokens=[["x"]]), TypeError, "a token is 'x'")
        self.refused(lambda: pool.save(self.space, names(1, "p"), [0], extras=["x"]), TypeError, "extras are bytes")
        self.refused(lambda: pool.save(self.space, names(1, "p"), [0], tokens=[[1]]), kvfs.Error, "keeps no tokens")
        kept = self.session.space("kept", {**LAYOUT, "token_ids": True}, create=True)
        self.refused(lambda: pool.save(kept, names(1), [0]), kvfs.Error, "none are given")
        other = self.session.space("other", {"tensors": LAYOUT["tensors"][:1]}, create=True)
        self.refused(lambda: pool.save(other, names(1), [0]), kvfs.Error, "other tensors than the pool")
        again = kvfs.open(self.mount.path)
        self.refused(lambda: pool.save(again.space("model"), names(1), [0]), kvfs.Error, "another session")
        self.refused(lambda: pool.load(lease, [0]).wait(9), ValueError, "9 is not a valid Stage")
        with self.assertRaisesRegex(TypeError, "slice"):
            lease[0:2]

    def test_times(self) -> None:
        pool, _, _ = self.pool()
        transfer = pool.save(self.space, names(1), [0])
        self.assertEqual(transfer.wait(timeout=float("inf")), 1)
        lease = self.space.acquire(names(1), deadline=float("inf"))
        self.assertEqual(lease.wait(1e30), 1)
        self.assertEqual((transfer.there(timeout=-1), lease.held(-1), lease.held(None)), (1, 1, 1))
        self.session.reap()
        self.assertFalse(self.session.wait(-1))
        for time_, kind in (("1", TypeError), (float("nan"), ValueError)):
            for call in (lambda: transfer.wait(timeout=time_), lambda: lease.held(time_),
                         lambda: self.space.acquire(names(1), deadline=time_), lambda: self.session.wait(time_),
                         lambda: pool.fetch(self.space, names(1), [0], deadline=time_)):
                self.refused(call, kind, "not a time in seconds")

    def test_what_is_closed_says_so(self) -> None:
        pool, _, _ = self.pool()
        transfer = pool.save(self.space, names(1), [0])
        lease = self.space.acquire(names(1))
        other = kvfs.open(self.mount.path)
        for one in (pool, transfer, lease, other):
            one.close()
            one.close()
        for call, what in ((lambda: pool.save(self.space, names(1), [0]), "pool"), (pool.info, "pool"),
                           (lambda: pool.load(lease, [0]), "pool"), (transfer.wait, "transfer"),
                           (transfer.cancel, "transfer"), (lambda: lease[0], "lease"), (lease.check, "lease"),
                           (lease.statuses, "lease"), (lambda: other.space("model"), "session"),
                           (other.stats, "session"), (other.reap, "session"), (other.fileno, "session")):
            self.refused(call, ValueError, f"this {what} is closed")
        pool, _, _ = self.pool()
        self.space.close()
        for call in (lambda: self.space.match(names(1)), lambda: list(self.space.keys()), self.space.owner,
                     lambda: pool.save(self.space, names(1), [0]), lambda: pool.fetch(self.space, names(1), [0])):
            self.refused(call, ValueError, "this space is closed")

    def test_a_closed_session_disconnects_while_its_object_lives(self) -> None:
        def connections() -> str:
            with open(f"{self.mount.path}/.kvfs/metrics") as file:
                return next(line for line in file if line.startswith("kvfs_connections "))

        before, end = connections(), time.monotonic() + 10
        session = kvfs.open(self.mount.path)
        self.assertNotEqual(connections(), before)
        session.close()
        while connections() != before:
            self.assertLess(time.monotonic(), end, "the session is still connected")
            time.sleep(0.01)
        self.assertTrue(session.closed)

    def test_what_is_absent_is_a_miss_and_no_error(self) -> None:
        pool, _, _ = self.pool()

        async def fetch() -> kvfs.Transfer:
            transfer = pool.fetch(self.space, names(2, "none"), [0, 1])
            self.assertEqual(await transfer, 0)
            return transfer

        transfer = asyncio.run(fetch())
        self.assertEqual(transfer.statuses(), [-errno.ENOENT] * 2)
        with self.assertRaisesRegex(kvfs.Error, names(2, "none")[0].hex()):
            transfer.check()


class Listing(Case):
    def test_all_keys_of_a_space_are_listed(self) -> None:
        self.assertEqual(list(self.space.keys()), [])
        pool, _, _ = self.pool()
        wanted = {os.urandom(16 if i % 2 else 32) for i in range(600)}
        for i, one in enumerate(wanted):
            last = pool.save(self.space, [one], [i % 32], places=[(None, 0)])
            last.wait(Stage.COPIED)
        self.space.flush(Stage.SEALED).wait()
        self.assertEqual(set(self.space.keys()), wanted)
        pages = list(self.space.pages(64))
        self.assertGreater(len(pages), 4)
        self.assertTrue(all(len(some) <= 64 for some in pages))
        # Every call takes a page of the listing as its keys.
        self.assertEqual(self.space.evict(pages[0]), len(pages[0]))
        self.assertEqual(len(set(self.space.keys())), 600 - len(pages[0]))

    def test_a_space_is_removed_with_all_that_is_in_it(self) -> None:
        pool, _, _ = self.pool()
        pool.save(self.space, names(4), range(4)).wait()
        self.assertIn("model", os.listdir(self.mount.path))
        self.space.remove()
        self.assertNotIn("model", os.listdir(self.mount.path))
        self.assertEqual(self.space.match(names(4)), 0)
        with self.assertRaisesRegex(kvfs.Error, "remove model: No such file"):
            self.space.remove()
        with self.assertRaisesRegex(kvfs.Error, "keys of model: No such file"):
            list(self.space.keys())
        again = self.session.space("model", LAYOUT | {"tokens": 8}, create=True)
        self.assertEqual(list(again.keys()), [])

    def test_without_a_daemon_both_say_so(self) -> None:
        self.mount.kill()
        for _ in range(300):
            if not self.session.connected:
                break
            time.sleep(0.01)
        for call in (self.space.remove, lambda: list(self.space.keys())):
            with self.assertRaises(kvfs.Error) as caught:
                call()
            self.assertEqual(caught.exception.errno, errno.ENOTCONN)


class Reaping(Case):
    def events(self, wanted: int) -> list[kvfs.Event]:
        got: list[kvfs.Event] = []
        while len(got) < wanted:
            self.assertTrue(self.session.wait(10))
            got += self.session.reap()
        self.assertEqual(self.session.reap(), [])
        return got

    def test_each_completion_says_which(self) -> None:
        self.session.reap()
        pool, _, _ = self.pool()
        save = pool.save(self.space, names(4), range(4), user=7)
        silent = pool.save(self.space, names(4, "silent"), range(4, 8))
        got = self.events(2)
        self.assertEqual([(e.what, e.user, e.stage, e.result, e.n) for e in got],
                         [(What.TRANSFER, 7, Stage.COPIED, 4, 4), (What.TRANSFER, 7, Stage.SEALED, 4, 4)])
        self.assertEqual(got[0].generation, self.session.generation)
        silent.wait()
        lease = self.space.acquire(names(5), user=1 << 63)
        (event,) = self.events(1)
        self.assertEqual((event.what, event.user, event.result, event.n), (What.LEASE, 1 << 63, 4, 5))
        load = pool.load(lease, range(8, 13), user=9)
        fetch = pool.fetch(self.space, names(2), [20, 21], user=10)
        flush = self.space.flush(Stage.SEALED, user=11)
        hint = self.space.prefetch(names(2), user=12)
        hit, held, _ = kvfs.Together([self.space]).hold(kvfs.Keys(names(4)), user=13)
        self.assertEqual({(e.what, e.user, e.result) for e in self.events(5)},
                         {(What.TRANSFER, 9, 4), (What.TRANSFER, 10, 2), (What.TRANSFER, 11, 1),
                          (What.TRANSFER, 12, 2), (What.LEASE, 13, 4)})
        del save, load, fetch, flush, hint, held

    def test_no_more_at_once_than_asked_for_and_nothing_of_what_is_gone(self) -> None:
        self.session.reap()
        pool, _, _ = self.pool()
        saves = []
        for i in range(8):  # wait for each, so that the saves end in this order
            save = pool.save(self.space, names(1, str(i)), [i], user=i + 1)
            save.wait()
            saves.append(save)
        del saves[2:], save
        gc.collect()
        self.assertEqual([(e.user, e.stage) for e in self.session.reap(3)],
                         [(1, Stage.COPIED), (1, Stage.SEALED), (2, Stage.COPIED)])
        self.assertTrue(self.session.wait(0))
        self.assertEqual([(e.user, e.stage) for e in self.session.reap(3)], [(2, Stage.SEALED)])
        self.assertFalse(self.session.wait(0))

    def test_the_connection_is_told_of(self) -> None:
        self.session.reap()
        before = self.session.generation
        self.mount.kill()
        lost = self.events(1)[0]
        self.assertEqual((lost.what, lost.user, lost.result), (What.CONNECTION, 0, 0))
        self.mount.start()
        back = self.events(1)[0]
        self.assertEqual((back.what, back.result, back.generation), (What.CONNECTION, 1, before + 1))


class Waiting(Case):
    def test_transfers_and_leases_are_awaited_without_a_thread(self) -> None:
        pool, _, _ = self.pool()

        async def one(i: int) -> int:
            keys = names(4, str(i))
            await pool.save(self.space, keys, range(4 * i, 4 * i + 4))
            lease = self.space.acquire(keys)
            await lease
            return await pool.load(lease, range(4 * i, 4 * i + 4))

        async def all() -> list[int]:
            got = await asyncio.gather(*(one(i) for i in range(8)))
            await self.space.flush()
            return list(got)

        threads = threading.active_count()
        self.assertEqual(asyncio.run(all()), [4] * 8)
        self.assertEqual(threading.active_count(), threads)
        self.assertEqual(asyncio.run(all()), [4] * 8)

    def test_two_loops_wait_for_one_session(self) -> None:
        pool, _, _ = self.pool()
        got: list[int] = []

        async def many(of: str) -> None:
            for i in range(50):
                got.append(await pool.save(self.space, names(4, f"{of}{i}"), range(4)))

        threads = [threading.Thread(target=lambda of=of: asyncio.run(many(of))) for of in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(got, [4] * 100)

    def test_a_wait_that_is_given_up_leaves_the_loop_clean(self) -> None:
        async def give_up() -> None:
            lease = self.space.acquire(names(1))
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(self.session._awaited.until(lambda: False), 0.05)
            await lease

        asyncio.run(give_up())
        self.assertEqual(self.session._awaited._waiting, [])


    def test_who_awaits_what_is_closed_meanwhile_is_told(self) -> None:
        pool, _, _ = self.pool()
        self.mount.signal(signal.SIGSTOP)
        lease, transfer = self.space.acquire(names(1)), pool.save(self.space, names(1), [0])

        async def close() -> None:
            for one, awaited in ((lease, lease.settled()), (transfer, transfer.reached())):
                task = asyncio.ensure_future(awaited)
                await asyncio.sleep(0.02)
                self.assertFalse(task.done())
                one.close()
                with self.assertRaisesRegex(ValueError, "is closed"):
                    await asyncio.wait_for(task, 10)

        asyncio.run(close())
        self.mount.signal(signal.SIGCONT)

    def test_a_loop_that_was_closed_holds_up_no_other(self) -> None:
        pool, _, _ = self.pool()
        self.mount.signal(signal.SIGSTOP)
        lease, gone = self.space.acquire(names(1)), asyncio.new_event_loop()
        task = gone.create_task(lease.settled())
        gone.run_until_complete(asyncio.sleep(0.02))
        gone.close()

        async def other() -> int:
            saved = asyncio.ensure_future(pool.save(self.space, names(4), range(4)).reached())
            await asyncio.sleep(0.02)
            self.mount.signal(signal.SIGCONT)
            return await asyncio.wait_for(saved, 10)

        self.assertEqual(asyncio.run(other()), 4)
        self.assertEqual(lease.wait(10), 0)
        self.assertEqual(self.session._awaited._waiting, [])
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    def test_what_is_closed_under_a_call_ends_after_it(self) -> None:
        """Close pools, which own their memory, while other threads use them in calls."""
        pool, _, _ = self.pool()
        pool.save(self.space, names(8), range(8)).wait()
        wrong: list[BaseException] = []
        now = [pool]
        over = threading.Event()

        def use(i: int) -> None:
            while not over.is_set():
                try:
                    space = self.session.space("model")
                    with space.acquire(names(8)) as lease:
                        now[0].load(lease, range(8)).wait()
                    now[0].save(space, names(1, str(time.monotonic_ns())), [8 + i])
                except ValueError as error:
                    if "is closed" not in str(error):
                        wrong.append(error)
                except BaseException as error:
                    wrong.append(error)

        threads = [threading.Thread(target=use, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for turn in range(100):
            before, now[0] = now[0], self.pool()[0]
            before.close()
        over.set()
        for thread in threads:
            thread.join(60)
        self.assertEqual(wrong, [])


class Faults(Case):
    def test_killed_and_mounted_again_all_comes_back_by_itself(self) -> None:
        pool, k, _ = self.pool()
        pool.save(self.space, names(4), range(4)).wait()
        self.space.flush().wait()
        lease = self.space.acquire(names(4))
        lease.wait(5)
        before = self.session.generation
        self.mount.kill()
        for _ in range(300):
            if not self.session.connected:
                break
            time.sleep(0.01)
        self.assertEqual(self.space.match(names(4)), 0)
        self.assertEqual(lease[1]["k"].numpy().tobytes(), k[1].tobytes())
        failed = pool.load(lease, range(8, 12))
        failed.wait()
        self.assertEqual(failed.statuses(), [-errno.ESTALE] * 4)
        saved = pool.save(self.space, names(1, "new"), [0])
        saved.wait()
        with self.assertRaises(kvfs.Error) as caught:
            saved.check()
        self.assertEqual(caught.exception.errno, errno.ENOTCONN)
        self.mount.start()
        for _ in range(300):
            if self.space.match(names(4)) == 4:
                break
            time.sleep(0.05)
        self.assertEqual(self.space.match(names(4)), 4)
        self.assertGreater(self.session.generation, before)

    def test_a_hung_daemon_is_a_miss_within_seconds(self) -> None:
        self.assertTrue(self.session.connected)
        self.mount.signal(signal.SIGSTOP)
        start = time.monotonic()
        self.assertEqual(self.space.match(names(4)), 0)
        lease = self.space.acquire(names(4), deadline=0.1)
        self.assertEqual(lease.wait(10), 0)
        self.assertLess(time.monotonic() - start, 8)
        self.mount.signal(signal.SIGCONT)

    def test_without_a_mount_everything_misses_until_there_is_one(self) -> None:
        with Mount(mounted=False) as other:
            session = kvfs.open(other.path)
            space = session.space("model", LAYOUT, create=True)
            self.assertFalse(session.connected)
            self.assertEqual(space.match(names(1)), 0)
            with self.assertRaises(kvfs.Error) as caught:
                session.stats()
            self.assertEqual(caught.exception.errno, errno.ENOTCONN)
            other.start()
            for _ in range(300):
                if session.connected:
                    break
                time.sleep(0.05)
            self.assertIn("dram", session.stats())

    def test_a_child_after_fork_gets_errors_and_ends_in_order(self) -> None:
        child = os.fork()
        if child == 0:
            try:
                self.space.match(names(1))
            except kvfs.Error as error:
                del self.space
                self.session.close()
                gc.collect()
                os._exit(0 if error.errno == errno.EBADF else 1)
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.space.match(names(1)), 0)

    def test_handles_end_in_any_order(self) -> None:
        pool, k, _ = self.pool()
        transfer = pool.save(self.space, names(4), range(4))
        transfer.wait()
        lease = self.space.acquire(names(4))
        lease.wait(5)
        array = lease[2]["k"].numpy()
        self.session.close()
        pool.close()
        self.space.close()
        del lease
        gc.collect()
        self.assertEqual(array.tobytes(), k[2].tobytes())
        self.assertEqual(transfer.statuses(), [0] * 4)


def interrupted(call) -> float:
    """Seconds from Ctrl-C, a little after the call has begun, until KeyboardInterrupt."""
    at, returned = [], False

    def press() -> None:
        at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.25, press)
    timer.start()
    try:
        call()
        returned = True
        time.sleep(60)
    except KeyboardInterrupt:
        took = time.monotonic() - at[0]
    timer.join()
    assert not returned, "the call returned before Ctrl-C"
    return took


class Interrupts(Case):
    """Ctrl-C while the daemon hangs."""

    def saved(self, pool: kvfs.Pool, keys: kvfs.Keys) -> None:
        """Save @keys, and repeat blocks that a slow daemon did not take within a second."""
        end = time.monotonic() + 30
        while pool.save(self.space, keys, range(len(keys))).wait() < len(keys):
            self.assertLess(time.monotonic(), end, "the daemon takes no blocks")

    def leases(self) -> int:
        with open(f"{self.mount.path}/.kvfs/metrics") as file:
            return int(re.search(r"^kvfs_leases (\d+)$", file.read(), re.M).group(1))

    def answers(self) -> None:
        """Let the daemon continue, and return when it answers the session."""
        self.mount.signal(signal.SIGCONT)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                self.session.stats()
                return
            except kvfs.Error:
                time.sleep(0.05)
        self.fail("the daemon does not answer")

    def test_every_blocking_call_ends_at_once_and_holds_nothing(self) -> None:
        keys = kvfs.Keys(names(4))
        pool, k, v = self.pool()
        self.saved(pool, keys)
        together, windows = kvfs.Together([self.space]), kvfs.Together([self.space], [2])
        kept = self.session.space("kept", {**LAYOUT, "token_ids": True}, create=True)
        lease, saved, closing = [], [], []

        def close() -> None:
            closing[-1].save(self.space, names(2, f"close{len(closing)}"), [5, 6])
            closing[-1].close()

        def wait() -> None:
            while self.session.process():
                pass
            self.session.wait(60)

        calls = {
            "lease.wait": lambda: lease[0].wait(),
            "lease.held": lambda: lease[0].held(60),
            "transfer.wait": lambda: saved[0].wait(),
            "transfer.there": lambda: saved[0].there(timeout=60),
            "hold": lambda: together.hold(keys, wait=60, missing=True),
            "session.wait": wait,
            "hold, matched": lambda: together.hold(keys, wait=60),
            "hold, windows": lambda: windows.hold(keys, wait=60),
            "match": lambda: self.space.match(keys),
            "match_tokens": lambda: kvfs.match_tokens([self.space], [keys]),
            "probe": lambda: self.space.probe(keys),
            "evict": lambda: self.space.evict(names(2, "none")),
            "pin": lambda: self.space.pin(keys),
            "unpin": lambda: self.space.unpin(keys),
            "keys": lambda: list(self.space.keys()),
            "tokens": lambda: kept.tokens(keys),
            "stats": self.session.stats,
            "space": lambda: self.session.space("model"),
            "open": lambda: kvfs.open(self.mount.path),
            "pool.close": close,
            "clear": self.space.clear,
            "remove": self.space.remove,
        }
        for name, call in calls.items():
            with self.subTest(name):
                took = []
                while not took or took[-1] >= 0.2 and len(took) < 3:  # repeat if busy
                    self.answers()
                    closing.append(self.session.pool(self.space, [
                        kvfs.View("k", k.ctypes.data, K, K), kvfs.View("v", v.ctypes.data, V, V)], 32))
                    self.mount.signal(signal.SIGSTOP)
                    lease[:] = [self.space.acquire(keys)]
                    saved[:] = [pool.save(self.space, names(2, f"{name}{len(took)}"), [5, 6])]
                    took.append(interrupted(call))
                self.assertLess(took[-1], 0.2)
        del lease, saved, closing, call, calls
        gc.collect()
        self.answers()
        end = time.monotonic() + 30
        while self.leases() and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(self.leases(), 0)

    def test_a_hold_that_is_interrupted_again_and_again_leaks_nothing(self) -> None:
        keys = kvfs.Keys(names(4))
        self.saved(self.pool()[0], keys)
        together, armed, hits = kvfs.Together([self.space]), [False], 0

        def press(*_: object) -> None:
            if armed[0]:
                armed[0] = False
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, press)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            try:
                armed[0] = True
                while armed[0]:
                    together.hold(keys, wait=5)
                    self.space.acquire(keys).wait(5)
                    self.space.match(keys)
            except KeyboardInterrupt:
                hits += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        self.assertGreater(hits, 10)
        gc.collect()
        self.session.process()
        end = time.monotonic() + 30
        while self.leases() and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(self.leases(), 0)


class TokenIds(Case):
    def setUp(self) -> None:
        super().setUp()
        self.plain, self.space = self.space, self.session.space(
            "kept", {**LAYOUT, "token_ids": True}, create=True)
        self.ids = [list(range(1000 * i, 1000 * i + 16)) for i in range(32)]
        self.ids[31] = [2**32 - 1, 0, 7]  # the last, partial block

    def save(self, n: int = 32, **more: object) -> list[bytes]:
        pool, _k, _v = self.pool()
        transfer = pool.save(self.space, names(n), range(n), tokens=self.ids[:n], **more)
        transfer.wait()
        transfer.check()
        self.space.flush().wait()
        return names(n)

    def header(self, path: str) -> dict[str, str]:
        with open(path, "rb") as file:
            return json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]

    def path(self, space: str, key: bytes) -> str:
        return f"{self.mount.path}/{space}/{key.hex()[:2]}/{key.hex()}"

    def told(self, space: kvfs.Space) -> dict[bytes, list[int]]:
        return {key: tokens.ids for key, tokens in space.blocks()}

    def test_they_are_told_for_all_blocks_of_a_space(self) -> None:
        keys = self.save(extras=[b"lora:%d" % i for i in range(32)])
        self.assertTrue(self.space.keeps_tokens)
        self.assertEqual(self.told(self.space), dict(zip(keys, self.ids)))
        last, none = self.space.tokens([keys[31], names(1, "other")[0]])
        self.assertEqual(last, kvfs.Tokens(self.ids[31], b"lora:31", keys[30], 31))
        self.assertIsNone(none)
        self.assertIsNone(self.space.tokens(keys[:1])[0].parent)

    def test_they_are_in_the_file(self) -> None:
        key = self.save(1, extras=[b"\0\xff"])[0]
        metadata = self.header(self.path("kept", key))
        self.assertEqual(metadata["token_ids"], ",".join(map(str, self.ids[0])))
        self.assertEqual((metadata["extras"], metadata["tokens"]), ("00ff", "16"))

    def test_they_are_needed_where_they_are_kept_and_nowhere_else(self) -> None:
        pool, _k, _v = self.pool()
        for space, tokens in ((self.space, None), (self.plain, self.ids[:1]),
                              (self.space, [list(range(17))])):
            with self.assertRaises(kvfs.Error) as caught:
                pool.save(space, names(1), [0], tokens=tokens)
            self.assertEqual(caught.exception.errno, errno.EINVAL)
        with self.assertRaises(kvfs.Error) as caught:
            pool.save(self.space, names(1), [0], tokens=self.ids[:1], extras=[b"x" * 2049])
        self.assertEqual(caught.exception.errno, errno.E2BIG)
        with self.assertRaises(ValueError):
            pool.save(self.space, names(2), [0, 1], tokens=self.ids[:1])
        self.assertFalse(self.plain.keeps_tokens)
        with self.assertRaises(kvfs.Error) as caught:
            self.plain.tokens(names(1))
        self.assertEqual(caught.exception.errno, errno.EINVAL)

    def test_a_copy_of_the_tree_keeps_them(self) -> None:
        keys = self.save(4)
        subprocess.run(["cp", "-r", f"{self.mount.path}/kept", f"{self.mount.path}/copy"], check=True)
        self.assertEqual(self.told(self.session.space("copy")), dict(zip(keys, self.ids)))

    def test_a_file_without_them_is_refused(self) -> None:
        pool, _k, _v = self.pool()
        transfer = pool.save(self.plain, names(1), [0])
        transfer.wait()
        transfer.check()
        target = self.path("kept", names(1)[0])
        os.makedirs(os.path.dirname(target), exist_ok=True)
        done = subprocess.run(["cp", self.path("model", names(1)[0]), target],
                              capture_output=True, text=True)
        self.assertIn("Invalid argument", done.stderr)
        self.assertFalse(os.path.exists(target))

    def test_they_are_there_after_sigkill_and_the_loss_of_the_index(self) -> None:
        keys = self.save()
        for lost in (False, True):
            self.mount.kill()
            if lost:
                os.unlink(f"{self.mount.store}/index/data.mdb")
            self.mount.start()
            with kvfs.open(self.mount.path) as session:
                self.assertEqual(self.told(session.space("kept")), dict(zip(keys, self.ids)))

    def test_they_go_with_their_block(self) -> None:
        keys = self.save(8)
        os.unlink(self.path("kept", keys[0]))
        self.space.evict(keys[1:2])
        self.assertEqual(self.told(self.space), dict(zip(keys[2:], self.ids[2:])))
        self.space.clear()
        self.assertEqual(self.told(self.space), {})


class Weights(unittest.TestCase):
    """The hash of a model's files.  Digests of files of 2 MiB are cached on disk."""

    def setUp(self) -> None:
        self.root = tempfile.mkdtemp(prefix="kvfs-weights.")
        self.addCleanup(shutil.rmtree, self.root)
        self.model, self.cache = f"{self.root}/model", f"{self.root}/cache/kvfs"
        os.mkdir(self.model)
        self.write("a.safetensors", b"a" * (2 << 20))
        self.write("b.safetensors", b"b" * (2 << 20) + b"end")
        self.write("config.json", b"{}")
        for name, value in (("FRESH", 0.0), ("PIECE", 1 << 20)):
            patch = mock.patch.object(weights, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        weights.Store.known.clear()

    def write(self, name: str, data: bytes) -> None:
        with open(f"{self.model}/{name}", "wb") as file:
            file.write(data)

    def hash(self, path: str = "", again: bool = False) -> tuple[str, list[str]]:
        """Return the fingerprint, and the names of the files that threads read for it."""
        read: list[str] = []
        pread = os.pread

        def noted(fd: int, n: int, at: int) -> bytes:
            read.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
            return pread(fd, n, at)

        if not again:
            weights.Store.known.clear()
        with mock.patch.object(weights.os, "pread", noted):
            found = weights.fingerprint(path or self.model, log, self.cache)
        return found, sorted(set(read))

    def test_every_byte_counts_and_no_name_of_a_folder(self) -> None:
        first = self.hash()[0]
        found = {first}
        for at in (0, 99_999, (1 << 20) - 1, 1 << 20, (2 << 20) - 1):
            self.write("a.safetensors", b"a" * at + b"c" + b"a" * ((2 << 20) - 1 - at))
            found.add(self.hash()[0])
        self.assertEqual(len(found), 6)
        self.write("a.safetensors", b"a" * (2 << 20))
        self.write("generation_config.json", b"{}")
        os.rename(self.model, f"{self.root}/moved")
        self.assertEqual(self.hash(f"{self.root}/moved")[0], first)
        self.model = f"{self.root}/moved"
        for name in ("config.json", "modeling_x.py", "c.bin"):
            self.write(name, b"{ }")
            self.assertNotIn(found_now := self.hash()[0], found)
            found.add(found_now)

    def test_a_file_is_read_once_until_it_changes(self) -> None:
        self.assertEqual(self.hash()[1], ["a.safetensors", "b.safetensors"])
        for again in (False, True):
            self.assertEqual(self.hash(again=again)[1], [])
        before = os.stat(f"{self.model}/a.safetensors")
        self.write("a.safetensors", b"A" * (2 << 20))
        os.utime(f"{self.model}/a.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))
        for again in (False, True):
            self.assertEqual(self.hash(again=True)[1], [] if again else ["a.safetensors"])

    def test_a_file_that_changed_a_moment_ago_is_not_kept(self) -> None:
        with mock.patch.object(weights, "FRESH", 3600.0):
            for _ in range(2):
                self.assertEqual(len(self.hash(again=True)[1]), 2)

        # The 2 seconds count from the begin of the hash, which may take longer.
        passed, now, pread = [0.0], time.time, os.pread

        def slow(fd: int, n: int, at: int) -> bytes:
            passed[0] = 3600.0
            return pread(fd, n, at)

        with (mock.patch.object(weights, "FRESH", 60.0), mock.patch.object(weights.os, "pread", slow),
              mock.patch.object(weights.time, "time", lambda: now() + passed[0])):
            weights.fingerprint(self.model, log, self.cache)
            passed[0] = 0.0
            self.assertEqual(len(self.hash(again=True)[1]), 2)

    def test_progress_is_logged_and_ctrl_c_ends_the_hash(self) -> None:
        with mock.patch.object(weights, "PROGRESS", 0.0), self.assertLogs(log, "INFO") as caught:
            self.hash()
        for words in ("hashing 0.0 GB of weights in", "% of the weights in", "hashed 0.0 GB in"):
            self.assertTrue([line for line in caught.output if words in line], words)
        self.write("a.safetensors", b"A" * (2 << 20))
        pread = os.pread

        def slow(fd: int, n: int, at: int) -> bytes:
            time.sleep(0.02)
            return pread(fd, n, at)

        with (mock.patch.object(weights, "BUFFER", 4096), mock.patch.object(weights.os, "pread", slow)):
            self.assertLess(min(interrupted(self.hash) for _ in range(3)), 0.2)
        self.hash()

    def test_a_file_that_changes_meanwhile_is_refused(self) -> None:
        pread = os.pread

        def changing(fd: int, n: int, at: int) -> bytes:
            self.write("b.safetensors", b"B" * (2 << 20))
            return pread(fd, n, at)

        with mock.patch.object(weights.os, "pread", changing):
            with self.assertRaisesRegex(OSError, "b.safetensors changed"):
                weights.fingerprint(self.model, log, self.cache)

    def test_entries_that_are_damaged_or_that_others_may_have_written_are_ignored(self) -> None:
        wanted = self.hash()[0]
        entries = [path for path in glob.glob(f"{self.cache}/*") if not path.endswith("lock")]
        self.assertEqual(len(entries), 2)
        texts = [open(path).read() for path in entries]

        def other(path: str) -> None:
            if os.geteuid() == 0:
                os.chown(path, 1, 1)

        def link(path: str) -> None:
            os.rename(path, f"{self.root}/target")
            os.symlink(f"{self.root}/target", path)

        def digit(path: str) -> None:
            with open(path, "r+") as file:
                text = file.read()
                file.seek(text.index('"]') - 1)
                file.write("0" if text[text.index('"]') - 1] != "0" else "1")

        for damage in (digit, lambda path: os.truncate(path, 30), lambda path: os.truncate(path, 0),
                       lambda path: open(path, "wb").write(b"\xff" * 90), lambda path: os.chmod(path, 0o666),
                       lambda path: open(path, "w").write("[]\n"), lambda path: open(path, "w").write("7\n"),
                       other, link, lambda path: (os.unlink(path), os.mkfifo(path))):
            for path, text in zip(entries, texts):
                subprocess.run(["rm", "-rf", path], check=True)
                with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                    file.write(text)
                damage(path)
            found, read = self.hash()
            self.assertEqual(found, wanted)
            if damage is not other or os.geteuid() == 0:
                self.assertEqual(len(read), 2, damage)

    def test_without_a_directory_it_goes_on(self) -> None:
        wanted = self.hash()[0]
        self.cache = f"{self.model}/config.json/kvfs"
        with self.assertLogs(log) as caught:
            self.assertEqual(self.hash()[0], wanted)
        self.assertIn("'weights_cache'", "".join(caught.output))
        for path in (f"{self.root}/nowhere", self.root):
            with self.assertRaises(OSError):
                weights.fingerprint(path, log, self.cache)

    def test_one_process_hashes_and_the_others_wait_for_it(self) -> None:
        code = (f"import logging, sys; from kvfs import weights; weights.FRESH, weights.PIECE = 0.0, 1 << 20\n"
                f"logging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
                f"print(weights.fingerprint({self.model!r}, logging.getLogger(), {self.cache!r}))")
        self.write("a.safetensors", b"a" * (64 << 20))
        started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
                   for _ in range(4)]
        texts = [process.communicate()[0] for process in started]
        self.assertEqual(sum("kvfs: hashing" in text for text in texts), 1)
        self.assertEqual({text.split("\n")[-2] for text in texts}, {self.hash()[0]})


class Releases(unittest.TestCase):
    """The check of an engine's release, with classes in the place of an engine's."""

    def check(self, base: type, **methods: object) -> str:
        """Return the reason why an engine with the class @base is refused; empty: it is not."""
        try:
            release.check("Engine", "3.1", ("3.0",), type("Ours", (base,), methods), {base: "field"}, "added")
        except RuntimeError as error:
            return str(error)
        return ""

    def test_what_an_engine_lacks_is_named_in_one_line(self) -> None:
        class Base:
            def __init__(self) -> None:
                self.field = 1

            def one(self, a, b=1): ...

            @classmethod
            def two(cls, *all): ...

        ours = {"one": lambda self, a, b: 0, "two": classmethod(lambda cls, *all: 0), "_own": len, "kind": 7}
        self.assertEqual(self.check(Base, **ours), "")
        self.assertEqual(self.check(Base, added=lambda self: 0), "")
        self.assertEqual(self.check(dataclasses.make_dataclass("Base", ["field"])), "")
        whole = "kvfs: Engine 3.1 cannot be used: it lacks {} (tested: 3.0)"
        self.assertEqual(self.check(Base, three=lambda self: 0, one=lambda self, a: 0),
                         whole.format("three, one with known arguments"))
        self.assertEqual(self.check(type("Bare", (), {})), whole.format("Bare.field"))

    def test_a_release_that_was_not_tested_is_named_once(self) -> None:
        with self.assertNoLogs(log) if hasattr(self, "assertNoLogs") else contextlib.nullcontext():
            for version in "3.0", "3.0.7", "4", "4+cu128", "3.0.7+cpu":
                release.warn("Engine", version, ("3.0", "4"), log)
        for version in "3.1", "3.01", "3", "4rc1", "4rc1+cu128", "3+0":
            with self.assertLogs(log) as caught:
                release.warn("Engine", version, ("3.0", "4"), log)
            self.assertEqual([record.getMessage() for record in caught.records],
                             [f"kvfs: Engine {version} is not tested (tested: 3.0, 4)"])


class Library(unittest.TestCase):
    def test_there_is_one_libkvfs_however_it_was_loaded(self) -> None:
        paths = ffi.new("char[]", 4096)
        self.assertEqual(lib.library_copies(paths, 4096), 1, ffi.string(paths))

    def test_two_copies_are_refused_at_import(self) -> None:
        root = os.path.dirname(kvfs.__file__)
        code = (f"import ctypes, shutil, tempfile, sys; d = tempfile.mkdtemp();"
                f"f = shutil.copy('{BUILD}/libkvfs.so', d + '/libkvfs.so.9'); b = open(f, 'rb').read();"
                f"open(f, 'wb').write(b.replace(b'libkvfs.so.', b'libkvfs.sx.'));"
                f"ctypes.CDLL(f); shutil.rmtree(d); sys.path.insert(0, '{os.path.dirname(root)}'); import kvfs")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertIn("more than one libkvfs", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
