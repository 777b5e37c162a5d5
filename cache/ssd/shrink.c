/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shrink.c - mounting a store with a smaller cap than before.
 *
 * The decision comes before any change on disk: blocks that are pinned must fit
 * into the new cap, or the mount is refused.  Then the least valuable blocks are
 * evicted until the others fit, whatever file they are in.  Files with the
 * fewest of these others are emptied into free slots and removed.
 *
 * OWNS       nothing.
 *
 * INVARIANTS
 *   (1) A record is deleted before its slot is overwritten, and names a copy
 *       only after the copy was synced: a kill at any moment loses no block
 *       that was to stay.
 *   (2) Evicted blocks may leave prologues in free slots.  The caller has marked
 *       the store as in use, so that those are swept before the slots are used.
 *
 * LOCKING    cache->lock, also during I/O: no other thread has started yet.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/list.h"
#include "cache/core/table.h"
#include "common/crash_point.h"
#include "common/bytes.h"
#include "index/segfile.h"

#define PIECE (1u << 20)

/* Slots in use, and the files that they fill if all of one size lie together. */
struct shrink_need {
	uint64_t records, files;
};

static struct shrink_need needs(const struct kv_cache *cache, bool pinned)
{
	const struct kv_ssd *ssd = &cache->ssd;
	const struct kv_ssd_class *class;
	const struct kv_evict_list *list;
	struct shrink_need need = {0};

	LIST_FOREACH(class, &ssd->classes, link) {
		const uint64_t one = ssd->segment_bytes / class->slot_bytes;
		uint64_t slots = pinned ? 0 : class->total - class->free;

		if (pinned)
			TAILQ_FOREACH(list, &class->lists, link)
				slots += list->pinned;
		need.records += slots;
		need.files += (slots + one - 1) / one;
	}
	return need;
}

static bool fits(const struct kv_cache *cache, uint64_t cap,
		 const struct shrink_need *need)
{
	const uint64_t map = kv_index_map_bytes(cap);
	const uint64_t over =
		cache->ssd.sidecars - KV_MIN(cache->ssd.sidecars, map / 4);

	return need->records <= kv_index_records_max(cap) &&
	       2 * map + over + need->files * cache->ssd.segment_bytes <= cap;
}

int kv_shrink_check(struct kv_cache *cache, char **ret_why)
{
	const struct shrink_need pinned = needs(cache, true);
	struct shrink_need all = needs(cache, false);
	const uint64_t cap = cache->ssd.cap, unit = 1u << 20;
	uint64_t least = cap;

	all.files = KV_MAX(all.files, cache->ssd.live_files);
	if (!cache->ssd.on || fits(cache, cap, &all))
		return 0;
	if (cache->config.ssd_evict || fits(cache, cap, &pinned))
		return 1;
	while (!fits(cache, least, &pinned))
		least = kv_round_up(least + 1, unit);
	return kv_why(ret_why, -ENOSPC,
		      "ssd=%lluM is too small: pinned blocks need %lluM "
		      "(ssd_evict evicts them)",
		      (unsigned long long)(cap / unit),
		      (unsigned long long)(least / unit));
}

/* ---- victims ---- */

struct victims {
	struct kv_cache *cache;
	uint64_t *slots; /* of deleted records */
	size_t n;
	bool spare_guaranteed;
};

static bool may_go(void *arg, uint32_t number)
{
	(void)arg;
	(void)number;
	return true;
}

/* Evict the least valuable block of all; false: no list gives one. */
static bool evict_coldest(struct victims *victims)
{
	const struct kv_giving giving = {.regardless =
						 !victims->spare_guaranteed};
	struct kv_cache *cache = victims->cache;
	struct kv_coldest coldest = {0};
	const struct kv_ssd_class *class;
	struct kv_block *block;
	uint32_t number;

	LIST_FOREACH(class, &cache->ssd.classes, link)
		kv_victim_look(&class->lists, &giving, &coldest);
	if (!coldest.list)
		return false;
	number = kv_policy_victim(&coldest.list->policy, may_go, NULL);
	if (number == KV_NONE)
		return false;
	block = kv_table_at(&cache->table, number);
	victims->slots[victims->n++] =
		kv_slot_id(block->file, block->slot_number);
	kv_extent_drop(cache, block);
	cache->stats.evicted_ssd++;
	return true;
}

static bool evict_until_all_fit(struct victims *victims)
{
	struct shrink_need need = needs(victims->cache, false);

	while (!fits(victims->cache, victims->cache->ssd.cap, &need)) {
		if (!evict_coldest(victims))
			return false;
		need = needs(victims->cache, false);
	}
	return true;
}

struct aged {
	uint32_t atime, block;
};

static int by_atime(const void *a, const void *b)
{
	const struct aged *x = a, *y = b;

	if (x->atime != y->atime)
		return x->atime < y->atime ? -1 : 1;
	return x->block < y->block ? -1 : x->block > y->block;
}

