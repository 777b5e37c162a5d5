/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xfer.c - transfers, their stages, and the calls that wait for them.
 *
 * OWNS      struct kvfs_xfer and the counts of pages in use of pools.  The
 *           transfer's kind (xfer->ops) moves the blocks.
 *
 * STATES    of a transfer:
 *
 *                NEW -> ACTIVE   kv_xfer_activate_locked
 *             ACTIVE -> ACTIVE   stage_over_locked: the pages are the engine's
 *             ACTIVE -> REST     rest_locked: no block is under way
 *               REST -> ACTIVE   want_durable_locked: a caller awaits DURABLE
 *               REST -> freed    with the caller's reference
 *
 * INVARIANTS
 *   (1) left[s] + got[s] only counts blocks that have not failed before stage
 *       s; a block is counted in left[s] until it has reached s or failed.
 *   (2) Pages belong to the transfer until left[COPIED] is 0.  No cancel,
 *       time-out or lost connection gives them back before.
 *   (3) An active transfer has a reference, and is in session->active.
 *   (4) Every byte of a block belongs to one layer of the model.
 *   (5) SUBMITTED is not counted by block: a transfer is SUBMITTED, for good,
 *       when the device has every block that is neither COPIED nor failed.
 *
 * LOCKING   session->lock.  The owner of a block writes its status[], which is
 *           read without the lock.
 */
#include "kernels/transfer/xfer.h"

/* least number of bytes that a step copies, in all blocks together */
#define STEP_BYTES ((uint64_t)4 << 20)
#define STREAM_NS 5000000000u /* longest time that a close waits for a stream */

static void check_locked(const struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	for (int s = KVFS_COPIED; s <= KVFS_DURABLE; s++)
		assert(xfer->left[s] + xfer->got[s] <= xfer->n);
	assert(!xfer->active || xfer->refs > 0);
	assert(!xfer->pool || xfer->pool->busy > 0 || !xfer->active);
}

void kv_xfer_free(struct kvfs_xfer *xfer)
{
	if (!xfer)
		return;
	if (xfer->ops->drop)
		xfer->ops->drop(xfer);
	free(xfer->pages);
	free(xfer->ranges);
	kv_event_wait_free(xfer->event_wait);
	free(xfer);
}

void kv_xfer_freep(struct kvfs_xfer **xfer)
{
	kv_xfer_free(*xfer);
}

int kv_xfer_new(struct kvfs_session *session, const struct kv_xfer_ops *ops,
		size_t n, struct kvfs_xfer **ret_xfer)
{
	struct kvfs_xfer *xfer;

	xfer = calloc(1, sizeof(*xfer) + n * sizeof(xfer->status[0]));
	if (!xfer)
		return -ENOMEM;
	xfer->session = session;
	xfer->ops = ops;
	xfer->n = n;
	xfer->refs = 1;
	TAILQ_INIT(&xfer->submissions);
	for (size_t i = KVFS_COPIED; i <= KVFS_DURABLE; i++)
		xfer->left[i] = n;
	for (size_t i = 0; i < n; i++)
		atomic_init(&xfer->status[i], -EINPROGRESS);
	*ret_xfer = xfer;
	return 0;
}

void kv_xfer_get_locked(struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	xfer->refs++;
}

void kv_xfer_put_locked(struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	assert(xfer->refs > 0);
	if (--xfer->refs > 0)
		return;
	kv_keys_fini_locked(&xfer->keys);
	if (xfer->space)
		kv_lib_space_put_locked(xfer->space);
	kv_xfer_free(xfer);
}

void kv_xfer_keys_get_locked(struct kv_keys *keys)
{
	kv_xfer_get_locked(kv_container(keys, struct kvfs_xfer, keys));
}

void kv_xfer_keys_put_locked(struct kv_keys *keys)
{
	kv_xfer_put_locked(kv_container(keys, struct kvfs_xfer, keys));
}

static void time_is_up_locked(struct kv_timer *timer)
{
	struct kvfs_xfer *xfer = kv_container(timer, struct kvfs_xfer, timer);

	kv_assert_locked(&xfer->session->lock);
	kv_xfer_stop_locked(xfer, -ETIMEDOUT);
}

