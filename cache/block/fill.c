/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill.c - a block on its way in: reserve, fill, seal.
 *
 * OWNS       every kv_fill, the table of the keys that are being saved, and
 *            the credit of each space's and each tenant's rate.
 *
 * INVARIANTS
 *   (1) At most one fill that may still seal reserves a given key of a space.
 *   (2) A name resolves only after kv_fill_seal: the slot is FILLING until
 *       then.
 *   (3) The first to seal a key wins; what it sealed never changes.
 *
 * LOCKING    cache->lock; the bytes of a FILLING slot belong to the fill.
 */
#include "cache/block/block.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/core/ledger.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"
#include "common/crash_point.h"

static struct kv_fill **bucket_of(struct kv_cache *cache,
				  const struct kv_key *key)
{
	uint32_t hash;

	memcpy(&hash, key->b + 1, sizeof(hash));
	return &cache->saving[hash % SAVING_BUCKETS];
}

static bool stale(const struct kv_fill *fill)
{
	const struct kv_space *space = fill->space;

	/* Changing hands counts: its bytes would be in the wrong segment. */
	return space->removed || space->clears != fill->clears ||
	       !kv_class_fits(fill->slot->segment->class, space);
}

struct kv_fill *kv_fill_find_locked(struct kv_cache *cache,
				    struct kv_space *space,
				    const struct kv_key *key)
{
	struct kv_fill *fill = *bucket_of(cache, key);

	kv_assert_locked(&cache->lock);
	while (fill && (fill->space != space ||
			!kv_key_equal(&fill->key, key) || stale(fill)))
		fill = fill->next;
	return fill;
}

