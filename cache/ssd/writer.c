/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer.c - write sealed blocks to SSD: admission, and turns of users.
 *
 * Users take turns by bytes: each has a write queue of its spaces with blocks to
 * write.  A space that must wait or finds no room rests, and the writer goes on
 * with others.
 *
 * The writer lingers before it writes blocks that nobody waits for, so that a
 * series of small saves wakes it once.
 *
 * Admission decides which blocks are written without a request: whole chains,
 * within the budget of ssd_write=.  In a space whose reuse rule is `prefix`, a
 * block that was saved with its parent's key is written only if its parent is on
 * SSD or being written.  Until then the block is an orphan, filed under its
 * parent's key.  Blocks that came as files need no parent, as cp and tar write
 * files in any order.
 *
 * OWNS       the writer thread, and the start and end of the tier's threads; the
 *            write queues, the queue of each space, and slot->queue and
 *            slot->link of slots on it; the budget of ssd_write=; all orphans.
 *
 * STATES     of a block, and the function that makes each step:
 *
 *       UNPERSISTED -> QUEUED       kv_write_enqueue_locked
 *            QUEUED -> UNPERSISTED  kv_write_dequeue_locked (removed, given up)
 *            QUEUED -> WRITING      start_write
 *           WRITING -> WRITTEN      write_done               (reactor thread)
 *           WRITING -> QUEUED       write_again, when the write failed or hangs
 *           WRITTEN -> DURABLE      commit.c; or QUEUED again, when it failed
 *
 *            of the orphans of one parent; the parent of blocks that an SSD
 *            quota has refused is a key without bytes:
 *
 *              none -> WAITING      admit; turn, when a quota refuses
 *           WAITING -> none         kv_refused_queue_locked of the last orphan
 *           WAITING -> ADOPTED      kv_write_enqueue_locked of the parent
 *           WAITING -> none         kv_orphan_drop_locked of the last orphan
 *           ADOPTED -> none         kv_orphan_drop_locked, too
 *
 * INVARIANTS
 *   (1) QUEUED, WRITING and WRITTEN slots are on their space's dirty list, by
 *       seq, and QUEUED ones on its queue; ssd->dirty counts them.  Such slots
 *       are not idle: a block that is being written keeps its bytes.
 *   (2) A space is on a write queue, or resting, if and only if it has queued
 *       slots; a write queue takes turns if and only if it has spaces.
 *       ssd->queued counts the slots.
 *   (3) A space's slots are in the order of their seals, except that parents
 *       are pulled before their children.
 *   (4) A space with no_room rests, and no flush waits for its slots;
 *       ssd->stalled counts its queued slots.
 *   (5) The block of an orphan is unpersisted and not removed; its slot is evictable.
 *   (6) At most one WAITING kv_orphans has a given space and parent; none is empty.
 *   (7) The writer lingers only while ssd->linger_until is set, for at most
 *       LINGER_NS, and only if it had nothing to write before.  The linger ends
 *       at once when a caller waits for a write, a commit or room.
 *   (8) At most the bytes of ssd_write= are written in any 24 hours, not counting
 *       blocks that a flush or sync waits for.
 *
 * LOCKING    cache->lock.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/causes.h"
#include "cache/core/hooks.h"
#include "cache/core/ledger.h"
#include "common/copy.h"
#include "common/crash_point.h"

#include <search.h>

#define TURN_BYTES (8 << 20) /* bytes that a user may write in one turn */
#define WRITES_AT_ONCE 128u  /* most writes at each device */
#define PUT_OFF_AT_ONCE 64u
/* Most bytes of writes at the device: syncs and reads wait for these. */
#define WRITING_BYTES (48u << 20)
/* longest time for which a space waits for a commit */
#define MOMENT_NS 10000000u
#define LINGER_NS 3000000u
/* The linger ends if the free part of the user's share is less than this many
 * times the queued bytes: a quarter of the share is then dirty. */
#define LINGER_ROOM 3u
#define FULL_NS 5000000000u /* pause after the filesystem was full */
#define DAY_S 86400
#define ADOPTED_AT_ONCE 64u
#define REFUSED_AT_ONCE 1024u
#define MOVER_NS 3600000000000u /* longest sleep of the mover thread */

/* ---- write queues ---- */

/* The write queue of one user. */
struct write_queue {
	struct kv_turn turn; /* first member */
	struct kv_turn_list spaces;
};

static void queue_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct write_queue *)turn)->spaces);
}

/* Put the space on the write queue of its user.  The space holds that queue
 * even if the space changes its owner. */
