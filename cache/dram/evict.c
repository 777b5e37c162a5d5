/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.c - who makes place in DRAM: a free slot, a spare segment, a victim, or
 * another class's segment.
 *
 * OWNS       nothing; it decides.
 *
 * INVARIANTS
 *   (1) Nobody's need takes a space below what it is guaranteed but its own,
 *       nor a tenant but that of its spaces; what is scattered over more
 *       segments than the guarantee has gives way to who is guaranteed them.
 *   (2) A space that has less than it is guaranteed takes from others before it
 *       gives anything up; so does a tenant.
 *
 * LOCKING    cache->lock.
 */
#include "cache/dram/dram.h"
#include "cache/core/hooks.h"
#include "cache/core/list.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/core/tenant.h"
#include "cache/ssd/ssd.h"
#include "common/crash_point.h"

/* Segments that are looked through for one that can be emptied. */
#define SEGMENTS_TRIED 8
#define SLOTS_TRIED 4096 /* for one beside what is kept */
#define COLD_TRIED 256	 /* that may go but stand elsewhere, for a cold one */
#define QUEUED_TRIED 64	 /* blocks, for one that need not be written */

/* For whom place is made, and how much. */
struct need {
	struct kv_cache *cache;
	struct kv_class *class;
	const struct kv_space *space; /* NULL: of all of the tenant's */
	const struct kv_tenant *tenant;
	const struct kv_space *but; /* gives nothing; NULL: all do */
	bool entitled;		    /* it is guaranteed this */
	/* To get a segment, these give way, too: pins that are on SSD, and
	 * what waits to be written. */
	bool over_pins, over_queued;
	bool over_stalled;   /* of the latter, what finds no room on SSD */
	bool over_scattered; /* who keeps segments enough keeps his bytes */
	bool over_rich;	     /* of what waits, that of who has many segments */
	bool sheds;	     /* it is what waits to be written that gives */
	bool own_only;	     /* and nobody but @space gives */
};

static bool same_access(const struct kv_class *a, const struct kv_class *b)
{
	return a->uid == b->uid && a->gid == b->gid &&
	       a->read_bits == b->read_bits;
}

