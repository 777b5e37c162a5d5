/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.c - maps: blocks that are kept in pages of a paged pool while in use.
 *
 * OWNS      maps, and a use of the page of each of their blocks.
 *
 * STATES    of a block of a map:
 *
 *             (none) -> THERE     join_locked: its page was READY
 *             (none) -> WAITING   join_locked: its page is COMING, perhaps
 *                                 because of this map
 *             (none) -> FAILED    place_locked: absent, or no page is free
 *            WAITING -> THERE     kv_uses_settle_locked
 *            WAITING -> FAILED    kv_uses_settle_locked, or
 *                                 stopped_locked at the deadline
 *
 * INVARIANTS
 *   (1) Exactly the THERE and WAITING blocks have a use of a page; the uses of
 *       WAITING ones are in page->waiting.
 *   (2) A block's address is returned when it is THERE, or WAITING and a stream
 *       waits for the whole map.
 *   (3) Pages are used in the order of the keys, and released in the opposite
 *       one, so that the end of a chain is given up first.
 *
 * LOCKING   session->lock.
 */
#include "kernels/session/abi.h"
#include "kernels/session/query.h"
#include "kernels/paged/map.h"
#include "kernels/paged/page_fill.h"
#include "kernels/transfer/stream_sync.h"
#include "kernels/session/space.h"
#include "kernels/transfer/lease.h"
#include "kernels/transfer/xfer.h"

/* A call of kvfs_map. */
struct placing {
	struct kvfs_mapping *map;
	kvfs_space *space;
	struct kv_page_table_space *known; /* the page table's @space */
	const kvfs_key *keys;
	uint8_t *states; /* state of each block, as kvfs_probe reports */
	struct kv_page_fills fills;
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
		if (page->fill)
			kv_page_fill_unwant_locked(page->fill);
		kv_use_settle_locked(use, atomic_load(&xfer->stopped));
	}
}

/* ---- where a block goes ---- */

static void join_locked(struct kv_use *use, struct kv_page *page)
{
	kv_assert_locked(&use->map->xfer->session->lock);
	use->page = page;
	kv_page_table_get(use->map->paged->page_table, page);
	if (page->state == KV_PAGE_READY) {
		kv_use_settle_locked(use, 0);
		return;
	}
	LIST_INSERT_HEAD(&page->waiting, use, others);
	if (page->fill)
		kv_page_fill_want_locked(page->fill);
}

/* Find the page that holds block @i, or take a page for the block and add the
 * page to a fill. */
static void place_locked(struct placing *m, size_t i)
{
	struct kv_page_table *page_table = m->map->paged->page_table;
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
			r = kv_page_fills_add_locked(&m->fills, m->map->paged,
						     m->space, page);
		if (r == 0)
			kv_page_table_name(page_table, page, m->known,
					   &m->keys[i]);
	}
	if (r < 0)
		kv_use_settle_locked(&m->map->uses[i], r);
	else
		join_locked(&m->map->uses[i], page);
}

/* Ask the daemon about blocks that no page holds.  Return how many of these
 * exist. */
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

/* A map is a transfer without copies of its own: fills load its blocks. */
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
	kv_paged_pool_room(map->paged, in_cache);
	kv_xfer_tell_locked(map->xfer, KVFS_EVENT_MAP, user, 1u << KVFS_COPIED);
	if (map->n > 0) {
		map->xfer->pool = map->paged->inner;
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
		r = kv_opts_take(map->xfer, pool->paged->inner, &whole, 0);
	if (r < 0)
		return r;
	map->xfer->owner = map;
	if (known.deadline != 0)
		map->xfer->deadline_at = kv_time_after(known.deadline);
	m.map = map;
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
	kv_page_fills_start(map->paged, &m.fills, &known);
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

static int order_locked(const struct kvfs_mapping *map, void *stream)
{
	struct kvfs_xfer *load, *last = NULL;
	int r = 0;

	kv_assert_locked(&map->xfer->session->lock);
	for (size_t i = 0; i < map->n; i++)
		if (atomic_load(&map->xfer->status[i]) == -EINPROGRESS &&
		    !kv_page_is_submitted_locked(map->uses[i].page))
			return -EAGAIN;
	/* Make @stream wait for the loads that fill the pages.  Skip a load
	 * that @stream waits for already: neighbouring blocks mostly share a
	 * load. */
	for (size_t i = 0; i < map->n && r == 0; i++) {
		if (atomic_load(&map->xfer->status[i]) != -EINPROGRESS ||
		    !map->uses[i].page->fill)
			continue;
		load = kv_page_fill_load_locked(map->uses[i].page->fill);
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

	if (r == 0)
		r = kv_submission_check(map->xfer->device, &stream);
	if (r < 0)
		return r;
	pthread_mutex_lock(&map->xfer->session->lock);
	r = order_locked(map, stream);
	map->ordered |= r == 0;
	pthread_mutex_unlock(&map->xfer->session->lock);
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
	struct kv_stream_fence *fence;
	int r;

	if (!map)
		return 0;
	r = check_map(map);
	if (r < 0)
		return r;
	session = map->xfer->session;
	r = kv_stream_fence_new(map->paged->inner, stream, NULL, &fence);
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
