/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent.c - which block has which slot of which segment file.
 *
 * OWNS       the SSD classes (one slot size each), the files' bitmaps, the list
 *            of deletions that wait for the next commit.
 *
 * STATES     of an SSD slot, and the function that makes each step:
 *
 *              FREE -> TAKEN     kv_extent_take_locked
 *             TAKEN -> DURABLE   kv_extent_attach_locked, after the commit
 *             TAKEN -> FREE      kv_extent_free_locked     (the write failed)
 *           DURABLE -> LEAVING   kv_extent_detach_locked
 *           LEAVING -> FREE      kv_extent_free_locked: prologue zeroed and the
 *                                deletion durable
 *
 * INVARIANTS
 *   (1) A bit is set exactly while its slot is not FREE.
 *   (2) A slot that is being written, read or held open is never LEAVING.
 *
 * LOCKING    cache->lock.
 */
#include "cache/core.h"

static struct kv_node *node_of(void *arg, uint32_t block)
{
	struct kv_cache *cache = arg;

	return &kv_table_at(&cache->table, block)->node;
}

static struct kv_ssd_class *class_find(struct kv_cache *cache,
				       uint64_t slot_bytes)
{
	struct kv_ssd_class *class;

	LIST_FOREACH(class, &cache->ssd.classes, link)
	if (class->slot_bytes == slot_bytes)
		return class;
	return NULL;
}

static struct kv_ssd_class *class_get(struct kv_cache *cache,
				      uint64_t slot_bytes)
{
	struct kv_ssd_class *class = class_find(cache, slot_bytes);

	if (class)
		return class;
	class = calloc(1, sizeof(*class));
	if (!class)
		return NULL;
	class->slot_bytes = slot_bytes;
	TAILQ_INIT(&class->files);
	kv_policy_init(&class->policy, cache->config.evict, &cache->clock,
		       node_of, cache);
	LIST_INSERT_HEAD(&cache->ssd.classes, class, link);
	return class;
}

int kv_extents_add_file(struct kv_cache *cache, struct kv_file *file)
{
	struct kv_ssd_class *class = class_get(cache, file->slot_bytes);
	uint64_t *bitmap;

	if (!class)
		return -ENOMEM;
	file->slots = (uint32_t)(cache->ssd.segment_bytes / file->slot_bytes);
	bitmap = calloc((file->slots + 63) / 64, sizeof(*bitmap));
	if (!bitmap)
		return -ENOMEM;
	free(file->bitmap);
	file->bitmap = bitmap;
	file->hint = 0;
	file->used = 0;
	class->n_files++;
	class->free += file->slots;
	class->total += file->slots;
	TAILQ_INSERT_HEAD(&class->files, file, link);
	return 0;
}

void kv_extents_remove_file(struct kv_cache *cache, struct kv_file *file)
{
	struct kv_ssd_class *class = class_find(cache, file->slot_bytes);

	assert(file->used == 0);
	TAILQ_REMOVE(&class->files, file, link);
	class->n_files--;
	class->free -= file->slots;
	class->total -= file->slots;
}

static void set_taken(struct kv_cache *cache, struct kv_file *file,
		      uint32_t place)
{
	struct kv_ssd_class *class = class_find(cache, file->slot_bytes);

	file->bitmap[place / 64] |= 1ull << place % 64;
	file->used++;
	class->free--;
	cache->ssd.used += file->slot_bytes;
	if (file->used == file->slots) {
		TAILQ_REMOVE(&class->files, file, link);
		TAILQ_INSERT_TAIL(&class->files, file, link);
	}
}

static uint32_t first_free(struct kv_file *file)
{
	for (uint32_t word = file->hint / 64; word < (file->slots + 63) / 64;
	     word++) {
		uint32_t place;

		if (file->bitmap[word] == UINT64_MAX)
			continue;
		place = word * 64 +
			(uint32_t)__builtin_ctzll(~file->bitmap[word]);
		file->hint = place;
		return place < file->slots ? place : KV_NONE;
	}
	return KV_NONE;
}

static bool may_evict(void *arg, uint32_t number)
{
	struct kv_cache *cache = arg;
	struct kv_block *block = kv_table_at(&cache->table, number);
	struct kv_space *space = kv_block_space(cache, block);

	if (block->refs || (block->flags & BLOCK_PINNED) ||
	    (block->slot && !kv_slot_idle(block->slot)))
		return false;
	return !space->quota.reserve_ssd ||
	       space->bytes_ssd > space->quota.reserve_ssd;
}

