/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parked.c - requests that wait: reads from SSD, changes of spaces, writes without room,
 * flushes and promotions; and the thread that cancels requests.
 *
 * OWNS      the list of parked requests, the parking thread, the pools that read and
 *           change, the queues of waiting writes, and the holds of each request: a
 *           block, a copy of a change, flushes, an acquire.
 *
 * STATES    of a parked request, and the function that makes each step:
 *
 *              NEW -> ARMED     arm
 *      NEW, ARMED  -> CLAIMED   claim: the caller replies
 *
 * INVARIANTS
 *   (1) The list has exactly the requests that are not CLAIMED.
 *   (2) An ARMED request that is to be cancelled is on parking->cancels until the
 *       parking thread cancels it.
 *   (3) The parking thread alone retries, answers and cancels writes.  Only the first
 *       write of each space's queue is retried, and queues take turns.
 *   (4) A change that has begun is not cancelled.
 *   (5) The end of the submission, or of the last flush, whichever comes last, replies
 *       to a flush request.
 *
 * LOCKING   parking->lock is not held over a reply, nor over a call of the cache.
 *           libfuse calls on_interrupt under the request's lock, which therefore is
 *           taken before parking->lock.  Callbacks of the cache run without the cache's
 *           lock.
 */
#include <limits.h>
#include <stdatomic.h>

#include "common/thread.h"
#include "fs/base/wait.h"
#include "fs/mount/mount.h"

/* period of retries of a write that exceeds its space's rate */
#define RETRY_NS 20000000u
#define PAUSE_NS 5000000u /* shortest pause between two retries */
#define PATIENCE_NS UINT64_C(30000000000) /* longest wait of a write for room */

struct parked {
	struct kv_wait wait; /* first */
	fuse_req_t req; /* FUSE request; once claimed, for the claimer only */
	struct kv_mount *mount;
	struct kv_block *block; /* held; NULL: no block */
	unsigned refs; /* guarded by parking->lock, as are the flags below */
	bool armed, asked, claimed; /* asked: to be cancelled */
	LIST_ENTRY(parked) all;
	TAILQ_ENTRY(parked) link; /* in parking->cancels */
};

struct write {
	struct parked parked; /* first */
	struct kv_draft *draft;
	struct queue *queue; /* held; queue of writes to the same space */
	uint64_t offset, since;
	size_t n;
	TAILQ_ENTRY(write) link;
	char data[];
};

struct queue {
	struct kv_turn turn; /* first; turn.id is the id of the space */
	TAILQ_HEAD(, write) writes;
};

struct kv_parking {
	pthread_t thread; /* fixed after new */
	bool running; /* used by the thread that starts and stops the parking */
	_Atomic bool waiting; /* a write waits for room */
	struct kv_workers *readers, *changes;

	pthread_mutex_t lock;
	pthread_cond_t wake, none;
	bool ending, stop, room;
	unsigned n; /* number of requests without a reply */
	LIST_HEAD(, parked) all;
	TAILQ_HEAD(, parked) cancels;
	struct kv_turns queues; /* queues with writes take turns */
};

/* ---- making, claiming and freeing requests ---- */

static void cancel_locked(struct kv_parking *parking, struct parked *parked)
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

/* Cancel a request whose caller was interrupted; the request is not claimed yet, or the
 * claimer waits for this function's end. */
static void on_interrupt(fuse_req_t req, void *arg)
{
	struct parked *parked = arg;
	struct kv_parking *parking = parked->mount->parking;

	(void)req;
	pthread_mutex_lock(&parking->lock);
	cancel_locked(parking, parked);
	pthread_mutex_unlock(&parking->lock);
}

static void put(struct parked *parked)
{
	struct kv_parking *parking = parked->mount->parking;
	bool last;

	pthread_mutex_lock(&parking->lock);
	last = --parked->refs == 0;
	pthread_mutex_unlock(&parking->lock);
	if (last)
		kv_wait_free(&parked->wait);
}

static void parked_fini(struct kv_wait *wait)
{
	struct parked *parked = (struct parked *)wait;

	if (parked->block)
		kv_block_put(parked->mount->cache, parked->block);
}

/* Claim the reply to @parked.  Returns true to one caller only, which replies
 * and then calls replied(). */
