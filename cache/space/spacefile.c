/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spacefile.c - STORE/spaces: each space once more, outside of the index.
 *
 * OWNS     the files, and how much of the cap they have.
 *
 * INVARIANTS
 *   (1) A space has its file before its record is committed, and so before any
 *       block of it can be durable; the file goes before the record does.
 *   (2) Files beyond their share of what is kept back for the index count
 *       against the segment files' budget.
 *
 * LOCKING  cache->lock for the counts.  The files of one space are written by
 *          whoever has the index's write transaction.
 */
#include "cache/core/core.h"
#include "index/sidecar.h"

#include <dirent.h>

uint64_t kv_sidecars_over(const struct kv_cache *cache)
{
	const uint64_t share = kv_index_map_bytes(cache->ssd.cap) / 4;

	return cache->ssd.sidecars - KV_MIN(cache->ssd.sidecars, share);
}

/* Count @bytes for the space's file instead of what it has; -ENOSPC. */
static int charge(struct kv_cache *cache, struct kv_space *space,
		  uint64_t bytes)
{
	struct kv_ssd *ssd = &cache->ssd;
	const uint64_t before = space->file_bytes;
	int r = 0;

	kv_lock(cache);
	ssd->sidecars = ssd->sidecars - before + bytes;
	if (ssd->on && bytes > before && kv_sidecars_over(cache) &&
	    ssd->live_files * ssd->segment_bytes + kv_sidecars_over(cache) >
		    ssd->file_budget) {
		ssd->sidecars = ssd->sidecars - bytes + before;
		r = -ENOSPC;
	} else {
		space->file_bytes = bytes;
	}
	kv_unlock(cache);
	return r;
}

int kv_space_file_put(struct kv_cache *cache, struct kv_space *space,
		      const struct kv_space_record *record, const char *layout)
{
	const uint64_t before = space->file_bytes;
	int r = charge(
		cache, space,
		kv_space_file_bytes(strlen(space->name), strlen(layout)));

	if (r == 0)
		r = kv_space_file_write(cache->spaces_dir, record, space->name,
					layout);
	if (r < 0 && r != -ENOSPC)
		charge(cache, space, before);
	return r;
}

int kv_space_file_drop(struct kv_cache *cache, struct kv_space *space)
{
	int r = kv_space_file_remove(cache->spaces_dir, space->id);

	if (r == 0)
		charge(cache, space, 0);
	return r;
}

void kv_space_file_adopt(struct kv_cache *cache, struct kv_space *space)
{
	space->file_bytes = kv_space_file_bytes(
		strlen(space->name),
		space->layout ? strlen(space->layout->json) : 0);
	cache->ssd.sidecars += space->file_bytes;
}

/* Remove what belongs to no space; half-written ones, too. */
static void remove_strays(struct kv_cache *cache)
{
	int copy = dup(cache->spaces_dir);
	DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;
	uint32_t id;

	if (!dir) {
		kv_closep(&copy);
		return;
	}
	rewinddir(dir);
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] == '.' ||
		    (kv_space_file_parse(entry->d_name, &id) &&
		     kv_space_by_id(cache, id)))
			continue;
		unlinkat(cache->spaces_dir, entry->d_name, 0);
	}
	closedir(dir);
}

static bool file_agrees(struct kv_cache *cache, const struct kv_space *space)
{
	const char *json = space->layout ? space->layout->json : "";
	_cleanup_(kv_freep) char *name = NULL;
	_cleanup_(kv_freep) char *layout = NULL;
	struct kv_space_record file, own = kv_space_record_of(space);

	return kv_space_file_read(cache->spaces_dir, space->id, &file, &name,
				  &layout) == 0 &&
	       strcmp(name, space->name) == 0 && strcmp(layout, json) == 0 &&
	       memcmp(&file, &own,
		      offsetof(struct kv_space_record, name_len)) == 0;
}

int kv_space_files_check(struct kv_cache *cache)
{
	int r = 0;

	remove_strays(cache);
	for (uint32_t id = 0; r == 0 && id < cache->n_spaces; id++) {
		struct kv_space *space = cache->spaces[id];

		if (space && !file_agrees(cache, space))
			r = kv_space_persist(cache, space);
	}
	return r;
}
