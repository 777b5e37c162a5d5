# SPDX-License-Identifier: Apache-2.0
"""cpu - vLLM's environment on the CPUs of a test machine.  Import it before vLLM."""
import os

os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                  VLLM_LOGGING_LEVEL="WARNING", VLLM_SERVER_DEV_MODE="1", ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16",
                  OMP_WAIT_POLICY="passive", KMP_BLOCKTIME="0", VLLM_CPU_OMP_THREADS_BIND="nobind",
                  OMP_NUM_THREADS="2")

import torch

# Disable AMX: some virtual machines report AMX but raise SIGILL, in torch and in oneDNN.
torch.cpu._is_amx_tile_supported = lambda: False
torch.cpu._init_amx = lambda: False
import vllm._custom_ops

vllm._custom_ops._supports_onednn = False
