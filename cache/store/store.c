/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - make, lock and read the STORE directory at mount, and leave it
 * clean.
 *
 *   STORE/lock        an OFD lock, never unlinked; the owner's pid, and a line of
 *                     dram/segment.c.  STORE is locked by flock(2), too
 *   STORE/store       the store record, as of the last mount
 *   STORE/tenants     quotas of users
 *   STORE/removed     blocks that the remote tier must not fetch again
 *   STORE/index/      LMDB
 *   STORE/spaces/     NNNNNN, one for each space
 *   STORE/segments/   NNNNNN.seg, or links to those of other directories
 *
 * A cache fails open: if the index is damaged, the daemon rebuilds it from the
 * segment files, and reports that in `.kvfs/config`.
 *
 * The records of a million blocks touch a million places in memory, none of
 * them in the processor's caches.  So the memory of a record is prefetched when
 * the record is read, and the record is adopted some records later.
 *
 * OWNS       the lock, the index handle, the store's description; the records
 *            that were read but not adopted yet.
 *
 * INVARIANTS
 *   (1) Records are adopted in the order in which they were read.
 *   (2) All records are adopted before a snapshot is read, and at the end.
 *
 * LOCKING    cache->lock where records are adopted; otherwise none needed: store.c
 *            runs before the threads start and after they end.
 */
#include "cache/store/store.h"
#include "cache/core/causes.h"
#include "cache/block/block.h"
#include "cache/core/hooks.h"
#include "cache/core/table.h"
#include "cache/dram/dram.h"
#include "cache/space/space.h"
#include "cache/ssd/ssd.h"
#include "index/segfile.h"
#include "index/sidecar.h"
#include "common/array.h"
#include "common/bytes.h"
#include "common/crash_point.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#define GENERATIONS_A_MOUNT (1ull << 32)
/* blocks handled in one step of a walk through all blocks */
#define BLOCKS_AT_ONCE 4096u
/* Bytes of the index's map for each record of a commit: a record may take three
 * pages, twice, and env.c reserves an eighth of the map. */
#define ROUND_SHARE (256u << 10)
#define AHEAD 32u /* records that wait while their memory is prefetched */
#define DIGIT 11u
#define DIGITS (1u << DIGIT)

/* ---- the directory ---- */

/* Return 1 if @path is empty, 0 if it is a store, -EEXIST otherwise. */
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
	/* STORE/store replaces the record that is lost with the index. */
	index |= kv_store_file_there(dirfd(dir));
	closedir(dir);
	return empty ? 1 : index ? 0 : -EEXIST;
}

