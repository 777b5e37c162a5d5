/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - loads: blocks of a lease from the daemon's arena to pages.
 *
 * OWNS      the jobs of a load, at most one for each copy thread.
 *
 * STATES    of a load:
 *
 *           WAITING -> SYNCING   kv_load_begin_locked, when blocks have arrived
 *           WAITING -> COPYING   the same, without an event wait
 *           SYNCING -> COPYING   submit_jobs_locked, when the event wait is done
 *           WAITING -> over      stopped_locked
 *           SYNCING -> over      stopped_locked
 *           COPYING -> COPYING   stopped_locked: units without a job end
 *           COPYING -> over      run, with the last job
 *
 *           A load is cut in units of a few blocks.  A load layer by layer has
 *           all units of its first step, then all units of the second, ..., and
 *           waits until all its blocks have arrived.
 *
 * INVARIANTS
 *   (1) One job takes a unit, by incrementing load->next, and only that job
 *       writes the unit's pages.  The blocks of units before load->ready have
 *       arrived; only stopped_locked takes later units.
 *   (2) The lease and the pool are held until every block is copied or failed.
 *   (3) Each active job has a reference to the transfer.  A job is active while
 *       there are units to take, unless the load is SYNCING.
 *   (4) The first error of a block stays; a status is 0 only after the block's
 *       last unit.
 *   (5) A stopped load waits only for the copy threads that have one of its
 *       units (load->busy): other threads may be in a device that hangs.
 *
 * LOCKING   session->lock to begin and to account for blocks; none while
 *           copying.
 */
#include "kernels/transfer/xfer.h"

#define UNIT_MAX 512u /* blocks */

struct load_job {
	struct kv_job job; /* first */
	bool active;	   /* guarded by lock; queued or running */
	struct kvfs_xfer *xfer;
	struct kv_submission submission;    /* the unit being copied */
	const struct kvfs_space *looked_at; /* space compared last */
	bool fits;	  /* the layout of @looked_at equals the pool's */
	size_t good, bad; /* in a load in one step: blocks copied, failed */
	size_t step;	  /* the step whose bytes @ranges describes */
	struct kvfs_range *ranges; /* bytes of @step; NULL: all bytes */
	size_t n_ranges;
	struct kvfs_copy *copies; /* room for the blocks of a unit */
	size_t *blocks; /* index in the load of each block in @copies */
};

struct kv_load {
	/* fixed after begin */
	size_t steps, units_a_step, unit;
	size_t n_jobs;
	struct load_job *jobs;

	atomic_size_t ready; /* grows with lock */
	atomic_size_t next;  /* unit that the next free job takes */
	atomic_size_t *left; /* units not yet copied, for each step */
	atomic_uint busy; /* jobs that may have a unit; decremented with lock */
	bool counted;	  /* guarded by lock; count_all_locked has counted */
	/* Guarded by lock; units that a device with streams was not given yet,
	 * for each step and in all. */
	size_t *unsubmitted, units_unsubmitted;
};

/* Set the status of block @i of the load, unless it has one.  Blocks of a load
 * in steps are counted by count_all_locked. */
static void end_block(struct load_job *job, size_t i, int status)
{
	const bool in_steps = job->xfer->steps > 1;
	int running = -EINPROGRESS;

	if ((status == 0 && in_steps) ||
	    !atomic_compare_exchange_strong(&job->xfer->status[i], &running,
					    status) ||
	    in_steps)
		return;
	if (status == 0)
		job->good++;
	else
		job->bad++;
}

/* Put the blocks @first .. + @n that can be copied into job->copies, and return
 * their number. */
