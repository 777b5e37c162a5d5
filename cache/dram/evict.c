/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.c - make room in DRAM: a free slot, a spare segment, a victim, or a
 * segment of another class.
 *
 * OWNS       nothing.
 *
 * INVARIANTS
 *   (1) Eviction for another space never takes a space, or its user, below the
 *       guarantee.  Blocks scattered over more segments than their user's
 *       guarantee needs are evicted for users to whom these segments are
 *       guaranteed.
 *   (2) A space below its guarantee evicts blocks of others before its own, and
 *       so does a user.
 *
 * LOCKING    cache->lock.
 */
#include "cache/dram/dram.h"
#include "cache/core/causes.h"
#include "cache/core/hooks.h"
#include "cache/core/ledger.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/ssd/ssd.h"
#include "common/crash_point.h"

#define SEGMENTS_TRIED 8 /* most segments examined to find one to empty */
#define SLOTS_TRIED 4096 /* most slots examined in segments with kept slots */
#define COLD_TRIED 256	 /* most idle blocks examined in a segment */
#define QUEUED_TRIED 64	 /* most queued blocks examined to find a victim */

/* The space and class that need a slot, and the blocks that may be evicted. */
struct need {
	struct kv_giving giving; /* first member: callbacks cast its address */
	struct kv_class *class;
	bool entitled; /* the space is below its guarantee */
	/* These allow evicting more than idle blocks to empty a segment: */
	bool over_pins;	  /* pinned blocks that are on SSD */
	bool over_queued; /* blocks that wait to be written */
	/* blocks that wait to be written, of users with many segments */
	bool over_rich;
	/* Blocks of users with more segments than their guarantee needs, as far
	 * as they exceed the guarantee in bytes. */
	bool over_scattered;
	bool sheds;    /* evict blocks that wait to be written, no idle ones */
	bool own_only; /* if @sheds: evict only blocks of the taker */
	bool beside;   /* evict only in segments with kept slots */
};

static bool may_evict(void *arg, uint32_t number)
{
	struct kv_cache *cache = arg;
	struct kv_block *block = kv_table_at(&cache->table, number);

	if (!kv_slot_idle(block->slot))
		return false;
	/* An open, removed block can still be read from SSD. */
	if (block->file != KV_NONE)
		return true;
	/* The block has no copy on SSD: it is needed by open files, and by a
	 * flush that waits for its write. */
	return !block->refs &&
	       block->slot->seq > block->slot->list->space->asked_seq;
}

/* Free the slot of a READY block: the block stays on SSD, or is removed. */
static void block_drop_dram_locked(struct kv_cache *cache,
				   struct kv_block *block)
{
	kv_assert_locked(&cache->lock);
	kv_evicted_locked(cache, DRAM, block);
	KV_POINT("evict.dram");
	if (block->file == KV_NONE) {
		cache->stats.evicted_last++;
		kv_cause_note_block(cache, block,
				    block->flags & BLOCK_QUEUED
					    ? KV_CAUSE_ROOM
					    : KV_CAUSE_EVICTED_DRAM);
		kv_evict_list_gone(cache, block->slot->list, block);
		kv_block_remove_locked(cache, block);
		return;
	}
	kv_slot_give_locked(cache, block->slot);
}

static bool may_give(const struct kv_evict_list *list,
		     const struct kv_giving *giving)
{
	const struct need *need = (const struct need *)giving;

	if (!need->sheds)
		return list->idle;
	return (!need->own_only || list->space == giving->taker) &&
	       (need->over_queued || list->space->no_room);
}

static bool queued_gives_way(const struct kv_slot *slot)
{
	return !slot->pinned && !slot->leases && !slot->holds &&
	       !slot->block->refs && (slot->block->flags & BLOCK_QUEUED) &&
	       !kv_write_must(slot);
}

struct search {
	const struct need *need;
	unsigned tried;
	bool over; /* the search ended: too many blocks were tried */
};

/* Return true to stop the search at block @number: it may be evicted, or too
 * many blocks were tried. */
static bool may_take(void *arg, uint32_t number)
{
	struct search *search = arg;
	const struct need *need = search->need;
	struct kv_cache *cache = need->giving.cache;
	const struct kv_slot *slot = kv_table_at(&cache->table, number)->slot;

	if (!need->sheds && !may_evict(cache, number))
		return false;
	if (need->sheds ? queued_gives_way(slot)
			: !need->beside || slot->segment->kept)
		return true;
	search->over |=
		++search->tried > (need->sheds ? QUEUED_TRIED : COLD_TRIED);
	return search->over;
}

