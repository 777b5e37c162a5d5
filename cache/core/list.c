/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.c - one eviction list per space and slot class, and the choice of the
 * list that gives up a block, for both tiers.
 *
 * OWNS       the lists.
 *
 * INVARIANTS
 *   (1) In a class's list, lists with blocks come before empty lists.
 *   (2) Eviction for another space takes no space, and no user, below its
 *       guarantee.
 *
 * LOCKING    cache->lock.
 */
#include "cache/core/list.h"
#include "cache/core/ledger.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"

/* Return the space's list for @class, or NULL. */
static struct kv_evict_list *find(const struct kv_space *space,
				  enum kv_node_tier tier, const void *class)
{
	struct kv_evict_list *list;

	/* A space has one list for each of its block sizes: usually one. */
	LIST_FOREACH(list, &space->lists[tier], own)
		if (list->class == class)
			return list;
	return NULL;
}

struct kv_evict_list *kv_evict_list_make(struct kv_space *space,
					 enum kv_node_tier tier, void *class,
					 struct kv_evict_lists *lists,
					 struct kv_eviction *eviction)
{
	struct kv_evict_list *list = find(space, tier, class);

	if (list)
		return list;
	list = calloc(1, sizeof(*list));
	if (!list)
		return NULL;
	list->space = space;
	list->class = class;
	list->lists = lists;
	list->tier = tier;
	kv_policy_init(&list->policy, eviction);
	TAILQ_INSERT_TAIL(lists, list, link);
	LIST_INSERT_HEAD(&space->lists[tier], list, own);
	return list;
}

struct kv_evict_list *kv_evict_list_ssd(struct kv_cache *cache,
					const struct kv_block *block)
{
	if (block->file == KV_NONE)
		return NULL;
	return find(kv_block_space(cache, block), SSD,
		    kv_segfile_at(cache, block->file)->class);
}

static void insert(struct kv_evict_list *list, uint32_t block,
		   const struct kv_arrival *arrival)
{
	kv_policy_insert(&list->policy, block, arrival);
	if (list->blocks++ == 0) {
		TAILQ_REMOVE(list->lists, list, link);
		TAILQ_INSERT_HEAD(list->lists, list, link);
	}
}

void kv_evict_list_gone(struct kv_cache *cache,
			const struct kv_evict_list *list,
			const struct kv_block *block)
{
	if (!list || !kv_policy_has(&list->policy, block->number))
		return;
	kv_ghost_fit(&cache->ghost, cache->arena.eviction.blocks);
	kv_ghost_put(&cache->ghost, kv_key_hash(cache, list->space, block->key),
		     kv_policy_past(&list->policy, block->number));
}

void kv_evicted_locked(struct kv_cache *cache, enum kv_node_tier tier,
		       const struct kv_block *block)
{
	struct kv_cache_stats *stats = &cache->stats;

	kv_assert_locked(&cache->lock);
	*(tier == SSD ? &stats->evicted_ssd : &stats->evicted_dram) += 1;
	kv_histogram_add(&stats->evicted_age[tier], kv_block_age(cache, block));
	kv_histogram_add(&stats->evicted_uses[tier], block->hits);
}

void kv_evict_list_add(struct kv_cache *cache, struct kv_evict_list *list,
		       const struct kv_block *block, bool promoted)
{
	const struct kv_slot_record *record =
		&kv_slot_prologue(block->slot)->record;
	/* the other tier's node, which counted the block's uses */
	const struct kv_evict_node *other = promoted ? &block->node
					    : list->tier == SSD
						    ? &block->slot->node
						    : NULL;
	struct kv_key key = {.len = record->parent_len};
	const struct kv_block *parent = NULL;
	struct kv_arrival arrival = {
		.parent = KV_NONE,
		.position = record->position,
		.promoted = promoted,
		.same = list->tier == SSD,
		.now_ns = kv_now_ns(),
	};

	memcpy(key.b, record->parent, sizeof(key.b));
	if (key.len)
		parent = kv_table_find(cache, list->space, &key);
	if (parent &&
	    (list->tier == SSD ? kv_evict_list_ssd(cache, parent) == list
			       : parent->slot && parent->slot->list == list) &&
	    kv_policy_has(&list->policy, parent->number))
		arrival.parent = parent->number;
	arrival.past = other ? (struct kv_past){other->tick, other->uses}
			     : kv_ghost_take(&cache->ghost,
					     kv_key_hash(cache, list->space,
							 block->key));
	insert(list, block->number, &arrival);
}