void kv_xfer_tell_locked(struct kvfs_xfer *xfer, enum kvfs_event_what what,
			 uint64_t user, unsigned stages)
{
	kv_assert_locked(&xfer->session->lock);
	if (xfer->flags & KVFS_TELL_SUBMITTED)
		stages |= 1u << KVFS_SUBMITTED;
	xfer->notice = (struct kv_notice){
		.user = user, .what = what, .stages = stages, .n = xfer->n};
	if (user == 0 || xfer->n > 0)
		return;
	/* A transfer without blocks is at every stage. */
	kv_notice_post_locked(xfer->session, &xfer->notice, KVFS_SUBMITTED, 0);
	for (unsigned s = KVFS_COPIED; s <= KVFS_DURABLE; s++)
		kv_notice_post_locked(xfer->session, &xfer->notice, s, 0);
	kv_session_completed_locked(xfer->session);
}

void kv_xfer_activate_locked(struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	kv_lib_transfers_use_locked(xfer->session);
	kv_xfer_get_locked(xfer);
	xfer->active = true;
	TAILQ_INSERT_TAIL(&xfer->session->active, xfer, others);
	if (xfer->pool) {
		xfer->pool->busy++;
		kv_lib_pool_use_locked(xfer->pool, xfer->pages, xfer->n_pages,
				       !xfer->ops->to_daemon, true);
	}
	xfer->timer.fire = time_is_up_locked;
	if (xfer->left[KVFS_COPIED] > 0 && xfer->deadline_at != 0)
		kv_timer_start_locked(xfer->session, &xfer->timer,
				      xfer->deadline_at);
}

/* Deactivate the transfer, unless blocks are left at a stage that a caller or
 * the daemon waits for. */
static void rest_locked(struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	if (!xfer->active || xfer->left[KVFS_COPIED] > 0 ||
	    xfer->left[KVFS_SEALED] > 0 ||
	    (xfer->flush_asked && xfer->left[KVFS_DURABLE] > 0))
		return;
	xfer->active = false;
	kv_timer_stop_locked(xfer->session, &xfer->timer);
	TAILQ_REMOVE(&xfer->session->active, xfer, others);
	kv_session_changed_locked(xfer->session);
	kv_xfer_put_locked(xfer);
}

/* Every block has reached @stage or failed: run the hook of the transfer's kind
 * (xfer->ops), and notify the caller. */
static void stage_over_locked(struct kvfs_xfer *xfer, enum kvfs_stage stage)
{
	const bool to_daemon = xfer->ops->to_daemon;

	kv_assert_locked(&xfer->session->lock);
	if (stage == (to_daemon ? KVFS_SEALED : KVFS_COPIED))
		kv_timer_stop_locked(xfer->session, &xfer->timer);
	if (stage == KVFS_COPIED && xfer->pool) {
		/* Give the pages back to the engine; no other function does
		 * so. */
		kv_lib_pool_use_locked(xfer->pool, xfer->pages, xfer->n_pages,
				       !to_daemon, false);
		kv_event_wait_end_locked(kv_steal(xfer->event_wait));
		xfer->pool->busy--;
		xfer->pool = NULL;
	}
	if (stage == KVFS_COPIED && xfer->ops->copied_locked)
		xfer->ops->copied_locked(xfer);
	if (stage == KVFS_SEALED && xfer->ops->sealed_locked)
		xfer->ops->sealed_locked(xfer);
	if (xfer->over)
		xfer->over(xfer, stage);
	kv_notice_post_locked(xfer->session, &xfer->notice, (unsigned)stage,
			      (int64_t)xfer->got[stage]);
}

bool kv_xfer_is_submitted_locked(const struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	return xfer->all_submitted || xfer->left[KVFS_COPIED] == 0;
}

/* Make the transfer SUBMITTED if the device was given all blocks that are not
 * COPIED. */
