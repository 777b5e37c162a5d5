/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill.c - saving a block: reserve, fill, seal.
 *
 * OWNS       every kv_fill, the table of keys being saved, and the rate credit of
 *            each space and each tenant.
 *
 * INVARIANTS
 *   (1) At most one fill that may still seal reserves a given key of a space.
 *   (2) A name resolves only after kv_fill_seal; until then the slot is FILLING.
 *   (3) The first fill to seal a key wins; the sealed block never changes.
 *
 * LOCKING    cache->lock; the bytes of a FILLING slot belong to the fill.
 */
#include "cache/block/block.h"
#include "cache/core/causes.h"
#include "cache/core/hooks.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/core/ledger.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"
#include "common/crash_point.h"

static struct kv_fills *bucket_of(struct kv_cache *cache,
				  const struct kv_key *key)
{
	uint32_t hash;

	memcpy(&hash, key->b + 1, sizeof(hash));
	return &cache->saving[hash % SAVING_BUCKETS];
}

static bool stale(const struct kv_fill *fill)
{
	const struct kv_space *space = fill->space;

	/* A stale fill may have a slot of the former owner's access class. */
	return space->removed || space->clears != fill->clears ||
	       !kv_class_fits(fill->slot->segment->class, space);
}

struct kv_fill *kv_fill_find_locked(struct kv_cache *cache,
				    struct kv_space *space,
				    const struct kv_key *key)
{
	struct kv_fill *fill;

	kv_assert_locked(&cache->lock);
	LIST_FOREACH(fill, bucket_of(cache, key), bucket)
		if (fill->space == space && kv_key_equal(&fill->key, key) &&
		    !stale(fill))
			break;
	return fill;
}

void kv_fills_stale_locked(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_fill *fill;

	kv_assert_locked(&cache->lock);
	for (size_t i = 0; i < SAVING_BUCKETS; i++)
		LIST_FOREACH(fill, &cache->saving[i], bucket)
			if (fill->space == space && stale(fill))
				kv_wants_fail_locked(cache, &fill->waiters,
						     -ENOENT);
}

static int may_begin(struct kv_cache *cache, struct kv_space *space,
		     const struct kv_key *key)
{
	if (cache->config.read_only)
		return -EROFS;
	if (space->removed)
		return -ESTALE;
	if (key && kv_table_find(cache, space, key))
		return -EEXIST;
	if (key && kv_fill_find_locked(cache, space, key))
		return -EALREADY;
	return 0;
}

/* Take a slot for a save.  -ENOSPC: there is none.  -EBUSY, retry soon: writes
 * in flight will free slots, and the save is of a file (without @key), or other
 * users have many more segments. */
static int take_slot(struct kv_cache *cache, struct kv_space *space,
		     const struct kv_key *key, uint64_t length,
		     struct kv_slot **ret_slot)
{
	const bool under_way = kv_writes_may_make_room_locked(cache);
	const uint64_t bytes = kv_size_class(cache, length);
	bool fits = true;
	int r = -ENOSPC;

	if (!bytes)
		return -EFBIG;
	if (kv_arena_over_share(cache, space, KV_FINITE_DRAM, bytes))
		return -ENOSPC;
	/* Evict the owner's oldest blocks that wait for an SSD without room. */
	while (fits &&
	       kv_arena_over_share(cache, space, KV_FINITE_DIRTY, bytes))
		fits = kv_dram_shed_own_locked(cache, space);
	/* While writes may free slots, leave evictable ones to other users. */
	if (fits &&
	    (cache->ssd.error || !kv_writes_may_make_room_locked(cache) ||
	     !kv_crowded(cache, DRAM, space, bytes, 0) ||
	     kv_entitled(DRAM, space, bytes)))
		r = kv_slot_take_locked(cache, space, length, ret_slot);
	if (r == 0)
		space->tenant->patience.seen_ns = 0;
	if (r == -ENOSPC)
		kv_writer_hurry_locked(cache);
	if (r != -ENOSPC || !under_way ||
	    (key && !kv_tenant_waits_locked(cache, space->tenant)))
		return r;
	kv_commit_kick_locked(cache, true);
	return -EBUSY;
}

static void rate_add(struct kv_space *space, double bytes)
{
	space->puts.credit += bytes;
	space->tenant->puts.credit += bytes;
}

/* Take a slot, and charge the save to the space's and the user's rates.  The
 * credit of a rate is at most one second's worth.  A save may begin with any
 * credit left; later saves wait until the overdraft is paid. */
