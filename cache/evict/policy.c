/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.c - lists of blocks, and the choice of the list head that is evicted;
 * the policies lru and flru; the uses of evicted blocks.
 *
 * OWNS       the links between nodes; a ghost's ring of entries, and its hash
 * table.
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
 *
 * LOCKING    cache->lock, for everything.
 */
#include "cache/evict/policy.h"

/* In a burst of seals, a block whose parent is unknown is assumed to be the
 * child of the previous block, if its position in the chain is the next one. */
#define BURST_NS 200000000u
#define SORT 64		  /* steps to search a block's place on its list */
#define AGEING_MIN 65536u /* touches after which uses halve: the larger of */
#define AGEING_BLOCKS 16u /* AGEING_MIN and this for each block */

/* ---- the policies ---- */

/* lru: evict the block that was used longest ago. */

static unsigned lru_list(unsigned uses, unsigned depth)
{
	(void)uses;
	(void)depth;
	return 1;
}

static float lru_worth(const struct kv_eviction *eviction, unsigned list,
		       uint32_t age)
{
	(void)eviction;
	(void)list;
	return 1 / ((float)age + 1);
}

static const struct kv_policy_kind lru = {
	.name = "lru",
	.lists = 2,
	.list = lru_list,
	.worth = lru_worth,
};

/* flru: lists by number of uses, 1, 2, 3, and 4 or more; evict the list head
 * with the largest quotient of age and uses. */

#define FLRU_MOST 4u

static unsigned flru_list(unsigned uses, unsigned depth)
{
	(void)depth;
	return KV_MIN(KV_MAX(uses, 1u), FLRU_MOST);
}

static float flru_worth(const struct kv_eviction *eviction, unsigned list,
			uint32_t age)
{
	(void)eviction;
	return (float)list / ((float)age + 1);
}

static const struct kv_policy_kind flru = {
	.name = "flru",
	.lists = FLRU_MOST + 1,
	.list = flru_list,
	.worth = flru_worth,
};

/* The policies, by their names in the option evict= and in kvfs-replay; the
 * first is the default. */
static const struct kv_policy_kind *const kinds[] = {&kv_policy_lhd, &flru,
						     &lru};

/* ---- lists ---- */

const char *kv_policy_name(unsigned i)
{
	return i < KV_ARRAY_LEN(kinds) ? kinds[i]->name : NULL;
}

int kv_eviction_init(struct kv_eviction *eviction, const char *name,
		     uint32_t *clock,
		     struct kv_evict_node *(*node)(void *, uint32_t), void *arg)
{
	memset(eviction, 0, sizeof(*eviction));
	for (unsigned i = 0; i < KV_ARRAY_LEN(kinds); i++)
		if (strcmp(name, kinds[i]->name) == 0)
			eviction->kind = kinds[i];
	if (!eviction->kind)
		return -EINVAL;
	eviction->clock = clock;
	eviction->node = node;
	eviction->arg = arg;
	return eviction->kind->begin ? eviction->kind->begin(eviction) : 0;
}

void kv_eviction_fini(struct kv_eviction *eviction)
{
	kv_shadow_cache_free(eviction->shadow);
	eviction->shadow = NULL;
}

void kv_policy_init(struct kv_policy *policy, struct kv_eviction *eviction)
{
	memset(policy, 0, sizeof(*policy));
	policy->eviction = eviction;
	policy->burst = KV_NONE;
	for (unsigned i = 0; i < KV_HIT_DENSITY_LISTS; i++)
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
	return policy->eviction->kind->list(node->uses, node->depth);
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

/* Count a use of a block at @age.  Older uses fade, so that a block used often
 * long ago does not stay for ever. */
static uint8_t one_more(const struct kv_eviction *eviction, unsigned uses,
			uint32_t age)
{
	uint64_t half =
		KV_MAX((uint64_t)eviction->blocks * AGEING_BLOCKS, AGEING_MIN);
	uint64_t faded = age / half;

	uses = faded > 7 ? 0 : uses >> faded;
	return (uint8_t)KV_MIN(uses + 1, KV_USES_MAX);
}

static void learn_use(struct kv_eviction *eviction, unsigned list, uint32_t age)
{
	if (eviction->kind->used)
		eviction->kind->used(eviction, list, age);
}

static void learn_entry(struct kv_eviction *eviction, unsigned list)
{
	if (eviction->kind->entered)
		eviction->kind->entered(eviction, list);
}

/* Insert @block so that it is evicted before @parent.  @known: @parent is its
 * parent for sure; else a guess. */
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
	/* search the place for its age on the parent's list */
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
			  eviction->kind->list(past->uses, node->depth), age);
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
	/* The use that promoted the block is counted already. */
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

