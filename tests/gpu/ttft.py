#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ttft.py - time to the first token with and without kvfs.

A model of Qwen3-4B's shape, with random weights, reads prompts of 2,048 and
8,192 tokens: cold, with everything computed; and warm, with all blocks of 16
tokens but the last loaded from kvfs, from DRAM and from SSD, through match,
acquire, load and order, so that only the last 16 tokens are computed.  The
floor is the time of the last 16 tokens alone: kvfs costs the time above the
floor.  Shorter prompts then show from which length on loading beats computing.

    ttft.py --library libkvfs.so.1 --daemon kvfs
    ttft.py --library ... --daemon ... --device cpu --layers 2 --tokens 256

Loads are also measured alone, against one copy of as many bytes in pinned
memory, and against torch's Tensor.index_copy_ from there into the pages.

The difference of the last token's logits is printed as the mean of
|difference|: between two cold runs; between a cold run and a run in two steps
without kvfs; and between that run and a warm run, which must be 0, because both
compute exactly the same.
"""
import argparse
import atexit
import concurrent.futures
import ctypes as c
import errno
import json
import mmap
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

SECOND = 1_000_000_000
COPIED, SEALED, DURABLE = 1, 2, 3
BY_LAYER = 4
CREATE = 0o1000
TOKENS = 16  # a block


# ---- libkvfs ----

class Key(c.Structure):
    _fields_ = [("bytes", c.c_uint8 * 32), ("len", c.c_uint32)]


class Query(c.Structure):
    _fields_ = [("space", c.c_void_p), ("keys", c.POINTER(Key)), ("n", c.c_size_t),
                ("start", c.c_uint64), ("tokens", c.c_uint64),
                ("reserved", c.c_uint64)]


class View(c.Structure):
    _fields_ = [("tensor", c.c_char_p), ("base", c.c_void_p), ("block_stride", c.c_uint64),
                ("bytes", c.c_uint64), ("count", c.c_uint64), ("segment_stride", c.c_uint64),
                ("reserved", c.c_uint64 * 2)]


class PoolDesc(c.Structure):
    _fields_ = [("size", c.c_size_t), ("device", c.c_char_p),
                ("space", c.c_void_p), ("views", c.POINTER(View)),
                ("n_views", c.c_size_t), ("pages", c.c_uint64), ("pages_per_block", c.c_uint32),
                ("memory", c.c_void_p), ("memory_bytes", c.c_uint64)]


class Opts(c.Structure):
    _fields_ = [("size", c.c_size_t), ("user", c.c_uint64),
                ("first", c.c_uint64), ("deadline", c.c_uint64), ("head", c.c_uint64),
                ("tail", c.c_uint64), ("first_layer", c.c_uint32), ("layers", c.c_uint32),
                ("flags", c.c_uint32), ("priority", c.c_int), ("stream", c.c_void_p),
                ("event", c.c_void_p)]


class Library:
    """The calls of libkvfs; each raises OSError for an error."""

    def __init__(self, path):
        self.dll = c.CDLL(path)

    def __getattr__(self, name):
        function = getattr(self.dll, "kvfs_" + name)
        function.restype = c.c_long if name in ("match", "lease_wait", "xfer_wait",
                                                "key_chain") else c.c_int

        def call(*args):
            r = function(*args)
            if r < 0:
                raise OSError(-r, f"kvfs_{name}: {os.strerror(-r)}")
            return r
        return call

    def ordered(self, xfer, layer, stream):
        """Order @stream after the layer. Return False if its copies are not submitted."""
        r = self.dll.kvfs_xfer_order_layer(xfer, c.c_uint32(layer), c.c_void_p(stream))
        if r < 0 and r != -errno.EAGAIN:
            raise OSError(-r, f"kvfs_xfer_order_layer: {os.strerror(-r)}")
        return r == 0

    def free(self, name, handle):
        function = getattr(self.dll, "kvfs_" + name)
        function.restype = None
        function(handle)


class Daemon:
    """A kvfs daemon without a mount, in a directory of its own."""

    def __init__(self, program, directory):
        self.program, self.directory = program, directory
        self.socket = os.path.join(directory, "control")
        self.process = None
        atexit.register(self.stop)
        self.start()

    def start(self):
        self.process = subprocess.Popen([
            self.program, "-f", "-o", f"dram=4G,ssd=8G,scrub=0,control={self.socket}",
            os.path.join(self.directory, "store"), "none"], stdin=subprocess.DEVNULL)
        while not os.path.exists(self.socket):
            if self.process.poll() is not None:
                sys.exit("ttft: the daemon did not start")
            time.sleep(0.01)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()


# ---- the model ----

class Model:
    """Attention with grouped heads and normalised queries and keys, a gated
    feed-forward part, rotary positions: the shape of Qwen3-4B."""
    hidden, heads, kv_heads, dim, inner, vocab = 2560, 32, 8, 128, 9728, 151936

    def __init__(self, layers, device, small):
        if small:
            self.hidden, self.inner, self.vocab = 256, 512, 1024
        g = torch.Generator(device=device).manual_seed(1)

        def weight(*shape):
            w = torch.randn(*shape, generator=g, device=device, dtype=torch.float32)
            return (w / shape[-1] ** 0.5).to(torch.bfloat16)

        self.device, self.n = device, layers
        self.embed = weight(self.vocab, self.hidden) * 4
        q, kv = self.heads * self.dim, self.kv_heads * self.dim
        self.layers = [{"qkv": weight(q + 2 * kv, self.hidden), "o": weight(self.hidden, q),
                        "up": weight(2 * self.inner, self.hidden),
                        "down": weight(self.hidden, self.inner)} for _ in range(layers)]
        at = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim
        self.frequency = 1e6 ** -at

    @staticmethod
    def norm(x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    def rotate(self, x, positions):
        angle = positions[:, None].float() * self.frequency
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    def attend(self, q, k, v, first):
        """q: queries of the tokens from @first on; k, v: keys and values of all tokens
        up to the last of q."""
        mask = None
        if first > 0:
            row = torch.arange(first, first + q.shape[0], device=self.device)[:, None]
            mask = torch.arange(k.shape[0], device=self.device)[None] <= row
        group = self.heads // self.kv_heads
        k, v = (t.repeat_interleave(group, 1).transpose(0, 1)[None] for t in (k, v))
        out = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, attn_mask=mask,
                                             is_causal=mask is None)
        return out[0].transpose(0, 1).reshape(q.shape[0], -1)

    def forward(self, tokens, first, cache, pages, before_layer=None):
        """Return the logits after the last of @tokens, which begin at position @first.  The KV of
        earlier tokens is in @pages of @cache; the KV of @tokens is added there."""
        n = first + len(tokens)
        positions = torch.arange(first, n, device=self.device)
        x = self.embed[tokens]
        q_size, kv_size = self.heads * self.dim, self.kv_heads * self.dim
        block, slot = pages[positions // TOKENS], positions % TOKENS
        used = pages[: (n + TOKENS - 1) // TOKENS]
        for i, w in enumerate(self.layers):
            q, k, v = F.linear(self.norm(x), w["qkv"]).split((q_size, kv_size, kv_size), -1)
            q = self.rotate(self.norm(q.view(-1, self.heads, self.dim)), positions)
            k = self.rotate(self.norm(k.view(-1, self.kv_heads, self.dim)), positions)
            v = v.reshape(-1, self.kv_heads, self.dim)
            cache[block, i, 0, slot], cache[block, i, 1, slot] = k, v
            if first > 0:
                if before_layer:
                    before_layer(i)
                k, v = (cache[used, i, j].reshape(-1, self.kv_heads, self.dim)[:n]
                        for j in (0, 1))
            x = x + F.linear(self.attend(q, k, v, first), w["o"])
            gate, up = F.linear(self.norm(x), w["up"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, w["down"])
        return F.linear(self.norm(x[-1:]), self.embed)[0].float()


# ---- the engine ----

class Engine:
    def __init__(self, args, model, tokens, directory):
        self.lib = Library(args.library)
        self.cuda = args.device != "cpu"
        self.device = torch.device(args.device)
        self.daemon = Daemon(args.daemon, directory)
        self.model = model
        self.n, self.ups = tokens // TOKENS, 0
        g = torch.Generator().manual_seed(2)
        self.tokens = torch.randint(0, self.model.vocab, (tokens,), generator=g)
        self.on_device = self.tokens.to(self.device)
        # The pool has twice as many pages as are used, in random order.
        m = self.model
        self.cache = torch.zeros(2 * self.n, m.n, 2, TOKENS, m.kv_heads, m.dim,
                                 dtype=torch.bfloat16, device=self.device)
        self.pages = torch.randperm(2 * self.n, generator=g)[: self.n]
        self.pages_there = self.pages.to(self.device)
        self.stream = (torch.cuda.current_stream().cuda_stream or 1) if self.cuda else None
        self.open()

    def open(self):
        m, lib = self.model, self.lib
        self.session, self.space, self.pool = c.c_void_p(), c.c_void_p(), c.c_void_p()
        lib.open(self.daemon.socket.encode(), c.byref(self.session))
        layout = json.dumps({"tokens": TOKENS, "tensors": [
            {"name": "kv", "dtype": "BF16", "shape": [m.n, 2, TOKENS, m.kv_heads, m.dim]}]})
        lib.space_open(self.session, b"qwen3", layout.encode(), CREATE | 0o700,
                       c.byref(self.space))
        while not lib.connected(self.session):
            time.sleep(0.001)
        page = self.cache[0].numel() * 2
        views = (View * 1)(View(b"kv", self.cache.data_ptr(), page, page, 1, 0))
        desc = PoolDesc(c.sizeof(PoolDesc), b"cuda" if self.cuda else b"host", self.space, views, 1,
                        self.cache.shape[0], 1, self.cache.data_ptr(),
                        self.cache.numel() * 2)
        lib.pool_register(self.session, c.byref(desc), c.byref(self.pool))
        self.keys = (Key * self.n)()
        ids = (c.c_uint32 * len(self.tokens))(*self.tokens.tolist())
        lib.key_chain(self.space, None, ids, c.c_size_t(len(ids)), None, c.c_size_t(0),
                      self.keys, c.c_size_t(self.n))

    def close(self):
        self.lib.free("pool_close", self.pool)
        self.lib.free("space_close", self.space)
        self.lib.free("close", self.session)

    def settle(self):
        if self.cuda:
            torch.cuda.synchronize()

    def timed(self, run):
        self.settle()
        start = time.perf_counter()
        logits = run()
        self.settle()
        return time.perf_counter() - start, logits

    def cold(self):
        return self.model.forward(self.on_device, 0, self.cache, self.pages_there)

    def floor(self):
        """Time the last tokens alone, with all earlier tokens in the pages."""
        first = (self.n - 1) * TOKENS
        return self.model.forward(self.on_device[first:], first, self.cache, self.pages_there)

    def two_steps(self):
        first = (self.n - 1) * TOKENS
        self.model.forward(self.on_device[:first], 0, self.cache, self.pages_there)
        return self.model.forward(self.on_device[first:], first, self.cache, self.pages_there)

    def save(self):
        """Save all full blocks but the last, until durable."""
        xfer, flush = c.c_void_p(), c.c_void_p()
        opts = Opts(size=c.sizeof(Opts), stream=self.stream)
        n = self.n - 1
        self.lib.save(self.pool, self.space, self.keys, None, c.c_size_t(n),
                      (c.c_int64 * n)(*self.pages[:n].tolist()), c.byref(opts), c.byref(xfer))
        done = self.lib.xfer_wait(xfer, SEALED, c.c_uint64(60 * SECOND))
        assert done == n, f"only {done} of {n} blocks were saved"
        self.lib.flush(self.space, DURABLE, None, c.byref(flush))
        self.lib.xfer_wait(flush, DURABLE, c.c_uint64(60 * SECOND))
        self.lib.free("xfer_free", xfer)
        self.lib.free("xfer_free", flush)

    def warm(self):
        lib, n = self.lib, self.n - 1
        lease, xfer = c.c_void_p(), c.c_void_p()
        query = Query(self.space, self.keys, n)
        hit = lib.match(c.byref(query), c.c_size_t(1))
        assert hit == n, f"only {hit} of {n} blocks are there"
        soon = Opts(size=c.sizeof(Opts), deadline=60 * SECOND)
        lib.acquire(c.byref(query), c.c_size_t(1), c.byref(soon), c.byref(lease))
        opts = Opts(size=c.sizeof(Opts), flags=BY_LAYER, stream=self.stream)
        lib.load(self.pool, lease, c.c_size_t(n), (c.c_int64 * n)(*self.pages[:n].tolist()),
                 c.byref(opts), c.byref(xfer))
        order = None
        if self.cuda:
            def order(layer):
                # A stream cannot wait for copies that are not submitted, so no kernel may start
                # earlier.
                while not lib.ordered(xfer, layer, self.stream):
                    time.sleep(20e-6)
        else:
            lib.xfer_wait(xfer, COPIED, c.c_uint64(60 * SECOND))
        logits = self.model.forward(self.on_device[n * TOKENS:], n * TOKENS, self.cache,
                                    self.pages_there, order)
        self.settle()
        bad = [i for i in range(n) if lib.xfer_status(xfer, c.c_size_t(i)) != 0]
        assert not bad, f"blocks {bad} did not come"
        lib.free("xfer_free", xfer)
        lib.free("release", lease)
        return logits

    def load(self):
        """Load as many bytes as a warm run, but compute nothing."""
        lib, n = self.lib, self.n - 1
        lease, xfer = c.c_void_p(), c.c_void_p()
        query = Query(self.space, self.keys, n)
        soon = Opts(size=c.sizeof(Opts), deadline=60 * SECOND)
        lib.acquire(c.byref(query), c.c_size_t(1), c.byref(soon), c.byref(lease))
        lib.load(self.pool, lease, c.c_size_t(n), (c.c_int64 * n)(*self.pages[:n].tolist()),
                 c.byref(Opts(size=c.sizeof(Opts), stream=self.stream)), c.byref(xfer))
        done = lib.xfer_wait(xfer, COPIED, c.c_uint64(60 * SECOND))
        assert done == n, f"only {done} of {n} blocks came"
        lib.free("xfer_free", xfer)
        lib.free("release", lease)

    def keep(self):
        """Keep a copy of the pages that were saved, in pinned memory if the device is
        CUDA."""
        self.kept = self.cache[self.pages_there[:self.n - 1]].to("cpu")
        if self.cuda:
            self.kept = self.kept.pin_memory()

    def one_copy(self):
        self.kept.to(self.device, non_blocking=True, copy=True)

    def index_copy(self):
        self.cache.index_copy_(0, self.pages_there[:self.n - 1],
                               self.kept.to(self.device, non_blocking=True))

    def check_pages(self):
        assert torch.equal(self.cache[self.pages_there[:self.n - 1]].to("cpu"), self.kept), \
            "the pages hold other bytes than were saved"

    def read_ssd(self):
        """Read as many bytes as a load, straight from the store's files."""
        store, piece = os.path.join(self.daemon.directory, "store"), 2 << 20
        files = [os.path.join(at, name) for at, _, names in os.walk(store)
                 for name in names if name.endswith(".seg")]
        left, parts = self.kept.numel() * 2, []
        for name in files:
            for at in range(0, min(os.path.getsize(name), left), piece):
                parts.append((name, at))
            left -= min(os.path.getsize(name), left)
        with concurrent.futures.ThreadPoolExecutor(16) as readers:
            list(readers.map(lambda part: read_direct(*part, piece), parts))

    def forget(self):
        """Overwrite the pages of the prompt."""
        self.cache.fill_(0)
        self.settle()

    def only_on_ssd(self):
        self.close()
        self.daemon.stop()
        self.daemon.start()
        self.open()
        self.warm_up()

    def warm_up(self):
        """Save and load a block of no prompt, so that what a session does only
        once is done."""
        lib, page = self.lib, (c.c_int64 * 1)(self.pages[-1].item())
        self.ups += 1
        key = (Key * 1)(Key((c.c_uint8 * 32)(7, self.ups), 16))
        query, lease, xfer = Query(self.space, key, 1), c.c_void_p(), c.c_void_p()
        lib.save(self.pool, self.space, key, None, c.c_size_t(1), page, None, c.byref(xfer))
        lib.xfer_wait(xfer, SEALED, c.c_uint64(60 * SECOND))
        lib.free("xfer_free", xfer)
        soon = Opts(size=c.sizeof(Opts), deadline=60 * SECOND)
        lib.acquire(c.byref(query), c.c_size_t(1), c.byref(soon), c.byref(lease))
        lib.load(self.pool, lease, c.c_size_t(1), page, None, c.byref(xfer))
        lib.xfer_wait(xfer, COPIED, c.c_uint64(60 * SECOND))
        lib.free("xfer_free", xfer)
        lib.free("release", lease)


