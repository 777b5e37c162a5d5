/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ingest.c - a few threads and one queue.
 *
 * OWNS      the threads and a hash state for each.  Jobs are their owners'.
 *
 * LOCKING   ingest->lock guards the queue and `stopping`.  It is a leaf; jobs
 *           run without it.
 */
#include "common/thread.h"
#include "fs/control/ingest.h"

struct worker {
	struct kv_ingest *ingest;
	struct kv_hash *hash;
	pthread_t thread;
};

struct kv_ingest {
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct kv_ingest_job *first, **last; /* lock */
	bool stopping;			     /* lock */
	size_t n_workers;		     /* fixed after start */
	struct worker workers[KV_INGEST_THREADS];
};

static struct kv_ingest_job *take(struct kv_ingest *ingest)
{
	struct kv_ingest_job *job;

	pthread_mutex_lock(&ingest->lock);
	while (!ingest->first && !ingest->stopping)
		pthread_cond_wait(&ingest->more, &ingest->lock);
	job = ingest->first;
	if (job) {
		ingest->first = job->next;
		if (!ingest->first)
			ingest->last = &ingest->first;
	}
	pthread_mutex_unlock(&ingest->lock);
	return job;
}

static void *work(void *arg)
{
	struct worker *worker = arg;
	struct kv_ingest_job *job;

	while ((job = take(worker->ingest)))
		job->work(job, worker->hash);
	return NULL;
}

static int start_worker(struct kv_ingest *ingest)
{
	struct worker *worker = &ingest->workers[ingest->n_workers];
	int r;

	worker->ingest = ingest;
	r = kv_hash_new(&worker->hash);
	if (r < 0)
		return r;
	r = kv_thread_start(&worker->thread, "kvfs-ingest", work, worker);
	if (r < 0) {
		kv_hash_free(worker->hash);
		return r;
	}
	ingest->n_workers++;
	return 0;
}

int kv_ingest_start(struct kv_ingest **ret_ingest)
{
	struct kv_ingest *ingest = calloc(1, sizeof(*ingest));
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int r = 0;

	if (!ingest)
		return -ENOMEM;
	pthread_mutex_init(&ingest->lock, NULL);
	pthread_cond_init(&ingest->more, NULL);
	ingest->last = &ingest->first;
	for (long i = 0; i < KV_MIN(KV_MAX(cpus, 1), KV_INGEST_THREADS); i++) {
		r = start_worker(ingest);
		if (r < 0)
			break;
	}
	/* One is enough to work, if slowly. */
	if (ingest->n_workers == 0) {
		kv_ingest_stop(ingest);
		return r;
	}
	*ret_ingest = ingest;
	return 0;
}

void kv_ingest_stop(struct kv_ingest *ingest)
{
	if (!ingest)
		return;
	pthread_mutex_lock(&ingest->lock);
	ingest->stopping = true;
	pthread_cond_broadcast(&ingest->more);
	pthread_mutex_unlock(&ingest->lock);
	for (size_t i = 0; i < ingest->n_workers; i++) {
		pthread_join(ingest->workers[i].thread, NULL);
		kv_hash_free(ingest->workers[i].hash);
	}
	pthread_cond_destroy(&ingest->more);
	pthread_mutex_destroy(&ingest->lock);
	free(ingest);
}

void kv_ingest_add(struct kv_ingest *ingest, struct kv_ingest_job *job)
{
	job->next = NULL;
	pthread_mutex_lock(&ingest->lock);
	*ingest->last = job;
	ingest->last = &job->next;
	pthread_cond_signal(&ingest->more);
	pthread_mutex_unlock(&ingest->lock);
}
