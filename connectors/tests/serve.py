# SPDX-License-Identifier: Apache-2.0
"""serve.py serve MODEL ... - `vllm serve` on the CPUs of a test machine.  vLLM's processes begin
with this file, too, and then do not run main()."""
import sys

import cpu  # first: changes torch and vLLM
from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.argv[0] = "vllm"
    main()
