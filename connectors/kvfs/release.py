# SPDX-License-Identifier: Apache-2.0
"""release - whether an engine's release has what a connector uses of it."""
from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Collection, Mapping
from typing import Any


def check(engine: str, version: str, tested: Collection[str], log: logging.Logger,
          ours: type | None = None, used: Mapping[type, str] | None = None, added: str = "") -> None:
    """Log a warning if @version is no release of @tested.  RuntimeError, in one line: the base classes of
    @ours lack a method that it overrides, except those in @added, or call it with more arguments; or a
    class lacks an attribute that is @used."""
    bases = ours.__mro__[1:] if ours is not None else ()
    lacks = [f"{cls.__name__}.{name}" for cls, names in (used or {}).items() for name in names.split()
             if name not in _names(cls)]
    for name, method in (vars(ours) if ours is not None else {}).items():
        if name.startswith("_") or name in added.split() or not callable(getattr(method, "__func__", method)):
            continue
        theirs = next((vars(base)[name] for base in bases if name in vars(base)), None)
        if theirs is None or _places(theirs) > _places(method):
            lacks.append(name if theirs is None else f"{name} as it was")
    untested = not version.startswith(tuple(f"{release}." for release in tested)) and version not in tested
    if lacks:
        raise unusable(engine, version, tested, f"it lacks {', '.join(lacks)}")
    if untested:
        log.warning("%s", _untested(engine, version, tested))


def unusable(engine: str, version: str, tested: Collection[str], reason: object) -> RuntimeError:
    """Return the error for a release that lacks what kvfs uses."""
    return RuntimeError(f"{_untested(engine, version, tested)}, and does not run with this one: {reason}")


def _untested(engine: str, version: str, tested: Collection[str]) -> str:
    return f"kvfs: {engine} {version} is not tested: kvfs is made for {engine} {' and '.join(tested)}"


def _names(cls: type) -> set[str]:
    """Return the names of a class's attributes and fields, or those that its __init__ mentions."""
    if dataclasses.is_dataclass(cls):
        return set(dir(cls)) | set(cls.__dataclass_fields__)
    code = getattr(inspect.getattr_static(cls, "__init__"), "__code__", None)
    return set(dir(cls)) | set(code.co_names if code else ())


def _places(method: Any) -> float:
    """Return how many arguments a method takes by position."""
    kinds = [one.kind for one in inspect.signature(getattr(method, "__func__", method)).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return float("inf")
    return sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
               for kind in kinds)
