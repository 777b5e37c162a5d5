/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.c - maps (kvfs_map), whose blocks stay in pages of a paged pool until the
 * unmap, and fills: loads of a few blocks into such pages.
 *
 * OWNS      maps, and for each of their blocks a use (a hold on a page); fills,
 *           with their lease and load.
 *
 * STATES    of a block of a map:
 *
 *             (none) -> THERE     place_locked: its page was READY
 *             (none) -> WAITING   place_locked: its page is COMING, perhaps
 *                                 because of this map
 *             (none) -> FAILED    place_locked: absent, or no page is free
 *            WAITING -> THERE     kv_page_settle_locked
 *            WAITING -> FAILED    kv_page_settle_locked, or
 *                                 stopped_locked at the deadline
 *
 *           of a fill:
 *
 *              (new) -> WAITING   start_fills: in paged->fills
 *              (new) -> BEGUN     start_fills, behind a stream's work
 *            WAITING -> BEGUN     begin_fills_locked
 *              BEGUN -> (freed)   fill_over_locked
 *
 * INVARIANTS
 *   (1) Exactly the THERE and WAITING blocks have a use of a page; the uses of
 *       WAITING ones are in page->waiting.
 *   (2) A block's address is returned when it is THERE, or WAITING and a stream
 *       waits for the whole map.
 *   (3) A map takes pages in the order of its keys and releases them in
 *       reverse, so that the pool reuses the end of a chain first.
 *   (4) The pages of a fill are COMING as long as the fill exists: they cannot
 *       be taken, even if no use wants them any more.
 *   (5) A fill has no deadline; the maps that wait for its pages have one.
 *   (6) At most FILLS fills are begun, or one while DRAM is short; fills behind
 *       a stream's work do not count.  Other fills wait in paged->fills, which
 *       is empty if no fill is begun.
 *
 * LOCKING   session->lock.
 */
#include "kernels/paged/paged_pool.h"

#define FILLS 3u /* most fills that run at a time */
#define FILL_PAGES 256u
#define FILL_BYTES ((uint64_t)32 << 20)

/* A block of a map, and the page that holds the block. */
struct kv_use {
	/* entry in page->waiting while the page is being filled */
	LIST_ENTRY(kv_use) others;
	struct kvfs_mapping *map;
	struct kv_page *page; /* page of this block; NULL: none */
};

struct kvfs_mapping {
	struct kv_paged_pool *paged;
	/* A transfer without copies of its own: a block is COPIED once its page
	 * holds it. */
	struct kvfs_xfer *xfer;
	LIST_ENTRY(kvfs_mapping) others; /* in paged->maps until kvfs_unmap */
	bool ordered; /* guarded by lock; a stream waits for the map */
	size_t n;
	struct kv_use uses[]; /* lock */
};

struct kv_page_fill {
	struct kv_job job; /* first; job that begins the fill */
	/* entry in a caller's list of fills, or in paged->fills */
	TAILQ_ENTRY(kv_page_fill) others;
	kvfs_opts opts; /* options of the load */
	struct kv_paged_pool *paged;
	struct kvfs_space *space; /* held */
	kvfs_lease *lease;	  /* lock */
	struct kvfs_xfer *load;	  /* lock; load of the blocks, or NULL */
	size_t wanted; /* guarded by lock; uses that wait for the fill */
	size_t n, limit;
	struct kv_page *page[FILL_PAGES]; /* pages to fill, all COMING */
};

/* ---- uses ---- */

static void settle_locked(struct kv_use *use, int status)
{
	struct kvfs_xfer *xfer = use->map->xfer;

	atomic_store(&xfer->status[use - use->map->uses], status);
	kv_xfer_over_locked(xfer, status == 0, status < 0);
}

void kv_page_settle_locked(struct kv_paged_pool *paged, struct kv_page *page,
			   int status)
{
	struct kv_page_table *page_table = paged->page_table;
	struct kv_use *use;

	kv_assert_locked(&paged->pool->session->lock);
	if (status == 0)
		kv_page_table_ready(page_table, page);
	while ((use = LIST_FIRST(&page->waiting))) {
		LIST_REMOVE(use, others);
		if (status < 0) {
			use->page = NULL;
			kv_page_table_put(page_table, page);
		}
		settle_locked(use, status);
	}
	if (status < 0)
		kv_page_table_give(page_table, page);
}

