# SPDX-License-Identifier: Apache-2.0
"""KvfsConnector inside vLLM, on real mounts, with engines and daemons that are killed.

Loads are verified by the tokens that went through the model and by the bytes of the pages,
never by vLLM's hit counters, which count matches.
"""
from __future__ import annotations

import glob
import os
import re
import shutil
import signal
import tempfile
import time
import unittest

from engines import Engine, EngineError, Nursery, prompt, settled, statistics
from mount import Between, Mount, Web

BLOCK = 128  # vLLM's block size on a CPU
models = ""


def model(kind: str, seed: int = 1) -> str:
    """Return the folder of the model, which is made at the first call."""
    folder = f"{models}/{kind}{seed}"
    return folder if os.path.exists(folder) else Nursery.model(kind, folder, seed)


def setUpModule() -> None:
    global models
    models = tempfile.mkdtemp(prefix="kvfs-models.")


def tearDownModule() -> None:
    shutil.rmtree(models)


def full(n: int) -> int:
    """Return how many of @n prompt tokens can be loaded: full blocks, without the last token."""
    return (n - 1) // BLOCK * BLOCK


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.mount = Mount("dram=256M,ssd=2G")
        self.addCleanup(self.mount.remove)

    def engine(self, *args, **kwargs) -> Engine:
        engine = Engine(*(args or (model("qwen"), self.mount.path)), **kwargs)
        self.addCleanup(engine.kill)
        return engine

    def same_pages(self, got: dict, wanted: dict, at_least: int) -> None:
        """Check that blocks in both caches have the same bytes."""
        both = got.keys() & wanted.keys()
        self.assertGreaterEqual(len(both), at_least)
        self.assertEqual({key: got[key] for key in both}, {key: wanted[key] for key in both})


