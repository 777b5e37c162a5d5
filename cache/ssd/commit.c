/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit.c - the group commit: make written blocks durable, and delete the
 * records of removed blocks.
 *
 * A round has no more records than the index certainly has room for.  The
 * committer syncs the segment files with fdatasync(2), runs one LMDB
 * transaction, and only then reports success.  Deletions get a short part of
 * the round (deletion.c).  Prologues are zeroed after the round, so no record
 * names a zeroed slot, even if the daemon dies; the next daemon sweeps
 * prologues without a record.
 *
 * OWNS       the committer thread, and the entries that it took off the lists
 *            for a round.
 *
 * INVARIANTS
 *   (1) A record is committed only after its data was synced.
 *   (2) Of the records of one space and key, all but the one with the highest
 *       generation are of removed blocks whose deletions are under way; after a
 *       crash the next mount continues them.  The highest has one record: that of
 *       a former slot is deleted by the transaction that puts the new one.
 *   (3) After a failed round, written blocks are queued again, and deletions
 *       wait for the next round.
 *   (4) Blocks that the index has no room for wait for the next round, in their
 *       order, and so do updates; a round without room for any block or for an
 *       update evicts blocks, or fails, but deletions are committed.
 *       If the index has no room for a block's token ids, the block is recorded
 *       without the ids.
 *
 * LOCKING    cache->lock for the lists; none during I/O.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/hooks.h"
#include "common/array.h"
#include "common/copy.h"
#include "common/crash_point.h"

#define EVICT_AT_ONCE 32u    /* blocks evicted at once for room in the index */
#define STARVED_NS 2000000u  /* pause after the index had no room for a block */
#define LINGER_NS 100000000u /* longest delay of a commit if no flush waits */
/* Longest delay if only deletions wait: deleting all blocks of a file in one
 * transaction costs a fraction of deleting them one by one. */
#define DELETIONS_NS 1000000000u
#define LINGER_SHARE 8u /* commit when 1/8 of the arena is written */

struct put {
	struct kv_slot *slot;
	const struct kv_device *device;
	bool removed;	/* the block was removed before the round */
	bool token_ids; /* put the block's token ids into the index */
	struct kv_slot_record record;
	uint64_t slot_id, former; /* @former: as in kv_slot */
};

struct update {
	uint64_t slot_id; /* first member: kv_by_u64 compares the slot ids */
	int64_t mtime_ns;
	uint32_t atime, hits;
	uint32_t block; /* number of the block that is updated */
	bool pinned;
};

struct round {
	struct put *puts;
	size_t n_puts;
	size_t n_put; /* number of blocks whose records fit into the index */
	bool starved; /* the index had no room for any block or an update */
	struct update *updates;
	size_t n_updates;
	size_t n_updated; /* number of updates that fit into the index */
	/* ssd->updates.taken, including the updates of this round */
	uint64_t updates_taken;
	struct kv_removed_write *removed; /* tombstones to write; NULL: none */
	/* result of writing the tombstones; -EAGAIN: not begun */
	int removed_status;
	struct kv_segfile **files; /* segment files to be synced */
	size_t n_files;
};

void kv_commit_kick_locked(struct kv_cache *cache, bool urgent)
{
	kv_assert_locked(&cache->lock);
	cache->ssd.urgent |= urgent;
	pthread_cond_signal(&cache->ssd.commit);
	kv_writer_hurry_locked(cache);
}

void kv_commit_note_locked(struct kv_cache *cache)
{
	kv_assert_locked(&cache->lock);
	if (!cache->ssd.noted)
		pthread_cond_signal(&cache->ssd.commit);
	cache->ssd.noted = true;
}