static void look_submitted_locked(struct kvfs_xfer *xfer)
{
	bool asked = xfer->notice.user != 0 &&
		     xfer->notice.stages & 1u << KVFS_SUBMITTED;
	int status;

	kv_assert_locked(&xfer->session->lock);
	if (xfer->all_submitted || xfer->submitted < xfer->left[KVFS_COPIED])
		return;
	xfer->all_submitted = true;
	/* Count blocks that are COPIED, or that will be unless the device
	 * fails.  Blocks of a load fail one by one, and are counted as failed
	 * only later. */
	if (xfer->ops->to_daemon)
		xfer->got_submitted =
			xfer->got[KVFS_COPIED] + xfer->left[KVFS_COPIED];
	for (size_t i = 0; i < xfer->n && !xfer->ops->to_daemon; i++) {
		status = atomic_load(&xfer->status[i]);
		xfer->got_submitted += status >= 0 || status == -EINPROGRESS;
	}
	kv_notice_post_locked(xfer->session, &xfer->notice, KVFS_SUBMITTED,
			      (int64_t)xfer->got_submitted);
	if (asked)
		kv_session_completed_locked(xfer->session);
	else
		kv_session_changed_locked(xfer->session);
}

void kv_xfer_submit_locked(struct kvfs_xfer *xfer, size_t n)
{
	kv_assert_locked(&xfer->session->lock);
	xfer->submitted += n;
	look_submitted_locked(xfer);
}

void kv_xfer_unsubmit_locked(struct kvfs_xfer *xfer, size_t n)
{
	kv_assert_locked(&xfer->session->lock);
	assert(xfer->submitted >= n);
	xfer->submitted -= n;
}

void kv_xfer_reach_locked(struct kvfs_xfer *xfer, enum kvfs_stage stage,
			  size_t n)
{
	kv_assert_locked(&xfer->session->lock);
	kv_xfer_get_locked(xfer);
	xfer->left[stage] -= n;
	xfer->got[stage] += n;
	check_locked(xfer);
	if (n > 0 && stage == KVFS_COPIED)
		look_submitted_locked(xfer);
	if (n > 0 && xfer->left[stage] == 0) {
		stage_over_locked(xfer, stage);
		if (stage == KVFS_COPIED || xfer->ops->to_daemon)
			kv_session_completed_locked(xfer->session);
	}
	rest_locked(xfer);
	kv_xfer_put_locked(xfer);
}

void kv_xfer_fail_locked(struct kvfs_xfer *xfer, enum kvfs_stage stage,
			 size_t n)
{
	bool over[KVFS_DURABLE + 1] = {false};
	bool any = false;

	kv_assert_locked(&xfer->session->lock);
	if (n == 0)
		return;
	kv_xfer_get_locked(xfer);
	for (int s = (int)stage; s <= KVFS_DURABLE; s++) {
		xfer->left[s] -= n;
		over[s] = xfer->left[s] == 0;
		any |= over[s];
	}
	check_locked(xfer);
	if (stage == KVFS_COPIED)
		look_submitted_locked(xfer);
	for (int s = (int)stage; s <= KVFS_DURABLE; s++)
		if (over[s])
			stage_over_locked(xfer, (enum kvfs_stage)s);
	if (any)
		kv_session_completed_locked(xfer->session);
	rest_locked(xfer);
	kv_xfer_put_locked(xfer);
}

void kv_xfer_over_locked(struct kvfs_xfer *xfer, size_t good, size_t bad)
{
	kv_xfer_fail_locked(xfer, KVFS_COPIED, bad);
	for (int s = KVFS_COPIED; s <= KVFS_DURABLE; s++)
		kv_xfer_reach_locked(xfer, (enum kvfs_stage)s, good);
}

void kv_xfer_stop_locked(struct kvfs_xfer *xfer, int status)
{
	int running = 0;

	kv_assert_locked(&xfer->session->lock);
	if (!atomic_compare_exchange_strong(&xfer->stopped, &running, status))
		return;
	if (xfer->ops->stopped_locked)
		xfer->ops->stopped_locked(xfer);
}

/* ---- layers ---- */

/* Append the bytes @from .. @to to the @n ranges, or join them with the last
 * range.  Return the number of ranges. */
