/* SPDX-License-Identifier: Apache-2.0 */
/* Pins and snapshots of two users: how much the first one leaves to the second,
 * and to root. */

#include "cache/core/account.h"
#include "tests/cache/tiers.h"

#define C 2
#define BATCH 64u
#define MANY 2000u
#define LISTED 2048u /* number of blocks that a snapshot lists */

static int pin(struct tiers *t, struct kv_space *space, unsigned chain)
{
	struct kv_block *block = tiers_get(t, space, chain, 0);
	int r;

	assert_non_null(block);
	r = kv_block_pin(t->cache, block, true);
	kv_block_put(t->cache, block);
	return r;
}

static void demote(struct tiers *t, struct kv_space *space, unsigned chain)
{
	struct kv_block *block = tiers_get(t, space, chain, 0);

	assert_non_null(block);
	assert_int_equal(kv_block_demote(t->cache, block), 0);
	kv_block_put(t->cache, block);
}

/* Save and pin blocks until a pin is refused; demote them if there is an SSD.
 * Return how many were pinned. */
static unsigned pin_all(struct tiers *t, struct kv_space *space)
{
	unsigned n = 0;

	for (unsigned chain = 0; chain < MANY; chain++) {
		if (t->cache->ssd.on && chain % BATCH == 0) {
			for (unsigned i = 0; i < BATCH; i++)
				tiers_must_save(t, space, chain + i, 0);
			assert_int_equal(kv_space_sync(t->cache, space), 0);
			for (unsigned i = 0; i < BATCH; i++)
				demote(t, space, chain + i);
		} else if (!t->cache->ssd.on) {
			tiers_must_save(t, space, chain, 0);
		}
		if (pin(t, space, chain) < 0)
			break;
		n++;
	}
	return n;
}

static void unpin_all(struct tiers *t, struct kv_space *space, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct kv_block *block = tiers_get(t, space, i, 0);

		assert_int_equal(kv_block_pin(t->cache, block, false), 0);
		kv_block_put(t->cache, block);
	}
}

/* Pin @total bytes by two users; the first one takes all it may have. */
static void check_pins(struct tiers *t, uint64_t total)
{
	struct kv_space *c = tiers_space(t, "c", C, PREFIX_LAYOUT);
	const unsigned all = (unsigned)(total / BYTES);
	unsigned of_a = pin_all(t, t->space), of_c;

	assert_in_range(of_a, all / 3, all / 2);
	of_c = pin_all(t, c);
	assert_in_range(of_c, all / 6, all / 3);
	assert_int_equal(pin(t, t->space, of_a), -ENOSPC);
	/* The second user can still save, although all its pins are used. */
	assert_int_equal(tiers_save(t, c, MANY, 0), 0);
	/* The second user can pin more once the first one unpins. */
	unpin_all(t, t->space, of_a);
	assert_int_equal(pin(t, c, of_c), 0);
	unpin_all(t, c, of_c + 1);
	assert_int_equal(
		kv_accounts_used(kv_cache_accounts(t->cache), KV_FINITE_PINNED),
		0);
}

static void pins_in_memory_are_shared(void **state)
{
	struct tiers *t = *state;

	tiers_without_ssd(t);
	check_pins(t, t->config.dram);
}

static void pins_on_ssd_are_shared(void **state)
{
	struct tiers *t = *state;

	check_pins(t, t->cache->ssd.file_budget);
}

