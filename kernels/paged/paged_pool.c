/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paged_pool.c - pools of kvfs_pool_reserve, and sets of pages to write to.
 *
 * OWNS      the pages' memory, the page table, and the sets with their pages.
 *            Not mapped pages (map.c).
 *
 * STATES    of a set:
 *
 *               TAKEN -> SEALING   kvfs_pages_seal
 *             SEALING -> TAKEN     kvfs_pages_seal (the save could not begin)
 *             SEALING -> SEALED    seal_locked
 *               TAKEN -> DROPPED   kvfs_pages_drop
 *
 * INVARIANTS
 *   (1) A page of the page table has memory at a fixed address.
 *   (2) One thread at a time grows a pool.
 *   (3) No load or save of the caller can name a page of this pool: kvfs_load
 *       and kvfs_save refuse it.
 *   (4) A page of a set belongs to the set alone until the set is sealed or
 *       dropped, and the stream's work at that time is over.
 *   (5) A sealed page is not taken again until its block is in the cache, or
 *       the save has failed.  Maps use a sealed page whether or not the save
 *       succeeds.
 *   (6) A sealed page whose key another page already has is freed.
 *   (7) A set is freed with its last reference: of the caller, of the fence, or
 *       of the sealed pages.
 *
 * LOCKING   session->lock; released while the device makes memory.
 */
#include <fcntl.h>

#include "kernels/paged/paged_pool.h"
#include "kernels/transfer/xfer.h"

/* ---- checks, growth and addresses, for maps and sets ---- */

int kv_paged_pool_check(const struct kvfs_pool *pool)
{
	int r = kv_session_check(pool ? pool->session : NULL);

	if (r < 0)
		return r;
	return pool->paged ? 0 : -EINVAL;
}

int kv_paged_pool_check_call(const struct kvfs_pool *pool,
			     struct kvfs_space *space, const kvfs_opts *opts,
			     unsigned flags)
{
	void *stream;

	if (!space || space->session != pool->session ||
	    !kv_lib_layout_same_tensors(kv_lib_space_layout(space),
					pool->layout) ||
	    opts->first != 0 || opts->first_layer != 0 || opts->layers != 0 ||
	    (opts->flags & ~flags) != 0)
		return -EINVAL;
	return kv_stream_sync_resolve(pool->device, opts->stream, opts->event,
				      &stream);
}

/* Grow the pool to @pages.  Releases session->lock meanwhile. */
static int grow_locked(struct kv_paged_pool *paged, uint64_t pages)
{
	struct kvfs_session *session = paged->pool->session;
	const int fd = paged->pool->lending.fd;
	int r = 0;

	paged->growing = true;
	pthread_mutex_unlock(&session->lock);
	/* If the memory is lent to the daemon, allocate the pages in its file
	 * too.  The file stays while the pool is open, so no lock is needed. */
	if (fd >= 0 &&
	    fallocate(fd, 0, 0, (off_t)(pages * paged->page_bytes)) < 0)
		r = -ENOMEM;
	if (r == 0)
		r = kv_device_result(paged->pool->device->grow(
			paged->memory, pages * paged->page_bytes));
	pthread_mutex_lock(&session->lock);
	paged->growing = false;
	if (r == 0)
		kv_page_table_grow(paged->page_table, pages);
	kv_session_changed_locked(session);
	return r;
}

void kv_paged_pool_room_locked(struct kv_paged_pool *paged, uint64_t n)
{
	struct kvfs_session *session = paged->pool->session;
	struct kv_page_table_counts counts;
	uint64_t most, need, want;
	int r = 0;

	kv_assert_locked(&session->lock);
	while (r == 0) {
		counts = kv_page_table_count(paged->page_table);
		if (counts.free >= n || counts.pages == paged->max_pages)
			return;
		if (paged->growing) {
			kv_session_wait(session, UINT64_MAX);
			continue;
		}
		/* Grow by an eighth at least, so that pools seldom grow. */
		most = paged->max_pages - counts.pages;
		need = KV_MIN(n - counts.free, most);
		want = KV_MIN(KV_MAX(need, counts.pages / 8), most);
		r = grow_locked(paged, counts.pages + want);
		if (r < 0 && want > need)
			r = grow_locked(paged, counts.pages + need);
	}
}

