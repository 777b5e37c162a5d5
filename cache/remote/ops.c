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
	TAILQ_INIT(&ops->ended);
	ops->wake = wake;
	ops->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return ops->event < 0 ? -errno : 0;
}

void kv_ops_fini(struct kv_ops *ops)
{
	kv_closep(&ops->event);
	pthread_mutex_destroy(&ops->lock);
	pthread_cond_destroy(&ops->changed);
}

int kv_ops_start(struct kv_ops *ops, const char *name, void *(*run)(void *),
		 void *arg)
{
	int r;

	pthread_mutex_lock(&ops->lock);
	r = kv_thread_start(&ops->threads[ops->n_threads], name, run, arg);
	ops->running += r == 0;
	ops->n_threads += r == 0;
	pthread_mutex_unlock(&ops->lock);
	return r;
}

void kv_ops_ended(struct kv_ops *ops)
{
	pthread_mutex_lock(&ops->lock);
	ops->running--;
	pthread_cond_broadcast(&ops->changed);
	pthread_mutex_unlock(&ops->lock);
}

int kv_ops_stop(struct kv_ops *ops)
{
	const uint64_t until = kv_now_ns() + STOP_NS;
	int r = 0;

	pthread_mutex_lock(&ops->lock);
	ops->stop = true;
	pthread_cond_broadcast(&ops->changed);
	if (ops->wake && ops->running)
		ops->wake(ops);
	while (ops->running && r == 0)
		r = kv_cond_wait_until(&ops->changed, &ops->lock, until);
	r = ops->running ? -EBUSY : 0;
	pthread_mutex_unlock(&ops->lock);
	while (r == 0 && ops->n_threads > 0)
		pthread_join(ops->threads[--ops->n_threads], NULL);
	return r;
}

struct kv_remote_op *kv_ops_take(struct kv_ops *ops, bool wait)
{
	struct kv_remote_op *op = NULL;

	pthread_mutex_lock(&ops->lock);
	while (!ops->stop && !(op = TAILQ_FIRST(&ops->queued)) && wait)
		pthread_cond_wait(&ops->changed, &ops->lock);
	if (op)
		TAILQ_REMOVE(&ops->queued, op, link);
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
	end_locked(ops, op, status);
	pthread_mutex_unlock(&ops->lock);
}

bool kv_op_is_cancelled(const struct kv_remote_op *op)
{
	return __atomic_load_n(&op->cancelled, __ATOMIC_RELAXED);
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

void kv_ops_submit(struct kv_ops *ops, struct kv_remote_op *const *submitted,
		   size_t n)
{
	pthread_mutex_lock(&ops->lock);
	for (size_t i = 0; i < n; i++) {
		struct kv_remote_op *op = submitted[i];

		op->cancelled = false;
		op->data = NULL;
		op->length = op->retry_after_ns = 0;
		atomic_store(&op->progress, 0);
		op->why[0] = '\0';
		TAILQ_INSERT_TAIL(&ops->queued, op, link);
	}
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
	if (queued) {
		TAILQ_REMOVE(&ops->queued, op, link);
		end_locked(ops, op, -ECANCELED);
	} else {
		__atomic_store_n(&op->cancelled, true, __ATOMIC_RELAXED);
		ops->cancels = true;
	}
	pthread_mutex_unlock(&ops->lock);
	if (!queued && ops->wake)
		ops->wake(ops);
}

size_t kv_ops_reap(struct kv_ops *ops, struct kv_remote_op **ret_ops,
		   size_t max)
{
	struct kv_remote_op *op;
	eventfd_t count;
	size_t n = 0;

	pthread_mutex_lock(&ops->lock);
	while (n < max && (op = TAILQ_FIRST(&ops->ended))) {
		TAILQ_REMOVE(&ops->ended, op, link);
		ret_ops[n++] = op;
	}
	if (TAILQ_EMPTY(&ops->ended))
		eventfd_read(ops->event, &count);
	pthread_mutex_unlock(&ops->lock);
	return n;
}
