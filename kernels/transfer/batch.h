/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.h - a few blocks of a save that go the way together.
 *
 * All calls with session->lock held.
 */
#ifndef KV_KERNELS_TRANSFER_BATCH_H
#define KV_KERNELS_TRANSFER_BATCH_H

#include "kernels/transfer/stage.h"
#include "kernels/transfer/xfer.h"

#define KV_SAVE_ALIGN 64u

/* What a caller is told of a block of which the daemon said @status. */
int kv_save_status(struct kvfs_xfer *xfer, int status);
/* Whether the daemon's @status is none yet: the block is to be tried again. */
bool kv_save_is_full(const struct kvfs_xfer *xfer, int status);

/*
 * Begin saving the next @n blocks of xfer->todo by way of @stage.  The rest
 * happens by itself; when it is over, the extent is put back and
 * kv_save_pump_locked runs.
 * -EAGAIN: no room in @stage now; -ENOMEM: nothing has begun.  Other errors:
 * these blocks have failed.
 */
int kv_save_batch_locked(struct kvfs_xfer *xfer, struct kv_stage *stage,
			 size_t n);

/*
 * xfer->stopped is set: blocks that are not being copied yet end now, without
 * the daemon.  The others end as it says, or some time after they were copied.
 */
void kv_save_batches_stop_locked(struct kvfs_xfer *xfer);

#endif
