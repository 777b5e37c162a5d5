/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush.c - who waits until what is sealed or removed is durable, and when that
 * is worth a commit.
 *
 * OWNS       the flushes of every space, in the order in which they came.
 *
 * STATES     of a flush, and the function that makes each step:
 *
 *                (new) -> COLLECTING   kv_flush_submit
 *           COLLECTING -> WAITING      collect: what was to be written is dirty
 *              WAITING -> (over)       kv_flushes_settle_space_locked
 *             (either) -> (over)       fail_space, kv_flush_cancel
 *
 * INVARIANTS
 *   (1) A flush that waits is done when no slot of its space with seq <= ticket
 *       is dirty, the commits that cover changes of pins and mtimes have been
 *       made, and earlier deletions of its space are over, those included that
 *       were found to be needed only when a slot's write had ended.  What was
 *       removed in a store that has not been swept yet may have a namesake
 *       there: then the sweep is waited for, too.
 *   (2) What a flush waits for is neither given up nor refused, nor evicted: it
 *       is written, or removed, or the flush is told why not.
 *   (3) A space's flushes end in the order in which they came, but for those
 *       that fail: a later one covers all that an earlier one does.  Those that
 *       collect are behind those that wait.
 *   (4) ssd->awaiting counts the spaces whose first flush needs nothing but
 *       the commit.
 *   (5) A sync of a block is on the list of its slot until it is durable, and
 *       then on ssd->recording, until its record is as it was then.
 *   No step is longer for more flushes, or for more blocks that are on SSD.
 *
 * LOCKING    cache->lock.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/marks.h"
#include "cache/core/table.h"
#include "common/crash_point.h"

#define LINGER_NS 100000000u /* collect, while that helps nobody */
#define LINGER_SHARE 8u	     /* but not more than this part of the arena */
#define COLLECT_AT_ONCE 64u

/* Does the first flush await a commit and nothing else? */
static void look(struct kv_cache *cache, struct kv_space *space)
{
	const struct kv_flush *first = TAILQ_FIRST(&space->flushes);
	const struct kv_slot *slot = TAILQ_FIRST(&space->unwritten);
	const bool awaits = first && first != space->collecting &&
			    (!slot || slot->seq > first->ticket);

	cache->ssd.awaiting += awaits;
	cache->ssd.awaiting -= space->awaits_commit;
	space->awaits_commit = awaits;
}

/* A slot is all in its file, or will not be: one less to wait for. */
void kv_flushes_written_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_space *space = slot->list->space;

	kv_assert_locked(&cache->lock);
	TAILQ_REMOVE(&space->unwritten, slot, unwritten);
	look(cache, space);
	if (!LIST_EMPTY(&slot->syncs))
		kv_commit_kick_locked(cache, true);
}

/* Are all changes of @space up to number @change written? */
static bool snapshots_written(const struct kv_cache *cache,
			      const struct kv_space *space, uint64_t change)
{
	const struct kv_snapshot *snapshot;

	TAILQ_FOREACH(snapshot, &cache->snapshots.dirty, dirty_link)
		if (snapshot->space == space && snapshot->change <= change)
			return false;
	return true;
}

static bool flushed(const struct kv_cache *cache, const struct kv_space *space,
		    const struct kv_flush *flush)
{
	const struct kv_ssd *ssd = &cache->ssd;
	const struct kv_slot *first = TAILQ_FIRST(&space->dirty);

	return flush != space->collecting &&
	       (!first || first->seq > flush->ticket) &&
	       space->deletions.done >= flush->deletion &&
	       !ssd->deletions.unqueued &&
	       (!space->shrunk || !ssd->n_unswept) &&
	       ssd->updates.done >= flush->update &&
	       kv_removed_written_locked(cache, flush->removal) &&
	       snapshots_written(cache, flush->space, flush->change);
}

static void collects_no_more(struct kv_cache *cache, struct kv_space *space)
{
	space->collecting = NULL;
	space->asked_seq = 0;
	TAILQ_REMOVE(&cache->ssd.collecting, space, collects);
}

static void add(struct kv_cache *cache, struct kv_space *space,
		struct kv_flush *flush)
{
	struct kv_ssd *ssd = &cache->ssd;

	if (TAILQ_EMPTY(&space->flushes))
		LIST_INSERT_HEAD(&ssd->flushing, space, flushing);
	TAILQ_INSERT_TAIL(&space->flushes, flush, link);
	if (!space->collecting) {
		space->collecting = flush;
		TAILQ_INSERT_TAIL(&ssd->collecting, space, collects);
	}
	space->asked_seq = flush->asked;
	flush->pending = true;
}

