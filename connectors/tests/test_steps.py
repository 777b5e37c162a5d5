# SPDX-License-Identifier: Apache-2.0
"""KvfsConnector's two sides step by step on a real mount, without a model: states that last too
short to be tested with an engine."""
from __future__ import annotations

import contextlib
import functools
import os
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

import configs
from steps import BLOCK, DIM, HEADS, HIT, TOKENS, Driver, Step

import kvfs
import torch
from kvfs import Stage
from vllm.distributed.kv_events import BlockRemoved
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.request import Request

from engines import prompt, settled, statistics
from kvfs.vllm.metrics import Stats
from models import make
from mount import Between, Mount

model = ""
FIRST, OTHERS = list(range(1, HIT + 2)), list(range(20, HIT + 21))


def setUpModule() -> None:
    global model
    model = tempfile.mkdtemp(prefix="kvfs-models.")
    make("qwen", model)


def tearDownModule() -> None:
    shutil.rmtree(model)


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.mount = Mount("dram=128M,ssd=1G")
        self.addCleanup(self.mount.remove)

    def driver(self, **extra) -> Driver:
        driver = Driver(model, self.mount.path, **extra)
        self.addCleanup(driver.close)
        return driver

    def copies(self, driver: Driver, pages: list[int]) -> list[torch.Tensor]:
        return [tensor[pages[:HIT]].clone() for tensor in driver.pages.values()]

    def loads(self, driver: Driver, id: str, seed: int, wanted: list[torch.Tensor]) -> int:
        """Check that the whole prompt is loaded to the pages OTHERS with the saved bytes."""
        asked = driver.load(id, seed, OTHERS)
        for tensor, was in zip(driver.pages.values(), wanted):
            self.assertTrue(torch.equal(tensor[OTHERS[:HIT]], was))
        return asked


class Choices(Case):
    def test_a_request_may_save_nothing_and_load_nothing(self) -> None:
        driver = self.driver()
        request = driver.request("unsaved", 1, {"kvfs.save": False})
        self.assertEqual(driver.matched(request), 0)
        driver.allocate(request, FIRST, 0)
        driver.step({"unsaved": TOKENS}, FIRST)
        self.assertFalse(driver.worker._worker._saves)
        driver.finish(request, FIRST)
        driver.save("saved", 1, FIRST)
        self.assertEqual(driver.matched(driver.request("unloaded", 1, {"kvfs.load": False})), 0)
        with self.assertLogs("vllm.kvfs") as logs:
            for id, params in ("a", {"kvfs.load": 0}), ("b", {"kvfs.load": None, "load": False}):
                self.assertEqual(driver.matched(driver.request(id, 1, params)), HIT * BLOCK)
        self.assertEqual(len(logs.output), 1)
        self.assertIn('"kvfs.load" in kv_transfer_params is neither true nor false', logs.output[0])

    def test_a_streaming_session_of_vllm_0_31_saves_nothing_and_loads_nothing(self) -> None:
        driver = self.driver()
        driver.save("s", 1, FIRST)
        with mock.patch("vllm.__version__", "0.32.0"):
            self.assertEqual(driver.matched(driver.request("newer", 1, resumable=True)), HIT * BLOCK)
        patch = mock.patch("vllm.__version__", "0.31.0+cpu")
        patch.start()
        self.addCleanup(patch.stop)
        self.assertEqual(driver.matched(driver.request("again", 1, resumable=True)), 0)
        session = driver.request("session", 2, {"do_remote_decode": True}, resumable=True)
        self.assertEqual(driver.matched(session), 0)
        driver.allocate(session, FIRST, 0)
        driver.step({"session": TOKENS}, FIRST)
        self.assertFalse(driver.worker._worker._saves)
        self.assertIsNone(driver.finish(session, FIRST))
        self.assertEqual(len(self.mount.blocks()), HIT)


