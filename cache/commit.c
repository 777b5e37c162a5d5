/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit.c - the group commit: what was written becomes durable, what was
 * removed is gone for good.
 *
 * One round, of no more than the index surely has room for: zero the prologues
 * of the slots that are given back, fdatasync the files, one LMDB transaction,
 * and only then tell anybody.
 *
 * OWNS       the committer thread and what it took from the lists for a round.
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
 * LOCKING    cache->lock for the lists; none during I/O.
 */
#include "cache/core.h"

#include <stdio.h>

#define LINGER_NS 20000000u /* collect a little, when nobody waits */

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
	bool pinned;
};

struct round {
	struct put *puts;
	size_t n_puts;
	struct kv_deletions deletions;
	struct update *updates;
	size_t n_updates;
	struct kv_segment_record *files;
	size_t n_files;
	int *fds; /* to be synced */
	size_t n_fds;
	uint64_t number;
};

void kv_commit_kick_locked(struct kv_cache *cache, bool urgent)
{
	cache->ssd.urgent |= urgent;
	pthread_cond_signal(&cache->ssd.commit);
}

void kv_update_locked(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_ssd *ssd = &cache->ssd;

	if (!ssd->on || (block->flags & (BLOCK_UPDATE | BLOCK_REMOVED)))
		return;
	if (ssd->n_updates == ssd->room_updates) {
		size_t room = ssd->room_updates ? ssd->room_updates * 2 : 64;
		uint32_t *more = realloc(ssd->updates, room * sizeof(*more));

		if (!more)
			return;
		ssd->updates = more;
		ssd->room_updates = room;
	}
	ssd->updates[ssd->n_updates++] = block->number;
	block->flags |= BLOCK_UPDATE;
	kv_commit_kick_locked(cache, false);
}

static bool anything(const struct kv_ssd *ssd)
{
	return !TAILQ_EMPTY(&ssd->written) || ssd->deletions.n ||
	       ssd->n_updates;
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
	struct kv_file *file = kv_file_at(cache, id);

	for (size_t i = 0; i < round->n_fds; i++)
		if (round->fds[i] == file->fd)
			return;
	round->fds[round->n_fds++] = file->fd;
	if (!file->recorded) {
		round->files[round->n_files++] = (struct kv_segment_record){
			.id = id,
			.slots = file->slots,
			.slot_bytes = file->slot_bytes,
		};
		file->recorded = true;
	}
}

static struct kv_slot_record record_of(const struct kv_slot *slot)
{
	const struct kv_block *block = slot->block;
	struct kv_slot_record record = kv_slot_prologue(slot)->record;

	record.mtime_ns = block->mtime_ns;
	record.atime = block->atime;
	record.hits = block->hits;
	record.pinned = (block->flags & BLOCK_PINNED) != 0;
	return record;
}

static int by_slot(const void *a, const void *b)
{
	const struct update *x = a, *y = b;

	return x->slot_id < y->slot_id ? -1 : x->slot_id > y->slot_id;
}

static void take_puts(struct kv_cache *cache, struct round *round)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_slot *slot;

	while (round->n_puts < ssd->round_max &&
	       (slot = TAILQ_FIRST(&ssd->written))) {
		struct put *put = &round->puts[round->n_puts++];

		TAILQ_REMOVE(&ssd->written, slot, link);
		put->slot = slot;
		put->removed = slot->block->flags & BLOCK_REMOVED;
		put->record = record_of(slot);
		put->slot_id = kv_slot_id(slot->file, slot->place);
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
		if (items[i].reuse)
			add_fd(cache, round,
			       (uint32_t)(items[i].slot_id >> 32));
}

static void take_updates(struct kv_cache *cache, struct round *round)
{
	struct kv_ssd *ssd = &cache->ssd;
	size_t n = KV_MIN(ssd->n_updates, (size_t)ssd->round_max);

	for (size_t i = 0; i < n; i++) {
		struct kv_block *block =
			kv_table_at(&cache->table, ssd->updates[i]);

		block->flags &= ~BLOCK_UPDATE & 0xff;
		if (block->file == KV_NONE || (block->flags & BLOCK_REMOVED))
			continue;
		round->updates[round->n_updates++] = (struct update){
			.slot_id = kv_slot_id(block->file, block->place),
			.mtime_ns = block->mtime_ns,
			.atime = block->atime,
			.hits = block->hits,
			.pinned = block->flags & BLOCK_PINNED,
		};
	}
	if (!n)
		return;
	ssd->n_updates -= n;
	memmove(ssd->updates, ssd->updates + n,
		ssd->n_updates * sizeof(*ssd->updates));
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
	if (!ssd->deletions.n)
		take_puts(cache, round);
	take_updates(cache, round);
	ssd->urgent = ssd->urgent && (ssd->deletions.n || ssd->n_updates ||
				      !TAILQ_EMPTY(&ssd->written));
	round->number = ++ssd->commits_begun;
	return 0;
}

