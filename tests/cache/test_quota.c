/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas, reserves and rates; reserves against another user's flood. */
#include "cache/ssd/ssd.h"
#include "tests/cache/tiers.h"

#define MIB (1ull << 20)

static void set_quota(struct tiers *t, struct kv_space *space,
		      struct kv_quota quota)
{
	assert_int_equal(kv_space_set_quota(t->cache, space, NULL, &quota), 0);
}

static void a_quota_of_dram_is_met_by_every_save(void **state)
{
	struct tiers *t = *state;

	set_quota(t, t->space, (struct kv_quota){.quota_dram = 2 * MIB});
	for (unsigned i = 0; i < 100; i++) {
		tiers_must_save(t, t->space, i, 0);
		assert_true(kv_space_stat(t->cache, t->space).bytes_dram <=
			    2 * MIB);
	}
	assert_true(tiers_of(t, t->space, 99, 0) & KV_TIER_DRAM);
	/* The block that was evicted from memory is on SSD. */
	assert_int_equal(tiers_of(t, t->space, 0, 0), KV_TIER_SSD);
}

static void a_quota_below_one_block_refuses_every_save(void **state)
{
	struct tiers *t = *state;

	set_quota(t, t->space, (struct kv_quota){.quota_dram = 4096});
	assert_int_equal(tiers_save(t, t->space, 0, 0), -ENOSPC);
}

static void a_quota_of_ssd_is_never_exceeded(void **state)
{
	struct tiers *t = *state;
	struct kv_space_info info;

	set_quota(t, t->space, (struct kv_quota){.quota_ssd = 2 * MIB});
	for (unsigned i = 0; i < 100; i++) {
		tiers_must_save(t, t->space, i, 0);
		info = kv_space_stat(t->cache, t->space);
		assert_true(info.bytes_ssd <= 2 * MIB);
	}
	tiers_quiet(t);
	info = kv_space_stat(t->cache, t->space);
	assert_true(info.bytes_ssd > MIB && info.bytes_ssd <= 2 * MIB);
	assert_true(tiers_stats(t).evicted_ssd >= 50);
}

static void a_sync_beyond_a_quota_of_pinned_blocks_fails(void **state)
{
	struct tiers *t = *state;
	struct kv_block *block;

	for (unsigned i = 0; i < 10; i++) {
		tiers_must_save(t, t->space, i, 0);
		block = tiers_get(t, t->space, i, 0);
		assert_int_equal(kv_block_sync(t->cache, block), 0);
		assert_int_equal(kv_block_pin(t->cache, block, true), 0);
		kv_block_put(t->cache, block);
	}
	set_quota(t, t->space, (struct kv_quota){.quota_ssd = MIB});
	tiers_must_save(t, t->space, 10, 0);
	block = tiers_get(t, t->space, 10, 0);
	assert_int_equal(kv_block_sync(t->cache, block), -ENOSPC);
	kv_block_put(t->cache, block);
	assert_int_equal(kv_space_sync(t->cache, t->space), -ENOSPC);
	assert_true(tiers_stats(t).unwritten_quota >= 2);
	assert_false(tiers_stats(t).ssd_degraded);
}

/* Wait until blocks 0 and 1 of @chain are on SSD. */
static void await_ssd(struct tiers *t, unsigned chain)
{
	for (unsigned ms = 0; ms < 20000; ms++) {
		if ((tiers_of(t, t->space, chain, 0) & KV_TIER_SSD) &&
		    (tiers_of(t, t->space, chain, 1) & KV_TIER_SSD))
			return;
		usleep(1000);
	}
	fail_msg("chain %u is not on SSD", chain);
}

static void save_refused(struct tiers *t, unsigned chain)
{
	for (unsigned i = 0; i < 2; i++)
		tiers_must_save(t, t->space, chain, i);
	tiers_quiet(t);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(tiers_of(t, t->space, chain, i), KV_TIER_DRAM);
}

static void refused_blocks_are_written_under_a_larger_quota(void **state)
{
	struct tiers *t = *state;
	const struct kv_quota small = {.quota_ssd = 4096}, none = {0};

	set_quota(t, t->space, small);
	save_refused(t, 0);
	save_refused(t, 1);
	set_quota(t, t->space, none);
	await_ssd(t, 0);
	await_ssd(t, 1);
	/* The same for the quota of a user. */
	assert_int_equal(kv_tenant_set_quota(t->cache, 1, NULL, &small), 0);
	save_refused(t, 2);
	assert_int_equal(kv_tenant_set_quota(t->cache, 1, NULL, &none), 0);
	await_ssd(t, 2);
}

