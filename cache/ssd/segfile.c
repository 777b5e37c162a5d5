/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segfile.c - the segment files below STORE/segments, and the slots that blocks
 * have in them.
 *
 * OWNS       every kv_segfile, its descriptor and its bitmap; the SSD classes
 *            (one slot size each).
 *
 * STATES     of an SSD slot, and the function that makes each step:
 *
 *              FREE -> TAKEN     kv_extent_take
 *             TAKEN -> DURABLE   kv_extent_attach_locked, after the commit,
 *                                or kv_extent_moved_locked
 *             TAKEN -> LEAVING   kv_extent_give_up_locked, a failed write
 *           DURABLE -> LEAVING   kv_extent_detach_locked
 *           LEAVING -> FREE      kv_extent_free_locked: deletion.c
 *
 * INVARIANTS
 *   (1) A bit is set exactly while its slot is not FREE.
 *   (2) A slot that is being written, read or held open is never LEAVING.
 *   (3) No more slots are in use than the index has room for records.
 *   (4) No slot is taken from a closed file, and its free slots are not counted
 *       in class->free.
 *   (5) file->heir == class if and only if class->awaited == file.
 *   (6) A file is allocated in full, and its trailer names the slot size, before
 *       the file is used; all files together keep within file_budget.
 *   (7) A file has a record in the index before the file is used.  A file without
 *       one is empty, and removed at mount.
 *   (8) A file is in a class, or on cache->ssd.unusable.
 *
 * LOCKING    cache->lock; none during I/O.  The writer thread alone makes
 *            files, and takes no slot of a file that is being swept.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/causes.h"
#include "cache/core/feed.h"
#include "cache/core/hooks.h"
#include "cache/core/ledger.h"
#include "index/segfile.h"
#include "index/sidecar.h"
#include "common/array.h"
#include "common/crash_point.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#define EVICT_AT_ONCE 32u /* most evictions to make room for a moved block */
/* Make a file on another device if a write to this one takes longer. */
#define BUSY_NS 4e6
#define DELAY_DOUBLED 3u /* most doublings of the delay after failures */

/* ---- classes ---- */

/* Find or make the class of a slot size.  NULL: no memory. */
static struct kv_ssd_class *class_get(struct kv_cache *cache,
				      uint64_t slot_bytes)
{
	struct kv_ssd_class *class;

	LIST_FOREACH(class, &cache->ssd.classes, link)
		if (class->slot_bytes == slot_bytes)
			return class;
	class = calloc(1, sizeof(*class));
	if (!class)
		return NULL;
	class->slot_bytes = slot_bytes;
	for (unsigned i = 0; i < KV_DEVICES; i++)
		TAILQ_INIT(&class->files[i]);
	TAILQ_INIT(&class->lists);
	LIST_INSERT_HEAD(&cache->ssd.classes, class, link);
	return class;
}

static struct kv_evict_list *list_make(struct kv_cache *cache,
				       struct kv_space *space,
				       struct kv_ssd_class *class)
{
	return kv_evict_list_make(space, SSD, class, &class->lists,
				  &cache->ssd.eviction);
}

uint64_t kv_ssd_slot_bytes(struct kv_cache *cache, const struct kv_block *block)
{
	if (block->file != KV_NONE)
		return kv_extent_bytes(cache, block);
	return block->slot ? block->slot->segment->class->slot_bytes : 0;
}

void kv_ssd_pinned_locked(struct kv_cache *cache, const struct kv_block *block,
			  bool more)
{
	const uint64_t slot_bytes = kv_ssd_slot_bytes(cache, block);
	struct kv_space *space = kv_block_space(cache, block);
	struct kv_evict_list *list = NULL;
	struct kv_ssd_class *class = NULL;
	uint64_t bytes = kv_ssd_pin_bytes(cache, slot_bytes);

	kv_assert_locked(&cache->lock);
	if (!slot_bytes)
		return;
	if (cache->ssd.on)
		class = class_get(cache, slot_bytes);
	if (class)
		list = list_make(cache, space, class);
	if (list && more)
		list->pinned++;
	else if (list && list->pinned)
		list->pinned--;
	bytes = more ? bytes : -bytes;
	kv_count_fast(cache, SSD, space, bytes);
	kv_account_take(space->account, KV_FINITE_PINNED, bytes);
	cache->ssd.pinned += bytes;
}

/* ---- files of a class ---- */

/* Return the list of the file's class and device. */
static struct kv_segfiles *list_of(const struct kv_segfile *file)
{
	return &file->class->files[file->device->number];
}