uint64_t kv_commits_needed_locked(const struct kv_cache *cache)
{
	const struct kv_ssd *ssd = &cache->ssd;
	size_t n = KV_MAX(ssd->deletions.n, ssd->n_updates);

	return ssd->commits_begun + (n + ssd->round_max - 1) / ssd->round_max;
}

struct tombstones {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	size_t left;
	int status;
};

struct tombstone {
	struct kv_io io; /* first */
	struct tombstones *all;
};

static void tombstone_done(struct kv_io *io, int status)
{
	struct tombstones *all = ((struct tombstone *)io)->all;

	pthread_mutex_lock(&all->lock);
	if (status < 0)
		all->status = status;
	if (--all->left == 0)
		pthread_cond_signal(&all->cond);
	pthread_mutex_unlock(&all->lock);
	free(io);
}

/* All at once: the file system then makes one journal commit of them. */
static int sync_files(struct kv_cache *cache, const struct round *round)
{
	struct tombstones all = {PTHREAD_MUTEX_INITIALIZER,
				 PTHREAD_COND_INITIALIZER, 0, 0};

	for (size_t i = 0; i < round->n_fds; i++) {
		struct tombstone *one = calloc(1, sizeof(*one));

		if (!one) {
			all.status = -ENOMEM;
			break;
		}
		one->io.op = KV_IO_SYNC;
		one->io.fd = round->fds[i];
		one->io.buffer = -1;
		one->io.done = tombstone_done;
		one->all = &all;
		pthread_mutex_lock(&all.lock);
		all.left++;
		pthread_mutex_unlock(&all.lock);
		kv_ring_submit(cache->ring, &one->io);
	}
	pthread_mutex_lock(&all.lock);
	while (all.left)
		pthread_cond_wait(&all.cond, &all.lock);
	pthread_mutex_unlock(&all.lock);
	if (all.status == 0 && round->n_files && fsync(cache->ssd.dir) < 0)
		all.status = -errno;
	return all.status;
}

static uint8_t zero_page[KV_PAGE] __attribute__((aligned(KV_PAGE)));

static void tombstone_submit(struct kv_cache *cache, struct tombstones *all,
			     uint64_t slot_id)
{
	struct tombstone *one = calloc(1, sizeof(*one));
	struct kv_file *file;

	if (!one) {
		all->status = -ENOMEM;
		return;
	}
	kv_lock(cache);
	file = kv_file_at(cache, (uint32_t)(slot_id >> 32));
	one->io.fd = file->fd;
	one->io.offset = (uint32_t)slot_id * file->slot_bytes;
	kv_unlock(cache);
	one->all = all;
	one->io.op = KV_IO_WRITE;
	one->io.buffer = -1;
	one->io.data = zero_page;
	one->io.bytes = KV_PAGE;
	one->io.done = tombstone_done;
	pthread_mutex_lock(&all->lock);
	all->left++;
	pthread_mutex_unlock(&all->lock);
	kv_ring_submit(cache->ring, &one->io);
}

static int zero_prologues(struct kv_cache *cache, const struct round *round)
{
	struct tombstones all = {PTHREAD_MUTEX_INITIALIZER,
				 PTHREAD_COND_INITIALIZER, 0, 0};

	for (size_t i = 0; i < round->deletions.n; i++)
		if (round->deletions.items[i].reuse)
			tombstone_submit(cache, &all,
					 round->deletions.items[i].slot_id);
	pthread_mutex_lock(&all.lock);
	while (all.left)
		pthread_cond_wait(&all.cond, &all.lock);
	pthread_mutex_unlock(&all.lock);
	return all.status;
}

static int put_update(struct kv_cache *cache, struct kv_batch *batch,
		      const struct update *update)
{
	struct kv_slot_record record;
	int r = kv_index_get(cache->index, update->slot_id, &record);

	if (r == -ENOENT || r == -EBADMSG)
		return 0;
	if (r < 0)
		return r;
	record.mtime_ns = update->mtime_ns;
	record.atime = update->atime;
	record.hits = update->hits;
	record.pinned = update->pinned;
	return kv_batch_put_slot(batch, update->slot_id, &record);
}

