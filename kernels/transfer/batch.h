/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.h - a few blocks of a save, or parts of blocks, that go the way
 * together.
 *
 * All calls with session->lock held.
 */
#ifndef KV_KERNELS_TRANSFER_BATCH_H
#define KV_KERNELS_TRANSFER_BATCH_H

#include "kernels/device/device.h"
#include "kernels/transfer/hold.h"
#include "kernels/transfer/partial_block.h"
#include "kernels/transfer/stage.h"
#include "kernels/transfer/xfer.h"

#define KV_SAVE_ALIGN 64u

/* Bytes of staging that a block of @xfer, or its part of one, takes. */
uint64_t kv_save_stride(const struct kvfs_xfer *xfer);

/*
 * Begin saving the next @n blocks of xfer->todo by way of @stage.  The rest
 * happens by itself; when it is over, the extent is put back and
 * kv_save_pump_locked runs.
 * -EAGAIN: no room in @stage now; -ENOMEM: nothing has begun.  Other errors:
 * these blocks have failed.
 */
int kv_save_batch_locked(struct kvfs_xfer *xfer, struct kv_stage *stage,
			 size_t n);

/* ---- batch.c and submit.c ---- */

struct kv_save_batch {
	struct kv_call call; /* first */
	struct kv_job job;
	struct kvfs_xfer *xfer;
	struct kv_stage *stage;
	struct kv_extent *extent;
	struct kv_hold *hold; /* of what this seals; NULL: nothing is held */
	uint64_t stride;
	size_t n;
	uint32_t block[]; /* of the transfer */
};

/* What has become of a batch's blocks. */
struct kv_save_tally {
	size_t good, present, bad;
};

static inline uint64_t kv_save_range_bytes(const struct kv_range *range)
{
	return range->to - range->from;
}

/* The batch's @i-th block as a part; NULL: it is saved whole. */
static inline struct kv_part *
kv_save_batch_part(const struct kv_save_batch *batch, size_t i)
{
	struct kvfs_xfer *xfer = batch->xfer;

	return xfer->part == NULL ? NULL : &xfer->part[batch->block[i]];
}

/* submit.c: to the daemon, what is in the extent.  -ENOTCONN, -ENOMEM. */
int kv_save_batch_send_locked(struct kv_save_batch *batch);

/* The status that a caller sees for what the daemon said of a block. */
int kv_save_batch_status(struct kvfs_xfer *xfer, int status);
/* Settle a block that is saved whole, and count it in @tally. */
void kv_save_batch_count(struct kvfs_xfer *xfer, uint32_t block, int status,
			 struct kv_save_tally *tally);
/* None of its blocks gets to @stage. */
void kv_save_batch_fail_locked(struct kv_save_batch *batch,
			       enum kvfs_stage stage, int status);
/* It is over; with drop, its reservations are given back first. */
void kv_save_batch_end_locked(struct kv_save_batch *batch);
void kv_save_batch_drop_locked(struct kv_save_batch *batch);

#endif
