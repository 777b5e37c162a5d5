/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent.c - which block has which slot of which segment file.
 *
 * OWNS       the SSD classes (one slot size each) and the files' bitmaps.
 *
 * STATES     of an SSD slot, and the function that makes each step:
 *
 *              FREE -> TAKEN     kv_extent_take
 *             TAKEN -> DURABLE   kv_extent_attach_locked, after the commit,
 *                                or kv_extent_moved_locked
 *             TAKEN -> FREE      extent_free_locked     (the write failed)
 *           DURABLE -> LEAVING   kv_extent_detach_locked
 *           LEAVING -> FREE      kv_extent_left_locked: deletion.c
 *
 * INVARIANTS
 *   (1) A bit is set exactly while its slot is not FREE.
 *   (2) A slot that is being written, read or held open is never LEAVING.
 *   (3) No more slots are in use than the index has room for records.
 *   (4) No slot is taken from a closed file, and its free ones do not count as
 *       the class's.
 *   (5) A file whose heir is a class is what that class awaits, and no other.
 *
 * LOCKING    cache->lock.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/list.h"
#include "cache/core/table.h"
#include "cache/core/ledger.h"
#include "common/crash_point.h"

#define EVICT_AT_ONCE 32u /* for blocks that are moved */

static struct kv_evict_node *node_of(void *arg, uint32_t block)
{
	struct kv_cache *cache = arg;

	return &kv_table_at(&cache->table, block)->node;
}

int kv_extent_eviction_init(struct kv_cache *cache)
{
	return kv_eviction_init(&cache->ssd.eviction, cache->config.evict,
				&cache->clock, node_of, cache);
}

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
	TAILQ_INIT(&class->files);
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

void kv_extent_pins_locked(struct kv_cache *cache, struct kv_space *space,
			   uint64_t slot_bytes, bool more)
{
	struct kv_ssd_class *class = class_get(cache, slot_bytes);
	struct kv_evict_list *list =
		class ? list_make(cache, space, class) : NULL;

	kv_assert_locked(&cache->lock);
	if (list && more)
		list->pinned++;
	else if (list && list->pinned)
		list->pinned--;
}

int kv_extents_add_file(struct kv_cache *cache, struct kv_segfile *file)
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
	file->used = 0;
	file->closed = false;
	file->heir = NULL;
	file->until = 0;
	file->failures = 0;
	file->class = class;
	class->n_files++;
	class->n_empty++;
	class->free += file->slots;
	class->total += file->slots;
	TAILQ_INSERT_HEAD(&class->files, file, link);
	return 0;
}

void kv_extents_remove_file(struct kv_segfile *file)
{
	struct kv_ssd_class *class = file->class;

	assert(file->used == 0);
	kv_extents_open_file(file);
	TAILQ_REMOVE(&class->files, file, link);
	class->n_files--;
	class->n_empty--;
	class->free -= file->slots;
	class->total -= file->slots;
}

struct kv_block *kv_extent_block(struct kv_cache *cache,
				 const struct kv_segfile *file,
				 uint32_t slot_number)
{
	const uint64_t bit = 1ull << slot_number % 64;
	struct kv_block *block;

	if (!(file->bitmap[slot_number / 64] & bit))
		return NULL;
	block = kv_table_at(&cache->table, file->blocks[slot_number]);
	return block->file == file->id && block->slot_number == slot_number &&
			       !(block->flags & BLOCK_REMOVED)
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
	if (file->used == file->slots) {
		TAILQ_REMOVE(&class->files, file, link);
		TAILQ_INSERT_TAIL(&class->files, file, link);
	}
}

static uint32_t first_free(struct kv_segfile *file)
{
	for (uint32_t word = file->hint / 64; word < (file->slots + 63) / 64;
	     word++) {
		uint32_t slot_number;

		if (file->bitmap[word] == UINT64_MAX)
			continue;
		slot_number = word * 64 +
			      (uint32_t)__builtin_ctzll(~file->bitmap[word]);
		file->hint = slot_number;
		return slot_number < file->slots ? slot_number : KV_NONE;
	}
	return KV_NONE;
}

struct kv_segfile *kv_extents_empty_file(struct kv_cache *cache,
					 uint64_t slot_bytes)
{
	struct kv_segfile *failed = TAILQ_FIRST(&cache->ssd.unusable);
	const uint64_t now = kv_now_ns();
	struct kv_ssd_class *class;

	if (failed && failed->until <= now)
		return failed;
	LIST_FOREACH(class, &cache->ssd.classes, link) {
		struct kv_segfile *file;

		if (class->slot_bytes == slot_bytes || !class->n_empty)
			continue;
		TAILQ_FOREACH(file, &class->files, link)
			if (file->used == 0 && !file->sweeping &&
			    !file->emptying &&
			    (!file->heir || file->until < now ||
			     file->heir->slot_bytes == slot_bytes))
				return file;
	}
	return NULL;
}