static struct kv_turn *join_turns(struct kv_cache *cache,
				  struct kv_space *space)
{
	space->turn = kv_turn_get(&cache->ssd.write_queues, space->uid);
	TAILQ_INSERT_TAIL(&((struct write_queue *)space->turn)->spaces, space,
			  turn_link);
	return space->turn;
}

/* Take the space off its write queue or off the list of resting spaces. */
static void leave_turns(struct kv_cache *cache, struct kv_space *space)
{
	struct write_queue *queue = (struct write_queue *)space->turn;

	if (space->rests) {
		TAILQ_REMOVE(&cache->ssd.resting[space->rests - 1], space,
			     turn_link);
		space->rests = 0;
	} else {
		TAILQ_REMOVE(&queue->spaces, space, turn_link);
		if (TAILQ_EMPTY(&queue->spaces))
			kv_turn_stop(&cache->ssd.write_queues, space->turn);
	}
}

static void set_no_room(struct kv_cache *cache, struct kv_space *space, bool is)
{
	if (space->no_room == is)
		return;
	space->no_room = is;
	cache->ssd.stalled += is ? space->queued : -space->queued;
	cache->room = true; /* acquires that wait for room try again */
}

static void push(struct kv_cache *cache, struct kv_slot *slot, bool front)
{
	struct kv_space *space = slot->list->space;

	if (TAILQ_EMPTY(&space->queue))
		kv_turn_start(&cache->ssd.write_queues,
			      join_turns(cache, space));
	if (front)
		TAILQ_INSERT_HEAD(&space->queue, slot, link);
	else
		TAILQ_INSERT_TAIL(&space->queue, slot, link);
	slot->queue = &space->queue;
	space->queued++;
	cache->ssd.queued++;
	cache->ssd.stalled += space->no_room;
}

static void drop(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_space *space = slot->list->space;

	TAILQ_REMOVE(&space->queue, slot, link);
	slot->queue = NULL;
	space->queued--;
	cache->ssd.queued--;
	cache->ssd.stalled -= space->no_room;
	if (!TAILQ_EMPTY(&space->queue))
		return;
	leave_turns(cache, space);
	kv_turn_put(&cache->ssd.write_queues, kv_steal(space->turn));
	set_no_room(cache, space, false);
}

bool kv_writes_may_make_room_locked(const struct kv_cache *cache)
{
	kv_assert_locked(&cache->lock);
	return cache->ssd.dirty > cache->ssd.stalled;
}

void kv_writer_hurry_locked(struct kv_cache *cache)
{
	kv_assert_locked(&cache->lock);
	if (!cache->ssd.linger_until)
		return;
	cache->ssd.linger_until = 0;
	pthread_cond_signal(&cache->ssd.write);
}

/* ---- spaces that rest: their writes are deferred ---- */

/* Why a space rests: for a moment, until deletions under way are over, or until
 * there may be room again.  A commit ends the first two kinds of rest. */
enum rest { MOMENT, LEAVING, RETRY };

static void put_off(struct kv_cache *cache, struct kv_space *space,
		    enum rest rest)
{
	/* The queue may be empty by now: start_write has released the lock. */
	if (TAILQ_EMPTY(&space->queue))
		return;
	leave_turns(cache, space);
	TAILQ_INSERT_TAIL(&cache->ssd.resting[rest], space, turn_link);
	space->rests = (uint8_t)(1 + rest);
	space->rests_until =
		kv_now_ns() +
		(rest == MOMENT ? MOMENT_NS : cache->config.io_retry);
}

/* Resume spaces whose rest is over, or all resting spaces if @all.  The
 * queued slots of these spaces then count as about to be written, until the space finds no room
 * again. */
static void rouse(struct kv_cache *cache, enum rest rest, bool all)
{
	struct kv_turns *queues = &cache->ssd.write_queues;
	struct kv_turn_list *resting = &cache->ssd.resting[rest];
	struct kv_space *space;

	while ((space = TAILQ_FIRST(resting)) &&
	       (all || space->rests_until <= kv_now_ns())) {
		struct kv_turn *left = space->turn;

		leave_turns(cache, space);
		set_no_room(cache, space, false);
		/* Deficit round robin: users that were not served before the
		 * stop come first, then this user with its overdraft. */
		kv_turn_resume(queues, join_turns(cache, space));
		kv_turn_put(queues, left);
	}
}