/* Add an empty file to the class of its slot size. -ENOMEM. */
static int class_add(struct kv_cache *cache, struct kv_segfile *file)
{
	struct kv_ssd_class *class = class_get(cache, file->slot_bytes);
	const uint32_t slots =
		(uint32_t)(cache->ssd.segment_bytes / file->slot_bytes);
	const size_t words = (slots + 63) / 64;
	uint32_t *blocks;
	uint64_t *bitmap;

	if (!class)
		return -ENOMEM;
	bitmap = calloc(3 * words, sizeof(*bitmap));
	blocks = calloc(slots, sizeof(*blocks));
	if (!bitmap || !blocks) {
		free(bitmap);
		free(blocks);
		return -ENOMEM;
	}
	free(file->bitmap);
	free(file->blocks);
	file->bitmap = bitmap;
	file->blocks = blocks;
	file->slots = slots;
	file->unqueued = bitmap + words;
	file->unqueued_back = bitmap + 2 * words;
	file->hint = 0;
	file->until = 0;
	file->failures = 0;
	file->class = class;
	class->n_files++;
	class->n_empty++;
	class->free += file->slots;
	class->total += file->slots;
	TAILQ_INSERT_HEAD(list_of(file), file, link);
	if (file->device->failed)
		kv_extents_close_file(file);
	return 0;
}

static void class_remove(struct kv_segfile *file)
{
	struct kv_ssd_class *class = file->class;

	assert(file->used == 0);
	kv_extents_open_file(file);
	TAILQ_REMOVE(list_of(file), file, link);
	class->n_files--;
	class->n_empty--;
	class->free -= file->slots;
	class->total -= file->slots;
}

/* Return whether @file has a free slot that may be taken.  Free slots of an
 * unswept file may hold prologues. */
static bool has_room(const struct kv_segfile *file)
{
	return file->used < file->slots && !file->unswept && !file->closed;
}

void kv_segfile_relink(struct kv_segfile *file)
{
	struct kv_segfiles *list = list_of(file);

	TAILQ_REMOVE(list, file, link);
	if (has_room(file))
		TAILQ_INSERT_HEAD(list, file, link);
	else
		TAILQ_INSERT_TAIL(list, file, link);
}

void kv_extents_close_file(struct kv_segfile *file)
{
	struct kv_ssd_class *class = file->class;

	file->closed = true;
	class->n_closed++;
	class->free -= file->slots - file->used;
	kv_segfile_relink(file);
}

void kv_extents_open_file(struct kv_segfile *file)
{
	struct kv_ssd_class *class = file->class;

	if (!file->closed)
		return;
	if (file->heir)
		file->heir->awaited = NULL;
	file->heir = NULL;
	if (file->device->failed)
		return;
	file->closed = false;
	class->n_closed--;
	class->free += file->slots - file->used;
	kv_segfile_relink(file);
}

/* Return whether device @a ends a write of @bytes in less than half of the time
 * of @b; or in about the same time, and got less to write. */
static bool is_idler(struct kv_device *a, struct kv_device *b, uint64_t bytes)
{
	const double x = kv_device_delay(a, bytes);
	const double y = kv_device_delay(b, bytes);

	return 2 * x < y || (x <= 2 * y && a->placed < b->placed);
}

/* Return a file with a free slot; NULL: none.  Of several devices, prefer the
 * idlest.  If there is none, open files again that were emptied for an heir that
 * did not take them in time. */
static struct kv_segfile *file_with_room(const struct kv_cache *cache,
					 struct kv_ssd_class *class)
{
	const uint32_t n = cache->ssd.n_devices;
	struct kv_segfile *best = NULL, *file, *next;
	const uint64_t now = kv_now_ns();

	for (uint32_t i = 0; i < n; i++) {
		file = TAILQ_FIRST(&class->files[i]);
		if (file && has_room(file) &&
		    (!best ||
		     is_idler(file->device, best->device, class->slot_bytes)))
			best = file;
	}
	for (uint32_t i = 0; !best && class->n_closed && i < n; i++)
		for (file = TAILQ_FIRST(&class->files[i]); file; file = next) {
			next = TAILQ_NEXT(file, link);
			if (file->closed && !file->emptying &&
			    file->until < now)
				kv_extents_open_file(file);
			if (has_room(file))
				best = file;
		}
	return best;
}

/* Return an empty file of another slot size that may be converted to
 * @slot_bytes; NULL: none. */