void *kv_paged_pool_addr(const struct kv_paged_pool *paged,
			 const struct kv_page *page, const char *tensor)
{
	const struct kv_layout *layout = paged->pool->layout;
	uint8_t *at =
		paged->base + kv_page_table_index(paged->page_table, page) *
				      paged->page_bytes;

	if (!tensor)
		return at;
	for (uint32_t i = 0; i < layout->n_tensors; i++)
		if (strcmp(layout->tensors[i].name, tensor) == 0)
			return at + layout->tensors[i].offset;
	return NULL;
}

int kvfs_pool_staging(kvfs_pool *pool, uint64_t bytes, unsigned buffers)
{
	struct kvfs_session *session;
	uint64_t all;
	int r = kv_session_check(pool ? pool->session : NULL);

	if (r < 0)
		return r;
	if (bytes == 0 || buffers == 0 ||
	    __builtin_mul_overflow(bytes, (uint64_t)buffers, &all))
		return -EINVAL;
	if (!kv_stage_may_be(all))
		return -ENOMEM;
	if (pool->device->staging)
		r = kv_device_result(
			pool->device->staging(pool->on_device, bytes, buffers));
	if (r < 0)
		return r;
	session = pool->session;
	pthread_mutex_lock(&session->lock);
	session->staging_bytes = all;
	session->staging_asked = true;
	/* Make the staging before a save needs it. */
	session->stage_grows_at = 0;
	kv_staging_grow_locked(
		session, kv_round_up(pool->layout->payload, KV_SAVE_ALIGN));
	pthread_mutex_unlock(&session->lock);
	return 0;
}

/* ---- sets of pages ---- */

enum set_state { SET_TAKEN, SET_SEALING, SET_SEALED, SET_DROPPED };

struct kvfs_pages {
	struct kvfs_session *session; /* fixed */
	struct kv_paged_pool *paged;  /* fixed */
	size_t n;		      /* fixed */

	/* lock */
	LIST_ENTRY(kvfs_pages) others; /* in paged->sets */
	unsigned refs;
	enum set_state state;
	/* 1 for the save and 1 for the stream's work, until over */
	unsigned pending;
	struct kvfs_xfer *save; /* the save in flight; NULL: none */
	struct kv_page *page[];
};

static void set_put_locked(struct kvfs_pages *set)
{
	kv_assert_locked(&set->session->lock);
	assert(set->refs > 0);
	if (--set->refs > 0)
		return;
	LIST_REMOVE(set, others);
	free(set);
}

static void give_back_locked(struct kvfs_pages *set)
{
	kv_assert_locked(&set->session->lock);
	for (size_t i = set->n; i-- > 0;)
		kv_page_table_give(set->paged->page_table, set->page[i]);
}

/* Drop the pages of a set (kvfs_pages) that is neither sealed nor dropped. */
static void drop_taken_locked(struct kvfs_pages *set)
{
	if (set->state != SET_TAKEN)
		return;
	set->state = SET_DROPPED;
	give_back_locked(set);
}

int kvfs_pages_take(kvfs_pool *pool, size_t n, kvfs_pages **ret_pages)
{
	_cleanup_(kv_freep) struct kvfs_pages *set = NULL;
	struct kv_page_table_counts counts;
	struct kv_page_table *page_table;
	int r = kv_paged_pool_check(pool);

	if (r < 0)
		return r;
	if (!ret_pages || n > UINT32_MAX)
		return -EINVAL;
	set = calloc(1, sizeof(*set) + n * sizeof(set->page[0]));
	if (!set)
		return -ENOMEM;
	set->session = pool->session;
	set->paged = pool->paged;
	set->n = n;
	set->refs = 1;
	page_table = pool->paged->page_table;
	pthread_mutex_lock(&pool->session->lock);
	kv_paged_pool_room_locked(pool->paged, n);
	counts = kv_page_table_count(page_table);
	if (counts.free + counts.cached < n) {
		r = -ENOSPC;
	} else {
		for (size_t i = 0; i < n; i++)
			set->page[i] = kv_page_table_take(page_table);
		LIST_INSERT_HEAD(&pool->paged->sets, set, others);
	}
	pthread_mutex_unlock(&pool->session->lock);
	if (r < 0)
		return r;
	*ret_pages = kv_steal(set);
	return 0;
}

