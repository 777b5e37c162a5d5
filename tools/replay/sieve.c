/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sieve.c - SIEVE (Zhang and others, 2024): one queue, a mark for what was
 * used, and a hand that takes marks away from the oldest on.
 *
 * OWNS      the queue and the hand.
 *
 * LOCKING   none: one thread.
 */
#include "tools/replay/queue.h"

#define QUEUE 1

struct state {
	const struct kv_sim *sim;
	struct kv_queues q;
	uint32_t hand; /* KV_REPLAY_NONE: at the oldest */
};

static void end(void *arg)
{
	struct state *s = arg;

	free(s->q.links);
	free(s);
}

static void *begin(const struct kv_sim *sim, const char *name)
{
	struct state *s = calloc(1, sizeof(*s));

	(void)name;
	if (!s)
		return NULL;
	s->sim = sim;
	s->hand = KV_REPLAY_NONE;
	if (kv_queues_init(&s->q, sim->unique))
		return s;
	end(s);
	return NULL;
}

static void touch(void *arg, uint32_t block, uint32_t position)
{
	struct state *s = arg;

	(void)position;
	s->q.links[block].mark = 1;
}

static void insert(void *arg, uint32_t block, uint32_t position,
		   uint32_t parent)
{
	struct state *s = arg;

	(void)parent;
	(void)position;
	s->q.links[block].mark = 0;
	kv_queues_add(&s->q, QUEUE, block);
}

static uint32_t victim(void *arg, uint32_t block)
{
	struct state *s = arg;
	uint32_t at = s->hand;

	(void)block;
	for (uint64_t i = 0; i < 2ull * s->sim->used + 2; i++) {
		if (at == KV_REPLAY_NONE)
			at = s->q.oldest[QUEUE];
		if (!kv_sim_pinned(s->sim, at)) {
			if (!s->q.links[at].mark) {
				s->hand = s->q.links[at].next;
				kv_queues_remove(&s->q, at);
				return at;
			}
			s->q.links[at].mark = 0;
		}
		at = s->q.links[at].next;
	}
	return KV_REPLAY_NONE;
}

const struct kv_replay_policy kv_replay_sieve = {
	.name = "sieve",
	.begin = begin,
	.end = end,
	.touch = touch,
	.insert = insert,
	.victim = victim,
};