static int segment_use(struct kv_cache *cache, struct kv_segment *segment,
		       struct kv_class *class)
{
	uint32_t n = (uint32_t)(cache->arena.segment_bytes / class->slot_bytes);
	struct kv_slot *slots = calloc(n, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	if (kv_segment_access(cache, segment, class, n) < 0) {
		free(slots);
		return -ENOMEM;
	}
	if (segment->class)
		kv_segment_leave(cache, segment);
	free(segment->slot);
	segment->slot = slots;
	segment->slots = n;
	kv_segment_slots(cache, segment, class);
	return 0;
}

static bool may_evict(void *arg, uint32_t number)
{
	struct kv_cache *cache = arg;
	struct kv_block *block = kv_table_at(&cache->table, number);

	if (!kv_slot_idle(block->slot))
		return false;
	/* One that was removed and is open is read from there, too. */
	if (block->file != KV_NONE)
		return true;
	/* An open file holds its bytes, and a flush will write what it asks
	 * for. */
	return !block->refs &&
	       block->slot->seq > block->slot->list->space->asked_seq;
}

/* Take a READY block out of DRAM: it stays on SSD or is gone. */
static void block_drop_dram_locked(struct kv_cache *cache,
				   struct kv_block *block)
{
	kv_assert_locked(&cache->lock);
	cache->stats.evicted_dram++;
	KV_POINT("evict.dram");
	if (block->file == KV_NONE) {
		cache->stats.evicted_last++;
		kv_evict_list_gone(cache, block->slot->list, block);
		kv_block_remove_locked(cache, block);
		return;
	}
	kv_slot_give_locked(cache, block->slot);
}

/* A tenant's guarantee is spared as the space's own is. */
static bool is_spared(const struct kv_space *space, const struct kv_space *but)
{
	const struct kv_tenant *tenant = space->tenant;

	return but &&
	       (space == but || (tenant == but->tenant &&
				 tenant->bytes_dram + tenant->filling_dram <
					 tenant->guaranteed_dram));
}

/* May a slot of @list go for the sake of the need @arg? */
static bool gives(const struct kv_evict_list *list, const void *arg)
{
	const struct need *need = arg;
	const struct kv_space *space = list->space;
	const struct kv_tenant *tenant = space->tenant;
	const struct kv_class *class = list->class;

	if (is_spared(space, need->but) || (!need->sheds && !list->idle))
		return false;
	if (need->own_only && space != need->space)
		return false;
	if (need->sheds && !need->over_queued && !space->no_room)
		return false;
	if (space == need->space)
		return true;
	return space->bytes_dram >=
		       space->guaranteed_dram + class->slot_bytes &&
	       (tenant == need->tenant ||
		tenant->bytes_dram >=
			tenant->guaranteed_dram + class->slot_bytes);
}

static bool evict_from(struct kv_evict_list *list, const void *arg)
{
	struct kv_cache *cache = ((const struct need *)arg)->cache;
	uint32_t victim = kv_policy_victim(&list->policy, may_evict, cache);

	if (victim == KV_NONE)
		return false;
	block_drop_dram_locked(cache, kv_table_at(&cache->table, victim));
	return true;
}

static bool evict_one(const struct need *for_whom, const struct kv_space *but)
{
	struct need need = *for_whom;
	const struct kv_giving giving = {gives, evict_from, &need};

	need.but = but;
	return need.class->idle && kv_victim_evict(&need.class->lists, &giving);
}

bool kv_dram_evict_own_locked(struct kv_cache *cache, struct kv_space *space)
{
	const struct need need = {
		.cache = cache, .space = space, .tenant = space->tenant};
	const struct kv_giving giving = {gives, evict_from, &need};

	kv_assert_locked(&cache->lock);
	return kv_victim_evict_own(&space->dram_lists, &giving);
}

bool kv_dram_evict_tenant_locked(struct kv_cache *cache,
				 const struct kv_tenant *tenant,
				 const struct kv_space *space)
{
	const struct need need = {
		.cache = cache, .space = space, .tenant = tenant};
	const struct kv_giving giving = {gives, evict_from, &need};

	kv_assert_locked(&cache->lock);
	return kv_victim_evict_tenant(tenant, false, &giving);
}

/* A pin is kept if the block stays on SSD alone. */
static bool pin_gives_way(const struct kv_slot *slot)
{
	return slot->pinned && !slot->leases && !slot->holds &&
	       slot->block->file != KV_NONE &&
	       !(slot->block->flags & BLOCK_REMOVED);
}

static bool queued_gives_way(const struct kv_slot *slot)
{
	return !slot->pinned && !slot->leases && !slot->holds &&
	       !slot->block->refs && (slot->block->flags & BLOCK_QUEUED) &&
	       !kv_write_must(slot);
}

struct shedding {
	struct kv_cache *cache;
	unsigned tried;
};

/* After so many, any will do: it ends the search, and is left alone. */
static bool may_shed(void *arg, uint32_t number)
{
	struct shedding *shedding = arg;
	struct kv_block *block = kv_table_at(&shedding->cache->table, number);

	return queued_gives_way(block->slot) ||
	       ++shedding->tried > QUEUED_TRIED;
}

/* Blocks that wait to be written leave in the order in which all do. */
static bool shed_from(struct kv_evict_list *list, const void *arg)
{
	struct kv_cache *cache = ((const struct need *)arg)->cache;
	struct shedding shedding = {.cache = cache};
	uint32_t victim = kv_policy_victim(&list->policy, may_shed, &shedding);
	struct kv_block *block;

	if (victim == KV_NONE || shedding.tried > QUEUED_TRIED)
		return false;
	block = kv_table_at(&cache->table, victim);
	kv_write_dequeue_locked(cache, block);
	cache->stats.dropped_saves++;
	block_drop_dram_locked(cache, block);
	return true;
}

static bool may_leave(const struct need *need, const struct kv_slot *slot)
{
	const struct kv_space *space = slot->list->space;

	return slot->state == SLOT_READY &&
	       (may_evict(need->cache, slot->block->number) ||
		(need->over_pins && pin_gives_way(slot)) ||
		((need->over_queued || space->no_room ||
		  (need->over_rich &&
		   kv_tenant_is_rich(space->tenant, need->tenant))) &&
		 queued_gives_way(slot)));
}

bool kv_dram_shed_own_locked(struct kv_cache *cache, struct kv_space *space)
{
	const struct need need = {.cache = cache,
				  .space = space,
				  .tenant = space->tenant,
				  .over_queued = cache->ssd.error,
				  .sheds = true};
	const struct kv_giving giving = {gives, shed_from, &need};

	kv_assert_locked(&cache->lock);
	if (!cache->ssd.error && !cache->ssd.stalled)
		return false;
	return kv_victim_evict_own(&space->dram_lists, &giving) ||
	       kv_victim_evict_tenant(space->tenant, false, &giving);
}

/* A space that finds no room itself gives way before others do. */
static bool shed_one(const struct need *for_whom)
{
	struct need need = *for_whom;
	const struct kv_giving giving = {gives, shed_from, &need};

	need.sheds = true;
	need.own_only = need.space->no_room && !need.entitled;
	if (need.own_only && kv_victim_evict(&need.class->lists, &giving))
		return true;
	need.own_only = false;
	return kv_victim_evict(&need.class->lists, &giving);
}

static bool forces(const struct need *need)
{
	return need->over_pins || need->over_queued || need->over_stalled ||
	       need->over_scattered || need->over_rich;
}

/* Both keep it, the space and its tenant, when they have given what is
 * leaving. */
static bool keeps_its_own(const struct need *need, const struct kv_space *space)
{
	const struct kv_tenant *tenant = space->tenant;

	if (space == need->space)
		return true;
	if (need->over_scattered && tenant != need->tenant &&
	    tenant->segments > kv_guaranteed_segments(need->cache, tenant))
		return true;
	return (!space->guaranteed_dram ||
		space->bytes_dram >= space->guaranteed_dram + space->leaving) &&
	       (tenant == need->tenant || !tenant->guaranteed_dram ||
		tenant->bytes_dram >=
			tenant->guaranteed_dram + tenant->leaving);
}

/* May all of it go, with everybody keeping what he is guaranteed? */
static bool may_empty(const struct need *need, struct kv_segment *segment)
{
	uint64_t bytes = segment->class->slot_bytes;
	bool may = true;

	if (!forces(need) && segment->idle + segment->free < segment->slots)
		return false;
	for (uint32_t i = 0; may && i < segment->slots; i++) {
		struct kv_slot *slot = &segment->slot[i];
		struct kv_space *space;

		if (slot->state == SLOT_FREE)
			continue;
		space = slot->list->space;
		space->leaving += bytes;
		space->tenant->leaving += bytes;
		may = may_leave(need, slot) && keeps_its_own(need, space);
	}
	for (uint32_t i = 0; i < segment->slots; i++)
		if (segment->slot[i].state != SLOT_FREE) {
			struct kv_space *space = segment->slot[i].list->space;

			space->leaving = space->tenant->leaving = 0;
		}
	return may;
}

static void empty_segment(struct kv_cache *cache, struct kv_segment *segment)
{
	for (uint32_t i = 0; i < segment->slots; i++) {
		struct kv_slot *slot = &segment->slot[i];

		if (slot->state != SLOT_READY)
			continue;
		cache->stats.dropped_saves +=
			(slot->block->flags & BLOCK_QUEUED) != 0;
		block_drop_dram_locked(cache, slot->block);
	}
}

/* Of the other classes' lists the one that has gone longest without a use of
 * what it may give. */
static struct kv_coldest coldest_of_others(const struct need *need)
{
	const struct kv_giving giving = {gives, evict_from, need};
	struct kv_coldest coldest = {0};
	struct kv_class *class;