void kv_evict_list_add_plain(struct kv_evict_list *list,
			     const struct kv_block *block)
{
	const struct kv_arrival arrival = {
		.parent = KV_NONE,
		.past.uses = (uint8_t)KV_MIN(block->hits + 1u, KV_USES_MAX),
		.same = true,
	};

	insert(list, block->number, &arrival);
}

void kv_evict_list_drop(struct kv_evict_list *list, uint32_t block)
{
	if (!kv_policy_has(&list->policy, block))
		return;
	kv_policy_remove(&list->policy, block);
	if (--list->blocks == 0) {
		TAILQ_REMOVE(list->lists, list, link);
		TAILQ_INSERT_TAIL(list->lists, list, link);
	}
}

static void list_free(struct kv_evict_list *list)
{
	TAILQ_REMOVE(list->lists, list, link);
	LIST_REMOVE(list, own);
	free(list);
}

void kv_evict_lists_free(struct kv_evict_lists *lists)
{
	struct kv_evict_list *list;

	while ((list = TAILQ_FIRST(lists)))
		list_free(list);
}

void kv_evict_lists_leave(struct kv_space *space)
{
	struct kv_evict_list *list;

	for (enum kv_node_tier tier = 0; tier < TIERS; tier++)
		while ((list = LIST_FIRST(&space->lists[tier]))) {
			assert(list->blocks == 0 && list->idle == 0);
			list_free(list);
		}
}

/* ---- victims ---- */

bool kv_victim_gives(const struct kv_evict_list *list,
		     const struct kv_giving *giving)
{
	const struct kv_space *space = list->space, *but = giving->but;
	const struct kv_node *all = &space->tenant->in[list->tier];
	const uint64_t bytes =
		list->tier == SSD
			? ((const struct kv_ssd_class *)list->class)->slot_bytes
			: ((const struct kv_class *)list->class)->slot_bytes;

	if (but &&
	    (space == but || (space->tenant == but->tenant &&
			      all->bytes + all->coming < all->guaranteed)))
		return false;
	if (giving->may && !giving->may(list, giving))
		return false;
	return giving->regardless ||
	       kv_keeps_guarantee(list->tier, space, giving->taker,
				  giving->tenant, bytes);
}

static void look_at(struct kv_coldest *coldest, struct kv_evict_list *list,
		    const struct kv_giving *giving)
{
	uint32_t age;

	if (!list->blocks || !kv_victim_gives(list, giving))
		return;
	age = kv_policy_age(&list->policy);
	if (coldest->list && age <= coldest->age)
		return;
	coldest->list = list;
	coldest->age = age;
}

void kv_victim_look(const struct kv_evict_lists *lists,
		    const struct kv_giving *giving, struct kv_coldest *coldest)
{
	struct kv_evict_list *list;

	TAILQ_FOREACH(list, lists, link) {
		if (!list->blocks)
			break; /* empty lists are at the end of @lists */
		look_at(coldest, list, giving);
	}
}

/* Evict a block of @list; skip the coldest list, which was tried before. */
static bool evict_other(struct kv_evict_list *list,
			const struct kv_coldest *coldest,
			const struct kv_giving *giving)
{
	return list != coldest->list && list->blocks &&
	       kv_victim_gives(list, giving) && giving->evict(list, giving);
}

bool kv_victim_evict(const struct kv_evict_lists *lists,
		     const struct kv_giving *giving)
{
	struct kv_coldest coldest = {0};
	struct kv_evict_list *list;

	kv_victim_look(lists, giving, &coldest);
	if (coldest.list && giving->evict(coldest.list, giving))
		return true;
	TAILQ_FOREACH(list, lists, link)
		if (evict_other(list, &coldest, giving))
			return true;
	return false;
}

bool kv_victim_evict_own(const struct kv_space *space, enum kv_node_tier tier,
			 const struct kv_giving *giving)
{
	struct kv_coldest coldest = {0};
	struct kv_evict_list *list;

	LIST_FOREACH(list, &space->lists[tier], own)
		look_at(&coldest, list, giving);
	return coldest.list && giving->evict(coldest.list, giving);
}

bool kv_victim_evict_tenant(const struct kv_tenant *tenant,
			    enum kv_node_tier tier,
			    const struct kv_giving *giving)
{
	struct kv_coldest coldest = {0};
	struct kv_evict_list *list;
	const struct kv_space *space;

	LIST_FOREACH(space, &tenant->spaces, siblings)
		LIST_FOREACH(list, &space->lists[tier], own)
			look_at(&coldest, list, giving);
	if (coldest.list && giving->evict(coldest.list, giving))
		return true;
	LIST_FOREACH(space, &tenant->spaces, siblings)
		LIST_FOREACH(list, &space->lists[tier], own)
			if (evict_other(list, &coldest, giving))
				return true;
	return false;
}
