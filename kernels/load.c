/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - arena to pages.
 *
 * OWNS      the jobs of a load, one for each copy thread at most.
 *
 * STATES    of a load:
 *
 *              WAITING -> COPYING   kv_load_begin_locked, when the lease
 * settles WAITING -> over      kv_load_stopped_locked COPYING -> over      run,
 * with the last job's last block
 *
 * INVARIANTS
 *   (1) A block is taken by one job, by counting up xfer->next; its status is
 *       set, and its pages touched, by that job alone.
 *   (2) The lease and the pool are held until every block is copied or failed.
 *   (3) Each job has a reference to the transfer, from begin to its end.
 *
 * LOCKING   session->lock to begin and to account for blocks; none while
 *           copying.
 */
#include "kernels/lease.h"
#include "kernels/load.h"
#include "kernels/pool.h"
#include "kernels/space.h"
#include "kernels/xfer.h"

struct kv_load_job {
	struct kv_job job; /* first */
	struct kvfs_xfer *xfer;
	const struct kvfs_space *looked_at; /* the last block's space */
	bool fits;			    /* its layout is the pool's */
};

/* Neighbours are mostly of one space: look again only when it changes. */
static bool fits(struct kv_load_job *job, size_t i)
{
	struct kvfs_space *space = kv_lease_space(job->xfer->lease, i);

	if (space != job->looked_at)
		job->fits = kv_lib_layout_same_tensors(
			kv_lib_space_layout(space), job->xfer->pool->layout);
	job->looked_at = space;
	return job->fits;
}

/* Why block @i of the lease cannot be copied, or 0. */
static int check_block(struct kv_load_job *job, size_t i)
{
	const struct kvfs_xfer *xfer = job->xfer;
	const struct kv_held *held = &xfer->lease->items[i];
	int stopped = atomic_load(&xfer->stopped);

	if (held->status < 0)
		return held->status;
	if (stopped != 0)
		return stopped;
	if (!kv_session_is_live(xfer->session, xfer->lease->generation))
		return -ESTALE;
	if (held->length - held->payload != xfer->pool->layout->payload ||
	    !fits(job, i))
		return -EBADMSG;
	return 0;
}

static int copy_block(struct kv_load_job *job, size_t i)
{
	const struct kvfs_xfer *xfer = job->xfer;
	const struct kvfs_pool *pool = xfer->pool;
	const struct kv_held *held = &xfer->lease->items[xfer->first + i];
	const struct kv_copy copy = {
		.tensors = (uint8_t *)held->file + held->payload,
		.pages = xfer->pages + i * pool->pieces.pages_per_block,
	};
	const struct kv_batch batch = {
		.pieces = &pool->pieces, .copies = &copy, .n = 1};
	int r;

	r = check_block(job, xfer->first + i);
	return r < 0 ? r : pool->device->load(pool->on_device, &batch);
}

static void run(struct kv_job *job)
{
	struct kv_load_job *load = (struct kv_load_job *)job;
	struct kvfs_xfer *xfer = load->xfer;
	struct kvfs_session *session = xfer->session;
	size_t i, good = 0, bad = 0;
	int r;

	while ((i = atomic_fetch_add(&xfer->next, 1)) < xfer->n) {
		r = copy_block(load, i);
		atomic_store(&xfer->status[i], r);
		if (r == 0)
			good++;
		else
			bad++;
	}
	pthread_mutex_lock(&session->lock);
	kv_xfer_fail_locked(xfer, KVFS_COPIED, bad);
	kv_xfer_reach_locked(xfer, KVFS_COPIED, good);
	kv_xfer_reach_locked(xfer, KVFS_SEALED, good);
	kv_xfer_reach_locked(xfer, KVFS_DURABLE, good);
	kv_xfer_put_locked(xfer);
	pthread_mutex_unlock(&session->lock);
}

static void unqueue_locked(struct kvfs_xfer *xfer)
{
	if (xfer->queued)
		TAILQ_REMOVE(&xfer->lease->waiting, xfer, queue);
	xfer->queued = false;
}