static int reserve_slot(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key, uint64_t length,
			struct kv_slot **ret_slot)
{
	struct kv_tenant *tenant = space->tenant;
	const double own = (double)space->quota.rate_put;
	const double all = (double)tenant->quota.rate_put;
	bool has_own, has_all;
	int r = may_begin(cache, space, key);

	if (r < 0)
		return r;
	has_own = kv_bucket_fill(&space->puts, own, own) || own == 0;
	has_all = kv_bucket_fill(&tenant->puts, all, all) || all == 0;
	if (!has_own || !has_all) {
		cache->stats.refused_rate += key != NULL;
		if (key)
			kv_cause_note(cache, space, key, KV_CAUSE_RATE);
		return -EAGAIN;
	}
	rate_add(space, -(double)length);
	r = take_slot(cache, space, key, length, ret_slot);
	if (r == 0) {
		/* take_slot may have released the lock: check again. */
		r = may_begin(cache, space, key);
		if (r < 0)
			kv_slot_give_locked(cache, *ret_slot);
	}
	if (r < 0)
		rate_add(space, (double)length);
	if (key && r == -ENOSPC)
		kv_cause_note(
			cache, space, key,
			kv_dram_fit_quota_locked(cache, space,
						 kv_size_class(cache, length))
				? KV_CAUSE_ROOM
				: KV_CAUSE_QUOTA);
	return r;
}

int kv_fill_begin(struct kv_cache *cache, struct kv_space *space,
		  const struct kv_key *key, uint64_t length,
		  struct kv_fill **ret_fill)
{
	struct kv_fill *fill = calloc(1, sizeof(*fill));
	struct kv_slot *slot;
	int r;

	if (!fill)
		return -ENOMEM;
	kv_lock(cache);
	r = reserve_slot(cache, space, key, length, &slot);
	if (r == 0) {
		fill->space = kv_space_get(space);
		fill->slot = slot;
		fill->length = length;
		slot->alone = !key;
		fill->clears = space->clears;
		fill->layout = space->layout;
		if (key) {
			fill->key = *key;
			LIST_INSERT_HEAD(bucket_of(cache, key), fill, bucket);
			cache->stats.saving++;
		}
	}
	kv_unlock(cache);
	if (r < 0) {
		free(fill);
		return r;
	}
	*ret_fill = fill;
	return 0;
}

uint8_t *kv_fill_data(struct kv_fill *fill)
{
	return kv_slot_file(fill->slot);
}

bool kv_fill_is_open(const struct kv_fill *fill)
{
	return kv_slot_is_open(fill->slot);
}

void kv_fill_must(struct kv_fill *fill)
{
	fill->must = true;
}

void kv_fill_hold(struct kv_fill *fill, struct kv_want *want)
{
	fill->holder = want;
}

int kv_fill_may_hold(struct kv_cache *cache, struct kv_space *space,
		     uint64_t length)
{
	uint64_t bytes;
	bool over;

	kv_lock(cache);
	bytes = kv_size_class(cache, length);
	over = bytes && kv_arena_over_floor(cache, space, bytes);
	kv_unlock(cache);
	return !bytes ? -EFBIG : over ? -ENOSPC : 0;
}

/* End the fill, and restart the wants that wait for it. */
static void end_locked(struct kv_cache *cache, struct kv_fill *fill)
{
	kv_assert_locked(&cache->lock);
	if (fill->key.len) {
		LIST_REMOVE(fill, bucket);
		cache->stats.saving--;
	}
	kv_wants_restart_locked(cache, &fill->waiters);
	kv_space_put(fill->space);
	free(fill);
}

void kv_fill_drop(struct kv_cache *cache, struct kv_fill *fill)
{
	kv_lock(cache);
	kv_slot_give_locked(cache, fill->slot);
	rate_add(fill->space, (double)fill->length);
	end_locked(cache, fill);
	kv_unlock(cache);
}

/* Write the prologue, which begins with @record, and make the block visible. */
static int publish_locked(struct kv_cache *cache, struct kv_fill *fill,
			  const struct kv_key *key, const struct kv_meta *meta,
			  struct kv_slot_record *record)
{
	struct kv_prologue *prologue = kv_slot_prologue(fill->slot);
	struct kv_space *space = fill->space;
	const bool is_first = !space->dirs[key->b[0]];
	const int64_t now_ns = kv_wall_ns();
	struct kv_block *block;
	int r;

