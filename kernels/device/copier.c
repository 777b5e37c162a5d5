/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copier.c - the library's copy threads: one for each processor, four at most.
 *
 * OWNS      the threads and the queue of jobs.  Not the jobs.
 *
 * INVARIANTS
 *   (1) Every job submitted is run once, also when the copier is freed.
 *   (2) Jobs are queued in order of arrival; a job with k older jobs begins
 *       after at most KV_COPIER_FAIR * (k + 1) other jobs.
 *   (3) best is the highest rank in the queue; INT64_MIN: the queue is empty.
 *
 * LOCKING   copier->lock guards the queue; a leaf, released while a job runs.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "common/thread.h"
#include "kernels/device/device.h"

#define THREADS_MAX 4

struct kv_copier {
	pthread_mutex_t lock;
	pthread_cond_t work;
	TAILQ_HEAD(, kv_job) jobs; /* lock */
	_Atomic int64_t best; /* highest rank of a queued job; set with lock */
	unsigned picks;	      /* lock; jobs taken after the last oldest one */
	bool stop;	      /* lock */
	unsigned n_threads;   /* fixed after new */
	pthread_t threads[THREADS_MAX]; /* fixed after new */
};

static int64_t rank(const struct kv_job *job)
{
	return (job->kind == KV_JOB_LOAD ? (int64_t)1 << 32 : 0) +
	       job->priority;
}

static struct kv_job *first_of_best_locked(const struct kv_copier *copier)
{
	struct kv_job *job, *best = TAILQ_FIRST(&copier->jobs);

	TAILQ_FOREACH(job, &copier->jobs, others)
		if (rank(job) > rank(best))
			best = job;
	return best;
}

static void unqueue_locked(struct kv_copier *copier, struct kv_job *job)
{
	const struct kv_job *best;

	TAILQ_REMOVE(&copier->jobs, job, others);
	best = first_of_best_locked(copier);
	atomic_store(&copier->best, best ? rank(best) : INT64_MIN);
}

static struct kv_job *take_job_locked(struct kv_copier *copier)
{
	struct kv_job *job = first_of_best_locked(copier);

	if (!job)
		return NULL;
	if (++copier->picks >= KV_COPIER_FAIR) {
		job = TAILQ_FIRST(&copier->jobs);
		copier->picks = 0;
	}
	unqueue_locked(copier, job);
	return job;
}

static void *run_jobs(void *arg)
{
	struct kv_copier *copier = arg;
	struct kv_job *job;

	pthread_mutex_lock(&copier->lock);
	for (;;) {
		job = take_job_locked(copier);
		if (!job && copier->stop)
			break;
		if (!job) {
			pthread_cond_wait(&copier->work, &copier->lock);
			continue;
		}
		pthread_mutex_unlock(&copier->lock);
		job->run(job);
		pthread_mutex_lock(&copier->lock);
	}
	pthread_mutex_unlock(&copier->lock);
	return NULL;
}

static void copier_freep(struct kv_copier **copier)
{
	kv_copier_free(*copier);
}

int kv_copier_new(struct kv_copier **ret_copier)
{
	_cleanup_(copier_freep) struct kv_copier *copier = NULL;
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned want = (unsigned)KV_MAX(KV_MIN(online, THREADS_MAX), 1);
	char name[16];
	int r;

	copier = calloc(1, sizeof(*copier));
	if (!copier)
		return -ENOMEM;
	pthread_mutex_init(&copier->lock, NULL);
	pthread_cond_init(&copier->work, NULL);
	TAILQ_INIT(&copier->jobs);
	atomic_init(&copier->best, INT64_MIN);
	for (unsigned i = 0; i < want; i++) {
		snprintf(name, sizeof(name), "kvfs-copy%u", i);
		r = kv_thread_start(&copier->threads[i], name, run_jobs,
				    copier);
		if (r < 0)
			return r;
		copier->n_threads++;
	}
	*ret_copier = kv_steal(copier);
	return 0;
}

void kv_copier_free(struct kv_copier *copier)
{
	if (!copier)
		return;
	pthread_mutex_lock(&copier->lock);
	copier->stop = true;
	pthread_cond_broadcast(&copier->work);
	pthread_mutex_unlock(&copier->lock);
	for (unsigned i = 0; i < copier->n_threads; i++)
		pthread_join(copier->threads[i], NULL);
	pthread_cond_destroy(&copier->work);
	pthread_mutex_destroy(&copier->lock);
	free(copier);
}

unsigned kv_copier_threads(const struct kv_copier *copier)
{
	return copier->n_threads;
}

void kv_copier_submit(struct kv_copier *copier, struct kv_job *job)
{
	pthread_mutex_lock(&copier->lock);
	job->brief = false;
	TAILQ_INSERT_TAIL(&copier->jobs, job, others);
	if (rank(job) > atomic_load(&copier->best))
		atomic_store(&copier->best, rank(job));
	pthread_cond_signal(&copier->work);
	pthread_mutex_unlock(&copier->lock);
}

struct kv_job *kv_copier_withdraw(struct kv_copier *copier, const void *owner)
{
	struct kv_job *job;

	pthread_mutex_lock(&copier->lock);
	TAILQ_FOREACH(job, &copier->jobs, others)
		if (job->owner == owner)
			break;
	if (job) {
		unqueue_locked(copier, job);
		job->brief = true;
	}
	pthread_mutex_unlock(&copier->lock);
	return job;
}

bool kv_copier_presses(struct kv_copier *copier, const struct kv_job *job)
{
	return job->brief || atomic_load(&copier->best) > rank(job);
}
