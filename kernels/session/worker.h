/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.h - threads for work that may wait, kept for the next one.
 */
#ifndef KV_KERNELS_SESSION_WORKER_H
#define KV_KERNELS_SESSION_WORKER_H

#include <sys/queue.h>

#include "common/kv.h"

struct kvfs_session;
struct kv_worker;

struct kv_workers {
	SLIST_HEAD(, kv_worker) idle; /* one at most */
	unsigned n;		      /* idle or not */
	bool stop;
};

/* @run(@arg) in a thread of its own, which it does not end.  -ENOMEM, -EAGAIN
 * and other errors of pthread_create. */
int kv_worker_start_locked(struct kvfs_session *session, void (*run)(void *arg),
			   void *arg);
/* Nothing runs any more, nor will: let the threads end. */
void kv_workers_end_locked(struct kvfs_session *session);

#endif
