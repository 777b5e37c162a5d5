/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot_write.c - snapshots on their way into the index.
 *
 * OWNS       the list of snapshots that changed since they were written, and
 *            the dropped ones in it.
 *
 * INVARIANTS
 *   (1) A snapshot is on the list if and only if the index has not got its
 *       latest change; its oldest such change is snapshot->change.
 *   (2) Without an SSD tier, or read-only, nothing is written and the list is
 *       empty: snapshots end with the mount, as the blocks do.
 *
 * LOCKING    cache->lock; none while the index is written, which only the
 *            committer does.  What is on the list is freed by nobody else.
 */
#include "cache/ssd/ssd.h"
#include "common/crash_point.h"

#define RETRY_NS 1000000000u

static bool kept(const struct kv_cache *cache)
{
	return cache->ssd.on && !cache->config.read_only;
}

void kv_snapshot_changed_locked(struct kv_cache *cache,
				struct kv_snapshot *snapshot)
{
	struct kv_snapshots *all = &cache->snapshots;

	if (!kept(cache)) {
		if (snapshot->dropped)
			kv_snapshot_free(snapshot);
		return;
	}
	snapshot->latest = ++all->changes;
	if (!snapshot->dirty) {
		snapshot->dirty = true;
		snapshot->change = snapshot->latest;
		TAILQ_INSERT_TAIL(&all->dirty, snapshot, dirty_link);
	}
	kv_commit_kick_locked(cache, false);
}

bool kv_snapshots_dirty_locked(const struct kv_cache *cache)
{
	const struct kv_snapshots *all = &cache->snapshots;

	return !TAILQ_EMPTY(&all->dirty) &&
	       (!all->retry_at || kv_now_ns() >= all->retry_at);
}

bool kv_snapshots_written_locked(const struct kv_cache *cache, uint32_t space,
				 uint64_t change)
{
	const struct kv_snapshot *snapshot;

	TAILQ_FOREACH(snapshot, &cache->snapshots.dirty, dirty_link)
		if (snapshot->space == space && snapshot->change <= change)
			return false;
	return true;
}

/* What of it is to be written; @ret_items is the caller's. */
static int copy_locked(const struct kv_snapshot *snapshot,
		       struct kv_snapshot_record *ret_record,
		       struct kv_snapshot_item **ret_items)
{
	struct kv_snapshot_item *items =
		malloc((snapshot->live + 1) * sizeof(*items));
	uint32_t n = 0;

	if (!items)
		return -ENOMEM;
	for (uint32_t i = 0; i < snapshot->n; i++)
		if (snapshot->items[i].key_len)
			items[n++] = snapshot->items[i];
	*ret_record = (struct kv_snapshot_record){
		.id = snapshot->id,
		.space = snapshot->space,
		.count = n,
		.mtime_ns = snapshot->mtime_ns,
	};
	*ret_items = items;
	return 0;
}

static int write_one(struct kv_cache *cache, const struct kv_snapshot *snapshot,
		     bool dropped, const struct kv_snapshot_record *record,
		     const struct kv_snapshot_item *items)
{
	struct kv_txn *batch;
	int r = kv_txn_begin(cache->index, &batch);

	if (r < 0)
		return r;
	r = dropped ? kv_txn_delete_snapshot(batch, snapshot->id)
		    : kv_txn_put_snapshot(batch, record, snapshot->name, items);
	if (r < 0) {
		kv_txn_abort(batch);
		return r;
	}
	KV_POINT("snapshot.before_commit");
	r = kv_txn_commit(batch);
	KV_POINT("snapshot.committed");
	return r;
}

/* Flushes that wait for it shall hear of it. */
static void fail_flushes(struct kv_cache *cache, uint32_t space, int error)
{
	struct kv_flush **link = &cache->flushes;

	while (*link) {
		struct kv_flush *flush = *link;

		if (flush->space != space ||
		    kv_snapshots_written_locked(cache, space, flush->change)) {
			link = &flush->next;
			continue;
		}
		*link = flush->next;
		kv_defer_flushed(cache, flush, error);
	}
}

static void written(struct kv_cache *cache, struct kv_snapshot *snapshot,
		    uint64_t latest)
{
	if (snapshot->latest != latest) {
		snapshot->change = latest + 1;
		return;
	}
	TAILQ_REMOVE(&cache->snapshots.dirty, snapshot, dirty_link);
	snapshot->dirty = false;
	if (snapshot->dropped)
		kv_snapshot_free(snapshot);
}

static int write_next_locked(struct kv_cache *cache,
			     struct kv_snapshot *snapshot)
{
	_cleanup_(kv_freep) struct kv_snapshot_item *items = NULL;
	struct kv_snapshot_record record = {0};
	const bool dropped = snapshot->dropped;
	int r = dropped ? 0 : copy_locked(snapshot, &record, &items);

	if (r == 0) {
		kv_unlock(cache);
		r = write_one(cache, snapshot, dropped, &record, items);
		kv_lock(cache);
	}
	if (r < 0)
		fail_flushes(cache, snapshot->space, r);
	return r;
}

void kv_snapshots_write_locked(struct kv_cache *cache)
{
	struct kv_snapshots *all = &cache->snapshots;
	struct kv_snapshot *snapshot, *next;
	uint64_t retry_at = 0;

	if (!kv_snapshots_dirty_locked(cache))
		return;
	for (snapshot = TAILQ_FIRST(&all->dirty); snapshot; snapshot = next) {
		const uint64_t latest = snapshot->latest;
		int r = write_next_locked(cache, snapshot);

		next = TAILQ_NEXT(snapshot, dirty_link);
		if (r < 0)
			retry_at = kv_now_ns() + RETRY_NS;
		else
			written(cache, snapshot, latest);
	}
	all->retry_at = retry_at;
	kv_flushes_settle_locked(cache, 0);
}
