/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot_look.c - finding snapshots, and what they list.
 *
 * OWNS       the trees of snapshots, by number and by name.
 *
 * INVARIANTS
 *   (1) The items of a snapshot ascend by position, unlinked ones too.
 *   (2) One that is not ready yet has its name and its number, but nobody
 *       finds it.
 *
 * LOCKING    cache->lock.
 */
#include "cache/core/core.h"

#include <search.h>

#define COST_EACH 16u

bool kv_snapshot_name_ok(const char *name)
{
	size_t n = strlen(name);

	return n >= 1 && n <= KV_SPACE_NAME_MAX && name[0] != '.' &&
	       !strchr(name, '/');
}

struct kv_key kv_snapshot_key(const struct kv_snapshot_item *item)
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

	if (x->space != y->space)
		return x->space < y->space ? -1 : 1;
	return strcmp(x->name, y->name);
}

struct kv_snapshot *kv_snapshot_by_id_locked(struct kv_cache *cache,
					     uint64_t id)
{
	struct kv_snapshot key = {.id = id};
	void *node = tfind(&key, &cache->snapshots.by_id, by_id);
	struct kv_snapshot *snapshot = node ? *(void **)node : NULL;

	return snapshot && snapshot->ready ? snapshot : NULL;
}

struct kv_snapshot *kv_snapshot_by_name_locked(struct kv_cache *cache,
					       uint32_t space, const char *name)
{
	struct kv_snapshot key = {.space = space};
	void *node;

	strncpy(key.name, name, sizeof(key.name) - 1);
	node = tfind(&key, &cache->snapshots.by_name, by_name);
	return node ? *(void **)node : NULL;
}

uint64_t kv_snapshot_cost(const struct kv_snapshot *snapshot)
{
	return COST_EACH + snapshot->n;
}

/* Into the trees and the space; its name is known to be free. */
int kv_snapshot_link_locked(struct kv_cache *cache, struct kv_space *space,
			    struct kv_snapshot *snapshot)
{
	struct kv_snapshots *all = &cache->snapshots;

	if (!tsearch(snapshot, &all->by_name, by_name))
		return -ENOMEM;
	if (!tsearch(snapshot, &all->by_id, by_id)) {
		tdelete(snapshot, &all->by_name, by_name);
		return -ENOMEM;
	}
	LIST_INSERT_HEAD(&space->snapshots, snapshot, link);
	space->n_snapshots++;
	all->cost += kv_snapshot_cost(snapshot);
	return 0;
}

void kv_snapshot_unlink_locked(struct kv_cache *cache,
			       struct kv_snapshot *snapshot)
{
	struct kv_snapshots *all = &cache->snapshots;

	tdelete(snapshot, &all->by_name, by_name);
	tdelete(snapshot, &all->by_id, by_id);
	LIST_REMOVE(snapshot, link);
	cache->spaces[snapshot->space]->n_snapshots--;
	all->cost -= kv_snapshot_cost(snapshot);
}

/* The first item at @position or behind it. */
uint32_t kv_snapshot_at(const struct kv_snapshot *snapshot, uint32_t position)
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

static void describe(const struct kv_snapshot *snapshot,
		     struct kv_snapshot_info *ret_info)
{
	*ret_info = (struct kv_snapshot_info){
		.id = snapshot->id,
		.space = snapshot->space,
		.blocks = snapshot->live,
		.mtime_ns = snapshot->mtime_ns,
	};
	strcpy(ret_info->name, snapshot->name);
}

int kv_snapshot_find(struct kv_cache *cache, struct kv_space *space,
		     const char *name, struct kv_snapshot_info *ret_info)
{
	struct kv_snapshot *snapshot = NULL;

	kv_lock(cache);
	if (kv_snapshot_name_ok(name))
		snapshot = kv_snapshot_by_name_locked(cache, space->id, name);
	if (snapshot && !snapshot->ready)
		snapshot = NULL;
	if (snapshot)
		describe(snapshot, ret_info);
	kv_unlock(cache);
	return snapshot ? 0 : -ENOENT;
}

int kv_snapshot_stat(struct kv_cache *cache, uint64_t id,
		     struct kv_snapshot_info *ret_info)
{
	struct kv_snapshot *snapshot;

	kv_lock(cache);
	snapshot = kv_snapshot_by_id_locked(cache, id);
	if (snapshot)
		describe(snapshot, ret_info);
	kv_unlock(cache);
	return snapshot ? 0 : -ENOENT;
}

long kv_snapshot_read(struct kv_cache *cache, uint64_t id, uint32_t from,
		      struct kv_pick *ret_picks, size_t max)
{
	struct kv_snapshot *snapshot;
	size_t n = 0;

	kv_lock(cache);
	snapshot = kv_snapshot_by_id_locked(cache, id);
	for (uint32_t i = snapshot ? kv_snapshot_at(snapshot, from) : 0;
	     snapshot && i < snapshot->n && n < max; i++) {
		if (!snapshot->items[i].key_len)
			continue;
		ret_picks[n].key = kv_snapshot_key(&snapshot->items[i]);
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

	for (uint32_t id = 0; id < cache->n_spaces; id++)
		while (cache->spaces[id] &&
		       (snapshot = LIST_FIRST(&cache->spaces[id]->snapshots))) {
			LIST_REMOVE(snapshot, link);
			if (snapshot->dirty)
				TAILQ_REMOVE(&all->dirty, snapshot, dirty_link);
			kv_snapshot_free(snapshot);
		}
	while ((snapshot = TAILQ_FIRST(&all->dirty))) {
		TAILQ_REMOVE(&all->dirty, snapshot, dirty_link);
		kv_snapshot_free(snapshot);
	}
	tdestroy(all->by_name, nothing);
	tdestroy(all->by_id, nothing);
}
