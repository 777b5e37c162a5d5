/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h - blocks inside the cache: their end, saves, leases, prefetches, reads
 * and pins.
 */
#ifndef KV_CACHE_BLOCK_BLOCK_H
#define KV_CACHE_BLOCK_BLOCK_H

#include "cache/core/slot.h"
#include "cache/core/table.h"

/* ---- block.c ---- */

/* Read the record of a held block, from its slot or the index; not under the
 * lock. */
int kv_block_record(struct kv_cache *cache, struct kv_block *block,
		    struct kv_slot_record *ret_record);
/* Remember that the user removes the block: other nodes do not bring it back. */
void kv_block_unwanted_locked(struct kv_cache *cache,
			      const struct kv_block *block);
/* The pin of @block, or the owner of @space, has changed: charge its open blocks
 * to their readers, or waive that. */
void kv_opens_recharge_block_locked(struct kv_cache *cache,
				    const struct kv_block *block);
void kv_opens_recharge_space_locked(struct kv_cache *cache,
				    const struct kv_space *space);
void kv_block_touch_locked(struct kv_cache *cache, struct kv_block *block);
/* Count in the miss curve that the block was looked up and found, or saved. */
void kv_block_asked_locked(struct kv_cache *cache,
			   const struct kv_block *block);
/* Treat the block as used now: a use ends.  Call for a chain from its tail. */
void kv_block_renew_locked(struct kv_cache *cache, struct kv_block *block);

/* Return whether the block's bytes may move to another slot: no client leases them, no reader has them and no flush waits for them. */
bool kv_block_movable(const struct kv_block *block);
/* Put the block into @new alone, after its bytes were copied there from @old.  A
 * lease keeps @old, which must be of a wrong access class then.  False, and @new
 * is given back: the block cannot be moved any more. */
bool kv_block_replace_locked(struct kv_cache *cache, struct kv_block *block,
			     struct kv_slot *old, struct kv_slot *new);
/* Take a durable block out of its slot, unless it is held, if its space has
 * another owner or mode than the slot: it is read in anew. */
void kv_block_rehome_locked(struct kv_cache *cache, struct kv_block *block);
/* Take the block, which is neither held nor dirty, out of its slot.  Leases keep
 * the slot until they are released. */
void kv_slot_quit_locked(struct kv_cache *cache, struct kv_slot *slot);

/* ---- fill.c ---- */

struct kv_fill *kv_fill_find_locked(struct kv_cache *cache,
				    struct kv_space *space,
				    const struct kv_key *key);
/* Settle the wants that wait for saves in @space which will never seal now. */
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
/* Settle the wants of reads that have been under way for too long. */
void kv_reads_expire_locked(struct kv_cache *cache);
/* Read @block into DRAM, or join the read that is under way; @want starts again
 * when that ends.  A movable block in DRAM is moved to another slot.  -ENOSPC,
 * -EBUSY, -EFBIG, -ENOMEM; -EIO; -ETIMEDOUT: the SSD does not answer. */
int kv_read_join_locked(struct kv_cache *cache, struct kv_block *block,
			struct kv_want *want);
/*
 * Read the block's extent into *@data, @room bytes from kv_pages_new, and verify
 * it.  Waits.  -EBADMSG: it was damaged and is a miss from now on; -ENOENT: it
 * was removed; -EIO; -ETIMEDOUT: the device does not answer, and *@data is NULL,
 * as the request frees it when it ends.
 */
int kv_block_fetch(struct kv_cache *cache, struct kv_block *block,
		   uint8_t **data, uint64_t room);

void kv_prefetcher_init(struct kv_cache *cache);
int kv_prefetcher_start(struct kv_cache *cache);
void kv_prefetcher_stop(
	struct kv_cache *cache); /* cancels what has not begun */
/* The read of a prefetched block has ended. */
void kv_prefetch_landed_locked(struct kv_cache *cache,
			       struct kv_prefetch *prefetch,
			       struct kv_slot *slot);

/* ---- pins.c ---- */

/* Return whether enough to evict would remain if @block were pinned. */
bool kv_pin_fits_locked(struct kv_cache *cache, const struct kv_block *block);
/* Count another snapshot that has @key.  -ENOENT: no such block; -ENOSPC: too
 * little could be evicted then; -ENOMEM. */
int kv_pin_take_locked(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_key *key);
/* The same at mount, for a block that may be missing, and without a limit. */
int kv_pin_adopt_locked(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key);
void kv_pin_give_locked(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key);
/* Pin a block that was just sealed, if a snapshot has its key; forget the pins of
 * one that goes. */
void kv_pin_block_new_locked(struct kv_cache *cache, struct kv_block *block);
void kv_pin_block_gone_locked(struct kv_cache *cache, struct kv_block *block);
void kv_pin_by_user_locked(struct kv_cache *cache, struct kv_block *block,
			   bool pin);
void kv_pins_fini(struct kv_cache *cache);

int kv_bounce_new(uint64_t dram, struct kv_bounce **ret_bounce);
/* Free the buffers that were not used for a while. */
void kv_bounce_trim(struct kv_bounce *bounce);
void kv_bounce_free(struct kv_bounce *bounce);

/* The calls of lower folders to block.c, lease.c and pins.c; core/hooks.h. */
extern const struct kv_block_hooks kv_block_hooks;
void kv_wants_look_again_locked(struct kv_cache *cache);
bool kv_pinned_by_user(struct kv_cache *cache, const struct kv_block *block);

#endif
