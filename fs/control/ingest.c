/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ingest.c - threads that copy, threads that wait, and what is queued for each,
 * by user.
 *
 * OWNS      the threads and a hash state for each; the queues.  Jobs are their
 *           owners'.
 *
 * INVARIANTS
 *   (1) A queued job holds its user's queue, and so does a job that waits until
 *       it has ended.
 *   (2) While a job that waits is under way, its user's queue takes no turns.
 *
 * LOCKING   ingest->lock guards the queues and `stopping`.  It is a leaf; jobs
 *           run without it.
 */
#include "cache/core/turns.h"
#include "common/thread.h"
#include "fs/control/ingest.h"

#define TURN_BYTES (4 << 20)
#define JOB_BYTES (64u << 10) /* a job costs this much, besides its bytes */

/* A user's jobs. */
struct job_queue {
	struct kv_turn turn; /* first */
	TAILQ_HEAD(, kv_ingest_job) jobs;
	bool under_way; /* one that waits */
};

/* Jobs that copy, or jobs that wait. */
struct lane {
	struct kv_ingest *ingest; /* fixed, as is waits */
	bool waits;
	pthread_cond_t more;
	struct kv_turns turns; /* lock */
};

struct worker {
	struct lane *lane;
	struct kv_hash *hash;
	pthread_t thread;
};

struct kv_ingest {
	pthread_mutex_t lock;
	struct lane copies, waits;
	bool stopping;	  /* lock */
	size_t n_workers; /* fixed after start */
	struct worker workers[KV_INGEST_COPIERS + KV_INGEST_WAITERS];
};

static void queue_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct job_queue *)turn)->jobs);
}

static void unqueue_locked(struct lane *lane, struct kv_ingest_job *job)
{
	struct job_queue *queue = (struct job_queue *)job->turn;

	kv_assert_locked(&lane->ingest->lock);
	TAILQ_REMOVE(&queue->jobs, job, link);
	job->turn = NULL;
	if (TAILQ_EMPTY(&queue->jobs))
		kv_turn_stop(&lane->turns, &queue->turn);
}

/* The next job, and its queue, held; NULL: there will be none. */
static struct kv_ingest_job *take(struct lane *lane,
				  struct job_queue **ret_queue)
{
	struct kv_ingest *ingest = lane->ingest;
	struct kv_ingest_job *job = NULL;
	struct job_queue *queue;

	pthread_mutex_lock(&ingest->lock);
	while (!(queue = (struct job_queue *)kv_turns_next(&lane->turns)) &&
	       !ingest->stopping)
		pthread_cond_wait(&lane->more, &ingest->lock);
	if (queue) {
		job = TAILQ_FIRST(&queue->jobs);
		kv_turn_charge(&queue->turn, JOB_BYTES + job->bytes);
		unqueue_locked(lane, job);
		queue->under_way = lane->waits;
		if (lane->waits)
			kv_turn_stop(&lane->turns, &queue->turn);
	}
	pthread_mutex_unlock(&ingest->lock);
	*ret_queue = queue;
	return job;
}

/* The job taken from @queue has ended. */
static void go_on(struct lane *lane, struct job_queue *queue)
{
	pthread_mutex_lock(&lane->ingest->lock);
	queue->under_way = false;
	if (!TAILQ_EMPTY(&queue->jobs)) {
		kv_turn_start(&lane->turns, &queue->turn);
		pthread_cond_signal(&lane->more);
	}
	kv_turn_put(&lane->turns, &queue->turn);
	pthread_mutex_unlock(&lane->ingest->lock);
}

static void *work(void *arg)
{
	struct worker *worker = arg;
	struct job_queue *queue;
	struct kv_ingest_job *job;

	while ((job = take(worker->lane, &queue))) {
		job->work(job, worker->hash);
		go_on(worker->lane, queue);
	}
	return NULL;
}

