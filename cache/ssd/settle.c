/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settle.c - the committer's own requests: prologues zeroed, files synced.
 *
 * It waits for them for as long as they take: a zero that lands late would land
 * on whoever has the slot by then.  Others are told meanwhile that it does not
 * get on (health.c).
 *
 * OWNS       the requests, until all of one call have ended.
 * LOCKING    group->lock, a leaf, for how many are left.
 */
#include "cache/ssd/ssd.h"
#include "common/crash_point.h"

#define TRIES 2

struct group {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	size_t left;
	int status; /* of the last that failed */
};

#define GROUP_INIT                                                        \
	{                                                                 \
		PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0 \
	}

struct member {
	struct kv_io io; /* first */
	struct group *group;
	struct kv_deletion *deletion; /* NULL: a sync */
};

static void member_done(struct kv_io *io, int status)
{
	struct member *member = (struct member *)io;
	struct group *group = member->group;

	KV_POINT("tombstone.written");
	pthread_mutex_lock(&group->lock);
	if (status < 0)
		group->status = status;
	if (member->deletion)
		member->deletion->bad = status < 0;
	if (--group->left == 0)
		pthread_cond_signal(&group->cond);
	pthread_mutex_unlock(&group->lock);
	free(member);
}

static void member_submit(struct kv_cache *cache, struct group *group,
			  struct member *member)
{
	member->io.buffer = -1;
	member->io.done = member_done;
	member->group = group;
	pthread_mutex_lock(&group->lock);
	group->left++;
	pthread_mutex_unlock(&group->lock);
	kv_ring_submit(cache->ring, &member->io);
}

static int wait_for_all(struct group *group)
{
	pthread_mutex_lock(&group->lock);
	while (group->left)
		pthread_cond_wait(&group->cond, &group->lock);
	pthread_mutex_unlock(&group->lock);
	return group->status;
}

int kv_segfiles_sync(struct kv_cache *cache, const int *fds, size_t n)
{
	struct group group = GROUP_INIT;
	bool short_of_memory = false;
	int r;

	/* All at once: the file system makes one journal commit of them. */
	for (size_t i = 0; i < n && !short_of_memory; i++) {
		struct member *one = calloc(1, sizeof(*one));

		short_of_memory = !one;
		if (!one)
			break;
		one->io.op = KV_IO_SYNC;
		one->io.fd = fds[i];
		member_submit(cache, &group, one);
	}
	r = wait_for_all(&group);
	return short_of_memory ? -ENOMEM : r;
}

static uint8_t zero_page[KV_PAGE] __attribute__((aligned(KV_PAGE)));

static int zero_one(struct kv_cache *cache, struct group *group,
		    struct kv_deletion *deletion)
{
	struct member *one = calloc(1, sizeof(*one));
	struct kv_segfile *file;

	if (!one)
		return -ENOMEM;
	kv_lock(cache);
	file = kv_segfile_at(cache, (uint32_t)(deletion->slot_id >> 32));
	one->io.fd = file->fd;
	one->io.offset = (uint32_t)deletion->slot_id * file->slot_bytes;
	kv_unlock(cache);
	one->io.op = KV_IO_WRITE;
	one->io.data = zero_page;
	one->io.bytes = KV_PAGE;
	one->deletion = deletion;
	member_submit(cache, group, one);
	KV_POINT("tombstone.submitted");
	return 0;
}

/* Once over those that are still to be zeroed; how the last failure went. */
static int zero_all(struct kv_cache *cache, struct kv_deletion *items, size_t n)
{
	struct group group = GROUP_INIT;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		if (items[i].bad)
			r = zero_one(cache, &group, &items[i]);
	wait_for_all(&group);
	return r < 0 ? r : group.status;
}

int kv_prologues_zero(struct kv_cache *cache, struct kv_deletion *items,
		      size_t n, bool others_work)
{
	bool failed = false;
	int r = -EAGAIN;

	for (size_t i = 0; i < n; i++)
		items[i].bad = true;
	for (int try = 0; try < TRIES && r < 0; try++)
		r = zero_all(cache, items, n);
	/* What is not to be used again is zeroed where that is possible. */
	for (size_t i = 0; i < n; i++) {
		others_work |= items[i].reuse && !items[i].bad;
		failed |= items[i].reuse && items[i].bad;
	}
	return others_work || !failed ? 0 : r;
}
