/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.c - tell the kernel which attributes it must forget.
 *
 * OWNS      the queue of notices, and the notifier's thread from start to stop.
 *
 * INVARIANTS
 *   (1) Notices before start or after stop are dropped: no kernel has cached these
 *       attributes, or will ask for them.
 *
 * LOCKING   mount->lock guards the queue, and is not held over calls of the kernel.
 */
#include "fs/mount/mount.h"

#define IDLE_NS   \
	UINT64_C( \
		3600000000000) /* period: a notice wakes the notifier earlier */

void kv_notify_node(struct kv_mount *mount, uint64_t node)
{
	pthread_mutex_lock(&mount->lock);
	if (mount->notifying && mount->n_notices < KV_NOTICES) {
		mount->notices[(mount->first_notice + mount->n_notices++) %
			       KV_NOTICES] = node;
		if (mount->n_notices == 1)
			kv_periodic_wake(&mount->notifier);
	}
	pthread_mutex_unlock(&mount->lock);
}

static void forget(struct kv_mount *mount, fuse_ino_t node)
{
	/* Forget attributes only: cached pages of a block never change. */
	(void)fuse_lowlevel_notify_inval_inode(mount->session, node, -1, 0);
}

/* Tell the kernel to forget attributes of the directories and blocks of the
 * space @id; the space's own are up to date there. */
static void forget_space(struct kv_mount *mount, uint32_t id)
{
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
		forget(mount, dir);
		if (kv_dir_list(mount->cache, space, (uint8_t)byte, &ids, &n) <
		    0)
			continue;
		for (size_t i = 0; i < n; i++)
			forget(mount, kv_node_of(KV_NODE_BLOCK, ids[i]));
	}
}

/* Send the queued notices to the kernel. */
static void notify(void *arg)
{
	struct kv_mount *mount = arg;
	struct kv_node node;
	uint64_t ino;

	pthread_mutex_lock(&mount->lock);
	while (mount->notifying && mount->n_notices > 0) {
		ino = mount->notices[mount->first_notice];
		mount->first_notice = (mount->first_notice + 1) % KV_NOTICES;
		mount->n_notices--;
		pthread_mutex_unlock(&mount->lock);
		node = kv_node_decode(ino);
		if (node.type == KV_NODE_SPACE)
			forget_space(mount, node.space);
		else
			forget(mount, ino);
		pthread_mutex_lock(&mount->lock);
	}
	pthread_mutex_unlock(&mount->lock);
}

static void set_notifying(struct kv_mount *mount, bool notifying)
{
	pthread_mutex_lock(&mount->lock);
	mount->notifying = notifying;
	pthread_mutex_unlock(&mount->lock);
}

int kv_notify_start(struct kv_mount *mount, struct fuse_session *session)
{
	int r;

	mount->session = session;
	r = kv_periodic_start(&mount->notifier, "kvfs-notify", IDLE_NS, notify,
			      mount);
	set_notifying(mount, r == 0);
	return r;
}

void kv_notify_stop(struct kv_mount *mount)
{
	set_notifying(mount, false);
	kv_periodic_stop(&mount->notifier);
}
