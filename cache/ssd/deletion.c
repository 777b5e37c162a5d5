/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deletion.c - what was removed is gone for good: records deleted, prologues
 * zeroed, slots given back.
 *
 * Nobody's puts wait for deletions, and no flush for those of other spaces.
 * What is to be deleted waits in its space.  The committer takes all of a space
 * at once, puts it in the order of the SSD, and deletes some of the records in
 * each transaction, for a short time.  A thread of its own then zeroes the
 * prologues and syncs them, a few at the device at a time, so that other
 * requests pass.  Between that it sweeps files (segfile.c).
 *
 * The thread waits for its requests for as long as they take: a zero that lands
 * late would land on whoever has the slot by then.  Others are told meanwhile
 * that it does not get on (health.c).
 *
 * OWNS       the deletions, from kv_extent_delete_locked to the slot's return;
 *            the thread that zeroes; its requests until all of one call ended.
 *
 * STATES     of a deletion, and the function that makes each step:
 *
 *             QUEUED -> IN HAND    kv_deletions_take_locked
 *            IN HAND -> RECORDED   kv_deletions_recorded_locked, after the
 *                                  commit
 *           RECORDED -> over       zeroed_locked: zeroed and synced
 *
 * INVARIANTS
 *   (1) A slot is reused only after the deletion of its record is durable, and
 *       then the zeros in its prologue.
 *   (2) A space has one batch in hand, so that its deletions are over in the
 *       order of their batches; done counts whole batches.
 *   (3) A batch is to_record while recorded < n, and to_zero while zeroed <
 *       recorded.  It is freed when zeroed == n.
 *   (4) deletions.n counts those that are not over.
 *
 * LOCKING    cache->lock; none during I/O.  to_record, and what of a batch is
 *            not RECORDED, are the committer's; what is RECORDED of the first
 *            batch to_zero is the thread's.  group->lock, a leaf, for how many
 *            requests are left.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/table.h"
#include "common/crash_point.h"

#include <fcntl.h>

#define TRIES 2
#define GIVE_UP 3     /* times that a slot could not be zeroed */
#define WINDOW 32u    /* requests at the device */
#define PORTION 2048u /* prologues before a sync */
#define TURN 128u     /* records of one batch, then of the next */
#define TURNS 4u      /* one of them, or more, is a file to sweep */
/* So many slots side by side are worth a call. */
#define RUN KV_POINTS_OR(3u, 16u)
#define RECORD_NS 20000000u
#define NEAR_IDS 8u /* so many further on is the same leaf, mostly */

struct kv_deletion_batch {
	struct kv_space *space;
	struct kv_deletion *items;
	size_t n, recording, recorded, zeroed;
	bool sorted;
	TAILQ_ENTRY(kv_deletion_batch) record, zero;
};

/* ---- requests ---- */

struct group {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	size_t left;
	int status; /* of the last that failed */
};

#define GROUP_INIT                                                        \
	{                                                                 \
		PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0 \
	}

struct member {
	struct kv_io io; /* first */
	struct group *group;
	struct kv_deletion *deletion; /* NULL: a sync */
};

static void member_done(struct kv_io *io, int status)
{
	struct member *member = (struct member *)io;
	struct group *group = member->group;

	KV_POINT("tombstone.written");
	pthread_mutex_lock(&group->lock);
	if (status < 0)
		group->status = status;
	if (member->deletion)
		member->deletion->bad = status < 0;
	group->left--;
	pthread_cond_signal(&group->cond);
	pthread_mutex_unlock(&group->lock);
	free(member);
}

/* Until no more than @left are. */
static int wait_for(struct group *group, size_t left)
{
	int r;

	pthread_mutex_lock(&group->lock);
	while (group->left > left)
		pthread_cond_wait(&group->cond, &group->lock);
	r = group->status;
	pthread_mutex_unlock(&group->lock);
	return r;
}

static void member_submit(struct kv_cache *cache, struct group *group,
			  struct member *member)
{
	member->io.buffer = -1;
	member->io.done = member_done;
	member->group = group;
	pthread_mutex_lock(&group->lock);
	group->left++;
	pthread_mutex_unlock(&group->lock);
	kv_ring_submit(cache->ring, &member->io);
}