static int take_lock(struct kv_cache *cache, char **ret_why)
{
	const struct kv_lock_wait wait = {.waiting = cache->config.waiting,
					  .arg = cache->config.arg};
	struct statvfs fs;
	bool shared;
	int fd, r;

	/* Daemons may share a store on a read-only filesystem. */
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
	r = kv_lock_write(fd, "", -1, 0);
	return r == 0 ? 0
		      : kv_why(ret_why, r, "%s: cannot lock it: %s",
			       cache->store, strerror(-r));
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
	r = 0;
	if (mkdirat(cache->store_fd, "index", 0700) < 0 && errno != EEXIST)
		r = -errno;
	KV_POINT("mount.half_made");
	if (r == 0 && mkdirat(cache->store_fd, "segments", 0700) < 0 &&
	    errno != EEXIST)
		r = -errno;
	if (r < 0 && !ro)
		return kv_why(ret_why, r, "%s: cannot make it: %s",
			      cache->store, strerror(-r));
	fsync(cache->store_fd);
	cache->ssd.devices[0].dir = openat(cache->store_fd, "segments",
					   O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (cache->ssd.devices[0].dir < 0)
		return kv_why(ret_why, -errno, "%s/segments: %s", cache->store,
			      strerror(errno));
	return 0;
}

/* ---- the index: opening or rebuilding it ---- */

/* Pins and snapshots of an index that is older than the segment files. */
struct carried {
	struct kv_slot_record *pins;
	size_t n;
	uint64_t snapshots;
};

/* Rebuild the index from the segment files. */
static int remake(struct kv_cache *cache, const char *why,
		  const struct carried *carried, char **ret_why)
{
	struct kv_rebuild rebuild = {
		.store_fd = cache->store_fd,
		.path = cache->store,
		.cap = cache->config.ssd,
		.keep = true,
		.pins = carried ? carried->pins : NULL,
		.n_pins = carried ? carried->n : 0,
	};
	int r = kv_store_file_read(cache->store_fd, &rebuild.info);

	if (cache->config.read_only && r != -ENOTSUP)
		return kv_why(ret_why, -EBADMSG,
			      "%s: the index is damaged (%s), and ro cannot "
			      "rebuild it: kvfs-fsck --rebuild can",
			      cache->store, why);
	r = kv_rebuild(&rebuild);
	if (r == -ENODATA) {
		unlinkat(cache->store_fd, "index/data.mdb", 0);
		unlinkat(cache->store_fd, "index/lock.mdb", 0);
		kv_note(cache,
			"index=begun anew (%s; nothing to rebuild it from)",
			why);
		return 0;
	}
	if (r == -ENOTSUP)
		return r;
	if (r == -EUCLEAN)
		return kv_why(ret_why, r, "%s: " KV_REBUILD_REFUSED,
			      cache->store, rebuild.odd_file);
	if (r == -ENOTDIR)
		return kv_why(
			ret_why, r,
			"%s: the index is damaged (%s), and " KV_SPACES_MISSING,
			cache->store, why);
	if (r == -ENODEV)
		return kv_why(
			ret_why, r,
			"%s: the index is damaged (%s), and " KV_DIR_MISSING,
			cache->store, why, rebuild.odd_file);
	if (r < 0)
		return kv_why(ret_why, r,
			      "%s: the index is damaged (%s), and cannot be "
			      "rebuilt: %s",
			      cache->store, why, strerror(-r));
	cache->ssd.unswept = true;
	kv_note(cache,
		"index=rebuilt (%s): %llu blocks, %llu spaces, %llu left out",
		why, (unsigned long long)rebuild.blocks,
		(unsigned long long)rebuild.spaces,
		(unsigned long long)rebuild.left_out);
	if (!carried)
		kv_warn(cache, "index_lost",
			"%s: the index was rebuilt (%s): %llu blocks found, "
			"%llu left out; lost are pins, snapshots and use "
			"counts",
			cache->store, why, (unsigned long long)rebuild.blocks,
			(unsigned long long)rebuild.left_out);
	else
		kv_warn(cache, "index_older",
			"%s: the index was older than the segment files and "
			"was rebuilt: %llu blocks; lost are use counts, %llu "
			"of the index's %zu pins, and its %llu snapshots",
			cache->store, (unsigned long long)rebuild.blocks,
			(unsigned long long)(carried->n - rebuild.pinned),
			carried->n, (unsigned long long)carried->snapshots);
	return 0;
}

static int count_snapshot(void *arg, const struct kv_snapshot_record *record,
			  const char *name,
			  const struct kv_snapshot_item *items)
{
	(void)record;
	(void)name;
	(void)items;
	((struct carried *)arg)->snapshots++;
	return 0;
}

static int carry_pin(void *arg, uint64_t slot_id,
		     const struct kv_slot_record *record)
{
	struct carried *carried = arg;

	(void)slot_id;
	if (!record->pinned)
		return 0;
	if (kv_array_more(&carried->pins, carried->n) < 0)
		return -ENOMEM;
	carried->pins[carried->n++] = *record;
	return 0;
}

/*
 * Open the index; rebuild it if it is damaged, or if it is older than the
 * segment files because a user restored a copy.  The pins of an older index are
 * kept.
 */
static int open_or_remake(struct kv_cache *cache, const char *path,
			  const struct kv_store_info *fresh, char **ret_why)
{
	const uint64_t map = kv_index_map_bytes(cache->config.ssd);
	const bool ro = cache->config.read_only;
	struct carried carried = {0};
	const struct kv_index_visitor visitor = {
		.arg = &carried,
		.slot = carry_pin,
		.snapshot = count_snapshot,
	};
	const struct kv_index_visitor frame = {.frame = true};
	struct kv_store_info file;
	char why[KV_WHY_MAX];
	uint64_t damaged = 0;
	bool foreign = false;
	int e, r = kv_index_check(path, map, why);

	if (!ro)
		kv_index_lock_file_check(cache->store_fd);
	if (r == -EBADMSG || r == -EIO ||
	    (r == -ENOENT && kv_rebuild_possible(cache->store_fd)))
		r = remake(cache, r == -ENOENT ? "missing" : why, NULL,
			   ret_why);
	else if (r == -ENOENT)
		r = 0;
	if (r == 0)
		r = kv_index_open(path, map, ro, fresh, &cache->info,
				  &cache->index);
	/* Skipping a damaged record of a space or file would lose all its
	 * blocks: rebuild the index. */
	if (r == 0) {
		foreign =
			kv_index_is_foreign(cache->store_fd, cache->info.store);
		e = kv_index_walk(cache->index, &frame, &damaged);
		if (e == -EBADMSG || e == -EIO || damaged > 0 || foreign) {
			kv_index_close(kv_steal(cache->index));
			r = -EBADMSG;
		}
	}
	/* STORE/store has more mounts than an old copy of the index. */
	if (r == 0 && kv_store_file_read(cache->store_fd, &file) == 0 &&
	    memcmp(file.store, cache->info.store, sizeof(file.store)) == 0 &&
	    file.mounts > cache->info.mounts) {
		r = kv_index_walk(cache->index, &visitor, &damaged);
		kv_index_close(kv_steal(cache->index));
		if (r == 0 || r == -EBADMSG || r == -EIO)
			r = remake(cache, "older than the segment files",
				   &carried, ret_why);
		free(carried.pins);
	} else if (r == -EBADMSG && !*ret_why) {
		r = remake(cache,
			   foreign ? "it is another store's"
				   : "damaged records",
			   NULL, ret_why);
	} else {
		return r;
	}
	return r < 0 ? r
		     : kv_index_open(path, map, ro, fresh, &cache->info,
				     &cache->index);
}

/* Open the index again, with an LMDB map for an SSD tier of @cap bytes. */
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
	const struct kv_cache_config *config = &cache->config;
	uint64_t segment = KV_MIN(config->segment, config->ssd / 64);
	struct kv_store_info fresh = {
		.version = KV_FORMAT_VERSION,
		.cap = config->ssd,
		.next_generation = 1,
		.next_space = 1,
		.clean = true,
	};
	_cleanup_(kv_freep) char *path = NULL;
	int r;

	if (asprintf(&path, "%s/index", cache->store) < 0)
		return -ENOMEM;
	segment = KV_MAX(segment / (2u << 20) * (2u << 20), 8ull << 20);
	fresh.segment_bytes = KV_MIN(segment, 2ull << 30);
	if (getrandom(fresh.store, sizeof(fresh.store), 0) < 0)
		memcpy(fresh.store, &cache->epoch, sizeof(cache->epoch));
	r = open_or_remake(cache, path, &fresh, ret_why);
	/* The store's cap is known only now.  If it became smaller, the index
	 * must shrink before its map. */
	if (r == 0 && cache->info.cap != config->ssd &&
	    (!config->ssd_given || cache->info.cap > config->ssd))
		r = reopen_index(cache, path, cache->info.cap);
	if (r == -ENOTSUP && !*ret_why)
		kv_why(ret_why, r, "%s: " KV_FORMAT_REFUSED, cache->store);
	else if (r < 0 && !*ret_why)
		kv_why(ret_why, r, "%s: cannot read the index: %s", path,
		       strerror(-r));
	return r;
}

