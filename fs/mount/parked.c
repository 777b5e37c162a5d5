/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parked.c - requests that must wait, who calls them off, and writes that are
 * tried again.
 *
 * OWNS      the table of parked requests, the parking thread, and the writes
 *           that wait, by space.
 *
 * STATES    of a parked request, and the function that makes each step:
 *
 *              NEW -> ARMED     kv_parked_arm
 *      NEW, ARMED  -> CLAIMED   kv_parked_claim: it is being answered
 *
 * INVARIANTS
 *   (1) Exactly those that are not CLAIMED are in the table.
 *   (2) One that was asked to end is on parking->cancels from when it is ARMED
 *       until the parking thread calls it off.
 *   (3) Writes are retried, answered and called off by the parking thread
 *       alone.  Of a space the first is tried, and spaces take turns.
 *
 * LOCKING   parking->lock, not held over a reply, nor over a call of the cache.
 *           libfuse calls on_interrupt with the request's lock: that is taken
 *           before it.
 */
#include <stdatomic.h>

#include "common/thread.h"
#include "fs/mount/parked.h"

#define BUCKETS 256u
#define RETRY_NS 20000000u		  /* a rate's credit grows by itself */
#define PAUSE_NS 5000000u		  /* between two looks at least */
#define PATIENCE_NS UINT64_C(30000000000) /* with which room is waited for */

struct write {
	struct kv_parked parked; /* first */
	struct kv_draft *draft;
	struct kv_space *space;
	uint64_t offset, since;
	size_t n;
	TAILQ_ENTRY(write) link;
	char data[];
};

struct queue {
	struct kv_space *space;
	TAILQ_HEAD(, write) writes;
	TAILQ_ENTRY(queue) link;
};

struct kv_parking {
	pthread_t thread;     /* fixed after new */
	bool running;	      /* of who starts and stops it */
	_Atomic bool waiting; /* there are writes */

	pthread_mutex_t lock;
	pthread_cond_t wake, none;
	bool ending, stop, room;
	unsigned n;				 /* in the table */
	LIST_HEAD(, kv_parked) buckets[BUCKETS]; /* by request */
	TAILQ_HEAD(, kv_parked) cancels;
	TAILQ_HEAD(, queue) queues; /* none is empty */
	unsigned n_queues;
};

static unsigned bucket_of(fuse_req_t req)
{
	return (unsigned)((uintptr_t)req >> 6) % BUCKETS;
}

/* ---- life ---- */

static void ask_locked(struct kv_parking *parking, struct kv_parked *parked)
{
	kv_assert_locked(&parking->lock);
	if (parked->asked)
		return;
	parked->asked = true;
	if (!parked->armed)
		return;
	parked->refs++;
	TAILQ_INSERT_TAIL(&parking->cancels, parked, link);
	pthread_cond_signal(&parking->wake);
}

/* The request may have been answered meanwhile, but its memory is not given to
 * another before this returns. */
static void on_interrupt(fuse_req_t req, void *arg)
{
	struct kv_parking *parking = arg;
	struct kv_parked *parked;

	pthread_mutex_lock(&parking->lock);
	LIST_FOREACH(parked, &parking->buckets[bucket_of(req)], bucket)
		if (parked->req == req)
			ask_locked(parking, parked);
	pthread_mutex_unlock(&parking->lock);
}

int kv_parked_new(fuse_req_t req, const struct kv_parked_kind *kind,
		  size_t bytes, void *ret_parked)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_parking *parking = mount->parking;
	struct kv_parked *parked = calloc(1, bytes);
	int r = -ENOMEM;

	if (!parked)
		return -ENOMEM;
	parked->account = kv_account_get(kv_cache_accounts(mount->cache),
					 fuse_req_ctx(req)->uid);
	if (parked->account)
		r = kv_account_charge(parked->account, KV_FINITE_MEMORY, bytes);
	if (r < 0) {
		kv_account_put(parked->account);
		free(parked);
		return r;
	}
	parked->req = req;
	parked->mount = mount;
	parked->kind = kind;
	parked->bytes = bytes;
	parked->refs = 2;
	pthread_mutex_lock(&parking->lock);
	parked->asked = parking->ending;
	LIST_INSERT_HEAD(&parking->buckets[bucket_of(req)], parked, bucket);
	parking->n++;
	pthread_mutex_unlock(&parking->lock);
	fuse_req_interrupt_func(req, on_interrupt, parking);
	*(struct kv_parked **)ret_parked = parked;
	return 0;
}

void kv_parked_put(struct kv_parked *parked)
{
	struct kv_parking *parking = parked->mount->parking;
	bool last;

	pthread_mutex_lock(&parking->lock);
	last = --parked->refs == 0;
	pthread_mutex_unlock(&parking->lock);
	if (!last)
		return;
	parked->kind->drop(parked);
	kv_account_credit(parked->account, KV_FINITE_MEMORY, parked->bytes);
	kv_account_put(parked->account);
	free(parked);
}

