# SPDX-License-Identifier: Apache-2.0
"""kvfs.vllm - KvfsConnector for vLLM, and in kvfs.vllm.tier a tier behind its CPU cache.

Made for vLLM 0.32; these interfaces change with each release.
"""
from .connector import KvfsConnector

__all__ = ["KvfsConnector"]
