/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.h - deficit round robin among users with work.
 *
 * Each user's queue begins with a kv_turn.  A turn is an amount of cost; a queue
 * pays its overdraft in later rounds.
 *
 * All calls with one lock of the caller's, or from one thread.
 */
#ifndef KV_CACHE_CORE_TURNS_H
#define KV_CACHE_CORE_TURNS_H

#include <sys/queue.h>

#include "common/kv.h"

struct kv_turn {
	uint32_t uid;
	unsigned refs;
	bool busy;	/* has work, and takes turns */
	int64_t credit; /* left of the turn; negative: overdraft */
	uint64_t out;	/* cost in flight */
	bool served;	/* charged since start or resume */
	bool first;	/* resumed, and not served before or since */
	struct kv_turn *next;
	TAILQ_ENTRY(kv_turn) link;
};

struct kv_turns {
	TAILQ_HEAD(, kv_turn) busy; /* in turn */
	struct kv_turn *buckets[64];
	struct kv_turn *shared; /* by users without memory for a queue */
	size_t bytes, n_busy;
	uint64_t out; /* of all */
	int64_t amount;
	void (*init)(struct kv_turn *turn);
};

/* Queues of @bytes, zeroed, and then made by @init; turns of @amount.
 * -ENOMEM. */
int kv_turns_init(struct kv_turns *turns, size_t bytes, int64_t amount,
		  void (*init)(struct kv_turn *turn));
/* Frees the queues.  Takes a zeroed struct. */
void kv_turns_fini(struct kv_turns *turns);

/* Find or make the queue of @uid and hold it.  Without memory, the shared one. */
struct kv_turn *kv_turn_get(struct kv_turns *turns, uint32_t uid);
void kv_turn_hold(struct kv_turn *turn);
/* The last put frees the queue, which must have no work. */
void kv_turn_put(struct kv_turns *turns, struct kv_turn *turn);

/* Mark the queue as having work, or none; idempotent.  The queue keeps its
 * overdraft as long as it is held. */
void kv_turn_start(struct kv_turns *turns, struct kv_turn *turn);
void kv_turn_stop(struct kv_turns *turns, struct kv_turn *turn);

/* Start the queue, which is held, again after a stop of all queues.  Queues that
 * were not served before the stop come first, in their order. */
void kv_turn_resume(struct kv_turns *turns, struct kv_turn *turn);

/* Return the queue whose turn it is; NULL: none has work. */
struct kv_turn *kv_turns_next(struct kv_turns *turns);
/*
 * Return the next queue with less than three times as much in flight as is left
 * of @max: requests of one user that hang leave a part to others.
 */
struct kv_turn *kv_turns_next_within(struct kv_turns *turns, uint64_t max);
/* Count @amount in flight for the queue, which is held meanwhile; end it. */
void kv_turn_begin(struct kv_turns *turns, struct kv_turn *turn,
		   uint64_t amount);
void kv_turn_end(struct kv_turns *turns, struct kv_turn *turn, uint64_t amount);
/* Take @cost from the queue's credit. */
void kv_turn_charge(struct kv_turn *turn, uint64_t cost);
/* Move the queue whose turn it is to the end. */
void kv_turns_yield(struct kv_turns *turns);

#endif
