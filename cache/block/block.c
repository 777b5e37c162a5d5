/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - queries about blocks, and changes of them.
 *
 * OWNS       the life of a block, and the order in which its parts are freed;
 *            every kv_open_charge.
 *
 * INVARIANTS
 *   (1) A removed block keeps its slot while the slot is leased or held, and
 *       its extent while the block is open (refs); without slot and extent the
 *       block is freed.
 *   (2) space->unpersisted has the slots of blocks that are neither durable nor
 *       being written to SSD.
 *   (3) An open block on SSD is not charged to the user who is charged for its
 *       pin.  ssd->opens lists the charges; each pin and unpin updates them.
 *
 * LOCKING    cache->lock.
 */
#include "cache/block/block.h"
#include "cache/core/causes.h"
#include "cache/core/account.h"
#include "cache/core/hooks.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/core/ledger.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"
#include "common/crash_point.h"

#define MOMENT_NS 1000000u

static void settle_locked(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_unlinked *unlinked;
	struct kv_slot *slot = block->slot;

	kv_assert_locked(&cache->lock);
	if (!(block->flags & BLOCK_REMOVED) || block->refs)
		return;
	if (slot && (slot->leases || slot->holds || kv_block_dirty(block)))
		return;
	if (slot)
		kv_slot_give_locked(cache, slot);
	if (block->file != KV_NONE)
		kv_extent_detach_locked(cache, block, true);
	unlinked = kv_unlinked_find(cache, block);
	if (unlinked)
		LIST_REMOVE(unlinked, bucket);
	free(unlinked);
	kv_table_free(cache, block);
}

/* Remove the block.  @own: number of references that the caller holds and
 * releases next; if not 0, the caller informs the kernel of the removal. */
static void remove_locked(struct kv_cache *cache, struct kv_block *block,
			  uint32_t own)
{
	struct kv_space *space = kv_block_space(cache, block);

	kv_assert_locked(&cache->lock);
	kv_pin_block_gone_locked(cache, block);
	if (block->slot)
		kv_syncs_end_locked(cache, block->slot, -ENOENT);
	if (block->flags & BLOCK_QUEUED)
		kv_write_dequeue_locked(cache, block);
	if (block->slot)
		kv_orphan_drop_locked(cache, block->slot);
	if (block->slot && kv_block_unpersisted(block))
		kv_unpersisted_drop_locked(cache, block->slot);
	if (!own)
		kv_defer_gone(cache, block);
	KV_POINT("remove.unlinked");
	kv_table_unlink(cache, block);
	space->doomed += block->moving;
	space->dirs[block->key[0]]->mtime_ns = kv_wall_ns();
	/* Delete the record with the next commit, even if the block is open. */
	if (block->file != KV_NONE &&
	    (block->refs > own || (block->slot && !kv_slot_idle(block->slot))))
		kv_extent_delete_locked(
			cache, space,
			kv_slot_id(block->file, block->slot_number), false);
	KV_POINT("remove.queued");
	kv_block_settle_locked(cache, block);
}

static void end_locked(struct kv_cache *cache, struct kv_block *block)
{
	remove_locked(cache, block, 0);
}

void kv_block_unwanted_locked(struct kv_cache *cache,
			      const struct kv_block *block)
{
	const struct kv_key key = kv_block_key(block);
	struct kv_space *space = kv_block_space(cache, block);

	kv_removed_add_locked(cache, space, &key);
	/* The former record would bring the block back with the device. */
	if (block->slot && block->slot->lost)
		kv_extent_delete_locked(cache, space, block->slot->former,
					false);
	kv_cause_note_block(cache, block, KV_CAUSE_REMOVED);
}

/* Remove the block.  @put_next: the caller drops its own reference next, and
 * its reply informs the kernel of the removal. */