class Roles(Case):
    """One engine computes prompts, and another generates."""

    def named(self, seed: int = 1, **extra) -> dict[str, str]:
        """Return the hand-off of a prompt that is nowhere, made by an engine whose mount has gone."""
        with Mount("dram=64M,ssd=0") as mount:
            driver = Driver(model, mount.path, "kv_producer", **extra)
            answer = driver.save("elsewhere", seed, FIRST)
            driver.close()
        self.assertEqual(list(answer), ["kvfs.block"])
        return answer

    def waits_for_none(self, consumer: Driver, request: Request) -> None:
        """Check that the request waits for no hand-off, and finds no block."""
        consumer.match(request)
        self.assertEqual(consumer.scheduler._scheduler._awaited, {})
        self.assertEqual(consumer.matched(request), 0)

    def test_a_consumer_waits_for_the_blocks_of_a_producer_and_saves_none(self) -> None:
        producer = self.driver(role="kv_producer")
        consumer = self.driver(role="kv_consumer", ssd_wait=60)
        wanted = self.copies(producer, FIRST)
        request = consumer.request("r", 1, self.named())
        for _ in range(20):
            self.assertIsNone(consumer.match(request))
            consumer.step({}, [])
        answer = producer.save("s", 1, FIRST)
        self.assertEqual(answer, self.named())
        space, key = answer["kvfs.block"].split("/")
        self.assertEqual(producer.worker._worker._spaces.by_group[0][0].name, space)
        self.assertIn(key, [os.path.basename(path) for path in self.mount.blocks()])
        self.assertEqual(consumer.matched(request), HIT * BLOCK)
        consumer.finish(request, OTHERS)
        self.loads(consumer, "l", 1, wanted)
        self.assertEqual(consumer.matched(other := consumer.request("other", 2)), 0)
        consumer.allocate(other, FIRST, 0)
        consumer.step({"other": TOKENS}, FIRST)
        self.assertFalse(consumer.worker._worker._saves)
        self.assertIsNone(consumer.finish(other, FIRST))
        # A producer computes saved blocks again, and names the last one.
        self.assertEqual(producer.save("again", 1, FIRST), answer)
        self.assertEqual(consumer.scheduler._scheduler._awaited, {})

    def test_a_hand_off_between_two_nodes_comes_by_their_remote_tier(self) -> None:
        between = Between()
        self.addCleanup(between.remove)
        options = f"dram=128M,ssd=512M,{between.option}"
        self.mount.stop()
        self.mount.start(options)
        producer = self.driver(role="kv_producer", remote=True)
        with Mount(options) as node:
            consumer = Driver(model, node.path, "kv_consumer", remote=True, ssd_wait=60)
            self.addCleanup(consumer.close)
            wanted = self.copies(producer, FIRST)
            named = self.named(1, remote=True)
            request = consumer.request("r", 1, named)
            for _ in range(20):
                self.assertIsNone(consumer.match(request))
                consumer.step({}, [])
            self.assertEqual(producer.save("s", 1, FIRST), named)
            between.has(HIT)
            self.mount.kill()
            self.assertEqual(consumer.matched(request), HIT * BLOCK)
            consumer.allocate(request, OTHERS, HIT * BLOCK)
            while not consumer.step({}, OTHERS).finished_recving:
                pass
            for tensor, was in zip(consumer.pages.values(), wanted):
                self.assertTrue(torch.equal(tensor[OTHERS[:HIT]], was))
            # Blocks that an earlier look-up has fetched are in DRAM.
            hits = {what: n for what, n in consumer.scheduler.get_kv_connector_stats().data.items() if "hits" in what}
            self.assertEqual((sum(hits.values()), hits.get("ssd_hits")), (HIT, None), hits)

    def test_a_hand_off_that_does_not_come_is_waited_for_no_longer_than_was_said(self) -> None:
        consumer, named = self.driver(role="kv_consumer", ssd_wait=0.5), self.named()
        start = time.monotonic()
        self.assertEqual(consumer.matched(consumer.request("r1", 1, named)), 0)
        self.assertGreaterEqual(waited := time.monotonic() - start, 0.5)
        self.assertLess(waited, 5)
        self.waits_for_none(consumer, consumer.request("r2", 1, named | {"kvfs.load": False}))
        self.waits_for_none(consumer, consumer.request("r3", 2, named))  # another text
        aborted = consumer.request("aborted", 1, named)
        self.assertIsNone(consumer.match(aborted))
        self.assertIsNone(consumer.finish(aborted, []))
        self.assertEqual((consumer.scheduler._scheduler._awaited, consumer.scheduler._scheduler._unsettled), ({}, {}))
        waiting = consumer.request("reset", 1, named)
        self.assertIsNone(consumer.match(waiting))
        consumer.scheduler.reset_cache()
        self.waits_for_none(consumer, waiting)  # its blocks have other keys now
        self.mount.kill()
        while consumer.connected():
            time.sleep(0.01)
        self.waits_for_none(consumer, consumer.request("r4", 1, named))

    def test_a_hand_off_that_means_nothing_is_ignored_with_one_warning(self) -> None:
        consumer, space = self.driver(role="kv_consumer", ssd_wait=60), self.named()["kvfs.block"].split("/")[0]
        for said, blocks in (("is no SPACE/KEY", (7, -1, True, ["x"], {space: 1}, f"{space}/xyz")),
                             ("is of the space ", ("", "other/" + "0" * 64, "another\n/" + "1" * 64,
                                                   "/" * 1000000, "x" * 1000000 + "/00", f"{space}//00"))):
            with self.assertLogs("vllm.kvfs") as logs:
                for i, block in enumerate(blocks):
                    self.waits_for_none(consumer, consumer.request(f"{said}{i}", 1, {"kvfs.block": block}))
            self.assertEqual(len([line for line in logs.output if said in line]), 1, logs.output)
            self.assertLess(len(logs.output[0]), 1000)
        for i, params in enumerate((["kvfs.block"], "kvfs.block", 7, {"kvfs.block": f"{space}/"},
                                    {"kvfs.block": f"{space}/" + "00" * 1000000})):
            self.waits_for_none(consumer, consumer.request(f"none{i}", 1, params))

    def test_the_short_end_of_a_wait_is_not_taken_for_a_hang(self) -> None:
        consumer = self.driver(role="kv_consumer", ssd_wait=60)
        request = consumer.request("r", 1, self.named())
        self.assertIsNone(consumer.match(request))
        awaited = consumer.scheduler._scheduler._awaited["r"]
        awaited.again, awaited.until = 0.0, time.monotonic() + 0.05
        self.mount.signal(signal.SIGSTOP)
        self.assertEqual(consumer.matched(request), 0)
        self.mount.signal(signal.SIGCONT)
        self.assertEqual(consumer.scheduler._scheduler.patience.new_pauses(), 0)

    def test_look_ups_of_many_hand_offs_keep_a_pace(self) -> None:
        consumer, named, count = self.driver(role="kv_consumer", ssd_wait=2), self.named(), [0]
        hold = consumer.scheduler._scheduler._together.hold

        def counted(*arguments, **options):
            count[0] += 1
            return hold(*arguments, **options)

        consumer.scheduler._scheduler._together.hold = counted
        waiting = [consumer.request(f"r{i}", 1, named) for i in range(200)]
        start = time.monotonic()
        while waiting := [request for request in waiting if consumer.match(request) is None]:
            consumer.step({}, [])
        self.assertGreater(time.monotonic() - start, 1.5)
        self.assertLess(count[0], 200 * 8, "without a pace 200 * 23")

    def test_an_engine_with_both_roles_names_the_block_if_it_is_asked_to(self) -> None:
        driver = self.driver()
        self.assertIsNone(driver.save("s1", 1, FIRST, {"do_remote_decode": False}))
        self.assertIsNone(driver.save("s2", 2, FIRST, {"do_remote_decode": True, "kvfs.save": False}))
        self.assertEqual(driver.save("s3", 3, FIRST, {"do_remote_decode": True}), self.named(3))
        self.assertIsNone(driver.finish(driver.request("aborted", 4, {"do_remote_decode": True}), []))
        self.assertEqual(driver.load("l", 3, OTHERS), 0)


