/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deletion.c - delete the records of removed blocks, zero their prologues, and
 * free their slots; sweep files after a crash.
 *
 * Saves do not wait for deletions, and a flush waits only for those of its own
 * space.  Deletions wait in the queue of their space.  The committer takes a
 * whole queue as one batch, sorts the batch by slot, and deletes some of its
 * records in each transaction, for a short time.  The deleter thread then
 * zeroes and syncs the prologues, with few requests at the device at a time, so
 * that other requests pass.
 *
 * No removed block may return, not even when the index is rebuilt from the
 * segment files.  After a crash a free slot may hold the prologue of a write
 * that was never committed, or of a removed block.  Between batches the deleter
 * sweeps files: it zeroes such prologues before any free slot of the file is
 * taken.  Only after the sweep of a file, when its free slots hold no prologue,
 * does it write a trailer that is missing or names another slot size.
 *
 * The deleter waits for its requests without a limit: a late zero would destroy
 * the next block in the slot.  health.c reports the delay meanwhile.  Nobody waits
 * for requests to a failed device, whose slots are not used again.
 *
 * OWNS       the deletions, from kv_extent_delete_locked until their slots are
 *            free; the deleter thread and its requests; cache->ssd.unswept.
 *
 * STATES     of a deletion, and the function that makes each step:
 *
 *             QUEUED -> IN HAND    kv_deletions_take_locked
 *            IN HAND -> RECORDED   kv_deletions_recorded_locked, once committed
 *           RECORDED -> over       zeroed_locked
 *
 * INVARIANTS
 *   (1) A slot is reused only after the deletion of its record is durable and,
 *       after that, its zeroed prologue is durable.
 *   (2) A space has one batch in hand, so that its deletions are over in the
 *       order of their batches; done counts whole batches.
 *   (3) A batch is to_record while recorded < n, and to_zero while zeroed <
 *       recorded, and freed when zeroed == n.
 *   (4) deletions.n counts the deletions that are not over.
 *
 * LOCKING    cache->lock; none during I/O.  The committer owns to_record, and
 *            the part of a batch that is not RECORDED; the thread owns the
 *            RECORDED part of the first batch to_zero.  group->lock, a leaf,
 *            guards which requests have not ended.
 */
#include "cache/ssd/ssd.h"
#include "common/array.h"
#include "common/crash_point.h"
#include "index/segfile.h"

#include <fcntl.h>

#define TRIES 2
#define GIVE_UP 3  /* failures to zero a prologue until the slot stays taken */
#define WINDOW 32u /* most requests of the deleter at the device */
#define PORTION 2048u /* prologues zeroed before the files are synced */
#define TURN 128u     /* records deleted at once by the committer */
#define TURNS 4u      /* every 4th turn the deleter sweeps files for SWEEP_NS */
#define SWEEP_NS 20000000u
/* Slots read at once: with fewer, starting the threads costs more than reading;
 * more could keep a slow disk for longer than the patience. */
#define STEP 4096u
/* Zero this many or more adjacent slots, as a whole, by one fallocate(2). */
#define RUN KV_POINTS_OR(3u, 16u)
#define RECORD_NS 20000000u
/* A thread that waits looks so often whether a device has failed. */
#define LOOK_NS 1000000000u
#define NEAR_IDS 8u /* neighbouring slot ids that usually share a leaf */

struct kv_deletion_batch {
	struct kv_space *space;
	struct kv_deletion *items;
	size_t n, recording, recorded, zeroed;
	bool sorted;
	TAILQ_ENTRY(kv_deletion_batch) record, zero;
};

/* ---- requests ---- */

struct member {
	struct kv_io io; /* first member: member_done casts its address */
	struct group *group;
	struct kv_device *device;
	struct kv_deletion *deletion; /* deletion to mark; NULL: a sync */
	bool flying;		      /* group->lock */
};

/* Requests that one thread waits for together. */
struct group {
	struct kv_cache *cache;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	size_t left, wanted; /* requests under way; wake at this number */
	int status;	  /* error of the last request that failed; 0: none */
	bool left_behind; /* the last request frees the group */
	size_t n;
	struct member members[];
};

static struct group *group_new(struct kv_cache *cache, size_t n)
{
	struct group *group =
		calloc(1, sizeof(*group) + n * sizeof(struct member));