static size_t gather(struct load_job *job, size_t first, size_t n)
{
	struct kvfs_xfer *xfer = job->xfer;
	struct kvfs_space *space;
	size_t k = 0;
	int r;

	for (size_t i = first; i < first + n; i++) {
		const struct kv_held *held =
			&xfer->lease->items[xfer->first + i];

		if (atomic_load(&xfer->status[i]) != -EINPROGRESS)
			continue;
		r = held->status < 0 ? held->status
				     : atomic_load(&xfer->stopped);
		if (r == 0 && !kv_session_is_live(xfer->session,
						  xfer->lease->keys.generation))
			r = -ESTALE;
		/* Neighbouring blocks mostly belong to one space: compare
		 * layouts only when the space changes. */
		space = xfer->lease->keys.calls[held->call].space;
		if (r == 0 && space != job->looked_at) {
			job->fits = kv_lib_layout_same_tensors(
				kv_lib_space_layout(space), xfer->pool->layout);
			job->looked_at = space;
		}
		if (r == 0 &&
		    (!job->fits || held->length - held->payload !=
					   xfer->pool->layout->payload))
			r = -EBADMSG;
		if (r < 0) {
			end_block(job, i, r);
			continue;
		}
		job->blocks[k] = i;
		job->copies[k++] = (struct kvfs_copy){
			.tensors = (uint8_t *)held->file + held->payload,
			.pages = xfer->pages +
				 i * xfer->pool->strides.pages_per_block,
		};
	}
	return k;
}

/* Note that the device was given a unit of step @step.  After the last unit all
 * blocks that are neither COPIED nor failed are SUBMITTED. */
static void count_submitted_locked(struct kvfs_xfer *xfer, size_t step)
{
	struct kv_load *load = xfer->load;

	kv_assert_locked(&xfer->session->lock);
	load->unsubmitted[step]--;
	if (--load->units_unsubmitted == 0)
		kv_xfer_submit_locked(xfer, xfer->left[KVFS_COPIED]);
}

static void unit_submitted_locked(struct kv_submission *submission)
{
	count_submitted_locked(submission->xfer, submission->step);
}

static void copy_unit(struct load_job *job, size_t unit)
{
	struct kvfs_xfer *xfer = job->xfer;
	struct kv_load *load = xfer->load;
	const struct kvfs_pool *pool = xfer->pool;
	struct kvfs_batch batch = {
		.strides = &pool->strides,
		.ranges = xfer->ranges,
		.n_ranges = xfer->n_ranges,
		.copies = job->copies,
		.event_wait =
			xfer->event_wait ? xfer->event_wait->handle : NULL,
		.priority = xfer->priority,
	};
	size_t first = unit % load->units_a_step * load->unit;
	size_t step = unit / load->units_a_step;
	int r;

	if (xfer->steps > 1) {
		uint32_t layer = (uint32_t)step * xfer->layers_a_step;

		if (job->n_ranges == 0 || job->step != step)
			job->n_ranges = kv_layout_ranges(
				pool->layout, xfer->first_layer + layer,
				KV_MIN(xfer->layers - layer,
				       xfer->layers_a_step),
				job->ranges);
		job->step = step;
		batch.ranges = job->ranges;
		batch.n_ranges = job->n_ranges;
	}
	batch.n = gather(job, first, KV_MIN(xfer->n - first, load->unit));
	r = kv_submission_run(&job->submission, step, &batch, true);
	/* The daemon may have used the memory again during the copy. */
	if (r == 0 &&
	    !kv_session_is_live(xfer->session, xfer->lease->keys.generation))
		r = -ESTALE;
	for (size_t i = 0; i < batch.n; i++)
		end_block(job, job->blocks[i], r);
}

/* Count the blocks of a load in several steps as COPIED or failed, once no job
 * copies a unit of the load and none is left to copy. */
static void count_all_locked(struct kvfs_xfer *xfer)
{
	struct kv_load *load = xfer->load;
	size_t good = 0;
	int running;

	kv_assert_locked(&xfer->session->lock);
	/* Load next before busy: run() increments them in the other order, so
	 * that busy counts each job that has taken a unit. */
	if (xfer->steps <= 1 || load->counted ||
	    atomic_load(&load->next) < load->steps * load->units_a_step ||
	    atomic_load(&load->busy) > 0)
		return;
	load->counted = true;
	for (size_t i = 0; i < xfer->n; i++) {
		running = -EINPROGRESS;
		good += atomic_compare_exchange_strong(&xfer->status[i],
						       &running, 0);
	}
	kv_xfer_over_locked(xfer, good, xfer->n - good);
}

