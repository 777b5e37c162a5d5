/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policies.c - what decides in a simulation who leaves: the daemon's own
 * policies, linked from cache/, and some from papers, only to compare.
 *
 * ARC (Megiddo and Modha, 2003): two lists, of blocks seen once and more often,
 * and the memory of what left either moves their sizes.
 *
 * S3-FIFO (Yang and others, 2023): a small queue of a tenth for what is new, a
 * main one for what was used there, and a memory of what left.
 *
 * SIEVE (Zhang and others, 2024): one queue, a mark for what was used, and a
 * hand that takes marks away from the oldest on.
 *
 * OWNS      a simulation's queues; for the daemon's policies nodes for all
 *           blocks of the trace, and a ghost of four times the capacity, as the
 *           daemon has it.
 *
 * LOCKING   none: one thread.
 */
#include "tools/replay/sim.h"

#include <errno.h>
#include <stdlib.h>

#include "cache/evict/ghost.h"
#include "cache/evict/policy.h"

/* ---- the daemon's ---- */

struct daemon {
	const struct kv_sim *sim;
	struct kv_eviction eviction;
	struct kv_policy policy;
	struct kv_ghost ghost;
	struct kv_evict_node *nodes;
	uint32_t clock;
};

static struct kv_evict_node *node_of(void *arg, uint32_t block)
{
	return &((struct daemon *)arg)->nodes[block];
}

static void daemon_end(void *arg)
{
	struct daemon *d = arg;

	kv_eviction_fini(&d->eviction);
	kv_ghost_fini(&d->ghost);
	free(d->nodes);
	free(d);
}

static void *daemon_begin(const struct kv_sim *sim, const char *name)
{
	struct daemon *d = calloc(1, sizeof(*d));
	int r = -ENOMEM;

	if (!d)
		return NULL;
	d->sim = sim;
	d->nodes = calloc(sim->unique + 1, sizeof(*d->nodes));
	if (d->nodes)
		r = kv_ghost_init(
			&d->ghost,
			KV_MAX((uint64_t)sim->capacity * KV_GHOST_FOR_A_BLOCK,
			       KV_GHOST_MIN));
	if (r == 0)
		kv_ghost_fit(&d->ghost, sim->capacity);
	if (r == 0)
		r = kv_eviction_init(&d->eviction, name, &d->clock, node_of, d);
	if (r < 0) {
		daemon_end(d);
		errno = -r;
		return NULL;
	}
	kv_policy_init(&d->policy, &d->eviction);
	return d;
}

static uint64_t hash_of(uint32_t block)
{
	uint64_t x = (block + 1) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	return x ^ x >> 27;
}

static void ask(struct daemon *d, uint32_t block, uint32_t position)
{
	if (d->eviction.shadow)
		kv_shadow_cache_ask(d->eviction.shadow, hash_of(block),
				    position);
}

static void daemon_touch(void *arg, uint32_t block, uint32_t position)
{
	struct daemon *d = arg;

	ask(d, block, position);
	kv_policy_touch(&d->policy, block);
}

static void daemon_insert(void *arg, uint32_t block, uint32_t position,
			  uint32_t parent)
{
	struct daemon *d = arg;
	struct kv_arrival arrival = {
		.parent = KV_NONE,
		.position = position,
		.past = kv_ghost_take(&d->ghost, hash_of(block))};

	if (parent != KV_REPLAY_NONE && kv_policy_has(&d->policy, parent))
		arrival.parent = parent;
	ask(d, block, position);
	d->policy.burst = KV_NONE;
	kv_policy_insert(&d->policy, block, &arrival);
}

static void daemon_over(void *arg, uint32_t block)
{
	struct daemon *d = arg;

	kv_policy_renew(&d->policy, block);
}

static bool may_go(void *arg, uint32_t block)
{
	return !kv_sim_pinned(arg, block);
}

static uint32_t daemon_victim(void *arg, uint32_t block)
{
	struct daemon *d = arg;
	uint32_t out = kv_policy_victim(&d->policy, may_go, (void *)d->sim);

	(void)block;
	if (out == KV_NONE)
		return KV_REPLAY_NONE;
	kv_ghost_put(&d->ghost, hash_of(out), kv_policy_past(&d->policy, out));
	kv_policy_remove(&d->policy, out);
	return out;
}

const struct kv_replay_policy kv_replay_daemon = {
	.name = "",
	.begin = daemon_begin,
	.end = daemon_end,
	.touch = daemon_touch,
	.insert = daemon_insert,
	.over = daemon_over,
	.victim = daemon_victim,
};

/* ---- from papers ---- */

/* Blocks in one of a few queues, oldest first. */
#define QUEUES 4 /* numbered from 1; 0: a block is in none */

struct links {
	uint32_t prev, next;
	uint8_t queue, mark; /* mark: the policy's own */
};

struct queues {
	struct links *links; /* by block */
	uint32_t oldest[QUEUES + 1], newest[QUEUES + 1];
	uint32_t n[QUEUES + 1];
};

static bool queue_init(struct queues *q, uint32_t unique)
{
	q->links = calloc(unique + 1, sizeof(*q->links));
	for (unsigned i = 0; i <= QUEUES; i++) {
		q->oldest[i] = q->newest[i] = KV_REPLAY_NONE;
		q->n[i] = 0;
	}
	return q->links;
}