static void evict(struct kv_cache *cache, struct kv_block *block)
{
	cache->stats.evicted_ssd++;
	if (block->slot) {
		kv_extent_detach_locked(cache, block);
		kv_block_space(cache, block)->loose++;
	} else {
		kv_block_remove_locked(cache, block);
	}
}

static bool evict_one(struct kv_cache *cache, struct kv_ssd_class *class)
{
	uint32_t victim = kv_policy_victim(&class->policy, may_evict, cache);

	if (victim == KV_NONE)
		return false;
	evict(cache, kv_table_at(&cache->table, victim));
	return true;
}

/* Empty the class that has gone longest without a use, a file's worth. */
static bool evict_others(struct kv_cache *cache,
			 const struct kv_ssd_class *thief)
{
	struct kv_ssd_class *class, *coldest = NULL;
	struct kv_file *file;
	uint32_t n;
	bool any = false;

	LIST_FOREACH(class, &cache->ssd.classes, link)
	if (class != thief && class->n_files &&
	    (!coldest ||
	     kv_policy_age(&class->policy) > kv_policy_age(&coldest->policy)))
		coldest = class;
	if (!coldest)
		return false;
	file = TAILQ_LAST(&coldest->files, kv_files);
	n = cache->table.used;
	/* Finding a file's blocks takes a walk; giving a file up is rare. */
	for (uint32_t i = 0; i < n; i++) {
		struct kv_block *block = kv_table_at(&cache->table, i);

		if (block->file == file->id &&
		    !(block->flags & BLOCK_REMOVED) && may_evict(cache, i)) {
			evict(cache, block);
			any = true;
		}
	}
	return any;
}

static struct kv_file *empty_file(struct kv_cache *cache,
				  const struct kv_ssd_class *but)
{
	struct kv_ssd_class *class;

	LIST_FOREACH(class, &cache->ssd.classes, link)
	{
		struct kv_file *file;

		if (class == but)
			continue;
		TAILQ_FOREACH(file, &class->files, link)
		if (file->used == 0)
			return file;
	}
	return NULL;
}

static struct kv_file *file_with_room(struct kv_ssd_class *class)
{
	struct kv_file *file = TAILQ_FIRST(&class->files);

	return file && file->used < file->slots ? file : NULL;
}

/* Keep about 2 % free, so that saves need not wait for a deletion. */
static void evict_ahead(struct kv_cache *cache, struct kv_ssd_class *class)
{
	uint64_t want = class->total / 50 + 1;

	while (class->free + class->leaving < want && evict_one(cache, class))
		continue;
	if (class->leaving)
		kv_commit_kick_locked(cache, false);
}

static bool room_for_file(const struct kv_cache *cache)
{
	const struct kv_ssd *ssd = &cache->ssd;

	return (ssd->live_files + 1) * ssd->segment_bytes <= ssd->file_budget;
}

int kv_extent_take_locked(struct kv_cache *cache, uint64_t slot_bytes,
			  uint32_t *ret_file, uint32_t *ret_place)
{
	struct kv_ssd_class *class = class_get(cache, slot_bytes);
	struct kv_file *file;
	uint32_t place;

	if (!class)
		return -ENOMEM;
	file = file_with_room(class);
	if (!file && room_for_file(cache) && !cache->ssd.full)
		return -ENOENT;
	if (!file) {
		file = empty_file(cache, class);
		if (file) {
			kv_extents_remove_file(cache, file);
			file->slot_bytes = slot_bytes;
			file->recorded = false;
			if (kv_extents_add_file(cache, file) < 0)
				return -ENOMEM;
		}
	}
	if (!file)
		return class->leaving || evict_one(cache, class) ||
				       evict_others(cache, class) ||
				       cache->ssd.deletions.n
			       ? -EAGAIN
			       : -ENOSPC;
	place = first_free(file);
	if (place == KV_NONE)
		return -EIO;
	set_taken(cache, file, place);
	*ret_file = file->id;
	*ret_place = place;
	if (!room_for_file(cache) || cache->ssd.full)
		evict_ahead(cache, class);
	return 0;
}

void kv_extent_free_locked(struct kv_cache *cache, uint64_t slot_id)
{
	struct kv_file *file = kv_file_at(cache, (uint32_t)(slot_id >> 32));
	uint32_t place = (uint32_t)slot_id;
	struct kv_ssd_class *class = class_find(cache, file->slot_bytes);

	file->bitmap[place / 64] &= ~(1ull << place % 64);
	file->hint = KV_MIN(file->hint, place);
	cache->ssd.used -= file->slot_bytes;
	class->free++;
	if (file->used-- == file->slots) {
		TAILQ_REMOVE(&class->files, file, link);
		TAILQ_INSERT_HEAD(&class->files, file, link);
	}
}