/* Pinned blocks are on no list: have them evicted as others, oldest first. */
static int evict_pinned(struct victims *victims)
{
	struct kv_cache *cache = victims->cache;
	_cleanup_(kv_freep) struct aged *pinned = NULL;
	size_t n = 0;
	bool all_fit;

	pinned = calloc(cache->table.used + 1u, sizeof(*pinned));
	if (!pinned)
		return -ENOMEM;
	for (uint32_t i = 0; i < cache->table.used; i++) {
		const struct kv_block *block = kv_table_at(&cache->table, i);

		if (!(block->flags & BLOCK_REMOVED) && block->file != KV_NONE &&
		    (block->flags & BLOCK_PINNED))
			pinned[n++] = (struct aged){block->atime, i};
	}
	qsort(pinned, n, sizeof(*pinned), by_atime);
	for (size_t i = 0; i < n; i++)
		kv_extent_pin_locked(
			cache, kv_table_at(&cache->table, pinned[i].block),
			false);
	all_fit = evict_until_all_fit(victims);
	for (size_t i = 0; i < n; i++) {
		struct kv_block *block =
			kv_table_at(&cache->table, pinned[i].block);

		if (block->flags & BLOCK_PINNED)
			kv_extent_pin_locked(cache, block, true);
	}
	return all_fit ? 0 : -ENOSPC;
}

static int by_slot(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static int delete_record(struct kv_txn *txn, uint64_t slot_id)
{
	int r = kv_txn_delete_slot(txn, slot_id);

	return r < 0 ? r : kv_txn_delete_token_ids(txn, slot_id);
}

static int delete_records(struct kv_cache *cache, uint64_t *slots, size_t n)
{
	struct kv_txn *txn;
	int r = 0;

	if (n > 0)
		qsort(slots, n, sizeof(*slots), by_slot);
	for (size_t at = 0; r == 0 && at < n; at += cache->ssd.round_max) {
		const size_t end = KV_MIN(n, at + cache->ssd.round_max);

		r = kv_txn_begin(cache->index, &txn);
		if (r < 0)
			return r;
		for (size_t i = at; r == 0 && i < end; i++)
			r = delete_record(txn, slots[i]);
		if (r < 0)
			kv_txn_abort(txn);
		else
			r = kv_txn_commit(txn);
		KV_POINT("shrink.deleted");
	}
	return r;
}

/* ---- files ---- */

static int by_used(const void *a, const void *b)
{
	const struct kv_segfile *const *x = a, *const *y = b;

	return (*x)->used < (*y)->used ? -1 : (*x)->used > (*y)->used;
}

/*
 * Close as many files as must go, those with the fewest blocks first; the other
 * files of their size have room for these.
 */
static int choose_files(struct kv_cache *cache, struct kv_segfile ***ret_files,
			uint32_t *ret_n)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_segfile **files =
		calloc(ssd->live_files + 1u, sizeof(struct kv_segfile *));
	const uint64_t over = kv_sidecars_over(cache);
	uint32_t all = 0, n = 0;

	if (!files)
		return -ENOMEM;
	for (uint32_t id = 0; id < ssd->n_files; id++)
		if (ssd->files[id])
			files[all++] = ssd->files[id];
	qsort(files, all, sizeof(struct kv_segfile *), by_used);
	for (uint32_t i = 0; i < all && (all - n) * ssd->segment_bytes + over >
						ssd->file_budget;
	     i++) {
		const struct kv_ssd_class *class = files[i]->class;
		const uint64_t left = class->n_files - class->n_closed - 1;
		const struct kv_segfile *file;
		uint64_t used = 0;

		TAILQ_FOREACH(file, &class->files, link)
			used += file->used;
		if (left * files[i]->slots < used)
			continue;
		kv_extents_close_file(files[i]);
		files[n++] = files[i];
	}
	*ret_files = files;
	*ret_n = n;
	return 0;
}

struct copier {
	struct kv_cache *cache;
	uint8_t *piece;
	struct kv_segfile *to; /* written since it was last synced; or NULL */
	struct kv_txn *txn;
	size_t in_txn;
	uint64_t unreadable; /* a count */
};

static int sync_target(struct copier *copier)
{
	struct kv_segfile *to = copier->to;

	copier->to = NULL;
	return to && fdatasync(to->fd) < 0 ? -errno : 0;
}

static int commit(struct copier *copier)
{
	int r = sync_target(copier);

	KV_POINT("shrink.copied");
	copier->in_txn = 0;
	if (r < 0) {
		kv_txn_abort(kv_steal(copier->txn));
		return r;
	}
	r = kv_txn_commit(kv_steal(copier->txn));
	KV_POINT("shrink.committed");
	return r;
}

/* Prologue and file of a block.  -EBADMSG: they cannot be read. */
static int copy_slot(struct copier *copier, const struct kv_segfile *from,
		     uint32_t slot, const struct kv_segfile *to,
		     uint32_t to_slot, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += PIECE) {
		const size_t n = KV_MIN(PIECE, bytes - at);
		ssize_t done;

		if (pread(from->fd, copier->piece, n,
			  (off_t)(slot * from->slot_bytes + at)) != (ssize_t)n)
			return -EBADMSG;
		done = pwrite(to->fd, copier->piece, n,
			      (off_t)(to_slot * to->slot_bytes + at));
		if (done != (ssize_t)n)
			return done < 0 ? -errno : -EIO;
	}
	return 0;
}

