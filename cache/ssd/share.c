/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c - who has how much of the SSD: in bytes, and in files.
 *
 * A file has slots of one size, so who has blocks of many sizes has many files,
 * however few bytes these are.  What is pinned can be moved together (move.c),
 * but no closer than this.
 *
 * OWNS       nothing; it counts what lists and tenants have.
 *
 * INVARIANTS
 *   (1) A pin that needs a file more, with all pins of each size moved together,
 *       leaves a file free beside those that others are guaranteed; unless it is
 *       within what its user is guaranteed.
 *
 * LOCKING    cache->lock.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/table.h"
#include "cache/core/account.h"
#include "cache/core/core.h"
#include "cache/core/list.h"
#include "cache/core/ledger.h"

#define FREE_PART 16u /* of the files: as much is never pinned */
#define FEW 3u	      /* with fewer files there is none to spare */

static uint64_t up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit;
}

/* ---- pins ---- */

void kv_ssd_pinned_locked(struct kv_cache *cache, struct kv_space *space,
			  uint64_t slot_bytes, bool more)
{
	uint64_t bytes = kv_ssd_pin_bytes(cache, slot_bytes);

	kv_assert_locked(&cache->lock);
	if (!slot_bytes)
		return;
	if (cache->ssd.on)
		kv_extent_pins_locked(cache, space, slot_bytes, more);
	bytes = more ? bytes : -bytes;
	kv_count_fast(cache, SSD, space, bytes);
	kv_account_take(space->account, KV_FINITE_PINNED, bytes);
	cache->ssd.pinned += bytes;
}

uint64_t kv_ssd_pin_bytes(const struct kv_cache *cache, uint64_t slot_bytes)
{
	const struct kv_ssd *ssd = &cache->ssd;

	return ssd->on ? KV_MAX(slot_bytes,
				ssd->file_budget / KV_MAX(ssd->records_max, 1u))
		       : slot_bytes;
}

/* What is pinned, of all and of one tenant: slots of a class, or the files that
 * they need. */
struct pinned {
	uint64_t all, his;
};

static struct pinned count_slots(const struct kv_ssd_class *class,
				 const struct kv_tenant *tenant)
{
	const struct kv_evict_list *list;
	struct pinned slots = {0};

	TAILQ_FOREACH(list, &class->lists, link) {
		slots.all += list->pinned;
		if (list->space->tenant == tenant)
			slots.his += list->pinned;
	}
	return slots;
}

static uint64_t slots_of_file(const struct kv_cache *cache, uint64_t slot_bytes)
{
	return KV_MAX(cache->ssd.segment_bytes / slot_bytes, 1u);
}

/* With one of @slot_bytes more; all is 0 if that needs no file more. */
static struct pinned count_files(const struct kv_cache *cache,
				 const struct kv_tenant *tenant,
				 uint64_t slot_bytes)
{
	const struct kv_ssd_class *class;
	const uint64_t one = slots_of_file(cache, slot_bytes);
	struct pinned files = {0}, slots = {0};

	LIST_FOREACH(class, &cache->ssd.classes, link)
		if (class->slot_bytes == slot_bytes)
			slots = count_slots(class, tenant);
	if (slots.all % one && slots.his % one)
		return files;
	files.all = up(slots.all + 1, one);
	files.his = up(slots.his + 1, one);
	LIST_FOREACH(class, &cache->ssd.classes, link) {
		if (class->slot_bytes == slot_bytes)
			continue;
		slots = count_slots(class, tenant);
		files.all +=
			up(slots.all, slots_of_file(cache, class->slot_bytes));
		files.his +=
			up(slots.his, slots_of_file(cache, class->slot_bytes));
	}
	return files;
}

/* Files that all but @space are guaranteed and have not pinned. */
static uint64_t count_due(const struct kv_cache *cache,
			  const struct kv_space *space)
{
	const uint64_t one = cache->ssd.segment_bytes;
	const struct kv_tenant *tenant;
	uint64_t due = 0;

	LIST_FOREACH(tenant, &cache->tenants, link)
		due += up(tenant == space->tenant
				  ? tenant->in[SSD].due - kv_due(space, SSD)
				  : kv_tenant_due(tenant, SSD),
			  one);
	return due;
}

