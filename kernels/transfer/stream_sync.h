/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_sync.h - copies after the caller's work on the device.
 */
#ifndef KV_KERNELS_TRANSFER_STREAM_SYNC_H
#define KV_KERNELS_TRANSFER_STREAM_SYNC_H

#include "kernels/kvfs.h"
#include "common/kv.h"

struct kv_stream_sync;
struct kvfs_device;
struct kvfs_session;
struct kvfs_xfer;

/* The session's threads for that, if it has none yet.  -ENOMEM, -EAGAIN. */
int kv_stream_sync_start_locked(struct kvfs_session *session);
/* There is memory to be detached. */
void kv_stream_sync_detach_locked(struct kv_stream_sync *sync);
/* No transfer is under way any more; memory is still detached.  Takes NULL. */
void kv_stream_sync_free(struct kv_stream_sync *sync);

/*
 * Return the stream that a caller's @stream stands for: NULL the device's
 * default stream, if there is no @event, and KVFS_NO_STREAM none (NULL).
 * -EINVAL: a stream and an event; -EOPNOTSUPP: the device has neither.
 */
int kv_stream_sync_resolve(const struct kvfs_device *device, void *stream,
			   const void *event, void **ret_stream);

/*
 * Note what @opts says @xfer comes after.  On the caller's thread, no lock
 * held, before it is activated.
 * -EINVAL: a stream and an event; -EOPNOTSUPP: the device has neither; -ENOMEM,
 * errors of the device.
 */
int kv_stream_sync_take(struct kvfs_xfer *xfer, const struct kvfs_pool *pool,
			const kvfs_opts *opts);
/* Take it back from a transfer that was never activated.  No lock held. */
void kv_stream_sync_drop(struct kvfs_xfer *xfer);

/*
 * Whether @xfer has to wait for its event wait: then its event_over_locked is
 * called when that is done.  kv_stream_sync_stop_locked: it no longer waits;
 * true if it did.
 */
bool kv_stream_sync_waits_locked(struct kvfs_xfer *xfer);
bool kv_stream_sync_stop_locked(struct kvfs_xfer *xfer);
/* The same for a thread that has nothing else to do; no lock held. */
bool kv_stream_sync_event_is_over(const struct kvfs_xfer *xfer);

/*
 * All of @xfer is copied or has failed: what the device made for it is given
 * back, soon.  Until then @pool is busy; false if there is nothing to give back.
 */
bool kv_stream_sync_over_locked(struct kvfs_xfer *xfer, struct kvfs_pool *pool);

/* ---- fences ---- */

/* Something to be done when what a stream was given so far is over. */
struct kv_stream_fence;

/*
 * Note what @stream was given so far, or what @event stands for, as
 * kv_stream_sync_resolve has them.  *@ret_fence is NULL if there is nothing to
 * wait for.  Without a lock held.  -EINVAL: both, -EOPNOTSUPP, -ENOMEM, errors
 * of the device.
 */
int kv_stream_fence_new(struct kvfs_pool *pool, void *stream, void *event,
			struct kv_stream_fence **ret_fence);
/* Free one that has not begun; takes NULL.  Without a lock held. */
void kv_stream_fence_free(struct kv_stream_fence *fence);

/* Call @gone with @owner when that is over, with session->lock held.  The pool
 * is busy until then. */
void kv_stream_fence_begin_locked(struct kv_stream_fence *fence,
				  void (*gone)(void *owner), void *owner);

#endif