static struct kv_segfile *empty_file(struct kv_cache *cache,
				     uint64_t slot_bytes)
{
	struct kv_segfile *file = TAILQ_FIRST(&cache->ssd.unusable);
	const uint64_t now = kv_now_ns();
	struct kv_ssd_class *class;

	if (file && file->until <= now && !file->device->failed)
		return file;
	LIST_FOREACH(class, &cache->ssd.classes, link) {
		if (class->slot_bytes == slot_bytes || !class->n_empty)
			continue;
		for (uint32_t i = 0; i < cache->ssd.n_devices; i++)
			TAILQ_FOREACH(file, &class->files[i], link)
				if (file->used == 0 && !file->sweeping &&
				    !file->emptying && !file->device->failed &&
				    (!file->heir || file->until < now ||
				     file->heir->slot_bytes == slot_bytes))
					return file;
	}
	return NULL;
}

/* ---- slots ---- */

struct kv_block *kv_extent_block(struct kv_cache *cache,
				 const struct kv_segfile *file,
				 uint32_t slot_number)
{
	const uint32_t word = slot_number / 64;
	struct kv_block *block;

	if (!((file->bitmap[word] & ~file->unqueued[word]) >> slot_number % 64 &
	      1))
		return NULL;
	block = kv_table_at(&cache->table, file->blocks[slot_number]);
	return block->file == file->id && block->slot_number == slot_number
		       ? block
		       : NULL;
}

static void set_block(struct kv_segfile *file, uint32_t slot_number,
		      struct kv_block *block)
{
	file->blocks[slot_number] = block->number;
	block->file = file->id;
	block->slot_number = slot_number;
}

static void set_taken(struct kv_cache *cache, struct kv_segfile *file,
		      uint32_t slot_number)
{
	struct kv_ssd_class *class = file->class;

	file->bitmap[slot_number / 64] |= 1ull << slot_number % 64;
	class->n_empty -= file->used++ == 0;
	class->free--;
	cache->ssd.records++;
	cache->ssd.used += file->slot_bytes;
	if (file->used == file->slots)
		kv_segfile_relink(file);
}

void kv_extent_free_locked(struct kv_cache *cache, uint64_t slot_id)
{
	struct kv_segfile *file = kv_segfile_of(cache, slot_id);
	uint32_t slot_number = (uint32_t)slot_id;
	struct kv_ssd_class *class = file->class;

	kv_assert_locked(&cache->lock);
	file->bitmap[slot_number / 64] &= ~(1ull << slot_number % 64);
	file->hint = KV_MIN(file->hint, slot_number);
	cache->ssd.used -= file->slot_bytes;
	class->free += !file->closed;
	cache->ssd.records--;
	if (file->used-- == file->slots)
		kv_segfile_relink(file);
	class->n_empty += file->used == 0;
	KV_POINT("extent.reusable");
}

/* Take the first free slot of @file, which has_room(). */
static uint32_t take_first(struct kv_cache *cache, struct kv_segfile *file)
{
	uint32_t word = file->hint / 64;

	while (file->bitmap[word] == UINT64_MAX)
		word++;
	file->hint = word * 64 + (uint32_t)__builtin_ctzll(~file->bitmap[word]);
	assert(file->hint < file->slots);
	set_taken(cache, file, file->hint);
	return file->hint;
}

/* Count one more, or one less, slot that is written for @space. */
static void count_writing(struct kv_cache *cache, struct kv_space *space,
			  struct kv_ssd_class *class, bool more)
{
	struct kv_evict_list *list = list_make(cache, space, class);

	kv_count_coming(SSD, space,
			more ? class->slot_bytes : -class->slot_bytes);
	if (list)
		list->writing += more ? 1 : UINT32_MAX;
}

static uint64_t records_free(const struct kv_ssd *ssd)
{
	return ssd->records_max - KV_MIN(ssd->records, ssd->records_max);
}

/* Return whether the index has no room for another record.  Small blocks fill
 * the index before they fill the files. */
static bool index_is_full(const struct kv_cache *cache)
{
	return !records_free(&cache->ssd) ||
	       kv_index_room(cache->index) < cache->ssd.index_reserve;
}

/* Return whether the filesystem and the cap have room for another file. */
static bool room_for_file(const struct kv_cache *cache)
{
	const struct kv_ssd *ssd = &cache->ssd;

	return !ssd->full && (ssd->live_files + 1) * ssd->segment_bytes +
					     kv_sidecars_over(cache) <=
				     ssd->file_budget;
}

/* Return the delay of a device that is too busy to take over writes from the
 * device of @file. */
static double busy_from(const struct kv_segfile *file)
{
	return file ? kv_device_delay(file->device, file->slot_bytes) / 2
		    : HUGE_VAL;
}

/* Return whether a file should be made on an idler device than that of @file,
 * which is busy: while half of the bytes for files are free. */
