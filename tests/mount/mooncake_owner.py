# SPDX-License-Identifier: Apache-2.0
"""mooncake_owner.py MASTER BYTES - give memory to a Mooncake store, in a process of its
own, until killed.  Prints "ready"."""
import os
import sys
import time

os.environ["GLOG_minloglevel"] = "2"
os.environ["MC_LOG_LEVEL"] = "ERROR"
from mooncake.store import MooncakeDistributedStore  # noqa: E402

store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 16 << 20, "tcp", "", sys.argv[1])
print("ready" if code == 0 else f"set up: {code}", flush=True)
while code == 0:
    time.sleep(100)