/* Free slots of a file that is not swept yet may hold prologues. */
static bool has_room(const struct kv_segfile *file)
{
	return file->used < file->slots && !file->unswept && !file->closed;
}

void kv_extents_renew_file(struct kv_segfile *file)
{
	struct kv_ssd_class *class = file->class;

	TAILQ_REMOVE(&class->files, file, link);
	if (has_room(file))
		TAILQ_INSERT_HEAD(&class->files, file, link);
	else
		TAILQ_INSERT_TAIL(&class->files, file, link);
}

void kv_extents_close_file(struct kv_segfile *file)
{
	struct kv_ssd_class *class = file->class;

	file->closed = true;
	class->n_closed++;
	class->free -= file->slots - file->used;
	kv_extents_renew_file(file);
}

void kv_extents_open_file(struct kv_segfile *file)
{
	struct kv_ssd_class *class = file->class;

	if (!file->closed)
		return;
	if (file->heir)
		file->heir->awaited = NULL;
	file->heir = NULL;
	file->closed = false;
	class->n_closed--;
	class->free += file->slots - file->used;
	kv_extents_renew_file(file);
}

/* Open files that were emptied for a class that did not take them. */
static void open_files(struct kv_ssd_class *class)
{
	const uint64_t now = kv_now_ns();
	struct kv_segfile *file, *next;

	for (file = TAILQ_FIRST(&class->files); file && class->n_closed;
	     file = next) {
		next = TAILQ_NEXT(file, link);
		if (file->closed && !file->emptying && file->until < now)
			kv_extents_open_file(file);
	}
}

static struct kv_segfile *file_with_room(struct kv_ssd_class *class)
{
	struct kv_segfile *file = TAILQ_FIRST(&class->files);

	if (!(file && has_room(file)) && class->n_closed) {
		open_files(class);
		file = TAILQ_FIRST(&class->files);
	}
	return file && has_room(file) ? file : NULL;
}

static uint64_t records_free(const struct kv_ssd *ssd)
{
	return ssd->records_max - KV_MIN(ssd->records, ssd->records_max);
}

/* Small blocks fill the index before they fill the files. */
static bool index_is_full(const struct kv_cache *cache)
{
	return !records_free(&cache->ssd) ||
	       kv_index_room(cache->index) < cache->ssd.index_reserve;
}

/* Keep about 2 % free, so that saves need not wait for a deletion; where files
 * may still be made, or be had from other classes, none need. */
static void evict_ahead(struct kv_cache *cache, struct kv_ssd_class *class,
			struct kv_space *space)
{
	const struct kv_ssd *ssd = &cache->ssd;
	uint64_t want = class->total / 50 + 1;
	uint64_t want_records = ssd->records_max / 50 + 1;

	if (class->free + class->leaving < want &&
	    (kv_segfile_room(cache) ||
	     kv_extents_empty_file(cache, class->slot_bytes) ||
	     kv_ssd_balance_locked(cache, class, space)))
		want = 0;
	while (class->free + class->leaving < want &&
	       kv_ssd_evict_one_locked(cache, class, NULL))
		continue;
	while (records_free(ssd) + kv_leaving_locked(cache) < want_records &&
	       kv_ssd_evict_record_locked(cache, NULL))
		continue;
	if (class->leaving)
		kv_commit_kick_locked(cache, false);
}

/* One slot more, or less, is being written for @space. */
static void count_writing(struct kv_cache *cache, struct kv_space *space,
			  struct kv_ssd_class *class, bool more)
{
	struct kv_evict_list *list = list_make(cache, space, class);

	kv_count_coming(SSD, space,
			more ? class->slot_bytes : -class->slot_bytes);
	if (list)
		list->writing += more ? 1 : UINT32_MAX;
}

static int take_from(struct kv_cache *cache, struct kv_segfile *file,
		     struct kv_space *space, uint32_t *ret_slot_number)
{
	uint32_t slot_number = first_free(file);

	if (slot_number == KV_NONE)
		return -EIO;
	set_taken(cache, file, slot_number);
	count_writing(cache, space, file->class, true);
	*ret_slot_number = slot_number;
	return 0;
}

