/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.c - blocks in pages of a paged pool, for as long as somebody uses
 * them.
 *
 * OWNS      maps, and a use of the page of each of their blocks.  Of a fill, a
 *           few blocks on their way from the cache to pages, the lease and the
 *           load, from fill_start until the load is COPIED.
 *
 * STATES    of a block of a map:
 *
 *             (none) -> THERE     join_locked: its page was READY
 *             (none) -> WAITING   join_locked: its page is COMING, also if it
 *                                 is this map that began that
 *             (none) -> FAILED    place_locked: absent, or no page to be had
 *            WAITING -> THERE     kv_map_page_over_locked
 *            WAITING -> FAILED    kv_map_page_over_locked, or
 *                                 stopped_locked: its time is up
 *
 * INVARIANTS
 *   (1) A block that is THERE or WAITING has a use of its page, and no other
 *       has; a block that is WAITING is in page->waiting.
 *   (2) A block's address is given when it is THERE, or WAITING and a stream
 *       has been told to wait for the whole map.
 *   (3) Pages are used in the order of the keys, and let go in the opposite
 *       one: of a chain, the end is given up first.
 *   (4) The pages of a fill are COMING for as long as it is there: nobody takes
 *       them, also when nobody wants them any more.
 *   (5) A fill has no deadline of its own: those who wait have.
 *   (6) KV_PAGE_FILLS are begun at most, or one where DRAM is short, but for
 *       those that come after a stream's work; the others wait in paged->fills,
 *       which is empty when none is begun.
 *
 * LOCKING   session->lock.
 */
#include "kernels/session/abi.h"
#include "kernels/session/query.h"
#include "kernels/paged/map.h"
#include "kernels/transfer/stream_sync.h"
#include "kernels/session/space.h"
#include "kernels/transfer/lease.h"
#include "kernels/transfer/submission.h"
#include "kernels/transfer/xfer.h"

/* A call of kvfs_map, at work. */
struct placing {
	struct kvfs_mapping *map;
	kvfs_space *space;
	struct kv_page_table_space
		*known; /* @space, as the page table has it */
	const kvfs_key *keys;
	uint8_t *states; /* of the blocks: as kvfs_probe says */
	struct kv_page_fills fills;
};

static size_t index_of(const struct kv_use *use)
{
	return (size_t)(use - use->map->uses);
}

/* ---- how a block ends ---- */

static void settle_locked(struct kv_use *use, int status)
{
	struct kvfs_xfer *xfer = use->map->xfer;

	kv_assert_locked(&use->map->xfer->session->lock);
	atomic_store(&xfer->status[index_of(use)], status);
	if (status < 0) {
		kv_xfer_fail_locked(xfer, KVFS_COPIED, 1);
		return;
	}
	kv_xfer_reach_locked(xfer, KVFS_DURABLE, 1);
	kv_xfer_reach_locked(xfer, KVFS_SEALED, 1);
	kv_xfer_reach_locked(xfer, KVFS_COPIED, 1);
}

void kv_map_page_over_locked(struct kv_paged_pool *paged, struct kv_page *page,
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
		settle_locked(use, status);
	}
	if (status < 0)
		kv_page_table_give(page_table, page);
}

/* ---- filling pages ---- */

#define FILL_PAGES 256u
#define FILL_BYTES ((uint64_t)32 << 20)