/* ---- the index: reading it ---- */

struct adoption {
	struct kv_cache *cache;
	/* Missing or truncated segment files; slots whose records must go. */
	uint32_t *lost_files;
	uint64_t *lost_slots;
	size_t n_lost_files, n_lost_slots;
	size_t strays;	/* number of lost_slots that are not of lost_files */
	size_t lost_at; /* index in lost_files for the next lost record */
	uint64_t files, missing; /* numbers of segment files: all, missing */
	bool away;		 /* a device is missing */
	char **ret_why;		 /* set if a segment file cannot be opened */
	struct {
		uint64_t slot_id;
		struct kv_slot_record record;
	} waiting[AHEAD];
	uint64_t come, gone; /* numbers of records read, and adopted */
};

static int visit_space(void *arg, const struct kv_space_record *record,
		       const char *name, const char *layout)
{
	const struct adoption *adoption = arg;
	int r = kv_space_adopt(adoption->cache, record, name, layout);

	return r == -ENOMEM ? r : 0;
}

static int visit_segment(void *arg, const struct kv_segfile_record *record)
{
	struct adoption *adoption = arg;
	int r = kv_segfile_adopt(adoption->cache, record);

	adoption->files++;
	if (r == -ENODEV) {
		adoption->away = true;
		return 0;
	}
	if (r == 0)
		kv_size_used(adoption->cache, record->slot_bytes);
	if (r == -ENOENT || r == -EBADMSG) {
		adoption->missing += r == -ENOENT;
		if (kv_array_more(&adoption->lost_files,
				  adoption->n_lost_files) < 0)
			return -ENOMEM;
		adoption->lost_files[adoption->n_lost_files++] = record->id;
		return 0;
	}
	/* A temporary error must not lose blocks: fail the mount. */
	return r < 0 ? kv_why(adoption->ret_why, r,
			      "%s/segments/%06u.seg: %s; if this is not a "
			      "segment file, move it away: a mount goes on "
			      "without the blocks of a missing one",
			      adoption->cache->store, record->id,
			      r == -EUCLEAN ? "its trailer names another file"
					    : strerror(-r))
		     : 0;
}