int kv_update_locked(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_updates *all = &cache->ssd.updates;

	kv_assert_locked(&cache->lock);
	if (!cache->ssd.on || (block->flags & (BLOCK_UPDATE | BLOCK_REMOVED)))
		return 0;
	if (all->head + all->n == all->room) {
		if (all->head <= all->n &&
		    kv_array_reserve(&all->items, &all->room, all->room + 1) <
			    0)
			return -ENOMEM;
		memmove(all->items, all->items + all->head,
			all->n * sizeof(*all->items));
		all->head = 0;
	}
	all->items[all->head + all->n++] = block->number;
	block->flags |= BLOCK_UPDATE;
	kv_commit_note_locked(cache);
	return 0;
}

bool kv_snapshots_dirty_locked(const struct kv_cache *cache)
{
	const struct kv_snapshots *all = &cache->snapshots;

	kv_assert_locked(&cache->lock);
	return !TAILQ_EMPTY(&all->dirty) &&
	       (!all->retry_at || kv_now_ns() >= all->retry_at);
}

/* Return whether there is anything to commit besides deletions. */
static bool more_than_deletions(const struct kv_cache *cache)
{
	const struct kv_ssd *ssd = &cache->ssd;

	return !TAILQ_EMPTY(&ssd->written) || ssd->updates.n ||
	       !TAILQ_EMPTY(&ssd->moves.copied) ||
	       kv_removed_dirty_locked(cache);
}

static bool anything(const struct kv_cache *cache)
{
	return !TAILQ_EMPTY(&cache->ssd.deletions.queued) ||
	       !TAILQ_EMPTY(&cache->ssd.deletions.to_record) ||
	       more_than_deletions(cache);
}

/* Wait until a caller needs a commit, or a commit is due.  A useless commit
 * would delay the next one: each waits three times for the device. */
static void linger(struct kv_cache *cache)
{
	const uint64_t enough =
		cache->arena.max * cache->arena.segment_bytes / LINGER_SHARE;
	const uint64_t begun = kv_now_ns();
	struct kv_ssd *ssd = &cache->ssd;

	while (!ssd->urgent && !ssd->stop && ssd->written_bytes < enough &&
	       ssd->n_written < ssd->round_max &&
	       TAILQ_EMPTY(&ssd->deletions.to_record) && !ssd->awaiting) {
		/* Writes and moves may wait for the slots being deleted. */
		const bool more = more_than_deletions(cache) || ssd->dirty ||
				  !TAILQ_EMPTY(&ssd->moves.files) ||
				  kv_snapshots_dirty_locked(cache);
		const uint64_t until =
			begun + (more ? LINGER_NS : DELETIONS_NS);
		const uint64_t now = kv_now_ns();

		if (now >= until)
			break;
		ssd->noted = more; /* true: notes do not end the wait */
		kv_cond_wait(cache, &ssd->commit, until - now);
	}
}

/* ---- begin of a round ---- */

/* Return how many records certainly fit into the index, but at least 1: if that
 * one does not fit, the transaction fails with -ENOSPC. */
static size_t puts_max(const struct kv_cache *cache)
{
	uint64_t n = kv_index_room(cache->index) / KV_PUT_FAR;

	return KV_MIN(KV_MAX(n, 1u), cache->ssd.round_max);
}

static void round_free(struct round *round)
{
	free(round->puts);
	free(round->updates);
	free(round->files);
}

/* Take written blocks, updates, deletions, moves and tombstones for a round.
 * -ENOMEM: nothing was taken. */
