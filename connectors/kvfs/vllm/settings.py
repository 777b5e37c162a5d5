# SPDX-License-Identifier: Apache-2.0
"""settings - what may stand in kv_connector_extra_config, and what is refused."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Settings:
    """`path`: a mount point or a control socket.  `load`: "async", a request waits while
    others go on, or "sync", before the forward pass.  `ssd_wait`: seconds for which a
    request waits for blocks that are on SSD.  `save_wait`: seconds for which a step waits
    for pages that are being saved, and that another request has got.  `remote`: new
    spaces are shared with other nodes, and what is missing is looked for there, for
    `ssd_wait` as well.  `mode` of new spaces, in octal.  `shared`: use a space that another
    user owns.  `salt`: engines with another one share nothing.  `token_ids`: the tokens of
    each block are kept with it, for routers that ask which prompts are here: prompts are on
    disk then."""

    path: str
    load: str = "async"
    ssd_wait: float = 2.0
    save_wait: float = 1.0
    remote: bool = False
    mode: str = "0700"
    shared: bool = False
    salt: str = ""
    token_ids: bool = False


def _wrong(key: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"kvfs: kv_connector_extra_config: {key!r} is {value!r}; it must be {wanted}")


def settings(extra: Mapping[str, Any], cls: type[Settings] = Settings) -> Settings:
    """ValueError in one line that names the key."""
    known = [field.name for field in fields(cls)]
    for key in extra:
        if key not in known:
            raise ValueError(f"kvfs: kv_connector_extra_config has {key!r}, which is not one of "
                             f"{', '.join(known)}")
    if "path" not in extra:
        raise ValueError("kvfs: kv_connector_extra_config lacks 'path': the mount point, "
                         "e.g. \"/kvfs\", or the control socket")
    for key in ("path", "load", "mode", "salt"):
        if key in extra and not isinstance(extra[key], str):
            raise _wrong(key, extra[key], "a string")
    for key in ("ssd_wait", "save_wait"):
        value = extra.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 3600:
            raise _wrong(key, value, "seconds, 0 to 3600")
    if not extra["path"].startswith("/"):
        raise _wrong("path", extra["path"], "an absolute path")
    if extra.get("load", "async") not in ("async", "sync"):
        raise _wrong("load", extra["load"], '"async" or "sync"')
    for key in ("remote", "shared", "token_ids"):
        if not isinstance(extra.get(key, False), bool):
            raise _wrong(key, extra[key], "true or false")
    mode = extra.get("mode", "0700")
    if not mode or any(digit not in "01234567" for digit in mode) or int(mode, 8) > 0o777:
        raise _wrong("mode", mode, 'an octal mode, e.g. "0750"')
    return cls(**extra)
