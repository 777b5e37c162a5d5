/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.c - what a space, and a user in all his spaces together, may have at
 * most, and what is guaranteed to them.
 *
 * OWNS       the quotas and guarantees of spaces and tenants; STORE/tenants.
 *
 * INVARIANTS
 *   (1) What a space holds, is being filled or written for it and is asked for
 *       it now together is within its quota, and the same of its tenant: a slot
 *       is given only then.
 *   (2) What all tenants are guaranteed is never more than the tier has.  The
 *       guarantees of a tenant and of its spaces overlap: the larger counts.
 *       Of memory that is counted in segments, and those of others that cannot
 *       be emptied when it is promised are not there.
 *
 * LOCKING    cache->lock; STORE/tenants by whoever has the index's write
 *            transaction.
 */
#include "cache/space/space.h"
#include "cache/core/core.h"
#include "cache/core/tenant.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"
#include "index/sidecar.h"

#define EVICT_AT_ONCE 256u
#define SHARED_PART 4u /* of a tier that has shrunk */

static uint64_t dram_bytes(const struct kv_cache *cache)
{
	return cache->arena.max * cache->arena.segment_bytes;
}

static bool over(uint64_t most, uint64_t has)
{
	return most && has > most;
}

static bool evict_of_space(struct kv_cache *cache, struct kv_space *space)
{
	const struct kv_quota *quota = &space->quota;

	if (space->removed)
		return false;
	return (over(quota->quota_dram, space->bytes_dram) &&
		kv_dram_evict_own_locked(cache, space)) ||
	       (over(quota->quota_ssd, space->bytes_ssd) &&
		kv_ssd_evict_own_locked(cache, space));
}

static bool evict_of_tenant(struct kv_cache *cache, struct kv_tenant *tenant)
{
	const struct kv_quota *quota = &tenant->quota;

	return (over(quota->quota_dram, tenant->bytes_dram) &&
		kv_dram_evict_tenant_locked(cache, tenant, NULL)) ||
	       (over(quota->quota_ssd, tenant->bytes_ssd) &&
		kv_ssd_evict_tenant_locked(cache, tenant, NULL));
}

static void breathe(struct kv_cache *cache, unsigned *n)
{
	if (++*n % EVICT_AT_ONCE == 0) {
		kv_unlock(cache);
		kv_lock(cache);
	}
}

void kv_quotas_keep(struct kv_cache *cache)
{
	struct kv_tenant *tenant;
	unsigned n = 0;

	for (uint32_t i = 0; i < cache->spaces.n; i++)
		while (i < cache->spaces.n &&
		       evict_of_space(cache, cache->spaces.sorted[i]))
			breathe(cache, &n);
	LIST_FOREACH(tenant, &cache->tenants, link)
		while (evict_of_tenant(cache, tenant))
			breathe(cache, &n);
}

/* Of a tenant and its spaces. */
static void reserves_of(const struct kv_tenant *tenant, uint64_t *ret_dram,
			uint64_t *ret_ssd)
{
	const struct kv_space *space;
	uint64_t dram = 0, ssd = 0;

	LIST_FOREACH(space, &tenant->spaces, siblings) {
		dram += space->quota.reserve_dram;
		ssd += space->quota.reserve_ssd;
	}
	*ret_dram = KV_MAX(dram, tenant->quota.reserve_dram);
	*ret_ssd = KV_MAX(ssd, tenant->quota.reserve_ssd);
}

/* @ret_segments: of memory, with what cannot be given now. */
static void reserves(const struct kv_cache *cache, uint64_t *ret_dram,
		     uint64_t *ret_ssd, uint64_t *ret_segments)
{
	const uint64_t one = cache->arena.segment_bytes;
	const struct kv_tenant *tenant;

	*ret_dram = *ret_ssd = *ret_segments = 0;
	LIST_FOREACH(tenant, &cache->tenants, link) {
		uint64_t dram, ssd;

		reserves_of(tenant, &dram, &ssd);
		*ret_dram += dram;
		*ret_ssd += ssd;
		/* At mount there is no memory yet when the SSD shrinks. */
		if (one)
			*ret_segments += KV_MAX(tenant->kept_segments,
						(dram + one - 1) / one);
	}
}

/* Scale a reserve down if the tier has shrunk below the sum of them: to @most. */
static uint64_t share(uint64_t bytes, uint64_t sum, uint64_t tier,
		      uint64_t most)
{
	return sum <= tier
		       ? bytes
		       : (uint64_t)((double)bytes * (double)most / (double)sum);
}

void kv_quotas_settle(struct kv_cache *cache)
{
	struct kv_tenant *tenant;
	struct kv_space *space;
	const uint64_t all_dram = dram_bytes(cache);
	const uint64_t all_ssd = cache->ssd.file_budget;
	/* Blocks on SSD are opened at the expense of what is shared. */
	const uint64_t most_ssd = all_ssd - all_ssd / SHARED_PART;
	uint64_t dram, ssd, segments;

	kv_lock(cache);
	reserves(cache, &dram, &ssd, &segments);
	LIST_FOREACH(tenant, &cache->tenants, link) {
		const struct kv_quota *q = &tenant->quota;

		kv_guarantee_tenant(
			cache, tenant,
			share(q->reserve_dram, dram, all_dram, all_dram),
			share(q->reserve_ssd, ssd, all_ssd, most_ssd));
		LIST_FOREACH(space, &tenant->spaces, siblings) {
			q = &space->quota;
			kv_guarantee_space(
				cache, space,
				share(q->reserve_dram, dram, all_dram,
				      all_dram),
				share(q->reserve_ssd, ssd, all_ssd, most_ssd));
		}
	}
	kv_unlock(cache);
}