int kv_extent_take(struct kv_cache *cache, struct kv_space *space,
		   uint64_t slot_bytes, uint32_t *ret_file,
		   uint32_t *ret_slot_number)
{
	struct kv_ssd_class *class = class_get(cache, slot_bytes);
	struct kv_segfile *file;
	int r;

	if (!class || !list_make(cache, space, class))
		return -ENOMEM;
	r = kv_ssd_fit_quota_locked(cache, space, slot_bytes);
	if (r < 0)
		return r;
	if (index_is_full(cache))
		return kv_leaving_locked(cache) ||
				       kv_ssd_evict_record_locked(cache, space)
			       ? -EAGAIN
			       : -ENOSPC;
	file = file_with_room(class);
	if (!file && class->free) {
		cache->ssd.sweep_first = slot_bytes;
		if (!kv_segfile_room(cache))
			return -EAGAIN;
	}
	if (!file && (kv_segfile_room(cache) ||
		      kv_extents_empty_file(cache, slot_bytes)))
		return -ENOENT;
	if (!file && kv_ssd_evict_for(cache, class, space) == 0)
		return -EAGAIN;
	/* Without a fault there might be room: the writer retries. */
	if (!file)
		return TAILQ_EMPTY(&cache->ssd.unusable) ? -ENOSPC : -EIO;
	r = take_from(cache, file, space, ret_slot_number);
	if (r < 0)
		return r;
	space->patience.seen_ns = 0;
	*ret_file = file->id;
	KV_POINT("extent.taken");
	evict_ahead(cache, class, space);
	return 0;
}

int kv_extent_take_beside_locked(struct kv_cache *cache,
				 const struct kv_block *block, size_t n,
				 uint64_t *ret_slot_id)
{
	struct kv_ssd_class *class = kv_segfile_at(cache, block->file)->class;
	struct kv_segfile *file = file_with_room(class);
	uint32_t slot_number;
	int r;

	kv_assert_locked(&cache->lock);
	if (index_is_full(cache))
		return -ENOSPC;
	while (!file && class->leaving < KV_MIN(n, EVICT_AT_ONCE) &&
	       kv_ssd_evict_beside_locked(cache,
					  kv_segfile_at(cache, block->file)))
		continue;
	if (!file)
		return class->leaving ? -EAGAIN : -ENOSPC;
	r = take_from(cache, file, kv_block_space(cache, block), &slot_number);
	if (r == 0)
		*ret_slot_id = kv_slot_id(file->id, slot_number);
	return r;
}

void kv_extent_moved_locked(struct kv_cache *cache, struct kv_block *block,
			    uint64_t slot_id)
{
	struct kv_space *space = kv_block_space(cache, block);
	const uint64_t from = kv_slot_id(block->file, block->slot_number);
	struct kv_segfile *file =
		kv_segfile_at(cache, (uint32_t)(slot_id >> 32));

	kv_assert_locked(&cache->lock);
	set_block(file, (uint32_t)slot_id, block);
	count_writing(cache, space, file->class, false);
	kv_extent_delete_locked(cache, space, from, true);
}

static void extent_free_locked(struct kv_cache *cache, uint64_t slot_id)
{
	struct kv_segfile *file =
		kv_segfile_at(cache, (uint32_t)(slot_id >> 32));
	uint32_t slot_number = (uint32_t)slot_id;
	struct kv_ssd_class *class = file->class;

	kv_assert_locked(&cache->lock);
	file->bitmap[slot_number / 64] &= ~(1ull << slot_number % 64);
	file->hint = KV_MIN(file->hint, slot_number);
	cache->ssd.used -= file->slot_bytes;
	class->free += !file->closed;
	cache->ssd.records--;
	if (file->used-- == file->slots)
		kv_extents_renew_file(file);
	class->n_empty += file->used == 0;
}

int kv_extent_relocate(struct kv_cache *cache, struct kv_block *block)
{
	const uint64_t old = kv_slot_id(block->file, block->slot_number);
	struct kv_segfile *to =
		file_with_room(kv_segfile_at(cache, block->file)->class);
	const uint32_t slot_number = to ? first_free(to) : KV_NONE;

	if (slot_number == KV_NONE)
		return -ENOSPC;
	set_taken(cache, to, slot_number);
	extent_free_locked(cache, old);
	set_block(to, slot_number, block);
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
}