void kv_writer_rouse_locked(struct kv_cache *cache)
{
	kv_assert_locked(&cache->lock);
	rouse(cache, MOMENT, true);
	rouse(cache, LEAVING, true);
	pthread_cond_signal(&cache->ssd.write);
}

/* ---- orphans ---- */

static int by_parent(const void *a, const void *b)
{
	const struct kv_orphans *x = a, *y = b;

	if (x->space != y->space)
		return x->space->id < y->space->id ? -1 : 1;
	return memcmp(&x->parent, &y->parent, sizeof(x->parent));
}

/* Return the WAITING orphans of @parent; NULL: none. */
static struct kv_orphans *orphans_find(const struct kv_cache *cache,
				       struct kv_space *space,
				       const struct kv_key *parent)
{
	const struct kv_orphans wanted = {.space = space, .parent = *parent};
	struct kv_orphans **found =
		tfind(&wanted, &cache->ssd.orphans, by_parent);

	return found ? *found : NULL;
}

/* Make @slot an orphan of @parent, or without memory leave it unpersisted. */
static void orphans_add(struct kv_cache *cache, struct kv_slot *slot,
			const struct kv_key *parent)
{
	struct kv_space *space = slot->list->space;
	struct kv_orphans *orphans = orphans_find(cache, space, parent);

	if (!orphans) {
		orphans = calloc(1, sizeof(*orphans));
		if (!orphans)
			return;
		TAILQ_INIT(&orphans->slots);
		orphans->parent = *parent;
		orphans->space = space;
		if (!tsearch(orphans, &cache->ssd.orphans, by_parent)) {
			free(orphans);
			return;
		}
	}
	TAILQ_INSERT_TAIL(&orphans->slots, slot, link);
	slot->queue = &orphans->slots;
	orphans->n++;
}

static bool is_orphan(const struct kv_slot *slot)
{
	return slot->queue && !kv_block_dirty(slot->block);
}

void kv_orphan_drop_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_orphans *orphans;

	kv_assert_locked(&cache->lock);
	if (!is_orphan(slot))
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
		tdelete(orphans, &cache->ssd.orphans, by_parent);
	free(orphans);
}

/* ---- admission ---- */

/* Return how many bytes ssd_write= allows now: a quarter of a day's bytes in
 * one burst, the rest evenly over the day. */
static double write_credit(struct kv_cache *cache)
{
	const double bytes = (double)cache->config.ssd_write;

	kv_bucket_fill(&cache->ssd.ssd_write, bytes * 3 / 4 / DAY_S, bytes / 4);
	return cache->ssd.ssd_write.credit;
}

/* Return whether the block of @slot, the first on its write queue, may be
 * written now.  If not, take the slot off the queue, or put its parent first. */
static bool admit(struct kv_cache *cache, struct kv_slot *slot)
{
	const struct kv_slot_record *record = &kv_slot_prologue(slot)->record;
	struct kv_space *space = slot->list->space;
	const struct kv_layout *layout = space->layout;
	const double burst = (double)cache->config.ssd_write / 4;
	uint32_t uses = slot->block->hits;
	double keep;

	if (kv_write_must(slot))
		return true;
	if (!slot->alone && layout && layout->reuse == KV_REUSE_PREFIX &&
	    record->parent_len && record->position) {
		struct kv_key key = {.len = record->parent_len};
		struct kv_block *parent;

		memcpy(key.b, record->parent, sizeof(key.b));
		parent = kv_table_find(cache, space, &key);
		if (!parent ||
		    (parent->file == KV_NONE && !kv_block_dirty(parent))) {
			cache->stats.unwritten_orphans++;
			kv_cause_note_block(cache, slot->block,
					    KV_CAUSE_PARENT);
			kv_write_dequeue_locked(cache, slot->block);
			orphans_add(cache, slot, &key);
			return false;
		}
		if ((parent->flags & BLOCK_QUEUED) && !parent->slot->pulled) {
			struct kv_slot *pulled = parent->slot;

			TAILQ_REMOVE(pulled->queue, pulled, link);
			TAILQ_INSERT_HEAD(pulled->queue, pulled, link);
			pulled->pulled = true;
			return false;
		}
		uses = KV_MAX(uses, parent->hits);
	}
	/* Near the end of the budget, write only often used chains. */
	keep = uses == 0 ? burst / 2 : uses == 1 ? burst / 4 : 0;
	if (!cache->config.ssd_write ||
	    write_credit(cache) - (double)slot->segment->class->slot_bytes >=
		    keep)
		return true;
	cache->stats.unwritten_budget++;
	kv_cause_note_block(cache, slot->block, KV_CAUSE_BUDGET);
	kv_write_dequeue_locked(cache, slot->block);
	return false;
}

