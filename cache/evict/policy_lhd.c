/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_lhd.c - the policy lhd, learned hit density over leaves; and the small
 * caches that show whether the learned order is better than simpler orders.
 *
 * Blocks used once are on four lists by their position in the chain, the others
 * on seven lists by number of uses, 2 to 8 and more.  The head of each list is
 * its oldest leaf.  The policy evicts the head whose list and age have shown
 * the lowest hit density; or the head that a simpler order ranks lowest, while
 * that order has more hits in the small caches.
 *
 * OWNS       the small caches: nodes, keys, orders, and a ghost for each.
 *
 * INVARIANTS
 *   (1) A node of a small cache is either in use and in one bucket, or on its
 *       free list.
 *
 * LOCKING    cache->lock.
 */
#include "cache/evict/policy.h"

#define MOST 8u
/* least number of uses between two computations of the worth */
#define PERIOD 8192u
#define FADE 0.9f
#define DOUBT 1.0f  /* weight of the assumed worth, in blocks */
#define FIRST 1024u /* uses until the worth is first computed */
#define HORIZON 32  /* ages looked ahead: eight octaves */

#define ENTRIES 1024u /* limit of a small cache */
#define NODES (ENTRIES + 1)
#define MARGIN 1.002	 /* factor by which another order must beat age alone */
#define FADE_ASKS 16384u /* look-ups after which counts halve */

static unsigned age_group(uint32_t age)
{
	unsigned octave;

	if (age < 4)
		return age;
	octave = 31u - (unsigned)__builtin_clz(age);
	return (octave - 1) * 4 + (age >> (octave - 2) & 3);
}

static float lowest(unsigned index)
{
	if (index < 4)
		return (float)index;
	return (float)((uint64_t)(4 + index % 4) << (index / 4 - 1));
}

/* Return the worth to assume while nothing is known: that of lru. */
static float assumed(unsigned age)
{
	return 1 / (lowest(age) + 1);
}

float kv_lhd_learned(const struct kv_hit_density *density, unsigned list,
		     uint32_t age)
{
	return density->worth[list][age_group(age)];
}

/* Return the best rate of hits from age @from on, over any time ahead. */
static float best_rate(const float *hits, const float *left, unsigned from)
{
	float sum = 0, time = 0, best = 0;

	for (unsigned a = from;
	     a < from + HORIZON && a + 1 < KV_HIT_DENSITY_AGES; a++) {
		sum += hits[a];
		time += (left[a] + left[a + 1]) / 2 *
			(lowest(a + 1) - lowest(a));
		if (sum > best * time)
			best = sum / time;
	}
	return best;
}

static void learn_list(struct kv_hit_density *density, unsigned list)
{
	float hits[KV_HIT_DENSITY_AGES], left[KV_HIT_DENSITY_AGES + 1];
	const float *used = density->used[list];

	left[0] = density->entered[list] + 1;
	for (unsigned a = 0; a < KV_HIT_DENSITY_AGES; a++) {
		/* Smooth over neighbours, as a few events must not change the
		 * order. */
		hits[a] = (used[a ? a - 1 : 0] + 2 * used[a] +
			   used[a + 1 < KV_HIT_DENSITY_AGES ? a + 1 : a]) /
			  4;
		left[a + 1] =
			left[a] - hits[a] > 0.5f ? left[a] - hits[a] : 0.5f;
	}
	for (unsigned a = 0; a < KV_HIT_DENSITY_AGES; a++)
		density->worth[list][a] = (best_rate(hits, left, a) * left[a] +
					   DOUBT * assumed(a)) /
					  (left[a] + DOUBT);
}

/* ---- small caches, one for each way to weigh blocks ---- */

struct side {
	struct kv_shadow_cache *shadow;
	enum kv_weigh how;
	struct kv_eviction eviction;
	struct kv_policy policy;
	struct kv_ghost ghost;
	struct kv_evict_node nodes[NODES];
	uint64_t hash[NODES];
	uint32_t next[NODES];	   /* next in the bucket, or in the free list */
	uint32_t buckets[ENTRIES]; /* entry's number plus one; 0: none */
	uint32_t free;
	double hits;
};

struct kv_shadow_cache {
	const struct kv_eviction *tier;
	struct kv_policy_kind kind;
	uint32_t clock; /* the tier's clock, during a look-up */
	uint32_t asks;
	struct side side[KV_WEIGHS];
};

static struct kv_evict_node *node_of(void *arg, uint32_t node)
{
	return &((struct side *)arg)->nodes[node];
}

/* Return the weight of a block on @list with @age: its learned worth, 1 / age,
 * or uses / age. */
