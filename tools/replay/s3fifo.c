/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3fifo.c - S3-FIFO (Yang and others, 2023): a small queue of a tenth for what
 * is new, a main one for what was used there, and a memory of what left.
 *
 * OWNS      the three queues.
 *
 * LOCKING   none: one thread.
 */
#include "tools/replay/queue.h"

enum { SMALL = 1, MAIN, GONE };

struct state {
	const struct kv_sim *sim;
	struct kv_queues q;
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
	if (kv_queues_init(&s->q, sim->unique))
		return s;
	end(s);
	return NULL;
}

static void touch(void *arg, uint32_t block, uint32_t position)
{
	struct state *s = arg;
	uint8_t *uses = &s->q.links[block].mark;

	(void)position;
	if (*uses < 3)
		++*uses;
}

static void insert(void *arg, uint32_t block, uint32_t position,
		   uint32_t parent)
{
	struct state *s = arg;
	bool again = s->q.links[block].queue == GONE;

	(void)parent;
	(void)position;
	s->q.links[block].mark = 0;
	kv_queues_add(&s->q, again ? MAIN : SMALL, block);
}

static uint32_t leave(struct state *s, uint32_t block, bool remember)
{
	kv_queues_remove(&s->q, block);
	if (!remember)
		return block;
	kv_queues_add(&s->q, GONE, block);
	if (s->q.n[GONE] > s->sim->capacity - s->sim->capacity / 10)
		kv_queues_remove(&s->q, s->q.oldest[GONE]);
	return block;
}

/* Look at the oldest of @queue: it leaves, or moves; KV_REPLAY_NONE: moved. */
static uint32_t look(struct state *s, unsigned queue)
{
	uint32_t block = s->q.oldest[queue];
	uint8_t *uses = &s->q.links[block].mark;

	if (kv_sim_pinned(s->sim, block)) {
		kv_queues_add(&s->q, queue, block);
	} else if (queue == SMALL) {
		if (*uses <= 1)
			return leave(s, block, true);
		*uses = 0;
		kv_queues_add(&s->q, MAIN, block);
	} else {
		if (*uses == 0)
			return leave(s, block, false);
		--*uses;
		kv_queues_add(&s->q, MAIN, block);
	}
	return KV_REPLAY_NONE;
}

static uint32_t victim(void *arg, uint32_t block)
{
	struct state *s = arg;
	uint32_t small = s->sim->capacity / 10;

	(void)block;
	/* Four turns: a block comes round with fewer uses each time. */
	for (uint64_t i = 0; i < 5ull * s->sim->used; i++) {
		bool first = s->q.n[SMALL] &&
			     (s->q.n[SMALL] >= small || !s->q.n[MAIN]);
		uint32_t out;

		/* All of the small one may be pinned. */
		if (i > 2ull * s->sim->used && s->q.n[MAIN])
			first = false;
		out = look(s, first ? SMALL : MAIN);
		if (out != KV_REPLAY_NONE)
			return out;
	}
	return KV_REPLAY_NONE;
}

const struct kv_replay_policy kv_replay_s3fifo = {
	.name = "s3fifo",
	.begin = begin,
	.end = end,
	.touch = touch,
	.insert = insert,
	.victim = victim,
};