/* Copy the block to a free slot of another file, and put its record there into
 * the transaction.  A block that cannot be read is lost. */
static int move_block(struct copier *copier, struct kv_block *block)
{
	struct kv_cache *cache = copier->cache;
	const uint64_t old = kv_slot_id(block->file, block->slot_number);
	struct kv_segfile *from = kv_segfile_at(cache, block->file), *to;
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	struct kv_slot_record record;
	uint64_t new;
	int r;

	r = kv_extent_relocate(cache, block);
	if (r < 0)
		return r;
	to = kv_segfile_at(cache, block->file);
	new = kv_slot_id(to->id, block->slot_number);
	if (copier->to && copier->to != to)
		r = sync_target(copier);
	copier->to = to;
	if (r == 0)
		r = copy_slot(copier, from, (uint32_t)old, to,
			      block->slot_number,
			      KV_PAGE + kv_round_up(block->length, KV_PAGE));
	if (r == 0)
		r = kv_index_get_token_ids(cache->index, old, &record, &ids);
	if (r < 0 && r != -EBADMSG)
		return r;
	if (r == -EBADMSG) {
		copier->unreadable++;
		kv_extent_drop(cache, block);
		return delete_record(copier->txn, old);
	}
	r = kv_txn_put_slot(copier->txn, new, &record);
	if (r == 0 && ids &&
	    kv_txn_has_room_for_ids(copier->txn, ids->n, ids->extras_len,
				    KV_PUT_FAR))
		r = kv_txn_put_token_ids(copier->txn, new, record.generation,
					 ids);
	return r < 0 ? r : delete_record(copier->txn, old);
}

/* A deletion that a crash left may still be under way in the file: then it stays
 * until the next mount. */
static int remove_file(struct copier *copier, struct kv_segfile *file)
{
	struct kv_cache *cache = copier->cache;
	char name[KV_SEGFILE_NAME];
	int r = kv_txn_begin(cache->index, &copier->txn);

	for (uint32_t i = 0; r == 0 && i < file->slots; i++) {
		struct kv_block *block = kv_extent_block(cache, file, i);

		if (!block)
			continue;
		if (copier->in_txn++ >= cache->ssd.round_max / 2 ||
		    !kv_txn_has_room(copier->txn, 2 * KV_PUT_FAR)) {
			r = commit(copier);
			if (r == 0)
				r = kv_txn_begin(cache->index, &copier->txn);
		}
		if (r == 0)
			r = move_block(copier, block);
	}
	if (r == 0 && file->used == 0)
		r = kv_txn_delete_segfile(copier->txn, file->id);
	if (r < 0) {
		kv_txn_abort(kv_steal(copier->txn));
		return r;
	}
	r = commit(copier);
	if (r < 0 || file->used > 0)
		return r;
	kv_segfile_name(file->id, name);
	unlinkat(cache->ssd.dir, name, 0);
	KV_POINT("shrink.unlinked");
	kv_segfile_forget(cache, file);
	return 0;
}

int kv_shrink(struct kv_cache *cache)
{
	struct victims victims = {.cache = cache, .spare_guaranteed = true};
	_cleanup_(kv_freep) struct kv_segfile **files = NULL;
	_cleanup_(kv_freep) uint64_t *slots = NULL;
	struct copier copier = {.cache = cache};
	uint32_t n_files = 0;
	int r = 0;

	kv_assert_locked(&cache->lock);
	victims.slots = slots = calloc(cache->ssd.records + 1, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	/* The guarantees were scaled to the tier, but slots of many sizes may
	 * fill its files with less. */
	if (!evict_until_all_fit(&victims)) {
		victims.spare_guaranteed = false;
		if (!evict_until_all_fit(&victims))
			r = evict_pinned(&victims);
	}
	if (r == 0)
		r = delete_records(cache, victims.slots, victims.n);
	if (r == 0)
		r = choose_files(cache, &files, &n_files);
	if (r == 0) {
		copier.piece = kv_pages_new(PIECE);
		r = copier.piece ? 0 : -ENOMEM;
	}
	for (uint32_t i = 0; r == 0 && i < n_files; i++)
		r = remove_file(&copier, files[i]);
	kv_pages_free(copier.piece, PIECE);
	cache->stats.io_errors += copier.unreadable;
	if (r == 0 && victims.n)
		kv_warn(cache, "shrunk", "ssd=%lluM: %zu blocks evicted",
			(unsigned long long)(cache->ssd.cap >> 20), victims.n);
	if (r == 0 && copier.unreadable)
		kv_warn(cache, "shrink_lost",
			"%llu blocks could not be read, and are lost",
			(unsigned long long)copier.unreadable);
	return r;
}
