/* SPDX-License-Identifier: Apache-2.0 */
/* block.h - blocks inside the cache: removal, saves, leases, prefetches, reads
 * and pins. */
#ifndef KV_CACHE_BLOCK_BLOCK_H
#define KV_CACHE_BLOCK_BLOCK_H

#include "cache/core/slot.h"
#include "cache/core/table.h"

/* ---- block.c ---- */

/* Read the record of a held block, from its slot or the index; call without the
 * lock. */
int kv_block_record(struct kv_cache *cache, struct kv_block *block,
		    struct kv_slot_record *ret_record);
/* Make a tombstone of a block that the user removes, so that the remote tier
 * does not fetch the block again. */
void kv_block_unwanted_locked(struct kv_cache *cache,
			      const struct kv_block *block);
/* Charge open blocks to their readers, unless a reader pays for the block's pin.
 * Call after the pin of @block changed, or with NULL after the owner of @space
 * changed. */
void kv_opens_recharge_locked(struct kv_cache *cache,
			      const struct kv_block *block,
			      const struct kv_space *space);
void kv_block_touch_locked(struct kv_cache *cache, struct kv_block *block);
/* Count the block in the miss curve: a look-up found it or a save added it. */
void kv_block_asked_locked(struct kv_cache *cache,
			   const struct kv_block *block);
/* Treat the block as used now, when a use of it ends.  Call for a chain from
 * its last block to its first. */
void kv_block_renew_locked(struct kv_cache *cache, struct kv_block *block);

/* Return whether the block may change its slot: no lease, reader or flush has
 * it. */
bool kv_block_movable(const struct kv_block *block);
/* Move the block to @new, after its bytes were copied there from @old.  Leases
 * keep @old, so a leased block is moved only if @old is of a wrong access class.
 * Return false, and free @new, if the block cannot be moved any more. */
bool kv_block_replace_locked(struct kv_cache *cache, struct kv_block *block,
			     struct kv_slot *old, struct kv_slot *new);
/* Remove a durable block, which is not held, from DRAM if its slot belongs to
 * another owner or mode than its space; the next use reads it from SSD. */
void kv_block_rehome_locked(struct kv_cache *cache, struct kv_block *block);
/* Separate a block, which is neither held nor dirty, from its slot in DRAM.
 * Leases keep the slot until their release. */
void kv_slot_quit_locked(struct kv_cache *cache, struct kv_slot *slot);

/* ---- fill.c ---- */

struct kv_fill *kv_fill_find_locked(struct kv_cache *cache,
				    struct kv_space *space,
				    const struct kv_key *key);
/* Fail the wants of acquires that wait for saves in @space that cannot seal. */
void kv_fills_stale_locked(struct kv_cache *cache, struct kv_space *space);

/* ---- lease.c ---- */

void kv_wants_restart_locked(struct kv_cache *cache, struct kv_want **list);
void kv_wants_fail_locked(struct kv_cache *cache, struct kv_want **list,
			  int status);
void kv_want_link(struct kv_want **list, struct kv_want *want);
void kv_want_unlink(struct kv_want *want); /* if it is linked */
/* Lease the block, whose slot is in DRAM. */
void kv_want_lend_locked(struct kv_cache *cache, struct kv_want *want,
			 struct kv_block *block);

/* ---- read.c ---- */

int kv_reader_start(struct kv_cache *cache);
int kv_reader_stop(struct kv_cache *cache); /* -ETIMEDOUT: a read is stuck */
/* Settle with -ETIMEDOUT the wants that wait for reads past their deadline. */
void kv_reads_expire_locked(struct kv_cache *cache);
/*
 * Read @block into DRAM, or join the read in flight; @want is tried again when
 * the read ends.  A block in DRAM is copied to another slot instead, if
 * kv_block_movable.
 *   -ENOSPC, -EBUSY, -EFBIG, -ENOMEM  no slot, as kv_slot_take_locked
 *   -EIO
 *   -ETIMEDOUT  the SSD does not answer
 */
int kv_read_join_locked(struct kv_cache *cache, struct kv_block *block,
			struct kv_want *want);
/*
 * Read the block's extent into *@data, @room bytes from kv_pages_new, and
 * verify it.  Waits.
 *   -EBADMSG    the block was damaged, and is absent from now on
 *   -ENOENT     the block was removed
 *   -EIO
 *   -ETIMEDOUT  the device does not answer; *@data is NULL: the request frees
 *               the memory when it ends
 */
int kv_block_fetch(struct kv_cache *cache, struct kv_block *block,
		   uint8_t **data, uint64_t room);

/* ---- pins.c ---- */

/* Return whether enough evictable memory would remain if @block were pinned. */
bool kv_pin_fits_locked(struct kv_cache *cache, const struct kv_block *block);
/* Count one more snapshot that contains @key.  -ENOENT: no such block; -ENOSPC:
 * too little DRAM or SSD would stay evictable; -ENOMEM */
int kv_pin_take_locked(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_key *key);
/* Like kv_pin_take_locked, but called at mount: without a limit, and the block
 * may be missing. */
int kv_pin_adopt_locked(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key);
void kv_pin_give_locked(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key);
/* Pin a block that was just sealed, if a snapshot contains its key.  Then:
 * forget the pin of a block that is being removed. */
void kv_pin_block_new_locked(struct kv_cache *cache, struct kv_block *block);
void kv_pin_block_gone_locked(struct kv_cache *cache, struct kv_block *block);
void kv_pin_by_user_locked(struct kv_cache *cache, struct kv_block *block,
			   bool pin);

/* Free the bounce buffers that were not used recently. */
void kv_bounce_trim(struct kv_bounce *bounce);
void kv_bounce_free(struct kv_bounce *bounce);

/* Functions that lower folders call; see core/hooks.h. */
extern const struct kv_block_hooks kv_block_hooks;
void kv_wants_look_again_locked(struct kv_cache *cache);
bool kv_pinned_by_user(struct kv_cache *cache, const struct kv_block *block);

#endif
