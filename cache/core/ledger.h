/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ledger.h - bytes that spaces and users hold, and may hold, in the two tiers.
 *
 * A space and a user have a struct kv_node for each tier; a user's node is the
 * sum of the nodes of its spaces.  The quota limits a node, the reserve is
 * guaranteed to a node, and the user's account (account.h) limits the node to a
 * fair share of the rest.  The evictions of both tiers read these nodes.
 *
 * Call all functions with cache->lock held.
 */
#ifndef KV_CACHE_CORE_LEDGER_H
#define KV_CACHE_CORE_LEDGER_H

#include "cache/core/core.h"

/* 1 / KV_FLOOR_PART of each tier, and of each user's share of DRAM, is kept
 * free of leases and pins, for new blocks. */
#define KV_FLOOR_PART 16u

struct kv_tenant *kv_tenant_find(struct kv_cache *cache,
				 uint32_t uid); /* NULL */
/* Find or create the user's record; NULL: no memory. */
struct kv_tenant *kv_tenant_make(struct kv_cache *cache, uint32_t uid);

/* Move @space and its counts to @tenant. */
void kv_tenant_join_locked(struct kv_cache *cache, struct kv_tenant *tenant,
			   struct kv_space *space);
/* Take a removed space off its user's list; its bytes stay counted. */
void kv_tenant_leave(struct kv_space *space);

/* Return by how much the guarantee of a space or a user exceeds its unevictable
 * bytes (node->fast). */
uint64_t kv_due(const struct kv_space *space, enum kv_node_tier tier);
uint64_t kv_tenant_due(const struct kv_tenant *tenant, enum kv_node_tier tier);
/* Return the size of the tier; the second call returns the part that users
 * share: the size less kv_due of all guarantees. */
uint64_t kv_tier_bytes(const struct kv_cache *cache, enum kv_node_tier tier);
uint64_t kv_shared(const struct kv_cache *cache, enum kv_node_tier tier);

/* Add @bytes, which may be negative, to the nodes of a space and its user. */
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

/* Return whether @space or its user would stay within the guarantee with @bytes
 * more: if so, eviction takes blocks of other spaces. */
bool kv_entitled(enum kv_node_tier tier, const struct kv_space *space,
		 uint64_t bytes);
/* Return whether @space and its user keep their guarantees after the eviction
 * of @bytes and of node->leaving.  Ignore the guarantees of @taker and of the
 * user @tenant. */
bool kv_keeps_guarantee(enum kv_node_tier tier, const struct kv_space *space,
			const struct kv_space *taker,
			const struct kv_tenant *tenant, uint64_t bytes);
/* Return whether @space must not make @bytes more unevictable: too few
 * evictable bytes would remain, or too few for the guarantees of other users
 * with @left bytes free. */
bool kv_crowded(const struct kv_cache *cache, enum kv_node_tier tier,
		const struct kv_space *space, uint64_t bytes, uint64_t left);

/*
 * DRAM is given in segments.  A user claims as many segments as its guarantee
 * needs, or all of its segments that cannot be emptied now if these are more.
 * Claims beyond the guarantee leave the guarantees of others untouched, and one
 * in four of the unclaimed segments to users that have none yet.
 */
uint32_t kv_guaranteed_segments(const struct kv_cache *cache,
				const struct kv_tenant *tenant);
/* Return whether the user may have one more segment that cannot be emptied. */
bool kv_tenant_may_keep(const struct kv_cache *cache,
			const struct kv_tenant *tenant);
/* Return whether @tenant has over twice the segments of @other plus one. */
bool kv_tenant_is_rich(const struct kv_tenant *tenant,
		       const struct kv_tenant *other);
/* Call when a user finds no slot.  Return whether it may retry: another user is
 * rich (kv_tenant_is_rich), and the user's failures last for less than a second. */
bool kv_tenant_waits_locked(struct kv_cache *cache, struct kv_tenant *tenant);
void kv_count_kept_segment(struct kv_cache *cache, struct kv_tenant *tenant,
			   int by); /* @by: 1 to add, -1 to subtract */

#endif