	LIST_FOREACH(class, &need->cache->arena.classes, link)
		if (class != need->class && class->n_segments && class->idle)
			kv_victim_look(&class->lists, &giving, &coldest);
	return coldest;
}

static struct kv_segment *segment_of(const struct need *need,
				     struct kv_class *class,
				     struct kv_evict_list *coldest)
{
	struct kv_cache *cache = need->cache;
	struct kv_segment *segment, *best = NULL;
	unsigned tried = 0;
	uint32_t victim;

	/* Where its coldest block is, or else where all may go; of what is
	 * scattered, where the least is. */
	victim = coldest && !need->over_scattered
			 ? kv_policy_victim(&coldest->policy, may_evict, cache)
			 : KV_NONE;
	if (victim != KV_NONE) {
		segment = kv_table_at(&cache->table, victim)->slot->segment;
		if (may_empty(need, segment))
			return segment;
	}
	TAILQ_FOREACH_REVERSE(segment, &class->segments, kv_segments, link) {
		if (!forces(need) &&
		    segment->idle + segment->free < segment->slots)
			continue;
		if ((!best || segment->free > best->free) &&
		    may_empty(need, segment))
			best = segment;
		if (best && !need->over_scattered)
			break;
		if (!forces(need) && ++tried == SEGMENTS_TRIED)
			break;
	}
	return best;
}

/* A segment of another class that nobody's block is in; NULL. */
static struct kv_segment *vacant_segment(const struct need *need)
{
	const struct kv_arena *arena = &need->cache->arena;
	struct kv_segment *segment;
	struct kv_class *class;