	if (!group)
		return NULL;
	group->cache = cache;
	pthread_mutex_init(&group->lock, NULL);
	kv_cond_init(&group->cond);
	return group;
}

static void group_free(struct group *group)
{
	pthread_mutex_destroy(&group->lock);
	pthread_cond_destroy(&group->cond);
	free(group);
}

static void member_done(struct kv_io *io, int status)
{
	struct member *member = (struct member *)io;
	struct group *group = member->group;
	bool bad = status < 0, last;

	KV_POINT("tombstone.written");
	if (bad || member->device->errors) {
		kv_lock(group->cache);
		if (io->op == KV_IO_WRITE
			    ? kv_device_note_locked(group->cache,
						    member->device, status)
			    : bad && kv_device_fail_locked(group->cache,
							   member->device,
							   status))
			status = 0;
		bad = bad && !member->device->failed;
		kv_unlock(group->cache);
	}
	pthread_mutex_lock(&group->lock);
	member->flying = false;
	if (status < 0)
		group->status = status;
	if (member->deletion)
		member->deletion->bad = bad;
	if (--group->left == group->wanted)
		pthread_cond_signal(&group->cond);
	last = group->left_behind && group->left == 0;
	pthread_mutex_unlock(&group->lock);
	if (last)
		group_free(group);
}

/* Return how many requests are at devices that failed: these may never end. */
static size_t lost(const struct group *group)
{
	size_t n = 0;

	for (size_t i = 0; i < group->n; i++)
		n += group->members[i].flying &&
		     group->members[i].device->failed;
	return n;
}

/* Wait until at most @left requests of @group have not ended, apart from those
 * at failed devices.  Return the error of the last request that failed. */
static int wait_for(struct group *group, size_t left)
{
	size_t n;
	int r;

	pthread_mutex_lock(&group->lock);
	while (group->left > left) {
		n = lost(group);
		if (group->left <= left + n)
			break;
		group->wanted = left + n;
		kv_cond_wait_until(&group->cond, &group->lock,
				   kv_now_ns() + LOOK_NS);
	}
	r = group->status;
	pthread_mutex_unlock(&group->lock);
	return r;
}

/* Wait for all requests as wait_for does, and free the group, or leave it to the
 * requests at failed devices. */
static int group_end(struct group *group)
{
	int r = wait_for(group, 0);
	bool over;

	pthread_mutex_lock(&group->lock);
	for (size_t i = 0; i < group->n; i++) {
		struct member *member = &group->members[i];

		if (member->flying && member->deletion)
			member->deletion->bad = false;
		member->deletion = NULL;
	}
	over = group->left == 0;
	group->left_behind = !over;
	pthread_mutex_unlock(&group->lock);
	if (over)
		group_free(group);
	return r;
}

static void member_submit(struct member *member, struct group *group)
{
	member->io.buffer = -1;
	member->io.done = member_done;
	member->group = group;
	pthread_mutex_lock(&group->lock);
	member->flying = true;
	group->left++;
	pthread_mutex_unlock(&group->lock);
	kv_ring_submit(member->device->ring, &member->io);
}

int kv_segfiles_sync(struct kv_cache *cache, struct kv_segfile *const *files,
		     size_t n)
{
	struct group *group = group_new(cache, n);

	if (!group)
		return -ENOMEM;
	/* Sync all files in a row: it costs the filesystem one commit. */
	for (; group->n < n; group->n++) {
		struct member *member = &group->members[group->n];

		member->io.op = KV_IO_SYNC;
		member->io.fd = files[group->n]->fd;
		member->device = files[group->n]->device;
		member_submit(member, group);
	}
	return group_end(group);
}

/* ---- state QUEUED, or unqueued because memory was short ---- */

/* Unmark an unqueued deletion.  Return whether the slot may be reused. */
static bool unmark(struct kv_cache *cache, uint64_t slot_id)
{
	struct kv_segfile *file = kv_segfile_of(cache, slot_id);
	const uint32_t word = (uint32_t)slot_id / 64;
	const uint64_t bit = 1ull << slot_id % 64;
	const bool reuse = file->unqueued_back[word] & bit;

	cache->ssd.deletions.unqueued -= (file->unqueued[word] & bit) != 0;
	file->unqueued[word] &= ~bit;
	file->unqueued_back[word] &= ~bit;
	return reuse;
}

