/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attach.c - host memory that a session's device knows of while it is mapped.
 *
 * OWNS      the list of what is to be detached.  Not the memory.
 *
 * STATES    of a piece of memory:
 *
 *          UNKNOWN -> ATTACHED    kv_attach_locked
 *         ATTACHED -> DETACHING   kv_detach_locked
 *        DETACHING -> UNKNOWN     kv_detach_work: it can be unmapped
 *
 * INVARIANTS
 *   (1) Memory is unmapped only when it is UNKNOWN: a device that has pinned
 *       it must not find other memory at its address.
 *   (2) A device takes long to let go of memory, so that is for a thread that
 *       has nothing else to do, with no lock held.
 *
 * LOCKING   session->lock.
 */
#include "kernels/session/attach.h"
#include "kernels/device/device.h"
#include "kernels/session/mapped_segment.h"
#include "kernels/session/session.h"

void kv_attach_locked(struct kvfs_session *session, struct kv_attached *a,
		      const void *base, uint64_t bytes, bool writable)
{
	kv_assert_locked(&session->lock);
	if (!session->attacher || a->device)
		return;
	a->device = session->attacher;
	a->base = (void *)base;
	a->device->attach(a->base, bytes, writable);
	kv_attach_ask_locked(session);
}

void kv_attach_ask_locked(struct kvfs_session *session)
{
	const struct kvfs_device *device = session->attacher;
	const uint64_t live = atomic_load(&session->live);

	kv_assert_locked(&session->lock);
	if (live == 0 || live == session->asked_open || !device ||
	    !device->needs_writable || !device->needs_writable())
		return;
	session->asked_open = live;
	kv_rpc_post_tag_locked(session, WIRE_REGISTERS, 0);
}

void kv_attach_device_locked(struct kvfs_session *session,
			     const struct kvfs_device *device)
{
	struct kv_mapped_segment *m;

	kv_assert_locked(&session->lock);
	if (!session->attacher && device->attach) {
		session->attacher = device;
		TAILQ_FOREACH(m, &session->mappings, others)
			kv_attach_locked(session, &m->attached, m->base,
					 m->bytes, false);
	}
	kv_attach_ask_locked(session);
}

bool kv_detach_locked(struct kvfs_session *session, struct kv_attached *a,
		      void (*detached)(struct kvfs_session *session,
				       struct kv_attached *a))
{
	kv_assert_locked(&session->lock);
	if (!a->device)
		return false;
	a->detached = detached;
	TAILQ_INSERT_TAIL(&session->detaching, a, others);
	session->user->detaching_locked(session);
	return true;
}

bool kv_detach_work(struct kvfs_session *session)
{
	struct kv_attached *a;
	bool any = false;

	while ((a = TAILQ_FIRST(&session->detaching))) {
		TAILQ_REMOVE(&session->detaching, a, others);
		pthread_mutex_unlock(&session->lock);
		a->device->detach(a->base);
		a->device = NULL;
		a->detached(session, a);
		pthread_mutex_lock(&session->lock);
		any = true;
	}
	return any;
}
