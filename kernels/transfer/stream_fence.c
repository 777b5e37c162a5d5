/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_fence.c - something that ends when what a stream was given so far is
 * over.
 *
 * OWNS      nothing of its own: it is a transfer of no bytes that waits for its
 *           event wait, as stream_sync.c has it.
 *
 * LOCKING   session->lock.
 */
#include "kernels/transfer/stream_fence.h"
#include "kernels/transfer/stream_sync.h"
#include "kernels/transfer/pool.h"

int kv_leave_new(struct kvfs_pool *pool, void *stream, void *event,
		 struct kvfs_xfer **ret_leave)
{
	const kvfs_opts opts = {.stream = stream, .event = event};
	struct kvfs_xfer *leave;
	int r = kv_xfer_new(pool->session, KV_XFER_LEAVE, 1, &leave);

	if (r < 0)
		return r;
	leave->device = pool->device;
	r = kv_stream_sync_take(leave, pool, &opts);
	if (r < 0) {
		kv_xfer_free(leave);
		return r;
	}
	*ret_leave = leave;
	return 0;
}

void kv_leave_free(struct kvfs_xfer *leave)
{
	kv_xfer_free(leave);
}

void kv_leave_event_over_locked(struct kvfs_xfer *leave)
{
	atomic_store(&leave->status[0], 0);
	leave->gone(leave->owner);
	kv_xfer_get_locked(leave);
	kv_xfer_reach_locked(leave, KVFS_DURABLE, 1);
	kv_xfer_reach_locked(leave, KVFS_SEALED, 1);
	kv_xfer_reach_locked(leave, KVFS_COPIED, 1);
	kv_xfer_put_locked(leave);
}

void kv_leave_begin_locked(struct kvfs_xfer *leave, struct kvfs_pool *pool,
			   void (*gone)(void *owner), void *owner)
{
	leave->pool = pool;
	leave->gone = gone;
	leave->owner = owner;
	kv_xfer_activate_locked(leave);
	if (!kv_stream_sync_waits_locked(leave))
		kv_leave_event_over_locked(leave);
	kv_xfer_put_locked(leave);
}