static bool take_unit(struct kv_load *load, size_t *ret_unit)
{
	*ret_unit = atomic_load(&load->next);
	while (*ret_unit < atomic_load(&load->ready))
		if (atomic_compare_exchange_weak(&load->next, ret_unit,
						 *ret_unit + 1))
			return true;
	return false;
}

/* Copy units of a load until none is ready, or until a job of higher priority
 * waits.  Runs on a copy thread. */
static void run(struct kv_job *kv_job)
{
	struct load_job *job = (struct load_job *)kv_job;
	struct kvfs_xfer *xfer = job->xfer;
	struct kvfs_session *session = xfer->session;
	struct kv_load *load = xfer->load;
	bool pressed = false;
	size_t unit;

	/* Increment busy before taking a unit, so that a thread that stops the
	 * load sees this job. */
	atomic_fetch_add(&load->busy, 1);
	while (!pressed && take_unit(load, &unit)) {
		copy_unit(job, unit);
		if (atomic_fetch_sub(&load->left[unit / load->units_a_step],
				     1) == 1)
			kv_xfer_step_over(xfer);
		pressed = kv_copier_presses(session->copier, kv_job);
	}
	pthread_mutex_lock(&session->lock);
	atomic_fetch_sub(&load->busy, 1);
	kv_xfer_over_locked(xfer, job->good, job->bad);
	job->good = job->bad = 0;
	count_all_locked(xfer);
	job->active = atomic_load(&load->next) < atomic_load(&load->ready);
	if (job->active)
		kv_copier_submit(session->copier, kv_job);
	else
		kv_xfer_put_locked(xfer);
	pthread_mutex_unlock(&session->lock);
}

/* ---- beginning and stopping loads ---- */

static void unqueue_locked(struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	if (xfer->queued)
		TAILQ_REMOVE(&xfer->lease->waiting, xfer, queue);
	xfer->queued = false;
}

/* Submit a job for each unit to take, as far as there are jobs. */
static void submit_jobs_locked(void *owner)
{
	struct kvfs_xfer *xfer = owner;
	struct kv_load *load = xfer->load;
	size_t unit = atomic_load(&load->next);
	struct load_job *job;

	for (job = load->jobs; job < load->jobs + load->n_jobs &&
			       unit < atomic_load(&load->ready);
	     job++) {
		if (job->active)
			continue;
		unit++;
		job->active = true;
		kv_xfer_get_locked(xfer);
		kv_copier_submit(xfer->session->copier, &job->job);
	}
}

void kv_load_begin_locked(struct kvfs_xfer *xfer)
{
	const size_t arrived = xfer->lease->arrived;
	struct kv_load *load = xfer->load;
	const bool begun = atomic_load(&load->ready) > 0;

	kv_assert_locked(&xfer->session->lock);
	if (arrived >= xfer->first + xfer->n) {
		unqueue_locked(xfer);
		atomic_store(&load->ready, load->steps * load->units_a_step);
	} else if (load->steps == 1 && arrived > xfer->first) {
		atomic_store(&load->ready,
			     (arrived - xfer->first) / load->unit);
	}
	if (atomic_load(&load->ready) == 0)
		return;
	if (!begun)
		kv_event_wait_begin_locked(xfer->event_wait, submit_jobs_locked,
					   xfer);
	else if (!xfer->event_wait || !xfer->event_wait->waiting)
		submit_jobs_locked(xfer);
}

/* Set the status of the blocks @first .. + @n, which no job copies, to
 * xfer->stopped.  Return how many had no status yet. */
