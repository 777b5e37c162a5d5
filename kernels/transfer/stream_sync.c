/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_sync.c - copies after a stream's work, and streams after copies.
 *
 * OWNS      the session's sync thread, and the thread that detaches memory
 *           (mapped_segment.c); a transfer's event wait, for the work that must
 *           be over before the pages are used; fences that have begun; the
 *           device's event wait for the end of a submitted batch.
 *
 * STATES    of an event wait:
 *
 *              MADE -> WAITING   kv_stream_sync_waits_locked
 *           WAITING -> DONE      look_at: the device says so
 *           WAITING -> STOPPED   kv_stream_sync_stop_locked
 *                 * -> freed     run, once the transfer is COPIED
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
 *   (1) No call of the device is made with a lock held: the sync thread makes
 *       the calls that a thread with the lock causes.
 *   (2) Event waits are freed before their pool stops being busy, and so before
 *       the device closes it.
 *   (3) A transfer in one of the sync's lists has a reference.
 *   (4) While a transfer waits for its event wait, no copy thread has a job of
 *       it.
 *   (5) Of the event waits in a stream mostly only the first is looked at.
 *   (6) A stream waits only for SUBMITTED batches: they end without further
 *       work by any thread.
 *   (7) A submission is in xfer->submissions if and only if it is SUBMITTED.
 *   (8) A submission's fence is not freed while a caller orders a stream after
 *       it (users), and is freed before the blocks count as COPIED or failed, so
 *       before the device closes the pool.
 *
 * LOCKING   session->lock for all but the calls of the device.
 */
#include "kernels/device/device.h"
#include "kernels/session/mapped_segment.h"
#include "kernels/transfer/stream_sync.h"
#include "kernels/transfer/pool.h"
#include "common/thread.h"
#include "kernels/transfer/xfer.h"

/* Nanoseconds between looks at event waits that are not done: at first, and at
 * most. */
#define LOOK_FIRST_NS 30000u
#define LOOK_LAST_NS 1000000u
/* In one look out of so many, also look at event waits behind others in their
 * stream, as the handle may stand for another stream by now. */
#define LOOK_AT_ALL 32u

struct kv_stream_sync {
	struct kvfs_session *session; /* fixed */
	pthread_t thread, detacher;   /* fixed */
	bool runs, detaches; /* guarded by lock; the two threads were started */
	pthread_cond_t work, detach;
	struct kv_xfers waiting; /* guarded by lock; for event waits */
	TAILQ_HEAD(, kv_stream_fence) fences; /* guarded by lock */
	struct kv_xfers over;		      /* guarded by lock */
	uint64_t pause; /* guarded by lock; nanoseconds until the next look */
	unsigned looks; /* of the thread */
	_Atomic uint64_t made; /* event waits */
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

/* Make an event wait for the work that @stream has, or for @event.
 * *@ret_event_wait becomes NULL if there is nothing to wait for. */
static int make_event_wait(const struct kvfs_pool *pool, void *stream,
			   void *event, void **ret_event_wait,
			   struct kv_stream_place *ret_place)
{
	const struct kvfs_device *device = pool->device;
	void *made = NULL;
	int r = kv_stream_sync_resolve(device, stream, event, &stream);

