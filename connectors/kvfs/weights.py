# SPDX-License-Identifier: Apache-2.0
"""weights - what is in a model's folder, as a hash."""
from __future__ import annotations

import functools
import hashlib
import os

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")
PIECE, PIECES = 65536, 16


def fingerprint(path: str) -> str:
    """What is in a model's or an adapter's folder: lengths of its weights and pieces of
    them spread evenly, and small files whole.  The same weights in another place are
    the same; weights that were trained further under the same name are not."""
    seen = []
    for name in sorted(os.listdir(path)):
        try:
            stat = os.stat(f"{path}/{name}")
        except OSError:
            continue
        if os.path.isfile(f"{path}/{name}") and name.endswith((*WEIGHTS, ".json")):
            seen.append((name, stat.st_size, stat.st_mtime_ns))
    return _fingerprint(path, tuple(seen))


@functools.lru_cache(maxsize=1024)
def _fingerprint(path: str, files: tuple[tuple[str, int, int], ...]) -> str:
    hash = hashlib.sha256()
    for name, size, _ in files:
        hash.update(f"{name} {size}\n".encode())
        with open(f"{path}/{name}", "rb") as file:
            step = max(PIECE, (size - PIECE) // (PIECES - 1))
            for at in range(0, max(1, size - PIECE + 1), step):
                file.seek(at)
                hash.update(file.read(PIECE))
            if size > PIECE:
                file.seek(size - PIECE)
                hash.update(file.read(PIECE))
    return hash.hexdigest()
