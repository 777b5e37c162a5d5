# SPDX-License-Identifier: Apache-2.0
"""Changes of a space's tiers, as a program gets them, and as `kvfs events --zmq` publishes them."""
from __future__ import annotations

import errno
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import kvfs
import msgspec
import zmq
from kvfs import events
from mount import BUILD
from test_kvfs import LAYOUT, Case, names


class Changes(Case):
    """`view` has the bytes of each block in DRAM and on SSD, by the changes that `follow` reads."""

    def setUp(self) -> None:
        super().setUp()
        self.pages, _, _ = self.pool()
        self.view: dict[bytes, tuple[int, int]] = {}
        self.again = 0
        self.changes = self.space.changes(0.02)

    def listed(self) -> dict[bytes, tuple[int, int]]:
        return {entry.key: (entry.dram, entry.ssd) for some in self.space.entries() for entry in some}

    def follow(self) -> None:
        """Read changes until there are none."""
        while (entries := next(self.changes)) != []:
            if entries is None:
                self.again += 1
                self.view = self.listed()
                continue
            for entry in entries:
                self.view[entry.key] = entry.dram, entry.ssd
                if not entry.dram and not entry.ssd:
                    del self.view[entry.key]

    def check_view(self) -> None:
        """Compare with a listing.  Write-back may change tiers between the two: then compare again."""
        for _ in range(100):
            self.follow()
            if self.view == (listed := self.listed()):
                return
            time.sleep(0.05)
        self.assertEqual(self.view, listed)

    def test_after_random_changes_the_view_is_that_of_a_listing_and_of_a_look_up(self) -> None:
        keys, dice = names(64), random.Random(1)
        self.check_view()
        for i in range(10000):
            key = dice.choice(keys)
            if dice.random() < 0.5:
                self.pages.save(self.space, [key], [i % 32]).wait()
            else:
                try:
                    self.space.evict([key])
                except kvfs.Error as error:
                    self.assertEqual(error.errno, errno.ENOENT)
            if i % 500 == 0:
                self.check_view()
        self.check_view()
        self.assertEqual(self.again, 1)
        self.assertEqual({key for key in keys if self.space.match([key])}, set(self.view))
        self.space.clear()
        self.check_view()
        self.assertEqual(self.view, {})

    def test_an_entry_has_the_facts_of_a_block(self) -> None:
        self.follow()
        before = int(time.time())
        self.pages.save(self.space, names(3), range(3)).wait()
        entry = next(entry for entry in next(self.changes) if entry.key == names(3)[1])
        self.assertEqual((entry.parent, entry.position, entry.tokens, entry.hits, entry.pinned),
                         (names(3)[0], 1, 16, 0, False))
        self.assertGreater(entry.dram, 12288)
        self.assertIn(entry.used - before, range(-2, 60))

    def test_a_subscriber_that_has_not_read_for_long_lists_again(self) -> None:
        self.check_view()
        for _ in range(1100):  # 64 changes each
            self.pages.save(self.space, names(32), range(32)).wait()
            self.space.evict(names(32))
        self.pages.save(self.space, names(2), range(2)).wait()
        self.check_view()
        self.assertEqual(self.again, 2)
        self.assertEqual(set(self.view), set(names(2)))

    def test_after_the_daemons_death_a_new_subscription_lists_again(self) -> None:
        self.pages.save(self.space, names(4), range(4)).wait()
        self.space.flush().wait()
        self.check_view()
        self.mount.kill()
        with self.assertRaises(kvfs.Error) as caught:
            for _ in range(300):
                next(self.changes)
        self.assertEqual(caught.exception.errno, errno.ENOTCONN)
        with self.assertRaises(StopIteration):
            next(self.changes)
        self.mount.start()
        self.changes = self.space.changes(0.02)
        for _ in range(300):
            if self.session.connected:
                break
            time.sleep(0.05)
        self.check_view()
        self.assertEqual(set(self.view), set(names(4)))
        self.space.remove()
        with self.assertRaisesRegex(kvfs.Error, "changes of model: No such file"):
            self.follow()

    def test_a_wait_ends_with_the_first_change(self) -> None:
        changes = self.space.changes(30)
        self.assertIsNone(next(changes))
        self.pages.save(self.space, names(1), [0]).wait()
        start = time.monotonic()
        self.assertEqual({entry.key for entry in next(changes)}, set(names(1)))
        self.assertLess(time.monotonic() - start, 20)
        self.space.close()
        with self.assertRaisesRegex(ValueError, "this space is closed"):
            next(changes)
        with self.assertRaisesRegex(TypeError, "is not a time"):
            next(self.session.space("model").changes("1"))


