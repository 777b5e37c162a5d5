/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.c - snapshots: blocks of a chain, pinned under a name.
 *
 * OWNS       every kv_snapshot.  Finding them is snapshot_look.c's, how the
 *            index gets to know of them snapshot_write.c's, and the pins
 *            themselves are pins.c's.
 *
 * STATES     of a snapshot, and the function that makes each step:
 *
 *               (new) -> MADE      enter          (its name is taken)
 *                MADE -> READY     kv_snapshot_create, once all is pinned
 *                MADE -> (freed)   kv_snapshot_create, if one could not be
 *               READY -> LEAVING   kv_snapshot_drop (nobody finds it any more)
 *             LEAVING -> DROPPED   the same, once all is unpinned
 *             DROPPED -> (freed)   kv_snapshots_write_locked, when the index
 *                                  has forgotten it
 *
 * INVARIANTS
 *   (1) Each item that is not unlinked has one pin of its key; it is dropped
 *       with the item, by whoever takes the item away.
 *   (2) A LEAVING or DROPPED snapshot is in no tree and no space.
 *
 * LOCKING    cache->lock, let go of after every STRETCH items.  While it is
 *            MADE or LEAVING its items are the thread's that does that; the
 *            committer may read them.
 */
#include "cache/core/core.h"

#define STRETCH 256u
/* What all snapshots may list: some times what there is, and a few. */
#define COST_BLOCKS 4u
#define COST_FREE 65536u

void kv_snapshot_free(struct kv_snapshot *snapshot)
{
	if (!snapshot)
		return;
	free(snapshot->items);
	free(snapshot);
}

static void freep(struct kv_snapshot **snapshot)
{
	kv_snapshot_free(*snapshot);
}

static bool picks_ok(const struct kv_pick *picks, size_t n)
{
	if (n == 0 || n > KV_SNAPSHOT_BLOCKS)
		return false;
	for (size_t i = 0; i < n; i++)
		if ((picks[i].key.len != 16 && picks[i].key.len != 32) ||
		    picks[i].position > KV_SNAPSHOT_POSITION ||
		    (i && picks[i].position <= picks[i - 1].position))
			return false;
	return true;
}

static int snapshot_new(uint32_t space, const char *name, size_t n,
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
	snapshot->space = space;
	strncpy(snapshot->name, name, sizeof(snapshot->name) - 1);
	snapshot->mtime_ns = kv_wall_ns();
	*ret_snapshot = snapshot;
	return 0;
}

static int enter(struct kv_cache *cache, struct kv_space *space,
		 struct kv_snapshot *snapshot)
{
	struct kv_snapshots *all = &cache->snapshots;
	int r;

	kv_lock(cache);
	if (space->removed)
		r = -ESTALE;
	else if (kv_snapshot_by_name_locked(cache, space->id, snapshot->name))
		r = -EEXIST;
	else if (all->cost + kv_snapshot_cost(snapshot) >
			 COST_BLOCKS * (uint64_t)cache->table.used +
				 COST_FREE ||
		 all->next_id == UINT32_MAX)
		r = -ENOSPC;
	else
		r = 0;
	if (r == 0) {
		snapshot->id = ++all->next_id;
		r = kv_snapshot_link_locked(cache, space, snapshot);
	}
	kv_unlock(cache);
	return r;
}

/* Pin items 0 .. n - 1 of it; returns how many were, *@ret_status why not the
 * next. */
static size_t pin_all(struct kv_cache *cache, struct kv_space *space,
		      struct kv_snapshot *snapshot, int *ret_status)
{
	size_t i = 0;
	int r = 0;

	while (i < snapshot->n && r == 0) {
		kv_lock(cache);
		for (size_t end = i + STRETCH; i < end && i < snapshot->n;
		     i++) {
			struct kv_key key =
				kv_snapshot_key(&snapshot->items[i]);

			r = kv_pin_take_locked(cache, space, &key);
			if (r < 0)
				break;
		}
		kv_unlock(cache);
	}
	*ret_status = r;
	return i;
}