/* ---- writes ---- */

struct write {
	struct kv_io io; /* first member */
	struct kv_cache *cache;
	struct kv_slot *slot;
	/* copy of an open slot's bytes; NULL: clients cannot write to it */
	uint8_t *copy;
	struct kv_device *device;
	uint64_t slot_id; /* where the block is written */
	bool left; /* the block is written elsewhere: this may never end */
	LIST_ENTRY(write) link; /* device->writes */
};

static void set_flags(struct kv_cache *cache, struct kv_block *block,
		      uint8_t set, uint8_t clear)
{
	kv_slot_before(cache, block->slot);
	block->flags = (uint8_t)((block->flags & ~clear) | set);
	kv_slot_after(cache, block->slot);
}

void kv_write_enqueue_locked(struct kv_cache *cache, struct kv_block *block,
			     bool must)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_slot *slot = block->slot;
	struct kv_account *account;

	kv_assert_locked(&cache->lock);
	if (!ssd->on || ssd->frozen || cache->config.read_only || !slot ||
	    block->file != KV_NONE || (block->flags & BLOCK_REMOVED))
		return;
	account = slot->list->space->account;
	slot->must |= must;
	slot->list->space->any_must |= must;
	if (!must && is_orphan(slot) &&
	    ((struct kv_orphans *)slot->queue)->parent.len)
		return;
	if (!kv_block_dirty(block)) {
		const struct kv_key key = kv_block_key(block);
		struct kv_orphans *orphans;

		kv_orphan_drop_locked(cache, slot);
		slot->pulled = false;
		kv_unpersisted_drop_locked(cache, slot);
		set_flags(cache, block, BLOCK_QUEUED, 0);
		slot->seq = ++ssd->seq;
		push(cache, slot, false);
		TAILQ_INSERT_TAIL(&slot->list->space->dirty, slot, dirty);
		TAILQ_INSERT_TAIL(&slot->list->space->unwritten, slot,
				  unwritten);
		ssd->dirty++;
		/* The writer queues children of this block, some at a time. */
		orphans =
			orphans_find(cache, kv_block_space(cache, block), &key);
		if (orphans) {
			tdelete(orphans, &ssd->orphans, by_parent);
			orphans->adopted = true;
			TAILQ_INSERT_TAIL(&ssd->adopted, orphans, turn);
			ssd->n_adopted += orphans->n;
		}
		KV_POINT("write.queued");
	}
	if (ssd->idle || must)
		pthread_cond_signal(&ssd->write);
	if (ssd->idle)
		ssd->linger_until = kv_now_ns() + LINGER_NS;
	ssd->idle = false;
	if (must ||
	    !kv_account_fits(
		    account, KV_FINITE_DIRTY, kv_shared(cache, DRAM),
		    LINGER_ROOM * kv_account_held(account, KV_FINITE_DIRTY), 0))
		kv_writer_hurry_locked(cache);
}

void kv_refused_queue_locked(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_orphans *refused;
	struct kv_slot *slot;
	uint64_t bytes = 0;

	kv_assert_locked(&cache->lock);
	for (unsigned n = 0; n < REFUSED_AT_ONCE && space->refused; n++) {
		refused = orphans_find(cache, space, &(struct kv_key){0});
		space->refused = refused;
		if (!refused)
			return;
		slot = TAILQ_FIRST(&refused->slots);
		bytes += slot->segment->class->slot_bytes;
		if (!kv_ssd_fits(space->in, &space->quota, bytes) ||
		    !kv_ssd_fits(space->tenant->in, &space->tenant->quota,
				 bytes))
			return;
		kv_write_enqueue_locked(cache, slot->block, false);
	}
}

bool kv_write_must(const struct kv_slot *slot)
{
	return slot->must || slot->seq <= slot->list->space->must_seq;
}

void kv_write_dequeue_locked(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_slot *slot = block->slot;

	kv_assert_locked(&cache->lock);
	drop(cache, slot);
	kv_dirty_drop_locked(cache, slot);
	set_flags(cache, block, 0, BLOCK_QUEUED);
	kv_flushes_written_locked(cache, slot);
	if (!(block->flags & BLOCK_REMOVED))
		kv_unpersisted_add_locked(cache, slot);
	slot->must = false;
	kv_flushes_settle_space_locked(cache, slot->list->space);
}