class Restart(Case):
    def test_killed_engine_and_daemon_then_all_is_loaded_damaged_and_removed_blocks_too(self) -> None:
        prompts = [prompt(1, 700) + prompt(i, 900) for i in (2, 3)] + [prompt(4, 1500)]
        first = self.engine()
        wanted = first.do("generate", prompts=prompts, serial=True)
        self.assertGreater(wanted["forwarded"], 3 * 1500 - 700)
        pages = first.do("pages")
        settled(self.mount.path)
        first.kill()
        self.mount.kill()
        self.mount.start()

        second = self.engine()
        got = second.do("generate", prompts=prompts, serial=True)
        self.assertEqual(got["tokens"], wanted["tokens"])
        # The model computes the tokens after the full blocks, and 7 of the 8 generated tokens.
        self.assertEqual(got["forwarded"], sum(len(p) - full(len(p)) + 7 for p in prompts))
        self.same_pages(second.do("pages"), pages, 25)

        # The first half of the prompt is in the engine's own cache, the rest in kvfs.
        second.do("reset")
        second.do("generate", prompts=[prompts[2][:700]])
        half = second.do("generate", prompts=prompts[2:])
        self.assertEqual(half["tokens"], wanted["tokens"][2:])
        self.assertEqual(half["forwarded"], 1500 - full(1500) + 7)

        # Remove every fourth block with unlink(2): the engine computes and saves them again.
        blocks = self.mount.blocks()
        for path in blocks[::4]:
            os.unlink(path)
        second.do("reset")
        again = second.do("generate", prompts=prompts, serial=True)
        self.assertEqual(again["tokens"], wanted["tokens"])
        self.assertGreater(again["forwarded"], got["forwarded"])
        settled(self.mount.path)
        self.assertEqual(self.mount.blocks(), blocks)

        # Change bytes on the disk: kvfs detects that, and the engine computes and saves again.
        self.mount.kill()
        self.assertGreater(self.damage(), 0)
        self.mount.start()
        second.do("reset")
        self.until(lambda: self.generate(second, prompts, wanted)["forwarded"] == got["forwarded"],
                   second, prompts)
        self.assertNotIn(" 0 corrupt blocks", statistics(self.mount.path))
        self.assertEqual(self.mount.blocks(), blocks)
        second.do("reset")
        self.assertEqual(self.generate(second, prompts, wanted)["forwarded"], got["forwarded"])
        self.assertEqual(second.do("leases"), {"requests": 0, "loads": 0})

    def generate(self, engine: Engine, prompts: list, wanted: dict) -> dict:
        got = engine.do("generate", prompts=prompts, serial=True)
        self.assertEqual(got["tokens"], wanted["tokens"])
        return got

    def until(self, well, engine: Engine, prompts: list) -> None:
        for _ in range(8):
            if well():
                return
            settled(self.mount.path)
            engine.do("reset")
        self.fail("damaged blocks are not saved again")

    def damage(self) -> int:
        """Flip a byte in the middle of every third block of the segment files."""
        n = 0
        for path in glob.glob(f"{self.mount.store}/segments/*"):
            with open(path, "r+b") as file:
                for at in range(1 << 20, os.path.getsize(path), 6 << 20):
                    file.seek(at)
                    byte = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 1]))
                    n += 1
        return n

    def test_32_prompts_at_once_in_chunks(self) -> None:
        shared = [prompt(i, 300) for i in range(4)]
        prompts = [shared[i % 4] + prompt(100 + i, 150 + 11 * i) for i in range(32)]
        options = {"max_num_batched_tokens": 512, "max_num_seqs": 16}
        first = self.engine(**options)
        wanted = first.do("generate", prompts=prompts)
        pages = first.do("pages")
        settled(self.mount.path)
        first.kill()
        plain = self.engine(model("qwen"), **options)
        reference = plain.do("generate", prompts=prompts)
        self.assertEqual(reference["tokens"], wanted["tokens"])
        plain.kill()
        second = self.engine(**options)
        got = second.do("generate", prompts=prompts)
        self.assertEqual(got["tokens"], wanted["tokens"])
        self.assertLess(got["forwarded"], sum(len(p) - full(len(p)) + 8 for p in prompts))
        self.same_pages(second.do("pages"), pages, 60)

    def test_with_the_engines_own_cache_off(self) -> None:
        engine = self.engine(enable_prefix_caching=False)
        wanted = engine.do("generate", prompts=[prompt(1, 1000)])
        settled(self.mount.path)
        got = engine.do("generate", prompts=[prompt(1, 1000)])
        self.assertEqual(got["tokens"], wanted["tokens"])
        self.assertEqual(got["forwarded"], 1000 - full(1000) + 7)