/* Was @before, is @now; @sum is what all have with it. */
static bool is_there(uint64_t before, uint64_t now, uint64_t sum, uint64_t tier)
{
	return now <= before || (now <= tier && sum <= tier);
}

/* Put @quota to @where.  A guarantee may always be lowered, and raised while
 * there is enough. */
static int promise(struct kv_cache *cache, struct kv_quota *where,
		   const struct kv_quota *quota)
{
	const struct kv_quota before = *where;
	uint64_t dram, ssd, segments;

	*where = *quota;
	reserves(cache, &dram, &ssd, &segments);
	if (is_there(before.reserve_dram, quota->reserve_dram,
		     segments * cache->arena.segment_bytes,
		     dram_bytes(cache)) &&
	    is_there(before.reserve_ssd, quota->reserve_ssd, ssd,
		     cache->ssd.file_budget))
		return 0;
	*where = before;
	return -ENOSPC;
}

int kv_space_set_quota(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_quota *quota)
{
	int r;

	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	r = space->removed ? -ENOSPC : promise(cache, &space->quota, quota);
	if (r == 0)
		space->puts = (struct kv_bucket){0};
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
	return quota->quota_dram || quota->quota_ssd || quota->reserve_dram ||
	       quota->reserve_ssd || quota->rate_put;
}

static struct kv_tenant_record record_of(const struct kv_tenant *tenant)
{
	const struct kv_quota *quota = &tenant->quota;

	return (struct kv_tenant_record){
		.uid = tenant->uid,
		.quota_dram = quota->quota_dram,
		.quota_ssd = quota->quota_ssd,
		.reserve_dram = quota->reserve_dram,
		.reserve_ssd = quota->reserve_ssd,
		.rate_put = quota->rate_put,
	};
}

int kv_tenants_adopt(struct kv_cache *cache)
{
	_cleanup_(kv_freep) struct kv_tenant_record *records = NULL;
	size_t n = 0, damaged = 0;
	int r = kv_tenants_read(cache->store_fd, &records, &n, &damaged);

	/* A file that could not be read now must not be written anew. */
	if (r < 0 && r != -EBADMSG)
		return r;
	if (r < 0 || damaged)
		kv_warn(cache, "tenants_damaged",
			"%s/tenants is damaged: the quotas of %s users hold no "
			"more",
			cache->store, r < 0 || n == 0 ? "all" : "some");
	for (size_t i = 0; r == 0 && i < n; i++) {
		const struct kv_tenant_record *record = &records[i];
		struct kv_tenant *tenant = kv_tenant_make(cache, record->uid);

		if (!tenant)
			return -ENOMEM;
		tenant->quota = (struct kv_quota){
			record->quota_dram, record->quota_ssd,
			record->reserve_dram, record->reserve_ssd,
			record->rate_put};
	}
	cache->tenants_file = kv_tenants_bytes(n);
	cache->ssd.sidecars += cache->tenants_file;
	return 0;
}

/* All that have quotas, with room for one more; caller frees. */
static struct kv_tenant_record *all_records(struct kv_cache *cache,
					    size_t *ret_n)
{
	struct kv_tenant_record *records =
		calloc(KV_TENANTS_MAX, sizeof(*records));
	const struct kv_tenant *tenant;

	*ret_n = 0;
	kv_lock(cache);
	LIST_FOREACH(tenant, &cache->tenants, link)
		if (records && has_any(&tenant->quota) &&
		    *ret_n < KV_TENANTS_MAX)
			records[(*ret_n)++] = record_of(tenant);
	kv_unlock(cache);
	return records;
}

static int write_tenants(struct kv_cache *cache)
{
	_cleanup_(kv_freep) struct kv_tenant_record *records = NULL;
	size_t n;
	int r;

	records = all_records(cache, &n);
	if (!records)
		return -ENOMEM;
	r = kv_sidecar_charge(cache, &cache->tenants_file, kv_tenants_bytes(n));
	return r < 0 ? r : kv_tenants_write(cache->store_fd, records, n);
}

/* The last to begin writes last, and reads after it began. */
static int persist_tenants(struct kv_cache *cache)
{
	struct kv_txn *turn;
	int r;

	if (!cache->index)
		return 0;
	r = kv_txn_begin(cache->index, &turn);
	if (r < 0)
		return r;
	r = write_tenants(cache);
	kv_txn_abort(turn);
	return r;
}

static size_t count_with_quotas(const struct kv_cache *cache)
{
	const struct kv_tenant *tenant;
	size_t n = 0;

	LIST_FOREACH(tenant, &cache->tenants, link)
		n += has_any(&tenant->quota);
	return n;
}

int kv_tenant_set_quota(struct kv_cache *cache, uint32_t uid,
			const struct kv_quota *quota)
{
	struct kv_tenant *tenant;
	int r = -ENOMEM;

	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	tenant = kv_tenant_make(cache, uid);
	if (tenant)
		r = !has_any(&tenant->quota) &&
				    count_with_quotas(cache) == KV_TENANTS_MAX
			    ? -ENOSPC
			    : promise(cache, &tenant->quota, quota);
	if (r == 0)
		tenant->puts = (struct kv_bucket){0};
	kv_unlock(cache);
	if (r < 0)
		return r;
	kv_quotas_settle(cache);
	kv_periodic_wake(&cache->housekeeper);
	return persist_tenants(cache);
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
		info.bytes_dram = tenant->bytes_dram;
		info.bytes_ssd = tenant->bytes_ssd;
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
