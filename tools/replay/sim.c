/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.c - simulate a trace with an eviction policy and a capacity, and compute
 * an upper bound of the hits.
 *
 * The policies are the daemon's own code, linked from cache/evict/.
 *
 * The bound is an offline policy: keep the blocks that are requested again
 * soonest, evict the deepest blocks of a request first, and refuse admission
 * to a block if that is better.  Prefixes stay whole, so no policy has more
 * hits.
 *
 * OWNS      the set of resident blocks; the policy's nodes for all blocks of
 *           the trace; a ghost list of four times the capacity, as in the
 *           daemon.
 *
 * LOCKING   none: one thread.
 */
#include <errno.h>
#include <stdlib.h>

#include "cache/evict/policy.h"
#include "tools/replay/replay.h"

struct sim {
	uint32_t capacity, used;
	bool *resident; /* by block */
	/* by block: number of the last request with the block */
	uint32_t *asked;
	uint32_t request; /* number of the current one, from 1 */
	uint64_t hits;
	struct kv_eviction eviction;
	struct kv_policy policy;
	struct kv_ghost ghost;
	struct kv_evict_node *nodes; /* by block */
	uint32_t clock;
};

static struct kv_evict_node *node_of(void *arg, uint32_t block)
{
	return &((struct sim *)arg)->nodes[block];
}

static uint64_t hash_of(uint32_t block)
{
	uint64_t x = (block + 1) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	return x ^ x >> 27;
}

/* Return whether @block may be evicted: no block of the current request may. */
static bool may_go(void *arg, uint32_t block)
{
	const struct sim *sim = arg;

	return sim->asked[block] != sim->request;
}

/* Touch the block at position @at of a request, or insert it. */
static void use_block(struct sim *sim, const uint32_t *blocks, size_t at)
{
	struct kv_policy *policy = &sim->policy;
	uint32_t block = blocks[at], victim;
	struct kv_arrival arrival = {.parent = KV_NONE,
				     .position = (uint32_t)at};

	if (!sim->resident[block] && sim->used == sim->capacity) {
		victim = kv_policy_victim(policy, may_go, sim);
		if (victim == KV_NONE)
			return;
		kv_ghost_put(&sim->ghost, hash_of(victim),
			     kv_policy_past(policy, victim));
		kv_policy_remove(policy, victim);
		sim->resident[victim] = false;
		sim->used--;
	}
	if (sim->eviction.shadow)
		kv_shadow_cache_ask(sim->eviction.shadow, hash_of(block),
				    arrival.position);
	if (sim->resident[block]) {
		kv_policy_touch(policy, block);
		return;
	}
	arrival.past = kv_ghost_take(&sim->ghost, hash_of(block));
	if (at > 0 && kv_policy_has(policy, blocks[at - 1]))
		arrival.parent = blocks[at - 1];
	policy->burst = KV_NONE;
	kv_policy_insert(policy, block, &arrival);
	sim->resident[block] = true;
	sim->used++;
}

/* The daemon's order: hits from the tail, then new blocks from the head. */
static void run_request(struct sim *sim, const uint32_t *blocks, size_t n)
{
	size_t hits = 0;

	sim->request++;
	while (hits < n && sim->resident[blocks[hits]])
		hits++;
	sim->hits += hits;
	for (size_t i = 0; i < n; i++)
		sim->asked[blocks[i]] = sim->request;
	n = KV_MIN(n, sim->capacity);
	hits = KV_MIN(hits, n);
	for (size_t i = hits; i-- > 0;)
		use_block(sim, blocks, i);
	for (size_t i = hits; i < n; i++)
		use_block(sim, blocks, i);
	while (n-- > 0)
		if (sim->resident[blocks[n]])
			kv_policy_renew(&sim->policy, blocks[n]);
}

