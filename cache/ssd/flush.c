/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush.c - wait until blocks that are sealed or removed are durable.
 *
 * OWNS       the flushes of every space, in the order of their submission, and
 *            the syncs of single blocks.
 *
 * STATES     of a flush, and the function that makes each step:
 *
 *                (new) -> COLLECTING   kv_flush_submit
 *           COLLECTING -> WAITING      collect: the blocks to write are dirty
 *              WAITING -> (over)       kv_flushes_settle_space_locked
 *             (either) -> (over)       end_flush, with an error
 *
 * INVARIANTS
 *   (1) A waiting flush is done when no slot of its space with seq <= ticket is
 *       dirty, changes of pins and mtimes are committed, and earlier deletions
 *       of its space are over, including deletions of slots whose block was
 *       removed during its write or move.  After a crash the flush also waits
 *       for the sweep of the store, which may hold blocks that were removed.
 *   (2) A block that a flush waits for is written or removed, or else the flush
 *       fails with the reason why the block was not written.
 *   (3) The flushes of a space end in the order of their submission, except
 *       those that fail.  COLLECTING flushes are behind WAITING ones.
 *   (4) ssd->awaiting counts the spaces whose first flush needs only the commit.
 *   (5) The sync of a block is on the list of its slot until the block is
 *       durable, and then on ssd->recording until its updates are committed.
 *
 * LOCKING    cache->lock.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/causes.h"
#include "cache/core/hooks.h"
#include "common/crash_point.h"

#define COLLECT_AT_ONCE 64u

/* Return the number of updates after which all present ones are committed. */
static uint64_t updates_needed(const struct kv_cache *cache)
{
	return cache->ssd.updates.taken + cache->ssd.updates.n;
}

/* Count the space in ssd->awaiting if its first flush needs only a commit. */
static void count_awaiting(struct kv_cache *cache, struct kv_space *space)
{
	const struct kv_flush *first = TAILQ_FIRST(&space->flushes);
	const struct kv_slot *slot = TAILQ_FIRST(&space->unwritten);
	const bool awaits = first && first != space->collecting &&
			    (!slot || slot->seq > first->ticket);

	cache->ssd.awaiting += awaits;
	cache->ssd.awaiting -= space->awaits_commit;
	space->awaits_commit = awaits;
}

void kv_flushes_written_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_space *space = slot->list->space;

	kv_assert_locked(&cache->lock);
	TAILQ_REMOVE(&space->unwritten, slot, unwritten);
	count_awaiting(cache, space);
	if (!LIST_EMPTY(&slot->syncs))
		kv_commit_kick_locked(cache, true);
}

/* Return whether @space's snapshots are in the index up to @change. */
static bool snapshots_written(const struct kv_cache *cache,
			      const struct kv_space *space, uint64_t change)
{
	const struct kv_snapshot *snapshot;

	TAILQ_FOREACH(snapshot, &cache->snapshots.dirty, dirty_link)
		if (snapshot->space == space && snapshot->change <= change)
			return false;
	return true;
}

static void collects_no_more(struct kv_cache *cache, struct kv_space *space)
{
	space->collecting = NULL;
	space->asked_seq = 0;
	TAILQ_REMOVE(&cache->ssd.collecting, space, collects);
}

/* Take a flush off its list and end it.  The caller then calls recount(). */
static void end_flush(struct kv_cache *cache, struct kv_space *space,
		      struct kv_flush *flush, int status)
{
	struct kv_flush *next = TAILQ_NEXT(flush, link);

	/* Let @next also wait for the deletions and updates of @flush. */
	if (next) {
		next->deletion = KV_MAX(next->deletion, flush->deletion);
		next->update = KV_MAX(next->update, flush->update);
	}
	if (space->collecting == flush && next)
		space->collecting = next;
	else if (space->collecting == flush)
		collects_no_more(cache, space);
	TAILQ_REMOVE(&space->flushes, flush, link);
	if (TAILQ_EMPTY(&space->flushes))
		LIST_REMOVE(space, flushing);
	kv_defer_flushed(cache, flush, status);
}