void kv_extent_delete_locked(struct kv_cache *cache, struct kv_space *space,
			     uint64_t slot_id, bool reuse)
{
	struct kv_deletions *all = &cache->ssd.deletions;
	struct kv_deletion_queue *queue = &space->deletions;

	kv_assert_locked(&cache->lock);
	if (cache->config.read_only)
		return;
	if (kv_array_reserve(&queue->items, &queue->room, queue->n + 1) < 0) {
		/* No memory: mark the slot, and queue its deletion later.
		 * Until then a new mount would bring the block back. */
		struct kv_segfile *file = kv_segfile_of(cache, slot_id);
		const uint32_t word = (uint32_t)slot_id / 64;
		const uint64_t bit = 1ull << slot_id % 64;

		all->unqueued += !(file->unqueued[word] & bit);
		file->unqueued[word] |= bit;
		if (reuse)
			file->unqueued_back[word] |= bit;
		file->blocks[(uint32_t)slot_id] = space->id;
		return;
	}
	unmark(cache, slot_id);
	if (reuse) {
		kv_segfile_of(cache, slot_id)->class->leaving++;
		cache->ssd.leaving++;
	}
	queue->items[queue->n++] = (struct kv_deletion){
		.slot_id = slot_id,
		.reuse = reuse,
		.token_ids = space->layout && space->layout->token_ids,
	};
	queue->begun++;
	all->n++;
	if (!queue->batch && queue->n == 1) {
		TAILQ_INSERT_TAIL(&all->queued, space, deleting);
		kv_commit_note_locked(cache);
	}
}

void kv_deletions_requeue_locked(struct kv_cache *cache)
{
	const struct kv_ssd *ssd = &cache->ssd;
	int r = 0;

	kv_assert_locked(&cache->lock);
	if (!ssd->deletions.unqueued)
		return;
	for (uint32_t id = 0; id < ssd->n_files && r == 0; id++) {
		const struct kv_segfile *file = ssd->files[id];

		for (uint32_t i = 0; file && i < file->slots && r == 0; i++) {
			const uint64_t slot_id = kv_slot_id(id, i);
			struct kv_space *space;
			uint64_t unqueued;

			if (!(file->unqueued[i / 64] >> i % 64 & 1))
				continue;
			space = kv_space_with_id(cache, file->blocks[i]);
			unqueued = ssd->deletions.unqueued;
			if (!space) {
				unmark(cache, slot_id);
				continue;
			}
			kv_extent_delete_locked(cache, space, slot_id,
						unmark(cache, slot_id));
			kv_flushes_queued_locked(cache, space);
			if (ssd->deletions.unqueued == unqueued)
				r = -ENOMEM;
		}
	}
	kv_flushes_settle_locked(cache, r);
}

/* ---- state IN HAND ---- */