/* A few blocks on their way from the cache to pages. */
struct kv_page_fill {
	struct kv_job job;		  /* first; begins it */
	TAILQ_ENTRY(kv_page_fill) others; /* the caller's, or paged->fills */
	kvfs_opts opts;			  /* for the load */
	bool begun;			  /* lock: one of paged->filling */
	struct kv_paged_pool *paged;
	struct kvfs_space *space; /* held */
	kvfs_lease *lease;	  /* lock */
	struct kvfs_xfer *load;	  /* lock; NULL: not begun */
	size_t wanted;		  /* lock: uses that wait for it */
	size_t n, limit;
	struct kv_page *page[FILL_PAGES]; /* COMING; their fill is this */
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

/* Whether another page has to go with another one. */
static bool fill_is_full(const struct kv_page_fill *fill)
{
	return fill->n == fill->limit;
}

static void fill_add_locked(struct kv_page_fill *fill, struct kv_page *page)
{
	kv_assert_locked(&fill->paged->inner->session->lock);
	page->fill = fill;
	fill->page[fill->n++] = page;
}

static void fill_want_locked(struct kv_page_fill *fill)
{
	kv_assert_locked(&fill->paged->inner->session->lock);
	fill->wanted++;
}

static void fill_unwant_locked(struct kv_page_fill *fill)
{
	kv_assert_locked(&fill->paged->inner->session->lock);
	assert(fill->wanted > 0);
	if (--fill->wanted == 0 && fill->load)
		kv_xfer_stop_locked(fill->load, -ECANCELED);
}

/* Fills that wait begin on a copy thread: it may take a question. */
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

/*
 * A page whose block found no room in DRAM goes again, if others of the pool
 * had some, or fewer at a time may have.  False: it has failed.
 */
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
	if (!last || fill_is_full(last)) {
		if (fill_new_locked(paged, fill->space, &last) < 0)
			return false;
		/* The work that the first load came after is over. */
		last->opts.priority = fill->opts.priority;
		last->limit = alone ? (fill->n + 1) / 2 : fill->n;
		TAILQ_INSERT_TAIL(again, last, others);
	}
	fill_add_locked(last, page);
	LIST_FOREACH(use, &page->waiting, others)
		fill_want_locked(last);
	return true;
}

/* In front of the others; one by one from now on. */
static void queue_again_locked(struct kv_paged_pool *paged,
			       struct kv_page_fills *again)
{
	kv_assert_locked(&paged->inner->session->lock);
	if (TAILQ_EMPTY(again))
		return;
	paged->fills_max = 1;
	TAILQ_CONCAT(again, &paged->fills, others);
	TAILQ_CONCAT(&paged->fills, again, others);
}

/* @status: why nothing was loaded, or 0. */
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
		kv_map_page_over_locked(paged, fill->page[i], r);
	}
	paged->filling -= fill->begun;
	queue_again_locked(paged, &again);
	begin_fills_locked(paged);
	pthread_cond_broadcast(&paged->inner->session->changed);
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

static int lease_and_load(struct kv_page_fill *fill, kvfs_lease **ret_lease,
			  kvfs_xfer **ret_load)
{
	const struct kv_paged_pool *paged = fill->paged;
	int64_t pages[FILL_PAGES];
	kvfs_key keys[FILL_PAGES];
	const kvfs_query query = {fill->space, keys, fill->n};
	int r;

	for (size_t i = 0; i < fill->n; i++) {
		keys[i] = fill->page[i]->key;
		pages[i] = (int64_t)kv_page_table_index(paged->page_table,
							fill->page[i]);
	}
	r = kvfs_acquire(&query, 1, NULL, ret_lease);
	if (r < 0)
		return r;
	return kvfs_load(paged->inner, *ret_lease, fill->n, pages, &fill->opts,
			 ret_load);
}

/*
 * Begin, without a lock held; the rest happens by itself.  When it is over, or
 * cannot begin, kv_map_page_over_locked is called for each page, and @fill is
 * freed.
 */
