/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_fill.c - fills, which load blocks into pages, and uses of these pages.
 *
 * OWNS      fills, with their lease and load, from kv_page_fills_start until
 *           the load is COPIED.
 *
 * STATES    of a fill, and the function that makes each step:
 *
 *                (new) -> WAITING   kv_page_fills_start: in paged->fills
 *                (new) -> BEGUN     kv_page_fills_start
 *              WAITING -> BEGUN     begin_fills_locked
 *                BEGUN -> (freed)   over_locked
 *
 * INVARIANTS
 *   (1) The pages of a fill are COMING as long as the fill exists: they cannot
 *       be taken, even if no use wants them any more.
 *   (2) A fill has no deadline; the maps that wait for its pages have one.
 *   (3) At most KV_PAGE_FILLS fills are begun, or one while DRAM is short; fills
 *       behind a stream's work do not count.  Other fills wait in paged->fills,
 *       which is empty if no fill is begun.
 *   (4) A use that has settled waits for no page, and a failed one has none.
 *
 * LOCKING   session->lock.
 */
#include "kernels/paged/page_fill.h"
#include "kernels/session/space.h"
#include "kernels/transfer/lease.h"
#include "kernels/transfer/xfer.h"
#include "kernels/paged/map.h"

#define FILL_PAGES 256u
#define FILL_BYTES ((uint64_t)32 << 20)

struct kv_page_fill {
	struct kv_job job; /* first; begins it */
	/* in a caller's list, or in paged->fills */
	TAILQ_ENTRY(kv_page_fill) others;
	kvfs_opts opts; /* for the load */
	bool begun;	/* guarded by lock; in paged->filling */
	struct kv_paged_pool *paged;
	struct kvfs_space *space; /* held */
	kvfs_lease *lease;	  /* lock */
	struct kvfs_xfer *load;	  /* guarded by lock; or NULL */
	size_t wanted; /* guarded by lock; uses that wait for the fill */
	size_t n, limit;
	struct kv_page *page[FILL_PAGES]; /* COMING; page->fill is this fill */
};

static void fill_run(struct kv_job *job);

static int fill_new_locked(struct kv_paged_pool *paged,
			   struct kvfs_space *space,
			   struct kv_page_fill **ret_fill)
{
	struct kv_page_fill *fill = calloc(1, sizeof(*fill));

	kv_assert_locked(&paged->inner->session->lock);
	if (!fill)
		return -ENOMEM;
	fill->job.run = fill_run;
	fill->job.kind = KV_JOB_LOAD;
	fill->opts.size = sizeof(fill->opts);
	fill->paged = paged;
	fill->space = space;
	fill->limit = (size_t)KV_MAX(FILL_BYTES / paged->page_bytes, 1u);
	fill->limit = KV_MIN(fill->limit, (size_t)FILL_PAGES);
	kv_lib_space_get_locked(space);
	*ret_fill = fill;
	return 0;
}

static void fill_add_locked(struct kv_page_fill *fill, struct kv_page *page)
{
	kv_assert_locked(&fill->paged->inner->session->lock);
	page->fill = fill;
	fill->page[fill->n++] = page;
}

void kv_page_fill_want_locked(struct kv_page_fill *fill)
{
	kv_assert_locked(&fill->paged->inner->session->lock);
	fill->wanted++;
}

void kv_page_fill_unwant_locked(struct kv_page_fill *fill)
{
	kv_assert_locked(&fill->paged->inner->session->lock);
	assert(fill->wanted > 0);
	if (--fill->wanted == 0 && fill->load)
		kv_xfer_stop_locked(fill->load, -ECANCELED);
}

/* Begin waiting fills, as many as may run at a time, on copy threads:
 * kvfs_acquire may ask the daemon, and so block. */
static void begin_fills_locked(struct kv_paged_pool *paged)
{
	struct kvfs_session *session = paged->inner->session;
	struct kv_page_fill *fill;

	kv_assert_locked(&session->lock);
	if (paged->filling == 0 && TAILQ_EMPTY(&paged->fills))
		paged->fills_max = KV_PAGE_FILLS;
	while (paged->filling < paged->fills_max &&
	       (fill = TAILQ_FIRST(&paged->fills))) {
		TAILQ_REMOVE(&paged->fills, fill, others);
		fill->begun = true;
		paged->filling++;
		kv_copier_submit(session->copier, &fill->job);
	}
}