static size_t add_range(struct kvfs_range *ranges, size_t n, uint64_t from,
			uint64_t to)
{
	if (n > 0 && ranges[n - 1].to == from) {
		ranges[n - 1].to = to;
		return n;
	}
	ranges[n] = (struct kvfs_range){.from = from, .to = to};
	return n + 1;
}

size_t kv_layout_ranges(const struct kv_layout *layout, uint32_t first,
			uint32_t n, struct kvfs_range *ret_ranges)
{
	uint64_t before, all, layer;
	size_t ranges = 0;

	for (uint32_t i = 0; n > 0 && i < layout->n_tensors; i++) {
		const struct kv_tensor *tensor = &layout->tensors[i];
		uint64_t at = tensor->offset;

		if (layout->layer_dim < 0) {
			if (tensor->layer >= first && tensor->layer - first < n)
				ranges = add_range(ret_ranges, ranges, at,
						   at + tensor->bytes);
			continue;
		}
		/* Layers are an inner dimension: each index of the dimensions
		 * before it has a piece of every layer. */
		before = 1;
		for (int d = 0; d < layout->layer_dim; d++)
			before *= tensor->shape[d];
		all = tensor->bytes / before;
		layer = all / layout->layers;
		for (; before > 0; at += all, before--)
			ranges = add_range(ret_ranges, ranges,
					   at + first * layer,
					   at + (first + n) * layer);
	}
	return ranges;
}

/* ---- options ---- */

int kv_xfer_set_pages(struct kvfs_xfer *xfer, const struct kvfs_pool *pool,
		      const int64_t *pages)
{
	size_t n, bytes;

	if (__builtin_mul_overflow(xfer->n, pool->strides.pages_per_block,
				   &n) ||
	    __builtin_mul_overflow(n, sizeof(*pages), &bytes) ||
	    (!pages && n > 0))
		return -EINVAL;
	xfer->pages = malloc(bytes + 1);
	if (!xfer->pages)
		return -ENOMEM;
	if (bytes > 0)
		memcpy(xfer->pages, pages, bytes);
	xfer->n_pages = n;
	return 0;
}

int kv_opts_take(struct kvfs_xfer *xfer, struct kvfs_pool *pool,
		 const kvfs_opts *opts, unsigned flags)
{
	const struct kv_layout *layout = pool->layout;
	uint64_t bytes;
	void *stream;
	int r;

	xfer->device = pool->device;
	xfer->first_layer = opts->first_layer;
	xfer->layers = opts->layers == 0 ? layout->layers : opts->layers;
	if ((opts->flags & ~flags) != 0 || xfer->layers > layout->layers ||
	    xfer->first_layer > layout->layers - xfer->layers)
		return -EINVAL;
	if (xfer->layers < layout->layers) {
		xfer->ranges =
			malloc(layout->layer_pieces * sizeof(*xfer->ranges));
		if (!xfer->ranges)
			return -ENOMEM;
		xfer->n_ranges = kv_layout_ranges(layout, xfer->first_layer,
						  xfer->layers, xfer->ranges);
	}
	if (opts->deadline != 0)
		xfer->deadline_at = kv_time_after(opts->deadline);
	xfer->flags = opts->flags;
	xfer->priority = opts->priority;
	if (opts->flags & KVFS_BY_LAYER) {
		/* Copy so many layers in a step that they have STEP_BYTES in
		 * all blocks together. */
		bytes = layout->payload / layout->layers * xfer->n;
		xfer->layers_a_step = (uint32_t)KV_MIN(
			STEP_BYTES / KV_MAX(bytes, (uint64_t)1) + 1,
			xfer->layers);
		xfer->steps = (xfer->layers + xfer->layers_a_step - 1) /
			      xfer->layers_a_step;
	}
	if (xfer->n == 0)
		return kv_stream_sync_resolve(pool->device, opts->stream,
					      opts->event, &stream);
	r = kv_event_wait_new(pool, opts->stream, opts->event,
			      &xfer->event_wait);
	if (xfer->event_wait)
		xfer->event_wait->kept = true;
	return r;
}

/* ---- ends ---- */