static void fill_start(struct kv_page_fill *fill)
{
	struct kvfs_session *session = fill->paged->inner->session;
	kvfs_lease *lease = NULL;
	kvfs_xfer *load = NULL;
	int r = lease_and_load(fill, &lease, &load);

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

/*
 * As many at a time as restore has: leases and DRAM have room for them, however
 * many blocks are mapped.  What comes after work on the device is begun now,
 * since later there would be more of it.
 */
static void start_fills(struct placing *m, const kvfs_opts *opts)
{
	struct kv_paged_pool *paged = m->map->paged;
	struct kvfs_session *session = m->space->session;
	const bool now = opts->stream || opts->event;
	struct kv_page_fill *fill;

	pthread_mutex_lock(&session->lock);
	while ((fill = TAILQ_FIRST(&m->fills))) {
		TAILQ_REMOVE(&m->fills, fill, others);
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

/* ---- stopping ---- */

static void stop_locked(struct kv_use *use, int status)
{
	struct kv_page *page = kv_steal(use->page);

	kv_assert_locked(&use->map->xfer->session->lock);
	LIST_REMOVE(use, others);
	kv_page_table_put(use->map->paged->page_table, page);
	if (page->fill)
		fill_unwant_locked(page->fill);
	settle_locked(use, status);
}

static void stopped_locked(struct kvfs_xfer *xfer)
{
	struct kvfs_mapping *map = xfer->owner;

	kv_assert_locked(&xfer->session->lock);
	for (size_t i = 0; i < map->n; i++)
		if (atomic_load(&xfer->status[i]) == -EINPROGRESS)
			stop_locked(&map->uses[i], atomic_load(&xfer->stopped));
}

/* ---- where a block goes ---- */

static void join_locked(struct kv_use *use, struct kv_page *page)
{
	kv_assert_locked(&use->map->xfer->session->lock);
	use->page = page;
	kv_page_table_get(use->map->paged->page_table, page);
	if (page->state == KV_PAGE_READY) {
		settle_locked(use, 0);
		return;
	}
	LIST_INSERT_HEAD(&page->waiting, use, others);
	if (page->fill)
		fill_want_locked(page->fill);
}

static int need_fill_locked(struct placing *m)
{
	struct kv_page_fill *fill;
	int r;

	kv_assert_locked(&m->space->session->lock);
	fill = TAILQ_LAST(&m->fills, kv_page_fills);
	if (fill && !fill_is_full(fill))
		return 0;
	r = fill_new_locked(m->map->paged, m->space, &fill);
	if (r < 0)
		return r;
	TAILQ_INSERT_TAIL(&m->fills, fill, others);
	return 0;
}

/* A page for a block that is in the cache, on its way from here on. */
static int begin_locked(struct placing *m, const kvfs_key *key,
			struct kv_page **ret_page)
{
	struct kv_page_table *page_table = m->map->paged->page_table;
	int r = need_fill_locked(m);

	kv_assert_locked(&m->space->session->lock);
	if (r < 0)
		return r;
	*ret_page = kv_page_table_take(page_table);
	if (!*ret_page)
		return -ENOSPC;
	kv_page_table_name(page_table, *ret_page, m->known, key);
	fill_add_locked(TAILQ_LAST(&m->fills, kv_page_fills), *ret_page);
	return 0;
}

static bool is_in_cache(uint8_t state)
{
	return state != KVFS_ABSENT && state != KVFS_SAVING;
}

static void place_locked(struct placing *m, size_t i)
{
	struct kv_page_table *page_table = m->map->paged->page_table;
	struct kv_page *page =
		kv_page_table_find(page_table, m->known, &m->keys[i]);
	int r = 0;

	kv_assert_locked(&m->space->session->lock);
	if (!page)
		r = is_in_cache(m->states[i])
			    ? begin_locked(m, &m->keys[i], &page)
			    : -ENOENT;
	if (r < 0)
		settle_locked(&m->map->uses[i], r);
	else
		join_locked(&m->map->uses[i], page);
}

/*
 * The map's own blocks are given up for others of it last, those nearest to the
 * beginning last of all: if pages are short, the prefix is what there is.
 */
static void place_all_locked(struct placing *m)
{
	struct kv_page_table *page_table = m->map->paged->page_table;
	struct kv_page *page;

	kv_assert_locked(&m->space->session->lock);
	for (size_t i = m->map->n; i-- > 0;) {
		page = kv_page_table_find(page_table, m->known, &m->keys[i]);
		if (page)
			kv_page_table_touch(page_table, page);
	}
	for (size_t i = 0; i < m->map->n; i++)
		place_locked(m, i);
}

/* Ask the daemon for those that no page has: how many it has is returned. */
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

/* The bytes of a map come by loads of their own. */
static const struct kv_xfer_ops map_ops = {
	.stopped_locked = stopped_locked,
};

static void map_freep(struct kvfs_mapping **map)
{
	if (*map)
		kv_xfer_free((*map)->xfer);
	free(*map);
}

static int map_new(kvfs_pool *pool, size_t n, const kvfs_opts *opts,
		   struct kvfs_mapping **ret_map)
{
	static const kvfs_opts all = KVFS_OPTS_INIT;
	struct kvfs_pool *inner = pool->paged->inner;
	_cleanup_(map_freep) struct kvfs_mapping *map =
		calloc(1, sizeof(*map) + n * sizeof(map->uses[0]));
	int r;

	if (!map)
		return -ENOMEM;
	map->paged = pool->paged;
	map->n = n;
	for (size_t i = 0; i < n; i++)
		map->uses[i].map = map;
	r = kv_xfer_new(pool->session, &map_ops, n, &map->xfer);
	if (r < 0)
		return r;
	map->xfer->owner = map;
	if (opts->deadline != 0)
		map->xfer->deadline_at = kv_time_after(opts->deadline);
	r = kv_opts_take(map->xfer, inner, &all, 0);
	if (r < 0)
		return r;
	*ret_map = kv_steal(map);
	return 0;
}

static void start_placing(struct placing *m, uint64_t in_cache, uint64_t user)
{
	struct kvfs_mapping *map = m->map;

	kv_paged_pool_room(map->paged, in_cache);
	kv_xfer_tell_locked(map->xfer, KVFS_EVENT_MAP, user, 1u << KVFS_COPIED);
	if (map->n > 0) {
		map->xfer->pool = map->paged->inner;
		kv_xfer_activate_locked(map->xfer);
	}
	LIST_INSERT_HEAD(&map->paged->maps, map, others);
	place_all_locked(m);
}

static int start(struct placing *m, const kvfs_opts *opts)
{
	struct kv_paged_pool *paged = m->map->paged;
	struct kvfs_session *session = m->space->session;
	long in_cache;

	pthread_mutex_lock(&session->lock);
	m->known = kv_page_table_space_get(paged->page_table, m->space->name);
	pthread_mutex_unlock(&session->lock);
	if (!m->known)
		return -ENOMEM;
	in_cache = look_up(m);
	pthread_mutex_lock(&session->lock);
	if (in_cache >= 0)
		start_placing(m, (uint64_t)in_cache, opts->user);
	kv_page_table_space_put(paged->page_table, m->known);
	pthread_mutex_unlock(&session->lock);
	start_fills(m, opts);
	return (int)KV_MIN(in_cache, 0);
}

int kvfs_map(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys, size_t n,
	     const kvfs_opts *opts, kvfs_mapping **ret_map)
{
	_cleanup_(map_freep) struct kvfs_mapping *map = NULL;
	_cleanup_(kv_freep) uint8_t *states = calloc(n + 1, 1);
	struct placing m = {.space = space, .keys = keys, .states = states};
	kvfs_opts known = {0};
	int r = kv_paged_pool_check(pool);

	if (r == 0)
		r = kv_abi_opts(&known, opts);
	if (r == 0)
		r = kv_paged_pool_check_space(pool, space);
	if (r == 0)
		r = kv_paged_pool_check_opts(pool, &known, 0);
	if (r < 0)
		return r;
	if (!ret_map || n > KV_QUERY_KEYS_MAX ||
	    !kv_wire_keys_are_valid(keys, n))
		return -EINVAL;
	if (!states)
		return -ENOMEM;
	r = map_new(pool, n, &known, &map);
	if (r < 0)
		return r;
	m.map = map;
	TAILQ_INIT(&m.fills);
	r = start(&m, &known);
	if (r < 0)
		return r;
	*ret_map = kv_steal(map);
	return 0;
}

/* ---- using ---- */

static int check_map(const struct kvfs_mapping *map)
{
	return kv_session_check(map ? map->xfer->session : NULL);
}

int kvfs_map_poll(kvfs_mapping *map)
{
	int r = check_map(map);

	return r < 0 ? r : kvfs_xfer_poll(map->xfer, KVFS_COPIED);
}

long kvfs_map_wait(kvfs_mapping *map, uint64_t deadline)
{
	int r = check_map(map);

	return r < 0 ? r : kvfs_xfer_wait(map->xfer, KVFS_COPIED, deadline);
}

int kvfs_map_status(kvfs_mapping *map, size_t i)
{
	int r = check_map(map);

	return r < 0 ? r : kvfs_xfer_status(map->xfer, i);
}

long kvfs_map_statuses(kvfs_mapping *map, size_t first, size_t n,
		       int *ret_statuses)
{
	int r = check_map(map);

	return r < 0 ? r
		     : kvfs_xfer_statuses(map->xfer, first, n, ret_statuses);
}

/* Whether the device has been given the copy into @page, which is COMING.  A
 * block that has failed may go again, so that one does not count. */
static bool is_submitted_locked(const struct kv_page *page)
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

static bool all_submitted_locked(const struct kvfs_mapping *map)
{
	kv_assert_locked(&map->xfer->session->lock);
	for (size_t i = 0; i < map->n; i++)
		if (atomic_load(&map->xfer->status[i]) == -EINPROGRESS &&
		    !is_submitted_locked(map->uses[i].page))
			return false;
	return true;
}

/* The load that block @i of the map still waits for; NULL: none. */
static struct kvfs_xfer *load_of_locked(const struct kvfs_mapping *map,
					size_t i)
{
	kv_assert_locked(&map->xfer->session->lock);
	if (atomic_load(&map->xfer->status[i]) != -EINPROGRESS ||
	    !map->uses[i].page->fill)
		return NULL;
	return map->uses[i].page->fill->load;
}

static int order_locked(const struct kvfs_mapping *map, void *stream)
{
	struct kvfs_xfer *load, *last = NULL;
	int r = 0;

	kv_assert_locked(&map->xfer->session->lock);
	if (!all_submitted_locked(map))
		return -EAGAIN;
	/* Fills are in the order of the keys, mostly. */
	for (size_t i = 0; i < map->n && r == 0; i++) {
		load = load_of_locked(map, i);
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
	return r;
}

int kvfs_map_order(kvfs_mapping *map, void *stream)
{
	int r = check_map(map);

	if (r == 0 && !map->xfer->device->order)
		r = -EOPNOTSUPP;
	if (r == 0 && !stream)
		r = -EINVAL;
	if (r < 0)
		return r;
	pthread_mutex_lock(&map->xfer->session->lock);
	r = order_locked(map, stream);
	map->ordered |= r == 0;
	pthread_mutex_unlock(&map->xfer->session->lock);
	return r;
}

void kvfs_map_cancel(kvfs_mapping *map)
{
	if (check_map(map) == 0)
		kvfs_xfer_cancel(map->xfer);
}

/* The page of block @i, if it may be looked at: else why not. */
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
	kv_xfer_stop_locked(map->xfer, -ECANCELED);
	LIST_REMOVE(map, others);
}

void kv_maps_end_locked(struct kv_paged_pool *paged)
{
	struct kvfs_mapping *map;

	kv_assert_locked(&paged->inner->session->lock);
	while ((map = LIST_FIRST(&paged->maps))) {
		end_locked(map);
		gone_locked(map);
	}
}

int kvfs_unmap(kvfs_mapping *map, void *stream)
{
	struct kvfs_session *session;
	struct kv_stream_fence *fence = NULL;
	int r;

	if (!map)
		return 0;
	r = check_map(map);
	if (r < 0)
		return r;
	session = map->xfer->session;
	if (stream)
		r = kv_stream_fence_new(map->paged->inner, stream, NULL,
					&fence);
	if (r < 0)
		return r;
	pthread_mutex_lock(&session->lock);
	end_locked(map);
	if (fence)
		kv_stream_fence_begin_locked(fence, gone_locked, map);
	else
		gone_locked(map);
	pthread_mutex_unlock(&session->lock);
	return 0;
}