	*ret_event_wait = NULL;
	if (r < 0 || (!stream && !event))
		return r;
	r = kv_guard_event_wait(device, pool->on_device, stream, event, &made);
	if (r < 0)
		return r;
	if (device->event_wait_is_done(made))
		device->event_wait_free(made);
	else
		*ret_event_wait = made;
	/* Two threads may take their numbers in the wrong order: then one event
	 * wait is looked at a little late.  A handle that is no address, such
	 * as (void *)2, may stand for another stream in each thread. */
	*ret_place = (struct kv_stream_place){
		(uintptr_t)stream < KV_PAGE ? NULL : stream,
		atomic_fetch_add(&pool->session->stream_sync->made, 1)};
	return 0;
}

static bool is_before(const struct kv_stream_place *a,
		      const struct kv_stream_place *b)
{
	return a->stream && a->stream == b->stream && a->number < b->number;
}

int kv_stream_sync_take(struct kvfs_xfer *xfer, const struct kvfs_pool *pool,
			const kvfs_opts *opts)
{
	void *stream;

	if (xfer->n == 0)
		return kv_stream_sync_resolve(pool->device, opts->stream,
					      opts->event, &stream);
	return make_event_wait(pool, opts->stream, opts->event,
			       &xfer->event_wait, &xfer->place);
}

void kv_stream_sync_drop(struct kvfs_xfer *xfer)
{
	void *event_wait = kv_steal(xfer->event_wait);

	if (event_wait)
		xfer->device->event_wait_free(event_wait);
}

/* Have the sync thread look at all event waits soon. */
static void look_soon_locked(struct kv_stream_sync *sync)
{
	kv_assert_locked(&sync->session->lock);
	sync->pause = LOOK_FIRST_NS;
	pthread_cond_signal(&sync->work);
}

bool kv_stream_sync_waits_locked(struct kvfs_xfer *xfer)
{
	struct kv_stream_sync *sync = xfer->session->stream_sync;

	kv_assert_locked(&xfer->session->lock);
	if (!xfer->event_wait || xfer->event_over)
		return false;
	kv_xfer_get_locked(xfer);
	xfer->waits_for_event = true;
	TAILQ_INSERT_TAIL(&sync->waiting, xfer, synced);
	look_soon_locked(sync);
	return true;
}

bool kv_stream_sync_stop_locked(struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	if (!xfer->waits_for_event)
		return false;
	xfer->waits_for_event = false;
	TAILQ_REMOVE(&xfer->session->stream_sync->waiting, xfer, synced);
	kv_xfer_put_locked(xfer);
	return true;
}

/* Look at the transfer's event wait, without the lock, and if it is done begin
 * the transfer, unless the transfer was stopped meanwhile.  Return whether the
 * event wait is done. */
static bool look_at(struct kvfs_xfer *xfer)
{
	struct kvfs_session *session = xfer->session;
	bool done;

	kv_xfer_get_locked(xfer);
	pthread_mutex_unlock(&session->lock);
	done = !xfer->event_wait ||
	       xfer->device->event_wait_is_done(xfer->event_wait);
	pthread_mutex_lock(&session->lock);
	if (xfer->waits_for_event && done) {
		xfer->event_over = true;
		kv_stream_sync_stop_locked(xfer);
		xfer->ops->event_over_locked(xfer);
	}
	kv_xfer_put_locked(xfer);
	return done;
}

/* ---- giving back ---- */

bool kv_stream_sync_over_locked(struct kvfs_xfer *xfer, struct kvfs_pool *pool)
{
	struct kv_stream_sync *sync = xfer->session->stream_sync;

	kv_assert_locked(&xfer->session->lock);
	if (!xfer->event_wait)
		return false;
	xfer->event_pool = pool;
	kv_xfer_get_locked(xfer);
	TAILQ_INSERT_TAIL(&sync->over, xfer, synced);
	pthread_cond_signal(&sync->work);
	return true;
}

/* ---- fences ---- */

struct kv_stream_fence {
	TAILQ_ENTRY(kv_stream_fence) others; /* in sync->fences */
	struct kvfs_pool *pool;		     /* busy from the begin on */
	struct kv_stream_place place;	     /* of the event wait */
	void *event_wait;
	void (*gone)(void *owner);
	void *owner;
};

int kv_stream_fence_new(struct kvfs_pool *pool, void *stream, void *event,
			struct kv_stream_fence **ret_fence)
{
	struct kv_stream_fence *fence = NULL;
	struct kv_stream_place place;
	void *event_wait;
	int r = make_event_wait(pool, stream, event, &event_wait, &place);