void kv_extent_attach_locked(struct kv_cache *cache, struct kv_block *block,
			     uint32_t file, uint32_t place)
{
	struct kv_file *f = kv_file_at(cache, file);
	struct kv_ssd_class *class = class_find(cache, f->slot_bytes);

	block->file = file;
	block->place = place;
	kv_block_space(cache, block)->bytes_ssd += f->slot_bytes;
	kv_policy_insert(&class->policy, block->number, kv_now_ns());
}

int kv_extent_adopt(struct kv_cache *cache, struct kv_block *block,
		    uint32_t file, uint32_t place)
{
	struct kv_file *f = kv_file_at(cache, file);

	if (!f || place >= f->slots ||
	    (f->bitmap[place / 64] & 1ull << place % 64) ||
	    KV_PAGE + kv_round_up(block->length, KV_PAGE) > f->slot_bytes)
		return -EBADMSG;
	set_taken(cache, f, place);
	block->file = file;
	block->place = place;
	kv_block_space(cache, block)->bytes_ssd += f->slot_bytes;
	return 0;
}

void kv_extent_delete_locked(struct kv_cache *cache, uint64_t slot_id,
			     bool reuse)
{
	struct kv_deletions *list = &cache->ssd.deletions;
	struct kv_file *file = kv_file_at(cache, (uint32_t)(slot_id >> 32));

	if (list->n == list->room) {
		size_t room = list->room ? list->room * 2 : 64;
		void *items = realloc(list->items, room * sizeof(*list->items));

		if (!items)
			return; /* the slot stays taken until the next mount */
		list->items = items;
		list->room = room;
	}
	if (reuse)
		class_find(cache, file->slot_bytes)->leaving++;
	list->items[list->n].slot_id = slot_id;
	list->items[list->n++].reuse = reuse;
	kv_commit_kick_locked(cache, false);
}

/* The block is on SSD no more; returns the slot it had. */
static uint64_t take_off(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_file *file = kv_file_at(cache, block->file);
	struct kv_ssd_class *class = class_find(cache, file->slot_bytes);
	uint64_t id = kv_slot_id(block->file, block->place);

	kv_policy_remove(&class->policy, block->number);
	kv_block_space(cache, block)->bytes_ssd -= file->slot_bytes;
	block->file = block->place = KV_NONE;
	return id;
}

void kv_extent_detach_locked(struct kv_cache *cache, struct kv_block *block)
{
	kv_extent_delete_locked(cache, take_off(cache, block), true);
}

void kv_extent_forget_locked(struct kv_cache *cache, struct kv_block *block)
{
	kv_extent_delete_locked(cache, take_off(cache, block), false);
}

void kv_extent_left_locked(struct kv_cache *cache, uint64_t slot_id)
{
	struct kv_file *file = kv_file_at(cache, (uint32_t)(slot_id >> 32));

	class_find(cache, file->slot_bytes)->leaving--;
	kv_extent_free_locked(cache, slot_id);
}

void kv_extent_undelete_locked(struct kv_cache *cache, uint64_t slot_id)
{
	struct kv_file *file = kv_file_at(cache, (uint32_t)(slot_id >> 32));

	class_find(cache, file->slot_bytes)->leaving--;
}

void kv_extent_touch_locked(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_file *file = kv_file_at(cache, block->file);

	kv_policy_touch(&class_find(cache, file->slot_bytes)->policy,
			block->number, block->hits);
}

void kv_extent_order(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_file *file = kv_file_at(cache, block->file);
	struct kv_policy *policy = &class_find(cache, file->slot_bytes)->policy;

	policy->burst = KV_NONE;
	kv_policy_insert(policy, block->number, 0);
	kv_policy_touch(policy, block->number, block->hits);
}

void kv_extent_drop(struct kv_cache *cache, struct kv_block *block)
{
	kv_extent_free_locked(cache, take_off(cache, block));
	kv_block_space(cache, block)->loose++;
	kv_block_remove_locked(cache, block);
}

uint64_t kv_extent_bytes(struct kv_cache *cache, const struct kv_block *block)
{
	return block->file == KV_NONE
		       ? 0
		       : kv_file_at(cache, block->file)->slot_bytes;
}
