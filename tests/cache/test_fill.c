/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fill.c - blocks that must stay until they are durable, blocks that are
 * leased from their seal on, and saves that began before their space was
 * cleared.
 *
 * OWNS      a cache with both tiers for each test.
 *
 * LOCKING   none.
 */
#include "tests/cache/tiers.h"

#define MIB ((uint64_t)1 << 20)

/* Stall the writer: pretend that @by more writes to SSD are under way, so that
 * it begins no write.  A negative @by ends the stall. */
static void stall(struct tiers *t, int by)
{
	kv_lock(t->cache);
	t->cache->ssd.writing = (uint32_t)((int)t->cache->ssd.writing + by);
	pthread_cond_signal(&t->cache->ssd.write);
	kv_unlock(t->cache);
}

static int save_must(struct tiers *t, struct kv_space *space, unsigned chain,
		     unsigned position)
{
	struct kv_fill *fill;
	int r = tiers_begin(t, space, chain, position, &fill);

	if (r < 0)
		return r;
	kv_fill_must(fill);
	return tiers_seal(t, fill, chain, position);
}

/* All blocks of the space must persist, so that none is evicted before it is
 * durable; test_accounting has spaces whose blocks need not persist. */
static void what_must_persist_gives_way_to_nobody(void **state)
{
	struct tiers *t = *state;
	struct kv_space *b = tiers_space(t, "an operator's", 0, PREFIX_LAYOUT);
	const struct kv_quota quota = {.reserve_dram = 24 * MIB};
	unsigned n = 0, of_a = 0;

	stall(t, 1000);
	while (save_must(t, b, n, 0) == 0)
		n++;
	assert_int_equal(kv_space_set_quota(t->cache, t->space, NULL, &quota),
			 0);
	while (of_a < 50 && tiers_save(t, t->space, of_a, 0) == 0)
		of_a++;
	stall(t, -1000);
	tiers_quiet(t);
	assert_int_equal(tiers_stats(t).dropped_saves, 0);
	assert_true(of_a < 50);
	for (unsigned i = 0; i < n; i++)
		assert_true(tiers_of(t, b, i, 0) & KV_TIER_SSD);
}

/* Blocks that must persist are written to SSD even with writeback=none, and
 * even if their parent is absent. */
static void what_must_persist_is_written_whatever_the_rules_are(void **state)
{
	struct tiers *t = *state;

	kv_cache_close(t->cache);
	t->config.writeback = KV_WRITEBACK_NONE;
	tiers_open(t);
	assert_int_equal(save_must(t, t->space, 0, 5), 0);
	assert_int_equal(tiers_save(t, t->space, 1, 0), 0);
	tiers_quiet(t);
	assert_int_equal(tiers_of(t, t->space, 0, 5),
			 KV_TIER_DRAM | KV_TIER_SSD);
	assert_int_equal(tiers_of(t, t->space, 1, 0), KV_TIER_DRAM);
}

static struct kv_acquire *leases_new(size_t n)
{
	struct kv_acquire *leases;

	leases = calloc(1, sizeof(*leases) + n * sizeof(leases->wants[0]));
	assert_non_null(leases);
	leases->n = n;
	for (size_t i = 0; i < n; i++)
		leases->wants[i].status = -ENOENT;
	return leases;
}

static void what_is_held_is_leased_from_its_seal_on(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *leases = leases_new(2);
	struct kv_block *block;
	struct kv_fill *fill;

	assert_int_equal(tiers_begin(t, t->space, 0, 0, &fill), 0);
	kv_fill_hold(fill, &leases->wants[1]);
	assert_int_equal(tiers_seal(t, fill, 0, 0), 0);
	assert_int_equal(leases->wants[0].status, -ENOENT);
	assert_int_equal(leases->wants[1].status, 0);
	assert_int_equal(tiers_stats(t).leases, 1);
	for (unsigned i = 0; i < 1500; i++)
		tiers_must_save(t, t->space, 1 + i, 0);
	assert_true(tiers_stats(t).evicted_dram > 0);
	assert_true(tiers_of(t, t->space, 0, 0) & KV_TIER_DRAM);
	block = tiers_get(t, t->space, 0, 0);
	assert_int_equal(kv_block_stat(t->cache, block).leases, 1);
	kv_block_put(t->cache, block);
	kv_acquire_release(t->cache, leases);
	assert_int_equal(tiers_stats(t).leases, 0);
	free(leases);
}

static void what_does_not_seal_is_not_held(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *leases = leases_new(1);
	struct kv_fill *fill;

	assert_int_equal(tiers_begin(t, t->space, 0, 0, &fill), 0);
	kv_fill_hold(fill, &leases->wants[0]);
	assert_int_equal(kv_space_clear(t->cache, t->space), 0);
	assert_int_equal(tiers_seal(t, fill, 0, 0), -ESTALE);
	assert_int_equal(leases->wants[0].status, -ENOENT);
	assert_int_equal(tiers_stats(t).leases, 0);
	free(leases);
}

static void there_is_an_end_to_what_may_be_held(void **state)
{
	struct tiers *t = *state;
	struct kv_fill *fills[1000];
	unsigned n = 0;

	while (kv_fill_may_hold(t->cache, t->space, BYTES) == 0 &&
	       tiers_begin(t, t->space, 0, n, &fills[n]) == 0)
		n++;
	assert_int_equal(kv_fill_may_hold(t->cache, t->space, BYTES), -ENOSPC);
	assert_int_equal(kv_fill_may_hold(t->cache, t->space, 9 * MIB), -EFBIG);
	/* Held blocks leave a sixteenth of DRAM to saves. */
	assert_int_equal(tiers_save(t, t->space, 1, 0), 0);
	while (n > 0)
		kv_fill_drop(t->cache, fills[--n]);
	assert_int_equal(kv_fill_may_hold(t->cache, t->space, BYTES), 0);
}