/* Load a page again after its block found no room in DRAM, if other fills run,
 * whose end makes room, or if a smaller fill might fit.  Return false if the
 * page has failed. */
static bool go_again_locked(const struct kv_page_fill *fill,
			    struct kv_page_fills *again, struct kv_page *page)
{
	struct kv_paged_pool *paged = fill->paged;
	struct kv_page_fill *last = TAILQ_LAST(again, kv_page_fills);
	const bool alone = paged->filling == 1;
	struct kv_use *use;

	kv_assert_locked(&paged->inner->session->lock);
	if (LIST_EMPTY(&page->waiting) || (alone && fill->n == 1))
		return false;
	if (!last || last->n == last->limit) {
		if (fill_new_locked(paged, fill->space, &last) < 0)
			return false;
		/* The stream's work before the first load is over, so only the
		 * priority is kept. */
		last->opts.priority = fill->opts.priority;
		last->limit = alone ? (fill->n + 1) / 2 : fill->n;
		TAILQ_INSERT_TAIL(again, last, others);
	}
	fill_add_locked(last, page);
	LIST_FOREACH(use, &page->waiting, others)
		kv_page_fill_want_locked(last);
	return true;
}

/* End a fill.  @status: 0, or the error for which nothing was loaded. */
static void over_locked(struct kv_page_fill *fill, int status)
{
	struct kv_page_fills again = TAILQ_HEAD_INITIALIZER(again);
	struct kv_paged_pool *paged = fill->paged;
	int r;

	kv_assert_locked(&paged->inner->session->lock);
	for (size_t i = 0; i < fill->n; i++) {
		r = status;
		if (r == 0)
			r = atomic_load(&fill->load->status[i]);
		fill->page[i]->fill = NULL;
		if (r == -ENOSPC &&
		    go_again_locked(fill, &again, fill->page[i]))
			continue;
		kv_uses_settle_locked(paged, fill->page[i], r);
	}
	paged->filling -= fill->begun;
	if (!TAILQ_EMPTY(&again)) {
		/* Load the pages again before other fills, and one fill at a
		 * time from now on. */
		paged->fills_max = 1;
		TAILQ_CONCAT(&again, &paged->fills, others);
		TAILQ_CONCAT(&paged->fills, &again, others);
	}
	begin_fills_locked(paged);
	kv_session_changed_locked(paged->inner->session);
	if (fill->load)
		kv_xfer_put_locked(fill->load);
	if (fill->lease)
		kv_lease_release_locked(fill->lease);
	kv_lib_space_put_locked(fill->space);
	free(fill);
}

static void load_over(struct kvfs_xfer *load, enum kvfs_stage stage)
{
	if (stage == KVFS_COPIED)
		over_locked(load->owner, 0);
}

/* Acquire a lease of the fill's blocks and load them.  The caller holds no
 * lock.  @fill may be freed when this returns. */
static void fill_start(struct kv_page_fill *fill)
{
	const struct kv_paged_pool *paged = fill->paged;
	struct kvfs_session *session = paged->inner->session;
	int64_t pages[FILL_PAGES];
	kvfs_key keys[FILL_PAGES];
	const kvfs_query query = {fill->space, keys, fill->n};
	kvfs_lease *lease = NULL;
	kvfs_xfer *load = NULL;
	int r;

	for (size_t i = 0; i < fill->n; i++) {
		keys[i] = fill->page[i]->key;
		pages[i] = (int64_t)kv_page_table_index(paged->page_table,
							fill->page[i]);
	}
	r = kvfs_acquire(&query, 1, NULL, &lease);
	if (r == 0)
		r = kvfs_load(paged->inner, lease, fill->n, pages, &fill->opts,
			      &load);
	pthread_mutex_lock(&session->lock);
	fill->lease = lease;
	fill->load = load;
	if (r < 0 || load->left[KVFS_COPIED] == 0) {
		over_locked(fill, r);
	} else {
		load->owner = fill;
		load->over = load_over;
		if (fill->wanted == 0)
			kv_xfer_stop_locked(load, -ECANCELED);
	}
	pthread_mutex_unlock(&session->lock);
}