	if (!arena->vacant)
		return NULL;
	LIST_FOREACH(class, &arena->classes, link)
		TAILQ_FOREACH(segment, &class->segments, link) {
			if (class != need->class &&
			    segment->free == segment->slots)
				return segment;
			if (!segment->free)
				break; /* those with free slots are in front */
		}
	return NULL;
}

/* A segment of another class: the coldest class's, or any. */
static struct kv_segment *segment_to_steal(const struct need *need)
{
	struct kv_classes *classes = &need->cache->arena.classes;
	struct kv_evict_list *coldest = coldest_of_others(need).list;
	struct kv_segment *segment = NULL;
	struct kv_class *class;

	if (coldest)
		segment = segment_of(need, coldest->class, coldest);
	if (segment)
		return segment;
	LIST_FOREACH(class, classes, link)
		if (class != need->class && (class->idle || forces(need))) {
			segment = segment_of(need, class, NULL);
			if (segment)
				return segment;
		}
	return NULL;
}

/* @segment, which is another class's and vacant, is for @need's from now on, or
 * makes place for one that is. */
static bool take_over(const struct need *need, struct kv_segment *segment)
{
	struct kv_cache *cache = need->cache;

	if (!same_access(segment->class, need->class)) {
		kv_segment_retire_locked(cache, segment);
		return true;
	}
	return segment_use(cache, segment, need->class) == 0;
}

static bool steal(const struct need *need)
{
	struct kv_segment *segment = segment_to_steal(need);

	if (!segment)
		return false;
	empty_segment(need->cache, segment);
	if (segment->free != segment->slots)
		return true; /* an open file kept one: look again */
	return take_over(need, segment);
}

static bool steal_scattered(const struct need *for_whom)
{
	struct need need = *for_whom;

	need.over_scattered = true;
	return steal(&need);
}

/* A class with few segments, and those in use, takes one of a class with many,
 * and those cold. */
static bool balance(const struct need *need)
{
	const struct kv_giving giving = {gives, evict_from, need};
	const struct kv_coldest other = coldest_of_others(need);
	const struct kv_class *cold = other.list ? other.list->class : NULL;
	struct kv_coldest own = {0};

	if (!cold || need->class->n_segments >= cold->n_segments)
		return false;
	kv_victim_look(&need->class->lists, &giving, &own);
	return other.age / 2 > own.age && steal(need);
}

static struct kv_slot *free_slot(struct kv_class *class)
{
	struct kv_segment *segment = TAILQ_FIRST(&class->segments);

