# SPDX-License-Identifier: Apache-2.0
"""kvfs.vllm - KvfsConnector for vLLM, and kvfs.vllm.tier, a tier behind vLLM's CPU cache.

These interfaces change with each release of vLLM.
"""
import logging

import vllm

from kvfs import release

TESTED = ("0.31", "0.32")
ADDED = "get_external_cache_hit_sources"  # not in all of them
ENGINE = ("vLLM", vllm.__version__, TESTED)

try:
    from .connector import KvfsConnector, USED
except ImportError as error:
    raise release.unusable(*ENGINE, error) from None
release.check(*ENGINE, KvfsConnector, USED, ADDED)
release.warn(*ENGINE, logging.getLogger("vllm.kvfs"))

__all__ = ["KvfsConnector"]
