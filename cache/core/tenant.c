/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tenant.c - what a user has of the tiers in all his spaces together.
 *
 * OWNS      the tenants; the counts of what is guaranteed and not held yet.
 *
 * INVARIANTS
 *   (1) A tenant's sums are those of the spaces that name it; those that are
 *       gone for good are on no list, and siblings.le_prev is NULL.
 *   (2) arena->guaranteed and ssd->guaranteed are what all tenants are
 *       guaranteed: the guarantees of a tenant and of its spaces overlap, and
 *       the larger counts.
 *   (3) arena->claimed is the sum of what all tenants claim.
 *
 * LOCKING   cache->lock.
 */
#include "cache/core/tenant.h"
#include "cache/core/account.h"

#define PATIENCE_NS UINT64_C(1000000000)

struct kv_tenant *kv_tenant_find(struct kv_cache *cache, uint32_t uid)
{
	struct kv_tenant *tenant;

	LIST_FOREACH(tenant, &cache->tenants, link)
		if (tenant->uid == uid)
			break;
	return tenant;
}

struct kv_tenant *kv_tenant_make(struct kv_cache *cache, uint32_t uid)
{
	struct kv_tenant *tenant = kv_tenant_find(cache, uid);

	if (tenant)
		return tenant;
	tenant = calloc(1, sizeof(*tenant));
	if (!tenant)
		return NULL;
	tenant->uid = uid;
	LIST_INIT(&tenant->spaces);
	LIST_INSERT_HEAD(&cache->tenants, tenant, link);
	return tenant;
}

void kv_tenants_free(struct kv_cache *cache)
{
	struct kv_tenant *tenant;

	while ((tenant = LIST_FIRST(&cache->tenants))) {
		LIST_REMOVE(tenant, link);
		free(tenant);
	}
}

static uint64_t beyond(uint64_t whole, uint64_t part)
{
	return whole > part ? whole - part : 0;
}

uint64_t kv_due_dram(const struct kv_space *space)
{
	return beyond(space->guaranteed_dram, space->busy_dram);
}

uint64_t kv_due_ssd(const struct kv_space *space)
{
	return beyond(space->guaranteed_ssd, space->pinned_ssd);
}

uint64_t kv_tenant_guaranteed_dram(const struct kv_tenant *tenant)
{
	return KV_MAX(tenant->due_dram,
		      beyond(tenant->guaranteed_dram, tenant->busy_dram));
}

uint64_t kv_tenant_guaranteed_ssd(const struct kv_tenant *tenant)
{
	return KV_MAX(tenant->due_ssd,
		      beyond(tenant->guaranteed_ssd, tenant->pinned_ssd));
}

uint64_t kv_shared_dram(const struct kv_cache *cache)
{
	const struct kv_arena *arena = &cache->arena;
	const uint64_t total = arena->max * arena->segment_bytes;

	return beyond(total, arena->guaranteed);
}

uint64_t kv_shared_ssd(const struct kv_cache *cache)
{
	return beyond(cache->ssd.file_budget, cache->ssd.guaranteed);
}

uint32_t kv_guaranteed_segments(const struct kv_cache *cache,
				const struct kv_tenant *tenant)
{
	const uint64_t bytes =
		KV_MAX(tenant->guaranteed_dram, tenant->promised_dram);
	const uint64_t one = cache->arena.segment_bytes;

	return bytes ? (uint32_t)((bytes + one - 1) / one) : 0;
}

static uint32_t claim(const struct kv_cache *cache,
		      const struct kv_tenant *tenant)
{
	return KV_MAX(tenant->kept_segments,
		      kv_guaranteed_segments(cache, tenant));
}

bool kv_tenant_may_keep(const struct kv_cache *cache,
			const struct kv_tenant *tenant)
{
	const struct kv_arena *arena = &cache->arena;
	const uint32_t his = tenant->kept_segments + 1;
	const uint32_t taken = arena->claimed - claim(cache, tenant) + his;

	if (his <= kv_guaranteed_segments(cache, tenant))
		return true;
	if (taken > arena->max)
		return false;
	return his == 1 || his <= KV_MORE_THAN_LEFT * (arena->max - taken) ||
	       kv_accounts_operator(cache->accounts, tenant->uid);
}

bool kv_tenant_is_rich(const struct kv_tenant *tenant,
		       const struct kv_tenant *other)
{
	return tenant->segments > 2 * (other->segments + 1);
}

bool kv_tenant_waits_locked(struct kv_cache *cache, struct kv_tenant *tenant)
{
	const struct kv_tenant *other;

	kv_assert_locked(&cache->lock);
	LIST_FOREACH(other, &cache->tenants, link)
		if (kv_tenant_is_rich(other, tenant))
			break;
	return other && kv_patient(&tenant->patience, PATIENCE_NS);
}

