/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - the spaces: names, owners, layouts; removal of all their blocks.
 *
 * OWNS       every kv_space, by name; each kv_clear.
 *
 * STATES     of a space:
 *
 *               (new) -> settling   its record is being written
 *            settling -> live       kv_space_create
 *                live -> removed    kv_space_remove; its name is free
 *             removed -> (freed)    kv_spaces_reap, once the space is not held
 *                                   and the cache has no part of it
 *
 * LOCKING    cache->lock for the fields, released between blocks; a block is
 *            held meanwhile.
 */
#include "cache/space/space.h"
#include "cache/core/causes.h"
#include "cache/block/block.h"
#include "cache/core/account.h"
#include "cache/core/feed.h"
#include "cache/core/hooks.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/core/ledger.h"
#include "cache/dram/dram.h"
#include "cache/remote/tier.h"
#include "cache/ssd/ssd.h"
#include "common/array.h"
#include "common/bytes.h"
#include "index/sidecar.h"

#include <search.h>
#include <stdatomic.h>
#include <stdio.h>

#define SETTLED_NS 1000000000u
#define REAPED_AT_ONCE 64u
/* A change of owner waits this long for reads and writes of its blocks. */
#define MOVE_NS 3000000000u
#define MOVE_AGAIN_US 10000u
#define INDEX_PART 4	   /* spaces and snapshots may take 1/4 of the index */
#define CLEAR_AT_ONCE 128u /* blocks that are removed before a pause */
#define CLEAR_PAUSE_US 50u
#define CHECKS_MAX 8u /* checks of the blocks before a layout is refused */

bool kv_spaces_index_fits(struct kv_cache *cache, struct kv_account *account,
			  uint64_t bytes)
{
	return kv_account_fits(account, KV_FINITE_INDEX,
			       kv_index_map_bytes(cache->ssd.cap) / INDEX_PART,
			       bytes, 0);
}

void kv_space_index_locked(struct kv_cache *cache, struct kv_space *space,
			   uint64_t from, uint64_t to)
{
	kv_assert_locked(&cache->lock);
	kv_account_credit(space->account, KV_FINITE_INDEX, from);
	kv_account_take(space->account, KV_FINITE_INDEX, to);
	space->index_bytes += to - from;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct kv_space *)a)->name,
		      ((const struct kv_space *)b)->name);
}

bool kv_space_name_ok(const char *name)
{
	size_t n = strlen(name);

	return n >= 1 && n <= KV_SPACE_NAME_MAX && name[0] != '.' &&
	       !strchr(name, '/');
}

const char *kv_space_name(const struct kv_space *space)
{
	return space->name;
}

static struct kv_space *find_locked(struct kv_cache *cache, const char *name)
{
	struct kv_space key;
	void *node;

	kv_assert_locked(&cache->lock);
	if (!kv_space_name_ok(name))
		return NULL;
	strcpy(key.name, name);
	node = tfind(&key, &cache->names, by_name);
	return node ? *(struct kv_space **)node : NULL;
}

struct kv_space *kv_space_find(struct kv_cache *cache, const char *name)
{
	struct kv_space *space;

	kv_lock(cache);
	space = find_locked(cache, name);
	space = space && !space->settling ? kv_space_get(space) : NULL;
	kv_unlock(cache);
	return space;
}

struct kv_space *kv_space_by_id(struct kv_cache *cache, uint32_t id)
{
	struct kv_space *space;

	kv_lock(cache);
	space = kv_space_with_id(cache, id);
	if (space)
		kv_space_get(space);
	kv_unlock(cache);
	return space;
}

struct kv_space *kv_space_next(struct kv_cache *cache, uint32_t after)
{
	struct kv_space *space;

	kv_lock(cache);
	while ((space = kv_space_behind(cache, after)) &&
	       (space->removed || space->settling))
		after = space->id;
	if (space)
		kv_space_get(space);
	kv_unlock(cache);
	return space;
}

struct kv_space_info kv_space_stat(struct kv_cache *cache,
				   struct kv_space *space)
{
	struct kv_space_info info = {.id = space->id};

