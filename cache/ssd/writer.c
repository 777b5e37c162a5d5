/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer.c - sealed blocks on their way to SSD: in whose turn.
 *
 * Users take turns by bytes: each has a write queue, on which their spaces are
 * that have something to write.  A space that must wait, or finds no room, is
 * put off, and the writer goes on with others; when they go on, those who got
 * nothing come first.
 *
 * OWNS       the writer thread, and the beginning and end of the committer and
 *            the deleter; the write queues, the queue of each space, and
 *            slot->queue and slot->link of slots on it.
 *
 * STATES     of a block, and the function that makes each step:
 *
 *       UNPERSISTED -> QUEUED       kv_write_enqueue_locked
 *            QUEUED -> UNPERSISTED  kv_write_dequeue_locked (removed, given up)
 *            QUEUED -> WRITING      start_write
 *           WRITING -> WRITTEN      write_done               (reactor thread)
 *           WRITING -> QUEUED       write_done, when it failed
 *           WRITTEN -> DURABLE      commit.c; or QUEUED again, when it failed
 *
 * INVARIANTS
 *   (1) QUEUED, WRITING and WRITTEN slots are on their space's dirty, by seq,
 *       QUEUED ones on its queue, too; ssd->dirty counts them.  Neither is idle: a
 *       block that is being written keeps its bytes.
 *   (2) Exactly the spaces with slots on their queue are on a write queue or
 *       among those that rest, and exactly the write queues with spaces take
 *       turns; ssd->queued counts the slots.
 *   (3) A space's slots are in the order of their seals but that parents are
 *       pulled before their children.
 *   (4) A space with no_room rests, and nobody waits for its slots;
 *       ssd->stalled counts those on its queue.
 *
 * LOCKING    cache->lock.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/slot.h"
#include "common/copy.h"
#include "common/crash_point.h"
#include "common/thread.h"

/* A turn: large enough to write in runs. */
#define TURN_BYTES (8 << 20)
#define WRITES_AT_ONCE 128u
#define PUT_OFF_AT_ONCE 64u
/* The device is busy with that, and a sync or a read behind it waits for no
 * more than that. */
#define WRITING_BYTES (48u << 20)
#define MOMENT_NS 10000000u /* a space's rest, if no commit ends it */
#define FULL_NS 5000000000u /* then it looks whether there is room again */

/* One user's. */
struct write_queue {
	struct kv_turn turn; /* first */
	struct kv_turn_list spaces;
};

static void queue_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct write_queue *)turn)->spaces);
}

int kv_write_queues_init(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;

	for (unsigned i = 0; i < KV_ARRAY_LEN(ssd->resting); i++)
		TAILQ_INIT(&ssd->resting[i]);
	return kv_turns_init(&ssd->write_queues, sizeof(struct write_queue),
			     TURN_BYTES, queue_init);
}

/* Each holds its queue, whoever owns the space by then. */
static struct kv_turn *join_turns(struct kv_cache *cache,
				  struct kv_space *space)
{
	space->turn = kv_turn_get(&cache->ssd.write_queues, space->uid);
	TAILQ_INSERT_TAIL(&((struct write_queue *)space->turn)->spaces, space,
			  turn_link);
	return space->turn;
}

/* It holds its queue still. */
static void leave_turns(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_turns *queues = &cache->ssd.write_queues;
	struct write_queue *queue = (struct write_queue *)space->turn;

	if (space->rests) {
		TAILQ_REMOVE(&cache->ssd.resting[space->rests - 1], space,
			     turn_link);
		space->rests = 0;
	} else {
		TAILQ_REMOVE(&queue->spaces, space, turn_link);
		if (TAILQ_EMPTY(&queue->spaces))
			kv_turn_stop(queues, space->turn);
	}
}

static void set_no_room(struct kv_cache *cache, struct kv_space *space, bool is)
{
	if (space->no_room == is)
		return;
	space->no_room = is;
	cache->ssd.stalled += is ? space->queued : -space->queued;
	cache->room = true; /* whoever waits for its writes looks again */
}

/* Each slot holds its queue, whoever owns its space by then. */
static void put_on(struct kv_cache *cache, struct kv_slot *slot, bool front)
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

