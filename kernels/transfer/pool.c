/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - the engine's paged memory, as described once and checked.
 *
 * OWNS      struct kvfs_pool.  The pages stay the engine's.
 *
 * INVARIANTS
 *   (1) loads and saves have, for each page, how many transfers under way have
 *       it; pages_loading and pages_saving how many pages have any: a page that
 *       two transfers have is charged once, until both have let go of it.
 *   (2) A pool with busy transfers is not freed.
 *
 * LOCKING   session->lock for what pool.h event waits so; the rest is fixed.
 */
#include "kernels/session/attach.h"
#include "kernels/device/copier.h"
#include "kernels/transfer/stream_sync.h"
#include "kernels/transfer/pool.h"
#include "kernels/transfer/partial_block.h"
#include "kernels/transfer/restore.h"
#include "kernels/transfer/save.h"
#include "kernels/session/session.h"
#include "kernels/session/space.h"
#include "kernels/transfer/stage.h"

#define SKIP (-1)

static bool see(struct kvfs_pool *pool, int64_t page)
{
	uint8_t bit = (uint8_t)(1u << (page % 8)), *at = &pool->seen[page / 8];
	bool before = *at & bit;

	*at |= bit;
	return before;
}

long kv_lib_pool_check_pages_locked(struct kvfs_pool *pool,
				    const int64_t *pages, size_t n, bool loads)
{
	size_t i, end;
	long used = 0;
	bool bad = false;

	kv_session_assert_locked(pool->session);
	for (i = 0; i < n && !bad; i++) {
		if (pages[i] == SKIP && loads)
			continue;
		if (pages[i] < 0 || (uint64_t)pages[i] >= pool->pages) {
			bad = true;
			break;
		}
		bad = see(pool, pages[i]) && loads;
		used++;
	}
	end = i;
	for (i = 0; i < end; i++)
		if (pages[i] >= 0)
			pool->seen[pages[i] / 8] = 0;
	return bad ? -EINVAL : used;
}

void kv_lib_pool_hold_locked(struct kvfs_pool *pool, const int64_t *pages,
			     size_t n, bool loads)
{
	uint32_t *uses = loads ? pool->loads : pool->saves;
	uint64_t *held = loads ? &pool->pages_loading : &pool->pages_saving;

	kv_session_assert_locked(pool->session);
	for (size_t i = 0; i < n; i++)
		if (pages[i] != SKIP && uses[pages[i]]++ == 0)
			(*held)++;
}

void kv_lib_pool_let_go_locked(struct kvfs_pool *pool, const int64_t *pages,
			       size_t n, bool loads)
{
	uint32_t *uses = loads ? pool->loads : pool->saves;
	uint64_t *held = loads ? &pool->pages_loading : &pool->pages_saving;

	kv_session_assert_locked(pool->session);
	for (size_t i = 0; i < n; i++)
		if (pages[i] != SKIP && --uses[pages[i]] == 0)
			(*held)--;
}

static void pool_free(struct kvfs_pool *pool)
{
	if (!pool)
		return;
	if (pool->opened && pool->device->close)
		pool->device->close(pool->on_device);
	free(pool->strides.stride);
	free(pool->seen);
	free(pool->loads);
	free(pool->saves);
	free(pool);
}

static void pool_freep(struct kvfs_pool **pool)
{
	pool_free(*pool);
}

static int check_desc(kvfs_session *session, const kvfs_pool_desc *desc)
{
	int r = kv_session_check(session);

	if (r < 0)
		return r;
	if (!desc || !desc->device || !desc->space ||
	    desc->space->session != session || !desc->views ||
	    desc->n_views == 0 || desc->pages == 0 ||
	    desc->pages > INT64_MAX / 2 || desc->pages_per_block == 0)
		return -EINVAL;
	return 0;
}

/* ---- what happens to the session ---- */

static void broken_locked(struct kvfs_session *session)
{
	kv_session_assert_locked(session);
	kv_stage_abandon(kv_steal(session->stage));
	kv_stage_abandon(kv_steal(session->stage_next));
	kv_parts_break_locked(session);
	kv_save_pump_locked(session);
}

static void closing(struct kvfs_session *session)
{
	kv_parts_close_locked(session);
	kv_xfers_drain(session, NULL);
}

static void idle(struct kvfs_session *session)
{
	kv_session_assert_locked(session);
	kv_restore_workers_end(session);
	kv_save_wait_grown(session);
	kv_parts_free_locked(session);
}

static void closed(struct kvfs_session *session)
{
	kv_stream_sync_free(kv_steal(session->stream_sync));
}

static void forked(struct kvfs_session *session)
{
	kv_stage_forked(session->stage);
	kv_stage_forked(session->stage_next);
}

static void detaching_locked(struct kvfs_session *session)
{
	kv_session_assert_locked(session);
	kv_stream_sync_wake_locked(session->stream_sync);
}

static void cleared_locked(struct kvfs_session *session, const char *name)
{
	struct kvfs_pool *pool;

	kv_session_assert_locked(session);
	LIST_FOREACH(pool, &session->paged, others)
		pool->paged_ops->forget_locked(pool->paged, name);
}