/* ---- fills ---- */

static void start_fill(struct kv_job *job);

/* Add @page, which is to get a block of @space, to the last of @fills, or to a
 * new fill of at most @limit pages.  -ENOMEM. */
static int add_to_fill_locked(struct kv_page_fills *fills, size_t limit,
			      struct kv_paged_pool *paged,
			      struct kvfs_space *space, struct kv_page *page,
			      int priority)
{
	struct kv_page_fill *fill = TAILQ_LAST(fills, kv_page_fills);

	kv_assert_locked(&paged->pool->session->lock);
	if (!fill || fill->n == fill->limit) {
		fill = calloc(1, sizeof(*fill));
		if (!fill)
			return -ENOMEM;
		fill->job.run = start_fill;
		fill->job.kind = KV_JOB_LOAD;
		fill->opts.size = sizeof(fill->opts);
		fill->opts.stream = KVFS_NO_STREAM;
		fill->opts.priority = priority;
		fill->paged = paged;
		fill->space = space;
		fill->limit = limit;
		kv_lib_space_get_locked(space);
		TAILQ_INSERT_TAIL(fills, fill, others);
	}
	page->fill = fill;
	fill->page[fill->n++] = page;
	return 0;
}

/* Begin waiting fills (loads into pages), up to FILLS at a time, on copy
 * threads: kvfs_acquire may wait for the daemon. */
static void begin_fills_locked(struct kv_paged_pool *paged)
{
	struct kvfs_session *session = paged->pool->session;
	struct kv_page_fill *fill;

	kv_assert_locked(&session->lock);
	if (paged->filling == 0 && TAILQ_EMPTY(&paged->fills))
		paged->dram_is_short = false;
	while (paged->filling < (paged->dram_is_short ? 1 : FILLS) &&
	       (fill = TAILQ_FIRST(&paged->fills))) {
		TAILQ_REMOVE(&paged->fills, fill, others);
		paged->filling++;
		kv_copier_submit(session->copier, &fill->job);
	}
}

/* Load a page again if a map waits for the page.  If the block found no room in
 * DRAM (@full), the end of another fill or a smaller fill must make that likely
 * to succeed.  Return false if the page has failed. */
static bool go_again_locked(const struct kv_page_fill *fill,
			    struct kv_page_fills *again, struct kv_page *page,
			    bool full)
{
	const bool alone = full && fill->paged->filling == 1;
	struct kv_use *use;

	/* Do not wait for the stream again: its earlier work was over before
	 * the first load.  Keep only the priority. */
	if (LIST_EMPTY(&page->waiting) || (alone && fill->n == 1) ||
	    add_to_fill_locked(again, alone ? (fill->n + 1) / 2 : fill->n,
			       fill->paged, fill->space, page,
			       fill->opts.priority) < 0)
		return false;
	LIST_FOREACH(use, &page->waiting, others)
		page->fill->wanted++;
	return true;
}

/* End a fill.  @status: 0, or the error because of which nothing was loaded. */
static void fill_over_locked(struct kv_page_fill *fill, int status)
{
	struct kv_page_fills again = TAILQ_HEAD_INITIALIZER(again);
	struct kv_paged_pool *paged = fill->paged;
	/* The fill was stopped, but a later map may wait for its pages. */
	const bool stopped = fill->load ? atomic_load(&fill->load->stopped) != 0
					: status == -ECANCELED;
	int r;

	kv_assert_locked(&paged->pool->session->lock);
	for (size_t i = 0; i < fill->n; i++) {
		r = status;
		if (r == 0)
			r = atomic_load(&fill->load->status[i]);
		fill->page[i]->fill = NULL;
		if ((r == -ENOSPC || (r == -ECANCELED && stopped)) &&
		    go_again_locked(fill, &again, fill->page[i],
				    r == -ENOSPC)) {
			/* Run one fill at a time from now on. */
			paged->dram_is_short |= r == -ENOSPC;
			continue;
		}
		kv_page_settle_locked(paged, fill->page[i], r);
	}
	paged->filling--;
	/* Load the pages again before other fills. */
	TAILQ_CONCAT(&again, &paged->fills, others);
	TAILQ_CONCAT(&paged->fills, &again, others);
	begin_fills_locked(paged);
	kv_session_changed_locked(paged->pool->session);
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
		fill_over_locked(load->owner, 0);
}

