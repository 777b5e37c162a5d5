/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork.c - what a fork does to sessions: the child has none.
 *
 * OWNS      the list of the process's sessions and the count of forks.  They
 *           are the library's only global state; pthread_atfork has no other.
 *
 * INVARIANTS
 *   (1) A session is in the list from kvfs_open to kvfs_close.
 *   (2) In a child the list is empty, and the descriptors of the parent's
 *       sessions are closed.
 *
 * LOCKING   forks_lock, a leaf; held across fork itself, so that the child
 *           finds the list whole.  Sessions' own locks are not taken: in the
 *           child they may be held by threads that do not exist.
 */
#include <stdatomic.h>

#include "kernels/session/fork.h"
#include "kernels/session/session.h"
#include "kernels/transfer/stage.h"

static pthread_mutex_t forks_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t forks_once = PTHREAD_ONCE_INIT;
static TAILQ_HEAD(, kvfs_session) sessions = TAILQ_HEAD_INITIALIZER(sessions);
static atomic_uint forks;

static void before_fork(void)
{
	pthread_mutex_lock(&forks_lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&forks_lock);
}

static void in_child(void)
{
	struct kvfs_session *s;

	atomic_fetch_add(&forks, 1);
	TAILQ_FOREACH(s, &sessions, siblings) {
		kv_link_close(&s->link);
		kv_link_close(&s->lookup);
		kv_stage_forked(s->stage);
	}
	TAILQ_INIT(&sessions);
	pthread_mutex_unlock(&forks_lock);
}

static void register_handlers(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

unsigned kv_fork_count(void)
{
	return atomic_load(&forks);
}

void kv_fork_watch(struct kvfs_session *session)
{
	pthread_once(&forks_once, register_handlers);
	pthread_mutex_lock(&forks_lock);
	TAILQ_INSERT_TAIL(&sessions, session, siblings);
	pthread_mutex_unlock(&forks_lock);
}

void kv_fork_forget(struct kvfs_session *session)
{
	pthread_mutex_lock(&forks_lock);
	TAILQ_REMOVE(&sessions, session, siblings);
	pthread_mutex_unlock(&forks_lock);
}
