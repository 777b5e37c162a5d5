/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush.c - who waits until what is sealed or removed is durable, and when that
 * is worth a commit.
 *
 * OWNS       the list of flushes.
 *
 * INVARIANTS
 *   (1) A flush with ticket t is done when no slot of its space with seq <= t
 *       is dirty and the commits that cover earlier deletions and changes of
 *       pins and mtimes have been made, those included that were found to be
 *       needed only when a slot's write had ended.
 *   (2) What a flush waits for is neither given up nor refused: it is written,
 *       or removed, or the flush is told why not.
 *   (3) flush->unwritten counts the slots it waits for that are QUEUED or
 *       WRITING; space->unwritten all of the space.
 *
 * LOCKING    cache->lock.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/core.h"
#include "cache/core/waiter.h"
#include "common/crash_point.h"

#define LINGER_NS 100000000u /* collect, while that helps nobody */
#define LINGER_SHARE 8u	     /* but not more than this part of the arena */

/* A slot is all in its file, or will not be: one less to wait for. */
void kv_flushes_written_locked(struct kv_cache *cache,
			       const struct kv_slot *slot)
{
	struct kv_space *space = slot->list->space;
	struct kv_flush *flush;

	kv_assert_locked(&cache->lock);
	space->unwritten--;
	for (flush = cache->flushes; flush; flush = flush->next)
		if (flush->space == space->id && slot->seq <= flush->ticket)
			flush->unwritten--;
}

/* Are all changes of @space up to number @change written? */
static bool snapshots_written(const struct kv_cache *cache, uint32_t space,
			      uint64_t change)
{
	const struct kv_snapshot *snapshot;

	TAILQ_FOREACH(snapshot, &cache->snapshots.dirty, dirty_link)
		if (snapshot->space == space && snapshot->change <= change)
			return false;
	return true;
}

static bool flushed(const struct kv_cache *cache, const struct kv_flush *flush)
{
	const struct kv_ssd *ssd = &cache->ssd;
	const struct kv_slot *first =
		TAILQ_FIRST(&cache->spaces[flush->space]->dirty);

	return (!first || first->seq > flush->ticket) &&
	       ssd->commits_done >= flush->commit &&
	       ssd->updates.done >= flush->update &&
	       snapshots_written(cache, flush->space, flush->change);
}

/* A flush was given up: up to where do others wait? */
static void must_again(struct kv_cache *cache, uint32_t space)
{
	const struct kv_flush *flush;
	uint64_t seq = 0;

	for (flush = cache->flushes; flush; flush = flush->next)
		if (flush->space == space)
			seq = KV_MAX(seq, flush->ticket);
	cache->spaces[space]->must_seq = seq;
}

void kv_flushes_fail_locked(struct kv_cache *cache,
			    const struct kv_space *space, int error)
{
	struct kv_flush **link = &cache->flushes;

	kv_assert_locked(&cache->lock);
	while (*link) {
		struct kv_flush *flush = *link;
		bool fails = error && (!space || space->id == flush->space);

		if (!fails && !flushed(cache, flush)) {
			link = &flush->next;
			continue;
		}
		*link = flush->next;
		if (fails)
			must_again(cache, flush->space);
		kv_defer_flushed(cache, flush, fails ? error : 0);
	}
}

void kv_flushes_settle_locked(struct kv_cache *cache, int error)
{
	kv_assert_locked(&cache->lock);
	kv_flushes_fail_locked(cache, NULL, error);
}

void kv_flushes_fail_snapshot_locked(struct kv_cache *cache, uint32_t space,
				     int error)
{
	struct kv_flush **link = &cache->flushes;

	kv_assert_locked(&cache->lock);
	while (*link) {
		struct kv_flush *flush = *link;

		if (flush->space != space ||
		    snapshots_written(cache, space, flush->change)) {
			link = &flush->next;
			continue;
		}
		*link = flush->next;
		kv_defer_flushed(cache, flush, error);
	}
}

/* Is there a flush for which nothing but the commit is left to be done? */
static bool awaited(const struct kv_cache *cache)
{
	const struct kv_flush *flush;

	for (flush = cache->flushes; flush; flush = flush->next)
		if (!flush->unwritten)
			return true;
	return false;
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
	       !awaited(cache) && (now = kv_now_ns()) < until)
		kv_cond_wait(cache, &ssd->commit, until - now);
}

void kv_flushes_prolong_locked(struct kv_cache *cache, uint64_t seq)
{
	struct kv_flush *flush;

	kv_assert_locked(&cache->lock);
	for (flush = cache->flushes; flush; flush = flush->next) {
		if (flush->ticket < seq)
			continue;
		flush->commit = kv_commits_needed_locked(cache);
		flush->update = kv_updates_needed_locked(cache);
		kv_commit_kick_locked(cache, true);
	}
}

void kv_flush_submit(struct kv_cache *cache, struct kv_space *space,
		     struct kv_flush *flush)
{
	struct kv_ssd *ssd = &cache->ssd;

	kv_lock(cache);
	if (!ssd->on || cache->config.read_only) {
		kv_defer_flushed(cache, flush,
				 cache->config.read_only ? 0 : -EOPNOTSUPP);
		kv_unlock(cache);
		return;
	}
	kv_write_enqueue_unpersisted_locked(cache, space);
	if (KV_LIE("ack")) {
		kv_defer_flushed(cache, flush, 0);
		kv_unlock(cache);
		return;
	}
	flush->pending = true;
	flush->ticket = space->must_seq = ssd->seq;
	flush->commit = kv_commits_needed_locked(cache);
	flush->update = kv_updates_needed_locked(cache);
	flush->space = space->id;
	flush->unwritten = space->unwritten;
	flush->change = cache->snapshots.changes;
	cache->snapshots.retry_at = 0;
	flush->next = cache->flushes;
	cache->flushes = flush;
	kv_flushes_settle_locked(cache, 0);
	if (flush->pending)
		kv_commit_kick_locked(cache, false);
	kv_unlock(cache);
}

void kv_flush_cancel(struct kv_cache *cache, struct kv_flush *flush, int status)
{
	struct kv_flush **link;

	kv_lock(cache);
	for (link = &cache->flushes; *link; link = &(*link)->next)
		if (*link == flush) {
			*link = flush->next;
			must_again(cache, flush->space);
			kv_defer_flushed(cache, flush, status);
			break;
		}
	kv_unlock(cache);
}

static void wake(struct kv_flush *flush, int status)
{
	(void)status;
	kv_waiter_wake(flush->arg);
}

int kv_space_sync(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_waiter waiter = KV_WAITER_INIT;
	struct kv_flush flush = {.done = wake, .arg = &waiter};

	kv_flush_submit(cache, space, &flush);
	kv_waiter_wait(&waiter);
	return flush.status;
}
