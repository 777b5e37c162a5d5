/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.c - lists of blocks, and the choice of the list head that is evicted;
 * what lhd learns; the uses of evicted blocks.
 *
 * OWNS       the links between nodes; a ghost's ring of entries, and its hash
 *            table; a shadow cache: nodes, keys, orders, and a ghost for each.
 *
 * INVARIANTS
 *   (1) A linked node is on exactly the list that its @list names.
 *   (2) From oldest to newest, ages never go up, except for a block that was
 *       inserted behind an old parent and did not find its place in SORT steps.
 *   (3) A parent is newer than its child, or as new and after it on their
 *       list, or as new and on a higher list, if chains are touched from their
 *       tails and children are inserted after their parents.
 *   (4) Exactly the entries of a ghost with uses are in a bucket of its hash
 *       table.
 *   (5) A node of a shadow cache is either in use and in one bucket, or on its
 *       free list.
 *
 * LOCKING    cache->lock, for everything.
 */
#include "cache/evict/policy.h"

/* In a burst of seals, a block whose parent is unknown is assumed to be the
 * child of the previous block, if its position in the chain is the next one. */
#define BURST_NS 200000000u
#define SORT 64		  /* most steps to find a block's place on its list */
#define AGEING_MIN 65536u /* least number of touches after which uses halve */
#define AGEING_BLOCKS 16u /* touches for each block after which uses halve */

/* ---- the policies ---- */

/* Blocks used once are on lists by their position in the chain.  Blocks used
 * more often are on lists by their number of uses, 2 to @most. */
struct kv_policy_kind {
	const char *name;
	unsigned depths; /* number of lists for blocks used once */
	unsigned most;
	enum kv_weigh weigh;
};

/* The policies, by their names in the option evict= and in kvfs-replay; the
 * first is the default. */
static const struct kv_policy_kind kinds[] = {
	{"lhd", KV_DEPTHS, 8, KV_WEIGH_LEARNED},
	{"flru", 1, 4, KV_WEIGH_USES},
	{"lru", 1, 1, KV_WEIGH_AGE},
};

static_assert(KV_DEPTHS + 8 == KV_POLICY_LISTS, "as lhd has them");

static unsigned list_for(const struct kv_policy_kind *kind, unsigned uses,
			 unsigned depth)
{
	if (uses <= 1)
		return 1 + KV_MIN(depth, kind->depths - 1);
	return kind->depths - 1 + KV_MIN(uses, kind->most);
}

/* ---- lhd: learn how soon blocks are used again ---- */

#define AGES 124 /* number of age groups, four to an octave */
/* least number of uses between two computations of the worth of lists */
#define PERIOD 8192u
#define FADE 0.9f
#define DOUBT 1.0f  /* weight of a worth assumed before any use, in blocks */
#define FIRST 1024u /* uses until the worth of lists is first computed */
#define HORIZON 32  /* age groups examined from an age on: eight octaves */

/*
 * Learned from the ages at which blocks were used again, by list: for each age
 * the best rate of hits per touch of the cache, over any time that a block
 * could stay from that age on.  Evicted blocks that come back count as well, so
 * that the result does not depend on which blocks were kept.  Older uses weigh
 * less.
 */
struct kv_hit_density {
	float entered[KV_POLICY_LISTS];
	float used[KV_POLICY_LISTS][AGES];
	float worth[KV_POLICY_LISTS][AGES];
	uint32_t events;  /* uses since the worth was last computed */
	uint64_t entries; /* blocks put on the lists since the start */
};

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

/* Return the worth that lru gives: assumed before any use was observed. */
static float assumed(unsigned age)
{
	return 1 / (lowest(age) + 1);
}

float kv_lhd_learned(const struct kv_eviction *eviction, unsigned list,
		     uint32_t age)
{
	return eviction->density->worth[list][age_group(age)];
}