void kv_extent_give_up_locked(struct kv_cache *cache, struct kv_space *space,
			      uint64_t slot_id)
{
	kv_assert_locked(&cache->lock);
	count_writing(cache, space,
		      kv_segfile_at(cache, (uint32_t)(slot_id >> 32))->class,
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

int kv_extent_adopt(struct kv_cache *cache, struct kv_block *block,
		    uint32_t file, uint32_t slot_number)
{
	struct kv_segfile *f = kv_segfile_at(cache, file);

	if (!f || slot_number >= f->slots ||
	    (f->bitmap[slot_number / 64] & 1ull << slot_number % 64) ||
	    KV_PAGE + kv_round_up(block->length, KV_PAGE) > f->slot_bytes)
		return -EBADMSG;
	if (!list_make(cache, kv_block_space(cache, block), f->class))
		return -ENOMEM;
	set_taken(cache, f, slot_number);
	set_block(f, slot_number, block);
	kv_count_bytes(SSD, kv_block_space(cache, block), f->slot_bytes);
	return 0;
}

void kv_extent_leaving_locked(struct kv_cache *cache, uint64_t slot_id)
{
	struct kv_segfile *file =
		kv_segfile_at(cache, (uint32_t)(slot_id >> 32));

	kv_assert_locked(&cache->lock);
	file->class->leaving++;
}

/* The block is on SSD no more; returns the slot it had. */
static uint64_t take_off(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_segfile *file = kv_segfile_at(cache, block->file);
	uint64_t id = kv_slot_id(block->file, block->slot_number);

	/* A block that is in DRAM, too, will come back. */
	if ((block->flags & BLOCK_PINNED) && !block->slot)
		kv_ssd_pinned_locked(cache, kv_block_space(cache, block),
				     file->slot_bytes, false);
	kv_evict_list_drop(kv_evict_list_ssd(cache, block), block->number);
	kv_count_bytes(SSD, kv_block_space(cache, block), -file->slot_bytes);
	block->file = block->slot_number = KV_NONE;
	return id;
}

void kv_extent_supersede(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_space *space = kv_block_space(cache, block);
	const uint64_t id = take_off(cache, block);

	if (!cache->config.read_only)
		kv_extent_delete_locked(cache, space, id, true);
}

int kv_extent_adopt_stale(struct kv_cache *cache, struct kv_space *space,
			  uint64_t slot_id)
{
	struct kv_segfile *file =
		kv_segfile_at(cache, (uint32_t)(slot_id >> 32));
	const uint32_t slot_number = (uint32_t)slot_id;

	if (!file || slot_number >= file->slots ||
	    (file->bitmap[slot_number / 64] & 1ull << slot_number % 64))
		return -EBADMSG;
	set_taken(cache, file, slot_number);
	if (!cache->config.read_only)
		kv_extent_delete_locked(cache, space, slot_id, true);
	return 0;
}

void kv_extent_detach_locked(struct kv_cache *cache, struct kv_block *block)
{
	kv_assert_locked(&cache->lock);
	kv_extent_delete_locked(cache, kv_block_space(cache, block),
				take_off(cache, block), true);
	KV_POINT("extent.leaving");
}

void kv_extent_forget_locked(struct kv_cache *cache, struct kv_block *block)
{
	kv_assert_locked(&cache->lock);
	kv_extent_delete_locked(cache, kv_block_space(cache, block),
				take_off(cache, block), false);
}

void kv_extent_left_locked(struct kv_cache *cache, uint64_t slot_id)
{
	struct kv_segfile *file =
		kv_segfile_at(cache, (uint32_t)(slot_id >> 32));

	kv_assert_locked(&cache->lock);
	file->class->leaving--;
	extent_free_locked(cache, slot_id);
	KV_POINT("extent.reusable");
}

void kv_extent_undelete_locked(struct kv_cache *cache, uint64_t slot_id)
{
	struct kv_segfile *file =
		kv_segfile_at(cache, (uint32_t)(slot_id >> 32));

	kv_assert_locked(&cache->lock);
	file->class->leaving--;
}

void kv_extent_touch_locked(struct kv_cache *cache, struct kv_block *block)
{
	kv_assert_locked(&cache->lock);
	kv_policy_touch(&kv_evict_list_ssd(cache, block)->policy,
			block->number);
}

void kv_extent_order(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_evict_list *list = kv_evict_list_ssd(cache, block);

	if (block->flags & BLOCK_PINNED)
		return;
	kv_evict_list_add_plain(list, block);
}

void kv_extent_drop(struct kv_cache *cache, struct kv_block *block)
{
	extent_free_locked(cache, take_off(cache, block));
	kv_block_remove_locked(cache, block);
}

uint64_t kv_extent_bytes(struct kv_cache *cache, const struct kv_block *block)
{
	return block->file == KV_NONE
		       ? 0
		       : kv_segfile_at(cache, block->file)->slot_bytes;
}
