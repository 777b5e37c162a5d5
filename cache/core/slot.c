/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slot.c - a slot of DRAM: its bytes, whether it may go, and what of that is
 * accounted to its space.
 *
 * OWNS     the counts of what is idle, busy and guaranteed in DRAM.
 *
 * INVARIANTS, asserted by kv_arena_check_locked
 *   (1) class->idle counts the slots for which kv_slot_idle holds, as do the
 *       segments' and the lists' idle, arena->idle their bytes.
 *   (2) Exactly the slots of unpersisted blocks are on their space's
 *       unpersisted, in the order of seq.
 *   (3) space->in[DRAM].fast are the bytes of its slots that are neither FREE nor
 *       idle, cache->due[DRAM] what all tenants are guaranteed beyond these.
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

static bool is_whole(const struct kv_slot *slot)
{
	const struct kv_slot_record *record = &kv_slot_prologue(slot)->record;
	struct kv_digest digest =
		kv_digest_of(kv_slot_file(slot), record->length);

	return memcmp(digest.b, record->digest, sizeof(digest.b)) == 0;
}

int kv_slot_copy(const struct kv_slot *to, const struct kv_slot *from,
		 uint64_t length)
{
	memcpy(kv_slot_file(to), kv_slot_file(from),
	       kv_round_up(length, KV_PAGE));
	*kv_slot_prologue(to) = *kv_slot_prologue(from);
	return kv_slot_is_open(from) && !is_whole(to) ? -EBADMSG : 0;
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

static void add_idle(struct kv_cache *cache, struct kv_slot *slot, int by)
{
	struct kv_class *class = slot->segment->class;
	uint64_t bytes = class->slot_bytes;

	class->idle += (uint32_t)by;
	slot->segment->idle += (uint32_t)by;
	slot->list->idle += (uint32_t)by;
	cache->arena.idle += by > 0 ? bytes : -bytes;
	cache->room |= by > 0;
	kv_count_fast(cache, DRAM, slot->list->space, by > 0 ? -bytes : bytes);
}

/* Whether somebody keeps it from others, for as long as he likes: what waits to
 * be written goes by itself. */
static bool is_kept(const struct kv_slot *slot)
{
	return slot->state == SLOT_FILLING || slot->leases || slot->pinned;
}

static bool is_dirty(const struct kv_slot *slot)
{
	return slot->state == SLOT_READY && kv_block_dirty(slot->block);
}

/* A slot has its part of what its segment leaves over, which is nobody else's. */
static uint64_t share_of(const struct kv_cache *cache, uint64_t slot_bytes)
{
	const uint64_t segment_bytes = cache->arena.segment_bytes;

	return slot_bytes ? segment_bytes / (segment_bytes / slot_bytes) : 0;
}

static void add_share(const struct kv_cache *cache, struct kv_slot *slot,
		      enum kv_finite what, int by)
{
	struct kv_space *space = slot->list->space;
	uint64_t bytes = share_of(cache, slot->segment->class->slot_bytes);
	uint64_t *held =
		what == KV_FINITE_DRAM ? &space->kept_dram : &space->dirty_dram;

	*held += by > 0 ? bytes : -bytes;
	if (by > 0)
		kv_account_take(space->account, what, bytes);
	else
		kv_account_credit(space->account, what, bytes);
}

static void add_kept(struct kv_cache *cache, struct kv_slot *slot, int by)
{
	struct kv_segment *segment = slot->segment;
	const uint32_t before = segment->kept;

	segment->kept += (uint32_t)by;
	if (!before != !segment->kept)
		kv_count_kept_segment(cache, segment->class->tenant, by);
	add_share(cache, slot, KV_FINITE_DRAM, by);
}

void kv_slot_before(struct kv_cache *cache, struct kv_slot *slot)
{
	if (is_kept(slot))
		add_kept(cache, slot, -1);
	else if (is_dirty(slot))
		add_share(cache, slot, KV_FINITE_DIRTY, -1);
	if (kv_slot_idle(slot))
		add_idle(cache, slot, -1);
}

void kv_slot_after(struct kv_cache *cache, struct kv_slot *slot)
{
	if (is_kept(slot))
		add_kept(cache, slot, 1);
	else if (is_dirty(slot))
		add_share(cache, slot, KV_FINITE_DIRTY, 1);
	if (kv_slot_idle(slot))
		add_idle(cache, slot, 1);
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
	const struct kv_tenant *tenant = space->tenant;

	return space->in[DRAM].fast + bytes <= space->in[DRAM].guaranteed ||
	       tenant->in[DRAM].fast + bytes <= tenant->in[DRAM].guaranteed;
}

bool kv_arena_over_share(const struct kv_cache *cache,
			 const struct kv_space *space, uint64_t bytes)
{
	return !is_owed(space, bytes) &&
	       !kv_account_fits(space->account, KV_FINITE_DIRTY,
				kv_shared(cache, DRAM), share_of(cache, bytes),
				0);
}

bool kv_arena_keeps_share(const struct kv_cache *cache,
			  const struct kv_space *space, uint64_t bytes)
{
	return !is_owed(space, bytes) &&
	       !kv_account_fits(space->account, KV_FINITE_DRAM,
				kv_shared(cache, DRAM), share_of(cache, bytes),
				0);
}

/* Of a share leases and pins leave a part to save by, and what was saved leaves
 * them one; @dirty: it has its part of the share already. */
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

/* Leases and pins leave a part to save by: of the share, and of what others are
 * not guaranteed. */
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

bool kv_class_fits(const struct kv_class *class, const struct kv_space *space)
{
	return class->uid == space->uid && class->gid == space->gid &&
	       class->read_bits == (space->mode & 0444);
}