/* Return the best rate of hits from age @from on, over up to HORIZON groups. */
static float best_rate(const float *hits, const float *left, unsigned from)
{
	float sum = 0, time = 0, best = 0;

	for (unsigned a = from; a < from + HORIZON && a + 1 < AGES; a++) {
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
	float hits[AGES], left[AGES + 1];
	const float *used = density->used[list];

	left[0] = density->entered[list] + 1;
	for (unsigned a = 0; a < AGES; a++) {
		/* Smooth over neighbouring ages: a few uses must not change the
		 * order. */
		hits[a] = (used[a ? a - 1 : 0] + 2 * used[a] +
			   used[a + 1 < AGES ? a + 1 : a]) /
			  4;
		left[a + 1] =
			left[a] - hits[a] > 0.5f ? left[a] - hits[a] : 0.5f;
	}
	for (unsigned a = 0; a < AGES; a++)
		density->worth[list][a] = (best_rate(hits, left, a) * left[a] +
					   DOUBT * assumed(a)) /
					  (left[a] + DOUBT);
}

/* Note that a block on @list with @age was used. */
static void learn_use(struct kv_eviction *eviction, unsigned list, uint32_t age)
{
	if (eviction->shadow)
		eviction->density->used[list][age_group(age)]++;
}

/* Note that a block was put on @list. */
static void learn_entry(struct kv_eviction *eviction, unsigned list)
{
	struct kv_hit_density *density = eviction->density;

	if (!eviction->shadow)
		return;
	density->entered[list]++;
	density->events++;
	density->entries++;
	/* Compute the worth of all lists and ages after every period, which is
	 * shorter in the beginning. */
	if (density->events < KV_MAX(PERIOD, eviction->blocks) &&
	    (density->events < FIRST || density->events < density->entries / 2))
		return;
	for (unsigned i = 0; i < KV_POLICY_LISTS; i++) {
		learn_list(density, i);
		density->entered[i] *= FADE;
		for (unsigned a = 0; a < AGES; a++)
			density->used[i][a] *= FADE;
	}
	density->events = 0;
}

/* Return the worth of a block on @list with @age: the learned worth, uses /
 * age, or 1 / age. */
static float worth_of(const struct kv_eviction *eviction, unsigned list,
		      uint32_t age)
{
	const unsigned depths = eviction->kind->depths;
	const enum kv_weigh how =
		eviction->shadow ? kv_shadow_cache_winner(eviction->shadow)
				 : eviction->weigh;

	if (list == KV_LIST_ENDED)
		return 0;
	if (how == KV_WEIGH_LEARNED)
		return kv_lhd_learned(eviction, list, age);
	return (float)(how == KV_WEIGH_USES && list > depths ? list - depths + 1
							     : 1) /
	       ((float)age + 1);
}

/* ---- lists ---- */

void kv_policy_init(struct kv_policy *policy, struct kv_eviction *eviction)
{
	memset(policy, 0, sizeof(*policy));
	policy->eviction = eviction;
	policy->burst = KV_NONE;
	for (unsigned i = 0; i < KV_POLICY_LISTS; i++)
		policy->oldest[i] = policy->newest[i] = KV_NONE;
}

static struct kv_evict_node *node_of(const struct kv_policy *policy,
				     uint32_t block)
{
	return policy->eviction->node(policy->eviction->arg, block);
}

static uint32_t age_of(const struct kv_policy *policy,
		       const struct kv_evict_node *node)
{
	return *policy->eviction->clock - node->tick;
}

static unsigned list_of(const struct kv_policy *policy,
			const struct kv_evict_node *node)
{
	return list_for(policy->eviction->kind, node->uses, node->depth);
}

/* Insert @block before (as older than) @next; KV_NONE: as the newest. */
static void link_before(struct kv_policy *policy, uint32_t block, unsigned list,
			uint32_t next)
{
	struct kv_evict_node *node = node_of(policy, block);
	uint32_t prev = next == KV_NONE ? policy->newest[list]
					: node_of(policy, next)->prev;

	node->list = (uint8_t)list;
	node->linked = true;
	node->prev = prev;
	node->next = next;
	if (prev == KV_NONE)
		policy->oldest[list] = block;
	else
		node_of(policy, prev)->next = block;
	if (next == KV_NONE)
		policy->newest[list] = block;
	else
		node_of(policy, next)->prev = block;
}

static void unlink_node(struct kv_policy *policy,
			const struct kv_evict_node *node)
{
	if (node->prev == KV_NONE)
		policy->oldest[node->list] = node->next;
	else
		node_of(policy, node->prev)->next = node->next;
	if (node->next == KV_NONE)
		policy->newest[node->list] = node->prev;
	else
		node_of(policy, node->next)->prev = node->prev;
}

void kv_policy_remove(struct kv_policy *policy, uint32_t block)
{
	struct kv_evict_node *node = node_of(policy, block);

	if (!node->linked)
		return;
	if (policy->burst == block)
		policy->burst = KV_NONE;
	unlink_node(policy, node);
	node->linked = false;
	policy->eviction->blocks--;
}

bool kv_policy_has(const struct kv_policy *policy, uint32_t block)
{
	return node_of(policy, block)->linked;
}

struct kv_past kv_policy_past(const struct kv_policy *policy, uint32_t block)
{
	const struct kv_evict_node *node = node_of(policy, block);

	return (struct kv_past){node->tick, node->uses};
}

/* Count a use of a block at @age.  Older uses weigh less, so that a block used
 * often long ago is not kept for ever. */
static uint8_t one_more(const struct kv_eviction *eviction, unsigned uses,
			uint32_t age)
{
	uint64_t half =
		KV_MAX((uint64_t)eviction->blocks * AGEING_BLOCKS, AGEING_MIN);
	uint64_t faded = age / half;

	uses = faded > 7 ? 0 : uses >> faded;
	return (uint8_t)KV_MIN(uses + 1, KV_USES_MAX);
}

/* Insert @block so that it is evicted before @parent.  @known: @parent is
 * certainly its parent; else @parent is a guess. */
static void insert_before_parent(struct kv_policy *policy, uint32_t block,
				 uint32_t parent, bool known)
{
	struct kv_evict_node *node = node_of(policy, block);
	const struct kv_evict_node *above = node_of(policy, parent);
	uint32_t next = parent;
	unsigned list;

	node->tick = above->tick;
	if (known) {
		node->depth = KV_MIN(node->depth, above->depth);
		node->uses = KV_MIN(node->uses, above->uses);
	}
	list = known && above->list == KV_LIST_ENDED ? KV_LIST_ENDED
						     : list_of(policy, node);
	/* find the place for the age of the block on the other list */
	if (list != above->list) {
		uint32_t at = policy->newest[list];

		next = KV_NONE;
		for (unsigned i = 0; i < SORT && at != KV_NONE; i++) {
			if (age_of(policy, node_of(policy, at)) >
			    age_of(policy, node))
				break;
			next = at;
			at = node_of(policy, at)->prev;
		}
	}
	link_before(policy, block, list, next);
}

void kv_policy_insert(struct kv_policy *policy, uint32_t block,
		      const struct kv_arrival *arrival)
{
	struct kv_eviction *eviction = policy->eviction;
	struct kv_evict_node *node = node_of(policy, block);
	const struct kv_past *past = &arrival->past;
	const uint32_t position = arrival->position;
	const bool burst = policy->burst != KV_NONE &&
			   arrival->now_ns - policy->burst_ns <= BURST_NS;
	uint32_t parent = KV_NONE, age;

	if (!burst)
		policy->burst_ns = arrival->now_ns;
	if (arrival->parent != KV_NONE &&
	    node_of(policy, arrival->parent)->linked)
		parent = arrival->parent;
	else if (burst && !arrival->promoted && !arrival->same &&
		 position == policy->burst_position + 1)
		parent = policy->burst;
	node->tick = ++*eviction->clock;
	/* Group by position in the chain: 0-6, 7-14, 15-30, higher. */
	node->depth = position >= 31   ? 0
		      : position >= 15 ? 1
		      : position >= 7  ? 2
				       : KV_DEPTHS - 1;
	if (past->uses && !arrival->same) {
		age = *eviction->clock - past->tick;
		eviction->remembered++;
		learn_use(eviction,
			  list_for(eviction->kind, past->uses, node->depth),
			  age);
		node->uses = one_more(eviction, past->uses, age);
	} else {
		node->uses = KV_MAX(past->uses, 1u);
	}
	node->promoted = arrival->promoted;
	if (parent == KV_NONE)
		link_before(policy, block, list_of(policy, node), KV_NONE);
	else
		insert_before_parent(policy, block, parent,
				     parent == arrival->parent);
	policy->burst = arrival->promoted || arrival->same ? KV_NONE : block;
	policy->burst_position = position;
	eviction->blocks++;
	learn_entry(eviction, node->list);
}

static void to_newest(struct kv_policy *policy, uint32_t block, unsigned list)
{
	unlink_node(policy, node_of(policy, block));
	link_before(policy, block, list, KV_NONE);
}

void kv_policy_touch(struct kv_policy *policy, uint32_t block)
{
	struct kv_eviction *eviction = policy->eviction;
	struct kv_evict_node *node = node_of(policy, block);
	uint32_t age = age_of(policy, node);

	if (!node->linked)
		return;
	if (policy->burst == block)
		policy->burst = KV_NONE;
	/* The use for which the block was promoted is counted already. */
	if (!node->promoted) {
		learn_use(eviction, node->list, age);
		node->uses = one_more(eviction, node->uses, age);
		learn_entry(eviction, list_of(policy, node));
	}
	node->promoted = false;
	node->tick = ++*eviction->clock;
	to_newest(policy, block, list_of(policy, node));
}

void kv_policy_renew(struct kv_policy *policy, uint32_t block)
{
	struct kv_evict_node *node = node_of(policy, block);

	if (!node->linked || node->list == KV_LIST_ENDED)
		return;
	if (policy->burst == block)
		policy->burst = KV_NONE;
	node->tick = ++*policy->eviction->clock;
	to_newest(policy, block, node->list);
}

void kv_policy_end(struct kv_policy *policy, uint32_t block)
{
	if (!node_of(policy, block)->linked)
		return;
	if (policy->burst == block)
		policy->burst = KV_NONE;
	to_newest(policy, block, KV_LIST_ENDED);
}

/* Return the oldest block of @list that @may allows.  Move blocks that are
 * refused to the end of the list. */
static uint32_t first_allowed(struct kv_policy *policy, unsigned list,
			      bool (*may)(void *, uint32_t), void *arg)
{
	const uint32_t last = policy->newest[list];
	uint32_t block = policy->oldest[list];

	while (block != KV_NONE && may && !may(arg, block)) {
		uint32_t next = node_of(policy, block)->next;

		policy->eviction->refused++;
		to_newest(policy, block, list);
		block = block == last ? KV_NONE : next;
	}
	return block;
}

uint32_t kv_policy_victim(struct kv_policy *policy,
			  bool (*may)(void *arg, uint32_t block), void *arg)
{
	uint32_t best = KV_NONE, oldest = 0;
	unsigned from = 0;
	float least = 0;

	for (unsigned i = 0; i < KV_POLICY_LISTS; i++) {
		uint32_t block = first_allowed(policy, i, may, arg), age;
		float worth;

		if (block == KV_NONE)
			continue;
		/* An older block on a lower list may be a child of this block:
		 * examine that list too. */
		age = age_of(policy, node_of(policy, block));
		if (best != KV_NONE && age <= oldest)
			continue;
		oldest = age;
		worth = worth_of(policy->eviction, i, age);
		if (best == KV_NONE || worth < least) {
			best = block;
			least = worth;
			from = i;
		}
	}
	policy->eviction->ended += best != KV_NONE && from == KV_LIST_ENDED;
	return best;
}

uint32_t kv_policy_age_of(const struct kv_policy *policy, uint32_t block)
{
	const struct kv_evict_node *node = node_of(policy, block);
	float worth;

	if (!node->linked)
		return 0;
	worth = worth_of(policy->eviction, node->list, age_of(policy, node));
	return worth < 1e-9f ? UINT32_MAX : (uint32_t)KV_MAX(1 / worth, 1.0f);
}

uint32_t kv_policy_age(const struct kv_policy *policy)
{
	uint32_t most = 0;

	for (unsigned i = 0; i < KV_POLICY_LISTS; i++) {
		const uint32_t head = policy->oldest[i];

		if (head != KV_NONE)
			most = KV_MAX(most, kv_policy_age_of(policy, head));
	}
	return most;
}

uint32_t kv_policy_colder(const struct kv_policy *policy, uint32_t age,
			  uint32_t most)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < KV_POLICY_LISTS; i++) {
		uint32_t block = policy->oldest[i];

		while (block != KV_NONE && n < most &&
		       kv_policy_age_of(policy, block) > age) {
			block = node_of(policy, block)->next;
			n++;
		}
	}
	return n;
}