static void unpin_locked(struct kv_cache *cache,
			 const struct kv_snapshot *snapshot, size_t from,
			 size_t end)
{
	struct kv_space *space = cache->spaces[snapshot->space];

	for (size_t i = from; i < end; i++) {
		struct kv_key key = kv_snapshot_key(&snapshot->items[i]);

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
	size_t pinned;
	int r;

	*ret_missing = n;
	if (cache->config.read_only)
		return -EROFS;
	if (!kv_snapshot_name_ok(name) || !picks_ok(picks, n))
		return -EINVAL;
	r = snapshot_new(space->id, name, n, &snapshot);
	if (r < 0)
		return r;
	snapshot->n = snapshot->live = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		struct kv_snapshot_item *item = &snapshot->items[i];

		memcpy(item->key, picks[i].key.b, sizeof(item->key));
		item->key_len = picks[i].key.len;
		item->position = picks[i].position;
	}
	r = enter(cache, space, snapshot);
	if (r < 0)
		return r;
	pinned = pin_all(cache, space, snapshot, &r);
	if (r < 0) {
		*ret_missing = pinned;
		unpin(cache, snapshot, pinned);
	}
	kv_lock(cache);
	if (r == 0) {
		snapshot->ready = true;
		kv_snapshot_changed_locked(cache, kv_steal(snapshot));
	} else {
		kv_snapshot_unlink_locked(cache, snapshot);
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
	snapshot = kv_snapshot_by_id_locked(cache, id);
	if (snapshot)
		kv_snapshot_unlink_locked(cache, snapshot);
	kv_unlock(cache);
	if (!snapshot)
		return -ENOENT;
	unpin(cache, snapshot, snapshot->n);
	kv_lock(cache);
	/* Not before: the committer frees what is dropped. */
	snapshot->dropped = true;
	kv_snapshot_changed_locked(cache, snapshot);
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

/* Half of them are gone: pays for itself. */
static void compact(struct kv_cache *cache, struct kv_snapshot *snapshot)
{
	uint32_t n = 0;

	if (snapshot->live > snapshot->n / 2)
		return;
	cache->snapshots.cost -= snapshot->n - snapshot->live;
	for (uint32_t i = 0; i < snapshot->n; i++)
		if (snapshot->items[i].key_len)
			snapshot->items[n++] = snapshot->items[i];
	snapshot->n = n;
}

int kv_snapshot_unlink(struct kv_cache *cache, uint64_t id, uint32_t position)
{
	struct kv_snapshot *snapshot;
	struct kv_snapshot_item *item = NULL;
	struct kv_key key;
	uint32_t i;

	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	snapshot = kv_snapshot_by_id_locked(cache, id);
	if (snapshot) {
		i = kv_snapshot_at(snapshot, position);
		item = &snapshot->items[i];
		if (i == snapshot->n || item->position != position ||
		    !item->key_len)
			item = NULL;
	}
	if (item) {
		key = kv_snapshot_key(item);
		kv_pin_give_locked(cache, cache->spaces[snapshot->space], &key);
		item->key_len = 0;
		snapshot->live--;
		compact(cache, snapshot);
		kv_snapshot_changed_locked(cache, snapshot);
	}
	kv_unlock(cache);
	return item ? 0 : -ENOENT;
}

/* Nobody can reach it any more: let its record be deleted. */
static void disown(struct kv_cache *cache, struct kv_snapshot *snapshot)
{
	snapshot->dropped = true;
	kv_snapshot_changed_locked(cache, snapshot);
}

static int adopt_items(struct kv_cache *cache, struct kv_space *space,
		       struct kv_snapshot *snapshot, uint32_t count,
		       const struct kv_snapshot_item *items)
{
	for (uint32_t i = 0; i < count; i++) {
		struct kv_key key = kv_snapshot_key(&items[i]);
		int r;

		if (key.len != 16 && key.len != 32)
			continue;
		r = kv_pin_adopt_locked(cache, space, &key);
		if (r < 0)
			return r;
		snapshot->items[snapshot->n++] = items[i];
	}
	snapshot->live = snapshot->n;
	return 0;
}

int kv_snapshot_adopt(void *arg, const struct kv_snapshot_record *record,
		      const char *name, const struct kv_snapshot_item *items)
{
	_cleanup_(freep) struct kv_snapshot *snapshot = NULL;
	struct kv_cache *cache = arg;
	struct kv_snapshot *older;
	struct kv_space *space = record->space < cache->n_spaces
					 ? cache->spaces[record->space]
					 : NULL;
	int r = snapshot_new(record->space, name, record->count, &snapshot);

	if (r < 0)
		return r;
	snapshot->id = record->id;
	snapshot->mtime_ns = record->mtime_ns;
	cache->snapshots.next_id = KV_MAX(cache->snapshots.next_id, record->id);
	if (!space || !kv_snapshot_name_ok(name) ||
	    record->count > KV_SNAPSHOT_BLOCKS) {
		disown(cache, kv_steal(snapshot));
		return 0;
	}
	/* It was dropped, and this one made, when the end came. */
	older = kv_snapshot_by_name_locked(cache, space->id, name);
	if (older) {
		kv_snapshot_unlink_locked(cache, older);
		unpin_locked(cache, older, 0, older->n);
		disown(cache, older);
	}
	r = adopt_items(cache, space, snapshot, record->count, items);
	if (r == 0)
		r = kv_snapshot_link_locked(cache, space, snapshot);
	if (r < 0)
		return r;
	snapshot->ready = true;
	snapshot = NULL;
	return 0;
}
