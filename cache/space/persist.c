/* SPDX-License-Identifier: Apache-2.0 */
/*
 * persist.c - the durable parts of a space: its record in the index, and its
 * file in STORE/spaces, a copy outside of the index.
 *
 * One thread at a time writes a space.  So a commit of blocks waits for at most
 * one transaction of spaces, and for no file's sync.  No thread begins to write
 * a space during a commit of blocks.
 *
 * OWNS       the files in STORE/spaces, and their part of the cap.
 *
 * INVARIANTS
 *   (1) A space has its file before its record is committed, and so before any
 *       of its blocks can be durable; the file is deleted before the record.
 *   (2) Bytes of files beyond the part that is reserved with the index count
 *       against the segment files' budget.
 *   (3) A thread writes the space as it is when the thread begins: the last
 *       change wins.
 *
 * LOCKING    cache->lock for the counts, and for cache->changing, which the
 *            writing thread sets; not held while it writes.
 */
#include "cache/space/space.h"
#include "cache/ssd/ssd.h"
#include "index/sidecar.h"
#include "common/crash_point.h"

#define CHANGED_NS 1000000000u

int kv_sidecar_charge(struct kv_cache *cache, uint64_t *has, uint64_t bytes)
{
	bool fits = true;

	kv_lock(cache);
	if (bytes > *has)
		fits = kv_sidecars_grow_locked(cache, bytes - *has);
	else
		cache->ssd.sidecars -= *has - bytes;
	if (fits)
		*has = bytes;
	kv_unlock(cache);
	return fits ? 0 : -ENOSPC;
}

/* Remove the file @name of a space if it is half-written or has no space. */
static int remove_stray(void *cache, int dir, const char *name)
{
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	uint32_t id;

	if (kv_space_file_parse(name, &id))
		space = kv_space_by_id(cache, id);
	if (!space && name[0] != '.')
		unlinkat(dir, name, 0);
	KV_POINT("mount.sweep");
	return 0;
}

static struct kv_space_record space_record_of(const struct kv_space *space)
{
	return (struct kv_space_record){
		.id = space->id,
		.uid = space->uid,
		.gid = space->gid,
		.mode = space->mode | (space->shared ? KV_SPACE_SHARED : 0) |
			(space->own_seed ? KV_SPACE_OWN_SEED : 0),
		.mtime_ns = space->mtime_ns,
		.quota = kv_quota_pack(&space->quota),
	};
}

int kv_space_persist(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_space_record record;
	struct kv_store_info info;
	uint64_t round, before;
	const char *layout;
	struct kv_txn *batch;
	bool removed;
	int r = 0;

	if (!cache->index)
		return 0;
	kv_lock(cache);
	while (cache->changing)
		kv_cond_wait(cache, &cache->changed, CHANGED_NS);
	cache->changing = true;
	/* Do not compete for the disk with a commit of blocks. */
	round = cache->ssd.commits_begun;
	while (cache->ssd.committing && cache->ssd.commits_begun == round)
		kv_cond_wait(cache, &cache->ssd.done, CHANGED_NS);
	record = space_record_of(space);
	layout = space->layout ? space->layout->json : "";
	removed = space->removed;
	before = space->file_bytes;
	kv_unlock(cache);
	if (removed)
		r = kv_space_file_remove(cache->spaces_dir, space->id);
	if (r == 0)
		r = kv_sidecar_charge(
			cache, &space->file_bytes,
			removed ? 0
				: kv_space_file_bytes(strlen(space->name),
						      strlen(layout)));
	if (r == 0 && !removed) {
		r = kv_space_file_write(cache->spaces_dir, &record, space->name,
					layout);
		if (r < 0)
			kv_sidecar_charge(cache, &space->file_bytes, before);
	}
	if (r == 0)
		r = kv_txn_begin(cache->index, &batch);
	if (r == 0) {
		if (removed)
			kv_txn_delete(batch, KV_PART_SPACES, space->id);
		else
			kv_txn_put_space(batch, &record, space->name, layout);
		kv_lock(cache);
		info = cache->info;
		kv_unlock(cache);
		kv_txn_put_info(batch, &info);
		KV_POINT("space.before_commit");
		r = kv_txn_commit(batch);
		KV_POINT("space.committed");
	}
	kv_lock(cache);
	cache->changing = false;
	pthread_cond_signal(&cache->changed);
	kv_unlock(cache);
	return r;
}

static bool file_agrees(struct kv_cache *cache, const struct kv_space *space)
{
	const char *json = space->layout ? space->layout->json : "";
	_cleanup_(kv_freep) char *name = NULL;
	_cleanup_(kv_freep) char *layout = NULL;
	struct kv_space_record file, own = space_record_of(space);

	return kv_space_file_read(cache->spaces_dir, space->id, &file, &name,
				  &layout) == 0 &&
	       strcmp(name, space->name) == 0 && strcmp(layout, json) == 0 &&
	       memcmp(&file, &own,
		      offsetof(struct kv_space_record, name_len)) == 0;
}

int kv_space_files_check(struct kv_cache *cache, bool clean)
{
	int r = 0;

	if (!clean)
		(void)kv_dir_walk(cache->spaces_dir, ".", remove_stray, cache);
	for (uint32_t i = 0; r == 0 && i < cache->spaces.n; i++) {
		struct kv_space *space = cache->spaces.sorted[i];
		char name[KV_SPACE_FILE_NAME];

		kv_space_file_name(space->id, name);
		if (clean ? !space->removed &&
				    faccessat(cache->spaces_dir, name, F_OK,
					      0) < 0 &&
				    errno == ENOENT
			  : space->removed || !file_agrees(cache, space))
			r = kv_space_persist(cache, space);
	}
	return r;
}