static int check_set(const struct kvfs_pages *set)
{
	return kv_session_check(set ? set->session : NULL);
}

static bool has_page_locked(const struct kvfs_pages *set, size_t i)
{
	kv_assert_locked(&set->session->lock);
	return i < set->n &&
	       (set->state == SET_TAKEN || set->state == SET_SEALING);
}

int64_t kvfs_pages_page(kvfs_pages *pages, size_t i)
{
	int64_t r = check_set(pages);

	if (r < 0)
		return r;
	r = -EINVAL;
	pthread_mutex_lock(&pages->session->lock);
	if (has_page_locked(pages, i))
		r = (int64_t)kv_page_table_index(pages->paged->page_table,
						 pages->page[i]);
	pthread_mutex_unlock(&pages->session->lock);
	return r;
}

void *kvfs_pages_addr(kvfs_pages *pages, size_t i, const char *tensor)
{
	void *addr = NULL;

	if (check_set(pages) < 0)
		return NULL;
	pthread_mutex_lock(&pages->session->lock);
	if (has_page_locked(pages, i))
		addr = kv_paged_pool_addr(pages->paged, pages->page[i], tensor);
	pthread_mutex_unlock(&pages->session->lock);
	return addr;
}

static void dropped_locked(void *owner)
{
	struct kvfs_pages *set = owner;

	kv_assert_locked(&set->session->lock);
	give_back_locked(set);
	set_put_locked(set);
}

int kvfs_pages_drop(kvfs_pages *pages, void *stream)
{
	struct kv_event_wait *wait = NULL;
	int r = check_set(pages);

	if (r == 0)
		r = kv_event_wait_new(pages->paged->pool, stream, NULL, &wait);
	if (r < 0)
		return r;
	pthread_mutex_lock(&pages->session->lock);
	if (pages->state != SET_TAKEN) {
		r = -EINVAL;
	} else {
		pages->state = SET_DROPPED;
		pages->refs++;
		kv_event_wait_begin_locked(kv_steal(wait), dropped_locked,
					   pages);
	}
	pthread_mutex_unlock(&pages->session->lock);
	kv_event_wait_free(wait);
	return r;
}

void kvfs_pages_free(kvfs_pages *pages)
{
	struct kvfs_session *session;

	if (check_set(pages) < 0)
		return;
	session = pages->session;
	pthread_mutex_lock(&session->lock);
	drop_taken_locked(pages);
	set_put_locked(pages);
	pthread_mutex_unlock(&session->lock);
}

/* Count the end of the set's save, or of the stream's work on its pages.  After
 * both, the pool may use the pages for other blocks. */
static void pending_over_locked(struct kvfs_pages *set)
{
	struct kv_page_table *page_table = set->paged->page_table;

	kv_assert_locked(&set->session->lock);
	assert(set->pending > 0);
	if (--set->pending > 0)
		return;
	for (size_t i = set->n; i-- > 0;) {
		if (set->page[i]->state == KV_PAGE_TAKEN)
			kv_page_table_give(page_table, set->page[i]);
		else
			kv_page_table_put(page_table, set->page[i]);
	}
	set_put_locked(set);
}

static void event_over_locked(void *owner)
{
	struct kvfs_pages *set = owner;

	kv_assert_locked(&set->session->lock);
	for (size_t i = 0; i < set->n; i++)
		if (set->page[i]->state == KV_PAGE_COMING)
			kv_page_settle_locked(set->paged, set->page[i], 0);
	pending_over_locked(set);
}

static void saved(struct kvfs_xfer *save, enum kvfs_stage stage)
{
	struct kvfs_pages *set = save->owner;

	if (stage != KVFS_SEALED)
		return;
	set->save = NULL;
	pending_over_locked(set);
}

