# SPDX-License-Identifier: Apache-2.0
"""KvfsConnector's two sides step by step on a real mount, without a model: moments that an
engine does not wait for."""
from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
import unittest

from steps import BLOCK, HIT, TOKENS, Driver, Step

import torch
from kvfs import Stage

from engines import prompt, settled
from models import make
from mount import Mount

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
        """All of the prompt is loaded, to other pages, as it was saved."""
        asked = driver.load(id, seed, OTHERS)
        for tensor, was in zip(driver.pages.values(), wanted):
            self.assertTrue(torch.equal(tensor[OTHERS[:HIT]], was))
        return asked


class Saves(Case):
    def begin(self, driver: Driver, seed: int) -> None:
        """A save that has begun, from FIRST, and cannot get on."""
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
            tensor[FIRST] = 0  # as the other's forward pass would
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
        # It is not there; or, if the daemon had it by then, as it was.
        self.assertEqual(self.mount.blocks(), [])

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


class Asking(Case):
    def lookups(self, driver: Driver) -> list[int]:
        """How often the daemon is asked from now on, in the list's only item.  After that
        it hangs, before any block comes from SSD."""
        count, together = [0], driver.scheduler._scheduler._together
        hold, pids = together.hold, self.mount.pids()

        def counted(*arguments, **options):
            count[0] += 1
            held = hold(*arguments, **options)
            for pid in pids:  # found before: the blocks take some milliseconds
                os.kill(pid, signal.SIGSTOP)
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
        driver.finish(request, FIRST)
        del driver.scheduler._scheduler._together.hold
        self.loads(driver, "l", 1, wanted)

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

    def test_what_was_matched_is_not_offered_again_and_the_rest_is(self) -> None:
        driver = self.driver()
        driver.save("s1", 1, FIRST)
        settled(self.mount.path)
        plans = []
        build = driver.scheduler.build_connector_meta
        driver.scheduler.build_connector_meta = lambda output: plans.append(build(output)) or plans[-1]
        driver.load("l", 1, OTHERS)
        self.assertEqual([blocks.first for plan in plans for blocks in plan.saves], [])
        # What the engine's own cache has is offered, as kvfs may have lost it.
        self.from_own_cache(driver, "own")
        self.assertEqual(plans[-1].saves, [], "it was offered just now")
        for _ in range(2):  # a half minute each
            driver.scheduler._scheduler._offered._turn = 0.0
            driver.scheduler._scheduler._offered.after(b"", [], 0, 0)
        self.from_own_cache(driver, "later")
        self.assertEqual([(blocks.first, len(blocks.keys)) for blocks in plans[-1].saves], [(0, HIT)])
        driver.sealed()
        # What a look-up misses is offered at once, whenever it was before.
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
        """A request all of whose blocks vLLM has in pages."""
        request = driver.request(id, 1)
        self.assertEqual(driver.match(request, HIT * BLOCK), 0)
        request.num_computed_tokens = HIT * BLOCK
        driver.allocate(request, FIRST, 0)
        driver.step({id: 1}, FIRST)

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
        self.assertEqual(driver.matched(request), 5 * BLOCK)
        driver.allocate(request, OTHERS, 0)  # and vLLM computes all
        for tensor, was in zip(driver.pages.values(), wanted):
            tensor[OTHERS[:HIT]] = was
        driver.step({"l": TOKENS}, OTHERS)
        driver.sealed()
        driver.finish(request, OTHERS)
        self.assertEqual(len(self.mount.blocks()), HIT)
        self.loads(driver, "again", 1, wanted)


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


if __name__ == "__main__":
    unittest.main(verbosity=2)