void kv_parked_arm(struct kv_parked *parked)
{
	struct kv_parking *parking = parked->mount->parking;

	pthread_mutex_lock(&parking->lock);
	parked->armed = true;
	if (parked->asked && !parked->claimed) {
		parked->asked = false;
		ask_locked(parking, parked);
	}
	pthread_mutex_unlock(&parking->lock);
	kv_parked_put(parked);
}

bool kv_parked_claim(struct kv_parked *parked)
{
	struct kv_parking *parking = parked->mount->parking;
	bool mine;

	pthread_mutex_lock(&parking->lock);
	mine = !parked->claimed;
	if (mine) {
		LIST_REMOVE(parked, bucket);
		parked->claimed = true;
	}
	pthread_mutex_unlock(&parking->lock);
	return mine;
}

/* A mount may end then. */
void kv_parked_answered(struct kv_parked *parked)
{
	struct kv_parking *parking = parked->mount->parking;

	pthread_mutex_lock(&parking->lock);
	if (--parking->n == 0)
		pthread_cond_broadcast(&parking->none);
	pthread_mutex_unlock(&parking->lock);
}

void kv_parked_reply_err(struct kv_parked *parked, int r)
{
	fuse_reply_err(parked->req, -r);
	kv_parked_answered(parked);
}

void kv_parked_reply_buf(struct kv_parked *parked, const void *data, size_t n)
{
	fuse_reply_buf(parked->req, data, n);
	kv_parked_answered(parked);
}

void kv_parked_end(struct kv_parked *parked, int r)
{
	if (kv_parked_claim(parked))
		kv_parked_reply_err(parked, r);
	kv_parked_put(parked);
}

void kv_job_cancel(struct kv_parked *parked, int status)
{
	const bool withdrawn =
		kv_work_withdraw(&((struct kv_job *)parked)->work);

	if (kv_parked_claim(parked))
		kv_parked_reply_err(parked, status);
	if (withdrawn)
		kv_parked_put(parked);
}

/* ---- writes ---- */

static struct queue *queue_of_locked(struct kv_parking *parking,
				     struct kv_space *space)
{
	struct queue *queue;

	kv_assert_locked(&parking->lock);
	TAILQ_FOREACH(queue, &parking->queues, link)
		if (queue->space == space)
			return queue;
	queue = calloc(1, sizeof(*queue));
	if (!queue)
		return NULL;
	queue->space = space;
	TAILQ_INIT(&queue->writes);
	TAILQ_INSERT_TAIL(&parking->queues, queue, link);
	parking->n_queues++;
	return queue;
}

/* Off its queue, and answered. */
static void write_over(struct write *write, int r)
{
	struct kv_parking *parking = write->parked.mount->parking;
	struct queue *queue;

	pthread_mutex_lock(&parking->lock);
	queue = queue_of_locked(parking, write->space); /* it is there */
	TAILQ_REMOVE(&queue->writes, write, link);
	if (TAILQ_EMPTY(&queue->writes)) {
		TAILQ_REMOVE(&parking->queues, queue, link);
		parking->n_queues--;
		free(queue);
	}
	parking->waiting = !TAILQ_EMPTY(&parking->queues);
	pthread_mutex_unlock(&parking->lock);
	if (kv_parked_claim(&write->parked)) {
		if (r < 0)
			fuse_reply_err(write->parked.req, -r);
		else
			fuse_reply_write(write->parked.req, write->n);
		kv_parked_answered(&write->parked);
	}
	kv_parked_put(&write->parked);
}

static void write_cancel(struct kv_parked *parked, int status)
{
	if (!parked->claimed) /* by this thread alone */
		write_over((struct write *)parked, status);
}

static void write_drop(struct kv_parked *parked)
{
	(void)parked;
}

static const struct kv_parked_kind write_kind = {write_cancel, write_drop};

int kv_park_write(fuse_req_t req, struct kv_upload *upload, const char *data,
		  size_t n, uint64_t offset)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_parking *parking = mount->parking;
	struct queue *queue;
	struct write *write;
	int r;

	r = kv_parked_new(req, &write_kind, sizeof(*write) + n, &write);
	if (r < 0)
		return r == -ENOLCK ? -ENOSPC : r;
	write->draft = kv_upload_draft(upload);
	write->space = kv_upload_space(upload);
	write->offset = offset;
	write->since = kv_now_ns();
	write->n = n;
	memcpy(write->data, data, n);
	pthread_mutex_lock(&parking->lock);
	queue = queue_of_locked(parking, write->space);
	if (queue) {
		TAILQ_INSERT_TAIL(&queue->writes, write, link);
		parking->waiting = true;
		pthread_cond_signal(&parking->wake);
	}
	pthread_mutex_unlock(&parking->lock);
	if (!queue)
		kv_parked_end(&write->parked, -ENOMEM);
	kv_parked_arm(&write->parked);
	return 0;
}

