/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pins.c - pins of blocks by their users and by snapshots.
 *
 * OWNS       a record for each key in a snapshot, whether its block exists or
 *            not; BLOCK_PINNED and slot->pinned.
 *
 * INVARIANTS
 *   (1) A block is BLOCK_PINNED if its user pinned it or a snapshot has its
 *       key; removing one pin does not remove the other.
 *   (2) The user's pin is in the key's record, if the key has one; otherwise it
 *       is BLOCK_PINNED itself.
 *   (3) Only slots of pinned blocks are pinned, and pins.bytes counts them.  A
 *       part of the arena stays free of pins.  A block pinned beyond that limit
 *       is on SSD, or new, and its slot may be evicted.
 *
 * LOCKING    cache->lock.
 */
#include "cache/block/block.h"
#include "cache/core/hooks.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"

#include <search.h>

struct kv_pin {
	uint8_t key[KV_KEY_MAX];
	uint32_t space; /* id of the key's space */
	uint32_t count; /* number of snapshots that contain this key */
	uint8_t len;
	bool user;
};

static bool fits_ssd(struct kv_cache *cache, const struct kv_block *block)
{
	return (block->flags & BLOCK_PINNED) ||
	       !kv_ssd_over_floor(cache, kv_block_space(cache, block),
				  kv_ssd_slot_bytes(cache, block));
}

static void set_pinned(struct kv_cache *cache, struct kv_block *block, bool pin)
{
	struct kv_slot *slot = block->slot;
	const bool changes = pin != ((block->flags & BLOCK_PINNED) != 0);

	if (slot)
		kv_slot_before(cache, slot);
	if (pin)
		block->flags |= BLOCK_PINNED;
	else
		block->flags &= ~BLOCK_PINNED & 0xff;
	if (slot && pin)
		kv_slot_pin_locked(cache, slot);
	else if (slot)
		kv_slot_unpin_locked(cache, slot);
	if (slot)
		kv_slot_after(cache, slot);
	if (!changes)
		return;
	cache->stats.pinned += pin ? 1 : (uint64_t)-1;
	kv_ssd_pinned_locked(cache, block, pin);
	if (block->file != KV_NONE)
		kv_extent_pin_locked(cache, block, pin);
	kv_opens_recharge_locked(cache, block, NULL);
}

static int by_key(const void *a, const void *b)
{
	const struct kv_pin *x = a, *y = b;

	if (x->space != y->space)
		return x->space < y->space ? -1 : 1;
	if (x->len != y->len)
		return x->len < y->len ? -1 : 1;
	return memcmp(x->key, y->key, sizeof(x->key));
}

static struct kv_pin pin_of(const struct kv_space *space,
			    const struct kv_key *key)
{
	struct kv_pin pin = {.space = space->id, .len = key->len};

	memcpy(pin.key, key->b, sizeof(pin.key));
	return pin;
}

static struct kv_pin *of_block(struct kv_cache *cache,
			       const struct kv_block *block)
{
	const struct kv_key key = kv_block_key(block);
	const struct kv_pin wanted = pin_of(kv_block_space(cache, block), &key);
	struct kv_pin **found = tfind(&wanted, &cache->pins.tree, by_key);

	return found ? *found : NULL;
}

bool kv_pin_fits_locked(struct kv_cache *cache, const struct kv_block *block)
{
	const struct kv_slot *slot = block->slot;

	kv_assert_locked(&cache->lock);
	if (!fits_ssd(cache, block))
		return false;
	return (block->flags & BLOCK_PINNED) || !slot || slot->pinned ||
	       kv_slot_pin_fits(cache, kv_block_space(cache, block), slot,
				false);
}

int kv_pin_adopt_locked(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key)
{
	struct kv_block *block = kv_table_find(cache, space, key);
	struct kv_pin *pin = malloc(sizeof(*pin)), **at = NULL;

	kv_assert_locked(&cache->lock);
	if (pin) {
		*pin = pin_of(space, key);
		pin->user = block && (block->flags & BLOCK_PINNED);
		at = tsearch(pin, &cache->pins.tree, by_key);
	}
	if (!at || *at != pin)
		free(pin);
	if (!at)
		return -ENOMEM;
	(*at)->count++;
	if (block)
		set_pinned(cache, block, true);
	return 0;
}

int kv_pin_take_locked(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_key *key)
{
	const struct kv_block *block = kv_table_find(cache, space, key);

	kv_assert_locked(&cache->lock);
	if (!block)
		return -ENOENT;
	/* A block that is on SSD, or being written to SSD, need not stay in
	 * DRAM. */
	if (kv_block_unpersisted(block) ? !kv_pin_fits_locked(cache, block)
					: !fits_ssd(cache, block))
		return -ENOSPC;
	return kv_pin_adopt_locked(cache, space, key);
}

void kv_pin_give_locked(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key)
{
	struct kv_block *block = kv_table_find(cache, space, key);
	const struct kv_pin wanted = pin_of(space, key);
	struct kv_pin *pin =
		*(struct kv_pin **)tfind(&wanted, &cache->pins.tree, by_key);

	kv_assert_locked(&cache->lock);
	if (--pin->count)
		return;
	if (block && !pin->user)
		set_pinned(cache, block, false);
	tdelete(pin, &cache->pins.tree, by_key);
	free(pin);
}

void kv_pin_block_new_locked(struct kv_cache *cache, struct kv_block *block)
{
	kv_assert_locked(&cache->lock);
	if (of_block(cache, block))
		set_pinned(cache, block, true);
}

void kv_pin_block_gone_locked(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_pin *pin = of_block(cache, block);

	kv_assert_locked(&cache->lock);
	if (pin)
		pin->user = false;
	if (block->flags & BLOCK_PINNED)
		set_pinned(cache, block, false);
}

bool kv_pinned_by_user(struct kv_cache *cache, const struct kv_block *block)
{
	const struct kv_pin *pin;

	if (!(block->flags & BLOCK_PINNED))
		return false;
	pin = of_block(cache, block);
	return !pin || pin->user;
}

void kv_pin_by_user_locked(struct kv_cache *cache, struct kv_block *block,
			   bool pin)
{
	struct kv_pin *of = of_block(cache, block);

	kv_assert_locked(&cache->lock);
	if (of)
		of->user = pin;
	else
		set_pinned(cache, block, pin);
}