static void refused_blocks_are_written_once_there_is_room(void **state)
{
	struct tiers *t = *state;
	struct kv_block *blocks[12];
	uint64_t refused;

	for (unsigned i = 0; i < 12; i++) {
		tiers_must_save(t, t->space, i, 0);
		blocks[i] = tiers_get(t, t->space, i, 0);
		assert_int_equal(kv_block_sync(t->cache, blocks[i]), 0);
		assert_int_equal(kv_block_pin(t->cache, blocks[i], true), 0);
	}
	set_quota(t, t->space, (struct kv_quota){.quota_ssd = MIB});
	save_refused(t, 20);
	refused = tiers_stats(t).unwritten_quota;
	/* Nothing is tried while there is no room. */
	usleep(2500000);
	assert_int_equal(tiers_stats(t).unwritten_quota, refused);
	for (unsigned i = 0; i < 12; i++) {
		if (i < 6)
			kv_block_remove(t->cache, blocks[i]);
		kv_block_put(t->cache, blocks[i]);
	}
	await_ssd(t, 20);
}

static void a_smaller_quota_is_met_soon(void **state)
{
	struct tiers *t = *state;
	struct kv_space_info info;

	for (unsigned i = 0; i < 100; i++)
		tiers_must_save(t, t->space, i, 0);
	tiers_quiet(t);
	set_quota(t, t->space,
		  (struct kv_quota){.quota_dram = MIB, .quota_ssd = 2 * MIB});
	do {
		usleep(1000);
		info = kv_space_stat(t->cache, t->space);
	} while (info.bytes_dram > MIB || info.bytes_ssd > 2 * MIB);
	assert_true(info.blocks > 0);
}

static void reserves_cannot_exceed_the_tier(void **state)
{
	struct tiers *t = *state;
	struct kv_space *b = tiers_space(t, "b", 2, NULL);
	struct kv_quota quota = {.reserve_dram = 40 * MIB};

	set_quota(t, t->space, quota);
	assert_int_equal(kv_space_set_quota(t->cache, b, NULL, &quota),
			 -ENOSPC);
	quota.reserve_dram = 24 * MIB;
	set_quota(t, b, quota);
	quota = (struct kv_quota){.reserve_ssd = 1ull << 62};
	assert_int_equal(kv_space_set_quota(t->cache, b, NULL, &quota),
			 -ENOSPC);
	/* After a mount with less memory, each reserve is scaled down; its user
	 * can then lower the reserve. */
	t->config.dram = 32 * MIB;
	tiers_reopen(t);
	b = tiers_space(t, "b", 2, NULL);
	assert_int_equal(kv_space_stat(t->cache, b).quota.reserve_dram,
			 24 * MIB);
	assert_int_equal(b->in[DRAM].guaranteed, 12 * MIB);
	assert_int_equal(t->space->in[DRAM].guaranteed, 20 * MIB);
	quota = (struct kv_quota){.reserve_dram = 10 * MIB};
	set_quota(t, b, quota);
}

static void a_quota_that_was_changed_meanwhile_is_not_set(void **state)
{
	struct tiers *t = *state;
	const struct kv_quota none = {0}, small = {.quota_ssd = MIB},
			      hour = {.ttl = 3600};

	set_quota(t, t->space, small);
	assert_int_equal(kv_space_set_quota(t->cache, t->space, &none, &hour),
			 -EAGAIN);
	assert_int_equal(kv_space_stat(t->cache, t->space).quota.ttl, 0);
	assert_int_equal(kv_space_set_quota(t->cache, t->space, &small, &hour),
			 0);
	assert_int_equal(kv_tenant_set_quota(t->cache, 1, &hour, &small),
			 -EAGAIN);
	assert_int_equal(kv_tenant_set_quota(t->cache, 1, &none, &small), 0);
}

static void all_of_them_persist(void **state)
{
	struct tiers *t = *state;
	const struct kv_quota quota = {1 * MIB, 2 * MIB, 3 * MIB, 4 * MIB,
				       5 * MIB};
	struct kv_space_info info;

	set_quota(t, t->space, quota);
	tiers_reopen(t);
	info = kv_space_stat(t->cache, t->space);
	assert_memory_equal(&info.quota, &quota, sizeof(quota));
}

