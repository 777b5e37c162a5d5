/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_sync.c - order copies after a stream's work, and streams after copies.
 *
 * OWNS      the session's sync thread; event waits that have begun or ended; the
 *           device's event wait for the end of a submitted batch.
 *
 * STATES    of an event wait:
 *
 *              MADE -> WAITING   kv_event_wait_begin_locked
 *           WAITING -> DONE      look_around: the device reports its end
 *           WAITING -> STOPPED   kv_event_wait_stop_locked
 *                 * -> freed     run, after kv_event_wait_end_locked
 *
 *           of a submission, a batch of copies that the device is given:
 *
 *            AT REST -> RUNNING     kv_submission_run
 *            RUNNING -> SUBMITTED   submitted: the device has all of the batch
 *          SUBMITTED -> AT REST     kv_submission_run: the batch is over
 *            RUNNING -> AT REST     kv_submission_run: the device did not call
 *                                   submitted
 *
 * INVARIANTS
 *   (1) No thread calls the device with a lock held: a thread that holds a lock
 *       has the sync thread make the call.
 *   (2) Event waits are freed before their pool stops being busy, and so before
 *       the device closes it.
 *   (3) Only the sync thread frees event waits that have begun.
 *   (4) While a transfer waits for its event wait, no copy thread has a job of
 *       the transfer.
 *   (5) Mostly only the first event wait of each stream is polled.
 *   (6) A stream waits only for SUBMITTED batches: they end without further
 *       work by any thread.
 *   (7) A submission is in xfer->submissions if and only if it is SUBMITTED.
 *   (8) A submission's fence is not freed while a caller orders a stream after
 *       it (users), and is freed before the blocks count as COPIED or failed, so
 *       before the device closes the pool.
 *
 * LOCKING   session->lock for all but the calls of the device.
 */
#include "common/thread.h"
#include "kernels/transfer/xfer.h"

/* Shortest and longest pause (ns) between two polls of event waits. */
#define LOOK_FIRST_NS 30000u
#define LOOK_LAST_NS 1000000u
/* One poll in LOOK_AT_ALL includes event waits behind others of their stream,
 * because the handle may mean another stream by now. */
#define LOOK_AT_ALL 32u

TAILQ_HEAD(event_waits, kv_event_wait);

struct kv_stream_sync {
	struct kvfs_session *session; /* fixed */
	pthread_t thread;	      /* fixed */
	pthread_cond_t work;
	struct event_waits waiting; /* lock */
	struct event_waits ended; /* guarded by lock; event waits to be freed */
	uint64_t pause; /* guarded by lock; nanoseconds until the next poll */
	unsigned looks; /* number of polls by the thread */
	_Atomic uint64_t made; /* number of event waits made so far */
	bool stop;	       /* lock */
};

/* ---- event waits ---- */

int kv_stream_sync_resolve(const struct kvfs_device *device, void *stream,
			   const void *event, void **ret_stream)
{
	if (stream && event)
		return -EINVAL;
	if (stream == KVFS_NO_STREAM)
		stream = NULL;
	else if (!stream && !event)
		stream = device->default_stream;
	if ((stream || event) && !device->event_wait)
		return -EOPNOTSUPP;
	*ret_stream = stream;
	return 0;
}

int kv_event_wait_new(struct kvfs_pool *pool, void *stream, void *event,
		      struct kv_event_wait **ret_wait)
{
	const struct kvfs_device *device = pool->device;
	struct kv_event_wait *wait;
	void *handle;
	int r = kv_stream_sync_resolve(device, stream, event, &stream);

	*ret_wait = NULL;
	if (r < 0 || (!stream && !event))
		return r;
	r = kv_device_event_wait(device, pool->on_device, stream, event,
				 &handle);
	if (r < 0)
		return r;
	if (device->event_wait_is_done(handle)) {
		device->event_wait_free(handle);
		return 0;
	}
	wait = malloc(sizeof(*wait));
	if (!wait) {
		device->event_wait_free(handle);
		return -ENOMEM;
	}
	/* Two threads may take their numbers in the wrong order: then one event
	 * wait is polled a little late.  A handle that is no address, such
	 * as (void *)2, may stand for another stream in each thread. */
	*wait = (struct kv_event_wait){
		.pool = pool,
		.handle = handle,
		.stream = (uintptr_t)stream < KV_PAGE ? NULL : stream,
		.number =
			atomic_fetch_add(&pool->session->stream_sync->made, 1),
	};
	*ret_wait = wait;
	return 0;
}

