/* SPDX-License-Identifier: Apache-2.0 */
/*
 * done.c - a backend's operations that have ended, until they are reaped.
 *
 * OWNS      the eventfd.
 *
 * INVARIANTS
 *   (1) The event is readable whenever there are operations.
 *
 * LOCKING   the backend's.
 */
#include <sys/eventfd.h>

#include "cache/remote/done.h"

int kv_done_init(struct kv_done *done)
{
	TAILQ_INIT(&done->ops);
	done->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return done->event < 0 ? -errno : 0;
}

void kv_done_fini(struct kv_done *done)
{
	kv_closep(&done->event);
}

void kv_done_add(struct kv_done *done, struct kv_remote_op *op, int status)
{
	op->status = status;
	op->under_way = false;
	op->of = NULL;
	TAILQ_INSERT_TAIL(&done->ops, op, link);
	eventfd_write(done->event, 1);
}

size_t kv_done_reap(struct kv_done *done, struct kv_remote_op **ret_ops,
		    size_t max)
{
	struct kv_remote_op *op;
	eventfd_t count;
	size_t n = 0;

	while (n < max && (op = TAILQ_FIRST(&done->ops))) {
		TAILQ_REMOVE(&done->ops, op, link);
		ret_ops[n++] = op;
	}
	if (TAILQ_EMPTY(&done->ops))
		eventfd_read(done->event, &count);
	return n;
}