static bool claim(struct parked *parked)
{
	struct kv_parking *parking = parked->mount->parking;
	bool mine;

	pthread_mutex_lock(&parking->lock);
	mine = !parked->claimed;
	if (mine) {
		LIST_REMOVE(parked, all);
		parked->claimed = true;
	}
	pthread_mutex_unlock(&parking->lock);
	if (mine)
		fuse_req_interrupt_func(parked->req, NULL, NULL);
	return mine;
}

static void replied(struct parked *parked)
{
	struct kv_parking *parking = parked->mount->parking;

	pthread_mutex_lock(&parking->lock);
	if (--parking->n == 0)
		pthread_cond_broadcast(&parking->none);
	pthread_mutex_unlock(&parking->lock);
}

static void reply_err(struct parked *parked, int r)
{
	if (!claim(parked))
		return;
	fuse_reply_err(parked->req, -r);
	replied(parked);
}

/* The work has ended: reply with its status unless the request is claimed, and drop the
 * hold of the work. */
static void done(struct kv_wait *wait)
{
	struct parked *parked = (struct parked *)wait;

	reply_err(parked, wait->status);
	put(parked);
}

/* Cancel a request on a worker thread: reply unless another thread has claimed
 * the reply, and withdraw the work if it has not begun. */
static void work_cancel(struct kv_wait *wait, int status)
{
	reply_err((struct parked *)wait, status);
	kv_wait_withdraw(wait, status);
}

/*
 * Make a parked request of @bytes, zeroed, which begins with a struct parked and has two
 * holders: the caller, and the work that the request will wait for.  Returns 0, -ENOMEM,
 * or -ENOLCK beyond the user's share.
 */
static int park(fuse_req_t req, const struct kv_wait_kind *kind, size_t bytes,
		void *ret_parked)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_parking *parking = mount->parking;
	struct kv_account *account = kv_account_get(
		kv_cache_accounts(mount->cache), fuse_req_ctx(req)->uid);
	struct parked *parked;
	int r = kv_wait_new(account, kind, done, bytes, &parked);

	kv_account_put(account);
	if (r < 0)
		return r;
	parked->req = req;
	parked->mount = mount;
	parked->refs = 2;
	pthread_mutex_lock(&parking->lock);
	parked->asked = parking->ending;
	LIST_INSERT_HEAD(&parking->all, parked, all);
	parking->n++;
	pthread_mutex_unlock(&parking->lock);
	fuse_req_interrupt_func(req, on_interrupt, parked);
	*(struct parked **)ret_parked = parked;
	return 0;
}

/* Allow @parked to be cancelled, now that its work was submitted; the work may
 * have ended.  Drops the caller's hold. */
static void arm(struct parked *parked)
{
	struct kv_parking *parking = parked->mount->parking;

	pthread_mutex_lock(&parking->lock);
	parked->armed = true;
	if (parked->asked && !parked->claimed) {
		parked->asked = false;
		cancel_locked(parking, parked);
	}
	pthread_mutex_unlock(&parking->lock);
	put(parked);
}

/* ---- reads ---- */

struct read {
	struct parked parked; /* first */
	size_t size;
	uint64_t offset;
};

static size_t clip(const struct kv_view *view, size_t size, uint64_t offset)
{
	return offset < view->length ? KV_MIN(size, view->length - offset) : 0;
}

/* Read a block and reply.  A reader gets EIO for any error of the cache. */
static int read_now(struct kv_wait *wait)
{
	struct read *read = (struct read *)wait;
	struct parked *parked = &read->parked;
	struct kv_cache *cache = parked->mount->cache;
	struct kv_view view;

	if (kv_view_get(cache, parked->block, KV_VIEW_WAIT, &view) < 0)
		return -EIO;
	if (claim(parked)) {
		fuse_reply_buf(parked->req,
			       (const char *)view.data + read->offset,
			       clip(&view, read->size, read->offset));
		replied(parked);
	}
	kv_view_put(cache, &view);
	return 0;
}

static const struct kv_wait_kind read_kind = {read_now, work_cancel,
					      parked_fini};

