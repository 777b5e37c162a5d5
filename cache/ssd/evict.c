/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.c - who makes place on SSD: a victim of the same size of slots, or a
 * whole file of another size.
 *
 * OWNS       nothing; it decides.
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
 *   (5) A space that can evict no block of a size gets a whole file for it: of
 *       a user who has more files than the quota fills, or else of the user who
 *       has most of those who may give, whoever asks: many sizes of one user
 *       drive out that user's own.  Blocks that must not go are moved.
 *   (6) A space that can evict blocks of a size gets a file if another size has
 *       blocks to fill HYSTERESIS files that are colder than all of the former,
 *       or only such blocks; a user with more files than the quota fills gets
 *       only the user's own.  Colder blocks of the other size are evicted,
 *       wherever they are, and warmer ones in the file are moved.  A file thus
 *       does not change its class again until the use of the sizes has changed
 *       by as many files.
 *
 * LOCKING    cache->lock; a walk through the slots of a file releases it every
 *            SLOTS_AT_ONCE slots.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/list.h"
#include "cache/core/marks.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/core/ledger.h"
#include "common/crash_point.h"

#define SLOTS_AT_ONCE 1024u
#define PATIENCE_NS 5000000000u
#define PASSED_OVER 64 /* blocks in DRAM, for one victim */
#define HYSTERESIS 2u  /* files */
#define WAIT_PART 8u   /* of a file: evict it before seeking a file again */

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
	return space->in[SSD].bytes / 2 > space->in[DRAM].bytes;
}

