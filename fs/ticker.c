/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ticker.c - a thread that does something every second.
 *
 * OWNS      the thread.
 *
 * LOCKING   ticker->lock guards stop; it is not held during a tick.
 */
#include "fs/thread.h"
#include "fs/ticker.h"

struct kv_ticker {
	void (*tick)(void *arg); /* fixed after start */
	void *arg;		 /* fixed after start */
	pthread_t thread;	 /* fixed after start */

	pthread_mutex_t lock;
	pthread_cond_t stopped;
	bool stop; /* lock */
};

static void *run(void *arg)
{
	struct kv_ticker *ticker = arg;
	struct timespec at;
	int r = 0;

	pthread_mutex_lock(&ticker->lock);
	while (!ticker->stop) {
		clock_gettime(CLOCK_MONOTONIC, &at);
		at.tv_sec++;
		while (!ticker->stop && r == 0)
			r = pthread_cond_timedwait(&ticker->stopped,
						   &ticker->lock, &at);
		pthread_mutex_unlock(&ticker->lock);
		if (r == ETIMEDOUT)
			ticker->tick(ticker->arg);
		r = 0;
		pthread_mutex_lock(&ticker->lock);
	}
	pthread_mutex_unlock(&ticker->lock);
	return NULL;
}

int kv_ticker_start(const char *name, void (*tick)(void *arg), void *arg,
		    struct kv_ticker **ret_ticker)
{
	struct kv_ticker *ticker = calloc(1, sizeof(*ticker));
	pthread_condattr_t monotonic;
	int r;

	if (ticker == NULL)
		return -ENOMEM;
	ticker->tick = tick;
	ticker->arg = arg;
	pthread_mutex_init(&ticker->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&ticker->stopped, &monotonic);
	pthread_condattr_destroy(&monotonic);
	r = kv_thread_start(&ticker->thread, name, run, ticker);
	if (r < 0) {
		free(ticker);
		return r;
	}
	*ret_ticker = ticker;
	return 0;
}

void kv_ticker_stop(struct kv_ticker *ticker)
{
	if (ticker == NULL)
		return;
	pthread_mutex_lock(&ticker->lock);
	ticker->stop = true;
	pthread_cond_signal(&ticker->stopped);
	pthread_mutex_unlock(&ticker->lock);
	pthread_join(ticker->thread, NULL);
	pthread_cond_destroy(&ticker->stopped);
	pthread_mutex_destroy(&ticker->lock);
	free(ticker);
}
