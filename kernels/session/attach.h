/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attach.h - host memory that a session's device knows of while it is mapped.
 *
 * All calls with session->lock held.
 */
#ifndef KV_KERNELS_SESSION_ATTACH_H
#define KV_KERNELS_SESSION_ATTACH_H

#include <sys/queue.h>

#include "common/kv.h"

struct kvfs_device;
struct kvfs_session;

/* Part of what is mapped; zeroed memory is one that is not attached. */
struct kv_attached {
	TAILQ_ENTRY(kv_attached) others;
	const struct kvfs_device *device; /* NULL: not attached */
	void *base;
	void (*detached)(struct kvfs_session *session, struct kv_attached *a);
};
TAILQ_HEAD(kv_attached_list, kv_attached);

/* The session has a pool on @device: it is told of all segments there are, and
 * will be of what comes.  Only the first device that wants to know is. */
void kv_attach_device_locked(struct kvfs_session *session,
			     const struct kvfs_device *device);

/* There is a connection, or a pool, or the device knows more: if it needs
 * memory that this process may write, the daemon is asked for that, once. */
void kv_attach_ask_locked(struct kvfs_session *session);

/* Copies may soon come from these bytes, or (@writable) go there. */
void kv_attach_locked(struct kvfs_session *session, struct kv_attached *a,
		      const void *base, uint64_t bytes, bool writable);

/*
 * No copy uses it any more.  False: no device knows of it.  Else @detached is
 * called when that is so, by a thread of its own, without the lock.
 */
bool kv_detach_locked(struct kvfs_session *session, struct kv_attached *a,
		      void (*detached)(struct kvfs_session *session,
				       struct kv_attached *a));

/* That thread's part; true if there was something. */
bool kv_detach_work(struct kvfs_session *session);

#endif