void kv_dirty_drop_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	kv_assert_locked(&cache->lock);
	TAILQ_REMOVE(&slot->list->space->dirty, slot, dirty);
	cache->ssd.dirty--;
	cache->cleaned++;
	cache->room = true;
}

/* Fail the flushes and syncs that wait for @slot, and take the slot off its
 * queue: its quota is used up, or the mount ends. */
static void deny(struct kv_cache *cache, struct kv_slot *slot)
{
	if (kv_write_must(slot))
		kv_flushes_fail_locked(cache, slot->list->space, -ENOSPC);
	kv_syncs_end_locked(cache, slot, -ENOSPC);
	kv_write_dequeue_locked(cache, slot->block);
}

void kv_write_failed_locked(struct kv_cache *cache, int error)
{
	kv_assert_locked(&cache->lock);
	cache->ssd.error = error;
	cache->ssd.failures++;
	cache->stats.io_errors++;
	kv_flushes_settle_locked(cache, error);
	pthread_cond_broadcast(&cache->ssd.done);
}

static void write_free(struct write *write)
{
	kv_pages_free(write->copy, write->io.bytes);
	free(write);
}

/* Put a block whose write has failed, or may never end, first on its queue. */
static void write_again(struct kv_cache *cache, struct kv_slot *slot)
{
	TAILQ_REMOVE(&slot->list->space->under_way, slot, link);
	set_flags(cache, slot->block, BLOCK_QUEUED, BLOCK_WRITING);
	push(cache, slot, true);
	if (slot->block->flags & BLOCK_REMOVED)
		kv_write_dequeue_locked(cache, slot->block);
}

/* Pass slots to the committer in the order in which their writes began: no child
 * becomes durable before its parent. */
static void pass_written(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_slot *slot;

	while ((slot = TAILQ_FIRST(&space->under_way)) && slot->written) {
		TAILQ_REMOVE(&space->under_way, slot, link);
		kv_flushes_written_locked(cache, slot);
		ssd->written_bytes += slot->segment->class->slot_bytes;
		TAILQ_INSERT_TAIL(&ssd->written, slot, link);
		ssd->n_written++;
		pthread_cond_signal(&ssd->commit);
	}
}

void kv_writes_leave_locked(struct kv_cache *cache, struct kv_device *device)
{
	struct write *write;

	kv_assert_locked(&cache->lock);
	LIST_FOREACH(write, &device->writes, link) {
		if (write->left)
			continue;
		write->left = true;
		kv_slot_hold_locked(cache, write->slot, 1);
		write_again(cache, write->slot);
		pass_written(cache, write->slot->list->space);
	}
	pthread_cond_signal(&cache->ssd.write);
}

static void write_done(struct kv_io *io, int status)
{
	struct write *write = (struct write *)io;
	struct kv_cache *cache = write->cache;
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_slot *slot = write->slot;
	struct kv_space *space = slot->list->space;
	struct kv_block *block = slot->block;
	bool alone;

	kv_lock(cache);
	LIST_REMOVE(write, link);
	kv_device_end(write->device, slot->segment->class->slot_bytes);
	ssd->writing--;
	ssd->writing_bytes -= slot->segment->class->slot_bytes;
	alone = kv_device_note_locked(cache, write->device, status);
	if (write->left) {
		kv_slot_hold_locked(cache, slot, -1);
		kv_extent_give_up_locked(cache, space, write->slot_id);
		kv_block_settle_locked(cache, block);
	} else if (status == 0) {
		KV_POINT("write.done");
		cache->stats.bytes_written_ssd += io->bytes;
		slot->written = true;
	} else {
		kv_extent_give_up_locked(cache, space, write->slot_id);
		write_again(cache, slot);
		cache->stats.io_errors += alone;
		if (!alone)
			kv_write_failed_locked(cache, status);
		kv_block_settle_locked(cache, block);
	}
	pass_written(cache, space);
	/* An idle or lingering writer does not wait for writes to end. */
	if (status < 0 || !(ssd->idle || ssd->linger_until))
		pthread_cond_signal(&ssd->write);
	kv_unlock(cache);
	write_free(write);
}

/* Copy the bytes of an open slot, which a client may write, and compare the
 * copy with the block's digest.  Return false if the block is not to be
 * written.  Releases the lock. */