	kv_lock(cache);
	info.uid = space->uid;
	info.gid = space->gid;
	info.mode = space->mode;
	info.mtime_ns = space->mtime_ns;
	info.removed = space->removed;
	info.shared = space->shared;
	info.own_seed = space->own_seed;
	info.quota = space->quota;
	info.guaranteed_dram = space->in[DRAM].guaranteed;
	info.guaranteed_ssd = space->in[SSD].guaranteed;
	info.layout = space->layout;
	info.blocks = space->blocks;
	info.bytes_dram = space->in[DRAM].bytes;
	info.bytes_ssd = space->in[SSD].bytes;
	info.lookups = space->lookups;
	kv_unlock(cache);
	return info;
}

static int add_locked(struct kv_cache *cache, uint32_t id, const char *name,
		      uint32_t uid, struct kv_space **ret_space)
{
	struct kv_tenant *tenant = kv_tenant_make(cache, uid);
	struct kv_space *space;
	int r;

	kv_assert_locked(&cache->lock);
	if (id == UINT32_MAX)
		return -ENOSPC;
	space = tenant ? calloc(1, sizeof(*space)) : NULL;
	if (!space)
		return -ENOMEM;
	space->id = id;
	TAILQ_INIT(&space->unpersisted);
	TAILQ_INIT(&space->dirty);
	TAILQ_INIT(&space->unwritten);
	TAILQ_INIT(&space->flushes);
	TAILQ_INIT(&space->queue);
	TAILQ_INIT(&space->under_way);
	strcpy(space->name, name);
	r = kv_spaces_enter(cache, space);
	if (r == 0 && !tsearch(space, &cache->names, by_name)) {
		kv_spaces_leave(cache, space);
		r = -ENOMEM;
	}
	if (r < 0) {
		free(space);
		return r;
	}
	cache->live_spaces++;
	space->index_bytes = kv_index_space_bytes(strlen(name), 0);
	space->uid = uid;
	kv_tenant_join_locked(cache, tenant, space);
	*ret_space = space;
	return 0;
}

/* Charge the space and its contents to @account (held) from now on. */
static void own_locked(struct kv_cache *cache, struct kv_space *space,
		       struct kv_account *account)
{
	const uint64_t held[KV_FINITE_END] = {
		[KV_FINITE_DRAM] = space->kept_dram,
		[KV_FINITE_DIRTY] = space->dirty_dram,
		[KV_FINITE_PINNED] = space->in[SSD].fast,
		[KV_FINITE_SNAPSHOTS] = kv_snapshots_cost_locked(cache, space),
		[KV_FINITE_SPACES] = 1,
		[KV_FINITE_INDEX] = space->index_bytes,
	};

	kv_assert_locked(&cache->lock);
	for (enum kv_finite what = 0; what < KV_FINITE_END; what++) {
		if (held[what] == 0)
			continue;
		kv_account_credit(space->account, what, held[what]);
		kv_account_take(account, what, held[what]);
	}
	kv_account_put(space->account);
	space->account = account;
	kv_opens_recharge_locked(cache, NULL, space);
}

static void forget_locked(struct kv_cache *cache, struct kv_space *space)
{
	kv_assert_locked(&cache->lock);
	tdelete(space, &cache->names, by_name);
	cache->live_spaces--;
	kv_tenant_leave(space);
	kv_account_credit(space->account, KV_FINITE_SPACES, 1);
	kv_space_index_locked(cache, space, space->index_bytes, 0);
	space->removed = true;
	if (space->feed)
		kv_feed_wake_locked(cache, space->feed);
	kv_guarantee_space(cache, space, DRAM, 0);
	kv_guarantee_space(cache, space, SSD, 0);
	kv_dirs_free(space);
}

