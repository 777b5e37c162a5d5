# SPDX-License-Identifier: Apache-2.0
"""settings - the settings of kvfs in an engine's configuration; errors have one line."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import Error

if TYPE_CHECKING:
    from .session import Session
    from .space import Space


@dataclass(frozen=True)
class Common:
    """`path`: a mount point, a control socket, or "auto" (see kvfs.open).  `mode`: of new spaces, in octal.
    `shared`: use a space that another user owns.  `salt`: engines with different salts share
    nothing.  `remote`: new spaces are shared with other nodes, and missing blocks are
    requested from them.  `weights_cache`: the directory of digests of weights;
    default: kvfs in the user's cache directory."""

    path: str = "auto"
    mode: str = "0700"
    shared: bool = False
    salt: str = ""
    remote: bool = False
    weights_cache: str = ""

    def space(self, session: Session, name: str, layout: dict[str, Any]) -> Space:
        """Return the space, which is made with @layout if it is absent.  The engine brings its own keys, so
        that other nodes have the same ones.  ValueError, in one line: it cannot be used."""
        layout = {**layout, "keys": "engine", **({"share": True} if self.remote else {})}
        try:
            return session.space(name, layout, create=True, mode=int(self.mode, 8), shared=self.shared)
        except Error as error:
            hint = " (another user's space: 'shared' would use it)" if error.errno == 13 else ""
            raise ValueError(f"kvfs: cannot use {session.path}: {error.strerror}{hint}") from error


@dataclass(frozen=True)
class Tier(Common):
    """Settings of adapters whose engine looks blocks up and loads them in two calls.
    `remote_wait`: with `remote`, the seconds that each call waits for blocks of other
    nodes."""

    remote_wait: float = 2.0

    def patience(self, alone: float) -> float:
        """Return the seconds that a load may take: @alone if no other node is asked."""
        return self.remote_wait if self.remote else alone


T = TypeVar("T", bound=Common)


def read(where: str, given: Mapping[str, Any], cls: type[T]) -> T:
    """Return the settings; raise ValueError in one line that names @where and the key."""

    def wrong(key: str, wanted: str) -> ValueError:
        return ValueError(f"kvfs: {where}: {key!r} is {given[key]!r}; it must be {wanted}")

    known = {field.name: field.type for field in fields(cls)}
    for key in given:
        if key not in known:
            raise ValueError(f"kvfs: {where} has {key!r}, which is not one of {', '.join(known)}")
    for key, value in given.items():
        if known[key] == "str" and not isinstance(value, str):
            raise wrong(key, "a string")
        if known[key] == "bool" and not isinstance(value, bool):
            raise wrong(key, "true or false")
        if known[key] == "float" and (isinstance(value, bool) or not isinstance(value, (int, float))
                                      or not 0 <= value <= 3600):
            raise wrong(key, "seconds, 0 to 3600")
    if (path := given.get("path", "auto")) != "auto" and not path.startswith("/"):
        raise wrong("path", 'an absolute path or "auto"')
    if (folder := given.get("weights_cache")) and not folder.startswith("/"):
        raise wrong("weights_cache", "an absolute path")
    mode = given.get("mode", "0700")
    if not mode or any(digit not in "01234567" for digit in mode) or int(mode, 8) > 0o777:
        raise wrong("mode", 'an octal mode, e.g. "0750"')
    return cls(**given)