int kv_segfiles_sync(struct kv_cache *cache, const int *fds, size_t n)
{
	struct group group = GROUP_INIT;
	bool short_of_memory = false;
	int r;

	/* All at once: the file system makes one journal commit of them. */
	for (size_t i = 0; i < n && !short_of_memory; i++) {
		struct member *one = calloc(1, sizeof(*one));

		short_of_memory = !one;
		if (!one)
			break;
		one->io.op = KV_IO_SYNC;
		one->io.fd = fds[i];
		member_submit(cache, &group, one);
	}
	r = wait_for(&group, 0);
	return short_of_memory ? -ENOMEM : r;
}

static uint32_t file_of(const struct kv_deletion *deletion)
{
	return (uint32_t)(deletion->slot_id >> 32);
}

/* ---- unqueued ---- */

/* A record that stays would bring its block back: its file notes it. */
static void leave_unqueued(struct kv_cache *cache, uint64_t slot_id, bool reuse)
{
	struct kv_segfile *file =
		kv_segfile_at(cache, (uint32_t)(slot_id >> 32));
	const uint32_t word = (uint32_t)slot_id / 64;
	const uint64_t bit = 1ull << slot_id % 64;

	cache->ssd.deletions.unqueued += !(file->unqueued[word] & bit);
	file->unqueued[word] |= bit;
	if (reuse)
		file->unqueued_back[word] |= bit;
}

/* An unqueued deletion is queued after all.  Was its slot to be given back? */
static bool queue_after_all(struct kv_cache *cache, uint64_t slot_id)
{
	struct kv_segfile *file =
		kv_segfile_at(cache, (uint32_t)(slot_id >> 32));
	const uint32_t word = (uint32_t)slot_id / 64;
	const uint64_t bit = 1ull << slot_id % 64;
	const bool reuse = file->unqueued_back[word] & bit;

	cache->ssd.deletions.unqueued -= (file->unqueued[word] & bit) != 0;
	file->unqueued[word] &= ~bit;
	file->unqueued_back[word] &= ~bit;
	return reuse;
}

/* The first from @from on. */
static bool unqueued_next(struct kv_cache *cache, uint64_t from,
			  uint64_t *ret_id)
{
	uint32_t slot = (uint32_t)from;

	for (uint32_t id = (uint32_t)(from >> 32); id < cache->ssd.n_files;
	     id++, slot = 0) {
		const struct kv_segfile *file = kv_segfile_at(cache, id);

		for (; file && slot < file->slots; slot++)
			if (file->unqueued[slot / 64] >> slot % 64 & 1) {
				*ret_id = kv_slot_id(id, slot);
				return true;
			}
	}
	return false;
}

/* False: there is still no memory.  What has no record costs no more than its
 * slot, until the next mount. */
static bool requeue_one(struct kv_cache *cache, uint64_t slot_id)
{
	struct kv_deletions *all = &cache->ssd.deletions;
	struct kv_slot_record record;
	struct kv_space *space;
	uint64_t unqueued;
	bool reuse;
	int r;

	kv_unlock(cache);
	r = kv_index_get(cache->index, slot_id, &record);
	kv_lock(cache);
	if (r < 0 && r != -ENOENT && r != -EBADMSG)
		return false;
	unqueued = all->unqueued;
	reuse = queue_after_all(cache, slot_id);
	if (unqueued == all->unqueued)
		return true; /* meanwhile, by somebody else */
	space = r == 0 ? kv_space_with_id(cache, record.space) : NULL;
	if (space) {
		kv_extent_delete_locked(cache, space, slot_id, reuse);
		kv_flushes_queued_locked(cache, space);
	}
	return all->unqueued < unqueued;
}

void kv_deletions_requeue(struct kv_cache *cache)
{
	uint64_t slot_id = 0;
	bool any = cache->ssd.deletions.unqueued;

	while (cache->ssd.deletions.unqueued &&
	       unqueued_next(cache, slot_id, &slot_id)) {
		if (!requeue_one(cache, slot_id)) {
			kv_flushes_settle_locked(cache, -ENOMEM);
			return;
		}
		slot_id++;
	}
	/* There may be nothing left to be done for them. */
	if (any)
		kv_flushes_settle_locked(cache, 0);
}