	/* Segments with free slots are kept in front. */
	return segment && segment->free ? TAILQ_FIRST(&segment->free_list)
					: NULL;
}

/* Make some; false if nothing can be had. */
static bool make(struct need *need)
{
	struct kv_segment *vacant = vacant_segment(need);

	if (vacant && take_over(need, vacant))
		return true;
	if (need->entitled && (evict_one(need, need->space) || steal(need) ||
			       steal_scattered(need)))
		return true;
	if (balance(need) || evict_one(need, NULL) || steal(need))
		return true;
	/* While the SSD takes nothing, what waits for it is not worth more
	 * than what comes, and never more than a guarantee. */
	need->over_queued = need->cache->ssd.error || need->entitled;
	need->over_stalled = need->cache->ssd.stalled > 0;
	if ((need->over_queued || need->over_stalled) && shed_one(need))
		return true;
	need->over_pins = need->class->n_segments == 0;
	need->over_rich = true;
	return steal(need);
}

/* Make one in @segment, which has others that are kept; NULL. */
static struct kv_slot *make_in(const struct need *need,
			       struct kv_segment *segment, unsigned *tried)
{
	for (uint32_t i = 0; i < segment->slots && *tried < SLOTS_TRIED; i++) {
		struct kv_slot *slot = &segment->slot[segment->hand];

		segment->hand = (segment->hand + 1) % segment->slots;
		++*tried;
		if (slot->state != SLOT_READY || !gives(slot->list, need) ||
		    !may_evict(need->cache, slot->block->number))
			continue;
		block_drop_dram_locked(need->cache, slot->block);
		return slot;
	}
	return NULL;
}

struct beside {
	struct kv_cache *cache;
	unsigned tried;
};

/* After so many, any will do: it ends the search, and is left alone. */
static bool may_evict_beside(void *arg, uint32_t number)
{
	struct beside *beside = arg;
	const struct kv_block *block =
		kv_table_at(&beside->cache->table, number);

	return may_evict(beside->cache, number) &&
	       (block->slot->segment->kept || ++beside->tried > COLD_TRIED);
}

static bool evict_beside(struct kv_evict_list *list, const void *arg)
{
	struct kv_cache *cache = ((const struct need *)arg)->cache;
	struct beside beside = {.cache = cache};
	uint32_t victim =
		kv_policy_victim(&list->policy, may_evict_beside, &beside);

	if (victim == KV_NONE || beside.tried > COLD_TRIED)
		return false;
	block_drop_dram_locked(cache, kv_table_at(&cache->table, victim));
	return true;
}

static struct kv_slot *free_beside(const struct need *need)
{
	struct kv_segment *segment;

	TAILQ_FOREACH(segment, &need->class->segments, link)
		if (segment->kept && segment->free)
			return TAILQ_FIRST(&segment->free_list);
	return NULL;
}

/* A slot beside others that are filled, leased or pinned: its tenant leaves the
 * other segments to those who are guaranteed them. */
static struct kv_slot *slot_beside(const struct need *need)
{
	const struct kv_giving giving = {gives, evict_beside, need};
	struct kv_slot *slot = free_beside(need);
	struct kv_segment *segment;
	unsigned tried = 0;

	if (slot)
		return slot;
	if (need->class->idle && kv_victim_evict(&need->class->lists, &giving))
		return free_beside(need);
	TAILQ_FOREACH(segment, &need->class->segments, link) {
		if (segment->kept && segment->idle)
			slot = make_in(need, segment, &tried);
		if (slot)
			break; /* it may stand elsewhere on the list now */
	}
	return slot;
}

struct kv_slot *kv_dram_evict_for_locked(struct kv_cache *cache,
					 struct kv_class *class,
					 struct kv_space *space)
{
	struct kv_arena *arena = &cache->arena;
	struct kv_segment *spare = TAILQ_FIRST(&arena->spare);
	struct kv_slot *slot = free_slot(class);
	struct need need = {.cache = cache,
			    .class = class,
			    .space = space,
			    .tenant = space->tenant};

	kv_assert_locked(&cache->lock);
	if (!kv_tenant_may_keep(cache, class->tenant))
		return slot_beside(&need);
	if (slot)
		return slot;
	if (spare) {
		TAILQ_REMOVE(&arena->spare, spare, link);
		if (segment_use(cache, spare, class) < 0)
			TAILQ_INSERT_TAIL(&arena->spare, spare, link);
		return free_slot(class);
	}
	if (arena->growing)
		return NULL;
	need.entitled = kv_guaranteed_dram(space, class->slot_bytes);
	return make(&need) ? free_slot(class) : NULL;
}

bool kv_dram_fit_quota_locked(struct kv_cache *cache, struct kv_space *space,
			      uint64_t bytes)
{
	const struct kv_tenant *tenant = space->tenant;
	uint64_t most = space->quota.quota_dram;
	uint64_t of_all = tenant->quota.quota_dram;

	kv_assert_locked(&cache->lock);
	if ((most && bytes > most) || (of_all && bytes > of_all))
		return false;
	while (most && space->bytes_dram + space->filling_dram + bytes > most)
		if (!kv_dram_evict_own_locked(cache, space))
			return false;
	while (of_all &&
	       tenant->bytes_dram + tenant->filling_dram + bytes > of_all)
		if (!kv_dram_evict_tenant_locked(cache, tenant, space))
			return false;
	return true;
}
