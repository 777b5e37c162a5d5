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
 * A kind of policy says on which list a block belongs, and how much a block of
 * a list and an age is worth: the hits to expect from it for each touch of the
 * cache that it stays.  The victim is the list head that is worth least.  That
 * costs as many steps as there are lists, whatever the number of blocks.  A
 * kind with newest_first takes a list's other end: the head of a chain may go
 * before its rest.
 *
 * All calls under the cache's lock.  A policy owns nothing but links; its nodes
 * lie in the blocks' slots (DRAM) or in the blocks (SSD).
 */
#ifndef KV_CACHE_EVICT_POLICY_H
#define KV_CACHE_EVICT_POLICY_H

#include "common/kv.h"

#define KV_NONE UINT32_MAX
#define KV_LIST_ENDED 0 /* of conversations that are over: these go first */
#define KV_USES_MAX 255
#define KV_DEPTHS \
	4 /* groups of places in the chain; the head's is the last \
	   */

struct kv_evict_node {
	uint32_t prev, next; /* block numbers; KV_NONE */
	uint32_t tick;	     /* when used, in touches */
	uint8_t list;
	uint8_t uses;  /* aged: halved now and then */
	uint8_t depth; /* group of its place in the chain */
	bool linked : 1;
	bool promoted : 1; /* came from the other tier, for a use to come */
};

_Static_assert(sizeof(struct kv_evict_node) == 16, "there are millions");

struct kv_policy_kind;
struct kv_shadow_cache;

#define KV_HIT_DENSITY_LISTS 12
#define KV_HIT_DENSITY_AGES 124 /* four to an octave */

/*
 * lhd: how soon a block of a list and an age is used again.
 *
 * Learned from the ages at which blocks were used again, by list: for each age
 * the best rate, over any time to come, of hits for each touch that a block
 * stays in the cache till then.  Blocks that were evicted and come back count,
 * so that the result does not depend on the blocks that were kept.  The past
 * fades.
 */
struct kv_hit_density {
	float entered[KV_HIT_DENSITY_LISTS];
	float used[KV_HIT_DENSITY_LISTS][KV_HIT_DENSITY_AGES];
	float worth[KV_HIT_DENSITY_LISTS][KV_HIT_DENSITY_AGES];
	uint32_t events;  /* since the worth was last computed */
	uint64_t entries; /* of all time */
};

/* How a tier evicts: what its policies have in common. */
struct kv_eviction {
	const struct kv_policy_kind *kind;
	uint32_t *clock; /* counts touches, for all tiers of a cache */
	struct kv_evict_node *(*node)(void *arg, uint32_t block);
	void *arg;
	uint32_t blocks;		/* on all lists */
	uint64_t refused, remembered;	/* remembered: known by a past */
	uint64_t ended;			/* victims of ended chains */
	struct kv_hit_density density;	/* learned by lhd */
	struct kv_shadow_cache *shadow; /* lhd's; NULL for other policies */
};

struct kv_policy_kind {
	const char *name;
	bool newest_first; /* victims come from the newest end of their list */
	unsigned lists; /* with KV_LIST_ENDED; at most KV_HIT_DENSITY_LISTS */
	/* Return a block's list: monotone in @uses, then in @depth. */
	unsigned (*list)(unsigned uses, unsigned depth);
	/* Return the worth, 0 to 1, of a block at the end of @list. */
	float (*worth)(const struct kv_eviction *eviction, unsigned list,
		       uint32_t age);
	int (*begin)(struct kv_eviction *eviction); /* may be NULL */
	/* Learn that a block was put on @list, or that one of @list and @age
	 * was used.  May be NULL. */
	void (*entered)(struct kv_eviction *eviction, unsigned list);
	void (*used)(struct kv_eviction *eviction, unsigned list, uint32_t age);
};

extern const struct kv_policy_kind kv_policy_lhd;

/* Return the learned worth of a block of @list and @age. */
float kv_lhd_learned(const struct kv_hit_density *density, unsigned list,
		     uint32_t age);

struct kv_policy {
	struct kv_eviction *eviction;
	uint32_t oldest[KV_HIT_DENSITY_LISTS], newest[KV_HIT_DENSITY_LISTS];
	uint32_t burst; /* last block put in, while its burst lasts */
	uint32_t burst_position;
	uint64_t burst_ns;
};

/* The memory of a block from before. */
struct kv_past {
	uint32_t tick;
	uint8_t uses; /* 0: nothing */
};

/* A block that comes in. */
struct kv_arrival {
	uint32_t parent;   /* KV_NONE: unknown, or not here */
	uint32_t position; /* in its chain */
	struct kv_past past;
	bool promoted; /* from the other tier, for a use to come */
	bool same; /* as its past says; this is no use, nor anybody's child */
	uint64_t now_ns;
};

