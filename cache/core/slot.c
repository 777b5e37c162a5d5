/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slot.c - a slot of DRAM: its bytes, whether it is idle, and its part in the
 * counts of its space.
 *
 * OWNS     the counts of idle, busy, kept and dirty slots.
 *
 * INVARIANTS, asserted by tests/cache/check_arena.h
 *   (1) class->idle, segment->idle and list->idle count the slots for which
 *       kv_slot_idle holds; arena->idle counts their bytes.
 *   (2) space->unpersisted has exactly the slots of unpersisted blocks, by seq.
 *   (3) fast of a space's DRAM node is the bytes of its slots that are neither
 *       FREE nor idle.
 *
 * LOCKING  cache->lock.
 */
#include "cache/core/slot.h"
#include "cache/core/account.h"
#include "cache/core/ledger.h"
#include "common/copy.h"

uint8_t *kv_slot_bytes(const struct kv_slot *slot)
{
	const struct kv_segment *segment = slot->segment;

	return segment->memory.base +
	       (uint64_t)(slot - segment->slot) * segment->class->slot_bytes;
}

uint8_t *kv_slot_file(const struct kv_slot *slot)
{
	return kv_slot_bytes(slot) + KV_PAGE;
}

bool kv_slot_is_open(const struct kv_slot *slot)
{
	return slot->segment->prologues;
}

struct kv_prologue *kv_slot_prologue(const struct kv_slot *slot)
{
	const struct kv_segment *segment = slot->segment;

	return segment->prologues ? &segment->prologues[slot - segment->slot]
				  : (struct kv_prologue *)kv_slot_bytes(slot);
}

bool kv_record_agrees(const struct kv_slot_record *record, const void *bytes)
{
	const struct kv_digest digest = kv_digest_of(bytes, record->length);

	return memcmp(digest.b, record->digest, sizeof(digest.b)) == 0;
}

int kv_slot_copy(const struct kv_slot *to, const struct kv_slot *from,
		 uint64_t length)
{
	memcpy(kv_slot_file(to), kv_slot_file(from),
	       kv_round_up(length, KV_PAGE));
	*kv_slot_prologue(to) = *kv_slot_prologue(from);
	return !kv_slot_is_open(from) ||
			       kv_record_agrees(&kv_slot_prologue(to)->record,
						kv_slot_file(to))
		       ? 0
		       : -EBADMSG;
}

bool kv_block_dirty(const struct kv_block *block)
{
	return block->flags & (BLOCK_QUEUED | BLOCK_WRITING);
}

bool kv_block_unpersisted(const struct kv_block *block)
{
	return block->file == KV_NONE && !kv_block_dirty(block) &&
	       !(block->flags & BLOCK_REMOVED);
}

void kv_unpersisted_add_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	kv_assert_locked(&cache->lock);
	assert(kv_block_unpersisted(slot->block));
	slot->seq = ++cache->ssd.seq;
	cache->ssd.unpersisted++;
	TAILQ_INSERT_TAIL(&slot->list->space->unpersisted, slot, dirty);
}

void kv_unpersisted_drop_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	kv_assert_locked(&cache->lock);
	assert(kv_block_unpersisted(slot->block));
	cache->ssd.unpersisted--;
	TAILQ_REMOVE(&slot->list->space->unpersisted, slot, dirty);
}

bool kv_slot_idle(const struct kv_slot *slot)
{
	return slot->state == SLOT_READY && !slot->leases && !slot->holds &&
	       !slot->pinned && !kv_block_dirty(slot->block);
}

struct kv_unlinked *kv_unlinked_find(struct kv_cache *cache,
				     const struct kv_block *block)
{
	struct kv_unlinked *u;

	LIST_FOREACH(u, &cache->ssd.unlinked[block->number % UNLINKED_BUCKETS],
		     bucket)
		if (u->block == block->number)
			break;
	return u;
}

int kv_record_in_memory(struct kv_cache *cache, const struct kv_block *block,
			struct kv_slot_record *ret_record, uint64_t *ret_id)
{
	const struct kv_unlinked *unlinked = kv_unlinked_find(cache, block);

	kv_assert_locked(&cache->lock);
	if (block->slot) {
		*ret_record = kv_slot_prologue(block->slot)->record;
		return 0;
	}
	if (unlinked) {
		*ret_record = unlinked->record;
		return 0;
	}
	*ret_id = kv_slot_id(block->file, block->slot_number);
	return 1;
}

/* Return whether a client can keep the slot for an unlimited time.  Readers of
 * the mount and writes to SSD do not count: they end by themselves. */
static bool is_kept(const struct kv_slot *slot)
{
	return slot->state == SLOT_FILLING || slot->leases || slot->pinned;
}

/* Return the bytes charged for a slot.  The remainder of a segment, too small
 * for one more slot, is divided among its slots. */
static uint64_t share_of(const struct kv_cache *cache, uint64_t slot_bytes)
{
	const uint64_t segment_bytes = cache->arena.segment_bytes;

	return slot_bytes ? segment_bytes / (segment_bytes / slot_bytes) : 0;
}

