/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.c - who makes place on SSD: a victim of the same size of slots, or a
 * whole file of another size.
 *
 * OWNS       nothing; it decides.  It keeps count of the files it has tried.
 *
 * INVARIANTS
 *   (1) Nobody's need takes a space below what it is guaranteed but its own.
 *   (2) A space that has less than it is guaranteed takes from others, and
 *       gives nothing up while others have more than they are guaranteed, be
 *       it in use for the moment.  It does when all that others have is theirs
 *       by right: guaranteed, pinned, or in one file with such.
 *   (3) Of blocks that may go, those that are in DRAM, too, are passed over
 *       unless they are many: what goes is to be gone from all tiers, and not
 *       to be there still, but no longer durable.
 *   (4) Room in the index is made by the user who has most records beyond what
 *       he is guaranteed: many small blocks of one drive out his own.
 *   (5) A whole file is given by a user who has more of them than his quota
 *       fills, or else by the one who has most of those who may give, whoever
 *       asks for it: many sizes of one drive out his own.  What must not go is
 *       moved out of it, if no other can be had.
 *
 * LOCKING    cache->lock; let go of only to ask the index what a file holds.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/list.h"
#include "cache/core/marks.h"
#include "cache/core/slot.h"
#include "cache/core/spaces.h"
#include "cache/core/table.h"
#include "cache/core/tenant.h"
#include "common/crash_point.h"

#define FILES_TRIED 4 /* at once */
#define PATIENCE_NS 5000000000u
#define PASSED_OVER 64 /* blocks in DRAM, for one victim */

/* How the emptying of a file may end. */
enum outcome { EMPTIED, IN_USE, KEPT };

/* Not this file, but there are more. */
#define MORE 2

struct search {
	struct kv_cache *cache;
	unsigned passed_over;
};

static bool may_go(const struct kv_block *block)
{
	return !block->refs &&
	       !(block->flags & (BLOCK_PINNED | BLOCK_REMOVED)) &&
	       (!block->slot || kv_slot_idle(block->slot));
}

static bool is_victim(void *arg, uint32_t number)
{
	struct search *search = arg;
	struct kv_block *block = kv_table_at(&search->cache->table, number);

	if (!may_go(block))
		return false;
	return !block->slot || search->passed_over++ >= PASSED_OVER;
}

bool kv_block_was_durable(struct kv_cache *cache, const struct kv_space *space,
			  const struct kv_key *key)
{
	bool was;

	kv_lock(cache);
	was = kv_marks_find(cache->ssd.evicted, KV_EVICTED_KNOWN,
			    kv_key_hash(cache, space, key->b));
	kv_unlock(cache);
	return was;
}

static void evict(struct kv_cache *cache, struct kv_block *block)
{
	const struct kv_space *space = kv_block_space(cache, block);

	kv_marks_set(cache->ssd.evicted, KV_EVICTED_KNOWN,
		     kv_key_hash(cache, space, block->key));
	cache->stats.evicted_ssd++;
	KV_POINT("evict.ssd");
	if (block->slot) {
		kv_extent_detach_locked(cache, block);
		kv_unpersisted_add_locked(cache, block->slot);
	} else {
		kv_evict_list_gone(cache, kv_evict_list_ssd(cache, block),
				   block);
		kv_block_remove_locked(cache, block);
	}
}

/* Where most of what a space has on SSD is in DRAM, too, its order counts. */
static bool passes_over(const struct kv_space *space)
{
	return space->bytes_ssd / 2 > space->bytes_dram;
}

/* For whom place is made. */
struct need {
	struct kv_cache *cache;
	const struct kv_space *taker; /* NULL: nobody, or all of the tenant's */
	const struct kv_space *but;   /* gives nothing; NULL: all do */
	const struct kv_tenant *tenant;
};

static struct need need_of(struct kv_cache *cache, const struct kv_space *taker,
			   const struct kv_space *but)
{
	return (struct need){cache, taker, but, taker ? taker->tenant : NULL};
}

