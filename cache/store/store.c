/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - the STORE directory: made, locked, read at mount, left clean.
 *
 *   STORE/lock        an OFD lock, never unlinked; the owner's pid in it, and
 *                     what memory.c keeps there.  STORE itself is locked
 *                     by flock(2) besides
 *   STORE/store       the store record, as of the last mount
 *   STORE/tenants     quotas of users
 *   STORE/removed     blocks that are not to be brought back
 *   STORE/index/      LMDB
 *   STORE/spaces/     NNNNNN, one for each space
 *   STORE/segments/   NNNNNN.seg
 *
 * OWNS       the lock, the index handle, the store's description.
 *
 * LOCKING    none needed: it runs before the threads start and after they end.
 */
#include "cache/store/store.h"
#include "cache/core/core.h"
#include "cache/core/table.h"
#include "cache/dram/dram.h"
#include "cache/space/space.h"
#include "cache/ssd/ssd.h"
#include "index/sidecar.h"
#include "common/crash_point.h"
#include "common/bytes.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#define GENERATIONS_A_MOUNT (1ull << 32)
/* Of the index's map, for each record that a commit writes: each may take three
 * pages, twice, and an eighth of the map is kept back (txn.c). */
#define BLOCKS_AT_ONCE 4096u /* in one step of a walk through all */
#define ROUND_SHARE (256u << 10)

/* 1 it is empty, 0 a store, -EEXIST something else. */
static int look_at(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	bool empty = true, index = false;

	if (!dir)
		return -errno;
	while ((entry = readdir(dir))) {
		const char *name = entry->d_name;

		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
		    strcmp(name, "lost+found") == 0)
			continue;
		empty &= strcmp(name, "lock") == 0;
		index |= strcmp(name, "index") == 0;
	}
	/* A store that has lost the whole index has this still. */
	index |= kv_store_file_there(dirfd(dir));
	closedir(dir);
	if (empty)
		return 1;
	return index ? 0 : -EEXIST;
}

static int take_lock(struct kv_cache *cache, char **ret_why)
{
	const struct kv_lock_wait wait = {.waiting = cache->config.waiting,
					  .arg = cache->config.arg};
	struct statvfs fs;
	char pid[32];
	bool shared;
	int fd, r, n;

	/* On a read-only filesystem there may be others that only read. */
	shared = cache->config.read_only &&
		 fstatvfs(cache->store_fd, &fs) == 0 && (fs.f_flag & ST_RDONLY);
	r = kv_lock_take(cache->store_fd, !shared, &wait, &fd);
	if (r == -EBUSY)
		return kv_why(ret_why, r,
			      "%s: in use by another kvfs (pid %ld)",
			      cache->store, kv_lock_owner(cache->store_fd));
	if (r < 0)
		return kv_why(ret_why, r, "%s: cannot lock it: %s",
			      cache->store, strerror(-r));
	cache->lock_fd = fd;
	if (shared) {
		kv_note(cache, "lock=shared (its filesystem is read-only)");
		return 0;
	}
	kv_overcommit_recover(fd);
	n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
	/* In this order: on a full disk what is given away is gone. */
	if (pwrite(fd, pid, (size_t)n, 0) < 0 || ftruncate(fd, n) < 0)
		return kv_why(ret_why, -errno, "%s: cannot lock it: %s",
			      cache->store, strerror(errno));
	return 0;
}

static int make_dir(struct kv_cache *cache, const char *name)
{
	if (mkdirat(cache->store_fd, name, 0700) < 0 && errno != EEXIST &&
	    !cache->config.read_only)
		return -errno;
	return 0;
}