int kv_space_adopt(struct kv_cache *cache, const struct kv_space_record *record,
		   const char *name, const char *layout)
{
	struct kv_space *space;
	int r;

	if (!kv_space_name_ok(name) || record->id == 0 ||
	    kv_space_with_id(cache, record->id))
		return -EBADMSG;
	/* Daemons of older versions could leave two spaces with one name,
	 * because they did not wait for a removal: the space with the lower id
	 * is the removed one. */
	space = find_locked(cache, name);
	if (space && space->id > record->id)
		return -EBADMSG;
	if (space)
		forget_locked(cache, space);
	r = add_locked(cache, record->id, name, record->uid, &space);
	if (r < 0)
		return r;
	own_locked(cache, space, kv_account_get(cache->accounts, space->uid));
	space->gid = record->gid;
	space->mode = record->mode & 07777;
	space->shared = record->mode & KV_SPACE_SHARED;
	space->own_seed = record->mode & KV_SPACE_OWN_SEED;
	space->mtime_ns = record->mtime_ns;
	space->quota = kv_quota_unpack(&record->quota);
	if (*layout)
		r = kv_layout_parse(layout, strlen(layout), &space->layout);
	kv_space_index_locked(
		cache, space, space->index_bytes,
		kv_index_space_bytes(strlen(space->name), strlen(layout)));
	space->file_bytes = kv_space_file_bytes(
		strlen(space->name),
		space->layout ? strlen(space->layout->json) : 0);
	cache->ssd.sidecars += space->file_bytes;
	cache->info.next_space = KV_MAX(cache->info.next_space, space->id + 1);
	return r;
}

static void settle(struct kv_cache *cache, struct kv_space *space, bool forget)
{
	kv_lock(cache);
	if (forget)
		forget_locked(cache, space);
	space->settling = false;
	pthread_cond_broadcast(&cache->settled);
	kv_unlock(cache);
}

static void account_putp(struct kv_account **account)
{
	kv_account_put(*account);
}

int kv_space_create(struct kv_cache *cache, const char *name, uint32_t uid,
		    uint32_t gid, uint32_t mode, struct kv_space **ret_space)
{
	_cleanup_(account_putp) struct kv_account *account = NULL;
	struct kv_space *space;
	int r;

	if (!kv_space_name_ok(name))
		return -EINVAL;
	if (cache->config.read_only)
		return -EROFS;
	account = kv_account_get(cache->accounts, uid);
	kv_lock(cache);
	/* Wait until no space of this name is settling: a crash must not leave
	 * blocks of a space without a record, nor two spaces with one name. */
	while ((space = find_locked(cache, name)) && space->settling)
		kv_cond_wait(cache, &cache->settled, SETTLED_NS);
	if (space) {
		*ret_space = kv_space_get(space);
		kv_unlock(cache);
		return -EEXIST;
	}
	r = kv_account_fits(account, KV_FINITE_SPACES,
			    kv_finite_total(KV_FINITE_SPACES), 1, 0) &&
			    kv_spaces_index_fits(
				    cache, account,
				    kv_index_space_bytes(strlen(name), 0))
		    ? 0
		    : -ENOSPC;
	if (r == 0)
		r = add_locked(cache, cache->info.next_space, name, uid,
			       &space);
	if (r == 0) {
		cache->info.next_space++;
		own_locked(cache, space, kv_steal(account));
		space->gid = gid;
		space->mode = mode & 07777;
		space->mtime_ns = kv_wall_ns();
		space->settling = true;
		kv_space_get(space);
	}
	kv_unlock(cache);
	if (r < 0)
		return r;
	r = kv_space_persist(cache, space);
	settle(cache, space, r < 0);
	if (r == 0)
		*ret_space = space;
	else
		kv_space_put(space);
	return r;
}

int kv_space_remove(struct kv_cache *cache, struct kv_space *space)
{
	int r = 0;

	if (cache->config.read_only)
		return -EROFS;
	/* A space without blocks has no use for its snapshots. */
	if (kv_space_stat(cache, space).blocks == 0)
		kv_snapshots_drop(cache, space);
	kv_lock(cache);
	if (space->removed)
		r = -ESTALE;
	else if (space->blocks || space->n_snapshots)
		r = -ENOTEMPTY;
	else
		space->removed = space->settling = true;
	if (r == 0)
		kv_fills_stale_locked(cache, space);
	kv_unlock(cache);
	if (r < 0)
		return r;
	r = kv_space_persist(cache, space);
	if (r < 0) {
		/* The file may be deleted already: write it again. */
		kv_lock(cache);
		space->removed = false;
		kv_unlock(cache);
		kv_space_persist(cache, space);
	}
	settle(cache, space, r == 0);
	return r;
}

static void space_free(struct kv_space *space)
{
	kv_account_put(space->account);
	kv_layout_free(space->layout);
	kv_layout_free(space->former);
	free(space->deletions.items);
	free(space);
}

