/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.c - a thread pool in which users take turns.
 *
 * OWNS      the threads; work, from its submission until a thread takes the work or the
 *           submitter withdraws it.
 *
 * INVARIANTS
 *   (1) Work is on its user's queue until a thread takes it or it is withdrawn.
 *   (2) A queue takes turns if and only if it has work, and fewer than config->each
 *       work items of its user are being run.
 *   (3) Work holds its user's queue until it has been run or withdrawn.
 *   (4) At most config->guests calls of kv_work_run are running work.
 *
 * LOCKING   workers->lock guards the queues, and is a leaf lock.
 */
#include "cache/core/workers.h"
#include "common/thread.h"

struct kv_work_queue {
	struct kv_turn turn; /* first */
	TAILQ_HEAD(, kv_work) all;
	unsigned under_way;
};

struct worker {
	struct kv_workers *workers;
	struct kv_hash *hash; /* NULL: none */
	pthread_t thread;
};

struct kv_workers {
	/* this and the next two fields never change after kv_workers_new */
	const struct kv_workers_config *config;
	struct worker *all;
	unsigned n;

	pthread_mutex_t lock;
	pthread_cond_t more;
	struct kv_turns queues; /* lock */
	unsigned guests;	/* lock */
	bool stop;		/* lock */
};

static void queue_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct kv_work_queue *)turn)->all);
}

static void set_turn_locked(struct kv_workers *workers,
			    struct kv_work_queue *queue)
{
	kv_assert_locked(&workers->lock);
	if (TAILQ_EMPTY(&queue->all) ||
	    queue->under_way == workers->config->each) {
		kv_turn_stop(&workers->queues, &queue->turn);
		return;
	}
	kv_turn_start(&workers->queues, &queue->turn);
}

void kv_work_submit(struct kv_workers *workers, struct kv_work *work,
		    uint32_t uid, uint64_t cost)
{
	work->workers = workers;
	work->cost = cost;
	pthread_mutex_lock(&workers->lock);
	work->queue =
		(struct kv_work_queue *)kv_turn_get(&workers->queues, uid);
	TAILQ_INSERT_TAIL(&work->queue->all, work, link);
	set_turn_locked(workers, work->queue);
	if (work->queue->turn.busy)
		pthread_cond_signal(&workers->more);
	pthread_mutex_unlock(&workers->lock);
}

/* Run @work, which is on no queue any more.  The work may free itself. */
static void run_locked(struct kv_workers *workers, struct kv_work_queue *queue,
		       struct kv_work *work, struct kv_hash *hash)
{
	const uint64_t cost = work->cost;
	uint64_t began = 0, took = 0;

	kv_assert_locked(&workers->lock);
	kv_turn_charge(&queue->turn, cost);
	queue->under_way++;
	set_turn_locked(workers, queue);
	pthread_mutex_unlock(&workers->lock);
	if (workers->config->timed)
		began = kv_now_ns();
	work->run(work, hash);
	if (workers->config->timed)
		took = kv_now_ns() - began;
	pthread_mutex_lock(&workers->lock);
	if (took > cost)
		kv_turn_charge(&queue->turn, took - cost);
	queue->under_way--;
	set_turn_locked(workers, queue);
	kv_turn_put(&workers->queues, &queue->turn);
}

bool kv_work_run(struct kv_workers *workers, struct kv_work *work, uint32_t uid)
{
	struct kv_work_queue *queue;
	bool runs;

	work->cost = 0;
	pthread_mutex_lock(&workers->lock);
	queue = (struct kv_work_queue *)kv_turn_get(&workers->queues, uid);
	runs = TAILQ_EMPTY(&queue->all) &&
	       queue->under_way < workers->config->each &&
	       workers->guests < workers->config->guests;
	if (runs) {
		workers->guests++;
		run_locked(workers, queue, work, NULL);
		workers->guests--;
		/* Queued work of the same user may have waited for this one. */
		if (workers->queues.n_busy > 0)
			pthread_cond_signal(&workers->more);
	} else {
		kv_turn_put(&workers->queues, &queue->turn);
	}
	pthread_mutex_unlock(&workers->lock);
	return runs;
}

bool kv_work_withdraw(struct kv_work *work)
{
	struct kv_workers *workers = work->workers;
	struct kv_work_queue *queue;

	pthread_mutex_lock(&workers->lock);
	queue = work->queue;
	if (queue) {
		TAILQ_REMOVE(&queue->all, work, link);
		work->queue = NULL;
		set_turn_locked(workers, queue);
		kv_turn_put(&workers->queues, &queue->turn);
	}
	pthread_mutex_unlock(&workers->lock);
	return queue;
}

static void *run(void *arg)
{
	const struct worker *worker = arg;
	struct kv_workers *workers = worker->workers;
	struct kv_work_queue *queue;
	struct kv_work *work;

	pthread_mutex_lock(&workers->lock);
	for (;;) {
		queue = (struct kv_work_queue *)kv_turns_next(&workers->queues);
		if (!queue && workers->stop)
			break;
		if (!queue) {
			pthread_cond_wait(&workers->more, &workers->lock);
			continue;
		}
		work = TAILQ_FIRST(&queue->all);
		TAILQ_REMOVE(&queue->all, work, link);
		work->queue = NULL;
		run_locked(workers, queue, work, worker->hash);
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

int kv_workers_new(const struct kv_workers_config *config,
		   struct kv_workers **ret_workers)
{
	struct kv_workers *workers = calloc(1, sizeof(*workers));
	int r;

	if (!workers)
		return -ENOMEM;
	workers->config = config;
	pthread_mutex_init(&workers->lock, NULL);
	pthread_cond_init(&workers->more, NULL);
	workers->all = calloc(config->threads, sizeof(*workers->all));
	r = workers->all ? 0 : -ENOMEM;
	if (r == 0)
		r = kv_turns_init(&workers->queues,
				  sizeof(struct kv_work_queue),
				  (int64_t)config->turn, queue_init);
	while (r == 0 && workers->n < config->threads) {
		struct worker *worker = &workers->all[workers->n];

		worker->workers = workers;
		r = config->hashes ? kv_hash_new(&worker->hash) : 0;
		if (r == 0)
			r = kv_thread_start(&worker->thread, config->name, run,
					    worker);
		if (r == 0)
			workers->n++;
		else
			kv_hash_free(kv_steal(worker->hash));
	}
	/* Fail only without any thread: a pool of fewer threads works. */
	if (workers->n == 0) {
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
	for (unsigned i = 0; i < workers->n; i++) {
		pthread_join(workers->all[i].thread, NULL);
		kv_hash_free(workers->all[i].hash);
	}
	kv_turns_fini(&workers->queues);
	pthread_cond_destroy(&workers->more);
	pthread_mutex_destroy(&workers->lock);
	free(workers->all);
	free(workers);
}
