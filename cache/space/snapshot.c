/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.c - snapshots: blocks of a chain, pinned under a name.
 *
 * OWNS       every kv_snapshot; their trees, by id and by name; the list of
 *            snapshots that changed since they were written.  pins.c owns the
 *            pins.
 *
 * STATES     of a snapshot, and the function that makes each step:
 *
 *               (new) -> MADE      kv_snapshot_create: it has its name
 *                MADE -> READY     kv_snapshot_create: all blocks are pinned
 *                MADE -> (freed)   kv_snapshot_create: a block cannot be pinned
 *               READY -> LEAVING   kv_snapshot_drop: hidden from now on
 *             LEAVING -> DROPPED   kv_snapshot_drop: all blocks are unpinned
 *             DROPPED -> (freed)   kv_snapshots_write, when its record is
 *                                  deleted from the index; at once if it never
 *                                  had a record
 *
 * INVARIANTS
 *   (1) Each item that is not unlinked has one pin of its key, which is dropped
 *       with the item.
 *   (2) A LEAVING or DROPPED snapshot is in no tree and no space.  A MADE
 *       snapshot has its name and its id, but cannot be found.
 *   (3) The items of a snapshot ascend by position, unlinked ones too.
 *   (4) A snapshot is on the list of changed snapshots if and only if the index
 *       lacks a change of it; snapshot->change is the oldest such change.
 *   (5) Without an SSD tier, or read-only, no snapshot is written and the list
 *       of changed snapshots is empty: snapshots end with the mount.
 *
 * LOCKING    cache->lock, released after every STRETCH items.  The items of a MADE
 *            or LEAVING snapshot belong to the thread that pins or unpins them;
 *            the committer may read them.  Only the committer writes the index,
 *            without the lock, and only it frees a snapshot that is recorded.
 */
#include "cache/space/space.h"
#include "cache/block/block.h"
#include "cache/core/account.h"
#include "cache/core/table.h"
#include "cache/ssd/ssd.h"
#include "common/crash_point.h"

#include <search.h>

#define COST_EACH 16u
#define RETRY_NS 1000000000u
#define STRETCH 256u
#define WRITES_NS 20000000u /* longest delay of a commit of blocks */
/* All snapshots together may list COST_FREE blocks, plus COST_BLOCKS times the
 * number of blocks. */
#define COST_BLOCKS 4u
#define COST_FREE 65536u

static void snapshot_free(struct kv_snapshot *snapshot)
{
	if (!snapshot)
		return;
	kv_space_put(snapshot->space);
	free(snapshot->items);
	free(snapshot);
}

static struct kv_key snapshot_key(const struct kv_snapshot_item *item)
{
	struct kv_key key = {.len = item->key_len};

	memcpy(key.b, item->key, sizeof(key.b));
	return key;
}