/* Stop the transfers of @pool, or of any pool (NULL); with @waits only those
 * that wait for a stream.  Stopping one may end others, so each search begins
 * anew. */
static void stop_running_locked(struct kvfs_session *session,
				const struct kvfs_pool *pool, bool waits)
{
	struct kvfs_xfer *xfer;

	kv_assert_locked(&session->lock);
	do {
		TAILQ_FOREACH(xfer, &session->active, others)
			if (atomic_load(&xfer->stopped) == 0 &&
			    (!pool || xfer->pool == pool) &&
			    (!waits ||
			     (xfer->event_wait && xfer->event_wait->waiting)))
				break;
		if (xfer && xfer->ops->leave_pages_locked)
			xfer->ops->leave_pages_locked(xfer);
		if (xfer && (!pool || xfer->pool == pool))
			kv_xfer_stop_locked(xfer, -ETIMEDOUT);
	} while (xfer);
}

void kv_xfers_drain(struct kvfs_session *session, struct kvfs_pool *pool)
{
	const uint64_t patient_until = kv_time_after(STREAM_NS);
	uint64_t look_at = kv_time_after(KV_LOOK_NS);
	struct kvfs_xfer *xfer, *next;
	bool hangs;

	kv_assert_locked(&session->lock);
	while (pool ? pool->busy > 0 : !TAILQ_EMPTY(&session->active)) {
		kv_session_wait(session, look_at);
		if (kv_now_ns() < look_at)
			continue;
		pthread_mutex_unlock(&session->lock);
		hangs = kv_ask_hangs(session);
		pthread_mutex_lock(&session->lock);
		if (hangs || kv_now_ns() >= patient_until)
			stop_running_locked(session, pool, !hangs);
		xfer = hangs && !pool ? TAILQ_FIRST(&session->active) : NULL;
		for (; xfer; xfer = next) {
			next = TAILQ_NEXT(xfer, others);
			if (xfer->ops->stop_durable_locked)
				xfer->ops->stop_durable_locked(xfer,
							       -ETIMEDOUT);
		}
		look_at = kv_time_after(KV_LOOK_NS);
	}
}

/* ---- for callers ---- */

static int check_xfer(const struct kvfs_xfer *xfer, enum kvfs_stage stage)
{
	int r = kv_session_check(xfer ? xfer->session : NULL);

	if (r < 0)
		return r;
	return stage < KVFS_COPIED || stage > KVFS_SUBMITTED ? -EINVAL : 0;
}

/* Return the result of waiting for @stage; -EAGAIN: not yet. */
static long stage_result_locked(const struct kvfs_xfer *xfer, size_t stage)
{
	if (stage != KVFS_SUBMITTED)
		return xfer->left[stage] > 0 ? -EAGAIN : (long)xfer->got[stage];
	return kv_xfer_is_submitted_locked(xfer) ? (long)xfer->got_submitted
						 : -EAGAIN;
}

static long some_result_locked(const struct kvfs_xfer *xfer, size_t n)
{
	const size_t over = xfer->n - xfer->left[KVFS_COPIED];

	return over >= n ? (long)over : -EAGAIN;
}

static long layer_result_locked(const struct kvfs_xfer *xfer, size_t layer)
{
	if (xfer->left[KVFS_COPIED] == 0 ||
	    (xfer->steps > 1 &&
	     kv_load_step_is_over(xfer, (layer - xfer->first_layer) /
						xfer->layers_a_step)))
		return 0;
	return -EAGAIN;
}

/* Copy KV_HELP_BYTES of the transfer, unless the copy threads have all of it. */
static bool help_locked(struct kvfs_xfer *xfer)
{
	struct kvfs_session *session = xfer->session;
	struct kv_job *job = NULL;

	kv_assert_locked(&session->lock);
	if (xfer->left[KVFS_COPIED] > 0 && session->copier)
		job = kv_copier_withdraw(session->copier, xfer);
	if (!job)
		return false;
	pthread_mutex_unlock(&session->lock);
	job->run(job);
	pthread_mutex_lock(&session->lock);
	return true;
}

