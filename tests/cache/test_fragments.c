/* SPDX-License-Identifier: Apache-2.0 */
/* Memory guarantees of a user, while another user keeps a few blocks in each
 * segment. */

#include "cache/core/ledger.h"
#include "tests/cache/tiers.h"

#define MIB (1ull << 20)
#define SEGMENTS 8u
#define USER 1 /* owner of space "a", which has half of the memory guaranteed */
#define MANY 660u
#define WANTED 256u

static int open_reserved(struct tiers *t, bool ssd)
{
	const struct kv_quota quota = {.reserve_dram = 32 * MIB};

	if (!ssd)
		tiers_without_ssd(t);
	return kv_tenant_set_quota(t->cache, USER, NULL, &quota);
}

/* Fill the memory with blocks of user 2, each in a chain of its own. */
static struct kv_space *fill_all(struct tiers *t)
{
	struct kv_space *space = tiers_space(t, "b", 2, PREFIX_LAYOUT);

	for (unsigned i = 0; i < MANY; i++)
		tiers_must_save(t, space, i, 0);
	if (t->cache->ssd.on)
		tiers_quiet(t);
	return space;
}

/* Find the first block of @space in each segment. Return the number of segments
 * that have one. */
static unsigned one_in_each(struct tiers *t, struct kv_space *space,
			    unsigned ret_chains[SEGMENTS])
{
	uint32_t seen[SEGMENTS];
	unsigned n = 0, j;

	for (unsigned i = 0; i < MANY && n < SEGMENTS; i++) {
		struct kv_block *block = tiers_get(t, space, i, 0);

		if (!block)
			continue;
		for (j = 0; block->slot && j < n; j++)
			if (seen[j] == block->slot->segment->id)
				break;
		if (block->slot && j == n) {
			seen[n] = block->slot->segment->id;
			ret_chains[n++] = i;
		}
		kv_block_put(t->cache, block);
	}
	return n;
}

static void check(struct tiers *t)
{
	kv_lock(t->cache);
	kv_arena_check_locked(t->cache);
	kv_unlock(t->cache);
}

/* Check that USER can save all its guaranteed blocks, and that these stay in
 * memory. */
static void saves_all(struct tiers *t)
{
	for (unsigned i = 0; i < WANTED; i++)
		assert_int_equal(tiers_save(t, t->space, 1000 + i, 0), 0);
	for (unsigned i = 0; i < WANTED; i++)
		assert_true(tiers_of(t, t->space, 1000 + i, 0) & KV_TIER_DRAM);
	check(t);
}

static void lease_in_each(struct tiers *t)
{
	struct kv_acquire *leases[SEGMENTS];
	struct kv_space *other = fill_all(t);
	unsigned chains[SEGMENTS];

	assert_int_equal(one_in_each(t, other, chains), SEGMENTS);
	for (unsigned i = 0; i < SEGMENTS; i++) {
		leases[i] = tiers_acquire(t, other, chains[i], 1);
		assert_int_equal(leases[i]->wants[0].status, 0);
		check(t);
	}
	saves_all(t);
	for (unsigned i = 0; i < SEGMENTS; i++)
		tiers_release(t, leases[i]);
}

static void leases_in_every_segment_cost_no_guarantee(void **state)
{
	struct tiers *t = *state;

	assert_int_equal(open_reserved(t, true), 0);
	lease_in_each(t);
}

static void nor_do_they_without_an_ssd(void **state)
{
	struct tiers *t = *state;

	assert_int_equal(open_reserved(t, false), 0);
	lease_in_each(t);
}

static void what_moves_keeps_its_bytes(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *leases[SEGMENTS];
	struct kv_space *other;
	unsigned chains[SEGMENTS];

	assert_int_equal(open_reserved(t, false), 0);
	other = fill_all(t);
	assert_int_equal(one_in_each(t, other, chains), SEGMENTS);
	for (unsigned i = 0; i < SEGMENTS; i++)
		leases[i] = tiers_acquire(t, other, chains[i], 1);
	for (unsigned i = 0; i < SEGMENTS; i++) {
		const struct kv_want *want = &leases[i]->wants[0];
		const uint8_t *file;

		assert_int_equal(want->status, 0);
		assert_true(want->slot->block == want->block);
		file = kv_slot_file(want->slot);
		for (unsigned j = 0; j < BYTES; j++)
			assert_int_equal(file[j], (uint8_t)chains[i]);
		tiers_release(t, leases[i]);
	}
	assert_true(one_in_each(t, other, chains) > 0);
}

static void fills_in_every_segment_cost_no_guarantee(void **state)
{
	struct tiers *t = *state;
	struct kv_fill *fills[MANY];
	struct kv_space *other;
	unsigned n = 0;

	assert_int_equal(open_reserved(t, false), 0);
	other = fill_all(t);
	while (n < MANY && tiers_begin(t, other, 5000 + n, 0, &fills[n]) == 0)
		n++;
	assert_true(n > SEGMENTS && n < MANY);
	saves_all(t);
	while (n > 0)
		kv_fill_drop(t->cache, fills[--n]);
}

