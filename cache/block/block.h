/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h - what is done to blocks inside the cache: their end, saves, leases,
 * reads, hints, pins.
 */
#ifndef KV_CACHE_BLOCK_BLOCK_H
#define KV_CACHE_BLOCK_BLOCK_H

#include "cache/core/slot.h"
#include "cache/core/table.h"

/* ---- block.c ---- */

/* The record of a block one holds, by index or slot; not under the lock.
 */
int kv_block_record(struct kv_cache *cache, struct kv_block *block,
		    struct kv_slot_record *ret_record);
/* Its user removes it: no other node is to bring it back. */
void kv_block_unwanted_locked(struct kv_cache *cache,
			      const struct kv_block *block);
/* The pin of @block, or the owner of @space, has changed: charge its open blocks
 * to their readers, or waive that. */
void kv_opens_recharge_block_locked(struct kv_cache *cache,
				    const struct kv_block *block);
void kv_opens_recharge_space_locked(struct kv_cache *cache,
				    const struct kv_space *space);
void kv_block_touch_locked(struct kv_cache *cache, struct kv_block *block);
/* Count in the miss curve that it was asked for, and found or saved. */
void kv_block_asked_locked(struct kv_cache *cache,
			   const struct kv_block *block);
/* A use ends: blocks of a chain come back from the tail, and leave so. */
void kv_block_renew_locked(struct kv_cache *cache, struct kv_block *block);

/* May its bytes in DRAM go to another slot: nobody has been told where they
 * are, is at them, or waits for them to be written? */
bool kv_block_movable(const struct kv_block *block);
/* The bytes were copied from @old to @new, and the block is in @new alone from
 * now on; a lease of @old keeps that, which must be no place for it any more.
 * False, and @new is given back: the block is not movable any more. */
bool kv_block_replace_locked(struct kv_cache *cache, struct kv_block *block,
			     struct kv_slot *old, struct kv_slot *new);
/* A durable block whose space has changed hands, or mode, since it came to its
 * slot leaves that, if nobody holds it: it is read in anew. */
void kv_block_rehome_locked(struct kv_cache *cache, struct kv_block *block);
/* Its block, which is neither held nor dirty, is not there any more; who leases
 * it keeps it until he releases it. */
void kv_slot_quit_locked(struct kv_cache *cache, struct kv_slot *slot);

/* ---- fill.c ---- */

struct kv_fill *kv_fill_find_locked(struct kv_cache *cache,
				    struct kv_space *space,
				    const struct kv_key *key);
/* Saves in @space that will never seal from now on: nobody waits for them. */
void kv_fills_stale_locked(struct kv_cache *cache, struct kv_space *space);

/* ---- lease.c ---- */

void kv_want_settle_locked(struct kv_cache *cache, struct kv_want *want,
			   int status);
void kv_wants_restart_locked(struct kv_cache *cache, struct kv_want **list);
void kv_wants_miss_locked(struct kv_cache *cache, struct kv_want **list);
void kv_want_link(struct kv_want **list, struct kv_want *want);
/* Lease the block just published from a slot that is charged already. */
void kv_want_hold_locked(struct kv_cache *cache, struct kv_want *want,
			 struct kv_block *block);

/* ---- read.c ---- */

int kv_reader_start(struct kv_cache *cache);
int kv_reader_stop(struct kv_cache *cache); /* -ETIMEDOUT: a read is stuck */
/* Waits for reads that have been under way for too long are over.
 */
void kv_reads_expire_locked(struct kv_cache *cache);
/* Read @block into DRAM, or join who does; @want is started again then.  One
 * that is in DRAM, and movable, is moved to another slot.  -ENOSPC, -EBUSY,
 * -EFBIG, -ENOMEM; -EIO; -ETIMEDOUT the SSD does not answer. */
int kv_read_join_locked(struct kv_cache *cache, struct kv_block *block,
			struct kv_want *want);
/*
 * Read what the block has on SSD into *@data, @room bytes from kv_pages_new,
 * and verify it.  Waits.  -EBADMSG: it was damaged and is a miss from now on;
 * -ENOENT removed; -EIO; -ETIMEDOUT: the device does not answer, and *@data is
 * NULL: the request frees it when it ends.
 */
int kv_block_fetch(struct kv_cache *cache, struct kv_block *block,
		   uint8_t **data, uint64_t room);

/* ---- prefetch.c ---- */

void kv_prefetcher_init(struct kv_cache *cache);
int kv_prefetcher_start(struct kv_cache *cache);
void kv_prefetcher_stop(
	struct kv_cache *cache); /* cancels what has not begun */
/* The read of a prefetched block has ended. */
void kv_prefetch_landed_locked(struct kv_cache *cache,
			       struct kv_prefetch *prefetch,
			       struct kv_slot *slot);

/* ---- pins.c ---- */

/* Would enough to evict remain if it were pinned? */
bool kv_pin_fits_locked(struct kv_cache *cache, const struct kv_block *block);
/* Count another snapshot that has @key.  -ENOENT no such block, -ENOSPC too
 * little could be evicted then, -ENOMEM. */
int kv_pin_take_locked(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_key *key);
/* The same whether the block is there or not, and whatever that costs. */
int kv_pin_adopt_locked(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key);
void kv_pin_give_locked(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key);
/* A block was sealed, or goes. */
void kv_pin_block_new_locked(struct kv_cache *cache, struct kv_block *block);
void kv_pin_block_gone_locked(struct kv_cache *cache, struct kv_block *block);
void kv_pin_by_user_locked(struct kv_cache *cache, struct kv_block *block,
			   bool pin);
void kv_pins_fini(struct kv_cache *cache);

int kv_bounce_new(uint64_t dram, struct kv_bounce **ret_bounce);
/* Give back what nobody has used for a while. */
void kv_bounce_trim(struct kv_bounce *bounce);
void kv_bounce_free(struct kv_bounce *bounce);

/* Of block.c, lease.c and pins.c, for what stands below them; core/hooks.h. */
extern const struct kv_block_hooks kv_block_hooks;
void kv_wants_look_again_locked(struct kv_cache *cache);
bool kv_pinned_by_user(struct kv_cache *cache, const struct kv_block *block);

#endif
