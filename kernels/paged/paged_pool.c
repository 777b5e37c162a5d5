/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paged_pool.c - a pool whose pages are the library's own.
 *
 * OWNS      the pages' memory, the page table, and the pool that copies use.
 *           What is mapped is map.c's, what is taken is page_set.c's.
 *
 * INVARIANTS
 *   (1) A page of the page table has memory, which stays where it is.
 *   (2) One thread at a time grows a pool.
 *   (3) The caller's pool has no pages: no load or save of the
 *       caller's gets at those here.
 *
 * LOCKING   session->lock; not held while the device makes memory.
 */
#include "kernels/device/guard.h"
#include "kernels/paged/map.h"
#include "kernels/paged/paged_pool.h"
#include "kernels/transfer/staging.h"
#include "kernels/session/space.h"
#include "kernels/transfer/stream_sync.h"
#include "kernels/paged/page_set.h"

static void paged_pool_free(struct kv_paged_pool *paged)
{
	if (!paged)
		return;
	kvfs_pool_close(paged->inner);
	if (paged->memory)
		paged->device->release(paged->memory);
	kv_page_table_free(paged->page_table);
	free(paged);
}

static void paged_pool_freep(struct kv_paged_pool **paged)
{
	paged_pool_free(*paged);
}

/* A page is the tensors one behind the other, as in a block. */
static int register_inner(struct kv_paged_pool *paged, struct kvfs_pool *pool,
			  const char *device, uint64_t pages)
{
	_cleanup_(kv_freep) kvfs_view *views = NULL;
	const struct kv_layout *layout = pool->layout;
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = device,
		.space = pool->space,
		.n_views = layout->n_tensors,
		.pages = paged->max_pages,
		.pages_per_block = 1,
		.memory = paged->base,
		.memory_bytes = paged->max_pages * paged->page_bytes,
	};

	views = calloc(layout->n_tensors, sizeof(*views));
	if (!views)
		return -ENOMEM;
	for (uint32_t i = 0; i < layout->n_tensors; i++) {
		views[i].tensor = layout->tensors[i].name;
		views[i].base = paged->base + layout->tensors[i].offset;
		views[i].block_stride = paged->page_bytes;
		views[i].bytes = layout->tensors[i].bytes;
		views[i].count = 1;
	}
	desc.views = views;
	return kv_lib_pool_register(pool->session, &desc, pages, &paged->inner);
}

/* If its memory has a descriptor. */
static int lend(struct kv_paged_pool *paged, uint64_t pages)
{
	int fd = kv_guard_take_fd(paged->device, paged->memory);

	if (fd < 0)
		return 0;
	return kv_lending_own(paged->inner, fd, paged->base,
			      pages * paged->page_bytes,
			      paged->max_pages * paged->page_bytes);
}

static int paged_pool_new(struct kvfs_pool *pool, const char *device,
			  uint64_t pages, uint64_t max_pages,
			  struct kv_paged_pool **ret_paged)
{
	_cleanup_(paged_pool_freep) struct kv_paged_pool *paged =
		calloc(1, sizeof(*paged));
	uint64_t bytes;
	void *base;
	int r;

	if (!paged)
		return -ENOMEM;
	TAILQ_INIT(&paged->fills);
	paged->fills_max = KV_PAGE_FILLS;
	LIST_INIT(&paged->maps);
	LIST_INIT(&paged->sets);
	paged->device = pool->device;
	paged->max_pages = max_pages;
	paged->page_bytes = kv_round_up(pool->layout->payload, KV_PAGE);
	if (__builtin_mul_overflow(max_pages, paged->page_bytes, &bytes) ||
	    bytes > INT64_MAX)
		return -EINVAL;
	r = kv_guard_reserve(pool->device, device, pages * paged->page_bytes,
			     bytes, &paged->memory, &base);
	if (r < 0)
		return r;
	paged->base = base;
	r = kv_page_table_new(max_pages, &paged->page_table);
	if (r < 0)
		return r;
	kv_page_table_grow(paged->page_table, pages);
	r = register_inner(paged, pool, device, pages);
	if (r == 0)
		r = lend(paged, pages);
	if (r < 0)
		return r;
	*ret_paged = kv_steal(paged);
	return 0;
}

static void close_pool(struct kv_paged_pool *paged)
{
	struct kvfs_session *session = paged->inner->session;

	pthread_mutex_lock(&session->lock);
	kv_maps_end_locked(paged);
	kv_sets_end_locked(paged);
	while (paged->growing)
		kv_session_wait(session, UINT64_MAX);
	while (paged->filling > 0 || paged->inner->busy > 0) {
		kv_xfers_drain(session, paged->inner);
		if (paged->filling > 0)
			kv_session_wait(session, UINT64_MAX);
	}
	kv_sets_free_locked(paged);
	pthread_mutex_unlock(&session->lock);
	paged_pool_free(paged);
}

static void info(const struct kv_paged_pool *paged,
		 struct kvfs_pool_info *ret_info)
{
	struct kvfs_session *session = paged->inner->session;
	struct kv_page_table_counts counts;

	kv_lib_pool_info(paged->inner, ret_info);
	pthread_mutex_lock(&session->lock);
	counts = kv_page_table_count(paged->page_table);
	pthread_mutex_unlock(&session->lock);
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
	kv_assert_locked(&paged->inner->session->lock);
	kv_page_table_forget(paged->page_table, name);
}