class Faults(Case):
    def test_no_mount_killed_hung_and_mounted_again_requests_go_on(self) -> None:
        self.mount.stop()
        engine = self.engine()
        p, n = prompt(1, 1000), 1000
        wanted = engine.do("generate", prompts=[p])
        self.assertEqual(engine.said().count("no daemon answers"), 2)  # scheduler and worker
        self.mount.start()
        self.comes_back(engine, p, wanted)
        # Kill the daemon while requests are loaded, computed and saved.
        engine.do("reset")
        several = [p, *(prompt(20 + i, 900) for i in range(4))]
        before = self.sealed(statistics(self.mount.path))
        engine.begin("generate", prompts=several)
        self.until_statistics(lambda text: self.sealed(text) > before)
        self.mount.kill()
        got = engine.result()["tokens"]
        self.assertEqual(got[0], wanted["tokens"][0])
        engine.do("reset")
        self.assertEqual(engine.do("generate", prompts=several)["tokens"], got)
        self.mount.start()
        self.comes_back(engine, p, wanted)
        self.mount.signal(signal.SIGSTOP)
        for i in range(3):
            engine.do("reset")
            start = time.monotonic()
            got = engine.do("generate", prompts=[p, prompt(7 + i, 500)])
            self.assertEqual(got["tokens"][0], wanted["tokens"][0])
            self.assertLess(time.monotonic() - start, 20)
        self.mount.signal(signal.SIGCONT)
        self.comes_back(engine, p, wanted)
        engine.do("reset")
        engine.do("abort", prompt=prompt(9, 1000), steps=2)
        engine.do("abort", prompt=p, steps=1)
        self.assertEqual(engine.do("leases"), {"requests": 0, "loads": 0})
        self.until_statistics(lambda text: " 0 leased" in text)
        # prompt_logprobs needs every prompt token computed: vLLM discards the match.
        engine.do("reset")
        got = engine.do("generate", prompts=[p], prompt_logprobs=1)
        self.assertEqual(got["tokens"], wanted["tokens"])
        self.assertEqual(got["forwarded"], n + 7)
        # After a reset of the connector's cache earlier blocks are not found.
        engine.do("reset", connector=True)
        self.assertEqual(engine.do("generate", prompts=[p])["forwarded"], n + 7)

    @staticmethod
    def sealed(text: str) -> int:
        """Return the blocks sealed so far: a counter, unlike the number being saved."""
        return int(re.search(r"^sealed +(\d+)", text, re.M)[1])

    def comes_back(self, engine: Engine, p: list, wanted: dict) -> None:
        """Check that blocks are found again without a restart of the engine."""
        for _ in range(60):
            engine.do("reset")
            got = engine.do("generate", prompts=[p])
            self.assertEqual(got["tokens"], wanted["tokens"])
            if got["forwarded"] == len(p) - full(len(p)) + 7:
                return
            time.sleep(0.5)
        self.fail("no hits")

    def until_statistics(self, told) -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if told(statistics(self.mount.path)):
                return
        self.fail(statistics(self.mount.path))

    def lost_between_match_and_load(self, load: str, kind: str = "qwen", *more: dict) -> None:
        engine = self.engine(model(kind), self.mount.path, extra={"load": load})
        p, later = prompt(1, 1000), prompt(1, 1000) + prompt(2, 600)
        wanted = engine.do("generate", prompts=[p, later], serial=True)
        pages = engine.do("pages")
        settled(self.mount.path)
        for fault in {}, {"evict": 5}, *more:
            engine.do("reset")
            if not fault:
                engine.do("before_load", command=["kill", "-KILL", *map(str, self.mount.pids())])
            else:
                # Remove one leased block in the middle of the match.
                gone = self.mount.blocks()
                engine.do("before_load", **fault)
            got = engine.do("generate", prompts=[later])
            self.assertEqual(got["tokens"][0], wanted["tokens"][1])
            self.assertGreater(got["forwarded"], 1600 - full(1600) + 7)
            if not fault:
                self.mount.kill()
                self.mount.start()
            else:
                settled(self.mount.path)
                self.assertEqual(self.mount.blocks(), gone)
            self.comes_back(engine, p, {"tokens": wanted["tokens"][:1]})
            self.comes_back(engine, later, {"tokens": wanted["tokens"][1:]})
        self.assertIn("kvfs: loads fail: ", engine.said())
        engine.kill()
        other = self.engine(model(kind), self.mount.path)
        got = other.do("generate", prompts=[p, later], serial=True)
        self.assertEqual(got["tokens"], wanted["tokens"])
        self.assertEqual(got["forwarded"], 1000 - full(1000) + 7 + 1600 - full(1600) + 7)
        self.assertGreaterEqual(len(other.do("pages").keys() & pages.keys()), 12)

    def test_blocks_lost_between_match_and_load_are_computed_and_saved_again(self) -> None:
        self.lost_between_match_and_load("async")

    def test_the_same_with_several_layer_groups(self) -> None:
        # Block 11 is the last of the match, so it is in the window.
        self.lost_between_match_and_load("async", "gemma", {"evict": 11, "window": True})

    def test_the_same_when_loads_are_synchronous(self) -> None:
        self.lost_between_match_and_load("sync")

    def test_with_the_policy_fail_a_lost_block_ends_its_request_alone(self) -> None:
        for kind in "qwen", "gemma":
            engine = self.engine(model(kind), self.mount.path, policy="fail")
            p = prompt(1, 1000)
            wanted = engine.do("generate", prompts=[p])
            settled(self.mount.path)
            engine.do("reset")
            engine.do("before_load", evict=5)
            self.assertEqual(engine.do("generate", prompts=[p])["finish"], ["error"])
            self.assertEqual(engine.do("generate", prompts=[p])["tokens"], wanted["tokens"])
            engine.kill()

    def test_preempted_requests(self) -> None:
        prompts = [prompt(i, 400) for i in range(6)]
        plain = self.engine(model("qwen"))
        wanted = plain.do("generate", prompts=prompts, tokens=200, serial=True)
        plain.kill()
        engine = self.engine(num_gpu_blocks_override=17, max_model_len=1024, max_num_batched_tokens=1024)
        got = engine.do("generate", prompts=prompts, tokens=200)
        self.assertEqual(got["tokens"], wanted["tokens"])
        self.assertGreater(sum(engine.do("counters", name="preempt").values()), 0)
        self.assertEqual(engine.do("leases"), {"requests": 0, "loads": 0})
        engine.do("reset")
        self.assertEqual(engine.do("generate", prompts=prompts, tokens=200)["tokens"], wanted["tokens"])

    def test_two_engines_share_and_one_is_killed_while_it_saves(self) -> None:
        first, second = self.engine(), self.engine()
        wanted = first.do("generate", prompts=[prompt(1, 1500)])
        settled(self.mount.path)
        got = second.do("generate", prompts=[prompt(1, 1500)])
        self.assertEqual(got["tokens"], wanted["tokens"])
        self.assertEqual(got["forwarded"], 1500 - full(1500) + 7)
        prompts = [prompt(i, 1500) for i in range(10, 22)]
        first.begin("generate", prompts=prompts)
        time.sleep(1)
        first.kill()
        got = second.do("generate", prompts=prompts, serial=True)
        second.do("reset")
        self.assertEqual(second.do("generate", prompts=prompts, serial=True)["tokens"], got["tokens"])
        settled(self.mount.path)
        third = self.engine()
        got3 = third.do("generate", prompts=prompts, serial=True)
        self.assertEqual(got3["tokens"], got["tokens"])
        self.assertEqual(got3["forwarded"], 12 * (1500 - full(1500) + 7))
        # Kill an engine during its copies: its leases are released, and the other engine continues.
        third.do("reset")
        third.begin("generate", prompts=prompts)
        self.until_statistics(lambda text: " 0 leased" not in text)
        third.kill()
        self.until_statistics(lambda text: " 0 leased" in text)
        second.do("reset")
        last = second.do("generate", prompts=prompts, serial=True)
        self.assertEqual(last["tokens"], got["tokens"])
        self.assertEqual(last["forwarded"], got3["forwarded"])


