/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.c - the quotas and reserves of spaces and of users.
 *
 * OWNS       the quotas and guarantees of spaces and tenants; STORE/tenants.
 *
 * INVARIANTS
 *   (1) A slot is given only if the space stays within its quota, counting
 *       bytes present, coming and new, and its tenant within its own quota.
 *   (2) All guarantees together never exceed the tier.  The guarantees of a
 *       tenant and of its spaces overlap, and the larger counts.  DRAM is
 *       counted in segments, without other users' segments that cannot be
 *       emptied when the guarantee is made.
 *
 * LOCKING    cache->lock; STORE/tenants is written under the index's write
 *            transaction.
 */
#include "cache/space/space.h"
#include "cache/core/ledger.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"
#include "common/array.h"
#include "index/sidecar.h"

#define EVICT_AT_ONCE 256u
#define SPACES_AT_ONCE 4096u
/* 1/4 of a shrunk SSD tier is left unreserved, for open blocks */
#define SHARED_PART 4u

static bool over(uint64_t limit, uint64_t bytes)
{
	return limit && bytes > limit;
}

/* Release the lock briefly after every EVICT_AT_ONCE evictions. */
static void pause_after(struct kv_cache *cache, unsigned *n)
{
	if (++*n % EVICT_AT_ONCE == 0) {
		kv_unlock(cache);
		kv_lock(cache);
	}
}

void kv_quotas_keep(struct kv_cache *cache)
{
	struct kv_tenant *tenant;
	struct kv_space *space;
	unsigned n = 0;

	for (uint32_t i = 0; i < cache->spaces.n; i++) {
		while (i < cache->spaces.n) {
			space = cache->spaces.sorted[i];
			if (space->removed ||
			    !((over(space->quota.quota_dram,
				    space->in[DRAM].bytes) &&
			       kv_dram_evict_own_locked(cache, space)) ||
			      (over(space->quota.quota_ssd,
				    space->in[SSD].bytes) &&
			       kv_ssd_evict_own_locked(cache, space))))
				break;
			pause_after(cache, &n);
		}
		if (i < cache->spaces.n)
			kv_refused_queue_locked(cache, cache->spaces.sorted[i]);
		if (i % SPACES_AT_ONCE == SPACES_AT_ONCE - 1)
			kv_yield(cache);
	}
	LIST_FOREACH(tenant, &cache->tenants, link)
		while ((over(tenant->quota.quota_dram,
			     tenant->in[DRAM].bytes) &&
			kv_dram_evict_tenant_locked(cache, tenant, NULL)) ||
		       (over(tenant->quota.quota_ssd, tenant->in[SSD].bytes) &&
			kv_ssd_evict_tenant_locked(cache, tenant, NULL)))
			pause_after(cache, &n);
}

static uint64_t scale(uint64_t bytes, uint64_t to, uint64_t sum)
{
	return to == sum ? bytes
			 : (uint64_t)((double)bytes * (double)to / (double)sum);
}

static uint64_t reserve(const struct kv_quota *quota, enum kv_node_tier tier)
{
	return tier == SSD ? quota->reserve_ssd : quota->reserve_dram;
}

/* Sum up the reserves of all tenants and their spaces.  @ret_segments (may be
 * NULL): the same in segments of DRAM, including users' segments that cannot be
 * emptied now. */
static uint64_t sum_reserves(const struct kv_cache *cache,
			     enum kv_node_tier tier, uint64_t *ret_segments)
{
	const uint64_t one = cache->arena.segment_bytes;
	const struct kv_tenant *tenant;
	const struct kv_space *space;
	uint64_t sum = 0, segments = 0;

