/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that are read from SSD to DRAM on a client's hint. */
#include "tests/cache/tiers.h"

#define MIB (1ull << 20)

static void wake(struct kv_acquire *hint, void *arg)
{
	(void)hint;
	kv_waiter_wake(arg);
}

struct hint {
	struct kv_waiter waiter;
	/* must be the last field, because the wants of the acquire follow it in
	 * memory */
	struct kv_acquire fetch;
};

static struct hint *hint_new(struct tiers *t, unsigned chain, unsigned n)
{
	struct hint *hint =
		calloc(1, sizeof(*hint) + n * sizeof(struct kv_want));

	hint->waiter = (struct kv_waiter)KV_WAITER_INIT;
	for (unsigned i = 0; i < n; i++)
		hint->fetch.wants[i].key = tiers_key(chain, i);
	hint->fetch.space = t->space;
	hint->fetch.n = n;
	hint->fetch.hint = true;
	hint->fetch.done = wake;
	hint->fetch.arg = &hint->waiter;
	return hint;
}

static int status_of(const struct hint *hint, unsigned i)
{
	return hint->fetch.wants[i].status;
}

/* Save @n blocks of @chain, and keep them on SSD alone. */
static void on_ssd(struct tiers *t, unsigned chain, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		tiers_must_save(t, t->space, chain, i);
	tiers_quiet(t);
	tiers_demote(t, t->space, chain, n);
}

static void begin(struct tiers *t, struct hint *hint)
{
	if (kv_acquire_submit(t->cache, &hint->fetch) == 0)
		kv_waiter_wake(&hint->waiter);
}

static void go(struct tiers *t, struct hint *hint)
{
	begin(t, hint);
	kv_waiter_wait(&hint->waiter);
}

static void it_brings_a_chain_to_dram_and_holds_nothing(void **state)
{
	struct tiers *t = *state;
	struct hint *hint = hint_new(t, 0, 101);

	on_ssd(t, 0, 100);
	go(t, hint);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(status_of(hint, i), 0);
		assert_int_equal(tiers_of(t, t->space, 0, i),
				 KV_TIER_DRAM | KV_TIER_SSD);
	}
	assert_int_equal(status_of(hint, 100), -ENOENT);
	assert_true(tiers_stats(t).prefetched >= 100ull * BYTES);
	assert_int_equal(tiers_stats(t).leases, 0);
	/* A hint counts neither as a use nor as a hit. */
	assert_int_equal(tiers_stats(t).lookups.hits_ssd, 0);
	free(hint);
}

static void what_is_there_costs_nothing(void **state)
{
	struct tiers *t = *state;
	struct hint *hint = hint_new(t, 0, 10);

	for (unsigned i = 0; i < 10; i++)
		tiers_must_save(t, t->space, 0, i);
	go(t, hint);
	assert_int_equal(status_of(hint, 9), 0);
	assert_int_equal(tiers_stats(t).prefetched, 0);
	free(hint);
}

static void what_is_used_of_a_prefetch_and_what_is_not_is_counted(void **state)
{
	struct tiers *t = *state;
	struct hint *hint = hint_new(t, 0, 20);
	struct kv_cache_stats s;

	on_ssd(t, 0, 20);
	go(t, hint);
	s = tiers_stats(t);
	assert_true(s.prefetched >= 20ull * BYTES);
	assert_int_equal(s.prefetch_used + s.prefetch_unused, 0);
	assert_int_equal(tiers_use(t, t->space, 0, 5), 5);
	assert_int_equal(tiers_use(t, t->space, 0, 5), 5);
	assert_int_equal(tiers_stats(t).prefetch_used, s.prefetched / 4);
	tiers_demote(t, t->space, 0, 20);
	s = tiers_stats(t);
	assert_int_equal(s.prefetch_unused, s.prefetched / 4 * 3);
	assert_int_equal(t->cache->arena.hinted, 0);
	free(hint);
}

