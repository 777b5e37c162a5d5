#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mkblock.py FILE - write a safetensors file of pseudo-random bytes.

--seed N       other bytes                --bytes N     of the tensor `kv`
--tensor NAME:DTYPE:SHAPE:BYTES           instead of `kv`; may be repeated
--meta NAME=VALUE                         into __metadata__; may be repeated
--align        pad the header so that 8 + header is a multiple of 4096
"""
import argparse
import json
import random
import struct

p = argparse.ArgumentParser()
p.add_argument("file")
p.add_argument("--seed", type=int, default=1)
p.add_argument("--bytes", type=int, default=100000)
p.add_argument("--tensor", action="append", default=[])
p.add_argument("--meta", action="append", default=[])
p.add_argument("--align", action="store_true")
a = p.parse_args()

header, at = {}, 0
if a.meta:
    header["__metadata__"] = dict(m.split("=", 1) for m in a.meta)
for t in a.tensor or ["kv:U8:%d:%d" % (a.bytes, a.bytes)]:
    name, dtype, shape, size = t.split(":")
    header[name] = {
        "dtype": dtype,
        "shape": [int(n) for n in shape.split("x")],
        "data_offsets": [at, at + int(size)],
    }
    at += int(size)
text = json.dumps(header, separators=(",", ":")).encode()
unit = 4096 if a.align else 8
text += b" " * (-(8 + len(text)) % unit)
with open(a.file, "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    f.write(random.Random(a.seed).randbytes(at))