static bool evict_from(struct kv_evict_list *list,
		       const struct kv_giving *giving)
{
	struct kv_cache *cache = giving->cache;
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

/* Return a need of @taker (NULL: nobody's) that spares @but (NULL: nobody). */
static struct kv_giving giving_to(struct kv_cache *cache,
				  const struct kv_space *taker,
				  const struct kv_space *but)
{
	return (struct kv_giving){.cache = cache,
				  .taker = taker,
				  .tenant = taker ? taker->tenant : NULL,
				  .but = but,
				  .evict = evict_from};
}

/* Compare what the lists of @class may give with *@coldest. */
static void look_at(const struct kv_ssd_class *class,
		    const struct kv_space *taker, const struct kv_space *but,
		    struct kv_coldest *coldest)
{
	const struct kv_giving giving = giving_to(NULL, taker, but);

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
	const struct kv_giving giving = giving_to(cache, taker, but);

	return kv_victim_evict(&class->lists, &giving);
}

bool kv_ssd_evict_own_locked(struct kv_cache *cache, struct kv_space *space)
{
	const struct kv_giving giving = giving_to(cache, space, NULL);

	kv_assert_locked(&cache->lock);
	return kv_victim_evict_own(space, SSD, &giving);
}

bool kv_ssd_evict_tenant_locked(struct kv_cache *cache,
				const struct kv_tenant *tenant,
				const struct kv_space *space)
{
	const struct kv_giving giving = {.cache = cache,
					 .taker = space,
					 .tenant = tenant,
					 .evict = evict_from};

	kv_assert_locked(&cache->lock);
	return kv_victim_evict_tenant(tenant, SSD, &giving);
}

/* Put the numbers of the durable blocks of @file into @numbers and return their
 * count.  Releases the lock now and then. */
static size_t blocks_in(struct kv_cache *cache, const struct kv_segfile *file,
			uint32_t *numbers)
{
	const uint32_t room = file->slots;
	size_t n = 0;

	for (uint32_t i = 0; i < file->slots && n < room; i++) {
		const struct kv_block *block = kv_extent_block(cache, file, i);

		if (block)
			numbers[n++] = block->number;
		if (i % SLOTS_AT_ONCE == SLOTS_AT_ONCE - 1)
			kv_yield(cache);
	}
	return n;
}

/* How cold a block must be to be evicted from @file, or for one that is moved
 * out of it: colder than any of the class that gets the file. */
static uint32_t spared_age(const struct kv_segfile *file)
{
	const struct kv_evict_list *list;
	uint32_t age = 0;

	if (!file->spares)
		return 0;
	TAILQ_FOREACH(list, &file->heir->lists, link)
		if (list->blocks)
			age = KV_MAX(age, kv_policy_age(&list->policy));
	return age;
}

/* Those of @numbers that are to be moved out of @file come first; return how
 * many they are. */
static size_t sort_stay(struct kv_cache *cache, const struct kv_segfile *file,
			uint32_t *numbers, size_t n)
{
	const struct kv_space *taker = kv_space_with_id(cache, file->taker);
	const uint32_t age = spared_age(file);
	const uint64_t bytes = file->slot_bytes;
	size_t stay = 0;

	for (size_t i = 0; i < n; i++) {
		struct kv_block *block = kv_table_at(&cache->table, numbers[i]);
		struct kv_space *space = kv_block_space(cache, block);
		const struct kv_evict_list *list;

		if (block->file != file->id)
			continue; /* gone meanwhile */
		list = kv_evict_list_ssd(cache, block);
		space->in[SSD].leaving += bytes;
		space->tenant->in[SSD].leaving += bytes;
		if (kv_keeps_guarantee(SSD, space, taker) && may_go(block) &&
		    (!age ||
		     kv_policy_age_of(&list->policy, block->number) > age))
			continue;
		space->in[SSD].leaving -= bytes;
		space->tenant->in[SSD].leaving -= bytes;
		numbers[i] = numbers[stay];
		numbers[stay++] = block->number;
	}
	for (size_t i = 0; i < n; i++) {
		struct kv_block *block = kv_table_at(&cache->table, numbers[i]);
		struct kv_space *space = kv_block_space(cache, block);

		if (block->file == file->id)
			space->in[SSD].leaving =
				space->tenant->in[SSD].leaving = 0;
	}
	return stay;
}

size_t kv_ssd_empty_file(struct kv_cache *cache, struct kv_segfile *file,
			 uint32_t *numbers)
{
	const size_t n = blocks_in(cache, file, numbers);
	const size_t stay = sort_stay(cache, file, numbers, n);

	kv_assert_locked(&cache->lock);
	for (size_t i = stay; i < n; i++) {
		struct kv_block *block = kv_table_at(&cache->table, numbers[i]);

		if (block->file == file->id)
			evict(cache, block);
	}
	return stay;
}

bool kv_ssd_evict_beside_locked(struct kv_cache *cache,
				const struct kv_segfile *file)
{
	struct kv_coldest coldest = {0};

	kv_assert_locked(&cache->lock);
	look_at(file->class, NULL, NULL, &coldest);
	return coldest.list && coldest.age > spared_age(file) &&
	       evict_one(cache, file->class, NULL, NULL);
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

/* The file of @class that costs least: of those that may be emptied now, if there
 * are any, one with few blocks, or else the one that has the next victim of
 * @list (NULL: there is none).  NULL: none can be. */
static struct kv_segfile *cheapest_file(struct kv_cache *cache,
					const struct kv_ssd_class *class,
					struct kv_evict_list *list)
{
	struct search search = {.cache = cache, .passed_over = PASSED_OVER};
	const uint64_t now = kv_now_ns();
	struct kv_segfile *file, *least = NULL;
	uint32_t victim;

	TAILQ_FOREACH(file, &class->files, link) {
		if (file->closed || file->unswept || file->sweeping)
			continue;
		if (!least ||
		    (file->until <= now &&
		     (least->until > now || file->used < least->used)))
			least = file;
	}
	if (!least || !list || least->used < least->slots / 2)
		return least;
	victim = kv_policy_victim(&list->policy, is_victim, &search);
	if (victim == KV_NONE)
		return least;
	file = kv_segfile_at(cache, kv_table_at(&cache->table, victim)->file);
	return file->closed || file->unswept || file->sweeping ||
			       file->until > now
		       ? least
		       : file;
}

/*
 * Return whether the class of @file can do without it.  Its blocks must fit into
 * free slots of other files of the class and those of blocks colder than @age.
 * With an @age, the colder blocks must also fill HYSTERESIS files, or be all that
 * the class can give: then the class does not need the file back soon.
 */
static bool can_spare(const struct kv_segfile *file,
		      const struct kv_giving *giving, uint32_t age)
{
	const struct kv_ssd_class *class = file->class;
	const uint64_t free = class->free - (file->slots - file->used);
	const uint32_t enough = age ? HYSTERESIS * file->slots : file->used;
	const struct kv_evict_list *list;
	uint32_t colder = 0, all = 0;

	TAILQ_FOREACH(list, &class->lists, link) {
		if (!list->blocks || colder >= enough)
			break; /* empty lists are last */
		if (!kv_victim_gives(list, giving))
			continue;
		all += list->blocks;
		colder += kv_policy_colder(&list->policy, age, enough - colder);
	}
	return free + colder >= file->used &&
	       (!age || colder >= KV_MIN(all, enough));
}

/* Has @tenant blocks of @class that are being written, and none that are? */
static bool only_writes(const struct kv_ssd_class *class,
			const struct kv_tenant *tenant)
{
	const struct kv_evict_list *list;
	bool writes = false;

	TAILQ_FOREACH(list, &class->lists, link) {
		if (list->space->tenant != tenant)
			continue;
		if (list->blocks)
			return false;
		writes |= list->writing > 0;
	}
	return writes;
}

/* Return whether @tenant will soon have a file of its own to give to @heir: one
 * is being emptied for the tenant, or holds only its writes under way. */
static bool awaits_own_file(const struct kv_cache *cache,
			    const struct kv_ssd_class *heir,
			    const struct kv_tenant *tenant)
{
	const struct kv_ssd_class *class;

	LIST_FOREACH(class, &cache->ssd.classes, link)
		if (kv_ssd_awaiting(cache, class) == tenant ||
		    (class != heir && only_writes(class, tenant)))
			return true;
	return false;
}

/* How files are compared to choose the one that is emptied. */
struct choice {
	struct kv_giving giving;
	uint32_t age;  /* 0: compare users; else only blocks colder than this
			  give, the coldest first */
	bool own_only; /* only the taker's own blocks give */
};

/* Return the list of @class that gives first; NULL: none gives before @best. */
static struct kv_evict_list *first_giver(struct kv_cache *cache,
					 const struct kv_ssd_class *class,
					 const struct choice *choice,
					 struct kv_evict_list *best)
{
	struct kv_evict_list *list, *giver = NULL;
	bool first;

	TAILQ_FOREACH(list, &class->lists, link) {
		if (!list->blocks)
			break; /* empty lists are last */
		if (!kv_victim_gives(list, &choice->giving) ||
		    (choice->own_only &&
		     list->space->tenant != choice->giving.tenant))
			continue;
		if (!choice->age)
			first = gives_first(cache, list, best,
					    choice->giving.taker);
		else
			first = kv_policy_age(&list->policy) >
				(best ? kv_policy_age(&best->policy)
				      : choice->age);
		if (first)
			giver = best = list;
	}
	return giver;
}

/*
 * Choose a file to be emptied for @heir, whose slots @taker needs.  With @age,
 * the blocks that give must be colder.  Without, and if no block may be evicted,
 * choose the file with the fewest bytes, whose blocks other files of the class
 * have room for.  Return NULL if there is none; *@ret_later is then true if one
 * may be chosen later.
 */
static struct kv_segfile *file_to_empty(struct kv_cache *cache,
					const struct kv_ssd_class *heir,
					const struct kv_space *taker,
					const struct kv_space *spared,
					uint32_t age, bool *ret_later)
{
	struct choice choice = {giving_to(NULL, taker, spared), age, false};
	struct kv_segfile *file, *best = NULL, *packed = NULL;
	struct kv_evict_list *giver, *first = NULL;
	struct kv_ssd_class *class;
	bool over_quota;

	kv_ssd_count_files_locked(cache, taker);
	over_quota = kv_ssd_over_quota(cache, taker->tenant);
	*ret_later = over_quota && awaits_own_file(cache, heir, taker->tenant);
	if (*ret_later)
		return NULL;
	choice.own_only = age && over_quota;
	LIST_FOREACH(class, &cache->ssd.classes, link) {
		if (class == heir || !class->n_files)
			continue;
		giver = first_giver(cache, class, &choice, first);
		if (!giver && (age || first || class->n_files < 2))
			continue;
		file = cheapest_file(cache, class, giver);
		if (!file || !can_spare(file, &choice.giving, age))
			continue;
		if (file->until > kv_now_ns()) {
			*ret_later = true;
		} else if (giver) {
			first = giver;
			best = file;
		} else if (!packed ||
			   file->used * file->slot_bytes <
				   packed->used * packed->slot_bytes) {
			packed = file;
		}
	}
	return best ? best : packed;
}

bool kv_ssd_balance_locked(struct kv_cache *cache, struct kv_ssd_class *class,
			   struct kv_space *taker)
{
	const struct kv_space *spared =
		kv_entitled(SSD, taker, class->slot_bytes) ? taker : NULL;
	struct kv_coldest own = {0};
	struct kv_segfile *file = NULL;
	bool later;

	kv_assert_locked(&cache->lock);
	if (class->awaited)
		return !class->awaited->emptying ||
		       class->awaited->until > kv_now_ns();
	if (class->file_wait) {
		class->file_wait--;
		return false;
	}
	look_at(class, taker, spared, &own);
	if (!own.list)
		return false;
	file = file_to_empty(cache, class, taker, spared, own.age, &later);
	if (file)
		kv_segfile_empty_locked(cache, file, class, taker,
					spared ? NULL : taker, true);
	else
		class->file_wait = (uint32_t)(cache->ssd.segment_bytes /
					      class->slot_bytes / WAIT_PART);
	return file;
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
				 const struct kv_giving *giving)
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
			if (kv_victim_gives(list, giving))
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
	const struct kv_giving giving = giving_to(cache, taker, but);
	const struct kv_tenant *tenant = richest(cache, &giving);

	return tenant && (kv_victim_evict_tenant(tenant, SSD, &giving) ||
			  evict_coldest(cache, taker, but));
}

bool kv_ssd_evict_record_locked(struct kv_cache *cache, struct kv_space *taker)
{
	const struct kv_space *spared =
		taker && kv_entitled(SSD, taker, 0) ? taker : NULL;

	kv_assert_locked(&cache->lock);
	return evict_record(cache, taker, spared) ||
	       (spared && evict_record(cache, taker, NULL));
}

bool kv_ssd_evict_one_locked(struct kv_cache *cache, struct kv_ssd_class *class,
			     struct kv_space *taker)
{
	kv_assert_locked(&cache->lock);
	return evict_one(cache, class, taker,
			 taker && kv_entitled(SSD, taker, class->slot_bytes)
				 ? taker
				 : NULL);
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
	struct kv_segfile *file;
	bool later;

	if (!others_could(cache, taker) && evict_one(cache, class, taker, NULL))
		return true;
	file = file_to_empty(cache, class, taker, NULL, 0, &later);
	if (file)
		kv_segfile_empty_locked(cache, file, class, taker, taker,
					false);
	return file || evict_one(cache, class, taker, NULL);
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

int kv_ssd_evict_for(struct kv_cache *cache, struct kv_ssd_class *class,
		     struct kv_space *taker)
{
	const bool due = kv_entitled(SSD, taker, class->slot_bytes);
	struct kv_segfile *file = NULL;
	bool waits = kv_ssd_balance_locked(cache, class, taker), later = false;

	if (class->leaving ||
	    (!waits && kv_ssd_evict_one_locked(cache, class, taker)))
		return 0;
	waits = waits || class->awaited || will_be_empty(cache);
	if (!waits)
		file = file_to_empty(cache, class, taker, due ? taker : NULL, 0,
				     &later);
	if (file)
		kv_segfile_empty_locked(cache, file, class, taker,
					due ? NULL : taker, false);
	/* Others of its size have more than is theirs, but in use. */
	waits = waits || file || later ||
		(due && can_give(class, taker, taker));
	if ((waits || kv_leaving_locked(cache)) &&
	    kv_patient(&taker->patience, PATIENCE_NS))
		return 0;
	return due && !waits && give_way(cache, class, taker) ? 0 : -ENOSPC;
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
	while (most &&
	       space->in[SSD].bytes + space->in[SSD].coming + bytes > most)
		if (cache->ssd.stop || !kv_ssd_evict_own_locked(cache, space))
			return at_quota(cache, space->in[SSD].coming);
	if (of_all && bytes > of_all)
		return -EDQUOT;
	while (of_all &&
	       tenant->in[SSD].bytes + tenant->in[SSD].coming + bytes > of_all)
		if (cache->ssd.stop ||
		    !kv_ssd_evict_tenant_locked(cache, tenant, space))
			return at_quota(cache, tenant->in[SSD].coming);
	return 0;
}
