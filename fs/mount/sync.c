/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync.c - requests that end when something is durable, or in DRAM.
 *
 * OWNS      the flushes, or the acquire, of each parked request, and a hold on
 *           its block.
 *
 * INVARIANTS
 *   (1) Whichever ends last, the submission or what was submitted, answers.
 *
 * LOCKING   none: callbacks run on threads of the cache, without its lock.
 */
#include <stdatomic.h>

#include "fs/mount/parked.h"
#include "fs/mount/sync.h"

/* ---- durable ---- */

struct sync {
	struct kv_parked parked; /* first */
	struct kv_block *block;	 /* held; or NULL */
	bool demotes;
	_Atomic size_t left; /* flushes, and the submission */
	_Atomic int status;
	size_t n;
	struct kv_flush flushes[];
};

static int demote(struct sync *sync)
{
	int r = kv_block_demote_try(sync->parked.mount->cache, sync->block);

	return r == -EAGAIN ? -EBUSY : r;
}

static void one_ended(struct sync *sync)
{
	int r;

	if (--sync->left > 0)
		return;
	r = sync->status;
	if (r == 0 && sync->demotes)
		r = demote(sync);
	kv_parked_end(&sync->parked, r);
}

static void flushed(struct kv_flush *flush, int status)
{
	struct sync *sync = flush->arg;

	if (status < 0)
		sync->status = status;
	one_ended(sync);
}

static void sync_cancel(struct kv_parked *parked, int status)
{
	struct sync *sync = (struct sync *)parked;

	for (size_t i = 0; i < sync->n; i++)
		kv_flush_cancel(parked->mount->cache, &sync->flushes[i],
				status);
}

static void sync_drop(struct kv_parked *parked)
{
	struct sync *sync = (struct sync *)parked;

	if (sync->block)
		kv_block_put(parked->mount->cache, sync->block);
}

static const struct kv_parked_kind sync_kind = {sync_cancel, sync_drop};

static int sync_new(fuse_req_t req, size_t n, struct sync **ret_sync)
{
	struct sync *sync;
	int r;

	r = kv_parked_new(req, &sync_kind,
			  sizeof(*sync) + n * sizeof(sync->flushes[0]), &sync);
	if (r < 0)
		return r;
	sync->n = n;
	sync->left = n + 1;
	for (size_t i = 0; i < n; i++) {
		sync->flushes[i].done = flushed;
		sync->flushes[i].arg = sync;
	}
	*ret_sync = sync;
	return 0;
}

static void submitted(struct sync *sync)
{
	one_ended(sync);
	kv_parked_arm(&sync->parked);
}

int kv_sync_spaces(fuse_req_t req, struct kv_space *const *spaces, size_t n)
{
	struct sync *sync;
	int r = sync_new(req, n, &sync);

	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++)
		kv_flush_submit(sync->parked.mount->cache, spaces[i],
				&sync->flushes[i]);
	submitted(sync);
	return 0;
}

static int sync_block(fuse_req_t req, struct kv_block *block, bool demotes)
{
	struct sync *sync;
	int r = sync_new(req, 1, &sync);

	if (r < 0)
		return r;
	kv_block_hold(sync->parked.mount->cache, block);
	sync->block = block;
	sync->demotes = demotes;
	kv_block_flush_submit(sync->parked.mount->cache, block,
			      &sync->flushes[0]);
	submitted(sync);
	return 0;
}

int kv_sync_block(fuse_req_t req, struct kv_block *block)
{
	return sync_block(req, block, false);
}

int kv_sync_demote(fuse_req_t req, struct kv_block *block)
{
	return sync_block(req, block, true);
}

/* ---- in DRAM ---- */

struct promote {
	struct kv_parked parked;   /* first */
	struct kv_acquire acquire; /* last: its want is behind it */
};

static void acquired(struct kv_acquire *acquire, void *arg)
{
	struct promote *promote = arg;
	int r = acquire->wants[0].status;

	kv_acquire_release(promote->parked.mount->cache, acquire);
	kv_parked_end(&promote->parked, r);
}

static void promote_cancel(struct kv_parked *parked, int status)
{
	kv_acquire_cancel(parked->mount->cache,
			  &((struct promote *)parked)->acquire, status);
}

static void promote_drop(struct kv_parked *parked)
{
	kv_space_put(((struct promote *)parked)->acquire.space);
}

static const struct kv_parked_kind promote_kind = {promote_cancel,
						   promote_drop};

int kv_sync_promote(fuse_req_t req, struct kv_block *block)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const struct kv_block_info info = kv_block_stat(mount->cache, block);
	struct kv_acquire *acquire;
	struct promote *promote;
	int r;

	r = kv_parked_new(req, &promote_kind,
			  sizeof(*promote) + sizeof(struct kv_want), &promote);
	if (r < 0)
		return r;
	acquire = &promote->acquire;
	acquire->space = kv_space_get(info.space);
	acquire->n = 1;
	acquire->wait_room = true;
	acquire->done = acquired;
	acquire->arg = promote;
	acquire->wants[0].key = info.key;
	if (!kv_acquire_submit(mount->cache, acquire))
		acquired(acquire, promote);
	kv_parked_arm(&promote->parked);
	return 0;
}