static int remove_block(struct kv_cache *cache, struct kv_block *block,
			bool put_next)
{
	struct kv_unlinked *unlinked = NULL;
	int r = 0;

	kv_lock(cache);
	if (block->refs > put_next) { /* a reader has the block open */
		kv_unlock(cache);
		/* A removed block keeps its slot on SSD, and needs its record,
		 * while a reader has it open. */
		unlinked = calloc(1, sizeof(*unlinked));
		if (unlinked &&
		    kv_block_record(cache, block, &unlinked->record) < 0)
			free(kv_steal(unlinked));
		kv_lock(cache);
	}
	if (cache->config.read_only)
		r = -EROFS;
	else if (block->flags & BLOCK_REMOVED)
		r = -ENOENT;
	if (r == 0 && unlinked && block->file != KV_NONE) {
		unlinked->block = block->number;
		LIST_INSERT_HEAD(
			&cache->ssd.unlinked[block->number % UNLINKED_BUCKETS],
			unlinked, bucket);
		unlinked = NULL;
	}
	if (r == 0) {
		cache->stats.removed++;
		kv_block_unwanted_locked(cache, block);
		remove_locked(cache, block, put_next);
	}
	kv_unlock(cache);
	free(unlinked);
	return r;
}

int kv_block_remove(struct kv_cache *cache, struct kv_block *block)
{
	return remove_block(cache, block, false);
}

int kv_block_unlink(struct kv_cache *cache, struct kv_block *block)
{
	return remove_block(cache, block, true);
}

int kv_block_record(struct kv_cache *cache, struct kv_block *block,
		    struct kv_slot_record *ret_record)
{
	uint64_t id, now;
	int r, again;

	kv_lock(cache);
	r = kv_record_in_memory(cache, block, ret_record, &now);
	while (r > 0) {
		id = now;
		kv_unlock(cache);
		r = cache->index
			    ? kv_index_get(cache->index, id, ret_record, NULL)
			    : -ENOENT;
		kv_lock(cache);
		/* move.c may have moved the block while the lock was released;
		 * the index has the new record before the block has its slot. */
		while (r == -ENOENT &&
		       kv_slot_id(block->file, block->slot_number) == id &&
		       cache->ssd.committing && cache->ssd.moves.n)
			kv_cond_wait(cache, &cache->ssd.done, MOMENT_NS);
		/* A removal may have taken the record meanwhile. */
		again = kv_record_in_memory(cache, block, ret_record, &now);
		if (again == 0 || now != id)
			r = again;
	}
	kv_unlock(cache);
	return r;
}

struct kv_open_charge {
	/* entry in ssd->opens: charges of readers for blocks on SSD */
	LIST_ENTRY(kv_open_charge) link;
	struct kv_block *block;
	struct kv_account *account; /* held */
	enum kv_finite what;
	uint64_t bytes;
	bool waived; /* @account pays for the block's pin already */
};

/* Return whether the pin of @block is charged to @account. */
static bool is_pinned_for(struct kv_cache *cache, const struct kv_block *block,
			  const struct kv_account *account)
{
	return (block->flags & BLOCK_PINNED) &&
	       kv_block_space(cache, block)->account == account;
}

void kv_opens_recharge_locked(struct kv_cache *cache,
			      const struct kv_block *block,
			      const struct kv_space *space)
{
	const unsigned first = block ? block->number % OPEN_BUCKETS : 0;
	const unsigned end = block ? first + 1 : OPEN_BUCKETS;
	struct kv_open_charge *charge;

	kv_assert_locked(&cache->lock);
	for (unsigned i = first; i < end; i++)
		LIST_FOREACH(charge, &cache->ssd.opens[i], link) {
			struct kv_account *account = charge->account;
			const bool waived =
				is_pinned_for(cache, charge->block, account);

			if (block ? charge->block != block
				  : kv_block_space(cache, charge->block) !=
					    space)
				continue;
			if (waived && !charge->waived)
				kv_account_credit(account, charge->what,
						  charge->bytes);
			else if (!waived && charge->waived)
				kv_account_take(account, charge->what,
						charge->bytes);
			charge->waived = waived;
		}
}

int kv_open_charge(struct kv_cache *cache, struct kv_block *block,
		   struct kv_account *account,
		   struct kv_open_charge **ret_charge)
{
	struct kv_open_charge *charge = calloc(1, sizeof(*charge));
	bool fits;

