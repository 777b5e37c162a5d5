/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - a store as it is found at mount: what the index knows, into memory;
 * and an index that cannot be used, or is of an older format, or was left by a
 * crash.
 *
 * A cache fails open: whatever is wrong with the index, the daemon makes it
 * anew from the segment files and says so in `.kvfs/config`.
 *
 * A million blocks are a million places in memory that nobody has looked at
 * for long.  So a record is not taken in when it comes, but when the processor
 * has had time to fetch what that will touch.
 *
 * OWNS       the records that were read and are not taken in yet.
 *
 * INVARIANTS
 *   (1) Records are taken in in the order in which they were read.
 *   (2) None waits when a snapshot is read, or when the walk is over.
 *
 * LOCKING    cache->lock where records are taken in, though the threads have
 *            not started yet.
 */
#include "cache/store/store.h"
#include "cache/block/block.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/table.h"
#include "cache/dram/dram.h"
#include "cache/space/space.h"
#include "cache/ssd/ssd.h"
#include "common/bytes.h"
#include "index/sidecar.h"
#include "index/pages.h"
#include "index/segfile.h"

#include <fcntl.h>
#include <stdio.h>

#define AHEAD 32u /* records that wait; the first half for their buckets */
#define DIGIT 11u
#define DIGITS (1u << DIGIT)

/*
 * Begin an empty index if there are no segment files.  Segment files without
 * any trailer hold blocks that only the lost index could name: leave them alone.
 */