static bool copy_open(struct write *write)
{
	struct kv_cache *cache = write->cache;
	struct kv_slot *slot = write->slot;
	struct kv_block *block = slot->block;
	const struct kv_prologue prologue = *kv_slot_prologue(slot);
	struct kv_digest digest;
	bool queued;

	block->refs++;
	kv_slot_hold_locked(cache, slot, 1);
	kv_unlock(cache);
	memcpy(write->copy, &prologue, sizeof(prologue));
	memcpy(write->copy + KV_PAGE, kv_slot_file(slot), block->length);
	digest = kv_digest_of(write->copy + KV_PAGE, block->length);
	kv_lock(cache);
	kv_slot_hold_locked(cache, slot, -1);
	queued = block->flags & BLOCK_QUEUED;
	if (queued &&
	    memcmp(digest.b, prologue.record.digest, sizeof(digest.b)) != 0) {
		kv_block_changed_locked(cache, block);
		queued = false;
	}
	block->refs--;
	kv_block_settle_locked(cache, block);
	return queued;
}

/* Begin the write of @slot.  Return 0, an error of kv_extent_take, or -ENOMEM. */
static int start_write(struct kv_cache *cache, struct kv_slot *slot)
{
	const uint64_t slot_bytes = slot->segment->class->slot_bytes;
	const struct kv_segfile *file;
	struct kv_device *device;
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_space *space = slot->list->space;
	struct write *write = calloc(1, sizeof(*write));
	struct write_queue *queue;
	bool is_open = kv_slot_is_open(slot);
	int r;

	if (!write)
		return -ENOMEM;
	write->cache = cache;
	write->slot = slot;
	write->io.op = KV_IO_WRITE;
	write->io.bytes = KV_PAGE + kv_round_up(slot->block->length, KV_PAGE);
	write->io.done = write_done;
	write->copy = is_open ? kv_pages_new(write->io.bytes) : NULL;
	write->io.data = is_open ? write->copy : kv_slot_bytes(slot);
	write->io.buffer = is_open ? -1 : slot->segment->buffer;
	r = write->io.data ? 0 : -ENOMEM;
	if (r == 0 && is_open && !copy_open(write)) {
		write_free(write);
		return 0;
	}
	if (r == 0)
		r = kv_extent_take(cache, space, slot_bytes, &slot->file,
				   &slot->slot_number);
	if (r < 0) {
		write_free(write);
		return r;
	}
	file = kv_segfile_at(cache, slot->file);
	device = write->device = file->device;
	write->slot_id = kv_slot_id(slot->file, slot->slot_number);
	LIST_INSERT_HEAD(&device->writes, write, link);
	if (cache->config.ssd_write) {
		(void)write_credit(cache);
		ssd->ssd_write.credit -= (double)slot_bytes;
	}
	kv_turn_charge(space->turn, slot_bytes);
	if (space->turn->credit <= 0) {
		/* In the user's next turn another of its spaces is first. */
		queue = (struct write_queue *)space->turn;
		TAILQ_REMOVE(&queue->spaces, space, turn_link);
		TAILQ_INSERT_TAIL(&queue->spaces, space, turn_link);
	}
	drop(cache, slot);
	set_flags(cache, slot->block, BLOCK_WRITING, BLOCK_QUEUED);
	TAILQ_INSERT_TAIL(&space->under_way, slot, link);
	slot->written = false;
	write->io.fd = file->fd;
	write->io.offset = slot->slot_number * file->slot_bytes;
	ssd->writing++;
	ssd->writing_bytes += slot_bytes;
	kv_device_begin(device, slot_bytes);
	KV_POINT("write.before_submit");
	kv_ring_submit(device->ring, &write->io);
	KV_POINT("write.submitted");
	return 0;
}

/* ---- the tier, and its threads ---- */

int kv_ssd_init(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;

	for (unsigned i = 0; i < KV_ARRAY_LEN(ssd->resting); i++)
		TAILQ_INIT(&ssd->resting[i]);
	TAILQ_INIT(&ssd->adopted);
	TAILQ_INIT(&ssd->recording);
	TAILQ_INIT(&ssd->collecting);
	TAILQ_INIT(&ssd->written);
	TAILQ_INIT(&ssd->unusable);
	TAILQ_INIT(&ssd->deletions.queued);
	TAILQ_INIT(&ssd->deletions.to_record);
	TAILQ_INIT(&ssd->deletions.to_zero);
	TAILQ_INIT(&ssd->moves.files);
	TAILQ_INIT(&ssd->moves.copied);
	TAILQ_INIT(&ssd->moves.recording);
	kv_cond_init(&ssd->write);
	kv_cond_init(&ssd->commit);
	kv_cond_init(&ssd->done);
	kv_cond_init(&ssd->deletions.wake);
	return kv_turns_init(&ssd->write_queues, sizeof(struct write_queue),
			     TURN_BYTES, queue_init);
}