/* A user who may pin no more can open, unpin and pin its blocks. */
static void an_owner_may_open_all_that_it_has_pinned(void **state)
{
	struct tiers *t = *state;
	struct kv_accounts *accounts = kv_cache_accounts(t->cache);
	struct kv_account *account = kv_account_get(accounts, t->space->uid);
	const unsigned n = pin_all(t, t->space);
	const uint64_t pinned = kv_accounts_used(accounts, KV_FINITE_PINNED);
	struct kv_open_charge *charges[MANY];
	struct kv_block *blocks[MANY];

	for (unsigned i = 0; i < n; i++) {
		blocks[i] = tiers_get(t, t->space, i, 0);
		assert_int_equal(kv_open_charge(t->cache, blocks[i], account,
						&charges[i]),
				 0);
	}
	assert_int_equal(kv_accounts_used(accounts, KV_FINITE_PINNED), pinned);
	unpin_all(t, t->space, n);
	assert_int_equal(kv_accounts_used(accounts, KV_FINITE_PINNED), pinned);
	for (unsigned i = n / 2; i < n; i++)
		kv_open_credit(t->cache, charges[i]);
	assert_int_equal(kv_accounts_used(accounts, KV_FINITE_PINNED),
			 pinned / n * (n / 2));
	assert_int_equal(pin(t, t->space, 0), 0);
	assert_int_equal(kv_accounts_used(accounts, KV_FINITE_PINNED),
			 pinned / n * (n / 2));
	for (unsigned i = 0; i < n / 2; i++)
		kv_open_credit(t->cache, charges[i]);
	assert_int_equal(kv_accounts_used(accounts, KV_FINITE_PINNED),
			 pinned / n);
	assert_int_equal(kv_block_pin(t->cache, blocks[0], false), 0);
	for (unsigned i = 0; i < n; i++)
		kv_block_put(t->cache, blocks[i]);
	assert_int_equal(kv_accounts_used(accounts, KV_FINITE_PINNED), 0);
	kv_account_put(account);
}

/* Create snapshots that list one block many times, until one is refused.
 * Return how much of the limit on blocks in snapshots all users then use, in
 * percent. */
static uint64_t snapshot_all(struct tiers *t, struct kv_space *space,
			     unsigned *ret_n)
{
	struct kv_pick picks[LISTED];
	size_t missing;
	char name[16];
	unsigned n = 0;
	int r;

	tiers_must_save(t, space, 0, 0);
	for (uint32_t i = 0; i < LISTED; i++)
		picks[i] = (struct kv_pick){tiers_key(0, 0), i};
	for (; n < MANY; n++) {
		snprintf(name, sizeof(name), "s%u", n);
		r = kv_snapshot_create(t->cache, space, name, picks, LISTED,
				       &missing);
		if (r < 0)
			break;
	}
	assert_int_equal(r, -ENOSPC);
	*ret_n = n;
	return kv_accounts_used(kv_cache_accounts(t->cache),
				KV_FINITE_SNAPSHOTS) *
	       100 / 65536;
}

static void drop(struct tiers *t, struct kv_space *space, unsigned n)
{
	struct kv_snapshot_info info;
	char name[16];

	snprintf(name, sizeof(name), "s%u", n);
	assert_int_equal(kv_snapshot_find(t->cache, space, name, &info), 0);
	assert_int_equal(kv_snapshot_drop(t->cache, info.id), 0);
}

static void snapshots_are_shared(void **state)
{
	struct tiers *t = *state;
	struct kv_space *c, *of_root;
	unsigned of_a, of_others;
	uint64_t part;

	/* no SSD tier: its index would be full before the limit is reached */
	tiers_without_ssd(t);
	c = tiers_space(t, "c", C, PREFIX_LAYOUT);
	of_root = tiers_space(t, "root", 0, PREFIX_LAYOUT);
	part = snapshot_all(t, t->space, &of_a);
	assert_in_range(part, 33, 50);
	part = snapshot_all(t, c, &of_others);
	assert_in_range(part, 55, 75);
	assert_in_range(snapshot_all(t, of_root, &of_others), 80, 101);
	for (unsigned i = 0; i < of_a; i++)
		drop(t, t->space, i);
	(void)snapshot_all(t, tiers_space(t, "d", C, NULL), &of_others);
	assert_true(of_others > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(pins_in_memory_are_shared),
		TEST(pins_on_ssd_are_shared),
		TEST(an_owner_may_open_all_that_it_has_pinned),
		TEST(snapshots_are_shared),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