static int begin_anew(struct kv_cache *cache, const char *why, char **ret_why)
{
	if (kv_rebuild_possible(cache->store_fd))
		return kv_why(
			ret_why, -EBADMSG,
			"%s: the index is damaged (%s), and these segment "
			"files, without trailers, say too little to rebuild it "
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

/* One item more at the end of an array, whose room are the powers of two. */
static int append(void **items, size_t *n, const void *item, size_t size)
{
	void *more;

	if ((*n & (*n - 1)) == 0) {
		more = realloc(*items, (*n ? 2 * *n : 1) * size);
		if (!more)
			return -ENOMEM;
		*items = more;
	}
	memcpy((char *)*items + (*n)++ * size, item, size);
	return 0;
}

/* What an index that is older than the segment files has, and they have not. */
struct carried {
	struct kv_slot_record *pins;
	size_t n;
	uint64_t snapshots;
};

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
		return kv_why(ret_why, r, "%s: " KV_FORMAT_REFUSED,
			      cache->store);
	if (r < 0)
		return kv_why(ret_why, r,
			      "%s: the index is damaged (%s), and cannot be "
			      "rebuilt: %s",
			      cache->store, why, strerror(-r));
	left_out = rebuild.strays + rebuild.duplicates + rebuild.unreadable +
		   rebuild.damaged;
	cache->ssd.unswept = true;
	kv_note(cache,
		"index=rebuilt (%s): %llu blocks, %llu spaces, %llu left out",
		why, (unsigned long long)rebuild.blocks,
		(unsigned long long)rebuild.spaces,
		(unsigned long long)left_out);
	if (!carried)
		kv_warn(cache, "index_lost",
			"%s: the index was rebuilt (%s): %llu blocks found, "
			"%llu left out; lost are pins, snapshots and use "
			"counts",
			cache->store, why, (unsigned long long)rebuild.blocks,
			(unsigned long long)left_out);
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

static int look(struct kv_cache *cache, const char *path, char **ret_why)
{
	char why[KV_WHY_MAX];
	int r = kv_pages_check(path, kv_index_map_bytes(cache->config.ssd),
			       why);

	if (!cache->config.read_only)
		kv_index_lock_file_check(cache->store_fd);
	if (r == -EBADMSG || r == -EIO ||
	    (r == -ENOENT && kv_rebuild_possible(cache->store_fd)))
		return remake(cache, r == -ENOENT ? "missing" : why, NULL,
			      ret_why);
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

/* The index has seen fewer mounts than STORE/store, which is written after it. */
static bool is_older(const struct kv_cache *cache)
{
	struct kv_store_info file;

	return kv_store_file_read(cache->store_fd, &file) == 0 &&
	       memcmp(file.store, cache->info.store, sizeof(file.store)) == 0 &&
	       file.mounts > cache->info.mounts;
}

static int carry_pin(void *arg, uint64_t slot_id,
		     const struct kv_slot_record *record)
{
	struct carried *carried = arg;

	(void)slot_id;
	if (!record->pinned)
		return 0;
	return append((void **)&carried->pins, &carried->n, record,
		      sizeof(*record));
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

/* Rebuild an index that is older than the segment files, as a copy that was put
 * back is.  Its pins stay with the blocks that it knows. */
static int remake_older(struct kv_cache *cache, char **ret_why)
{
	struct carried carried = {0};
	const struct kv_index_visitor visitor = {
		.arg = &carried,
		.slot = carry_pin,
		.snapshot = count_snapshot,
	};
	uint64_t damaged;
	int r = kv_index_walk(cache->index, &visitor, &damaged);

	kv_index_close(kv_steal(cache->index));
	if (r == 0 || r == -EBADMSG || r == -EIO)
		r = remake(cache, "older than the segment files", &carried,
			   ret_why);
	free(carried.pins);
	return r;
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
	if (r == 0 && frame_lost(cache->index)) {
		kv_index_close(kv_steal(cache->index));
		r = -EBADMSG;
	}
	if (r == 0 && is_older(cache))
		r = remake_older(cache, ret_why);
	else if (r == -EBADMSG && !*ret_why)
		r = remake(cache, "damaged records", NULL, ret_why);
	else
		return r;
	return r < 0 ? r
		     : kv_index_open(path, map, ro, fresh, &cache->info,
				     &cache->index);
}

int kv_store_recover(struct kv_cache *cache)
{
	int r;

	if (!cache->after_crash && !cache->ssd.unswept) {
		/* They are needed only once the index is lost: a full disk is
		 * no reason not to mount. */
		r = kv_space_files_lost(cache);
		if (r < 0)
			kv_warn(cache, "spaces_lost",
				"%s/spaces: lost files cannot be written again "
				"(%s): blocks of their spaces are lost if the "
				"index is",
				cache->store, strerror(-r));
		return 0;
	}
	kv_sweep_later(cache);
	return kv_space_files_check(cache);
}

struct adoption {
	struct kv_cache *cache;
	/* Segment files that are not there, or too short; their records. */
	uint32_t *lost_files;
	uint64_t *lost_slots;
	size_t n_lost_files, n_lost_slots;
	uint64_t files, missing; /* counts */
	char *why;		 /* why a file cannot be opened; or NULL */
	struct {
		uint64_t slot_id;
		struct kv_slot_record record;
	} waiting[AHEAD];
	uint64_t come, gone; /* counts */
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
	if (r == 0)
		kv_size_used(adoption->cache, record->slot_bytes);
	if (r == -ENOENT || r == -EBADMSG) {
		adoption->missing += r == -ENOENT;
		return append((void **)&adoption->lost_files,
			      &adoption->n_lost_files, &record->id,
			      sizeof(record->id));
	}
	/* An error that may pass is no reason to lose the blocks. */
	return r < 0 ? kv_why(&adoption->why, r, "%s/segments/%06u.seg: %s",
			      adoption->cache->store, record->id, strerror(-r))
		     : 0;
}

/* Files come by ascending number. */
static bool is_lost(const struct adoption *adoption, uint32_t file)
{
	size_t low = 0, high = adoption->n_lost_files;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (adoption->lost_files[middle] < file)
			low = middle + 1;
		else
			high = middle;
	}
	return low < adoption->n_lost_files &&
	       adoption->lost_files[low] == file;
}

/* Delete the records of files that are lost: their numbers are used again. */
static int forget_lost(struct adoption *adoption)
{
	struct kv_cache *cache = adoption->cache;
	const size_t slots = adoption->n_lost_slots;
	const size_t all = slots + adoption->n_lost_files;
	struct kv_txn *txn;
	int r = 0;

	for (size_t at = 0; r == 0 && at < all; at += cache->ssd.round_max) {
		r = kv_txn_begin(cache->index, &txn);
		if (r < 0)
			return r;
		for (size_t i = at;
		     r == 0 && i < KV_MIN(all, at + cache->ssd.round_max);
		     i++) {
			if (i >= slots) {
				r = kv_txn_delete_segfile(
					txn, adoption->lost_files[i - slots]);
				continue;
			}
			r = kv_txn_delete_slot(txn, adoption->lost_slots[i]);
			if (r == 0)
				r = kv_txn_delete_token_ids(
					txn, adoption->lost_slots[i]);
		}
		if (r < 0)
			kv_txn_abort(txn);
		else
			r = kv_txn_commit(txn);
	}
	if (r == 0 && slots)
		kv_warn(cache, "files_lost",
			"%s/segments: %zu files are missing or too short, and "
			"%zu blocks with them",
			cache->store, adoption->n_lost_files, slots);
	return r;
}

/* The slot of a record left out is free, and holds what must not come back. */
static int left_out(struct kv_cache *cache)
{
	cache->ssd.unswept = true;
	return 0;
}

/* NULL: no block that there can be. */
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

/* Of the record that was taken in; 0 if the index cannot tell. */
static uint64_t generation_of(struct kv_cache *cache,
			      const struct kv_block *block)
{
	struct kv_slot_record record;

	if (kv_index_get(cache->index,
			 kv_slot_id(block->file, block->slot_number),
			 &record) < 0)
		return 0;
	return record.generation;
}

/* Of two records with one key the one with the lower generation is of a block
 * that was removed: its deletion goes on. */
static int take_in(struct kv_cache *cache, uint64_t slot_id,
		   const struct kv_slot_record *record)
{
	struct kv_space *space = space_of(cache, record);
	struct kv_key key = {.len = record->key_len};
	struct kv_block *block;
	int r;

	if (!space)
		return left_out(cache);
	memcpy(key.b, record->key, sizeof(key.b));
	block = kv_table_find(cache, space, &key);
	if (block && generation_of(cache, block) >= record->generation) {
		r = kv_extent_adopt_stale(cache, space, slot_id);
		return kv_is_shortage(r) ? r : left_out(cache);
	}
	if (block) {
		kv_pin_by_user_locked(cache, block, false);
		kv_extent_supersede(cache, block);
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
		kv_block_remove_locked(cache, block);
		return left_out(cache);
	}
	if (kv_block_pinned_by_user(cache, block) != record->pinned)
		kv_pin_by_user_locked(cache, block, record->pinned);
	return 0;
}

static int take_in_first(struct adoption *adoption)
{
	const unsigned i = adoption->gone++ % AHEAD;

	return take_in(adoption->cache, adoption->waiting[i].slot_id,
		       &adoption->waiting[i].record);
}

static int take_in_all(struct adoption *adoption)
{
	int r = 0;

	while (r == 0 && adoption->gone < adoption->come)
		r = take_in_first(adoption);
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

static int visit_slot(void *arg, uint64_t slot_id,
		      const struct kv_slot_record *record)
{
	struct adoption *adoption = arg;
	int r = 0;

	if (is_lost(adoption, (uint32_t)(slot_id >> 32)))
		return append((void **)&adoption->lost_slots,
			      &adoption->n_lost_slots, &slot_id,
			      sizeof(slot_id));
	if (adoption->come - adoption->gone == AHEAD)
		r = take_in_first(adoption);
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
	int r = take_in_all(adoption);

	return r < 0 ? r
		     : kv_snapshot_adopt(adoption->cache, record, name, items);
}

struct age {
	uint32_t atime, block;
};

/* Once over the digit of atime at @shift; what is equal keeps its order. */
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

/* All blocks, the last one first: of one second, the one that was put in last
 * is the deeper one. */
static size_t ages_of(struct kv_cache *cache, struct age *ages)
{
	size_t n = 0;

	for (uint32_t i = cache->table.used; i-- > 0;) {
		const struct kv_block *block = kv_table_at(&cache->table, i);

		if (block->flags & BLOCK_REMOVED)
			continue;
		ages[n].atime = block->atime;
		ages[n++].block = i;
	}
	return n;
}

static int order_blocks(struct kv_cache *cache)
{
	_cleanup_(kv_freep) struct age *ages = NULL;
	_cleanup_(kv_freep) struct age *half = NULL;
	size_t n = 0;

	ages = calloc(cache->table.used + 1, sizeof(*ages));
	half = calloc(cache->table.used + 1, sizeof(*half));
	if (!ages || !half)
		return -ENOMEM;
	n = ages_of(cache, ages);
	sort_digit(ages, half, n, 0);
	sort_digit(half, ages, n, DIGIT);
	sort_digit(ages, half, n, 2 * DIGIT);
	for (size_t i = 0; i < n; i++) {
		if (i + AHEAD < n)
			kv_table_fetch(&cache->table, half[i + AHEAD].block);
		kv_extent_order(cache,
				kv_table_at(&cache->table, half[i].block));
	}
	return 0;
}

int kv_index_adopt(struct kv_cache *cache, char **ret_why)
{
	struct adoption adoption = {.cache = cache};
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
		r = take_in_all(&adoption);
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
	if (r == 0 && !cache->config.read_only)
		r = forget_lost(&adoption);
	free(adoption.lost_files);
	free(adoption.lost_slots);
	if (adoption.why)
		*ret_why = adoption.why;
	if (r < 0 && *ret_why)
		return r;
	if (r < 0)
		return kv_why(ret_why, r, "%s: cannot read the index: %s",
			      cache->store, strerror(-r));
	cache->stats.corrupt += damaged;
	cache->ssd.unswept |= damaged > 0;
	if (damaged)
		kv_note(cache, "index_damaged=%llu records passed over",
			(unsigned long long)damaged);
	return 0;
}