void kv_read_block(fuse_req_t req, struct kv_block *block, size_t size,
		   uint64_t offset)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_view view;
	struct read *read;
	int r;

	r = kv_view_get(mount->cache, block, KV_VIEW_TRY, &view);
	if (r == 0) {
		fuse_reply_buf(req, (const char *)view.data + offset,
			       clip(&view, size, offset));
		kv_view_put(mount->cache, &view);
		return;
	}
	r = park(req, &read_kind, sizeof(*read), &read);
	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	kv_block_hold(mount->cache, block);
	read->parked.block = block;
	read->size = size;
	read->offset = offset;
	kv_wait_run(&read->parked.wait, mount->parking->readers,
		    KV_MAX(size, 4096u));
	arm(&read->parked);
}

/* ---- changes ---- */

struct change {
	struct parked parked; /* first */
	/* copy of the caller's change, with its strings in @text */
	struct kv_change change;
	char text[];
};

static int change_now(struct kv_wait *wait)
{
	struct change *change = (struct change *)wait;

	if (claim(&change->parked)) {
		change->change.make(change->parked.req, &change->change);
		replied(&change->parked);
	}
	return 0;
}

static const struct kv_wait_kind change_kind = {change_now, work_cancel,
						parked_fini};

void kv_change_later(fuse_req_t req, const struct kv_change *change)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const size_t name = change->name ? strlen(change->name) + 1 : 0;
	const size_t text = change->text ? strlen(change->text) + 1 : 0;
	struct change *copy;
	int r;

	r = park(req, &change_kind, sizeof(*copy) + name + text, &copy);
	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	copy->change = *change;
	if (name)
		copy->change.name = memcpy(copy->text, change->name, name);
	if (text)
		copy->change.text =
			memcpy(copy->text + name, change->text, text);
	kv_wait_run(&copy->parked.wait, mount->parking->changes, 1);
	arm(&copy->parked);
}

/* ---- flushes ---- */

struct sync {
	struct parked parked; /* first */
	bool demotes;
	_Atomic size_t left; /* flushes in flight, and 1 while submitting */
	_Atomic int status;
	size_t n;
	struct kv_flush flushes[];
};

static void one_ended(struct sync *sync)
{
	int r;

	if (--sync->left > 0)
		return;
	r = sync->status;
	if (r == 0 && sync->demotes) {
		r = kv_block_demote_try(sync->parked.mount->cache,
					sync->parked.block);
		r = r == -EAGAIN ? -EBUSY : r;
	}
	kv_wait_end(&sync->parked.wait, r);
}

static void flushed(struct kv_flush *flush, int status)
{
	struct sync *sync = flush->arg;
	int none = 0;

	/* Errors of the SSD have priority over blocks without room or a tier. */
	if (status == -ENOSPC || status == -EOPNOTSUPP)
		atomic_compare_exchange_strong(&sync->status, &none, status);
	else if (status < 0)
		sync->status = status;
	one_ended(sync);
}

static void sync_cancel(struct kv_wait *wait, int status)
{
	struct sync *sync = (struct sync *)wait;

	for (size_t i = 0; i < sync->n; i++)
		kv_flush_cancel(sync->parked.mount->cache, &sync->flushes[i],
				status);
}

static const struct kv_wait_kind sync_kind = {.cancel = sync_cancel,
					      .fini = parked_fini};

/* Flush @block; or with @block NULL, flush @n spaces. */
static int flush(fuse_req_t req, struct kv_block *block, bool demotes,
		 struct kv_space *const *spaces, size_t n)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct sync *sync;
	int r;

	r = park(req, &sync_kind, sizeof(*sync) + n * sizeof(sync->flushes[0]),
		 &sync);
	if (r < 0)
		return r;
	if (block)
		kv_block_hold(mount->cache, block);
	sync->parked.block = block;
	sync->demotes = demotes;
	sync->n = n;
	sync->left = n + 1;
	for (size_t i = 0; i < n; i++) {
		struct kv_flush *one = &sync->flushes[i];

		one->done = flushed;
		one->arg = sync;
		if (block)
			kv_block_flush_submit(mount->cache, block, one);
		else
			kv_flush_submit(mount->cache, spaces[i], one);
	}
	one_ended(sync);
	arm(&sync->parked);
	return 0;
}

int kv_sync_spaces(fuse_req_t req, struct kv_space *const *spaces, size_t n)
{
	return flush(req, NULL, false, spaces, n);
}

