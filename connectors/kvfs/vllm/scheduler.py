# SPDX-License-Identifier: Apache-2.0
"""scheduler - KvfsConnector in vLLM's scheduler: look-ups, and plans of loads and saves.

A match is a lease: its blocks cannot be evicted from the match until a worker has copied them.
The lease ends when vLLM discards the match, when the load is over and when the request ends.
Blocks on SSD are read into DRAM before they count as a match; the request waits for them
(None), at most `ssd_wait` seconds.

vLLM asks again in every step. The daemon gets one message for all candidate blocks; afterwards
the lease has the result. A step that computes nothing waits for the lease.

A request that another engine has prefilled names the last block that the engine saves.  Until
all blocks up to it can be held, the request waits, at most `ssd_wait` seconds in all.

kvfs may have evicted blocks that vLLM's own prefix cache serves. Such blocks are offered again,
except blocks that were offered in the last half minute and not missed by a look-up since.
"""
from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import time
from dataclasses import dataclass, field
from typing import Any

import kvfs
import vllm
from kvfs.patience import Patience
from kvfs.weights import fingerprint

from .events import Events
from .groups import Spaces, volatile
from .messages import Blocks, Plan, Report
from .metrics import Stats
from .settings import Settings, allows, handed_over, warn_once

log = logging.getLogger("vllm.kvfs")
FAILED_MAX = 65536
EXTRAS_MAX = 2048
# Seconds.  Blocks in DRAM are held within DRAM_WAIT.  A step that computes nothing waits
# IDLE_WAIT at most, because it delays requests that arrive meanwhile.
DRAM_WAIT, IDLE_WAIT = 0.002, 0.01
AT_ONCE = 512  # most blocks in one acquire without a match before it
# Seconds between two look-ups of blocks that another engine saves: of a request at first and later,
# and of all requests together, so that many hand-offs do not delay the steps.
SOON, LATER, PACE = 0.01, 0.1, 0.004


class Offered:
    """Blocks offered to kvfs for saving in the last 30 to 60 seconds, or less if there are many."""

    AGE, MOST = 30.0, 65536

    def __init__(self) -> None:
        self._young: dict[bytes, None] = {}
        self._old: dict[bytes, None] = {}
        self._turn = 0.0

    def after(self, salt: bytes, hashes: list[bytes], first: int, end: int) -> int:
        """Return the first block from @first on that was not offered for saving lately, or @end."""
        if (now := time.monotonic()) >= self._turn or len(self._young) > self.MOST:
            self._old = self._young if now < self._turn + self.AGE else {}
            self._young, self._turn = {}, now + self.AGE
        young, old = self._young, self._old
        while first < end and (young or old):
            hash = salt + hashes[first]
            if hash not in young and hash not in old:
                break
            first += 1
        return first

    def add(self, salt: bytes, hashes: list[bytes]) -> None:
        self._young.update(dict.fromkeys([salt + hash for hash in hashes]))

    def forget(self, salt: bytes, hashes: list[bytes]) -> None:
        if self._young or self._old:
            for hash in hashes:
                self._young.pop(salt + hash, None)
                self._old.pop(salt + hash, None)


@dataclass
class Held:
    """The blocks from @first on that are leased for a request."""

    first: int
    keys: kvfs.Keys
    lease: kvfs.Lease
    limit: float  # seconds within which the lease settles
    n: int | None = None  # number of usable blocks; None: the lease has not settled
    states: list[int] = field(default_factory=list)  # each block's tier before the lease; empty: DRAM


@dataclass
class Awaited:
    """A request's wait for the blocks before block @end, which another engine saves."""

    end: int
    until: float  # time when the wait ends
    again: float = 0.0  # time of the next look-up
    wait: float = SOON  # seconds between that look-up and the one after it

    def later(self, waiting: int) -> None:
        """Postpone the next look-up.  @waiting: number of requests that wait as this one does."""
        self.again = time.monotonic() + max(self.wait, waiting * PACE)
        self.wait = min(2 * self.wait, LATER)