int kv_replay_run(const struct kv_trace *trace, const char *policy,
		  uint32_t capacity, void (*step)(double part),
		  uint64_t *ret_hits)
{
	struct sim sim = {.capacity = capacity};
	size_t room = trace->unique + 1;
	int r = -ENOMEM;

	sim.resident = calloc(room, sizeof(*sim.resident));
	sim.asked = calloc(room, sizeof(*sim.asked));
	sim.nodes = calloc(room, sizeof(*sim.nodes));
	if (sim.resident && sim.asked && sim.nodes)
		r = kv_ghost_init(
			&sim.ghost,
			KV_MAX((uint64_t)capacity * KV_GHOST_FOR_A_BLOCK,
			       KV_GHOST_MIN));
	if (r == 0)
		kv_ghost_fit(&sim.ghost, capacity);
	if (r == 0)
		r = kv_eviction_init(&sim.eviction, policy, &sim.clock, node_of,
				     &sim);
	if (r == 0)
		kv_policy_init(&sim.policy, &sim.eviction);
	for (size_t i = 0; r == 0 && i < trace->n; i++) {
		run_request(&sim, trace->blocks + trace->start[i],
			    trace->start[i + 1] - trace->start[i]);
		if (step && i % 1024 == 0)
			step((double)i / (double)trace->n);
	}
	*ret_hits = sim.hits;
	kv_eviction_fini(&sim.eviction);
	kv_ghost_fini(&sim.ghost);
	free(sim.nodes);
	free(sim.resident);
	free(sim.asked);
	return r;
}

/* ---- the offline bound ---- */

#define NEVER UINT32_MAX

struct item {
	/* next request << 32 | position: the highest key is evicted first */
	uint64_t key;
	uint32_t block;
};

struct bound {
	/* by index into the trace: the next request with this block */
	uint32_t *next;
	/* by block: key of the block's valid heap item; 0: not resident */
	uint64_t *valid;
	struct item *heap;
	size_t n;
	uint32_t used;
};

static void push(struct bound *bound, struct item item)
{
	size_t i = bound->n++;

	while (i && bound->heap[(i - 1) / 2].key < item.key) {
		bound->heap[i] = bound->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	bound->heap[i] = item;
}

static struct item pop(struct bound *bound)
{
	struct item top = bound->heap[0], last = bound->heap[--bound->n];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < bound->n) {
		if (child + 1 < bound->n &&
		    bound->heap[child + 1].key > bound->heap[child].key)
			child++;
		if (bound->heap[child].key <= last.key)
			break;
		bound->heap[i] = bound->heap[child];
		i = child;
	}
	bound->heap[i] = last;
	return top;
}

/* Keep the blocks that are requested again soonest.  bound.next is filled
 * first, from the end of the trace. */
int kv_replay_bound(const struct kv_trace *trace, uint32_t capacity,
		    void (*step)(double part), uint64_t *ret_hits)
{
	const size_t asked = kv_trace_asked(trace), room = trace->unique + 1;
	uint32_t *coming = malloc(room * sizeof(*coming));
	struct bound bound = {
		.next = malloc((asked + 1) * sizeof(*bound.next)),
		.valid = calloc(room, sizeof(*bound.valid)),
		.heap = calloc(asked + 1, sizeof(*bound.heap)),
	};
	int r = coming && bound.next && bound.valid && bound.heap ? 0 : -ENOMEM;

	*ret_hits = 0;
	for (size_t i = 0; r == 0 && i < room; i++)
		coming[i] = NEVER;
	for (size_t q = r == 0 ? trace->n : 0; q-- > 0;) {
		for (size_t i = trace->start[q]; i < trace->start[q + 1]; i++)
			bound.next[i] = coming[trace->blocks[i]];
		for (size_t i = trace->start[q]; i < trace->start[q + 1]; i++)
			coming[trace->blocks[i]] = (uint32_t)q;
	}
	for (size_t q = 0; r == 0 && q < trace->n; q++) {
		size_t first = trace->start[q], end = trace->start[q + 1];
		size_t hits = first;

		while (hits < end && bound.valid[trace->blocks[hits]])
			hits++;
		*ret_hits += hits - first;
		for (size_t i = first; i < end; i++) {
			uint64_t *valid = &bound.valid[trace->blocks[i]];

			bound.used += !*valid;
			*valid =
				(uint64_t)bound.next[i] << 32 | (i - first + 1);
			push(&bound, (struct item){*valid, trace->blocks[i]});
		}
		while (bound.used > capacity ||
		       (bound.n && bound.heap[0].key >> 32 == NEVER)) {
			struct item item = pop(&bound);

			/* An item with another key is outdated: the block was
			 * requested again. */
			if (bound.valid[item.block] == item.key) {
				bound.valid[item.block] = 0;
				bound.used--;
			}
		}
		if (step && q % 1024 == 0)
			step((double)q / (double)trace->n);
	}
	free(coming);
	free(bound.next);
	free(bound.valid);
	free(bound.heap);
	return r;
}
