/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit.c - the group commit: what was written becomes durable, what was
 * removed is gone for good.
 *
 * One round, of no more than the index surely has room for: fdatasync the
 * files, one LMDB transaction, zero the prologues of the slots that are given
 * back and sync those, and only then tell anybody.  A record thus never leads
 * to zeros, whenever the daemon dies; prologues without a record are swept at
 * mount.
 *
 * The committer waits for its own requests for as long as they take: a zero
 * that lands late would land on whoever has the slot by then.  Others are told
 * meanwhile that it does not get on (health.c).
 *
 * OWNS       the committer thread, what it took from the lists for a round, and
 *            its requests until all of one call have ended.
 *
 * INVARIANTS
 *   (1) A record is committed only after the data it names was synced.
 *   (2) A slot is reused only after its prologue was zeroed and the deletion
 *       of its record is durable.
 *   (3) At most one record has a given space and key: a block that is removed
 *       while its round is under way has its record deleted in the next round,
 *       before which no other block of its key can be committed.  So a round
 *       has puts only if it has every deletion there is.
 *   (4) After a failed round everything is as if it had not begun: written
 *       blocks are queued again, deletions wait for the next round.
 *
 * LOCKING    cache->lock for the lists; none during I/O.  group->lock, a leaf,
 *            for how many requests are left.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "common/crash_point.h"

#define TRIES 2
#define GIVE_UP 3 /* rounds in which a slot could not be zeroed */

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
	if (--group->left == 0)
		pthread_cond_signal(&group->cond);
	pthread_mutex_unlock(&group->lock);
	free(member);
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

static int wait_for_all(struct group *group)
{
	pthread_mutex_lock(&group->lock);
	while (group->left)
		pthread_cond_wait(&group->cond, &group->lock);
	pthread_mutex_unlock(&group->lock);
	return group->status;
}

static int segfiles_sync(struct kv_cache *cache, const int *fds, size_t n)
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
	r = wait_for_all(&group);
	return short_of_memory ? -ENOMEM : r;
}

static uint8_t zero_page[KV_PAGE] __attribute__((aligned(KV_PAGE)));

static int zero_one(struct kv_cache *cache, struct group *group,
		    struct kv_deletion *deletion)
{
	struct member *one = calloc(1, sizeof(*one));
	struct kv_segfile *file;

	if (!one)
		return -ENOMEM;
	kv_lock(cache);
	file = kv_segfile_at(cache, (uint32_t)(deletion->slot_id >> 32));
	one->io.fd = file->fd;
	one->io.offset = (uint32_t)deletion->slot_id * file->slot_bytes;
	kv_unlock(cache);
	one->io.op = KV_IO_WRITE;
	one->io.data = zero_page;
	one->io.bytes = KV_PAGE;
	one->deletion = deletion;
	member_submit(cache, group, one);
	KV_POINT("tombstone.submitted");
	return 0;
}

/* Once over those that are still to be zeroed; how the last failure went. */
static int zero_all(struct kv_cache *cache, struct kv_deletion *items, size_t n)
{
	struct group group = GROUP_INIT;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		if (items[i].bad)
			r = zero_one(cache, &group, &items[i]);
	wait_for_all(&group);
	return r < 0 ? r : group.status;
}

/* Zero the prologues of those to be reused.  Where some can be written to, or
 * @others_work, those that cannot are ->bad; else it fails. */
static int prologues_zero(struct kv_cache *cache, struct kv_deletion *items,
			  size_t n, bool others_work)
{
	bool failed = false;
	int r = -EAGAIN;

	for (size_t i = 0; i < n; i++)
		items[i].bad = true;
	for (int try = 0; try < TRIES && r < 0; try++)
		r = zero_all(cache, items, n);
	/* Slots not to be used again are zeroed where that is possible. */
	for (size_t i = 0; i < n; i++) {
		others_work |= items[i].reuse && !items[i].bad;
		failed |= items[i].reuse && items[i].bad;
	}
	return others_work || !failed ? 0 : r;
}

struct put {
	struct kv_slot *slot;
	bool removed; /* already: it gets no record */
	struct kv_slot_record record;
	uint64_t slot_id;
};

struct update {
	uint64_t slot_id;
	int64_t mtime_ns;
	uint32_t atime, hits;
	uint32_t block; /* its number */
	bool pinned;
};

