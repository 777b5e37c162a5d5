/* SPDX-License-Identifier: Apache-2.0 */
/*
 * submission.h - a batch of a transfer that its device has been given, and the
 * caller's streams that come after it.
 *
 * Calls in _locked with session->lock held; the others without.
 */
#ifndef KV_KERNELS_TRANSFER_SUBMISSION_H
#define KV_KERNELS_TRANSFER_SUBMISSION_H

#include "kernels/device/device.h"
#include "kernels/transfer/xfer.h"

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