/* A tenant's guarantee is spared as the space's own is. */
static bool is_spared(const struct kv_space *space, const struct kv_space *but)
{
	const struct kv_tenant *tenant = space->tenant;

	return but &&
	       (space == but || (tenant == but->tenant &&
				 tenant->bytes_ssd + tenant->writing_ssd <
					 tenant->guaranteed_ssd));
}

static bool gives(const struct kv_evict_list *list, const void *arg)
{
	const struct need *need = arg;
	const struct kv_space *space = list->space;
	const struct kv_tenant *tenant = space->tenant;
	const struct kv_ssd_class *class = list->class;

	if (is_spared(space, need->but))
		return false;
	if (space == need->taker)
		return true;
	return space->bytes_ssd >= space->guaranteed_ssd + class->slot_bytes &&
	       (tenant == need->tenant ||
		tenant->bytes_ssd >=
			tenant->guaranteed_ssd + class->slot_bytes);
}

static bool evict_from(struct kv_evict_list *list, const void *arg)
{
	struct kv_cache *cache = ((const struct need *)arg)->cache;
	struct search search = {
		.cache = cache,
		.passed_over = passes_over(list->space) ? 0 : PASSED_OVER,
	};
	uint32_t victim = kv_policy_victim(&list->policy, is_victim, &search);

	/* There are few, and all of them are in DRAM. */
	if (victim == KV_NONE && search.passed_over) {
		search.passed_over = PASSED_OVER;
		victim = kv_policy_victim(&list->policy, is_victim, &search);
	}
	if (victim == KV_NONE)
		return false;
	evict(cache, kv_table_at(&cache->table, victim));
	return true;
}

/* Look at what the lists of @class may give, too. */
static void look_at(const struct kv_ssd_class *class,
		    const struct kv_space *taker, const struct kv_space *but,
		    struct kv_coldest *coldest)
{
	const struct need need = need_of(NULL, taker, but);
	const struct kv_giving giving = {gives, evict_from, &need};

	kv_victim_look(&class->lists, &giving, coldest);
}

static bool can_give(const struct kv_ssd_class *class,
		     const struct kv_space *taker, const struct kv_space *but)
{
	struct kv_coldest coldest = {0};

	look_at(class, taker, but, &coldest);
	return coldest.list;
}

static bool evict_one(struct kv_cache *cache, const struct kv_ssd_class *class,
		      const struct kv_space *taker, const struct kv_space *but)
{
	const struct need need = need_of(cache, taker, but);
	const struct kv_giving giving = {gives, evict_from, &need};

	return kv_victim_evict(&class->lists, &giving);
}

bool kv_ssd_evict_own_locked(struct kv_cache *cache, struct kv_space *space)
{
	const struct need need = need_of(cache, space, NULL);
	const struct kv_giving giving = {gives, evict_from, &need};

	kv_assert_locked(&cache->lock);
	return kv_victim_evict_own(&space->ssd_lists, &giving);
}

bool kv_ssd_evict_tenant_locked(struct kv_cache *cache,
				const struct kv_tenant *tenant,
				const struct kv_space *space)
{
	const struct need need = {
		.cache = cache, .taker = space, .tenant = tenant};
	const struct kv_giving giving = {gives, evict_from, &need};

	kv_assert_locked(&cache->lock);
	return kv_victim_evict_tenant(tenant, true, &giving);
}

/* The blocks whose records name @file; lets go of the lock. */
static size_t blocks_in(struct kv_cache *cache, const struct kv_segfile *file,
			uint32_t *numbers)
{
	uint32_t id = file->id, slots = file->slots;
	struct kv_slot_record record;
	size_t n = 0;

	kv_unlock(cache);
	for (uint32_t slot_number = 0; slot_number < slots; slot_number++) {
		struct kv_key key = {0};
		struct kv_space *space;
		struct kv_block *block;

		if (kv_index_get(cache->index, kv_slot_id(id, slot_number),
				 &record) < 0)
			continue;
		key.len = record.key_len;
		memcpy(key.b, record.key, sizeof(key.b));
		kv_lock(cache);
		space = kv_space_with_id(cache, record.space);
		block = space ? kv_table_find(cache, space, &key) : NULL;
		if (block && block->file == id &&
		    block->slot_number == slot_number)
			numbers[n++] = block->number;
		kv_unlock(cache);
	}
	kv_lock(cache);
	return n;
}

