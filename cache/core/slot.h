/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slot.h - a slot of DRAM: its bytes, whether it is idle, and its part in the
 * counts of its space.  Call all functions with cache->lock held.
 */
#ifndef KV_CACHE_CORE_SLOT_H
#define KV_CACHE_CORE_SLOT_H

#include "cache/core/account.h"
#include "cache/core/core.h"

/* The slot's bytes: a page for the prologue, and then the file. */
uint8_t *kv_slot_bytes(const struct kv_slot *slot);
uint8_t *kv_slot_file(const struct kv_slot *slot);
/* Return the daemon's copy of the block's prologue: in the slot's first page,
 * or in the daemon's own memory if a client may write to the slot. */
struct kv_prologue *kv_slot_prologue(const struct kv_slot *slot);
bool kv_slot_is_open(const struct kv_slot *slot);
/* Return whether the file @bytes of a block has the digest of its @record. */
bool kv_record_agrees(const struct kv_slot_record *record, const void *bytes);
/* Copy the block in @from, which is held, to @to.  Call without the lock.
 * -EBADMSG: a client has changed the block. */
int kv_slot_copy(const struct kv_slot *to, const struct kv_slot *from,
		 uint64_t length);

/* Return the record of a removed block that is still open, or NULL. */
struct kv_unlinked *kv_unlinked_find(struct kv_cache *cache,
				     const struct kv_block *block);
/* Return 0 and the record of @block if the record is in memory; else 1 and the
 * id of the SSD slot, which is the record's key in the index. */
int kv_record_in_memory(struct kv_cache *cache, const struct kv_block *block,
			struct kv_slot_record *ret_record, uint64_t *ret_id);

/* Return whether the block is being written to SSD, or queued for that. */
bool kv_block_dirty(const struct kv_block *block);
/* Return whether the block is neither durable nor being written to SSD. */
bool kv_block_unpersisted(const struct kv_block *block);
/* Add the READY slot of a block that became unpersisted to its space's list; or
 * remove the slot, while the block is still unpersisted. */
void kv_unpersisted_add_locked(struct kv_cache *cache, struct kv_slot *slot);
void kv_unpersisted_drop_locked(struct kv_cache *cache, struct kv_slot *slot);
/* Return whether the slot may be evicted right now. */
bool kv_slot_idle(const struct kv_slot *slot);
/* Call before and after every change of the slot's state, leases, holds, pin,
 * or whether it is dirty. */
void kv_slot_before(struct kv_cache *cache, struct kv_slot *slot);
void kv_slot_after(struct kv_cache *cache, struct kv_slot *slot);
void kv_slot_lease_locked(struct kv_cache *cache, struct kv_slot *slot, int by);
void kv_slot_hold_locked(struct kv_cache *cache, struct kv_slot *slot, int by);

/* Return the r bits of @mode without those whose x bit is missing: only a user
 * with both may lease blocks. */
uint32_t kv_read_bits(uint32_t mode);

/* Return whether new blocks of the space belong in this access class. */
bool kv_class_fits(const struct kv_class *class, const struct kv_space *space);

/* Return whether a slot of @segment may be filled, leased or pinned: either the
 * segment has such slots already, or enough segments are left for the
 * guarantees of others. */
bool kv_segment_may_keep(const struct kv_cache *cache,
			 const struct kv_segment *segment);

/* Return whether one more slot of @bytes exceeds the fair share of the space's
 * owner, and also the guarantees of the space and the owner.  @what:
 * KV_FINITE_DIRTY counts all slots that cannot be evicted now, KV_FINITE_DRAM
 * only kept slots. */
bool kv_arena_over_share(const struct kv_cache *cache,
			 const struct kv_space *space, enum kv_finite what,
			 uint64_t bytes);
/* Return whether one more slot of @bytes must not be leased or pinned: it would
 * exceed the owner's share, or leave too little to evict or for guarantees. */
bool kv_arena_over_floor(const struct kv_cache *cache,
			 const struct kv_space *space, uint64_t bytes);
/* Like kv_arena_over_floor, for a slot in use; false for a kept slot. */
bool kv_slot_over_floor(const struct kv_cache *cache,
			const struct kv_slot *slot);

#endif