static void pins_in_every_segment_cost_no_guarantee(void **state)
{
	struct tiers *t = *state;
	struct kv_space *other;
	unsigned chains[SEGMENTS], pinned = 0;

	assert_int_equal(open_reserved(t, false), 0);
	other = fill_all(t);
	assert_int_equal(one_in_each(t, other, chains), SEGMENTS);
	for (unsigned i = 0; i < SEGMENTS; i++) {
		struct kv_block *block = tiers_get(t, other, chains[i], 0);
		int r = kv_block_pin(t->cache, block, true);

		assert_true(r == 0 || r == -ENOSPC);
		pinned += r == 0;
		kv_block_put(t->cache, block);
	}
	/* Pins may take all segments that are guaranteed to no user, except
	 * one. */
	assert_int_equal(pinned, SEGMENTS / 2 - 1);
	saves_all(t);
}

/* A removed block that is still open need not stay in DRAM, because the mount
 * can read it from SSD. */
static void removed_ones_that_are_open_cost_no_guarantee(void **state)
{
	struct tiers *t = *state;
	struct kv_block *blocks[SEGMENTS];
	struct kv_space *other;
	unsigned chains[SEGMENTS];
	struct kv_view view;

	assert_int_equal(open_reserved(t, true), 0);
	other = fill_all(t);
	assert_int_equal(one_in_each(t, other, chains), SEGMENTS);
	for (unsigned i = 0; i < SEGMENTS; i++) {
		blocks[i] = tiers_get(t, other, chains[i], 0);
		assert_int_equal(kv_block_remove(t->cache, blocks[i]), 0);
	}
	saves_all(t);
	for (unsigned i = 0; i < SEGMENTS; i++) {
		assert_int_equal(
			kv_view_get(t->cache, blocks[i], KV_VIEW_WAIT, &view),
			0);
		assert_int_equal(view.length, BYTES);
		for (unsigned j = 0; j < BYTES; j++)
			assert_int_equal(view.data[j], (uint8_t)chains[i]);
		kv_view_put(t->cache, &view);
		kv_block_put(t->cache, blocks[i]);
	}
}

/* User 2 has blocks in each segment, but in all no more bytes than its own
 * guarantee. */
static void what_is_scattered_costs_no_guarantee_of_another(void **state)
{
	struct tiers *t = *state;
	const struct kv_quota quota = {.reserve_dram = 32 * MIB};
	struct kv_space *other;

	assert_int_equal(open_reserved(t, false), 0);
	assert_int_equal(kv_tenant_set_quota(t->cache, 2, NULL, &quota), 0);
	other = fill_all(t);
	for (unsigned i = 0; i < MANY; i += 2) {
		struct kv_block *block = tiers_get(t, other, i, 0);

		if (!block)
			continue;
		assert_int_equal(kv_block_unlink(t->cache, block), 0);
		kv_block_put(t->cache, block);
	}
	saves_all(t);
}

static void a_lease_beyond_what_is_left_finds_no_room(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *leases[MANY];
	struct kv_space *other;
	unsigned n = 0;

	assert_int_equal(open_reserved(t, false), 0);
	other = fill_all(t);
	for (unsigned i = 0; i < MANY; i++) {
		leases[n] = tiers_acquire(t, other, i, 1);
		if (leases[n]->wants[0].status == 0) {
			n++;
			continue;
		}
		assert_true(leases[n]->wants[0].status == -ENOSPC ||
			    leases[n]->wants[0].status == -ENOENT);
		tiers_release(t, leases[n]);
	}
	assert_true(n > 100);
	saves_all(t);
	while (n > 0)
		tiers_release(t, leases[--n]);
}

static void what_others_keep_is_not_promised(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *leases[SEGMENTS];
	struct kv_space *other = fill_all(t);
	unsigned chains[SEGMENTS], kept, refused = 0;

	assert_int_equal(one_in_each(t, other, chains), SEGMENTS);
	for (unsigned i = 0; i < SEGMENTS; i++) {
		leases[i] = tiers_acquire(t, other, chains[i], 1);
		assert_int_equal(leases[i]->wants[0].status, 0);
	}
	for (unsigned i = 0; i < SEGMENTS; i++) {
		kept = kv_tenant_find(t->cache, 2)->kept_segments;
		refused += kept > SEGMENTS / 2;
		assert_int_equal(open_reserved(t, true),
				 kept > SEGMENTS / 2 ? -ENOSPC : 0);
		tiers_release(t, leases[i]);
	}
	assert_true(refused > 0 && refused < SEGMENTS);
	saves_all(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(leases_in_every_segment_cost_no_guarantee),
		TEST(nor_do_they_without_an_ssd),
		TEST(what_moves_keeps_its_bytes),
		TEST(fills_in_every_segment_cost_no_guarantee),
		TEST(pins_in_every_segment_cost_no_guarantee),
		TEST(removed_ones_that_are_open_cost_no_guarantee),
		TEST(what_is_scattered_costs_no_guarantee_of_another),
		TEST(a_lease_beyond_what_is_left_finds_no_room),
		TEST(what_others_keep_is_not_promised),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