static float weigh(const struct kv_eviction *tier, enum kv_weigh how,
		   unsigned list, uint32_t age)
{
	const unsigned uses = list <= KV_DEPTHS ? 1 : list - KV_DEPTHS + 1;

	if (how == KV_WEIGH_LEARNED)
		return kv_lhd_learned(&tier->density, list, age);
	return (float)(how == KV_WEIGH_USES ? uses : 1) / ((float)age + 1);
}

static float side_worth(const struct kv_eviction *eviction, unsigned list,
			uint32_t age)
{
	const struct side *side = eviction->arg;

	return weigh(side->shadow->tier, side->how, list, age);
}

void kv_shadow_cache_free(struct kv_shadow_cache *shadow)
{
	if (!shadow)
		return;
	for (unsigned i = 0; i < KV_WEIGHS; i++)
		kv_ghost_fini(&shadow->side[i].ghost);
	free(shadow);
}

/* @tier must outlive the shadow cache.  NULL: no memory. */
static struct kv_shadow_cache *shadow_new(const struct kv_eviction *tier)
{
	struct kv_shadow_cache *shadow = calloc(1, sizeof(*shadow));

	if (!shadow)
		return NULL;
	shadow->tier = tier;
	/* Like the tier's kind, but without learning. */
	shadow->kind = (struct kv_policy_kind){.lists = tier->kind->lists,
					       .list = tier->kind->list,
					       .worth = side_worth};
	for (unsigned how = 0; how < KV_WEIGHS; how++) {
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
		if (kv_ghost_init(&side->ghost,
				  ENTRIES * KV_GHOST_FOR_A_BLOCK) < 0) {
			kv_shadow_cache_free(shadow);
			return NULL;
		}
	}
	return shadow;
}

/* Return s if one in 1 << s of all keys is sampled. */
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

static uint32_t *find_key(struct side *side, uint64_t hash)
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

static void ask_side(struct side *side, uint64_t hash, uint32_t position,
		     uint32_t room)
{
	uint32_t *link = find_key(side, hash), node;
	struct kv_arrival arrival = {.parent = KV_NONE, .position = position};

	if (*link) {
		side->hits++;
		kv_policy_touch(&side->policy, *link - 1);
		return;
	}
	while (side->eviction.blocks && side->eviction.blocks >= room) {
		node = kv_policy_victim(&side->policy, any, NULL);
		link = find_key(side, side->hash[node]);
		kv_ghost_put(&side->ghost, side->hash[node],
			     kv_policy_past(&side->policy, node));
		kv_policy_remove(&side->policy, node);
		*link = side->next[node];
		side->next[node] = side->free;
		side->free = node;
	}
	/* Evicting a node may have changed the bucket. */
	link = find_key(side, hash);
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
		ask_side(&shadow->side[i], hash, position, KV_MAX(room, 1u));
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

/* ---- the policy ---- */

static unsigned list(unsigned uses, unsigned depth)
{
	return uses <= 1 ? 1 + depth : KV_DEPTHS - 1 + KV_MIN(uses, MOST);
}

static float worth(const struct kv_eviction *eviction, unsigned which,
		   uint32_t age)
{
	return weigh(eviction, kv_shadow_cache_winner(eviction->shadow), which,
		     age);
}

static int begin(struct kv_eviction *eviction)
{
	struct kv_hit_density *density = &eviction->density;

	memset(density, 0, sizeof(*density));
	for (unsigned i = 0; i < KV_HIT_DENSITY_LISTS; i++)
		for (unsigned a = 0; a < KV_HIT_DENSITY_AGES; a++)
			density->worth[i][a] = assumed(a);
	eviction->shadow = shadow_new(eviction);
	return eviction->shadow ? 0 : -ENOMEM;
}

static void entered(struct kv_eviction *eviction, unsigned which)
{
	struct kv_hit_density *density = &eviction->density;

	density->entered[which]++;
	density->events++;
	density->entries++;
	/* Compute the worth again after a period, shorter in the beginning. */
	if (density->events < KV_MAX(PERIOD, eviction->blocks) &&
	    (density->events < FIRST || density->events < density->entries / 2))
		return;
	for (unsigned i = 0; i < KV_HIT_DENSITY_LISTS; i++) {
		learn_list(density, i);
		density->entered[i] *= FADE;
		for (unsigned a = 0; a < KV_HIT_DENSITY_AGES; a++)
			density->used[i][a] *= FADE;
	}
	density->events = 0;
}

static void used(struct kv_eviction *eviction, unsigned which, uint32_t age)
{
	eviction->density.used[which][age_group(age)]++;
}

const struct kv_policy_kind kv_policy_lhd = {
	.name = "lhd",
	.lists = KV_HIT_DENSITY_LISTS,
	.list = list,
	.worth = worth,
	.begin = begin,
	.entered = entered,
	.used = used,
};