static void fill_run(struct kv_job *job)
{
	struct kv_page_fill *fill = (struct kv_page_fill *)job;
	struct kvfs_session *session = fill->paged->inner->session;
	bool wanted;

	pthread_mutex_lock(&session->lock);
	wanted = fill->wanted > 0;
	if (!wanted)
		over_locked(fill, -ECANCELED);
	pthread_mutex_unlock(&session->lock);
	if (wanted)
		fill_start(fill);
}

int kv_page_fills_add_locked(struct kv_page_fills *fills,
			     struct kv_paged_pool *paged,
			     struct kvfs_space *space, struct kv_page *page)
{
	struct kv_page_fill *fill = TAILQ_LAST(fills, kv_page_fills);

	kv_assert_locked(&paged->inner->session->lock);
	if (!fill || fill->n == fill->limit) {
		if (fill_new_locked(paged, space, &fill) < 0) {
			kv_page_table_give(paged->page_table, page);
			return -ENOMEM;
		}
		TAILQ_INSERT_TAIL(fills, fill, others);
	}
	fill_add_locked(fill, page);
	return 0;
}

/* Start only a few fills at a time, so that leases and DRAM have room for them,
 * however many blocks are mapped.  Fills behind a stream's work start now,
 * because the stream may get more work until later. */
void kv_page_fills_start(struct kv_paged_pool *paged,
			 struct kv_page_fills *fills, const kvfs_opts *opts)
{
	struct kvfs_session *session = paged->inner->session;
	const bool now = opts->stream || opts->event;
	struct kv_page_fill *fill;

	pthread_mutex_lock(&session->lock);
	while ((fill = TAILQ_FIRST(fills))) {
		TAILQ_REMOVE(fills, fill, others);
		fill->opts = *opts;
		fill->opts.deadline = fill->opts.user = 0;
		fill->job.priority = fill->opts.priority;
		if (!now && (paged->filling >= paged->fills_max ||
			     !TAILQ_EMPTY(&paged->fills))) {
			TAILQ_INSERT_TAIL(&paged->fills, fill, others);
			continue;
		}
		fill->begun = true;
		paged->filling++;
		pthread_mutex_unlock(&session->lock);
		fill_start(fill);
		pthread_mutex_lock(&session->lock);
	}
	pthread_mutex_unlock(&session->lock);
}

struct kvfs_xfer *kv_page_fill_load_locked(const struct kv_page_fill *fill)
{
	kv_assert_locked(&fill->paged->inner->session->lock);
	return fill->load;
}

bool kv_page_is_submitted_locked(const struct kv_page *page)
{
	const struct kv_page_fill *fill = page->fill;
	int status;

	if (!fill || !fill->load || !kv_xfer_is_submitted_locked(fill->load))
		return false;
	for (size_t i = 0; i < fill->n; i++)
		if (fill->page[i] == page) {
			status = atomic_load(&fill->load->status[i]);
			return status == 0 || status == -EINPROGRESS;
		}
	return false;
}

/* ---- uses ---- */

void kv_use_settle_locked(struct kv_use *use, int status)
{
	struct kvfs_xfer *xfer = use->map->xfer;

	kv_assert_locked(&use->map->xfer->session->lock);
	atomic_store(&xfer->status[use - use->map->uses], status);
	if (status < 0) {
		kv_xfer_fail_locked(xfer, KVFS_COPIED, 1);
		return;
	}
	kv_xfer_reach_locked(xfer, KVFS_DURABLE, 1);
	kv_xfer_reach_locked(xfer, KVFS_SEALED, 1);
	kv_xfer_reach_locked(xfer, KVFS_COPIED, 1);
}

void kv_uses_settle_locked(struct kv_paged_pool *paged, struct kv_page *page,
			   int status)
{
	struct kv_page_table *page_table = paged->page_table;
	struct kv_use *use;

	kv_assert_locked(&paged->inner->session->lock);
	if (status == 0)
		kv_page_table_ready(page_table, page);
	while ((use = LIST_FIRST(&page->waiting))) {
		LIST_REMOVE(use, others);
		if (status < 0) {
			use->page = NULL;
			kv_page_table_put(page_table, page);
		}
		kv_use_settle_locked(use, status);
	}
	if (status < 0)
		kv_page_table_give(page_table, page);
}
