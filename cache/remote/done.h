/* SPDX-License-Identifier: Apache-2.0 */
/*
 * done.h - a backend's operations that have ended, until they are reaped.
 *
 * Calls are made with the lock held that the backend has for them, if it has
 * several threads.
 */
#ifndef KV_CACHE_REMOTE_DONE_H
#define KV_CACHE_REMOTE_DONE_H

#include "cache/remote/backend.h"

struct kv_done {
	struct kv_remote_ops ops;
	int event; /* readable while there are any; -1: fini has nothing to do */
};

/* -EMFILE and other errors of eventfd(2). */
int kv_done_init(struct kv_done *done);
void kv_done_fini(struct kv_done *done);

/* @op has ended, and is its user's when it is reaped. */
void kv_done_add(struct kv_done *done, struct kv_remote_op *op, int status);

/* As a backend's reap. */
size_t kv_done_reap(struct kv_done *done, struct kv_remote_op **ret_ops,
		    size_t max);

#endif
