# SPDX-License-Identifier: Apache-2.0
"""errors - libkvfs's negative numbers as exceptions."""
from __future__ import annotations

import operator
import os
from collections.abc import Iterable


class Error(OSError):
    """An error of libkvfs: `errno` as in OSError, `key` the block's name in hex or None."""

    errno: int

    def __init__(self, errno: int, what: str, key: str | None = None, why: str = "") -> None:
        text = os.strerror(errno) + (f" ({why})" if why else "")
        super().__init__(errno, f"{what}: block {key}: {text}" if key else f"{what}: {text}")
        self.key = key


def check(result: int, what: str) -> int:
    """Return @result; raise Error if it is negative."""
    if result < 0:
        raise Error(-result, what)
    return result


U32, U64 = (0, 2**32 - 1), (0, 2**64 - 1)
I32, I64 = (-2**31, 2**31 - 1), (-2**63, 2**63 - 1)


def not_c(error: Exception, **given: tuple[object, tuple[int, int]]) -> Exception:
    """Return the exception to raise for an @error of cffi's: it names the argument that is no
    number, or out of bounds."""
    for name, (value, (least, most)) in given.items():
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            return TypeError(f"{name} is {value!r}, not a whole number")
        if not least <= number <= most:
            return ValueError(f"{name} is {number}, not {least} to {most}")
    return error


def numbers_not_c(error: Exception, what: str, values: Iterable[object], bounds: tuple[int, int]
                  ) -> Exception:
    """Return not_c's exception for the first of @values that is no number or out of bounds."""
    for value in values:
        if (found := not_c(error, **{what: (value, bounds)})) is not error:
            return found
    return error


def text(what: str, value: str) -> bytes:
    """Return @value as bytes for C.  A NUL is refused, because it would end the string."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is {value!r}, not a string")
    if "\0" in value:
        raise ValueError(f"{what} has a NUL in it: {value!r}")
    return value.encode()
