# SPDX-License-Identifier: Apache-2.0
"""errors - libkvfs's negative numbers as exceptions."""
from __future__ import annotations

import os


class Error(OSError):
    """What libkvfs answered: `errno` as ever, `key` the block's name in hex or None."""

    errno: int

    def __init__(self, errno: int, what: str, key: str | None = None) -> None:
        text = os.strerror(errno)
        super().__init__(errno, f"{what}: block {key}: {text}" if key else f"{what}: {text}")
        self.key = key


def check(result: int, what: str) -> int:
    """@result, unless it is an error."""
    if result < 0:
        raise Error(-result, what)
    return result