static uint8_t state_of(struct tiers *t, unsigned chain)
{
	struct kv_key key = tiers_key(chain, 0);
	uint8_t state;

	kv_probe(t->cache, t->space, &key, 1, &state);
	return state;
}

static void a_save_that_was_cleared_is_in_nobodys_way(void **state)
{
	struct tiers *t = *state;
	struct kv_fill *old, *new, *third;

	assert_int_equal(tiers_begin(t, t->space, 0, 0, &old), 0);
	assert_int_equal(state_of(t, 0), KV_SAVING);
	assert_int_equal(kv_space_clear(t->cache, t->space), 0);
	assert_int_equal(state_of(t, 0), KV_ABSENT);
	assert_int_equal(tiers_begin(t, t->space, 0, 0, &new), 0);
	assert_int_equal(state_of(t, 0), KV_SAVING);
	assert_int_equal(tiers_begin(t, t->space, 0, 0, &third), -EALREADY);
	assert_int_equal(tiers_seal(t, old, 0, 0), -ESTALE);
	assert_int_equal(state_of(t, 0), KV_SAVING);
	assert_int_equal(tiers_seal(t, new, 0, 0), 0);
	assert_int_equal(state_of(t, 0), KV_DRAM);
	assert_int_equal(tiers_stats(t).saving, 0);
}

static void who_waits_for_it_misses_at_once(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *acquire = leases_new(1);
	struct kv_waiter waiter = KV_WAITER_INIT;
	struct kv_fill *fill;

	assert_int_equal(tiers_begin(t, t->space, 0, 0, &fill), 0);
	acquire->space = t->space;
	acquire->wait_saving = true;
	acquire->done = tiers_wake;
	acquire->arg = &waiter;
	acquire->wants[0].key = tiers_key(0, 0);
	assert_int_equal(kv_acquire_submit(t->cache, acquire), 1);
	assert_int_equal(kv_space_clear(t->cache, t->space), 0);
	kv_waiter_wait(&waiter);
	assert_int_equal(acquire->wants[0].status, -ENOENT);
	kv_acquire_release(t->cache, acquire);
	kv_fill_drop(t->cache, fill);
	free(acquire);
}

/* Pretend that a flush waits for all slots of the space up to @seq. */
static void ask(struct tiers *t, uint64_t seq)
{
	kv_lock(t->cache);
	t->space->asked_seq = seq;
	kv_unlock(t->cache);
}

static void a_block_that_cannot_move_stays_queued(void **state)
{
	struct tiers *t = *state;
	const struct kv_key key = tiers_key(0, 0);
	struct kv_block *block;
	bool queued;

	stall(t, 1000);
	assert_int_equal(tiers_save(t, t->space, 0, 0), 0);
	assert_int_equal(kv_block_get(t->cache, t->space, &key, &block), 0);
	ask(t, UINT64_MAX);
	assert_int_equal(kv_space_chown(t->cache, t->space, 1, 1, 0700), 0);
	ask(t, 0);
	queued = block->flags & BLOCK_QUEUED;
	kv_block_put(t->cache, block);
	stall(t, -1000);
	tiers_quiet(t);
	assert_true(queued);
	assert_true(tiers_of(t, t->space, 0, 0) & KV_TIER_SSD);
}

/* Blocks that come out of order are reported when those before have come. */
static void an_acquire_reports_its_leading_blocks_in_parts(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *acquire = leases_new(4);
	struct kv_waiter waiter = KV_WAITER_INIT;
	struct kv_fill *fills[4];

	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(tiers_begin(t, t->space, 0, i, &fills[i]), 0);
		acquire->wants[i].key = tiers_key(0, i);
	}
	acquire->space = t->space;
	acquire->wait_saving = true;
	acquire->part = 3 * BYTES / 2;
	acquire->done = tiers_wake;
	acquire->arg = &waiter;
	assert_int_equal(kv_acquire_submit(t->cache, acquire), 4);
	assert_int_equal(tiers_seal(t, fills[1], 0, 1), 0);
	assert_false(waiter.done);
	assert_int_equal(tiers_seal(t, fills[0], 0, 0), 0);
	assert_true(waiter.done);
	waiter.done = false;
	assert_int_equal(kv_acquire_take(t->cache, acquire), 2);
	assert_int_equal(tiers_seal(t, fills[2], 0, 2), 0);
	assert_false(waiter.done);
	assert_int_equal(tiers_seal(t, fills[3], 0, 3), 0);
	assert_true(waiter.done);
	assert_int_equal(kv_acquire_take(t->cache, acquire), 4);
	kv_acquire_release(t->cache, acquire);
	free(acquire);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_must_persist_gives_way_to_nobody),
		TEST(what_must_persist_is_written_whatever_the_rules_are),
		TEST(what_is_held_is_leased_from_its_seal_on),
		TEST(what_does_not_seal_is_not_held),
		TEST(there_is_an_end_to_what_may_be_held),
		TEST(a_save_that_was_cleared_is_in_nobodys_way),
		TEST(who_waits_for_it_misses_at_once),
		TEST(a_block_that_cannot_move_stays_queued),
		TEST(an_acquire_reports_its_leading_blocks_in_parts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
