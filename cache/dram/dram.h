/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dram.h - the DRAM tier inside the cache: segments, slots, who makes room.
 */
#ifndef KV_CACHE_DRAM_DRAM_H
#define KV_CACHE_DRAM_DRAM_H

#include "cache/core/slot.h"
#include "cache/core/table.h"

/* ---- arena.c ---- */

/* How the tiers evict.  -EINVAL: no such policy. */
int kv_arena_eviction_init(struct kv_cache *cache);
/* Clients that were told to unmap a segment do so at once, or never; and so do
 * processes that end. */
#define KV_UNMAP_NS 1000000000u

/* A FILLING slot; evicts as needed.  -ENOSPC, -EFBIG; -EBUSY: segments are
 * being made, or given back by clients, and then there may be one. */
int kv_slot_take_locked(struct kv_cache *cache, struct kv_space *space,
			uint64_t length, struct kv_slot **ret_slot);
bool kv_arena_grows_locked(const struct kv_cache *cache);
void kv_slot_give_locked(struct kv_cache *cache, struct kv_slot *slot);
/* READY to LEFT: its block has another one, or none, from now on; who leases it
 * keeps it, and gives it with the last lease.  It is neither held nor dirty. */
void kv_slot_leave_locked(struct kv_cache *cache, struct kv_slot *slot);
/* FILLING to READY, for @block. */
void kv_slot_publish_locked(struct kv_cache *cache, struct kv_slot *slot,
			    struct kv_block *block);
/* May pins hold one more slot, this one?  @charged: it is not counted as idle
 * any more. */
bool kv_slot_pin_fits(const struct kv_cache *cache,
		      const struct kv_space *space, const struct kv_slot *slot,
		      bool charged);
/* A READY slot keeps its place if its block is pinned and there is room for
 * that.  Between kv_slot_before and kv_slot_after. */
void kv_slot_pin_locked(struct kv_cache *cache, struct kv_slot *slot);
void kv_slot_unpin_locked(struct kv_cache *cache, struct kv_slot *slot);
/* The slot is used, or leaves; if a prefetch filled it, that is counted. */
void kv_slot_hint_over_locked(struct kv_cache *cache, struct kv_slot *slot,
			      bool used);
void kv_arena_check_locked(struct kv_cache *cache);
uint64_t kv_size_class(struct kv_cache *cache,
		       uint64_t length); /* 0: too big */
void kv_size_used(struct kv_cache *cache, uint64_t slot_bytes);

/* ---- evict.c ---- */

/* A free slot of @class for @space; evicts, or takes a segment from another
 * class.  NULL: nothing can be had now. */
struct kv_slot *kv_dram_evict_for_locked(struct kv_cache *cache,
					 struct kv_class *class,
					 struct kv_space *space);
/* Take the space's next victim out of DRAM; false if there is none. */
bool kv_dram_evict_own_locked(struct kv_cache *cache, struct kv_space *space);
/* The same of all spaces of @tenant, for @space, one of them; NULL: for none.
 */
bool kv_dram_evict_tenant_locked(struct kv_cache *cache,
				 const struct kv_tenant *tenant,
				 const struct kv_space *space);
/* Give up the next of its blocks, or of its tenant's, that wait for an SSD that
 * takes none of them; false if there is none. */
bool kv_dram_shed_own_locked(struct kv_cache *cache, struct kv_space *space);
/* Evict of @space, and of its tenant, until @bytes more are within the quotas
 * of both; false: they cannot be. */
bool kv_dram_fit_quota_locked(struct kv_cache *cache, struct kv_space *space,
			      uint64_t bytes);

/* ---- segment.c ---- */

int kv_arena_open(struct kv_cache *cache);
void kv_arena_close(struct kv_cache *cache);
/* Before it has so many slots for @class: open or not, from its first class on.
 * -ENOMEM, or an error of fcntl: nothing changed. */
int kv_segment_access(struct kv_cache *cache, struct kv_segment *segment,
		      const struct kv_class *class, uint32_t slots);
void kv_segment_slots(struct kv_cache *cache, struct kv_segment *segment,
		      struct kv_class *class);
/* Now it is vacant, and its class's no more. */
void kv_segment_leave(struct kv_cache *cache, struct kv_segment *segment);
void kv_segment_retire_locked(struct kv_cache *cache,
			      struct kv_segment *segment);

/* ---- memory.c ---- */

struct kv_memory {
	int fd; /* the daemon's own */
	/* To be given to others; -1: there is no such, and fd is sealed. */
	int read_fd, write_fd;
	uint8_t *base;
	bool huge, locked;
	bool undecided; /* kv_memory_seal is to come */
};
/* @seal: nobody can map it for writing, whatever he gets.  Else that is decided
 * by kv_memory_seal, before anybody gets it. */
int kv_memory_new(uint64_t bytes, enum kv_hugepages huge, bool seal,
		  struct kv_memory *ret_memory);
/* Decide, once.  @open: whoever gets write_fd, which is -1 if that cannot be
 * had, can map it for writing, and who gets read_fd cannot unless he is the
 * daemon's own user or root.  -errno of fcntl. */
int kv_memory_seal(struct kv_memory *memory, bool open);
void kv_memory_free(struct kv_memory *memory, uint64_t bytes);
/* Whether others have read_fd or write_fd still, or memory that is mapped from
 * them.  Closes the daemon's own: nobody is given them any more. */
bool kv_memory_in_use(struct kv_memory *memory);
/* The limit of huge pages.  Recover: what the last owner of this
 * lock file raised it by and did not live to lower. */
void kv_overcommit_recover(int lock_fd);
void kv_overcommit_raise(struct kv_cache *cache, int64_t pages);
void kv_overcommit_lower(struct kv_cache *cache);

#endif
