/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.h - saves: pages go to the daemon, which seals them as blocks and can
 * lease the sealed blocks (KVFS_HOLD).
 *
 * All functions are called with session->lock held, unless their comment says
 * otherwise.
 */
#ifndef KV_KERNELS_TRANSFER_SAVE_H
#define KV_KERNELS_TRANSFER_SAVE_H

#include "kernels/transfer/xfer.h"

#define KV_SAVE_ALIGN 64u

/* Do the work of kvfs_save, also for a pool of kvfs_pool_reserve. */
int kv_lib_save(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys,
		const kvfs_meta *meta, size_t n, const int64_t *pages,
		const kvfs_opts *opts, kvfs_xfer **ret_xfer);

/* Begin batches of the queued saves, as many as there is room for in the
 * staging. */
void kv_save_pump_locked(struct kvfs_session *session);

/* Fail all blocks that are in no batch with @status, because there is no
 * staging. */
void kv_saves_fail_locked(struct kvfs_session *session, int status);

/* Stop the session's saves to the space @name; their blocks end with
 * -ESTALE. */
void kv_saves_stop_locked(struct kvfs_session *session, const char *name);

/* ---- blocks to do ---- */

/* Take @n blocks from the list of blocks that are in no batch. */
void kv_save_take_locked(struct kvfs_xfer *xfer, uint32_t *ret_blocks,
			 size_t n);
/* Put a block that found no room back in the list, to be tried again after some
 * milliseconds. */
void kv_save_again_locked(struct kvfs_xfer *xfer, uint32_t block);

/* ---- token ids; fixed after start, any thread ---- */

/* Return the most bytes that the ids of a block of @layout take. */
uint64_t kv_save_ids_most(const struct kv_layout *layout);
/* Return the offset of a block's ids from its first byte in staging. */
uint64_t kv_save_ids_offset(const struct kv_layout *layout);
/* Copy the ids of block @block to @at, if the save has ids. */
void kv_save_ids_put(const struct kvfs_xfer *xfer, size_t block, uint8_t *at);

/* Return the bytes of staging for a block of @xfer with its ids. */
uint64_t kv_save_block_bytes(const struct kvfs_xfer *xfer);

/* Keep the daemon's lease of the blocks that the message @tag has sealed, of
 * which @block is one, until the transfer is freed.  Release the lease now if the
 * transfer was freed. */
void kv_save_hold_locked(struct kvfs_xfer *xfer, uint32_t block, uint64_t tag);

/* ---- batches (batch.c) ---- */

/* Return the number of blocks for the next batch, from @lent pages or by way of
 * session->stage.  0: other batches must end first. */
size_t kv_save_batch_blocks(const struct kvfs_xfer *xfer, bool lent);

/*
 * Begin to save the next @n blocks.  At its end the batch frees its staging and
 * calls kv_save_pump_locked.
 * -EAGAIN: no room in the staging now
 * -ENOMEM: nothing was begun
 * other errors: these blocks have failed
 */
int kv_save_batch_locked(struct kvfs_xfer *xfer, size_t n, bool lent);

/* Stop the batches of @xfer with the status xfer->stopped, without the daemon:
 * end blocks whose pages are not being copied, and take lent pages back.
 * Blocks under copy end with the daemon's answer, or a second after their
 * copy. */
void kv_save_batches_stop_locked(struct kvfs_xfer *xfer);

#endif