/* 0, -errno, or -EAGAIN: it waits on. */
static int try_again(struct write *write)
{
	int r = kv_draft_write(write->draft, write->data, write->n,
			       write->offset);

	if (r != -EBUSY)
		return r;
	return kv_now_ns() - write->since < PATIENCE_NS ? -EAGAIN : -ENOSPC;
}

/* The first write of each space in turn, until that helps none.  Who is to be
 * called off does not wait for that. */
static void retry_writes(struct kv_parking *parking)
{
	unsigned left;
	int r;

	pthread_mutex_lock(&parking->lock);
	parking->room = false;
	left = parking->n_queues;
	while (left-- > 0 && TAILQ_EMPTY(&parking->cancels)) {
		struct queue *queue = TAILQ_FIRST(&parking->queues);
		struct write *write = TAILQ_FIRST(&queue->writes);

		TAILQ_REMOVE(&parking->queues, queue, link);
		TAILQ_INSERT_TAIL(&parking->queues, queue, link);
		pthread_mutex_unlock(&parking->lock);
		r = try_again(write);
		if (r != -EAGAIN)
			write_over(write, r);
		pthread_mutex_lock(&parking->lock);
		if (r != -EAGAIN)
			left = parking->n_queues;
	}
	pthread_mutex_unlock(&parking->lock);
}

void kv_parking_room(struct kv_parking *parking)
{
	if (!parking || !parking->waiting)
		return;
	pthread_mutex_lock(&parking->lock);
	parking->room = true;
	pthread_cond_signal(&parking->wake);
	pthread_mutex_unlock(&parking->lock);
}

/* ---- the thread ---- */

static void call_off_locked(struct kv_parking *parking)
{
	struct kv_parked *parked = TAILQ_FIRST(&parking->cancels);

	kv_assert_locked(&parking->lock);
	TAILQ_REMOVE(&parking->cancels, parked, link);
	pthread_mutex_unlock(&parking->lock);
	parked->kind->cancel(parked, -EINTR);
	kv_parked_put(parked);
	pthread_mutex_lock(&parking->lock);
}

static void sleep_locked(struct kv_parking *parking, uint64_t looked)
{
	uint64_t at = looked + (parking->room ? PAUSE_NS : RETRY_NS);
	struct timespec until = {.tv_sec = (time_t)(at / 1000000000u),
				 .tv_nsec = (long)(at % 1000000000u)};

	kv_assert_locked(&parking->lock);
	if (TAILQ_EMPTY(&parking->queues))
		pthread_cond_wait(&parking->wake, &parking->lock);
	else
		pthread_cond_timedwait(&parking->wake, &parking->lock, &until);
}

static void *park(void *arg)
{
	struct kv_parking *parking = arg;
	uint64_t looked = 0, wait;

	pthread_mutex_lock(&parking->lock);
	for (;;) {
		wait = parking->room ? PAUSE_NS : RETRY_NS;
		if (!TAILQ_EMPTY(&parking->cancels)) {
			call_off_locked(parking);
		} else if (parking->stop) {
			break;
		} else if (!TAILQ_EMPTY(&parking->queues) &&
			   kv_now_ns() - looked >= wait) {
			pthread_mutex_unlock(&parking->lock);
			retry_writes(parking);
			pthread_mutex_lock(&parking->lock);
			looked = kv_now_ns();
		} else {
			sleep_locked(parking, looked);
		}
	}
	pthread_mutex_unlock(&parking->lock);
	return NULL;
}

int kv_parking_new(struct kv_parking **ret_parking)
{
	struct kv_parking *parking = calloc(1, sizeof(*parking));
	pthread_condattr_t attr;
	int r;

	if (!parking)
		return -ENOMEM;
	pthread_mutex_init(&parking->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&parking->wake, &attr);
	pthread_condattr_destroy(&attr);
	pthread_cond_init(&parking->none, NULL);
	TAILQ_INIT(&parking->cancels);
	TAILQ_INIT(&parking->queues);
	r = kv_thread_start(&parking->thread, "kvfs-park", park, parking);
	if (r < 0) {
		free(parking);
		return r;
	}
	parking->running = true;
	*ret_parking = parking;
	return 0;
}

void kv_parking_stop(struct kv_parking *parking)
{
	struct kv_parked *parked;

	if (!parking)
		return;
	pthread_mutex_lock(&parking->lock);
	parking->ending = true;
	for (unsigned i = 0; i < BUCKETS; i++)
		LIST_FOREACH(parked, &parking->buckets[i], bucket)
			ask_locked(parking, parked);
	while (parking->n > 0)
		pthread_cond_wait(&parking->none, &parking->lock);
	parking->stop = true;
	pthread_cond_signal(&parking->wake);
	pthread_mutex_unlock(&parking->lock);
	if (parking->running)
		pthread_join(parking->thread, NULL);
	parking->running = false;
}

void kv_parking_free(struct kv_parking *parking)
{
	if (!parking)
		return;
	pthread_cond_destroy(&parking->wake);
	pthread_cond_destroy(&parking->none);
	pthread_mutex_destroy(&parking->lock);
	free(parking);
}