struct round {
	struct put *puts;
	size_t n_puts;
	struct kv_deletions deletions;
	struct update *updates;
	size_t n_updates;
	uint64_t updates_taken; /* all so far, with these */
	struct kv_segfile_record *files;
	size_t n_files;
	int *fds; /* to be synced */
	size_t n_fds;
	size_t n_deletion_fds; /* those in front have deletions */
	uint64_t number;
};

void kv_commit_kick_locked(struct kv_cache *cache, bool urgent)
{
	kv_assert_locked(&cache->lock);
	cache->ssd.urgent |= urgent;
	pthread_cond_signal(&cache->ssd.commit);
}

void kv_commit_note_locked(struct kv_cache *cache)
{
	kv_assert_locked(&cache->lock);
	if (!cache->ssd.noted)
		pthread_cond_signal(&cache->ssd.commit);
	cache->ssd.noted = true;
}

static bool room_for_update(struct kv_updates *all)
{
	size_t room = all->room ? all->room * 2 : 64;
	uint32_t *more;

	if (all->head + all->n < all->room)
		return true;
	if (all->head <= all->n) {
		more = realloc(all->items, room * sizeof(*more));
		if (!more)
			return false;
		all->items = more;
		all->room = room;
	}
	/* At most once for as many as are moved. */
	memmove(all->items, all->items + all->head,
		all->n * sizeof(*all->items));
	all->head = 0;
	return true;
}

int kv_update_locked(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_updates *all = &cache->ssd.updates;

	kv_assert_locked(&cache->lock);
	if (!cache->ssd.on || (block->flags & (BLOCK_UPDATE | BLOCK_REMOVED)))
		return 0;
	if (!room_for_update(all))
		return -ENOMEM;
	all->items[all->head + all->n++] = block->number;
	block->flags |= BLOCK_UPDATE;
	kv_commit_note_locked(cache);
	return 0;
}

uint64_t kv_updates_needed_locked(const struct kv_cache *cache)
{
	kv_assert_locked(&cache->lock);
	return cache->ssd.updates.taken + cache->ssd.updates.n;
}

bool kv_snapshots_dirty_locked(const struct kv_cache *cache)
{
	const struct kv_snapshots *all = &cache->snapshots;

	kv_assert_locked(&cache->lock);
	return !TAILQ_EMPTY(&all->dirty) &&
	       (!all->retry_at || kv_now_ns() >= all->retry_at);
}

static bool anything(const struct kv_ssd *ssd)
{
	return !TAILQ_EMPTY(&ssd->written) || ssd->deletions.n ||
	       ssd->updates.n;
}

static void round_free(struct round *round)
{
	free(round->puts);
	free(round->deletions.items);
	free(round->updates);
	free(round->files);
	free(round->fds);
}

static void add_fd(struct kv_cache *cache, struct round *round, uint32_t id)
{
	struct kv_segfile *file = kv_segfile_at(cache, id);

	for (size_t i = 0; i < round->n_fds; i++)
		if (round->fds[i] == file->fd)
			return;
	round->fds[round->n_fds++] = file->fd;
	if (!file->recorded) {
		round->files[round->n_files++] = (struct kv_segfile_record){
			.id = id,
			.slots = file->slots,
			.slot_bytes = file->slot_bytes,
		};
		file->recorded = true;
	}
}

static struct kv_slot_record record_of(struct kv_cache *cache,
				       const struct kv_slot *slot)
{
	const struct kv_block *block = slot->block;
	struct kv_slot_record record = kv_slot_prologue(slot)->record;

	record.mtime_ns = block->mtime_ns;
	record.atime = block->atime;
	record.hits = block->hits;
	record.pinned = kv_block_pinned_by_user(cache, block);
	return record;
}

static int by_slot(const void *a, const void *b)
{
	const struct update *x = a, *y = b;

	return x->slot_id < y->slot_id ? -1 : x->slot_id > y->slot_id;
}

/* As many as the index surely has room for; with none, it has to say so. */
static size_t puts_max(const struct kv_cache *cache)
{
	uint64_t n = kv_index_room(cache->index) / KV_PUT_FAR;

	return KV_MIN(KV_MAX(n, 1u), cache->ssd.round_max);
}