static size_t end_blocks(struct kvfs_xfer *xfer, size_t first, size_t n)
{
	int stopped = atomic_load(&xfer->stopped), running;
	size_t ended = 0;

	for (size_t i = first; i < first + n; i++) {
		running = -EINPROGRESS;
		ended += atomic_compare_exchange_strong(&xfer->status[i],
							&running, stopped);
	}
	return ended;
}

/* End a load that no job has begun.  If jobs copy units, end the units that no
 * job has taken: a copy thread might take them much later. */
static void stopped_locked(struct kvfs_xfer *xfer)
{
	struct kv_load *load = xfer->load;
	const size_t units = load->steps * load->units_a_step;
	size_t unit, first, ended = 0;

	kv_assert_locked(&xfer->session->lock);
	if (xfer->left[KVFS_COPIED] == 0)
		return;
	unqueue_locked(xfer);
	if (kv_event_wait_stop_locked(xfer->event_wait) ||
	    atomic_load(&load->ready) == 0) {
		end_blocks(xfer, 0, xfer->n);
		kv_xfer_fail_locked(xfer, KVFS_COPIED, xfer->n);
		return;
	}
	kv_xfer_get_locked(xfer);
	for (unit = atomic_fetch_add(&load->next, units); unit < units;
	     unit++) {
		first = unit % load->units_a_step * load->unit;
		ended += end_blocks(xfer, first,
				    KV_MIN(xfer->n - first, load->unit));
		atomic_fetch_sub(&load->left[unit / load->units_a_step], 1);
		if (xfer->device->order)
			count_submitted_locked(xfer, unit / load->units_a_step);
	}
	if (xfer->steps <= 1)
		kv_xfer_over_locked(xfer, 0, ended);
	else
		count_all_locked(xfer);
	kv_session_changed_locked(xfer->session);
	kv_xfer_put_locked(xfer);
}

static void copied_locked(struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	if (xfer->lease)
		kv_lease_put_locked(kv_steal(xfer->lease));
}

bool kv_load_step_is_over(const struct kvfs_xfer *xfer, size_t step)
{
	return xfer->load && atomic_load(&xfer->load->left[step]) == 0;
}

bool kv_load_step_is_submitted_locked(const struct kvfs_xfer *xfer, size_t step)
{
	kv_assert_locked(&xfer->session->lock);
	return xfer->load && xfer->load->unsubmitted[step] == 0;
}

static void drop(struct kvfs_xfer *xfer)
{
	struct kv_load *load = xfer->load;

	if (!load)
		return;
	for (size_t i = 0; i < load->n_jobs; i++) {
		free(load->jobs[i].ranges);
		free(load->jobs[i].copies);
		free(load->jobs[i].blocks);
	}
	free(load->jobs);
	free(load->left);
	free(load->unsubmitted);
	free(load);
}

static const struct kv_xfer_ops load_ops = {
	.stopped_locked = stopped_locked,
	.copied_locked = copied_locked,
	.drop = drop,
};

/* Allocate everything that copying needs, so that a load that has begun cannot
 * fail for lack of memory. */