static int open_dir(struct kv_cache *cache, char **ret_why)
{
	const bool ro = cache->config.read_only;
	int r;

	if (!ro && mkdir(cache->store, 0700) < 0 && errno != EEXIST)
		return kv_why(ret_why, -errno, "%s: cannot make it: %s",
			      cache->store, strerror(errno));
	r = look_at(cache->store);
	if (r == -EEXIST)
		return kv_why(ret_why, r, "%s: not empty, and not a kvfs store",
			      cache->store);
	if (ro && (r == 1 || r == -ENOENT))
		return kv_why(ret_why, -ENOENT,
			      "%s: no store there, and ro makes none",
			      cache->store);
	if (r < 0)
		return kv_why(ret_why, r, "%s: %s", cache->store, strerror(-r));
	cache->store_fd =
		open(cache->store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (cache->store_fd < 0)
		return kv_why(ret_why, -errno, "%s: %s", cache->store,
			      strerror(errno));
	r = take_lock(cache, ret_why);
	if (r < 0)
		return r;
	KV_POINT("mount.locked");
	r = make_dir(cache, "index");
	KV_POINT("mount.half_made");
	if (r == 0)
		r = make_dir(cache, "segments");
	if (r < 0)
		return kv_why(ret_why, r, "%s: cannot make it: %s",
			      cache->store, strerror(-r));
	fsync(cache->store_fd);
	cache->ssd.dir = openat(cache->store_fd, "segments",
				O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (cache->ssd.dir < 0)
		return kv_why(ret_why, -errno, "%s/segments: %s", cache->store,
			      strerror(errno));
	return 0;
}

static void describe_fresh(const struct kv_cache *cache,
			   struct kv_store_info *info)
{
	const struct kv_cache_config *config = &cache->config;
	uint64_t segment = KV_MIN(config->segment, config->ssd / 64);

	memset(info, 0, sizeof(*info));
	if (getrandom(info->store, sizeof(info->store), 0) < 0)
		memcpy(info->store, &cache->epoch, sizeof(cache->epoch));
	segment = KV_MAX(segment / (2u << 20) * (2u << 20), 8ull << 20);
	info->version = KV_FORMAT_VERSION;
	info->cap = config->ssd;
	info->segment_bytes = KV_MIN(segment, 2ull << 30);
	info->next_generation = 1;
	info->next_space = 1;
	info->clean = true;
}

/* The index is open with the map of another cap: open it with that of @cap. */
static int reopen_index(struct kv_cache *cache, const char *path, uint64_t cap)
{
	struct kv_store_info info;

	kv_index_close(kv_steal(cache->index));
	return kv_index_open(path, kv_index_map_bytes(cap),
			     cache->config.read_only, NULL, &info,
			     &cache->index);
}

static int open_index(struct kv_cache *cache, char **ret_why)
{
	struct kv_store_info fresh;
	char *path;
	int r;

	if (asprintf(&path, "%s/index", cache->store) < 0)
		return -ENOMEM;
	describe_fresh(cache, &fresh);
	r = kv_index_open_or_remake(cache, path, &fresh, ret_why);
	/* Only now it is known for what cap the store was made.  A smaller one
	 * has its map once the index has shrunk. */
	if (r == 0 && cache->info.cap != cache->config.ssd &&
	    (!cache->config.ssd_given || cache->info.cap > cache->config.ssd))
		r = reopen_index(cache, path, cache->info.cap);
	if (r == -ENOTSUP && !*ret_why)
		kv_why(ret_why, r, "%s: " KV_FORMAT_REFUSED, cache->store);
	else if (r < 0 && !*ret_why)
		kv_why(ret_why, r, "%s: cannot read the index: %s", path,
		       strerror(-r));
	free(path);
	return r;
}

static void probe_direct(struct kv_cache *cache)
{
	int fd = openat(cache->ssd.dir, ".", O_TMPFILE | O_RDWR | O_DIRECT,
			0600);

	if (fd >= 0 || errno != EINVAL) {
		kv_note(cache, "direct_io=on");
		if (fd >= 0)
			close(fd);
		return;
	}
	cache->ssd.buffered = true;
	kv_note(cache, "direct_io=off (%s refuses O_DIRECT)", cache->store);
}

/* Warn of bytes that the SSD tier is promised, and will not have. */
static void warn_of_place(struct kv_cache *cache)
{
	uint64_t room, held = cache->ssd.live_files * cache->ssd.segment_bytes;
	struct statfs fs;

	if (!cache->ssd.on || fstatfs(cache->store_fd, &fs) < 0)
		return;
	room = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize + held;
	if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC)
		kv_warn(cache, "ssd_volatile",
			"%s is in memory: what it holds ends with the machine, "
			"and counts twice while it is in dram, too",
			cache->store);
	if (room < cache->ssd.cap)
		kv_warn(cache, "ssd_short",
			"ssd is %lluM, and its filesystem has room for %lluM",
			(unsigned long long)(cache->ssd.cap >> 20),
			(unsigned long long)(room >> 20));
}

static int settle_cap(struct kv_cache *cache, char **ret_why)
{
	const struct kv_cache_config *config = &cache->config;
	uint64_t cap = cache->info.cap, back;

	/* ssd=0 leaves the tier that there is as it is, and so does ro. */
	cache->ssd.frozen = config->ssd_given && config->ssd == 0 && cap > 0;
	if (config->ssd_given && config->ssd > 0 && !config->read_only)
		cap = config->ssd;
	cache->config.ssd = cache->ssd.frozen ? 0 : cap;
	cache->ssd.cap = cap;
	cache->ssd.segment_bytes = cache->info.segment_bytes;
	/* The index, half of it again while it is compacted; the other half is
	 * for trailers, STORE/spaces and an old index. */
	back = 2 * kv_index_map_bytes(cap);
	cache->ssd.on = cap > 0;
	cache->ssd.round_max = (uint32_t)KV_MIN(
		KV_MAX(kv_index_map_bytes(cap) / ROUND_SHARE, 32), 65536);
	cache->ssd.deletions.budget = cache->ssd.round_max;
	cache->ssd.records_max = kv_index_records_max(cap);
	cache->ssd.index_reserve = kv_index_map_bytes(cap) / 32;
	if (!cap)
		return 0;
	if (cap < back + cache->ssd.segment_bytes)
		return kv_why(ret_why, -EINVAL,
			      "ssd=%llu: too small: %llu for the index and one "
			      "segment of %llu are needed",
			      (unsigned long long)cap, (unsigned long long)back,
			      (unsigned long long)cache->ssd.segment_bytes);
	cache->ssd.file_budget = cap - back;
	return 0;
}

/* Once what a smaller cap has no room for is gone from the index. */
static int compact_index(struct kv_cache *cache)
{
	char *path;
	int r;

	if (asprintf(&path, "%s/index", cache->store) < 0)
		return -ENOMEM;
	r = kv_index_compact(&cache->index, path,
			     kv_index_map_bytes(cache->ssd.cap));
	if (cache->index && cache->info.cap > cache->ssd.cap)
		r = reopen_index(cache, path, cache->ssd.cap);
	free(path);
	/* The index is whole without: a full disk is no reason not to start. */
	return cache->index ? 0 : r;
}

static int put_info(struct kv_cache *cache)
{
	struct kv_txn *batch;
	int r = kv_txn_begin(cache->index, &batch);

	if (r < 0)
		return r;
	r = kv_txn_put_info(batch, &cache->info);
	if (r < 0) {
		kv_txn_abort(batch);
		return r;
	}
	return kv_txn_commit(batch);
}

/* From here on an end without kv_store_close is a crash. */
static int mark_in_use(struct kv_cache *cache)
{
	int r;

	kv_index_keep_room(cache->index);
	cache->info.cap = cache->ssd.cap;
	cache->info.next_generation += GENERATIONS_A_MOUNT;
	cache->info.mounts++;
	cache->info.clean = false;
	KV_POINT("mount.before_dirty");
	r = put_info(cache);
	KV_POINT("mount.dirty");
	return r < 0 ? r : kv_store_file_write(cache->store_fd, &cache->info);
}

/* Only now: a store of another format is left as it is. */
static int open_spaces(struct kv_cache *cache, char **ret_why)
{
	if (cache->config.read_only)
		return 0;
	cache->spaces_dir = kv_spaces_dir(cache->store_fd, true);
	return cache->spaces_dir < 0
		       ? kv_why(ret_why, cache->spaces_dir, "%s/spaces: %s",
				cache->store, strerror(-cache->spaces_dir))
		       : 0;
}

/* Blocks may come back that were removed: no reason not to mount. */
static void read_removed(struct kv_cache *cache)
{
	int r = kv_removed_adopt(cache);

	if (r < 0)
		kv_warn(cache, "removed_lost",
			"%s/removed cannot be read (%s): blocks of shared "
			"spaces that were removed may be brought back",
			cache->store, strerror(-r));
}

/* From here on the store is left as after a crash, whatever comes; its cap stays
 * until all of it fits into the smaller one. */
static int shrink(struct kv_cache *cache)
{
	int r;

	kv_quotas_settle(cache);
	cache->after_crash = true;
	cache->info.clean = false;
	r = put_info(cache);
	KV_POINT("shrink.begun");
	kv_lock(cache);
	if (r == 0)
		r = kv_shrink(cache);
	kv_unlock(cache);
	return r;
}

int kv_store_open(struct kv_cache *cache, char **ret_why)
{
	int shrinks, r = open_dir(cache, ret_why);

	if (r == 0)
		r = open_index(cache, ret_why);
	if (r == 0)
		r = open_spaces(cache, ret_why);
	if (r == 0)
		r = settle_cap(cache, ret_why);
	if (r < 0)
		return r;
	probe_direct(cache);
	cache->after_crash = !cache->info.clean;
	kv_note(cache, "last_end=%s", cache->after_crash ? "crash" : "clean");
	cache->generation = cache->info.next_generation;
	r = kv_index_adopt(cache, ret_why);
	if (r == 0)
		read_removed(cache);
	if (r < 0 || cache->config.read_only)
		return r;
	shrinks = kv_shrink_check(cache, ret_why);
	if (shrinks < 0)
		return shrinks;
	warn_of_place(cache);
	KV_POINT("mount.read");
	kv_segfiles_sweep(cache);
	r = kv_removed_trim(cache);
	if (r == 0 && shrinks)
		r = shrink(cache);
	if (r == 0)
		r = kv_store_recover(cache);
	if (r == 0)
		r = compact_index(cache);
	if (r == 0)
		r = mark_in_use(cache);
	if (r < 0)
		return kv_why(ret_why, r, "%s: cannot write the index: %s%s",
			      cache->store, strerror(-r),
			      r == -ENOSPC ? " (its filesystem needs 1M free)"
					   : "");
	return 0;
}

static void checkpoint_uses(struct kv_cache *cache)
{
	kv_lock(cache);
	for (uint32_t i = 0; i < cache->table.used; i++) {
		struct kv_block *block = kv_table_at(&cache->table, i);

		if ((block->flags & BLOCK_USED) && block->file != KV_NONE)
			kv_update_locked(cache, block);
		if (i % BLOCKS_AT_ONCE == BLOCKS_AT_ONCE - 1)
			kv_yield(cache);
	}
	KV_POINT("checkpoint.queued");
	kv_unlock(cache);
}

void kv_cache_ending(struct kv_cache *cache)
{
	if (cache->lock_fd >= 0)
		kv_lock_end(cache->lock_fd);
}

void kv_store_before_stop(struct kv_cache *cache)
{
	if (cache->index && !cache->config.read_only)
		checkpoint_uses(cache);
}

void kv_store_close(struct kv_cache *cache, bool clean)
{
	if (cache->index && clean && !cache->config.read_only) {
		kv_segfiles_record(cache);
		cache->info.clean = true;
		kv_index_keep_room(cache->index);
		KV_POINT("unmount.before_clean");
		put_info(cache);
		KV_POINT("unmount.clean");
	}
	kv_index_close(cache->index);
	kv_segfiles_close(cache);
	if (cache->ssd.dir >= 0)
		close(cache->ssd.dir);
	if (cache->spaces_dir >= 0)
		close(cache->spaces_dir);
	if (cache->store_fd >= 0)
		close(cache->store_fd);
	if (cache->lock_fd >= 0)
		close(cache->lock_fd);
}