static int fill_batch(struct kv_cache *cache, struct kv_batch *batch,
		      const struct round *round)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < round->n_files; i++)
		r = kv_batch_put_segment(batch, &round->files[i]);
	/* Deletions first: a slot may have been given back and taken again. */
	for (size_t i = 0; r == 0 && i < round->deletions.n; i++)
		r = kv_batch_delete_slot(batch,
					 round->deletions.items[i].slot_id);
	for (size_t i = 0; r == 0 && i < round->n_updates; i++)
		r = put_update(cache, batch, &round->updates[i]);
	for (size_t i = 0; r == 0 && i < round->n_puts; i++)
		if (!round->puts[i].removed)
			r = kv_batch_put_slot(batch, round->puts[i].slot_id,
					      &round->puts[i].record);
	return r;
}

static int write_round(struct kv_cache *cache, const struct round *round)
{
	struct kv_batch *batch;
	int r = zero_prologues(cache, round);

	if (r == 0)
		r = sync_files(cache, round);
	if (r < 0)
		return r;
	r = kv_batch_begin(cache->index, &batch);
	if (r < 0)
		return r;
	r = fill_batch(cache, batch, round);
	if (r < 0) {
		kv_batch_abort(batch);
		return r;
	}
	return kv_batch_commit(batch);
}

static void put_ended(struct kv_cache *cache, struct put *put, int status)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_slot *slot = put->slot;
	struct kv_block *block = slot->block;

	kv_slot_before(cache, slot);
	block->flags &= ~BLOCK_WRITING & 0xff;
	TAILQ_REMOVE(&ssd->undone, slot, undone);
	slot->must = false;
	if (status == 0 && !(block->flags & BLOCK_REMOVED)) {
		kv_extent_attach_locked(cache, block, slot->file, slot->place);
		if (put->record.pinned !=
			    ((block->flags & BLOCK_PINNED) != 0) ||
		    put->record.mtime_ns != block->mtime_ns)
			kv_update_locked(cache, block);
	} else {
		kv_extent_delete_locked(cache, put->slot_id, true);
		kv_flushes_prolong_locked(cache, slot->seq);
		if (!(block->flags & BLOCK_REMOVED))
			kv_block_space(cache, block)->loose++;
	}
	kv_slot_after(cache, slot);
	if (status < 0)
		kv_write_queue_locked(cache, block, false);
	kv_block_settle_locked(cache, block);
}

static void deletions_ended(struct kv_cache *cache, struct round *round,
			    int status)
{
	for (size_t i = 0; i < round->deletions.n; i++) {
		struct kv_deletion *deletion = &round->deletions.items[i];

		if (status < 0) {
			if (deletion->reuse)
				kv_extent_undelete_locked(cache,
							  deletion->slot_id);
			kv_extent_delete_locked(cache, deletion->slot_id,
						deletion->reuse);
		} else if (deletion->reuse) {
			kv_extent_left_locked(cache, deletion->slot_id);
		}
	}
}

static void round_end(struct kv_cache *cache, struct round *round, int status)
{
	struct kv_ssd *ssd = &cache->ssd;

	for (size_t i = 0; i < round->n_puts; i++)
		put_ended(cache, &round->puts[i], status);
	deletions_ended(cache, round, status);
	for (size_t i = 0; status < 0 && i < round->n_files; i++)
		kv_file_at(cache, round->files[i].id)->recorded = false;
	ssd->commits_done = round->number;
	cache->stats.commits += status == 0;
	if (status < 0)
		kv_write_failed_locked(cache, status);
	else if (!ssd->writing && TAILQ_EMPTY(&ssd->queue))
		ssd->error = 0;
	kv_flushes_settle_locked(cache, 0);
	pthread_cond_broadcast(&ssd->done);
	pthread_cond_signal(&ssd->write);
}

void *kv_committer(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_ssd *ssd = &cache->ssd;
	struct round round;
	int r;

	kv_lock(cache);
	while (!ssd->stop_commits || (anything(ssd) && !ssd->error)) {
		if (!anything(ssd)) {
			kv_cond_wait(cache, &ssd->commit, 1000000000u);
			continue;
		}
		if (!ssd->urgent && !ssd->stop)
			kv_cond_wait(cache, &ssd->commit, LINGER_NS);
		r = round_begin(cache, &round);
		if (r == 0) {
			kv_unlock(cache);
			r = write_round(cache, &round);
			kv_lock(cache);
			round_end(cache, &round, r);
			round_free(&round);
		}
		if (r < 0 && !ssd->stop)
			kv_cond_wait(cache, &ssd->commit, 1000000000u);
	}
	kv_unlock(cache);
	return NULL;
}