class Saves(Case):
    def begin(self, driver: Driver, seed: int) -> None:
        """Begin a save of the pages FIRST, with the daemon stopped."""
        request = driver.request(f"s{seed}", seed)
        self.assertEqual(driver.matched(request), 0)
        driver.allocate(request, FIRST, 0)
        self.mount.signal(signal.SIGSTOP)
        driver.step({request.request_id: TOKENS}, FIRST)
        self.save = driver.worker._worker._saves[-1].transfer
        self.assertIsNone(self.save.there(Stage.COPIED))

    def test_pages_that_no_other_has_got_are_not_waited_for(self) -> None:
        driver = self.driver(save_wait=3600)
        wanted = self.copies(driver, FIRST)
        self.begin(driver, 1)
        for _ in range(10):
            driver.step({"another": 1}, OTHERS)
        driver.step({}, [])
        self.assertIsNone(self.save.there(Stage.COPIED))
        self.mount.signal(signal.SIGCONT)
        self.assertEqual(self.save.wait(), HIT)
        self.loads(driver, "l", 1, wanted)

    def test_pages_that_another_has_got_are_waited_for(self) -> None:
        driver = self.driver(save_wait=3600)
        wanted = self.copies(driver, FIRST)
        self.begin(driver, 1)
        threading.Timer(1, self.mount.signal, [signal.SIGCONT]).start()
        driver.step({"another": 1}, [50, FIRST[HIT - 1], 51])
        for tensor in driver.pages.values():
            tensor[FIRST] = 0  # as the other request's forward pass would
        self.assertEqual(self.save.wait(), HIT)
        self.loads(driver, "l", 1, wanted)

    def test_a_daemon_that_hangs_is_not_waited_for_longer_than_was_said(self) -> None:
        driver = self.driver(save_wait=0.1)
        self.begin(driver, 1)
        driver.step({"another": 1}, FIRST)
        self.assertEqual(self.save.there(Stage.COPIED), 0)
        for tensor in driver.pages.values():
            tensor[FIRST] = 0
        self.mount.signal(signal.SIGCONT)
        time.sleep(0.2)
        settled(self.mount.path)
        # No block was saved from the changed pages.
        self.assertEqual(self.mount.blocks(), [])

    def test_what_is_not_saved_while_the_daemon_hangs_is_saved_later(self) -> None:
        driver = self.driver(save_wait=0.6, ssd_wait=0.1)
        wanted = self.copies(driver, OTHERS)
        with self.assertLogs("vllm.kvfs", "WARNING") as logs:
            self.begin(driver, 1)
            driver.step({"another": 1}, FIRST)  # waits for the save, then abandons it
            request = driver.request("s2", 2)
            self.assertEqual(driver.matched(request), 0)
            driver.allocate(request, OTHERS, 0)
            driver.step({"s2": TOKENS}, OTHERS)  # this save is dropped
            request.num_computed_tokens = TOKENS
            self.mount.signal(signal.SIGCONT)
            end = time.monotonic() + 20
            space = driver.worker._worker._spaces.by_group[0][0]
            keys = driver.scheduler._scheduler._requests["s2"].chain.keys(0, HIT)
            while space.match(keys) < HIT and time.monotonic() < end:
                driver.step({"s2": 1}, OTHERS)
                time.sleep(0.01)
        saves = [line for line in logs.output if "save" in line]
        self.assertEqual(len([line for line in saves if "no saves until it answers" in line]), 1, saves)
        self.assertEqual(len([line for line in saves if "saves go on" in line]), 1, saves)
        driver.finish(request, OTHERS)
        for tensor in driver.pages.values():
            tensor[OTHERS] = 0
        driver.load("l", 2, OTHERS)
        for tensor, was in zip(driver.pages.values(), wanted):
            self.assertTrue(torch.equal(tensor[OTHERS[:HIT]], was))

    def test_blocks_computed_while_there_was_no_daemon_are_saved_when_they_are_used_again(self) -> None:
        driver = self.driver()
        space = driver.worker._worker._spaces.by_group[0][0]
        self.begin(driver, 1)
        keys = [driver.scheduler._scheduler._requests["s1"].chain.keys(0, HIT)]
        driver.finish(driver.scheduler._scheduler._requests["s1"].request, FIRST)
        self.mount.kill()
        while driver.connected():
            time.sleep(0.01)
        for id, seed, pages in (("s2", 2, OTHERS), ("s3", 3, list(range(40, HIT + 41)))):
            request = driver.request(id, seed)
            self.assertEqual(driver.matched(request), 0)
            driver.allocate(request, pages, 0)
            for _ in range(2):
                driver.step({id: TOKENS}, pages)
            request.num_computed_tokens = TOKENS
            keys.append(driver.scheduler._scheduler._requests[id].chain.keys(0, HIT))
            if id == "s2":
                driver.finish(request, pages)
        dropped = sum((side.get_kv_connector_stats() or Stats()).data.get("dropped", 0)
                      for side in (driver.worker, driver.scheduler))
        self.assertEqual(dropped, 3 * HIT)
        self.mount.start()
        while not driver.connected():
            time.sleep(0.01)
        # s3 still runs.  The blocks of s1 and s2 are in vLLM's cache, and a request uses them.
        for seed, pages in ((1, FIRST), (2, OTHERS)):
            lost, end = 1, time.monotonic() + 60
            while lost and time.monotonic() < end:  # a slow daemon may drop a save
                driver.worker.get_kv_connector_stats()
                self.use(driver, seed, pages, {"s3": 1})
                driver.sealed()
                settled(self.mount.path)  # frees room in DRAM for the next save
                driver.step({}, [])
                lost = (driver.worker.get_kv_connector_stats() or Stats()).data.get("dropped", 0)
        self.assertEqual([space.match(some) for some in keys], [HIT, HIT, HIT])

    def test_a_lost_save_is_made_when_another_request_uses_its_blocks(self) -> None:
        driver = self.driver()
        self.begin(driver, 1)
        known = driver.scheduler._scheduler._requests["s1"]
        driver.finish(known.request, FIRST)
        self.mount.kill()
        while driver.connected():
            time.sleep(0.01)
        self.mount.start()
        while not driver.connected():
            time.sleep(0.01)
        self.use(driver, 1, FIRST, {})
        driver.sealed()
        space = driver.worker._worker._spaces.by_group[0][0]
        self.assertEqual(space.match(known.chain.keys(0, HIT)), HIT)
        self.assertEqual(driver.worker.get_kv_connector_stats().data["dropped"], HIT)

    def use(self, driver: Driver, seed: int, pages: list[int], others: dict[str, int]) -> None:
        """Do two steps of @others and of a request whose blocks are in vLLM's cache, in @pages."""
        again = driver.request(f"again{seed}", seed)
        self.assertEqual(driver.match(again, HIT * BLOCK), 0)
        again.num_computed_tokens = HIT * BLOCK
        driver.allocate(again, pages, 0)
        for _ in range(2):
            driver.step({again.request_id: 1, **others}, pages)

    def test_pages_of_a_load_and_of_a_copy_are_another_s_too(self) -> None:
        driver = self.driver(save_wait=3600)
        driver.save("s0", 0, OTHERS)
        request = driver.request("l", 0)
        self.assertEqual(driver.matched(request), HIT * BLOCK)
        self.begin(driver, 1)
        driver.allocate(request, FIRST, HIT * BLOCK)
        plan = driver.scheduler.build_connector_meta(Step({}, []))
        self.assertIn(FIRST[0], plan.fresh[0][0])
        step = Step({}, [])
        step.kv_cache_block_copies = [type("Copy", (), {"dst_block_id": 7})]
        self.assertEqual(driver.scheduler.build_connector_meta(step).fresh, [([7],)])
        self.mount.signal(signal.SIGCONT)
        self.save.wait()


