/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.h - deficit round robin among users with work.
 *
 * Each user's queue begins with a kv_turn.  In its turn a queue may spend a
 * fixed cost; later turns pay for its overdraft.
 *
 * Call all functions with one lock held, or from one thread.
 */
#ifndef KV_CACHE_CORE_TURNS_H
#define KV_CACHE_CORE_TURNS_H

#include <sys/queue.h>

#include "common/kv.h"

struct kv_turn {
	uint32_t uid;
	unsigned refs;
	bool busy;	/* the queue has work and takes turns */
	int64_t credit; /* rest of the turn's credit; negative: overdraft */
	uint64_t out;	/* cost in flight of the queue */
	bool served;	/* the queue was charged since start or resume */
	bool first; /* had no turn before the stop: resume the queue first */
	LIST_ENTRY(kv_turn) bucket;
	TAILQ_ENTRY(kv_turn) link;
};

struct kv_turns {
	TAILQ_HEAD(, kv_turn) busy; /* queues with work, the next one first */
	LIST_HEAD(, kv_turn) buckets[64]; /* hash table by uid */
	struct kv_turn *shared; /* shared by users without memory for a queue */
	size_t bytes, n_busy;
	uint64_t out; /* cost in flight, summed over all queues */
	int64_t amount;
	void (*init)(struct kv_turn *turn);
};

/* @bytes: size of a queue, which is zeroed and then initialised by @init unless NULL;
 * @amount: cost of one turn.  -ENOMEM. */
int kv_turns_init(struct kv_turns *turns, size_t bytes, int64_t amount,
		  void (*init)(struct kv_turn *turn));
/* Free the queues.  Takes a zeroed struct. */
void kv_turns_fini(struct kv_turns *turns);

/* Find or create the queue of @uid and hold it; without memory the shared
 * queue. */
struct kv_turn *kv_turn_get(struct kv_turns *turns, uint32_t uid);
void kv_turn_hold(struct kv_turn *turn);
/* Release the queue.  The last put frees the queue, which must have no work. */
void kv_turn_put(struct kv_turns *turns, struct kv_turn *turn);

/* Mark the queue as having work or none; idempotent.  A held queue keeps its
 * overdraft. */
void kv_turn_start(struct kv_turns *turns, struct kv_turn *turn);
void kv_turn_stop(struct kv_turns *turns, struct kv_turn *turn);

/* Restart a held queue after all queues were stopped.  The queues that had no
 * turn before the stop come first, in their old order. */
void kv_turn_resume(struct kv_turns *turns, struct kv_turn *turn);

/* Return the queue whose turn it is; NULL: no queue has work. */
struct kv_turn *kv_turns_next(struct kv_turns *turns);
/* Return whether the queue may put @more in flight.  All queues together may
 * have @max; one queue at most three times what it leaves free.  A queue with
 * nothing in flight may begin as long as all have at most four times @max: so
 * others cannot shut it out. */
bool kv_turn_may(const struct kv_turns *turns, const struct kv_turn *turn,
		 uint64_t max, uint64_t more);
/* Return the next queue in turn that may have more in flight; NULL: none. */
struct kv_turn *kv_turns_next_within(struct kv_turns *turns, uint64_t max);
/* Count @amount as in flight, and hold the queue; kv_turn_end undoes both. */
void kv_turn_begin(struct kv_turns *turns, struct kv_turn *turn,
		   uint64_t amount);
void kv_turn_end(struct kv_turns *turns, struct kv_turn *turn, uint64_t amount);
/* Take @cost from the queue's credit. */
void kv_turn_charge(struct kv_turn *turn, uint64_t cost);
/* End the current turn: move its queue to the end. */
void kv_turns_yield(struct kv_turns *turns);

#endif