void kv_event_wait_free(struct kv_event_wait *wait)
{
	if (!wait)
		return;
	wait->pool->device->event_wait_free(wait->handle);
	free(wait);
}

void kv_event_wait_begin_locked(struct kv_event_wait *wait,
				void (*done_locked)(void *owner), void *owner)
{
	struct kv_stream_sync *sync;

	if (!wait) {
		done_locked(owner);
		return;
	}
	sync = wait->pool->session->stream_sync;
	kv_assert_locked(&sync->session->lock);
	wait->done_locked = done_locked;
	wait->owner = owner;
	wait->begun = wait->waiting = true;
	wait->pool->busy++;
	TAILQ_INSERT_TAIL(&sync->waiting, wait, others);
	sync->pause = LOOK_FIRST_NS;
	pthread_cond_signal(&sync->work);
}

bool kv_event_wait_stop_locked(struct kv_event_wait *wait)
{
	if (!wait || !wait->waiting)
		return false;
	kv_assert_locked(&wait->pool->session->lock);
	wait->waiting = false;
	TAILQ_REMOVE(&wait->pool->session->stream_sync->waiting, wait, others);
	return true;
}

void kv_event_wait_end_locked(struct kv_event_wait *wait)
{
	struct kv_stream_sync *sync;

	if (!wait)
		return;
	sync = wait->pool->session->stream_sync;
	kv_assert_locked(&sync->session->lock);
	if (!wait->begun)
		wait->pool->busy++;
	TAILQ_INSERT_TAIL(&sync->ended, wait, others);
	pthread_cond_signal(&sync->work);
}

/* ---- the thread ---- */

/* Return whether another event wait comes before @wait in the same stream.
 * Then @wait cannot be done. */
static bool is_behind_locked(const struct kv_stream_sync *sync,
			     const struct kv_event_wait *wait)
{
	const struct kv_event_wait *other;

	kv_assert_locked(&sync->session->lock);
	if (sync->looks % LOOK_AT_ALL == 0 || !wait->stream)
		return false;
	TAILQ_FOREACH(other, &sync->waiting, others)
		if (other->stream == wait->stream &&
		    other->number < wait->number)
			return true;
	return false;
}

/* Poll the first event wait of each stream, without the lock.  Return whether
 * any event wait was done. */
static bool look_around(struct kv_stream_sync *sync)
{
	struct kvfs_session *session = sync->session;
	struct kv_event_wait *wait;
	bool done, any = false;
	size_t n = 0;

	TAILQ_FOREACH(wait, &sync->waiting, others)
		n++;
	sync->looks++;
	while (n-- > 0 && (wait = TAILQ_FIRST(&sync->waiting))) {
		/* Move the event wait to the tail: round robin. */
		TAILQ_REMOVE(&sync->waiting, wait, others);
		TAILQ_INSERT_TAIL(&sync->waiting, wait, others);
		if (is_behind_locked(sync, wait))
			continue;
		pthread_mutex_unlock(&session->lock);
		done = wait->pool->device->event_wait_is_done(wait->handle);
		pthread_mutex_lock(&session->lock);
		any |= done;
		if (!done || !kv_event_wait_stop_locked(wait))
			continue;
		wait->done_locked(wait->owner);
		if (!wait->kept)
			kv_event_wait_end_locked(wait);
	}
	return any;
}

static void *run(void *arg)
{
	struct kv_stream_sync *sync = arg;
	struct kvfs_session *session = sync->session;
	struct kv_event_wait *wait;
	struct kvfs_pool *pool;
	uint64_t at;

	pthread_mutex_lock(&session->lock);
	for (;;) {
		while ((wait = TAILQ_FIRST(&sync->ended))) {
			TAILQ_REMOVE(&sync->ended, wait, others);
			pool = wait->pool;
			pthread_mutex_unlock(&session->lock);
			kv_event_wait_free(wait);
			pthread_mutex_lock(&session->lock);
			pool->busy--;
			kv_session_changed_locked(session);
		}
		if (TAILQ_EMPTY(&sync->waiting)) {
			if (sync->stop)
				break;
			kv_session_wait_for(session, &sync->work, UINT64_MAX);
		} else if (look_around(sync)) {
			sync->pause = LOOK_FIRST_NS;
		} else if (TAILQ_EMPTY(&sync->ended)) {
			/* Back off: a poll is several calls of the driver, and
			 * a long wait can take a little longer. */
			at = kv_now_ns() + sync->pause;
			sync->pause = KV_MIN(sync->pause + sync->pause / 4,
					     LOOK_LAST_NS);
			kv_session_wait_for(session, &sync->work, at);
		}
	}
	pthread_mutex_unlock(&session->lock);
	return NULL;
}

