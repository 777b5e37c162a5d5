/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backup.h - users' queues of blocks to be put: backup.c takes from these, and offer.c
 * walks over spaces for them.
 *
 * LOCKING   cache->lock for all but kv_backups.busy and a backup's job, which are the
 *           remote thread's.
 */
#ifndef KV_CACHE_REMOTE_BACKUP_H
#define KV_CACHE_REMOTE_BACKUP_H

#include "cache/remote/tier.h"

struct kv_backup;
TAILQ_HEAD(kv_backup_queue, kv_backup);
TAILQ_HEAD(kv_offer_queue, kv_offer);

/* A user's queue. */
struct kv_backup_user {
	struct kv_turn turn; /* first */
	struct kv_backup_queue fresh;
	struct kv_offer_queue offers; /* DUE */
	unsigned n;		      /* of fresh */
};

#define KV_OFFER_PAGE 32u /* keys */

struct kv_offer {
	struct kv_space *space; /* fixed; held */
	struct kv_backup_user
		*user; /* held: of the owner when the walk began */
	uint32_t uid;  /* that owner */
	enum { OFFER_LATER, OFFER_DUE, OFFER_OUT } state;
	bool all; /* ask also for blocks that the backend is known to have */
	/* Repeat the walk, over all blocks or those that were missed. */
	enum { OFFER_ONCE, OFFER_MISSED, OFFER_ALL } again;
	uint64_t cursor; /* behind the keys */
	bool walked;	 /* these keys are the last ones */
	struct kv_key keys[KV_OFFER_PAGE];
	size_t n, next;		    /* of keys; of these, taken */
	unsigned out;		    /* blocks that have not ended */
	uint64_t pause_ns;	    /* last one before a walk */
	uint64_t until_ns;	    /* LATER */
	TAILQ_ENTRY(kv_offer) link; /* LATER: on b->later; DUE: user->offers */
	LIST_ENTRY(kv_offer) of_all;
};

struct kv_backups {
	pthread_t thread;
	bool running, stop;
	bool ending;		   /* put new blocks only */
	pthread_cond_t more, over; /* work for the thread; a block has ended */
	struct kv_turns turns;	   /* struct kv_backup_user */
	unsigned n_fresh;	   /* blocks */
	bool flushing;		   /* a space, at unmount */
	struct kv_backup_queue ready, unread;
	struct kv_backup_queue busy; /* used by the remote thread only */
	struct kv_offer_queue later;
	LIST_HEAD(, kv_offer) offers;
	uint64_t look_ns; /* when to look at `later` next */
};

/* ---- backup.c ---- */

static inline struct kv_backup_user *kv_backup_user(struct kv_backups *b,
						    uint32_t uid)
{
	return (struct kv_backup_user *)kv_turn_get(&b->turns, uid);
}

/* Let @user take turns while it has work. */
static inline void kv_backup_user_settle(struct kv_backups *b,
					 struct kv_backup_user *user)
{
	if (TAILQ_EMPTY(&user->fresh) && TAILQ_EMPTY(&user->offers))
		kv_turn_stop(&b->turns, &user->turn);
	else
		kv_turn_start(&b->turns, &user->turn);
}

/* Return whether @block is to be put, by remote_write. */
static inline bool kv_backup_wants(const struct kv_cache *cache,
				   const struct kv_block *block)
{
	return cache->config.remote.write == KV_WRITEBACK_ALL || block->hits;
}

/* ---- offer.c ---- */

/* Offer all of @space, or once more if it is being offered.  NULL: it is not. */
struct kv_offer *kv_offer_again_locked(struct kv_remote *remote,
				       struct kv_space *space);
/* End the pauses that are over, and offers of spaces that are not shared any more. */
void kv_offers_look_locked(struct kv_remote *remote);
/* Take the next block of @offer, which is DUE, and count it as out.  NULL: none yet, or
 * the offer is not DUE any more.  Drops the lock. */
const struct kv_block *kv_offer_take_locked(struct kv_remote *remote,
					    struct kv_offer *offer);
/* Call when a block of the walk @offer has been put, was found there, or @failed. */
void kv_offer_over_locked(struct kv_remote *remote, struct kv_offer *offer,
			  bool failed);
void kv_offers_free(struct kv_remote *remote);

#endif
