/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - the eviction order of the blocks of one class of a tier.
 *
 * A block is useful only with its whole prefix, so victims come leaf-first.
 * That needs no tree: chains are touched from their tails, and a block is
 * inserted behind its parent.  Then a parent is never older than its child, nor
 * on a lower list, and the oldest block of a list is a leaf if no block of a
 * lower list is older.
 *
 * A kind of policy says on which list a block belongs, and how much a block on
 * a list with an age is worth: the expected hits for each touch of the cache
 * during which the block stays.  The victim is the list head with the lowest
 * worth; finding the victim takes as many steps as there are lists.
 *
 *   lru   one list: evict the block that was used longest ago
 *   flru  lists by number of uses, to 4; worth: uses / age
 *   lhd   lists by position in the chain and number of uses, to 8; worth: the
 *         learned hit density, or a simple order while that has more hits in
 *         the shadow cache
 *
 * Call all functions with cache->lock held.  A policy owns nothing but links;
 * its nodes are fields of the blocks' slots (DRAM) or of the blocks (SSD).
 */
#ifndef KV_CACHE_EVICT_POLICY_H
#define KV_CACHE_EVICT_POLICY_H

#include "common/kv.h"

#define KV_NONE UINT32_MAX
#define KV_LIST_ENDED 0 /* blocks of ended conversations: evicted first */
#define KV_USES_MAX 255
#define KV_DEPTHS 4 /* groups of positions; the last group has a chain's head */

struct kv_evict_node {
	uint32_t prev, next; /* neighbours' block numbers; KV_NONE: none */
	uint32_t tick;	     /* time of the last use, counted in touches */
	uint8_t list;
	uint8_t uses;  /* number of uses, halved from time to time */
	uint8_t depth; /* group that has the block's position in its chain */
	bool linked : 1;
	/* block came from the other tier: its next use is counted already */
	bool promoted : 1;
};

_Static_assert(sizeof(struct kv_evict_node) == 16, "there are millions");

struct kv_policy_kind;
struct kv_shadow_cache;

#define KV_POLICY_LISTS 12 /* most lists of a policy, with KV_LIST_ENDED */

/* Rankings of the blocks at the heads of lists. */
enum kv_weigh { KV_WEIGH_LEARNED, KV_WEIGH_AGE, KV_WEIGH_USES, KV_WEIGHS };

struct kv_hit_density; /* hit rates that the policy lhd has learned */

/* State of a tier's eviction that its policies share. */
struct kv_eviction {
	const struct kv_policy_kind *kind;
	uint32_t *clock; /* counter of touches, of all tiers of a cache */
	struct kv_evict_node *(*node)(void *arg, uint32_t block);
	void *arg;
	uint32_t blocks; /* number of blocks on all lists */
	/* remembered: number of inserted blocks that the ghost knew */
	uint64_t refused, remembered;
	uint64_t ended;	     /* evicted blocks of ended conversations */
	enum kv_weigh weigh; /* ranking of list heads, if there is no @shadow */
	/* used by the policy lhd; NULL for other policies */
	struct kv_hit_density *density;
	struct kv_shadow_cache *shadow;
};

/* Return the learned worth of a block on @list with @age. */
float kv_lhd_learned(const struct kv_eviction *eviction, unsigned list,
		     uint32_t age);

struct kv_policy {
	struct kv_eviction *eviction;
	uint32_t oldest[KV_POLICY_LISTS], newest[KV_POLICY_LISTS];
	uint32_t burst; /* block inserted last, while a burst of seals lasts */
	uint32_t burst_position;
	uint64_t burst_ns;
};

/* Uses of a block before its last eviction. */
struct kv_past {
	uint32_t tick;
	uint8_t uses; /* 0: no use is known */
};

/* A block that is inserted into the lists of a tier. */
struct kv_arrival {
	uint32_t parent;   /* parent block; KV_NONE: unknown, or not in tier */
	uint32_t position; /* position of the block in its chain */
	struct kv_past past;
	bool promoted; /* the other tier had the block, and counted the use */
	/* restore the block as @past describes: count no use, and do not place
	 * it behind a parent */
	bool same;
	uint64_t now_ns;
};

/* Return the name of policy @i, the default first; NULL after the last. */
const char *kv_policy_name(unsigned i);

/* @name is from kv_policy_name.  -EINVAL: unknown name; -ENOMEM. */
int kv_eviction_init(struct kv_eviction *eviction, const char *name,
		     uint32_t *clock,
		     struct kv_evict_node *(*node)(void *, uint32_t),
		     void *arg);
void kv_eviction_fini(struct kv_eviction *eviction);
void kv_policy_init(struct kv_policy *policy, struct kv_eviction *eviction);

/* Insert a block that was just sealed or read from SSD. */
void kv_policy_insert(struct kv_policy *policy, uint32_t block,
		      const struct kv_arrival *arrival);
