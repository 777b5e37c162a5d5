/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer.c - sealed blocks on their way to SSD, and who waits for them.
 *
 * OWNS       the queue of blocks to be written, and the writer thread.
 *
 * STATES     of a block, and the function that makes each step:
 *
 *             LOOSE -> QUEUED    kv_write_queue_locked
 *            QUEUED -> LOOSE     kv_write_unqueue_locked  (removed, given up)
 *            QUEUED -> WRITING   start_write
 *           WRITING -> WRITTEN   write_done               (reactor thread)
 *           WRITING -> QUEUED    write_done, when it failed
 *           WRITTEN -> DURABLE   commit.c
 *
 * INVARIANTS
 *   (1) QUEUED and WRITING slots are on ssd->undone, by seq, and not idle: a
 *       block that is being written keeps its bytes (R5).
 *   (2) A flush with ticket t is done when no slot with seq <= t is undone and
 *       the commit that covers earlier deletions has been made, those included
 *       that were found to be needed only when a slot's write had ended.
 *
 * LOCKING    cache->lock.
 */
#include "cache/core.h"
#include "cache/waiter.h"

#define WRITES_AT_ONCE 32u
#define RETRY_NS 1000000000u
#define FULL_NS 5000000000u /* then it looks whether there is room again */

struct write {
	struct kv_io io; /* first */
	struct kv_cache *cache;
	struct kv_slot *slot;
};

static void set_flags(struct kv_cache *cache, struct kv_block *block,
		      uint8_t set, uint8_t clear)
{
	kv_slot_before(cache, block->slot);
	block->flags = (uint8_t)((block->flags & ~clear) | set);
	kv_slot_after(cache, block->slot);
}

#define DAY_NS (86400ull * 1000000000u)

/* Of ssd_write=, which counts days from the mount on. */
static bool within_budget(struct kv_cache *cache, uint64_t bytes)
{
	struct kv_ssd *ssd = &cache->ssd;
	uint64_t now = kv_now_ns();

	if (now - ssd->day_ns >= DAY_NS) {
		ssd->day_ns = now;
		ssd->day_bytes = 0;
	}
	return !cache->config.ssd_write ||
	       ssd->day_bytes + bytes <= cache->config.ssd_write;
}

void kv_write_queue_locked(struct kv_cache *cache, struct kv_block *block,
			   bool must)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_slot *slot = block->slot;

	if (!ssd->on || cache->config.read_only || !slot ||
	    block->file != KV_NONE || (block->flags & BLOCK_REMOVED))
		return;
	if (!must && !kv_block_dirty(block) &&
	    !within_budget(cache, slot->segment->class->slot_bytes))
		return;
	slot->must |= must;
	if (!kv_block_dirty(block)) {
		ssd->day_bytes += slot->segment->class->slot_bytes;
		kv_block_space(cache, block)->loose--;
		set_flags(cache, block, BLOCK_QUEUED, 0);
		slot->seq = ++ssd->seq;
		TAILQ_INSERT_TAIL(&ssd->queue, slot, link);
		TAILQ_INSERT_TAIL(&ssd->undone, slot, undone);
	}
	pthread_cond_signal(&ssd->write);
}

void kv_write_unqueue_locked(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_ssd *ssd = &cache->ssd;

	TAILQ_REMOVE(&ssd->queue, block->slot, link);
	TAILQ_REMOVE(&ssd->undone, block->slot, undone);
	set_flags(cache, block, 0, BLOCK_QUEUED);
	kv_block_space(cache, block)->loose++;
	kv_flushes_settle_locked(cache, 0);
}

void kv_write_failed_locked(struct kv_cache *cache, int error)
{
	cache->ssd.error = error;
	cache->ssd.failures++;
	cache->stats.io_errors++;
	kv_flushes_settle_locked(cache, error);
	pthread_cond_broadcast(&cache->ssd.done);
}