/* Acquire a lease of the fill's blocks and load them, unless no map waits for
 * them any more.  The caller holds no lock.  Frees the fill, now or when the
 * load is over. */
static void start_fill(struct kv_job *job)
{
	struct kv_page_fill *fill = (struct kv_page_fill *)job;
	const struct kv_paged_pool *paged = fill->paged;
	struct kvfs_session *session = paged->pool->session;
	int64_t pages[FILL_PAGES];
	kvfs_key keys[FILL_PAGES];
	const kvfs_query query = {fill->space, keys, fill->n};
	kvfs_lease *lease = NULL;
	kvfs_xfer *load = NULL;
	int r = 0;

	for (size_t i = 0; i < fill->n; i++) {
		keys[i] = fill->page[i]->key;
		pages[i] = (int64_t)kv_page_table_index(paged->page_table,
							fill->page[i]);
	}
	pthread_mutex_lock(&session->lock);
	if (fill->wanted == 0)
		r = -ECANCELED;
	pthread_mutex_unlock(&session->lock);
	if (r == 0)
		r = kvfs_acquire(&query, 1, NULL, &lease);
	if (r == 0)
		r = kv_lib_load(paged->pool, lease, fill->n, pages, &fill->opts,
				&load);
	pthread_mutex_lock(&session->lock);
	fill->lease = lease;
	fill->load = load;
	if (r < 0 || load->left[KVFS_COPIED] == 0) {
		fill_over_locked(fill, r);
	} else {
		load->owner = fill;
		load->over = load_over;
		if (fill->wanted == 0)
			kv_xfer_stop_locked(load, -ECANCELED);
	}
	pthread_mutex_unlock(&session->lock);
}

/* Start only a few fills at a time, so that leases and DRAM have room for them,
 * however many blocks are mapped.  Fills behind a stream's work start now,
 * because the stream may get more work until later. */
static void start_fills(struct kv_paged_pool *paged,
			struct kv_page_fills *fills, const kvfs_opts *opts)
{
	struct kvfs_session *session = paged->pool->session;
	struct kv_page_fill *fill;

	pthread_mutex_lock(&session->lock);
	while ((fill = TAILQ_FIRST(fills))) {
		TAILQ_REMOVE(fills, fill, others);
		fill->opts = *opts;
		fill->opts.deadline = fill->opts.user = 0;
		fill->job.priority = fill->opts.priority;
		if ((!opts->stream || opts->stream == KVFS_NO_STREAM) &&
		    !opts->event) {
			TAILQ_INSERT_TAIL(&paged->fills, fill, others);
			continue;
		}
		paged->filling++;
		pthread_mutex_unlock(&session->lock);
		start_fill(&fill->job);
		pthread_mutex_lock(&session->lock);
	}
	begin_fills_locked(paged);
	pthread_mutex_unlock(&session->lock);
}

struct placing {
	struct kvfs_mapping *map;
	kvfs_space *space;
	struct kv_page_table_space *known; /* record of the space */
	const kvfs_key *keys;
	uint8_t *states; /* state of each block, as kvfs_probe reports */
	struct kv_page_fills fills;
	size_t limit; /* most pages of a fill */
};

/* ---- stopping ---- */

static void stopped_locked(struct kvfs_xfer *xfer)
{
	struct kvfs_mapping *map = xfer->owner;

	kv_assert_locked(&xfer->session->lock);
	for (size_t i = 0; i < map->n; i++) {
		struct kv_use *use = &map->uses[i];
		struct kv_page *page;

		if (atomic_load(&xfer->status[i]) != -EINPROGRESS)
			continue;
		page = kv_steal(use->page);
		LIST_REMOVE(use, others);
		kv_page_table_put(map->paged->page_table, page);
		/* Stop loading pages that no map waits for any more. */
		if (page->fill && --page->fill->wanted == 0 && page->fill->load)
			kv_xfer_stop_locked(page->fill->load, -ECANCELED);
		settle_locked(use, atomic_load(&xfer->stopped));
	}
}

/* ---- finding or taking the page of a block ---- */

/* Find the page that holds block @i, or take a page for the block and add the
 * page to a fill. */