void kv_write_queue_push_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	kv_assert_locked(&cache->lock);
	put_on(cache, slot, false);
}

static void queue_push_front_locked(struct kv_cache *cache,
				    struct kv_slot *slot)
{
	kv_assert_locked(&cache->lock);
	put_on(cache, slot, true);
}

void kv_write_queue_drop_locked(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_space *space = slot->list->space;

	kv_assert_locked(&cache->lock);
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

void kv_write_queue_pull(struct kv_slot *slot)
{
	TAILQ_REMOVE(slot->queue, slot, link);
	TAILQ_INSERT_HEAD(slot->queue, slot, link);
	slot->pulled = true;
}

struct kv_slot *kv_write_queue_next_locked(struct kv_cache *cache)
{
	struct kv_turn *turn = kv_turns_next(&cache->ssd.write_queues);

	kv_assert_locked(&cache->lock);
	if (!turn)
		return NULL;
	return TAILQ_FIRST(
		&TAILQ_FIRST(&((struct write_queue *)turn)->spaces)->queue);
}

bool kv_writes_may_make_room_locked(const struct kv_cache *cache)
{
	kv_assert_locked(&cache->lock);
	return cache->ssd.dirty > cache->ssd.stalled;
}

/* When its user's turn is over, the next one is another space's. */
void kv_write_queue_charge(struct kv_slot *slot)
{
	struct kv_space *space = slot->list->space;
	struct write_queue *queue = (struct write_queue *)space->turn;

	kv_turn_charge(space->turn, slot->segment->class->slot_bytes);
	if (space->turn->credit > 0)
		return;
	TAILQ_REMOVE(&queue->spaces, space, turn_link);
	TAILQ_INSERT_TAIL(&queue->spaces, space, turn_link);
}

/* ---- spaces whose writes are put off ---- */

/* A moment, until what leaves has left, until there may be room again.  A
 * commit ends the first two. */
enum rest { MOMENT, LEAVING, RETRY };

static uint64_t rest_ns(const struct kv_cache *cache, enum rest rest)
{
	return rest == MOMENT ? MOMENT_NS : kv_health_retry(cache);
}

/* Others have their turns meanwhile: nobody waits for what one space waits for.
 */
static void put_off(struct kv_cache *cache, struct kv_space *space,
		    enum rest rest)
{
	/* Nothing may be queued any more: start_write releases the lock. */
	if (TAILQ_EMPTY(&space->queue))
		return;
	leave_turns(cache, space);
	TAILQ_INSERT_TAIL(&cache->ssd.resting[rest], space, turn_link);
	space->rests = (uint8_t)(1 + rest);
	space->rests_until = kv_now_ns() + rest_ns(cache, rest);
}

/* Its user keeps his place, but for those who got nothing beside him. */
static void go_on(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_turns *queues = &cache->ssd.write_queues;
	struct kv_turn *left = space->turn;

	leave_turns(cache, space);
	set_no_room(cache, space, false);
	kv_turn_resume(queues, join_turns(cache, space));
	kv_turn_put(queues, left);
}

/* Spaces whose rest is over, or all, go on.  What they queued is promised
 * again, until they find that there is no room. */
static void rouse(struct kv_cache *cache, enum rest rest, bool all)
{
	struct kv_turn_list *resting = &cache->ssd.resting[rest];
	struct kv_space *space;

	while ((space = TAILQ_FIRST(resting)) &&
	       (all || space->rests_until <= kv_now_ns()))
		go_on(cache, space);
}

void kv_writer_rouse_locked(struct kv_cache *cache)
{
	kv_assert_locked(&cache->lock);
	rouse(cache, MOMENT, true);
	rouse(cache, LEAVING, true);
	pthread_cond_signal(&cache->ssd.write);
}

/* How long the writer may sleep. */
static uint64_t until_roused(const struct kv_cache *cache)
{
	uint64_t ns = kv_health_retry(cache), now = kv_now_ns();

	for (unsigned i = 0; i < KV_ARRAY_LEN(cache->ssd.resting); i++) {
		const struct kv_space *space =
			TAILQ_FIRST(&cache->ssd.resting[i]);

		if (space)
			ns = space->rests_until > now
				     ? KV_MIN(ns, space->rests_until - now)
				     : 0;
	}
	return ns;
}

/* ---- writes ---- */

struct write {
	struct kv_io io; /* first */
	struct kv_cache *cache;
	struct kv_slot *slot;
	uint8_t *copy; /* io.bytes of an open slot, or NULL */
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

	kv_assert_locked(&cache->lock);
	if (!ssd->on || ssd->frozen || cache->config.read_only || !slot ||
	    block->file != KV_NONE || (block->flags & BLOCK_REMOVED))
		return;
	slot->must |= must;
	slot->list->space->any_must |= must;
	if (!must && kv_orphan_waits(slot))
		return;
	if (!kv_block_dirty(block)) {
		kv_orphan_drop_locked(cache, slot);
		slot->pulled = false;
		kv_unpersisted_drop_locked(cache, slot);
		set_flags(cache, block, BLOCK_QUEUED, 0);
		slot->seq = ++ssd->seq;
		kv_write_queue_push_locked(cache, slot);
		TAILQ_INSERT_TAIL(&slot->list->space->dirty, slot, dirty);
		TAILQ_INSERT_TAIL(&slot->list->space->unwritten, slot,
				  unwritten);
		ssd->dirty++;
		kv_orphans_adopt_locked(cache, block);
		KV_POINT("write.queued");
	}
	pthread_cond_signal(&ssd->write);
}

bool kv_write_must(const struct kv_slot *slot)
{
	return slot->must || slot->seq <= slot->list->space->must_seq;
}

void kv_write_dequeue_locked(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_slot *slot = block->slot;

	kv_assert_locked(&cache->lock);
	kv_write_queue_drop_locked(cache, slot);
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

/* There is no room for it, by quota or at the end: whoever waits is told. */
static void deny(struct kv_cache *cache, struct kv_slot *slot)
{
	if (kv_write_must(slot))
		kv_flushes_fail_locked(cache, slot->list->space, -ENOSPC);
	kv_syncs_end_locked(cache, slot, -ENOSPC);
	kv_write_dequeue_locked(cache, slot->block);
}

static void deny_all(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_slot *slot;

	while ((slot = TAILQ_FIRST(&space->queue)))
		deny(cache, slot);
}

/*
 * No room for @space, be there some for others: whoever waits for its blocks is
 * told, and nobody else.  They are tried again, but give way to what comes.
 */
static void refuse(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_slot *slot;

	if (cache->ssd.stop) {
		deny_all(cache, space);
		return;
	}
	kv_flushes_fail_locked(cache, space, -ENOSPC);
	if (space->any_must)
		TAILQ_FOREACH(slot, &space->queue, link) {
			slot->must = false;
			kv_syncs_end_locked(cache, slot, -ENOSPC);
		}
	space->any_must = false;
	set_no_room(cache, space, true);
	put_off(cache, space, RETRY);
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

/* In the order in which they began: no child becomes durable before its
 * parent. */
static void pass_on(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_slot *slot;

	while ((slot = TAILQ_FIRST(&space->under_way)) && slot->written) {
		TAILQ_REMOVE(&space->under_way, slot, link);
		kv_flushes_written_locked(cache, slot);
		cache->ssd.written_bytes += slot->segment->class->slot_bytes;
		TAILQ_INSERT_TAIL(&cache->ssd.written, slot, link);
		cache->ssd.n_written++;
		pthread_cond_signal(&cache->ssd.commit);
	}
}

static void write_free(struct write *write)
{
	kv_pages_free(write->copy, write->io.bytes);
	free(write);
}

static void write_done(struct kv_io *io, int status)
{
	struct write *write = (struct write *)io;
	struct kv_cache *cache = write->cache;
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_slot *slot = write->slot;
	struct kv_space *space = slot->list->space;
	struct kv_block *block = slot->block;

	kv_lock(cache);
	ssd->writing--;
	ssd->writing_bytes -= slot->segment->class->slot_bytes;
	if (status == 0) {
		KV_POINT("write.done");
		cache->stats.bytes_written_ssd += io->bytes;
		slot->written = true;
	} else {
		TAILQ_REMOVE(&space->under_way, slot, link);
		kv_extent_give_up_locked(
			cache, space,
			kv_slot_id(slot->file, slot->slot_number));
		set_flags(cache, block, BLOCK_QUEUED, BLOCK_WRITING);
		queue_push_front_locked(cache, slot);
		kv_write_failed_locked(cache, status);
		if (block->flags & BLOCK_REMOVED)
			kv_write_dequeue_locked(cache, block);
		kv_block_settle_locked(cache, block);
	}
	pass_on(cache, space);
	pthread_cond_signal(&ssd->write);
	kv_unlock(cache);
	write_free(write);
}

static int write_new(struct kv_cache *cache, struct kv_slot *slot,
		     struct write **ret_write)
{
	struct write *write = calloc(1, sizeof(*write));

	if (!write)
		return -ENOMEM;
	write->cache = cache;
	write->slot = slot;
	write->io.op = KV_IO_WRITE;
	write->io.buffer = slot->segment->buffer;
	write->io.data = kv_slot_bytes(slot);
	write->io.bytes = KV_PAGE + kv_round_up(slot->block->length, KV_PAGE);
	write->io.done = write_done;
	if (kv_slot_is_open(slot)) {
		write->copy = kv_pages_new(write->io.bytes);
		write->io.data = write->copy;
		write->io.buffer = -1;
	}
	if (!write->io.data) {
		free(write);
		return -ENOMEM;
	}
	*ret_write = write;
	return 0;
}

/*
 * What a client may write is copied, and the copy is written if it has the
 * block's digest.  False: there is nothing to write any more.  Lets go of the
 * lock.
 */
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

static int start_write(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_segfile *file;
	struct write *write;
	int r = write_new(cache, slot, &write);

	if (r < 0)
		return r;
	if (write->copy && !copy_open(write)) {
		write_free(write);
		return 0;
	}
	r = kv_extent_take(cache, slot->list->space,
			   slot->segment->class->slot_bytes, &slot->file,
			   &slot->slot_number);
	if (r < 0) {
		write_free(write);
		return r;
	}
	file = kv_segfile_at(cache, slot->file);
	kv_admit_charge_locked(cache, slot);
	kv_write_queue_charge(slot);
	kv_write_queue_drop_locked(cache, slot);
	set_flags(cache, slot->block, BLOCK_WRITING, BLOCK_QUEUED);
	TAILQ_INSERT_TAIL(&slot->list->space->under_way, slot, link);
	slot->written = false;
	write->io.fd = file->fd;
	write->io.offset = slot->slot_number * file->slot_bytes;
	ssd->writing++;
	ssd->writing_bytes += slot->segment->class->slot_bytes;
	KV_POINT("write.before_submit");
	kv_ring_submit(cache->ring, &write->io);
	KV_POINT("write.submitted");
	return 0;
}

/* The write of @slot did not begin, by @r: what is to be done about it. Returns
 * what is left of @r. */
static int see_to(struct kv_cache *cache, struct kv_space *space,
		  struct kv_slot *slot, int r)
{
	switch (r) {
	case -EDQUOT:
		cache->stats.unwritten_quota++;
		deny(cache, slot);
		return 0;
	case -EBUSY:
	case -EAGAIN:
		kv_commit_kick_locked(cache, true);
		put_off(cache, space,
			kv_leaving_locked(cache) ? LEAVING : MOMENT);
		return 0;
	case -ENOSPC:
		refuse(cache, space);
		return 0;
	default:
		return r;
	}
}

static bool more_to_queue(const struct kv_ssd *ssd)
{
	return ssd->n_adopted || !TAILQ_EMPTY(&ssd->collecting);
}

/* Returns 0 if the next turn may begin at once. */
static int turn(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_space *space;
	struct kv_slot *slot;
	uint64_t slot_bytes;
	int r;

	kv_orphans_enqueue_locked(cache);
	kv_flushes_collect_locked(cache);
	rouse(cache, MOMENT, false);
	rouse(cache, LEAVING, false);
	rouse(cache, RETRY, ssd->stop);
	slot = kv_write_queue_next_locked(cache);
	if (ssd->full && kv_now_ns() > ssd->full_until)
		ssd->full = false;
	if (!slot || ssd->writing >= WRITES_AT_ONCE ||
	    ssd->writing_bytes >= WRITING_BYTES) {
		kv_cond_wait(cache, &ssd->write,
			     more_to_queue(ssd) ? 1 : until_roused(cache));
		return 0;
	}
	if (kv_admit_locked(cache, slot) == KV_ADMIT_LATER) {
		/* There may be as many of them as blocks. */
		if (++ssd->put_off % PUT_OFF_AT_ONCE == 0)
			kv_cond_wait(cache, &ssd->write, 1);
		return 0;
	}
	slot_bytes = slot->segment->class->slot_bytes;
	space = slot->list->space;
	r = start_write(cache, slot);
	if (r == -ENOENT) {
		r = kv_segfile_create(cache, slot_bytes);
		/* Full from outside: go on with the files there are. */
		if (r == -ENOSPC) {
			ssd->full = true;
			ssd->full_until = kv_now_ns() + FULL_NS;
			r = 0;
		}
		return r;
	}
	return see_to(cache, space, slot, r);
}

static void *writer(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_ssd *ssd = &cache->ssd;
	int tries = 0;

	kv_lock(cache);
	while (!ssd->stop || (ssd->dirty && tries < 2 &&
			      !kv_health_stuck_locked(cache).writes)) {
		uint64_t failures = ssd->failures;
		int r = turn(cache);

		if (r < 0)
			kv_write_failed_locked(cache, r);
		if (failures == ssd->failures)
			continue;
		/* A write failed: wait a little, then look whether it still
		 * does. */
		tries += ssd->stop;
		kv_cond_wait(cache, &ssd->write, kv_health_retry(cache));
	}
	ssd->writer_ended = true;
	pthread_cond_broadcast(&ssd->done);
	kv_unlock(cache);
	return NULL;
}

static void stop_locked(struct kv_ssd *ssd)
{
	ssd->stop = ssd->stop_commits = true;
	pthread_cond_broadcast(&ssd->write);
	pthread_cond_broadcast(&ssd->commit);
	pthread_cond_broadcast(&ssd->deletions.wake);
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
		return 0;
	kv_lock(cache);
	stop_locked(ssd);
	kv_unlock(cache);
	while (n > 0)
		pthread_join(*threads[--n].thread, NULL);
	return r;
}

/* -ETIMEDOUT: the thread waits for what is stuck. */
static int join(struct kv_cache *cache, pthread_t thread, const bool *ended)
{
	int r = 0;

	kv_lock(cache);
	while (!*ended && r == 0) {
		kv_cond_wait(cache, &cache->ssd.done, kv_health_retry(cache));
		if (!*ended && kv_health_stuck_locked(cache).writes > 0)
			r = -ETIMEDOUT;
	}
	kv_unlock(cache);
	if (r == 0)
		pthread_join(thread, NULL);
	else
		pthread_detach(thread);
	return r;
}

/* Blocks not written unasked, because of writeback= or a fault, are now. */
static void enqueue_unpersisted(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_slot *slot;

	while (!cache->config.read_only && !cache->ssd.frozen &&
	       (slot = TAILQ_FIRST(&space->unpersisted)))
		kv_write_enqueue_locked(cache, slot->block, true);
}

int kv_writer_stop(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	int r, e, d;

	if (!ssd->running)
		return 0;
	kv_lock(cache);
	for (uint32_t i = 0; i < cache->spaces.n; i++)
		enqueue_unpersisted(cache, cache->spaces.sorted[i]);
	ssd->stop = true;
	pthread_cond_broadcast(&ssd->write);
	kv_unlock(cache);
	r = join(cache, ssd->writer, &ssd->writer_ended);
	kv_mover_stop(cache); /* the writer may have waited for a file */
	kv_lock(cache);
	stop_locked(ssd);
	kv_unlock(cache);
	e = join(cache, ssd->committer, &ssd->committer_ended);
	d = join(cache, ssd->deletions.thread, &ssd->deletions.ended);
	ssd->running = false;
	return r < 0 ? r : e < 0 ? e : d;
}
