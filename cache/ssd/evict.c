/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.c - count each user's share of the SSD, and make room: evict a block
 * with a slot of the same size, or empty a whole file of another size.
 *
 * A file has slots of one size, so a user with blocks of many sizes has many
 * files, however few bytes these blocks have.
 *
 * OWNS       nothing: uses the counts of lists and tenants.
 *
 * INVARIANTS
 *   (1) Eviction for another space never takes a space below its guarantee.
 *   (2) A space below its guarantee takes blocks of other spaces, and evicts
 *       blocks of its own only if all blocks of others are guaranteed, pinned,
 *       or in one file with such blocks.
 *   (3) Victims that are also in DRAM are skipped unless most blocks are there:
 *       an evicted block must leave all tiers, not stay in DRAM alone.
 *   (4) Room in the index is made by the user with most records beyond its
 *       guarantee: a user with many small blocks evicts blocks of its own.
 *   (5) A space that can evict no block of a size gets a whole file: of a user
 *       with more files than its quota fills, or else of the user with most
 *       files.  Blocks in the file that must not be evicted are moved.
 *   (6) A space that can evict blocks of a size gets a file of another size if
 *       the colder blocks of that size fill HYSTERESIS files, or are all that it
 *       has.  These colder blocks are evicted, and warmer ones in the file are
 *       moved, so that the file is not soon converted back.  A user with more
 *       files than its quota fills gets only its own files.
 *   (7) A pin that needs one more file, with the pins of each size packed, must
 *       leave a file free beside the files that others are guaranteed, unless
 *       the pin is within its user's guarantee.
 *
 * LOCKING    cache->lock; a walk through the slots of a file releases it every
 *            SLOTS_AT_ONCE slots.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/causes.h"
#include "cache/core/hooks.h"
#include "cache/core/ledger.h"
#include "common/crash_point.h"

#define FREE_PART 16u /* 1/16 of the files and bytes is kept free of pins */
#define FEW 3u	      /* pins may take all files if there are fewer */
#define SLOTS_AT_ONCE 1024u
#define PATIENCE_NS 5000000000u
/* a search for a victim skips at most so many blocks that are in DRAM */
#define PASSED_OVER 64
#define HYSTERESIS 2u /* number of files, for invariant (6) */
/* evict 1/8 of a file before searching again for a file to empty */
#define WAIT_PART 8u

/* ---- shares: pins ---- */

uint64_t kv_ssd_pin_bytes(const struct kv_cache *cache, uint64_t slot_bytes)
{
	const struct kv_ssd *ssd = &cache->ssd;

	return ssd->on ? KV_MAX(slot_bytes,
				ssd->file_budget / KV_MAX(ssd->records_max, 1u))
		       : slot_bytes;
}

/* Return whether one more pinned slot needs a file that is reserved for other
 * users, or that is kept free of pins. */
static bool needs_too_many_files(const struct kv_cache *cache,
				 const struct kv_space *space,
				 uint64_t slot_bytes)
{
	const uint64_t segment = cache->ssd.segment_bytes;
	const uint64_t files = cache->ssd.file_budget / segment;
	const struct kv_tenant *tenant = space->tenant, *other;
	const uint64_t guaranteed =
		KV_MAX(tenant->in[SSD].guaranteed, space->in[SSD].guaranteed);
	const struct kv_ssd_class *class;
	const struct kv_evict_list *list;
	/* Numbers of files: for pinned slots of all users, and of this user;
	 * guaranteed to other users, and not pinned by them. */
	uint64_t all = 0, own = 0, due = 0, spare;
	bool needs = true;

	LIST_FOREACH(class, &cache->ssd.classes, link) {
		const bool same = class->slot_bytes == slot_bytes;
		const uint64_t one =
			KV_MAX(segment / KV_MAX(class->slot_bytes, 1u), 1u);
		uint64_t slots = 0, own_slots = 0;

		TAILQ_FOREACH(list, &class->lists, link) {
			slots += list->pinned;
			if (list->space->tenant == tenant)
				own_slots += list->pinned;
		}
		if (same)
			needs = slots % one == 0 || own_slots % one == 0;
		all += kv_round_up(slots + same, one) / one;
		own += kv_round_up(own_slots + same, one) / one;
		if (same)
			slot_bytes = 0; /* class @slot_bytes has been counted */
	}
	all += slot_bytes > 0;
	own += slot_bytes > 0;
	if (!needs || own <= kv_round_up(guaranteed, segment) / segment)
		return false;
	LIST_FOREACH(other, &cache->tenants, link) {
		const uint64_t bytes =
			other == tenant
				? tenant->in[SSD].due - kv_due(space, SSD)
				: kv_tenant_due(other, SSD);

		due += kv_round_up(bytes, segment) / segment;
	}
	spare = files < FEW ? 0 : KV_MAX(files / FREE_PART, 1u);
	all += KV_MAX(due, spare);
	return all > files ||
	       (own > 1 && own > files - all + 1 &&
		!kv_accounts_operator(cache->accounts, tenant->uid));
}