def read_direct(name, at, size):
    fd = os.open(name, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, size) as memory:
        os.preadv(fd, [memory], at)
    os.close(fd)


def difference(a, b):
    return (a - b).abs().mean().item()


def median(engine, rounds, run, before=None):
    """Return the median of the times, and the logits of the last run."""
    times = []
    for _ in range(rounds):
        if before:
            before()
        seconds, logits = engine.timed(run)
        times.append(seconds)
    return statistics.median(times), logits


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--library", required=True)
    p.add_argument("--daemon", required=True)
    p.add_argument("--device", default="cuda")
    p.add_argument("--layers", type=int, default=36)
    p.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192])
    p.add_argument("--rounds", type=int, default=7)
    args = p.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        sys.exit("ttft: torch finds no GPU")
    with torch.inference_mode():
        model = Model(args.layers, torch.device(args.device), small=args.device == "cpu")
        name = "cpu" if args.device == "cpu" else torch.cuda.get_device_name()
        print(f"{name}, {time.strftime('%Y-%m-%d')}: {args.layers} layers")
        bad = [n for n in args.tokens if not with_engine(report, args, model, n)]
        shorter = [n for n in (64, 128, 256, 512, 1024) if n < min(args.tokens)]
        for n in shorter:
            with_engine(compare, args, model, n)
    if bad:
        sys.exit("ttft: a warm run computed from other bytes than were saved")


