/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slot.h - a slot of DRAM: its bytes, whether it may go, and what of that is
 * accounted to its space.  All calls with cache->lock held.
 */
#ifndef KV_CACHE_CORE_SLOT_H
#define KV_CACHE_CORE_SLOT_H

#include "cache/core/core.h"

/* A page for the prologue, and then the file. */
uint8_t *kv_slot_bytes(const struct kv_slot *slot);
uint8_t *kv_slot_file(const struct kv_slot *slot);
/* Where the daemon has what it says of its block: in that page; or, if a client
 * may write there, in memory of its own. */
struct kv_prologue *kv_slot_prologue(const struct kv_slot *slot);
bool kv_slot_is_open(const struct kv_slot *slot);
/* The block in @from, which is held, is in @to as well.  Without the lock.
 * -EBADMSG: a client has changed it. */
int kv_slot_copy(const struct kv_slot *to, const struct kv_slot *from,
		 uint64_t length);

/* Is it on its way to SSD? */
bool kv_block_dirty(const struct kv_block *block);
/* Neither durable nor on its way there. */
bool kv_block_unpersisted(const struct kv_block *block);
/* The READY slot's block is unpersisted now, or is about to be no more. */
void kv_unpersisted_add_locked(struct kv_cache *cache, struct kv_slot *slot);
void kv_unpersisted_drop_locked(struct kv_cache *cache, struct kv_slot *slot);
/* Is its slot such that it may be evicted right now? */
bool kv_slot_idle(const struct kv_slot *slot);
/* Call around every change that kv_slot_idle depends on. */
void kv_slot_before(struct kv_cache *cache, struct kv_slot *slot);
void kv_slot_after(struct kv_cache *cache, struct kv_slot *slot);
void kv_slot_lease_locked(struct kv_cache *cache, struct kv_slot *slot, int by);
void kv_slot_hold_locked(struct kv_cache *cache, struct kv_slot *slot, int by);

/* Is this the access class that the space's blocks belong in now? */
bool kv_class_fits(const struct kv_class *class, const struct kv_space *space);

/* May a slot of it be filled, leased or pinned: is the segment such already, or
 * would there be segments enough for what others are guaranteed? */
bool kv_segment_may_keep(const struct kv_cache *cache,
			 const struct kv_segment *segment);

/* Whether its owner would have more than a user's share that cannot be evicted
 * now, and @space more than it is guaranteed, with @bytes more being filled. */
bool kv_arena_over_share(const struct kv_cache *cache,
			 const struct kv_space *space, uint64_t bytes);
/* The same of what is kept alone: nothing gives way but by its users. */
bool kv_arena_keeps_share(const struct kv_cache *cache,
			  const struct kv_space *space, uint64_t bytes);
/* Would leasing or pinning @bytes more for @space be beyond its owner's share,
 * or leave too little to evict, or too little for the guarantees of others? */
bool kv_arena_over_floor(const struct kv_cache *cache,
			 const struct kv_space *space, uint64_t bytes);
/* The same for a slot that may be kept already, or waits to be written. */
bool kv_slot_over_floor(const struct kv_cache *cache,
			const struct kv_slot *slot);

#endif
