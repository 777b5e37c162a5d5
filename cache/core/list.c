/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.c - one order of leaving per space and class; and which of the lists
 * gives a block up, whatever tier it is of.
 *
 * OWNS       the lists.
 *
 * INVARIANTS
 *   (1) In a class's list, lists with blocks come before those without.
 *
 * LOCKING    the cache's lock.
 */
#include "cache/core/list.h"
#include "cache/core/core.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"

/* The space's list for @class among its @own ones; NULL. */
static struct kv_evict_list *
evict_list_find(const struct kv_evict_list_list *own, const void *class)
{
	struct kv_evict_list *list;

	/* As many as the space has sizes of blocks: one, as a rule. */
	LIST_FOREACH(list, own, own)
		if (list->class == class)
			return list;
	return NULL;
}

struct kv_evict_list *kv_evict_list_make(struct kv_space *space,
					 struct kv_evict_list_list *own,
					 void *class,
					 struct kv_evict_lists *lists,
					 struct kv_eviction *eviction)
{
	struct kv_evict_list *list = evict_list_find(own, class);

	if (list)
		return list;
	list = calloc(1, sizeof(*list));
	if (!list)
		return NULL;
	list->space = space;
	list->class = class;
	list->lists = lists;
	list->ssd = own == &space->ssd_lists;
	kv_policy_init(&list->policy, eviction);
	TAILQ_INSERT_TAIL(lists, list, link);
	LIST_INSERT_HEAD(own, list, own);
	return list;
}

struct kv_evict_list *kv_evict_list_ssd(struct kv_cache *cache,
					const struct kv_block *block)
{
	if (block->file == KV_NONE)
		return NULL;
	return evict_list_find(&kv_block_space(cache, block)->ssd_lists,
			       kv_segfile_at(cache, block->file)->class);
}

static void add(struct kv_evict_list *list, uint32_t block,
		const struct kv_arrival *arrival)
{
	kv_policy_insert(&list->policy, block, arrival);
	if (list->blocks++ == 0) {
		TAILQ_REMOVE(list->lists, list, link);
		TAILQ_INSERT_HEAD(list->lists, list, link);
	}
}

static uint32_t parent_of(struct kv_cache *cache,
			  const struct kv_evict_list *list,
			  const struct kv_slot_record *record)
{
	struct kv_key key = {.len = record->parent_len};
	const struct kv_block *parent;

	if (!key.len)
		return KV_NONE;
	memcpy(key.b, record->parent, sizeof(key.b));
	parent = kv_table_find(cache, list->space, &key);
	if (!parent ||
	    (list->ssd ? kv_evict_list_ssd(cache, parent) != list
		       : !parent->slot || parent->slot->list != list))
		return KV_NONE;
	return kv_policy_has(&list->policy, parent->number) ? parent->number
							    : KV_NONE;
}

/* How often it was used before: the other tier knows, or else the ghost. */
static struct kv_past past_of(struct kv_cache *cache,
			      const struct kv_evict_list *list,
			      const struct kv_block *block, bool promoted)
{
	const struct kv_evict_node *other = promoted	? &block->node
					    : list->ssd ? &block->slot->node
							: NULL;

	if (other)
		return (struct kv_past){other->tick, other->uses};
	return kv_ghost_take(&cache->ghost,
			     kv_key_hash(cache, list->space, block->key));
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

void kv_evict_list_add(struct kv_cache *cache, struct kv_evict_list *list,
		       const struct kv_block *block, bool promoted)
{
	const struct kv_slot_record *record =
		&kv_slot_prologue(block->slot)->record;
	const struct kv_arrival arrival = {
		.parent = parent_of(cache, list, record),
		.position = record->position,
		.past = past_of(cache, list, block, promoted),
		.promoted = promoted,
		.same = list->ssd,
		.now_ns = kv_now_ns(),
	};

	add(list, block->number, &arrival);
}

void kv_evict_list_add_plain(struct kv_evict_list *list,
			     const struct kv_block *block)
{
	const struct kv_arrival arrival = {
		.parent = KV_NONE,
		.past.uses = (uint8_t)KV_MIN(block->hits + 1u, KV_USES_MAX),
		.same = true,
	};

	add(list, block->number, &arrival);
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

void kv_evict_lists_free(struct kv_evict_lists *lists)
{
	struct kv_evict_list *list;

	while ((list = TAILQ_FIRST(lists))) {
		TAILQ_REMOVE(lists, list, link);
		LIST_REMOVE(list, own);
		free(list);
	}
}

void kv_evict_lists_leave(struct kv_evict_list_list *own)
{
	struct kv_evict_list *list;

	while ((list = LIST_FIRST(own))) {
		assert(list->blocks == 0 && list->idle == 0);
		TAILQ_REMOVE(list->lists, list, link);
		LIST_REMOVE(list, own);
		free(list);
	}
}

/* ---- victims ---- */

static void look_at(struct kv_coldest *coldest, struct kv_evict_list *list,
		    const struct kv_giving *giving)
{
	uint32_t age;

	if (!list->blocks || !giving->gives(list, giving->arg))
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
			break; /* empty ones are last */
		look_at(coldest, list, giving);
	}
}

bool kv_victim_evict(const struct kv_evict_lists *lists,
		     const struct kv_giving *giving)
{
	struct kv_coldest coldest = {0};
	struct kv_evict_list *list;

	kv_victim_look(lists, giving, &coldest);
	if (coldest.list && giving->evict(coldest.list, giving->arg))
		return true;
	/* All it has is in use. */
	TAILQ_FOREACH(list, lists, link)
		if (list != coldest.list && list->blocks &&
		    giving->gives(list, giving->arg) &&
		    giving->evict(list, giving->arg))
			return true;
	return false;
}

bool kv_victim_evict_own(const struct kv_evict_list_list *own,
			 const struct kv_giving *giving)
{
	struct kv_coldest coldest = {0};
	struct kv_evict_list *list;

	LIST_FOREACH(list, own, own)
		look_at(&coldest, list, giving);
	return coldest.list && giving->evict(coldest.list, giving->arg);
}

static struct kv_evict_list *first_of(const struct kv_space *space, bool ssd)
{
	return LIST_FIRST(ssd ? &space->ssd_lists : &space->dram_lists);
}

/* All that @coldest has is in use. */
static bool evict_other(const struct kv_tenant *tenant, bool ssd,
			const struct kv_evict_list *coldest,
			const struct kv_giving *giving)
{
	struct kv_evict_list *list;
	const struct kv_space *space;

	LIST_FOREACH(space, &tenant->spaces, siblings)
		for (list = first_of(space, ssd); list;
		     list = LIST_NEXT(list, own))
			if (list != coldest && list->blocks &&
			    giving->gives(list, giving->arg) &&
			    giving->evict(list, giving->arg))
				return true;
	return false;
}

bool kv_victim_evict_tenant(const struct kv_tenant *tenant, bool ssd,
			    const struct kv_giving *giving)
{
	struct kv_coldest coldest = {0};
	struct kv_evict_list *list;
	const struct kv_space *space;

	LIST_FOREACH(space, &tenant->spaces, siblings)
		for (list = first_of(space, ssd); list;
		     list = LIST_NEXT(list, own))
			look_at(&coldest, list, giving);
	return coldest.list && (giving->evict(coldest.list, giving->arg) ||
				evict_other(tenant, ssd, coldest.list, giving));
}