/* Return the space of a record; NULL: the record is invalid. */
static struct kv_space *space_of(const struct kv_cache *cache,
				 const struct kv_slot_record *record)
{
	struct kv_space *space;

	if ((record->key_len != 16 && record->key_len != 32) ||
	    record->length == 0 || record->length > UINT32_MAX)
		return NULL;
	space = kv_space_with_id(cache, record->space);
	return space && !space->removed ? space : NULL;
}

/* Have the record of the slot deleted once all records are read. */
static int lose(struct adoption *adoption, uint64_t slot_id)
{
	if (kv_array_more(&adoption->lost_slots, adoption->n_lost_slots) < 0)
		return -ENOMEM;
	adoption->lost_slots[adoption->n_lost_slots++] = slot_id;
	return 0;
}

/* Adopt the record of a block.  Delete it if its space is gone: a crash can
 * separate the removal of a space from the deletions of its blocks.  Of two
 * records with one key, that with the lower generation is of a removed block:
 * its deletion continues.  If a record is not adopted, its slot is free and its
 * prologue must be swept. */
static int take_in(struct adoption *adoption, uint64_t slot_id,
		   const struct kv_slot_record *record)
{
	struct kv_cache *cache = adoption->cache;
	struct kv_space *space = space_of(cache, record);
	struct kv_key key = {.len = record->key_len};
	struct kv_block *block = NULL;
	struct kv_slot_record other;
	int r = 0;

	memcpy(key.b, record->key, sizeof(key.b));
	if (!space) {
		cache->ssd.unswept = true;
		adoption->strays++;
		return lose(adoption, slot_id);
	}
	block = kv_table_find(cache, space, &key);
	if (block &&
	    kv_index_get(cache->index,
			 kv_slot_id(block->file, block->slot_number), &other,
			 NULL) == 0 &&
	    other.generation >= record->generation) {
		r = kv_extent_adopt_stale(cache, space, slot_id);
		cache->ssd.unswept = true;
		return kv_is_shortage(r) ? r : 0;
	}
	if (block) {
		kv_pin_by_user_locked(cache, block, false);
		kv_extent_detach_locked(cache, block, true);
	}
	r = block ? 0 : kv_table_insert(cache, space, &key, &block);
	if (r < 0)
		return r;
	block->length = (uint32_t)record->length;
	block->mtime_ns = record->mtime_ns;
	block->atime = record->atime;
	block->hits = record->hits;
	r = kv_extent_adopt(cache, block, slot_id);
	if (kv_is_shortage(r))
		return r;
	if (r < 0) {
		kv_cause_note_block(cache, block, KV_CAUSE_DAMAGED);
		kv_block_remove_locked(cache, block);
		cache->ssd.unswept = true;
		return 0;
	}
	if (kv_block_pinned_by_user(cache, block) != record->pinned)
		kv_pin_by_user_locked(cache, block, record->pinned);
	return 0;
}

