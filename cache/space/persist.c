/* SPDX-License-Identifier: Apache-2.0 */
/*
 * persist.c - what is durable of a space: its record in the index, and its file
 * in STORE/spaces, where it stands once more outside of the index.
 *
 * OWNS       the files, and how much of the cap they have.
 *
 * INVARIANTS
 *   (1) A space has its file before its record is committed, and so before any
 *       block of it can be durable; the file goes before the record does.
 *   (2) Files beyond their share of what is kept back for the index count
 *       against the segment files' budget.
 *
 * LOCKING    cache->lock for what is written and for the counts.  It is written
 *            without, by the thread that made the change; the files of one
 *            space by whoever has the index's write transaction.
 */
#include "cache/space/space.h"
#include "cache/ssd/ssd.h"
#include "index/sidecar.h"
#include "common/crash_point.h"

int kv_sidecar_charge(struct kv_cache *cache, uint64_t *has, uint64_t bytes)
{
	struct kv_ssd *ssd = &cache->ssd;
	const uint64_t before = *has;
	int r = 0;

	kv_lock(cache);
	ssd->sidecars = ssd->sidecars - before + bytes;
	if (ssd->on && bytes > before && kv_sidecars_over(cache) &&
	    ssd->live_files * ssd->segment_bytes + kv_sidecars_over(cache) >
		    ssd->file_budget) {
		ssd->sidecars = ssd->sidecars - bytes + before;
		r = -ENOSPC;
	} else {
		*has = bytes;
	}
	kv_unlock(cache);
	return r;
}

static int space_file_put(struct kv_cache *cache, struct kv_space *space,
			  const struct kv_space_record *record,
			  const char *layout)
{
	const uint64_t before = space->file_bytes;
	int r = kv_sidecar_charge(
		cache, &space->file_bytes,
		kv_space_file_bytes(strlen(space->name), strlen(layout)));

	if (r == 0)
		r = kv_space_file_write(cache->spaces_dir, record, space->name,
					layout);
	if (r < 0 && r != -ENOSPC)
		kv_sidecar_charge(cache, &space->file_bytes, before);
	return r;
}

static int space_file_drop(struct kv_cache *cache, struct kv_space *space)
{
	int r = kv_space_file_remove(cache->spaces_dir, space->id);

	if (r == 0)
		kv_sidecar_charge(cache, &space->file_bytes, 0);
	return r;
}

void kv_space_file_adopt(struct kv_cache *cache, struct kv_space *space)
{
	space->file_bytes = kv_space_file_bytes(
		strlen(space->name),
		space->layout ? strlen(space->layout->json) : 0);
	cache->ssd.sidecars += space->file_bytes;
}

/* Half-written ones belong to no space either. */
static bool is_of_a_space(struct kv_cache *cache, const char *name)
{
	uint32_t id;

	return kv_space_file_parse(name, &id) && kv_space_by_id(cache, id);
}

static struct kv_space_record space_record_of(const struct kv_space *space)
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

int kv_space_files_check(struct kv_cache *cache)
{
	int r = 0;

	kv_strays_remove(cache, cache->spaces_dir, is_of_a_space);
	for (uint32_t id = 0; r == 0 && id < cache->n_spaces; id++) {
		struct kv_space *space = cache->spaces[id];

		if (space && (space->removed || !file_agrees(cache, space)))
			r = kv_space_persist(cache, space);
	}
	return r;
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
	record = space_record_of(space);
	layout = space->layout ? space->layout->json : "";
	kv_unlock(cache);
	r = removed ? space_file_drop(cache, space)
		    : space_file_put(cache, space, &record, layout);
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
