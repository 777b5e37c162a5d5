/* SPDX-License-Identifier: Apache-2.0 */
/*
 * changes.c - changes of spaces and users, which wait for the disk, on threads
 * of their own.
 *
 * So no worker of FUSE waits for it.  Users with changes take turns, and none
 * has more than a few threads at once: the others' are there for who comes.
 *
 * OWNS      the threads; every change from when it is parked until its end.
 *
 * INVARIANTS
 *   (1) A change is on its user's queue until a thread takes it or it is called
 *       off; who takes it claims its request before it begins.
 *   (2) A queue takes turns if and only if it has changes, and fewer than EACH
 *       of them are being made.
 *   (3) A change holds its user's queue until it has ended.
 *
 * LOCKING   changes->lock for the queues; a leaf.
 */
#include "cache/core/turns.h"
#include "common/thread.h"
#include "fs/mount/changes.h"
#include "fs/mount/parked.h"

#define THREADS 16u
#define EACH 4u

struct job {
	struct kv_parked parked; /* first */
	struct kv_change change; /* its strings are in text */
	struct queue *queue;	 /* changes->lock; NULL: on none */
	TAILQ_ENTRY(job) link;
	char text[];
};

struct queue {
	struct kv_turn turn; /* first */
	TAILQ_HEAD(, job) jobs;
	unsigned under_way;
};

struct kv_changes {
	pthread_t threads[THREADS]; /* fixed after new */
	unsigned n;

	pthread_mutex_t lock;
	pthread_cond_t more;
	struct kv_turns queues; /* lock */
	bool stop;		/* lock */
};

static void queue_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct queue *)turn)->jobs);
}

static void set_turn_locked(struct kv_changes *changes, struct queue *queue)
{
	kv_assert_locked(&changes->lock);
	if (TAILQ_EMPTY(&queue->jobs) || queue->under_way == EACH)
		kv_turn_stop(&changes->queues, &queue->turn);
	else
		kv_turn_start(&changes->queues, &queue->turn);
}

static void unqueue_locked(struct kv_changes *changes, struct job *job)
{
	kv_assert_locked(&changes->lock);
	TAILQ_REMOVE(&job->queue->jobs, job, link);
	set_turn_locked(changes, job->queue);
	job->queue = NULL;
}

static void job_cancel(struct kv_parked *parked, int status)
{
	struct kv_changes *changes = parked->mount->changes;
	struct job *job = (struct job *)parked;
	struct queue *queue;

	pthread_mutex_lock(&changes->lock);
	queue = job->queue;
	if (queue) {
		unqueue_locked(changes, job);
		kv_turn_put(&changes->queues, &queue->turn);
	}
	pthread_mutex_unlock(&changes->lock);
	if (queue)
		kv_parked_end(parked, status);
}

static void job_drop(struct kv_parked *parked)
{
	(void)parked;
}

static const struct kv_parked_kind job_kind = {job_cancel, job_drop};

/* ---- making them ---- */

/* The next one, and its queue; NULL: there will be none. */
static struct job *take(struct kv_changes *changes, struct queue **ret_queue)
{
	struct queue *queue;
	struct job *job = NULL;

	pthread_mutex_lock(&changes->lock);
	while (!(queue = (struct queue *)kv_turns_next(&changes->queues)) &&
	       !changes->stop)
		pthread_cond_wait(&changes->more, &changes->lock);
	if (queue) {
		job = TAILQ_FIRST(&queue->jobs);
		kv_turn_charge(&queue->turn, 1);
		queue->under_way++;
		unqueue_locked(changes, job);
	}
	pthread_mutex_unlock(&changes->lock);
	*ret_queue = queue;
	return job;
}

static void ended(struct kv_changes *changes, struct queue *queue)
{
	pthread_mutex_lock(&changes->lock);
	queue->under_way--;
	set_turn_locked(changes, queue);
	if (queue->turn.busy)
		pthread_cond_signal(&changes->more);
	kv_turn_put(&changes->queues, &queue->turn);
	pthread_mutex_unlock(&changes->lock);
}

static void *make(void *arg)
{
	struct kv_changes *changes = arg;
	struct queue *queue;
	struct job *job;

	while ((job = take(changes, &queue))) {
		if (kv_parked_claim(&job->parked)) {
			job->change.make(job->parked.req, &job->change);
			kv_parked_answered(&job->parked);
		}
		kv_parked_put(&job->parked);
		ended(changes, queue);
	}
	return NULL;
}

static size_t text_bytes(const char *text)
{
	return text ? strlen(text) + 1 : 0;
}

static const char *copy_text(char **at, const char *text)
{
	const char *copy = *at;

	if (!text)
		return NULL;
	memcpy(*at, text, text_bytes(text));
	*at += text_bytes(text);
	return copy;
}

void kv_change_later(fuse_req_t req, const struct kv_change *change)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_changes *changes = mount->changes;
	const uint32_t uid = fuse_req_ctx(req)->uid;
	struct job *job;
	char *at;
	int r;

	r = kv_parked_new(req, &job_kind,
			  sizeof(*job) + text_bytes(change->name) +
				  text_bytes(change->text),
			  &job);
	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	at = job->text;
	job->change = *change;
	job->change.name = copy_text(&at, change->name);
	job->change.text = copy_text(&at, change->text);
	pthread_mutex_lock(&changes->lock);
	job->queue = (struct queue *)kv_turn_get(&changes->queues, uid);
	TAILQ_INSERT_TAIL(&job->queue->jobs, job, link);
	set_turn_locked(changes, job->queue);
	pthread_cond_signal(&changes->more);
	pthread_mutex_unlock(&changes->lock);
	kv_parked_arm(&job->parked);
}

/* ---- beginning and end ---- */

int kv_changes_new(struct kv_changes **ret_changes)
{
	struct kv_changes *changes = calloc(1, sizeof(*changes));
	int r;

	if (!changes)
		return -ENOMEM;
	pthread_mutex_init(&changes->lock, NULL);
	pthread_cond_init(&changes->more, NULL);
	r = kv_turns_init(&changes->queues, sizeof(struct queue), 1,
			  queue_init);
	while (r == 0 && changes->n < THREADS) {
		r = kv_thread_start(&changes->threads[changes->n],
				    "kvfs-change", make, changes);
		changes->n += r == 0;
	}
	if (r < 0) {
		kv_changes_free(changes);
		return r;
	}
	*ret_changes = changes;
	return 0;
}

void kv_changes_free(struct kv_changes *changes)
{
	if (!changes)
		return;
	pthread_mutex_lock(&changes->lock);
	changes->stop = true;
	pthread_cond_broadcast(&changes->more);
	pthread_mutex_unlock(&changes->lock);
	for (unsigned i = 0; i < changes->n; i++)
		pthread_join(changes->threads[i], NULL);
	kv_turns_fini(&changes->queues);
	pthread_cond_destroy(&changes->more);
	pthread_mutex_destroy(&changes->lock);
	free(changes);
}