class Nodes(Case):
    """One node computes a prompt, copies its blocks to the remote tier, and is killed."""

    def computed(self, engine, kind: type[Between]) -> tuple[Between, list, dict, Mount]:
        between = kind()
        self.addCleanup(between.remove)
        self.mount.stop()
        self.mount.start(f"dram=256M,ssd=1G,{between.option}")
        p = prompt(1, 1500)
        first = engine(self.mount)
        wanted = first.do("generate", prompts=[p])
        first.do("generate", prompts=[prompt(2, 100)])  # its steps save blocks of the prompt before
        between.has(full(1500) // BLOCK)
        first.kill()
        self.mount.kill()
        other = Mount(f"dram=256M,ssd=1G,{between.option}")
        self.addCleanup(other.remove)
        return between, p, wanted, other

    def connected(self, mount: Mount) -> Engine:
        return self.engine(model("qwen"), mount.path, extra={"remote": True})

    def tiered(self, mount: Mount) -> Engine:
        return Tier.tiered(self, path=mount.path, remote=True)

    def comes(self, begin, kind: type[Between]) -> None:
        between, p, wanted, other = self.computed(begin, kind)
        second = begin(other)
        got = second.do("generate", prompts=[p])
        self.assertEqual((got["tokens"], got["forwarded"]), (wanted["tokens"], 1500 - full(1500) + 7))
        self.assertEqual(second.do("generate", prompts=[prompt(2, 1500)])["forwarded"], 1507)
        second.kill()
        other.remove()
        if not isinstance(between, Web):
            return
        # A hanging look-up is a miss, and does not delay later requests.
        third = Mount(f"dram=256M,ssd=1G,{between.option}")
        self.addCleanup(third.remove)
        between.hang()
        last = begin(third)
        got = last.do("generate", prompts=[p, prompt(3, 300)])
        self.assertEqual((got["tokens"][:1], got["forwarded"]), (wanted["tokens"], 1507 + 307))
        self.assertLess(got["ttft"][1], got["ttft"][0])

    def test_another_node_has_what_one_computed_also_when_that_is_gone(self) -> None:
        self.comes(self.connected, Web)

    def test_the_same_behind_vllms_cpu_cache(self) -> None:
        self.comes(self.tiered, Between)


class Apart(Case):
    def test_models_adapters_salts_and_tenants_never_cross(self) -> None:
        p = prompt(1, 1000)
        whole, rest = 1000 + 7, 1000 - full(1000) + 7
        adapters = f"{models}/adapter"
        Nursery.model("lora", adapters)
        lora = {"enable_lora": True, "max_lora_rank": 8}
        first = self.engine(**lora)

        def forwarded(engine: Engine, **arguments) -> tuple[int, list]:
            engine.do("reset")
            settled(self.mount.path)
            got = engine.do("generate", prompts=[p], **arguments)
            return got["forwarded"], got["tokens"]

        plain = forwarded(first)
        self.assertEqual(plain[0], whole)
        self.assertEqual(forwarded(first), (rest, plain[1]))
        for turn in (whole, rest):
            self.assertEqual(forwarded(first, salt="one"), (turn, plain[1]))
        adapted = forwarded(first, lora=["a", 1, adapters])
        self.assertEqual(adapted[0], whole)
        self.assertNotEqual(adapted[1], plain[1])
        self.assertEqual(forwarded(first, lora=["a", 1, adapters]), (rest, adapted[1]))
        first.kill()
        # The adapter's weights change under the same name and path.
        Nursery.model("lora", adapters, 2)
        second = self.engine(**lora)
        trained = forwarded(second, lora=["a", 1, adapters])
        self.assertEqual(trained[0], whole)
        self.assertNotEqual(trained[1], adapted[1])
        self.assertEqual(forwarded(second), (rest, plain[1]))
        second.kill()
        # Put another model of the same shape at the same path.
        place = f"{models}/place"
        shutil.copytree(model("qwen", 1), place)
        third = self.engine(place, self.mount.path)
        self.assertEqual(forwarded(third)[0], whole)  # without adapters the identity differs
        self.assertEqual(forwarded(third), (rest, plain[1]))
        third.kill()
        shutil.rmtree(place)
        shutil.copytree(model("qwen", 2), place)
        fourth = self.engine(place, self.mount.path)
        other = forwarded(fourth)
        self.assertEqual(other[0], whole)
        self.assertNotEqual(other[1], plain[1])
        self.assertEqual(forwarded(fourth), (rest, other[1]))


    def test_a_length_that_changes_rotary_embeddings(self) -> None:
        p = prompt(1, 450)
        answers = []
        for length in (512, 4096, 512):
            engine = self.engine(model("phi"), self.mount.path, max_model_len=length)
            answers.append(engine.do("generate", prompts=[p]))
            settled(self.mount.path)
            engine.kill()
        short, long, again = answers
        self.assertNotEqual(long["tokens"], short["tokens"])
        self.assertEqual([answer["forwarded"] for answer in answers], [457, 457, 450 - full(450) + 7])
        self.assertEqual(again["tokens"], short["tokens"])

    def test_weights_that_change_in_one_byte_or_in_the_running_engine(self) -> None:
        place, p = f"{models}/changed", prompt(1, 1000)
        whole, rest = 1007, 1000 - full(1000) + 7
        shutil.copytree(model("qwen"), place)
        shutil.copytree(model("qwen"), f"{models}/elsewhere")
        first = self.engine(place, self.mount.path)
        wanted = first.do("generate", prompts=[p])
        settled(self.mount.path)
        first.kill()
        # A copy of the model, with other settings that change no block.
        second = self.engine(f"{models}/elsewhere", self.mount.path, max_logprobs=5,
                             generation_config="vllm", served_model_name="other",
                             gpu_memory_utilization=0.5)
        self.assertEqual(second.do("generate", prompts=[p])["forwarded"], rest)
        second.do("call", method="reload_weights")
        for _ in range(2):
            second.do("reset")
            got = second.do("generate", prompts=[p])
            self.assertEqual((got["tokens"], got["forwarded"]), (wanted["tokens"], whole))
        self.assertEqual(second.said().count("reload_weights may change the model's weights"), 1)
        second.kill()
        with open(glob.glob(f"{place}/*.safetensors")[0], "r+b") as file:
            file.seek(1_000_003)
            byte = file.read(1)
            file.seek(1_000_003)
            file.write(bytes([byte[0] ^ 1]))
        third = self.engine(place, self.mount.path)
        self.assertEqual(third.do("generate", prompts=[p])["forwarded"], whole)


class Kinds(Case):
    def kind(self, name: str, spaces: int, **options) -> tuple[Engine, list, list, int]:
        """Return a restarted engine, the prompt, its output, and the number of computed tokens."""
        p = prompt(1, 1500)
        first = self.engine(model(name), self.mount.path, **options)
        wanted = first.do("generate", prompts=[p])
        # Check that the output depends on the prompt: with equal logits the test proves nothing.
        self.assertNotEqual(first.do("generate", prompts=[prompt(2, 1500)])["tokens"],
                            wanted["tokens"])
        settled(self.mount.path)
        first.kill()
        second = self.engine(model(name), self.mount.path, **options)
        got = second.do("generate", prompts=[p])
        self.assertEqual(got["tokens"], wanted["tokens"])
        block = second.do("block_size")
        self.assertEqual(got["forwarded"], 1500 - 1499 // block * block + 7)
        self.assertEqual(len(glob.glob(f"{self.mount.path}/vllm-*")), spaces)
        return second, p, wanted["tokens"], got["forwarded"]

    def test_a_sliding_window_hybrid(self) -> None:
        self.kind("gemma", 4)  # each layer is a group, and has a space

    def test_latent_attention(self) -> None:
        self.kind("deepseek", 1)

    def test_tensor_parallelism(self) -> None:
        engine, p, wanted, loaded = self.kind("qwen", 2, tensor_parallel_size=2,
                                              distributed_executor_backend="mp")
        # A block that only one rank has is a miss, and is saved again.
        blocks = self.mount.blocks()
        os.unlink([path for path in blocks if ".r1/" in path][3])
        for forwarded in (True, False):
            engine.do("reset")
            settled(self.mount.path)
            got = engine.do("generate", prompts=[p])
            self.assertEqual(got["tokens"], wanted)
            self.assertEqual(got["forwarded"] > loaded, forwarded)
        self.assertEqual(self.mount.blocks(), blocks)


class Speculation(Case):
    def test_tokens_that_n_grams_propose(self) -> None:
        """Prompts that repeat themselves: tokens are proposed, and some are accepted."""
        prompts = [prompt(i, 40) * 25 + prompt(i, 20) for i in range(4)]
        plain = self.engine(model("qwen"))
        wanted = plain.do("generate", prompts=prompts, tokens=150)
        plain.kill()
        n_gram = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4,
                                         "prompt_lookup_max": 2, "prompt_lookup_min": 1}}
        first = self.engine(**n_gram)
        got = first.do("generate", prompts=prompts, tokens=150)
        self.assertEqual(got["tokens"], wanted["tokens"])
        proposed = first.do("counters", name="spec_decode")
        self.assertGreater(proposed["vllm:spec_decode_num_accepted_tokens"], 0)
        self.assertGreater(proposed["vllm:spec_decode_num_draft_tokens"],
                           proposed["vllm:spec_decode_num_accepted_tokens"])
        # The generated tokens are in saved blocks, too: the next turn of each conversation.
        longer = [p + tokens + prompt(9, 40) for p, tokens in zip(prompts, wanted["tokens"])]
        turns = first.do("generate", prompts=longer)
        pages = first.do("pages")
        settled(self.mount.path)
        first.kill()
        second = self.engine(**n_gram)
        again = second.do("generate", prompts=longer)
        self.assertEqual(again["tokens"], turns["tokens"])
        self.assertLess(again["forwarded"], sum(len(p) - full(len(p)) + 8 * 5 for p in longer))
        self.same_pages(second.do("pages"), pages, 4 * (full(len(longer[0])) // BLOCK))
        second.kill()
        plain = self.engine(model("qwen"))
        self.assertEqual(plain.do("generate", prompts=longer)["tokens"], turns["tokens"])
        plain.kill()
        # An engine without n-grams, such as one that computes prompts, shares the blocks.
        other = self.engine()
        loaded = other.do("generate", prompts=longer)
        self.assertEqual(loaded["tokens"], turns["tokens"])
        self.assertEqual(loaded["forwarded"], sum(len(p) - full(len(p)) + 7 for p in longer))

    def test_draft_layers_are_saved_and_loaded_with_the_model_s(self) -> None:
        """The draft model is a copy of the model, so that it proposes the right tokens if its layers are right;
        the EAGLE heads are random."""
        prompts = [prompt(i, 680 + 90 * i) for i in range(4)]
        plain = self.engine(model("qwen"))
        wanted = plain.do("generate", prompts=prompts, tokens=60)["tokens"]
        longer = [p + tokens + prompt(9, 40) for p, tokens in zip(prompts, wanted)]
        turns = plain.do("generate", prompts=longer, tokens=20)["tokens"]
        plain.kill()
        for method, draft, volatile in (("draft_model", model("qwen"), 0), ("eagle", model("eagle"), 1),
                                        ("eagle3", model("eagle3"), 1)):
            options = {"speculative_config": {"method": method, "model": draft, "num_speculative_tokens": 3}}
            first = self.engine(**options)
            self.assertEqual(first.do("generate", prompts=prompts, tokens=60)["tokens"], wanted)
            self.assertEqual(first.do("generate", prompts=longer, tokens=20)["tokens"], turns)
            pages = first.do("pages")
            settled(self.mount.path)
            first.kill()
            self.mount.kill()
            self.mount.start()
            second = self.engine(**options)
            got = second.do("generate", prompts=longer, tokens=20)
            self.assertEqual(got["tokens"], turns)
            # In each step of a request the model computes a token, and 3 that were proposed.
            self.assertLessEqual(got["forwarded"], sum(len(p) - full(len(p)) + volatile * BLOCK + 20 * 4
                                                       for p in longer))
            self.assertGreaterEqual(got["forwarded"], sum(len(p) - full(len(p)) + volatile * BLOCK for p in longer))
            loaded = second.do("pages")
            both = pages.keys() & loaded.keys()
            self.assertGreaterEqual(len(both), sum(full(len(p)) // BLOCK - volatile for p in longer))
            # Each engine computed the last block of a match again, in a step with other rounding.
            self.assertLessEqual(sum(pages[key] != loaded[key] for key in both), 2 * volatile * len(longer))
            figures = second.do("counters", name="spec_decode")
            accepted = figures["vllm:spec_decode_num_accepted_tokens"]
            self.assertGreater(figures["vllm:spec_decode_num_draft_tokens"], 0)
            if method == "draft_model":
                self.assertGreater(accepted, 0.9 * 4 * 15)
            second.kill()


class Tier(Case):
    def tiered(self, options: dict | None = None, **own) -> Engine:
        id = f"kvfs-test-{os.getpid()}-{time.monotonic_ns()}"
        self.addCleanup(lambda: [os.unlink(path) for path in glob.glob(f"/dev/shm/*{id}*")])
        tier = {"type": "KvfsTier", "module_path": "kvfs.vllm.tier", "path": self.mount.path,
                "weights_cache": f"{models}/digests"} | own
        return self.engine(model("qwen"), kv_transfer_config={
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "engine_id": id,
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "spec_name": "CpuTieringSpec", "spec_module_path": "cpu_spec",
                "cpu_bytes_to_use": 128 << 20, "secondary_tiers": [tier]}}, **(options or {}))

    def test_behind_vllms_cpu_cache_killed_and_loaded_by_another(self) -> None:
        p = prompt(1, 1500)
        first = self.tiered()
        wanted = first.do("generate", prompts=[p])
        pages = first.do("pages")
        first.do("generate", prompts=[prompt(2, 200)])  # its steps save blocks of the prompt before
        settled(self.mount.path)
        self.assertEqual(len(self.mount.blocks()), full(1500) // BLOCK + 1)
        first.kill()
        self.mount.kill()
        self.mount.start()
        second = self.tiered()
        got = second.do("generate", prompts=[p])
        self.assertEqual(got["tokens"], wanted["tokens"])
        self.assertEqual(got["forwarded"], 1500 - full(1500) + 7)
        self.same_pages(second.do("pages"), pages, full(1500) // BLOCK)
        second.kill()
        os.unlink(self.mount.blocks()[3])
        self.mount.signal(signal.SIGSTOP)
        third = self.tiered()
        self.assertEqual(third.do("generate", prompts=[p])["tokens"], wanted["tokens"])
        self.mount.signal(signal.SIGCONT)
        third.kill()
        fourth = self.tiered()
        got = fourth.do("generate", prompts=[p])
        self.assertEqual(got["tokens"], wanted["tokens"])
        fourth.kill()
        fifth = self.tiered(salt="other")
        self.assertEqual(fifth.do("generate", prompts=[p])["forwarded"], 1500 + 7)
        fifth.kill()

    def test_other_settings_of_the_model_are_another_space(self) -> None:
        p = prompt(1, 1500)
        for options, forwarded in (({}, 1507), ({"hf_overrides": {"rms_norm_eps": 1e-3}}, 1507),
                                   ({}, 1500 - full(1500) + 7)):
            engine = self.tiered(options)
            self.assertEqual(engine.do("generate", prompts=[p])["forwarded"], forwarded)
            engine.do("generate", prompts=[prompt(2, 200)])
            settled(self.mount.path)
            if options or forwarded < 1507:
                engine.do("call", method="reload_weights")
                engine.do("reset", connector=True)
                self.assertEqual(engine.do("generate", prompts=[p])["forwarded"], 1507)
            engine.kill()

    def test_a_request_may_save_nothing_and_load_nothing(self) -> None:
        p, loaded = prompt(1, 1500), full(1500)
        for params, forwarded, blocks in (({"kvfs.save": False}, 1507, 0),
                                          ({"kvfs.save": 0, "save": False}, 1507, loaded // BLOCK),
                                          ({"kvfs.load": False}, 1507, loaded // BLOCK),
                                          ({"kvfs.load": None}, 1507 - loaded, loaded // BLOCK)):
            engine = self.tiered()
            got = engine.do("generate", prompts=[p], extra_args={"kv_transfer_params": params})
            self.assertEqual(got["forwarded"], forwarded)
            engine.do("generate", prompts=[prompt(2, 20)])
            settled(self.mount.path)
            self.assertEqual(len(self.mount.blocks()), blocks)
            engine.kill()

    def test_a_wrong_setting_is_named(self) -> None:
        with self.assertRaises(EngineError) as caught:
            self.tiered(ssd_wait=3)
        self.assertIn("secondary tier has 'ssd_wait'", str(caught.exception))


if __name__ == "__main__":
    unittest.main(verbosity=2)