/* ---- queued ---- */

void kv_extent_delete_locked(struct kv_cache *cache, struct kv_space *space,
			     uint64_t slot_id, bool reuse)
{
	struct kv_deletions *all = &cache->ssd.deletions;
	struct kv_deletion_queue *queue = &space->deletions;

	kv_assert_locked(&cache->lock);
	if (queue->n == queue->room) {
		size_t room = queue->room ? queue->room * 2 : 64;
		void *items =
			realloc(queue->items, room * sizeof(*queue->items));

		if (!items) {
			leave_unqueued(cache, slot_id, reuse);
			return;
		}
		queue->items = items;
		queue->room = room;
	}
	queue_after_all(cache, slot_id);
	if (reuse)
		kv_extent_leaving_locked(cache, slot_id);
	queue->items[queue->n++] = (struct kv_deletion){
		.slot_id = slot_id,
		.reuse = reuse,
		.token_ids = space->layout && space->layout->token_ids,
	};
	queue->begun++;
	all->n++;
	if (!queue->batch && queue->n == 1)
		TAILQ_INSERT_TAIL(&all->queued, space, deleting);
	kv_commit_note_locked(cache);
}

/* ---- in hand ---- */

static int by_slot(const void *a, const void *b)
{
	const struct kv_deletion *x = a, *y = b;

	return x->slot_id < y->slot_id ? -1 : x->slot_id > y->slot_id;
}

/* A space that is cleared hands its blocks over in order. */
static void sort(struct kv_deletion_batch *batch)
{
	size_t i = 1;

	while (i < batch->n &&
	       by_slot(&batch->items[i - 1], &batch->items[i]) <= 0)
		i++;
	if (i < batch->n)
		qsort(batch->items, batch->n, sizeof(*batch->items), by_slot);
	batch->sorted = true;
}

void kv_deletions_sort(struct kv_cache *cache)
{
	struct kv_deletion_batch *batch;

	TAILQ_FOREACH(batch, &cache->ssd.deletions.to_record, record)
		if (!batch->sorted)
			sort(batch);
}

bool kv_deletions_to_record(const struct kv_ssd *ssd)
{
	return !TAILQ_EMPTY(&ssd->deletions.queued) ||
	       !TAILQ_EMPTY(&ssd->deletions.to_record);
}

void kv_deletions_take_locked(struct kv_cache *cache)
{
	struct kv_deletions *all = &cache->ssd.deletions;
	struct kv_deletion_batch *batch;
	struct kv_space *space;

	kv_assert_locked(&cache->lock);
	while ((space = TAILQ_FIRST(&all->queued))) {
		struct kv_deletion_queue *queue = &space->deletions;

		batch = calloc(1, sizeof(*batch));
		if (!batch)
			return;
		TAILQ_REMOVE(&all->queued, space, deleting);
		batch->space = space;
		batch->items = kv_steal(queue->items);
		batch->n = queue->n;
		queue->n = queue->room = 0;
		queue->batch = true;
		TAILQ_INSERT_TAIL(&all->to_record, batch, record);
	}
}

/* ---- recorded ---- */

/* The cost of deleting a record, in leaves of the index that change: the index
 * has room for so many in one transaction. */
static uint32_t cost_of(const struct kv_deletion_batch *batch)
{
	const struct kv_deletion *item = &batch->items[batch->recording];
	const uint32_t tables = 1 + item->token_ids;

	if (batch->recording == 0)
		return tables * NEAR_IDS;
	return item->slot_id - item[-1].slot_id <= NEAR_IDS ? tables
							    : tables * NEAR_IDS;
}

static int record_one(const struct kv_deletion *deletion, struct kv_txn *txn)
{
	int r = kv_txn_delete_slot(txn, deletion->slot_id);

	return r == 0 && deletion->token_ids
		       ? kv_txn_delete_token_ids(txn, deletion->slot_id)
		       : r;
}