class Request:
    """The scheduler's record of a request.  `hand_over`: the answer names the prompt's last block, for
    another engine.  `named`: such a block, for which the wait has not begun."""

    def __init__(self, request: Any, salt: bytes, role: str) -> None:
        self.request = request
        params = getattr(request, "kv_transfer_params", None)
        # An input of a streaming session replaces the last token, but vLLM 0.31 keeps the block's hash.
        stale = request.resumable and vllm.__version__.startswith("0.31.")
        self.loads = role != "kv_producer" and not stale and allows(params, "load")
        self.saves = role != "kv_consumer" and not stale and allows(params, "save")
        self.named = handed_over(params) if self.loads else None
        self.hand_over = self.saves and (role == "kv_producer" or isinstance(params, dict)
                                         and params.get("do_remote_decode") is True)
        self.held: Held | None = None
        self.salt_with(salt)

    def salt_with(self, salt: bytes) -> None:
        """Give the request's blocks new keys."""
        self.salt = salt
        self.chain = kvfs.Chain(salt)
        self.saved = 0  # blocks from the first on that are in kvfs, or were offered to it
        self.counted = 0  # blocks from the first on that were counted as saved or dropped

    def offer_again(self) -> None:
        self.counted, self.saved = max(self.counted, self.saved), 0

    def known(self) -> int:
        """Extend and return the chain of keys of full blocks: vLLM's hashes, or with a salt (an
        adapter's weights, or a reset of the cache) hashes of them."""
        hashes = self.request.block_hashes
        if len(hashes) > len(self.chain):
            self.chain.extend(hashes[len(self.chain):])
        return len(hashes)


