/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - who leaves first: the order of the blocks of one class of a tier.
 *
 * A block is useful only with its whole prefix, so victims come leaf-first.
 * That needs no tree: whoever touches a chain does so from its tail, and a
 * block is put in behind its parent.  Then a parent is never older than its
 * child, nor on a lower list, and the oldest block of a list is a leaf if none
 * on a lower list is older.
 *
 * A kind of policy says on which list a block belongs and how much a block of
 * a list and an age is worth: the hits to be expected from it for each touch of
 * the cache that it stays.  The victim is the list head that is worth least.
 * That costs as many steps as there are lists, whatever the number of blocks.
 * A kind with newest_first takes a list's other end: the head of a chain may go
 * before its rest.
 *
 * All calls under the cache's lock.  A policy owns nothing but links; its nodes
 * lie in their blocks' slots (DRAM) or in the blocks (SSD).
 */
#ifndef KV_CACHE_EVICT_POLICY_H
#define KV_CACHE_EVICT_POLICY_H

#include "cache/evict/shadow_cache.h"
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

#define KV_HIT_DENSITY_LISTS 12
#define KV_HIT_DENSITY_AGES 124 /* four to an octave */

/*
 * lhd: how soon is a block of this list and age used again?
 *
 * From the ages at which blocks were used again, by list: for each age the best
 * rate, over any time to come, of hits for each touch that a block stays in the
 * cache till then.  Blocks that were evicted and come again count, so what is
 * learned does not depend on what was kept.  The past fades.
 */
struct kv_hit_density {
	float entered[KV_HIT_DENSITY_LISTS];
	float used[KV_HIT_DENSITY_LISTS][KV_HIT_DENSITY_AGES];
	float worth[KV_HIT_DENSITY_LISTS][KV_HIT_DENSITY_AGES];
	uint32_t events;  /* since it was last worked out */
	uint64_t entries; /* of all time */
};

/* How a tier evicts: what its policies have in common. */
struct kv_eviction {
	const struct kv_policy_kind *kind;
	uint32_t *clock; /* counts touches, for all tiers of a cache */
	struct kv_evict_node *(*node)(void *arg, uint32_t block);
	void *arg;
	uint32_t blocks;	       /* on all lists */
	uint64_t refused, remembered;  /* remembered: known by a past */
	uint64_t ended;		       /* victims of ended chains */
	struct kv_hit_density density; /* what lhd learned */
	struct kv_shadow_cache
		*shadow; /* lhd: is that better than simple ones? */
};

struct kv_policy_kind {
	const char *name;
	bool newest_first; /* victims come from the newest end of their list */
	unsigned lists; /* with KV_LIST_ENDED; at most KV_HIT_DENSITY_LISTS */
	/* Of a block: monotone in @uses, and in @depth for equal uses. */
	unsigned (*list)(unsigned uses, unsigned depth);
	/* Of a block at the end of @list, 0 to 1: which list's goes first. */
	float (*worth)(const struct kv_eviction *eviction, unsigned list,
		       uint32_t age);
	int (*begin)(struct kv_eviction *eviction); /* may be NULL */
	/* A block was put on a list; one of this list and age was used.  May
	 * be NULL. */
	void (*entered)(struct kv_eviction *eviction, unsigned list);
	void (*used)(struct kv_eviction *eviction, unsigned list, uint32_t age);
};

/* policy_lhd.c: how many uses do blocks of @list have, and what was learned of
 * a block of @list and @age? */
unsigned kv_lhd_uses(unsigned list);
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

/* A block that was just sealed, or read in. */
void kv_policy_insert(struct kv_policy *policy, uint32_t block,
		      const struct kv_arrival *arrival);
/* A use. */
void kv_policy_touch(struct kv_policy *policy, uint32_t block);
/* A use has ended: as if used now, but not counted. */
void kv_policy_renew(struct kv_policy *policy, uint32_t block);
/* A hint: its conversation is over.  Call for a chain from its tail. */
void kv_policy_end(struct kv_policy *policy, uint32_t block);
void kv_policy_remove(struct kv_policy *policy, uint32_t block); /* if on it */
bool kv_policy_has(const struct kv_policy *policy, uint32_t block);
/* The past to be remembered of it once it is gone. */
struct kv_past kv_policy_past(const struct kv_policy *policy, uint32_t block);

/*
 * The best victim that @may allows; KV_NONE.  What it refuses is in use, and
 * counts as used now: so it is passed over once for each time all others have
 * gone, and not at every call.
 */
uint32_t kv_policy_victim(struct kv_policy *policy,
			  bool (*may)(void *arg, uint32_t block), void *arg);

/* How cold the next victim is: for lru its age in touches, for others the
 * touches for each hit to be expected.  0: there is none. */
uint32_t kv_policy_age(const struct kv_policy *policy);
/* The same of @block.  0: it is on no list. */
uint32_t kv_policy_age_of(const struct kv_policy *policy, uint32_t block);
/* Count blocks that are colder than @age, @most at most: so many steps. */
uint32_t kv_policy_colder(const struct kv_policy *policy, uint32_t age,
			  uint32_t most);

#endif
