/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_sync.h - copies after the caller's work on the device, and the
 * caller's streams after copies.
 */
#ifndef KV_KERNELS_TRANSFER_STREAM_SYNC_H
#define KV_KERNELS_TRANSFER_STREAM_SYNC_H

#include "kernels/device/device.h"
#include "kernels/transfer/xfer.h"

struct kv_stream_sync;

/* Start the session's sync threads, if there are none.  -ENOMEM, -EAGAIN. */
int kv_stream_sync_start_locked(struct kvfs_session *session);
/* The session has memory to be detached. */
void kv_stream_sync_detach_locked(struct kv_stream_sync *sync);
/* No transfer is under way any more; memory is still detached.  Takes NULL. */
void kv_stream_sync_free(struct kv_stream_sync *sync);

/*
 * Return the stream that a caller's @stream means: for NULL, without an @event,
 * the device's default stream; for KVFS_NO_STREAM no stream (NULL).
 * -EINVAL: a stream and an event; -EOPNOTSUPP: the device has neither.
 */
int kv_stream_sync_resolve(const struct kvfs_device *device, void *stream,
			   const void *event, void **ret_stream);

/*
 * Make the event wait of @xfer, for the stream or event in @opts.  On the
 * caller's thread, no lock held, before the transfer is activated.
 * -EINVAL: a stream and an event; -EOPNOTSUPP: the device has neither; -ENOMEM,
 * errors of the device.
 */
int kv_stream_sync_take(struct kvfs_xfer *xfer, const struct kvfs_pool *pool,
			const kvfs_opts *opts);
/* Free the event wait of a transfer that was never activated.  No lock held. */
void kv_stream_sync_drop(struct kvfs_xfer *xfer);

/*
 * Whether @xfer has to wait for its event wait: then event_over_locked of its
 * kind is called at the end of that.  kv_stream_sync_stop_locked ends the
 * waiting, and returns whether @xfer was waiting.
 */
bool kv_stream_sync_waits_locked(struct kvfs_xfer *xfer);
bool kv_stream_sync_stop_locked(struct kvfs_xfer *xfer);

/*
 * All of @xfer is copied or has failed: free its event wait soon, and keep
 * @pool busy until then.  False: there is none.
 */
bool kv_stream_sync_over_locked(struct kvfs_xfer *xfer, struct kvfs_pool *pool);

/* ---- fences ---- */

/* A call to be made when the work that a stream was given so far is over. */
struct kv_stream_fence;

/*
 * Make a fence for the work that @stream was given so far, or for @event, as in
 * kv_stream_sync_resolve.  *@ret_fence is NULL if there is nothing to wait for.
 * Without a lock held.  -EINVAL: both; -EOPNOTSUPP, -ENOMEM, errors of the
 * device.
 */
int kv_stream_fence_new(struct kvfs_pool *pool, void *stream, void *event,
			struct kv_stream_fence **ret_fence);
/* Free one that has not begun; takes NULL.  Without a lock held. */
void kv_stream_fence_free(struct kv_stream_fence *fence);

/* Call @gone with @owner, with session->lock held, when the fence's work is
 * over.  The pool is busy until then. */
void kv_stream_fence_begin_locked(struct kv_stream_fence *fence,
				  void (*gone)(void *owner), void *owner);

/* ---- submissions ---- */

#define KV_ALL_STEPS SIZE_MAX

/* Part of a job that copies batches; zeroed memory is a submission at rest. */
struct kv_submission {
	TAILQ_ENTRY(kv_submission)
	others; /* lock: in xfer->submissions, if there is a fence */
	struct kvfs_xfer *xfer;
	size_t step;
	void *fence;	/* lock: the device's event wait; NULL: it has none */
	unsigned users; /* lock: callers that order a stream after it */
	bool told;	/* lock: submitted_locked was called in this run */
	/* The device was given all of the batch; called once in each run. */
	void (*submitted_locked)(struct kv_submission *submission);
};

/*
 * Copy @batch, of step @step of the submission's transfer, to the pages
 * (@loads) or from them.  Streams can be ordered after the copies meanwhile.
 * -EIO.
 */
int kv_submission_run(struct kv_submission *submission, size_t step,
		      struct kvfs_batch *batch, bool loads);
/* The step has nothing to copy. */
void kv_submission_skip(struct kv_submission *submission, size_t step);

/*
 * Replace *@stream, a caller's handle, by the stream that it means.
 * -EINVAL: no stream, or no @device; -EOPNOTSUPP: streams of @device cannot be
 * ordered.
 */
int kv_submission_check(const struct kvfs_device *device, void **stream);
/*
 * Order work that @stream is given from now on after step @step of @xfer, or
 * after all of it (KV_ALL_STEPS).  The lock is released while the device is
 * called; the caller has a reference.  -EAGAIN: not all of the copies are
 * submitted, and nothing was ordered; errors of the device.
 */
int kv_submission_order_locked(struct kvfs_xfer *xfer, size_t step,
			       void *stream);

#endif