static bool evict_from(struct kv_evict_list *list,
		       const struct kv_giving *giving)
{
	const struct need *need = (const struct need *)giving;
	struct kv_cache *cache = giving->cache;
	struct search search = {.need = need};
	uint32_t victim = kv_policy_victim(&list->policy, may_take, &search);
	struct kv_block *block;

	if (victim == KV_NONE || search.over)
		return false;
	block = kv_table_at(&cache->table, victim);
	if (need->sheds) {
		kv_write_dequeue_locked(cache, block);
		kv_cause_note_block(cache, block, KV_CAUSE_ROOM);
		cache->stats.dropped_saves++;
	}
	block_drop_dram_locked(cache, block);
	return true;
}

/* Describe the need of @space, which may be NULL, for a slot in DRAM. */
static struct need need_of(struct kv_cache *cache, const struct kv_space *space,
			   const struct kv_tenant *tenant)
{
	return (struct need){.giving = {.cache = cache,
					.taker = space,
					.tenant = tenant,
					.may = may_give,
					.evict = evict_from}};
}

static bool evict_one(const struct need *for_whom, const struct kv_space *but)
{
	struct need need = *for_whom;

	need.giving.but = but;
	return need.class->idle &&
	       kv_victim_evict(&need.class->lists, &need.giving);
}

bool kv_dram_evict_own_locked(struct kv_cache *cache, struct kv_space *space)
{
	const struct need need = need_of(cache, space, space->tenant);

	kv_assert_locked(&cache->lock);
	return kv_victim_evict_own(space, DRAM, &need.giving);
}

bool kv_dram_evict_tenant_locked(struct kv_cache *cache,
				 const struct kv_tenant *tenant,
				 const struct kv_space *space)
{
	const struct need need = need_of(cache, space, tenant);

	kv_assert_locked(&cache->lock);
	return kv_victim_evict_tenant(tenant, DRAM, &need.giving);
}

bool kv_dram_shed_own_locked(struct kv_cache *cache, struct kv_space *space)
{
	struct need need = need_of(cache, space, space->tenant);

	kv_assert_locked(&cache->lock);
	if (!cache->ssd.error && !cache->ssd.stalled)
		return false;
	need.over_queued = cache->ssd.error;
	need.sheds = true;
	return kv_victim_evict_own(space, DRAM, &need.giving) ||
	       kv_victim_evict_tenant(space->tenant, DRAM, &need.giving);
}

static bool may_leave(const struct need *need, const struct kv_slot *slot)
{
	const struct kv_space *space = slot->list->space;

	if (slot->state != SLOT_READY)
		return false;
	if (may_evict(need->giving.cache, slot->block->number))
		return true;
	/* A pinned block may leave DRAM if it is on SSD. */
	if (need->over_pins && slot->pinned && !slot->leases && !slot->holds &&
	    slot->block->file != KV_NONE &&
	    !(slot->block->flags & BLOCK_REMOVED))
		return true;
	return (need->over_queued || space->no_room ||
		(need->over_rich &&
		 kv_tenant_is_rich(space->tenant, need->giving.tenant))) &&
	       queued_gives_way(slot);
}

/* Return whether @need allows evicting blocks that are not idle. */
static bool forces(const struct need *need)
{
	return need->over_scattered || need->over_rich;
}

/* Return whether evicting all blocks of @segment respects all guarantees. */
static bool may_empty(const struct need *need, struct kv_segment *segment)
{
	uint64_t bytes = segment->class->slot_bytes;
	uint32_t looked = 0;
	bool may = true;

	if (!forces(need) && segment->idle + segment->free < segment->slots)
		return false;
	while (may && looked < segment->slots) {
		struct kv_slot *slot = &segment->slot[looked++];
		struct kv_tenant *tenant;
		struct kv_space *space;

		if (slot->state == SLOT_FREE)
			continue;
		space = slot->list->space;
		tenant = space->tenant;
		space->in[DRAM].leaving += bytes;
		tenant->in[DRAM].leaving += bytes;
		may = may_leave(need, slot) &&
		      ((need->over_scattered && tenant != need->giving.tenant &&
			tenant->segments >
				kv_guaranteed_segments(need->giving.cache,
						       tenant)) ||
		       kv_keeps_guarantee(DRAM, space, need->giving.taker,
					  need->giving.tenant, 0));
	}
	for (uint32_t i = 0; i < looked; i++)
		if (segment->slot[i].state != SLOT_FREE) {
			struct kv_space *space = segment->slot[i].list->space;

			space->in[DRAM].leaving = 0;
			space->tenant->in[DRAM].leaving = 0;
		}
	return may;
}

