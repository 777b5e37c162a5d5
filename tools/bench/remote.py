# SPDX-License-Identifier: Apache-2.0
"""remote.py BACKEND URL BUILD FOLDER MEMORY GATEWAY MASTER - measure the remote tier between
two nodes of this machine, against the backend's own client in the same rounds.

A put lasts from the sharing of a durable space until the backend has its last block.  A get
is an acquire of the blocks of a PROMPT at a time, by a node without them: the blocks are
verified and in memory.  The clients (cp, curl, boto3, Mooncake's own) have MANY objects in
flight, from MEMORY and to MEMORY.  CPU time is that of the daemon and of the process GATEWAY,
or of the client; servers are not counted.  Prints medians; run it on an idle machine."""
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

ROUNDS = int(os.environ.get("ROUNDS", "3"))
MANY, PROMPT = 32, 128
SIZES = {2304 << 10: 128, 128 << 10: 2048}  # bytes of a block: number of blocks
HZ = os.sysconf("SC_CLK_TCK")
GATEWAYS = [int(pid) for pid in sys.argv[6:7] if pid]


# ---- time and CPU ----
def seconds_of(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rpartition(")")[2].split()
    return sum(int(fields[at]) for at in (11, 12)) / HZ


def used(pid: int) -> float:
    return sum(seconds_of(one) for one in [pid, *GATEWAYS])


def own_seconds() -> float:
    return sum(who.ru_utime + who.ru_stime for who in
               (resource.getrusage(resource.RUSAGE_SELF),
                resource.getrusage(resource.RUSAGE_CHILDREN)))


def taken(do, pid: int | None = None) -> tuple[float, float]:
    """Call DO.  Return its result, or if that is 0 the seconds of the call; and the CPU seconds
    that the process PID used meanwhile, or this process."""
    cpu = used(pid) if pid else own_seconds()
    begun = time.monotonic()
    seconds = do()
    seconds = seconds or time.monotonic() - begun
    return seconds, (used(pid) if pid else own_seconds()) - cpu


# ---- two nodes ----
class Node:
    def __init__(self, folder: str, url: str, build: str, number: int) -> None:
        self.build = build
        self.store, self.mount, self.socket = (f"{folder}/{name}{number}"
                                               for name in ("store", "mount", "socket"))
        os.makedirs(self.mount, exist_ok=True)
        options = ("dram=1G,ssd=4G,segment=64M,scrub=0,hugepages=off,remote_threshold=1,"
                   f"control={self.socket},remote={url},remote_secret={folder}/secret")
        subprocess.run([f"{build}/kvfs", "-o", options, self.store, self.mount], check=True)
        self.pid = int(subprocess.check_output(["pgrep", "-f", f"^[^ ]*kvfs .*{self.store} "]))

        self.keep("warm", 1 << 20, 1024)  # fill the arena before the rounds

    def storm(self, *words: object) -> str:
        command = [f"{self.build}/tests/mount/storm", self.socket, *map(str, words)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def put_bytes(self) -> int:
        with open(f"{self.mount}/.kvfs/metrics", encoding="ascii") as f:
            return sum(int(line.split()[1]) for line in f
                       if line.startswith("kvfs_remote_put_bytes_total "))

    def keep(self, space: str, size: int, blocks: int) -> None:
        self.storm(space, "keep", size, blocks)

    def put(self, space: str, size: int, blocks: int) -> None:
        goal = self.put_bytes() + size * blocks
        os.setxattr(f"{self.mount}/{space}", "user.kvfs.share", b"1")
        until = time.monotonic() + 120
        while self.put_bytes() < goal:
            time.sleep(0.002)
            if time.monotonic() > until:
                sys.exit("not handed over")

    def get(self, space: str, size: int, blocks: int) -> float:
        words = self.storm(space, "pull", size, blocks, PROMPT).split()
        if words[:4] != ["pulled", str(blocks), "wrong", "0"]:
            sys.exit(" ".join(words))
        return float(words[5])

    def end(self) -> None:
        subprocess.run(["umount", self.mount], check=True)
        while os.path.exists(f"/proc/{self.pid}"):
            time.sleep(0.01)
        shutil.rmtree(self.store)


# ---- clients ----
class Files:
    """Objects as files in memory, the source and target of most clients."""
    def __init__(self, memory: str, size: int, blocks: int) -> None:
        self.here, self.there = f"{memory}/from", f"{memory}/to"
        self.names = [f"object{i}" for i in range(blocks)]
        self.forget()
        for folder in (self.here, self.there):
            os.makedirs(folder, exist_ok=True)
        for name in self.names:
            with open(f"{self.here}/{name}", "wb") as f:
                f.write(os.urandom(4096) * (size // 4096 + 1))

    def forget(self) -> None:
        subprocess.run(["rm", "-rf", self.here, self.there], check=True)


class Copies(Files):
    def open(self, url: str) -> None:
        self.root = url.partition(":")[2] + "/own"

    def put(self) -> None:
        subprocess.run(["cp", "-rT", self.here, self.root], check=True)

    def get(self) -> None:
        subprocess.run(["cp", "-rT", self.root, self.there], check=True)

    def remove(self) -> None:
        subprocess.run(["rm", "-rf", self.root], check=True)


class Curl(Files):
    def open(self, url: str) -> None:
        self.url = f"{url}/own"

    def run(self, lines: list[str]) -> None:
        subprocess.run(["curl", "-sSf", "--no-progress-meter", "-Z", "--parallel-max", str(MANY), "-K", "-"], check=True,
                       text=True, input="\n".join(lines), stdout=subprocess.DEVNULL)

    def put(self) -> None:
        self.run([f'upload-file = "{self.here}/{name}"\nurl = "{self.url}/{name}"'
                  for name in self.names])

    def get(self) -> None:
        self.run([f'output = "{self.there}/{name}"\nurl = "{self.url}/{name}"'
                  for name in self.names])

    def remove(self) -> None:
        for name in self.names:
            self.run([f'request = DELETE\nurl = "{self.url}/{name}"'])


class Boto(Files):
    def open(self, url: str) -> None:
        import boto3
        import botocore.config
        options = dict(word.split("=", 1) for word in url.partition("?")[2].split("&"))
        os.environ["AWS_SHARED_CREDENTIALS_FILE"] = options["credentials"]
        self.client = boto3.client("s3", endpoint_url=options["endpoint"],
                                   region_name="us-east-1",
                                   config=botocore.config.Config(max_pool_connections=MANY))

    def each(self, call) -> None:
        with ThreadPoolExecutor(MANY) as threads:
            list(threads.map(call, self.names))

    def put_one(self, name: str) -> None:
        with open(f"{self.here}/{name}", "rb") as f:
            self.client.put_object(Bucket="kvfs", Key=f"own/{name}", Body=f)

    def get_one(self, name: str) -> None:
        answer = self.client.get_object(Bucket="kvfs", Key=f"own/{name}")
        with open(f"{self.there}/{name}", "wb") as f:
            f.write(answer["Body"].read())

    def put(self) -> None:
        self.each(self.put_one)

    def get(self) -> None:
        self.each(self.get_one)

    def remove(self) -> None:
        self.each(lambda name: self.client.delete_object(Bucket="kvfs", Key=f"own/{name}"))


class Mooncake:
    """A client that puts from its registered memory and gets to it."""
    def __init__(self, memory: str, size: int, blocks: int) -> None:
        self.size, self.blocks = size + 4096, blocks
        self.names = [f"own{i}" for i in range(blocks)]

    def open(self, url: str) -> None:
        import ctypes
        from mooncake.store import MooncakeDistributedStore
        self.store = MooncakeDistributedStore()
        if self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "",
                            sys.argv[7]) != 0:
            sys.exit("Mooncake cannot be set up")
        self.memory = ctypes.create_string_buffer(self.size * MANY)
        self.at = ctypes.addressof(self.memory)
        ctypes.memset(self.at, 7, self.size * MANY)
        if self.store.register_buffer(self.at, self.size * MANY) != 0:
            sys.exit("Mooncake takes no memory")

    def each(self, call, expected: int) -> None:
        places = [self.at + i * self.size for i in range(MANY)]
        for first in range(0, self.blocks, MANY):
            codes = call(self.names[first:first + MANY], places, [self.size] * MANY)
            if any(code != expected for code in codes):
                sys.exit(f"Mooncake: {codes}")

    def put(self) -> None:
        self.each(self.store.batch_put_from, 0)

    def get(self) -> None:
        self.each(self.store.batch_get_into, self.size)

    def remove(self) -> None:
        self.store.batch_remove(self.names, True)

    def forget(self) -> None:
        self.store.close()


CLIENTS = {"dir": Copies, "http": Curl, "s3": Boto, "mooncake": Mooncake}


# ---- rounds ----
def main() -> None:
    kind, url, build, folder, memory = sys.argv[1:6]
    os.umask(0o077)
    with open(f"{folder}/secret", "wb") as f:
        f.write(os.urandom(32))
    nodes = [Node(folder, url, build, number) for number in (1, 2)]
    for size, blocks in SIZES.items():
        client = CLIENTS[kind](memory, size, blocks)
        client.open(url)
        figures: dict[str, list[tuple[float, float]]] = {
            name: [] for name in ("put", "own put", "get", "own get")}
        for number in range(ROUNDS):
            space = f"s{size}-{number}"
            nodes[0].keep(space, size, blocks)
            figures["put"].append(taken(lambda: nodes[0].put(space, size, blocks), nodes[0].pid))
            figures["own put"].append(taken(client.put))
            figures["get"].append(taken(lambda: nodes[1].get(space, size, blocks), nodes[1].pid))
            figures["own get"].append(taken(client.get))
            client.remove()
        client.forget()
        report(kind, size, size * blocks, figures)
    for node in nodes:
        node.end()


def report(kind: str, size: int, total: int, figures: dict) -> None:
    for call in ("put", "get"):
        ours, own = figures[call], figures[f"own {call}"]
        ratios = [theirs[0] / us[0] for us, theirs in zip(ours, own)]
        rate, own_rate = (total / 1e6 / statistics.median(one[0] for one in some)
                          for some in (ours, own))
        cpu, own_cpu = (statistics.median(one[1] for one in some) / total * 1e9
                        for some in (ours, own))
        print(f"{kind:9} {size >> 10:5} KiB {call}: {rate:7.0f} MB/s, its client "
              f"{own_rate:7.0f}: {statistics.median(ratios):5.2f} "
              f"({min(ratios):.2f}-{max(ratios):.2f}); CPU s/GB {cpu:5.2f}, its client "
              f"{own_cpu:5.2f}", flush=True)


main()
