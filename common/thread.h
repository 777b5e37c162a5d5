/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - threads and child processes with a name and without signals, periodic
 * threads, and condition variables on the monotonic clock.
 */
#ifndef KV_COMMON_THREAD_H
#define KV_COMMON_THREAD_H

#include "common/kv.h"

/*
 * Start a thread as pthread_create(3) does, with every signal blocked except
 * those of its own faults (SIGBUS, SIGSEGV, SIGFPE, SIGILL).  @name: at most 15
 * bytes, as ps -T shows.  -EAGAIN: no more threads can be started.
 */
int kv_thread_start(pthread_t *ret_thread, const char *name,
		    void *(*run)(void *), void *arg);

/*
 * Make this process, a child without exec(2), a helper that ends with its parent only: in
 * a session of its own, with every signal blocked, without descriptors but 0, 1, 2 and
 * @socket, which becomes 3.  ps(1) shows @name.  Returns 3.
 */
int kv_child_begin(int socket, const char *name);
/* Wait for the end of a child, a second at most. */
void kv_child_end(pid_t pid);

/* Initialise a condition variable for kv_cond_wait_until. */
void kv_cond_init(pthread_cond_t *cond);

/* Wait on @cond until kv_now_ns() is @at_ns.  Returns 0 or -ETIMEDOUT. */
int kv_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock,
		       uint64_t at_ns);

/* A periodic thread, embedded in its owner; a zeroed struct is a stopped
 * thread.  Only thread.c uses the fields. */
struct kv_periodic {
	uint64_t period_ns; /* constant while running, as all before @lock */
	void (*tick)(void *arg);
	void *arg;
	pthread_t thread;
	bool running;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool woken;	   /* lock */
	_Atomic bool stop; /* written with @lock held */
};

/*
 * Start a thread that calls @tick(@arg) at once, and again @period_ns after
 * each call has returned, until kv_periodic_stop.  @name: as kv_thread_start.
 *   -EAGAIN  no more threads can be started; @periodic is stopped
 */
int kv_periodic_start(struct kv_periodic *periodic, const char *name,
		      uint64_t period_ns, void (*tick)(void *arg), void *arg);

/* Begin the next tick at once; if a tick is running, repeat it without a
 * pause. */
void kv_periodic_wake(struct kv_periodic *periodic);

/* Wait for the current tick to finish and end the thread.  No effect on a
 * stopped thread. */
void kv_periodic_stop(struct kv_periodic *periodic);

/* Return whether kv_periodic_stop was called, for ticks that can end early. */
bool kv_periodic_stopping(const struct kv_periodic *periodic);

/* Sleep within a tick for @ns or until kv_periodic_stop.  The caller holds no
 * lock. */
void kv_periodic_rest(struct kv_periodic *periodic, uint64_t ns);

#endif
