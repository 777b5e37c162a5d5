# SPDX-License-Identifier: Apache-2.0
"""kvfs.vllm - KvfsConnector for vLLM, and kvfs.vllm.tier, a tier behind vLLM's CPU cache.

Made for vLLM 0.32; these interfaces change with each release.
"""
import logging

import vllm

TESTED = "0.32"
_untested = f"kvfs: vLLM {vllm.__version__} is not tested: KvfsConnector is made for vLLM {TESTED}"

try:
    from .connector import KvfsConnector
except ImportError as error:
    raise RuntimeError(f"{_untested}, and does not run with this one ({error})") from None
if not vllm.__version__.startswith(f"{TESTED}."):
    logging.getLogger("vllm.kvfs").warning("%s", _untested)

__all__ = ["KvfsConnector"]