	if (!charge)
		return -ENOMEM;
	charge->block = block;
	charge->account = account;
	kv_lock(cache);
	if (block->file != KV_NONE) {
		const struct kv_space *space = kv_block_space(cache, block);
		const struct kv_node *own = &space->in[SSD];
		const struct kv_node *all = &space->tenant->in[SSD];

		charge->what = KV_FINITE_PINNED;
		charge->bytes =
			kv_ssd_pin_bytes(cache, kv_extent_bytes(cache, block));
		charge->waived = is_pinned_for(cache, block, account);
		/* Within its guarantee, a space's owner opens blocks without
		 * charge. */
		fits = charge->waived ||
		       kv_account_fits(account, charge->what,
				       kv_shared(cache, SSD), charge->bytes,
				       0) ||
		       (kv_account_uid(account) == space->tenant->uid &&
			kv_account_held(account, charge->what) +
					charge->bytes <=
				KV_MAX(own->guaranteed, all->guaranteed));
	} else {
		const uint64_t shared = kv_shared(cache, DRAM);

		charge->what = KV_FINITE_DRAM;
		if (block->slot)
			charge->bytes = block->slot->segment->class->slot_bytes;
		fits = kv_account_fits(account, charge->what, shared,
				       charge->bytes, shared / KV_FLOOR_PART);
	}
	if (fits && !charge->waived)
		kv_account_take(account, charge->what, charge->bytes);
	if (fits && charge->what == KV_FINITE_PINNED)
		LIST_INSERT_HEAD(
			&cache->ssd.opens[block->number % OPEN_BUCKETS], charge,
			link);
	kv_unlock(cache);
	if (!fits) {
		free(charge);
		return -ENFILE;
	}
	kv_account_hold(account);
	*ret_charge = charge;
	return 0;
}

void kv_open_credit(struct kv_cache *cache, struct kv_open_charge *charge)
{
	if (!charge)
		return;
	if (charge->what == KV_FINITE_PINNED) {
		kv_lock(cache);
		LIST_REMOVE(charge, link);
		kv_unlock(cache);
	}
	if (!charge->waived)
		kv_account_credit(charge->account, charge->what, charge->bytes);
	kv_account_put(charge->account);
	free(charge);
}

static struct kv_block_info stat_locked(struct kv_cache *cache,
					const struct kv_block *block)
{
	const struct kv_space *space = kv_block_space(cache, block);
	uint64_t ssd = kv_extent_bytes(cache, block);
	struct kv_block_info info = {
		.id = kv_block_id(block),
		.space = kv_block_space(cache, block),
		.key = kv_block_key(block),
		.length = block->length,
		.held = ssd,
		.ssd = ssd,
		.hits = block->hits,
		.durable = ssd != 0,
		.pinned = block->flags & BLOCK_PINNED,
		.removed = block->flags & BLOCK_REMOVED,
		.atime_ns = (block->atime + cache->uses.ahead) * 1000000000,
		.mtime_ns = block->mtime_ns,
		.tiers = (ssd ? KV_TIER_SSD : 0) |
			 (block->remote ? KV_TIER_REMOTE : 0),
		.uid = space->uid,
		.gid = space->gid,
		.mode = space->mode,
	};

	kv_assert_locked(&cache->lock);
	if (block->slot) {
		info.held += block->slot->segment->class->slot_bytes;
		info.leases = block->slot->leases;
		info.tiers |= KV_TIER_DRAM;
	}
	return info;
}

struct kv_block_info kv_block_stat(struct kv_cache *cache,
				   struct kv_block *block)
{
	struct kv_block_info info;

	kv_lock(cache);
	info = stat_locked(cache, block);
	kv_unlock(cache);
	return info;
}

int kv_block_stat_id(struct kv_cache *cache, uint64_t id,
		     struct kv_block_info *ret_info)
{
	struct kv_block *block;

	kv_lock(cache);
	block = kv_table_find_id(cache, id);
	if (block)
		*ret_info = stat_locked(cache, block);
	kv_unlock(cache);
	return block ? 0 : -ENOENT;
}