static int make_jobs(struct kvfs_xfer *xfer, const struct kvfs_pool *pool)
{
	size_t threads = kv_copier_threads(xfer->session->copier);
	struct kv_load *load = calloc(1, sizeof(*load));
	uint64_t bytes = pool->layout->payload / pool->layout->layers, n;
	struct load_job *job;

	xfer->load = load;
	if (!load)
		return -ENOMEM;
	/* Units have as many bytes as the device prefers, but each copy thread
	 * gets a unit. */
	bytes *= xfer->steps > 1 ? xfer->layers_a_step : xfer->layers;
	n = pool->device->batch_bytes / KV_MAX(bytes, (uint64_t)1);
	n = KV_MIN(n, (xfer->n + threads - 1) / threads);
	load->unit = (size_t)KV_MAX(KV_MIN(n, UNIT_MAX), (uint64_t)1);
	load->steps = KV_MAX(xfer->steps, (size_t)1);
	load->units_a_step = (xfer->n + load->unit - 1) / load->unit;
	load->left = calloc(load->steps, sizeof(*load->left));
	load->jobs = calloc(threads, sizeof(*load->jobs));
	load->unsubmitted = calloc(load->steps, sizeof(*load->unsubmitted));
	if (!load->left || !load->jobs || !load->unsubmitted)
		return -ENOMEM;
	for (size_t i = 0; i < load->steps; i++) {
		atomic_init(&load->left[i], load->units_a_step);
		load->unsubmitted[i] = load->units_a_step;
	}
	load->units_unsubmitted = load->steps * load->units_a_step;
	load->n_jobs = KV_MIN(threads, load->units_unsubmitted);
	for (job = load->jobs; job < load->jobs + load->n_jobs; job++) {
		job->job.run = run;
		job->job.kind = KV_JOB_LOAD;
		if (pool->device == &kv_device_host &&
		    load->unit * bytes <= KV_HELP_BYTES)
			job->job.owner = xfer;
		job->job.priority = xfer->priority;
		job->xfer = job->submission.xfer = xfer;
		job->submission.submitted_locked = unit_submitted_locked;
		job->copies = calloc(load->unit, sizeof(*job->copies));
		job->blocks = calloc(load->unit, sizeof(*job->blocks));
		if (xfer->steps > 1)
			job->ranges = calloc(pool->layout->layer_pieces,
					     sizeof(*job->ranges));
		if (!job->copies || !job->blocks ||
		    (xfer->steps > 1 && !job->ranges))
			return -ENOMEM;
	}
	return 0;
}

int kv_lib_load(kvfs_pool *pool, kvfs_lease *lease, size_t n,
		const int64_t *pages, const kvfs_opts *opts,
		kvfs_xfer **ret_xfer)
{
	_cleanup_(kv_xfer_freep) struct kvfs_xfer *xfer = NULL;
	kvfs_opts known = {0};
	long used;
	int r = kv_abi_opts(&known, opts);

	if (r == 0)
		r = kv_session_check(pool ? pool->session : NULL);
	if (r < 0)
		return r;
	if (!lease || lease->session != pool->session || n > lease->n ||
	    known.first > lease->n - n || !ret_xfer)
		return -EINVAL;
	r = kv_xfer_new(pool->session, &load_ops, n, &xfer);
	if (r < 0)
		return r;
	xfer->first = known.first;
	r = kv_xfer_set_pages(xfer, pool, pages);
	if (r == 0)
		r = kv_opts_take(xfer, pool, &known,
				 KVFS_BY_LAYER | KVFS_TELL_SUBMITTED);
	if (r == 0)
		r = make_jobs(xfer, pool);
	if (r < 0)
		return r;
	pthread_mutex_lock(&pool->session->lock);
	used = kv_lib_pool_check_pages_locked(pool, xfer->pages, xfer->n_pages,
					      true);
	if (used >= 0)
		kv_xfer_tell_locked(xfer, KVFS_EVENT_XFER, known.user,
				    1u << KVFS_COPIED);
	if (used >= 0 && n > 0) {
		xfer->pool = pool;
		xfer->lease = lease;
		kv_lease_get_locked(lease);
		kv_xfer_activate_locked(xfer);
		xfer->queued = true;
		TAILQ_INSERT_TAIL(&lease->waiting, xfer, queue);
		kv_load_begin_locked(xfer);
	}
	pthread_mutex_unlock(&pool->session->lock);
	if (used < 0)
		return (int)used;
	*ret_xfer = kv_steal(xfer);
	return 0;
}

int kvfs_load(kvfs_pool *pool, kvfs_lease *lease, size_t n,
	      const int64_t *pages, const kvfs_opts *opts, kvfs_xfer **ret_xfer)
{
	if (kv_session_check(pool ? pool->session : NULL) == 0 && pool->paged)
		return -EINVAL;
	return kv_lib_load(pool, lease, n, pages, opts, ret_xfer);
}
