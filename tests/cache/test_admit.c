/* SPDX-License-Identifier: Apache-2.0 */
/* Which blocks the writer writes to SSD although no client asks for it, in
 * which order, and which of them stay on SSD. */
#include "tests/cache/tiers.h"
#include "tests/cache/alone.h"

#define MIB (1ull << 20)

static void a_chain_goes_to_ssd_whole(void **state)
{
	struct tiers *t = *state;

	for (unsigned i = 0; i < 50; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	for (unsigned i = 0; i < 50; i++)
		assert_int_equal(tiers_of(t, t->space, 0, i),
				 KV_TIER_DRAM | KV_TIER_SSD);
	assert_int_equal(tiers_stats(t).unwritten_orphans, 0);
}

static void a_child_whose_parent_is_nowhere_stays_in_dram(void **state)
{
	struct tiers *t = *state;

	for (unsigned i = 5; i < 10; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	for (unsigned i = 5; i < 10; i++)
		assert_int_equal(tiers_of(t, t->space, 0, i), KV_TIER_DRAM);
	assert_int_equal(tiers_stats(t).unwritten_orphans, 5);
	/* A sync makes orphans (blocks whose parent is absent) durable. */
	assert_int_equal(kv_space_sync(t->cache, t->space), 0);
	assert_int_equal(tiers_of(t, t->space, 0, 7),
			 KV_TIER_DRAM | KV_TIER_SSD);
}

static void a_child_waits_for_the_parent_that_is_being_saved(void **state)
{
	struct tiers *t = *state;
	struct kv_fill *parent;

	assert_int_equal(tiers_begin(t, t->space, 0, 0, &parent), 0);
	for (unsigned i = 1; i < 4; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	assert_int_equal(tiers_of(t, t->space, 0, 1), KV_TIER_DRAM);
	assert_int_equal(tiers_seal(t, parent, 0, 0), 0);
	tiers_quiet(t);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(tiers_of(t, t->space, 0, i),
				 KV_TIER_DRAM | KV_TIER_SSD);
}

static void if_that_save_fails_the_child_is_not_written(void **state)
{
	struct tiers *t = *state;
	struct kv_fill *parent;

	assert_int_equal(tiers_begin(t, t->space, 0, 0, &parent), 0);
	tiers_must_save(t, t->space, 0, 1);
	tiers_quiet(t);
	kv_fill_drop(t->cache, parent);
	tiers_quiet(t);
	assert_int_equal(tiers_of(t, t->space, 0, 1), KV_TIER_DRAM);
	assert_int_equal(tiers_stats(t).unwritten_orphans, 1);
}

/* Reserve @n blocks of a chain, and then seal them in the order that @order
 * lists. */
static void sealed_in_order(struct tiers *t, const unsigned *order, unsigned n)
{
	struct kv_fill *fills[24];

	for (unsigned i = 0; i < n; i++)
		assert_int_equal(tiers_begin(t, t->space, 0, i, &fills[i]), 0);
	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(tiers_seal(t, fills[order[i]], 0, order[i]),
				 0);
		/* Give the writer time to run between some of the seals. */
		usleep(i % 3 * 1000);
	}
	tiers_quiet(t);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(tiers_of(t, t->space, 0, i),
				 KV_TIER_DRAM | KV_TIER_SSD);
}

static void a_chain_that_seals_from_its_tail_goes_to_ssd_whole(void **state)
{
	unsigned order[24];

	for (unsigned i = 0; i < KV_ARRAY_LEN(order); i++)
		order[i] = 23 - i;
	sealed_in_order(*state, order, KV_ARRAY_LEN(order));
}

static void a_chain_that_seals_in_any_order_goes_to_ssd_whole(void **state)
{
	unsigned order[24];

	for (unsigned i = 0; i < KV_ARRAY_LEN(order); i++)
		order[i] = i * 7 % KV_ARRAY_LEN(order);
	sealed_in_order(*state, order, KV_ARRAY_LEN(order));
}

static void a_suffix_follows_a_head_that_comes_in_a_later_call(void **state)
{
	struct tiers *t = *state;

	for (unsigned i = 5; i < 10; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	for (unsigned i = 0; i < 5; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(tiers_of(t, t->space, 0, i),
				 KV_TIER_DRAM | KV_TIER_SSD);
}

static void what_follows_a_parent_that_failed_waits_for_the_next(void **state)
{
	struct tiers *t = *state;
	struct kv_fill *parent;

	tiers_must_save(t, t->space, 0, 0);
	assert_int_equal(tiers_begin(t, t->space, 0, 1, &parent), 0);
	for (unsigned i = 2; i < 8; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	kv_fill_drop(t->cache, parent);
	tiers_quiet(t);
	assert_int_equal(tiers_of(t, t->space, 0, 0),
			 KV_TIER_DRAM | KV_TIER_SSD);
	for (unsigned i = 2; i < 8; i++)
		assert_int_equal(tiers_of(t, t->space, 0, i), KV_TIER_DRAM);
	tiers_must_save(t, t->space, 0, 1);
	tiers_quiet(t);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(tiers_of(t, t->space, 0, i),
				 KV_TIER_DRAM | KV_TIER_SSD);
}

static void many_children_of_one_parent_follow_it(void **state)
{
	struct tiers *t = *state;
	struct kv_key key = tiers_key(0, 0);
	struct kv_digest digest = {{1}};

	for (unsigned i = 1; i < 300; i++) {
		struct kv_key own = tiers_key(i, 1);
		struct kv_meta meta = {.parent = key, .position = 1};
		struct kv_fill *fill;

		assert_int_equal(tiers_begin(t, t->space, i, 1, &fill), 0);
		assert_int_equal(kv_fill_seal(t->cache, fill, &own, &meta, 4096,
					      &digest),
				 0);
	}
	tiers_quiet(t);
	tiers_must_save(t, t->space, 0, 0);
	tiers_quiet(t);
	for (unsigned i = 1; i < 300; i++)
		assert_int_equal(tiers_of(t, t->space, i, 1),
				 KV_TIER_DRAM | KV_TIER_SSD);
}

/* A child without its parent is an orphan, which must not be written once it is
 * removed. */
static void
a_child_that_is_removed_while_leased_is_waited_for_by_nobody(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *acquire;
	struct kv_fill *parent;
	struct kv_block *block;
	struct kv_key key = tiers_key(0, 1);

	for (int drop = 0; drop < 2; drop++) {
		assert_int_equal(tiers_begin(t, t->space, 0, 0, &parent), 0);
		tiers_must_save(t, t->space, 0, 1);
		tiers_quiet(t);
		acquire = calloc(1, sizeof(*acquire) + sizeof(struct kv_want));
		acquire->space = t->space;
		acquire->n = 1;
		acquire->wants[0].key = key;
		assert_int_equal(kv_acquire_submit(t->cache, acquire), 0);
		kv_acquire_touch(t->cache, acquire);
		assert_int_equal(acquire->wants[0].status, 0);
		tiers_quiet(t);
		block = tiers_get(t, t->space, 0, 1);
		assert_int_equal(kv_block_remove(t->cache, block), 0);
		kv_block_put(t->cache, block);
		alarm(30);
		if (drop)
			kv_fill_drop(t->cache, parent);
		else
			assert_int_equal(tiers_seal(t, parent, 0, 0), 0);
		alarm(0);
		tiers_release(t, acquire);
		assert_int_equal(tiers_of(t, t->space, 0, 1), 0);
		block = tiers_get(t, t->space, 0, 0);
		if (block) {
			kv_block_remove(t->cache, block);
			kv_block_put(t->cache, block);
		}
	}
}

static void a_child_that_waits_is_written_when_asked_for(void **state)
{
	struct tiers *t = *state;
	struct kv_fill *parent;

	assert_int_equal(tiers_begin(t, t->space, 0, 0, &parent), 0);
	tiers_must_save(t, t->space, 0, 1);
	tiers_quiet(t);
	assert_int_equal(kv_space_sync(t->cache, t->space), 0);
	assert_int_equal(tiers_of(t, t->space, 0, 1),
			 KV_TIER_DRAM | KV_TIER_SSD);
	kv_fill_drop(t->cache, parent);
}

static void a_child_that_waits_may_be_removed(void **state)
{
	struct tiers *t = *state;
	struct kv_fill *parent;
	struct kv_block *block;

	assert_int_equal(tiers_begin(t, t->space, 0, 0, &parent), 0);
	tiers_must_save(t, t->space, 0, 1);
	tiers_quiet(t);
	block = tiers_get(t, t->space, 0, 1);
	assert_int_equal(kv_block_remove(t->cache, block), 0);
	kv_block_put(t->cache, block);
	assert_int_equal(tiers_seal(t, parent, 0, 0), 0);
}

static void blocks_of_window_spaces_stand_alone(void **state)
{
	struct tiers *t = *state;
	struct kv_space *w = tiers_space(t, "w", 1, WINDOW_LAYOUT);
	struct kv_space *u = tiers_space(t, "u", 1, NULL);

	tiers_must_save(t, w, 0, 7);
	tiers_must_save(t, u, 0, 7);
	tiers_quiet(t);
	assert_int_equal(tiers_of(t, w, 0, 7), KV_TIER_DRAM | KV_TIER_SSD);
	assert_int_equal(tiers_of(t, u, 0, 7), KV_TIER_DRAM | KV_TIER_SSD);
}

static void blocks_that_come_as_files_need_no_order(void **state)
{
	struct tiers *t = *state;
	struct kv_fill *fill;

	assert_int_equal(begin_alone(t->cache, t->space, BYTES, &fill), 0);
	assert_int_equal(tiers_seal(t, fill, 0, 3), 0);
	tiers_quiet(t);
	assert_int_equal(tiers_of(t, t->space, 0, 3),
			 KV_TIER_DRAM | KV_TIER_SSD);
}

static void with_reuse_a_used_chain_goes_whole(void **state)
{
	struct tiers *t = *state;

	kv_cache_close(t->cache);
	t->config.writeback = KV_WRITEBACK_REUSE;
	tiers_open(t);
	for (unsigned i = 0; i < 20; i++) {
		tiers_must_save(t, t->space, 0, i);
		tiers_must_save(t, t->space, 1, i);
	}
	tiers_quiet(t);
	assert_int_equal(tiers_stats(t).bytes_written_ssd, 0);
	/* A use of a chain touches its blocks from tail to head, but the head
	 * is written first. */
	assert_int_equal(tiers_use(t, t->space, 0, 12), 12);
	tiers_quiet(t);
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(tiers_of(t, t->space, 0, i),
				 KV_TIER_DRAM | (i < 12 ? KV_TIER_SSD : 0));
		assert_int_equal(tiers_of(t, t->space, 1, i), KV_TIER_DRAM);
	}
}

/* Two blocks are each other's parents: only a faulty client makes such
 * blocks. */
static void a_circle_of_parents_ends(void **state)
{
	struct tiers *t = *state;
	struct kv_fill *fill[2];

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(tiers_begin(t, t->space, 0, i + 1, &fill[i]),
				 0);
	for (unsigned i = 0; i < 2; i++) {
		struct kv_key key = tiers_key(0, i + 1);
		struct kv_meta meta = {.parent = tiers_key(0, 2 - i),
				       .position = i + 1};
		struct kv_digest digest = {{1}};

		assert_int_equal(kv_fill_seal(t->cache, fill[i], &key, &meta,
					      4096, &digest),
				 0);
	}
	tiers_quiet(t);
}

static void a_block_that_is_on_ssd_is_not_written_again(void **state)
{
	struct tiers *t = *state;
	uint64_t written;

	for (unsigned i = 0; i < 20; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	written = tiers_stats(t).bytes_written_ssd;
	for (unsigned round = 0; round < 3; round++) {
		tiers_demote(t, t->space, 0, 20);
		assert_int_equal(tiers_use(t, t->space, 0, 20), 20);
		assert_int_equal(tiers_of(t, t->space, 0, 5),
				 KV_TIER_DRAM | KV_TIER_SSD);
	}
	assert_int_equal(kv_space_sync(t->cache, t->space), 0);
	assert_int_equal(tiers_stats(t).bytes_written_ssd, written);
}

/* ---- the budget for writes to SSD (ssd_write=) ---- */

static void with_budget(struct tiers *t, uint64_t bytes)
{
	kv_cache_close(t->cache);
	t->config.ssd_write = bytes;
	tiers_open(t);
}

static void a_burst_gets_a_part_of_the_budget(void **state)
{
	struct tiers *t = *state;
	uint64_t on_ssd = 0;
	bool ended = false;

	with_budget(t, 16 * MIB);
	for (unsigned i = 0; i < 100; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	/* If a block of a chain is on SSD, so are all blocks before it. */
	for (unsigned i = 0; i < 100; i++) {
		bool is = tiers_of(t, t->space, 0, i) & KV_TIER_SSD;

		assert_false(is && ended);
		ended |= !is;
		on_ssd += is;
	}
	/* 2 MiB are written, half of the burst that ssd_write= allows */
	assert_true(on_ssd >= 15 && on_ssd <= 20);
	assert_true(tiers_stats(t).unwritten_budget > 0);
}

static void what_is_left_is_for_chains_that_are_used_again(void **state)
{
	struct tiers *t = *state;

	with_budget(t, 16 * MIB);
	for (unsigned i = 0; i < 40; i++)
		tiers_must_save(t, t->space, 0, i);
	for (unsigned i = 0; i < 5; i++)
		tiers_must_save(t, t->space, 1, i);
	tiers_quiet(t);
	assert_int_equal(tiers_of(t, t->space, 1, 0), KV_TIER_DRAM);
	assert_int_equal(tiers_use(t, t->space, 1, 5), 5);
	tiers_quiet(t);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(tiers_of(t, t->space, 1, i),
				 KV_TIER_DRAM | KV_TIER_SSD);
	/* A new block at the end of a chain that was used is also written. */
	tiers_must_save(t, t->space, 1, 5);
	tiers_quiet(t);
	assert_int_equal(tiers_of(t, t->space, 1, 5),
			 KV_TIER_DRAM | KV_TIER_SSD);
}

static void beyond_it_a_sync_still_writes(void **state)
{
	struct tiers *t = *state;
	struct kv_block *block;

	with_budget(t, 65536);
	tiers_must_save(t, t->space, 0, 0);
	tiers_quiet(t);
	assert_int_equal(tiers_of(t, t->space, 0, 0), KV_TIER_DRAM);
	block = tiers_get(t, t->space, 0, 0);
	assert_int_equal(kv_block_sync(t->cache, block), 0);
	kv_block_put(t->cache, block);
}

static void it_flows_in_all_day(void **state)
{
	struct tiers *t = *state;

	with_budget(t, 64 * MIB);
	for (unsigned i = 0; i < 150; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	assert_int_equal(tiers_of(t, t->space, 0, 149), KV_TIER_DRAM);
	kv_lock(t->cache);
	t->cache->ssd.ssd_write.ns -= 4ull * 3600 * 1000000000u;
	kv_unlock(t->cache);
	tiers_must_save(t, t->space, 1, 0);
	tiers_quiet(t);
	assert_int_equal(tiers_of(t, t->space, 1, 0),
			 KV_TIER_DRAM | KV_TIER_SSD);
}

/* ---- leaf-first eviction: the order of blocks on SSD ---- */

static void ordered(struct tiers *t, unsigned n)
{
	for (unsigned i = 1; i < n; i++) {
		struct kv_block *child = tiers_get(t, t->space, 0, i);
		struct kv_block *parent = tiers_get(t, t->space, 0, i - 1);

		assert_true(parent->node.tick > child->node.tick);
		assert_true(parent->slot->node.tick > child->slot->node.tick);
		kv_block_put(t->cache, child);
		kv_block_put(t->cache, parent);
	}
}

static void a_use_leaves_no_parent_older_than_its_child(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *acquire;

	for (unsigned i = 0; i < 50; i++)
		tiers_must_save(t, t->space, 0, i);
	tiers_quiet(t);
	/* Blocks that are read back from SSD keep their order of eviction. */
	for (unsigned round = 0; round < 2; round++) {
		acquire = tiers_acquire(t, t->space, 0, 50);
		ordered(t, 50);
		tiers_release(t, acquire);
		ordered(t, 50);
		tiers_demote(t, t->space, 0, 50);
	}
}

/* Save like conversations: acquire a chain's blocks, then append some. */
static void no_child_outlives_its_parent(void **state)
{
	struct tiers *t = *state;
	unsigned length[24] = {0}, seed = 1;

	kv_cache_close(t->cache);
	t->config.ssd = 96 * MIB;
	t->config.dram = 32 * MIB;
	tiers_open(t);
	for (unsigned turn = 0; turn < 150; turn++) {
		unsigned chain, have;

		seed = seed * 1103515245 + 12345;
		chain = (seed >> 16) % 24;
		have = tiers_use(t, t->space, chain, length[chain] + 1);
		length[chain] += 1 + turn % 16;
		for (unsigned i = have; i < length[chain]; i++)
			tiers_must_save(t, t->space, chain, i);
		tiers_quiet(t);
	}
	assert_true(tiers_stats(t).evicted_dram > 0 &&
		    tiers_stats(t).evicted_ssd > 0);
	for (unsigned chain = 0; chain < 24; chain++)
		for (unsigned i = 1; i < length[chain]; i++) {
			unsigned above = tiers_of(t, t->space, chain, i - 1);
			unsigned here = tiers_of(t, t->space, chain, i);

			assert_false(here && !above);
			assert_false((here & KV_TIER_SSD) &&
				     !(above & KV_TIER_SSD));
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_chain_goes_to_ssd_whole),
		TEST(a_child_whose_parent_is_nowhere_stays_in_dram),
		TEST(a_child_waits_for_the_parent_that_is_being_saved),
		TEST(if_that_save_fails_the_child_is_not_written),
		TEST(a_chain_that_seals_from_its_tail_goes_to_ssd_whole),
		TEST(a_chain_that_seals_in_any_order_goes_to_ssd_whole),
		TEST(a_suffix_follows_a_head_that_comes_in_a_later_call),
		TEST(what_follows_a_parent_that_failed_waits_for_the_next),
		TEST(many_children_of_one_parent_follow_it),
		TEST(a_child_that_is_removed_while_leased_is_waited_for_by_nobody),
		TEST(a_child_that_waits_is_written_when_asked_for),
		TEST(a_child_that_waits_may_be_removed),
		TEST(blocks_of_window_spaces_stand_alone),
		TEST(blocks_that_come_as_files_need_no_order),
		TEST(with_reuse_a_used_chain_goes_whole),
		TEST(a_circle_of_parents_ends),
		TEST(a_block_that_is_on_ssd_is_not_written_again),
		TEST(a_burst_gets_a_part_of_the_budget),
		TEST(what_is_left_is_for_chains_that_are_used_again),
		TEST(beyond_it_a_sync_still_writes),
		TEST(it_flows_in_all_day),
		TEST(a_use_leaves_no_parent_older_than_its_child),
		TEST(no_child_outlives_its_parent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
