/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.c - a store as it is found: with an index that cannot be used, of an
 * older format, after a crash.
 *
 * A cache fails open: whatever is wrong with the index, the daemon makes it
 * anew from the segment files and says so in `.kvfs/config`.
 *
 * OWNS     nothing of its own.
 * LOCKING  none needed: it runs before the threads start.
 */
#include "cache/ssd/ssd.h"
#include "index/sidecar.h"
#include "index/pages.h"
#include "index/rebuild.h"

#include <fcntl.h>
#include <stdio.h>

/*
 * There is nothing to make one from.  Where there are no segment files either,
 * nothing is lost: the store begins anew.  Those of format 1 hold blocks that
 * only the index could name, and removed ones besides: they are left alone.
 */
static int begin_anew(struct kv_cache *cache, const char *why, char **ret_why)
{
	if (kv_rebuild_possible(cache->store_fd))
		return kv_why(
			ret_why, -EBADMSG,
			"%s: the index is damaged (%s), and these segment "
			"files, of format 1, say too little to rebuild it "
			"from; nothing was changed: kvfs-fsck says more, a "
			"copy of index/data.mdb would do, an empty "
			"directory begins anew",
			cache->store, why);
	unlinkat(cache->store_fd, "index/data.mdb", 0);
	unlinkat(cache->store_fd, "index/lock.mdb", 0);
	kv_note(cache, "index=begun anew (%s; nothing to rebuild it from)",
		why);
	return 0;
}

static int remake(struct kv_cache *cache, const char *why, char **ret_why)
{
	struct kv_rebuild rebuild = {
		.store_fd = cache->store_fd,
		.path = cache->store,
		.cap = cache->config.ssd,
		.keep = true,
	};
	struct kv_store_info info;
	uint64_t left_out;
	int r = kv_store_file_read(cache->store_fd, &info);

	if (cache->config.read_only && r != -ENOTSUP)
		return kv_why(ret_why, -EBADMSG,
			      "%s: the index is damaged (%s), and ro cannot "
			      "rebuild it: kvfs-fsck --rebuild can",
			      cache->store, why);
	r = kv_rebuild(&rebuild);
	if (r == -ENODATA)
		return begin_anew(cache, why, ret_why);
	if (r == -ENOTSUP)
		return kv_why(ret_why, r,
			      "%s: made by a newer kvfs, in a format this one "
			      "does not know",
			      cache->store);
	if (r < 0)
		return kv_why(ret_why, r,
			      "%s: the index is damaged (%s), and cannot be "
			      "rebuilt: %s",
			      cache->store, why, strerror(-r));
	left_out = rebuild.strays + rebuild.duplicates + rebuild.unreadable;
	cache->ssd.unswept = true;
	kv_note(cache,
		"index=rebuilt (%s): %llu blocks, %llu spaces, %llu left out",
		why, (unsigned long long)rebuild.blocks,
		(unsigned long long)rebuild.spaces,
		(unsigned long long)left_out);
	return 0;
}

static int look(struct kv_cache *cache, const char *path, char **ret_why)
{
	char why[KV_WHY_MAX];
	int r = kv_pages_check(path, kv_index_map_bytes(cache->config.ssd),
			       why);

	/* What else LMDB would trust; nobody has it open: STORE is locked. */
	if (!cache->config.read_only)
		unlinkat(cache->store_fd, "index/lock.mdb", 0);
	if (r == -EBADMSG || r == -EIO ||
	    (r == -ENOENT && kv_rebuild_possible(cache->store_fd)))
		return remake(cache, r == -ENOENT ? "missing" : why, ret_why);
	return r == -ENOENT ? 0 : r;
}

static int pass_space(void *arg, const struct kv_space_record *record,
		      const char *name, const char *layout)
{
	(void)arg;
	(void)record;
	(void)name;
	(void)layout;
	return 0;
}

static int pass_segment(void *arg, const struct kv_segfile_record *record)
{
	(void)arg;
	(void)record;
	return 0;
}

/* Is the record of a space or file damaged, so that all its blocks go? */
static bool frame_lost(struct kv_index *index)
{
	const struct kv_index_visitor visitor = {
		.space = pass_space,
		.segment = pass_segment,
	};
	uint64_t damaged = 0;
	int r = kv_index_walk(index, &visitor, &damaged);

	return r == -EBADMSG || r == -EIO || damaged > 0;
}

int kv_index_open_or_remake(struct kv_cache *cache, const char *path,
			    const struct kv_store_info *fresh, char **ret_why)
{
	const uint64_t map = kv_index_map_bytes(cache->config.ssd);
	const bool ro = cache->config.read_only;
	int r = look(cache, path, ret_why);

	if (r == 0)
		r = kv_index_open(path, map, ro, fresh, &cache->info,
				  &cache->index);
	/* Of format 1 nothing could be made anew. */
	if (r == 0 && cache->info.version > 1 && frame_lost(cache->index)) {
		kv_index_close(kv_steal(cache->index));
		r = -EBADMSG;
	}
	if (r != -EBADMSG || *ret_why)
		return r;
	r = remake(cache, "damaged records", ret_why);
	return r < 0 ? r
		     : kv_index_open(path, map, ro, fresh, &cache->info,
				     &cache->index);
}

/* Format 1 had no trailers and no STORE/spaces. */
static int migrate(struct kv_cache *cache)
{
	int r = kv_sweep(cache);

	for (uint32_t id = 0; r == 0 && id < cache->n_spaces; id++)
		if (cache->spaces[id])
			r = kv_space_persist(cache, cache->spaces[id]);
	if (r == 0) {
		kv_note(cache, "format=%d (migrated from %u)",
			KV_FORMAT_VERSION, cache->info.version);
		cache->info.version = KV_FORMAT_VERSION;
	} else {
		kv_note(cache, "format=%u (cannot be raised now: %s)",
			cache->info.version, strerror(-r));
		cache->ssd.unswept = true;
	}
	return 0;
}

int kv_store_recover(struct kv_cache *cache)
{
	if (cache->info.version < KV_FORMAT_VERSION)
		return migrate(cache);
	if (!cache->after_crash && !cache->ssd.unswept)
		return 0;
	cache->ssd.unswept = true;
	return kv_space_files_check(cache);
}