static void write_done(struct kv_io *io, int status)
{
	struct write *write = (struct write *)io;
	struct kv_cache *cache = write->cache;
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_slot *slot = write->slot;
	struct kv_block *block = slot->block;

	kv_lock(cache);
	ssd->writing--;
	if (status == 0) {
		cache->stats.bytes_written_ssd += io->bytes;
		TAILQ_INSERT_TAIL(&ssd->written, slot, link);
		pthread_cond_signal(&ssd->commit);
	} else {
		kv_extent_delete_locked(
			cache, kv_slot_id(slot->file, slot->place), true);
		set_flags(cache, block, BLOCK_QUEUED, BLOCK_WRITING);
		TAILQ_INSERT_HEAD(&ssd->queue, slot, link);
		kv_write_failed_locked(cache, status);
		if (block->flags & BLOCK_REMOVED) {
			kv_write_unqueue_locked(cache, block);
			kv_block_space(cache, block)->loose--;
		}
		kv_block_settle_locked(cache, block);
	}
	pthread_cond_signal(&ssd->write);
	kv_unlock(cache);
	free(write);
}

static int start_write(struct kv_cache *cache, struct kv_slot *slot)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct write *write = calloc(1, sizeof(*write));
	struct kv_file *file;
	int r;

	if (!write)
		return -ENOMEM;
	r = kv_extent_take_locked(cache, slot->segment->class->slot_bytes,
				  &slot->file, &slot->place);
	if (r < 0) {
		free(write);
		return r;
	}
	file = kv_file_at(cache, slot->file);
	TAILQ_REMOVE(&ssd->queue, slot, link);
	set_flags(cache, slot->block, BLOCK_WRITING, BLOCK_QUEUED);
	write->cache = cache;
	write->slot = slot;
	write->io.op = KV_IO_WRITE;
	write->io.fd = file->fd;
	write->io.buffer = slot->segment->buffer;
	write->io.data = kv_slot_prologue(slot);
	write->io.offset = slot->place * file->slot_bytes;
	write->io.bytes = KV_PAGE + kv_round_up(slot->block->length, KV_PAGE);
	write->io.done = write_done;
	ssd->writing++;
	kv_ring_submit(cache->ring, &write->io);
	return 0;
}

/* Returns 0 if the next turn may begin at once. */
static int turn(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_slot *slot = TAILQ_FIRST(&ssd->queue);
	uint64_t slot_bytes;
	int r;

	if (ssd->full && kv_now_ns() > ssd->full_until)
		ssd->full = false;
	if (!slot || ssd->writing >= WRITES_AT_ONCE) {
		kv_cond_wait(cache, &ssd->write, RETRY_NS);
		return 0;
	}
	slot_bytes = slot->segment->class->slot_bytes;
	r = start_write(cache, slot);
	if (r == -ENOENT) {
		r = kv_file_create(cache, slot_bytes);
		/* Full from outside: go on with the files there are. */
		if (r == -ENOSPC) {
			ssd->full = true;
			ssd->full_until = kv_now_ns() + FULL_NS;
			r = 0;
		}
	} else if (r == -EAGAIN) {
		kv_commit_kick_locked(cache, true);
		kv_cond_wait(cache, &ssd->done, RETRY_NS);
		r = 0;
	} else if (r == 0 && ssd->error) {
		ssd->error = 0;
	}
	return r;
}

static void *writer(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_ssd *ssd = &cache->ssd;
	int tries = 0;

	kv_lock(cache);
	while (!ssd->stop || (!TAILQ_EMPTY(&ssd->undone) && tries < 2)) {
		uint64_t failures = ssd->failures;
		int r = turn(cache);

		if (r < 0)
			kv_write_failed_locked(cache, r);
		if (failures == ssd->failures)
			continue;
		/* It failed: wait a little, then look whether it still does. */
		tries += ssd->stop;
		kv_cond_wait(cache, &ssd->write, RETRY_NS);
	}
	kv_unlock(cache);
	return NULL;
}

/* What was not written unasked, because of writeback= or a fault, is now. */
static void queue_loose(struct kv_cache *cache, struct kv_space *space)
{
	for (unsigned d = 0; space->loose && d < KV_ARRAY_LEN(space->dirs); d++)
		for (uint32_t i = 0;
		     space->dirs[d] && space->dirs[d]->buckets &&
		     i <= space->dirs[d]->mask;
		     i++)
			for (uint32_t n = space->dirs[d]->buckets[i];
			     n != KV_NONE;) {
				struct kv_block *block =
					kv_table_at(&cache->table, n);

				n = block->next;
				kv_write_queue_locked(cache, block, true);
			}
}