/* Some of @batch, while there is any @left; -errno. */
static int record_some(struct kv_deletion_batch *batch, struct kv_txn *txn,
		       int64_t *left)
{
	int r = 0;

	for (size_t i = 0;
	     r == 0 && i<TURN && * left> 0 && batch->recording < batch->n;
	     i++) {
		*left -= cost_of(batch);
		r = record_one(&batch->items[batch->recording++], txn);
	}
	return r;
}

int kv_deletions_record(struct kv_cache *cache, struct kv_txn *txn)
{
	struct kv_deletions *all = &cache->ssd.deletions;
	const uint64_t until = kv_now_ns() + RECORD_NS;
	int64_t left = (int64_t)all->budget * NEAR_IDS;
	struct kv_deletion_batch *batch;
	bool more = true;
	int r = 0;

	while (r == 0 && more && left > 0 && kv_now_ns() < until) {
		more = false;
		TAILQ_FOREACH(batch, &all->to_record, record) {
			r = record_some(batch, txn, &left);
			more |= batch->recording < batch->n;
			if (r < 0)
				break;
		}
	}
	return r;
}

void kv_deletions_recorded_locked(struct kv_cache *cache, int status)
{
	struct kv_deletions *all = &cache->ssd.deletions;
	struct kv_deletion_batch *batch, *next;

	kv_assert_locked(&cache->lock);
	for (batch = TAILQ_FIRST(&all->to_record); batch; batch = next) {
		next = TAILQ_NEXT(batch, record);
		if (status < 0)
			batch->recording = batch->recorded;
		if (batch->recording == batch->recorded)
			continue;
		if (batch->zeroed == batch->recorded)
			TAILQ_INSERT_TAIL(&all->to_zero, batch, zero);
		batch->recorded = batch->recording;
		if (batch->recorded == batch->n)
			TAILQ_REMOVE(&all->to_record, batch, record);
		pthread_cond_signal(&all->wake);
	}
	KV_POINT("deletion.recorded");
	/* The index knows best what it has room for. */
	if (status == -ENOSPC)
		all->budget = KV_MAX(all->budget / 4, 32u);
	else if (status == 0)
		all->budget = KV_MIN(all->budget * 2, cache->ssd.round_max);
}

/* ---- zeroed ---- */

static uint8_t zero_page[KV_PAGE] __attribute__((aligned(KV_PAGE)));

static int zero_one(struct kv_cache *cache, struct group *group,
		    struct kv_deletion *deletion)
{
	struct member *one = calloc(1, sizeof(*one));
	struct kv_segfile *file;

	if (!one)
		return -ENOMEM;
	kv_lock(cache);
	file = kv_segfile_at(cache, file_of(deletion));
	one->io.fd = file->fd;
	one->io.offset = (uint32_t)deletion->slot_id * file->slot_bytes;
	kv_unlock(cache);
	one->io.op = KV_IO_WRITE;
	one->io.data = zero_page;
	one->io.bytes = KV_PAGE;
	one->deletion = deletion;
	member_submit(cache, group, one);
	KV_POINT("tombstone.submitted");
	wait_for(group, WINDOW - 1);
	return 0;
}

/* How many of @items, from the first on, are slots that lie side by side and
 * that nobody reads. */
static size_t run_of(const struct kv_deletion *items, size_t n)
{
	size_t i = 0;

	while (i < n && items[i].reuse && items[i].bad &&
	       (i == 0 || items[i].slot_id - items[i - 1].slot_id <= 1) &&
	       file_of(&items[i]) == file_of(&items[0]))
		i++;
	return i;
}

/* All of the slots, at a stroke, where the file system can. */
static void zero_run(struct kv_cache *cache, struct kv_deletion *items,
		     size_t n)
{
	const uint32_t first = (uint32_t)items[0].slot_id;
	const uint32_t last = (uint32_t)items[n - 1].slot_id;
	struct kv_segfile *file;
	uint64_t slot_bytes;
	int fd;

	kv_lock(cache);
	file = kv_segfile_at(cache, file_of(&items[0]));
	fd = file->fd;
	slot_bytes = file->slot_bytes;
	cache->health.zero_since = kv_now_ns();
	kv_unlock(cache);
	if (fallocate(fd, FALLOC_FL_ZERO_RANGE, (off_t)(first * slot_bytes),
		      (off_t)((last - first + 1) * slot_bytes)) == 0)
		for (size_t i = 0; i < n; i++)
			items[i].bad = false;
	KV_POINT("tombstone.run");
	kv_lock(cache);
	cache->health.zero_since = 0;
	kv_unlock(cache);
}

