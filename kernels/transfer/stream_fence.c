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

int kv_stream_fence_new(struct kvfs_pool *pool, void *stream, void *event,
			struct kvfs_xfer **ret_fence)
{
	const kvfs_opts opts = {.stream = stream, .event = event};
	struct kvfs_xfer *fence;
	int r = kv_xfer_new(pool->session, KV_XFER_FENCE, 1, &fence);

	if (r < 0)
		return r;
	fence->device = pool->device;
	r = kv_stream_sync_take(fence, pool, &opts);
	if (r < 0) {
		kv_xfer_free(fence);
		return r;
	}
	*ret_fence = fence;
	return 0;
}

void kv_stream_fence_free(struct kvfs_xfer *fence)
{
	kv_xfer_free(fence);
}

void kv_stream_fence_event_over_locked(struct kvfs_xfer *fence)
{
	atomic_store(&fence->status[0], 0);
	fence->gone(fence->owner);
	kv_xfer_get_locked(fence);
	kv_xfer_reach_locked(fence, KVFS_DURABLE, 1);
	kv_xfer_reach_locked(fence, KVFS_SEALED, 1);
	kv_xfer_reach_locked(fence, KVFS_COPIED, 1);
	kv_xfer_put_locked(fence);
}

void kv_stream_fence_begin_locked(struct kvfs_xfer *fence,
				  struct kvfs_pool *pool,
				  void (*gone)(void *owner), void *owner)
{
	fence->pool = pool;
	fence->gone = gone;
	fence->owner = owner;
	kv_xfer_activate_locked(fence);
	if (!kv_stream_sync_waits_locked(fence))
		kv_stream_fence_event_over_locked(fence);
	kv_xfer_put_locked(fence);
}
