/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arc.c - ARC (Megiddo and Modha, 2003): two lists, of blocks seen once and
 * more often, and the memory of what left either moves their sizes.
 *
 * OWNS      the four lists.
 *
 * LOCKING   none: one thread.
 */
#include "tools/replay/queue.h"

enum { ONCE = 1, OFTEN, ONCE_GONE, OFTEN_GONE };

struct state {
	const struct kv_sim *sim;
	struct kv_queues q;
	double once_size; /* wanted */
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

	(void)position;
	kv_queues_add(&s->q, OFTEN, block);
}

static void insert(void *arg, uint32_t block, uint32_t position,
		   uint32_t parent)
{
	struct state *s = arg;

	(void)parent;
	(void)position;
	kv_queues_add(&s->q, s->q.links[block].queue ? OFTEN : ONCE, block);
}

static uint32_t oldest(const struct state *s, unsigned queue)
{
	uint32_t block = s->q.oldest[queue];

	while (block != KV_REPLAY_NONE && kv_sim_pinned(s->sim, block))
		block = s->q.links[block].next;
	return block;
}

static void adapt(struct state *s, unsigned from)
{
	double once = s->q.n[ONCE_GONE], often = s->q.n[OFTEN_GONE];
	double most = s->sim->capacity;

	if (from == ONCE_GONE)
		s->once_size += often > once ? often / once : 1;
	else if (from == OFTEN_GONE)
		s->once_size -= once > often ? once / often : 1;
	s->once_size = s->once_size < 0	     ? 0
		       : s->once_size > most ? most
					     : s->once_size;
}

static uint32_t victim(void *arg, uint32_t block)
{
	struct state *s = arg;
	struct kv_queues *q = &s->q;
	unsigned from = q->links[block].queue;
	bool fresh = !from, full, take_once;
	uint32_t out;

	adapt(s, from);
	full = fresh && q->n[ONCE] + q->n[ONCE_GONE] >= s->sim->capacity;
	if (full && q->n[ONCE_GONE])
		kv_queues_remove(q, q->oldest[ONCE_GONE]);
	else if (fresh &&
		 q->n[ONCE] + q->n[OFTEN] + q->n[ONCE_GONE] +
				 q->n[OFTEN_GONE] >=
			 2 * s->sim->capacity &&
		 q->n[OFTEN_GONE])
		kv_queues_remove(q, q->oldest[OFTEN_GONE]);
	take_once = q->n[ONCE] &&
		    (q->n[ONCE] > s->once_size ||
		     (from == OFTEN_GONE && q->n[ONCE] >= s->once_size));
	out = oldest(s, take_once ? ONCE : OFTEN);
	if (out == KV_REPLAY_NONE)
		out = oldest(s, take_once ? OFTEN : ONCE);
	if (out != KV_REPLAY_NONE)
		kv_queues_add(
			q, q->links[out].queue == ONCE ? ONCE_GONE : OFTEN_GONE,
			out);
	return out;
}

const struct kv_replay_policy kv_replay_arc = {
	.name = "arc",
	.begin = begin,
	.end = end,
	.touch = touch,
	.insert = insert,
	.victim = victim,
};
