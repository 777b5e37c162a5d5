# SPDX-License-Identifier: Apache-2.0
"""release - whether an engine's release has what a connector uses of it."""
from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Collection, Mapping
from typing import Any


def warn(engine: str, version: str, tested: Collection[str], log: logging.Logger) -> None:
    """Log a warning if @version is no release of @tested, whatever build of it, such as +cu128."""
    public = version.partition("+")[0]
    if public not in tested and not public.startswith(tuple(f"{release}." for release in tested)):
        log.warning("kvfs: %s %s is not tested (tested: %s)", engine, version, ", ".join(tested))


def check(engine: str, version: str, tested: Collection[str], ours: type, used: Mapping[type, str],
          added: str = "") -> None:
    """Verify that the base classes of @ours have the methods that it overrides, except those in @added, with
    no more arguments, and the classes @used their attributes.  RuntimeError lists all that are missing."""
    lacks = [f"{cls.__name__}.{name}" for cls, names in used.items() for name in names.split()
             if name not in _names(cls)]
    for name, method in vars(ours).items():
        if name.startswith("_") or name in added.split() or not callable(getattr(method, "__func__", method)):
            continue
        theirs = next((vars(base)[name] for base in ours.__mro__[1:] if name in vars(base)), None)
        if theirs is None or _places(theirs) > _places(method):
            lacks.append(name if theirs is None else f"{name} with known arguments")
    if lacks:
        raise unusable(engine, version, tested, f"it lacks {', '.join(lacks)}")


def unusable(engine: str, version: str, tested: Collection[str], reason: object) -> RuntimeError:
    """Return the error for an engine that kvfs cannot use."""
    return RuntimeError(f"kvfs: {engine} {version} cannot be used: {reason} (tested: {', '.join(tested)})")


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
