/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.c - threads for work that may wait.  One stays for the next work: on a
 * busy machine a new thread has its turn much later than one that wakes.
 *
 * OWNS      the workers; a worker frees itself.
 *
 * STATES    of a worker:
 *
 *           RUNNING -> IDLE     go_on_locked, if no other is
 *           IDLE -> RUNNING     kv_worker_start_locked
 *           RUNNING -> ended    go_on_locked
 *           IDLE -> ended       kv_workers_end_locked
 *
 * LOCKING   session->lock, which no worker has while it runs something.
 */
#include "kernels/session/session.h"
#include "kernels/session/thread.h"
#include "kernels/session/worker.h"

struct kv_worker {
	struct kvfs_session *session;
	void (*run)(void *arg); /* NULL: idle */
	void *arg;
	pthread_cond_t wake;
	SLIST_ENTRY(kv_worker) others; /* idle ones */
};

/* Whether there is something to run; this may wait for long. */
static bool go_on_locked(struct kv_worker *worker)
{
	struct kv_workers *workers = &worker->session->workers;

	if (worker->run != NULL)
		return true;
	if (workers->stop || !SLIST_EMPTY(&workers->idle))
		return false;
	SLIST_INSERT_HEAD(&workers->idle, worker, others);
	while (worker->run == NULL && !workers->stop)
		pthread_cond_wait(&worker->wake, &worker->session->lock);
	return worker->run != NULL;
}

static void *live(void *arg)
{
	struct kv_worker *worker = arg;
	struct kvfs_session *session = worker->session;

	pthread_mutex_lock(&session->lock);
	pthread_detach(pthread_self());
	while (go_on_locked(worker)) {
		pthread_mutex_unlock(&session->lock);
		worker->run(worker->arg);
		pthread_mutex_lock(&session->lock);
		worker->run = NULL;
	}
	pthread_cond_destroy(&worker->wake);
	free(worker);
	session->workers.n--;
	pthread_cond_broadcast(&session->changed);
	pthread_mutex_unlock(&session->lock);
	return NULL;
}

int kv_worker_start_locked(struct kvfs_session *session, void (*run)(void *arg),
			   void *arg)
{
	struct kv_workers *workers = &session->workers;
	struct kv_worker *worker = SLIST_FIRST(&workers->idle);
	pthread_t thread;
	int r;

	kv_assert_locked(&session->lock);
	if (worker != NULL) {
		SLIST_REMOVE_HEAD(&workers->idle, others);
		worker->run = run;
		worker->arg = arg;
		pthread_cond_signal(&worker->wake);
		return 0;
	}
	worker = calloc(1, sizeof(*worker));
	if (worker == NULL)
		return -ENOMEM;
	*worker =
		(struct kv_worker){.session = session, .run = run, .arg = arg};
	pthread_cond_init(&worker->wake, NULL);
	/* It waits for the lock, so that its name is set before it goes. */
	r = kv_lib_thread_start(&thread, "kvfs-worker", live, worker);
	if (r < 0) {
		pthread_cond_destroy(&worker->wake);
		free(worker);
		return r;
	}
	workers->n++;
	return 0;
}

void kv_workers_end_locked(struct kvfs_session *session)
{
	struct kv_workers *workers = &session->workers;
	struct kv_worker *worker;

	kv_assert_locked(&session->lock);
	workers->stop = true;
	SLIST_FOREACH(worker, &workers->idle, others)
		pthread_cond_signal(&worker->wake);
	while (workers->n > 0)
		kv_session_wait_locked(session, UINT64_MAX);
}