static bool wants_another(struct kv_cache *cache, const struct kv_segfile *file)
{
	struct kv_ssd *ssd = &cache->ssd;
	const double busy = busy_from(file);

	if (busy < BUSY_NS / 2 || !room_for_file(cache) ||
	    2 * (ssd->live_files + 1) * ssd->segment_bytes > ssd->file_budget)
		return false;
	for (uint32_t i = 0; i < ssd->n_devices; i++)
		if (kv_device_idle(&ssd->devices[i], file->slot_bytes, busy))
			return true;
	return false;
}

int kv_extent_take(struct kv_cache *cache, struct kv_space *space,
		   uint64_t slot_bytes, uint32_t *ret_file,
		   uint32_t *ret_slot_number)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_ssd_class *class = class_get(cache, slot_bytes);
	uint64_t want, want_records = ssd->records_max / 50 + 1;
	struct kv_segfile *file;
	int r;

	if (!class || !list_make(cache, space, class))
		return -ENOMEM;
	r = kv_ssd_fit_quota_locked(cache, space, slot_bytes);
	if (r < 0)
		return r;
	if (index_is_full(cache))
		return ssd->leaving || kv_ssd_evict_record_locked(cache, space)
			       ? -EAGAIN
			       : -ENOSPC;
	file = file_with_room(cache, class);
	if (file && ssd->n_devices > 1 && wants_another(cache, file))
		return -ENOENT;
	if (!file && class->free) {
		ssd->sweep_first = slot_bytes;
		if (!room_for_file(cache))
			return -EAGAIN;
	}
	if (!file && (room_for_file(cache) || empty_file(cache, slot_bytes)))
		return -ENOENT;
	if (!file && kv_ssd_evict_for(cache, class, space) == 0)
		return -EAGAIN;
	if (!file && !TAILQ_EMPTY(&ssd->unusable))
		return -EIO;
	if (!file)
		return ssd->full ? ssd->full : -ENOSPC;
	*ret_slot_number = take_first(cache, file);
	count_writing(cache, space, class, true);
	space->patience.seen_ns = 0;
	*ret_file = file->id;
	KV_POINT("extent.taken");
	/* Keep about 2 % of the slots free, so that saves need not wait for a
	 * deletion, unless files can be made or taken from other classes.
	 * Evictions free no slot while deletions wait for memory. */
	want = class->total / 50 + 1;
	if (class->free + class->leaving < want &&
	    (room_for_file(cache) || empty_file(cache, slot_bytes) ||
	     kv_ssd_balance_locked(cache, class, space)))
		want = 0;
	while (class->free + class->leaving < want &&
	       !ssd->deletions.unqueued &&
	       kv_ssd_evict_one_locked(cache, class, NULL))
		continue;
	while (records_free(ssd) + ssd->leaving < want_records &&
	       !ssd->deletions.unqueued &&
	       kv_ssd_evict_record_locked(cache, NULL))
		continue;
	return 0;
}

int kv_extent_take_beside_locked(struct kv_cache *cache,
				 const struct kv_block *block, size_t n,
				 uint64_t *ret_slot_id)
{
	struct kv_segfile *from = kv_segfile_at(cache, block->file);
	struct kv_ssd_class *class = from->class;
	struct kv_segfile *file = file_with_room(cache, class);

	kv_assert_locked(&cache->lock);
	if (index_is_full(cache))
		return -ENOSPC;
	while (!file && class->leaving < KV_MIN(n, EVICT_AT_ONCE) &&
	       !cache->ssd.deletions.unqueued &&
	       kv_ssd_evict_beside_locked(cache, from))
		continue;
	if (!file)
		return class->leaving ? -EAGAIN : -ENOSPC;
	*ret_slot_id = kv_slot_id(file->id, take_first(cache, file));
	count_writing(cache, kv_block_space(cache, block), class, true);
	return 0;
}

void kv_extent_moved_locked(struct kv_cache *cache, struct kv_block *block,
			    uint64_t slot_id)
{
	struct kv_space *space = kv_block_space(cache, block);
	const uint64_t from = kv_slot_id(block->file, block->slot_number);
	struct kv_segfile *file = kv_segfile_of(cache, slot_id);

	kv_assert_locked(&cache->lock);
	set_block(file, (uint32_t)slot_id, block);
	count_writing(cache, space, file->class, false);
	/* A slot that is being read stays taken: read.c frees it afterwards. */
	block->moved = (block->flags & BLOCK_READING) != 0;
	kv_extent_delete_locked(cache, space, from, !block->moved);
	/* A listing of the index under way may have passed the new slot. */
	if (!(block->flags & BLOCK_REMOVED))
		kv_feed_note_locked(cache, space, block);
}

