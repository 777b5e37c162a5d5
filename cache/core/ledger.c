/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ledger.c - bytes that spaces and users hold, and may hold, in the two tiers.
 *
 * OWNS      the kv_tenants; the nodes of spaces and tenants; cache->due.
 *
 * INVARIANTS
 *   (1) A tenant's node is the sum of the nodes of its spaces.  Removed spaces
 *       are on no list, and their siblings.le_prev is NULL.
 *   (2) cache->due is the sum of kv_tenant_due of all tenants.  A tenant's
 *       guarantee overlaps with those of its spaces: the larger counts.
 *   (3) arena->claimed is the sum of the segments that all tenants claim.
 *
 * LOCKING   cache->lock.
 */
#include "cache/core/ledger.h"
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

static uint64_t beyond(uint64_t whole, uint64_t part)
{
	return whole > part ? whole - part : 0;
}

uint64_t kv_due(const struct kv_space *space, enum kv_node_tier tier)
{
	return beyond(space->in[tier].guaranteed, space->in[tier].fast);
}

uint64_t kv_tenant_due(const struct kv_tenant *tenant, enum kv_node_tier tier)
{
	const struct kv_node *node = &tenant->in[tier];

	return KV_MAX(node->due, beyond(node->guaranteed, node->fast));
}

uint64_t kv_tier_bytes(const struct kv_cache *cache, enum kv_node_tier tier)
{
	return tier == SSD ? cache->ssd.file_budget
			   : cache->arena.max * cache->arena.segment_bytes;
}

uint64_t kv_shared(const struct kv_cache *cache, enum kv_node_tier tier)
{
	return beyond(kv_tier_bytes(cache, tier), cache->due[tier]);
}

bool kv_entitled(enum kv_node_tier tier, const struct kv_space *space,
		 uint64_t bytes)
{
	const struct kv_node *own = &space->in[tier];
	const struct kv_node *all = &space->tenant->in[tier];

	return own->bytes + own->coming + bytes <= own->guaranteed ||
	       all->bytes + all->coming + bytes <= all->guaranteed;
}

bool kv_keeps_guarantee(enum kv_node_tier tier, const struct kv_space *space,
			const struct kv_space *taker,
			const struct kv_tenant *tenant, uint64_t bytes)
{
	const struct kv_node *own = &space->in[tier];
	const struct kv_node *all = &space->tenant->in[tier];

	return space == taker ||
	       ((!own->guaranteed ||
		 own->bytes >= own->guaranteed + own->leaving + bytes) &&
		(space->tenant == tenant || !all->guaranteed ||
		 all->bytes >= all->guaranteed + all->leaving + bytes));
}

bool kv_crowded(const struct kv_cache *cache, enum kv_node_tier tier,
		const struct kv_space *space, uint64_t bytes, uint64_t left)
{
	const uint64_t total = kv_tier_bytes(cache, tier);
	const uint64_t fast =
		bytes + (tier == SSD ? cache->ssd.pinned
				     : cache->arena.used - cache->arena.idle);
	const struct kv_node *own = &space->in[tier];
	const struct kv_node *all = &space->tenant->in[tier];
	const uint64_t siblings = all->due - kv_due(space, tier);

	if (fast > total - total / KV_FLOOR_PART)
		return true;
	/* A space may use its own guarantee, and the part of its user's
	 * guarantee that exceeds its siblings' guarantees, but no guarantee of
	 * other users. */
	return own->fast + bytes > own->guaranteed &&
	       all->fast + siblings + bytes > all->guaranteed &&
	       fast + left + cache->due[tier] -
			       kv_tenant_due(space->tenant, tier) + siblings >
		       total;
}

uint32_t kv_guaranteed_segments(const struct kv_cache *cache,
				const struct kv_tenant *tenant)
{
	const struct kv_node *node = &tenant->in[DRAM];
	const uint64_t bytes = KV_MAX(node->guaranteed, node->promised);
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
	const uint32_t kept = tenant->kept_segments + 1;
	const uint32_t taken = arena->claimed - claim(cache, tenant) + kept;

	if (kept <= kv_guaranteed_segments(cache, tenant))
		return true;
	if (taken > arena->max)
		return false;
	return kept == 1 || kept <= KV_MORE_THAN_LEFT * (arena->max - taken) ||
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

/* Call with @by -1 before, and with @by 1 after, each change of the tenant's
 * fields that count in cache->due and arena->claimed. */
static void count(struct kv_cache *cache, const struct kv_tenant *tenant,
		  int by)
{
	for (enum kv_node_tier tier = 0; tier < TIERS; tier++)
		cache->due[tier] +=
			(uint64_t)(int64_t)by * kv_tenant_due(tenant, tier);
	cache->arena.claimed += (uint32_t)by * claim(cache, tenant);
}

/* Add (@by 1) the space's node to the tenant's, or subtract it (@by -1). */
static void add(struct kv_tenant *tenant, const struct kv_space *space, int by)
{
	const uint64_t factor = (uint64_t)(int64_t)by;

	for (enum kv_node_tier tier = 0; tier < TIERS; tier++) {
		const struct kv_node *own = &space->in[tier];
		struct kv_node *all = &tenant->in[tier];

		all->bytes += factor * own->bytes;
		all->coming += factor * own->coming;
		all->fast += factor * own->fast;
		all->due += factor * kv_due(space, tier);
		all->promised += factor * own->guaranteed;
	}
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
		count(cache, old, -1);
		add(old, space, -1);
		count(cache, old, 1);
	}
	count(cache, tenant, -1);
	add(tenant, space, 1);
	count(cache, tenant, 1);
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

void kv_count_fast(struct kv_cache *cache, enum kv_node_tier tier,
		   struct kv_space *space, uint64_t bytes)
{
	struct kv_node *all = &space->tenant->in[tier];

	cache->due[tier] -= kv_tenant_due(space->tenant, tier);
	all->due -= kv_due(space, tier);
	space->in[tier].fast += bytes;
	all->fast += bytes;
	all->due += kv_due(space, tier);
	cache->due[tier] += kv_tenant_due(space->tenant, tier);
}

void kv_count_kept_segment(struct kv_cache *cache, struct kv_tenant *tenant,
			   int by)
{
	count(cache, tenant, -1);
	tenant->kept_segments += (uint32_t)by;
	count(cache, tenant, 1);
}

void kv_guarantee_space(struct kv_cache *cache, struct kv_space *space,
			enum kv_node_tier tier, uint64_t bytes)
{
	struct kv_node *own = &space->in[tier];
	struct kv_node *all = &space->tenant->in[tier];

	count(cache, space->tenant, -1);
	all->due -= kv_due(space, tier);
	all->promised += bytes - own->guaranteed;
	own->guaranteed = bytes;
	all->due += kv_due(space, tier);
	count(cache, space->tenant, 1);
}

void kv_guarantee_tenant(struct kv_cache *cache, struct kv_tenant *tenant,
			 enum kv_node_tier tier, uint64_t bytes)
{
	count(cache, tenant, -1);
	tenant->in[tier].guaranteed = bytes;
	count(cache, tenant, 1);
}