/* Count a use of the block. */
void kv_policy_touch(struct kv_policy *policy, uint32_t block);
/* Treat the block as used now, because a use of it ends, but count no use. */
void kv_policy_renew(struct kv_policy *policy, uint32_t block);
/* Evict the block first: its conversation is over.  Call for a chain from its
 * last block to its first. */
void kv_policy_end(struct kv_policy *policy, uint32_t block);
void kv_policy_remove(struct kv_policy *policy,
		      uint32_t block); /* if the block is on a list */
bool kv_policy_has(const struct kv_policy *policy, uint32_t block);
/* Return the past to remember of a block that is being evicted. */
struct kv_past kv_policy_past(const struct kv_policy *policy, uint32_t block);

/* Return the best victim that @may (NULL: any) allows, or KV_NONE.  A block
 * that @may refuses is in use: it is moved to the other end of its list, so
 * that the next call does not examine it again. */
uint32_t kv_policy_victim(struct kv_policy *policy,
			  bool (*may)(void *arg, uint32_t block), void *arg);

/* Return the coldness of the next victim: for lru its age in touches, for other
 * policies touches per expected hit.  0: no victim. */
uint32_t kv_policy_age(const struct kv_policy *policy);
/* Return the coldness of @block, as kv_policy_age; 0: it is on no list. */
uint32_t kv_policy_age_of(const struct kv_policy *policy, uint32_t block);
/* Count at most @most blocks colder than @age, in at most @most steps. */
uint32_t kv_policy_colder(const struct kv_policy *policy, uint32_t age,
			  uint32_t most);

/* ---- ghosts ---- */

/*
 * A ghost remembers how often and when evicted blocks were used, in a table of
 * fixed size.  The oldest entries are forgotten first: as chains are evicted
 * leaf-first, the head of a chain is remembered longest.
 */

/* Entries of a ghost for each block in DRAM, and least number of entries. */
#define KV_GHOST_FOR_A_BLOCK 4u
#define KV_GHOST_MIN 4096u

struct kv_ghost {
	/* a ring of entries; NULL: the ghost remembers nothing */
	struct kv_ghost_entry *entries;
	uint32_t *buckets; /* first entries of the buckets, by hash */
	uint32_t mask, at; /* at: index of the next entry to overwrite */
	uint32_t limit;	   /* number of entries of the ring in use */
};

/* Allocate at least @entries.  -ENOMEM. */
int kv_ghost_init(struct kv_ghost *ghost, uint64_t entries);
/* Adapt the number of entries to the number of @blocks in DRAM. */
void kv_ghost_fit(struct kv_ghost *ghost, uint32_t blocks);
void kv_ghost_fini(struct kv_ghost *ghost);
/* Remember a block.  @hash: seeded hash of its space and key. */
void kv_ghost_put(struct kv_ghost *ghost, uint64_t hash, struct kv_past past);
/* Return what the ghost knows of a block that is inserted again, and forget it;
 * uses is 0 if the block is unknown. */
struct kv_past kv_ghost_take(struct kv_ghost *ghost, uint64_t hash);

/* ---- is the learned order better than a simple one? ---- */

/*
 * lhd compares its learned order with simpler ones.  Keys are sampled by hash,
 * and looked up in three small caches whose size is the same part of the tier:
 * one ranks blocks by age, one by age and uses, one by the learned worth.  lhd
 * uses the ranking with most recent hits.
 */

/* Count a look-up of a block.  @hash: seeded hash of its key; @position: of the
 * block in its chain, needed for sampled keys only. */
void kv_shadow_cache_ask(struct kv_shadow_cache *shadow, uint64_t hash,
			 uint32_t position);
bool kv_shadow_cache_follows(const struct kv_shadow_cache *shadow,
			     uint64_t hash);
enum kv_weigh kv_shadow_cache_winner(const struct kv_shadow_cache *shadow);

/* ---- miss_curve.c: the hit rates that caches of other sizes would have ---- */

/*
 * Keys are sampled by their hash.  For each use of a sampled key, the curve
 * computes the bytes of distinct blocks used since the key's last use: an LRU
 * cache of that size would have had the block.  The more keys there are, the
 * smaller the sampled part, so memory and time stay bounded.  Old uses fade.
 */

/* Sizes: 1, 2 and 4 times the cache's memory, and unlimited memory. */
#define KV_MISS_CURVE_SIZES 4

struct kv_miss_curve;

/* Free the curve with free(3).  -ENOMEM. */
int kv_miss_curve_new(struct kv_miss_curve **ret_curve);
/* Count the use of a block, or its arrival after a miss.  @hash: seeded hash of
 * its key; @capacity: bytes of the cache. */
void kv_miss_curve_use(struct kv_miss_curve *curve, uint64_t hash,
		       uint64_t bytes, uint64_t capacity);
/* Estimate the hit rates, 0 to 1; 0 before the first use. */
void kv_miss_curve_estimate(const struct kv_miss_curve *curve,
			    double ret_rates[KV_MISS_CURVE_SIZES]);

#endif