/* Adopt the records that have been read, except the last @n. */
static int take_in_but(struct adoption *adoption, uint64_t n)
{
	int r = 0;

	while (r == 0 && adoption->come - adoption->gone > n) {
		const unsigned i = adoption->gone++ % AHEAD;

		r = take_in(adoption, adoption->waiting[i].slot_id,
			    &adoption->waiting[i].record);
	}
	return r;
}

static void look_ahead(const struct adoption *adoption, uint64_t n,
		       enum kv_table_ahead what)
{
	const struct kv_slot_record *record =
		&adoption->waiting[n % AHEAD].record;
	struct kv_space *space = space_of(adoption->cache, record);

	if (space)
		kv_table_look_ahead(adoption->cache, space, record->key, what);
}

/* Count a record of a file whose device is missing.  The record stays. */
static bool is_away(struct kv_cache *cache, uint32_t id)
{
	const struct kv_segfile *file = kv_segfile_at(cache, id);

	if (!file || !file->device->failed)
		return false;
	file->device->away++;
	cache->ssd.records++;
	return true;
}

static int visit_slot(void *arg, uint64_t slot_id,
		      const struct kv_slot_record *record)
{
	struct adoption *adoption = arg;
	const uint32_t file = (uint32_t)(slot_id >> 32);
	int r;

	while (adoption->lost_at < adoption->n_lost_files &&
	       adoption->lost_files[adoption->lost_at] < file)
		adoption->lost_at++;
	if (adoption->lost_at < adoption->n_lost_files &&
	    adoption->lost_files[adoption->lost_at] == file)
		return lose(adoption, slot_id);
	if (adoption->away && is_away(adoption->cache, file))
		return 0;
	r = take_in_but(adoption, AHEAD - 1);
	adoption->waiting[adoption->come % AHEAD].slot_id = slot_id;
	adoption->waiting[adoption->come % AHEAD].record = *record;
	look_ahead(adoption, adoption->come, KV_AHEAD_BUCKET);
	if (adoption->come - adoption->gone >= AHEAD / 2)
		look_ahead(adoption, adoption->come - AHEAD / 2,
			   KV_AHEAD_BLOCK);
	adoption->come++;
	return r;
}

static int visit_snapshot(void *arg, const struct kv_snapshot_record *record,
			  const char *name,
			  const struct kv_snapshot_item *items)
{
	struct adoption *adoption = arg;
	int r = take_in_but(adoption, 0);

	return r < 0 ? r
		     : kv_snapshot_adopt(adoption->cache, record, name, items);
}

struct age {
	uint32_t atime, block;
};

