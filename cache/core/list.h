/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.h - one eviction list per space and slot class of a tier, and the choice
 * of the list that gives a block up.
 *
 * Each space has lists of its own, so that its reserve and its quota cost no
 * search among the blocks of others.  A pinned block is on no list.
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

/* The tiers, as the lists and the ledger count them. */
enum kv_node_tier { DRAM, SSD, TIERS };

struct kv_evict_list {
	struct kv_space *space;	  /* fixed */
	void *class;		  /* fixed: its kv_class or kv_ssd_class */
	enum kv_node_tier tier;	  /* fixed */
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
/* Find the space's list for @class, or make it; NULL: no memory.  The list lives
 * until kv_evict_lists_free. */
struct kv_evict_list *kv_evict_list_make(struct kv_space *space,
					 enum kv_node_tier tier, void *class,
					 struct kv_evict_lists *lists,
					 struct kv_eviction *eviction);
/* Add @block, which has a slot; @promoted: from the other tier, for a use to
 * come. */
void kv_evict_list_add(struct kv_cache *cache, struct kv_evict_list *list,
		       const struct kv_block *block, bool promoted);
/* Add a block that is on SSD alone, whose chain is not known. */
void kv_evict_list_add_plain(struct kv_evict_list *list,
			     const struct kv_block *block);
/* Remember the uses of a block that is about to be evicted for good. */
void kv_evict_list_gone(struct kv_cache *cache,
			const struct kv_evict_list *list,
			const struct kv_block *block);
void kv_evict_list_drop(struct kv_evict_list *list,
			uint32_t block); /* if it is on it */
/* Free the lists of a class, or of a space; they are empty. */
void kv_evict_lists_free(struct kv_evict_lists *lists);
void kv_evict_lists_leave(struct kv_space *space);

/* ---- victims ---- */

/* A need for room in a tier, and the blocks that may give way. */
struct kv_giving {
	struct kv_cache *cache;
	/* This space may evict its own blocks below its guarantee, and this user
	 * those of all its spaces below the user's; NULL: nobody. */
	const struct kv_space *taker;
	const struct kv_tenant *tenant;
	/* This space gives nothing, nor do the others of its user below the
	 * user's guarantee; NULL: all give. */
	const struct kv_space *but;
	bool regardless; /* guarantees do not count */
	/* Return whether the tier's own rules let @list give; NULL: they do. */
	bool (*may)(const struct kv_evict_list *list,
		    const struct kv_giving *giving);
	/* Evict a block of @list; false: all are in use. */
	bool (*evict)(struct kv_evict_list *list,
		      const struct kv_giving *giving);
};

/* Return whether @list may give a block up: eviction for another space never
 * takes a space, or its user, below the guarantee. */
bool kv_victim_gives(const struct kv_evict_list *list,
		     const struct kv_giving *giving);

/* The list whose next victim is the coldest of all lists looked at. */
struct kv_coldest {
	struct kv_evict_list *list; /* NULL: none gives */
	uint32_t age;		    /* of its next victim */
};

/* Compare the lists of a class with *@coldest.  The first of equals stays. */
void kv_victim_look(const struct kv_evict_lists *lists,
		    const struct kv_giving *giving, struct kv_coldest *coldest);
/* Evict a block of a class's coldest list, or else of any that gives; false: no
 * list gives one. */
bool kv_victim_evict(const struct kv_evict_lists *lists,
		     const struct kv_giving *giving);
/* Evict a block of the coldest of a space's own lists. */
bool kv_victim_evict_own(const struct kv_space *space, enum kv_node_tier tier,
			 const struct kv_giving *giving);
/* The same of all of a user's spaces. */
bool kv_victim_evict_tenant(const struct kv_tenant *tenant,
			    enum kv_node_tier tier,
			    const struct kv_giving *giving);

#endif