static const struct kv_paged_pool_ops ops = {
	.close = close_pool,
	.info = info,
	.forget_locked = forget_locked,
};

static int check_reserve(kvfs_session *session, const char *device,
			 const kvfs_space *space, uint64_t pages,
			 uint64_t max_pages)
{
	int r = kv_session_check(session);

	if (r < 0)
		return r;
	if (!device || !space || space->session != session || pages == 0 ||
	    max_pages < pages || max_pages > UINT32_MAX)
		return -EINVAL;
	return 0;
}

int kvfs_pool_reserve(kvfs_session *session, const char *device,
		      kvfs_space *space, uint64_t pages, uint64_t max_pages,
		      kvfs_pool **ret_pool)
{
	_cleanup_(kv_freep) struct kvfs_pool *pool = NULL;
	int r = check_reserve(session, device, space, pages, max_pages);

	if (r < 0)
		return r;
	if (!ret_pool)
		return -EINVAL;
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return -ENOMEM;
	pool->session = session;
	pool->space = space;
	pool->paged_ops = &ops;
	pool->strides.pages_per_block = 1;
	pool->device = kv_device_find(device);
	if (!pool->device)
		return -ENODEV;
	pool->layout = kv_lib_space_layout(space);
	if (!pool->layout)
		return -EMEDIUMTYPE;
	r = paged_pool_new(pool, device, pages, max_pages, &pool->paged);
	if (r < 0)
		return r;
	pthread_mutex_lock(&session->lock);
	kv_lib_space_get_locked(space);
	LIST_INSERT_HEAD(&session->paged, pool, others);
	pthread_mutex_unlock(&session->lock);
	*ret_pool = kv_steal(pool);
	return 0;
}

/* ---- what map.c and page_set.c share ---- */

int kv_paged_pool_check(const struct kvfs_pool *pool)
{
	int r = kv_session_check(pool ? pool->session : NULL);

	if (r < 0)
		return r;
	return pool->paged ? 0 : -EINVAL;
}

int kv_paged_pool_check_space(const struct kvfs_pool *pool,
			      struct kvfs_space *space)
{
	if (!space || space->session != pool->session ||
	    !kv_lib_layout_same_tensors(kv_lib_space_layout(space),
					pool->layout))
		return -EINVAL;
	return 0;
}

int kv_paged_pool_check_opts(const struct kvfs_pool *pool,
			     const kvfs_opts *opts, unsigned flags)
{
	void *stream;

	if (opts->first != 0 || opts->first_layer != 0 || opts->layers != 0 ||
	    (opts->flags & ~flags) != 0)
		return -EINVAL;
	return kv_stream_sync_resolve(pool->device, opts->stream, opts->event,
				      &stream);
}

/* To @pages, which are more than there are; without the lock. */
static int grow(struct kv_paged_pool *paged, uint64_t pages)
{
	struct kvfs_session *session = paged->inner->session;
	int r;

	paged->growing = true;
	pthread_mutex_unlock(&session->lock);
	r = kv_lending_grow(paged->inner, pages * paged->page_bytes);
	if (r == 0)
		r = kv_guard_grow(paged->device, paged->memory,
				  pages * paged->page_bytes);
	pthread_mutex_lock(&session->lock);
	paged->growing = false;
	if (r == 0)
		kv_page_table_grow(paged->page_table, pages);
	pthread_cond_broadcast(&session->changed);
	return r;
}

/* An eighth more than is needed now, so that calls that grow a pool are few. */
static int grow_for(struct kv_paged_pool *paged, uint64_t n)
{
	const uint64_t pages = kv_page_table_count(paged->page_table).pages;
	const uint64_t most = paged->max_pages - pages;
	const uint64_t need = KV_MIN(n, most);
	const uint64_t want = KV_MIN(KV_MAX(need, pages / 8), most);
	int r = grow(paged, pages + want);

	return r < 0 && want > need ? grow(paged, pages + need) : r;
}

void kv_paged_pool_room(struct kv_paged_pool *paged, uint64_t n)
{
	struct kvfs_session *session = paged->inner->session;
	struct kv_page_table_counts counts;
	int r = 0;

	kv_assert_locked(&session->lock);
	while (r == 0) {
		counts = kv_page_table_count(paged->page_table);
		if (counts.free >= n || counts.pages == paged->max_pages)
			return;
		if (paged->growing)
			kv_session_wait(session, UINT64_MAX);
		else
			r = grow_for(paged, n - counts.free);
	}
}

void *kv_paged_pool_addr(const struct kv_paged_pool *paged,
			 const struct kv_page *page, const char *tensor)
{
	const struct kv_layout *layout = paged->inner->layout;
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
	if (pool->paged)
		pool = pool->paged->inner;
	r = kv_guard_staging(pool->device, pool->on_device, bytes, buffers);
	if (r < 0)
		return r;
	session = pool->session;
	pthread_mutex_lock(&session->lock);
	session->staging_bytes = all;
	session->staging_asked = true;
	kv_staging_prepare_locked(session, pool->layout->payload);
	pthread_mutex_unlock(&session->lock);
	return 0;
}
