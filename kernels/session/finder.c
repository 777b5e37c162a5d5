/* SPDX-License-Identifier: Apache-2.0 */
/*
 * finder.c - a look for the control socket, in a thread that may be left behind.
 *
 * OWNS      the thread, and memory for it that outlives the session if need be.
 *
 * STATES    LOOKING -> DONE   run            kv_finder_end joins it and frees
 *           LOOKING -> LEFT   kv_finder_end  run frees, whenever that is
 *
 * INVARIANTS
 *   (1) A thread that was left touches nothing but what is its own; and the
 *       library is linked so that it is never unloaded (-z nodelete).
 *
 * LOCKING   none: the state is atomic, and says whose the rest is.
 */
#include <limits.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

#include "common/thread.h"
#include "kernels/session/finder.h"

_Static_assert(KV_SOCKET_PATH_MAX >= PATH_MAX, "realpath writes so much");

enum state { LOOKING, DONE, LEFT };

struct kv_finder {
	_Atomic enum state state;
	pthread_t thread;
	int wake_fd, result;
	char socket[KV_SOCKET_PATH_MAX];
	char path[];
};

static int find(const char *path, char ret_socket[KV_SOCKET_PATH_MAX])
{
	char named[KV_SOCKET_PATH_MAX];
	int r = kv_link_find(path, named);

	if (r < 0)
		return r;
	return realpath(named, ret_socket) ? 0 : -errno;
}

static void *run(void *arg)
{
	struct kv_finder *finder = arg;
	enum state looking = LOOKING;

	finder->result = find(finder->path, finder->socket);
	if (atomic_compare_exchange_strong(&finder->state, &looking, DONE))
		eventfd_write(finder->wake_fd, 1);
	else
		free(finder);
	return NULL;
}

int kv_finder_start(const char *path, int wake_fd,
		    struct kv_finder **ret_finder)
{
	_cleanup_(kv_freep) struct kv_finder *finder =
		calloc(1, sizeof(*finder) + strlen(path) + 1);
	int r;

	if (!finder)
		return -ENOMEM;
	finder->wake_fd = wake_fd;
	strcpy(finder->path, path);
	r = kv_thread_start(&finder->thread, "kvfs-finder", run, finder);
	if (r < 0)
		return r;
	*ret_finder = kv_steal(finder);
	return 0;
}

bool kv_finder_is_done(const struct kv_finder *finder)
{
	return atomic_load(&finder->state) == DONE;
}

int kv_finder_end(struct kv_finder *finder, char ret_socket[KV_SOCKET_PATH_MAX])
{
	const pthread_t thread = finder->thread;
	enum state looking = LOOKING;
	int r;

	if (atomic_compare_exchange_strong(&finder->state, &looking, LEFT)) {
		pthread_detach(thread);
		return -ETIMEDOUT;
	}
	pthread_join(thread, NULL);
	r = finder->result;
	if (r == 0)
		strcpy(ret_socket, finder->socket);
	free(finder);
	return r;
}