static void place_locked(struct placing *m, size_t i)
{
	struct kv_page_table *page_table = m->map->paged->page_table;
	struct kv_use *use = &m->map->uses[i];
	struct kv_page *page =
		kv_page_table_find(page_table, m->known, &m->keys[i]);
	int r = 0;

	kv_assert_locked(&m->space->session->lock);
	if (!page) {
		if (m->states[i] == KVFS_ABSENT || m->states[i] == KVFS_SAVING)
			r = -ENOENT;
		else if (!(page = kv_page_table_take(page_table)))
			r = -ENOSPC;
		else
			r = add_to_fill_locked(&m->fills, m->limit,
					       m->map->paged, m->space, page,
					       0);
		if (r == 0)
			kv_page_table_name(page_table, page, m->known,
					   &m->keys[i]);
		else if (page)
			kv_page_table_give(page_table, page);
	}
	if (r == 0) {
		use->page = page;
		kv_page_table_get(page_table, page);
	}
	if (r < 0 || page->state == KV_PAGE_READY) {
		settle_locked(use, r);
		return;
	}
	LIST_INSERT_HEAD(&page->waiting, use, others);
	if (page->fill)
		page->fill->wanted++;
}

/* Ask the daemon how many of the blocks that no page holds exist. */
static long look_up(struct placing *m)
{
	struct kvfs_session *session = m->space->session;
	_cleanup_(kv_freep) kvfs_key *keys = NULL;
	_cleanup_(kv_freep) uint8_t *states = NULL;
	size_t n = 0, at = 0;
	long r;

	keys = malloc((m->map->n + 1) * sizeof(*keys));
	states = malloc(m->map->n + 1);
	if (!keys || !states)
		return -ENOMEM;
	pthread_mutex_lock(&session->lock);
	for (size_t i = 0; i < m->map->n; i++) {
		m->states[i] = KVFS_DRAM;
		if (kv_page_table_find(m->map->paged->page_table, m->known,
				       &m->keys[i]))
			continue;
		m->states[i] = KVFS_ABSENT;
		keys[n++] = m->keys[i];
	}
	pthread_mutex_unlock(&session->lock);
	r = n == 0 ? 0
		   : kvfs_probe(&(kvfs_query){m->space, keys, n}, 1, states);
	for (size_t i = 0; i < m->map->n && r >= 0; i++)
		if (m->states[i] == KVFS_ABSENT)
			m->states[i] = states[at++];
	return r;
}

/* ---- mapping ---- */

static const struct kv_xfer_ops map_ops = {
	.stopped_locked = stopped_locked,
};

static void map_freep(struct kvfs_mapping **map)
{
	if (*map)
		kv_xfer_free((*map)->xfer);
	free(*map);
}

/* Find or reserve a page for every block of the map. */
static void place_all_locked(struct placing *m, uint64_t in_cache,
			     uint64_t user)
{
	struct kvfs_mapping *map = m->map;
	struct kv_page_table *page_table = map->paged->page_table;
	struct kv_page *page;

	kv_assert_locked(&m->space->session->lock);
	kv_paged_pool_room_locked(map->paged, in_cache);
	kv_xfer_tell_locked(map->xfer, KVFS_EVENT_MAP, user, 1u << KVFS_COPIED);
	if (map->n > 0) {
		map->xfer->pool = map->paged->pool;
		kv_xfer_activate_locked(map->xfer);
	}
	LIST_INSERT_HEAD(&map->paged->maps, map, others);
	/* Touch the map's pages from the last block to the first: if pages are
	 * short, other blocks' pages are reused first, and then the end of this
	 * map. */
	for (size_t i = map->n; i-- > 0;) {
		page = kv_page_table_find(page_table, m->known, &m->keys[i]);
		if (page)
			kv_page_table_touch(page_table, page);
	}
	for (size_t i = 0; i < map->n; i++)
		place_locked(m, i);
}