bool kv_ssd_over_floor(const struct kv_cache *cache,
		       const struct kv_space *space, uint64_t slot_bytes)
{
	const struct kv_node *own = &space->in[SSD];
	const struct kv_node *all = &space->tenant->in[SSD];
	const uint64_t siblings = all->due - kv_due(space, SSD);
	const uint64_t bytes = kv_ssd_pin_bytes(cache, slot_bytes);

	if (!cache->ssd.on || !slot_bytes)
		return false;
	if (kv_crowded(cache, SSD, space, bytes, 0))
		return true;
	/* Beyond its guarantee a user may pin its fair share. */
	if (own->fast + bytes > own->guaranteed &&
	    all->fast + siblings + bytes > all->guaranteed &&
	    !kv_account_fits(space->account, KV_FINITE_PINNED,
			     kv_shared(cache, SSD), bytes, 0))
		return true;
	return needs_too_many_files(cache, space, slot_bytes);
}

/* ---- shares: files ---- */

static uint64_t slots_of(const struct kv_evict_list *list)
{
	return (uint64_t)list->blocks + list->pinned + list->writing;
}

/* Return the user for whose block @class awaits a file; NULL: none. */
static struct kv_tenant *awaiting(const struct kv_cache *cache,
				  const struct kv_ssd_class *class)
{
	const struct kv_space *space = NULL;

	if (class->awaited)
		space = kv_space_with_id(cache, class->awaited->wanted_by);
	return space ? space->tenant : NULL;
}

/* Count each user's files in tenant->files, and one more for @taker's user.
 * The users of a class share its files in proportion to their slots in use. */
static void count_files(const struct kv_cache *cache,
			const struct kv_space *taker)
{
	const struct kv_evict_list *list;
	const struct kv_ssd_class *class;
	struct kv_tenant *tenant;

	LIST_FOREACH(tenant, &cache->tenants, link)
		tenant->files = tenant == taker->tenant;
	LIST_FOREACH(class, &cache->ssd.classes, link) {
		uint64_t all = 0;

		tenant = awaiting(cache, class);
		if (tenant)
			tenant->files++;
		TAILQ_FOREACH(list, &class->lists, link)
			all += slots_of(list);
		TAILQ_FOREACH(list, &class->lists, link)
			if (slots_of(list))
				list->space->tenant->files +=
					(double)slots_of(list) / (double)all *
					class->n_files;
	}
}

/* Return whether @tenant has more files than a full SSD quota would need. */
static bool is_over_quota(const struct kv_cache *cache,
			  const struct kv_tenant *tenant)
{
	const uint64_t most = tenant->quota.quota_ssd;
	const uint64_t one = cache->ssd.segment_bytes;

	return most && tenant->files > (double)(kv_round_up(most, one) / one);
}

/* ---- victims ---- */

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

static void evict(struct kv_cache *cache, struct kv_block *block)
{
	kv_cause_note_block(cache, block, KV_CAUSE_EVICTED_SSD);
	kv_evicted_locked(cache, SSD, block);
	KV_POINT("evict.ssd");
	if (block->slot) {
		kv_extent_detach_locked(cache, block, true);
		kv_unpersisted_add_locked(cache, block->slot);
	} else {
		kv_evict_list_gone(cache, kv_evict_list_ssd(cache, block),
				   block);
		kv_block_remove_locked(cache, block);
	}
}

static bool evict_from(struct kv_evict_list *list,
		       const struct kv_giving *giving)
{
	const struct kv_space *space = list->space;
	struct kv_cache *cache = giving->cache;
	/* Skip blocks in DRAM, unless most of the space's blocks are in DRAM. */
	const bool passes_over =
		space->in[SSD].bytes / 2 > space->in[DRAM].bytes;
	struct search search = {
		.cache = cache,
		.passed_over = passes_over ? 0 : PASSED_OVER,
	};
	uint32_t victim = kv_policy_victim(&list->policy, is_victim, &search);

	/* All victims found are also in DRAM: evict the first of them. */
	if (victim == KV_NONE && search.passed_over) {
		search.passed_over = PASSED_OVER;
		victim = kv_policy_victim(&list->policy, is_victim, &search);
	}
	if (victim == KV_NONE)
		return false;
	evict(cache, kv_table_at(&cache->table, victim));
	return true;
}