static void take_puts(struct kv_cache *cache, struct round *round)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_slot *slot;

	while (round->n_puts + round->n_updates < puts_max(cache) &&
	       (slot = TAILQ_FIRST(&ssd->written))) {
		struct put *put = &round->puts[round->n_puts++];

		TAILQ_REMOVE(&ssd->written, slot, link);
		ssd->n_written--;
		ssd->written_bytes -= slot->segment->class->slot_bytes;
		put->slot = slot;
		put->removed = slot->block->flags & BLOCK_REMOVED;
		put->record = record_of(cache, slot);
		put->slot_id = kv_slot_id(slot->file, slot->slot_number);
		add_fd(cache, round, slot->file);
	}
}

static void take_deletions(struct kv_cache *cache, struct round *round)
{
	struct kv_deletions *all = &cache->ssd.deletions;
	struct kv_deletion *items = round->deletions.items;
	size_t n = KV_MIN(all->n, (size_t)cache->ssd.round_max);

	if (!n)
		return;
	memcpy(items, all->items, n * sizeof(*items));
	all->n -= n;
	memmove(all->items, all->items + n, all->n * sizeof(*items));
	round->deletions.n = n;
	for (size_t i = 0; i < n; i++)
		add_fd(cache, round, (uint32_t)(items[i].slot_id >> 32));
	round->n_deletion_fds = round->n_fds;
}

/* They are puts, too.  Blocks that come leave them their half, so that a pin is
 * durable soon whatever is being saved. */
static size_t updates_max(const struct kv_cache *cache)
{
	const size_t all = puts_max(cache);

	if (TAILQ_EMPTY(&cache->ssd.written))
		return all;
	return all > 1 ? all / 2 : cache->ssd.commits_begun % 2;
}

static void take_updates(struct kv_cache *cache, struct round *round)
{
	struct kv_updates *all = &cache->ssd.updates;
	size_t n = KV_MIN(all->n, updates_max(cache));

	for (size_t i = 0; i < n; i++) {
		struct kv_block *block =
			kv_table_at(&cache->table, all->items[all->head + i]);

		block->flags &= ~BLOCK_UPDATE & 0xff;
		if (block->file == KV_NONE || (block->flags & BLOCK_REMOVED))
			continue;
		round->updates[round->n_updates++] = (struct update){
			.block = block->number,
			.slot_id = kv_slot_id(block->file, block->slot_number),
			.mtime_ns = block->mtime_ns,
			.atime = block->atime,
			.hits = block->hits,
			.pinned = kv_block_pinned_by_user(cache, block),
		};
	}
	all->head += n;
	all->n -= n;
	all->taken += n;
	round->updates_taken = all->taken;
	/* Neighbours share a leaf of the index. */
	qsort(round->updates, round->n_updates, sizeof(*round->updates),
	      by_slot);
}

/* Take what is ready.  -ENOMEM: nothing was taken. */
static int round_begin(struct kv_cache *cache, struct round *round)
{
	struct kv_ssd *ssd = &cache->ssd;
	size_t n = ssd->round_max;

	memset(round, 0, sizeof(*round));
	round->puts = calloc(n, sizeof(*round->puts));
	round->deletions.items = calloc(n, sizeof(*round->deletions.items));
	round->updates = calloc(n, sizeof(*round->updates));
	round->files = calloc(ssd->live_files + 1, sizeof(*round->files));
	round->fds = calloc(ssd->live_files + 1, sizeof(*round->fds));
	if (!round->puts || !round->deletions.items || !round->updates ||
	    !round->files || !round->fds) {
		round_free(round);
		return -ENOMEM;
	}
	take_deletions(cache, round);
	take_updates(cache, round);
	if (!ssd->deletions.n)
		take_puts(cache, round);
	ssd->urgent = ssd->urgent && (ssd->deletions.n || ssd->updates.n ||
				      !TAILQ_EMPTY(&ssd->written));
	round->number = ++ssd->commits_begun;
	return 0;
}

uint64_t kv_commits_needed_locked(const struct kv_cache *cache)
{
	const struct kv_ssd *ssd = &cache->ssd;
	const size_t n = ssd->deletions.n;

	kv_assert_locked(&cache->lock);
	return ssd->commits_begun + (n + ssd->round_max - 1) / ssd->round_max;
}