static void zero_runs(struct kv_cache *cache, struct kv_deletion *items,
		      size_t n)
{
	size_t run;

	for (size_t i = 0; i < n; i += KV_MAX(run, (size_t)1)) {
		run = run_of(items + i, n - i);
		if (run >= RUN)
			zero_run(cache, items + i, run);
	}
}

/* Once over those that are still to be zeroed; how the last failure went. */
static int zero_all(struct kv_cache *cache, struct kv_deletion *items, size_t n)
{
	struct group group = GROUP_INIT;
	int r = 0, e;

	for (size_t i = 0; i < n && r == 0; i++)
		if (items[i].bad)
			r = zero_one(cache, &group, &items[i]);
	e = wait_for(&group, 0);
	return r < 0 ? r : e;
}

static int sync_all(struct kv_cache *cache, const struct kv_deletion *items,
		    size_t n)
{
	int fds[PORTION];
	size_t n_fds = 0;

	kv_lock(cache);
	for (size_t i = 0; i < n; i++)
		if (i == 0 || file_of(&items[i]) != file_of(&items[i - 1]))
			fds[n_fds++] =
				kv_segfile_at(cache, file_of(&items[i]))->fd;
	kv_unlock(cache);
	return kv_segfiles_sync(cache, fds, n_fds);
}

/* Zero the prologues of those to be reused.  Where some can be written to, or
 * @others_work, those that cannot are ->bad; else it fails. */
static int zero_some(struct kv_cache *cache, struct kv_deletion *items,
		     size_t n, bool others_work)
{
	bool failed = false;
	int r = -EAGAIN;

	for (size_t i = 0; i < n; i++)
		items[i].bad = true;
	zero_runs(cache, items, n);
	for (int try = 0; try < TRIES && r < 0; try++)
		r = zero_all(cache, items, n);
	/* A slot not to be used again is zeroed where that is possible. */
	for (size_t i = 0; i < n; i++) {
		others_work |= items[i].reuse && !items[i].bad;
		failed |= items[i].reuse && items[i].bad;
	}
	if (failed && !others_work)
		return r;
	r = sync_all(cache, items, n);
	KV_POINT("tombstone.synced");
	if (r == 0 || !others_work)
		return r;
	for (size_t i = 0; i < n; i++)
		items[i].bad = items[i].reuse;
	return 0;
}

/* Others work, but this slot's prologue could not be zeroed. */
static void zero_again(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_deletion *deletion)
{
	struct kv_deletion_queue *queue = &space->deletions;
	const size_t n = queue->n;

	cache->stats.io_errors++;
	kv_extent_undelete_locked(cache, deletion->slot_id);
	if (deletion->failed + 1u < GIVE_UP)
		kv_extent_delete_locked(cache, space, deletion->slot_id, true);
	if (queue->n > n)
		queue->items[n].failed = (uint8_t)(deletion->failed + 1);
	else
		cache->stats.bad_slots++; /* it stays taken */
}

static void batch_over_locked(struct kv_cache *cache,
			      struct kv_deletion_batch *batch)
{
	struct kv_deletion_queue *queue = &batch->space->deletions;

	kv_assert_locked(&cache->lock);
	queue->done += batch->n;
	queue->batch = false;
	if (queue->n)
		TAILQ_INSERT_TAIL(&cache->ssd.deletions.queued, batch->space,
				  deleting);
	free(batch->items);
	free(batch);
	kv_commit_kick_locked(cache, false);
}

static void zeroed_locked(struct kv_cache *cache,
			  struct kv_deletion_batch *batch, size_t n)
{
	struct kv_space *space = batch->space;
	struct kv_ssd *ssd = &cache->ssd;