static void queue_remove(struct queues *q, uint32_t block)
{
	struct links *l = &q->links[block];

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
static void queue_add(struct queues *q, unsigned queue, uint32_t block)
{
	struct links *l = &q->links[block];

	queue_remove(q, block);
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

struct state {
	const struct kv_sim *sim;
	struct queues q;
	double once_size; /* ARC: wanted */
	uint32_t hand;	  /* SIEVE: KV_REPLAY_NONE: at the oldest */
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
	if (queue_init(&s->q, sim->unique))
		return s;
	end(s);
	return NULL;
}

enum { ONCE = 1, OFTEN, ONCE_GONE, OFTEN_GONE };

static void arc_touch(void *arg, uint32_t block, uint32_t position)
{
	struct state *s = arg;

	(void)position;
	queue_add(&s->q, OFTEN, block);
}

static void arc_insert(void *arg, uint32_t block, uint32_t position,
		       uint32_t parent)
{
	struct state *s = arg;

	(void)parent;
	(void)position;
	queue_add(&s->q, s->q.links[block].queue ? OFTEN : ONCE, block);
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

static uint32_t arc_victim(void *arg, uint32_t block)
{
	struct state *s = arg;
	struct queues *q = &s->q;
	unsigned from = q->links[block].queue;
	bool fresh = !from, full, take_once;
	uint32_t out;

	adapt(s, from);
	full = fresh && q->n[ONCE] + q->n[ONCE_GONE] >= s->sim->capacity;
	if (full && q->n[ONCE_GONE])
		queue_remove(q, q->oldest[ONCE_GONE]);
	else if (fresh &&
		 q->n[ONCE] + q->n[OFTEN] + q->n[ONCE_GONE] +
				 q->n[OFTEN_GONE] >=
			 2 * s->sim->capacity &&
		 q->n[OFTEN_GONE])
		queue_remove(q, q->oldest[OFTEN_GONE]);
	take_once = q->n[ONCE] &&
		    (q->n[ONCE] > s->once_size ||
		     (from == OFTEN_GONE && q->n[ONCE] >= s->once_size));
	out = oldest(s, take_once ? ONCE : OFTEN);
	if (out == KV_REPLAY_NONE)
		out = oldest(s, take_once ? OFTEN : ONCE);
	if (out != KV_REPLAY_NONE)
		queue_add(q,
			  q->links[out].queue == ONCE ? ONCE_GONE : OFTEN_GONE,
			  out);
	return out;
}

const struct kv_replay_policy kv_replay_arc = {
	.name = "arc",
	.begin = begin,
	.end = end,
	.touch = arc_touch,
	.insert = arc_insert,
	.victim = arc_victim,
};

enum { SMALL = 1, MAIN, GONE };

static void s3fifo_touch(void *arg, uint32_t block, uint32_t position)
{
	struct state *s = arg;
	uint8_t *uses = &s->q.links[block].mark;

	(void)position;
	if (*uses < 3)
		++*uses;
}

static void s3fifo_insert(void *arg, uint32_t block, uint32_t position,
			  uint32_t parent)
{
	struct state *s = arg;
	bool again = s->q.links[block].queue == GONE;

	(void)parent;
	(void)position;
	s->q.links[block].mark = 0;
	queue_add(&s->q, again ? MAIN : SMALL, block);
}

static uint32_t leave(struct state *s, uint32_t block, bool remember)
{
	queue_remove(&s->q, block);
	if (!remember)
		return block;
	queue_add(&s->q, GONE, block);
	if (s->q.n[GONE] > s->sim->capacity - s->sim->capacity / 10)
		queue_remove(&s->q, s->q.oldest[GONE]);
	return block;
}

/* Look at the oldest of @queue: it leaves, or moves; KV_REPLAY_NONE: moved. */
static uint32_t look(struct state *s, unsigned queue)
{
	uint32_t block = s->q.oldest[queue];
	uint8_t *uses = &s->q.links[block].mark;

	if (kv_sim_pinned(s->sim, block)) {
		queue_add(&s->q, queue, block);
	} else if (queue == SMALL) {
		if (*uses <= 1)
			return leave(s, block, true);
		*uses = 0;
		queue_add(&s->q, MAIN, block);
	} else {
		if (*uses == 0)
			return leave(s, block, false);
		--*uses;
		queue_add(&s->q, MAIN, block);
	}
	return KV_REPLAY_NONE;
}

static uint32_t s3fifo_victim(void *arg, uint32_t block)
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
	.touch = s3fifo_touch,
	.insert = s3fifo_insert,
	.victim = s3fifo_victim,
};

#define QUEUE 1

static void sieve_touch(void *arg, uint32_t block, uint32_t position)
{
	struct state *s = arg;

	(void)position;
	s->q.links[block].mark = 1;
}

static void sieve_insert(void *arg, uint32_t block, uint32_t position,
			 uint32_t parent)
{
	struct state *s = arg;

	(void)parent;
	(void)position;
	s->q.links[block].mark = 0;
	queue_add(&s->q, QUEUE, block);
}

static uint32_t sieve_victim(void *arg, uint32_t block)
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
				queue_remove(&s->q, at);
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
	.touch = sieve_touch,
	.insert = sieve_insert,
	.victim = sieve_victim,
};
