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
	struct kv_contest *contest;
	enum kv_weigh how;
	struct kv_eviction eviction;
	struct kv_policy policy;
	struct kv_ghost ghost;
	struct kv_node nodes[NODES];
	uint64_t hash[NODES];
	uint32_t next[NODES];	   /* in its bucket, or of the free list */
	uint32_t buckets[ENTRIES]; /* links hold one more; 0: none */
	uint32_t free;
	double hits;
};

struct kv_contest {
	const struct kv_eviction *tier;
	struct kv_policy_kind kind;
	uint32_t clock; /* the tier's, while an ask is handled */
	uint32_t asks;
	struct side side[KV_WEIGHS];
};

static struct kv_node *node_of(void *arg, uint32_t node)
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
	return kv_density_worth(&side->contest->tier->density, list, age);
}

static int side_init(struct kv_contest *contest, enum kv_weigh how)
{
	struct side *side = &contest->side[how];

	side->contest = contest;
	side->how = how;
	side->eviction.kind = &contest->kind;
	side->eviction.clock = &contest->clock;
	side->eviction.node = node_of;
	side->eviction.arg = side;
	kv_policy_init(&side->policy, &side->eviction);
	for (uint32_t i = 0; i < NODES; i++)
		side->next[i] = i + 1;
	return kv_ghost_init(&side->ghost, ENTRIES * KV_GHOST_FOR_A_BLOCK);
}

struct kv_contest *kv_contest_new(const struct kv_eviction *eviction)
{
	struct kv_contest *contest = calloc(1, sizeof(*contest));
	int r = contest ? 0 : -ENOMEM;

	if (!contest)
		return NULL;
	contest->tier = eviction;
	/* As the tier's, but it learns nothing itself. */
	contest->kind = (struct kv_policy_kind){.lists = eviction->kind->lists,
						.list = eviction->kind->list,
						.worth = worth};
	for (unsigned i = 0; r == 0 && i < KV_WEIGHS; i++)
		r = side_init(contest, (enum kv_weigh)i);
	if (r == 0)
		return contest;
	kv_contest_free(contest);
	return NULL;
}

void kv_contest_free(struct kv_contest *contest)
{
	if (!contest)
		return;
	for (unsigned i = 0; i < KV_WEIGHS; i++)
		kv_ghost_fini(&contest->side[i].ghost);
	free(contest);
}

/* One key in so many, as a power of two. */
static unsigned part_of(const struct kv_contest *contest)
{
	unsigned shift = 0;

	while (contest->tier->blocks >> shift > ENTRIES)
		shift++;
	return shift;
}

bool kv_contest_follows(const struct kv_contest *contest, uint64_t hash)
{
	return (hash >> 20 & ((1u << part_of(contest)) - 1)) == 0;
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

void kv_contest_ask(struct kv_contest *contest, uint64_t hash,
		    uint32_t position)
{
	uint32_t room = contest->tier->blocks >> part_of(contest);

	if (!kv_contest_follows(contest, hash))
		return;
	for (unsigned i = 0; i < KV_WEIGHS; i++) {
		contest->clock = *contest->tier->clock;
		ask(&contest->side[i], hash, position, KV_MAX(room, 1u));
	}
	if (++contest->asks < FADE_ASKS)
		return;
	contest->asks = 0;
	for (unsigned i = 0; i < KV_WEIGHS; i++)
		contest->side[i].hits /= 2;
}

enum kv_weigh kv_contest_winner(const struct kv_contest *contest)
{
	unsigned best = KV_WEIGH_AGE;
	double most = contest->side[best].hits * MARGIN;

	for (unsigned i = 0; i < KV_WEIGHS; i++)
		if (contest->side[i].hits > most) {
			best = i;
			most = contest->side[i].hits;
		}
	return (enum kv_weigh)best;
}