void kv_spaces_reap(struct kv_cache *cache)
{
	unsigned reaped = 0;

	kv_assert_locked(&cache->lock);
	for (uint32_t i = cache->spaces.n;
	     i-- > 0 && cache->spaces.n > cache->live_spaces;) {
		struct kv_space *space =
			i < cache->spaces.n ? cache->spaces.sorted[i] : NULL;

		/* Free a space that is not referenced and cannot be found. */
		if (!space || !space->removed || space->settling ||
		    atomic_load_explicit(&space->refs, memory_order_acquire) ||
		    space->in[DRAM].bytes || space->in[DRAM].coming ||
		    space->in[SSD].bytes || space->in[SSD].coming ||
		    space->in[DRAM].fast || space->deletions.n ||
		    space->deletions.batch || space->turn || space->rests ||
		    space->collecting || !TAILQ_EMPTY(&space->flushes))
			continue;
		kv_evict_lists_leave(space);
		kv_spaces_leave(cache, space);
		space_free(space);
		if (++reaped % REAPED_AT_ONCE == 0) {
			kv_unlock(cache);
			kv_lock(cache);
		}
	}
}

void kv_spaces_free(struct kv_cache *cache)
{
	struct kv_tenant *tenant;

	for (uint32_t i = 0; i < cache->spaces.n; i++) {
		struct kv_space *space = cache->spaces.sorted[i];

		kv_lock(cache);
		if (!space->removed)
			forget_locked(cache, space);
		kv_unlock(cache);
		space_free(space);
	}
	free(cache->spaces.sorted);
	free(cache->spaces.at);
	while ((tenant = LIST_FIRST(&cache->tenants))) {
		LIST_REMOVE(tenant, link);
		free(tenant);
	}
}

int kv_space_set_mtime(struct kv_cache *cache, struct kv_space *space,
		       int64_t mtime_ns)
{
	if (cache->config.read_only)
		return -EROFS;
	kv_lock(cache);
	space->mtime_ns = mtime_ns;
	kv_unlock(cache);
	return kv_space_persist(cache, space);
}

/* Call @each on every block, held, without the lock, until it returns != 0. */
static int for_each_block(struct kv_cache *cache, struct kv_space *space,
			  int (*each)(struct kv_cache *, struct kv_block *,
				      void *),
			  void *arg)
{
	int r = 0;

	for (unsigned byte = 0; r == 0 && byte < 256; byte++) {
		_cleanup_(kv_freep) uint64_t *ids = NULL;
		size_t n;

		r = kv_dir_list(cache, space, (uint8_t)byte, &ids, &n);
		for (size_t i = 0; r == 0 && i < n; i++) {
			struct kv_block *block;

			if (kv_block_get_id(cache, ids[i], &block) < 0)
				continue;
			r = each(cache, block, arg);
			kv_block_put(cache, block);
		}
	}
	return r;
}

static int fits_layout(struct kv_cache *cache, struct kv_block *block,
		       void *arg)
{
	const struct kv_layout *layout = arg;
	uint64_t length, payload;
	struct kv_meta meta;
	struct kv_view view;
	int r = kv_view_get(cache, block, KV_VIEW_WAIT, &view);

	if (r == -EBADMSG || r == -ENOENT)
		return 0; /* a damaged or removed block needs no check */
	if (r < 0)
		return r;
	r = kv_block_parse(view.data, view.length, layout, &length, &payload,
			   &meta);
	kv_view_put(cache, &view);
	return r < 0 ? -EBADMSG : 0;
}

/* Take *@layout, made for a space of @owner, if all blocks fit it, unless
 * @space has a layout by now.  -EINVAL: a space with this layout cannot be
 * shared, but @space is or will be. */
static int put_layout(struct kv_cache *cache, struct kv_space *space,
		      struct kv_layout **layout, uint32_t owner)
{
	const bool own = (*layout)->seed_drawn && !(*layout)->engine_keys;
	uint64_t from = kv_index_space_bytes(strlen(space->name), 0);
	uint64_t to = kv_index_space_bytes(strlen(space->name),
					   strlen((*layout)->json));
	unsigned checks = 0;
	uint64_t sealed;
	int r;