static int round_begin(struct kv_cache *cache, struct round *round)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_updates *all = &ssd->updates;
	struct kv_slot *slot;
	size_t n = ssd->round_max;

	memset(round, 0, sizeof(*round));
	round->puts = calloc(n, sizeof(*round->puts));
	round->updates = calloc(n, sizeof(*round->updates));
	round->files = calloc(ssd->live_files + 1, sizeof(*round->files));
	if (!round->puts || !round->updates || !round->files ||
	    kv_removed_take_locked(cache, &round->removed) < 0) {
		round_free(round);
		return -ENOMEM;
	}
	round->removed_status = -EAGAIN;
	ssd->commits_begun++;
	kv_deletions_take_locked(cache);
	kv_moves_take_locked(cache);
	/* Leave half of the round to updates, so that a pin is soon durable
	 * even during large saves. */
	n = puts_max(cache);
	if (!TAILQ_EMPTY(&ssd->written))
		n = n > 1 ? n / 2 : ssd->commits_begun % 2;
	n = KV_MIN(all->n, n);
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
	/* Neighbouring slots share a leaf of the index. */
	qsort(round->updates, round->n_updates, sizeof(*round->updates),
	      kv_by_u64);
	while (round->n_puts + round->n_updates < puts_max(cache) &&
	       (slot = TAILQ_FIRST(&ssd->written))) {
		const struct kv_block *block = slot->block;
		const struct kv_layout *layout = slot->list->space->layout;
		struct kv_segfile *file = kv_segfile_at(cache, slot->file);
		struct put *put = &round->puts[round->n_puts++];

		TAILQ_REMOVE(&ssd->written, slot, link);
		ssd->n_written--;
		ssd->written_bytes -= slot->segment->class->slot_bytes;
		put->slot = slot;
		put->device = file->device;
		put->slot_id = kv_slot_id(slot->file, slot->slot_number);
		put->former = slot->former;
		put->token_ids = layout && layout->token_ids;
		put->removed = block->flags & BLOCK_REMOVED;
		put->record = kv_slot_prologue(slot)->record;
		put->record.mtime_ns = block->mtime_ns;
		put->record.atime = block->atime;
		put->record.hits = block->hits;
		put->record.pinned = kv_block_pinned_by_user(cache, block);
		if (file->round == (uint32_t)ssd->commits_begun)
			continue;
		file->round = (uint32_t)ssd->commits_begun;
		round->files[round->n_files++] = file;
	}
	ssd->urgent = ssd->urgent && (all->n || !TAILQ_EMPTY(&ssd->written));
	return 0;
}

/* ---- writing a round ---- */

/*
 * Parse the token ids of a block whose slot is in memory.  The slot keeps its
 * bytes during the round.  The bytes of an open slot, which a client may write,
 * are copied, and must have the block's digest.  *@ret_ids stays NULL if the
 * index has no room for the ids, if there is no memory for the copy, or if the
 * block was sealed before its space had a layout.  -ENOMEM.
 */
static int token_ids_of(const struct kv_txn *batch, const struct put *put,
			struct kv_token_ids **ret_ids)
{
	const struct kv_slot_record *record = &put->record;
	const uint8_t *bytes = kv_slot_file(put->slot);
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	_cleanup_(kv_freep) uint8_t *copy = NULL;
	int r;

	if (!put->token_ids ||
	    !kv_index_takes_token_ids(record->tokens, 0, record->length))
		return 0;
	if (kv_slot_is_open(put->slot)) {
		copy = malloc(record->length);
		if (!copy)
			return 0;
		memcpy(copy, bytes, record->length);
		if (!kv_record_agrees(record, copy))
			return 0;
		bytes = copy;
	}
	r = kv_block_parse_token_ids(bytes, record->payload, &ids);
	if (r < 0)
		return r == -ENOMEM ? r : 0;
	if (kv_index_takes_token_ids(ids->n, ids->extras_len, record->length) &&
	    kv_txn_has_room_for_ids(batch, ids->n, ids->extras_len, KV_PUT_FAR))
		*ret_ids = kv_steal(ids);
	return 0;
}

