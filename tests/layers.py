#!/usr/bin/env python3
"""layers.py [BUILD] - the folders are the architecture: fail on an #include or a
link that goes up.

ORDER is written once, here: each folder may use itself and what stands before it
in its tree's list.  Links are read from the objects (nm), so that no declaration
hides one: from a build that is whole and not older than the sources.  HOOKS are
the only names that a lower folder calls in a higher one.
"""
import os
import re
import subprocess
import sys
from collections import defaultdict

B = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("B", "build")

DAEMON = ["common", "index", "cache", "fs"]
LIBRARY = ["common", "kernels"]
# Folders in one tuple may not use each other.
INNER = {
    "cache": ["evict", "io", "core", "ssd", "dram", "block", "remote", "space", "store"],
    "kernels": ["device", "session", "transfer", "paged"],
    "fs": ["base", ("control", "mount")],
}
# Headers that are the interface of a whole tree; the tree's own files may include them as
# well.
CONTRACTS = ["cache/cache.h"]
# Folders outside the order, each a library of its own, with the folders that they may use.
BESIDE = {"kernels/cuda": ["kernels/device"]}
HOOKS = {
    # Called by lower folders: free the slot and the extent of a removed block once they are
    # unused; remove a block.
    "kv_block_settle_locked": "cache/block",
    "kv_block_remove_locked": "cache/block",
    # Called when the cache's lock is released: callers that wait for room check again.
    "kv_wants_room_locked": "cache/block",
    # Called for the record of a block: says which user has pinned the block.
    "kv_block_pinned_by_user": "cache/block",
}
# Headers of lower folders that a tool may include, because it simulates or checks these
# folders.
TOOLS = {
    "fsck": ["index/"],
    "bench": ["index/"],
    "replay": ["cache/evict/"],
}
# A library's headers, and the only folders that may include them.
HEADERS = {
    r"fuse(_lowlevel|3/.*)?\.h": ["fs/mount", "fs"],
    r"lmdb\.h": ["index", "tools/fsck"],
    r"liburing\.h": ["cache/io"],
    r"curl/.*\.h": ["cache/remote"],
    r"seccomp\.h": ["fs"],
}


def folder(path):
    return os.path.dirname(path) or "common"


def allowed(user, used):
    """Return whether a file in the folder `user` may use one in the folder `used`."""
    top, below = user.split("/")[0], used.split("/")[0]
    if top == "tools":
        return below in ("tools", "common")
    if top == below:
        order = INNER[top] if top in INNER else []
        if user == used or not order:
            return True
        if user in BESIDE:
            return used in BESIDE[user]
        # A file directly in a top folder counts as above that folder's sub-folders.
        rank = {f"{top}/{name}": i for i, names in enumerate(order)
                for name in ([names] if isinstance(names, str) else names)}
        return rank.get(used, len(order)) < rank.get(user, len(order))
    for tree in (DAEMON, LIBRARY):
        if top in tree and below in tree:
            return tree.index(below) < tree.index(top)
    return False


def tracked(pattern, tree="."):
    out = subprocess.run(["git", "-C", tree, "ls-files", *pattern], capture_output=True, text=True)
    return [path for path in out.stdout.split() if os.path.exists(f"{tree}/{path}")]


def includes():
    for path in tracked(["*.c", "*.h", "*.cu"]):
        user = folder(path)
        if user.split("/")[0] == "tests":
            continue
        for line in open(path):
            local = re.match(r'#include "([^"]+)"', line)
            system = re.match(r"#include <([^>]+)>", line)
            if local and not include_ok(user, local.group(1)):
                yield f"{path} includes {local.group(1)}"
            for pattern, users in HEADERS.items():
                if system and re.fullmatch(pattern, system.group(1)) and user not in users:
                    yield f"{path} includes <{system.group(1)}>"


def include_ok(user, name):
    if user == "connectors":
        return False  # built separately, including only <kvfs.h>
    if user.startswith("tools/"):
        tool = user.split("/")[1]
        own = ["tools/", "common/", "kernels/kvfs.h"] + TOOLS.get(tool, [])
        return any(name.startswith(prefix) for prefix in own)
    if name in CONTRACTS:
        return user.startswith(folder(name)) or allowed(user, folder(name))
    if name in ("kernels/kvfs.h", "kernels/kvfs_device.h"):
        return user.startswith("kernels") or user == "common"
    return allowed(user, folder(name))


def symbols(path):
    out = subprocess.run(["nm", "-g", path], capture_output=True, text=True).stdout
    words = [line.split() for line in out.splitlines()]
    defined = {w[2] for w in words if len(w) == 3 and w[1] in "TDBRVWC"}
    return defined, {w[1] for w in words if len(w) == 2 and w[0] == "U"}


def objects(tree, build):
    """Return the symbols that each source of the product defines and uses, by its path.
    Objects may be stale; an object older than its source, or a missing one, belongs to
    another tree."""
    for path in tracked(["*.c"], tree):
        built = os.path.join(tree, build, path[:-2] + ".o")
        if path.startswith(("tests/", "connectors/", "examples/")) or \
                folder(path) in BESIDE and not os.path.exists(built):
            continue
        if not os.path.exists(built) or os.path.getmtime(built) < os.path.getmtime(f"{tree}/{path}"):
            sys.exit(f"{tree}: {build} does not have {path} as it is now: run make there first")
        yield path, symbols(built)


def upward(objs):
    """Yield (user, name, used) for each upward link between files, hooks excepted."""
    # fs/ and kernels/ may define functions of the same name: prefer the one in the user's
    # own program.
    home = defaultdict(list)
    for path, (defined, _) in objs.items():
        for name in defined:
            home[name].append(path)
    for user, (_, wanted) in sorted(objs.items()):
        for name in sorted(wanted & home.keys()):
            if user.startswith("tools/") or name in HOOKS or \
                    any(allowed(folder(user), folder(used)) for used in home[name]):
                continue
            yield user, name, home[name][0]


def main():
    wrong = [*includes()]
    wrong += [f"{user} calls {name} in {folder(used)}/"
              for user, name, used in upward(dict(objects(".", B)))]
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