static int by_id(const void *a, const void *b)
{
	const struct kv_snapshot *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

static int by_name(const void *a, const void *b)
{
	const struct kv_snapshot *x = a, *y = b;

	if (x->space_id != y->space_id)
		return x->space_id < y->space_id ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* Return the snapshot if it is READY, or NULL. */
static struct kv_snapshot *snapshot_by_id_locked(struct kv_cache *cache,
						 uint64_t id)
{
	struct kv_snapshot key = {.id = id};
	void *node = tfind(&key, &cache->snapshots.by_id, by_id);
	struct kv_snapshot *snapshot = node ? *(void **)node : NULL;

	kv_assert_locked(&cache->lock);
	return snapshot && snapshot->ready ? snapshot : NULL;
}

/* Return the snapshot, READY or MADE; or NULL. */
static struct kv_snapshot *snapshot_by_name_locked(struct kv_cache *cache,
						   uint32_t space_id,
						   const char *name)
{
	struct kv_snapshot key = {.space_id = space_id};
	void *node;

	kv_assert_locked(&cache->lock);
	strncpy(key.name, name, sizeof(key.name) - 1);
	node = tfind(&key, &cache->snapshots.by_name, by_name);
	return node ? *(void **)node : NULL;
}

static uint64_t snapshot_cost(const struct kv_snapshot *snapshot)
{
	return COST_EACH + snapshot->n;
}

uint64_t kv_snapshots_cost_locked(struct kv_cache *cache,
				  const struct kv_space *space)
{
	const struct kv_snapshot *snapshot;
	uint64_t cost = 0;

	kv_assert_locked(&cache->lock);
	LIST_FOREACH(snapshot, &space->snapshots, link)
		cost += snapshot_cost(snapshot);
	return cost;
}

/* Add a snapshot, whose name is unused, to the trees and the space. */
static int snapshot_link_locked(struct kv_cache *cache, struct kv_space *space,
				struct kv_snapshot *snapshot)
{
	struct kv_snapshots *all = &cache->snapshots;

	kv_assert_locked(&cache->lock);
	if (!tsearch(snapshot, &all->by_name, by_name))
		return -ENOMEM;
	if (!tsearch(snapshot, &all->by_id, by_id)) {
		tdelete(snapshot, &all->by_name, by_name);
		return -ENOMEM;
	}
	LIST_INSERT_HEAD(&space->snapshots, snapshot, link);
	space->n_snapshots++;
	all->cost += snapshot_cost(snapshot);
	kv_account_take(space->account, KV_FINITE_SNAPSHOTS,
			snapshot_cost(snapshot));
	kv_space_index_locked(cache, space, 0,
			      kv_index_snapshot_bytes(snapshot->n));
	return 0;
}

static void snapshot_unlink_locked(struct kv_cache *cache,
				   struct kv_snapshot *snapshot)
{
	struct kv_snapshots *all = &cache->snapshots;
	struct kv_space *space = snapshot->space;

	kv_assert_locked(&cache->lock);
	tdelete(snapshot, &all->by_name, by_name);
	tdelete(snapshot, &all->by_id, by_id);
	LIST_REMOVE(snapshot, link);
	space->n_snapshots--;
	all->cost -= snapshot_cost(snapshot);
	kv_account_credit(space->account, KV_FINITE_SNAPSHOTS,
			  snapshot_cost(snapshot));
	kv_space_index_locked(cache, space,
			      kv_index_snapshot_bytes(snapshot->n), 0);
}

/* Return the index of the first item of the snapshot at or after @position. */
static uint32_t snapshot_at(const struct kv_snapshot *snapshot,
			    uint32_t position)
{
	uint32_t low = 0, high = snapshot->n;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (snapshot->items[middle].position < position)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Fill in the information about a snapshot (may be NULL); drop the lock. */
static int describe(struct kv_cache *cache, const struct kv_snapshot *snapshot,
		    struct kv_snapshot_info *ret_info)
{
	if (snapshot) {
		*ret_info = (struct kv_snapshot_info){
			.id = snapshot->id,
			.space = snapshot->space_id,
			.blocks = snapshot->live,
			.mtime_ns = snapshot->mtime_ns,
		};
		strcpy(ret_info->name, snapshot->name);
	}
	kv_unlock(cache);
	return snapshot ? 0 : -ENOENT;
}

int kv_snapshot_find(struct kv_cache *cache, struct kv_space *space,
		     const char *name, struct kv_snapshot_info *ret_info)
{
	const struct kv_snapshot *snapshot = NULL;

	kv_lock(cache);
	if (kv_space_name_ok(name))
		snapshot = snapshot_by_name_locked(cache, space->id, name);
	return describe(cache, snapshot && snapshot->ready ? snapshot : NULL,
			ret_info);
}

int kv_snapshot_stat(struct kv_cache *cache, uint64_t id,
		     struct kv_snapshot_info *ret_info)
{
	kv_lock(cache);
	return describe(cache, snapshot_by_id_locked(cache, id), ret_info);
}

long kv_snapshot_read(struct kv_cache *cache, uint64_t id, uint32_t from,
		      struct kv_pick *ret_picks, size_t max)
{
	struct kv_snapshot *snapshot;
	size_t n = 0;

	kv_lock(cache);
	snapshot = snapshot_by_id_locked(cache, id);
	for (uint32_t i = snapshot ? snapshot_at(snapshot, from) : 0;
	     snapshot && i < snapshot->n && n < max; i++) {
		if (!snapshot->items[i].key_len)
			continue;
		ret_picks[n].key = snapshot_key(&snapshot->items[i]);
		ret_picks[n++].position = snapshot->items[i].position;
	}
	kv_unlock(cache);
	return snapshot ? (long)n : -ENOENT;
}

int kv_snapshot_list(struct kv_cache *cache, struct kv_space *space,
		     uint64_t **ret_ids, size_t *ret_n)
{
	struct kv_snapshot *snapshot;
	uint64_t *ids;
	size_t n = 0;

	kv_lock(cache);
	ids = malloc((space->n_snapshots + 1) * sizeof(*ids));
	if (ids)
		LIST_FOREACH(snapshot, &space->snapshots, link)
			if (snapshot->ready)
				ids[n++] = snapshot->id;
	kv_unlock(cache);
	if (!ids)
		return -ENOMEM;
	*ret_ids = ids;
	*ret_n = n;
	return 0;
}

static void nothing(void *node)
{
	(void)node;
}

void kv_snapshots_fini(struct kv_cache *cache)
{
	struct kv_snapshots *all = &cache->snapshots;
	struct kv_snapshot *snapshot;

	for (uint32_t i = 0; i < cache->spaces.n; i++)
		while ((snapshot = LIST_FIRST(
				&cache->spaces.sorted[i]->snapshots))) {
			LIST_REMOVE(snapshot, link);
			if (!snapshot->dirty)
				snapshot_free(snapshot);
		}
	while ((snapshot = TAILQ_FIRST(&all->dirty))) {
		TAILQ_REMOVE(&all->dirty, snapshot, dirty_link);
		snapshot_free(snapshot);
	}
	tdestroy(all->by_name, nothing);
	tdestroy(all->by_id, nothing);
}

/* Queue the snapshot's change for the index.  Frees a dropped snapshot that has
 * no record in the index: nothing is left to be written. */
static void snapshot_changed_locked(struct kv_cache *cache,
				    struct kv_snapshot *snapshot)
{
	const bool written = cache->ssd.on && !cache->config.read_only;
	struct kv_snapshots *all = &cache->snapshots;

	kv_assert_locked(&cache->lock);
	if (snapshot->dropped && !(written && snapshot->recorded)) {
		if (snapshot->dirty)
			TAILQ_REMOVE(&all->dirty, snapshot, dirty_link);
		snapshot_free(snapshot);
		kv_flushes_settle_locked(cache, 0);
		return;
	}
	if (!written)
		return;
	snapshot->latest = ++all->changes;
	if (!snapshot->dirty) {
		snapshot->dirty = true;
		snapshot->change = snapshot->latest;
		TAILQ_INSERT_TAIL(&all->dirty, snapshot, dirty_link);
	}
	kv_commit_kick_locked(cache, false);
}

/* Write a snapshot's record to the index, or delete it.  Drops the lock
 * meanwhile. */
static int write_one(struct kv_cache *cache, struct kv_snapshot *snapshot)
{
	_cleanup_(kv_freep) struct kv_snapshot_item *items =
		malloc((snapshot->live + 1) * sizeof(*items));
	struct kv_snapshot_record record = {
		.id = snapshot->id,
		.space = snapshot->space_id,
		.mtime_ns = snapshot->mtime_ns,
	};
	const bool dropped = snapshot->dropped;
	struct kv_txn *batch;
	int r;

	snapshot->recorded = true;
	if (!items)
		return -ENOMEM;
	for (uint32_t i = 0; !dropped && i < snapshot->n; i++)
		if (snapshot->items[i].key_len)
			items[record.count++] = snapshot->items[i];
	kv_unlock(cache);
	r = kv_txn_begin(cache->index, &batch);
	if (r == 0) {
		if (dropped)
			kv_txn_delete(batch, KV_PART_SNAPSHOTS, record.id);
		else
			kv_txn_put_snapshot(batch, &record, snapshot->name,
					    items);
		KV_POINT("snapshot.before_commit");
		r = kv_txn_commit(batch);
		KV_POINT("snapshot.committed");
	}
	kv_lock(cache);
	return r;
}

void kv_snapshots_write(struct kv_cache *cache)
{
	struct kv_snapshots *all = &cache->snapshots;
	struct kv_snapshot *snapshot, *again = NULL; /* first one requeued */
	const uint64_t until = kv_now_ns() + WRITES_NS;
	uint64_t retry_at = 0;

	if (!kv_snapshots_dirty_locked(cache))
		return;
	while ((snapshot = TAILQ_FIRST(&all->dirty)) && snapshot != again &&
	       kv_now_ns() < until) {
		const uint64_t latest = snapshot->latest;
		int r = write_one(cache, snapshot);

		TAILQ_REMOVE(&all->dirty, snapshot, dirty_link);
		if (r < 0 && snapshot->space)
			kv_flushes_fail_snapshot_locked(cache, snapshot->space,
							r);
		if (r < 0)
			retry_at = kv_now_ns() + RETRY_NS;
		else
			snapshot->change = latest + 1;
		if (r < 0 || snapshot->latest != latest) {
			TAILQ_INSERT_TAIL(&all->dirty, snapshot, dirty_link);
			again = again ? again : snapshot;
		} else {
			snapshot->dirty = false;
			if (snapshot->dropped)
				snapshot_free(snapshot);
		}
	}
	all->retry_at = retry_at;
	kv_flushes_settle_locked(cache, 0);
}

static void freep(struct kv_snapshot **snapshot)
{
	snapshot_free(*snapshot);
}

/* @space is NULL if the space @space_id does not exist. */
static int snapshot_new(struct kv_space *space, uint32_t space_id,
			const char *name, size_t n,
			struct kv_snapshot **ret_snapshot)
{
	struct kv_snapshot *snapshot = calloc(1, sizeof(*snapshot));

	if (!snapshot)
		return -ENOMEM;
	snapshot->items = calloc(n + 1, sizeof(*snapshot->items));
	if (!snapshot->items) {
		free(snapshot);
		return -ENOMEM;
	}
	snapshot->space = space ? kv_space_get(space) : NULL;
	snapshot->space_id = space_id;
	strncpy(snapshot->name, name, sizeof(snapshot->name) - 1);
	snapshot->mtime_ns = kv_wall_ns();
	*ret_snapshot = snapshot;
	return 0;
}

static void unpin_locked(struct kv_cache *cache,
			 const struct kv_snapshot *snapshot, size_t from,
			 size_t end)
{
	struct kv_space *space = snapshot->space;

	kv_assert_locked(&cache->lock);
	for (size_t i = from; i < end; i++) {
		struct kv_key key = snapshot_key(&snapshot->items[i]);

		if (key.len)
			kv_pin_give_locked(cache, space, &key);
	}
}

static void unpin(struct kv_cache *cache, const struct kv_snapshot *snapshot,
		  size_t n)
{
	for (size_t i = 0; i < n; i += STRETCH) {
		kv_lock(cache);
		unpin_locked(cache, snapshot, i, KV_MIN(i + STRETCH, n));
		kv_unlock(cache);
	}
}

int kv_snapshot_create(struct kv_cache *cache, struct kv_space *space,
		       const char *name, const struct kv_pick *picks, size_t n,
		       size_t *ret_missing)
{
	_cleanup_(freep) struct kv_snapshot *snapshot = NULL;
	struct kv_snapshots *all = &cache->snapshots;
	size_t pinned = 0;
	uint64_t most;
	int r;

	*ret_missing = n;
	if (cache->config.read_only)
		return -EROFS;
	if (!kv_space_name_ok(name) || n == 0 || n > KV_SNAPSHOT_BLOCKS)
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		if ((picks[i].key.len != 16 && picks[i].key.len != 32) ||
		    picks[i].position > KV_SNAPSHOT_POSITION ||
		    (i && picks[i].position <= picks[i - 1].position))
			return -EINVAL;
	r = snapshot_new(space, space->id, name, n, &snapshot);
	if (r < 0)
		return r;
	snapshot->n = snapshot->live = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		struct kv_snapshot_item *item = &snapshot->items[i];

		memcpy(item->key, picks[i].key.b, sizeof(item->key));
		item->key_len = picks[i].key.len;
		item->position = picks[i].position;
	}
	kv_lock(cache);
	most = COST_BLOCKS * (uint64_t)cache->table.used + COST_FREE;
	if (space->removed)
		r = -ESTALE;
	else if (snapshot_by_name_locked(cache, space->id, name))
		r = -EEXIST;
	else if (all->cost + snapshot_cost(snapshot) > most ||
		 !kv_account_fits(space->account, KV_FINITE_SNAPSHOTS, most,
				  snapshot_cost(snapshot), 0) ||
		 !kv_spaces_index_fits(cache, space->account,
				       kv_index_snapshot_bytes(n)) ||
		 all->next_id == UINT32_MAX)
		r = -ENOSPC;
	if (r == 0) {
		snapshot->id = ++all->next_id;
		r = snapshot_link_locked(cache, space, snapshot);
	}
	kv_unlock(cache);
	if (r < 0)
		return r;
	while (pinned < n && r == 0) {
		kv_lock(cache);
		for (size_t end = KV_MIN(pinned + STRETCH, n);
		     pinned < end && r == 0; pinned += r == 0)
			r = kv_pin_take_locked(cache, space,
					       &picks[pinned].key);
		kv_unlock(cache);
	}
	if (r < 0) {
		*ret_missing = pinned;
		unpin(cache, snapshot, pinned);
	}
	kv_lock(cache);
	if (r == 0) {
		snapshot->ready = true;
		snapshot_changed_locked(cache, kv_steal(snapshot));
	} else {
		snapshot_unlink_locked(cache, snapshot);
	}
	kv_unlock(cache);
	return r;
}

int kv_snapshot_drop(struct kv_cache *cache, uint64_t id)
{
	struct kv_snapshot *snapshot;

	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	snapshot = snapshot_by_id_locked(cache, id);
	if (snapshot)
		snapshot_unlink_locked(cache, snapshot);
	kv_unlock(cache);
	if (!snapshot)
		return -ENOENT;
	unpin(cache, snapshot, snapshot->n);
	kv_lock(cache);
	/* From now on the committer may free the snapshot: do not use it. */
	snapshot->dropped = true;
	snapshot_changed_locked(cache, snapshot);
	kv_unlock(cache);
	return 0;
}

void kv_snapshots_drop(struct kv_cache *cache, struct kv_space *space)
{
	_cleanup_(kv_freep) uint64_t *ids = NULL;
	size_t n;

	if (kv_snapshot_list(cache, space, &ids, &n) < 0)
		return;
	for (size_t i = 0; i < n; i++)
		kv_snapshot_drop(cache, ids[i]);
}

int kv_snapshot_unlink(struct kv_cache *cache, uint64_t id, uint32_t position)
{
	struct kv_snapshot *snapshot;
	struct kv_snapshot_item *item = NULL;
	struct kv_space *space;
	struct kv_key key;
	uint32_t i;

	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	snapshot = snapshot_by_id_locked(cache, id);
	if (snapshot) {
		i = snapshot_at(snapshot, position);
		item = &snapshot->items[i];
		if (i == snapshot->n || item->position != position ||
		    !item->key_len)
			item = NULL;
	}
	if (item) {
		key = snapshot_key(item);
		space = snapshot->space;
		kv_pin_give_locked(cache, space, &key);
		item->key_len = 0;
		snapshot->live--;
	}
	/* Delete unlinked items once they are half of all items. */
	if (item && snapshot->live <= snapshot->n / 2) {
		uint32_t n = 0;

		cache->snapshots.cost -= snapshot->n - snapshot->live;
		kv_account_credit(space->account, KV_FINITE_SNAPSHOTS,
				  snapshot->n - snapshot->live);
		kv_space_index_locked(cache, space,
				      kv_index_snapshot_bytes(snapshot->n),
				      kv_index_snapshot_bytes(snapshot->live));
		for (i = 0; i < snapshot->n; i++)
			if (snapshot->items[i].key_len)
				snapshot->items[n++] = snapshot->items[i];
		snapshot->n = n;
	}
	if (item)
		snapshot_changed_locked(cache, snapshot);
	kv_unlock(cache);
	return item ? 0 : -ENOENT;
}

int kv_snapshot_adopt(void *arg, const struct kv_snapshot_record *record,
		      const char *name, const struct kv_snapshot_item *items)
{
	_cleanup_(freep) struct kv_snapshot *snapshot = NULL;
	struct kv_cache *cache = arg;
	struct kv_snapshot *older;
	struct kv_space *space = kv_space_with_id(cache, record->space);
	int r = snapshot_new(space, record->space, name, record->count,
			     &snapshot);

	if (r < 0)
		return r;
	snapshot->id = record->id;
	snapshot->recorded = true;
	snapshot->mtime_ns = record->mtime_ns;
	cache->snapshots.next_id = KV_MAX(cache->snapshots.next_id, record->id);
	if (!space || !kv_space_name_ok(name) ||
	    record->count > KV_SNAPSHOT_BLOCKS) {
		/* Drop the invalid snapshot; the committer deletes it. */
		snapshot->dropped = true;
		snapshot_changed_locked(cache, kv_steal(snapshot));
		return 0;
	}
	/* A kill interrupted the drop of an older snapshot with this name. */
	older = snapshot_by_name_locked(cache, space->id, name);
	if (older) {
		snapshot_unlink_locked(cache, older);
		unpin_locked(cache, older, 0, older->n);
		older->dropped = true;
		snapshot_changed_locked(cache, older);
	}
	for (uint32_t i = 0; i < record->count; i++) {
		struct kv_key key = snapshot_key(&items[i]);

		if (key.len != 16 && key.len != 32)
			continue;
		r = kv_pin_adopt_locked(cache, space, &key);
		if (r < 0)
			return r;
		snapshot->items[snapshot->n++] = items[i];
	}
	snapshot->live = snapshot->n;
	r = snapshot_link_locked(cache, space, snapshot);
	if (r < 0)
		return r;
	snapshot->ready = true;
	snapshot = NULL;
	return 0;
}