int kv_extent_relocate(struct kv_cache *cache, struct kv_block *block)
{
	const uint64_t old = kv_slot_id(block->file, block->slot_number);
	struct kv_segfile *to =
		file_with_room(cache, kv_segfile_at(cache, block->file)->class);

	if (!to)
		return -ENOSPC;
	set_block(to, take_first(cache, to), block);
	kv_extent_free_locked(cache, old);
	return 0;
}

void kv_extent_attach_locked(struct kv_cache *cache, struct kv_block *block,
			     uint32_t file, uint32_t slot_number)
{
	struct kv_segfile *f = kv_segfile_at(cache, file);
	struct kv_space *space = kv_block_space(cache, block);

	kv_assert_locked(&cache->lock);
	set_block(f, slot_number, block);
	kv_count_bytes(SSD, space, f->slot_bytes);
	count_writing(cache, space, f->class, false);
	if (!(block->flags & BLOCK_PINNED))
		kv_evict_list_add(cache, kv_evict_list_ssd(cache, block), block,
				  false);
	kv_feed_note_locked(cache, space, block);
}

void kv_extent_give_up_locked(struct kv_cache *cache, struct kv_space *space,
			      uint64_t slot_id)
{
	kv_assert_locked(&cache->lock);
	count_writing(cache, space, kv_segfile_of(cache, slot_id)->class,
		      false);
	kv_extent_delete_locked(cache, space, slot_id, true);
}

void kv_extent_pin_locked(struct kv_cache *cache, struct kv_block *block,
			  bool pin)
{
	struct kv_evict_list *list = kv_evict_list_ssd(cache, block);

	kv_assert_locked(&cache->lock);
	kv_evict_list_drop(list, block->number);
	if (!pin)
		kv_evict_list_add_plain(list, block);
}

/* Return the file of @slot_id, if that slot exists and is free; else NULL. */
static struct kv_segfile *file_of_free(struct kv_cache *cache, uint64_t slot_id)
{
	struct kv_segfile *file = kv_segfile_of(cache, slot_id);
	const uint32_t slot_number = (uint32_t)slot_id;

	if (!file || slot_number >= file->slots ||
	    (file->bitmap[slot_number / 64] & 1ull << slot_number % 64))
		return NULL;
	return file;
}

int kv_extent_adopt(struct kv_cache *cache, struct kv_block *block,
		    uint64_t slot_id)
{
	struct kv_segfile *file = file_of_free(cache, slot_id);
	struct kv_space *space = kv_block_space(cache, block);

	if (!file ||
	    KV_PAGE + kv_round_up(block->length, KV_PAGE) > file->slot_bytes)
		return -EBADMSG;
	if (!list_make(cache, space, file->class))
		return -ENOMEM;
	set_taken(cache, file, (uint32_t)slot_id);
	set_block(file, (uint32_t)slot_id, block);
	kv_count_bytes(SSD, space, file->slot_bytes);
	return 0;
}

int kv_extent_adopt_stale(struct kv_cache *cache, struct kv_space *space,
			  uint64_t slot_id)
{
	struct kv_segfile *file = file_of_free(cache, slot_id);

	if (!file)
		return -EBADMSG;
	set_taken(cache, file, (uint32_t)slot_id);
	kv_extent_delete_locked(cache, space, slot_id, true);
	return 0;
}

/* Take the block off the SSD lists and counts.  Return its former slot. */
static uint64_t take_off(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_segfile *file = kv_segfile_at(cache, block->file);
	uint64_t id = kv_slot_id(block->file, block->slot_number);

	if (block->flags & BLOCK_PINNED)
		kv_ssd_pinned_locked(cache, block, false);
	kv_evict_list_drop(kv_evict_list_ssd(cache, block), block->number);
	kv_count_bytes(SSD, kv_block_space(cache, block), -file->slot_bytes);
	block->file = block->slot_number = KV_NONE;
	if (block->slot) {
		block->slot->former = id;
		block->slot->lost = file->device->failed;
	}
	if (!(block->flags & BLOCK_REMOVED))
		kv_feed_note_locked(cache, kv_block_space(cache, block), block);
	/* A pinned block that is also in DRAM will be written again. */
	if (block->flags & BLOCK_PINNED)
		kv_ssd_pinned_locked(cache, block, true);
	return id;
}

void kv_extent_detach_locked(struct kv_cache *cache, struct kv_block *block,
			     bool reuse)
{
	kv_assert_locked(&cache->lock);
	kv_extent_delete_locked(cache, kv_block_space(cache, block),
				take_off(cache, block), reuse);
	KV_POINT("extent.leaving");
}