def with_engine(run, args, model, tokens):
    with tempfile.TemporaryDirectory() as directory:
        e = Engine(args, model, tokens, directory)
        result = run(e, args)
        e.close()
        e.daemon.stop()
        return result


def compare(e, args):
    """Print whether loading a prompt of this length is faster than computing."""
    e.cold()
    cold_s = median(e, args.rounds, e.cold)[0]
    e.save()
    median(e, 2, e.warm, e.forget)
    warm_s = median(e, args.rounds, e.warm, e.forget)[0]
    print(f"{len(e.tokens):6} tokens: recomputed {cold_s * 1e3:8.2f} ms, "
          f"from DRAM {warm_s * 1e3:8.2f} ms: {'faster' if warm_s < cold_s else 'slower'}",
          flush=True)


def report(e, args):
    mib = (e.n - 1) * e.cache[0].numel() * 2 / 2**20
    print(f"{len(e.tokens)} tokens, {e.n - 1} blocks, {mib:.0f} MiB")
    e.cold()
    e.two_steps()
    cold_s, cold = median(e, args.rounds, e.cold)
    again = e.timed(e.cold)[1]
    steps = e.timed(e.two_steps)[1]
    floor_s = median(e, args.rounds, e.floor)[0]
    # The saved blocks are exactly the state that the cold run in two steps wrote.
    e.save()
    e.keep()
    median(e, 2, e.warm, e.forget)
    dram_s, dram = median(e, args.rounds, e.warm, e.forget)
    load_s = median(e, args.rounds, e.load, e.forget)[0]
    e.check_pages()
    copy_s = median(e, args.rounds, e.one_copy)[0]
    index_s = median(e, args.rounds, e.index_copy, e.forget)[0]
    e.check_pages()
    ssd_s, ssd = median(e, 3, e.warm, lambda: (e.only_on_ssd(), e.forget()))
    read_s = median(e, 3, e.read_ssd)[0]
    asked, asked_ssd = floor_s + 1.25 * copy_s, floor_s + 1.1 * read_s
    print(f"recomputed     {cold_s * 1e3:8.2f} ms")
    print(f"the floor      {floor_s * 1e3:8.2f} ms   the last {TOKENS} tokens alone")
    print(f"from DRAM      {dram_s * 1e3:8.2f} ms   {cold_s / dram_s:5.1f} times; asked: the floor "
          f"and 1.25 copies, {asked * 1e3:.2f} ms: {'met' if dram_s <= asked else 'missed'}")
    print(f"from SSD       {ssd_s * 1e3:8.2f} ms   {cold_s / ssd_s:5.1f} times; asked: the floor "
          f"and 1.1 reads, {asked_ssd * 1e3:.2f} ms: {'met' if ssd_s <= asked_ssd else 'missed'}")
    gb = mib * 2**20 / 1e9
    print(f"the bytes alone, from DRAM       {load_s * 1e3:8.2f} ms   {gb / load_s:5.1f} GB/s")
    print(f"read straight from SSD, 16 threads {read_s * 1e3:6.2f} ms   {gb / read_s:5.1f} GB/s")
    print(f"one copy from pinned memory      {copy_s * 1e3:8.2f} ms   {gb / copy_s:5.1f} GB/s")
    print(f"index_copy_ from pinned memory   {index_s * 1e3:8.2f} ms   {gb / index_s:5.1f} GB/s")
    print("mean |difference| of the logits:")
    print(f"  cold and cold again                 {difference(cold, again):.3g}")
    print(f"  cold and in two steps, without kvfs {difference(cold, steps):.3g}")
    print(f"  cold and warm                       {difference(cold, dram):.3g}")
    print(f"  two steps and warm, DRAM            {difference(steps, dram):.3g} (must be 0)")
    print(f"  two steps and warm, SSD             {difference(steps, ssd):.3g} (must be 0)", flush=True)
    return not difference(steps, dram) and not difference(steps, ssd)


if __name__ == "__main__":
    main()