int kv_block_stat_key(struct kv_cache *cache, struct kv_space *space,
		      const struct kv_key *key, struct kv_block_info *ret_info)
{
	struct kv_block *block;

	kv_lock(cache);
	block = space->removed ? NULL : kv_table_find(cache, space, key);
	if (block)
		*ret_info = stat_locked(cache, block);
	kv_unlock(cache);
	return block ? 0 : -ENOENT;
}

static struct kv_meta meta_of(const struct kv_slot_record *record)
{
	struct kv_meta meta = {.position = record->position,
			       .tokens = record->tokens,
			       .mtime_ns = record->mtime_ns};

	meta.parent.len = record->parent_len;
	memcpy(meta.parent.b, record->parent, sizeof(record->parent));
	return meta;
}

int kv_block_meta(struct kv_cache *cache, struct kv_block *block,
		  struct kv_meta *ret_meta, struct kv_digest *ret_digest)
{
	struct kv_slot_record record;
	struct kv_meta meta;
	int r = kv_block_record(cache, block, &record);

	if (r < 0)
		return r;
	meta = meta_of(&record);
	kv_lock(cache);
	meta.mtime_ns = block->mtime_ns;
	kv_unlock(cache);
	*ret_meta = meta;
	memcpy(ret_digest->b, record.digest, sizeof(record.digest));
	return 0;
}

#define LIST_MAX 64u
#define LIST_ON_SSD \
	(UINT64_C(1) << 63) /* in cursors: the low bits are a slot's id */

/* List the block @key, with its record of the index or NULL.  Returns false if the space
 * has no such block. */
static bool list_block(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_key *key,
		       const struct kv_slot_record *record,
		       struct kv_listed *ret_listed)
{
	struct kv_slot_record own = {0};
	struct kv_block *block, *parent;
	uint64_t id;

	kv_lock(cache);
	block = space->removed ? NULL : kv_table_find(cache, space, key);
	if (block && !record &&
	    kv_record_in_memory(cache, block, &own, &id) == 0)
		record = &own;
	if (block) {
		ret_listed->info = stat_locked(cache, block);
		ret_listed->meta = meta_of(record ? record : &own);
		parent = ret_listed->meta.parent.len == 0
				 ? NULL
				 : kv_table_find(cache, space,
						 &ret_listed->meta.parent);
		ret_listed->parent_id = parent ? kv_block_id(parent) : 0;
	}
	kv_unlock(cache);
	return block;
}

size_t kv_space_list(struct kv_cache *cache, struct kv_space *space,
		     uint64_t *cursor, struct kv_listed *ret_blocks, size_t max)
{
	struct kv_slot_record records[LIST_MAX];
	struct kv_key keys[LIST_MAX];
	uint64_t id = *cursor & ~LIST_ON_SSD;
	size_t n = 0;
	long got;

	max = KV_MIN(max, LIST_MAX);
	if (!(*cursor & LIST_ON_SSD)) {
		got = (long)kv_space_keys(cache, space, true, cursor, keys,
					  max);
		if (*cursor == 0)
			*cursor = LIST_ON_SSD;
		for (long i = 0; i < got; i++)
			n += list_block(cache, space, &keys[i], NULL,
					&ret_blocks[n]);
		return n;
	}
	got = cache->index ? kv_index_slots(cache->index, &id, space->id,
					    records, max)
			   : -ENOENT;
	*cursor = got < 0 || id == UINT64_MAX ? 0 : LIST_ON_SSD | id;
	for (long i = 0; i < got; i++) {
		keys[0] = (struct kv_key){.len = records[i].key_len};
		memcpy(keys[0].b, records[i].key, sizeof(keys[0].b));
		n += list_block(cache, space, &keys[0], &records[i],
				&ret_blocks[n]);
	}
	return n;
}

void kv_block_describe(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_key *key, struct kv_listed *ret_block)
{
	if (!list_block(cache, space, key, NULL, ret_block))
		*ret_block = (struct kv_listed){.info.key = *key};
}

int kv_block_get_token_ids(struct kv_cache *cache, struct kv_block *block,
			   struct kv_meta *ret_meta,
			   struct kv_token_ids **ret_ids)
{
	struct kv_slot_record record;
	struct kv_digest digest;
	struct kv_view view;
	bool durable;
	uint64_t id;
	int r;