static int write_index(struct kv_cache *cache, struct round *round)
{
	struct kv_txn *batch;
	int r = kv_txn_begin(cache->index, &batch);

	if (r < 0)
		return r;
	for (; r == 0 && round->n_updated < round->n_updates &&
	       kv_txn_has_room(batch, KV_PUT_FAR);
	     round->n_updated++) {
		const struct update *update = &round->updates[round->n_updated];
		struct kv_slot_record record;

		r = kv_index_get(cache->index, update->slot_id, &record, NULL);
		if (r == 0) {
			KV_POINT("update.put");
			record.mtime_ns = update->mtime_ns;
			record.atime = update->atime;
			record.hits = update->hits;
			record.pinned = update->pinned;
			r = kv_txn_put_slot(batch, update->slot_id, &record);
		} else if (r == -ENOENT || r == -EBADMSG) {
			r = 0;
		}
	}
	if (r == 0)
		r = kv_moves_record(cache, batch);
	/* Put the records of written blocks, as many as there is room for. */
	for (; r == 0 && round->n_put < round->n_puts; round->n_put++) {
		const struct put *put = &round->puts[round->n_put];
		_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
		struct kv_slot_record former;

		if (put->removed || put->device->failed)
			continue;
		if (!kv_txn_has_room(batch, KV_PUT_FAR))
			break;
		r = token_ids_of(batch, put, &ids);
		/* A mount cannot tell a former record from this one. */
		if (r == 0 && put->former != UINT64_MAX &&
		    kv_index_get(cache->index, put->former, &former, NULL) ==
			    0 &&
		    former.generation == put->record.generation)
			r = kv_record_delete(batch, put->former);
		if (r == 0)
			r = kv_txn_put_slot(batch, put->slot_id, &put->record);
		if (r == 0 && ids)
			r = kv_txn_put_token_ids(batch, put->slot_id,
						 put->record.generation, ids);
	}
	if (r == 0)
		r = kv_deletions_record(cache, batch);
	if (r < 0) {
		kv_txn_abort(batch);
		return r;
	}
	KV_POINT("commit.before");
	r = kv_txn_commit(batch);
	KV_POINT("commit.after");
	return r;
}

static void set_index_busy(struct kv_cache *cache, bool busy)
{
	kv_lock(cache);
	cache->health.commit_since = busy ? kv_now_ns() : 0;
	kv_unlock(cache);
}

static int write_round(struct kv_cache *cache, struct round *round)
{
	int r = 0;

	KV_POINT("commit.begin");
	if (round->n_puts)
		r = kv_segfiles_sync(cache, round->files, round->n_files);
	KV_POINT("sync.data");
	if (r < 0)
		return r;
	set_index_busy(cache, true);
	if (round->removed)
		round->removed_status = kv_removed_write(cache, round->removed);
	r = write_index(cache, round);
	set_index_busy(cache, false);
	return r;
}

/* ---- end of a round ---- */

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
		    put->record.mtime_ns != block->mtime_ns) {
			/* The pin or mtime changed during the round: let
			 * flushes wait for the update. */
			int r = kv_update_locked(cache, block);

			if (r < 0)
				kv_flushes_settle_locked(cache, r);
			kv_flushes_prolong_locked(cache, slot);
		}
		kv_syncs_durable_locked(cache, slot);
		if (cache->remote_hooks)
			cache->remote_hooks->durable_locked(cache, block);
	} else {
		kv_extent_give_up_locked(cache, slot->list->space,
					 put->slot_id);
		kv_flushes_prolong_locked(cache, slot);
		if (!(block->flags & BLOCK_REMOVED))
			kv_unpersisted_add_locked(cache, slot);
		else /* fail syncs that began after the block's removal */
			kv_syncs_end_locked(cache, slot, -ENOENT);
	}
	kv_slot_after(cache, slot);
	if (status < 0)
		kv_write_enqueue_locked(cache, block, must);
	kv_block_settle_locked(cache, block);
}

