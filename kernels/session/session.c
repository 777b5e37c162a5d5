/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - opening and closing a session, and waiting for its events.
 *
 * OWNS      struct kvfs_session and the descriptors for waking and waiting.
 *           What is in it is owned by the parts that have its names.
 *
 * INVARIANTS
 *   (1) event_fd, if there is one, is readable if and only if completed > 0.
 *   (2) When kvfs_close frees, no transfer is under way and no thread runs.
 *
 * LOCKING   session->lock guards what session.h says; lock order is there.
 */
#include <sys/eventfd.h>

#include "kernels/device/copier.h"
#include "kernels/session/fork.h"
#include "kernels/transfer/stream_sync.h"
#include "kernels/transfer/partial_block.h"
#include "kernels/session/session.h"
#include "kernels/transfer/stage.h"
#include "kernels/session/thread.h"

#define FIRST_CONNECT_NS 1000000000u

int kv_session_check(const struct kvfs_session *session)
{
	if (session == NULL)
		return -EINVAL;
	return session->fork_count == kv_fork_count() ? 0 : -EBADF;
}

void kv_session_wake(struct kvfs_session *session)
{
	eventfd_write(session->wake_fd, 1);
}

void kv_session_completed_locked(struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	if (session->completed++ == 0 && session->event_fd >= 0)
		eventfd_write(session->event_fd, 1);
	pthread_cond_broadcast(&session->changed);
}

uint64_t kv_time_after(uint64_t deadline)
{
	uint64_t now = kv_now_ns();

	return deadline > UINT64_MAX - now ? UINT64_MAX : now + deadline;
}

int kv_session_wait_locked(struct kvfs_session *session, uint64_t at)
{
	struct timespec t = {
		.tv_sec = (time_t)(at / 1000000000u),
		.tv_nsec = (long)(at % 1000000000u),
	};
	int r;

	if (at == UINT64_MAX)
		r = pthread_cond_wait(&session->changed, &session->lock);
	else
		r = pthread_cond_timedwait(&session->changed, &session->lock,
					   &t);
	return -r;
}

static void init_locks(struct kvfs_session *session)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&session->lookup_lock, NULL);
	pthread_mutex_init(&session->receive_lock, NULL);
	pthread_mutex_init(&session->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&session->changed, &attr);
	pthread_condattr_destroy(&attr);
}

static void session_free(struct kvfs_session *session)
{
	if (session == NULL)
		return;
	kv_link_close(&session->lookup);
	kv_closep(&session->wake_fd);
	kv_closep(&session->event_fd);
	pthread_cond_destroy(&session->changed);
	pthread_mutex_destroy(&session->lock);
	pthread_mutex_destroy(&session->receive_lock);
	pthread_mutex_destroy(&session->lookup_lock);
	free(session->received);
	free(session->path);
	free(session);
}

static void session_freep(struct kvfs_session **session)
{
	session_free(*session);
}

static int session_new(const char *path, struct kvfs_session **ret_session)
{
	_cleanup_(session_freep) struct kvfs_session *session = NULL;

	session = calloc(1, sizeof(*session));
	if (session == NULL)
		return -ENOMEM;
	init_locks(session);
	session->link.fd = session->lookup.fd = session->event_fd = -1;
	session->fork_count = kv_fork_count();
	kv_rpc_init(&session->rpc);
	LIST_INIT(&session->timers);
	TAILQ_INIT(&session->mappings);
	TAILQ_INIT(&session->detaching);
	TAILQ_INIT(&session->active);
	TAILQ_INIT(&session->saves);
	LIST_INIT(&session->paged);
	session->staging_bytes = KV_STAGE_BYTES;
	session->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (session->wake_fd < 0)
		return -errno;
	session->path = strdup(path);
	session->received = malloc(WIRE_MAX);
	if (session->path == NULL || session->received == NULL)
		return -ENOMEM;
	*ret_session = kv_steal(session);
	return 0;
}

int kvfs_open(const char *path, kvfs_session **ret_session)
{
	_cleanup_(session_freep) struct kvfs_session *session = NULL;
	uint64_t until = kv_time_after(FIRST_CONNECT_NS);
	int r;

	if (path == NULL || ret_session == NULL || path[0] == '\0' ||
	    strlen(path) >= KV_SOCKET_PATH_MAX)
		return -EINVAL;
	r = session_new(path, &session);
	if (r < 0)
		return r;
	kv_fork_watch(session);
	r = kv_lib_thread_start(&session->reader, "kvfs-reader", kv_reader_run,
				session);
	if (r < 0) {
		kv_fork_forget(session);
		return r;
	}
	pthread_mutex_lock(&session->lock);
	while (!session->tried && r == 0)
		r = kv_session_wait_locked(session, until);
	pthread_mutex_unlock(&session->lock);
	*ret_session = kv_steal(session);
	return 0;
}

void kvfs_close(kvfs_session *session)
{
	struct kv_copier *copier;

	if (kv_session_check(session) < 0)
		return;
	pthread_mutex_lock(&session->lock);
	kv_parts_close_locked(session);
	while (!TAILQ_EMPTY(&session->active))
		kv_session_wait_locked(session, UINT64_MAX);
	kv_workers_end_locked(session);
	kv_parts_free_locked(session);
	copier = kv_steal(session->copier);
	pthread_mutex_unlock(&session->lock);

	kv_copier_free(copier);
	pthread_mutex_lock(&session->lock);
	session->closing = true;
	pthread_mutex_unlock(&session->lock);
	kv_session_wake(session);
	pthread_join(session->reader, NULL);
	kv_stream_sync_free(kv_steal(session->stream_sync));
	kv_fork_forget(session);
	session_free(session);
}

int kvfs_fd(kvfs_session *session)
{
	int fd, r = kv_session_check(session);

	if (r < 0)
		return r;
	pthread_mutex_lock(&session->lock);
	if (session->event_fd < 0)
		session->event_fd = eventfd(session->completed > 0,
					    EFD_CLOEXEC | EFD_NONBLOCK);
	fd = session->event_fd < 0 ? -errno : session->event_fd;
	pthread_mutex_unlock(&session->lock);
	return fd;
}

int kvfs_process(kvfs_session *session)
{
	eventfd_t ignored;
	int n, r = kv_session_check(session);

	if (r < 0)
		return r;
	pthread_mutex_lock(&session->lock);
	if (session->event_fd >= 0)
		eventfd_read(session->event_fd, &ignored);
	n = (int)session->completed;
	session->completed = 0;
	pthread_mutex_unlock(&session->lock);
	return n;
}

int kvfs_connected(kvfs_session *session)
{
	int r = kv_session_check(session);

	return r < 0 ? r : atomic_load(&session->live) != 0;
}