/* Off the list, told @status; the caller looks at what is first then. */
static void end(struct kv_cache *cache, struct kv_space *space,
		struct kv_flush *flush, int status)
{
	struct kv_flush *next = TAILQ_NEXT(flush, link);

	/* The flush may have been prolonged for the next, too. */
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

/* A flush was given up: up to where do others wait? */
static void must_again(struct kv_space *space)
{
	const struct kv_flush *last = TAILQ_LAST(&space->flushes, kv_flushes);

	space->must_seq = last ? last->ticket : 0;
}

void kv_flushes_settle_space_locked(struct kv_cache *cache,
				    struct kv_space *space)
{
	struct kv_flush *flush;

	kv_assert_locked(&cache->lock);
	while ((flush = TAILQ_FIRST(&space->flushes)) &&
	       flushed(cache, space, flush))
		end(cache, space, flush, 0);
	look(cache, space);
}

/* ---- of one block ---- */

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

/* Pin and mtime, as they are now, count, too. */
static void await_record(struct kv_cache *cache, struct kv_flush *sync)
{
	const struct kv_updates *updates = &cache->ssd.updates;

	sync->durable = true;
	sync->update = sync->block->flags & BLOCK_UPDATE
			       ? kv_updates_needed_locked(cache)
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

/* A sync that wants less than one before it waits as that does. */
void kv_syncs_settle_locked(struct kv_cache *cache)
{
	struct kv_flush *sync;

	kv_assert_locked(&cache->lock);
	while ((sync = TAILQ_FIRST(&cache->ssd.recording)) &&
	       sync->update <= cache->ssd.updates.done)
		end_sync(cache, sync, 0);
}

static void sync_block(struct kv_cache *cache, struct kv_flush *sync)
{
	struct kv_block *block = sync->block;

	kv_write_enqueue_locked(cache, block, true);
	if (block->file == KV_NONE && !kv_block_dirty(block)) {
		kv_defer_flushed(cache, sync, -ENOENT);
		return;
	}
	sync->pending = true;
	LIST_INSERT_HEAD(&cache->ssd.syncs, sync, of_all);
	if (block->file == KV_NONE) {
		LIST_INSERT_HEAD(&block->slot->syncs, sync, of_slot);
		kv_commit_kick_locked(cache, block->slot->written);
		return;
	}
	await_record(cache, sync);
	kv_syncs_settle_locked(cache);
}

void kv_block_flush_submit(struct kv_cache *cache, struct kv_block *block,
			   struct kv_flush *flush)
{
	kv_lock(cache);
	flush->block = block;
	if (block->file == KV_NONE && cache->config.read_only)
		kv_defer_flushed(cache, flush, -EROFS);
	else if (!cache->ssd.on ||
		 (cache->ssd.frozen && block->file == KV_NONE))
		kv_defer_flushed(cache, flush, -EOPNOTSUPP);
	else
		sync_block(cache, flush);
	kv_unlock(cache);
}

/* ---- of a space ---- */

static void fail_space(struct kv_cache *cache, struct kv_space *space,
		       int error)
{
	struct kv_flush *flush;

	kv_flushes_settle_space_locked(cache, space);
	while ((flush = TAILQ_FIRST(&space->flushes)))
		end(cache, space, flush, error);
	space->must_seq = 0;
	look(cache, space);
}

void kv_flushes_fail_locked(struct kv_cache *cache, struct kv_space *space,
			    int error)
{
	kv_assert_locked(&cache->lock);
	if (space)
		fail_space(cache, space, error);
	while (!space && !LIST_EMPTY(&cache->ssd.flushing))
		fail_space(cache, LIST_FIRST(&cache->ssd.flushing), error);
	while (!space && !LIST_EMPTY(&cache->ssd.syncs))
		end_sync(cache, LIST_FIRST(&cache->ssd.syncs), error);
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
			end(cache, space, flush, error);
	}
	must_again(space);
	look(cache, space);
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
				end(cache, space, flush, error);
		}
		must_again(space);
		look(cache, space);
	}
}

/* ---- blocks that their owner's client has changed ---- */

bool kv_block_was_changed(struct kv_cache *cache, const struct kv_space *space,
			  const struct kv_key *key)
{
	bool was;

	kv_lock(cache);
	was = kv_marks_find(cache->ssd.changed, KV_CHANGED_KNOWN,
			    kv_key_hash(cache, space, key->b));
	kv_unlock(cache);
	return was;
}

void kv_changed_lift_locked(struct kv_cache *cache,
			    const struct kv_space *space,
			    const struct kv_key *key)
{
	kv_assert_locked(&cache->lock);
	kv_marks_lift(cache->ssd.changed, KV_CHANGED_KNOWN,
		      kv_key_hash(cache, space, key->b));
}