	kv_assert_locked(&cache->lock);
	record->key_len = key->len;
	memcpy(record->key, key->b, sizeof(record->key));
	record->parent_len = meta->parent.len;
	memcpy(record->parent, meta->parent.b, sizeof(record->parent));
	record->position = meta->position;
	record->tokens = meta->tokens;
	record->mtime_ns = meta->mtime_ns;
	record->space = space->id;
	record->length = fill->length;
	record->generation = cache->generation++;
	prologue->record = *record;
	kv_prologue_seal(prologue, cache->info.store);
	KV_POINT("seal.before_publish");
	r = kv_table_insert(cache, space, key, &block);
	if (r < 0)
		return r;
	block->length = (uint32_t)fill->length;
	block->mtime_ns = meta->mtime_ns;
	block->remote = fill->fetched;
	space->sealed++;
	block->atime = kv_use_now(cache);
	/* Creating a file set its directory's time: sealing it when the file is
	 * closed (a fill without a key) must not set the time again. */
	if (fill->key.len > 0 || is_first)
		space->dirs[key->b[0]]->mtime_ns = now_ns;
	if (is_first)
		space->mtime_ns = now_ns;
	kv_slot_publish_locked(cache, fill->slot, block);
	kv_pin_block_new_locked(cache, block);
	kv_block_asked_locked(cache, block);
	cache->stats.sealed++;
	if (fill->must || cache->config.writeback == KV_WRITEBACK_ALL)
		kv_write_enqueue_locked(cache, block, fill->must);
	if (fill->holder)
		kv_want_lend_locked(cache, fill->holder, block);
	/* Forget the tombstones of older blocks with this key. */
	kv_removed_lift_locked(cache, space, key);
	kv_cause_lift(cache, space, key);
	return 0;
}

/* Seal one fill, whose padding is zeroed.  May release the lock meanwhile. */
static void seal_locked(struct kv_cache *cache, struct kv_seal *seal)
{
	struct kv_slot_record record = {.payload = (uint32_t)seal->payload};
	struct kv_fill *fill = seal->fill;
	const struct kv_layout *layout =
		fill->layout ? NULL : fill->space->layout;
	uint64_t length, offset;
	struct kv_block *there;
	struct kv_meta parsed;
	int r = 0;

	kv_assert_locked(&cache->lock);
	memcpy(record.digest, seal->digest.b, sizeof(record.digest));
	if (layout) { /* the layout may be newer than the caller's check */
		kv_unlock(cache);
		r = kv_block_parse(kv_fill_data(fill), fill->length, layout,
				   &length, &offset, &parsed);
		kv_lock(cache);
	}
	there = kv_table_find(cache, fill->space, seal->key);
	if (stale(fill) ||
	    (fill->fetched &&
	     (fill->space->forgets != fill->forgets ||
	      kv_is_removed_locked(cache, fill->space, seal->key)))) {
		r = -ESTALE;
	} else if (r == 0 && there) {
		there->refs++;
		kv_unlock(cache);
		r = kv_block_record(cache, there, &record);
		kv_lock(cache);
		there->refs--;
		kv_block_settle_locked(cache, there);
		r = r == 0 && memcmp(record.digest, seal->digest.b,
				     sizeof(record.digest)) == 0
			    ? 1
			    : -EEXIST;
		cache->stats.conflicts += r < 0;
	} else if (r == 0) {
		r = publish_locked(cache, fill, seal->key, seal->meta, &record);
		KV_POINT("seal.after_publish");
	}
	if (r != 0) {
		kv_slot_give_locked(cache, fill->slot);
		rate_add(fill->space, (double)fill->length);
	}
	end_locked(cache, fill);
	seal->status = r;
}

void kv_fills_seal(struct kv_cache *cache, struct kv_seal *seals, size_t n)
{
	KV_POINT("seal.begin");
	/* Zero what touches cold memory before taking the lock. */
	for (size_t i = 0; i < n; i++) {
		struct kv_fill *fill = seals[i].fill;

		memset(kv_fill_data(fill) + fill->length, 0,
		       kv_round_up(fill->length, KV_PAGE) - fill->length);
		memset(kv_slot_bytes(fill->slot), 0, KV_PAGE);
	}
	kv_lock(cache);
	for (size_t i = 0; i < n; i++)
		seal_locked(cache, &seals[i]);
	kv_unlock(cache);
}

int kv_fill_seal(struct kv_cache *cache, struct kv_fill *fill,
		 const struct kv_key *key, const struct kv_meta *meta,
		 uint64_t payload, const struct kv_digest *digest)
{
	struct kv_seal seal = {fill, key, meta, payload, *digest, 0};

	kv_fills_seal(cache, &seal, 1);
	return seal.status;
}