static bool flushed(const struct kv_ssd *ssd, const struct kv_flush *flush)
{
	const struct kv_slot *first = TAILQ_FIRST(&ssd->undone);

	return (!first || first->seq > flush->ticket) &&
	       ssd->commits_done >= flush->commit;
}

void kv_flushes_settle_locked(struct kv_cache *cache, int error)
{
	struct kv_flush **link = &cache->flushes;

	while (*link) {
		struct kv_flush *flush = *link;

		if (!error && !flushed(&cache->ssd, flush)) {
			link = &flush->next;
			continue;
		}
		*link = flush->next;
		kv_due_flushed(cache, flush, error);
	}
}

void kv_flushes_prolong_locked(struct kv_cache *cache, uint64_t seq)
{
	struct kv_flush *flush;

	for (flush = cache->flushes; flush; flush = flush->next) {
		if (flush->ticket < seq)
			continue;
		flush->commit = kv_commits_needed_locked(cache);
		kv_commit_kick_locked(cache, true);
	}
}

void kv_flush_submit(struct kv_cache *cache, struct kv_space *space,
		     struct kv_flush *flush)
{
	struct kv_ssd *ssd = &cache->ssd;

	kv_lock(cache);
	if (!ssd->on || cache->config.read_only) {
		kv_due_flushed(cache, flush,
			       cache->config.read_only ? 0 : -EOPNOTSUPP);
		kv_unlock(cache);
		return;
	}
	queue_loose(cache, space);
	flush->pending = true;
	flush->ticket = ssd->seq;
	flush->commit = kv_commits_needed_locked(cache);
	flush->next = cache->flushes;
	cache->flushes = flush;
	kv_flushes_settle_locked(cache, 0);
	if (flush->pending)
		kv_commit_kick_locked(cache, true);
	kv_unlock(cache);
}

void kv_flush_cancel(struct kv_cache *cache, struct kv_flush *flush, int status)
{
	struct kv_flush **link;

	kv_lock(cache);
	for (link = &cache->flushes; *link; link = &(*link)->next)
		if (*link == flush) {
			*link = flush->next;
			kv_due_flushed(cache, flush, status);
			break;
		}
	kv_unlock(cache);
}

static void wake(struct kv_flush *flush, int status)
{
	(void)status;
	kv_waiter_wake(flush->arg);
}

int kv_space_sync(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_waiter waiter = KV_WAITER_INIT;
	struct kv_flush flush = {.done = wake, .arg = &waiter};

	kv_flush_submit(cache, space, &flush);
	kv_waiter_wait(&waiter);
	return flush.status;
}

int kv_block_sync(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_ssd *ssd = &cache->ssd;
	uint64_t failures;
	int r = 0;

	kv_lock(cache);
	failures = ssd->failures;
	if (block->file == KV_NONE && cache->config.read_only)
		r = -EROFS;
	else if (!ssd->on)
		r = -EOPNOTSUPP;
	while (r == 0 && block->file == KV_NONE) {
		if (block->flags & BLOCK_REMOVED) {
			r = -ENOENT;
			break;
		}
		kv_write_queue_locked(cache, block, true);
		kv_commit_kick_locked(cache, true);
		if (failures != ssd->failures && ssd->error)
			r = ssd->error;
		else
			kv_cond_wait(cache, &ssd->done, RETRY_NS);
	}
	kv_unlock(cache);
	return r;
}

int kv_writer_start(struct kv_cache *cache)
{
	int r = kv_thread(&cache->ssd.writer, "kvfs-write", writer, cache);

	if (r < 0)
		return r;
	r = kv_thread(&cache->ssd.committer, "kvfs-commit", kv_committer,
		      cache);
	cache->ssd.running = r == 0;
	return r;
}

void kv_writer_stop(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;

	if (!ssd->running)
		return;
	kv_lock(cache);
	for (uint32_t id = 0; id < cache->n_spaces; id++)
		if (cache->spaces[id] && !cache->spaces[id]->removed)
			queue_loose(cache, cache->spaces[id]);
	ssd->stop = true;
	pthread_cond_broadcast(&ssd->write);
	kv_unlock(cache);
	pthread_join(ssd->writer, NULL);
	kv_lock(cache);
	ssd->stop_commits = true;
	pthread_cond_broadcast(&ssd->commit);
	kv_unlock(cache);
	pthread_join(ssd->committer, NULL);
	ssd->running = false;
}