/* Return the coldest list of the other classes. */
static struct kv_coldest coldest_of_others(const struct need *need)
{
	struct kv_coldest coldest = {0};
	struct kv_class *class;

	LIST_FOREACH(class, &need->giving.cache->arena.classes, link)
		if (class != need->class && class->n_segments && class->idle)
			kv_victim_look(&class->lists, &need->giving, &coldest);
	return coldest;
}

/*
 * Choose a segment of @class that can be emptied: the segment with the next
 * victim of @coldest, or any segment if that is NULL; with over_scattered, the
 * segment with the fewest blocks.  NULL: no segment can be emptied.
 */
static struct kv_segment *segment_of(const struct need *need,
				     struct kv_class *class,
				     struct kv_evict_list *coldest)
{
	struct kv_cache *cache = need->giving.cache;
	struct kv_segment *segment, *best = NULL;
	unsigned tried = 0;
	uint32_t victim;

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

/* Give @segment, a vacant segment of another class, to the class in need.  If
 * users of the other class have it mapped, retire it instead, so that a new one
 * can be made. */
static bool take_over(const struct need *need, struct kv_segment *segment)
{
	const struct kv_class *old = segment->class, *new = need->class;
	struct kv_cache *cache = need->giving.cache;

	if (old->uid != new->uid || old->gid != new->gid ||
	    old->read_bits != new->read_bits) {
		kv_segment_retire_locked(cache, segment);
		return true;
	}
	return kv_segment_use(cache, segment, need->class) == 0;
}

/* Empty a segment of the coldest other class, or else of any other class. */
static bool steal(const struct need *need)
{
	struct kv_cache *cache = need->giving.cache;
	struct kv_evict_list *coldest = coldest_of_others(need).list;
	struct kv_segment *segment = NULL;
	struct kv_class *class;

	if (coldest)
		segment = segment_of(need, coldest->class, coldest);
	LIST_FOREACH(class, &cache->arena.classes, link) {
		if (segment)
			break;
		if (class != need->class && (class->idle || forces(need)))
			segment = segment_of(need, class, NULL);
	}
	if (!segment)
		return false;
	for (uint32_t i = 0; i < segment->slots; i++) {
		struct kv_slot *slot = &segment->slot[i];

		if (slot->state != SLOT_READY)
			continue;
		cache->stats.dropped_saves +=
			(slot->block->flags & BLOCK_QUEUED) != 0;
		block_drop_dram_locked(cache, slot->block);
	}
	if (segment->free != segment->slots)
		return true; /* an open file kept a slot: try another segment */
	return take_over(need, segment);
}

static struct kv_slot *free_slot(struct kv_class *class)
{
	struct kv_segment *segment = TAILQ_FIRST(&class->segments);

	/* Segments with free slots are at the front. */
	return segment && segment->free ? TAILQ_FIRST(&segment->free_list)
					: NULL;
}

/* Return a vacant segment of another class, or NULL. */
static struct kv_segment *vacant_segment(const struct need *need)
{
	const struct kv_arena *arena = &need->giving.cache->arena;
	struct kv_segment *segment;
	struct kv_class *class;

