/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - threads of kvfs's own: named, and deaf to the program's signals;
 * and those that do something at once, and again whenever a period has passed.
 */
#ifndef KV_COMMON_THREAD_H
#define KV_COMMON_THREAD_H

#include "common/kv.h"

/*
 * As pthread_create.  Every signal is blocked in the thread but those of its
 * own faults (SIGBUS, SIGSEGV, SIGFPE, SIGILL).  @name: at most 15 bytes, as
 * ps -T shows it.  -EAGAIN.
 */
int kv_thread_start(pthread_t *ret_thread, const char *name,
		    void *(*run)(void *), void *arg);

/* A part of its owner; all zero is one at rest.  Fields are thread.c's. */
struct kv_periodic {
	uint64_t period_ns; /* fixed after start, as are these: */
	void (*tick)(void *arg);
	void *arg;
	pthread_t thread;
	bool running;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool woken;	   /* lock */
	_Atomic bool stop; /* set under lock */
};

/*
 * Call @tick(@arg) from a thread of its own until kv_periodic_stop, with
 * @period_ns from the end of one tick to the next.  @name: at most 15 bytes, as
 * ps -T shows it.  -EAGAIN: then @periodic is at rest.
 */
int kv_periodic_start(struct kv_periodic *periodic, const char *name,
		      uint64_t period_ns, void (*tick)(void *arg), void *arg);

/* Tick now; during a tick: once more after it, without a pause. */
void kv_periodic_wake(struct kv_periodic *periodic);

/* End the thread, after the tick under way.  One at rest stays so. */
void kv_periodic_stop(struct kv_periodic *periodic);

/* For long ticks: whether to end early. */
bool kv_periodic_stopping(const struct kv_periodic *periodic);

/* Pause within a tick for @ns, or until kv_periodic_stop.  Hold no lock. */
void kv_periodic_rest(struct kv_periodic *periodic, uint64_t ns);

#endif