	kv_lock(cache);
	do {
		sealed = space->sealed;
		kv_unlock(cache);
		r = for_each_block(cache, space, fits_layout, *layout);
		kv_lock(cache);
	} while (r == 0 && space->sealed != sealed && ++checks < CHECKS_MAX);
	if (r == 0 && (space->removed || space->uid != owner))
		r = -ESTALE;
	if (r < 0 || space->layout)
		goto unlock;
	if (space->sealed != sealed) {
		r = -EBUSY;
	} else if (own && (space->shared || (*layout)->share)) {
		r = -EINVAL;
	} else if (!kv_spaces_index_fits(cache, space->account, to - from)) {
		r = -ENOSPC;
	} else {
		kv_space_index_locked(cache, space, from, to);
		space->layout = kv_steal(*layout);
		space->own_seed = own;
		space->shared |= space->layout->share;
		if (space->shared)
			kv_remote_offer_locked(cache, space);
	}
unlock:
	kv_unlock(cache);
	return r;
}

static int set_layout(struct kv_cache *cache, struct kv_space *space,
		      uint32_t uid, const char *text, size_t len)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	const struct kv_layout *there;
	bool engine_keys, may_share, changed;
	uint32_t owner;
	int r;

	r = kv_layout_parse(text, len, &layout);
	if (r < 0)
		return r;
	engine_keys = layout->engine_keys;
	kv_lock(cache);
	there = space->layout;
	owner = space->uid;
	may_share = uid == owner || kv_accounts_operator(cache->accounts, uid);
	if (!there && layout->share && !may_share)
		r = -EPERM;
	kv_unlock(cache);
	if (r < 0)
		return r;
	if (!there) {
		r = kv_seed_layout(cache, owner, layout);
		if (r == 0)
			r = put_layout(cache, space, &layout, owner);
		if (r < 0)
			return r;
		/* put_layout() took @layout unless another thread was first. */
		there = layout ? space->layout : NULL;
	}
	if (!there)
		return kv_space_persist(cache, space);
	r = kv_layout_agrees(there, text, len);
	if (r <= 0)
		return r == 0 ? -EEXIST : r;
	if (!engine_keys || !may_share)
		return 0;
	/* The engine makes the keys, so own_seed is without effect. */
	kv_lock(cache);
	changed = space->own_seed && space->uid == owner;
	space->own_seed &= !changed;
	kv_unlock(cache);
	return changed ? kv_space_persist(cache, space) : 0;
}

static void keep_layout_error(struct kv_cache *cache, struct kv_space *space,
			      const char *why)
{
	kv_lock(cache);
	snprintf(space->layout_error, sizeof(space->layout_error), "%s",
		 why ? why : "");
	kv_unlock(cache);
}

int kv_space_layout_error(struct kv_cache *cache, struct kv_space *space,
			  char *ret_why)
{
	int n;

	kv_lock(cache);
	n = sprintf(ret_why, "%s", space->layout_error);
	kv_unlock(cache);
	return n;
}

int kv_space_check_layout(struct kv_cache *cache, struct kv_space *space,
			  uint32_t uid, const char *text, size_t len)
{
	const struct kv_space_info info = kv_space_stat(cache, space);
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	_cleanup_(kv_freep) char *why = NULL;
	int r = kv_layout_check(text, len, &layout, &why);

	if (r == 1 && info.layout) {
		if (kv_layout_agrees(info.layout, text, len) == 0)
			r = kv_why(&why, -EEXIST,
				   "the space has another layout");
	} else if (r == 1 && layout->share && uid != info.uid &&
		   !kv_accounts_operator(cache->accounts, uid)) {
		r = kv_why(&why, -EPERM,
			   "only the space's owner and operators may set "
			   "\"share\"");
	} else if (r == 1 && (layout->share || info.shared) &&
		   layout->seed_drawn && !layout->engine_keys &&
		   !cache->secret) {
		kv_seed_refused(cache, space);
		return -EINVAL;
	}
	keep_layout_error(cache, space, why);
	return r;
}

int kv_space_set_layout(struct kv_cache *cache, struct kv_space *space,
			uint32_t uid, const char *text, size_t len)
{
	int r;

	if (cache->config.read_only)
		return -EROFS;
	r = kv_space_check_layout(cache, space, uid, text, len);
	if (r <= 0)
		return r == 0 ? -EINVAL : r;
	r = set_layout(cache, space, uid, text, len);
	if (r < 0)
		keep_layout_error(
			cache, space,
			r == -EBADMSG ? "a block in the space does not fit it"
			: r == -EBUSY ? "blocks were saved all the time"
				      : strerror(-r));
	return r;
}