/* ---- ghosts ---- */

#define PAST_USES_MAX 15u /* maximum of the four low bits of an entry's time */

struct kv_ghost_entry {
	uint32_t hash;
	uint32_t time; /* time of the last use; its low bits count the uses */
	uint32_t next; /* next entry in the hash bucket, plus one; 0: none */
};

int kv_ghost_init(struct kv_ghost *ghost, uint64_t entries)
{
	uint64_t n = 64;

	while (n < entries && n < 1u << 28)
		n *= 2;
	/* The kernel allocates the ring's pages when they are first written. */
	ghost->entries = calloc(n, sizeof(*ghost->entries));
	ghost->buckets = calloc(n, sizeof(*ghost->buckets));
	ghost->mask = (uint32_t)n - 1;
	ghost->at = 0;
	ghost->limit = (uint32_t)n;
	if (ghost->entries && ghost->buckets)
		return 0;
	kv_ghost_fini(ghost);
	return -ENOMEM;
}

void kv_ghost_fit(struct kv_ghost *ghost, uint32_t blocks)
{
	uint64_t want =
		KV_MAX((uint64_t)blocks * KV_GHOST_FOR_A_BLOCK, KV_GHOST_MIN);

	ghost->limit = (uint32_t)KV_MIN(want, ghost->mask + 1ull);
}