	LIST_FOREACH(tenant, &cache->tenants, link) {
		uint64_t bytes = 0;

		LIST_FOREACH(space, &tenant->spaces, siblings)
			bytes += reserve(&space->quota, tier);
		bytes = KV_MAX(bytes, reserve(&tenant->quota, tier));
		sum += bytes;
		/* @one is 0 while a mount shrinks the SSD: no arena yet. */
		if (one)
			segments += KV_MAX(tenant->kept_segments,
					   (bytes + one - 1) / one);
	}
	if (ret_segments)
		*ret_segments = segments;
	return sum;
}

void kv_quotas_settle(struct kv_cache *cache)
{
	struct kv_tenant *tenant;
	struct kv_space *space;

	kv_lock(cache);
	for (enum kv_node_tier tier = 0; tier < TIERS; tier++) {
		const uint64_t all = kv_tier_bytes(cache, tier);
		const uint64_t sum = sum_reserves(cache, tier, NULL);
		/* Scale reserves down if the tier has shrunk. */
		const uint64_t to = sum <= all	  ? sum
				    : tier == SSD ? all - all / SHARED_PART
						  : all;

		LIST_FOREACH(tenant, &cache->tenants, link) {
			kv_guarantee_tenant(
				cache, tenant, tier,
				scale(reserve(&tenant->quota, tier), to, sum));
			LIST_FOREACH(space, &tenant->spaces, siblings)
				kv_guarantee_space(
					cache, space, tier,
					scale(reserve(&space->quota, tier), to,
					      sum));
		}
	}
	kv_unlock(cache);
}

/* Set the quota at @where from *@expected (NULL: any) to @quota, and fill the
 * bucket @puts for a first rate.  Lowering a reserve always succeeds.
 * -EAGAIN: the quota is another; -ENOSPC: the tier is too small to raise it. */
static int set_quota(struct kv_cache *cache, struct kv_quota *where,
		     struct kv_bucket *puts, const struct kv_quota *expected,
		     const struct kv_quota *quota)
{
	const struct kv_quota before = *where;
	uint64_t sum, segments;

	if (expected && memcmp(expected, &before, sizeof(before)) != 0)
		return -EAGAIN;
	*where = *quota;
	cache->may_expire |= quota->ttl > 0;
	if (before.rate_put == 0)
		*puts = (struct kv_bucket){0};
	for (enum kv_node_tier tier = 0; tier < TIERS; tier++) {
		const uint64_t all = kv_tier_bytes(cache, tier);

		sum = sum_reserves(cache, tier, &segments);
		if (tier == DRAM)
			sum = segments * cache->arena.segment_bytes;
		if (reserve(quota, tier) > reserve(&before, tier) &&
		    (reserve(quota, tier) > all || sum > all)) {
			*where = before;
			return -ENOSPC;
		}
	}
	return 0;
}

int kv_space_set_quota(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_quota *expected,
		       const struct kv_quota *quota)
{
	int r;

	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	r = space->removed ? -ENOSPC
			   : set_quota(cache, &space->quota, &space->puts,
				       expected, quota);
	kv_unlock(cache);
	if (r < 0)
		return r;
	kv_quotas_settle(cache);
	kv_periodic_wake(&cache->housekeeper);
	return kv_space_persist(cache, space);
}

/* ---- tenants ---- */

static bool has_any(const struct kv_quota *quota)
{
	static const struct kv_quota none;

	return memcmp(quota, &none, sizeof(none)) != 0;
}

int kv_tenants_adopt(struct kv_cache *cache)
{
	_cleanup_(kv_freep) struct kv_tenant_record *records = NULL;
	size_t n = 0, damaged = 0;
	int r = kv_tenants_read(cache->store_fd, &records, &n, &damaged);

	/* STORE/tenants could not be read: do not overwrite it. */
	if (r < 0 && r != -EBADMSG)
		return r;
	if (r < 0 || damaged)
		kv_warn(cache, "tenants_damaged",
			"%s/tenants is damaged: the quotas of %s users are "
			"lost",
			cache->store, r < 0 || n == 0 ? "all" : "some");
	for (size_t i = 0; r == 0 && i < n; i++) {
		const struct kv_tenant_record *record = &records[i];
		struct kv_tenant *tenant = kv_tenant_make(cache, record->uid);

		if (!tenant)
			return -ENOMEM;
		tenant->quota = kv_quota_unpack(&record->quota);
	}
	cache->tenants_file = kv_tenants_bytes(n);
	cache->ssd.sidecars += cache->tenants_file;
	return 0;
}