/* Update must_seq after flushes of @space have ended: the writes of slots that
 * no other flush waits for may be given up. */
static void recount(struct kv_cache *cache, struct kv_space *space)
{
	const struct kv_flush *last = TAILQ_LAST(&space->flushes, kv_flushes);

	space->must_seq = last ? last->ticket : 0;
	count_awaiting(cache, space);
}

void kv_flushes_settle_space_locked(struct kv_cache *cache,
				    struct kv_space *space)
{
	const struct kv_ssd *ssd = &cache->ssd;
	struct kv_flush *flush;

	kv_assert_locked(&cache->lock);
	while ((flush = TAILQ_FIRST(&space->flushes))) {
		const struct kv_slot *first = TAILQ_FIRST(&space->dirty);

		if (flush == space->collecting ||
		    (first && first->seq <= flush->ticket) ||
		    space->deletions.done < flush->deletion ||
		    ssd->deletions.unqueued || space->doomed ||
		    ssd->n_unswept || ssd->updates.done < flush->update ||
		    !kv_removed_written_locked(cache, flush->removal) ||
		    !snapshots_written(cache, flush->space, flush->change))
			break;
		end_flush(cache, space, flush, 0);
	}
	count_awaiting(cache, space);
}

/* ---- syncs of one block ---- */

static void end_sync(struct kv_cache *cache, struct kv_flush *sync, int status)
{
	if (sync->durable)
		TAILQ_REMOVE(&cache->ssd.recording, sync, link);
	else
		LIST_REMOVE(sync, of_slot);
	LIST_REMOVE(sync, of_all);
	kv_defer_flushed(cache, sync, status);
}

void kv_syncs_end_locked(struct kv_cache *cache, struct kv_slot *slot,
			 int error)
{
	kv_assert_locked(&cache->lock);
	while (!LIST_EMPTY(&slot->syncs))
		end_sync(cache, LIST_FIRST(&slot->syncs), error);
}

/* Let @sync wait until the present pin and mtime of its block, which is
 * durable, are committed. */
static void await_record(struct kv_cache *cache, struct kv_flush *sync)
{
	const struct kv_updates *updates = &cache->ssd.updates;

	sync->durable = true;
	sync->update = sync->block->flags & BLOCK_UPDATE ? updates_needed(cache)
							 : updates->taken;
	TAILQ_INSERT_TAIL(&cache->ssd.recording, sync, link);
	if (updates->done < sync->update)
		kv_commit_kick_locked(cache, true);
}

void kv_syncs_durable_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_flush *sync;

	kv_assert_locked(&cache->lock);
	while ((sync = LIST_FIRST(&slot->syncs))) {
		LIST_REMOVE(sync, of_slot);
		await_record(cache, sync);
	}
}

void kv_syncs_settle_locked(struct kv_cache *cache)
{
	struct kv_flush *sync;

	kv_assert_locked(&cache->lock);
	while ((sync = TAILQ_FIRST(&cache->ssd.recording)) &&
	       sync->update <= cache->ssd.updates.done)
		end_sync(cache, sync, 0);
}

void kv_block_flush_submit(struct kv_cache *cache, struct kv_block *block,
			   struct kv_flush *flush)
{
	const struct kv_ssd *ssd = &cache->ssd;
	int r = 0;

	kv_lock(cache);
	flush->block = block;
	if (block->file == KV_NONE && cache->config.read_only)
		r = -EROFS;
	else if (!ssd->on || (ssd->frozen && block->file == KV_NONE))
		r = -EOPNOTSUPP;
	else
		kv_write_enqueue_locked(cache, block, true);
	if (r == 0 && block->file == KV_NONE && !kv_block_dirty(block))
		r = -ENOENT;
	if (r < 0) {
		kv_defer_flushed(cache, flush, r);
		kv_unlock(cache);
		return;
	}
	flush->pending = true;
	LIST_INSERT_HEAD(&cache->ssd.syncs, flush, of_all);
	if (block->file == KV_NONE) {
		LIST_INSERT_HEAD(&block->slot->syncs, flush, of_slot);
		kv_commit_kick_locked(cache, block->slot->written);
	} else {
		await_record(cache, flush);
		kv_syncs_settle_locked(cache);
	}
	kv_unlock(cache);
}

