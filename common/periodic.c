/* SPDX-License-Identifier: Apache-2.0 */
/*
 * periodic.c - a thread that does something at once, and again whenever a
 * period has passed.
 *
 * OWNS      the thread.
 *
 * LOCKING   periodic->lock is a leaf; it is not held during a tick.
 */
#include "common/periodic.h"
#include "common/thread.h"

/* Returns at a stop, after @ns, or, if @wakes, at a wake. */
static void pause_locked(struct kv_periodic *periodic, uint64_t ns, bool wakes)
{
	const uint64_t until = kv_now_ns() + ns;
	const struct timespec at = {
		.tv_sec = (time_t)(until / 1000000000u),
		.tv_nsec = (long)(until % 1000000000u),
	};
	int r = 0;

	kv_assert_locked(&periodic->lock);
	while (!periodic->stop && !(wakes && periodic->woken) && r == 0)
		r = pthread_cond_timedwait(&periodic->changed, &periodic->lock,
					   &at);
}

static void *run(void *arg)
{
	struct kv_periodic *periodic = arg;

	pthread_mutex_lock(&periodic->lock);
	while (!periodic->stop) {
		periodic->woken = false;
		pthread_mutex_unlock(&periodic->lock);
		periodic->tick(periodic->arg);
		pthread_mutex_lock(&periodic->lock);
		pause_locked(periodic, periodic->period_ns, true);
	}
	pthread_mutex_unlock(&periodic->lock);
	return NULL;
}

static void fini(struct kv_periodic *periodic)
{
	pthread_cond_destroy(&periodic->changed);
	pthread_mutex_destroy(&periodic->lock);
	periodic->running = false;
}

int kv_periodic_start(struct kv_periodic *periodic, const char *name,
		      uint64_t period_ns, void (*tick)(void *arg), void *arg)
{
	pthread_condattr_t monotonic;
	int r;

	*periodic = (struct kv_periodic){
		.period_ns = period_ns, .tick = tick, .arg = arg};
	pthread_mutex_init(&periodic->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&periodic->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	periodic->running = true;
	r = kv_thread_start(&periodic->thread, name, run, periodic);
	if (r < 0)
		fini(periodic);
	return r;
}

void kv_periodic_wake(struct kv_periodic *periodic)
{
	if (!periodic->running)
		return;
	pthread_mutex_lock(&periodic->lock);
	periodic->woken = true;
	pthread_cond_signal(&periodic->changed);
	pthread_mutex_unlock(&periodic->lock);
}

void kv_periodic_stop(struct kv_periodic *periodic)
{
	if (!periodic->running)
		return;
	pthread_mutex_lock(&periodic->lock);
	periodic->stop = true;
	pthread_cond_signal(&periodic->changed);
	pthread_mutex_unlock(&periodic->lock);
	pthread_join(periodic->thread, NULL);
	fini(periodic);
}

bool kv_periodic_stopping(const struct kv_periodic *periodic)
{
	return periodic->stop;
}

void kv_periodic_rest(struct kv_periodic *periodic, uint64_t ns)
{
	pthread_mutex_lock(&periodic->lock);
	pause_locked(periodic, ns, false);
	pthread_mutex_unlock(&periodic->lock);
}