/* Do one pass of a radix sort, by the digit of atime at @shift. */
static void sort_digit(const struct age *from, struct age *to, size_t n,
		       unsigned shift)
{
	size_t at[DIGITS + 1] = {0};

	for (size_t i = 0; i < n; i++)
		at[(from[i].atime >> shift) % DIGITS + 1]++;
	for (unsigned d = 0; d < DIGITS; d++)
		at[d + 1] += at[d];
	for (size_t i = 0; i < n; i++)
		to[at[(from[i].atime >> shift) % DIGITS]++] = from[i];
}

/* Put all blocks on their eviction lists, oldest first.  Of blocks with equal
 * atime, the one put last into the index is deeper in its chain. */
static int order_blocks(struct kv_cache *cache)
{
	_cleanup_(kv_freep) struct age *ages = NULL;
	_cleanup_(kv_freep) struct age *half = NULL;
	size_t n = 0;

	ages = calloc(cache->table.used + 1, sizeof(*ages));
	half = calloc(cache->table.used + 1, sizeof(*half));
	if (!ages || !half)
		return -ENOMEM;
	for (uint32_t i = cache->table.used; i-- > 0;) {
		const struct kv_block *block = kv_table_at(&cache->table, i);

		if (!(block->flags & BLOCK_REMOVED))
			ages[n++] = (struct age){block->atime, i};
	}
	sort_digit(ages, half, n, 0);
	sort_digit(half, ages, n, DIGIT);
	sort_digit(ages, half, n, 2 * DIGIT);
	for (size_t i = 0; i < n; i++) {
		const struct kv_block *block =
			kv_table_at(&cache->table, half[i].block);

		if (i + AHEAD < n)
			kv_table_fetch(&cache->table, half[i + AHEAD].block);
		if (!(block->flags & BLOCK_PINNED))
			kv_evict_list_add_plain(kv_evict_list_ssd(cache, block),
						block);
	}
	kv_uses_begin(cache, n ? half[n - 1].atime : 0);
	return 0;
}

/* Read the index into memory. */
static int adopt_index(struct kv_cache *cache, char **ret_why)
{
	struct adoption adoption = {.cache = cache, .ret_why = ret_why};
	const struct kv_index_visitor visitor = {
		.arg = &adoption,
		.space = visit_space,
		.segment = visit_segment,
		.slot = visit_slot,
		.snapshot = visit_snapshot,
	};
	uint64_t damaged = 0;
	int r;

	kv_lock(cache);
	r = kv_tenants_adopt(cache);
	if (r == 0)
		r = kv_index_walk(cache->index, &visitor, &damaged);
	if (r == 0)
		r = take_in_but(&adoption, 0);
	if (r == 0)
		r = order_blocks(cache);
	kv_unlock(cache);
	if (r == 0 && 2 * adoption.missing > adoption.files)
		r = kv_why(ret_why, -ENOENT,
			   "%s/segments: %llu of %llu segment files are "
			   "missing: mount what should be there; if they are "
			   "lost, kvfs-fsck --rebuild goes on with the others",
			   cache->store, (unsigned long long)adoption.missing,
			   (unsigned long long)adoption.files);
	/* New files get the numbers of lost files: delete the old records. */
	if (r == 0 && !cache->config.read_only) {
		r = kv_records_delete(
			cache, adoption.lost_slots, adoption.n_lost_slots,
			adoption.lost_files, adoption.n_lost_files);
		if (r == 0 && adoption.n_lost_slots > adoption.strays)
			kv_warn(cache, "files_lost",
				"%s/segments: %zu files are missing or too "
				"short, and %zu blocks with them",
				cache->store, adoption.n_lost_files,
				adoption.n_lost_slots - adoption.strays);
	}
	free(adoption.lost_files);
	free(adoption.lost_slots);
	if (r < 0)
		return *ret_why ? r
				: kv_why(ret_why, r,
					 "%s: cannot read the index: %s",
					 cache->store, strerror(-r));
	cache->stats.corrupt += damaged;
	cache->ssd.unswept |= damaged > 0;
	if (damaged)
		kv_note(cache, "index_damaged=%llu records passed over",
			(unsigned long long)damaged);
	return 0;
}