void kv_ghost_fini(struct kv_ghost *ghost)
{
	free(ghost->entries);
	free(ghost->buckets);
	ghost->entries = NULL;
	ghost->buckets = NULL;
}

/* A link is an entry's number plus one; 0: none. */
static uint32_t *ghost_bucket(const struct kv_ghost *ghost, uint32_t hash)
{
	return &ghost->buckets[hash & ghost->mask];
}

static void ghost_forget(struct kv_ghost *ghost, uint32_t *link)
{
	struct kv_ghost_entry *entry = &ghost->entries[*link - 1];

	*link = entry->next;
	entry->time = 0;
}

void kv_ghost_put(struct kv_ghost *ghost, uint64_t hash, struct kv_past past)
{
	struct kv_ghost_entry *entry;
	uint32_t *bucket, *link;

	if (!ghost->entries || !past.uses)
		return;
	entry = &ghost->entries[ghost->at];
	if (entry->time & PAST_USES_MAX) { /* overwrite the oldest entry */
		link = ghost_bucket(ghost, entry->hash);
		while (*link != ghost->at + 1)
			link = &ghost->entries[*link - 1].next;
		ghost_forget(ghost, link);
	}
	entry->hash = (uint32_t)(hash >> 32);
	entry->time =
		(past.tick & ~PAST_USES_MAX) | KV_MIN(past.uses, PAST_USES_MAX);
	bucket = ghost_bucket(ghost, entry->hash);
	entry->next = *bucket;
	*bucket = ghost->at + 1;
	if (++ghost->at > ghost->mask || ghost->at >= ghost->limit)
		ghost->at = 0;
}