int kv_by_u64(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Order by slot.  A slot that is deleted twice, because its block was open when
 * it was removed, is free after the second deletion: that one comes last, as a
 * transaction may end between the two. */
static int by_slot(const void *a, const void *b)
{
	const struct kv_deletion *x = a, *y = b;

	return x->slot_id == y->slot_id ? x->reuse - y->reuse : kv_by_u64(a, b);
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

/* ---- state RECORDED ---- */

/* Delete up to TURN records of @batch.  Subtract NEAR_IDS from *@left, the
 * budget, for each changed leaf of the index. */
static int record_some(struct kv_deletion_batch *batch, struct kv_txn *txn,
		       int64_t *left)
{
	int r = 0;

	for (size_t i = 0;
	     r == 0 && i<TURN && * left> 0 && batch->recording < batch->n;
	     i++) {
		const struct kv_deletion *item =
			&batch->items[batch->recording++];
		const bool near = batch->recording > 1 &&
				  item->slot_id - item[-1].slot_id <= NEAR_IDS;

		*left -= (1 + item->token_ids) * (near ? 1 : NEAR_IDS);
		r = kv_txn_delete(txn, KV_PART_SLOTS, item->slot_id);
		if (r == 0 && item->token_ids)
			r = kv_txn_delete(txn, KV_PART_TOKENS, item->slot_id);
	}
	return r;
}

int kv_deletions_record(struct kv_cache *cache, struct kv_txn *txn)
{
	struct kv_deletions *all = &cache->ssd.deletions;
	int64_t left = (int64_t)all->budget * NEAR_IDS;
	struct kv_deletion_batch *batch;
	bool more = true;
	uint64_t until;
	int r = 0;

	TAILQ_FOREACH(batch, &all->to_record, record) {
		size_t i = 1;

		/* The slots of a space that was cleared are sorted already. */
		while (!batch->sorted && i < batch->n &&
		       batch->items[i - 1].slot_id <= batch->items[i].slot_id)
			i++;
		if (!batch->sorted && i < batch->n)
			qsort(batch->items, batch->n, sizeof(*batch->items),
			      by_slot);
		batch->sorted = true;
	}
	until = kv_now_ns() + RECORD_NS;
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
	/* Delete fewer records per transaction if the index had no room. */
	if (status == -ENOSPC)
		all->budget = KV_MAX(all->budget / 4, 32u);
	else if (status == 0)
		all->budget = KV_MIN(all->budget * 2, cache->ssd.round_max);
}

int kv_record_delete(struct kv_txn *txn, uint64_t slot_id)
{
	int r = kv_txn_delete(txn, KV_PART_SLOTS, slot_id);

	return r < 0 ? r : kv_txn_delete(txn, KV_PART_TOKENS, slot_id);
}

int kv_records_delete(struct kv_cache *cache, uint64_t *slots, size_t n_slots,
		      const uint32_t *files, size_t n_files)
{
	const size_t n = n_slots + n_files;
	struct kv_txn *txn;
	int r = 0;

	if (n_slots > 0)
		qsort(slots, n_slots, sizeof(*slots), kv_by_u64);
	for (size_t at = 0; r == 0 && at < n; at += cache->ssd.round_max) {
		const size_t end = KV_MIN(n, at + cache->ssd.round_max);

		r = kv_txn_begin(cache->index, &txn);
		if (r < 0)
			return r;
		for (size_t i = at; r == 0 && i < end; i++)
			r = i < n_slots ? kv_record_delete(txn, slots[i])
					: kv_txn_delete(txn, KV_PART_SEGMENTS,
							files[i - n_slots]);
		if (r < 0)
			kv_txn_abort(txn);
		else
			r = kv_txn_commit(txn);
		KV_POINT("shrink.deleted");
	}
	return r;
}

/* ---- zeroing ---- */

static uint32_t file_id(const struct kv_deletion *deletion)
{
	return (uint32_t)(deletion->slot_id >> 32);
}

/* Zero each run of RUN or more adjacent reusable slots of STORE by one
 * fallocate(2).  A device that may fail alone must not hold up this thread. */
static void zero_runs(struct kv_cache *cache, struct kv_deletion *items,
		      size_t n)
{
	size_t run;

	for (size_t at = 0; at < n; at += KV_MAX(run, (size_t)1)) {
		struct kv_deletion *first = &items[at];
		const struct kv_segfile *file;
		uint64_t slot_bytes, slots;
		bool at_store;
		int fd;

		for (run = 0;
		     at + run < n && first[run].reuse && first[run].bad &&
		     file_id(&first[run]) == file_id(first);
		     run++)
			if (run > 0 &&
			    first[run].slot_id - first[run - 1].slot_id > 1)
				break;
		if (run < RUN)
			continue;
		kv_lock(cache);
		file = kv_segfile_of(cache, first->slot_id);
		at_store = file->device == cache->ssd.devices;
		fd = file->fd;
		slot_bytes = file->slot_bytes;
		cache->health.zero_since = at_store ? kv_now_ns() : 0;
		kv_unlock(cache);
		if (!at_store)
			continue;
		slots = first[run - 1].slot_id - first->slot_id + 1;
		if (fallocate(fd, FALLOC_FL_ZERO_RANGE,
			      (off_t)((uint32_t)first->slot_id * slot_bytes),
			      (off_t)(slots * slot_bytes)) == 0)
			for (size_t i = 0; i < run; i++)
				first[i].bad = false;
		KV_POINT("tombstone.run");
		kv_lock(cache);
		cache->health.zero_since = 0;
		kv_unlock(cache);
	}
}

/* Try once to zero the bad prologues of @items.  Return the last error. */
static int zero_all(struct kv_cache *cache, struct kv_deletion *items, size_t n)
{
	static const uint8_t zeros[KV_PAGE] __attribute__((aligned(KV_PAGE)));
	struct group *group = group_new(cache, n);

	if (!group)
		return -ENOMEM;
	kv_lock(cache);
	for (size_t i = 0; i < n; i++) {
		const struct kv_segfile *file =
			kv_segfile_of(cache, items[i].slot_id);
		struct member *member = &group->members[group->n];

		if (!items[i].bad)
			continue;
		member->io.op = KV_IO_WRITE;
		member->io.fd = file->fd;
		member->io.data = (void *)zeros;
		member->io.offset =
			(uint32_t)items[i].slot_id * file->slot_bytes;
		member->io.bytes = KV_PAGE;
		member->device = file->device;
		member->deletion = &items[i];
		group->n++;
	}
	kv_unlock(cache);
	for (size_t i = 0; i < group->n; i++) {
		member_submit(&group->members[i], group);
		KV_POINT("tombstone.submitted");
		/* Submit in bursts: this thread wakes up less often. */
		if ((i + 1) % (WINDOW / 2) == 0)
			wait_for(group, WINDOW / 2);
	}
	return group_end(group);
}

/*
 * Zero the prologues of @items and sync them.
 *   0   done; slots that cannot be written to are marked as bad
 *   <0  no slot can be written to, and @others_work is false
 * A failed device keeps its prologues: a mount that finds it again sweeps them.
 */
static int zero_some(struct kv_cache *cache, struct kv_deletion *items,
		     size_t n, bool others_work)
{
	struct kv_segfile *files[PORTION], *file;
	bool failed = false;
	size_t n_files = 0;
	int r = -EAGAIN;

	kv_lock(cache);
	for (size_t i = 0; i < n; i++)
		items[i].bad =
			!kv_segfile_of(cache, items[i].slot_id)->device->failed;
	kv_unlock(cache);
	zero_runs(cache, items, n);
	for (int try = 0; try < TRIES && r < 0; try++)
		r = zero_all(cache, items, n);
	/* A slot that is not reused may keep its prologue: ignore its error. */
	for (size_t i = 0; i < n; i++) {
		others_work |= items[i].reuse && !items[i].bad;
		failed |= items[i].reuse && items[i].bad;
	}
	if (r < 0 && failed && !others_work)
		return r;
	kv_lock(cache);
	for (size_t i = 0; i < n; i++) {
		file = kv_segfile_of(cache, items[i].slot_id);
		if (!file->device->failed &&
		    (i == 0 || file_id(&items[i]) != file_id(&items[i - 1])))
			files[n_files++] = file;
	}
	kv_unlock(cache);
	r = kv_segfiles_sync(cache, files, n_files);
	KV_POINT("tombstone.synced");
	if (r == 0 || !others_work)
		return r;
	for (size_t i = 0; i < n; i++)
		items[i].bad = items[i].reuse;
	return 0;
}

/* Finish @n deletions of @batch, whose prologues are zeroed. */
static void zeroed_locked(struct kv_cache *cache,
			  struct kv_deletion_batch *batch, size_t n)
{
	struct kv_space *space = batch->space;
	struct kv_deletion_queue *queue = &space->deletions;
	struct kv_ssd *ssd = &cache->ssd;
	bool bad = false;

	kv_assert_locked(&cache->lock);
	for (size_t i = 0; i < n; i++) {
		struct kv_deletion *item = &batch->items[batch->zeroed + i];
		const size_t queued = queue->n;

		bad |= item->bad;
		if (!item->reuse)
			continue;
		kv_segfile_of(cache, item->slot_id)->class->leaving--;
		ssd->leaving--;
		if (!item->bad) {
			kv_extent_free_locked(cache, item->slot_id);
			continue;
		}
		/* The slot could not be zeroed: queue the deletion again.
		 * After GIVE_UP failures the slot stays taken, and the next
		 * mount sweeps it. */
		cache->stats.io_errors++;
		if (++item->failed < GIVE_UP)
			kv_extent_delete_locked(cache, space, item->slot_id,
						true);
		if (queue->n > queued)
			queue->items[queued].failed = item->failed;
		if (item->failed < GIVE_UP)
			continue;
		cache->stats.bad_slots++;
		ssd->unswept = true;
		kv_flushes_fail_locked(cache, space, -EIO);
	}
	batch->zeroed += n;
	ssd->deletions.n -= n;
	if (batch->zeroed == batch->recorded)
		TAILQ_REMOVE(&ssd->deletions.to_zero, batch, zero);
	if (batch->zeroed == batch->n) {
		space->deletions.done += batch->n;
		space->deletions.batch = false;
		if (space->deletions.n)
			TAILQ_INSERT_TAIL(&ssd->deletions.queued, space,
					  deleting);
		free(batch->items);
		free(batch);
		kv_commit_kick_locked(cache, false);
	}
	if (bad)
		kv_flushes_queued_locked(cache, space);
	if (!ssd->writing && !ssd->queued)
		ssd->error = 0;
	KV_POINT("deletion.before_telling");
	kv_flushes_settle_space_locked(cache, space);
	pthread_cond_broadcast(&ssd->done);
	kv_writer_rouse_locked(cache); /* the deletions may have freed slots */
}

/* ---- sweeping files ---- */

void kv_sweep_later(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;

	ssd->unswept = false;
	for (uint32_t id = 0; id < ssd->n_files; id++) {
		struct kv_segfile *file = ssd->files[id];

		if (!file || !file->class || file->unswept)
			continue;
		file->unswept = true;
		ssd->n_unswept++;
		kv_segfile_relink(file);
	}
}

struct sweep {
	struct kv_apart apart; /* first member */
	uint32_t slots;
	bool trailer;
	uint64_t unreadable, zeroed;
	struct kv_found found[STEP];
	uint64_t taken[]; /* bitmap of the slots that are not free */
};

static int sweep(struct kv_apart *apart)
{
	struct sweep *s = (struct sweep *)apart;
	const struct kv_cache *cache = apart->cache;
	int r = 0;

	KV_POINT("sweep.begun");
	for (uint32_t at = 0; r == 0 && at < s->slots; at += STEP) {
		const uint32_t n = KV_MIN(STEP, s->slots - at);

		kv_apart_step(apart);
		kv_segfile_scan(apart->fd, cache->info.store, apart->slot_bytes,
				at, n, s->taken, s->found);
		for (uint32_t i = 0; r == 0 && i < n; i++) {
			s->unreadable +=
				s->found[i].state == KV_FOUND_UNREADABLE;
			if (s->found[i].state < KV_FOUND_BLOCK)
				continue;
			kv_apart_step(apart);
			r = kv_segfile_zero(apart->fd, apart->slot_bytes,
					    at + i);
			s->zeroed++;
		}
	}
	kv_apart_step(apart);
	if (r == 0 && s->zeroed && fdatasync(apart->fd) < 0)
		r = -errno;
	KV_POINT("sweep.zeroed");
	if (r == 0 && !s->trailer)
		r = kv_trailer_write(apart->fd, apart->id, cache->info.store,
				     cache->ssd.segment_bytes,
				     apart->slot_bytes);
	return r;
}

/*
 * Sweep one file: zero the prologues in its free slots, and write the trailer
 * if that is missing.  If that fails, the store ends unclean, so that the next
 * mount sweeps again.  A file that is being swept is neither removed nor
 * converted.  Return false if all files are swept.  Releases the lock.
 */
static bool sweep_one(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_segfile *file = NULL;
	struct sweep *s;
	size_t bytes;
	int r = -ENOMEM;

	/* Prefer a file with the slot size for which a write waits. */
	for (uint32_t id = 0; ssd->n_unswept && id < ssd->n_files; id++) {
		struct kv_segfile *one = ssd->files[id];

		if (!one || !one->unswept)
			continue;
		if (!file || one->slot_bytes == ssd->sweep_first)
			file = one;
		if (one->slot_bytes == ssd->sweep_first)
			break;
	}
	if (!file)
		return false;
	bytes = (file->slots + 63) / 64 * sizeof(*s->taken);
	s = calloc(1, sizeof(*s) + bytes);
	if (s) {
		s->apart = (struct kv_apart){.cache = cache,
					     .device = file->device,
					     .work = sweep,
					     .id = file->id,
					     .slot_bytes = file->slot_bytes,
					     .fd = file->fd};
		s->slots = file->slots;
		s->trailer = file->trailer;
		memcpy(s->taken, file->bitmap, bytes);
		file->sweeping = true;
		kv_unlock(cache);
		if (!kv_apart_run(&s->apart))
			s = NULL;
		kv_lock(cache);
		cache->health.zero_since = 0;
		r = s ? s->apart.status : -ETIMEDOUT;
	}
	ssd->trailers += r == 0 && !file->trailer;
	file->trailer |= r == 0;
	file->sweeping = false;
	ssd->swept += s ? s->zeroed : 0;
	cache->stats.io_errors += s ? s->unreadable : 0;
	free(s);
	if (r == 0 && !ssd->writing && !ssd->queued)
		ssd->error = 0;
	if (r < 0)
		kv_note(cache, "sweep_failed=%s", strerror(-r));
	if (r < 0 && !kv_device_fail_locked(cache, file->device, r)) {
		ssd->unswept = true;
		kv_flushes_settle_locked(cache, r);
	}
	if (file->unswept) { /* skip it if the file was converted meanwhile */
		file->unswept = false;
		ssd->n_unswept--;
		kv_segfile_relink(file);
		if (!ssd->n_unswept && ssd->swept)
			kv_note(cache, "swept=%llu prologues of no block",
				(unsigned long long)ssd->swept);
		if (!ssd->n_unswept && ssd->trailers)
			kv_warn(cache, "trailers",
				"%s/segments: missing or damaged trailers of "
				"%u segment files are written again",
				cache->store, ssd->trailers);
	}
	kv_flushes_settle_locked(cache, 0);
	pthread_cond_broadcast(&ssd->done);
	kv_writer_rouse_locked(cache);
	return true;
}

/* ---- the thread ---- */

void *kv_deleter(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_deletions *all = &ssd->deletions;
	unsigned failed = 0; /* number of failures in a row while stopping */
	unsigned turns = 0;
	uint64_t put = UINT64_MAX; /* ssd->put at the first failure in a row */

	kv_lock(cache);
	while (!ssd->stop_commits ||
	       (failed < TRIES &&
		(ssd->n_unswept || !TAILQ_EMPTY(&all->to_zero) ||
		 (all->n && !ssd->committer_ended)))) {
		struct kv_deletion_batch *batch = TAILQ_FIRST(&all->to_zero);
		bool others_work;
		size_t n;
		int r;

		/* Clients may wait for zeroed slots or for swept files. */
		if (!batch || ++turns % TURNS == 0) {
			const uint64_t until = kv_now_ns() + SWEEP_NS;
			bool more = true;

			while (more && kv_now_ns() < until)
				more = sweep_one(cache);
			if (!more && TAILQ_EMPTY(&all->to_zero))
				kv_cond_wait(cache, &all->wake, 1000000000u);
			continue;
		}
		n = KV_MIN(batch->recorded - batch->zeroed, (size_t)PORTION);
		others_work = put < ssd->put;
		kv_unlock(cache);
		r = zero_some(cache, batch->items + batch->zeroed, n,
			      others_work);
		kv_lock(cache);
		put = r < 0 ? KV_MIN(put, ssd->put) : UINT64_MAX;
		failed = r < 0 && ssd->stop_commits ? failed + 1 : 0;
		if (r == 0) {
			zeroed_locked(cache, batch, n);
			continue;
		}
		kv_write_failed_locked(cache, r);
		kv_cond_wait(cache, &all->wake, cache->config.io_retry);
	}
	all->ended = true;
	pthread_cond_broadcast(&ssd->done);
	pthread_cond_signal(&ssd->commit);
	kv_unlock(cache);
	return NULL;
}

void kv_deletions_free(struct kv_cache *cache)
{
	struct kv_deletions *all = &cache->ssd.deletions;
	struct kv_deletion_batch *batch;

	while ((batch = TAILQ_FIRST(&all->to_record)) ||
	       (batch = TAILQ_FIRST(&all->to_zero))) {
		if (batch->recorded < batch->n)
			TAILQ_REMOVE(&all->to_record, batch, record);
		if (batch->zeroed < batch->recorded)
			TAILQ_REMOVE(&all->to_zero, batch, zero);
		free(batch->items);
		free(batch);
	}
}
