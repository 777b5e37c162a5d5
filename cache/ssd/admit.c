/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admit.c - which blocks go to SSD unasked: whole chains, within the budget.
 *
 * A tail without its head is of no use.  So a block that was saved with its
 * parent's key, in a space whose reuse rule is `prefix`, is written only if its
 * parent is stored, or about to be.  Blocks that came as files stand alone:
 * whoever restores a tree of them keeps no order.
 *
 * OWNS       the budget of ssd_write=; the orphans of fills.
 *
 * INVARIANTS
 *   (1) A slot on a fill's list of orphans is of a unpersisted block: it waits
 * until its parent is sealed, and may be evicted meanwhile. (2) What ssd_write=
 * allows is never more in any 24 hours than its bytes, but for what somebody
 * waits for.
 *
 * LOCKING    cache->lock.
 */
#include "cache/block/block.h"
#include "cache/ssd/ssd.h"

#define DAY_NS 86400e9

/* A quarter of the day's bytes may come in one burst, the rest flows in over
 * the day. */
static void refill(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	double bytes = (double)cache->config.ssd_write;
	uint64_t now = kv_now_ns();

	if (!ssd->credit_ns)
		ssd->write_credit = bytes / 4;
	else
		ssd->write_credit +=
			bytes * 3 / 4 * (double)(now - ssd->credit_ns) / DAY_NS;
	ssd->write_credit = KV_MIN(ssd->write_credit, bytes / 4);
	ssd->credit_ns = now;
}

void kv_admit_charge_locked(struct kv_cache *cache, const struct kv_slot *slot)
{
	if (!cache->config.ssd_write)
		return;
	refill(cache);
	cache->ssd.write_credit -= (double)slot->segment->class->slot_bytes;
}

/* The less is left, the more often a chain must have been used. */
static bool affordable(struct kv_cache *cache, const struct kv_slot *slot,
		       uint32_t uses)
{
	double burst = (double)cache->config.ssd_write / 4;
	double keep = uses == 0 ? burst / 2 : uses == 1 ? burst / 4 : 0;

	if (!cache->config.ssd_write)
		return true;
	refill(cache);
	return cache->ssd.write_credit -
		       (double)slot->segment->class->slot_bytes >=
	       keep;
}

static void wait_for(struct kv_cache *cache, struct kv_fill *fill,
		     struct kv_slot *slot)
{
	kv_write_dequeue_locked(cache, slot->block);
	TAILQ_INSERT_TAIL(&fill->orphans, slot, link);
	slot->queue = &fill->orphans;
}

void kv_orphan_unlink_locked(struct kv_slot *slot)
{
	if (!slot->queue)
		return;
	TAILQ_REMOVE(slot->queue, slot, link);
	slot->queue = NULL;
}

void kv_orphans_adopt_locked(struct kv_cache *cache, struct kv_fill *fill)
{
	struct kv_slot *slot;

	while ((slot = TAILQ_FIRST(&fill->orphans)))
		kv_write_enqueue_locked(cache, slot->block, false);
}

static enum kv_verdict refuse(struct kv_cache *cache, struct kv_slot *slot,
			      uint64_t *count)
{
	++*count;
	kv_write_dequeue_locked(cache, slot->block);
	return KV_ADMIT_LATER;
}

/* The key of the block that @slot's is useless without. */
static bool needs_parent(const struct kv_slot *slot, struct kv_key *ret_parent)
{
	const struct kv_slot_record *record = &kv_slot_prologue(slot)->record;
	const struct kv_layout *layout = slot->list->space->layout;

	if (slot->alone || !layout || layout->reuse != KV_REUSE_PREFIX ||
	    !record->parent_len || !record->position)
		return false;
	ret_parent->len = record->parent_len;
	memcpy(ret_parent->b, record->parent, sizeof(ret_parent->b));
	return true;
}

enum kv_verdict kv_admit_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	uint32_t uses = slot->block->hits;
	struct kv_key key;
	struct kv_block *parent;
	struct kv_fill *fill;

	if (kv_write_must(slot))
		return KV_ADMIT_NOW;
	if (!needs_parent(slot, &key))
		goto budget;
	parent = kv_table_find(cache, slot->list->space, &key);
	if (!parent) {
		fill = kv_fill_find_locked(cache, slot->list->space, &key);
		if (!fill)
			return refuse(cache, slot,
				      &cache->stats.unwritten_orphans);
		wait_for(cache, fill, slot);
		return KV_ADMIT_LATER;
	}
	if ((parent->flags & BLOCK_QUEUED) && !parent->slot->pulled) {
		kv_write_queue_pull_locked(parent->slot);
		return KV_ADMIT_LATER;
	}
	if (parent->file == KV_NONE && !kv_block_dirty(parent))
		return refuse(cache, slot, &cache->stats.unwritten_orphans);
	uses = KV_MAX(uses, parent->hits);
budget:
	if (!affordable(cache, slot, uses))
		return refuse(cache, slot, &cache->stats.unwritten_budget);
	return KV_ADMIT_NOW;
}
