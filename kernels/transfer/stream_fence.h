/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_fence.h - something that ends when what a stream was given so far is
 * over.
 */
#ifndef KV_KERNELS_TRANSFER_STREAM_FENCE_H
#define KV_KERNELS_TRANSFER_STREAM_FENCE_H

#include "kernels/transfer/xfer.h"

/*
 * Mark what @stream was given so far, or what @event stands for; neither:
 * nothing.  Without a lock held.  -EINVAL: both, -EOPNOTSUPP, -ENOMEM, errors
 * of the device.
 */
int kv_stream_fence_new(struct kvfs_pool *pool, void *stream, void *event,
			struct kvfs_xfer **ret_fence);
/* One that has not begun; takes NULL. */
void kv_stream_fence_free(struct kvfs_xfer *fence);

/* Call @gone with @owner when that is over, with session->lock held; that may
 * be now.  The pool is busy until then. */
void kv_stream_fence_begin_locked(struct kvfs_xfer *fence,
				  struct kvfs_pool *pool,
				  void (*gone)(void *owner), void *owner);

/* For xfer.c: its event wait is done. */
void kv_stream_fence_event_over_locked(struct kvfs_xfer *fence);

#endif
