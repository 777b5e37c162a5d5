/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.c - threads that do what workers of FUSE must not wait for.
 *
 * OWNS      the threads; every job from when it is submitted until a thread has
 *           taken it or it is called off.
 *
 * INVARIANTS
 *   (1) A job is on its user's queue until a thread takes it or it is called
 *       off; who takes it claims its request before it answers.
 *   (2) A queue takes turns if and only if it has jobs, and fewer than
 *       work->each of them are being run.
 *   (3) A job holds its user's queue until it has been run or called off.
 *
 * LOCKING   workers->lock for the queues; a leaf.
 */
#include "cache/core/turns.h"
#include "common/thread.h"
#include "fs/mount/workers.h"

struct kv_job_queue {
	struct kv_turn turn; /* first */
	TAILQ_HEAD(, kv_job) jobs;
	unsigned under_way;
};

struct kv_workers {
	const struct kv_work *work; /* fixed after new, as are these: */
	pthread_t *threads;
	unsigned n;

	pthread_mutex_t lock;
	pthread_cond_t more;
	struct kv_turns queues; /* lock */
	bool stop;		/* lock */
};

static void queue_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct kv_job_queue *)turn)->jobs);
}

static void set_turn_locked(struct kv_workers *workers,
			    struct kv_job_queue *queue)
{
	kv_assert_locked(&workers->lock);
	if (TAILQ_EMPTY(&queue->jobs) ||
	    queue->under_way == workers->work->each)
		kv_turn_stop(&workers->queues, &queue->turn);
	else
		kv_turn_start(&workers->queues, &queue->turn);
}

static void unqueue_locked(struct kv_job *job)
{
	kv_assert_locked(&job->workers->lock);
	TAILQ_REMOVE(&job->queue->jobs, job, link);
	set_turn_locked(job->workers, job->queue);
	job->queue = NULL;
}

void kv_job_submit(struct kv_workers *workers, struct kv_job *job, uint32_t uid,
		   uint64_t cost)
{
	job->workers = workers;
	job->cost = cost;
	pthread_mutex_lock(&workers->lock);
	job->queue = (struct kv_job_queue *)kv_turn_get(&workers->queues, uid);
	TAILQ_INSERT_TAIL(&job->queue->jobs, job, link);
	set_turn_locked(workers, job->queue);
	pthread_cond_signal(&workers->more);
	pthread_mutex_unlock(&workers->lock);
}

void kv_job_cancel(struct kv_parked *parked, int status)
{
	struct kv_job *job = (struct kv_job *)parked;
	struct kv_workers *workers = job->workers;
	struct kv_job_queue *queue;

	pthread_mutex_lock(&workers->lock);
	queue = job->queue;
	if (queue) {
		unqueue_locked(job);
		kv_turn_put(&workers->queues, &queue->turn);
	}
	pthread_mutex_unlock(&workers->lock);
	if (kv_parked_claim(parked))
		kv_parked_reply_err(parked, status);
	if (queue)
		kv_parked_put(parked);
}

/* ---- running them ---- */

/* The next one, and its queue; NULL: there will be none. */
static struct kv_job *take(struct kv_workers *workers,
			   struct kv_job_queue **ret_queue)
{
	struct kv_job_queue *queue;
	struct kv_job *job = NULL;

	pthread_mutex_lock(&workers->lock);
	while (!(queue = (struct kv_job_queue *)kv_turns_next(
			 &workers->queues)) &&
	       !workers->stop)
		pthread_cond_wait(&workers->more, &workers->lock);
	if (queue) {
		job = TAILQ_FIRST(&queue->jobs);
		kv_turn_charge(&queue->turn, job->cost);
		queue->under_way++;
		unqueue_locked(job);
	}
	pthread_mutex_unlock(&workers->lock);
	*ret_queue = queue;
	return job;
}

static void ended(struct kv_workers *workers, struct kv_job_queue *queue)
{
	pthread_mutex_lock(&workers->lock);
	queue->under_way--;
	set_turn_locked(workers, queue);
	if (queue->turn.busy)
		pthread_cond_signal(&workers->more);
	kv_turn_put(&workers->queues, &queue->turn);
	pthread_mutex_unlock(&workers->lock);
}

static void *run(void *arg)
{
	struct kv_workers *workers = arg;
	struct kv_job_queue *queue;
	struct kv_job *job;

	while ((job = take(workers, &queue))) {
		workers->work->run(job);
		ended(workers, queue);
	}
	return NULL;
}

/* ---- beginning and end ---- */

int kv_workers_new(const struct kv_work *work, struct kv_workers **ret_workers)
{
	struct kv_workers *workers = calloc(1, sizeof(*workers));
	int r;

	if (!workers)
		return -ENOMEM;
	workers->work = work;
	pthread_mutex_init(&workers->lock, NULL);
	pthread_cond_init(&workers->more, NULL);
	workers->threads = calloc(work->threads, sizeof(*workers->threads));
	r = workers->threads ? 0 : -ENOMEM;
	if (r == 0)
		r = kv_turns_init(&workers->queues, sizeof(struct kv_job_queue),
				  (int64_t)work->turn, queue_init);
	while (r == 0 && workers->n < work->threads) {
		r = kv_thread_start(&workers->threads[workers->n], work->name,
				    run, workers);
		workers->n += r == 0;
	}
	if (r < 0) {
		kv_workers_free(workers);
		return r;
	}
	*ret_workers = workers;
	return 0;
}

void kv_workers_free(struct kv_workers *workers)
{
	if (!workers)
		return;
	pthread_mutex_lock(&workers->lock);
	workers->stop = true;
	pthread_cond_broadcast(&workers->more);
	pthread_mutex_unlock(&workers->lock);
	for (unsigned i = 0; i < workers->n; i++)
		pthread_join(workers->threads[i], NULL);
	kv_turns_fini(&workers->queues);
	pthread_cond_destroy(&workers->more);
	pthread_mutex_destroy(&workers->lock);
	free(workers->threads);
	free(workers);
}
