/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dram.h - the DRAM tier inside the cache: segments, slots, eviction.
 */
#ifndef KV_CACHE_DRAM_DRAM_H
#define KV_CACHE_DRAM_DRAM_H

#include "cache/core/slot.h"
#include "cache/core/table.h"

/* ---- arena.c ---- */

/* -EINVAL: no such policy. */
int kv_arena_eviction_init(struct kv_cache *cache);
/* Clients unmap a retired segment within this time, or never; so do processes
 * that end. */
#define KV_UNMAP_NS 1000000000u

/* Take a FILLING slot; evict as needed.  -ENOSPC; -EFBIG; -ENOMEM; -EBUSY: there
 * may be one soon, as segments are being made, or given back by clients. */
int kv_slot_take_locked(struct kv_cache *cache, struct kv_space *space,
			uint64_t length, struct kv_slot **ret_slot);
bool kv_arena_grows_locked(const struct kv_cache *cache);
void kv_slot_give_locked(struct kv_cache *cache, struct kv_slot *slot);
/* READY to LEFT: the block has another slot, or none, from now on.  Leases keep
 * the slot, and the last one gives it.  The slot is neither held nor dirty. */
void kv_slot_leave_locked(struct kv_cache *cache, struct kv_slot *slot);
/* FILLING to READY, for @block. */
void kv_slot_publish_locked(struct kv_cache *cache, struct kv_slot *slot,
			    struct kv_block *block);
/* Return whether one more slot, @slot, may be pinned.  @charged: the slot is not counted as
 * idle any more. */
bool kv_slot_pin_fits(const struct kv_cache *cache,
		      const struct kv_space *space, const struct kv_slot *slot,
		      bool charged);
/* Pin a READY slot if its block is pinned and kv_slot_pin_fits; unpin a slot.
 * Call between kv_slot_before and kv_slot_after. */
void kv_slot_pin_locked(struct kv_cache *cache, struct kv_slot *slot);
void kv_slot_unpin_locked(struct kv_cache *cache, struct kv_slot *slot);
/* Count the end of a prefetch's hint, if it filled the slot: the slot is used, or
 * given back. */
void kv_slot_hint_over_locked(struct kv_cache *cache, struct kv_slot *slot,
			      bool used);
void kv_arena_check_locked(struct kv_cache *cache);
uint64_t kv_size_class(struct kv_cache *cache,
		       uint64_t length); /* 0: too big */
void kv_size_used(struct kv_cache *cache, uint64_t slot_bytes);

/* ---- evict.c ---- */

/* Find a free slot of @class for @space.  Evict, or take a segment from another
 * class, if needed.  NULL: none can be had now. */
struct kv_slot *kv_dram_evict_for_locked(struct kv_cache *cache,
					 struct kv_class *class,
					 struct kv_space *space);
/* Take the space's next victim out of DRAM; false: there is none. */
bool kv_dram_evict_own_locked(struct kv_cache *cache, struct kv_space *space);
/* Take the next victim of all spaces of @tenant out of DRAM, for @space, one of
 * them; NULL: for none. */
bool kv_dram_evict_tenant_locked(struct kv_cache *cache,
				 const struct kv_tenant *tenant,
				 const struct kv_space *space);
/* Evict a block of the space, or of its user, that waits for an SSD that takes
 * none of them; false: there is none. */
bool kv_dram_shed_own_locked(struct kv_cache *cache, struct kv_space *space);
/* Evict blocks of @space, and of its user, until @bytes more are within the
 * quotas of both; false: they cannot be. */
bool kv_dram_fit_quota_locked(struct kv_cache *cache, struct kv_space *space,
			      uint64_t bytes);

/* ---- segment.c ---- */

int kv_arena_open(struct kv_cache *cache);
void kv_arena_close(struct kv_cache *cache);
/* Prepare for @slots slots of @class; the first class decides whether the segment
 * is open.  -ENOMEM, or an error of fcntl: nothing changed. */
int kv_segment_access(struct kv_cache *cache, struct kv_segment *segment,
		      const struct kv_class *class, uint32_t slots);
void kv_segment_slots(struct kv_cache *cache, struct kv_segment *segment,
		      struct kv_class *class);
/* Take a vacant segment from its class. */
void kv_segment_leave(struct kv_cache *cache, struct kv_segment *segment);
void kv_segment_retire_locked(struct kv_cache *cache,
			      struct kv_segment *segment);

/* @seal: no descriptor can be mapped for writing.  Otherwise kv_memory_seal
 * decides, before a client gets one. */
int kv_memory_new(uint64_t bytes, enum kv_hugepages huge, bool seal,
		  struct kv_memory *ret_memory);
/* Decide, once.  @open: write_fd, which is -1 if there is none, can be mapped
 * for writing, and read_fd cannot, except by the daemon's own user and root.
 * -errno of fcntl. */
int kv_memory_seal(struct kv_memory *memory, bool open);
void kv_memory_free(struct kv_memory *memory, uint64_t bytes);
/* Close read_fd and write_fd, and return whether other processes still have one
 * of them, or the memory mapped. */
bool kv_memory_in_use(struct kv_memory *memory);
/* Lower the limit of huge pages again, if the last owner of this lock file raised
 * it and did not live to lower it. */
void kv_overcommit_recover(int lock_fd);

#endif
