/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.h - saves: pages to the daemon, which seals them as blocks, and leases
 * of the sealed blocks (KVFS_HOLD).
 *
 * All calls with session->lock held, but where the comment says otherwise.
 */
#ifndef KV_KERNELS_TRANSFER_SAVE_H
#define KV_KERNELS_TRANSFER_SAVE_H

#include "kernels/transfer/xfer.h"

#define KV_SAVE_ALIGN 64u

/* Continue the saves that wait for staging, for room or for a daemon. */
void kv_save_pump_locked(struct kvfs_session *session);

/* Fail all blocks that no batch has with @status: there is no staging. */
void kv_saves_fail_locked(struct kvfs_session *session, int status);

/* Stop the saves to the space @name with -ESTALE. */
void kv_saves_stop_locked(struct kvfs_session *session, const char *name);

/* ---- blocks to do ---- */

/* Take the next @n of xfer->todo_n blocks from the list. */
void kv_save_take_locked(struct kvfs_xfer *xfer, uint32_t *ret_blocks,
			 size_t n);
/* Put a block that found no room back, and try again some milliseconds later.
 * */
void kv_save_again_locked(struct kvfs_xfer *xfer, uint32_t block);

/* ---- token ids; fixed after start, any thread ---- */

/* Bytes of staging for a block's token ids, a multiple of 8; 0: no ids. */
uint64_t kv_save_ids_bytes(const struct kvfs_xfer *xfer);
/* The most that a block of @layout takes. */
uint64_t kv_save_ids_most(const struct kv_layout *layout);
/* Place of a block's ids behind the block's first byte in staging. */
uint64_t kv_save_ids_offset(const struct kv_layout *layout);
/* Copy the ids of @block, if there are any, to @at. */
void kv_save_ids_put(const struct kvfs_xfer *xfer, size_t block, uint8_t *at);

/* Bytes of staging for a block of @xfer and its ids. */
uint64_t kv_save_block_bytes(const struct kvfs_xfer *xfer);

/* ---- holds ---- */

/* Blocks that one message sealed: the daemon leases them under its tag. */
struct kv_hold {
	struct kvfs_session *session;
	uint64_t generation; /* of the connection */
	uint64_t tag;	     /* 0: the daemon leases nothing */
	unsigned refs;	     /* one for each block of a transfer, and new's */
};

/* -ENOMEM.  Lock not needed. */
int kv_hold_new(const struct kvfs_xfer *xfer, struct kv_hold **ret_hold);
/* The last put releases the leases.  Takes NULL. */
void kv_hold_put_locked(struct kv_hold *hold);

/* The message @tag has sealed block @i: hold it, unless the transfer was freed.
 * Does nothing if @hold is NULL. */
void kv_hold_block_locked(struct kvfs_xfer *xfer, size_t i,
			  struct kv_hold *hold, uint64_t tag);

/* ---- until the blocks are durable (flush.c) ---- */

/* A caller waits for a save or barrier to be DURABLE: flush once all of it is
 * sealed. */
void kv_flush_ask_locked(struct kvfs_xfer *xfer);
/* Call when a save has sealed: completes barriers, and flushes the save if a
 * caller waits for DURABLE. */
void kv_flush_saved_locked(struct kvfs_xfer *save);
/* Stop waiting for DURABLE: blocks that are not DURABLE soon end with @status.
 * */
void kv_flush_stop_locked(struct kvfs_xfer *xfer, int status);

/* ---- batches (batch.c) ---- */

/* Return how many of the blocks to do go in the next batch, from pages that are
 * @lent or by way of session->stage.  0: other batches must end first. */
size_t kv_save_batch_blocks(const struct kvfs_xfer *xfer, bool lent);

/*
 * Begin saving the next @n blocks to do.  The batch then advances by itself; at
 * its end it puts its extent back and calls kv_save_pump_locked.
 * -EAGAIN: no room in the staging now; -ENOMEM: nothing has begun.  After other
 * errors these blocks have failed.
 */
int kv_save_batch_locked(struct kvfs_xfer *xfer, size_t n, bool lent);

/*
 * xfer->stopped is set: end the blocks whose pages are not being copied, and
 * take lent pages back, all without the daemon.  Blocks under copy end with the
 * daemon's answer, or a while after the copy.
 */
void kv_save_batches_stop_locked(struct kvfs_xfer *xfer);

#endif