int kv_tenant_set_quota(struct kv_cache *cache, uint32_t uid,
			const struct kv_quota *expected,
			const struct kv_quota *quota)
{
	_cleanup_(kv_freep) struct kv_tenant_record *records =
		calloc(KV_TENANTS_MAX, sizeof(*records));
	struct kv_tenant *tenant;
	struct kv_txn *turn;
	size_t n = 0;
	int r = -ENOMEM;

	if (cache->config.read_only)
		return -EROFS;
	if (!records)
		return r;
	kv_lock(cache);
	LIST_FOREACH(tenant, &cache->tenants, link)
		n += has_any(&tenant->quota);
	tenant = kv_tenant_make(cache, uid);
	if (tenant)
		r = !has_any(&tenant->quota) && n == KV_TENANTS_MAX
			    ? -ENOSPC
			    : set_quota(cache, &tenant->quota, &tenant->puts,
					expected, quota);
	kv_unlock(cache);
	if (r < 0)
		return r;
	kv_quotas_settle(cache);
	kv_periodic_wake(&cache->housekeeper);
	if (!cache->index)
		return 0;
	/* The index's write transaction orders the writers of STORE/tenants: the
	 * last one to begin writes last, and reads the quotas after it began. */
	r = kv_txn_begin(cache->index, &turn);
	if (r < 0)
		return r;
	n = 0;
	kv_lock(cache);
	LIST_FOREACH(tenant, &cache->tenants, link)
		if (has_any(&tenant->quota) && n < KV_TENANTS_MAX)
			records[n++] = (struct kv_tenant_record){
				.uid = tenant->uid,
				.quota = kv_quota_pack(&tenant->quota),
			};
	kv_unlock(cache);
	r = kv_sidecar_charge(cache, &cache->tenants_file, kv_tenants_bytes(n));
	if (r == 0)
		r = kv_tenants_write(cache->store_fd, records, n);
	kv_txn_abort(turn);
	return r;
}

struct kv_tenant_info kv_tenant_stat(struct kv_cache *cache, uint32_t uid)
{
	struct kv_tenant_info info = {0};
	const struct kv_tenant *tenant;
	const struct kv_space *space;

	kv_lock(cache);
	tenant = kv_tenant_find(cache, uid);
	if (tenant) {
		info.quota = tenant->quota;
		info.guaranteed_dram = tenant->in[DRAM].guaranteed;
		info.guaranteed_ssd = tenant->in[SSD].guaranteed;
		info.bytes_dram = tenant->in[DRAM].bytes;
		info.bytes_ssd = tenant->in[SSD].bytes;
		LIST_FOREACH(space, &tenant->spaces, siblings) {
			info.spaces++;
			info.blocks += space->blocks;
		}
	}
	kv_unlock(cache);
	return info;
}

int kv_tenant_list(struct kv_cache *cache, uint32_t **ret_uids, size_t *ret_n)
{
	const struct kv_tenant *tenant;
	uint32_t *uids;
	size_t n = 0;

	kv_lock(cache);
	LIST_FOREACH(tenant, &cache->tenants, link)
		n++;
	uids = malloc((n + 1) * sizeof(*uids));
	n = 0;
	LIST_FOREACH(tenant, &cache->tenants, link)
		if (uids &&
		    (!LIST_EMPTY(&tenant->spaces) || has_any(&tenant->quota)))
			uids[n++] = tenant->uid;
	kv_unlock(cache);
	*ret_uids = uids;
	*ret_n = n;
	return uids ? 0 : -ENOMEM;
}