/* Describe a search for blocks to evict for @taker, but none of @spared. */
static struct kv_giving giving_to(struct kv_cache *cache,
				  const struct kv_space *taker,
				  const struct kv_space *spared)
{
	return (struct kv_giving){.cache = cache,
				  .taker = taker,
				  .tenant = taker ? taker->tenant : NULL,
				  .but = spared,
				  .evict = evict_from};
}

/* Compare *@coldest with the lists of @class that have a victim for @taker, and
 * replace it by a colder one. */
static void look_at(const struct kv_ssd_class *class,
		    const struct kv_space *taker, const struct kv_space *spared,
		    struct kv_coldest *coldest)
{
	const struct kv_giving giving = giving_to(NULL, taker, spared);

	kv_victim_look(&class->lists, &giving, coldest);
}

static bool evict_one(struct kv_cache *cache, const struct kv_ssd_class *class,
		      const struct kv_space *taker,
		      const struct kv_space *spared)
{
	const struct kv_giving giving = giving_to(cache, taker, spared);

	return kv_victim_evict(&class->lists, &giving);
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
	struct kv_giving giving = giving_to(cache, space, NULL);

	kv_assert_locked(&cache->lock);
	giving.tenant = tenant;
	return kv_victim_evict_tenant(tenant, SSD, &giving);
}

/* Evict a block of the user with most records that may be evicted, or else the
 * coldest block.  Bytes do not tell which user fills the index, because all
 * records have one size. */
static bool evict_record(struct kv_cache *cache, const struct kv_space *taker,
			 const struct kv_space *spared)
{
	const struct kv_giving giving = giving_to(cache, taker, spared);
	struct kv_tenant *tenant, *richest = NULL;
	struct kv_ssd_class *class, *first;
	struct kv_coldest coldest = {0};
	const struct kv_evict_list *list;

	LIST_FOREACH(tenant, &cache->tenants, link)
		tenant->records = 0;
	LIST_FOREACH(class, &cache->ssd.classes, link)
		TAILQ_FOREACH(list, &class->lists, link) {
			if (!list->blocks)
				break; /* all other lists are empty */
			if (kv_victim_gives(list, &giving))
				list->space->tenant->records +=
					list->blocks + list->writing;
		}
	LIST_FOREACH(tenant, &cache->tenants, link)
		if (tenant->records > (richest ? richest->records : 0))
			richest = tenant;
	if (!richest)
		return false;
	if (kv_victim_evict_tenant(richest, SSD, &giving))
		return true;
	LIST_FOREACH(class, &cache->ssd.classes, link)
		kv_victim_look(&class->lists, &giving, &coldest);
	first = coldest.list ? coldest.list->class : NULL;
	if (first && kv_victim_evict(&first->lists, &giving))
		return true;
	/* The coldest class may not evict a block: try the others. */
	LIST_FOREACH(class, &cache->ssd.classes, link)
		if (class != first && kv_victim_evict(&class->lists, &giving))
			return true;
	return false;
}

bool kv_ssd_evict_record_locked(struct kv_cache *cache, struct kv_space *taker)
{
	const struct kv_space *spared =
		taker && kv_entitled(SSD, taker, 0) ? taker : NULL;

	kv_assert_locked(&cache->lock);
	return evict_record(cache, taker, spared) ||
	       (spared && evict_record(cache, taker, NULL));
}

bool kv_ssd_fits(const struct kv_node *in, const struct kv_quota *quota,
		 uint64_t bytes)
{
	return !quota->quota_ssd ||
	       in[SSD].bytes + in[SSD].coming + bytes <= quota->quota_ssd;
}

int kv_ssd_fit_quota_locked(struct kv_cache *cache, struct kv_space *space,
			    uint64_t bytes)
{
	const struct kv_tenant *tenant = space->tenant;
	const uint64_t of_all = tenant->quota.quota_ssd;
	/* While the mount ends, evict nothing for new writes. */
	const bool stop = cache->ssd.stop;

	kv_assert_locked(&cache->lock);
	while (!kv_ssd_fits(space->in, &space->quota, bytes))
		if (stop || !kv_ssd_evict_own_locked(cache, space))
			return space->in[SSD].coming && !stop ? -EBUSY
							      : -EDQUOT;
	if (of_all && bytes > of_all)
		return -EDQUOT;
	while (!kv_ssd_fits(tenant->in, &tenant->quota, bytes))
		if (stop || !kv_ssd_evict_tenant_locked(cache, tenant, space))
			return tenant->in[SSD].coming && !stop ? -EBUSY
							       : -EDQUOT;
	return 0;
}