static int put_update(struct kv_cache *cache, struct kv_txn *batch,
		      const struct update *update)
{
	struct kv_slot_record record;
	int r = kv_index_get(cache->index, update->slot_id, &record);

	if (r == -ENOENT || r == -EBADMSG)
		return 0;
	if (r < 0)
		return r;
	KV_POINT("update.put");
	record.mtime_ns = update->mtime_ns;
	record.atime = update->atime;
	record.hits = update->hits;
	record.pinned = update->pinned;
	return kv_txn_put_slot(batch, update->slot_id, &record);
}

static int fill_batch(struct kv_cache *cache, struct kv_txn *batch,
		      const struct round *round)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < round->n_files; i++)
		r = kv_txn_put_segfile(batch, &round->files[i]);
	/* Deletions first: a slot may have been given back and taken again. */
	for (size_t i = 0; r == 0 && i < round->deletions.n; i++)
		r = kv_txn_delete_slot(batch,
				       round->deletions.items[i].slot_id);
	for (size_t i = 0; r == 0 && i < round->n_updates; i++)
		r = put_update(cache, batch, &round->updates[i]);
	for (size_t i = 0; r == 0 && i < round->n_puts; i++)
		if (!round->puts[i].removed)
			r = kv_txn_put_slot(batch, round->puts[i].slot_id,
					    &round->puts[i].record);
	return r;
}

static void index_busy(struct kv_cache *cache, bool busy)
{
	kv_lock(cache);
	cache->health.commit_since = busy ? kv_now_ns() : 0;
	kv_unlock(cache);
}

static int write_index(struct kv_cache *cache, const struct round *round)
{
	struct kv_txn *batch;
	int r = kv_txn_begin(cache->index, &batch);

	if (r < 0)
		return r;
	r = fill_batch(cache, batch, round);
	if (r < 0) {
		kv_txn_abort(batch);
		return r;
	}
	KV_POINT("commit.before");
	r = kv_txn_commit(batch);
	KV_POINT("commit.after");
	return r;
}

/* The puts are durable already: then a slot whose prologue cannot be zeroed
 * stays taken, and that is all. */
static int zero_deleted(struct kv_cache *cache, const struct round *round)
{
	const bool others_work = round->n_puts > 0;
	struct kv_deletion *items = round->deletions.items;
	int r = prologues_zero(cache, items, round->deletions.n, others_work);

	if (r == 0)
		r = segfiles_sync(cache, round->fds, round->n_deletion_fds);
	KV_POINT("tombstone.synced");
	if (r == 0 || !others_work)
		return r;
	for (size_t i = 0; i < round->deletions.n; i++)
		items[i].bad = items[i].reuse;
	return 0;
}

static int write_round(struct kv_cache *cache, const struct round *round)
{
	int r = 0;

	KV_POINT("commit.begin");
	if (round->n_puts)
		r = segfiles_sync(cache, round->fds, round->n_fds);
	KV_POINT("sync.data");
	if (r == 0 && round->n_files && fsync(cache->ssd.dir) < 0)
		r = -errno;
	KV_POINT("sync.names");
	if (r < 0)
		return r;
	index_busy(cache, true);
	r = write_index(cache, round);
	index_busy(cache, false);
	return r < 0 ? r : zero_deleted(cache, round);
}

/* Flushes that wait for @slot wait for this, too. */
static void update_again(struct kv_cache *cache, const struct kv_slot *slot)
{
	int r = kv_update_locked(cache, slot->block);

	if (r < 0)
		kv_flushes_settle_locked(cache, r);
	kv_flushes_prolong_locked(cache, slot);
}

static void put_ended(struct kv_cache *cache, struct put *put, int status)
{
	struct kv_slot *slot = put->slot;
	struct kv_block *block = slot->block;
	bool must = slot->must;

	kv_slot_before(cache, slot);
	block->flags &= ~BLOCK_WRITING & 0xff;
	kv_dirty_drop_locked(cache, slot);
	slot->must = false;
	if (status == 0 && !(block->flags & BLOCK_REMOVED)) {
		kv_extent_attach_locked(cache, block, slot->file,
					slot->slot_number);
		if (put->record.pinned !=
			    kv_block_pinned_by_user(cache, block) ||
		    put->record.mtime_ns != block->mtime_ns)
			update_again(cache, slot);
		kv_syncs_durable_locked(cache, slot);
	} else {
		kv_extent_give_up_locked(cache, slot->list->space,
					 put->slot_id);
		kv_flushes_prolong_locked(cache, slot);
		if (!(block->flags & BLOCK_REMOVED))
			kv_slot_loosen_locked(cache, slot);
	}
	kv_slot_after(cache, slot);
	if (status < 0)
		kv_write_enqueue_locked(cache, block, must);
	kv_block_settle_locked(cache, block);
}

