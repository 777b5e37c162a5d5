# SPDX-License-Identifier: Apache-2.0
"""settings - the settings in kv_connector_extra_config, and their errors."""
from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvfs.settings import Common, read


@dataclass(frozen=True)
class Settings(Common):
    """`load`: "async", the request waits while others run, or "sync", before the forward
    pass.  `ssd_wait`: seconds for which a request waits for blocks that are on SSD, or on
    other nodes.  `save_wait`: seconds for which a step waits for pages that are being saved and
    belong to another request now.  `token_ids`: the tokens of each block are stored, for routers
    that look up prompts; so prompts are on disk."""

    load: str = "async"
    ssd_wait: float = 2.0
    save_wait: float = 1.0
    token_ids: bool = False


def settings(extra: Mapping[str, Any]) -> Settings:
    """Return the settings. ValueError: a message of one line that names the key."""
    chosen = read("kv_connector_extra_config", extra, Settings)
    if chosen.load not in ("async", "sync"):
        raise ValueError(f"kvfs: kv_connector_extra_config: 'load' is {chosen.load!r}; it must be "
                         "\"async\" or \"sync\"")
    return chosen


def allows(params: Any, what: str) -> bool:
    """Return whether kvfs may `load` or `save` blocks of a request: unless "kvfs.load" or "kvfs.save" in
    its kv_transfer_params is false.  A value that is no boolean is ignored."""
    value = params.get(f"kvfs.{what}", True) if isinstance(params, dict) else True
    if not isinstance(value, bool):
        warn_once(f"kvfs: a request's \"kvfs.{what}\" in kv_transfer_params is neither true nor false, and "
                  "is ignored")
    return value is not False


def handed_over(params: Any) -> tuple[str, bytes] | None:
    """Return the space and key of the block that another engine named in a request's
    kv_transfer_params as "kvfs.block": "SPACE/KEY".  Another value is ignored."""
    value = params.get("kvfs.block") if isinstance(params, dict) else None
    if value is None:
        return None
    try:
        space, _, key = value.rpartition("/")
        return space, bytes.fromhex(key)
    except (AttributeError, ValueError):
        warn_once("kvfs: a request's \"kvfs.block\" in kv_transfer_params is no SPACE/KEY, and is ignored")
        return None


def warn_once(what: str, *args: str, said: set[str] = set()) -> None:  # noqa: B006: kept between calls
    if what not in said:
        said.add(what)
        logging.getLogger("vllm.kvfs").warning(f"{what}; this warning is not repeated", *args)
