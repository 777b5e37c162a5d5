# SPDX-License-Identifier: Apache-2.0
"""mooncake_liar.py MASTER SPACE LAYOUT <KEYS - replace the value of each third key of
the operator's space: by one with a wrong byte, by a shorter one, or by another key's value."""
import hashlib
import json
import os
import sys

os.environ["GLOG_minloglevel"] = "2"
os.environ["MC_LOG_LEVEL"] = "ERROR"
from mooncake.store import MooncakeDistributedStore  # noqa: E402

with open(sys.argv[3]) as file:
    layout = {name: value for name, value in json.load(file).items()
              if name not in ("seed", "share", "keys")}
canonical = json.dumps(layout, sort_keys=True, separators=(",", ":"))
space = hashlib.sha256(f"{sys.argv[2]}\0{canonical}".encode()).hexdigest()
store = MooncakeDistributedStore()
if store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) != 0:
    sys.exit("set up")
done, was = 0, b""
for number, key in enumerate(sys.stdin.read().split()):
    name = f"{os.getuid()}/2-{space}/{key}"
    value = store.get(name)
    if number % 3 or not value:
        was = value or was
        continue
    at = (number * 7919) % len(value)
    lies = [value[:at] + bytes([value[at] ^ 1]) + value[at + 1:], value[:at], was]
    store.remove(name, True)
    done += store.put(name, lies[number // 3 % len(lies)] or value[:at]) == 0
print(done, "lies")
sys.exit(done == 0)