	*ret_ids = NULL;
	kv_lock(cache);
	durable = block->file != KV_NONE;
	id = kv_slot_id(block->file, block->slot_number);
	kv_unlock(cache);
	if (durable && cache->index &&
	    kv_index_get(cache->index, id, &record, ret_ids) < 0)
		*ret_ids = NULL;
	/* The slot may hold another block by now. */
	if (*ret_ids && memcmp(record.key, block->key, sizeof(record.key)) != 0)
		free(kv_steal(*ret_ids));
	if (*ret_ids) {
		*ret_meta = meta_of(&record);
		return 0;
	}
	r = kv_block_meta(cache, block, ret_meta, &digest);
	if (r == 0)
		r = kv_view_get(cache, block, KV_VIEW_ONCE, &view);
	if (r < 0)
		return r;
	r = kv_block_parse_token_ids(view.data, view.length, ret_ids);
	kv_view_put(cache, &view);
	return r == 0 || r == -ENOMEM ? r : -ENOENT;
}

static void ask_shadow(struct kv_shadow_cache *shadow, uint64_t hash,
		       const struct kv_block *block)
{
	if (!shadow || !kv_shadow_cache_follows(shadow, hash))
		return;
	kv_shadow_cache_ask(
		shadow, hash,
		block->slot ? kv_slot_prologue(block->slot)->record.position
			    : 0);
}

void kv_block_asked_locked(struct kv_cache *cache, const struct kv_block *block)
{
	const struct kv_space *space = kv_block_space(cache, block);
	uint64_t hash = kv_key_hash(cache, space, block->key);

	kv_assert_locked(&cache->lock);
	kv_miss_curve_use(cache->curve, hash, KV_PAGE + block->length,
			  cache->arena.max * cache->arena.segment_bytes);
	ask_shadow(cache->arena.eviction.shadow, hash, block);
	ask_shadow(cache->ssd.eviction.shadow, hash, block);
}

/* Call @call for the block's entries in the eviction lists of both tiers. */
static void in_policies(struct kv_cache *cache, const struct kv_block *block,
			void (*call)(struct kv_policy *policy, uint32_t block))
{
	if (block->slot)
		call(&block->slot->list->policy, block->number);
	if (block->file != KV_NONE)
		call(&kv_evict_list_ssd(cache, block)->policy, block->number);
}

void kv_block_touch_locked(struct kv_cache *cache, struct kv_block *block)
{
	kv_assert_locked(&cache->lock);
	if (block->flags & BLOCK_REMOVED)
		return;
	block->hits++;
	block->atime = kv_use_now(cache);
	block->flags |= BLOCK_USED;
	kv_block_asked_locked(cache, block);
	in_policies(cache, block, kv_policy_touch);
	if (block->slot)
		kv_slot_hint_over_locked(cache, block->slot, true);
	if (cache->remote_hooks && block->file != KV_NONE && block->hits == 1 &&
	    cache->config.remote.write == KV_WRITEBACK_REUSE)
		cache->remote_hooks->durable_locked(cache, block);
	if (block->file == KV_NONE &&
	    cache->config.writeback != KV_WRITEBACK_NONE)
		kv_write_enqueue_locked(cache, block, false);
}

void kv_block_renew_locked(struct kv_cache *cache, struct kv_block *block)
{
	kv_assert_locked(&cache->lock);
	block->atime = kv_use_now(cache);
	block->flags |= BLOCK_USED;
	in_policies(cache, block, kv_policy_renew);
}

void kv_block_touch(struct kv_cache *cache, struct kv_block *block)
{
	kv_lock(cache);
	kv_block_touch_locked(cache, block);
	kv_unlock(cache);
}

void kv_block_end(struct kv_cache *cache, struct kv_block *block)
{
	kv_lock(cache);
	in_policies(cache, block, kv_policy_end);
	kv_unlock(cache);
}