int kvfs_map(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys, size_t n,
	     const kvfs_opts *opts, kvfs_mapping **ret_map)
{
	static const kvfs_opts whole = {.size = sizeof(whole),
					.stream = KVFS_NO_STREAM};
	_cleanup_(map_freep) struct kvfs_mapping *map = NULL;
	_cleanup_(kv_freep) uint8_t *states = calloc(n + 1, 1);
	struct placing m = {.space = space, .keys = keys, .states = states};
	struct kv_page_table *page_table;
	kvfs_opts known = {0};
	long in_cache;
	int r = kv_paged_pool_check(pool);

	if (r == 0)
		r = kv_abi_opts(&known, opts);
	if (r == 0)
		r = kv_paged_pool_check_call(pool, space, &known, 0);
	if (r < 0)
		return r;
	if (!ret_map || n > KV_QUERY_KEYS_MAX ||
	    !kv_wire_keys_are_valid(keys, n))
		return -EINVAL;
	map = calloc(1, sizeof(*map) + n * sizeof(map->uses[0]));
	if (!states || !map)
		return -ENOMEM;
	map->paged = pool->paged;
	map->n = n;
	for (size_t i = 0; i < n; i++)
		map->uses[i].map = map;
	r = kv_xfer_new(pool->session, &map_ops, n, &map->xfer);
	if (r == 0)
		r = kv_opts_take(map->xfer, pool->paged->pool, &whole, 0);
	if (r < 0)
		return r;
	map->xfer->owner = map;
	if (known.deadline != 0)
		map->xfer->deadline_at = kv_time_after(known.deadline);
	m.map = map;
	m.limit = (size_t)KV_MAX(FILL_BYTES / map->paged->page_bytes, 1u);
	m.limit = KV_MIN(m.limit, (size_t)FILL_PAGES);
	TAILQ_INIT(&m.fills);
	page_table = map->paged->page_table;
	pthread_mutex_lock(&pool->session->lock);
	m.known = kv_page_table_space_get(page_table, space->name);
	pthread_mutex_unlock(&pool->session->lock);
	if (!m.known)
		return -ENOMEM;
	in_cache = look_up(&m);
	pthread_mutex_lock(&pool->session->lock);
	if (in_cache >= 0)
		place_all_locked(&m, (uint64_t)in_cache, known.user);
	kv_page_table_space_put(m.known);
	pthread_mutex_unlock(&pool->session->lock);
	if (in_cache < 0)
		return (int)in_cache;
	start_fills(map->paged, &m.fills, &known);
	*ret_map = kv_steal(map);
	return 0;
}

/* ---- using ---- */

static struct kvfs_xfer *xfer_of(const struct kvfs_mapping *map)
{
	return map ? map->xfer : NULL;
}

static int check_map(const struct kvfs_mapping *map)
{
	return kv_session_check(map ? map->xfer->session : NULL);
}

int kvfs_map_poll(kvfs_mapping *map)
{
	return kvfs_xfer_poll(xfer_of(map), KVFS_COPIED);
}

long kvfs_map_wait(kvfs_mapping *map, uint64_t deadline)
{
	return kvfs_xfer_wait(xfer_of(map), KVFS_COPIED, deadline);
}

int kvfs_map_status(kvfs_mapping *map, size_t i)
{
	return kvfs_xfer_status(xfer_of(map), i);
}

long kvfs_map_statuses(kvfs_mapping *map, size_t first, size_t n,
		       int *ret_statuses)
{
	return kvfs_xfer_statuses(xfer_of(map), first, n, ret_statuses);
}

void kvfs_map_cancel(kvfs_mapping *map)
{
	kvfs_xfer_cancel(xfer_of(map));
}

/* Return whether the device was given the copy into @page, which is COMING.  A
 * copy of a block that has failed, and may be loaded again, does not count. */
static bool is_submitted_locked(const struct kv_page *page)
{
	const struct kv_page_fill *fill = page->fill;
	size_t i = 0;
	int status;

	if (!fill || !fill->load || !kv_xfer_is_submitted_locked(fill->load))
		return false;
	while (fill->page[i] != page)
		i++;
	status = atomic_load(&fill->load->status[i]);
	return status == 0 || status == -EINPROGRESS;
}

