# SPDX-License-Identifier: Apache-2.0
"""patience - what a daemon that hangs may cost an engine."""
from __future__ import annotations

import time

SLOW = 0.5
LONGEST = 30.0


class Patience:
    """A look-up at a hung daemon takes a second and misses.  After one that was slow
    nobody is asked for a second, then two, ... and half a minute at most."""

    def __init__(self) -> None:
        self._until = 0.0
        self._pause = 1.0

    @property
    def left(self) -> bool:
        return time.monotonic() >= self._until

    def took(self, seconds: float) -> None:
        if seconds < SLOW:
            self._pause = 1.0
            return
        self._until = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST)