/* The names of all policies, the default first; NULL behind the last. */
const char *kv_policy_name(unsigned i);

/* @name: one of kv_policy_name; -EINVAL otherwise, or -ENOMEM. */
int kv_eviction_init(struct kv_eviction *eviction, const char *name,
		     uint32_t *clock,
		     struct kv_evict_node *(*node)(void *, uint32_t),
		     void *arg);
void kv_eviction_fini(struct kv_eviction *eviction);
void kv_policy_init(struct kv_policy *policy, struct kv_eviction *eviction);

/* Insert a block that was just sealed or read in. */
void kv_policy_insert(struct kv_policy *policy, uint32_t block,
		      const struct kv_arrival *arrival);
/* Count a use. */
void kv_policy_touch(struct kv_policy *policy, uint32_t block);
/* Treat the block as used now, without counting a use: a use has ended. */
void kv_policy_renew(struct kv_policy *policy, uint32_t block);
/* Evict the block first: its conversation is over.  Call for a chain from its
 * tail. */
void kv_policy_end(struct kv_policy *policy, uint32_t block);
void kv_policy_remove(struct kv_policy *policy, uint32_t block); /* if on it */
bool kv_policy_has(const struct kv_policy *policy, uint32_t block);
/* Return the past to remember of a block that is evicted. */
struct kv_past kv_policy_past(const struct kv_policy *policy, uint32_t block);

/*
 * Return the best victim that @may allows; KV_NONE.  A block that it refuses is
 * in use and goes to the other end of its list, so that it is not looked at in
 * each call.
 */
uint32_t kv_policy_victim(struct kv_policy *policy,
			  bool (*may)(void *arg, uint32_t block), void *arg);

/* Return how cold the next victim is: for lru its age in touches, for others the
 * touches for each expected hit.  0: there is none. */
uint32_t kv_policy_age(const struct kv_policy *policy);
/* Return how cold @block is.  0: it is on no list. */
uint32_t kv_policy_age_of(const struct kv_policy *policy, uint32_t block);
/* Count blocks that are colder than @age, @most at most: so many steps. */
uint32_t kv_policy_colder(const struct kv_policy *policy, uint32_t age,
			  uint32_t most);

/* ---- ghosts ---- */

/*
 * A ghost remembers how often and when evicted blocks were used.  A fixed table;
 * the oldest entries are forgotten first, so that of a chain, which goes
 * leaf-first, the head is remembered longest.
 */

/* Blocks remembered for each one in DRAM, and at least. */
#define KV_GHOST_FOR_A_BLOCK 4u
#define KV_GHOST_MIN 4096u

struct kv_ghost {
	struct kv_ghost_entry *entries; /* a ring; NULL: remembers nothing */
	uint32_t *buckets;		/* by hash */
	uint32_t mask, at;		/* at: the entry that is next */
	uint32_t limit;			/* entries in use */
};

/* Room for at least @entries.  -ENOMEM. */
int kv_ghost_init(struct kv_ghost *ghost, uint64_t entries);
/* Fit the number of entries to @blocks in DRAM. */
void kv_ghost_fit(struct kv_ghost *ghost, uint32_t blocks);
void kv_ghost_fini(struct kv_ghost *ghost);
/* Remember a block.  @hash: of its space and key, seeded. */
void kv_ghost_put(struct kv_ghost *ghost, uint64_t hash, struct kv_past past);
/* Return and forget the past of a block that is back; uses 0: not known. */
struct kv_past kv_ghost_take(struct kv_ghost *ghost, uint64_t hash);

/* ---- policy_lhd.c: is the learned order better than a simple one? ---- */

/*
 * Part of all keys is followed, chosen by hash, in three small caches of that
 * part of the tier's size.  The caches weigh their blocks by age alone, by age and
 * uses, and by the learned worth.  lhd weighs as the one with most recent hits.
 */
enum kv_weigh { KV_WEIGH_LEARNED, KV_WEIGH_AGE, KV_WEIGH_USES, KV_WEIGHS };

/* Count a look-up of a block.  @hash: of its key; @position: in its chain, which
 * need not be known if the key is not followed. */
void kv_shadow_cache_ask(struct kv_shadow_cache *shadow, uint64_t hash,
			 uint32_t position);
bool kv_shadow_cache_follows(const struct kv_shadow_cache *shadow,
			     uint64_t hash);
enum kv_weigh kv_shadow_cache_winner(const struct kv_shadow_cache *shadow);
void kv_shadow_cache_free(struct kv_shadow_cache *shadow); /* takes NULL */

#endif