static void seal_locked(struct kvfs_pages *set,
			struct kv_page_table_space *space, const kvfs_key *keys,
			struct kvfs_xfer *save, struct kv_event_wait *wait)
{
	struct kv_page_table *page_table = set->paged->page_table;

	kv_assert_locked(&set->session->lock);
	set->state = SET_SEALED;
	set->refs++;
	set->pending = 2;
	for (size_t i = 0; i < save->n; i++) {
		if (kv_page_table_find(page_table, space, &keys[i]))
			continue;
		kv_page_table_name(page_table, set->page[i], space, &keys[i]);
		kv_page_table_get(page_table, set->page[i]);
	}
	kv_event_wait_begin_locked(wait, event_over_locked, set);
	if (save->left[KVFS_SEALED] == 0) {
		pending_over_locked(set);
	} else {
		set->save = save;
		save->owner = set;
		save->over = saved;
	}
}

int kvfs_pages_seal(kvfs_pages *pages, kvfs_space *space, const kvfs_key *keys,
		    const kvfs_meta *meta, size_t n, const kvfs_opts *opts,
		    kvfs_xfer **ret_xfer)
{
	const unsigned flags = KVFS_MUST | KVFS_HOLD | KVFS_TELL_SUBMITTED;
	_cleanup_(kv_freep) int64_t *numbers = NULL;
	struct kv_event_wait *wait = NULL;
	struct kv_page_table *page_table;
	struct kv_page_table_space *named = NULL;
	struct kvfs_pool *pool;
	kvfs_opts known = {0};
	int r = check_set(pages);

	if (r == 0)
		r = kv_abi_opts(&known, opts);
	if (r < 0)
		return r;
	pool = pages->paged->pool;
	r = kv_paged_pool_check_call(pool, space, &known, flags);
	if (r < 0)
		return r;
	if (!ret_xfer || n > pages->n)
		return -EINVAL;
	numbers = malloc((n + 1) * sizeof(*numbers));
	if (!numbers)
		return -ENOMEM;
	r = kv_event_wait_new(pool, known.stream, known.event, &wait);
	if (r < 0)
		return r;
	page_table = pages->paged->page_table;
	pthread_mutex_lock(&pages->session->lock);
	if (pages->state != SET_TAKEN)
		r = -EINVAL;
	else
		named = kv_page_table_space_get(page_table, space->name);
	if (named)
		pages->state = SET_SEALING;
	pthread_mutex_unlock(&pages->session->lock);
	if (!named) {
		kv_event_wait_free(wait);
		return r < 0 ? r : -ENOMEM;
	}
	for (size_t i = 0; i < n; i++)
		numbers[i] = (int64_t)kv_page_table_index(page_table,
							  pages->page[i]);
	r = kv_lib_save(pool, space, keys, meta, n, numbers, &known, ret_xfer);
	pthread_mutex_lock(&pages->session->lock);
	if (r < 0)
		pages->state = SET_TAKEN;
	else
		seal_locked(pages, named, keys, *ret_xfer, kv_steal(wait));
	kv_page_table_space_put(named);
	pthread_mutex_unlock(&pages->session->lock);
	kv_event_wait_free(wait);
	return r;
}

/* ---- opening and closing pools ---- */

static void free_paged(struct kv_paged_pool *paged,
		       const struct kvfs_device *device)
{
	if (paged->memory)
		device->release(paged->memory);
	kv_page_table_free(paged->page_table);
	free(paged);
}

static void close_locked(struct kv_paged_pool *paged)
{
	struct kvfs_session *session = paged->pool->session;
	struct kvfs_pages *set;

	kv_maps_end_locked(paged);
	LIST_FOREACH(set, &paged->sets, others)
		drop_taken_locked(set);
	while (paged->growing)
		kv_session_wait(session, UINT64_MAX);
	while (paged->filling > 0 || paged->pool->busy > 0) {
		kv_xfers_drain(session, paged->pool);
		if (paged->filling > 0)
			kv_session_wait(session, UINT64_MAX);
	}
	while ((set = LIST_FIRST(&paged->sets))) {
		if (set->save)
			set->save->over = NULL;
		LIST_REMOVE(set, others);
		free(set);
	}
}

