/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.h - blocks in one of a few queues, oldest first; for the policies that
 * are here only to compare with.
 */
#ifndef KV_TOOLS_REPLAY_QUEUE_H
#define KV_TOOLS_REPLAY_QUEUE_H

#include <stdbool.h>
#include <stdlib.h>

#include "tools/replay/sim.h"

#define KV_QUEUES 4 /* numbered from 1; 0: a block is in none */

struct kv_links {
	uint32_t prev, next;
	uint8_t queue, mark; /* mark: the policy's own */
};

struct kv_queues {
	struct kv_links *links; /* by block */
	uint32_t oldest[KV_QUEUES + 1], newest[KV_QUEUES + 1];
	uint32_t n[KV_QUEUES + 1];
};

static inline bool kv_queues_init(struct kv_queues *q, uint32_t unique)
{
	q->links = calloc(unique + 1, sizeof(*q->links));
	for (unsigned i = 0; i <= KV_QUEUES; i++) {
		q->oldest[i] = q->newest[i] = KV_REPLAY_NONE;
		q->n[i] = 0;
	}
	return q->links;
}

static inline void kv_queues_remove(struct kv_queues *q, uint32_t block)
{
	struct kv_links *l = &q->links[block];

	if (!l->queue)
		return;
	if (l->prev == KV_REPLAY_NONE)
		q->oldest[l->queue] = l->next;
	else
		q->links[l->prev].next = l->next;
	if (l->next == KV_REPLAY_NONE)
		q->newest[l->queue] = l->prev;
	else
		q->links[l->next].prev = l->prev;
	q->n[l->queue]--;
	l->queue = 0;
}

/* As the newest of @queue, from wherever it is. */
static inline void kv_queues_add(struct kv_queues *q, unsigned queue,
				 uint32_t block)
{
	struct kv_links *l = &q->links[block];

	kv_queues_remove(q, block);
	l->queue = (uint8_t)queue;
	l->prev = q->newest[queue];
	l->next = KV_REPLAY_NONE;
	if (l->prev == KV_REPLAY_NONE)
		q->oldest[queue] = block;
	else
		q->links[l->prev].next = block;
	q->newest[queue] = block;
	q->n[queue]++;
}

#endif