	if (r < 0)
		return r;
	if (event_wait) {
		fence = calloc(1, sizeof(*fence));
		if (!fence) {
			pool->device->event_wait_free(event_wait);
			return -ENOMEM;
		}
		fence->pool = pool;
		fence->place = place;
		fence->event_wait = event_wait;
	}
	*ret_fence = fence;
	return 0;
}

void kv_stream_fence_free(struct kv_stream_fence *fence)
{
	if (!fence)
		return;
	fence->pool->device->event_wait_free(fence->event_wait);
	free(fence);
}

void kv_stream_fence_begin_locked(struct kv_stream_fence *fence,
				  void (*gone)(void *owner), void *owner)
{
	struct kvfs_session *session = fence->pool->session;

	kv_assert_locked(&session->lock);
	fence->gone = gone;
	fence->owner = owner;
	fence->pool->busy++;
	TAILQ_INSERT_TAIL(&session->stream_sync->fences, fence, others);
	look_soon_locked(session->stream_sync);
}

/* Return whether another event wait comes before @place in the same stream.
 * Then the event wait at @place cannot be done. */
static bool is_behind_locked(const struct kv_stream_sync *sync,
			     const struct kv_stream_place *place)
{
	const struct kv_stream_fence *fence;
	const struct kvfs_xfer *xfer;

	kv_assert_locked(&sync->session->lock);
	if (sync->looks % LOOK_AT_ALL == 0)
		return false;
	TAILQ_FOREACH(fence, &sync->fences, others)
		if (is_before(&fence->place, place))
			return true;
	TAILQ_FOREACH(xfer, &sync->waiting, synced)
		if (is_before(&xfer->place, place))
			return true;
	return false;
}

/* Look at the fences, each without the lock: only the sync thread removes
 * fences from the list.  Return whether any fence was over. */
static bool look_at_fences(struct kv_stream_sync *sync)
{
	struct kvfs_session *session = sync->session;
	struct kv_stream_fence *fence, *next;
	struct kvfs_pool *pool;
	bool done, any = false;

	for (fence = TAILQ_FIRST(&sync->fences); fence; fence = next) {
		next = TAILQ_NEXT(fence, others);
		if (is_behind_locked(sync, &fence->place))
			continue;
		pthread_mutex_unlock(&session->lock);
		done = fence->pool->device->event_wait_is_done(
			fence->event_wait);
		pthread_mutex_lock(&session->lock);
		next = TAILQ_NEXT(fence, others);
		if (!done)
			continue;
		TAILQ_REMOVE(&sync->fences, fence, others);
		pool = fence->pool;
		fence->gone(fence->owner);
		kv_session_completed_locked(session);
		pthread_mutex_unlock(&session->lock);
		kv_stream_fence_free(fence);
		pthread_mutex_lock(&session->lock);
		pool->busy--;
		kv_session_changed_locked(session);
		any = true;
	}
	return any;
}

/* ---- the thread ---- */

/* Look at the fences and transfers that wait now, at the first of each stream.
 * Return whether any event wait was over. */
static bool look_around(struct kv_stream_sync *sync)
{
	struct kvfs_xfer *xfer;
	size_t n = 0;
	bool any;

	TAILQ_FOREACH(xfer, &sync->waiting, synced)
		n++;
	sync->looks++;
	any = look_at_fences(sync);
	while (n-- > 0 && (xfer = TAILQ_FIRST(&sync->waiting))) {
		/* Move the transfer to the tail: round robin. */
		TAILQ_REMOVE(&sync->waiting, xfer, synced);
		TAILQ_INSERT_TAIL(&sync->waiting, xfer, synced);
		if (!is_behind_locked(sync, &xfer->place))
			any |= look_at(xfer);
	}
	return any;
}

static void *run(void *arg)
{
	struct kv_stream_sync *sync = arg;
	struct kvfs_session *session = sync->session;
	struct kvfs_xfer *xfer;
	uint64_t at;

	pthread_mutex_lock(&session->lock);
	for (;;) {
		while ((xfer = TAILQ_FIRST(&sync->over))) {
			/* The transfer is COPIED: free its event wait. */
			TAILQ_REMOVE(&sync->over, xfer, synced);
			pthread_mutex_unlock(&session->lock);
			kv_stream_sync_drop(xfer);
			pthread_mutex_lock(&session->lock);
			kv_steal(xfer->event_pool)->busy--;
			kv_session_changed_locked(session);
			kv_xfer_put_locked(xfer);
		}
		if (!TAILQ_EMPTY(&sync->waiting) ||
		    !TAILQ_EMPTY(&sync->fences)) {
			if (look_around(sync)) {
				sync->pause = LOOK_FIRST_NS;
				continue;
			}
			/* Back off: a look is several calls of the driver, and
			 * a long wait can take a little longer. */
			at = kv_now_ns() + sync->pause;
			sync->pause = KV_MIN(sync->pause + sync->pause / 4,
					     LOOK_LAST_NS);
			kv_session_wait_for(session, &sync->work, at);
			continue;
		}
		if (!TAILQ_EMPTY(&sync->over))
			continue;
		if (sync->stop)
			break;
		kv_session_wait_for(session, &sync->work, UINT64_MAX);
	}
	pthread_mutex_unlock(&session->lock);
	return NULL;
}

/* Detach memory from its device, which may take long.  Runs on a thread of its
 * own. */
static void *detach(void *arg)
{
	struct kv_stream_sync *sync = arg;
	struct kvfs_session *session = sync->session;

	pthread_mutex_lock(&session->lock);
	while (kv_detach_work(session) || !sync->stop)
		if (TAILQ_EMPTY(&session->detaching) && !sync->stop)
			kv_session_wait_for(session, &sync->detach, UINT64_MAX);
	pthread_mutex_unlock(&session->lock);
	return NULL;
}

int kv_stream_sync_start_locked(struct kvfs_session *session)
{
	struct kv_stream_sync *sync = session->stream_sync;
	int r = 0;

	kv_assert_locked(&session->lock);
	if (!sync) {
		sync = calloc(1, sizeof(*sync));
		if (!sync)
			return -ENOMEM;
		sync->session = session;
		sync->pause = LOOK_FIRST_NS;
		kv_cond_init(&sync->work);
		pthread_cond_init(&sync->detach, NULL);
		TAILQ_INIT(&sync->waiting);
		TAILQ_INIT(&sync->fences);
		TAILQ_INIT(&sync->over);
		session->stream_sync = sync;
	}
	if (!sync->runs)
		r = kv_thread_start(&sync->thread, "kvfs-sync", run, sync);
	sync->runs |= r == 0;
	if (r == 0 && !sync->detaches)
		r = kv_thread_start(&sync->detacher, "kvfs-detach", detach,
				    sync);
	sync->detaches |= r == 0;
	return r;
}

void kv_stream_sync_detach_locked(struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	pthread_cond_signal(&session->stream_sync->detach);
}

void kv_stream_sync_free(struct kv_stream_sync *sync)
{
	if (!sync)
		return;
	pthread_mutex_lock(&sync->session->lock);
	sync->stop = true;
	pthread_cond_signal(&sync->work);
	pthread_cond_signal(&sync->detach);
	pthread_mutex_unlock(&sync->session->lock);
	if (sync->runs)
		pthread_join(sync->thread, NULL);
	if (sync->detaches)
		pthread_join(sync->detacher, NULL);
	pthread_cond_destroy(&sync->work);
	pthread_cond_destroy(&sync->detach);
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
	int r;

	if (xfer->device->order) {
		submission->step = step;
		submission->told = false;
		batch->submitted = submitted;
		batch->owner = submission;
	}
	r = loads ? kv_guard_load(xfer->device, xfer->pool->on_device, batch)
		  : kv_guard_save(xfer->device, xfer->pool->on_device, batch);
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
	    (step == KV_ALL_STEPS || !xfer->ops->step_is_submitted ||
	     !xfer->ops->step_is_submitted(xfer, step)))
		return -EAGAIN;
	submission = find_step(TAILQ_FIRST(&xfer->submissions), step);
	while (submission && r == 0) {
		submission->users++;
		pthread_mutex_unlock(&session->lock);
		r = kv_guard_order(xfer->device, submission->fence, stream);
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
