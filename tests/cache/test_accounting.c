/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed bugs in the counts of bytes and the choice of victims.  Prefetches are
 * tested in test_prefetch.c, ranges of pins in tests/kernels. */
#include "tests/cache/tiers.h"

#define MIB (1ull << 20)

static struct kv_arena arena_of(struct tiers *t)
{
	struct kv_arena arena;

	kv_lock(t->cache);
	kv_arena_check_locked(t->cache);
	arena = t->cache->arena;
	kv_unlock(t->cache);
	return arena;
}

static void a_slot_is_charged_once_from_reserve_to_seal(void **state)
{
	struct tiers *t = *state;
	struct kv_fill *fill;
	uint64_t slot;

	assert_int_equal(tiers_begin(t, t->space, 0, 0, &fill), 0);
	slot = arena_of(t).used;
	assert_true(slot >= BYTES);
	assert_int_equal(t->space->in[DRAM].fast, slot);
	assert_int_equal(t->space->in[DRAM].coming, slot);
	assert_int_equal(tiers_seal(t, fill, 0, 0), 0);
	assert_int_equal(arena_of(t).used, slot);
	assert_int_equal(t->space->in[DRAM].coming, 0);
	assert_int_equal(t->space->in[DRAM].bytes, slot);
	tiers_quiet(t);
	assert_int_equal(arena_of(t).idle, slot);
	assert_int_equal(t->space->in[DRAM].fast, 0);
}

