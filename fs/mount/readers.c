/* SPDX-License-Identifier: Apache-2.0 */
/*
 * readers.c - reads through the mount that need the SSD, on threads of their
 * own.
 *
 * They wait for the device, so that no worker of FUSE does; users with reads
 * take turns by bytes.  A read that is called off is answered at once, whatever
 * the device does.
 *
 * OWNS      every read's hold on its block.
 *
 * LOCKING   none.
 */
#include <limits.h>

#include "fs/mount/readers.h"
#include "fs/mount/parked.h"

struct read {
	struct kv_job job;	/* first */
	struct kv_block *block; /* held */
	size_t size;
	uint64_t offset;
};

static size_t clip(const struct kv_view *view, size_t size, uint64_t offset)
{
	return offset < view->length ? KV_MIN(size, view->length - offset) : 0;
}

/* Whatever the cache calls it, a reader sees an I/O error. */
static void read_now(struct kv_work *work, struct kv_hash *hash)
{
	struct kv_job *job = kv_container(work, struct kv_job, work);
	const struct read *read = (const struct read *)job;
	struct kv_cache *cache = job->parked.mount->cache;
	struct kv_view view;
	int r = kv_view_get(cache, read->block, &view);

	(void)hash;
	if (kv_parked_claim(&job->parked)) {
		if (r < 0)
			kv_parked_reply_err(&job->parked, -EIO);
		else
			kv_parked_reply_buf(
				&job->parked, view.data + read->offset,
				clip(&view, read->size, read->offset));
	}
	if (r == 0)
		kv_view_put(cache, &view);
	kv_parked_put(&job->parked);
}

static void drop(struct kv_parked *parked)
{
	kv_block_put(parked->mount->cache, ((struct read *)parked)->block);
}

static const struct kv_parked_kind read_kind = {kv_job_cancel, drop};

static int park(fuse_req_t req, struct kv_block *block, size_t size,
		uint64_t offset)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const uint32_t uid = fuse_req_ctx(req)->uid;
	struct read *read;
	int r;

	r = kv_parked_new(req, &read_kind, sizeof(*read), &read);
	if (r < 0)
		return r;
	kv_block_hold(mount->cache, block);
	read->block = block;
	read->size = size;
	read->offset = offset;
	read->job.work.run = read_now;
	kv_work_submit(mount->readers, &read->job.work, uid,
		       KV_MAX(size, 4096u));
	kv_parked_arm(&read->job.parked);
	return 0;
}

void kv_read_block(fuse_req_t req, struct kv_block *block, size_t size,
		   uint64_t offset)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_view view;
	int r;

	r = kv_view_get_try(mount->cache, block, &view);
	if (r == 0) {
		fuse_reply_buf(req, (const char *)view.data + offset,
			       clip(&view, size, offset));
		kv_view_put(mount->cache, &view);
		return;
	}
	r = park(req, block, size, offset);
	if (r < 0)
		fuse_reply_err(req, -r);
}

int kv_readers_new(struct kv_workers **ret_readers)
{
	static const struct kv_workers_config config = {.name = "kvfs-read",
							.threads = 16,
							.each = UINT_MAX,
							.turn = 8 << 20};

	return kv_workers_new(&config, ret_readers);
}