int kv_space_set_shared(struct kv_cache *cache, struct kv_space *space,
			bool shared)
{
	int r = 0;

	if (cache->config.read_only)
		return -EROFS;
	if (shared)
		r = kv_seed_may_share(cache, space);
	if (r < 0)
		return r;
	kv_lock(cache);
	if (space->removed)
		r = -ESTALE;
	else if (shared && space->own_seed)
		r = -EINVAL;
	else
		space->shared = shared;
	if (r == 0 && shared) {
		space->layout_error[0] = '\0';
		kv_remote_offer_locked(cache, space);
	}
	kv_unlock(cache);
	return r < 0 ? r : kv_space_persist(cache, space);
}

/* ---- change of owner or mode ---- */

/* Move the block to a slot of its space's access class, if it is worth keeping.
 * -EBUSY: it is being read or written, or a flush waits for it. */
static int move(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_slot *old, *new;
	bool queued;
	int r = 0;

	kv_lock(cache);
	old = block->slot;
	if (!old || (block->flags & BLOCK_REMOVED))
		goto unlock;
	if (old->holds) {
		r = -EBUSY;
		goto unlock;
	}
	/* Leaseholders keep the old slot, which they have mapped. */
	if (block->file != KV_NONE) {
		kv_slot_quit_locked(cache, old);
		goto unlock;
	}
	kv_slot_hold_locked(cache, old, 1);
	r = kv_slot_take_locked(cache, kv_block_space(cache, block),
				block->length, &new);
	if (r < 0) {
		kv_slot_hold_locked(cache, old, -1);
		goto unlock;
	}
	kv_unlock(cache);
	r = kv_slot_copy(new, old, block->length);
	kv_lock(cache);
	kv_slot_hold_locked(cache, old, -1);
	queued = block->flags & BLOCK_QUEUED;
	if (r < 0) {
		kv_slot_give_locked(cache, new);
		kv_block_changed_locked(cache, block);
	} else if (queued && kv_write_must(old)) {
		kv_slot_give_locked(cache, new);
		r = -EBUSY;
	} else {
		if (queued)
			kv_write_dequeue_locked(cache, block);
		if (!kv_block_replace_locked(cache, block, old, new)) {
			if (queued)
				kv_write_enqueue_locked(cache, block, false);
			r = -EBUSY;
		}
	}
unlock:
	kv_unlock(cache);
	return r;
}

struct rights {
	bool owner; /* the change is of the owner, not only of the mode */
	uint64_t until;
};

static int move_or_drop(struct kv_cache *cache, struct kv_block *block,
			void *arg)
{
	const struct rights *rights = arg;

	/* A block that is being written cannot move: try again. */
	while (move(cache, block) == -EBUSY && kv_now_ns() < rights->until)
		usleep(MOVE_AGAIN_US);
	/* A block still in its old slot leaves it once durable; without an SSD
	 * that takes the block, remove the block. */
	kv_lock(cache);
	if (rights->owner) /* another owner's objects have other names */
		block->remote = false;
	if (block->slot && !(block->flags & BLOCK_REMOVED) &&
	    (!cache->ssd.on ||
	     (cache->ssd.frozen && kv_block_unpersisted(block))) &&
	    !kv_class_fits(block->slot->segment->class,
			   kv_block_space(cache, block))) {
		kv_cause_note_block(cache, block, KV_CAUSE_REMOVED);
		kv_block_remove_locked(cache, block);
	}
	kv_unlock(cache);
	return 0;
}