/* Call around every change of what kv_tenant_guaranteed_ and claim depend on.
 */
static void before(struct kv_cache *cache, const struct kv_tenant *tenant)
{
	cache->arena.guaranteed -= kv_tenant_guaranteed_dram(tenant);
	cache->ssd.guaranteed -= kv_tenant_guaranteed_ssd(tenant);
	cache->arena.claimed -= claim(cache, tenant);
}

static void after(struct kv_cache *cache, const struct kv_tenant *tenant)
{
	cache->arena.guaranteed += kv_tenant_guaranteed_dram(tenant);
	cache->ssd.guaranteed += kv_tenant_guaranteed_ssd(tenant);
	cache->arena.claimed += claim(cache, tenant);
}

/* @by 1 or -1. */
static void add(struct kv_tenant *tenant, const struct kv_space *space, int by)
{
	const uint64_t factor = (uint64_t)(int64_t)by;

	tenant->bytes_dram += factor * space->bytes_dram;
	tenant->bytes_ssd += factor * space->bytes_ssd;
	tenant->filling_dram += factor * space->filling_dram;
	tenant->writing_ssd += factor * space->writing_ssd;
	tenant->busy_dram += factor * space->busy_dram;
	tenant->pinned_ssd += factor * space->pinned_ssd;
	tenant->due_dram += factor * kv_due_dram(space);
	tenant->due_ssd += factor * kv_due_ssd(space);
	tenant->promised_dram += factor * space->guaranteed_dram;
}

void kv_tenant_join_locked(struct kv_cache *cache, struct kv_tenant *tenant,
			   struct kv_space *space)
{
	struct kv_tenant *old = space->tenant;
	const bool listed = !old || space->siblings.le_prev;

	kv_assert_locked(&cache->lock);
	if (old == tenant)
		return;
	if (old) {
		kv_tenant_leave(space);
		before(cache, old);
		add(old, space, -1);
		after(cache, old);
	}
	before(cache, tenant);
	add(tenant, space, 1);
	after(cache, tenant);
	space->tenant = tenant;
	if (listed)
		LIST_INSERT_HEAD(&tenant->spaces, space, siblings);
}

void kv_tenant_leave(struct kv_space *space)
{
	if (!space->siblings.le_prev)
		return;
	LIST_REMOVE(space, siblings);
	space->siblings.le_prev = NULL;
}

/* Take the space's dues out of its tenant's, to put them back when changed. */
static struct kv_tenant *open_account(struct kv_cache *cache,
				      const struct kv_space *space)
{
	struct kv_tenant *tenant = space->tenant;

	before(cache, tenant);
	tenant->due_dram -= kv_due_dram(space);
	tenant->due_ssd -= kv_due_ssd(space);
	tenant->promised_dram -= space->guaranteed_dram;
	return tenant;
}

static void close_account(struct kv_cache *cache, const struct kv_space *space)
{
	struct kv_tenant *tenant = space->tenant;

	tenant->due_dram += kv_due_dram(space);
	tenant->due_ssd += kv_due_ssd(space);
	tenant->promised_dram += space->guaranteed_dram;
	after(cache, tenant);
}

void kv_count_busy(struct kv_cache *cache, struct kv_space *space,
		   uint64_t bytes)
{
	struct kv_tenant *tenant = open_account(cache, space);

	space->busy_dram += bytes;
	tenant->busy_dram += bytes;
	close_account(cache, space);
}

void kv_count_pinned(struct kv_cache *cache, struct kv_space *space,
		     uint64_t bytes)
{
	struct kv_tenant *tenant = open_account(cache, space);

	space->pinned_ssd += bytes;
	tenant->pinned_ssd += bytes;
	close_account(cache, space);
}

void kv_count_kept_segment(struct kv_cache *cache, struct kv_tenant *tenant,
			   int by)
{
	before(cache, tenant);
	tenant->kept_segments += (uint32_t)by;
	after(cache, tenant);
}

void kv_guarantee_space(struct kv_cache *cache, struct kv_space *space,
			uint64_t dram, uint64_t ssd)
{
	open_account(cache, space);
	space->guaranteed_dram = dram;
	space->guaranteed_ssd = ssd;
	close_account(cache, space);
}

void kv_guarantee_tenant(struct kv_cache *cache, struct kv_tenant *tenant,
			 uint64_t dram, uint64_t ssd)
{
	before(cache, tenant);
	tenant->guaranteed_dram = dram;
	tenant->guaranteed_ssd = ssd;
	after(cache, tenant);
}