static const struct kv_session_user transfers = {
	.broken_locked = broken_locked,
	.closing = closing,
	.idle = idle,
	.closed = closed,
	.forked = forked,
	.detaching_locked = detaching_locked,
	.clearing_locked = kv_saves_stop_locked,
	.cleared_locked = cleared_locked,
};

void kv_lib_transfers_use_locked(struct kvfs_session *session)
{
	kv_session_assert_locked(session);
	if (session->user)
		return;
	session->user = &transfers;
	session->staging_bytes = KV_STAGE_BYTES;
}

/* ---- opening and closing ---- */

/* The threads that its transfers need. */
static int start_threads_locked(struct kvfs_session *session,
				const struct kv_device *device)
{
	int r = 0;

	kv_session_assert_locked(session);
	kv_lib_transfers_use_locked(session);
	if (!session->copier)
		r = kv_copier_new(&session->copier);
	if (r == 0 &&
	    (device->event_wait || device->semaphore_new || device->attach))
		r = kv_stream_sync_start_locked(session);
	if (r < 0)
		return r;
	kv_attach_device_locked(session, device);
	if (session->stage)
		kv_stage_attach_locked(session->stage, session);
	return 0;
}

static int open_on_device(struct kvfs_pool *pool, const kvfs_pool_desc *desc,
			  uint64_t there)
{
	kvfs_pool_desc now = *desc;
	int r = 0;

	now.pages = there;
	if (pool->device->open)
		r = pool->device->open(&now, &pool->on_device);
	pool->opened = r == 0;
	return r;
}

static int pool_new(kvfs_session *session, const kvfs_pool_desc *desc,
		    uint64_t there, struct kvfs_pool **ret_pool)
{
	_cleanup_(pool_freep) struct kvfs_pool *pool = calloc(1, sizeof(*pool));
	int r;

	if (!pool)
		return -ENOMEM;
	pool->session = session;
	pool->pages = desc->pages;
	pool->space = desc->space;
	pool->device = kv_device_find(desc->device);
	if (!pool->device)
		return -ENODEV;
	pool->layout = kv_lib_space_layout(desc->space);
	if (!pool->layout)
		return -EMEDIUMTYPE;
	r = kv_strides_new(desc, pool->layout, &pool->strides);
	if (r < 0)
		return r;
	pool->seen = calloc(pool->pages / 8 + 1, 1);
	pool->loads = calloc(pool->pages, sizeof(*pool->loads));
	pool->saves = calloc(pool->pages, sizeof(*pool->saves));
	if (!pool->seen || !pool->loads || !pool->saves)
		return -ENOMEM;
	r = open_on_device(pool, desc, there);
	if (r < 0)
		return r;
	*ret_pool = kv_steal(pool);
	return 0;
}

int kv_lib_pool_register(kvfs_session *session, const kvfs_pool_desc *desc,
			 uint64_t there, kvfs_pool **ret_pool)
{
	_cleanup_(pool_freep) struct kvfs_pool *pool = NULL;
	int r;

	r = pool_new(session, desc, there, &pool);
	if (r < 0)
		return r;
	kv_session_lock(session);
	r = start_threads_locked(session, pool->device);
	if (r == 0)
		kv_lib_space_get_locked(pool->space);
	kv_session_unlock(session);
	if (r < 0)
		return r;
	*ret_pool = kv_steal(pool);
	return 0;
}

int kvfs_pool_register(kvfs_session *session, const kvfs_pool_desc *desc,
		       kvfs_pool **ret_pool)
{
	int r = check_desc(session, desc);

	if (r < 0)
		return r;
	if (!ret_pool)
		return -EINVAL;
	return kv_lib_pool_register(session, desc, desc->pages, ret_pool);
}

void kvfs_pool_close(kvfs_pool *pool)
{
	struct kvfs_session *session;

	if (!pool || kv_session_check(pool->session) < 0)
		return;
	session = pool->session;
	kv_session_lock(session);
	if (pool->paged)
		LIST_REMOVE(pool, others);
	kv_session_unlock(session);
	if (pool->paged)
		pool->paged_ops->close(pool->paged);
	kv_session_lock(session);
	kv_xfers_drain(session, pool);
	kv_lib_space_put_locked(pool->space);
	kv_session_unlock(session);
	pool_free(pool);
}

int kvfs_pool_info(kvfs_pool *pool, struct kvfs_pool_info *ret_info)
{
	struct kvfs_session *session;
	int r = kv_session_check(pool ? pool->session : NULL);

	if (r < 0)
		return r;
	if (!ret_info)
		return -EINVAL;
	if (pool->paged)
		return pool->paged_ops->info(pool->paged, ret_info);
	session = pool->session;
	*ret_info = (struct kvfs_pool_info){.device = pool->device->name};
	pool->device->info(pool->on_device, ret_info);
	kv_session_lock(session);
	ret_info->threads = kv_copier_threads(session->copier);
	ret_info->pages_loading = pool->pages_loading;
	ret_info->pages_saving = pool->pages_saving;
	if (session->stage) {
		ret_info->bytes_staging = kv_stage_bytes(session->stage);
		ret_info->staging_huge = kv_stage_is_huge(session->stage);
	}
	kv_session_unlock(session);
	return 0;
}