static void saves_beyond_the_rate_are_refused(void **state)
{
	struct tiers *t = *state;
	unsigned n = 0;
	int r;

	set_quota(t, t->space, (struct kv_quota){.rate_put = 500000});
	while ((r = tiers_save(t, t->space, n, 0)) == 0)
		n++;
	assert_int_equal(r, -EAGAIN);
	assert_true(n >= 5);
	assert_int_equal(tiers_stats(t).refused_rate, 1);
	/* A save that the rate limit refuses succeeds later; saves to other
	 * spaces succeed at once. */
	assert_int_equal(tiers_save(t, tiers_space(t, "b", 1, NULL), 0, 0), 0);
	while ((r = tiers_save(t, t->space, n, 0)) == -EAGAIN)
		usleep(10000);
	assert_int_equal(r, 0);
}

static void a_change_of_limits_does_not_pay_for_saves(void **state)
{
	struct tiers *t = *state;
	struct kv_quota quota = {.rate_put = 1000};

	/* Debt of saves without a rate does not count. */
	for (unsigned i = 0; i < 10; i++)
		tiers_must_save(t, t->space, i, 0);
	set_quota(t, t->space, quota);
	assert_int_equal(tiers_save(t, t->space, 10, 0), 0);
	assert_int_equal(tiers_save(t, t->space, 11, 0), -EAGAIN);
	quota.ttl = 3600;
	set_quota(t, t->space, quota);
	assert_int_equal(tiers_save(t, t->space, 11, 0), -EAGAIN);
	/* An owner may lower the rate. */
	quota.rate_put = 999;
	set_quota(t, t->space, quota);
	assert_int_equal(tiers_save(t, t->space, 11, 0), -EAGAIN);
	quota.reserve_dram = UINT64_C(1) << 40;
	assert_int_equal(kv_space_set_quota(t->cache, t->space, NULL, &quota),
			 -ENOSPC);
	assert_int_equal(tiers_save(t, t->space, 11, 0), -EAGAIN);
}

static void what_was_not_sealed_costs_no_rate(void **state)
{
	struct tiers *t = *state;
	struct kv_fill *fill;

	set_quota(t, t->space, (struct kv_quota){.rate_put = 100000});
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(tiers_begin(t, t->space, i, 0, &fill), 0);
		kv_fill_drop(t->cache, fill);
	}
}

/* ---- reserves against the flood of another user ---- */

#define WORK 24 /* number of chains of user A, each of DEPTH blocks */
#define DEPTH 16
#define FLOOD 40 /* number of blocks that user B saves between two uses by A */

static void flood(struct tiers *t, struct kv_space *b, unsigned *n)
{
	for (unsigned i = 0; i < FLOOD; i++)
		tiers_must_save(t, b, 1000 + (*n)++, 0);
}

/* Return how many blocks are hit when A uses its working set @rounds times.
 * @b: space of the user who floods the cache meanwhile; NULL: no flood. */
static unsigned replay(struct tiers *t, struct kv_space *b, unsigned rounds)
{
	unsigned hits = 0, n = 0;

	/* Let user B fill the cache before A saves. */
	for (unsigned i = 0; b && i < 40; i++)
		flood(t, b, &n);
	for (unsigned chain = 0; chain < WORK; chain++)
		for (unsigned i = 0; i < DEPTH; i++)
			tiers_must_save(t, t->space, chain, i);
	if (t->cache->ssd.on)
		tiers_quiet(t);
	for (unsigned i = 0; i < rounds * WORK; i++) {
		unsigned chain = i % WORK;

		if (b)
			flood(t, b, &n);
		hits += tiers_use(t, t->space, chain, DEPTH);
		for (unsigned j = 0; j < DEPTH; j++)
			if (!tiers_of(t, t->space, chain, j))
				(void)tiers_save(t, t->space, chain, j);
	}
	return hits;
}

static unsigned asked(unsigned rounds)
{
	return rounds * WORK * DEPTH;
}

static void in_peace_everything_is_a_hit(void **state)
{
	assert_int_equal(replay(*state, NULL, 3), asked(3));
}

static void a_flood_costs_a_reserve_in_dram_no_hits(void **state)
{
	struct tiers *t = *state;
	struct kv_space *b;

	tiers_without_ssd(t);
	b = tiers_space(t, "b", 2, PREFIX_LAYOUT);
	set_quota(t, t->space, (struct kv_quota){.reserve_dram = 46 * MIB});
	assert_true(replay(t, b, 4) >= asked(4) * 98 / 100);
}

static void nor_does_one_by_another_space_of_the_same_user(void **state)
{
	struct tiers *t = *state;
	struct kv_space *c;

	tiers_without_ssd(t);
	c = tiers_space(t, "c", 1, PREFIX_LAYOUT);
	set_quota(t, t->space, (struct kv_quota){.reserve_dram = 46 * MIB});
	assert_true(replay(t, c, 4) >= asked(4) * 98 / 100);
}

