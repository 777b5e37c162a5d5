/* SPDX-License-Identifier: Apache-2.0 */
/*
 * submission.c - a batch of a transfer that its device has been given, and the
 * caller's streams that come after it.
 *
 * OWNS      what stands for the batch's end on the device, from the moment when
 *           that has all of it until the batch is over.
 *
 * STATES    of a submission:
 *
 *            AT REST -> RUNNING     kv_submission_run
 *            RUNNING -> SUBMITTED   submitted: the device says so
 *          SUBMITTED -> AT REST     end: the batch is over
 *            RUNNING -> AT REST     end: the device never said so
 *
 * INVARIANTS
 *   (1) A stream is made to wait only for what is SUBMITTED: nobody has to do
 *       anything more for that to come to its end.
 *   (2) A submission is in xfer->submissions if and only if it is SUBMITTED.
 *   (3) What stands for its end is not freed while somebody is at it (users),
 *       and is freed before its blocks are counted as COPIED or failed, and so
 *       before the device closes the pool.
 *
 * LOCKING   session->lock, but for the calls of the device.
 */
#include "kernels/device/guard.h"
#include "kernels/transfer/stream_sync.h"
#include "kernels/transfer/submission.h"
#include "kernels/transfer/pool.h"

static void tell_locked(struct kv_submission *submission)
{
	kv_assert_locked(&submission->xfer->session->lock);
	if (submission->told)
		return;
	submission->told = true;
	submission->submitted_locked(submission);
}

static void submitted(const struct kvfs_batch *batch, void *event_wait)
{
	struct kv_submission *submission = batch->owner;
	struct kvfs_xfer *xfer = submission->xfer;

	pthread_mutex_lock(&xfer->session->lock);
	/* Said twice, or of nothing: it is not heard. */
	if (event_wait && !submission->told) {
		submission->fence = event_wait;
		TAILQ_INSERT_TAIL(&xfer->submissions, submission, others);
		tell_locked(submission);
	}
	pthread_mutex_unlock(&xfer->session->lock);
}

static void end(struct kv_submission *submission)
{
	struct kvfs_xfer *xfer = submission->xfer;
	struct kvfs_session *session = xfer->session;
	void *fence;

	pthread_mutex_lock(&session->lock);
	tell_locked(submission);
	while (submission->users > 0)
		kv_session_wait(session, UINT64_MAX);
	if (submission->fence)
		TAILQ_REMOVE(&xfer->submissions, submission, others);
	fence = kv_steal(submission->fence);
	pthread_mutex_unlock(&session->lock);
	if (fence)
		xfer->device->event_wait_free(fence);
}

static int copy(const struct kv_submission *submission,
		const struct kvfs_batch *batch, bool loads)
{
	const struct kvfs_xfer *xfer = submission->xfer;

	return loads ? kv_guard_load(xfer->device, xfer->pool->on_device, batch)
		     : kv_guard_save(xfer->device, xfer->pool->on_device,
				     batch);
}

int kv_submission_run(struct kv_submission *submission, size_t step,
		      struct kvfs_batch *batch, bool loads)
{
	int r;

	if (!submission->xfer->device->order)
		return copy(submission, batch, loads);
	submission->step = step;
	submission->told = false;
	batch->submitted = submitted;
	batch->owner = submission;
	r = copy(submission, batch, loads);
	end(submission);
	return r;
}

void kv_submission_skip(struct kv_submission *submission, size_t step)
{
	struct kvfs_session *session = submission->xfer->session;

	if (!submission->xfer->device->order)
		return;
	pthread_mutex_lock(&session->lock);
	submission->step = step;
	submission->told = false;
	tell_locked(submission);
	pthread_mutex_unlock(&session->lock);
}

/* ---- order ---- */

/* The first one of step @step from @submission on. */
static struct kv_submission *find_locked(struct kv_submission *submission,
					 size_t step)
{
	while (submission && step != KV_ALL_STEPS && submission->step != step)
		submission = TAILQ_NEXT(submission, others);
	return submission;
}

static bool is_submitted_locked(const struct kvfs_xfer *xfer, size_t step)
{
	kv_assert_locked(&xfer->session->lock);
	return kv_xfer_is_submitted_locked(xfer) ||
	       (step != KV_ALL_STEPS && xfer->ops->step_is_submitted &&
		xfer->ops->step_is_submitted(xfer, step));
}

int kv_submission_order_locked(struct kvfs_xfer *xfer, size_t step,
			       void *stream)
{
	struct kvfs_session *session = xfer->session;
	struct kv_submission *submission, *next;
	int r = 0;

	kv_assert_locked(&session->lock);
	if (!is_submitted_locked(xfer, step))
		return -EAGAIN;
	submission = find_locked(TAILQ_FIRST(&xfer->submissions), step);
	while (submission && r == 0) {
		submission->users++;
		pthread_mutex_unlock(&session->lock);
		r = kv_guard_order(xfer->device, submission->fence, stream);
		pthread_mutex_lock(&session->lock);
		next = find_locked(TAILQ_NEXT(submission, others), step);
		if (--submission->users == 0)
			pthread_cond_broadcast(&session->changed);
		submission = next;
	}
	return r;
}

/* ---- for callers ---- */

int kv_submission_check(const struct kvfs_device *device, void **stream)
{
	int r;

	if (!device)
		return -EINVAL;
	if (!device->order)
		return -EOPNOTSUPP;
	r = kv_stream_sync_resolve(device, *stream, NULL, stream);
	return r < 0 || *stream ? r : -EINVAL;
}

static int order(struct kvfs_xfer *xfer, size_t step, void *stream)
{
	int r;

	pthread_mutex_lock(&xfer->session->lock);
	r = kv_submission_order_locked(xfer, step, stream);
	pthread_mutex_unlock(&xfer->session->lock);
	return r;
}

int kvfs_xfer_order(kvfs_xfer *xfer, void *stream)
{
	int r = kv_session_check(xfer ? xfer->session : NULL);

	if (r == 0)
		r = kv_submission_check(xfer->device, &stream);
	return r < 0 ? r : order(xfer, KV_ALL_STEPS, stream);
}

int kvfs_xfer_order_layer(kvfs_xfer *xfer, uint32_t layer, void *stream)
{
	int r = kv_session_check(xfer ? xfer->session : NULL);

	if (r < 0)
		return r;
	if (!xfer->device || layer < xfer->first_layer ||
	    layer - xfer->first_layer >= xfer->layers)
		return -EINVAL;
	r = kv_submission_check(xfer->device, &stream);
	if (r < 0 || xfer->steps <= 1)
		return r < 0 ? r : order(xfer, KV_ALL_STEPS, stream);
	return order(xfer, (layer - xfer->first_layer) / xfer->layers_a_step,
		     stream);
}