struct kv_past kv_ghost_take(struct kv_ghost *ghost, uint64_t hash)
{
	uint32_t tag = (uint32_t)(hash >> 32);
	struct kv_past past = {0};
	uint32_t *link;

	if (!ghost->entries)
		return past;
	for (link = ghost_bucket(ghost, tag); *link;
	     link = &ghost->entries[*link - 1].next) {
		const struct kv_ghost_entry *entry = &ghost->entries[*link - 1];

		if (entry->hash != tag)
			continue;
		past.tick = entry->time & ~PAST_USES_MAX;
		past.uses = entry->time & PAST_USES_MAX;
		ghost_forget(ghost, link);
		break;
	}
	return past;
}

/* ---- shadow cache: three small caches, one for each ranking ---- */

#define ENTRIES 1024u /* most blocks in a small cache */
#define NODES (ENTRIES + 1)
#define MARGIN 1.002	 /* another ranking wins with so many times the hits */
#define FADE_ASKS 16384u /* look-ups after which hit counts are halved */

struct side {
	struct kv_eviction eviction;
	struct kv_policy policy;
	struct kv_ghost ghost;
	struct kv_evict_node nodes[NODES];
	uint64_t hash[NODES];
	uint32_t next[NODES]; /* next node in the bucket, or in the free list */
	uint32_t buckets[ENTRIES]; /* number of the node plus one; 0: none */
	uint32_t free;
	double hits;
};

