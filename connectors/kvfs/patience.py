# SPDX-License-Identifier: Apache-2.0
"""patience - limits how long a hung daemon delays an engine."""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

SLOW = 0.5
LONGEST = 30.0


class Patience:
    """A circuit breaker.  A look-up at a hung daemon takes a second and misses.  After a slow
    look-up a pause begins, in which the engine sends no requests.  A second later a thread
    calls @trial, which raises an error if the daemon does not answer; after each error the
    next call comes after 2 seconds, 4, ... and half a minute at most.  @log gets a warning
    when a pause of @what begins, and when the daemon has answered, which ends the pause."""

    def __init__(self, log: logging.Logger, what: str, trial: Callable[[], object]) -> None:
        self._log = log
        self._what = what
        self._trial = trial
        self._until = 0.0  # time of the next trial; 0: there is no pause
        self._wait = 1.0  # seconds between the next trial and the one after it
        self._trying = False
        self._ended = 0.0  # time when the last pause ended
        self._pauses = 0

    @property
    def left(self) -> bool:
        """Return whether there is no pause. Start a trial if one is due."""
        if self._until and not self._trying and time.monotonic() >= self._until:
            self._trying = True
            threading.Thread(target=self._try, daemon=True).start()
        return self._until == 0

    def _try(self) -> None:
        try:
            self._trial()
        except (OSError, ValueError):  # the daemon did not answer, or the session was closed
            self._until = self._next()
        else:
            self._ended = time.monotonic()
            self._until = 0.0
            self._log.warning("kvfs: the daemon has answered: %s go on", self._what)
        self._trying = False

    def _next(self) -> float:
        wait, self._wait = self._wait, min(2 * self._wait, LONGEST)
        return time.monotonic() + wait

    @property
    def rest(self) -> float:
        """Return the seconds until the pause may be over; 0: there is no pause."""
        return 0.0 if self.left else max(0.1, self._until - time.monotonic())

    def new_pauses(self) -> int:
        """Return the number of pauses since the last call."""
        n, self._pauses = self._pauses, 0
        return n

    def took(self, seconds: float) -> None:
        """Note how long the engine waited.  Pauses in quick succession grow, because a daemon
        with a hung disk still answers trials."""
        if seconds < SLOW or self._until:
            return
        if time.monotonic() - self._ended > LONGEST:
            self._wait = 1.0
        self._pauses += 1
        self._log.warning("kvfs: the daemon made the engine wait for %.1f s: no %s until it answers",
                          seconds, self._what)
        self._until = self._next()