static void delete_again(struct kv_cache *cache,
			 const struct kv_deletion *deletion)
{
	struct kv_deletions *list = &cache->ssd.deletions;
	size_t n = list->n;

	if (deletion->reuse)
		kv_extent_undelete_locked(cache, deletion->slot_id);
	kv_extent_delete_locked(cache, deletion->slot_id, deletion->reuse);
	if (list->n > n)
		list->items[n].failed = deletion->failed;
}

/* Others work, but this slot's prologue could not be zeroed. */
static void zero_again(struct kv_cache *cache, struct kv_deletion *deletion)
{
	cache->stats.io_errors++;
	if (++deletion->failed < GIVE_UP) {
		delete_again(cache, deletion);
		return;
	}
	kv_extent_undelete_locked(cache, deletion->slot_id);
	cache->stats.bad_slots++; /* it stays taken */
}

static void deletions_ended(struct kv_cache *cache, struct round *round,
			    int status)
{
	for (size_t i = 0; i < round->deletions.n; i++) {
		struct kv_deletion *deletion = &round->deletions.items[i];

		if (status < 0) {
			delete_again(cache, deletion);
		} else if (deletion->bad && deletion->reuse) {
			zero_again(cache, deletion);
		} else if (deletion->reuse) {
			kv_extent_left_locked(cache, deletion->slot_id);
		}
	}
}

/* Updates that were not recorded are to be recorded still. */
static void updates_failed(struct kv_cache *cache, const struct round *round)
{
	for (size_t i = 0; i < round->n_updates; i++)
		kv_update_locked(cache, kv_table_at(&cache->table,
						    round->updates[i].block));
}

static void round_end(struct kv_cache *cache, struct round *round, int status)
{
	struct kv_ssd *ssd = &cache->ssd;

	for (size_t i = 0; i < round->n_puts; i++)
		put_ended(cache, &round->puts[i], status);
	deletions_ended(cache, round, status);
	for (size_t i = 0; status < 0 && i < round->n_files; i++)
		kv_segfile_at(cache, round->files[i].id)->recorded = false;
	ssd->commits_done = round->number;
	ssd->updates.done = round->updates_taken;
	cache->stats.commits += status == 0;
	if (status < 0) {
		updates_failed(cache, round);
		kv_write_failed_locked(cache, status);
	} else if (round->n_puts || (!ssd->writing && !ssd->queued)) {
		ssd->error = 0;
	}
	KV_POINT("commit.before_telling");
	kv_flushes_settle_locked(cache, 0);
	kv_syncs_settle_locked(cache);
	pthread_cond_broadcast(&ssd->done);
	kv_writer_rouse_locked(cache);
}

void *kv_committer(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_ssd *ssd = &cache->ssd;
	struct round round;
	int r, failed = 0; /* while stopping */

	if (ssd->unswept)
		kv_sweep(cache);
	kv_lock(cache);
	while (!ssd->stop_commits || (anything(ssd) && failed < 2) ||
	       kv_snapshots_dirty_locked(cache)) {
		if (!anything(ssd) && !kv_snapshots_dirty_locked(cache)) {
			ssd->noted = false;
			kv_cond_wait(cache, &ssd->commit, 1000000000u);
			continue;
		}
		kv_commit_gather(cache);
		kv_snapshots_write(cache);
		if (!anything(ssd)) {
			ssd->urgent = false;
			continue;
		}
		r = round_begin(cache, &round);
		if (r == 0) {
			kv_unlock(cache);
			r = write_round(cache, &round);
			kv_lock(cache);
			round_end(cache, &round, r);
			round_free(&round);
		} else {
			kv_write_failed_locked(cache, r);
		}
		failed += r < 0 && ssd->stop_commits;
		if (r < 0)
			kv_cond_wait(cache, &ssd->commit,
				     kv_health_retry(cache));
	}
	ssd->committer_ended = true;
	pthread_cond_broadcast(&ssd->done);
	kv_unlock(cache);
	return NULL;
}