static void a_read_that_was_paid_for_is_leased_at_the_floor(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *acquire;
	unsigned held = 0;

	t->space = tiers_space(t, "an operator's", 0, PREFIX_LAYOUT);
	for (unsigned i = 0; i < 700; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	tiers_demote(t, t->space, 0, 700);
	/* DRAM cannot hold all 700 blocks: those that were read are leased. */
	acquire = tiers_acquire(t, t->space, 0, 700);
	for (unsigned i = 0; i < 700; i++) {
		int status = acquire->wants[i].status;

		assert_true(status == 0 || status == -ENOSPC);
		held += status == 0;
	}
	assert_int_equal(tiers_stats(t).dram_blocks, held);
	assert_true(held > 400);
	tiers_release(t, acquire);
}

static void what_is_promised_to_one_is_not_given_to_another(void **state)
{
	struct tiers *t = *state;
	struct kv_space *b = tiers_space(t, "b", 2, PREFIX_LAYOUT);
	const struct kv_quota quota = {.reserve_dram = 32 * MIB};
	struct kv_fill *fills[700];
	unsigned n = 0, of_a = 0;

	assert_int_equal(kv_space_set_quota(t->cache, t->space, NULL, &quota),
			 0);
	assert_int_equal(t->cache->due[DRAM], 32 * MIB);
	/* User B leases as many blocks as it can; A's guaranteed half of DRAM
	 * stays free. */
	for (unsigned i = 0; i < 600; i++)
		tiers_must_save(t, b, 0, i);
	tiers_quiet(t);
	struct kv_acquire *acquire = tiers_acquire(t, b, 0, 600);

	for (unsigned i = 0; i < 600; i++)
		n += acquire->wants[i].status == 0;
	assert_true(n > 100 && n * (uint64_t)BYTES < 32 * MIB);
	/* Users get memory in whole segments, so A may get one of the 8
	 * segments less. */
	while (of_a < 230 &&
	       tiers_begin(t, t->space, 1, of_a, &fills[of_a]) == 0)
		of_a++;
	assert_int_equal(of_a, 230);
	assert_true(t->cache->due[DRAM] < 10 * MIB);
	while (of_a)
		kv_fill_drop(t->cache, fills[--of_a]);
	tiers_release(t, acquire);
}

static void ssd_alone_means_it_waits_for_the_write(void **state)
{
	struct tiers *t = *state;
	struct kv_block *block;

	tiers_must_save(t, t->space, 0, 0);
	block = tiers_get(t, t->space, 0, 0);
	assert_int_equal(kv_block_demote(t->cache, block), 0);
	assert_int_equal(kv_block_stat(t->cache, block).tiers, KV_TIER_SSD);
	kv_block_put(t->cache, block);
}

/* Pin blocks until a pin is refused.  Return how many were pinned. */
static unsigned pin_all(struct tiers *t, unsigned n)
{
	unsigned pinned = 0;

	for (unsigned i = 0; i < n; i++) {
		struct kv_block *block = tiers_get(t, t->space, 0, i);
		int r = block ? kv_block_pin(t->cache, block, true) : -ENOENT;

		assert_true(r == 0 || r == -ENOSPC || r == -ENOENT);
		pinned += r == 0;
		if (block)
			kv_block_put(t->cache, block);
	}
	return pinned;
}

static void pinning_everything_in_dram_leaves_room_to_save(void **state)
{
	struct tiers *t = *state;
	struct kv_space *b = tiers_space(t, "b", 2, PREFIX_LAYOUT);

	for (unsigned i = 0; i < 550; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	assert_true(pin_all(t, 550) < 600);
	for (unsigned i = 0; i < 200; i++) {
		tiers_must_save(t, t->space, 1, i);
		tiers_must_save(t, b, 0, i);
	}
}

static void pinning_everything_on_ssd_leaves_room_to_write(void **state)
{
	struct tiers *t = *state;
	unsigned pinned = 0;
	struct kv_block *block;

	/* Demote blocks one by one, so that only the SSD limits pins. */
	for (unsigned i = 0; i < 1500; i++) {
		int r;

		tiers_must_save(t, t->space, 0, i);
		block = tiers_get(t, t->space, 0, i);
		assert_non_null(block);
		r = kv_block_demote(t->cache, block);
		if (r == 0)
			r = kv_block_pin(t->cache, block, true);
		kv_block_put(t->cache, block);
		if (r == -ENOSPC)
			break;
		assert_int_equal(r, 0);
		pinned++;
	}
	assert_true(pinned > 500 && pinned < 1300);
	assert_true(t->cache->ssd.pinned <=
		    t->cache->ssd.file_budget / 16 * 15);
	tiers_must_save(t, t->space, 1, 0);
	block = tiers_get(t, t->space, 1, 0);
	assert_int_equal(kv_block_sync(t->cache, block), 0);
	kv_block_put(t->cache, block);
}

static void a_pool_below_the_floor_fails_at_once(void **state)
{
	struct tiers *t = *state;
	struct kv_cache_config config = t->config;
	struct kv_cache *cache;
	char *why = NULL;

	config.store = NULL;
	config.dram = 8 * MIB;
	assert_int_equal(kv_cache_open(&config, &cache, &why), -EINVAL);
	free(why);
}

static void a_block_being_written_is_never_a_victim(void **state)
{
	struct tiers *t = *state;
	unsigned before, sealed = 0;

	/* Pretend that 1,000 more writes to SSD are under way, so that the
	 * writer begins no write. */
	kv_lock(t->cache);
	t->cache->ssd.writing += 1000;
	kv_unlock(t->cache);
	while (tiers_save(t, t->space, 0, sealed) == 0)
		sealed++;
	before = sealed;
	for (unsigned i = 0; i < before; i++)
		assert_int_equal(tiers_of(t, t->space, 0, i), KV_TIER_DRAM);
	kv_lock(t->cache);
	t->cache->ssd.writing -= 1000;
	pthread_cond_signal(&t->cache->ssd.write);
	kv_unlock(t->cache);
	tiers_quiet(t);
	assert_int_equal(tiers_save(t, t->space, 0, sealed), 0);
}

static void only_what_nobody_holds_is_evicted(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *acquire;
	struct kv_cache_stats s;
	uint64_t used;

	for (unsigned i = 0; i < 100; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	acquire = tiers_acquire(t, t->space, 0, 100);
	for (unsigned i = 0; i < 800; i++)
		tiers_must_save(t, t->space, 1 + i, 0);
	for (unsigned i = 0; i < 100; i++)
		assert_true(tiers_of(t, t->space, 0, i) & KV_TIER_DRAM);
	s = tiers_stats(t);
	used = arena_of(t).used;
	/* Each eviction must have lowered the count of used bytes by one
	 * block. */
	assert_int_equal((900 - s.evicted_dram) * (used / s.dram_blocks), used);
	tiers_release(t, acquire);
}

static void what_waits_to_be_written_gives_way_to_a_guarantee(void **state)
{
	struct tiers *t = *state;
	struct kv_space *b = tiers_space(t, "an operator's", 0, PREFIX_LAYOUT);
	const struct kv_quota quota = {.reserve_dram = 24 * MIB};
	unsigned n = 0, of_a = 0;

	kv_lock(t->cache);
	t->cache->ssd.writing += 1000;
	kv_unlock(t->cache);
	while (tiers_save(t, b, n, 0) == 0)
		n++;
	assert_int_equal(kv_space_set_quota(t->cache, t->space, NULL, &quota),
			 0);
	assert_int_equal(tiers_stats(t).dropped_saves, 0);
	while (of_a < 50 && tiers_save(t, t->space, of_a, 0) == 0)
		of_a++;
	print_message("%u of B, %u of A\n", n, of_a);
	kv_lock(t->cache);
	t->cache->ssd.writing -= 1000;
	pthread_cond_signal(&t->cache->ssd.write);
	kv_unlock(t->cache);
	tiers_quiet(t);
	assert_int_equal(of_a, 50);
	assert_true(tiers_stats(t).dropped_saves > 0);
}

/* While the SSD takes no writes, DRAM must work as if there was no SSD tier. */
static void newest_stay(struct tiers *t, const char *evict, unsigned chain)
{
	unsigned sealed = 0, kept = 0, oldest;

	kv_cache_close(t->cache);
	t->config.evict = evict;
	tiers_open(t);
	kv_lock(t->cache);
	while (t->cache->arena.growing)
		kv_cond_wait(t->cache, &t->cache->arena.grown, 10000000u);
	t->cache->ssd.writing += 1000; /* the writer begins no more writes */
	t->cache->ssd.error = -EIO;
	kv_unlock(t->cache);
	for (unsigned i = 0; i < 900; i++)
		sealed += tiers_save(t, t->space, chain + i / 32, i % 32) == 0;
	for (unsigned i = 800; i < 900; i++)
		kept += tiers_of(t, t->space, chain + i / 32, i % 32) ==
			KV_TIER_DRAM;
	oldest = tiers_of(t, t->space, chain, 31);
	kv_lock(t->cache);
	t->cache->ssd.writing -= 1000;
	t->cache->ssd.error = 0;
	pthread_cond_signal(&t->cache->ssd.write);
	kv_unlock(t->cache);
	tiers_quiet(t);
	assert_int_equal(sealed, 900);
	assert_int_equal(kept, 100);
	assert_int_equal(oldest, 0);
	assert_true(tiers_stats(t).dropped_saves > 200);
}

static void while_the_disk_fails_the_newest_stay(void **state)
{
	newest_stay(*state, "lru", 0);
	newest_stay(*state, "lhd", 100);
}

static void capacity_is_rounded_down(void **state)
{
	struct tiers *t = *state;
	struct kv_segment *segment;
	struct kv_class *class;

	for (unsigned i = 0; i < 600; i++)
		tiers_must_save(t, t->space, 0, i);
	kv_lock(t->cache);
	assert_true(t->cache->arena.max * t->cache->arena.segment_bytes <=
		    t->config.dram);
	LIST_FOREACH(class, &t->cache->arena.classes, link)
		TAILQ_FOREACH(segment, &class->segments, link)
			assert_true(segment->slots * class->slot_bytes <=
				    t->cache->arena.segment_bytes);
	kv_unlock(t->cache);
}

static void under_pressure_the_prefix_is_kept(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *acquire;
	unsigned prefix = 0;

	t->space = tiers_space(t, "an operator's", 0, PREFIX_LAYOUT);
	for (unsigned i = 0; i < 700; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	tiers_demote(t, t->space, 0, 700);
	acquire = tiers_acquire(t, t->space, 0, 700);
	while (prefix < 700 && acquire->wants[prefix].status == 0)
		prefix++;
	for (unsigned i = prefix; i < 700; i++)
		assert_int_equal(acquire->wants[i].status, -ENOSPC);
	assert_true(prefix > 400);
	tiers_release(t, acquire);
}

static void count_gone(void *arg, uint64_t id)
{
	(void)id;
	atomic_fetch_add((atomic_uint *)arg, 1);
}

static void a_burst_of_evictions_is_told_and_committed_in_batches(void **state)
{
	struct tiers *t = *state;
	const struct kv_quota quota = {.quota_ssd = 1 * MIB};
	atomic_uint gone = 0;
	uint64_t commits;

	kv_cache_close(t->cache);
	t->config.gone = count_gone;
	t->config.arg = &gone;
	tiers_open(t);
	for (unsigned i = 0; i < 500; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	tiers_demote(t, t->space, 0, 500);
	commits = tiers_stats(t).commits;
	assert_int_equal(kv_space_set_quota(t->cache, t->space, NULL, &quota),
			 0);
	while (kv_space_stat(t->cache, t->space).bytes_ssd > 1 * MIB)
		usleep(1000);
	assert_int_equal(kv_space_sync(t->cache, t->space), 0);
	assert_int_equal(gone, 500 - kv_space_stat(t->cache, t->space).blocks);
	assert_true(tiers_stats(t).commits - commits < 50);
}

static void drops_are_counted_and_seen(void **state)
{
	struct tiers *t = *state;
	struct kv_block *block;

	/* save the block, but not its parent */
	tiers_must_save(t, t->space, 0, 3);
	tiers_quiet(t);
	assert_int_equal(tiers_stats(t).unwritten_orphans, 1);
	assert_int_equal(tiers_of(t, t->space, 0, 3), KV_TIER_DRAM);
	block = tiers_get(t, t->space, 0, 3);
	assert_false(kv_block_stat(t->cache, block).durable);
	assert_int_equal(kv_block_sync(t->cache, block), 0);
	assert_true(kv_block_stat(t->cache, block).durable);
	kv_block_put(t->cache, block);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_slot_is_charged_once_from_reserve_to_seal),
		TEST(a_read_that_was_paid_for_is_leased_at_the_floor),
		TEST(what_is_promised_to_one_is_not_given_to_another),
		TEST(ssd_alone_means_it_waits_for_the_write),
		TEST(pinning_everything_in_dram_leaves_room_to_save),
		TEST(pinning_everything_on_ssd_leaves_room_to_write),
		TEST(a_pool_below_the_floor_fails_at_once),
		TEST(a_block_being_written_is_never_a_victim),
		TEST(only_what_nobody_holds_is_evicted),
		TEST(what_waits_to_be_written_gives_way_to_a_guarantee),
		TEST(while_the_disk_fails_the_newest_stay),
		TEST(capacity_is_rounded_down),
		TEST(under_pressure_the_prefix_is_kept),
		TEST(a_burst_of_evictions_is_told_and_committed_in_batches),
		TEST(drops_are_counted_and_seen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
