/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.c - the operations of a driver: queued, taken by its threads, ended, reaped.
 *
 * OWNS      operations from submit to reap; the eventfd.
 *
 * INVARIANTS
 *   (1) An operation is queued, taken, or ended.
 *   (2) The eventfd is readable while operations have ended.
 *
 * LOCKING   ops->lock is a leaf.
 */
#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>

#include "cache/remote/backend.h"
#include "common/thread.h"

#define STOP_NS UINT64_C(1000000000)

int kv_ops_init(struct kv_ops *ops, void (*wake)(struct kv_ops *ops))
{
	pthread_mutex_init(&ops->lock, NULL);
	kv_cond_init(&ops->changed);
	TAILQ_INIT(&ops->queued);
	TAILQ_INIT(&ops->taken);
	TAILQ_INIT(&ops->ended);
	ops->wake = wake;
	ops->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return ops->event < 0 ? -errno : 0;
}

int kv_ops_start(struct kv_ops *ops, const char *name, void *(*run)(void *),
		 void *arg)
{
	int r = kv_thread_start(&ops->threads[ops->n_threads], name, run, arg);
	ops->n_threads += r == 0;
	return r;
}

int kv_ops_fini(struct kv_ops *ops)
{
	const uint64_t until = kv_now_ns() + STOP_NS;

	pthread_mutex_lock(&ops->lock);
	ops->stop = true;
	pthread_cond_broadcast(&ops->changed);
	pthread_mutex_unlock(&ops->lock);
	if (ops->wake && ops->n_threads > 0)
		ops->wake(ops);
	while (ops->n_threads > 0) {
		if (pthread_tryjoin_np(ops->threads[ops->n_threads - 1],
				       NULL) == 0)
			ops->n_threads--;
		else if (kv_now_ns() < until)
			usleep(1000);
		else
			return -EBUSY;
	}
	kv_closep(&ops->event);
	pthread_mutex_destroy(&ops->lock);
	pthread_cond_destroy(&ops->changed);
	return 0;
}

/* Return whether @op leaves half of the threads to other tenants, and a DELETE, which may
 * take long, three quarters to others: operations may hang. */
static bool may_take(const struct kv_ops *ops, const struct kv_remote_op *op)
{
	const bool deletes = op->call == KV_REMOTE_DELETE;
	const size_t n = strcspn(op->name, "/") + 1;
	const struct kv_remote_op *other;
	unsigned taken = 0;

	TAILQ_FOREACH(other, &ops->taken, link)
		taken += strncmp(other->name, op->name, n) == 0 ||
			 (deletes && other->call == KV_REMOTE_DELETE);
	return taken < KV_OPS_THREADS / (deletes ? 4 : 2);
}

struct kv_remote_op *kv_ops_take(struct kv_ops *ops, bool waits)
{
	struct kv_remote_op *op = NULL;

	pthread_mutex_lock(&ops->lock);
	while (!ops->stop) {
		TAILQ_FOREACH(op, &ops->queued, link)
			if (!waits || may_take(ops, op))
				break;
		if (op || !waits)
			break;
		pthread_cond_wait(&ops->changed, &ops->lock);
	}
	if (op) {
		TAILQ_REMOVE(&ops->queued, op, link);
		TAILQ_INSERT_TAIL(&ops->taken, op, link);
	}
	pthread_mutex_unlock(&ops->lock);
	return op;
}

static void end_locked(struct kv_ops *ops, struct kv_remote_op *op, int status)
{
	if (status == 0 || status == -ENOENT || status == -ECANCELED)
		op->why[0] = '\0';
	op->status = status;
	TAILQ_INSERT_TAIL(&ops->ended, op, link);
	eventfd_write(ops->event, 1);
}

void kv_ops_end(struct kv_ops *ops, struct kv_remote_op *op, int status)
{
	pthread_mutex_lock(&ops->lock);
	TAILQ_REMOVE(&ops->taken, op, link);
	end_locked(ops, op, status);
	pthread_cond_broadcast(&ops->changed); /* the tenant may go on */
	pthread_mutex_unlock(&ops->lock);
}

int kv_op_room(struct kv_ops *ops, struct kv_remote_op *op, uint64_t length)
{
	atomic_fetch_add(&op->progress, 1);
	op->length = length;
	op->data = length <= op->max ? malloc(length) : NULL;
	ops->lent += op->data ? length : 0;
	return op->data ? 0 : -EAGAIN;
}

int kv_op_failed(struct kv_remote_op *op, int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(op->why, sizeof(op->why), format, args);
	va_end(args);
	for (char *c = op->why; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return status;
}

void kv_ops_submit(struct kv_ops *ops, struct kv_remote_op *op)
{
	op->cancelled = false;
	free(kv_steal(op->data));
	op->length = op->call == KV_REMOTE_PUT
			     ? op->parts[0].iov_len + op->parts[1].iov_len
			     : 0;
	ops->lent += op->length;
	op->retry_after_ns = 0;
	atomic_store(&op->progress, 0);
	op->why[0] = '\0';
	pthread_mutex_lock(&ops->lock);
	TAILQ_INSERT_TAIL(&ops->queued, op, link);
	pthread_cond_broadcast(&ops->changed);
	pthread_mutex_unlock(&ops->lock);
	if (ops->wake)
		ops->wake(ops);
}

void kv_ops_cancel(struct kv_ops *ops, struct kv_remote_op *op)
{
	struct kv_remote_op *queued;

	pthread_mutex_lock(&ops->lock);
	TAILQ_FOREACH(queued, &ops->queued, link)
		if (queued == op)
			break;
	op->cancelled = !queued;
	if (queued) {
		TAILQ_REMOVE(&ops->queued, op, link);
		end_locked(ops, op, -ECANCELED);
	}
	pthread_mutex_unlock(&ops->lock);
	if (!queued && ops->wake)
		ops->wake(ops);
}

struct kv_remote_op *kv_ops_reap(struct kv_ops *ops)
{
	struct kv_remote_op *op;
	eventfd_t count;

	pthread_mutex_lock(&ops->lock);
	op = TAILQ_FIRST(&ops->ended);
	if (op)
		TAILQ_REMOVE(&ops->ended, op, link);
	if (TAILQ_EMPTY(&ops->ended))
		eventfd_read(ops->event, &count);
	pthread_mutex_unlock(&ops->lock);
	if (op && (op->data || op->call == KV_REMOTE_PUT))
		ops->lent -= op->length;
	return op;
}