class Streams(Case):
    """Loads and saves get the right stream and event; tests/gpu tests the effect."""

    def orders(self, how: str) -> list[tuple[str, int, int]]:
        """Return the stream and event that were passed to a save and to the load after it."""
        driver = self.driver(load=how)
        worker, seen = driver.worker._worker, []
        pool = worker._pools[0]

        def watched(name):
            call = getattr(pool, name)

            def wrapper(*arguments, stream=0, event=0, **options):
                seen.append((name, stream, event))
                return call(*arguments, **options)
            setattr(pool, name, wrapper)

        watched("save")
        watched("fetch")

        class Event:
            cuda_event = 0

            def record(self):
                self.cuda_event += 1

        worker._before, worker._stream = Event(), lambda: 0
        driver.save("s", 1, FIRST)
        before = worker._before.cuda_event
        request = driver.request("l", 1)
        driver.allocate(request, OTHERS, driver.matched(request))
        driver.step({"l": 1}, OTHERS)
        self.assertGreater(worker._before.cuda_event, before)
        return seen

    def test_a_save_comes_after_the_default_stream_and_a_load_after_the_pass_before(self) -> None:
        saved, loaded = self.orders("async")
        self.assertEqual(saved, ("save", 0, 0))
        self.assertEqual(loaded[:2], ("fetch", 0))
        self.assertGreater(loaded[2], 0)

    def test_a_synchronous_load_comes_after_all_of_the_stream(self) -> None:
        self.assertEqual(self.orders("sync"), [("save", 0, 0), ("fetch", 0, 0)])


class Layouts(Case):
    def test_a_page_is_one_run_in_any_order_of_its_dimensions(self) -> None:
        views = []

        def views_of(*arguments, **options):
            views.extend(found := made(*arguments, **options))
            return found

        made = kvfs.views_of
        for heads_first in True, False:
            with mock.patch("kvfs.views_of", views_of):
                driver = self.driver(heads_first=heads_first)
            page = 4 * HEADS * BLOCK * 2 * DIM
            self.assertEqual({(view.count, view.bytes) for view in views}, {(1, page)})
            wanted = self.copies(driver, FIRST)
            driver.save("s", 7 + heads_first, FIRST)
            self.loads(driver, "l", 7 + heads_first, wanted)

    def test_blocks_in_the_order_of_before_are_misses(self) -> None:
        made = kvfs.views_of
        with mock.patch("kvfs.vllm.identity.ORDER", 1), \
                mock.patch("kvfs.views_of", lambda *arguments, by_stride: made(*arguments)):
            before = self.driver(heads_first=False)
            wanted = self.copies(before, FIRST)
            before.save("s", 1, FIRST)
            self.loads(before, "l", 1, wanted)
        now = self.driver(heads_first=False)
        self.assertEqual(now.matched(now.request("l", 1)), 0)
        wanted = self.copies(now, FIRST)
        now.save("s", 1, FIRST)
        self.loads(now, "m", 1, wanted)


