# SPDX-License-Identifier: Apache-2.0
"""Changes of a space's tiers, as a program gets them, and as `kvfs events --zmq` publishes them."""
from __future__ import annotations

import errno
import random
import time
import unittest

import kvfs
from test_kvfs import Case, names


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
        self.assertIn(entry.used - before, range(60))

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


if __name__ == "__main__":
    unittest.main(verbosity=2)
