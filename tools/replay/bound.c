/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bound.c - the offline bound: of all blocks, those asked for again soonest
 * stay, the deepest of a request leaving first, and one may not be let in at
 * all.  That keeps whole prefixes, so no policy has more hits.
 *
 * OWNS      the heap of what is resident.
 *
 * LOCKING   none: one thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "tools/replay/sim.h"

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

static uint64_t request(struct bound *bound, const struct kv_trace *trace,
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
		    void (*step)(double part),
		    struct kv_replay_result *ret_result)
{
	struct bound bound = {0};
	clock_t since = clock();
	uint64_t hits = 0;
	int r = -ENOMEM;

	bound.next = malloc((kv_trace_asked(trace) + 1) * sizeof(*bound.next));
	bound.valid = calloc(trace->unique + 1, sizeof(*bound.valid));
	bound.heap = calloc(kv_trace_asked(trace) + 1, sizeof(*bound.heap));
	if (bound.next && bound.valid && bound.heap)
		r = look_ahead(&bound, trace);
	for (size_t i = 0; r == 0 && i < trace->n; i++) {
		hits += request(&bound, trace, i, capacity);
		if (step && i % 1024 == 0)
			step((double)i / (double)trace->n);
	}
	ret_result->hits = hits;
	ret_result->seconds = (double)(clock() - since) / CLOCKS_PER_SEC;
	free(bound.next);
	free(bound.valid);
	free(bound.heap);
	return r;
}