/* Add the slot, in its present state, to all counts, or subtract it. */
static void count(struct kv_cache *cache, struct kv_slot *slot, int by)
{
	struct kv_segment *segment = slot->segment;
	struct kv_class *class = segment->class;
	struct kv_space *space = slot->list->space;
	const uint64_t factor = (uint64_t)(int64_t)by;
	const uint64_t share = factor * share_of(cache, class->slot_bytes);
	const uint32_t kept = segment->kept;

	if (is_kept(slot)) {
		segment->kept += (uint32_t)by;
		if (!kept != !segment->kept)
			kv_count_kept_segment(cache, class->tenant, by);
		space->kept_dram += share;
		kv_account_take(space->account, KV_FINITE_DRAM, share);
	} else if (slot->state == SLOT_READY && kv_block_dirty(slot->block)) {
		space->dirty_dram += share;
		kv_account_take(space->account, KV_FINITE_DIRTY, share);
	}
	if (!kv_slot_idle(slot))
		return;
	class->idle += (uint32_t)by;
	segment->idle += (uint32_t)by;
	slot->list->idle += (uint32_t)by;
	cache->arena.idle += factor * class->slot_bytes;
	cache->room |= by > 0;
	kv_count_fast(cache, DRAM, space, -factor * class->slot_bytes);
}

void kv_slot_before(struct kv_cache *cache, struct kv_slot *slot)
{
	count(cache, slot, -1);
}

void kv_slot_after(struct kv_cache *cache, struct kv_slot *slot)
{
	count(cache, slot, 1);
}

void kv_slot_lease_locked(struct kv_cache *cache, struct kv_slot *slot, int by)
{
	kv_assert_locked(&cache->lock);
	kv_slot_before(cache, slot);
	slot->leases = (uint32_t)((int)slot->leases + by);
	kv_slot_after(cache, slot);
}

void kv_slot_hold_locked(struct kv_cache *cache, struct kv_slot *slot, int by)
{
	kv_assert_locked(&cache->lock);
	kv_slot_before(cache, slot);
	slot->holds = (uint32_t)((int)slot->holds + by);
	kv_slot_after(cache, slot);
}

bool kv_segment_may_keep(const struct kv_cache *cache,
			 const struct kv_segment *segment)
{
	return segment->kept ||
	       kv_tenant_may_keep(cache, segment->class->tenant);
}

static bool is_owed(const struct kv_space *space, uint64_t bytes)
{
	const struct kv_node *own = &space->in[DRAM];
	const struct kv_node *all = &space->tenant->in[DRAM];

	return own->fast + bytes <= own->guaranteed ||
	       all->fast + bytes <= all->guaranteed;
}

bool kv_arena_over_share(const struct kv_cache *cache,
			 const struct kv_space *space, enum kv_finite what,
			 uint64_t bytes)
{
	return !is_owed(space, bytes) &&
	       !kv_account_fits(space->account, what, kv_shared(cache, DRAM),
				share_of(cache, bytes), 0);
}

/* Return whether one more slot of @bytes must not be leased or pinned: a part
 * of the user's share is kept free for saves.  @dirty: the user is charged for
 * the slot already. */
static bool over_kept_share(const struct kv_cache *cache,
			    const struct kv_space *space, uint64_t bytes,
			    bool dirty)
{
	const uint64_t shared = kv_shared(cache, DRAM);
	const uint64_t spare = shared / KV_FLOOR_PART;
	const uint64_t share = share_of(cache, bytes);

	return !is_owed(space, dirty ? 0 : bytes) &&
	       !(kv_account_fits(space->account, KV_FINITE_DRAM, shared, share,
				 spare) &&
		 (dirty || kv_account_fits(space->account, KV_FINITE_DIRTY,
					   shared + spare, share, 0)));
}

bool kv_arena_over_floor(const struct kv_cache *cache,
			 const struct kv_space *space, uint64_t bytes)
{
	return over_kept_share(cache, space, bytes, false) ||
	       kv_crowded(cache, DRAM, space, bytes,
			  kv_tier_bytes(cache, DRAM) / KV_FLOOR_PART);
}

bool kv_slot_over_floor(const struct kv_cache *cache,
			const struct kv_slot *slot)
{
	const struct kv_space *space = slot->list->space;
	const uint64_t bytes = slot->segment->class->slot_bytes;

	if (is_kept(slot))
		return false;
	return kv_slot_idle(slot) ? kv_arena_over_floor(cache, space, bytes)
				  : over_kept_share(cache, space, bytes, true);
}

uint32_t kv_read_bits(uint32_t mode)
{
	return mode & (mode & 0111) << 2;
}

bool kv_class_fits(const struct kv_class *class, const struct kv_space *space)
{
	return class->uid == space->uid && class->gid == space->gid &&
	       class->read_bits == kv_read_bits(space->mode);
}
