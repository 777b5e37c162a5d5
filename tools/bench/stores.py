# SPDX-License-Identifier: Apache-2.0
"""stores.py BUILD PEER FOLDER - measure one peer of peers.py in this process.

The process owns an engine's memory.  For each size of block TURNS turns follow one to warm up.
Loaded bytes are compared with the saved ones, outside the measured time.  Prints a line of JSON
for each row: the size, the row, and the median in GB/s."""
import contextlib
import ctypes
import json
import mmap
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from functools import partialmethod

TURNS, PAGE, THREADS = 3, 2 << 20, min(os.cpu_count() or 1, 2)
SIZES = {"2.25 MiB": (2304 << 10, 128), "128 KiB": (128 << 10, 1024)}
ROWS = {"save": "save until readable", "durable": "save until durable",
        "load": "load from memory", "cold": "load cold from disk"}


def until(ready, what: str) -> None:
    end = time.monotonic() + 60
    while not ready():
        must(time.monotonic() < end, what)
        time.sleep(0.02)


def must(good: bool, what: str) -> None:
    if not good:
        raise ValueError(what)


def connected(one: socket.socket, to) -> bool:
    with contextlib.suppress(OSError):
        return one.connect(to) is None
    return False


class Peer:
    """A store under test.  A subclass has a method for each of its rows, which returns the seconds
    that it took, or None: the caller measures them."""
    rows = tuple(ROWS)
    settings, verifies, survives, index = "", "no", "no", "no"
    debian: tuple[str, ...] = ()  # packages
    pip: tuple[str, ...] = ()  # arguments of each call of pip
    after = each_time = ""  # commands after pip, and before each run
    env = "kvfs"  # name of the Python environment; "": none

    def __init__(self, build: str, folder: str, size: int, blocks: int) -> None:
        self.build, self.folder, self.size, self.blocks = build, folder, size, blocks
        self.whole, self.children, self.kept = size * blocks, [], []
        self.start()

    def start(self) -> None:
        import numpy
        self.serve()
        self.at = self.memory(2 * self.whole)
        memory = numpy.frombuffer((ctypes.c_char * (2 * self.whole)).from_address(self.at), "u8")
        self.source, self.target = memory[:self.whole // 8], memory[self.whole // 8:]
        self.source[:] = numpy.arange(len(self.source))
        self.target[:] = 0
        places = [self.at + i * self.size for i in range(2 * self.blocks)]
        self.sources, self.targets = places[:self.blocks], places[self.blocks:]
        self.attach()

    def serve(self) -> None: ...  # start servers
    def attach(self) -> None: ...  # open the store

    def memory(self, size: int) -> int:
        """Return the address of private memory, in huge pages if the kernel has them."""
        map = mmap.mmap(-1, size + PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        map.madvise(mmap.MADV_HUGEPAGE)
        self.kept.append(map)
        return -(-ctypes.addressof(ctypes.c_char.from_buffer(map)) // PAGE) * PAGE

    def names(self, tag: str) -> list:
        return [f"{self.size}-{tag}-{i}" for i in range(self.blocks)]

    def stamp(self, names) -> None:
        self.source[::512] += 1 << 32

    def check(self, names) -> None:
        must((self.source == self.target).all(), "bytes differ")
        self.target[::512] = 0

    def prepare(self, names) -> None: ...  # before `load`
    def chill(self, names) -> None: ...  # before `cold`
    def remove(self, names) -> None: ...

    def child(self, *command: str, **pipes) -> subprocess.Popen:
        self.children.append(subprocess.Popen(command, **{"stdout": sys.stderr, **pipes}))
        return self.children[-1]

    def close(self) -> None:
        for one in reversed(self.children):
            one.terminate()
            one.wait(60)


class Kvfs(Peer):
    settings, verifies, survives, index = "any memory", "digest of each block", "fdatasync and LMDB", "LMDB"
    pip = ("setuptools>=68 wheel cffi>=1.17 numpy",)
    each_time = ("PREFIX=$ENV/installed DESTDIR= VERSION=0 $ROOT/tools/install.sh install && rm -rf $ENV/source && "
                 "cp -r $ROOT/connectors $ENV/source && rm -rf $ENV/source/build $ENV/source/*.egg-info && "
                 "PKG_CONFIG_PATH=$ENV/installed/lib/pkgconfig $ENV/bin/pip install --no-build-isolation "
                 "--no-deps --force-reinstall $ENV/source")

    def serve(self) -> None:
        os.makedirs(f"{self.folder}/mnt", exist_ok=True)
        self.child(f"{self.build}/kvfs", "-f", "-o", "dram=2G,ssd=6G", f"{self.folder}/store{self.size}",
                   f"{self.folder}/mnt")
        until(lambda: os.path.exists(f"{self.folder}/mnt/.kvfs/control"), "kvfs does not answer")

    def shared(self): ...  # argument `memory` of the pool

    def attach(self) -> None:
        import kvfs
        self.states, self.stages = kvfs.State, kvfs.Stage
        self.session = kvfs.open(f"{self.folder}/mnt")
        layout = {"tensors": [{"name": "kv", "dtype": "BF16", "shape": [self.size // 2]}], "tokens": 16}
        self.space = self.session.space("peers", layout, create=True)
        self.pool = self.session.pool(self.space, [kvfs.View("kv", self.at, self.size, self.size)],
                                      2 * self.blocks, memory=self.shared())
        self.settle()

    def settle(self) -> None:
        """Wait until the daemon works no longer: it clears its arena and replaces segments."""
        def quiet() -> bool:
            before = ticks()
            time.sleep(0.3)
            return ticks() - before <= 1

        def ticks() -> int:
            with open(f"/proc/{self.children[0].pid}/stat", encoding="ascii") as file:
                return sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
        until(quiet, "the daemon is busy")

    def names(self, tag: str) -> list:
        return [os.urandom(16) for _ in range(self.blocks)]

    def save(self, names, stage: str = "SEALED") -> None:
        xfer = self.pool.save(self.space, names, range(self.blocks))
        xfer.wait()
        must(xfer.wait(self.stages[stage]) == self.blocks, "not all blocks are saved")

    durable = partialmethod(save, stage="DURABLE")

    def load(self, names) -> None:
        xfer = self.pool.fetch(self.space, names, range(self.blocks, 2 * self.blocks))
        must(xfer.wait() == self.blocks, "not all blocks are loaded")

    cold = load

    def paths(self, names) -> list[str]:
        return [f"{self.folder}/mnt/peers/{name.hex()[:2]}/{name.hex()}" for name in names]

    def chill(self, names) -> None:
        def all_left() -> bool:
            states = self.space.probe(names)
            for path in (path for path, state in zip(self.paths(names), states) if state != self.states.SSD):
                with contextlib.suppress(OSError):
                    os.setxattr(path, "user.kvfs.tier", b"ssd")
            return all(state == self.states.SSD for state in states)
        until(all_left, "blocks stay in DRAM")
        self.settle()

    def remove(self, names) -> None:
        self.space.flush().wait()
        self.space.evict(names)
        self.settle()

    def close(self) -> None:
        self.pool.close()
        self.session.close()
        super().close()


class KvfsDescriptor(Kvfs):
    settings = "memory of a sealed memfd"

    def memory(self, size: int) -> int:
        import fcntl
        self.fd = os.memfd_create("peers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.posix_fallocate(self.fd, 0, size)
        map = mmap.mmap(self.fd, size)
        self.kept.append(map)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 0x10)  # new writers
        return ctypes.addressof(ctypes.c_char.from_buffer(map))

    def shared(self):
        from kvfs.pool import Memory
        return Memory(self.at, 2 * self.whole, self.fd)


class Files(Peer):
    """A file per block, by the program tests/mount/peer; names are files with lists of paths."""
    settings = f"{THREADS} threads; durable and cold: O_DIRECT, 16 threads, one syncfs"
    survives, index, env, threads, place = "syncfs", "directory", "", THREADS, ""

    def start(self) -> None:
        self.root = f"{self.place or self.folder}/kvfs-{os.path.basename(self.folder)}"
        os.mkdir(self.root)
        self.serve()
        self.start_tool()

    def start_tool(self) -> None:
        self.tool = self.child(f"{self.build}/tests/mount/peer", "files", str(self.size), str(self.blocks),
                               str(self.threads), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, names: str, what: str) -> float:
        self.tool.stdin.write(f"{what} {names}\n")
        self.tool.stdin.flush()
        return float(self.tool.stdout.readline())

    stamp, save = partialmethod(do, what="stamp"), partialmethod(do, what="save")
    durable, load = partialmethod(do, what="durable"), partialmethod(do, what="load")
    cold, chill = partialmethod(do, what="cold"), partialmethod(do, what="chill")

    def remove(self, names) -> None:
        os.sync()  # ext4 is slow to reuse inodes that were just freed, so close() removes the files

    def listed(self, tag: str, paths: list[str]) -> str:
        with open(f"{self.folder}/list{tag}", "w") as file:
            file.write("\n".join(paths))
        return file.name

    def names(self, tag: str) -> str:
        os.mkdir(f"{self.root}/{tag}")
        return self.listed(tag, [f"{self.root}/{tag}/{i}" for i in range(self.blocks)])

    def check(self, names) -> None:
        must(self.do(names, "check") == 0, "bytes differ")

    def close(self) -> None:
        self.tool.stdin.close()
        super().close()
        shutil.rmtree(self.root, ignore_errors=True)


class Memcpy(Files):
    settings, survives, index, rows, threads = "no store", "no", "no", ("save", "load"), 1

    save = load = partialmethod(Files.do, what="copy")

    def remove(self, names) -> None: ...


class Fuse(Files):
    settings = f"second read, kernel keeps the pages, {THREADS} threads"
    survives, index, rows = "no", "no", ("load",)

    def serve(self) -> None:
        os.makedirs(f"{self.folder}/mnt", exist_ok=True)
        self.child(f"{self.build}/tests/mount/peer", "fuse", f"{self.folder}/mnt", str(self.size))
        until(lambda: os.path.ismount(f"{self.folder}/mnt"), "no FUSE mount")

    def names(self, tag: str) -> str:
        return self.listed(tag, [f"{self.folder}/mnt/{i}" for i in range(self.blocks)])

    def prepare(self, names) -> None:
        self.do(names, "load")

    def check(self, names) -> None: ...  # the files are zeros
    def remove(self, names) -> None: ...


class KvfsMount(Kvfs):
    settings, rows, threads = f"files, second read, {THREADS} threads", ("load",), THREADS
    do, listed = Files.do, Files.listed

    def attach(self) -> None:
        super().attach()
        Files.start_tool(self)

    def prepare(self, names) -> None:
        Kvfs.save(self, names)
        self.list = self.listed("", self.paths(names))
        self.do(self.list, "load")

    def load(self, names) -> float:
        return self.do(self.list, "load")

    def check(self, names) -> None: ...  # the files have headers


class Fio(Peer):
    settings = "io_uring, depth 32, O_DIRECT, huge registered buffers; one file, overwritten, end_fsync"
    survives, rows, debian, env = "fsync", ("durable", "cold"), ("fio",), ""

    def start(self) -> None: ...
    def stamp(self, names) -> None: ...
    def check(self, names) -> None: ...

    def durable(self, names, way: str = "write") -> float:
        out = subprocess.run(
            ["fio", "--name=peer", "--ioengine=io_uring", "--direct=1", "--iodepth=32", "--fixedbufs=1",
             "--registerfiles=1", "--output-format=json", f"--filename={self.folder}/fio", f"--rw={way}",
             f"--bs={self.size}", f"--size={self.whole}", f"--end_fsync={int(way == 'write')}"],
            check=True, stdout=subprocess.PIPE, env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})
        return self.whole / json.loads(out.stdout)["jobs"][0][way]["bw_bytes"]

    cold = partialmethod(durable, way="read")


class Redis(Peer):
    """A client that sends from the engine's memory and receives into it; hiredis would copy."""
    settings = "UNIX socket, pipelined, no copies in the client; durable: appendfsync always"
    survives, index, rows = "append-only file", "hash table", ("save", "durable", "load")
    debian, pip, env = ("redis-server",), ("numpy",), "redis"

    def serve(self) -> None:
        self.servers = []
        for durable in ("no", "yes"):
            path = f"{self.folder}/{durable}{self.size}"
            os.mkdir(path)
            self.child("redis-server", "--port", "0", "--save", "", "--unixsocket", f"{path}/s", "--dir", path,
                       "--appendonly", durable, "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")
            one = socket.socket(socket.AF_UNIX)
            until(lambda: connected(one, f"{path}/s"), "redis-server does not answer")
            self.servers.append((one, one.makefile("rb", 65536)))

    def save(self, names, server: int = 0) -> None:
        one, replies = self.servers[server]
        source = memoryview(self.source).cast("B")
        for i, name in enumerate(names):
            one.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(name), name.encode(), self.size))
            one.sendall(source[i * self.size:(i + 1) * self.size])
            one.sendall(b"\r\n")
        must(all([replies.readline() == b"+OK\r\n" for _ in names]), "SET failed")

    durable = partialmethod(save, server=1)

    def load(self, names) -> None:
        one, replies = self.servers[0]
        target = memoryview(self.target).cast("B")
        ask = [b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(name), name.encode()) for name in names]
        one.sendall(b"".join(ask[:4]))  # 4 requests in flight
        for i in range(self.blocks):
            one.sendall(b"".join(ask[i + 4:i + 5]))
            must(replies.readline() == b"$%d\r\n" % self.size, "GET failed")
            at, end = i * self.size, (i + 1) * self.size
            while at < end:
                at += replies.readinto(target[at:end])
            replies.readline()

    def remove(self, names) -> None:
        for one, replies in self.servers:
            one.sendall(b"FLUSHALL SYNC\r\n")
            replies.readline()


class Mooncake(Peer):
    settings, verifies = "client in the engine, registered memory, one batch", "optional, off"
    index, rows, env = "hash table of the master", ("save", "load"), "mooncake"
    debian = ("libibverbs1", "libnuma1", "libcurl4")
    pip, shared = ("numpy", "--no-deps mooncake-transfer-engine-non-cuda==0.3.13.post1"), False

    def serve(self) -> None:
        os.environ.update(GLOG_minloglevel="2", MC_LOG_LEVEL="ERROR", MC_STORE_MEMCPY="1")
        import mooncake
        from mooncake.store import MooncakeDistributedStore
        programs, self.store = os.path.dirname(mooncake.__file__), MooncakeDistributedStore()
        with contextlib.ExitStack() as stack:
            rpc, metrics, own = (stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
                                 for _ in range(3))
        master = f"127.0.0.1:{rpc}"
        self.child(f"{programs}/mooncake_master", "--rpc_address=127.0.0.1", f"--rpc_port={rpc}",
                   "--metrics_host=127.0.0.1", f"--metrics_port={metrics}", "--enable_metric_reporting=false")
        until(lambda: connected(socket.socket(), ("127.0.0.1", rpc)), "the master does not answer")
        if self.shared:
            self.child(f"{programs}/mooncake_client", "--host=127.0.0.1", f"--port={own}",
                       "--global_segment_size=2GB", "--local_buffer_size=512MB", "--protocol=tcp",
                       "--metadata_server=P2PHANDSHAKE", f"--master_server_address={master}", "--threads=2")
            until(lambda: connected(socket.socket(), ("127.0.0.1", own)), "the client does not answer")
            time.sleep(1)
            code = self.store.setup_dummy(2 * self.whole + (64 << 20), 64 << 20, f"127.0.0.1:{own}")
        else:
            code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", 2 << 30, 64 << 20, "tcp", "", master)
        must(code == 0, f"Mooncake cannot be set up: {code}")

    def memory(self, size: int) -> int:
        at = self.store.alloc_from_mem_pool(size) if self.shared else super().memory(size)
        must(self.store.register_buffer(at, size) == 0, "Mooncake takes no memory")
        return at

    def save(self, names) -> None:
        must(not any(self.store.batch_put_from(names, self.sources, [self.size] * self.blocks)), "a put failed")

    def load(self, names) -> None:
        got = self.store.batch_get_into(names, self.targets, [self.size] * self.blocks)
        must(min(got) == self.size, f"a get failed: {min(got)}")

    def remove(self, names) -> None:
        self.store.batch_remove(names, True)

    def close(self) -> None:
        self.store.close()
        super().close()


class Nixl(Peer):
    settings = "io_uring, one file, overwritten; durable and cold: O_DIRECT"
    survives, env, pip = "fdatasync by the caller", "nixl", ("numpy", "--no-deps nixl-cu12==1.5.1")

    def attach(self) -> None:
        os.environ["NIXL_LOG_LEVEL"] = "ERROR"
        from nixl_cu12._api import nixl_agent, nixl_agent_config
        self.agent = nixl_agent("peer", nixl_agent_config(enable_prog_thread=False, backends=[]))
        self.agent.create_backend("POSIX", {"use_uring": "true"})
        self.agent.register_memory([(self.at, 2 * self.whole, 0, "")], "DRAM")
        self.files = [os.open(f"{self.folder}/nixl{self.size}-{flags}", os.O_RDWR | os.O_CREAT | flags)
                      for flags in (0, os.O_DIRECT)]
        for fd in self.files:
            os.posix_fallocate(fd, 0, self.whole)
            self.agent.register_memory([(0, self.whole, fd, "")], "FILE")

    def move(self, names, way: str, direct: bool, synced: bool = False) -> None:
        places, fd = self.sources if way == "WRITE" else self.targets, self.files[direct]
        ours = self.agent.get_xfer_descs([(at, self.size, 0) for at in places], "DRAM")
        theirs = self.agent.get_xfer_descs([(i * self.size, self.size, fd) for i in range(self.blocks)], "FILE")
        xfer = self.agent.initialize_xfer(way, ours, theirs, "peer", b"", ["POSIX"])
        state = self.agent.transfer(xfer)
        while state == "PROC":
            state = self.agent.check_xfer_state(xfer)
        self.agent.release_xfer_handle(xfer)
        must(state == "DONE", f"{way}: {state}")
        if synced:
            os.fdatasync(fd)

    save, load = partialmethod(move, way="WRITE", direct=False), partialmethod(move, way="READ", direct=False)
    durable = partialmethod(move, way="WRITE", direct=True, synced=True)
    cold = partialmethod(move, way="READ", direct=True)

    def remove(self, names) -> None:
        os.fdatasync(self.files[0])


class LMCache(Peer):
    settings, index, env, rows = "LocalCPUBackend, copies by torch", "dictionary", "lmcache", ("save", "load")
    pip = ("setuptools>=77,<81 numpy<=2.2.6 typing_extensions sympy networkx jinja2 fsspec filelock pyyaml "
           "psutil msgspec pyzmq prometheus_client<=0.24.1 sortedcontainers aiofile aiofiles orjson py-cpuinfo "
           "requests numba cachetools aiohttp transformers cryptography",
           "--no-deps torch==2.13.0", "--no-deps lmcache==0.5.6")

    after = "/usr/bin/python3 $ROOT/connectors/tests/stubs.py $ENV/lib/python3.*/site-packages"  # torch without CUDA

    def attach(self) -> None:
        os.environ.update(LMCACHE_LOG_LEVEL="ERROR", LMCACHE_TRACK_USAGE="false")
        import torch
        from lmcache.utils import CacheEngineKey
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.memory_allocators.host_memory_allocator import HostMemoryAllocator
        from lmcache.v1.memory_allocators.tensor_memory_allocator import TensorMemoryAllocator
        from lmcache.v1.memory_management import MemoryFormat
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
        torch.set_num_threads(THREADS)
        self.key, self.kind = CacheEngineKey, (torch.Size([self.size]), torch.uint8, MemoryFormat.BINARY_BUFFER)
        self.pages, self.loaded = (torch.from_numpy(one.view("u1")).view(self.blocks, self.size)
                                   for one in (self.source, self.target))
        memory = HostMemoryAllocator(4096)  # its own memory is not aligned for O_DIRECT
        pool = (ctypes.c_char * (1 << 30)).from_address(super().memory(1 << 30))
        memory.allocator = TensorMemoryAllocator(torch.frombuffer(pool, dtype=torch.uint8).fill_(1), 4096)
        self.config = LMCacheEngineConfig.from_defaults(
            local_cpu=True, max_local_cpu_size=1.0, local_disk=f"{self.folder}/disk{self.size}/",
            max_local_disk_size=4.0, extra_config={"use_odirect": True, "disk_io_threads": 16})
        self.cpu = self.backend = LocalCPUBackend(self.config, memory_allocator=memory)

    def names(self, tag: str) -> list:
        return [self.key("model", 1, 0, hash((tag, i)), self.kind[1]) for i in range(self.blocks)]

    def save(self, names, **options) -> None:
        objects = [self.cpu.allocate(*self.kind) for _ in names]
        for one, page in zip(objects, self.pages):
            one.tensor.copy_(page)
        self.backend.batched_submit_put_task(names, objects, **options)
        for one in objects:
            one.ref_count_down()

    def load(self, names) -> None:
        for page, one in zip(self.loaded, self.backend.batched_get_blocking(names)):
            page.copy_(one.tensor)
            one.ref_count_down()

    def remove(self, names) -> None:
        self.backend.batched_remove(names)


class LMCacheDisk(LMCache):
    settings, rows = "LocalDiskBackend, O_DIRECT, 16 threads", ("save", "cold")
    cold, remove = LMCache.load, Files.remove

    def attach(self) -> None:
        super().attach()
        import asyncio
        from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self.backend = LocalDiskBackend(self.config, loop, self.cpu)

    def save(self, names) -> None:
        written = threading.Semaphore(0)
        super().save(names, on_complete_callback=lambda _: written.release())
        must(all(written.acquire(timeout=60) for _ in names), "a block is not written")


PEERS = {"kvfs": Kvfs, "kvfs, by descriptor": KvfsDescriptor, "kvfs, by its mount": KvfsMount,
         "memcpy, 1 thread": Memcpy, f"memcpy, {THREADS} threads": type("Memcpy2", (Memcpy,), {"threads": THREADS}),
         "files on disk": Files, "files in tmpfs": type("Tmpfs", (Files,), {
             "settings": f"{THREADS} threads", "survives": "no", "rows": ("save", "load"), "place": "/dev/shm"}),
         "fio": Fio, "no-op FUSE server": Fuse, "Redis": Redis, "LMCache, CPU": LMCache,
         "LMCache, disk": LMCacheDisk, "Mooncake, embedded": Mooncake,
         "Mooncake, shared memory": type("Shared", (Mooncake,), {
             "shared": True, "settings": "client in another process, memory of its shared pool, one batch"}),
         "NIXL, POSIX": Nixl}


def measure(peer: Peer, label: str) -> None:
    def take(row: str, names) -> None:
        begun = time.monotonic()
        seconds = getattr(peer, row)(names) or time.monotonic() - begun
        figures.setdefault(row, []).append(peer.whole / seconds / 1e9)
        if row in ("load", "cold"):
            peer.check(names)

    figures: dict[str, list[float]] = {}
    for number in range(TURNS + 1):
        one = peer.names(f"{number}-{peer.size}")
        other = peer.names(f"{number}-{peer.size}d") if "durable" in peer.rows else one
        peer.stamp(one)
        if "save" in peer.rows:
            take("save", one)
        if "load" in peer.rows:
            peer.prepare(one)
            take("load", one)
            peer.remove(one)
        if "durable" in peer.rows:
            take("durable", other)
        if "cold" in peer.rows:
            peer.chill(other)
            take("cold", other)
        if "durable" in peer.rows or "load" not in peer.rows:
            peer.remove(other)
    for row, speeds in figures.items():
        print(json.dumps([label, row, statistics.median(speeds[1:])]), flush=True)


def work(build: str, name: str, folder: str) -> None:
    for label, (size, blocks) in SIZES.items():
        peer = PEERS[name](build, folder, size, blocks)
        try:
            measure(peer, label)
        finally:
            peer.close()


if __name__ == "__main__":
    work(*sys.argv[1:])