/* Return the error of the round; -ENOSPC: the index had no room. */
static int round_end(struct kv_cache *cache, struct round *round, int status)
{
	struct kv_ssd *ssd = &cache->ssd;
	const size_t n_updated = status == 0 ? round->n_updated : 0;
	int puts = status;

	/* Evict blocks if the index had no room for a record, unless deletions
	 * under way will make room. */
	round->starved = n_updated < round->n_updates ||
			 (round->n_puts > 0 && round->n_put == 0);
	if (status == 0 && round->starved && !ssd->deletions.n) {
		const struct put *put = round->n_puts ? round->puts : NULL;
		struct kv_space *space = put ? put->slot->list->space : NULL;
		unsigned n = 0;

		while (n < EVICT_AT_ONCE &&
		       kv_ssd_evict_record_locked(cache, space))
			n++;
		puts = n > 0 ? 0 : -ENOSPC;
	}
	/* Put blocks without room in the index first into the next round. */
	for (; puts == 0 && round->n_puts > round->n_put; round->n_puts--) {
		struct kv_slot *slot = round->puts[round->n_puts - 1].slot;

		TAILQ_INSERT_HEAD(&ssd->written, slot, link);
		ssd->n_written++;
		ssd->written_bytes += slot->segment->class->slot_bytes;
	}
	for (size_t i = 0; i < round->n_puts; i++)
		put_ended(cache, &round->puts[i],
			  puts == 0 && round->puts[i].device->failed ? -EIO
								     : puts);
	kv_removed_end_locked(cache, round->removed, round->removed_status);
	kv_deletions_recorded_locked(cache, status);
	kv_moves_recorded_locked(cache, status);
	ssd->put += puts == 0 ? round->n_puts : 0;
	cache->stats.commits += status == 0;
	if (status == 0 && n_updated == round->n_updates)
		ssd->updates.done = round->updates_taken;
	for (size_t i = n_updated; i < round->n_updates; i++)
		kv_update_locked(cache, kv_table_at(&cache->table,
						    round->updates[i].block));
	if (puts < 0)
		kv_write_failed_locked(cache, puts);
	else if (round->n_puts || (!ssd->writing && !ssd->queued))
		ssd->error = 0;
	/* The flushes that waited for failed updates have ended with the error.
	 * Later flushes wait for a higher count. */
	if (puts < 0)
		ssd->updates.done = round->updates_taken;
	KV_POINT("commit.before_telling");
	kv_flushes_settle_locked(cache, 0);
	kv_syncs_settle_locked(cache);
	pthread_cond_broadcast(&ssd->done);
	kv_writer_rouse_locked(cache);
	return puts;
}

void *kv_committer(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_ssd *ssd = &cache->ssd;
	struct round round;
	uint64_t began_ns;
	int r, failed = 0; /* number of failed rounds while stopping */

	kv_lock(cache);
	/* When a batch is over, its space may queue more deletions. */
	while (!ssd->stop_commits ||
	       ((anything(cache) ||
		 (ssd->deletions.n && !ssd->deletions.ended)) &&
		failed < 2) ||
	       kv_snapshots_dirty_locked(cache)) {
		kv_deletions_requeue_locked(cache);
		if (!anything(cache) && !kv_snapshots_dirty_locked(cache)) {
			ssd->noted = false;
			kv_cond_wait(cache, &ssd->commit, 1000000000u);
			continue;
		}
		linger(cache);
		cache->snapshots.write(cache);
		if (!anything(cache)) {
			ssd->urgent = false;
			continue;
		}
		r = round_begin(cache, &round);
		if (r == 0) {
			ssd->committing = true;
			kv_unlock(cache);
			began_ns = kv_now_ns();
			r = write_round(cache, &round);
			kv_lock(cache);
			kv_histogram_add(&cache->stats.commit_times,
					 kv_now_ns() - began_ns);
			ssd->committing = false;
			r = round_end(cache, &round, r);
			round_free(&round);
		} else {
			kv_write_failed_locked(cache, r);
		}
		failed += r < 0 && ssd->stop_commits;
		if (r < 0)
			kv_cond_wait(cache, &ssd->commit,
				     cache->config.io_retry);
		else if (round.starved)
			kv_cond_wait(cache, &ssd->commit, STARVED_NS);
	}
	ssd->committer_ended = true;
	pthread_cond_broadcast(&ssd->done);
	pthread_cond_signal(&ssd->deletions.wake);
	kv_unlock(cache);
	return NULL;
}