struct kv_shadow_cache {
	const struct kv_eviction *tier;
	struct kv_hit_density density; /* learned from the whole tier */
	uint32_t clock;		       /* copy of the tier's clock */
	uint32_t asks;
	struct side side[KV_WEIGHS];
};

static struct kv_evict_node *side_node(void *arg, uint32_t node)
{
	return &((struct side *)arg)->nodes[node];
}

static void shadow_free(struct kv_shadow_cache *shadow)
{
	if (!shadow)
		return;
	for (unsigned i = 0; i < KV_WEIGHS; i++)
		kv_ghost_fini(&shadow->side[i].ghost);
	free(shadow);
}

/* Give @tier a shadow cache, which @tier must outlive. -ENOMEM. */
static int shadow_new(struct kv_eviction *tier)
{
	struct kv_shadow_cache *shadow = calloc(1, sizeof(*shadow));
	int r = 0;

	if (!shadow)
		return -ENOMEM;
	shadow->tier = tier;
	for (unsigned i = 0; i < KV_POLICY_LISTS; i++)
		for (unsigned a = 0; a < AGES; a++)
			shadow->density.worth[i][a] = assumed(a);
	tier->density = &shadow->density;
	for (unsigned how = 0; how < KV_WEIGHS && r == 0; how++) {
		struct side *side = &shadow->side[how];

		/* Rank blocks like the tier, but learn nothing from them. */
		side->eviction.kind = tier->kind;
		side->eviction.weigh = how;
		side->eviction.density = tier->density;
		side->eviction.clock = &shadow->clock;
		side->eviction.node = side_node;
		side->eviction.arg = side;
		kv_policy_init(&side->policy, &side->eviction);
		for (uint32_t i = 0; i < NODES; i++)
			side->next[i] = i + 1;
		r = kv_ghost_init(&side->ghost, ENTRIES * KV_GHOST_FOR_A_BLOCK);
	}
	if (r < 0)
		shadow_free(shadow);
	else
		tier->shadow = shadow;
	return r;
}

/* Return the binary logarithm of n if one key in n is sampled. */
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
		node = kv_policy_victim(&side->policy, NULL, NULL);
		link = find_key(side, side->hash[node]);
		kv_ghost_put(&side->ghost, side->hash[node],
			     kv_policy_past(&side->policy, node));
		kv_policy_remove(&side->policy, node);
		*link = side->next[node];
		side->next[node] = side->free;
		side->free = node;
	}
	/* The eviction may have changed the bucket of the key. */
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

/* ---- initialising a tier's eviction ---- */

const char *kv_policy_name(unsigned i)
{
	return i < KV_ARRAY_LEN(kinds) ? kinds[i].name : NULL;
}

int kv_eviction_init(struct kv_eviction *eviction, const char *name,
		     uint32_t *clock,
		     struct kv_evict_node *(*node)(void *, uint32_t), void *arg)
{
	memset(eviction, 0, sizeof(*eviction));
	for (unsigned i = 0; i < KV_ARRAY_LEN(kinds); i++)
		if (strcmp(name, kinds[i].name) == 0)
			eviction->kind = &kinds[i];
	if (!eviction->kind)
		return -EINVAL;
	eviction->weigh = eviction->kind->weigh;
	eviction->clock = clock;
	eviction->node = node;
	eviction->arg = arg;
	return eviction->weigh == KV_WEIGH_LEARNED ? shadow_new(eviction) : 0;
}

void kv_eviction_fini(struct kv_eviction *eviction)
{
	shadow_free(eviction->shadow);
	eviction->shadow = NULL;
}