void kv_fills_stale_locked(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_fill *fill;

	kv_assert_locked(&cache->lock);
	for (size_t i = 0; i < SAVING_BUCKETS; i++)
		for (fill = cache->saving[i]; fill; fill = fill->next)
			if (fill->space == space && stale(fill))
				kv_wants_miss_locked(cache, &fill->waiters);
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

/* Of what finds no way to SSD, its owner's newest stay. */
static bool make_share(struct kv_cache *cache, struct kv_space *space,
		       uint64_t bytes)
{
	while (kv_arena_over_share(cache, space, bytes))
		if (!kv_dram_shed_own_locked(cache, space))
			return false;
	return true;
}

/* Is there too little left while what is being written may make more? */
static bool crowded(const struct kv_cache *cache, const struct kv_space *space,
		    uint64_t bytes)
{
	return !cache->ssd.error && kv_writes_may_make_room_locked(cache) &&
	       kv_crowded(cache, DRAM, space, bytes, 0) &&
	       !kv_entitled(DRAM, space, bytes);
}

/* A save is told at once, for which there is none; but of others, who have much
 * more, what is being written makes room, as it does for a file's writer. */
static int slot_for(struct kv_cache *cache, struct kv_space *space,
		    const struct kv_key *key, uint64_t length,
		    struct kv_slot **ret_slot)
{
	const bool under_way = kv_writes_may_make_room_locked(cache);
	uint64_t bytes = kv_size_class(cache, length);
	int r;

	if (!bytes)
		return -EFBIG;
	if (kv_arena_keeps_share(cache, space, bytes))
		return -ENOSPC;
	r = make_share(cache, space, bytes) && !crowded(cache, space, bytes)
		    ? kv_slot_take_locked(cache, space, length, ret_slot)
		    : -ENOSPC;
	if (r == 0)
		space->tenant->patience.seen_ns = 0;
	if (r != -ENOSPC || !under_way ||
	    (key && !kv_tenant_waits_locked(cache, space->tenant)))
		return r;
	kv_commit_kick_locked(cache, true);
	return -EBUSY;
}

static void refill(struct kv_bucket *bucket, uint64_t rate)
{
	uint64_t now = kv_now_ns();

	if (bucket->ns)
		bucket->credit +=
			(double)rate * (double)(now - bucket->ns) / 1e9;
	else
		bucket->credit = (double)rate;
	bucket->credit = KV_MIN(bucket->credit, (double)rate);
	bucket->ns = now;
}

/*
 * A second's worth may come at once; a save may begin while there is any credit
 * left, and what it takes more than that is waited for before the next.
 */
static int rate_take(struct kv_space *space, uint64_t bytes)
{
	struct kv_tenant *tenant = space->tenant;

	refill(&space->puts, space->quota.rate_put);
	refill(&tenant->puts, tenant->quota.rate_put);
	if ((space->quota.rate_put && space->puts.credit <= 0) ||
	    (tenant->quota.rate_put && tenant->puts.credit <= 0))
		return -EAGAIN;
	space->puts.credit -= (double)bytes;
	tenant->puts.credit -= (double)bytes;
	return 0;
}

static void rate_return(struct kv_space *space, uint64_t bytes)
{
	space->puts.credit += (double)bytes;
	space->tenant->puts.credit += (double)bytes;
}

/* A slot that the fill may have, and has paid for. */
static int reserve_slot(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key, uint64_t length,
			struct kv_slot **ret_slot)
{
	int r = may_begin(cache, space, key);

	if (r == 0)
		r = rate_take(space, length);
	cache->stats.refused_rate += r == -EAGAIN && key;
	if (r < 0)
		return r;
	r = slot_for(cache, space, key, length, ret_slot);
	if (r == 0) {
		/* The lock may have been let go: look again. */
		r = may_begin(cache, space, key);
		if (r < 0)
			kv_slot_give_locked(cache, *ret_slot);
	}
	if (r < 0)
		rate_return(space, length);
	return r;
}

int kv_fill_begin(struct kv_cache *cache, struct kv_space *space,
		  const struct kv_key *key, uint64_t length,
		  struct kv_fill **ret_fill)
{
	struct kv_fill *fill = calloc(1, sizeof(*fill));
	struct kv_fill **bucket;
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
		if (key) {
			fill->key = *key;
			bucket = bucket_of(cache, key);
			fill->next = *bucket;
			*bucket = fill;
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

void kv_fill_must(struct kv_fill *fill)
{
	fill->must = true;
}

void kv_fill_fetched(struct kv_fill *fill)
{
	fill->fetched = true;
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

static void unreserve(struct kv_cache *cache, struct kv_fill *fill)
{
	struct kv_fill **link;

	if (!fill->key.len)
		return;
	link = bucket_of(cache, &fill->key);
	while (*link != fill)
		link = &(*link)->next;
	*link = fill->next;
	cache->stats.saving--;
}

/* The fill is over; whoever waited for it looks again. */
static void end_locked(struct kv_cache *cache, struct kv_fill *fill)
{
	kv_assert_locked(&cache->lock);
	unreserve(cache, fill);
	kv_wants_restart_locked(cache, &fill->waiters);
	kv_space_put(fill->space);
	free(fill);
}

void kv_fill_drop(struct kv_cache *cache, struct kv_fill *fill)
{
	kv_lock(cache);
	kv_slot_give_locked(cache, fill->slot);
	rate_return(fill->space, fill->length);
	end_locked(cache, fill);
	kv_unlock(cache);
}

static void write_prologue(struct kv_cache *cache, struct kv_fill *fill,
			   const struct kv_key *key, const struct kv_meta *meta,
			   struct kv_slot_record *record)
{
	struct kv_prologue *prologue = kv_slot_prologue(fill->slot);

	record->key_len = key->len;
	memcpy(record->key, key->b, sizeof(record->key));
	record->parent_len = meta->parent.len;
	memcpy(record->parent, meta->parent.b, sizeof(record->parent));
	record->position = meta->position;
	record->tokens = meta->tokens;
	record->mtime_ns = meta->mtime_ns;
	record->space = fill->space->id;
	record->length = fill->length;
	record->generation = cache->generation++;
	memset(kv_slot_bytes(fill->slot), 0, KV_PAGE);
	prologue->record = *record;
	kv_prologue_seal(prologue, cache->info.store);
}

/* A fill without a key came as a file, which changed its directory's time when
 * it was made: that must not move once it is closed. */
static void note_time(struct kv_fill *fill, const struct kv_key *key,
		      bool is_first)
{
	int64_t now_ns = kv_wall_ns();

	if (fill->key.len > 0 || is_first)
		fill->space->dirs[key->b[0]]->mtime_ns = now_ns;
	if (is_first)
		fill->space->mtime_ns = now_ns;
}

static int insert_locked(struct kv_cache *cache, struct kv_fill *fill,
			 const struct kv_key *key, const struct kv_meta *meta)
{
	struct kv_block *block;
	bool is_first = !fill->space->dirs[key->b[0]];
	int r = kv_table_insert(cache, fill->space, key, &block);

	kv_assert_locked(&cache->lock);
	if (r < 0)
		return r;
	block->length = (uint32_t)fill->length;
	block->mtime_ns = meta->mtime_ns;
	block->atime = (uint32_t)(kv_wall_ns() / 1000000000);
	note_time(fill, key, is_first);
	kv_slot_publish_locked(cache, fill->slot, block);
	kv_pin_block_new_locked(cache, block);
	kv_block_asked_locked(cache, block);
	cache->stats.sealed++;
	if (fill->must || cache->config.writeback == KV_WRITEBACK_ALL)
		kv_write_enqueue_locked(cache, block, fill->must);
	if (fill->holder)
		kv_want_hold_locked(cache, fill->holder, block);
	return 0;
}

/* The key is there: is it the same file?  Unlocks and locks again. */
static int compare(struct kv_cache *cache, struct kv_block *block,
		   const struct kv_digest *digest)
{
	struct kv_slot_record record;
	int r;

	block->refs++;
	kv_unlock(cache);
	r = kv_block_record(cache, block, &record);
	kv_lock(cache);
	block->refs--;
	kv_block_settle_locked(cache, block);
	if (r == 0 && memcmp(record.digest, digest->b, sizeof(digest->b)) == 0)
		return 1;
	cache->stats.conflicts++;
	return -EEXIST;
}

/* What is remembered of blocks of that key that are gone. */
static void lift_locked(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key)
{
	kv_assert_locked(&cache->lock);
	kv_removed_lift_locked(cache, space, key);
	kv_changed_lift_locked(cache, space, key);
}

int kv_fill_seal(struct kv_cache *cache, struct kv_fill *fill,
		 const struct kv_key *key, const struct kv_meta *meta,
		 uint64_t payload, const struct kv_digest *digest)
{
	struct kv_slot_record record = {.payload = (uint32_t)payload};
	uint64_t padded = kv_round_up(fill->length, KV_PAGE);
	struct kv_block *there;
	int r;

	KV_POINT("seal.begin");
	memcpy(record.digest, digest->b, sizeof(record.digest));
	memset(kv_fill_data(fill) + fill->length, 0, padded - fill->length);
	kv_lock(cache);
	there = kv_table_find(cache, fill->space, key);
	if (stale(fill) ||
	    (fill->fetched && kv_is_removed_locked(cache, fill->space, key))) {
		r = -ESTALE;
	} else if (there) {
		r = compare(cache, there, digest);
	} else {
		write_prologue(cache, fill, key, meta, &record);
		KV_POINT("seal.before_publish");
		r = insert_locked(cache, fill, key, meta);
		if (r == 0)
			lift_locked(cache, fill->space, key);
		KV_POINT("seal.after_publish");
	}
	if (r != 0) {
		kv_slot_give_locked(cache, fill->slot);
		rate_return(fill->space, fill->length);
	}
	end_locked(cache, fill);
	kv_unlock(cache);
	return r;
}