static void without_a_reserve_it_costs_many(void **state)
{
	struct tiers *t = *state;
	struct kv_space *b;

	tiers_without_ssd(t);
	b = tiers_space(t, "b", 2, PREFIX_LAYOUT);
	assert_true(replay(t, b, 4) < asked(4) * 90 / 100);
}

/* Replay with a small quota in DRAM for B's space, so that hits of A come from
 * SSD. */
static unsigned replay_from_ssd(struct tiers *t, struct kv_space *b)
{
	set_quota(t, b, (struct kv_quota){.quota_dram = 8 * MIB});
	return replay(t, b, 3);
}

static void a_flood_costs_a_reserve_on_ssd_no_hits(void **state)
{
	struct tiers *t = *state;
	struct kv_space *b = tiers_space(t, "b", 2, PREFIX_LAYOUT);

	set_quota(t, t->space,
		  (struct kv_quota){.quota_dram = 4 * MIB,
				    .reserve_dram = 4 * MIB,
				    .reserve_ssd = 46 * MIB});
	assert_true(replay_from_ssd(t, b) >= asked(3) * 98 / 100);
}

static void without_one_it_costs_many_there_too(void **state)
{
	struct tiers *t = *state;
	struct kv_space *b = tiers_space(t, "b", 2, PREFIX_LAYOUT);

	set_quota(t, t->space,
		  (struct kv_quota){.quota_dram = 4 * MIB,
				    .reserve_dram = 4 * MIB});
	assert_true(replay_from_ssd(t, b) < asked(3) * 90 / 100);
}

static void writes_of_two_users_take_turns(void **state)
{
	struct tiers *t = *state;
	/* The hash of this uid falls into the same bucket as that of A's
	 * uid. */
	struct kv_space *b = tiers_space(t, "b", 65, PREFIX_LAYOUT);
	struct kv_ssd *ssd = &t->cache->ssd;
	struct kv_turn *turn;
	unsigned first_of_a = 0;
	bool turn_of_a;
	uint64_t bytes;

	/* Save blocks while the writer is stalled, and see whose block it would
	 * write next. */
	for (unsigned i = 0; i < 300; i++)
		assert_int_equal(tiers_save(t, b, i, 0), 0);
	tiers_quiet(t);
	kv_lock(t->cache);
	ssd->writing += 1000; /* the writer begins no more writes */
	kv_unlock(t->cache);
	for (unsigned i = 300; i < 500; i++)
		assert_int_equal(tiers_save(t, b, i, 0), 0);
	assert_int_equal(tiers_save(t, t->space, 0, 0), 0);
	kv_lock(t->cache);
	bytes = TAILQ_FIRST(&t->space->queue)->segment->class->slot_bytes;
	while ((turn = kv_turns_next(&ssd->write_queues)) && turn->uid == 65 &&
	       first_of_a++ < 500)
		kv_turn_charge(turn, bytes);
	turn_of_a = turn && turn->uid == t->space->uid;
	ssd->writing -= 1000;
	pthread_cond_signal(&ssd->write);
	kv_unlock(t->cache);
	assert_true(turn_of_a);
	/* a user's turn at the writer is 8 MiB: A's first block is written
	 * after at most two turns */
	assert_true(first_of_a < 170);
	tiers_quiet(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_quota_of_dram_is_met_by_every_save),
		TEST(a_quota_below_one_block_refuses_every_save),
		TEST(a_quota_of_ssd_is_never_exceeded),
		TEST(a_sync_beyond_a_quota_of_pinned_blocks_fails),
		TEST(refused_blocks_are_written_under_a_larger_quota),
		TEST(refused_blocks_are_written_once_there_is_room),
		TEST(a_smaller_quota_is_met_soon),
		TEST(reserves_cannot_exceed_the_tier),
		TEST(a_quota_that_was_changed_meanwhile_is_not_set),
		TEST(all_of_them_persist),
		TEST(saves_beyond_the_rate_are_refused),
		TEST(a_change_of_limits_does_not_pay_for_saves),
		TEST(what_was_not_sealed_costs_no_rate),
		TEST(in_peace_everything_is_a_hit),
		TEST(a_flood_costs_a_reserve_in_dram_no_hits),
		TEST(nor_does_one_by_another_space_of_the_same_user),
		TEST(without_a_reserve_it_costs_many),
		TEST(a_flood_costs_a_reserve_on_ssd_no_hits),
		TEST(without_one_it_costs_many_there_too),
		TEST(writes_of_two_users_take_turns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
