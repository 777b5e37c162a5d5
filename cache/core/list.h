/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.h - the blocks that one space has in one class of a tier, in the order
 * in which they leave; and which list gives one up.
 *
 * Each space has lists of its own, so that what a space is guaranteed or denied
 * (reserve, quota) costs no search among the blocks of others.  A pinned block
 * is on no list: nobody has to pass it over.
 *
 * All calls under the cache's lock.
 */
#ifndef KV_CACHE_CORE_LIST_H
#define KV_CACHE_CORE_LIST_H

#include <sys/queue.h>

#include "cache/evict/policy.h"

struct kv_block;
struct kv_cache;
struct kv_space;
struct kv_tenant;

struct kv_evict_list {
	struct kv_space *space;	  /* fixed */
	void *class;		  /* fixed: its kv_class or kv_ssd_class */
	bool ssd;		  /* fixed: of which tier */
	uint32_t blocks;	  /* on the list */
	uint32_t idle;		  /* DRAM: of its slots those that may go */
	uint32_t pinned, writing; /* SSD: beside those on it */
	struct kv_policy policy;
	struct kv_evict_lists *lists;	 /* fixed: the class's */
	TAILQ_ENTRY(kv_evict_list) link; /* of the class; empty ones last */
	LIST_ENTRY(kv_evict_list) own;	 /* of the space */
};
TAILQ_HEAD(kv_evict_lists, kv_evict_list);
LIST_HEAD(kv_evict_list_list, kv_evict_list);

/* The SSD list of a block that has an extent, else NULL. */
struct kv_evict_list *kv_evict_list_ssd(struct kv_cache *cache,
					const struct kv_block *block);
/* Find it, or make it; NULL: no memory.  It lives until kv_evict_lists_free. */
struct kv_evict_list *kv_evict_list_make(struct kv_space *space,
					 struct kv_evict_list_list *own,
					 void *class,
					 struct kv_evict_lists *lists,
					 struct kv_eviction *eviction);
/* @block, which has a slot, comes onto the list; @promoted: from the other
 * tier, for a use to come. */
void kv_evict_list_add(struct kv_cache *cache, struct kv_evict_list *list,
		       const struct kv_block *block, bool promoted);
/* The same for one that is on SSD alone: nothing is known of its chain. */
void kv_evict_list_add_plain(struct kv_evict_list *list,
			     const struct kv_block *block);
/* Remember the uses of a block that is about to be evicted for good. */
void kv_evict_list_gone(struct kv_cache *cache,
			const struct kv_evict_list *list,
			const struct kv_block *block);
void kv_evict_list_drop(struct kv_evict_list *list,
			uint32_t block); /* if it is on it */
/* A class ends, and with it its lists, which are empty. */
void kv_evict_lists_free(struct kv_evict_lists *lists);
/* The same of a space's own ones, which are empty. */
void kv_evict_lists_leave(struct kv_evict_list_list *own);

/* ---- victims ---- */

/* The tier's rules. */
struct kv_giving {
	/* May a block of @list, which has some, go? */
	bool (*gives)(const struct kv_evict_list *list, const void *arg);
	/* Evict one of them; false: all are in use. */
	bool (*evict)(struct kv_evict_list *list, const void *arg);
	const void *arg;
};

/* Of all lists seen, the one longest without a use of what it may give. */
struct kv_coldest {
	struct kv_evict_list *list; /* NULL: none gives */
	uint32_t age;		    /* of its next victim */
};

/* Look at a class's lists, too.  The first of equals stays. */
void kv_victim_look(const struct kv_evict_lists *lists,
		    const struct kv_giving *giving, struct kv_coldest *coldest);
/* Evict a block of a class's coldest list, or else of any that gives; false:
 * none can be. */
bool kv_victim_evict(const struct kv_evict_lists *lists,
		     const struct kv_giving *giving);
/* Evict a block of the coldest of a space's own lists. */
bool kv_victim_evict_own(const struct kv_evict_list_list *own,
			 const struct kv_giving *giving);
/* The same of all of a tenant's spaces, in one tier. */
bool kv_victim_evict_tenant(const struct kv_tenant *tenant, bool ssd,
			    const struct kv_giving *giving);

#endif