class Asking(Case):
    def lookups(self, driver: Driver) -> list[int]:
        """Count look-ups from now on in the only item of the returned list.  Stop the daemon after
        each one, before any block is read from SSD."""
        count, together = [0], driver.scheduler._scheduler._together
        hold, pids = together.hold, self.mount.pids()

        def counted(*arguments, **options):
            count[0] += 1
            held = hold(*arguments, **options)
            for pid in pids:  # pids were found earlier: a read takes only milliseconds
                os.kill(pid, signal.SIGSTOP)
            while not all(self.mount._stopped(pid) for pid in pids):
                pass
            return held

        together.hold = counted
        return count

    def test_the_daemon_is_asked_once_while_blocks_come_from_ssd(self) -> None:
        driver = self.driver(ssd_wait=60)
        wanted = self.copies(driver, FIRST)
        driver.save("s1", 1, FIRST)
        settled(self.mount.path)
        self.mount.stop()
        self.mount.start()
        while not driver.connected():
            time.sleep(0.05)
        count = self.lookups(driver)
        request = driver.request("r", 1)
        for _ in range(20):
            self.assertIsNone(driver.match(request))
            driver.step({}, [])
        self.mount.signal(signal.SIGCONT)
        self.assertEqual(driver.matched(request), HIT * BLOCK)
        self.assertEqual(count, [1])
        asked = re.search(r"asked +(\d+) by", statistics(self.mount.path))
        self.assertLessEqual(int(asked[1]), HIT, "where they are is asked once, too")
        driver.finish(request, FIRST)
        del driver.scheduler._scheduler._together.hold
        self.loads(driver, "l", 1, wanted)
        self.assertEqual({os.getxattr(block, "user.kvfs.hits") for block in self.mount.blocks()}, {b"2"})

    def test_a_daemon_that_hangs_holds_up_no_step_and_is_let_be_for_a_while(self) -> None:
        driver = self.driver(ssd_wait=0.6)
        wanted = self.copies(driver, FIRST)
        driver.save("s1", 1, FIRST)
        self.mount.signal(signal.SIGSTOP)
        count = self.lookups(driver)
        request = driver.request("r1", 1)
        self.assertIsNone(driver.match(request))
        self.assertEqual(driver.matched(request), 0)
        self.assertEqual(driver.match(driver.request("r2", 1)), 0)
        self.assertEqual(count, [1])
        for id in ("r1", "r2"):
            driver.finish(driver.scheduler._scheduler._requests[id].request, [])
        del driver.scheduler._scheduler._together.hold
        self.mount.signal(signal.SIGCONT)
        while (request := driver.request("r3", 1)) and driver.matched(request) == 0:
            driver.finish(request, [])
            time.sleep(0.05)
        driver.finish(request, [])
        self.loads(driver, "l", 1, wanted)

    def test_a_daemon_that_hangs_is_tried_beside_the_engine_until_it_answers(self) -> None:
        driver = self.driver(ssd_wait=0.6)
        driver.save("s1", 1, FIRST)
        settled(self.mount.path)
        for side in (driver.scheduler, driver.worker):
            side.get_kv_connector_stats()
        count, hold = [0], driver.scheduler._scheduler._together.hold

        def counted(*arguments, **options):
            count[0] += 1
            return hold(*arguments, **options)

        driver.scheduler._scheduler._together.hold = counted
        patience, trials = driver.scheduler._scheduler.patience, []
        trial = patience._trial
        patience._trial = lambda: trials.append(threading.current_thread()) or trial()
        with self.assertLogs("vllm.kvfs", "WARNING") as logs:
            self.mount.signal(signal.SIGSTOP)
            end, i = time.monotonic() + 5, 0
            first, second = driver.request("f", 1), driver.request("g", 1)
            self.assertIsNone(driver.match(first))
            time.sleep(0.3)
            self.assertIsNone(driver.match(second))
            self.assertEqual(driver.matched(first), 0)
            self.assertEqual(driver.match(second), 0, "it waits no longer than the first")
            while time.monotonic() < end:
                request = driver.request(f"r{i}", 1)
                self.assertEqual(driver.match(request), 0)
                driver.step({}, [])
                driver.finish(request, [])
                i += 1
                time.sleep(0.01)
            self.assertEqual(count, [2])
            self.assertIn(len(trials), (1, 2))  # after 1 s; then 2 s after that failed
            self.assertNotIn(threading.main_thread(), trials)
            self.assertEqual(len(logs.output), 1, logs.output)
            self.mount.signal(signal.SIGCONT)
            while driver.match(request := driver.request(f"r{i}", 1)) == 0:
                driver.finish(request, [])
                i += 1
                time.sleep(0.01)
        self.assertEqual(len(logs.output), 2, logs.output)
        self.assertIn("no look-ups until it answers", logs.output[0])
        self.assertIn("look-ups go on", logs.output[1])
        self.assertEqual(driver.scheduler.get_kv_connector_stats().data["pauses"], 1)

    def test_what_was_matched_is_not_offered_again_and_the_rest_is(self) -> None:
        driver = self.driver()
        driver.save("s1", 1, FIRST)
        settled(self.mount.path)
        plans = []
        build = driver.scheduler.build_connector_meta
        driver.scheduler.build_connector_meta = lambda output: plans.append(build(output)) or plans[-1]
        driver.load("l", 1, OTHERS)
        self.assertEqual([blocks.first for plan in plans for blocks in plan.saves], [])
        # Blocks of the engine's own cache are offered, because kvfs may have lost them.
        self.from_own_cache(driver, "own")
        self.assertEqual(plans[-1].saves, [], "it was offered just now")
        for _ in range(2):  # pass half a minute each time
            driver.scheduler._scheduler._offered._turn = 0.0
            driver.scheduler._scheduler._offered.after(b"", [], 0, 0)
        self.from_own_cache(driver, "later")
        self.assertEqual([(blocks.first, len(blocks.keys)) for blocks in plans[-1].saves], [(0, HIT)])
        driver.sealed()
        # A block that a look-up missed is saved at once, although it was offered lately.
        space = driver.worker._worker._spaces.by_group[0][0]
        request = driver.request("gone", 1)
        self.assertEqual(space.evict(driver.scheduler._scheduler._requests["later"].chain.keys(7, HIT)),
                         HIT - 7)
        self.assertEqual(driver.matched(request), 7 * BLOCK)
        driver.finish(request, OTHERS)
        self.from_own_cache(driver, "again")
        self.assertEqual([(blocks.first, len(blocks.keys)) for blocks in plans[-1].saves], [(7, HIT - 7)])
        driver.sealed()
        self.assertEqual(len(self.mount.blocks()), HIT)

    def from_own_cache(self, driver: Driver, id: str) -> None:
        """Run a request whose blocks are all in vLLM's own cache."""
        request = driver.request(id, 1)
        self.assertEqual(driver.match(request, HIT * BLOCK), 0)
        request.num_computed_tokens = HIT * BLOCK
        driver.allocate(request, FIRST, 0)
        driver.step({id: 1}, FIRST)

    def test_blocks_computed_before_a_reset_are_not_saved_after_it(self) -> None:
        driver = self.driver()
        for id, seed, kept in ("running", 1, True), ("preempted", 2, False):
            request = driver.request(id, seed, {"do_remote_decode": True})
            self.assertEqual(driver.matched(request), 0)
            driver.allocate(request, FIRST, 0)
            driver.step({id: 7 * BLOCK}, FIRST)
            driver.sealed()
            blocks = self.mount.blocks()
            request.num_computed_tokens = 7 * BLOCK if kept else 0
            driver.scheduler.reset_cache()  # vLLM has preempted all running requests before, or none
            if not kept:
                self.assertEqual(driver.matched(request), 0)
                driver.allocate(request, FIRST, 0)
            driver.step({id: TOKENS - request.num_computed_tokens}, FIRST)
            driver.sealed()
            self.assertEqual(len(self.mount.blocks()) - len(blocks), 0 if kept else HIT, id)
            self.assertEqual(driver.finish(request, FIRST) is None, kept)
            self.assertEqual(driver.matched(driver.request(f"after {id}", seed)), 0 if kept else HIT * BLOCK)

    def test_tokens_that_are_not_yet_accepted_are_in_no_saved_block(self) -> None:
        driver = self.driver()
        request = driver.request("s", 1)
        self.assertEqual(driver.matched(request), 0)
        driver.allocate(request, FIRST, 0)
        driver.step({"s": TOKENS + 4 * BLOCK}, FIRST)  # with proposals, and placeholders of asynchronous steps
        driver.sealed()
        self.assertEqual(len(self.mount.blocks()), HIT)

    def test_for_eagle_the_last_block_of_a_match_is_not_offered(self) -> None:
        driver = self.driver(ssd_wait=60)
        named, scheduler = driver.save("s", 1, FIRST, {"do_remote_decode": True}), driver.scheduler._scheduler
        scheduler._volatile, start = 1, time.monotonic()
        for id, params in ("plain", None), ("handed over", named):
            self.assertEqual(driver.matched(driver.request(id, 1, params)), (HIT - 1) * BLOCK)
        self.assertLess(time.monotonic() - start, 30, "a hand-off waits for no block beyond the last")
        self.assertEqual(driver.match(driver.request("rest", 1), (HIT - 1) * BLOCK), 0)
        self.assertIsNone(scheduler._requests["rest"].held)

    def test_blocks_that_do_not_load_are_misses_and_offered_again(self) -> None:
        driver = self.driver()
        wanted = self.copies(driver, FIRST)
        driver.save("s1", 1, FIRST)
        settled(self.mount.path)
        request = driver.request("l", 1)
        self.assertEqual(driver.matched(request), HIT * BLOCK)
        driver.allocate(request, OTHERS, HIT * BLOCK)
        space = driver.worker._worker._spaces.by_group[0][0]
        space.evict([next(iter(driver.scheduler._scheduler._requests["l"].chain.keys(5, 6)))])
        output = driver.step({}, [])
        while not output.finished_recving:
            output = driver.step({}, [])
        self.assertEqual(output.invalid_block_ids, {OTHERS[5]})
        self.assertEqual(driver.worker.get_kv_connector_stats().data["errors"], 1)
        self.assertEqual(driver.matched(request), 5 * BLOCK)
        driver.allocate(request, OTHERS, 0)  # 0: vLLM computes all tokens
        for tensor, was in zip(driver.pages.values(), wanted):
            tensor[OTHERS[:HIT]] = was
        driver.step({"l": TOKENS}, OTHERS)
        driver.sealed()
        driver.finish(request, OTHERS)
        self.assertEqual(len(self.mount.blocks()), HIT)
        self.loads(driver, "again", 1, wanted)


