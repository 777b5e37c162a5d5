/* SPDX-License-Identifier: Apache-2.0 */
/* stream_sync.h - event waits, for work that the device must end before a
 * transfer or a page's new use begins, and submissions, for streams that
 * continue after copies. */
#ifndef KV_KERNELS_TRANSFER_STREAM_SYNC_H
#define KV_KERNELS_TRANSFER_STREAM_SYNC_H

#include "kernels/device/device.h"
#include "kernels/transfer/xfer.h"

struct kv_stream_sync;

/* Start the session's sync thread, if it does not run.  -ENOMEM, -EAGAIN. */
int kv_stream_sync_start_locked(struct kvfs_session *session);
/* End the thread.  No transfer may be under way.  Takes NULL. */
void kv_stream_sync_free(struct kv_stream_sync *sync);

/* Return the stream that a caller's handle @stream means: for NULL without an
 * @event the device's default stream, for KVFS_NO_STREAM no stream (NULL).
 * -EINVAL: both a stream and an event are given
 * -EOPNOTSUPP: the device has no streams */
int kv_stream_sync_resolve(const struct kvfs_device *device, void *stream,
			   const void *event, void **ret_stream);

/* ---- event waits ---- */

/* Stands for the end of the work that a stream was given, or of an event. */
struct kv_event_wait {
	TAILQ_ENTRY(kv_event_wait) others; /* lock */
	struct kvfs_pool *pool;		   /* busy once the wait has begun */
	void *handle; /* the device's handle of the event wait */
	/* Of two event waits in the same stream the one with the lower number
	 * is done first.  NULL: the stream is not known. */
	const void *stream;
	uint64_t number;
	/* true: the owner calls kv_event_wait_end_locked, when the device has
	 * used the handle.  false: the event wait ends when it is done. */
	bool kept;
	bool begun, waiting; /* lock */
	void (*done_locked)(void *owner);
	void *owner;
};

/*
 * Make an event wait for the work that @stream was given so far, or for @event,
 * as in kv_stream_sync_resolve.  *@ret_wait is NULL if there is nothing to wait
 * for; all functions below take NULL.  The caller holds no lock.
 * -EINVAL, -EOPNOTSUPP: as kv_stream_sync_resolve
 * -ENOMEM, errors of the device
 */
int kv_event_wait_new(struct kvfs_pool *pool, void *stream, void *event,
		      struct kv_event_wait **ret_wait);
/* Free an event wait that has neither begun nor ended.  No lock held. */
void kv_event_wait_free(struct kv_event_wait *wait);

/* Call @done_locked(@owner) when the work is over, on the sync thread; or now,
 * if there is nothing to wait for. */
void kv_event_wait_begin_locked(struct kv_event_wait *wait,
				void (*done_locked)(void *owner), void *owner);
/* Cancel the call of done_locked.  Return false if it was made before. */
bool kv_event_wait_stop_locked(struct kv_event_wait *wait);
/* Have the sync thread free an event wait that does not wait. */
void kv_event_wait_end_locked(struct kv_event_wait *wait);

/* ---- submissions ---- */

#define KV_ALL_STEPS SIZE_MAX

/* A batch that the device copies, embedded in the job that copies it.  Zeroed
 * memory is a submission at rest. */
struct kv_submission {
	TAILQ_ENTRY(kv_submission) others; /* lock; while there is a fence */
	struct kvfs_xfer *xfer;
	size_t step;
	void *fence;	/* guarded by lock; event wait of the batch */
	unsigned users; /* guarded by lock; callers that order a stream */
	bool told;	/* guarded by lock; submitted_locked was called */
	/* Called once for each batch, when the device was given all of it. */
	void (*submitted_locked)(struct kv_submission *submission);
};

/* Have the device copy @batch, of step @step of the submission's transfer, to
 * the pages (@loads) or from them.  Meanwhile streams can be ordered after the
 * copies.  A batch without blocks counts as submitted.  -EIO. */
int kv_submission_run(struct kv_submission *submission, size_t step,
		      struct kvfs_batch *batch, bool loads);

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
