/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.h - users who have work take turns, whatever they have of it.
 *
 * Each user's queue begins with a kv_turn.  A turn is an amount of cost; who
 * took more than its turn waits for as many more as that was.
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
	bool busy;	/* it has work, and takes its turns */
	int64_t credit; /* left of its turn */
	uint64_t out;	/* what it has begun, and has not ended */
	bool served;	/* it has done something since it began, or went on */
	bool first;	/* it went on, and had not; nor has since */
	struct kv_turn *next;
	TAILQ_ENTRY(kv_turn) link;
};

struct kv_turns {
	TAILQ_HEAD(, kv_turn) busy; /* in turn */
	struct kv_turn *buckets[64];
	struct kv_turn *shared; /* of all for whom there was no memory */
	size_t bytes, n_busy;
	uint64_t out; /* of all */
	int64_t amount;
	void (*init)(struct kv_turn *turn);
};

/* Queues of @bytes, zeroed, and then made by @init; turns of @amount.
 * -ENOMEM. */
int kv_turns_init(struct kv_turns *turns, size_t bytes, int64_t amount,
		  void (*init)(struct kv_turn *turn));
/* Queues that are left go, too.  Takes a zeroed one. */
void kv_turns_fini(struct kv_turns *turns);

/* The queue of @uid, held.  Without memory for it, one that is shared. */
struct kv_turn *kv_turn_get(struct kv_turns *turns, uint32_t uid);
void kv_turn_hold(struct kv_turn *turn);
/* With the last holder it is gone; it has no work then. */
void kv_turn_put(struct kv_turns *turns, struct kv_turn *turn);

/* The queue has work, or none; nothing happens if that was said before.  What it
 * took beyond its turn it owes as long as it is held. */
void kv_turn_start(struct kv_turns *turns, struct kv_turn *turn);
void kv_turn_stop(struct kv_turns *turns, struct kv_turn *turn);

/* The queue, which is held, goes on after a stop that nobody with work was spared:
 * those that got nothing before it come first, in their order. */
void kv_turn_resume(struct kv_turns *turns, struct kv_turn *turn);

/* The queue whose turn it is; NULL: nobody has work. */
struct kv_turn *kv_turns_next(struct kv_turns *turns);
/*
 * The same, of those that have not three times as much under way as is left of
 * @max: whatever does not end for some, something is left for others.
 */
struct kv_turn *kv_turns_next_within(struct kv_turns *turns, uint64_t max);
/* So much is under way for the queue, which is held for it; and has ended. */
void kv_turn_begin(struct kv_turns *turns, struct kv_turn *turn,
		   uint64_t amount);
void kv_turn_end(struct kv_turns *turns, struct kv_turn *turn, uint64_t amount);
/* The queue has done so much. */
void kv_turn_charge(struct kv_turn *turn, uint64_t cost);
/* The queue whose turn it is comes last. */
void kv_turns_yield(struct kv_turns *turns);

#endif
