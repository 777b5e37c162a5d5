/* SPDX-License-Identifier: Apache-2.0 */
/* stream_sync.h - copies that begin after work on the device (event waits and
 * fences), and streams that continue after copies (submissions). */
#ifndef KV_KERNELS_TRANSFER_STREAM_SYNC_H
#define KV_KERNELS_TRANSFER_STREAM_SYNC_H

#include "kernels/device/device.h"
#include "kernels/transfer/xfer.h"

struct kv_stream_sync;

/* Start the session's sync threads, if they do not run.  -ENOMEM, -EAGAIN. */
int kv_stream_sync_start_locked(struct kvfs_session *session);
/* Wake the thread that detaches the memory in session->detaching. */
void kv_stream_sync_detach_locked(struct kvfs_session *session);
/* Detach the memory that is left, and end the threads.  No transfer may be
 * under way.  Takes NULL. */
void kv_stream_sync_free(struct kv_stream_sync *sync);

/* Return the stream that a caller's handle @stream means: for NULL without an
 * @event the device's default stream, for KVFS_NO_STREAM no stream (NULL).
 * -EINVAL: both a stream and an event are given
 * -EOPNOTSUPP: the device has no streams */
int kv_stream_sync_resolve(const struct kvfs_device *device, void *stream,
			   const void *event, void **ret_stream);

/* Make the event wait of @xfer, for the stream or event in @opts.  Call this on
 * the caller's thread, without a lock, before the transfer is activated.
 * -EINVAL, -EOPNOTSUPP: as kv_stream_sync_resolve
 * -ENOMEM, errors of the device */
int kv_stream_sync_take(struct kvfs_xfer *xfer, const struct kvfs_pool *pool,
			const kvfs_opts *opts);
/* Free the event wait of a transfer that was never activated.  No lock held. */
void kv_stream_sync_drop(struct kvfs_xfer *xfer);

/* Return whether @xfer must wait for its event wait.  If so,
 * xfer->ops->event_over_locked is called when the event wait is done.
 * kv_stream_sync_stop_locked ends the waiting, and returns whether @xfer was
 * waiting. */
bool kv_stream_sync_waits_locked(struct kvfs_xfer *xfer);
bool kv_stream_sync_stop_locked(struct kvfs_xfer *xfer);

/* Free the event wait of @xfer soon, as all blocks are copied or have failed,
 * and keep @pool busy until then.  Return false if there is no event wait. */
bool kv_stream_sync_over_locked(struct kvfs_xfer *xfer, struct kvfs_pool *pool);

/* ---- fences ---- */

/* A function to be called when the work that a stream was given so far is
 * over. */
struct kv_stream_fence;

/*
 * Make a fence for the work that @stream was given so far, or for @event, as in
 * kv_stream_sync_resolve.  *@ret_fence becomes NULL if there is nothing to wait
 * for.  The caller holds no lock.
 * -EINVAL, -EOPNOTSUPP: as kv_stream_sync_resolve
 * -ENOMEM, errors of the device
 */
int kv_stream_fence_new(struct kvfs_pool *pool, void *stream, void *event,
			struct kv_stream_fence **ret_fence);
/* Free a fence that has not begun.  The caller holds no lock.  Takes NULL. */
void kv_stream_fence_free(struct kv_stream_fence *fence);

/* Call @gone(@owner) with session->lock held when the fence's work is over.
 * The pool is busy until then. */
void kv_stream_fence_begin_locked(struct kv_stream_fence *fence,
				  void (*gone)(void *owner), void *owner);

/* ---- submissions ---- */

#define KV_ALL_STEPS SIZE_MAX

/* A batch that the device copies, embedded in the job that copies it.  Zeroed
 * memory is a submission at rest. */
struct kv_submission {
	TAILQ_ENTRY(kv_submission)
	/* guarded by lock; in xfer->submissions while there is a fence */
	others;
	struct kvfs_xfer *xfer;
	size_t step;
	void *fence;	/* guarded by lock; event wait of the batch */
	unsigned users; /* guarded by lock; callers in device->order */
	bool told;	/* guarded by lock; submitted_locked was called */
	/* Called once for each batch, when the device was given all of it. */
	void (*submitted_locked)(struct kv_submission *submission);
};

/* Have the device copy @batch, of step @step of the submission's transfer, to
 * the pages (@loads) or from them.  Meanwhile streams can be ordered after the
 * copies.  -EIO. */
int kv_submission_run(struct kv_submission *submission, size_t step,
		      struct kvfs_batch *batch, bool loads);
/* Count step @step as submitted, because the batch has nothing to copy. */
void kv_submission_skip(struct kv_submission *submission, size_t step);

/* Replace *@stream, a caller's handle, by the stream that the handle means.
 * -EINVAL: the handle means no stream, or @device is NULL
 * -EOPNOTSUPP: streams of @device cannot be ordered */
int kv_submission_check(const struct kvfs_device *device, void **stream);
/*
 * Order the work that @stream is given from now on after step @step of @xfer,
 * or after all steps (KV_ALL_STEPS).  The caller has a reference to @xfer.
 * Releases the lock while the device is called.
 * -EAGAIN: not all of the copies are submitted, and nothing was ordered
 * errors of the device
 */
int kv_submission_order_locked(struct kvfs_xfer *xfer, size_t step,
			       void *stream);

#endif
