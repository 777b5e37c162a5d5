# SPDX-License-Identifier: Apache-2.0
"""Open one block file with the stock safetensors library, and compare it.

usage: open_block.py FILE REFERENCE INDEX

Without that library the file is taken apart by hand.
"""

import json
import sys


def by_library(path):
    from safetensors import safe_open
    from safetensors.numpy import load_file

    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    for name, tensor in tensors.items():
        print(f"      {name}: {tensor.dtype} {list(tensor.shape)}, "
              f"largest {abs(tensor).max()}")
    return metadata, tensors["k"].tobytes() + tensors["v"].tobytes()


def by_hand(path):
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = file.read()
    metadata = header.pop("__metadata__")
    for name, tensor in header.items():
        print(f"      {name}: {tensor['dtype']} {tensor['shape']}")
    return metadata, data


def main():
    path, reference, index = sys.argv[1], sys.argv[2], int(sys.argv[3])
    try:
        metadata, data = by_library(path)
    except ImportError:
        print("      (no safetensors library here: read by hand)")
        metadata, data = by_hand(path)
    print(f"      metadata: {metadata}")
    with open(reference, "rb") as file:
        file.seek(index * len(data))
        same = file.read(len(data)) == data
    if not same or metadata["position"] != str(index):
        sys.exit("DIFFERS: the block that Python reads")
    print(f"    its {len(data)} bytes are what the engine computed")


main()