/* Both keep it, the space and its tenant, when they have given what is
 * leaving. */
static bool keeps_its_own(const struct kv_space *space,
			  const struct kv_space *taker)
{
	const struct kv_tenant *tenant = space->tenant;

	if (space == taker)
		return true;
	return (!space->guaranteed_ssd ||
		space->bytes_ssd >= space->guaranteed_ssd + space->leaving) &&
	       ((taker && tenant == taker->tenant) || !tenant->guaranteed_ssd ||
		tenant->bytes_ssd >= tenant->guaranteed_ssd + tenant->leaving);
}

/* Those in @file that must not go for @taker, or are in use, come first of
 * @numbers; how many there are in *@ret_stay. */
static enum outcome may_all_go(struct kv_cache *cache,
			       const struct kv_segfile *file,
			       const struct kv_space *taker, uint32_t *numbers,
			       size_t n, size_t *ret_stay)
{
	const uint64_t bytes = file->slot_bytes;
	enum outcome outcome = EMPTIED;
	size_t stay = 0;

	for (size_t i = 0; i < n; i++) {
		struct kv_block *block = kv_table_at(&cache->table, numbers[i]);
		struct kv_space *space = kv_block_space(cache, block);

		if (block->file != file->id)
			continue; /* gone meanwhile */
		space->leaving += bytes;
		space->tenant->leaving += bytes;
		if (keeps_its_own(space, taker) && may_go(block))
			continue;
		if (!keeps_its_own(space, taker) ||
		    (block->flags & BLOCK_PINNED))
			outcome = KEPT;
		outcome = KV_MAX(outcome, IN_USE);
		space->leaving -= bytes;
		space->tenant->leaving -= bytes;
		numbers[i] = numbers[stay];
		numbers[stay++] = block->number;
	}
	for (size_t i = 0; i < n; i++) {
		struct kv_space *space = kv_block_space(
			cache, kv_table_at(&cache->table, numbers[i]));

		space->leaving = space->tenant->leaving = 0;
	}
	*ret_stay = stay;
	return outcome;
}

/* Is there a place in other files for @stay of the @n blocks of @file, if what
 * may go there does? */
static bool has_place(struct kv_cache *cache, const struct kv_segfile *file,
		      size_t stay, size_t n)
{
	const struct kv_ssd_class *class = file->class;
	const struct need need = need_of(cache, NULL, NULL);
	const struct kv_evict_list *list;
	uint64_t place = class->free, taken = n - stay;

	if (!file->closed)
		taken += file->slots - file->used;
	TAILQ_FOREACH(list, &class->lists, link) {
		if (!list->blocks)
			break; /* empty ones are last */
		if (gives(list, &need))
			place += list->blocks;
	}
	return place >= taken + stay;
}

/* It cannot be emptied: but vacated, maybe. */
static void note_best(struct kv_cache *cache, struct kv_segfile *file,
		      size_t stay, size_t n)
{
	struct kv_moves *moves = &cache->ssd.moves;
	/* With those being written, and those that are nobody's any more. */
	const uint64_t bytes = (file->used - (n - stay)) * file->slot_bytes;

	if (file->closed || file->until > kv_now_ns() ||
	    (moves->best && bytes >= moves->best_bytes) ||
	    !has_place(cache, file, stay, n))
		return;
	moves->best = file;
	moves->best_bytes = bytes;
}

static bool evict_all(struct kv_cache *cache, const struct kv_segfile *file,
		      const uint32_t *numbers, size_t n)
{
	bool any = false;

	for (size_t i = 0; i < n; i++) {
		struct kv_block *block = kv_table_at(&cache->table, numbers[i]);

		if (block->file != file->id)
			continue;
		evict(cache, block);
		any = true;
	}
	return any;
}

