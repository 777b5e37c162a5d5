/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - the spaces: names, owners, layouts, quotas.
 *
 * OWNS       every kv_space, by id and by name.  A removed one stays allocated
 *            until the cache closes, so that handles to it stay harmless.
 *
 * LOCKING    cache->lock for the fields; a change is written to the index
 *            without it, by the thread that made it.
 */
#include "cache/block/block.h"
#include "cache/dram/dram.h"
#include "common/crash_point.h"

#include <search.h>
#include <stdio.h>

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct kv_space *)a)->name,
		      ((const struct kv_space *)b)->name);
}

static bool name_ok(const char *name)
{
	size_t n = strlen(name);

	return n >= 1 && n <= KV_SPACE_NAME_MAX && name[0] != '.' &&
	       !strchr(name, '/');
}

const char *kv_space_name(const struct kv_space *space)
{
	return space->name;
}

static struct kv_space *find_locked(struct kv_cache *cache, const char *name)
{
	struct kv_space key;
	void *node;

	if (!name_ok(name))
		return NULL;
	strcpy(key.name, name);
	node = tfind(&key, &cache->names, by_name);
	return node ? *(struct kv_space **)node : NULL;
}

struct kv_space *kv_space_find(struct kv_cache *cache, const char *name)
{
	struct kv_space *space;

	kv_lock(cache);
	space = find_locked(cache, name);
	kv_unlock(cache);
	return space;
}

struct kv_space *kv_space_by_id(struct kv_cache *cache, uint32_t id)
{
	struct kv_space *space;

	kv_lock(cache);
	space = id < cache->n_spaces ? cache->spaces[id] : NULL;
	kv_unlock(cache);
	return space;
}

struct kv_space *kv_space_next(struct kv_cache *cache, uint32_t after)
{
	struct kv_space *space = NULL;

	kv_lock(cache);
	for (uint32_t id = after + 1; id < cache->n_spaces && !space; id++)
		if (cache->spaces[id] && !cache->spaces[id]->removed)
			space = cache->spaces[id];
	kv_unlock(cache);
	return space;
}

struct kv_space_info kv_space_stat(struct kv_cache *cache,
				   struct kv_space *space)
{
	struct kv_space_info info = {.id = space->id};

	kv_lock(cache);
	info.uid = space->uid;
	info.gid = space->gid;
	info.mode = space->mode;
	info.mtime_ns = space->mtime_ns;
	info.removed = space->removed;
	info.quota = space->quota;
	info.layout = space->layout;
	info.blocks = space->blocks;
	info.bytes_dram = space->bytes_dram;
	info.bytes_ssd = space->bytes_ssd;
	kv_unlock(cache);
	return info;
}

static int room_for(struct kv_cache *cache, uint32_t id)
{
	uint32_t n = KV_MAX(cache->n_spaces * 2, id + 16);
	struct kv_space **spaces;

	if (id >= 1u << 24)
		return -ENOSPC;
	if (id < cache->n_spaces)
		return 0;
	spaces = realloc(cache->spaces, n * sizeof(struct kv_space *));
	if (!spaces)
		return -ENOMEM;
	memset(spaces + cache->n_spaces, 0,
	       (n - cache->n_spaces) * sizeof(struct kv_space *));
	cache->spaces = spaces;
	cache->n_spaces = n;
	return 0;
}

static int add_locked(struct kv_cache *cache, uint32_t id, const char *name,
		      struct kv_space **ret_space)
{
	struct kv_space *space;
	int r = room_for(cache, id);

	if (r < 0)
		return r;
	space = calloc(1, sizeof(*space));
	if (!space)
		return -ENOMEM;
	space->id = id;
	TAILQ_INIT(&space->dirty);
	TAILQ_INIT(&space->under_way);
	LIST_INIT(&space->dram_lists);
	LIST_INIT(&space->ssd_lists);
	strcpy(space->name, name);
	if (!tsearch(space, &cache->names, by_name)) {
		free(space);
		return -ENOMEM;
	}
	cache->spaces[id] = space;
	cache->live_spaces++;
	*ret_space = space;
	return 0;
}

static void forget_locked(struct kv_cache *cache, struct kv_space *space)
{
	tdelete(space, &cache->names, by_name);
	cache->live_spaces--;
	space->removed = true;
	kv_guarantee_dram_locked(cache, space, 0);
	kv_guarantee_ssd_locked(cache, space, 0);
	kv_dirs_free(space);
}

struct kv_space_record kv_space_record_of(const struct kv_space *space)
{
	const struct kv_quota *quota = &space->quota;

	return (struct kv_space_record){
		.id = space->id,
		.uid = space->uid,
		.gid = space->gid,
		.mode = space->mode,
		.mtime_ns = space->mtime_ns,
		.quota_dram = quota->quota_dram,
		.quota_ssd = quota->quota_ssd,
		.reserve_dram = quota->reserve_dram,
		.reserve_ssd = quota->reserve_ssd,
		.rate_put = quota->rate_put,
	};
}