/* Call @result_locked with @what until its result is not -EAGAIN, and return
 * the result; or -ETIMEDOUT after @deadline nanoseconds. */
static long wait_for(struct kvfs_xfer *xfer, size_t what,
		     long (*result_locked)(const struct kvfs_xfer *xfer,
					   size_t what),
		     uint64_t deadline)
{
	const uint64_t at = kv_time_after(deadline);
	long r;

	pthread_mutex_lock(&xfer->session->lock);
	while ((r = result_locked(xfer, what)) == -EAGAIN) {
		if (kv_now_ns() >= at) {
			r = -ETIMEDOUT;
			break;
		}
		if (!help_locked(xfer))
			kv_session_wait(xfer->session, at);
	}
	pthread_mutex_unlock(&xfer->session->lock);
	return r;
}

int kvfs_xfer_poll(kvfs_xfer *xfer, enum kvfs_stage stage)
{
	long r = kvfs_xfer_wait(xfer, stage, 0);

	return r >= 0 ? 1 : r == -ETIMEDOUT ? 0 : (int)r;
}

long kvfs_xfer_wait(kvfs_xfer *xfer, enum kvfs_stage stage, uint64_t deadline)
{
	int r = check_xfer(xfer, stage);

	if (r < 0)
		return r;
	if (stage == KVFS_DURABLE && xfer->ops->want_durable_locked) {
		pthread_mutex_lock(&xfer->session->lock);
		xfer->ops->want_durable_locked(xfer);
		pthread_mutex_unlock(&xfer->session->lock);
	}
	return wait_for(xfer, stage, stage_result_locked, deadline);
}

long kvfs_xfer_wait_some(kvfs_xfer *xfer, size_t n, uint64_t deadline)
{
	int r = check_xfer(xfer, KVFS_COPIED);

	if (r < 0)
		return r;
	return n > xfer->n ? -EINVAL
			   : wait_for(xfer, n, some_result_locked, deadline);
}

/* ---- waiting for a layer ---- */

int kv_xfer_check_layer(const struct kvfs_xfer *xfer, uint32_t layer)
{
	int r = check_xfer(xfer, KVFS_COPIED);

	if (r < 0)
		return r;
	return xfer->device && layer >= xfer->first_layer &&
			       layer - xfer->first_layer < xfer->layers
		       ? 0
		       : -EINVAL;
}

/* A waiting thread increments layer_waiters before it looks at the step, and
 * holds the lock until it sleeps.  So either the thread sees that the step is
 * over, or this function sees the thread. */
void kv_xfer_step_over(struct kvfs_xfer *xfer)
{
	if (atomic_load(&xfer->layer_waiters) == 0)
		return;
	pthread_mutex_lock(&xfer->session->lock);
	kv_session_changed_locked(xfer->session);
	pthread_mutex_unlock(&xfer->session->lock);
}

int kvfs_xfer_poll_layer(kvfs_xfer *xfer, uint32_t layer)
{
	int r = kvfs_xfer_wait_layer(xfer, layer, 0);

	return r == 0 ? 1 : r == -ETIMEDOUT ? 0 : r;
}

int kvfs_xfer_wait_layer(kvfs_xfer *xfer, uint32_t layer, uint64_t deadline)
{
	int r = kv_xfer_check_layer(xfer, layer);

	if (r < 0)
		return r;
	atomic_fetch_add(&xfer->layer_waiters, 1);
	r = (int)wait_for(xfer, layer, layer_result_locked, deadline);
	atomic_fetch_sub(&xfer->layer_waiters, 1);
	return r;
}

int kvfs_xfer_status(kvfs_xfer *xfer, size_t i)
{
	int r = check_xfer(xfer, KVFS_COPIED);

	if (r < 0)
		return r;
	return i < xfer->n ? atomic_load(&xfer->status[i]) : -EINVAL;
}

long kvfs_xfer_statuses(kvfs_xfer *xfer, size_t first, size_t n,
			int *ret_statuses)
{
	long good = 0;
	int r = check_xfer(xfer, KVFS_COPIED);

	if (r < 0)
		return r;
	if (first > xfer->n || n > xfer->n - first || (!ret_statuses && n > 0))
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		ret_statuses[i] = atomic_load(&xfer->status[first + i]);
		good += ret_statuses[i] >= 0;
	}
	return good;
}