/* ---- mount and unmount ---- */

static void probe_direct(struct kv_cache *cache, struct kv_device *device)
{
	const char *path = device->path ? device->path : cache->store;
	int fd = openat(device->dir, ".", O_TMPFILE | O_RDWR | O_DIRECT, 0600);

	if (fd >= 0 || errno != EINVAL) {
		if (!device->path)
			kv_note(cache, "direct_io=on");
		if (fd >= 0)
			close(fd);
		return;
	}
	device->buffered = true;
	kv_note(cache, "direct_io=off (%s refuses O_DIRECT)", path);
	kv_warn(cache, "fallback",
		"%s refuses O_DIRECT: its blocks pass through the page cache",
		path);
}

/* Warn if the filesystem is smaller than the SSD tier, or in memory. */
static void warn_of_place(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	uint64_t room = 0;
	struct statvfs all;
	struct statfs fs;

	if (!ssd->on || fstatfs(cache->store_fd, &fs) < 0)
		return;
	for (uint32_t i = 0; i < ssd->n_devices; i++) {
		const struct kv_device *device = &ssd->devices[i];

		room += device->files * ssd->segment_bytes;
		if (!device->failed && fstatvfs(device->dir, &all) == 0)
			room += all.f_bavail * all.f_frsize;
	}
	if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC)
		kv_warn(cache, "ssd_volatile",
			"%s is on a filesystem in memory: its blocks do not "
			"survive a reboot, and take memory besides dram=",
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

	/* With ssd=0 or ro an existing tier is not changed. */
	cache->ssd.frozen = config->ssd_given && config->ssd == 0 && cap > 0;
	if (config->ssd_given && config->ssd > 0 && !config->read_only)
		cap = config->ssd;
	cache->config.ssd = cache->ssd.frozen ? 0 : cap;
	cache->ssd.cap = cap;
	cache->ssd.segment_bytes = cache->info.segment_bytes;
	/* @back: bytes for the index, and half its size for compaction; the
	 * other half is for trailers, STORE/spaces and an old index. */
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

/* Compact the index after it has shrunk to a smaller cap. */
static int compact_index(struct kv_cache *cache)
{
	_cleanup_(kv_freep) char *path = NULL;
	int r;

	if (asprintf(&path, "%s/index", cache->store) < 0)
		return -ENOMEM;
	r = kv_index_compact(&cache->index, path,
			     kv_index_map_bytes(cache->ssd.cap));
	if (cache->index && cache->info.cap > cache->ssd.cap)
		r = reopen_index(cache, path, cache->ssd.cap);
	/* The index is valid without compaction: mount even if the disk is
	 * full. */
	return cache->index ? 0 : r;
}

static int put_info(struct kv_cache *cache)
{
	struct kv_txn *batch;
	int r = kv_txn_begin(cache->index, &batch);

	if (r < 0)
		return r;
	kv_txn_put_info(batch, &cache->info);
	return kv_txn_commit(batch);
}

int kv_store_open(struct kv_cache *cache, char **ret_why)
{
	int shrinks, e, r = open_dir(cache, ret_why);

	if (r == 0)
		r = open_index(cache, ret_why);
	/* Write only after the check of the format (open_index). */
	if (r == 0 && !cache->config.read_only) {
		cache->spaces_dir = kv_spaces_dir(cache->store_fd, true);
		if (cache->spaces_dir < 0)
			r = kv_why(ret_why, cache->spaces_dir, "%s/spaces: %s",
				   cache->store, strerror(-cache->spaces_dir));
	}
	if (r == 0)
		r = settle_cap(cache, ret_why);
	if (r < 0)
		return r;
	if (!cache->ssd.on && cache->config.n_more)
		return kv_why(ret_why, -EINVAL,
			      "store=%s: needs an SSD tier, and ssd is 0",
			      cache->config.more[0]);
	r = cache->ssd.on ? kv_devices_open(cache, ret_why) : 0;
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < cache->ssd.n_devices; i++)
		if (i == 0 || !cache->ssd.devices[i].failed)
			probe_direct(cache, &cache->ssd.devices[i]);
	cache->after_crash = !cache->info.clean;
	kv_note(cache, "last_end=%s", cache->after_crash ? "crash" : "clean");
	cache->generation = cache->info.next_generation;
	r = adopt_index(cache, ret_why);
	e = r == 0 ? kv_removed_adopt(cache) : 0;
	if (e < 0)
		kv_warn(cache, "removed_lost",
			"%s/removed cannot be read (%s): blocks of shared "
			"spaces that were removed may be brought back",
			cache->store, strerror(-e));
	if (r < 0 || cache->config.read_only)
		return r;
	shrinks = kv_shrink_check(cache, ret_why);
	if (shrinks < 0)
		return shrinks;
	warn_of_place(cache);
	kv_devices_warn(cache);
	KV_POINT("mount.read");
	kv_segfiles_sweep(cache);
	r = kv_removed_trim(cache);
	/* On a failure the store stays as after a crash.  The store keeps its old cap
	 * until all blocks fit into the new one. */
	if (r == 0 && shrinks) {
		kv_quotas_settle(cache);
		cache->after_crash = true;
		cache->info.clean = false;
		r = put_info(cache);
		KV_POINT("shrink.begun");
		kv_lock(cache);
		if (r == 0)
			r = kv_shrink(cache);
		kv_unlock(cache);
	}
	if (r == 0 && (cache->after_crash || cache->ssd.unswept)) {
		kv_sweep_later(cache);
		r = kv_space_files_check(cache, false);
	} else if (r == 0) {
		/* Only a rebuild needs these files: mount even if the disk is
		 * too full for them. */
		e = kv_space_files_check(cache, true);
		if (e < 0)
			kv_warn(cache, "spaces_lost",
				"%s/spaces: lost files cannot be written again "
				"(%s): blocks of their spaces are lost if the "
				"index is",
				cache->store, strerror(-e));
	}
	if (r == 0)
		r = compact_index(cache);
	/* From here until kv_store_close succeeds, an end counts as a crash. */
	if (r == 0) {
		kv_index_keep_room(cache->index);
		cache->info.cap = cache->ssd.cap;
		cache->info.next_generation += GENERATIONS_A_MOUNT;
		cache->info.mounts++;
		cache->info.clean = false;
		KV_POINT("mount.before_dirty");
		r = put_info(cache);
		KV_POINT("mount.dirty");
	}
	if (r == 0)
		r = kv_store_file_write(cache->store_fd, &cache->info);
	if (r < 0)
		return kv_why(ret_why, r, "%s: cannot write the index: %s%s",
			      cache->store, strerror(-r),
			      r == -ENOSPC ? " (its filesystem needs 1M free)"
					   : "");
	kv_devices_record(cache);
	return 0;
}

void kv_store_before_stop(struct kv_cache *cache)
{
	if (!cache->index || cache->config.read_only)
		return;
	/* Record the atime and hits of all used blocks. */
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

void kv_store_close(struct kv_cache *cache, bool clean)
{
	if (cache->index && clean && !cache->config.read_only) {
		cache->info.clean = true;
		cache->info.clock = kv_use_now(cache);
		cache->info.floor = cache->uses.floor;
		kv_index_keep_room(cache->index);
		KV_POINT("unmount.before_clean");
		put_info(cache);
		KV_POINT("unmount.clean");
	}
	kv_index_close(cache->index);
	kv_segfiles_close(cache);
	kv_devices_close(cache);
	kv_closep(&cache->spaces_dir);
	kv_closep(&cache->store_fd);
	kv_closep(&cache->lock_fd);
}