int kv_sync_block(fuse_req_t req, struct kv_block *block, bool demotes)
{
	return flush(req, block, demotes, NULL, 1);
}

/* ---- promotions ---- */

struct promote {
	struct parked parked; /* first */
	/* last member; ends with an array of wants */
	struct kv_acquire acquire;
};

static void acquired(struct kv_acquire *acquire, void *arg)
{
	struct promote *promote = arg;
	int r = acquire->wants[0].status;

	kv_acquire_release(promote->parked.mount->cache, acquire);
	kv_wait_end(&promote->parked.wait, r);
}

static void promote_cancel(struct kv_wait *wait, int status)
{
	struct promote *promote = (struct promote *)wait;

	kv_acquire_cancel(promote->parked.mount->cache, &promote->acquire,
			  status);
}

static const struct kv_wait_kind promote_kind = {.cancel = promote_cancel};

int kv_sync_promote(fuse_req_t req, struct kv_block *block)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const struct kv_block_info info = kv_block_stat(mount->cache, block);
	struct kv_acquire *acquire;
	struct promote *promote;
	int r;

	r = park(req, &promote_kind, sizeof(*promote) + sizeof(struct kv_want),
		 &promote);
	if (r < 0)
		return r;
	acquire = &promote->acquire;
	acquire->space = promote->parked.wait.space = kv_space_get(info.space);
	acquire->n = 1;
	acquire->wait_room = true;
	acquire->done = acquired;
	acquire->arg = promote;
	acquire->wants[0].key = info.key;
	if (kv_acquire_submit(mount->cache, acquire) == 0) {
		kv_acquire_touch(mount->cache, acquire);
		acquired(acquire, promote);
	}
	arm(&promote->parked);
	return 0;
}

/* ---- writes ---- */

static void queue_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct queue *)turn)->writes);
}

/* Take @write off its queue and reply. */
static void write_over(struct write *write, int r)
{
	struct kv_parking *parking = write->parked.mount->parking;
	struct queue *queue = write->queue;

	pthread_mutex_lock(&parking->lock);
	TAILQ_REMOVE(&queue->writes, write, link);
	if (TAILQ_EMPTY(&queue->writes))
		kv_turn_stop(&parking->queues, &queue->turn);
	kv_turn_put(&parking->queues, &queue->turn);
	parking->waiting = parking->queues.n_busy > 0;
	pthread_mutex_unlock(&parking->lock);
	if (r == 0 && claim(&write->parked)) {
		fuse_reply_write(write->parked.req, write->n);
		replied(&write->parked);
	}
	kv_wait_end(&write->parked.wait, r);
}

static void write_cancel(struct kv_wait *wait, int status)
{
	struct write *write = (struct write *)wait;

	if (!write->parked.claimed) /* only the parking thread claims writes */
		write_over(write, status);
}

static const struct kv_wait_kind write_kind = {.cancel = write_cancel};

int kv_park_write(fuse_req_t req, struct kv_upload *upload, const char *data,
		  size_t n, uint64_t offset)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	struct kv_parking *parking = mount->parking;
	const uint32_t space = kv_space_stat(mount->cache, upload->space).id;
	struct write *write;
	int r;

	r = park(req, &write_kind, sizeof(*write) + n, &write);
	if (r < 0)
		return r == -ENOLCK ? -ENOSPC : r;
	write->draft = upload->draft;
	write->offset = offset;
	write->since = kv_now_ns();
	write->n = n;
	memcpy(write->data, data, n);
	pthread_mutex_lock(&parking->lock);
	write->queue = (struct queue *)kv_turn_get(&parking->queues, space);
	TAILQ_INSERT_TAIL(&write->queue->writes, write, link);
	kv_turn_start(&parking->queues, &write->queue->turn);
	parking->waiting = true;
	pthread_cond_signal(&parking->wake);
	pthread_mutex_unlock(&parking->lock);
	arm(&write->parked);
	return 0;
}

/* Retry the first write of each queue, in turns, until no write succeeds; stop
 * early for cancellations. */