size_t kv_ssd_empty_file(struct kv_cache *cache, struct kv_segfile *file,
			 uint32_t *numbers)
{
	const size_t n = blocks_in(cache, file, numbers);
	size_t stay;

	kv_assert_locked(&cache->lock);
	if (may_all_go(cache, file, NULL, numbers, n, &stay) == EMPTIED)
		(void)evict_all(cache, file, numbers, n);
	return stay;
}

static enum outcome empty_file(struct kv_cache *cache, struct kv_segfile *file,
			       const struct kv_space *taker)
{
	_cleanup_(kv_freep) uint32_t *numbers =
		malloc(file->slots * sizeof(*numbers));
	enum outcome outcome;
	size_t n, stay;

	if (!numbers)
		return KEPT;
	n = blocks_in(cache, file, numbers);
	outcome = may_all_go(cache, file, taker, numbers, n, &stay);
	if (outcome != EMPTIED) {
		note_best(cache, file, stay, n);
		return outcome;
	}
	/* The index does not know yet what is being written to it. */
	return !evict_all(cache, file, numbers, n) && file->used ? IN_USE
								 : EMPTIED;
}

/* Even with @bytes more it has no more than it is guaranteed: others give
 * first. */
static bool entitled(const struct kv_space *taker, uint64_t bytes)
{
	const struct kv_tenant *tenant = taker ? taker->tenant : NULL;

	return taker && (taker->bytes_ssd + taker->writing_ssd + bytes <=
				 taker->guaranteed_ssd ||
			 tenant->bytes_ssd + tenant->writing_ssd + bytes <=
				 tenant->guaranteed_ssd);
}

/* Does @list give before @other, which may be NULL?  Of one user the one that
 * is colder does. */
static bool gives_first(const struct kv_cache *cache,
			const struct kv_evict_list *list,
			const struct kv_evict_list *other,
			const struct kv_space *taker)
{
	const struct kv_tenant *a = list->space->tenant, *b;

	if (!other)
		return true;
	b = other->space->tenant;
	if (a == b)
		return kv_policy_age(&list->policy) >
		       kv_policy_age(&other->policy);
	if (kv_ssd_over_quota(cache, a) != kv_ssd_over_quota(cache, b))
		return kv_ssd_over_quota(cache, a);
	return a->files > b->files ||
	       (a->files == b->files && taker && a == taker->tenant);
}

/* The class whose files are tried next: one of the user who has most of them,
 * or more than his quota; NULL: all have been. */
static struct kv_ssd_class *class_to_try(const struct kv_cache *cache,
					 const struct kv_ssd_class *but,
					 const struct kv_space *taker,
					 const struct kv_space *spared)
{
	const struct need need = need_of(NULL, taker, spared);
	const struct kv_evict_list *list, *first = NULL;
	struct kv_ssd_class *class, *still = NULL;

	kv_ssd_count_files_locked(cache, taker);
	LIST_FOREACH(class, &cache->ssd.classes, link) {
		if (class == but || class->tried >= class->n_files)
			continue;
		/* What must not go may be moved together. */
		if (class->n_files > 1)
			still = class;
		TAILQ_FOREACH(list, &class->lists, link) {
			if (!list->blocks)
				break; /* empty ones are last */
			if (gives(list, &need) &&
			    gives_first(cache, list, first, taker))
				first = list;
		}
	}
	return first ? first->class : still;
}

/* Files with room are in front: least is lost with them. */
static unsigned files_to_try(const struct kv_ssd_class *class, uint32_t *ids)
{
	const struct kv_segfile *file;
	unsigned n = 0, at = 0;

	TAILQ_FOREACH(file, &class->files, link) {
		if (n == FILES_TRIED)
			break;
		if (at++ >= class->tried)
			ids[n++] = file->id;
	}
	return n;
}

static void begin_anew(struct kv_cache *cache)
{
	struct kv_ssd_class *class;

	LIST_FOREACH(class, &cache->ssd.classes, link)
		class->tried = 0;
	cache->ssd.tried_in_use = false;
	cache->ssd.moves.best = NULL;
}

/*
 * Empty a file of another class than @but; lets go of the lock.  1: done; MORE;
 * 0: none can be; -EBUSY: none now, for what is in use.
 */