void kv_ssd_fini(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_unlinked *unlinked;
	struct kv_orphans *orphans;

	kv_deletions_free(cache);
	kv_removed_free(cache->removed);
	while ((orphans = TAILQ_FIRST(&ssd->adopted))) {
		TAILQ_REMOVE(&ssd->adopted, orphans, turn);
		free(orphans);
	}
	tdestroy(ssd->orphans, free);
	for (unsigned i = 0; i < UNLINKED_BUCKETS; i++)
		while ((unlinked = LIST_FIRST(&ssd->unlinked[i]))) {
			LIST_REMOVE(unlinked, bucket);
			free(unlinked);
		}
	free(ssd->updates.items);
	kv_turns_fini(&ssd->write_queues);
	kv_eviction_fini(&ssd->eviction);
}

/* Begin the next write, or wait until there is one.  Return an error only if it
 * affects all spaces. */
static int turn(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct write_queue *queue;
	struct kv_orphans *orphans;
	struct kv_space *space;
	struct kv_slot *slot;
	uint64_t slot_bytes;
	int r;

	for (unsigned n = 0;
	     n < ADOPTED_AT_ONCE && (orphans = TAILQ_FIRST(&ssd->adopted));
	     n++) {
		slot = TAILQ_FIRST(&orphans->slots);
		kv_orphan_drop_locked(cache, slot);
		kv_write_enqueue_locked(cache, slot->block, false);
	}
	kv_flushes_collect_locked(cache);
	rouse(cache, MOMENT, false);
	rouse(cache, LEAVING, false);
	rouse(cache, RETRY, ssd->stop);
	queue = (struct write_queue *)kv_turns_next(&ssd->write_queues);
	slot = queue ? TAILQ_FIRST(&TAILQ_FIRST(&queue->spaces)->queue) : NULL;
	if (slot && ssd->linger_until && !ssd->stop) {
		const uint64_t now = kv_now_ns();

		if (now < ssd->linger_until) {
			kv_cond_wait(cache, &ssd->write,
				     ssd->linger_until - now);
			return 0;
		}
	}
	ssd->linger_until = 0;
	if (ssd->full && kv_now_ns() > ssd->full_until)
		ssd->full = 0;
	if (!slot || ssd->writing >= WRITES_AT_ONCE * ssd->n_devices ||
	    ssd->writing_bytes >= WRITING_BYTES * ssd->n_devices) {
		const uint64_t now = kv_now_ns();
		uint64_t ns = cache->config.io_retry;

		if (ssd->n_adopted || !TAILQ_EMPTY(&ssd->collecting))
			ns = 1;
		for (unsigned i = 0; i < KV_ARRAY_LEN(ssd->resting); i++) {
			space = TAILQ_FIRST(&ssd->resting[i]);
			if (space)
				ns = space->rests_until > now
					     ? KV_MIN(ns,
						      space->rests_until - now)
					     : 0;
		}
		ssd->idle = !slot;
		kv_cond_wait(cache, &ssd->write, ns);
		ssd->idle = false;
		return 0;
	}
	if (!admit(cache, slot)) {
		/* Admission may refuse all blocks: release the lock now and
		 * then. */
		if (++ssd->put_off % PUT_OFF_AT_ONCE == 0)
			kv_cond_wait(cache, &ssd->write, 1);
		return 0;
	}
	slot_bytes = slot->segment->class->slot_bytes;
	space = slot->list->space;
	r = start_write(cache, slot);
	switch (r) {
	case -ENOENT:
		r = kv_segfile_create(cache, slot_bytes);
		if (r == 0)
			return 0;
		/* Use other files only, if any: other programs filled the
		 * disk, or it failed. */
		ssd->full = r == -ENOSPC ? r : -EIO;
		cache->stats.io_errors += r != -ENOSPC;
		ssd->full_until =
			kv_now_ns() +
			(r == -ENOSPC ? FULL_NS : cache->config.io_retry);
		return 0;
	case -EDQUOT:
		cache->stats.unwritten_quota++;
		kv_cause_note_block(cache, slot->block, KV_CAUSE_QUOTA);
		deny(cache, slot);
		orphans_add(cache, slot, &(struct kv_key){0});
		space->refused = true;
		return 0;
	case -EBUSY:
	case -EAGAIN:
		kv_commit_kick_locked(cache, true);
		put_off(cache, space, ssd->leaving ? LEAVING : MOMENT);
		return 0;
	case -EIO:
	case -ENOSPC:
		/* Fail the flushes and syncs that wait for the space's blocks.
		 * The blocks are tried again, after those of other spaces. */
		while (ssd->stop && (slot = TAILQ_FIRST(&space->queue)))
			deny(cache, slot);
		if (ssd->stop)
			return 0;
		kv_flushes_fail_locked(cache, space, r);
		if (space->any_must)
			TAILQ_FOREACH(slot, &space->queue, link) {
				slot->must = false;
				kv_syncs_end_locked(cache, slot, r);
			}
		space->any_must = false;
		set_no_room(cache, space, true);
		put_off(cache, space, RETRY);
		return 0;
	default:
		return r;
	}
}

