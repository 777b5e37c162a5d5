/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ledger.h - what spaces and users hold of the two tiers, and may hold.
 *
 * A space and a user have a struct kv_node for each tier; a user's node is the
 * sum of the nodes of its spaces.  The quota limits a node, the reserve is
 * guaranteed to it, and the user's account (account.h) keeps it within a fair
 * share of the rest.  Both evictions read the same nodes.
 *
 * All calls under the cache's lock.
 */
#ifndef KV_CACHE_CORE_LEDGER_H
#define KV_CACHE_CORE_LEDGER_H

#include "cache/core/core.h"

/* One part in so many of a tier, and of a user's share of DRAM, that is neither
 * leased nor pinned: new blocks need it. */
#define KV_FLOOR_PART 16u

struct kv_tenant *kv_tenant_find(struct kv_cache *cache,
				 uint32_t uid); /* NULL */
/* Find the user's record, or make it; NULL: no memory. */
struct kv_tenant *kv_tenant_make(struct kv_cache *cache, uint32_t uid);
void kv_tenants_free(struct kv_cache *cache);

/* Move @space, with all that it holds, to @tenant. */
void kv_tenant_join_locked(struct kv_cache *cache, struct kv_tenant *tenant,
			   struct kv_space *space);
/* Take a removed space off its user's list; what it still holds stays counted. */
void kv_tenant_leave(struct kv_space *space);

/* Return the guaranteed bytes that a space, or a user, does not hold fast. */
uint64_t kv_due(const struct kv_space *space, enum kv_node_tier tier);
uint64_t kv_tenant_due(const struct kv_tenant *tenant, enum kv_node_tier tier);
/* Return the bytes of the tier, and those that users share: all but the
 * guaranteed bytes that are not held yet. */
uint64_t kv_tier_bytes(const struct kv_cache *cache, enum kv_node_tier tier);
uint64_t kv_shared(const struct kv_cache *cache, enum kv_node_tier tier);

/* Add @bytes, which may be negative, to a space and its user. */
static inline void kv_count_bytes(enum kv_node_tier tier,
				  struct kv_space *space, uint64_t bytes)
{
	space->in[tier].bytes += bytes;
	space->tenant->in[tier].bytes += bytes;
}

static inline void kv_count_coming(enum kv_node_tier tier,
				   struct kv_space *space, uint64_t bytes)
{
	space->in[tier].coming += bytes;
	space->tenant->in[tier].coming += bytes;
}

void kv_count_fast(struct kv_cache *cache, enum kv_node_tier tier,
		   struct kv_space *space, uint64_t bytes);

/* Set the guarantee of a space, or of a user. */
void kv_guarantee_space(struct kv_cache *cache, struct kv_space *space,
			enum kv_node_tier tier, uint64_t bytes);
void kv_guarantee_tenant(struct kv_cache *cache, struct kv_tenant *tenant,
			 enum kv_node_tier tier, uint64_t bytes);

/* Return whether @space, or its user, would with @bytes more hold no more than
 * its guarantee.  Others give way to it. */
bool kv_entitled(enum kv_node_tier tier, const struct kv_space *space,
		 uint64_t bytes);
/* Return whether @space and its user keep their guarantees without the bytes
 * counted as leaving.  The guarantees of @taker and its user do not count. */
bool kv_keeps_guarantee(enum kv_node_tier tier, const struct kv_space *space,
			const struct kv_space *taker);
/* Return whether the tier would have too little left to evict, or too little
 * for the guarantees of others, if @space held @bytes more fast and @left bytes
 * stayed free. */
bool kv_crowded(const struct kv_cache *cache, enum kv_node_tier tier,
		const struct kv_space *space, uint64_t bytes, uint64_t left);

/*
 * DRAM is given in segments.  A user claims as many as its guarantee needs, or
 * all of its segments that cannot be emptied now if these are more.  Claims
 * beyond the guarantee leave the guarantees of others whole, and one in four of
 * the segments that nobody claims to newcomers.
 */
uint32_t kv_guaranteed_segments(const struct kv_cache *cache,
				const struct kv_tenant *tenant);
/* Return whether the user may have one more segment that cannot be emptied. */
bool kv_tenant_may_keep(const struct kv_cache *cache,
			const struct kv_tenant *tenant);
/* Return whether @tenant would have more than twice the segments of @other, if
 * that got one more. */
bool kv_tenant_is_rich(const struct kv_tenant *tenant,
		       const struct kv_tenant *other);
/* A user finds no slot: return whether another user is rich beside it, so that
 * it should try again.  False once it has tried for a second. */
bool kv_tenant_waits_locked(struct kv_cache *cache, struct kv_tenant *tenant);
void kv_count_kept_segment(struct kv_cache *cache, struct kv_tenant *tenant,
			   int by); /* 1 or -1 */

#endif