static int evict_file(struct kv_cache *cache, const struct kv_ssd_class *but,
		      const struct kv_space *taker,
		      const struct kv_space *spared)
{
	struct kv_ssd_class *class = class_to_try(cache, but, taker, spared);
	uint32_t ids[FILES_TRIED];
	unsigned n;
	int r;

	if (!class) {
		r = kv_vacate_locked(cache, cache->ssd.moves.best,
				     taker->tenant) ||
				    cache->ssd.tried_in_use
			    ? -EBUSY
			    : 0;
		begin_anew(cache);
		return r;
	}
	n = files_to_try(class, ids);
	class->tried += FILES_TRIED;
	for (unsigned i = 0; i < n; i++) {
		struct kv_segfile *file = kv_segfile_at(cache, ids[i]);
		enum outcome outcome = IN_USE;

		if (file && !kv_extents_is_kept(file, NULL))
			outcome =
				empty_file(cache, file, spared ? NULL : taker);
		if (outcome == EMPTIED) {
			kv_extents_close_file(file, taker->tenant,
					      kv_now_ns() + PATIENCE_NS);
			begin_anew(cache);
			return 1;
		}
		cache->ssd.tried_in_use |= outcome == IN_USE;
	}
	return MORE;
}

uint64_t kv_leaving_locked(const struct kv_cache *cache)
{
	const struct kv_ssd_class *class;
	uint64_t n = 0;

	kv_assert_locked(&cache->lock);
	LIST_FOREACH(class, &cache->ssd.classes, link)
		n += class->leaving;
	return n;
}

static bool evict_coldest(struct kv_cache *cache, const struct kv_space *taker,
			  const struct kv_space *but)
{
	struct kv_coldest coldest = {0};
	struct kv_ssd_class *class, *first;

	LIST_FOREACH(class, &cache->ssd.classes, link)
		look_at(class, taker, but, &coldest);
	first = coldest.list ? coldest.list->class : NULL;
	if (first && evict_one(cache, first, taker, but))
		return true;
	/* All of it is in use. */
	LIST_FOREACH(class, &cache->ssd.classes, link)
		if (class != first && evict_one(cache, class, taker, but))
			return true;
	return false;
}

/* He who has most of the index of those who may give; NULL: nobody may. */
static struct kv_tenant *richest(struct kv_cache *cache,
				 const struct need *need)
{
	struct kv_tenant *tenant, *best = NULL;
	const struct kv_evict_list *list;
	const struct kv_ssd_class *class;

	LIST_FOREACH(tenant, &cache->tenants, link)
		tenant->records = 0;
	LIST_FOREACH(class, &cache->ssd.classes, link)
		TAILQ_FOREACH(list, &class->lists, link) {
			if (!list->blocks)
				break; /* empty ones are last */
			if (gives(list, need))
				list->space->tenant->records +=
					list->blocks + list->writing;
		}
	LIST_FOREACH(tenant, &cache->tenants, link)
		if (tenant->records > (best ? best->records : 0))
			best = tenant;
	return best;
}

/* A record has its size whatever the block's is, so that bytes do not tell who
 * fills the index. */
static bool evict_record(struct kv_cache *cache, const struct kv_space *taker,
			 const struct kv_space *but)
{
	const struct need need = need_of(cache, taker, but);
	const struct kv_giving giving = {gives, evict_from, &need};
	const struct kv_tenant *tenant = richest(cache, &need);

	return tenant && (kv_victim_evict_tenant(tenant, true, &giving) ||
			  evict_coldest(cache, taker, but));
}

bool kv_ssd_evict_record_locked(struct kv_cache *cache, struct kv_space *taker)
{
	const struct kv_space *spared = entitled(taker, 0) ? taker : NULL;

	kv_assert_locked(&cache->lock);
	return evict_record(cache, taker, spared) ||
	       (spared && evict_record(cache, taker, NULL));
}

bool kv_ssd_evict_one_locked(struct kv_cache *cache, struct kv_ssd_class *class,
			     struct kv_space *taker)
{
	kv_assert_locked(&cache->lock);
	return evict_one(cache, class, taker,
			 entitled(taker, class->slot_bytes) ? taker : NULL);
}

