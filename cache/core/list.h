/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.h - one eviction list per space and slot class of a tier, and the choice
 * of the list that gives up a block.
 *
 * Each space has lists of its own, so that evicting for its reserve or its
 * quota needs no search among the blocks of other spaces.  A pinned block is on
 * no list.
 *
 * Call all functions with cache->lock held.
 */
#ifndef KV_CACHE_CORE_LIST_H
#define KV_CACHE_CORE_LIST_H

#include <sys/queue.h>

#include "cache/evict/policy.h"

struct kv_block;
struct kv_cache;
struct kv_space;
struct kv_tenant;

/* The tiers that lists and the ledger count. */
enum kv_node_tier { DRAM, SSD, TIERS };

struct kv_evict_list {
	struct kv_space *space; /* constant */
	void *class;		/* constant: its kv_class or kv_ssd_class */
	enum kv_node_tier tier; /* constant */
	uint32_t blocks;	/* number of blocks on the list */
	uint32_t idle; /* DRAM: slots of these blocks that may be evicted */
	uint32_t pinned, writing; /* SSD: pinned blocks, slots being written */
	struct kv_policy policy;
	struct kv_evict_lists *lists;	 /* constant: lists of the class */
	TAILQ_ENTRY(kv_evict_list) link; /* class's lists, empty ones last */
	LIST_ENTRY(kv_evict_list) own;	 /* entry in the lists of the space */
};
TAILQ_HEAD(kv_evict_lists, kv_evict_list);
LIST_HEAD(kv_evict_list_list, kv_evict_list);

/* Return the list of a block that has an extent on SSD, else NULL. */
struct kv_evict_list *kv_evict_list_ssd(struct kv_cache *cache,
					const struct kv_block *block);
/* Find or create the space's list for @class; NULL: no memory.  The list lives
 * until kv_evict_lists_free. */
struct kv_evict_list *kv_evict_list_make(struct kv_space *space,
					 enum kv_node_tier tier, void *class,
					 struct kv_evict_lists *lists,
					 struct kv_eviction *eviction);
/* Add @block, which has a slot.  @promoted: the block comes from the other
 * tier, and will be used soon. */
void kv_evict_list_add(struct kv_cache *cache, struct kv_evict_list *list,
		       const struct kv_block *block, bool promoted);
/* Add a block that is on SSD only, and whose parent is unknown. */
void kv_evict_list_add_plain(struct kv_evict_list *list,
			     const struct kv_block *block);
/* Add a block to the ghost before its eviction from all tiers. */
void kv_evict_list_gone(struct kv_cache *cache,
			const struct kv_evict_list *list,
			const struct kv_block *block);
/* Count an eviction of @block from @tier. */
void kv_evicted_locked(struct kv_cache *cache, enum kv_node_tier tier,
		       const struct kv_block *block);
/* Take @block off the list; no effect if it is not on the list. */
void kv_evict_list_drop(struct kv_evict_list *list, uint32_t block);
/* Free the lists of a class, or of a space; they are empty. */
void kv_evict_lists_free(struct kv_evict_lists *lists);
void kv_evict_lists_leave(struct kv_space *space);

/* ---- victims ---- */

/* A need for room in a tier, and the blocks that may be evicted for it. */
struct kv_giving {
	struct kv_cache *cache;
	/* Blocks of @taker, and of all spaces of @tenant, may be evicted even
	 * below the guarantee.  NULL: no such exception. */
	const struct kv_space *taker;
	const struct kv_tenant *tenant;
	/* Evict nothing of this space; of its user's other spaces evict nothing
	 * below the user's guarantee.  NULL: no such space. */
	const struct kv_space *but;
	bool regardless; /* evict guaranteed blocks as well */
	/* Return whether the tier's rules let @list give up a block; NULL:
	 * yes. */
	bool (*may)(const struct kv_evict_list *list,
		    const struct kv_giving *giving);
	/* Evict a block of @list; return false if all its blocks are in use. */
	bool (*evict)(struct kv_evict_list *list,
		      const struct kv_giving *giving);
};

/* Return whether @list may give up a block: eviction for another space never
 * takes a space, or its user, below its guarantee. */
bool kv_victim_gives(const struct kv_evict_list *list,
		     const struct kv_giving *giving);

/* The list with the coldest next victim of all lists compared so far. */
struct kv_coldest {
	struct kv_evict_list *list; /* NULL: no list may give up a block */
	uint32_t age;		    /* coldness of the list's next victim */
};

/* Make *@coldest the list of the class whose next victim is colder; of equally
 * cold ones the first stays. */
void kv_victim_look(const struct kv_evict_lists *lists,
		    const struct kv_giving *giving, struct kv_coldest *coldest);
/* Evict a block of the class's coldest list, or else of any list that may give
 * up one; return false if none can. */
bool kv_victim_evict(const struct kv_evict_lists *lists,
		     const struct kv_giving *giving);
/* Evict a block of the coldest of the space's own lists. */
bool kv_victim_evict_own(const struct kv_space *space, enum kv_node_tier tier,
			 const struct kv_giving *giving);
/* Evict a block of the coldest list of all of a user's spaces. */
bool kv_victim_evict_tenant(const struct kv_tenant *tenant,
			    enum kv_node_tier tier,
			    const struct kv_giving *giving);

#endif