int kvfs_map_order(kvfs_mapping *map, void *stream)
{
	struct kvfs_xfer *load, *last = NULL;
	struct kvfs_session *session;
	int r = check_map(map);

	if (r == 0)
		r = kv_submission_check(map->xfer->device, &stream);
	if (r < 0)
		return r;
	session = map->xfer->session;
	pthread_mutex_lock(&session->lock);
	for (size_t i = 0; i < map->n && r == 0; i++)
		if (atomic_load(&map->xfer->status[i]) == -EINPROGRESS &&
		    !is_submitted_locked(map->uses[i].page))
			r = -EAGAIN;
	/* Make @stream wait for the loads that fill the pages.  Skip a load
	 * that @stream waits for already: neighbouring blocks mostly share a
	 * load. */
	for (size_t i = 0; i < map->n && r == 0; i++) {
		if (atomic_load(&map->xfer->status[i]) != -EINPROGRESS ||
		    !map->uses[i].page->fill)
			continue;
		load = map->uses[i].page->fill->load;
		if (!load || load == last)
			continue;
		kv_xfer_get_locked(load);
		if (last)
			kv_xfer_put_locked(last);
		last = load;
		r = kv_submission_order_locked(load, KV_ALL_STEPS, stream);
	}
	if (last)
		kv_xfer_put_locked(last);
	map->ordered |= r == 0;
	pthread_mutex_unlock(&session->lock);
	return r;
}

/* Return the page of block @i if the caller may use it. */
static int page_locked(const struct kvfs_mapping *map, size_t i,
		       const struct kv_page **ret_page)
{
	int status = atomic_load(&map->xfer->status[i]);

	kv_assert_locked(&map->xfer->session->lock);
	if (status < 0 && (status != -EINPROGRESS || !map->ordered))
		return status;
	*ret_page = map->uses[i].page;
	return 0;
}

int64_t kvfs_map_page(kvfs_mapping *map, size_t i)
{
	const struct kv_page *page;
	int64_t r = check_map(map);

	if (r < 0)
		return r;
	if (i >= map->n)
		return -EINVAL;
	pthread_mutex_lock(&map->xfer->session->lock);
	r = page_locked(map, i, &page);
	if (r == 0)
		r = (int64_t)kv_page_table_index(map->paged->page_table, page);
	pthread_mutex_unlock(&map->xfer->session->lock);
	return r;
}

void *kvfs_map_addr(kvfs_mapping *map, size_t i, const char *tensor)
{
	const struct kv_page *page;
	void *addr = NULL;

	if (check_map(map) < 0 || i >= map->n)
		return NULL;
	pthread_mutex_lock(&map->xfer->session->lock);
	if (page_locked(map, i, &page) == 0)
		addr = kv_paged_pool_addr(map->paged, page, tensor);
	pthread_mutex_unlock(&map->xfer->session->lock);
	return addr;
}

/* ---- unmapping ---- */

static void gone_locked(void *owner)
{
	struct kvfs_mapping *map = owner;

	kv_assert_locked(&map->xfer->session->lock);
	kv_xfer_stop_locked(map->xfer, -ECANCELED);
	for (size_t i = map->n; i-- > 0;)
		if (map->uses[i].page)
			kv_page_table_put(map->paged->page_table,
					  map->uses[i].page);
	kv_xfer_put_locked(map->xfer);
	free(map);
}

static void end_locked(struct kvfs_mapping *map)
{
	kv_assert_locked(&map->xfer->session->lock);
	kv_notice_drop_locked(map->xfer->session, &map->xfer->notice);
	/* A stream that was ordered after the map reads the pages of blocks in
	 * flight, so these stay in use until the stream's work is over. */
	if (!map->ordered)
		kv_xfer_stop_locked(map->xfer, -ECANCELED);
	LIST_REMOVE(map, others);
}

void kv_maps_end_locked(struct kv_paged_pool *paged)
{
	struct kvfs_mapping *map;

	kv_assert_locked(&paged->pool->session->lock);
	while ((map = LIST_FIRST(&paged->maps))) {
		end_locked(map);
		gone_locked(map);
	}
}

int kvfs_unmap(kvfs_mapping *map, void *stream)
{
	struct kvfs_session *session;
	struct kv_event_wait *wait;
	int r;

	if (!map)
		return 0;
	r = check_map(map);
	if (r < 0)
		return r;
	session = map->xfer->session;
	r = kv_event_wait_new(map->paged->pool, stream, NULL, &wait);
	if (r < 0)
		return r;
	pthread_mutex_lock(&session->lock);
	end_locked(map);
	kv_event_wait_begin_locked(wait, gone_locked, map);
	pthread_mutex_unlock(&session->lock);
	return 0;
}
