/* SPDX-License-Identifier: Apache-2.0 */
/*
 * partial_block.h - blocks that are saved in parts: which transfers bring which
 * bytes of a block, and what becomes of all of them.
 *
 * All calls with session->lock held.
 */
#ifndef KV_KERNELS_TRANSFER_PARTIAL_BLOCK_H
#define KV_KERNELS_TRANSFER_PARTIAL_BLOCK_H

#include "kernels/transfer/xfer.h"

struct kv_partial_block;
struct kv_hold; /* save.h */

enum kv_part_state {
	KV_PART_NONE,	/* not a part, or over */
	KV_PART_TODO,	/* of the transfer's todo */
	KV_PART_BATCH,	/* of a batch that has not copied it */
	KV_PART_COPIED, /* waits for the others */
};

/* The share of a block that one transfer brings. */
struct kv_part {
	struct kv_partial_block *of;
	struct kv_partial_block
		*spare; /* if it is the first one; until it joins */
	struct kvfs_xfer *xfer;
	enum kv_part_state state;
	TAILQ_ENTRY(kv_part) others; /* in of->parts, unless NONE */
};

/*
 * Parts for all blocks of @xfer, which has ranges, and what else joining takes:
 * a block must not be without one of its parts for want of memory, or the
 * others would wait for it.  -ENOMEM.  Lock not needed.
 */
int kv_parts_new(struct kvfs_xfer *xfer);
void kv_parts_drop(struct kvfs_xfer *xfer); /* none of them is joined */

/*
 * Claim the bytes of block @i for @xfer, which is active; its part is TODO
 * then.  False: it is settled already, or waits as COPIED, since its bytes came
 * with another transfer.
 */
bool kv_part_join_locked(struct kvfs_xfer *xfer, size_t i);

/* Whether the daemon has reserved its block; if not, it is asked to now. */
bool kv_part_reserve_locked(struct kv_part *part);

/* There was no room for it: TODO again, if its block is not over. */
bool kv_part_again_locked(struct kv_part *part);

/* RESERVE said @status of a BATCH part, 0 or not.  Whether it goes on; if not,
 * it is settled. */
bool kv_part_reserved_locked(struct kv_part *part, int status);

/* A BATCH part is copied, and counted as such.  Whether it is to be sent; if
 * not, it is settled. */
bool kv_part_copied_locked(struct kv_part *part);

/* Nothing is missing any more with this part: the block is sealed, and held by
 * @hold. */
void kv_part_sealed_locked(struct kv_part *part, struct kv_hold *hold);

/* The block will not seal: all parts of it end with @status.  One in a batch
 * does when it is copied, unless it is this one. */
void kv_part_fail_locked(struct kv_part *part, int status);

/* xfer->stopped is set: blocks that cannot seal without it end. */
void kv_parts_stop_locked(struct kvfs_xfer *xfer);
/* And has been for long: so do those of which the daemon has every byte. */
void kv_parts_give_up_locked(struct kvfs_xfer *xfer);

/* The connection is gone: every block ends with -ENOTCONN. */
void kv_parts_break_locked(struct kvfs_session *session);
/* No part comes any more: blocks that lack one end with -ECANCELED. */
void kv_parts_close_locked(struct kvfs_session *session);
/* Nothing is under way. */
void kv_parts_free_locked(struct kvfs_session *session);

#endif
