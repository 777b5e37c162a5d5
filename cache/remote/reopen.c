/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reopen.c - backends that could not be opened at mount, and may be some time.
 *
 * A thread of its own tries them, seldom and seldomer, as opening one may take
 * seconds, or hang.  It lives as long as the mount, as what it has started may: a
 * helper ends with the thread that started it.
 *
 * OWNS      struct kv_reopen, which the thread frees if it was left.
 *
 * STATES    of a backend:
 *             missing -> there   run: it could be opened
 *
 * LOCKING   reopen->lock for all of it; cache->lock is taken under it.  While it is
 *           not left the tier is there.
 */
#include <stdio.h>

#include "cache/remote/tier.h"
#include "common/thread.h"

#define FIRST_NS UINT64_C(1000000000)
#define LAST_NS UINT64_C(30000000000)
#define END_NS UINT64_C(500000000)

struct kv_reopen {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct kv_remote *remote; /* not to be used once it is left */
	pthread_t thread;
	bool stop, left, ended;
};

static void reopen_free(struct kv_reopen *reopen)
{
	pthread_mutex_destroy(&reopen->lock);
	pthread_cond_destroy(&reopen->changed);
	free(reopen);
}

static void wait_until(struct kv_reopen *reopen, uint64_t ns)
{
	const struct timespec until = {.tv_sec = (time_t)(ns / 1000000000u),
				       .tv_nsec = (long)(ns % 1000000000u)};

	pthread_cond_timedwait(&reopen->changed, &reopen->lock, &until);
}

/* It is asked from now on. */
static void is_there(struct kv_remote *remote, struct kv_remote_backend *b,
		     void *state)
{
	b->state = state;
	kv_lock(remote->cache);
	b->stats.there = b->stats.open = true;
	kv_unlock(remote->cache);
	atomic_store(&b->there, true);
	kv_remote_wake(remote);
	fprintf(stderr, "kvfs: remote=%s: it is there now\n", b->url);
}

/* Called, and comes back, with the lock, of which it lets go. */
static void try_to_open(struct kv_reopen *reopen, unsigned i)
{
	struct kv_remote_backend *b = &reopen->remote->backends[i];
	const struct kv_remote_driver *driver = b->driver;
	const bool writes = kv_remote_writes(reopen->remote);
	char *rest = strdup(b->rest), *why = NULL;
	void *state;
	int r;

	pthread_mutex_unlock(&reopen->lock);
	r = rest ? kv_remote_open(driver, rest, writes, &state, &why) : -ENOMEM;
	free(rest);
	free(why);
	pthread_mutex_lock(&reopen->lock);
	if (r == 0 && reopen->left)
		driver->close(state);
	else if (r == 0)
		is_there(reopen->remote, b, state);
}

static bool any_missing(const struct kv_remote *remote)
{
	for (unsigned i = 0; i < remote->n; i++)
		if (!atomic_load(&remote->backends[i].there))
			return true;
	return false;
}

static void *run(void *arg)
{
	struct kv_reopen *reopen = arg;
	uint64_t pause = FIRST_NS;
	bool left;

	pthread_mutex_lock(&reopen->lock);
	while (!reopen->stop) {
		if (any_missing(reopen->remote))
			wait_until(reopen, kv_now_ns() + pause);
		else
			pthread_cond_wait(&reopen->changed, &reopen->lock);
		for (unsigned i = 0; !reopen->stop && i < reopen->remote->n;
		     i++)
			if (!atomic_load(&reopen->remote->backends[i].there))
				try_to_open(reopen, i);
		pause = KV_MIN(2 * pause, LAST_NS);
	}
	reopen->ended = true;
	left = reopen->left;
	pthread_cond_broadcast(&reopen->changed);
	pthread_mutex_unlock(&reopen->lock);
	if (left)
		reopen_free(reopen);
	return NULL;
}

int kv_reopen_start(struct kv_remote *remote)
{
	struct kv_reopen *reopen;
	int r;

	if (!any_missing(remote))
		return 0;
	reopen = calloc(1, sizeof(*reopen));
	if (!reopen)
		return -ENOMEM;
	pthread_mutex_init(&reopen->lock, NULL);
	kv_cond_init(&reopen->changed);
	reopen->remote = remote;
	r = kv_thread_start(&reopen->thread, "kvfs-reopen", run, reopen);
	if (r < 0)
		reopen_free(reopen);
	else
		remote->reopen = reopen;
	return r;
}

/* One that is being opened may hang: then it is closed when it comes. */
void kv_reopen_stop(struct kv_remote *remote)
{
	struct kv_reopen *reopen = kv_steal(remote->reopen);
	const uint64_t until = kv_now_ns() + END_NS;
	pthread_t thread;
	bool left;

	if (!reopen)
		return;
	pthread_mutex_lock(&reopen->lock);
	thread = reopen->thread;
	reopen->stop = true;
	pthread_cond_broadcast(&reopen->changed);
	while (!reopen->ended && kv_now_ns() < until)
		wait_until(reopen, until);
	left = reopen->left = !reopen->ended;
	pthread_mutex_unlock(&reopen->lock);
	if (left) {
		pthread_detach(thread);
		return;
	}
	pthread_join(thread, NULL);
	reopen_free(reopen);
}
