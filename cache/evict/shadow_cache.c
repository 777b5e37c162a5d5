/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shadow_cache.c - small caches side by side, one for each way to weigh blocks.
 *
 * OWNS       the small caches: nodes, keys, orders, and a ghost for each.
 *
 * INVARIANTS
 *   (1) A node is in use, and in exactly one bucket, or on the free list.
 *
 * LOCKING    the cache's lock.
 */
#include "cache/evict/shadow_cache.h"
#include "cache/evict/ghost.h"

#define ENTRIES 1024u /* of a small cache at most */
#define NODES (ENTRIES + 1)
#define MARGIN 1.002	 /* by which age alone must be beaten */
#define FADE_ASKS 16384u /* after which what was counted halves */

struct side {
	struct kv_shadow_cache *shadow;
	enum kv_weigh how;
	struct kv_eviction eviction;
	struct kv_policy policy;
	struct kv_ghost ghost;
	struct kv_evict_node nodes[NODES];
	uint64_t hash[NODES];
	uint32_t next[NODES];	   /* in its bucket, or of the free list */
	uint32_t buckets[ENTRIES]; /* links hold one more; 0: none */
	uint32_t free;
	double hits;
};

struct kv_shadow_cache {
	const struct kv_eviction *tier;
	struct kv_policy_kind kind;
	uint32_t clock; /* the tier's, while an ask is handled */
	uint32_t asks;
	struct side side[KV_WEIGHS];
};

static struct kv_evict_node *node_of(void *arg, uint32_t node)
{
	return &((struct side *)arg)->nodes[node];
}

float kv_weigh_simply(enum kv_weigh how, unsigned list, uint32_t age)
{
	unsigned uses = how == KV_WEIGH_USES ? kv_lhd_uses(list) : 1;

	return (float)uses / ((float)age + 1);
}

static float worth(const struct kv_eviction *eviction, unsigned list,
		   uint32_t age)
{
	const struct side *side = eviction->arg;

	if (side->how != KV_WEIGH_LEARNED)
		return kv_weigh_simply(side->how, list, age);
	return kv_lhd_learned(&side->shadow->tier->density, list, age);
}

static int side_init(struct kv_shadow_cache *shadow, enum kv_weigh how)
{
	struct side *side = &shadow->side[how];

	side->shadow = shadow;
	side->how = how;
	side->eviction.kind = &shadow->kind;
	side->eviction.clock = &shadow->clock;
	side->eviction.node = node_of;
	side->eviction.arg = side;
	kv_policy_init(&side->policy, &side->eviction);
	for (uint32_t i = 0; i < NODES; i++)
		side->next[i] = i + 1;
	return kv_ghost_init(&side->ghost, ENTRIES * KV_GHOST_FOR_A_BLOCK);
}

struct kv_shadow_cache *kv_shadow_cache_new(const struct kv_eviction *eviction)
{
	struct kv_shadow_cache *shadow = calloc(1, sizeof(*shadow));
	int r = shadow ? 0 : -ENOMEM;

	if (!shadow)
		return NULL;
	shadow->tier = eviction;
	/* As the tier's, but it learns nothing itself. */
	shadow->kind = (struct kv_policy_kind){.lists = eviction->kind->lists,
					       .list = eviction->kind->list,
					       .worth = worth};
	for (unsigned i = 0; r == 0 && i < KV_WEIGHS; i++)
		r = side_init(shadow, (enum kv_weigh)i);
	if (r == 0)
		return shadow;
	kv_shadow_cache_free(shadow);
	return NULL;
}

void kv_shadow_cache_free(struct kv_shadow_cache *shadow)
{
	if (!shadow)
		return;
	for (unsigned i = 0; i < KV_WEIGHS; i++)
		kv_ghost_fini(&shadow->side[i].ghost);
	free(shadow);
}

/* Of so many keys, as a power of two, one is followed. */
static unsigned part_of(const struct kv_shadow_cache *shadow)
{
	unsigned shift = 0;

	while (shadow->tier->blocks >> shift > ENTRIES)
		shift++;
	return shift;
}

bool kv_shadow_cache_follows(const struct kv_shadow_cache *shadow,
			     uint64_t hash)
{
	return (hash >> 20 & ((1u << part_of(shadow)) - 1)) == 0;
}

static uint32_t *find(struct side *side, uint64_t hash)
{
	uint32_t *link = &side->buckets[(hash >> 40) % ENTRIES];

	while (*link && side->hash[*link - 1] != hash)
		link = &side->next[*link - 1];
	return link;
}

static bool any(void *arg, uint32_t node)
{
	(void)arg;
	(void)node;
	return true;
}

static void evict(struct side *side)
{
	uint32_t victim = kv_policy_victim(&side->policy, any, NULL);
	uint32_t *link = find(side, side->hash[victim]);

	kv_ghost_put(&side->ghost, side->hash[victim],
		     kv_policy_past(&side->policy, victim));
	kv_policy_remove(&side->policy, victim);
	*link = side->next[victim];
	side->next[victim] = side->free;
	side->free = victim;
}

static void ask(struct side *side, uint64_t hash, uint32_t position,
		uint32_t room)
{
	uint32_t *link = find(side, hash), node;
	struct kv_arrival arrival = {.parent = KV_NONE, .position = position};

	if (*link) {
		side->hits++;
		kv_policy_touch(&side->policy, *link - 1);
		return;
	}
	while (side->eviction.blocks && side->eviction.blocks >= room)
		evict(side);
	link = find(side, hash); /* what was evicted may have been before it */
	node = side->free;
	side->free = side->next[node];
	side->hash[node] = hash;
	side->next[node] = 0;
	*link = node + 1;
	arrival.past = kv_ghost_take(&side->ghost, hash);
	side->policy.burst = KV_NONE;
	kv_policy_insert(&side->policy, node, &arrival);
}

void kv_shadow_cache_ask(struct kv_shadow_cache *shadow, uint64_t hash,
			 uint32_t position)
{
	uint32_t room = shadow->tier->blocks >> part_of(shadow);

	if (!kv_shadow_cache_follows(shadow, hash))
		return;
	for (unsigned i = 0; i < KV_WEIGHS; i++) {
		shadow->clock = *shadow->tier->clock;
		ask(&shadow->side[i], hash, position, KV_MAX(room, 1u));
	}
	if (++shadow->asks < FADE_ASKS)
		return;
	shadow->asks = 0;
	for (unsigned i = 0; i < KV_WEIGHS; i++)
		shadow->side[i].hits /= 2;
}

enum kv_weigh kv_shadow_cache_winner(const struct kv_shadow_cache *shadow)
{
	unsigned best = KV_WEIGH_AGE;
	double most = shadow->side[best].hits * MARGIN;

	for (unsigned i = 0; i < KV_WEIGHS; i++)
		if (shadow->side[i].hits > most) {
			best = i;
			most = shadow->side[i].hits;
		}
	return (enum kv_weigh)best;
}