static void nothing_is_prefetched_without_a_hint(void **state)
{
	struct tiers *t = *state;

	on_ssd(t, 0, 20);
	assert_int_equal(tiers_use(t, t->space, 0, 5), 5);
	usleep(50000);
	assert_int_equal(tiers_of(t, t->space, 0, 5), KV_TIER_SSD);
	assert_int_equal(tiers_stats(t).prefetched, 0);
}

static void hints_do_not_fill_more_than_half_of_the_arena(void **state)
{
	struct tiers *t = *state;
	struct hint *hint = hint_new(t, 0, 500);

	on_ssd(t, 0, 500);
	go(t, hint);
	assert_int_equal(status_of(hint, 0), 0);
	assert_int_equal(status_of(hint, 499), -ENOSPC);
	assert_true(t->cache->arena.hinted <= 32 * MIB);
	assert_true(t->cache->arena.hinted > 24 * MIB);
	free(hint);
}

static void all_together_keep_within_the_budget(void **state)
{
	struct tiers *t = *state;
	struct hint *hint[4];
	uint64_t most = 0, left;

	for (unsigned i = 0; i < 4; i++) {
		on_ssd(t, i, 60);
		hint[i] = hint_new(t, i, 60);
	}
	for (unsigned i = 0; i < 4; i++)
		begin(t, hint[i]);
	do {
		kv_lock(t->cache);
		most = KV_MAX(most, t->cache->hint_reads);
		left = 0;
		for (unsigned i = 0; i < 4; i++)
			left += hint[i]->fetch.pending;
		kv_unlock(t->cache);
	} while (left);
	for (unsigned i = 0; i < 4; i++) {
		kv_waiter_wait(&hint[i]->waiter);
		assert_int_equal(status_of(hint[i], 59), 0);
		free(hint[i]);
	}
	assert_true(most > 0 && most <= 4 * MIB);
}

static void one_that_is_cancelled_ends(void **state)
{
	struct tiers *t = *state;
	struct hint *hint = hint_new(t, 0, 300);

	on_ssd(t, 0, 300);
	begin(t, hint);
	kv_acquire_cancel(t->cache, &hint->fetch, -ECANCELED);
	kv_waiter_wait(&hint->waiter);
	for (unsigned i = 0; i < 300; i++)
		assert_true(status_of(hint, i) == 0 ||
			    status_of(hint, i) == -ECANCELED);
	assert_int_equal(status_of(hint, 299), -ECANCELED);
	assert_int_equal(t->cache->hint_reads, 0);
	free(hint);
}

static void a_block_wanted_during_its_prefetch_is_charged_once(void **state)
{
	struct tiers *t = *state;
	struct hint *hint = hint_new(t, 0, 100);
	struct kv_acquire *acquire;
	struct kv_cache_stats s;

	on_ssd(t, 0, 100);
	begin(t, hint);
	acquire = tiers_acquire(t, t->space, 0, 100);
	kv_waiter_wait(&hint->waiter);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(acquire->wants[i].status, 0);
	s = tiers_stats(t);
	assert_int_equal(s.dram_blocks, 100);
	assert_true(s.bytes_read_ssd < 101ull * (BYTES + 2 * 4096));
	tiers_release(t, acquire);
	assert_int_equal(tiers_stats(t).prefetch_used,
			 tiers_stats(t).prefetched);
	free(hint);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(it_brings_a_chain_to_dram_and_holds_nothing),
		TEST(what_is_there_costs_nothing),
		TEST(what_is_used_of_a_prefetch_and_what_is_not_is_counted),
		TEST(nothing_is_prefetched_without_a_hint),
		TEST(hints_do_not_fill_more_than_half_of_the_arena),
		TEST(all_together_keep_within_the_budget),
		TEST(one_that_is_cancelled_ends),
		TEST(a_block_wanted_during_its_prefetch_is_charged_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