static void retry_writes(struct kv_parking *parking)
{
	struct queue *queue;
	struct write *write;
	size_t left;
	int r;

	pthread_mutex_lock(&parking->lock);
	parking->room = false;
	left = parking->queues.n_busy;
	while (left-- > 0 && TAILQ_EMPTY(&parking->cancels)) {
		queue = (struct queue *)kv_turns_next(&parking->queues);
		write = TAILQ_FIRST(&queue->writes);
		kv_turns_yield(&parking->queues);
		pthread_mutex_unlock(&parking->lock);
		r = kv_draft_write(write->draft, write->data, write->n,
				   write->offset);
		if (r == -EBUSY)
			r = kv_now_ns() - write->since < PATIENCE_NS ? -EAGAIN
								     : -ENOSPC;
		if (r != -EAGAIN)
			write_over(write, r);
		pthread_mutex_lock(&parking->lock);
		if (r != -EAGAIN)
			left = parking->queues.n_busy;
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

static void *run(void *arg)
{
	struct kv_parking *parking = arg;
	uint64_t looked = 0, wait;
	struct parked *parked;

	pthread_mutex_lock(&parking->lock);
	for (;;) {
		wait = parking->room ? PAUSE_NS : RETRY_NS;
		parked = TAILQ_FIRST(&parking->cancels);
		if (parked) {
			TAILQ_REMOVE(&parking->cancels, parked, link);
			pthread_mutex_unlock(&parking->lock);
			kv_wait_cancel(&parked->wait, -EINTR);
			put(parked);
			pthread_mutex_lock(&parking->lock);
		} else if (parking->stop) {
			break;
		} else if (parking->queues.n_busy == 0) {
			pthread_cond_wait(&parking->wake, &parking->lock);
		} else if (kv_now_ns() - looked >= wait) {
			pthread_mutex_unlock(&parking->lock);
			retry_writes(parking);
			pthread_mutex_lock(&parking->lock);
			looked = kv_now_ns();
		} else {
			kv_cond_wait_until(&parking->wake, &parking->lock,
					   looked + wait);
		}
	}
	pthread_mutex_unlock(&parking->lock);
	return NULL;
}

int kv_parking_new(struct kv_parking **ret_parking)
{
	static const struct kv_workers_config readers = {.name = "kvfs-read",
							 .threads = 16,
							 .each = UINT_MAX,
							 .turn = 8 << 20};
	static const struct kv_workers_config changes = {
		.name = "kvfs-change", .threads = 16, .each = 4, .turn = 1};
	struct kv_parking *parking = calloc(1, sizeof(*parking));
	int r;

	if (!parking)
		return -ENOMEM;
	pthread_mutex_init(&parking->lock, NULL);
	kv_cond_init(&parking->wake);
	pthread_cond_init(&parking->none, NULL);
	TAILQ_INIT(&parking->cancels);
	r = kv_turns_init(&parking->queues, sizeof(struct queue), 1,
			  queue_init);
	if (r == 0)
		r = kv_workers_new(&readers, &parking->readers);
	if (r == 0)
		r = kv_workers_new(&changes, &parking->changes);
	if (r == 0)
		r = kv_thread_start(&parking->thread, "kvfs-park", run,
				    parking);
	if (r < 0) {
		kv_parking_join(parking);
		kv_parking_free(parking);
		return r;
	}
	parking->running = true;
	*ret_parking = parking;
	return 0;
}

void kv_parking_stop(struct kv_parking *parking)
{
	struct parked *parked;

	if (!parking)
		return;
	pthread_mutex_lock(&parking->lock);
	parking->ending = true;
	LIST_FOREACH(parked, &parking->all, all)
		cancel_locked(parking, parked);
	while (parking->n > 0)
		pthread_cond_wait(&parking->none, &parking->lock);
	parking->stop = true;
	pthread_cond_signal(&parking->wake);
	pthread_mutex_unlock(&parking->lock);
	if (parking->running)
		pthread_join(parking->thread, NULL);
	parking->running = false;
}

void kv_parking_join(struct kv_parking *parking)
{
	if (!parking)
		return;
	kv_workers_free(kv_steal(parking->readers));
	kv_workers_free(kv_steal(parking->changes));
}

void kv_parking_free(struct kv_parking *parking)
{
	if (!parking)
		return;
	kv_turns_fini(&parking->queues);
	pthread_cond_destroy(&parking->wake);
	pthread_cond_destroy(&parking->none);
	pthread_mutex_destroy(&parking->lock);
	free(parking);
}