void kvfs_xfer_cancel(kvfs_xfer *xfer)
{
	if (check_xfer(xfer, KVFS_COPIED) < 0)
		return;
	pthread_mutex_lock(&xfer->session->lock);
	kv_xfer_get_locked(xfer);
	kv_xfer_stop_locked(xfer, -ECANCELED);
	if (xfer->ops->stop_durable_locked)
		xfer->ops->stop_durable_locked(xfer, -ECANCELED);
	kv_xfer_put_locked(xfer);
	pthread_mutex_unlock(&xfer->session->lock);
}

void kvfs_xfer_free(kvfs_xfer *xfer)
{
	struct kvfs_session *session;

	if (check_xfer(xfer, KVFS_COPIED) < 0)
		return;
	session = xfer->session;
	pthread_mutex_lock(&session->lock);
	kv_notice_drop_locked(session, &xfer->notice);
	if (xfer->ops->freed_locked)
		xfer->ops->freed_locked(xfer);
	kv_xfer_put_locked(xfer);
	pthread_mutex_unlock(&session->lock);
}

/* ---- a request about any number of keys ----
 *
 *               (new) -> ASKED      kv_keys_ask_locked
 *               (new) -> OVER       kv_keys_ask_locked: it cannot be sent
 *               ASKED -> OVER       done: the daemon has answered
 *               ASKED -> OVER       abandon_locked: it had not been sent
 *               ASKED -> ABANDONED  abandon_locked: the daemon is silent
 *           ABANDONED -> OVER       done
 *
 * A call is settled once, before it is OVER or ABANDONED.  Until it is OVER it has
 * a reference to the owner.  All calls that were ASKED are of one connection.
 */

int kv_keys_init(struct kv_keys *keys, struct kvfs_session *session,
		 const struct kv_keys_ops *ops, size_t n)
{
	keys->calls = calloc(n + 1, sizeof(*keys->calls));
	if (!keys->calls)
		return -ENOMEM;
	keys->session = session;
	keys->ops = ops;
	keys->n = n;
	for (size_t i = 0; i < n; i++)
		keys->calls[i].keys = keys;
	return 0;
}

void kv_keys_fini_locked(struct kv_keys *keys)
{
	if (!keys->calls)
		return;
	kv_assert_locked(&keys->session->lock);
	kv_timer_stop_locked(keys->session, &keys->timer);
	for (size_t i = 0; i < keys->n; i++)
		if (keys->calls[i].space)
			kv_lib_space_put_locked(keys->calls[i].space);
	free(kv_steal(keys->calls));
}

/* Handle the daemon's answer, or the end of the connection. */
static void done(struct kv_call *kv_call, int status, const void *items)
{
	struct kv_keys_call *call = (struct kv_keys_call *)kv_call;
	struct kv_keys *keys = call->keys;
	const bool late = call->state == KV_KEYS_ABANDONED;

	call->state = KV_KEYS_OVER;
	if (!late)
		keys->ops->settle_locked(call, status, items);
	else if (keys->ops->late_locked)
		keys->ops->late_locked(call, status, items);
	keys->ops->put_locked(keys);
}

void kv_keys_ask_locked(struct kv_keys_call *call,
			const struct wire_header *like, struct wire_key *items,
			size_t n, int status)
{
	struct kv_keys *keys = call->keys;
	struct kv_packet packet = {
		.header = *like,
		.items = items,
		.bytes = n * sizeof(items[0]),
		.fd = -1,
	};
	int r = status < 0 ? status : keys->cancelled;

	kv_assert_locked(&keys->session->lock);
	packet.header.count = call->call.count = (uint32_t)n;
	call->call.done = done;
	call->call.part = keys->ops->part_locked;
	if (r == 0)
		r = kv_rpc_submit_locked(keys->session, &call->call, &packet);
	if (r < 0) {
		keys->ops->settle_locked(call, r, NULL);
		return;
	}
	keys->ops->get_locked(keys);
	call->state = KV_KEYS_ASKED;
}

