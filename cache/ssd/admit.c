/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admit.c - which blocks go to SSD unasked: whole chains, within the budget.
 *
 * A tail without its head is of no use.  So a block that was saved with its
 * parent's key, in a space whose reuse rule is `prefix`, is written only if its
 * parent is stored, or about to be.  Until then it waits, behind the parent's
 * key: whether that is being filled, was sealed and waits itself, or has not
 * come yet makes no difference.  Blocks that came as files stand alone: whoever
 * restores a tree of them keeps no order.
 *
 * OWNS       the budget of ssd_write=; the orphans of every parent.
 *
 * STATES     of a parent's orphans, and the function that makes each step:
 *
 *                 none -> WAITING   kv_admit_locked
 *              WAITING -> ADOPTED   kv_orphans_adopt_locked: the parent is
 *                                   on its way
 *   WAITING or ADOPTED -> none      kv_orphan_drop_locked: the last of them
 *                                   is on its way, or gone
 *
 * INVARIANTS
 *   (1) A slot among orphans is of an unpersisted block that is not removed; it
 *       may be evicted meanwhile.
 *   (2) At most one WAITING kv_orphans has a given space and parent; none is
 *       empty.
 *   (3) What ssd_write= allows is never more in any 24 hours than its bytes,
 *       but for what somebody waits for.
 *
 * LOCKING    cache->lock.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"

#define DAY_NS 86400e9
#define FEWEST_BUCKETS 1024u
#define BUCKET_BYTES 65536u /* of the arena */
#define ADOPTED_AT_ONCE 64u

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
	kv_assert_locked(&cache->lock);
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

static struct kv_orphans_list *bucket_of(struct kv_cache *cache,
					 const struct kv_space *space,
					 const uint8_t *key)
{
	uint64_t hash = kv_key_hash(cache, space, key);

	return &cache->ssd.orphans[hash & cache->ssd.orphans_mask];
}

static struct kv_orphans *orphans_find(struct kv_cache *cache,
				       const struct kv_space *space,
				       const struct kv_key *parent)
{
	struct kv_orphans *orphans;

	LIST_FOREACH(orphans, bucket_of(cache, space, parent->b), link)
		if (orphans->space == space &&
		    kv_key_equal(&orphans->parent, parent))
			return orphans;
	return NULL;
}

/* As many as there may be slots, if those are not very small. */
static bool buckets_make(struct kv_cache *cache)
{
	const struct kv_arena *arena = &cache->arena;
	uint64_t n = FEWEST_BUCKETS;

	while (n < arena->max * arena->segment_bytes / BUCKET_BYTES)
		n *= 2;
	cache->ssd.orphans_mask = n - 1;
	cache->ssd.orphans = calloc(n, sizeof(*cache->ssd.orphans));
	return cache->ssd.orphans;
}

static struct kv_orphans *orphans_make(struct kv_cache *cache,
				       struct kv_space *space,
				       const struct kv_key *parent)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_orphans *orphans;

	if (!ssd->orphans && !buckets_make(cache))
		return NULL;
	orphans = orphans_find(cache, space, parent);
	if (orphans)
		return orphans;
	orphans = calloc(1, sizeof(*orphans));
	if (!orphans)
		return NULL;
	TAILQ_INIT(&orphans->slots);
	orphans->parent = *parent;
	orphans->space = space;
	LIST_INSERT_HEAD(bucket_of(cache, space, parent->b), orphans, link);
	return orphans;
}

bool kv_orphan_waits(const struct kv_slot *slot)
{
	return slot->queue && !kv_block_dirty(slot->block);
}

void kv_orphan_drop_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_orphans *orphans;

	kv_assert_locked(&cache->lock);
	if (!kv_orphan_waits(slot))
		return;
	orphans = (struct kv_orphans *)slot->queue;
	TAILQ_REMOVE(&orphans->slots, slot, link);
	slot->queue = NULL;
	cache->ssd.n_adopted -= orphans->adopted;
	if (--orphans->n)
		return;
	if (orphans->adopted)
		TAILQ_REMOVE(&cache->ssd.adopted, orphans, turn);
	else
		LIST_REMOVE(orphans, link);
	free(orphans);
}

void kv_orphans_adopt_locked(struct kv_cache *cache,
			     const struct kv_block *parent)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_key key = kv_block_key(parent);
	struct kv_orphans *orphans;

	kv_assert_locked(&cache->lock);
	orphans = ssd->orphans
			  ? orphans_find(cache, kv_block_space(cache, parent),
					 &key)
			  : NULL;
	if (!orphans)
		return;
	LIST_REMOVE(orphans, link);
	orphans->adopted = true;
	TAILQ_INSERT_TAIL(&ssd->adopted, orphans, turn);
	ssd->n_adopted += orphans->n;
}

void kv_orphans_enqueue_locked(struct kv_cache *cache)
{
	struct kv_orphans *orphans;
	unsigned n = ADOPTED_AT_ONCE;

	kv_assert_locked(&cache->lock);
	/* The last one off its list frees that. */
	while (n-- > 0 && (orphans = TAILQ_FIRST(&cache->ssd.adopted))) {
		struct kv_slot *slot = TAILQ_FIRST(&orphans->slots);

		kv_orphan_drop_locked(cache, slot);
		kv_write_enqueue_locked(cache, slot->block, false);
	}
}

void kv_orphans_free(struct kv_cache *cache)
{
	struct kv_orphans *orphans;

	while ((orphans = TAILQ_FIRST(&cache->ssd.adopted))) {
		TAILQ_REMOVE(&cache->ssd.adopted, orphans, turn);
		free(orphans);
	}
	for (uint64_t i = 0; cache->ssd.orphans && i <= cache->ssd.orphans_mask;
	     i++)
		while ((orphans = LIST_FIRST(&cache->ssd.orphans[i]))) {
			LIST_REMOVE(orphans, link);
			free(orphans);
		}
	free(cache->ssd.orphans);
}

static enum kv_verdict refuse(struct kv_cache *cache, struct kv_slot *slot,
			      uint64_t *count)
{
	++*count;
	kv_write_dequeue_locked(cache, slot->block);
	return KV_ADMIT_LATER;
}

/* Without memory it does not wait, and is written when somebody asks. */
static void wait_for(struct kv_cache *cache, struct kv_slot *slot,
		     const struct kv_key *parent)
{
	struct kv_orphans *orphans =
		orphans_make(cache, slot->list->space, parent);

	refuse(cache, slot, &cache->stats.unwritten_orphans);
	if (!orphans)
		return;
	TAILQ_INSERT_TAIL(&orphans->slots, slot, link);
	slot->queue = &orphans->slots;
	orphans->n++;
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

	kv_assert_locked(&cache->lock);
	if (kv_write_must(slot))
		return KV_ADMIT_NOW;
	if (!needs_parent(slot, &key))
		goto budget;
	parent = kv_table_find(cache, slot->list->space, &key);
	if (!parent || (parent->file == KV_NONE && !kv_block_dirty(parent))) {
		wait_for(cache, slot, &key);
		return KV_ADMIT_LATER;
	}
	if ((parent->flags & BLOCK_QUEUED) && !parent->slot->pulled) {
		kv_write_queue_pull(parent->slot);
		return KV_ADMIT_LATER;
	}
	uses = KV_MAX(uses, parent->hits);
budget:
	if (!affordable(cache, slot, uses))
		return refuse(cache, slot, &cache->stats.unwritten_budget);
	return KV_ADMIT_NOW;
}