	kv_assert_locked(&cache->lock);
	for (size_t i = 0; i < n; i++) {
		struct kv_deletion *item = &batch->items[batch->zeroed + i];

		if (item->reuse && item->bad)
			zero_again(cache, space, item);
		else if (item->reuse)
			kv_extent_left_locked(cache, item->slot_id);
	}
	batch->zeroed += n;
	ssd->deletions.n -= n;
	if (batch->zeroed == batch->recorded)
		TAILQ_REMOVE(&ssd->deletions.to_zero, batch, zero);
	if (batch->zeroed == batch->n)
		batch_over_locked(cache, batch);
	if (!ssd->writing && !ssd->queued)
		ssd->error = 0;
	KV_POINT("deletion.before_telling");
	kv_flushes_settle_space_locked(cache, space);
	pthread_cond_broadcast(&ssd->done);
	/* Writes that were put off for want of a slot have one now. */
	kv_writer_rouse_locked(cache);
}

/* Some prologues of the first batch; 0 or why they could not be zeroed. */
static int zero_first(struct kv_cache *cache, bool others_work)
{
	struct kv_deletion_batch *batch =
		TAILQ_FIRST(&cache->ssd.deletions.to_zero);
	size_t n = KV_MIN(batch->recorded - batch->zeroed, (size_t)PORTION);
	int r;

	kv_unlock(cache);
	r = zero_some(cache, batch->items + batch->zeroed, n, others_work);
	kv_lock(cache);
	if (r == 0)
		zeroed_locked(cache, batch, n);
	else
		kv_write_failed_locked(cache, r);
	return r;
}

/* Nothing more comes, or nothing of it can be done. */
static bool is_over(const struct kv_ssd *ssd, unsigned failed)
{
	const struct kv_deletions *all = &ssd->deletions;

	if (!ssd->stop_commits)
		return false;
	return failed >= TRIES || (TAILQ_EMPTY(&all->to_zero) &&
				   (!all->n || ssd->committer_ended));
}

void *kv_deleter(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_deletions *all = &ssd->deletions;
	unsigned failed = 0; /* in a row, while stopping */
	unsigned turns = 0;
	uint64_t put = UINT64_MAX; /* blocks, when it last failed */
	int r;

	kv_lock(cache);
	while (!is_over(ssd, failed) ||
	       (failed < TRIES && kv_sweep_waits(cache))) {
		/* Somebody may wait for either. */
		if (TAILQ_EMPTY(&all->to_zero) || ++turns % TURNS == 0) {
			if (!kv_sweep_one(cache) && TAILQ_EMPTY(&all->to_zero))
				kv_cond_wait(cache, &all->wake, 1000000000u);
			continue;
		}
		r = zero_first(cache, put < ssd->put);
		put = r < 0 ? KV_MIN(put, ssd->put) : UINT64_MAX;
		failed = r < 0 && ssd->stop_commits ? failed + 1 : 0;
		if (r < 0)
			kv_cond_wait(cache, &all->wake, kv_health_retry(cache));
	}
	all->ended = true;
	pthread_cond_broadcast(&ssd->done);
	pthread_cond_signal(&ssd->commit);
	kv_unlock(cache);
	return NULL;
}

void kv_deletions_init(struct kv_cache *cache)
{
	struct kv_deletions *all = &cache->ssd.deletions;

	TAILQ_INIT(&all->queued);
	TAILQ_INIT(&all->to_record);
	TAILQ_INIT(&all->to_zero);
	kv_cond_init(&all->wake);
}

/* Deletions that could not be carried out. */
void kv_deletions_free(struct kv_cache *cache)
{
	struct kv_deletions *all = &cache->ssd.deletions;
	struct kv_deletion_batch *batch;

	/* A batch that is on both lists is freed with the first. */
	while ((batch = TAILQ_FIRST(&all->to_record))) {
		TAILQ_REMOVE(&all->to_record, batch, record);
		if (batch->zeroed < batch->recorded)
			TAILQ_REMOVE(&all->to_zero, batch, zero);
		free(batch->items);
		free(batch);
	}
	while ((batch = TAILQ_FIRST(&all->to_zero))) {
		TAILQ_REMOVE(&all->to_zero, batch, zero);
		free(batch->items);
		free(batch);
	}
}