void kv_load_begin_locked(struct kvfs_xfer *xfer)
{
	struct kv_copier *copier = xfer->session->copier;
	size_t i, jobs = KV_MIN(xfer->n, (size_t)kv_copier_threads(copier));

	unqueue_locked(xfer);
	for (i = 0; i < jobs; i++) {
		xfer->jobs[i].job.run = run;
		xfer->jobs[i].xfer = xfer;
		kv_xfer_get_locked(xfer);
		kv_copier_submit(copier, &xfer->jobs[i].job);
	}
}

void kv_load_stopped_locked(struct kvfs_xfer *xfer)
{
	size_t i;

	if (!xfer->queued)
		return;
	unqueue_locked(xfer);
	for (i = 0; i < xfer->n; i++)
		atomic_store(&xfer->status[i], atomic_load(&xfer->stopped));
	kv_xfer_fail_locked(xfer, KVFS_COPIED, xfer->n);
}

static int check_load(const kvfs_pool *pool, const kvfs_lease *lease, size_t n,
		      const kvfs_opts *opts)
{
	int r = kv_session_check(pool == NULL ? NULL : pool->session);

	if (r < 0)
		return r;
	if (lease == NULL || lease->session != pool->session)
		return -EINVAL;
	if (n > lease->n || (opts != NULL && opts->first > lease->n - n))
		return -EINVAL;
	return 0;
}

static void freep(struct kvfs_xfer **xfer)
{
	kv_xfer_free(*xfer);
}

static int load_new(kvfs_pool *pool, size_t n, const int64_t *pages,
		    struct kvfs_xfer **ret_xfer)
{
	_cleanup_(freep) struct kvfs_xfer *xfer = NULL;
	size_t n_pages, bytes;
	int r;

	if (__builtin_mul_overflow(n, pool->pieces.pages_per_block, &n_pages) ||
	    __builtin_mul_overflow(n_pages, sizeof(*pages), &bytes) ||
	    (pages == NULL && n > 0))
		return -EINVAL;
	r = kv_xfer_new(pool->session, KV_XFER_LOAD, n, &xfer);
	if (r < 0)
		return r;
	xfer->pages = malloc(bytes + 1);
	xfer->jobs = calloc(kv_copier_threads(pool->session->copier),
			    sizeof(*xfer->jobs));
	if (xfer->pages == NULL || xfer->jobs == NULL)
		return -ENOMEM;
	if (bytes > 0)
		memcpy(xfer->pages, pages, bytes);
	*ret_xfer = kv_steal(xfer);
	return 0;
}

static void start_locked(struct kvfs_xfer *xfer, struct kvfs_pool *pool,
			 struct kvfs_lease *lease)
{
	if (xfer->n == 0)
		return;
	xfer->pool = pool;
	xfer->lease = lease;
	kv_lease_get_locked(lease);
	kv_xfer_activate_locked(xfer);
	if (atomic_load(&lease->settled)) {
		kv_load_begin_locked(xfer);
		return;
	}
	xfer->queued = true;
	TAILQ_INSERT_TAIL(&lease->waiting, xfer, queue);
}

int kvfs_load(kvfs_pool *pool, kvfs_lease *lease, size_t n,
	      const int64_t *pages, const kvfs_opts *opts, kvfs_xfer **ret_xfer)
{
	_cleanup_(freep) struct kvfs_xfer *xfer = NULL;
	long used;
	int r;

	r = check_load(pool, lease, n, opts);
	if (r < 0)
		return r;
	if (ret_xfer == NULL)
		return -EINVAL;
	r = load_new(pool, n, pages, &xfer);
	if (r < 0)
		return r;
	if (opts != NULL) {
		xfer->first = opts->first;
		if (opts->deadline != 0)
			xfer->deadline_at = kv_time_after(opts->deadline);
	}
	pthread_mutex_lock(&pool->session->lock);
	used = kv_lib_pool_check_pages_locked(
		pool, xfer->pages, n * pool->pieces.pages_per_block, true);
	xfer->n_pages = (uint64_t)KV_MAX(used, 0);
	if (used >= 0)
		start_locked(xfer, pool, lease);
	pthread_mutex_unlock(&pool->session->lock);
	if (used < 0)
		return (int)used;
	*ret_xfer = kv_steal(xfer);
	return 0;
}