void kv_extent_lose_locked(struct kv_cache *cache, struct kv_block *block)
{
	kv_assert_locked(&cache->lock);
	take_off(cache, block);
	if (block->slot) {
		kv_unpersisted_add_locked(cache, block->slot);
		kv_write_enqueue_locked(cache, block, false);
	} else {
		kv_cause_note_block(cache, block, KV_CAUSE_OFFLINE);
		kv_block_remove_locked(cache, block);
	}
}

void kv_extent_drop(struct kv_cache *cache, struct kv_block *block)
{
	kv_extent_free_locked(cache, take_off(cache, block));
	kv_block_remove_locked(cache, block);
}

uint64_t kv_extent_bytes(struct kv_cache *cache, const struct kv_block *block)
{
	return block->file == KV_NONE
		       ? 0
		       : kv_segfile_at(cache, block->file)->slot_bytes;
}

/* ---- files: made, converted, removed ---- */

static int file_open(const struct kv_device *device, uint32_t id, int flags)
{
	return kv_segfile_open(device->dir, id,
			       flags | (device->buffered ? 0 : O_DIRECT));
}

/* @fd -1: the device is missing; keep the file's number, and its bytes in the
 * cap. */
static int file_add(struct kv_cache *cache, struct kv_device *device,
		    uint32_t id, int fd, uint64_t slot_bytes, bool trailer)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_segfile *file = calloc(1, sizeof(*file));
	int r;

	if (!file)
		return -ENOMEM;
	file->id = id;
	file->device = device;
	file->fd = fd;
	file->slot_bytes = slot_bytes;
	file->trailer = trailer;
	if (id >= ssd->n_files) {
		const uint32_t n = KV_MAX(ssd->n_files * 2, id + 64);

		if (kv_array_resize(&ssd->files, n, sizeof(*ssd->files)) < 0) {
			free(file);
			return -ENOMEM;
		}
		memset(ssd->files + ssd->n_files, 0,
		       (n - ssd->n_files) * sizeof(*ssd->files));
		ssd->n_files = n;
	}
	r = fd < 0 ? 0 : class_add(cache, file);
	if (r < 0) {
		free(file);
		return r;
	}
	ssd->files[id] = file;
	ssd->live_files++;
	device->files++;
	return 0;
}

int kv_segfile_adopt(struct kv_cache *cache,
		     const struct kv_segfile_record *record)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_device *device = ssd->devices;
	char path[PATH_MAX];
	struct kv_trailer trailer;
	struct stat st;
	bool agrees;
	int e, fd, r;

	if (record->slot_bytes < 2 * KV_PAGE || record->slot_bytes % KV_PAGE ||
	    record->slot_bytes > ssd->segment_bytes ||
	    record->id > UINT32_MAX / 2 || kv_segfile_at(cache, record->id))
		return -EBADMSG;
	if (kv_segfile_link(device->dir, record->id, path) == 0)
		device = kv_device_get(cache, path);
	if (!device)
		return -E2BIG;
	if (device->failed) {
		r = file_add(cache, device, record->id, -1, record->slot_bytes,
			     true);
		return r < 0 ? r : -ENODEV;
	}
	fd = file_open(device, record->id,
		       cache->config.read_only ? O_RDONLY : O_RDWR);
	if (fd < 0)
		return fd;
	r = fstat(fd, &st) < 0 ? -errno : 0;
	if (r == 0 && (uint64_t)st.st_size < ssd->segment_bytes)
		r = -EBADMSG;
	if (r == 0) {
		/* A file that the user has made longer has no trailer at the
		 * place where readers look for it. */
		e = kv_trailer_read(fd, record->id, &trailer);
		agrees = e == 0 && trailer.slot_bytes == record->slot_bytes &&
			 memcmp(trailer.store, cache->info.store,
				sizeof(trailer.store)) == 0;
		ssd->unswept |= !agrees;
		/* A sweep would zero the blocks of a file with a wrong name. */
		r = e == -EUCLEAN ? e
				  : file_add(cache, device, record->id, fd,
					     record->slot_bytes, agrees);
	}
	if (r < 0)
		close(fd);
	return r;
}

uint64_t kv_sidecars_over(const struct kv_cache *cache)
{
	const uint64_t share = kv_index_map_bytes(cache->ssd.cap) / 4;

	return cache->ssd.sidecars - KV_MIN(cache->ssd.sidecars, share);
}

bool kv_sidecars_grow_locked(struct kv_cache *cache, uint64_t bytes)
{
	struct kv_ssd *ssd = &cache->ssd;
	uint64_t over;

	kv_assert_locked(&cache->lock);
	ssd->sidecars += bytes;
	over = kv_sidecars_over(cache);
	if (!ssd->on || !over ||
	    ssd->live_files * ssd->segment_bytes + over <= ssd->file_budget)
		return true;
	ssd->sidecars -= bytes;
	return false;
}