static int start_worker(struct kv_ingest *ingest, struct lane *lane)
{
	struct worker *worker = &ingest->workers[ingest->n_workers];
	int r;

	worker->lane = lane;
	r = kv_hash_new(&worker->hash);
	if (r < 0)
		return r;
	r = kv_thread_start(&worker->thread,
			    lane->waits ? "kvfs-waits" : "kvfs-ingest", work,
			    worker);
	if (r < 0) {
		kv_hash_free(worker->hash);
		return r;
	}
	ingest->n_workers++;
	return 0;
}

/* A single worker is enough, if slow. */
static int start_workers(struct kv_ingest *ingest, struct lane *lane, long n)
{
	int r = 0;

	for (long i = 0; i < n && r == 0; i++) {
		r = start_worker(ingest, lane);
		if (r < 0 && i > 0)
			return 0;
	}
	return r;
}

static int lane_init(struct kv_ingest *ingest, struct lane *lane, bool waits)
{
	lane->ingest = ingest;
	lane->waits = waits;
	pthread_cond_init(&lane->more, NULL);
	return kv_turns_init(&lane->turns, sizeof(struct job_queue), TURN_BYTES,
			     queue_init);
}

int kv_ingest_start(struct kv_ingest **ret_ingest)
{
	struct kv_ingest *ingest = calloc(1, sizeof(*ingest));
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int r, s;

	if (!ingest)
		return -ENOMEM;
	pthread_mutex_init(&ingest->lock, NULL);
	r = lane_init(ingest, &ingest->copies, false);
	s = lane_init(ingest, &ingest->waits, true);
	if (r == 0 && s == 0)
		r = start_workers(ingest, &ingest->copies,
				  KV_MIN(KV_MAX(cpus, 1), KV_INGEST_COPIERS));
	if (r == 0 && s == 0)
		r = start_workers(ingest, &ingest->waits, KV_INGEST_WAITERS);
	if (r < 0 || s < 0) {
		kv_ingest_stop(ingest);
		return r < 0 ? r : s;
	}
	*ret_ingest = ingest;
	return 0;
}

static void lane_fini(struct lane *lane)
{
	pthread_cond_destroy(&lane->more);
	kv_turns_fini(&lane->turns);
}

void kv_ingest_stop(struct kv_ingest *ingest)
{
	if (!ingest)
		return;
	pthread_mutex_lock(&ingest->lock);
	ingest->stopping = true;
	pthread_cond_broadcast(&ingest->copies.more);
	pthread_cond_broadcast(&ingest->waits.more);
	pthread_mutex_unlock(&ingest->lock);
	for (size_t i = 0; i < ingest->n_workers; i++) {
		pthread_join(ingest->workers[i].thread, NULL);
		kv_hash_free(ingest->workers[i].hash);
	}
	lane_fini(&ingest->copies);
	lane_fini(&ingest->waits);
	pthread_mutex_destroy(&ingest->lock);
	free(ingest);
}

static struct lane *lane_of(struct kv_ingest *ingest,
			    const struct kv_ingest_job *job)
{
	return job->waits ? &ingest->waits : &ingest->copies;
}

void kv_ingest_add(struct kv_ingest *ingest, struct kv_ingest_job *job)
{
	struct lane *lane = lane_of(ingest, job);
	struct job_queue *queue;

	pthread_mutex_lock(&ingest->lock);
	job->turn = kv_turn_get(&lane->turns, job->uid);
	queue = (struct job_queue *)job->turn;
	TAILQ_INSERT_TAIL(&queue->jobs, job, link);
	if (!queue->under_way) {
		kv_turn_start(&lane->turns, &queue->turn);
		pthread_cond_signal(&lane->more);
	}
	pthread_mutex_unlock(&ingest->lock);
}

bool kv_ingest_cancel(struct kv_ingest *ingest, struct kv_ingest_job *job)
{
	struct lane *lane = lane_of(ingest, job);
	struct kv_turn *turn;

	pthread_mutex_lock(&ingest->lock);
	turn = job->turn;
	if (turn) {
		unqueue_locked(lane, job);
		kv_turn_put(&lane->turns, turn);
	}
	pthread_mutex_unlock(&ingest->lock);
	return turn;
}