/* Mark the last block first, so that the chain is evicted from its end. */
void kv_blocks_ended(struct kv_cache *cache, struct kv_space *space,
		     const struct kv_key *keys, size_t n)
{
	kv_lock(cache);
	for (size_t i = n; i-- > 0 && !space->removed;) {
		struct kv_block *block = kv_table_find(cache, space, &keys[i]);

		if (block)
			in_policies(cache, block, kv_policy_end);
	}
	kv_unlock(cache);
}

int kv_block_set_mtime(struct kv_cache *cache, struct kv_block *block,
		       int64_t mtime_ns)
{
	int r;

	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	r = kv_update_locked(cache, block);
	if (r == 0)
		block->mtime_ns = mtime_ns;
	kv_unlock(cache);
	return r;
}

int kv_block_pin(struct kv_cache *cache, struct kv_block *block, bool pin)
{
	int r = 0;

	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	if (block->flags & BLOCK_REMOVED)
		r = -ENOENT;
	else if (pin && !kv_pin_fits_locked(cache, block))
		r = -ENOSPC;
	if (r == 0 && pin != kv_block_pinned_by_user(cache, block)) {
		r = kv_update_locked(cache, block);
		if (r == 0)
			kv_pin_by_user_locked(cache, block, pin);
	}
	kv_unlock(cache);
	return r;
}

int kv_block_demote_try(struct kv_cache *cache, struct kv_block *block)
{
	int r = 0;

	kv_lock(cache);
	if (block->slot && (block->slot->leases || block->slot->holds))
		r = -EBUSY;
	else if (block->slot && block->file == KV_NONE)
		r = -EAGAIN;
	else if (block->slot)
		kv_slot_give_locked(cache, block->slot);
	kv_unlock(cache);
	return r;
}

/* Return whether the block is not open, and no flush waits for it. */
static bool is_quiet(const struct kv_block *block)
{
	const struct kv_slot *slot = block->slot;

	return slot && !slot->holds && !(block->flags & BLOCK_REMOVED) &&
	       !kv_block_dirty(block) &&
	       (block->file != KV_NONE ||
		slot->seq > slot->list->space->asked_seq);
}

bool kv_block_movable(const struct kv_block *block)
{
	return is_quiet(block) && !block->slot->leases;
}

void kv_slot_quit_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	kv_assert_locked(&cache->lock);
	if (slot->leases)
		kv_slot_leave_locked(cache, slot);
	else
		kv_slot_give_locked(cache, slot);
}

void kv_block_rehome_locked(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_slot *slot = block->slot;

	kv_assert_locked(&cache->lock);
	if (slot && block->file != KV_NONE && is_quiet(block) &&
	    !kv_class_fits(slot->segment->class, kv_block_space(cache, block)))
		kv_slot_quit_locked(cache, slot);
}

bool kv_block_replace_locked(struct kv_cache *cache, struct kv_block *block,
			     struct kv_slot *old, struct kv_slot *new)
{
	kv_assert_locked(&cache->lock);
	/* Move a leased block only out of a slot of a wrong access class. */
	if (block->slot != old || !is_quiet(block) ||
	    (old->leases && kv_class_fits(old->segment->class,
					  kv_block_space(cache, block))) ||
	    !kv_class_fits(new->segment->class, kv_block_space(cache, block))) {
		kv_slot_give_locked(cache, new);
		return false;
	}
	if (block->flags & BLOCK_PINNED)
		kv_ssd_pinned_locked(cache, block, false);
	kv_slot_quit_locked(cache, old);
	new->alone = true;
	kv_slot_publish_locked(cache, new, block);
	new->former = old->former;
	new->lost = old->lost;
	if (block->flags & BLOCK_PINNED)
		kv_ssd_pinned_locked(cache, block, true);
	if (cache->config.writeback == KV_WRITEBACK_ALL)
		kv_write_enqueue_locked(cache, block, false);
	return true;
}

void kv_block_put(struct kv_cache *cache, struct kv_block *block)
{
	kv_lock(cache);
	block->refs--;
	kv_block_settle_locked(cache, block);
	kv_unlock(cache);
}

const struct kv_block_hooks kv_block_hooks = {
	.settle_locked = settle_locked,
	.remove_locked = end_locked,
	.room_locked = kv_wants_look_again_locked,
	.pinned_by_user = kv_pinned_by_user,
};
