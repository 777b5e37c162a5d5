/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tenant.h - what a user has of the tiers in all his spaces together.
 *
 * All calls under the cache's lock.
 */
#ifndef KV_CACHE_CORE_TENANT_H
#define KV_CACHE_CORE_TENANT_H

#include "cache/core/core.h"

/* NULL: nobody has heard of him. */
struct kv_tenant *kv_tenant_find(struct kv_cache *cache, uint32_t uid);
/* The same, made if it is new; NULL: no memory. */
struct kv_tenant *kv_tenant_make(struct kv_cache *cache, uint32_t uid);
void kv_tenants_free(struct kv_cache *cache);

/* @space is @tenant's from now on, with all that it holds. */
void kv_tenant_join_locked(struct kv_cache *cache, struct kv_tenant *tenant,
			   struct kv_space *space);
/* A space that is removed: what it still holds stays counted. */
void kv_tenant_leave(struct kv_space *space);

/* Bytes that a space, and a tenant, is guaranteed beyond what it holds fast. */
uint64_t kv_due_dram(const struct kv_space *space);
uint64_t kv_due_ssd(const struct kv_space *space);
uint64_t kv_tenant_guaranteed_dram(const struct kv_tenant *tenant);
uint64_t kv_tenant_guaranteed_ssd(const struct kv_tenant *tenant);

/* Bytes that users share: without those that are guaranteed, and not taken
 * yet. */
uint64_t kv_shared_dram(const struct kv_cache *cache);
uint64_t kv_shared_ssd(const struct kv_cache *cache);

/* Bytes more, or less, of a space and its tenant. */
static inline void kv_count_dram(struct kv_space *space, uint64_t bytes)
{
	space->bytes_dram += bytes;
	space->tenant->bytes_dram += bytes;
}

static inline void kv_count_filling(struct kv_space *space, uint64_t bytes)
{
	space->filling_dram += bytes;
	space->tenant->filling_dram += bytes;
}

static inline void kv_count_ssd(struct kv_space *space, uint64_t bytes)
{
	space->bytes_ssd += bytes;
	space->tenant->bytes_ssd += bytes;
}

static inline void kv_count_writing(struct kv_space *space, uint64_t bytes)
{
	space->writing_ssd += bytes;
	space->tenant->writing_ssd += bytes;
}

/* Bytes that may not be evicted from DRAM, and pinned ones on SSD. */
void kv_count_busy(struct kv_cache *cache, struct kv_space *space,
		   uint64_t bytes);
void kv_count_pinned(struct kv_cache *cache, struct kv_space *space,
		     uint64_t bytes);

/*
 * Memory is given in segments: what a tenant is guaranteed are so many, rounded
 * up, and he claims as many, or all those of his that cannot be emptied now, if
 * these are more.  Claims beyond what is guaranteed leave the rest whole, and one
 * in four of those that nobody else claims for whoever comes.
 */
uint32_t kv_guaranteed_segments(const struct kv_cache *cache,
				const struct kv_tenant *tenant);
/* May he have one more that cannot be emptied? */
bool kv_tenant_may_keep(const struct kv_cache *cache,
			const struct kv_tenant *tenant);
/* Had @tenant more than twice the segments of @other, if that got one? */
bool kv_tenant_is_rich(const struct kv_tenant *tenant,
		       const struct kv_tenant *other);
/* He finds no slot: is it for somebody who is rich beside him, and worth to ask
 * again?  It is not when he has done so for a second. */
bool kv_tenant_waits_locked(struct kv_cache *cache, struct kv_tenant *tenant);
/* @by 1 or -1. */
void kv_count_kept_segment(struct kv_cache *cache, struct kv_tenant *tenant,
			   int by);

/* Guarantee so much from now on: to a space, to a tenant. */
void kv_guarantee_space(struct kv_cache *cache, struct kv_space *space,
			uint64_t dram, uint64_t ssd);
void kv_guarantee_tenant(struct kv_cache *cache, struct kv_tenant *tenant,
			 uint64_t dram, uint64_t ssd);

#endif
