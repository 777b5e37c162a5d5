/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.c - tell the kernel which attributes it must forget.
 *
 * OWNS      the queue, and the thread from start to stop.
 *
 * INVARIANTS
 *   (1) Notices before start or after stop are dropped: no kernel has cached these
 *       attributes, or will ask for them.
 *
 * LOCKING   notify->lock guards the queue, and is not held over calls of the kernel.
 */
#include "common/thread.h"
#include "fs/mount/mount.h"

#define QUEUE 4096u

struct kv_notify {
	struct kv_mount *mount;	      /* fixed after new */
	struct fuse_session *session; /* fixed after start */
	pthread_t thread;	      /* fixed after start */

	pthread_mutex_t lock;
	pthread_cond_t more;
	/* guarded by lock: the thread was started, and not stopped */
	bool running;
	unsigned first, n;     /* lock */
	uint64_t queue[QUEUE]; /* guarded by lock: nodes of blocks and spaces */
};

void kv_notify_node(struct kv_notify *notify, uint64_t node)
{
	pthread_mutex_lock(&notify->lock);
	if (notify->n == 0)
		pthread_cond_signal(&notify->more);
	if (notify->running && notify->n < QUEUE)
		notify->queue[(notify->first + notify->n++) % QUEUE] = node;
	pthread_mutex_unlock(&notify->lock);
}

static void forget(struct kv_notify *notify, fuse_ino_t node)
{
	/* Only attributes must be forgotten: a block's pages never change. */
	(void)fuse_lowlevel_notify_inval_inode(notify->session, node, -1, 0);
}

/* Forget the directories and blocks of the space @id; the kernel has the new attributes of
 * the space itself. */
static void forget_space(struct kv_notify *notify, uint32_t id)
{
	struct kv_mount *mount = notify->mount;
	_cleanup_(kv_space_putp) struct kv_space *space =
		kv_space_by_id(mount->cache, id);

	if (!space)
		return;
	for (unsigned byte = 0; byte < 256; byte++) {
		_cleanup_(kv_freep) uint64_t *ids = NULL;
		const uint64_t dir =
			kv_dir_node(mount, space, id, (uint8_t)byte);
		size_t n;

		if (!dir)
			continue;
		forget(notify, dir);
		if (kv_dir_list(mount->cache, space, (uint8_t)byte, &ids, &n) <
		    0)
			continue;
		for (size_t i = 0; i < n; i++)
			forget(notify, kv_node_of(KV_NODE_BLOCK, ids[i]));
	}
}

static void *run(void *arg)
{
	struct kv_notify *notify = arg;
	struct kv_node node;
	uint64_t ino;

	pthread_mutex_lock(&notify->lock);
	while (notify->running) {
		if (notify->n == 0) {
			pthread_cond_wait(&notify->more, &notify->lock);
			continue;
		}
		ino = notify->queue[notify->first];
		notify->first = (notify->first + 1) % QUEUE;
		notify->n--;
		pthread_mutex_unlock(&notify->lock);
		node = kv_node_decode(ino);
		if (node.type == KV_NODE_SPACE)
			forget_space(notify, node.space);
		else
			forget(notify, ino);
		pthread_mutex_lock(&notify->lock);
	}
	pthread_mutex_unlock(&notify->lock);
	return NULL;
}

int kv_notify_new(struct kv_mount *mount, struct kv_notify **ret_notify)
{
	struct kv_notify *notify = calloc(1, sizeof(*notify));

	if (!notify)
		return -ENOMEM;
	notify->mount = mount;
	pthread_mutex_init(&notify->lock, NULL);
	pthread_cond_init(&notify->more, NULL);
	*ret_notify = notify;
	return 0;
}

void kv_notify_free(struct kv_notify *notify)
{
	if (!notify)
		return;
	pthread_cond_destroy(&notify->more);
	pthread_mutex_destroy(&notify->lock);
	free(notify);
}

static bool set_running(struct kv_notify *notify, bool running)
{
	bool before;

	pthread_mutex_lock(&notify->lock);
	before = notify->running;
	notify->running = running;
	pthread_cond_signal(&notify->more);
	pthread_mutex_unlock(&notify->lock);
	return before;
}

int kv_notify_start(struct kv_notify *notify, struct fuse_session *session)
{
	int r;

	notify->session = session;
	set_running(notify, true);
	r = kv_thread_start(&notify->thread, "kvfs-notify", run, notify);
	if (r < 0)
		set_running(notify, false);
	return r;
}

void kv_notify_stop(struct kv_notify *notify)
{
	if (set_running(notify, false))
		pthread_join(notify->thread, NULL);
}
