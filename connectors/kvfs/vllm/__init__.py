# SPDX-License-Identifier: Apache-2.0
"""kvfs.vllm - KvfsConnector for vLLM, and kvfs.vllm.tier, a tier behind vLLM's CPU cache.

Made for vLLM 0.32; these interfaces change with each release.
"""
import logging

import vllm

TESTED = "0.32"
_untested = f"kvfs: vLLM {vllm.__version__} is not tested: kvfs.vllm is made for vLLM {TESTED}"


def unusable(error: ImportError) -> RuntimeError:
    """Return the error for a version of vLLM that lacks what kvfs imports."""
    return RuntimeError(f"{_untested}, and does not run with this one ({error})")


try:
    from .connector import KvfsConnector
except ImportError as error:
    raise unusable(error) from None
if not vllm.__version__.startswith(f"{TESTED}."):
    logging.getLogger("vllm.kvfs").warning("%s", _untested)

__all__ = ["KvfsConnector"]
