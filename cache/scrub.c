/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub.c - the store is read through, over and over, at a bounded rate, so
 * that damage is found before somebody asks for the block.
 *
 * One pass takes the segment files one after the other, and each from its
 * beginning to its end, as the device likes it.
 *
 * OWNS       the scrubber thread, and what it has planned to read of a file.
 *
 * INVARIANTS
 *   (1) After each block it rests for as long as the block's bytes take at the
 *       given rate: it never reads more than rate * time and one block.
 *   (2) While blocks are being written it rests up to BUSY times as long and no
 *       longer, so that a tier that is always busy is scrubbed, too.
 *
 * LOCKING    cache->lock, for AT_ONCE blocks of the table at a time.
 */
#include "cache/scrub.h"
#include "cache/block/block.h"
#include "cache/core/core.h"
#include "cache/core/table.h"
#include "cache/ssd/ssd.h"

#define AT_ONCE 4096u
#define BUSY 10u
#define SECOND 1000000000u

struct target {
	uint32_t slot_number, number;
	uint64_t id;
};

struct plan {
	struct target *targets;
	size_t n, room;
	uint8_t *data;
	uint64_t data_room;
};

static void plan_fini(struct plan *plan)
{
	free(plan->targets);
	kv_pages_free(plan->data, plan->data_room);
}

static int by_slot_number(const void *a, const void *b)
{
	const struct target *x = a, *y = b;

	return x->slot_number < y->slot_number
		       ? -1
		       : x->slot_number > y->slot_number;
}

static bool add(struct plan *plan, const struct kv_block *block)
{
	size_t room = plan->room ? plan->room * 2 : 256;
	struct target *more;

	if (plan->n == plan->room) {
		more = realloc(plan->targets, room * sizeof(*more));
		if (!more)
			return false;
		plan->targets = more;
		plan->room = room;
	}
	plan->targets[plan->n++] = (struct target){
		.slot_number = block->slot_number,
		.number = block->number,
		.id = kv_block_id(block),
	};
	return true;
}

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

/* The blocks of one file, in its order. */
static void plan_file(struct kv_cache *cache, struct plan *plan, uint32_t file)
{
	bool more = true;
	uint32_t i = 0;

	plan->n = 0;
	while (more && !stopping(cache)) {
		uint32_t end = KV_MIN(i + AT_ONCE, cache->table.used);

		for (; i < end; i++) {
			struct kv_block *b = kv_table_at(&cache->table, i);

			if (b->file == file && b->length &&
			    !(b->flags & BLOCK_REMOVED) && !add(plan, b))
				break;
		}
		more = i == end && i < cache->table.used;
		kv_unlock(cache);
		kv_lock(cache);
	}
	if (plan->n)
		qsort(plan->targets, plan->n, sizeof(*plan->targets),
		      by_slot_number);
}

/* Leave the device to those who write, for a while. */
static void yield(struct kv_cache *cache, uint64_t ns)
{
	for (unsigned i = 1; i < BUSY && cache->ssd.writing; i++)
		rest(cache, ns);
}

/* Returns the bytes that reading the block took. */
static uint64_t scrub_block(struct kv_cache *cache, struct plan *plan,
			    struct kv_block *block)
{
	uint64_t bytes = KV_PAGE + kv_round_up(block->length, KV_PAGE);
	int r;

	if (plan->data_room < bytes) {
		kv_pages_free(plan->data, plan->data_room);
		plan->data = kv_pages_new(bytes);
		plan->data_room = plan->data ? bytes : 0;
	}
	if (!plan->data)
		return 0;
	r = kv_block_fetch(cache, block, &plan->data, plan->data_room);
	plan->data_room = plan->data ? plan->data_room : 0;
	kv_lock(cache);
	cache->stats.scrubbed += bytes;
	cache->scrubber.pass_bytes += bytes;
	cache->scrubber.corrupt += r == -EBADMSG;
	kv_unlock(cache);
	return bytes;
}

static void scrub_target(struct kv_cache *cache, struct plan *plan,
			 const struct target *target)
{
	const uint64_t rate = cache->config.scrub;
	struct kv_block *block = kv_table_at(&cache->table, target->number);
	uint64_t bytes, ns, begun;

	if (kv_block_id(block) != target->id || block->file == KV_NONE ||
	    block->slot_number != target->slot_number ||
	    (block->flags & (BLOCK_REMOVED | BLOCK_READING)))
		return;
	block->refs++;
	begun = kv_now_ns();
	kv_unlock(cache);
	bytes = scrub_block(cache, plan, block);
	kv_block_put(cache, block);
	kv_lock(cache);
	ns = (uint64_t)((double)bytes / (double)rate * SECOND);
	rest(cache, ns - KV_MIN(ns, kv_now_ns() - begun));
	yield(cache, ns);
}

static void scrub_file(struct kv_cache *cache, struct plan *plan, uint32_t file)
{
	plan_file(cache, plan, file);
	for (size_t i = 0; i < plan->n && !stopping(cache); i++) {
		while (kv_health_offline_locked(cache) && !stopping(cache))
			rest(cache, SECOND);
		if (!stopping(cache))
			scrub_target(cache, plan, &plan->targets[i]);
	}
}

static void scrub_all(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_scrubber *scrubber = &cache->scrubber;
	struct plan plan = {0};

	kv_lock(cache);
	scrubber->pass_bytes = 0;
	scrubber->pass_total = cache->ssd.used;
	for (uint32_t file = 0; file < cache->ssd.n_files; file++)
		if (kv_segfile_at(cache, file) && !stopping(cache))
			scrub_file(cache, &plan, file);
	if (scrubber->pass_bytes && !stopping(cache)) {
		scrubber->passes++;
		scrubber->pass_ended_ns = kv_wall_ns();
	}
	kv_unlock(cache);
	plan_fini(&plan);
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
