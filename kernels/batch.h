/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.h - a few blocks of a save that go the way together.
 */
#ifndef KV_BATCH_H
#define KV_BATCH_H

#include "kernels/stage.h"
#include "kernels/xfer.h"

/*
 * Begin saving blocks xfer->reserved .. + @n by way of @stage, each in @stride
 * bytes of it.  The rest happens by itself; when it is over, the extent is put
 * back and kv_save_pump_locked runs.
 * -EAGAIN: no room in @stage now; -ENOTCONN; -ENOMEM: nothing has begun.
 */
int kv_save_batch_locked(struct kvfs_xfer *xfer, struct kv_stage *stage,
			 size_t n, uint64_t stride);

#endif