/* Put the record of a file into the index; or with @slot_bytes 0 delete it. */
static int record(struct kv_cache *cache, uint32_t id, uint64_t slot_bytes)
{
	struct kv_segfile_record file = {.id = id, .slot_bytes = slot_bytes};
	struct kv_txn *txn;
	int r = kv_txn_begin(cache->index, &txn);

	if (r < 0)
		return r;
	if (slot_bytes) {
		file.slots = (uint32_t)(cache->ssd.segment_bytes / slot_bytes);
		kv_txn_put_segfile(txn, &file);
	} else {
		kv_txn_delete(txn, KV_PART_SEGMENTS, id);
	}
	return kv_txn_commit(txn);
}

static void *run_apart(void *arg)
{
	struct kv_apart *a = arg;
	struct kv_cache *cache = a->cache;
	const int r = a->work(a);
	bool left;

	kv_lock(cache);
	a->status = r;
	a->over = true;
	left = a->left;
	cache->ssd.makers_left -= left;
	pthread_cond_broadcast(&cache->ssd.done);
	kv_unlock(cache);
	if (left && a->new)
		kv_closep(&a->fd);
	if (left)
		free(a);
	return NULL;
}

bool kv_apart_run(struct kv_apart *a)
{
	struct kv_cache *cache = a->cache;
	struct kv_device *device = a->device;
	pthread_t thread;
	bool left = false;

	a->since = kv_now_ns();
	if (!device->path ||
	    kv_thread_start(&thread, "kvfs-file", run_apart, a) < 0) {
		a->status = device->path ? -ENOMEM : a->work(a);
		return true;
	}
	pthread_detach(thread);
	kv_lock(cache);
	while (!a->over && !left) {
		if (kv_now_ns() - a->since > cache->config.io_patience)
			(void)kv_device_fail_locked(cache, device, -ETIMEDOUT);
		left = a->left = device->failed;
		if (!left)
			kv_cond_wait(cache, &cache->ssd.done,
				     cache->config.io_retry);
	}
	cache->ssd.makers_left += left;
	kv_unlock(cache);
	return !left;
}

void kv_apart_step(struct kv_apart *a)
{
	kv_lock(a->cache);
	a->since = kv_now_ns();
	if (!a->device->path)
		a->cache->health.zero_since = a->since;
	kv_unlock(a->cache);
}

/* Make or convert a file, as far as that concerns its disk. */
static int make(struct kv_apart *a)
{
	const uint64_t bytes = a->cache->ssd.segment_bytes;
	int r;

	if (a->new) {
		a->fd = file_open(a->device, a->id, O_RDWR | O_CREAT | O_TRUNC);
		KV_POINT("file.made");
		r = a->fd < 0 ? a->fd
			      : -posix_fallocate(a->fd, 0, (off_t)bytes);
		KV_POINT("file.allocated");
	} else {
		r = kv_segfile_clear(a->fd, bytes, a->slot_bytes);
		KV_POINT("file.cleared");
	}
	if (r == 0)
		r = kv_trailer_write(a->fd, a->id, a->cache->info.store, bytes,
				     a->slot_bytes);
	if (r == 0 && a->new &&fsync(a->device->dir) < 0)
		r = -errno;
	return r;
}

/* Make file @id, or with *@fd clear that file for slots of @slot_bytes.  If the
 * disk hangs, the device has failed, and the next mount removes the file. */
static int make_file(struct kv_cache *cache, struct kv_device *device,
		     uint32_t id, uint64_t slot_bytes, int *fd)
{
	struct kv_apart *a = calloc(1, sizeof(*a));
	int r;

	if (!a)
		return -ENOMEM;
	*a = (struct kv_apart){.cache = cache,
			       .device = device,
			       .work = make,
			       .id = id,
			       .slot_bytes = slot_bytes,
			       .new = *fd < 0,
			       .fd = *fd};
	if (!kv_apart_run(a))
		return -ETIMEDOUT;
	r = a->status;
	*fd = a->fd;
	free(a);
	return r;
}

/*
 * Change the slot size of an empty file.  Old slots hold bytes of their owners,
 * so clear the file before a trailer with the new slot size makes them readable
 * to others.  Meanwhile the file has no record, so the next mount would remove
 * it.  After a failure the file is of no class until a later try
 * succeeds; each failure doubles the delay, up to a limit.
 */