/* ---- failures ---- */

void kv_flushes_fail_locked(struct kv_cache *cache, struct kv_space *space,
			    int error)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_flush *flush;

	kv_assert_locked(&cache->lock);
	while (!space && !LIST_EMPTY(&ssd->flushing))
		kv_flushes_fail_locked(cache, LIST_FIRST(&ssd->flushing),
				       error);
	while (!space && !LIST_EMPTY(&ssd->syncs))
		end_sync(cache, LIST_FIRST(&ssd->syncs), error);
	if (!space)
		return;
	kv_flushes_settle_space_locked(cache, space);
	while ((flush = TAILQ_FIRST(&space->flushes)))
		end_flush(cache, space, flush, error);
	recount(cache, space);
}

void kv_flushes_settle_locked(struct kv_cache *cache, int error)
{
	struct kv_space *space, *next;

	kv_assert_locked(&cache->lock);
	if (error) {
		kv_flushes_fail_locked(cache, NULL, error);
		return;
	}
	for (space = LIST_FIRST(&cache->ssd.flushing); space; space = next) {
		next = LIST_NEXT(space, flushing);
		kv_flushes_settle_space_locked(cache, space);
	}
}

void kv_flushes_fail_snapshot_locked(struct kv_cache *cache,
				     struct kv_space *space, int error)
{
	struct kv_flush *flush, *next;

	kv_assert_locked(&cache->lock);
	for (flush = TAILQ_FIRST(&space->flushes); flush; flush = next) {
		next = TAILQ_NEXT(flush, link);
		if (!snapshots_written(cache, space, flush->change))
			end_flush(cache, space, flush, error);
	}
	recount(cache, space);
}

void kv_flushes_fail_removals_locked(struct kv_cache *cache, uint64_t changes,
				     int error)
{
	struct kv_space *space, *next_space;
	struct kv_flush *flush, *next;

	kv_assert_locked(&cache->lock);
	for (space = LIST_FIRST(&cache->ssd.flushing); space;
	     space = next_space) {
		next_space = LIST_NEXT(space, flushing);
		for (flush = TAILQ_FIRST(&space->flushes); flush;
		     flush = next) {
			next = TAILQ_NEXT(flush, link);
			if (flush->removal <= changes &&
			    !kv_removed_written_locked(cache, flush->removal))
				end_flush(cache, space, flush, error);
		}
		recount(cache, space);
	}
}

/* ---- evicted blocks, and blocks that their owner's client has changed ---- */

int kv_block_past(struct kv_cache *cache, const struct kv_space *space,
		  const struct kv_key *key)
{
	struct kv_miss miss = {.key = *key};
	int r;

	kv_lock(cache);
	r = kv_cause_find(cache, space, &miss);
	kv_unlock(cache);
	return r;
}

void kv_block_changed_locked(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_space *space = kv_block_space(cache, block);
	struct kv_flush *flush, *next;

	kv_assert_locked(&cache->lock);
	if (block->flags & BLOCK_REMOVED)
		return;
	kv_cause_note_block(cache, block, KV_CAUSE_CHANGED);
	cache->stats.corrupt++;
	if (kv_write_must(block->slot)) {
		/* Flushes with @each set go on: their callers ask by block. */
		for (flush = TAILQ_FIRST(&space->flushes); flush;
		     flush = next) {
			next = TAILQ_NEXT(flush, link);
			if (!flush->each)
				end_flush(cache, space, flush, -EBADMSG);
		}
		recount(cache, space);
	}
	kv_syncs_end_locked(cache, block->slot, -EBADMSG);
	kv_block_remove_locked(cache, block);
}

/* ---- flushes of a space ---- */

/* Queue the writes of at most @n slots that flushes of @space wait for.  Return
 * whether no such slot is left. */
