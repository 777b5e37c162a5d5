/* SPDX-License-Identifier: Apache-2.0 */
/*
 * readers.c - reads through the mount that need the SSD, on threads of their
 * own.
 *
 * They wait for the device, so that no worker of FUSE does; users with reads
 * take turns by bytes.  A read that is called off is answered at once, whatever
 * the device does.
 *
 * OWNS      the threads; every read from when it is parked until its end, and
 *           its hold on the block.
 *
 * INVARIANTS
 *   (1) A read is on its user's queue until a thread takes it or it is called
 *       off; exactly the queues with reads take turns.
 *
 * LOCKING   readers->lock for the queues; a leaf.
 */
#include "cache/core/turns.h"
#include "common/thread.h"
#include "fs/mount/parked.h"
#include "fs/mount/readers.h"

#define THREADS 16u
#define TURN_BYTES (8 << 20)

struct read {
	struct kv_parked parked; /* first */
	struct kv_block *block;	 /* held */
	size_t size;
	uint64_t offset;
	struct queue *queue; /* readers->lock; NULL: on none */
	TAILQ_ENTRY(read) link;
};

struct queue {
	struct kv_turn turn; /* first */
	TAILQ_HEAD(, read) reads;
};

struct kv_readers {
	struct kv_mount *mount; /* fixed after new */
	pthread_t threads[THREADS];
	unsigned n;

	pthread_mutex_t lock;
	pthread_cond_t more;
	struct kv_turns queues; /* lock */
	bool stop;		/* lock */
};

static void queue_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct queue *)turn)->reads);
}

static void unqueue_locked(struct kv_readers *readers, struct read *read)
{
	struct queue *queue = read->queue;

	kv_assert_locked(&readers->lock);
	TAILQ_REMOVE(&queue->reads, read, link);
	if (TAILQ_EMPTY(&queue->reads))
		kv_turn_stop(&readers->queues, &queue->turn);
	kv_turn_put(&readers->queues, &queue->turn);
	read->queue = NULL;
}

static void read_cancel(struct kv_parked *parked, int status)
{
	struct kv_readers *readers = parked->mount->readers;
	struct read *read = (struct read *)parked;
	bool queued;

	pthread_mutex_lock(&readers->lock);
	queued = read->queue;
	if (queued)
		unqueue_locked(readers, read);
	pthread_mutex_unlock(&readers->lock);
	if (kv_parked_claim(parked))
		kv_parked_reply_err(parked, status);
	if (queued)
		kv_parked_put(parked);
}

static void read_drop(struct kv_parked *parked)
{
	kv_block_put(parked->mount->cache, ((struct read *)parked)->block);
}

static const struct kv_parked_kind read_kind = {read_cancel, read_drop};

static size_t clip(const struct kv_view *view, size_t size, uint64_t offset)
{
	return offset < view->length ? KV_MIN(size, view->length - offset) : 0;
}

/* Whatever the cache calls it, a reader sees an I/O error. */
static void read_now(struct read *read)
{
	struct kv_cache *cache = read->parked.mount->cache;
	struct kv_view view;
	int r = kv_view_get(cache, read->block, &view);

	if (kv_parked_claim(&read->parked)) {
		if (r < 0)
			kv_parked_reply_err(&read->parked, -EIO);
		else
			kv_parked_reply_buf(
				&read->parked, view.data + read->offset,
				clip(&view, read->size, read->offset));
	}
	if (r == 0)
		kv_view_put(cache, &view);
	kv_parked_put(&read->parked);
}

static void *reader(void *arg)
{
	struct kv_readers *readers = arg;
	struct queue *queue;
	struct read *read;

	pthread_mutex_lock(&readers->lock);
	for (;;) {
		queue = (struct queue *)kv_turns_next(&readers->queues);
		if (!queue && readers->stop)
			break;
		if (!queue) {
			pthread_cond_wait(&readers->more, &readers->lock);
			continue;
		}
		read = TAILQ_FIRST(&queue->reads);
		kv_turn_charge(&queue->turn, KV_MAX(read->size, 4096u));
		unqueue_locked(readers, read);
		pthread_mutex_unlock(&readers->lock);
		read_now(read);
		pthread_mutex_lock(&readers->lock);
	}
	pthread_mutex_unlock(&readers->lock);
	return NULL;
}

static int park(fuse_req_t req, struct kv_block *block, size_t size,
		uint64_t offset)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_readers *readers = mount->readers;
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
	pthread_mutex_lock(&readers->lock);
	read->queue = (struct queue *)kv_turn_get(&readers->queues, uid);
	TAILQ_INSERT_TAIL(&read->queue->reads, read, link);
	kv_turn_start(&readers->queues, &read->queue->turn);
	pthread_cond_signal(&readers->more);
	pthread_mutex_unlock(&readers->lock);
	kv_parked_arm(&read->parked);
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

int kv_readers_new(struct kv_mount *mount, struct kv_readers **ret_readers)
{
	struct kv_readers *readers = calloc(1, sizeof(*readers));
	int r;

	if (!readers)
		return -ENOMEM;
	readers->mount = mount;
	pthread_mutex_init(&readers->lock, NULL);
	pthread_cond_init(&readers->more, NULL);
	r = kv_turns_init(&readers->queues, sizeof(struct queue), TURN_BYTES,
			  queue_init);
	while (r == 0 && readers->n < THREADS) {
		r = kv_thread_start(&readers->threads[readers->n], "kvfs-read",
				    reader, readers);
		readers->n += r == 0;
	}
	if (r < 0) {
		kv_readers_free(readers);
		return r;
	}
	*ret_readers = readers;
	return 0;
}

void kv_readers_free(struct kv_readers *readers)
{
	if (!readers)
		return;
	pthread_mutex_lock(&readers->lock);
	readers->stop = true;
	pthread_cond_broadcast(&readers->more);
	pthread_mutex_unlock(&readers->lock);
	for (unsigned i = 0; i < readers->n; i++)
		pthread_join(readers->threads[i], NULL);
	kv_turns_fini(&readers->queues);
	pthread_cond_destroy(&readers->more);
	pthread_mutex_destroy(&readers->lock);
	free(readers);
}