/* Its file first: nothing of the space may be durable before that is. */
static int put_or_delete(struct kv_cache *cache, struct kv_txn *batch,
			 struct kv_space *space)
{
	struct kv_space_record record;
	const char *layout;
	bool removed;
	int r;

	kv_lock(cache);
	removed = space->removed;
	record = kv_space_record_of(space);
	layout = space->layout ? space->layout->json : "";
	kv_unlock(cache);
	r = removed ? kv_space_file_drop(cache, space)
		    : kv_space_file_put(cache, space, &record, layout);
	if (r < 0)
		return r;
	return removed ? kv_txn_delete_space(batch, space->id)
		       : kv_txn_put_space(batch, &record, space->name, layout);
}

int kv_space_persist(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_txn *batch;
	int r;

	if (!cache->index)
		return 0;
	r = kv_txn_begin(cache->index, &batch);
	if (r < 0)
		return r;
	/* Read after the transaction began: the last one to begin wins. */
	r = put_or_delete(cache, batch, space);
	if (r == 0) {
		kv_lock(cache);
		struct kv_store_info info = cache->info;
		kv_unlock(cache);
		r = kv_txn_put_info(batch, &info);
	}
	if (r < 0) {
		kv_txn_abort(batch);
		return r;
	}
	KV_POINT("space.before_commit");
	r = kv_txn_commit(batch);
	KV_POINT("space.committed");
	return r;
}

int kv_space_adopt(struct kv_cache *cache, const struct kv_space_record *record,
		   const char *name, const char *layout)
{
	struct kv_space *space;
	int r;

	if (!name_ok(name) || record->id == 0 || find_locked(cache, name) ||
	    (record->id < cache->n_spaces && cache->spaces[record->id]))
		return -EBADMSG;
	r = add_locked(cache, record->id, name, &space);
	if (r < 0)
		return r;
	space->uid = record->uid;
	space->gid = record->gid;
	space->mode = record->mode & 07777;
	space->mtime_ns = record->mtime_ns;
	space->quota.quota_dram = record->quota_dram;
	space->quota.quota_ssd = record->quota_ssd;
	space->quota.reserve_dram = record->reserve_dram;
	space->quota.reserve_ssd = record->reserve_ssd;
	space->quota.rate_put = record->rate_put;
	if (*layout)
		r = kv_layout_parse(layout, strlen(layout), &space->layout);
	kv_space_file_adopt(cache, space);
	cache->info.next_space = KV_MAX(cache->info.next_space, space->id + 1);
	return r;
}

int kv_space_create(struct kv_cache *cache, const char *name, uint32_t uid,
		    uint32_t gid, uint32_t mode, struct kv_space **ret_space)
{
	struct kv_space *space;
	int r;

	if (!name_ok(name))
		return -EINVAL;
	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	space = find_locked(cache, name);
	if (space) {
		kv_unlock(cache);
		*ret_space = space;
		return -EEXIST;
	}
	r = add_locked(cache, cache->info.next_space, name, &space);
	if (r == 0) {
		cache->info.next_space++;
		space->uid = uid;
		space->gid = gid;
		space->mode = mode & 07777;
		space->mtime_ns = kv_wall_ns();
	}
	kv_unlock(cache);
	if (r < 0)
		return r;
	r = kv_space_persist(cache, space);
	if (r < 0) {
		kv_lock(cache);
		forget_locked(cache, space);
		kv_unlock(cache);
		return r;
	}
	*ret_space = space;
	return 0;
}

int kv_space_remove(struct kv_cache *cache, struct kv_space *space)
{
	int r = 0;

	if (cache->config.read_only)
		return -EROFS;
	/* Without blocks its snapshots are of no more use. */
	if (kv_space_stat(cache, space).blocks == 0)
		kv_snapshots_drop(cache, space);
	kv_lock(cache);
	if (space->removed)
		r = -ESTALE;
	else if (space->blocks || space->n_snapshots)
		r = -ENOTEMPTY;
	else
		forget_locked(cache, space);
	if (r == 0)
		kv_fills_stale_locked(cache, space);
	kv_unlock(cache);
	return r < 0 ? r : kv_space_persist(cache, space);
}

void kv_spaces_free(struct kv_cache *cache)
{
	for (uint32_t id = 0; id < cache->n_spaces; id++) {
		struct kv_space *space = cache->spaces[id];

		if (!space)
			continue;
		if (!space->removed)
			forget_locked(cache, space);
		kv_layout_free(space->layout);
		free(space);
	}
	free(cache->spaces);
}

int kv_space_set_mtime(struct kv_cache *cache, struct kv_space *space,
		       int64_t mtime_ns)
{
	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	space->mtime_ns = mtime_ns;
	kv_unlock(cache);
	return kv_space_persist(cache, space);
}