static bool collect(struct kv_cache *cache, struct kv_space *space, unsigned n)
{
	struct kv_flush *flush;

	while ((flush = space->collecting)) {
		struct kv_slot *slot = TAILQ_FIRST(&space->unpersisted);

		if (slot && slot->seq <= flush->asked) {
			if (n-- == 0)
				return false;
			kv_write_enqueue_locked(cache, slot->block, true);
			continue;
		}
		flush->ticket = space->must_seq = cache->ssd.seq;
		space->collecting = TAILQ_NEXT(flush, link);
	}
	collects_no_more(cache, space);
	return true;
}

void kv_flushes_collect_locked(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_space *space = TAILQ_FIRST(&ssd->collecting);

	kv_assert_locked(&cache->lock);
	if (!space)
		return;
	if (!collect(cache, space, COLLECT_AT_ONCE)) {
		/* Let another space with flushes take its turn. */
		TAILQ_REMOVE(&ssd->collecting, space, collects);
		TAILQ_INSERT_TAIL(&ssd->collecting, space, collects);
	}
	kv_flushes_settle_space_locked(cache, space);
}

void kv_flushes_prolong_locked(struct kv_cache *cache,
			       const struct kv_slot *slot)
{
	struct kv_flush *flush;

	kv_assert_locked(&cache->lock);
	/* Extend the first flush for @slot; later flushes end after it. */
	TAILQ_FOREACH(flush, &slot->list->space->flushes, link) {
		if (flush->ticket < slot->seq)
			continue;
		flush->deletion = slot->list->space->deletions.begun;
		flush->update = updates_needed(cache);
		kv_commit_kick_locked(cache, true);
		return;
	}
}

void kv_flushes_queued_locked(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_flush *first = TAILQ_FIRST(&space->flushes);

	kv_assert_locked(&cache->lock);
	if (first)
		first->deletion = space->deletions.begun;
	kv_commit_kick_locked(cache, true);
}

void kv_flush_submit(struct kv_cache *cache, struct kv_space *space,
		     struct kv_flush *flush)
{
	struct kv_ssd *ssd = &cache->ssd;
	int r = 0;

	kv_lock(cache);
	if (!cache->config.read_only &&
	    (!ssd->on || (ssd->frozen && !TAILQ_EMPTY(&space->unpersisted))))
		r = -EOPNOTSUPP;
	if (cache->config.read_only || r < 0 || KV_LIE("ack")) {
		kv_defer_flushed(cache, flush, r);
		kv_unlock(cache);
		return;
	}
	flush->asked = flush->ticket = space->must_seq = ssd->seq;
	flush->deletion = space->deletions.begun;
	flush->update = updates_needed(cache);
	flush->space = space;
	flush->change = cache->snapshots.changes;
	flush->removal = space->removal;
	flush->pending = true;
	cache->snapshots.retry_at = 0;
	kv_removed_retry_locked(cache);
	if (TAILQ_EMPTY(&space->flushes))
		LIST_INSERT_HEAD(&ssd->flushing, space, flushing);
	TAILQ_INSERT_TAIL(&space->flushes, flush, link);
	if (!space->collecting) {
		space->collecting = flush;
		TAILQ_INSERT_TAIL(&ssd->collecting, space, collects);
	}
	space->asked_seq = flush->asked;
	if (!collect(cache, space, COLLECT_AT_ONCE))
		pthread_cond_signal(&ssd->write);
	kv_flushes_settle_space_locked(cache, space);
	if (flush->pending)
		kv_commit_kick_locked(cache, false);
	kv_unlock(cache);
}

void kv_flush_cancel(struct kv_cache *cache, struct kv_flush *flush, int status)
{
	kv_lock(cache);
	if (flush->pending && flush->block) {
		end_sync(cache, flush, status);
	} else if (flush->pending) {
		struct kv_space *space = flush->space;

		end_flush(cache, space, flush, status);
		recount(cache, space);
	}
	kv_unlock(cache);
}
