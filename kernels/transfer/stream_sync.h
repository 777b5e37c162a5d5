/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_sync.h - copies after the caller's work on the device, and the caller's
 * streams after copies.
 */
#ifndef KV_KERNELS_TRANSFER_STREAM_SYNC_H
#define KV_KERNELS_TRANSFER_STREAM_SYNC_H

#include "kernels/device/device.h"
#include "kernels/transfer/xfer.h"

struct kv_stream_sync;

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

/* ---- submissions ---- */

#define KV_ALL_STEPS SIZE_MAX

/* Part of what has the batch copied; zeroed memory is one at rest. */
struct kv_submission {
	TAILQ_ENTRY(kv_submission)
	others; /* lock: xfer->submissions, if fence */
	struct kvfs_xfer *xfer;
	size_t step;
	void *fence;	/* lock: the device's event wait; NULL: it has none */
	unsigned users; /* lock: callers that order a stream after it */
	bool told;	/* lock: submitted_locked was called */
	/* The device has been given all of it; called once a run, and before
	 * the run ends. */
	void (*submitted_locked)(struct kv_submission *submission);
};

/*
 * Copy @batch of the submission's transfer, from step @step of it, to the pages
 * (@loads) or from there.  0, or -EIO: it failed.  Streams can be ordered after
 * it meanwhile.
 */
int kv_submission_run(struct kv_submission *submission, size_t step,
		      struct kvfs_batch *batch, bool loads);
/* There is nothing of it to be copied. */
void kv_submission_skip(struct kv_submission *submission, size_t step);

/*
 * Replace *@stream by the stream that a caller's handle stands for.
 * -EINVAL: it stands for none, or there is no @device; -EOPNOTSUPP: streams of
 * @device cannot be ordered.
 */
int kv_submission_check(const struct kvfs_device *device, void **stream);
/*
 * Work given to @stream from now on comes after step @step of @xfer, or after
 * all of it (KV_ALL_STEPS).  Without the lock while the device is called, and
 * the caller has a reference.  -EAGAIN, and nothing was ordered: not all of that
 * is submitted; errors of the device.
 */
int kv_submission_order_locked(struct kvfs_xfer *xfer, size_t step,
			       void *stream);

#endif