static void *writer(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_ssd *ssd = &cache->ssd;
	int tries = 0;

	kv_lock(cache);
	while (!ssd->stop || (ssd->dirty && tries < 2 &&
			      !kv_health_stuck_locked(cache, false).writes)) {
		uint64_t failures = ssd->failures;
		int r = turn(cache);

		if (r < 0)
			kv_write_failed_locked(cache, r);
		if (failures == ssd->failures)
			continue;
		/* After a failed write, wait before the next one. */
		tries += ssd->stop;
		kv_cond_wait(cache, &ssd->write, cache->config.io_retry);
	}
	ssd->writer_ended = true;
	pthread_cond_broadcast(&ssd->done);
	kv_unlock(cache);
	return NULL;
}

static void stop_all(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;

	kv_lock(cache);
	ssd->stop = ssd->stop_commits = true;
	pthread_cond_broadcast(&ssd->write);
	pthread_cond_broadcast(&ssd->commit);
	pthread_cond_broadcast(&ssd->deletions.wake);
	kv_unlock(cache);
}

int kv_writer_start(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct {
		pthread_t *thread;
		const char *name;
		void *(*run)(void *arg);
	} threads[] = {
		{&ssd->writer, "kvfs-write", writer},
		{&ssd->committer, "kvfs-commit", kv_committer},
		{&ssd->deletions.thread, "kvfs-delete", kv_deleter},
	};
	size_t n = 0;
	int r = 0;

	while (r == 0 && n < KV_ARRAY_LEN(threads)) {
		r = kv_thread_start(threads[n].thread, threads[n].name,
				    threads[n].run, cache);
		n += r == 0;
	}
	ssd->running = r == 0;
	if (r == 0)
		return kv_periodic_start(&ssd->moves.thread, "kvfs-move",
					 MOVER_NS, kv_mover_tick, cache);
	stop_all(cache);
	while (n > 0)
		pthread_join(*threads[--n].thread, NULL);
	return r;
}

/* Wait until a thread has ended. -ETIMEDOUT: one of its requests is stuck. */
static int join(struct kv_cache *cache, pthread_t thread, const bool *ended)
{
	int r = 0;

	kv_lock(cache);
	while (!*ended && r == 0) {
		kv_cond_wait(cache, &cache->ssd.done, cache->config.io_retry);
		if (!*ended && kv_health_stuck_locked(cache, false).writes > 0)
			r = -ETIMEDOUT;
	}
	kv_unlock(cache);
	if (r == 0)
		pthread_join(thread, NULL);
	else
		pthread_detach(thread);
	return r;
}

int kv_writer_stop(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_slot *slot;
	int r, e, d;

	if (!ssd->running)
		return 0;
	kv_lock(cache);
	/* Write blocks that are not on SSD because of writeback= or a fault. */
	for (uint32_t i = 0;
	     i < cache->spaces.n && !cache->config.read_only && !ssd->frozen;
	     i++)
		while ((slot = TAILQ_FIRST(
				&cache->spaces.sorted[i]->unpersisted)))
			kv_write_enqueue_locked(cache, slot->block, true);
	ssd->stop = true;
	pthread_cond_broadcast(&ssd->write);
	kv_unlock(cache);
	r = join(cache, ssd->writer, &ssd->writer_ended);
	/* Stop the mover after the writer, which may wait for a file. */
	kv_periodic_stop(&ssd->moves.thread);
	stop_all(cache);
	e = join(cache, ssd->committer, &ssd->committer_ended);
	d = join(cache, ssd->deletions.thread, &ssd->deletions.ended);
	kv_lock(cache);
	ssd->running = false;
	if (d == 0 && ssd->makers_left)
		d = -ETIMEDOUT;
	kv_unlock(cache);
	return r < 0 ? r : e < 0 ? e : d;
}