size_t kv_keys_count(const kvfs_query *queries, size_t n_queries)
{
	size_t calls = 0;

	for (size_t i = 0; i < n_queries; i++)
		calls += (queries[i].n + WIRE_BATCH - 1) / WIRE_BATCH;
	return calls;
}

void kv_keys_ask_queries(struct kv_keys *keys, const kvfs_query *queries,
			 size_t n_queries, const struct wire_header *like)
{
	struct kvfs_session *session = keys->session;
	struct kv_keys_call *call = keys->calls;
	struct wire_header header = *like;
	struct wire_key items[WIRE_BATCH];
	uint64_t generation;
	size_t first = 0;
	int r;

	for (const kvfs_query *q = queries; q < queries + n_queries; q++) {
		r = kv_lib_space_miss(
			kv_lib_space_id(q->space, &header.space, &generation));
		pthread_mutex_lock(&session->lock);
		for (size_t i = 0; i < q->n; i += call++->n) {
			call->space = q->space;
			kv_lib_space_get_locked(q->space);
			call->first = first + i;
			call->n = KV_MIN(q->n - i, (size_t)WIRE_BATCH);
			kv_wire_keys(q->keys + i, call->n, items);
			if (r == 0 &&
			    (!kv_session_is_live(session, generation) ||
			     (keys->generation != 0 &&
			      keys->generation != generation)))
				r = -ENOTCONN;
			if (r == 0)
				keys->generation = generation;
			kv_keys_ask_locked(call, &header, items, call->n, r);
		}
		pthread_mutex_unlock(&session->lock);
		first += q->n;
	}
}

/* ---- ending calls without the daemon ---- */

/* Settle @call here: withdraw its message, or ignore the daemon's answer. */
static void abandon_locked(struct kv_keys_call *call, int status)
{
	struct kv_keys *keys = call->keys;
	bool unsent = kv_rpc_withdraw_locked(keys->session, &call->call);

	kv_assert_locked(&keys->session->lock);
	call->state = unsent ? KV_KEYS_OVER : KV_KEYS_ABANDONED;
	if (!unsent && keys->cancelled == 0)
		kv_rpc_post_tag_locked(keys->session, WIRE_CANCEL,
				       call->call.tag);
	keys->ops->settle_locked(call, status, NULL);
	if (unsent)
		keys->ops->put_locked(keys);
}

static void give_up_locked(struct kv_timer *timer)
{
	struct kv_keys *keys = kv_container(timer, struct kv_keys, timer);
	int status = keys->cancelled != 0 ? keys->cancelled : -ETIMEDOUT;

	kv_assert_locked(&keys->session->lock);
	keys->ops->get_locked(keys);
	for (size_t i = 0; i < keys->n; i++)
		if (keys->calls[i].state == KV_KEYS_ASKED)
			abandon_locked(&keys->calls[i], status);
	keys->ops->put_locked(keys);
}

void kv_keys_deadline_locked(struct kv_keys *keys, uint64_t deadline)
{
	kv_assert_locked(&keys->session->lock);
	keys->timer.fire = give_up_locked;
	if (deadline < UINT64_MAX - KV_GRACE_NS)
		kv_timer_start_locked(keys->session, &keys->timer,
				      kv_time_after(deadline + KV_GRACE_NS));
}

void kv_keys_cancel_locked(struct kv_keys *keys, int status)
{
	struct kv_keys_call *call;

	kv_assert_locked(&keys->session->lock);
	if (keys->cancelled != 0)
		return;
	keys->ops->get_locked(keys);
	keys->cancelled = status;
	kv_keys_deadline_locked(keys, 0);
	for (call = keys->calls; call < keys->calls + keys->n; call++) {
		if (call->state != KV_KEYS_ASKED)
			continue;
		if (call->call.parcel)
			abandon_locked(call, status);
		else
			kv_rpc_post_tag_locked(keys->session, WIRE_CANCEL,
					       call->call.tag);
	}
	keys->ops->put_locked(keys);
}
