/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.c - a trace against a policy and a capacity; and the offline bound.
 *
 * The bound: of all blocks, those asked for again soonest stay, the deepest of
 * a request leaving first, and one may not be let in at all.  That keeps whole
 * prefixes, so no policy has more hits.
 *
 * OWNS      which blocks are resident; the policy only says who leaves.
 *
 * LOCKING   none: one thread.
 */
#include "tools/replay/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache/evict/policy.h"

static const struct kv_replay_policy *const own[] = {
	&kv_replay_arc, &kv_replay_s3fifo, &kv_replay_sieve};

const char *kv_replay_name(unsigned i)
{
	unsigned daemons = 0;

	while (kv_policy_name(daemons))
		daemons++;
	if (i < daemons)
		return kv_policy_name(i);
	return i - daemons < KV_ARRAY_LEN(own) ? own[i - daemons]->name : NULL;
}

struct sim {
	struct kv_sim pub;
	bool *resident;
	uint32_t *asked;
	const struct kv_replay_policy *policy;
	void *state;
	uint64_t hits;
};

static const struct kv_replay_policy *find(const char *name)
{
	for (size_t i = 0; i < KV_ARRAY_LEN(own); i++)
		if (strcmp(name, own[i]->name) == 0)
			return own[i];
	return &kv_replay_daemon;
}

static bool make_room(struct sim *sim, uint32_t block)
{
	uint32_t victim;

	if (sim->pub.used < sim->pub.capacity)
		return true;
	victim = sim->policy->victim(sim->state, block);
	if (victim == KV_REPLAY_NONE)
		return false;
	sim->resident[victim] = false;
	sim->pub.used--;
	return true;
}

static void use(struct sim *sim, const uint32_t *blocks, size_t at)
{
	uint32_t block = blocks[at];

	if (sim->resident[block]) {
		sim->policy->touch(sim->state, block, (uint32_t)at);
		return;
	}
	if (!make_room(sim, block))
		return;
	sim->policy->insert(sim->state, block, (uint32_t)at,
			    at ? blocks[at - 1] : KV_REPLAY_NONE);
	sim->resident[block] = true;
	sim->pub.used++;
}

static void request(struct sim *sim, const uint32_t *blocks, size_t n)
{
	size_t hits = 0, first = n;

	sim->pub.request++;
	while (hits < n && sim->resident[blocks[hits]])
		hits++;
	sim->hits += hits;
	for (size_t i = 0; i < n; i++)
		sim->asked[blocks[i]] = sim->pub.request;
	if (n > sim->pub.capacity)
		n = sim->pub.capacity;
	if (sim->policy->over)
		first = hits;
	first = first < n ? first : n;
	for (size_t i = first; i-- > 0;)
		use(sim, blocks, i);
	for (size_t i = first; i < n; i++)
		use(sim, blocks, i);
	while (sim->policy->over && n-- > 0)
		if (sim->resident[blocks[n]])
			sim->policy->over(sim->state, blocks[n]);
}

static int begin(struct sim *sim, const struct kv_trace *trace,
		 const char *policy, uint32_t capacity)
{
	sim->resident = calloc(trace->unique + 1, sizeof(*sim->resident));
	sim->asked = calloc(trace->unique + 1, sizeof(*sim->asked));
	if (!sim->resident || !sim->asked)
		return -ENOMEM;
	sim->pub = (struct kv_sim){.unique = trace->unique,
				   .capacity = capacity,
				   .resident = sim->resident,
				   .asked = sim->asked};
	sim->policy = find(policy);
	errno = ENOMEM;
	sim->state = sim->policy->begin(&sim->pub, policy);
	return sim->state ? 0 : -errno;
}

int kv_replay_run(const struct kv_trace *trace, const char *policy,
		  uint32_t capacity, void (*step)(double part),
		  uint64_t *ret_hits)
{
	struct sim sim = {0};
	int r = begin(&sim, trace, policy, capacity);

	for (size_t i = 0; r == 0 && i < trace->n; i++) {
		request(&sim, trace->blocks + trace->start[i],
			trace->start[i + 1] - trace->start[i]);
		if (step && i % 1024 == 0)
			step((double)i / (double)trace->n);
	}
	*ret_hits = sim.hits;
	if (sim.state)
		sim.policy->end(sim.state);
	free(sim.resident);
	free(sim.asked);
	return r;
}

#define NEVER UINT32_MAX

struct item {
	uint64_t key; /* next request, then position: the highest leaves */
	uint32_t block;
};

struct bound {
	uint32_t *next; /* by place in the trace: the next request with it */
	uint64_t
		*valid; /* by block: the key of its item that counts; 0: none */
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

/* When each is asked for again, from the end. */
static int look_ahead(struct bound *bound, const struct kv_trace *trace)
{
	uint32_t *coming = malloc((trace->unique + 1) * sizeof(*coming));

	if (!coming)
		return -ENOMEM;
	for (uint32_t i = 0; i < trace->unique; i++)
		coming[i] = NEVER;
	for (size_t r = trace->n; r-- > 0;) {
		for (size_t i = trace->start[r]; i < trace->start[r + 1]; i++)
			bound->next[i] = coming[trace->blocks[i]];
		for (size_t i = trace->start[r]; i < trace->start[r + 1]; i++)
			coming[trace->blocks[i]] = (uint32_t)r;
	}
	free(coming);
	return 0;
}

static void keep(struct bound *bound, uint32_t block, uint32_t next,
		 uint32_t position)
{
	uint64_t key = (uint64_t)next << 32 | (position + 1u);

	bound->used += !bound->valid[block];
	bound->valid[block] = key;
	push(bound, (struct item){key, block});
}

static void evict(struct bound *bound, uint32_t capacity)
{
	while (bound->used > capacity ||
	       (bound->n && bound->heap[0].key >> 32 == NEVER)) {
		struct item item = pop(bound);

		if (bound->valid[item.block] != item.key)
			continue; /* it was asked for since */
		bound->valid[item.block] = 0;
		bound->used--;
	}
}

static uint64_t bound_request(struct bound *bound, const struct kv_trace *trace,
			      size_t r, uint32_t capacity)
{
	const uint32_t *blocks = trace->blocks + trace->start[r];
	const uint32_t *next = bound->next + trace->start[r];
	size_t n = trace->start[r + 1] - trace->start[r], hits = 0;

	while (hits < n && bound->valid[blocks[hits]])
		hits++;
	for (size_t i = 0; i < n; i++)
		keep(bound, blocks[i], next[i], (uint32_t)i);
	evict(bound, capacity);
	return hits;
}

int kv_replay_bound(const struct kv_trace *trace, uint32_t capacity,
		    void (*step)(double part), uint64_t *ret_hits)
{
	struct bound bound = {0};
	uint64_t hits = 0;
	int r = -ENOMEM;

	bound.next = malloc((kv_trace_asked(trace) + 1) * sizeof(*bound.next));
	bound.valid = calloc(trace->unique + 1, sizeof(*bound.valid));
	bound.heap = calloc(kv_trace_asked(trace) + 1, sizeof(*bound.heap));
	if (bound.next && bound.valid && bound.heap)
		r = look_ahead(&bound, trace);
	for (size_t i = 0; r == 0 && i < trace->n; i++) {
		hits += bound_request(&bound, trace, i, capacity);
		if (step && i % 1024 == 0)
			step((double)i / (double)trace->n);
	}
	*ret_hits = hits;
	free(bound.next);
	free(bound.valid);
	free(bound.heap);
	return r;
}