/* Flushes of single blocks go on: the others' are as good as they were. */
static void fail_barriers(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_flush *flush, *next;

	for (flush = TAILQ_FIRST(&space->flushes); flush; flush = next) {
		next = TAILQ_NEXT(flush, link);
		if (!flush->each)
			end(cache, space, flush, -EBADMSG);
	}
	must_again(space);
	look(cache, space);
}

void kv_block_changed_locked(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_space *space = kv_block_space(cache, block);

	kv_assert_locked(&cache->lock);
	if (block->flags & BLOCK_REMOVED)
		return;
	kv_marks_set(cache->ssd.changed, KV_CHANGED_KNOWN,
		     kv_key_hash(cache, space, block->key));
	cache->stats.corrupt++;
	if (kv_write_must(block->slot))
		fail_barriers(cache, space);
	kv_syncs_end_locked(cache, block->slot, -EBADMSG);
	kv_block_remove_locked(cache, block);
}

/* At most @n slots; false: they were not all. */
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
		/* Another's turn. */
		TAILQ_REMOVE(&ssd->collecting, space, collects);
		TAILQ_INSERT_TAIL(&ssd->collecting, space, collects);
	}
	kv_flushes_settle_space_locked(cache, space);
}

/*
 * A commit has to wait for what the device is busy with, three times over: one
 * that is of use to nobody makes the next one, which is, come later.
 */
void kv_commit_gather(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	const uint64_t enough =
		cache->arena.max * cache->arena.segment_bytes / LINGER_SHARE;
	const uint64_t until = kv_now_ns() + LINGER_NS;
	uint64_t now;

	while (!ssd->urgent && !ssd->stop && ssd->written_bytes < enough &&
	       ssd->n_written < ssd->round_max &&
	       TAILQ_EMPTY(&ssd->deletions.to_record) && !ssd->awaiting &&
	       (now = kv_now_ns()) < until)
		kv_cond_wait(cache, &ssd->commit, until - now);
}

/* Flushes behind the first that waits for @slot do not end before that. */
void kv_flushes_prolong_locked(struct kv_cache *cache,
			       const struct kv_slot *slot)
{
	struct kv_flush *flush;

	kv_assert_locked(&cache->lock);
	TAILQ_FOREACH(flush, &slot->list->space->flushes, link) {
		if (flush->ticket < slot->seq)
			continue;
		flush->deletion = slot->list->space->deletions.begun;
		flush->update = kv_updates_needed_locked(cache);
		kv_commit_kick_locked(cache, true);
		return;
	}
}

/* Flushes behind the first do not end before that. */
void kv_flushes_queued_locked(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_flush *first = TAILQ_FIRST(&space->flushes);

	kv_assert_locked(&cache->lock);
	if (first)
		first->deletion = space->deletions.begun;
	kv_commit_kick_locked(cache, true);
}

static void submit(struct kv_cache *cache, struct kv_space *space,
		   struct kv_flush *flush)
{
	struct kv_ssd *ssd = &cache->ssd;

	flush->asked = flush->ticket = space->must_seq = ssd->seq;
	flush->deletion = space->deletions.begun;
	flush->update = kv_updates_needed_locked(cache);
	flush->space = space;
	flush->change = cache->snapshots.changes;
	flush->removal = space->removal;
	cache->snapshots.retry_at = 0;
	kv_removed_retry_locked(cache);
	add(cache, space, flush);
	if (!collect(cache, space, COLLECT_AT_ONCE))
		pthread_cond_signal(&ssd->write);
	kv_flushes_settle_space_locked(cache, space);
	if (flush->pending)
		kv_commit_kick_locked(cache, false);
}

void kv_flush_submit(struct kv_cache *cache, struct kv_space *space,
		     struct kv_flush *flush)
{
	kv_lock(cache);
	if (cache->config.read_only)
		kv_defer_flushed(cache, flush, 0);
	else if (!cache->ssd.on || cache->ssd.frozen)
		kv_defer_flushed(cache, flush, -EOPNOTSUPP);
	else if (KV_LIE("ack"))
		kv_defer_flushed(cache, flush, 0);
	else
		submit(cache, space, flush);
	kv_unlock(cache);
}

void kv_flush_cancel(struct kv_cache *cache, struct kv_flush *flush, int status)
{
	kv_lock(cache);
	if (flush->pending && flush->block) {
		end_sync(cache, flush, status);
	} else if (flush->pending) {
		struct kv_space *space = flush->space;

		end(cache, space, flush, status);
		must_again(space);
		look(cache, space);
	}
	kv_unlock(cache);
}