/* ---- emptying files ---- */

/* Return the age above which a block in @file is evicted rather than moved:
 * that of the coldest block of the file's heir. 0: evict any. */
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

size_t kv_ssd_empty_file(struct kv_cache *cache, struct kv_segfile *file,
			 uint32_t *numbers)
{
	const uint64_t bytes = file->slot_bytes;
	const struct kv_tenant *user;
	const struct kv_space *taker;
	size_t n = 0, stay = 0;
	uint32_t age;

	kv_assert_locked(&cache->lock);
	for (uint32_t i = 0; i < file->slots; i++) {
		const struct kv_block *block = kv_extent_block(cache, file, i);

		if (block)
			numbers[n++] = block->number;
		if (i % SLOTS_AT_ONCE == SLOTS_AT_ONCE - 1)
			kv_yield(cache);
	}
	/* Sort @numbers: first the blocks to be moved. */
	taker = kv_space_with_id(cache, file->taker);
	user = taker ? taker->tenant : NULL;
	age = spared_age(file);
	for (size_t i = 0; i < n; i++) {
		struct kv_block *block = kv_table_at(&cache->table, numbers[i]);
		struct kv_space *space = kv_block_space(cache, block);
		const struct kv_evict_list *list;

		if (block->file != file->id)
			continue; /* the block has left the file meanwhile */
		list = kv_evict_list_ssd(cache, block);
		space->in[SSD].leaving += bytes;
		space->tenant->in[SSD].leaving += bytes;
		if (kv_keeps_guarantee(SSD, space, taker, user, 0) &&
		    may_go(block) &&
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

/* Return the file of @class that costs least to empty: one with few blocks in
 * use, or else the file of the next victim of @list (NULL: no victim).  Prefer
 * files that may be emptied now.  NULL: no file can be emptied. */
static struct kv_segfile *cheapest_file(struct kv_cache *cache,
					const struct kv_ssd_class *class,
					struct kv_evict_list *list)
{
	struct search search = {.cache = cache, .passed_over = PASSED_OVER};
	const uint64_t now = kv_now_ns();
	struct kv_segfile *file, *least = NULL;
	uint32_t victim;

	for (uint32_t i = 0; i < cache->ssd.n_devices; i++)
		TAILQ_FOREACH(file, &class->files[i], link) {
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
 * Return whether the class of @file can do without the file: its blocks must
 * fit into free slots of the class's other files and into slots of blocks
 * colder than @age.  With an @age, the colder blocks must also fill HYSTERESIS
 * files, or be all that may be evicted, so that the class does not soon need
 * the file back.
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
			break; /* the other lists are empty, or not needed */
		if (!kv_victim_gives(list, giving))
			continue;
		all += list->blocks;
		colder += kv_policy_colder(&list->policy, age, enough - colder);
	}
	return free + colder >= file->used &&
	       (!age || colder >= KV_MIN(all, enough));
}

/* Which blocks may be evicted, and in which order, to empty a file. */
struct choice {
	struct kv_giving giving;
	/* Evict only blocks colder than this, the coldest first.  0: evict any
	 * block, first those of the user with most files. */
	uint32_t age;
	bool own_only; /* evict only blocks of the taker's user */
};

/* Return the list of @class that loses a block before @best; or NULL. */
static struct kv_evict_list *first_giver(struct kv_cache *cache,
					 const struct kv_ssd_class *class,
					 const struct choice *choice,
					 struct kv_evict_list *best)
{
	const struct kv_tenant *taker = choice->giving.tenant;
	struct kv_evict_list *list, *giver = NULL;

	TAILQ_FOREACH(list, &class->lists, link) {
		const struct kv_tenant *a = list->space->tenant;
		const struct kv_tenant *b = best ? best->space->tenant : NULL;
		bool first;

		if (!list->blocks)
			break; /* the remaining eviction lists are empty */
		if (!kv_victim_gives(list, &choice->giving) ||
		    (choice->own_only && a != taker))
			continue;
		/* The first to lose blocks are users over quota, then users
		 * with most files; of one user's lists, the colder one. */
		if (choice->age || a == b)
			first = kv_policy_age(&list->policy) >
				(best ? kv_policy_age(&best->policy)
				      : choice->age);
		else if (best &&
			 is_over_quota(cache, a) != is_over_quota(cache, b))
			first = is_over_quota(cache, a);
		else
			first = !best || a->files > b->files ||
				(a->files == b->files && a == taker);
		if (first)
			giver = best = list;
	}
	return giver;
}

/*
 * Choose a file and empty it for @heir, whose slots @taker needs.  With @age,
 * only blocks colder than @age are evicted.  If @age is 0 and no block may be
 * evicted, choose the file with the fewest bytes, whose blocks fit into other
 * files of its class.  Return whether a file was chosen; *@ret_later: whether
 * one may be chosen later.
 */
static bool empty_file_for(struct kv_cache *cache, struct kv_ssd_class *heir,
			   const struct kv_space *taker,
			   const struct kv_space *spared, uint32_t age,
			   bool *ret_later)
{
	struct choice choice = {giving_to(NULL, taker, spared), age, false};
	struct kv_segfile *file, *best = NULL, *packed = NULL;
	struct kv_evict_list *giver, *first = NULL;
	const struct kv_tenant *tenant = taker->tenant;
	struct kv_ssd_class *class;
	bool over_quota;

	*ret_later = false;
	count_files(cache, taker);
	over_quota = is_over_quota(cache, tenant);
	/* A user over quota first waits for its writes and for files being
	 * emptied for it: then it can lose a file of its own. */
	LIST_FOREACH(class, &cache->ssd.classes, link) {
		const struct kv_evict_list *list;
		bool blocks = false, writes = false;

		TAILQ_FOREACH(list, &class->lists, link) {
			blocks |= list->space->tenant == tenant && list->blocks;
			writes |=
				list->space->tenant == tenant && list->writing;
		}
		if (over_quota && (awaiting(cache, class) == tenant ||
				   (class != heir && writes && !blocks))) {
			*ret_later = true;
			return false;
		}
	}
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
	file = best ? best : packed;
	if (file)
		kv_segfile_empty_locked(cache, file, heir, taker,
					spared ? NULL : taker, age > 0);
	return file;
}

bool kv_ssd_balance_locked(struct kv_cache *cache, struct kv_ssd_class *class,
			   struct kv_space *taker)
{
	const struct kv_space *spared =
		kv_entitled(SSD, taker, class->slot_bytes) ? taker : NULL;
	struct kv_coldest own = {0};
	bool empties, later;

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
	empties = empty_file_for(cache, class, taker, spared, own.age, &later);
	if (!empties)
		class->file_wait = (uint32_t)(cache->ssd.segment_bytes /
					      class->slot_bytes / WAIT_PART);
	return empties;
}

int kv_ssd_evict_for(struct kv_cache *cache, struct kv_ssd_class *class,
		     struct kv_space *taker)
{
	const bool due = kv_entitled(SSD, taker, class->slot_bytes);
	struct kv_coldest in_use = {0}, of_others = {0};
	const struct kv_ssd_class *other;
	bool waits = kv_ssd_balance_locked(cache, class, taker), later = false;
	bool empties = false;

	if (class->leaving ||
	    (!waits && kv_ssd_evict_one_locked(cache, class, taker)))
		return 0;
	waits = waits || class->awaited;
	/* A class whose slots are all being deleted will have free files. */
	LIST_FOREACH(other, &cache->ssd.classes, link) {
		const struct kv_evict_list *list;
		uint64_t slots = 0;

		TAILQ_FOREACH(list, &other->lists, link)
			slots += slots_of(list);
		waits |= other->leaving && !slots;
	}
	if (!waits)
		empties = empty_file_for(cache, class, taker,
					 due ? taker : NULL, 0, &later);
	/* Other users' blocks exceed guarantees, but are in use. */
	if (due)
		look_at(class, taker, taker, &in_use);
	waits = waits || empties || later || in_use.list;
	if ((waits || cache->ssd.leaving) &&
	    kv_patient(&taker->patience, PATIENCE_NS))
		return 0;
	if (!due || waits)
		return -ENOSPC;
	/* Evict a block of @taker, though it is guaranteed.  If blocks of
	 * others fill most of a file, empty the file: @taker loses least. */
	LIST_FOREACH(other, &cache->ssd.classes, link)
		look_at(other, taker, taker, &of_others);
	if (!of_others.list && evict_one(cache, class, taker, NULL))
		return 0;
	return empty_file_for(cache, class, taker, NULL, 0, &later) ||
			       evict_one(cache, class, taker, NULL)
		       ? 0
		       : -ENOSPC;
}