class Figures(Case):
    def test_the_log_says_at_start_what_is_there(self) -> None:
        first = self.driver()
        first.save("s", 1, FIRST)
        name = first.worker._worker._spaces.by_group[0][0].name
        with self.assertLogs("vllm.kvfs", "INFO") as logs:
            self.driver()
            two = configs.Core(first.config).connectors(configs.caches(
                (["layers.0"], configs.full()), (["layers.1"], configs.full())))
        for side in two:
            side.shutdown()
        lines = [line for line in logs.output if "present" in line]
        self.assertEqual(len(lines), 2, logs.output)
        size = first.worker._worker._spaces.by_group[0][0].payload
        for part in (self.mount.path, name, f"{BLOCK} tokens", f"{size} bytes", f"{HIT} present"):
            self.assertIn(part, lines[0])
        self.assertEqual(lines[1].count("0 present"), 2, "all spaces in one line")

    def hits(self) -> list[int]:
        """Return the daemon's counts of hits in DRAM and on SSD."""
        return [int(re.search(rf"^hits .*\b(\d+) from {tier}", statistics(self.mount.path), re.M)[1])
                for tier in ("dram", "ssd")]

    def test_hits_are_counted_by_tier_and_saves_and_loads_once(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        from kvfs.vllm import KvfsConnector

        driver = self.driver(ssd_wait=60)

        def stats() -> dict[str, float]:
            sides = [side.get_kv_connector_stats() for side in (driver.worker, driver.scheduler)]
            total = KvfsConnector.build_kv_connector_stats()
            for side in sides:
                if side is not None:
                    total = total.aggregate(KvfsConnector.build_kv_connector_stats(side.to_dict()))
            return total.data

        driver.save("s1", 1, FIRST)
        driver.step({}, [])
        self.assertEqual(stats(), {"saved": HIT})
        Asking.from_own_cache(self, driver, "present")
        driver.scheduler._scheduler._offered = type(driver.scheduler._scheduler._offered)()
        driver.scheduler._scheduler._requests["present"].saved = 0
        driver.step({"present": 1}, FIRST)
        driver.sealed()
        driver.step({}, [])
        self.assertEqual(stats(), {}, "what was there already was not saved")
        driver.load("l1", 1, OTHERS)
        found = stats()
        self.assertGreater(found.pop("load_seconds"), 0)
        self.assertEqual(found, {"dram_hits": HIT, "loads": 1})
        self.assertIn(f"hits      {HIT} from dram, 0 from ssd", statistics(self.mount.path))
        settled(self.mount.path)
        self.mount.stop()
        self.mount.start()
        while not driver.connected():
            time.sleep(0.05)
        request = driver.request("l2", 1)
        known = driver.scheduler._scheduler._requests["l2"]
        known.known()
        driver.worker._worker._spaces.by_group[0][0].prefetch(known.chain.keys(0, 5)).wait()
        before = self.hits()
        with mock.patch("kvfs.vllm.scheduler.DRAM_WAIT", 10.0):  # as if the SSD were fast
            hit = driver.matched(request)
        self.assertEqual(driver.scheduler._scheduler.sources(request, hit), ((HIT - 5) * BLOCK, 0))
        if hasattr(KVConnectorBase_V1, "get_external_cache_hit_sources"):  # not in vLLM 0.31
            from vllm.v1.metrics.cache_hit_source import CacheHitSource

            self.assertEqual(driver.scheduler.get_external_cache_hit_sources(request, hit),
                             {CacheHitSource.HOST: 5 * BLOCK, CacheHitSource.DISK: (HIT - 5) * BLOCK})
        driver.allocate(request, OTHERS, hit)
        self.assertEqual({"dram_hits": 5, "ssd_hits": HIT - 5},
                         {what: n for what, n in stats().items() if "hits" in what})
        self.assertEqual([now - then for now, then in zip(self.hits(), before)], [5, HIT - 5])

        registry = CollectorRegistry()
        types = {cls: lambda cls=cls, **kwargs: cls(registry=registry, **kwargs)
                 for cls in (Counter, Gauge, Histogram)}
        metrics = KvfsConnector.build_prom_metrics(
            driver.config, types, ["engine"], {0: ["0"]})
        metrics.observe({"saved": 3, "load_seconds": 0.5})
        self.assertEqual(registry.get_sample_value("vllm:kvfs_saved_total", {"engine": "0"}), 3)
        self.assertEqual(registry.get_sample_value("vllm:kvfs_load_seconds_total", {"engine": "0"}), 0.5)

    def test_a_release_of_vllm_that_lacks_something_is_refused(self) -> None:
        from vllm.v1.core.sched.output import SchedulerOutput
        from kvfs import release
        from kvfs.vllm import ADDED, TESTED, KvfsConnector
        from kvfs.vllm.connector import USED

        def check() -> None:
            release.check("vLLM", "0.99.1", TESTED, KvfsConnector, USED, ADDED)

        check()
        fields = dict(SchedulerOutput.__dataclass_fields__)
        del fields["num_scheduled_tokens"]
        method, changed = KVConnectorBase_V1.handle_preemptions, lambda self, forward_context, more: None
        for patch, lack in ((mock.patch.object(SchedulerOutput, "__dataclass_fields__", fields),
                             "SchedulerOutput.num_scheduled_tokens"),
                            (mock.patch.object(KVConnectorBase_V1, "start_load_kv", changed), "start_load_kv with known arguments"),
                            (contextlib.ExitStack(), "handle_preemptions")):
            with patch, self.assertRaises(RuntimeError) as caught:
                if isinstance(patch, contextlib.ExitStack):
                    patch.callback(setattr, KVConnectorBase_V1, "handle_preemptions", method)
                    del KVConnectorBase_V1.handle_preemptions
                check()
            self.assertEqual(str(caught.exception),
                             f"kvfs: vLLM 0.99.1 cannot be used: it lacks {lack} (tested: 0.31, 0.32)")
        script = ("import sys, vllm; vllm.__version__ = '0.99.1'\n"
                  "for missing in ('vllm.v1.request', 'vllm.v1.kv_offload.tiering.base'):\n"
                  "    sys.modules[missing] = None\n"
                  "    try:\n"
                  "        import kvfs.vllm.tier\n"
                  "    except RuntimeError as error:\n"
                  "        print(error)\n"
                  "    del sys.modules[missing]\n")
        run = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
        lines = [line for line in run.stdout.splitlines() if line.startswith("kvfs: vLLM 0.99.1 cannot be used: ")]
        self.assertEqual(len(lines), 2, run.stdout + run.stderr[-2000:])


class TokenIds(Case):
    def test_a_space_that_keeps_them_lists_the_prompt(self) -> None:
        driver = self.driver(token_ids=True)
        for id, salt in (("plain", None), ("salted", "s")):
            request = driver.request(id, 1, cache_salt=salt)
            self.assertEqual(driver.matched(request), 0)
            driver.allocate(request, FIRST, 0)
            driver.step({id: TOKENS}, FIRST)
            driver.sealed()
            driver.finish(request, FIRST)
        wanted = prompt(1, TOKENS)
        space = driver.worker._worker._spaces.by_group[0][0]
        found: dict[bytes, list] = {}
        for key, told in space.blocks():
            found.setdefault(told.extras, []).append((told.position, key, told.parent, told.ids))
        self.assertEqual(set(found), {b"", b'{"cache_salt": "s"}'})
        for blocks in found.values():
            blocks.sort()
            self.assertEqual([at for at, *_ in blocks], list(range(HIT)))
            self.assertEqual([key for _, key, *_ in blocks[:-1]], [parent for *_, parent, _ in blocks[1:]])
            self.assertEqual([id for *_, ids in blocks for id in ids], wanted[:HIT * BLOCK])

    def test_without_the_setting_there_are_none(self) -> None:
        driver = self.driver()
        driver.save("s", 1, FIRST)
        self.assertFalse(driver.worker._worker._spaces.by_group[0][0].keeps_tokens)


class Events(Case):
    """`media` has the parent and tokens of each block in each medium, as a router of vLLM's events."""

    def setUp(self) -> None:
        self.mount = Mount("dram=512M,ssd=2G")  # no block is evicted
        self.addCleanup(self.mount.remove)
        self.media: dict[str, dict[int, tuple[int | None, list[int]]]] = {"CPU": {}, "STORAGE": {}}

    def driver(self, **extra) -> Driver:
        from vllm.config.kv_events import KVEventsConfig

        published = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        with mock.patch.object(configs, "engine", functools.partial(configs.engine, kv_events_config=published)):
            return super().driver(**extra)

    def takes(self, driver: Driver, cpu: int, storage: int) -> None:
        """Take events until the media have so many blocks."""
        end = time.monotonic() + 30
        while (held := [len(blocks) for blocks in self.media.values()]) != [cpu, storage]:
            self.assertLess(time.monotonic(), end, held)
            for event in driver.scheduler.take_events():
                if isinstance(event, BlockRemoved):
                    del self.media[event.medium][event.block_hashes[0]]
                else:
                    self.assertEqual(event.block_size, len(event.token_ids))
                    self.media[event.medium][event.block_hashes[0]] = event.parent_block_hash, event.token_ids
            time.sleep(0.01)

    def blocks(self, driver: Driver, seed: int) -> dict[int, tuple[int | None, list[int]]]:
        """Return the hashes, parents and tokens of a prompt's blocks, as vLLM publishes them."""
        request = driver.request(f"hashes {seed}", seed)
        hashes = [maybe_convert_block_hash(hash) for hash in request.block_hashes[:HIT]]
        ids = prompt(seed, TOKENS)
        return {hash: (hashes[i - 1] if i else None, ids[i * BLOCK:i * BLOCK + BLOCK]) for i, hash in enumerate(hashes)}

    def test_the_engines_blocks_are_told_with_its_hashes_until_they_are_gone(self) -> None:
        driver = self.driver()
        driver.save("s", 1, FIRST)
        settled(self.mount.path)
        self.takes(driver, HIT, HIT)
        self.assertEqual(self.media["CPU"], self.blocks(driver, 1))
        self.assertEqual(self.media["STORAGE"], self.blocks(driver, 1))
        for path in self.mount.blocks()[:2]:
            os.unlink(path)
        self.takes(driver, HIT - 2, HIT - 2)
        salted = driver.request("salted", 3, cache_salt="x")
        driver.matched(salted)
        driver.allocate(salted, FIRST, 0)
        driver.step({"salted": TOKENS}, FIRST)
        other = self.driver()  # an engine learns of others' blocks only if the space keeps tokens
        other.save("o", 2, FIRST)
        settled(self.mount.path)
        time.sleep(1)
        self.takes(driver, HIT - 2, HIT - 2)
        driver.scheduler.reset_cache()
        self.takes(driver, 0, 0)
        driver.save("again", 4, FIRST)
        settled(self.mount.path)
        self.assertEqual(driver.scheduler.take_events(), [])

    def test_a_block_is_known_also_while_it_is_named_again(self) -> None:
        from kvfs.vllm import events

        blocks, space, stop = events.Events([]), mock.Mock(keeps_tokens=False), threading.Event()
        keys = [bytes([i]) * 16 for i in range(4)]

        def name() -> None:
            while not stop.is_set():
                blocks.know(None, keys, list(range(64)))

        blocks.know(None, keys, list(range(64)))
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        naming = threading.Thread(target=name)
        naming.start()
        try:
            self.assertEqual(sum(not blocks._known(space, keys[0]) for _ in range(100000)), 0)
        finally:
            stop.set()
            naming.join()

    def test_with_token_ids_all_blocks_are_told_and_those_before_the_start(self) -> None:
        other = self.driver(token_ids=True)
        other.save("o", 1, FIRST)
        settled(self.mount.path)
        driver = self.driver(token_ids=True)
        self.takes(driver, HIT, HIT)
        other.save("p", 2, OTHERS)
        settled(self.mount.path)
        self.takes(driver, 2 * HIT, 2 * HIT)
        wanted = self.blocks(driver, 1) | self.blocks(driver, 2)
        self.assertEqual(self.media, {"CPU": wanted, "STORAGE": wanted})
        self.mount.kill()
        self.takes(driver, 0, 0)
        self.mount.start()
        self.takes(driver, 0, 2 * HIT)
        self.mount.signal(signal.SIGSTOP)
        start = time.monotonic()
        for _ in range(100):
            driver.scheduler.take_events()
        self.assertLess(time.monotonic() - start, 0.5, "a step has waited for the daemon")
        self.mount.signal(signal.SIGCONT)

    def test_a_tier_names_the_blocks_that_it_has_stored_until_they_are_gone(self) -> None:
        from kvfs.vllm import tier

        session = kvfs.open(self.mount.path)
        space = session.space("tier", {"tensors": [{"name": "kv", "dtype": "U8", "shape": [4096]}]}, create=True)
        data = torch.zeros(8, 4096, dtype=torch.uint8)
        pool = session.pool(space, [kvfs.View("kv", data.data_ptr(), 4096, 4096)], 8, keep=data)
        events = tier.Events(space, tier.Locality.LOCAL)
        self.addCleanup(events.end)
        keys = [os.urandom(32) + bytes(4) for _ in range(8)]
        folded = [kvfs.fold(key) for key in keys]

        def takes(removed: bool, wanted: list[bytes]) -> None:
            found: set[bytes] = set()
            end = time.monotonic() + 30
            while found != set(wanted) and time.monotonic() < end:
                for event in events.take():
                    self.assertEqual((event.removed, event.medium.value, event.ownership), (removed, "STORAGE", "kvfs"))
                    found |= set(event.keys)
                time.sleep(0.01)
            self.assertEqual(found, set(wanted))

        events.know(keys[:4])
        pool.save(space, folded, range(8)).wait()
        takes(False, keys[:4])
        space.evict(folded[:2] + folded[6:])
        takes(True, keys[:2])
        events.end()
        takes(True, keys[2:4])

    def test_without_events_nothing_is_followed(self) -> None:
        driver = Driver(model, self.mount.path)
        self.addCleanup(driver.close)
        self.assertIsNone(driver.scheduler._scheduler._events)
        self.assertEqual(driver.scheduler.take_events(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