	if (!arena->vacant)
		return NULL;
	/* Segments with free slots are at the front. */
	LIST_FOREACH(class, &arena->classes, link)
		TAILQ_FOREACH(segment, &class->segments, link)
			if (!segment->free)
				break;
			else if (class != need->class &&
				 segment->free == segment->slots)
				return segment;
	return NULL;
}

/* Free a slot of the class; return false if that is impossible now. */
static bool make_room(struct need *need)
{
	struct kv_cache *cache = need->giving.cache;
	struct kv_segment *vacant = vacant_segment(need);
	struct need scattered = *need, shed;
	struct kv_coldest other, own = {0};
	const struct kv_class *cold;

	if (vacant && take_over(need, vacant))
		return true;
	scattered.over_scattered = true;
	if (need->entitled && (evict_one(need, need->giving.taker) ||
			       steal(need) || steal(&scattered)))
		return true;
	/* A class takes a segment of a class with more segments, if the blocks
	 * of the latter are much colder. */
	other = coldest_of_others(need);
	cold = other.list ? other.list->class : NULL;
	if (cold && need->class->n_segments < cold->n_segments) {
		kv_victim_look(&need->class->lists, &need->giving, &own);
		if (other.age / 2 > own.age && steal(need))
			return true;
	}
	if (evict_one(need, NULL) || steal(need))
		return true;
	/* While the SSD fails, a block that waits to be written is evicted for
	 * a new block; it is always evicted for a guarantee. */
	need->over_queued = cache->ssd.error || need->entitled;
	if (need->over_queued || cache->ssd.stalled) {
		shed = *need;
		shed.sheds = true;
		/* A space without room on SSD evicts its own blocks first. */
		shed.own_only = shed.giving.taker->no_room && !shed.entitled;
		if (shed.own_only &&
		    kv_victim_evict(&shed.class->lists, &shed.giving))
			return true;
		shed.own_only = false;
		if (kv_victim_evict(&shed.class->lists, &shed.giving))
			return true;
	}
	need->over_pins = need->class->n_segments == 0;
	need->over_rich = true;
	return steal(need);
}

static struct kv_slot *free_beside(const struct need *need)
{
	struct kv_segment *segment;

	TAILQ_FOREACH(segment, &need->class->segments, link)
		if (segment->kept && segment->free)
			return TAILQ_FIRST(&segment->free_list);
	return NULL;
}

/* Find or free a slot in a segment that has kept slots already, because users
 * are guaranteed the other segments.  NULL: no such slot. */
static struct kv_slot *slot_beside(const struct need *for_whom)
{
	struct need need = *for_whom;
	struct kv_cache *cache = need.giving.cache;
	struct kv_slot *slot = free_beside(&need);
	struct kv_segment *segment;
	unsigned tried = 0;

	if (slot)
		return slot;
	need.beside = true;
	if (need.class->idle &&
	    kv_victim_evict(&need.class->lists, &need.giving))
		return free_beside(&need);
	TAILQ_FOREACH(segment, &need.class->segments, link) {
		if (!segment->kept || !segment->idle)
			continue;
		for (uint32_t i = 0; i < segment->slots && tried < SLOTS_TRIED;
		     i++, tried++) {
			slot = &segment->slot[segment->hand];
			segment->hand = (segment->hand + 1) % segment->slots;
			if (slot->state != SLOT_READY ||
			    !kv_victim_gives(slot->list, &need.giving) ||
			    !may_evict(cache, slot->block->number))
				continue;
			block_drop_dram_locked(cache, slot->block);
			return slot;
		}
	}
	return NULL;
}

struct kv_slot *kv_dram_evict_for_locked(struct kv_cache *cache,
					 struct kv_class *class,
					 struct kv_space *space)
{
	struct kv_arena *arena = &cache->arena;
	struct kv_segment *spare = TAILQ_FIRST(&arena->spare);
	struct kv_slot *slot = free_slot(class);
	struct need need = need_of(cache, space, space->tenant);

	kv_assert_locked(&cache->lock);
	need.class = class;
	if (!kv_tenant_may_keep(cache, class->tenant))
		return slot_beside(&need);
	if (slot)
		return slot;
	if (spare) {
		TAILQ_REMOVE(&arena->spare, spare, link);
		if (kv_segment_use(cache, spare, class) < 0)
			TAILQ_INSERT_TAIL(&arena->spare, spare, link);
		return free_slot(class);
	}
	if (arena->growing)
		return NULL;
	need.entitled = kv_entitled(DRAM, space, class->slot_bytes);
	return make_room(&need) ? free_slot(class) : NULL;
}

bool kv_dram_fit_quota_locked(struct kv_cache *cache, struct kv_space *space,
			      uint64_t bytes)
{
	const struct kv_tenant *tenant = space->tenant;
	const struct kv_node *own = &space->in[DRAM], *all = &tenant->in[DRAM];
	uint64_t most = space->quota.quota_dram;
	uint64_t of_all = tenant->quota.quota_dram;

	kv_assert_locked(&cache->lock);
	if ((most && bytes > most) || (of_all && bytes > of_all))
		return false;
	while (most && own->bytes + own->coming + bytes > most)
		if (!kv_dram_evict_own_locked(cache, space))
			return false;
	while (of_all && all->bytes + all->coming + bytes > of_all)
		if (!kv_dram_evict_tenant_locked(cache, tenant, space))
			return false;
	return true;
}