class Scheduler:
    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings,
                 identity: str) -> None:
        self._spaces = Spaces(vllm_config, kv_cache_config, settings, identity, None)
        self._windows = [group.window for group, spaces in
                         zip(self._spaces.groups, self._spaces.by_group) for _ in spaces]
        self._together = kvfs.Together([space for spaces in self._spaces.by_group for space in spaces],
                                       self._windows)
        self._tokens: int = self._spaces.block_tokens
        self._volatile = volatile(vllm_config)
        self._role = vllm_config.kv_transfer_config.kv_role
        self._settings = settings
        # A space that an attribute, not its layout, shares counts as unshared: other nodes are not
        # asked for its missing blocks.
        self._at_once = AT_ONCE if not any((space.layout or {}).get("share") for spaces in
                                           self._spaces.by_group for space in spaces) else 0
        self.patience = Patience(log, "look-ups", self._spaces.session.stats)
        self._requests: dict[str, Request] = {}
        self._unsettled: dict[str, Held] = {}  # by request
        self._awaited: dict[str, Awaited] = {}  # by request
        self._loads: list[Blocks] = []
        self._loading: set[str] = set()  # ids of requests whose loads the workers have not ended
        self._idle = False  # the last step computed no token
        self._failed: dict[bytes, None] = {}  # blocks that did not load, oldest first
        self._offered = Offered()
        self._failures_seen = 0
        self._paused = 0.0  # time until which the workers save nothing
        self._reset = b""
        self._adapters: dict[tuple[int, str], bytes] = {}  # their salts
        self._stopped = False
        whole = [spaces for group, spaces in zip(self._spaces.groups, self._spaces.by_group) if not group.window]
        published = getattr(vllm_config.kv_events_config, "enable_kv_cache_events", False)
        self._events = Events(whole[0]) if whole and published else None
        self.stats = Stats()
        if self._spaces.connected:
            with contextlib.suppress(kvfs.Error):  # the connection was lost meanwhile
                log.info("kvfs: %s: blocks of %d tokens: %s", self._spaces.session.path, self._tokens, "; ".join(
                    f"space {space.name}, {space.payload} bytes, {sum(map(len, space.pages(65536)))} present"
                    for spaces in self._spaces.by_group for space in spaces))

    # ---- requests ----

    def new(self, request: Any) -> Request:
        known = self._requests.get(request.request_id)
        if known is None or known.request is not request:
            salt = self._reset
            adapter = getattr(request, "lora_request", None)
            if adapter is not None:
                salt += self.adapter(adapter)
            known = self._requests[request.request_id] = Request(request, salt, self._role)
        return known

    def adapter(self, adapter: Any) -> bytes:
        """Return a salt for an adapter's weights: a random one, so that nothing is shared, if the
        adapter cannot be read or its files changed since this engine loaded it."""
        name = adapter.lora_int_id, adapter.lora_path
        try:
            salt = b"adapter" + fingerprint(adapter.lora_path, log, self._settings.weights_cache).encode()
        except OSError:
            salt = b""
        if salt and self._adapters.setdefault(name, salt) == salt:
            return salt
        if not self._adapters.get(name, b"adapter").startswith(b"alone"):
            self._adapters[name] = b"alone" + os.urandom(16)
            log.warning("kvfs: the adapter %s cannot be read or changed since it was loaded: its "
                        "blocks are not shared until the engine restarts", adapter.lora_path)
        return self._adapters[name]

    def stop(self) -> None:
        """Stop matching and saving.  Loads that vLLM waits for still end."""
        self._stopped = True
        self._end_events()

    def _end_events(self) -> None:
        if self._events is not None:
            self._events.end()

    def take_events(self) -> list[Any]:
        return self._events.take() if self._events is not None else []

    def finished(self, request: Any) -> dict[str, str] | None:
        """Return kv_transfer_params for the engine that continues the request: the name of the
        prompt's last block that was saved or is being saved."""
        known = self._requests.pop(request.request_id, None)
        self._loading.discard(request.request_id)
        self._awaited.pop(request.request_id, None)
        if known is None:
            return None
        self._drop(known)
        n = min(known.saved, request.num_prompt_tokens // self._tokens)
        if not known.hand_over or n == 0 or self._stopped:
            return None
        return {"kvfs.block": f"{self._spaces.by_group[0][0].name}/{known.chain.keys(n - 1, n)[0].hex()}"}

    def reset(self) -> None:
        """Hide all earlier blocks from this engine, but not from other engines.  Running requests, which
        attend to earlier blocks until their end unless vLLM has preempted them, save no more."""
        old, self._reset = self._reset, os.urandom(16)
        self._awaited.clear()
        self._end_events()
        for known in self._requests.values():
            self._drop(known)
            known.salt_with(self._reset + known.salt[len(old):])
            known.saves &= not known.request.num_computed_tokens  # a preempted request is computed anew

    def _drop(self, known: Request) -> None:
        if known.held is not None:
            self._unsettled.pop(known.request.request_id, None)
            known.held.lease.close()
            known.held = None

    # ---- look-up ----

    def match(self, request: Any, computed: int) -> int | None:
        """Return the tokens beyond @computed that are held in DRAM; None: ask again."""
        known = self.new(request)
        first = computed // self._tokens
        if self._stopped or not known.loads or getattr(request, "skip_reading_prefix_cache", False):
            return 0
        if known.named is not None:
            self._await(known, *known.named)
            known.named = None
        awaited = self._awaited.get(request.request_id)
        if awaited is not None and known.held is None and time.monotonic() < awaited.again:
            return None
        n = self._match(known, first)
        if awaited is None or n is None:
            return n
        if first + n // self._tokens + self._volatile < awaited.end and time.monotonic() < awaited.until \
                and self.patience.left and self._spaces.connected:
            self._drop(known)
            awaited.later(len(self._awaited))
            return None
        del self._awaited[request.request_id]
        return n

    def _await(self, known: Request, space: str, key: bytes) -> None:
        """Begin to wait for the blocks up to the one with @key, which another engine saves in @space."""
        if space != (own := self._spaces.by_group[0][0].name):
            warn_once("kvfs: \"kvfs.block\" in kv_transfer_params is of the space %.100r, and this engine's "
                      "is %s: the engines must agree in model, release and settings", space, own)
            return
        n = known.known()
        keys = known.chain.keys(0, n)
        end = next((i for i in range(n, 0, -1) if keys[i - 1] == key), 0)
        if end := min(end, self._end(known)):
            self._awaited[known.request.request_id] = Awaited(end, time.monotonic() + self._settings.ssd_wait)

    def _match(self, known: Request, first: int) -> int | None:
        held = known.held
        if held is None or held.first != first or \
                self._failed and any(key in self._failed for key in held.keys):
            self._drop(known)
            held = known.held = self._hold(known, first)
            if held is None:
                return 0
        elif held.n is None:
            self._settle(known, held, held.lease.held())
        if held.n is None and self.patience.left:
            return None
        if (n := (held.n or 0) - self._volatile) <= 0:
            self._drop(known)
            return 0
        return n * self._tokens

    def _end(self, known: Request) -> int:
        """Return the number of blocks to look for: at least one token must be computed."""
        return int(known.request.num_tokens - 1 + self._volatile) // self._tokens

    def _hold(self, known: Request, first: int) -> Held | None:
        end = min(self._end(known), known.known())
        if first >= end or not self.patience.left:
            return None
        keys = known.chain.keys(first, end)
        if self._failed:
            keys = keys[:next((i for i, key in enumerate(keys) if key in self._failed), len(keys))]
        start, limit = time.monotonic(), self._settings.ssd_wait
        if awaited := self._awaited.get(known.request.request_id):
            limit = max(SOON, awaited.until - start)
        n, lease, got = self._together.hold(
            keys, deadline=limit, wait=DRAM_WAIT,
            missing=self._settings.remote or len(keys) <= self._at_once)
        self.patience.took(time.monotonic() - start)
        if first + n < end:
            self._offered.forget(known.salt, known.request.block_hashes[first + n:end])
        if lease is None:
            self._spaces.connected  # the property logs a lost or new connection
            return None
        held = Held(first, keys if n == len(keys) else keys[:n], lease, limit)
        self._settle(known, held, got)
        return held

    def _settle(self, known: Request, held: Held, got: int | None) -> None:
        """Handle a lease with @got held blocks; None: the lease has not settled."""
        if got is None:
            self._unsettled[known.request.request_id] = held
            return
        self._unsettled.pop(known.request.request_id, None)
        held.n = len(held.keys) if got == len(held.lease) else self._usable(held)
        held.states = self._tiers(held)
        if got == 0 and not self._settings.remote and held.lease.statuses()[0] == -errno.ETIMEDOUT:
            self.patience.took(held.limit)
        if held.n < len(held.keys):
            hashes = known.request.block_hashes
            self._offered.forget(known.salt, hashes[held.first + held.n:held.first + len(held.keys)])

    def _tiers(self, held: Held) -> list[int]:
        """Return the lowest tier that each block had in any space; an empty list: all were in DRAM."""
        states, at, n = held.lease.states(), 0, len(held.keys)
        if states.count(kvfs.State.DRAM) == len(states):
            return []
        lowest: list[int] = [kvfs.State.DRAM] * n
        for window in self._windows:
            size = min(window, n) if window else n
            lowest[n - size:] = map(min, lowest[n - size:], states[at:at + size])
            at += size
        return lowest

    def _usable(self, held: Held) -> int:
        """Return the blocks that every space has: a window counts if it is complete, a prefix
        up to the first lost block."""
        statuses, at, n = held.lease.statuses(), 0, len(held.keys)
        usable = n
        for window in self._windows:
            size = min(window, n) if window else n
            good = next((i for i, s in enumerate(statuses[at:at + size]) if s != 0), size)
            at += size
            usable = min(usable, good if not window else n if good == size else 0)
        return usable if usable == n or not any(self._windows) else 0

    def allocated(self, request: Any, block_ids: tuple[list[int], ...], tokens: int) -> None:
        known = self.new(request)
        held = known.held
        if tokens == 0 or held is None:
            # vLLM discarded the match, or allocates further blocks after an asynchronous load.
            if held is not None and not any(load.request == request.request_id for load in self._loads):
                self._drop(known)
            return
        n = tokens // self._tokens
        disk, nodes = (part // self._tokens for part in self.sources(request, tokens))
        for what, blocks in (("dram", n - disk - nodes), ("ssd", disk), ("remote", nodes)):
            self.stats.add(f"{what}_hits", blocks)
        known.saved = held.first + n
        self._loads.append(Blocks(request.request_id, held.first, held.keys[:n], None,
                                  [ids[held.first:held.first + n] for ids in block_ids]))

    def sources(self, request: Any, tokens: int) -> tuple[int, int]:
        """Count how many of the matched @tokens came from SSD, and how many from other nodes."""
        known = self._requests.get(request.request_id)
        states = known.held.states[:tokens // self._tokens] if known and known.held else []
        return states.count(kvfs.State.SSD) * self._tokens, states.count(kvfs.State.REMOTE) * self._tokens

    # ---- a step ----

    def plan(self, output: Any) -> Plan:
        plan = Plan(self._loads, [], _fresh(output), self._failures_seen)
        if self._loads:
            plan.fresh += [tuple(load.pages) for load in self._loads]
            self._loading.update(load.request for load in self._loads)
            self._loads = []
        scheduled = output.num_scheduled_tokens
        idle, self._idle = self._idle, not scheduled
        if not scheduled:
            # With asynchronous scheduling one step may still be computing, but not two.
            if idle and not self._loading:
                if self._unsettled:
                    next(iter(self._unsettled.values())).lease.held(IDLE_WAIT)
                elif self._awaited:
                    time.sleep(IDLE_WAIT)
            return plan
        offers = []
        for id, n in scheduled.items():
            known = self._requests.get(id)
            if known is None or not known.saves:
                continue
            # With asynchronous scheduling the last tokens are placeholders.
            request = known.request
            end = min(request.num_computed_tokens + n, request.num_tokens) // self._tokens
            if end > known.saved:
                end = min(end, known.known())
                known.saved = self._offered.after(known.salt, request.block_hashes, known.saved, end)
                if end > known.saved:
                    offers.append((known, end))
        paused = self._stopped or time.monotonic() < self._paused
        if offers and self._spaces.connected and not paused:
            self._offer(plan, offers, output.kv_connector_block_state)
        elif offers and not self._stopped:
            # Saves are paused: a later step saves the blocks, if their requests still run then.
            for known, end in offers:
                self.stats.add("dropped", max(0, end - max(known.saved, known.counted)))
                known.counted = max(known.counted, end)
        return plan

    def _offer(self, plan: Plan, offers: list[tuple[Request, int]], tables: Any) -> None:
        offered: set[bytes] = set()
        for known, end in offers:
            first, chain = known.saved, known.chain
            if len(offers) > 1:
                # Blocks that several requests share are saved for the first of them.
                keys = list(chain.keys(first, end))
                while first < end and keys[first - end] in offered:
                    first += 1
                offered.update(keys)
            known.saved = end
            if first >= end:
                continue
            self._offered.add(known.salt, known.request.block_hashes[first:end])
            if self._failed:
                for key in chain.keys(first, end):
                    self._failed.pop(key, None)
            pages = [ids[first:end] for ids in tables.resolve_block_ids(known.request.request_id)]
            if self._events is not None and not known.salt and not known.request.cache_salt \
                    and not known.request.mm_features:
                self._events.know(chain.keys(first - 1, first)[0] if first else None, chain.keys(first, end),
                                  list(known.request.all_token_ids[first * self._tokens:end * self._tokens]))
            tokens, extras = self._told(known.request, first, end)
            plan.saves.append(Blocks(known.request.request_id, first, chain.keys(first, end),
                                     chain.keys(first - 1, first) if first else None, pages,
                                     tokens, extras))

    def _told(self, request: Any, first: int, end: int) -> tuple[list[list[int]] | None, bytes]:
        """Return the tokens and extras of a block, for spaces that keep them."""
        if not self._settings.token_ids:
            return None, b""
        n = self._tokens
        ids = request.all_token_ids[first * n:end * n]
        adapter = getattr(request, "lora_request", None)
        extras = {"lora": adapter.lora_name if adapter is not None else None,
                  "cache_salt": getattr(request, "cache_salt", None),
                  "media": [item.identifier for item in getattr(request, "mm_features", None) or []]}
        text = json.dumps({key: value for key, value in extras.items() if value}).encode()
        if len(text) > EXTRAS_MAX:
            text = json.dumps({"sha256": hashlib.sha256(text).hexdigest()}).encode()
        return [ids[i:i + n] for i in range(0, len(ids), n)], text if text != b"{}" else b""

    def hear(self, report: Report) -> None:
        for id in report.loaded:
            self._loading.discard(id)
            if (known := self._requests.get(id)) is not None:
                self._drop(known)
        self._failed.update(dict.fromkeys(report.failed))
        while len(self._failed) > FAILED_MAX:
            self._failed.pop(next(iter(self._failed)))
        for id in report.dropped:
            if (known := self._requests.get(id)) is None:
                # The request has ended, so the blocks that it did not save are unknown.
                # Offer all blocks again: other requests may have skipped these blocks.
                self._offered = Offered()
                for other in self._requests.values():
                    other.offer_again()
            else:
                known.offer_again()
                self._offered.forget(known.salt, known.request.block_hashes)
        if report.pause:
            self._paused = max(self._paused, time.monotonic() + report.pause)
        self._failures_seen += report.failures

    def close(self) -> None:
        for known in self._requests.values():
            self._drop(known)
        self._end_events()
        self._spaces.session.close()


def _fresh(output: Any) -> list[tuple[list[int], ...]]:
    """Return the tables of pages that this step's requests received."""
    fresh = [new.block_ids for new in output.scheduled_new_reqs]
    fresh += [ids for ids in output.scheduled_cached_reqs.new_block_ids if ids]
    if copies := output.kv_cache_block_copies:
        fresh.append(([copy.dst_block_id for copy in copies],))
    return fresh