int kv_space_chown(struct kv_cache *cache, struct kv_space *space, uint32_t uid,
		   uint32_t gid, uint32_t mode)
{
	_cleanup_(account_putp) struct kv_account *account = NULL;
	struct kv_tenant *tenant;
	bool same, moved;
	struct rights rights;
	uint32_t former;
	int r;

	if (cache->config.read_only)
		return -EROFS;
	account = kv_account_get(cache->accounts, uid);
	kv_lock(cache);
	former = space->uid;
	moved = former != uid;
	tenant = kv_tenant_make(cache, uid);
	if (!tenant) {
		kv_unlock(cache);
		return -ENOMEM;
	}
	kv_tenant_join_locked(cache, tenant, space);
	same = space->uid == uid && space->gid == gid &&
	       kv_read_bits(space->mode) == kv_read_bits(mode);
	if (!space->removed)
		own_locked(cache, space, kv_steal(account));
	space->uid = uid;
	space->gid = gid;
	space->mode = mode & 07777;
	/* The new owner decides whether other nodes get the blocks. */
	if (moved) {
		space->own_seed |= kv_seed_is_of_locked(cache, space, former);
		space->shared = false;
		space->forgets++; /* blocks are other objects now */
	}
	kv_unlock(cache);
	if (moved) {
		kv_quotas_settle(cache);
		kv_periodic_wake(&cache->housekeeper);
	}
	rights = (struct rights){moved, kv_now_ns() + MOVE_NS};
	r = same ? 0 : for_each_block(cache, space, move_or_drop, &rights);
	return r < 0 ? r : kv_space_persist(cache, space);
}

/* ---- removal of all blocks ---- */

struct place {
	uint64_t slot_id, block; /* id of the slot on SSD; id of the block */
};

struct kv_clear {
	struct kv_space *space;
	uint64_t generation;  /* blocks from this generation on are kept */
	struct place *places; /* the blocks to remove; NULL: not yet listed */
	size_t n, room, at;
};

int kv_clear_begin(struct kv_cache *cache, struct kv_space *space,
		   struct kv_clear **ret_clear)
{
	struct kv_clear *clear;

	if (cache->config.read_only)
		return -EROFS;
	clear = calloc(1, sizeof(*clear));
	if (!clear)
		return -ENOMEM;
	clear->space = kv_space_get(space);
	kv_lock(cache);
	space->clears++;
	space->forgets++;
	clear->generation = cache->generation;
	kv_fills_stale_locked(cache, space);
	kv_unlock(cache);
	*ret_clear = clear;
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return x->slot_id < y->slot_id ? -1 : x->slot_id > y->slot_id;
}

/* Delete the blocks in the order of their SSD slots, which is fastest. */
static int gather_places(struct kv_cache *cache, struct kv_clear *clear)
{
	int r = 0;

	for (unsigned byte = 0; r == 0 && byte < 256; byte++) {
		_cleanup_(kv_freep) uint64_t *ids = NULL;
		size_t n = 0;

		r = kv_dir_list(cache, clear->space, (uint8_t)byte, &ids, &n);
		if (r == 0)
			r = kv_array_reserve(&clear->places, &clear->room,
					     clear->n + n);
		kv_lock(cache);
		for (size_t i = 0; r == 0 && i < n; i++) {
			const struct kv_block *block =
				kv_table_find_id(cache, ids[i]);

			if (block &&
			    (!block->slot ||
			     kv_slot_prologue(block->slot)->record.generation <
				     clear->generation))
				clear->places[clear->n++] = (struct place){
					kv_slot_id(block->file,
						   block->slot_number),
					ids[i]};
		}
		kv_unlock(cache);
	}
	if (clear->n)
		qsort(clear->places, clear->n, sizeof(*clear->places),
		      by_place);
	return r;
}

int kv_clear_some(struct kv_cache *cache, struct kv_clear *clear)
{
	struct kv_block *open[CLEAR_AT_ONCE];
	size_t n_open = 0, end;
	int r = clear->places ? 0 : gather_places(cache, clear);

	if (r < 0)
		return r;
	end = KV_MIN(clear->at + CLEAR_AT_ONCE, clear->n);
	kv_lock(cache);
	for (; clear->at < end; clear->at++) {
		struct kv_block *block =
			kv_table_find_id(cache, clear->places[clear->at].block);

		if (block && (block->flags & BLOCK_REMOVED))
			continue;
		if (block && block->refs == 0) {
			cache->stats.removed++;
			kv_block_unwanted_locked(cache, block);
			kv_block_remove_locked(cache, block);
		} else if (block) {
			block->refs++;
			open[n_open++] = block;
		}
	}
	kv_unlock(cache);
	while (n_open > 0) {
		kv_block_remove(cache, open[--n_open]);
		kv_block_put(cache, open[n_open]);
	}
	usleep(CLEAR_PAUSE_US);
	return clear->at < clear->n;
}

void kv_clear_end(struct kv_clear *clear)
{
	if (!clear)
		return;
	kv_space_put(clear->space);
	free(clear->places);
	free(clear);
}