static bool needs_too_many_files(const struct kv_cache *cache,
				 const struct kv_space *space,
				 uint64_t slot_bytes)
{
	const struct kv_tenant *tenant = space->tenant;
	const uint64_t one = cache->ssd.segment_bytes;
	const uint64_t files = cache->ssd.file_budget / one;
	const uint64_t guaranteed =
		KV_MAX(tenant->in[SSD].guaranteed, space->in[SSD].guaranteed);
	const struct pinned pinned = count_files(cache, tenant, slot_bytes);
	uint64_t taken, spare = KV_MAX(files / FREE_PART, 1u);

	if (!pinned.all || pinned.his <= up(guaranteed, one))
		return false;
	if (files < FEW)
		spare = 0;
	taken = pinned.all + KV_MAX(count_due(cache, space), spare);
	return taken > files ||
	       (pinned.his > 1 && pinned.his > files - taken + 1 &&
		!kv_accounts_operator(cache->accounts, tenant->uid));
}

/* Return whether @bytes more would be beyond the guarantees of @space and its
 * user, and beyond the user's share. */
static bool is_over_share(const struct kv_cache *cache,
			  const struct kv_space *space, uint64_t bytes)
{
	const struct kv_node *own = &space->in[SSD];
	const struct kv_node *all = &space->tenant->in[SSD];
	uint64_t siblings = all->due - kv_due(space, SSD);

	return own->fast + bytes > own->guaranteed &&
	       all->fast + siblings + bytes > all->guaranteed &&
	       !kv_account_fits(space->account, KV_FINITE_PINNED,
				kv_shared(cache, SSD), bytes, 0);
}

bool kv_ssd_over_floor(const struct kv_cache *cache,
		       const struct kv_space *space, uint64_t slot_bytes)
{
	const uint64_t bytes = kv_ssd_pin_bytes(cache, slot_bytes);

	return cache->ssd.on && slot_bytes &&
	       (kv_crowded(cache, SSD, space, bytes, 0) ||
		is_over_share(cache, space, bytes) ||
		needs_too_many_files(cache, space, slot_bytes));
}

/* ---- files ---- */

uint64_t kv_ssd_slots(const struct kv_evict_list *list)
{
	return (uint64_t)list->blocks + list->pinned + list->writing;
}

struct kv_tenant *kv_ssd_awaiting(const struct kv_cache *cache,
				  const struct kv_ssd_class *class)
{
	const struct kv_space *space = NULL;

	if (class->awaited)
		space = kv_space_with_id(cache, class->awaited->wanted_by);
	return space ? space->tenant : NULL;
}

void kv_ssd_count_files_locked(const struct kv_cache *cache,
			       const struct kv_space *taker)
{
	const struct kv_evict_list *list;
	const struct kv_ssd_class *class;
	struct kv_tenant *tenant;

	kv_assert_locked(&cache->lock);
	LIST_FOREACH(tenant, &cache->tenants, link)
		tenant->files = taker && tenant == taker->tenant;
	LIST_FOREACH(class, &cache->ssd.classes, link) {
		uint64_t all = 0;

		tenant = kv_ssd_awaiting(cache, class);
		if (tenant)
			tenant->files++;
		TAILQ_FOREACH(list, &class->lists, link)
			all += kv_ssd_slots(list);
		TAILQ_FOREACH(list, &class->lists, link)
			if (kv_ssd_slots(list))
				list->space->tenant->files +=
					(double)kv_ssd_slots(list) /
					(double)all * class->n_files;
	}
}

bool kv_ssd_over_quota(const struct kv_cache *cache,
		       const struct kv_tenant *tenant)
{
	const uint64_t most = tenant->quota.quota_ssd;

	return most &&
	       tenant->files > (double)up(most, cache->ssd.segment_bytes);
}