# ---- vLLM's events, as its subscribers define them ----

class BlockStored(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None


class BlockRemoved(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str


class AllBlocksCleared(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


DECODER = msgspec.msgpack.Decoder(tuple[float, list[BlockStored | BlockRemoved | AllBlocksCleared], int])


class Router:
    """A subscriber.  `media` has the parent and tokens of each block in each medium.  If a message
    was lost, the router asks for it."""

    def __init__(self, urls: list[str], topic: str = "") -> None:
        context = zmq.Context.instance()
        self.sub, self.ask = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.sub.subscribe(topic)
        for socket, url in zip((self.sub, self.ask), urls):
            socket.linger = 0
            socket.connect(url)
        self.next = 0
        self.topic = topic.encode()
        self.forget()

    def forget(self) -> None:
        self.media: dict[str, dict[int, tuple[int | None, list[int]]]] = {"CPU": {}, "STORAGE": {}}

    def apply(self, message: bytes) -> None:
        _, found, rank = DECODER.decode(message)
        assert rank == 0
        for event in found:
            if isinstance(event, AllBlocksCleared):
                self.forget()
            elif isinstance(event, BlockRemoved):
                for hash in event.block_hashes:
                    self.media[event.medium].pop(hash, None)
            else:
                assert event.block_size == len(event.token_ids)
                self.media[event.medium][event.block_hashes[0]] = event.parent_block_hash, event.token_ids

    def replay(self, first: int) -> None:
        """Ask for the messages from @first on, and apply them."""
        self.ask.send_multipart([b"", first.to_bytes(8, "big")])
        while True:
            assert self.ask.poll(60000), "no replay"
            _, number, message = self.ask.recv_multipart()
            if number == b"\xff" * 8:
                return
            self.apply(message)
            self.next = int.from_bytes(number, "big") + 1

    def read(self, wait: float = 0.3) -> None:
        while self.sub.poll(int(1000 * wait)):
            topic, number, message = self.sub.recv_multipart()
            assert topic == self.topic
            at = int.from_bytes(number, "big")
            if at > self.next:
                self.replay(self.next)
            if at >= self.next:
                self.apply(message)
                self.next = at + 1

    def close(self) -> None:
        self.sub.close()
        self.ask.close()


def hash_of(key: bytes) -> int:
    return int.from_bytes(key, "big") & (1 << 64) - 1


class Publishing(Case):
    def setUp(self) -> None:
        super().setUp()
        self.space = self.session.space("kept", {**LAYOUT, "token_ids": True}, create=True)
        self.pages, _, _ = self.pool()
        self.keys = names(64)
        self.ids = {key: list(range(1000 * i, 1000 * i + 16)) for i, key in enumerate(self.keys)}
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.urls = [f"ipc://{folder.name}/{name}" for name in ("events", "replay")]

    def publish(self, space: str = "kept", *options: str) -> subprocess.Popen[str]:
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        one = subprocess.Popen([f"{BUILD}/kvfs", "events", space, "-p", self.mount.path, "--zmq", self.urls[0], "--replay",
                                self.urls[1], *options], stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path})
        self.addCleanup(one.wait)
        self.addCleanup(one.stdout.close)
        self.addCleanup(one.kill)
        self.assertEqual([one.stdout.readline().strip() for _ in self.urls], self.urls)
        return one

    def router(self, topic: str = "") -> Router:
        router = Router(self.urls, topic)
        self.addCleanup(router.close)
        return router

    def change(self, n: int, seed: int) -> None:
        dice = random.Random(seed)
        for i in range(n):
            at = dice.randrange(64)
            key = self.keys[at]
            if dice.random() < 0.5:
                place = (self.keys[at - 1], at) if at else (None, 0)
                self.pages.save(self.space, [key], [i % 32], tokens=[self.ids[key]], places=[place]).wait()
            else:
                try:
                    self.space.evict([key])
                except kvfs.Error as error:
                    self.assertEqual(error.errno, errno.ENOENT)

    def wanted(self) -> dict[str, dict[int, tuple[int | None, list[int]]]]:
        def told(held: str) -> dict[int, tuple[int | None, list[int]]]:
            return {hash_of(entry.key): (hash_of(self.keys[at - 1]) if (at := self.keys.index(entry.key)) else None,
                                         self.ids[entry.key])
                    for some in self.space.entries() for entry in some if getattr(entry, held)}
        return {"CPU": told("dram"), "STORAGE": told("ssd")}

    def agrees(self, router: Router) -> None:
        for _ in range(100):
            router.read()
            if router.media == (wanted := self.wanted()):
                return
        self.assertEqual(router.media, wanted)

    def test_a_routers_view_is_that_of_a_listing_through_kills_of_all(self) -> None:
        self.change(100, 1)
        publisher = self.publish()
        router = self.router()
        router.replay(0)
        self.agrees(router)
        for seed in range(2, 12):
            self.change(1000, seed)
            self.agrees(router)
        late = self.router()  # a router that was killed and starts again
        late.replay(0)
        self.agrees(late)
        publisher.kill()
        publisher.wait()
        self.change(100, 12)
        publisher = self.publish()
        self.agrees(router)  # without a request of its own
        self.agrees(late)
        publisher.send_signal(signal.SIGSTOP)
        self.change(1000, 13)
        publisher.send_signal(signal.SIGCONT)
        self.agrees(router)
        self.mount.kill()
        for _ in range(300):
            router.read()
            if router.media == {"CPU": {}, "STORAGE": {}}:
                break
        self.assertEqual(router.media, {"CPU": {}, "STORAGE": {}})
        self.mount.start()
        while not self.session.connected:
            time.sleep(0.05)
        self.agrees(router)
        self.change(300, 14)
        self.agrees(router)
        self.agrees(late)
        self.space.remove()
        self.assertEqual(publisher.wait(60), 1)
        router.read(1)
        self.assertEqual(router.media, {"CPU": {}, "STORAGE": {}})

    def test_a_router_that_starts_between_changes_is_right_within_seconds(self) -> None:
        self.change(20, 1)
        self.publish()
        late = self.router()
        for _ in range(60):
            late.read(0.5)
            if late.next:
                break
        self.assertEqual(late.media, self.wanted())
        self.assertTrue(late.media["CPU"])

    def test_blocks_that_tokens_alone_do_not_name_are_left_out(self) -> None:
        self.publish("kept", "--topic", "kv@pod")
        router = self.router("kv@pod")
        two = self.keys[:2]
        self.pages.save(self.space, two, range(2), tokens=[self.ids[key] for key in two], extras=[b"", b"adapter"]).wait()
        for _ in range(50):
            router.read()
            if router.media["STORAGE"]:
                break
        self.assertEqual(list(router.media["CPU"]), [hash_of(two[0])])
        self.assertEqual(list(router.media["STORAGE"]), [hash_of(two[0])])

    def test_without_token_ids_events_name_hashes(self) -> None:
        space = self.session.space("model", LAYOUT)
        pages, _, _ = Case.pool(mock.Mock(session=self.session, space=space))
        pages.save(space, self.keys[:2], range(2)).wait()
        self.publish("model")
        router = self.router()
        router.replay(0)
        self.assertEqual(router.media["CPU"], {hash_of(key): (None, []) for key in self.keys[:2]})

    def test_a_block_without_tokens_in_one_tier_is_still_known_in_the_other(self) -> None:
        told, key = events.Told(2), self.keys[0]
        self.assertEqual(told.note({key: 1}), [])
        self.assertEqual(told.note({key: 1}, 1), [(key, "CPU", True)])
        told.note({key: 3})
        self.assertEqual(told.note({key: 3}, 1), [(key, "STORAGE", True)])
        told.forget(key, "STORAGE", 1)
        self.assertEqual(told.note({key: 0}), [(key, "CPU", False)])
        self.assertEqual(told.note({key: 3}), [(key, "CPU", True)])
        self.assertEqual(told.note({key: 3}, 1), [(key, "STORAGE", True)])
        self.assertEqual(told.note({}, 1, True), [(key, "CPU", False), (key, "STORAGE", False)])
        self.assertEqual(told.note({}, 0, True), [])

    def test_messages_that_are_not_kept_cost_a_new_beginning(self) -> None:
        with mock.patch.object(events, "KEPT", 2000):
            out = events.Publisher(*self.urls, "")
        router = self.router()

        def asked() -> bool:
            router.ask.send_multipart([b"", (0).to_bytes(8, "big")])
            self.assertTrue(out._replay.poll(5000))
            return out.answer()

        with mock.patch.object(events, "KEPT", 2000):
            for key in self.keys:  # the listing is kept, however long
                out.send([events.stored(key, "CPU", None, self.ids[key])])
            out.listed()
        self.assertTrue(asked())
        for _ in range(4):
            for key in self.keys:
                out.send([events.removed([key], "CPU"), events.stored(key, "STORAGE", None, self.ids[key])])
        self.assertFalse(asked())
        self.assertFalse(out.answer(), "the request was not forgotten")
        out.begin()
        self.assertTrue(out.answer())
        for _ in range(3):
            router.ask.recv_multipart() if router.ask.poll(1000) else None
        for wrong in ([b"x"], [b"", b"123"], [b"", b"", b""]):
            router.ask.send_multipart(wrong)
        self.assertTrue(asked())
        out._out.close()
        out._replay.close()

    def test_a_router_that_does_not_read_its_replays_costs_the_memory_of_one(self) -> None:
        with mock.patch.object(events, "QUEUED", 4):
            out = events.Publisher(*self.urls, "")
        big = [events.removed([key] * 20000, "CPU") for key in self.keys[:40]]  # 180 KB each
        for event in big:
            out.send([event])
        router = self.router()
        for _ in range(20):
            router.ask.send_multipart([b"", (0).to_bytes(8, "big")])
        end, numbers = (1 << 64) - 1, []
        for _ in range(100):
            self.assertTrue(out.answer())
            time.sleep(0.02)
        self.assertLessEqual(len(out._asked), 1)
        for _ in range(400):
            self.assertTrue(out.answer())
            while router.ask.poll(5):
                numbers.append(int.from_bytes(router.ask.recv_multipart()[1], "big"))
            if numbers[-1:] == [end]:
                break
        self.assertEqual(numbers.count(end), 1)
        self.assertEqual(sorted(set(numbers[:-1])), [number for number, _ in out._sent])
        # One that reads too slowly gets no more, and lists nothing again for the others.
        router.ask.send_multipart([b"", (0).to_bytes(8, "big")])
        self.assertTrue(out._replay.poll(5000))
        self.assertTrue(out.answer())
        self.assertEqual([begun for _, begun in out._asked.values()], [True])
        out._most = 1000000
        for event in big:
            out.send([event])
        self.assertTrue(out.answer())
        self.assertEqual(out._asked, {})
        out._out.close()
        out._replay.close()

    def test_an_address_of_ipv6_is_bound(self) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as error:
            self.skipTest(f"no IPv6: {error}")
        out = events.Publisher("tcp://[::1]:*", "tcp://[::]:*", "")
        self.addCleanup(out._out.close)
        self.addCleanup(out._replay.close)
        for url in out.urls:
            self.assertRegex(url, r"^tcp://\[::1?\]:[0-9]+$")

    def test_addresses_that_cannot_be_are_refused_in_one_line(self) -> None:
        for options, line in ((["--zmq", "tcp://*:x"], "tcp://*:x: Invalid argument"), (["--zmq", "x"], "x: Invalid argument"),
                              (["--replay", "tcp://*:1"], "--replay and --topic need --zmq")):
            path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
            done = subprocess.run([f"{BUILD}/kvfs", "events", "kept", "-p", self.mount.path, *options], capture_output=True,
                                  text=True, timeout=60, env={**os.environ, "PATH": path})
            self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", f"kvfs events: {line}\n"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