/* Has anybody else more than he is guaranteed? */
static bool others_could(const struct kv_cache *cache,
			 const struct kv_space *taker)
{
	const struct kv_ssd_class *class;

	LIST_FOREACH(class, &cache->ssd.classes, link)
		if (can_give(class, taker, taker))
			return true;
	return false;
}

/* @taker gives up what is its own.  If others' blocks fill a file but for some
 * of its own, that file is what costs it least. */
static bool give_way(struct kv_cache *cache, struct kv_ssd_class *class,
		     const struct kv_space *taker)
{
	int r;

	if (!others_could(cache, taker) && evict_one(cache, class, taker, NULL))
		return true;
	do
		r = evict_file(cache, class, taker, NULL);
	while (r == MORE);
	return r > 0 || evict_one(cache, class, taker, NULL);
}

/* All blocks of some size are gone: their files are about to be nobody's. */
static bool will_be_empty(const struct kv_cache *cache)
{
	const struct kv_evict_list *list;
	const struct kv_ssd_class *class;

	LIST_FOREACH(class, &cache->ssd.classes, link) {
		uint64_t slots = 0;

		if (!class->leaving)
			continue;
		TAILQ_FOREACH(list, &class->lists, link)
			slots += kv_ssd_slots(list);
		if (!slots)
			return true;
	}
	return false;
}

/* A file is being emptied, for @taker or by who moves blocks.  What was being
 * written to it when it was closed goes, too. */
static bool is_on_its_way(struct kv_cache *cache, const struct kv_space *taker)
{
	struct kv_segfile *file = kv_extents_awaited_file(cache, taker->tenant);

	if (cache->ssd.moves.vacating)
		return true;
	if (file && file->used && !kv_leaving_locked(cache))
		(void)empty_file(cache, file, NULL);
	return file || will_be_empty(cache);
}

int kv_ssd_evict_for(struct kv_cache *cache, struct kv_ssd_class *class,
		     struct kv_space *taker)
{
	const bool due = entitled(taker, class->slot_bytes);
	int r;

	if (class->leaving || kv_ssd_evict_one_locked(cache, class, taker))
		return 0;
	r = is_on_its_way(cache, taker)
		    ? -EBUSY
		    : evict_file(cache, class, taker, due ? taker : NULL);
	if (r > 0)
		return 0;
	/* Others of its size have more than is theirs, but in use. */
	if (due && can_give(class, taker, taker))
		r = -EBUSY;
	if ((r < 0 || kv_leaving_locked(cache)) &&
	    kv_patient(&taker->patience, PATIENCE_NS))
		return 0;
	if (r < 0 || !due)
		return -ENOSPC;
	return give_way(cache, class, taker) ? 0 : -ENOSPC;
}

/* The end of a quota: waiting helps where others' writes are under way. */
static int at_quota(const struct kv_cache *cache, uint64_t writing)
{
	return writing && !cache->ssd.stop ? -EBUSY : -EDQUOT;
}

int kv_ssd_fit_quota_locked(struct kv_cache *cache, struct kv_space *space,
			    uint64_t bytes)
{
	const struct kv_tenant *tenant = space->tenant;
	uint64_t most = space->quota.quota_ssd;
	uint64_t of_all = tenant->quota.quota_ssd;

	kv_assert_locked(&cache->lock);
	/* At the end nothing more comes that is worth a victim. */
	while (most && space->bytes_ssd + space->writing_ssd + bytes > most)
		if (cache->ssd.stop || !kv_ssd_evict_own_locked(cache, space))
			return at_quota(cache, space->writing_ssd);
	if (of_all && bytes > of_all)
		return -EDQUOT;
	while (of_all &&
	       tenant->bytes_ssd + tenant->writing_ssd + bytes > of_all)
		if (cache->ssd.stop ||
		    !kv_ssd_evict_tenant_locked(cache, tenant, space))
			return at_quota(cache, tenant->writing_ssd);
	return 0;
}