static void info_locked(const struct kv_paged_pool *paged,
			struct kvfs_pool_info *ret_info)
{
	struct kv_page_table_counts counts =
		kv_page_table_count(paged->page_table);

	ret_info->base = paged->base;
	ret_info->page_bytes = paged->page_bytes;
	ret_info->pages = counts.pages;
	ret_info->pages_max = paged->max_pages;
	ret_info->pages_free = counts.free;
	ret_info->pages_cached = counts.cached;
	ret_info->pages_mapped = counts.mapped;
	ret_info->pages_taken = counts.taken;
}

static void forget_locked(struct kv_paged_pool *paged, const char *name)
{
	kv_page_table_forget(paged->page_table, name);
}

static const struct kv_paged_pool_ops ops = {
	.close_locked = close_locked,
	.info_locked = info_locked,
	.forget_locked = forget_locked,
	.free = free_paged,
};

/* Register the pages: each is one block, with its tensors end to end. */
static int register_pages(struct kvfs_session *session, const char *device,
			  struct kvfs_space *space, uint64_t pages,
			  struct kv_paged_pool *paged)
{
	const struct kv_layout *layout = kv_lib_space_layout(space);
	_cleanup_(kv_freep) kvfs_view *views =
		calloc(layout->n_tensors, sizeof(*views));
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = device,
		.space = space,
		.views = views,
		.n_views = layout->n_tensors,
		.pages = paged->max_pages,
		.pages_per_block = 1,
		.memory = paged->base,
		.memory_bytes = paged->max_pages * paged->page_bytes,
	};

	if (!views)
		return -ENOMEM;
	for (uint32_t i = 0; i < layout->n_tensors; i++) {
		views[i].tensor = layout->tensors[i].name;
		views[i].base = paged->base + layout->tensors[i].offset;
		views[i].block_stride = paged->page_bytes;
		views[i].bytes = layout->tensors[i].bytes;
		views[i].count = 1;
	}
	return kv_lib_pool_register(session, &desc, pages, &paged->pool);
}

int kvfs_pool_reserve(kvfs_session *session, const char *device,
		      kvfs_space *space, uint64_t pages, uint64_t max_pages,
		      kvfs_pool **ret_pool)
{
	const struct kvfs_device *table;
	const struct kv_layout *layout;
	struct kv_paged_pool *paged;
	uint64_t bytes;
	void *base;
	int fd, r = kv_session_check(session);

	if (r < 0)
		return r;
	if (!device || !space || space->session != session || pages == 0 ||
	    max_pages < pages || max_pages > UINT32_MAX || !ret_pool)
		return -EINVAL;
	table = kv_device_find(device);
	if (!table)
		return -ENODEV;
	layout = kv_lib_space_layout(space);
	if (!layout)
		return -EMEDIUMTYPE;
	paged = calloc(1, sizeof(*paged));
	if (!paged)
		return -ENOMEM;
	TAILQ_INIT(&paged->fills);
	paged->max_pages = max_pages;
	paged->page_bytes = kv_round_up(layout->payload, KV_PAGE);
	if (__builtin_mul_overflow(max_pages, paged->page_bytes, &bytes) ||
	    bytes > INT64_MAX)
		r = -EINVAL;
	if (r == 0)
		r = kv_device_reserve(table, device, pages * paged->page_bytes,
				      bytes, &paged->memory, &base);
	if (r == 0) {
		paged->base = base;
		r = kv_page_table_new(max_pages, &paged->page_table);
	}
	if (r == 0)
		r = register_pages(session, device, space, pages, paged);
	if (r < 0) {
		free_paged(paged, table);
		return r;
	}
	kv_page_table_grow(paged->page_table, pages);
	pthread_mutex_lock(&session->lock);
	paged->pool->paged_ops = &ops;
	paged->pool->paged = paged;
	pthread_mutex_unlock(&session->lock);
	/* Lend the pages to the daemon if their memory has a descriptor. */
	fd = table->take_fd ? table->take_fd(paged->memory) : -1;
	if (fd >= 0)
		kv_lending_own(paged->pool, fd, paged->base,
			       pages * paged->page_bytes, bytes);
	*ret_pool = paged->pool;
	return 0;
}