int kv_stream_sync_start_locked(struct kvfs_session *session)
{
	struct kv_stream_sync *sync;
	int r;

	kv_assert_locked(&session->lock);
	if (session->stream_sync)
		return 0;
	sync = calloc(1, sizeof(*sync));
	if (!sync)
		return -ENOMEM;
	sync->session = session;
	sync->pause = LOOK_FIRST_NS;
	kv_cond_init(&sync->work);
	TAILQ_INIT(&sync->waiting);
	TAILQ_INIT(&sync->ended);
	r = kv_thread_start(&sync->thread, "kvfs-sync", run, sync);
	if (r < 0)
		free(sync);
	else
		session->stream_sync = sync;
	return r;
}

void kv_stream_sync_free(struct kv_stream_sync *sync)
{
	if (!sync)
		return;
	pthread_mutex_lock(&sync->session->lock);
	sync->stop = true;
	pthread_cond_signal(&sync->work);
	pthread_mutex_unlock(&sync->session->lock);
	pthread_join(sync->thread, NULL);
	pthread_cond_destroy(&sync->work);
	free(sync);
}

/* ---- submissions: streams after copies ---- */

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
	/* Ignore a second call, and a call without an event wait. */
	if (event_wait && !submission->told) {
		submission->fence = event_wait;
		TAILQ_INSERT_TAIL(&xfer->submissions, submission, others);
		tell_locked(submission);
	}
	pthread_mutex_unlock(&xfer->session->lock);
}

int kv_submission_run(struct kv_submission *submission, size_t step,
		      struct kvfs_batch *batch, bool loads)
{
	struct kvfs_xfer *xfer = submission->xfer;
	struct kvfs_session *session = xfer->session;
	void *fence;
	int r = 0;

	if (xfer->device->order) {
		submission->step = step;
		submission->told = false;
		batch->submitted = submitted;
		batch->owner = submission;
	}
	if (batch->n > 0)
		r = kv_device_copy(xfer->device, xfer->pool->on_device, batch,
				   loads);
	if (!xfer->device->order)
		return r;
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
	return r;
}

/* ---- order ---- */

/* Return the first submission of step @step, from @submission on, or NULL. */
static struct kv_submission *find_step(struct kv_submission *submission,
				       size_t step)
{
	while (submission && step != KV_ALL_STEPS && submission->step != step)
		submission = TAILQ_NEXT(submission, others);
	return submission;
}

int kv_submission_order_locked(struct kvfs_xfer *xfer, size_t step,
			       void *stream)
{
	struct kvfs_session *session = xfer->session;
	struct kv_submission *submission, *next;
	int r = 0;

	kv_assert_locked(&session->lock);
	if (!kv_xfer_is_submitted_locked(xfer) &&
	    (step == KV_ALL_STEPS ||
	     !kv_load_step_is_submitted_locked(xfer, step)))
		return -EAGAIN;
	submission = find_step(TAILQ_FIRST(&xfer->submissions), step);
	while (submission && r == 0) {
		submission->users++;
		pthread_mutex_unlock(&session->lock);
		r = kv_device_result(
			xfer->device->order(submission->fence, stream));
		pthread_mutex_lock(&session->lock);
		next = find_step(TAILQ_NEXT(submission, others), step);
		if (--submission->users == 0)
			kv_session_changed_locked(session);
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
	int r = kv_submission_check(xfer->device, &stream);

	if (r < 0)
		return r;
	pthread_mutex_lock(&xfer->session->lock);
	r = kv_submission_order_locked(xfer, step, stream);
	pthread_mutex_unlock(&xfer->session->lock);
	return r;
}

int kvfs_xfer_order(kvfs_xfer *xfer, void *stream)
{
	int r = kv_session_check(xfer ? xfer->session : NULL);

	return r < 0 ? r : order(xfer, KV_ALL_STEPS, stream);
}

int kvfs_xfer_order_layer(kvfs_xfer *xfer, uint32_t layer, void *stream)
{
	int r = kv_xfer_check_layer(xfer, layer);

	if (r < 0)
		return r;
	return order(xfer,
		     xfer->steps <= 1 ? KV_ALL_STEPS
				      : (layer - xfer->first_layer) /
						xfer->layers_a_step,
		     stream);
}
