/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dram.h - the DRAM tier inside the cache: segments, slots, eviction.
 */
#ifndef KV_CACHE_DRAM_DRAM_H
#define KV_CACHE_DRAM_DRAM_H

#include "cache/core/slot.h"
#include "cache/core/table.h"

/* ---- arena.c ---- */

/* Clients and ending processes unmap a retired segment within this time. */
#define KV_UNMAP_NS 1000000000u

/* Take a FILLING slot; evict blocks as needed.  -ENOSPC, -EFBIG, -ENOMEM;
 * -EBUSY: retry soon: segments are being made, or returned by clients */
int kv_slot_take_locked(struct kv_cache *cache, struct kv_space *space,
			uint64_t length, struct kv_slot **ret_slot);
bool kv_arena_grows_locked(const struct kv_cache *cache);
void kv_slot_give_locked(struct kv_cache *cache, struct kv_slot *slot);
/* READY to LEFT: separate the slot, which is neither held nor dirty, from its
 * block.  Leases keep the slot until their release. */
void kv_slot_leave_locked(struct kv_cache *cache, struct kv_slot *slot);
/* FILLING to READY: give the slot to @block. */
void kv_slot_publish_locked(struct kv_cache *cache, struct kv_slot *slot,
			    struct kv_block *block);
/* Return whether @slot may be pinned in addition to the pinned slots.
 * @charged: the slot no longer counts as idle. */
bool kv_slot_pin_fits(const struct kv_cache *cache,
		      const struct kv_space *space, const struct kv_slot *slot,
		      bool charged);
/* Pin a READY slot if its block is pinned and kv_slot_pin_fits; unpin the slot
 * otherwise.  Call between kv_slot_before and kv_slot_after. */
void kv_slot_pin_locked(struct kv_cache *cache, struct kv_slot *slot);
void kv_slot_unpin_locked(struct kv_cache *cache, struct kv_slot *slot);
/* Count whether the block in @slot, which a prefetch brought, was @used, or
 * evicted before any use. */
void kv_slot_hint_over_locked(struct kv_cache *cache, struct kv_slot *slot,
			      bool used);
uint64_t kv_size_class(struct kv_cache *cache,
		       uint64_t length); /* 0: larger than any slot */
void kv_size_used(struct kv_cache *cache, uint64_t slot_bytes);

/* ---- evict.c ---- */

/* Find a free slot of @class for @space; evict, or take a segment from another
 * class, if needed.  NULL: no slot can be freed now. */
struct kv_slot *kv_dram_evict_for_locked(struct kv_cache *cache,
					 struct kv_class *class,
					 struct kv_space *space);
/* Evict the space's next victim from DRAM; false: the space has none. */
bool kv_dram_evict_own_locked(struct kv_cache *cache, struct kv_space *space);
/* Evict the next victim of all spaces of @tenant from DRAM, for @space of that
 * tenant, or for no space (NULL). */
bool kv_dram_evict_tenant_locked(struct kv_cache *cache,
				 const struct kv_tenant *tenant,
				 const struct kv_space *space);
/* Evict a block of the space, or of its user, that waits to be written to an
 * SSD without room; false: there is no such block. */
bool kv_dram_shed_own_locked(struct kv_cache *cache, struct kv_space *space);
/* Evict until @bytes more are within the quotas of @space and its user; false:
 * impossible. */
bool kv_dram_fit_quota_locked(struct kv_cache *cache, struct kv_space *space,
			      uint64_t bytes);

/* ---- segment.c ---- */

int kv_arena_open(struct kv_cache *cache);
void kv_arena_close(struct kv_cache *cache);
/* Give a segment without used slots to @class.  The segment's first class
 * decides whether it is open.  After an error (-ENOMEM, or of fcntl) nothing
 * has changed. */
int kv_segment_use(struct kv_cache *cache, struct kv_segment *segment,
		   struct kv_class *class);
void kv_segment_retire_locked(struct kv_cache *cache,
			      struct kv_segment *segment);

/* @seal: seal the memory now, so that no descriptor can be mapped for writing.
 * Otherwise call kv_memory_seal before a client gets a descriptor. */
int kv_memory_new(uint64_t bytes, enum kv_hugepages huge, bool seal,
		  struct kv_memory *ret_memory);
/* Decide for good who can map the memory for writing.  @open: through write_fd
 * (-1 if there is none) every process, through read_fd only the daemon's own
 * user and root.  Otherwise nobody.  Return 0 or -errno of fcntl. */
int kv_memory_seal(struct kv_memory *memory, bool open);
void kv_memory_free(struct kv_memory *memory, uint64_t bytes);
/* Close read_fd and write_fd; return whether other processes still have a
 * descriptor or a mapping of the memory. */
bool kv_memory_in_use(struct kv_memory *memory);
/* Lower the limit of huge pages if the last owner of this lock file raised the
 * limit and was killed before it lowered it. */
void kv_overcommit_recover(int lock_fd);

#endif
