/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h - the operations of a driver: queued, taken by its threads, ended, reaped.
 *
 * A driver's structure begins with its struct kv_ops, so that kv_ops_submit, _cancel, _fd
 * and _reap are calls of its struct kv_remote_driver.
 */
#ifndef KV_CACHE_REMOTE_OPS_H
#define KV_CACHE_REMOTE_OPS_H

#include "cache/remote/backend.h"

struct kv_ops {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* an operation, or stop, or running */
	struct kv_remote_ops queued, ended; /* lock, as are these */
	bool cancels;			    /* operations were cancelled */
	bool stop;
	unsigned running; /* threads */
	int event; /* fixed; eventfd, readable while operations have ended */
	void (*wake)(
		struct kv_ops *ops); /* fixed; wakes a thread; may be NULL */
};

/* Errors of eventfd(2); @ops must be finished all the same. */
int kv_ops_init(struct kv_ops *ops, void (*wake)(struct kv_ops *ops));
void kv_ops_fini(struct kv_ops *ops);
/* Start one more thread. */
int kv_ops_start(struct kv_ops *ops, pthread_t *ret_thread, const char *name,
		 void *(*run)(void *), void *arg);
/* The thread ends. */
void kv_ops_ended(struct kv_ops *ops);
/* Let the threads end; -EBUSY: one of them does not within a second. */
int kv_ops_stop(struct kv_ops *ops);

/* Take the first queued operation; @wait: until there is one.  NULL: none, or stop. */
struct kv_remote_op *kv_ops_take(struct kv_ops *ops, bool wait);
/* End @op with @status, and without a cause if that is no failure. */
void kv_ops_end(struct kv_ops *ops, struct kv_remote_op *op, int status);
bool kv_op_is_cancelled(const struct kv_remote_op *op);
/* Set the cause of a failure as one line of printable characters; returns @status. */
int kv_op_failed(struct kv_remote_op *op, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

void kv_ops_submit(void *backend, struct kv_remote_op *const *ops, size_t n);
void kv_ops_cancel(void *backend, struct kv_remote_op *op);
int kv_ops_fd(void *backend);
size_t kv_ops_reap(void *backend, struct kv_remote_op **ret_ops, size_t max);

#endif