static int convert(struct kv_cache *cache, struct kv_segfile *file,
		   uint64_t slot_bytes)
{
	struct kv_ssd *ssd = &cache->ssd;
	const bool unswept = file->unswept;
	int fd = file->fd, r;

	file->unswept = false; /* clearing the file zeroes all prologues */
	if (file->class) {
		class_remove(file);
	} else {
		TAILQ_REMOVE(&ssd->unusable, file, link);
		cache->stats.ssd_unusable_files--;
	}
	kv_unlock(cache);
	r = record(cache, file->id, 0);
	KV_POINT("file.reclass");
	if (r == 0)
		r = make_file(cache, file->device, file->id, slot_bytes, &fd);
	KV_POINT("file.trailer");
	if (r == 0)
		r = record(cache, file->id, slot_bytes);
	KV_POINT("file.recorded");
	kv_lock(cache);
	if (unswept && r < 0) {
		ssd->unswept = true;
		if (!file->device->failed)
			kv_flushes_settle_locked(cache, r);
	}
	ssd->n_unswept -= unswept;
	kv_flushes_settle_locked(cache, 0);
	if (r == 0) {
		file->slot_bytes = slot_bytes;
		file->trailer = true;
		r = class_add(cache, file);
	}
	if (r == 0)
		return 0;
	file->class = NULL;
	file->until = kv_now_ns() + (cache->config.io_retry << file->failures);
	file->failures += file->failures < DELAY_DOUBLED;
	cache->stats.resize_failures++;
	cache->stats.ssd_unusable_files++;
	TAILQ_INSERT_TAIL(&ssd->unusable, file, link);
	return r;
}

int kv_segfile_create(struct kv_cache *cache, uint64_t slot_bytes)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_ssd_class *class = class_get(cache, slot_bytes);
	struct kv_segfile *file =
		room_for_file(cache) ? NULL : empty_file(cache, slot_bytes);
	struct kv_device *device;
	char name[KV_SEGFILE_NAME];
	uint32_t id = 0;
	int fd = -1, r;
	bool made;

	if (file)
		return convert(cache, file, slot_bytes);
	if (!class)
		return -ENOMEM;
	device = kv_device_choose(cache, slot_bytes,
				  busy_from(file_with_room(cache, class)));
	if (!device)
		return -ENOSPC;
	while (id < ssd->n_files && ssd->files[id])
		id++;
	kv_unlock(cache);
	r = make_file(cache, device, id, slot_bytes, &fd);
	made = r == 0;
	if (r == 0 && device->path)
		r = kv_device_link(cache, device, id);
	KV_POINT("file.named");
	if (r == 0)
		r = record(cache, id, slot_bytes);
	kv_lock(cache);
	if (r == 0)
		r = file_add(cache, device, id, fd, slot_bytes, true);
	if (r < 0) {
		kv_unlock(cache);
		if (made)
			(void)record(cache, id, 0);
		kv_segfile_name(id, name);
		if (!device->failed)
			unlinkat(device->dir, name, 0);
		unlinkat(ssd->devices[0].dir, name, 0);
		kv_closep(&fd);
		kv_lock(cache);
		if (!made && kv_device_refused_locked(cache, device, r))
			r = 0;
	}
	return r;
}

static void file_free(struct kv_segfile *file)
{
	kv_closep(&file->fd);
	free(file->bitmap);
	free(file->blocks);
	free(file);
}

void kv_segfile_forget(struct kv_cache *cache, struct kv_segfile *file)
{
	class_remove(file);
	cache->ssd.files[file->id] = NULL;
	cache->ssd.live_files--;
	file->device->files--;
	file_free(file);
}

struct swept {
	struct kv_cache *cache;
	const struct kv_device *device;
};

/* Remove a file without a record, or a second file with its number. */
static int remove_stray(void *arg, int dir, const char *name)
{
	const struct swept *swept = arg;
	const struct kv_segfile *file;
	uint32_t id;

	if (!kv_segfile_parse(name, &id))
		return 0;
	file = kv_segfile_at(swept->cache, id);
	if (!file || (swept->device->path && file->device != swept->device))
		unlinkat(dir, name, 0);
	KV_POINT("mount.sweep");
	return 0;
}

void kv_segfiles_sweep(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;

	for (uint32_t i = 0; i < ssd->n_devices; i++)
		if (!ssd->devices[i].failed)
			(void)kv_dir_walk(
				ssd->devices[i].dir, ".", remove_stray,
				&(struct swept){cache, &ssd->devices[i]});
}

void kv_segfiles_close(struct kv_cache *cache)
{
	struct kv_ssd_class *class;

	for (uint32_t id = 0; id < cache->ssd.n_files; id++)
		if (cache->ssd.files[id])
			file_free(cache->ssd.files[id]);
	free(cache->ssd.files);
	while ((class = LIST_FIRST(&cache->ssd.classes))) {
		LIST_REMOVE(class, link);
		kv_evict_lists_free(&class->lists);
		free(class);
	}
}
