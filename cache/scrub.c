/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub.c - the store is read through, over and over, at a bounded rate, so
 * that damage is found before somebody asks for the block.
 *
 * One pass takes the segment files one after the other, and each from its
 * beginning to its end, as the device likes it.
 *
 * OWNS       the scrubber thread and the buffer that it reads into.
 *
 * INVARIANTS
 *   (1) After each block it rests for as long as the block's bytes take at the
 *       given rate: it never reads more than rate * time and one block.
 *   (2) While blocks are being written it rests up to BUSY times as long and no
 *       longer, so that a tier that is always busy is scrubbed, too.
 *
 * LOCKING    cache->lock, released for each read and every AT_ONCE slots.
 */
#include "cache/scrub.h"
#include "cache/block/block.h"
#include "cache/core/core.h"
#include "cache/core/table.h"
#include "cache/ssd/ssd.h"

#define AT_ONCE 4096u /* slots without a block, before others get the lock */
#define BUSY 10u
#define SECOND 1000000000u

struct buffer {
	uint8_t *data;
	uint64_t room;
};

static void rest(struct kv_cache *cache, uint64_t ns)
{
	kv_unlock(cache);
	kv_periodic_rest(&cache->scrubber.periodic, ns);
	kv_lock(cache);
}

static bool stopping(const struct kv_cache *cache)
{
	return kv_periodic_stopping(&cache->scrubber.periodic);
}

/* Leave the device to those who write, for a while. */
static void yield(struct kv_cache *cache, uint64_t ns)
{
	for (unsigned i = 1; i < BUSY && cache->ssd.writing; i++)
		rest(cache, ns);
}

/* Returns the bytes that reading the block took. */
static uint64_t scrub_bytes(struct kv_cache *cache, struct buffer *buffer,
			    struct kv_block *block)
{
	uint64_t bytes = KV_PAGE + kv_round_up(block->length, KV_PAGE);
	int r;

	if (buffer->room < bytes) {
		kv_pages_free(buffer->data, buffer->room);
		buffer->data = kv_pages_new(bytes);
		buffer->room = buffer->data ? bytes : 0;
	}
	if (!buffer->data)
		return 0;
	r = kv_block_fetch(cache, block, &buffer->data, buffer->room);
	buffer->room = buffer->data ? buffer->room : 0;
	kv_lock(cache);
	cache->stats.scrubbed += bytes;
	cache->scrubber.pass_bytes += bytes;
	cache->scrubber.corrupt += r == -EBADMSG;
	kv_unlock(cache);
	return bytes;
}

static void scrub_block(struct kv_cache *cache, struct buffer *buffer,
			struct kv_block *block)
{
	const uint64_t rate = cache->config.scrub;
	uint64_t bytes, ns, begun;

	block->refs++;
	begun = kv_now_ns();
	kv_unlock(cache);
	bytes = scrub_bytes(cache, buffer, block);
	kv_block_put(cache, block);
	kv_lock(cache);
	ns = (uint64_t)((double)bytes / (double)rate * SECOND);
	rest(cache, ns - KV_MIN(ns, kv_now_ns() - begun));
	yield(cache, ns);
}

/* The file may get slots of another size whenever the lock is released. */
static void scrub_file(struct kv_cache *cache, struct buffer *buffer,
		       const struct kv_segfile *file)
{
	for (uint32_t i = 0; i < file->slots && !stopping(cache); i++) {
		struct kv_block *block;

		while (kv_health_offline_locked(cache) && !stopping(cache))
			rest(cache, SECOND);
		block = i < file->slots ? kv_extent_block(cache, file, i)
					: NULL;
		if (block && block->length && !(block->flags & BLOCK_READING))
			scrub_block(cache, buffer, block);
		else if (i % AT_ONCE == AT_ONCE - 1)
			kv_yield(cache);
	}
}

static void scrub_all(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_scrubber *scrubber = &cache->scrubber;
	struct buffer buffer = {0};

	kv_lock(cache);
	scrubber->pass_bytes = 0;
	scrubber->pass_total = cache->ssd.used;
	for (uint32_t id = 0; id < cache->ssd.n_files; id++)
		if (kv_segfile_at(cache, id) && !stopping(cache))
			scrub_file(cache, &buffer, kv_segfile_at(cache, id));
	if (scrubber->pass_bytes && !stopping(cache)) {
		scrubber->passes++;
		scrubber->pass_ended_ns = kv_wall_ns();
	}
	kv_unlock(cache);
	kv_pages_free(buffer.data, buffer.room);
}

int kv_scrubber_start(struct kv_cache *cache)
{
	return kv_periodic_start(&cache->scrubber.periodic, "kvfs-scrub",
				 SECOND, scrub_all, cache);
}

void kv_scrubber_stop(struct kv_cache *cache)
{
	kv_periodic_stop(&cache->scrubber.periodic);
}