/* Return the first victim of @list: its oldest block, or its newest. */
static uint32_t head_of(const struct kv_policy *policy, unsigned list)
{
	return policy->eviction->kind->newest_first ? policy->newest[list]
						    : policy->oldest[list];
}

/* Return the first block of @list that @may allows.  Move blocks that are
 * refused to the other end of the list. */
static uint32_t first_allowed(struct kv_policy *policy, unsigned list,
			      bool (*may)(void *, uint32_t), void *arg)
{
	const bool back = policy->eviction->kind->newest_first;
	const uint32_t last =
		back ? policy->oldest[list] : policy->newest[list];
	uint32_t block = head_of(policy, list);

	while (block != KV_NONE && !may(arg, block)) {
		const struct kv_evict_node *node = node_of(policy, block);
		uint32_t next = back ? node->prev : node->next;

		policy->eviction->refused++;
		unlink_node(policy, node);
		link_before(policy, block, list,
			    back ? policy->oldest[list] : KV_NONE);
		block = block == last ? KV_NONE : next;
	}
	return block;
}

static float worth_of(const struct kv_policy *policy, unsigned list,
		      uint32_t age)
{
	return list == KV_LIST_ENDED ? 0
				     : policy->eviction->kind->worth(
					       policy->eviction, list, age);
}

uint32_t kv_policy_victim(struct kv_policy *policy,
			  bool (*may)(void *arg, uint32_t block), void *arg)
{
	uint32_t best = KV_NONE, oldest = 0;
	unsigned from = 0;
	float least = 0;

	for (unsigned i = 0; i < policy->eviction->kind->lists; i++) {
		uint32_t block = first_allowed(policy, i, may, arg), age;
		float worth;

		if (block == KV_NONE)
			continue;
		/* An older block on a lower list may be a child of this
		 * block. */
		age = age_of(policy, node_of(policy, block));
		if (best != KV_NONE && age <= oldest &&
		    !policy->eviction->kind->newest_first)
			continue;
		oldest = age;
		worth = worth_of(policy, i, age);
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
	worth = worth_of(policy, node->list, age_of(policy, node));
	return worth < 1e-9f ? UINT32_MAX : (uint32_t)KV_MAX(1 / worth, 1.0f);
}

uint32_t kv_policy_age(const struct kv_policy *policy)
{
	uint32_t most = 0;

	for (unsigned i = 0; i < policy->eviction->kind->lists; i++) {
		const uint32_t head = head_of(policy, i);

		if (head != KV_NONE)
			most = KV_MAX(most, kv_policy_age_of(policy, head));
	}
	return most;
}

uint32_t kv_policy_colder(const struct kv_policy *policy, uint32_t age,
			  uint32_t most)
{
	const bool back = policy->eviction->kind->newest_first;
	uint32_t n = 0;

	for (unsigned i = 0; i < policy->eviction->kind->lists; i++) {
		uint32_t block = head_of(policy, i);

		while (block != KV_NONE && n < most &&
		       kv_policy_age_of(policy, block) > age) {
			const struct kv_evict_node *node =
				node_of(policy, block);

			block = back ? node->prev : node->next;
			n++;
		}
	}
	return n;
}

/* ---- ghosts ---- */

#define PAST_USES_MAX 15u /* limit of the four low bits of an entry's time */

struct kv_ghost_entry {
	uint32_t hash;
	uint32_t time; /* tick; the low bits are the number of uses */
	uint32_t next; /* in its bucket */
};

int kv_ghost_init(struct kv_ghost *ghost, uint64_t entries)
{
	uint64_t n = 64;

	while (n < entries && n < 1u << 28)
		n *= 2;
	/* The kernel allocates the pages when they are first written. */
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
	if (entry->time & PAST_USES_MAX) { /* the oldest */
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
