/* SPDX-License-Identifier: Apache-2.0 */
/*
 * housekeep.c - once a second: spaces are brought back within their quotas,
 * and the store is read through at its bounded rate.
 *
 * OWNS       the housekeeper thread and the scrub's place in the store.
 * LOCKING    cache->lock, for one block at a time.
 */
#include "cache/core.h"

static struct kv_block *hold_nth(struct kv_cache *cache, uint32_t number)
{
	struct kv_block *block = NULL;

	kv_lock(cache);
	if (number < cache->table.used)
		block = kv_table_at(&cache->table, number);
	if (block && (block->file == KV_NONE || block->length == 0 ||
		      (block->flags & (BLOCK_REMOVED | BLOCK_READING))))
		block = NULL;
	if (block)
		block->refs++;
	kv_unlock(cache);
	return block;
}

/* Read one block from SSD and check it; returns the bytes that cost. */
static uint64_t scrub_one(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_io io = {.op = KV_IO_READ, .buffer = -1};
	const struct kv_file *file;
	void *data;
	int r;

	io.bytes = KV_PAGE + kv_round_up(block->length, KV_PAGE);
	if (posix_memalign(&data, KV_PAGE, io.bytes))
		return 0;
	kv_lock(cache);
	file = kv_file_at(cache, block->file);
	io.fd = file->fd;
	io.offset = block->place * file->slot_bytes;
	kv_unlock(cache);
	io.data = data;
	r = kv_ring_wait(cache->ring, &io);
	if (r == 0)
		r = kv_block_verify(cache, block, data);
	if (r == -EBADMSG)
		kv_block_quarantine(cache, block);
	else if (r < 0 && r != -ENOENT)
		kv_io_failed(cache);
	free(data);
	return io.bytes;
}

static bool busy_writing(struct kv_cache *cache)
{
	bool busy;

	kv_lock(cache);
	busy = cache->ssd.writing > 0;
	kv_unlock(cache);
	return busy;
}

static void scrub(struct kv_cache *cache, int64_t budget)
{
	struct kv_housekeeper *keeper = &cache->housekeeper;
	uint32_t n = cache->table.used;

	keeper->credit = KV_MIN(keeper->credit + budget, budget);
	for (uint32_t i = 0; i < n && i < 100000 && keeper->credit > 0; i++) {
		struct kv_block *block;
		uint64_t bytes;

		/* Reads go before writes: leave the device to those who wait.
		 */
		if (busy_writing(cache))
			return;

		if (keeper->at >= n)
			keeper->at = 0;
		block = hold_nth(cache, keeper->at++);
		if (!block)
			continue;
		bytes = scrub_one(cache, block);
		keeper->credit -= (int64_t)bytes;
		kv_lock(cache);
		cache->stats.scrubbed += bytes;
		kv_unlock(cache);
		kv_block_put(cache, block);
		if (keeper->stop)
			return;
	}
}

/* One block of @space that may go from the tier; NULL. */
static struct kv_block *one_of(struct kv_cache *cache, struct kv_space *space,
			       bool dram)
{
	struct kv_block *oldest = NULL;

	/* A walk over all blocks: being over a quota is rare, and short. */
	for (uint32_t i = 0; i < cache->table.used; i++) {
		struct kv_block *block = kv_table_at(&cache->table, i);

		if (block->space != space->id || block->refs ||
		    (block->flags & (BLOCK_REMOVED | BLOCK_PINNED)) ||
		    (block->slot && !kv_slot_idle(block->slot)))
			continue;
		if (dram ? !block->slot : block->file == KV_NONE)
			continue;
		/* Of equal age the deeper, later one goes first. */
		if (!oldest || block->atime <= oldest->atime)
			oldest = block;
	}
	return oldest;
}

static void keep_quota(struct kv_cache *cache, struct kv_space *space)
{
	const struct kv_quota *quota = &space->quota;
	struct kv_block *block;

	while (quota->quota_dram && space->bytes_dram > quota->quota_dram &&
	       (block = one_of(cache, space, true)))
		kv_block_drop_dram_locked(cache, block);
	while (quota->quota_ssd && space->bytes_ssd > quota->quota_ssd &&
	       (block = one_of(cache, space, false)))
		kv_block_remove_locked(cache, block);
}

static void *housekeeper(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_housekeeper *keeper = &cache->housekeeper;

	kv_lock(cache);
	while (!keeper->stop) {
		for (uint32_t id = 0; id < cache->n_spaces; id++)
			if (cache->spaces[id] && !cache->spaces[id]->removed)
				keep_quota(cache, cache->spaces[id]);
		if (cache->config.scrub && cache->ssd.on) {
			kv_unlock(cache);
			scrub(cache, (int64_t)cache->config.scrub);
			kv_lock(cache);
		}
		if (!keeper->stop)
			kv_cond_wait(cache, &keeper->wake, 1000000000u);
	}
	kv_unlock(cache);
	return NULL;
}

int kv_housekeeper_start(struct kv_cache *cache)
{
	struct kv_housekeeper *keeper = &cache->housekeeper;
	int r;

	kv_cond_init(&keeper->wake);
	r = kv_thread(&keeper->thread, "kvfs-keep", housekeeper, cache);
	keeper->running = r == 0;
	return r;
}

void kv_housekeeper_stop(struct kv_cache *cache)
{
	struct kv_housekeeper *keeper = &cache->housekeeper;

	if (!keeper->running)
		return;
	kv_lock(cache);
	keeper->stop = true;
	pthread_cond_signal(&keeper->wake);
	kv_unlock(cache);
	pthread_join(keeper->thread, NULL);
	keeper->running = false;
}
