/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waiter.h - wait, on the caller's own thread, for one callback.
 */
#ifndef KV_CACHE_CORE_WAITER_H
#define KV_CACHE_CORE_WAITER_H

#include "common/kv.h"

struct kv_waiter {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done;
};

#define KV_WAITER_INIT                                                     \
	{                                                                  \
		PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false \
	}

static inline void kv_waiter_wake(struct kv_waiter *waiter)
{
	pthread_mutex_lock(&waiter->lock);
	waiter->done = true;
	pthread_cond_signal(&waiter->cond);
	pthread_mutex_unlock(&waiter->lock);
}

static inline void kv_waiter_wait(struct kv_waiter *waiter)
{
	pthread_mutex_lock(&waiter->lock);
	while (!waiter->done)
		pthread_cond_wait(&waiter->cond, &waiter->lock);
	pthread_mutex_unlock(&waiter->lock);
}

#endif
