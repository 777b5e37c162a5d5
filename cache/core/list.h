/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.h - the blocks that one space has in one class of a tier, in the order
 * in which they leave.
 *
 * Each space has shelves of its own, so that what a space is owed or denied
 * (reserve, quota) costs no search among the blocks of others.  A pinned block
 * is on no shelf: nobody has to pass it over.
 *
 * All calls under the cache's lock.
 */
#ifndef KV_SHELF_H
#define KV_SHELF_H

#include <sys/queue.h>

#include "cache/evict/policy.h"

struct kv_block;
struct kv_cache;
struct kv_space;

struct kv_shelf {
	struct kv_space *space; /* fixed */
	const void *class;	/* fixed: its kv_class or kv_ssd_class */
	bool ssd;		/* fixed: of which tier */
	uint32_t blocks;	/* on the shelf */
	uint32_t idle;		/* DRAM: of its slots those that may go */
	struct kv_policy policy;
	struct kv_shelves *beside;  /* fixed: the class's */
	TAILQ_ENTRY(kv_shelf) link; /* of the class; empty ones last */
	LIST_ENTRY(kv_shelf) own;   /* of the space */
};
TAILQ_HEAD(kv_shelves, kv_shelf);
LIST_HEAD(kv_shelf_list, kv_shelf);

/* The space's shelf for @class among its @own ones; NULL. */
struct kv_shelf *kv_shelf_find(const struct kv_shelf_list *own,
			       const void *class);
/* Find it, or make it; NULL: no memory.  It lives until kv_shelves_free. */
struct kv_shelf *kv_shelf_make(struct kv_space *space,
			       struct kv_shelf_list *own, const void *class,
			       struct kv_shelves *beside,
			       struct kv_eviction *eviction);
/* @block, which has a slot, comes onto the shelf; @promoted: from the other
 * tier, for a use to come. */
void kv_shelf_add(struct kv_cache *cache, struct kv_shelf *shelf,
		  const struct kv_block *block, bool promoted);
/* The same for one that is on SSD alone: nothing is known of its chain. */
void kv_shelf_add_plain(struct kv_shelf *shelf, const struct kv_block *block);
/* It is about to be evicted for good: remember its uses. */
void kv_shelf_gone(struct kv_cache *cache, const struct kv_shelf *shelf,
		   const struct kv_block *block);
void kv_shelf_drop(struct kv_shelf *shelf, uint32_t block); /* if it is on it */
/* A class ends, and with it its shelves, which are empty. */
void kv_shelves_free(struct kv_shelves *shelves);

#endif
