/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "cache/evict/policy.h"

#define N 4096

static struct kv_evict_node nodes[N];
static uint32_t ticks, asked;
static struct kv_eviction eviction;
static struct kv_policy policy;

static struct kv_evict_node *node_of(void *arg, uint32_t block)
{
	(void)arg;
	return &nodes[block];
}

static void start(const char *name)
{
	memset(nodes, 0, sizeof(nodes));
	ticks = 0;
	asked = 0;
	kv_eviction_fini(&eviction); /* free the policy of the previous test */
	assert_int_equal(
		kv_eviction_init(&eviction, name, &ticks, node_of, NULL), 0);
	kv_policy_init(&policy, &eviction);
}

static bool any(void *arg, uint32_t block)
{
	(void)arg;
	(void)block;
	return true;
}

static bool not_this(void *arg, uint32_t block)
{
	asked++;
	return block != *(uint32_t *)arg;
}

/* Allow the eviction of blocks with the number *@arg or a higher one. */
static bool from(void *arg, uint32_t block)
{
	asked++;
	return block >= *(uint32_t *)arg;
}

static uint32_t pop(void)
{
	uint32_t victim = kv_policy_victim(&policy, any, NULL);

	if (victim != KV_NONE)
		kv_policy_remove(&policy, victim);
	return victim;
}

static void put_under(uint32_t block, uint32_t parent, uint32_t position,
		      uint64_t now_ns)
{
	struct kv_arrival arrival = {
		.parent = parent, .position = position, .now_ns = now_ns};

	kv_policy_insert(&policy, block, &arrival);
}

static void put(uint32_t block, uint64_t now_ns)
{
	put_under(block, KV_NONE, 0, now_ns);
}

static void an_unknown_policy_is_refused(void **state)
{
	(void)state;
	assert_int_equal(
		kv_eviction_init(&eviction, "no such", &ticks, node_of, NULL),
		-EINVAL);
}

static void an_empty_policy_has_no_victim(void **state)
{
	(void)state;
	for (unsigned i = 0; kv_policy_name(i); i++) {
		start(kv_policy_name(i));
		assert_int_equal(pop(), KV_NONE);
		assert_int_equal(kv_policy_age(&policy), 0);
	}
}

static void a_chain_sealed_in_one_burst_leaves_from_its_leaf(void **state)
{
	(void)state;
	for (unsigned i = 0; kv_policy_name(i); i++) {
		start(kv_policy_name(i));
		for (uint32_t b = 0; b < 40; b++)
			put_under(b, KV_NONE, b, 1000);
		for (uint32_t b = 40; b-- > 0;)
			assert_int_equal(pop(), b);
		assert_int_equal(pop(), KV_NONE);
	}
}

static void
a_child_leaves_before_its_parent_whenever_it_was_sealed(void **state)
{
	(void)state;
	for (unsigned i = 0; kv_policy_name(i); i++) {
		start(kv_policy_name(i));
		/* Seal a block of the chain every ten seconds, and other blocks
		 * in between. */
		for (uint32_t b = 0; b < 40; b++) {
			uint64_t now = b * 10000000000ull;

			put_under(b, b ? b - 1 : KV_NONE, b, now);
			put(100 + b, now + 5000000000);
		}
		for (uint32_t left = 40; left > 0;) {
			uint32_t victim = pop();

			if (victim < 100)
				assert_int_equal(victim, --left);
		}
	}
}

static void an_older_burst_leaves_before_a_newer_one(void **state)
{
	(void)state;
	start("lru");
	put_under(0, KV_NONE, 0, 0);
	put_under(1, KV_NONE, 1, 0);
	put_under(2, KV_NONE, 0, 5000000000);
	put_under(3, KV_NONE, 1, 5000000000);
	assert_int_equal(pop(), 1);
	assert_int_equal(pop(), 0);
	assert_int_equal(pop(), 3);
	assert_int_equal(pop(), 2);
}

static void chains_that_begin_in_one_burst_are_not_one(void **state)
{
	(void)state;
	for (unsigned i = 0; kv_policy_name(i); i++) {
		start(kv_policy_name(i));
		put_under(0, KV_NONE, 0, 0);
		put_under(1, KV_NONE, 1, 0);
		put_under(2, KV_NONE, 0, 0);
		put_under(3, KV_NONE, 1, 0);
		assert_int_equal(pop(), 1);
		assert_int_equal(pop(), 0);
		assert_int_equal(pop(), 3);
		assert_int_equal(pop(), 2);
	}
}

static void a_chain_touched_from_its_tail_leaves_from_its_leaf(void **state)
{
	(void)state;
	for (unsigned i = 0; kv_policy_name(i); i++) {
		start(kv_policy_name(i));
		for (uint32_t b = 0; b < 4; b++)
			put(b, b * 1000000000ull);
		for (uint32_t b = 4; b-- > 0;)
			kv_policy_touch(&policy, b);
		for (uint32_t b = 4; b-- > 0;)
			assert_int_equal(pop(), b);
	}
}

static void a_use_that_ends_from_the_tail_leaves_from_its_leaf(void **state)
{
	(void)state;
	start("lhd");
	for (uint32_t b = 0; b < 4; b++)
		/* each block is newer than its parent */
		put(b, b * 1000000000ull);
	for (uint32_t b = 4; b-- > 0;)
		kv_policy_renew(&policy, b);
	for (uint32_t b = 4; b-- > 0;)
		assert_int_equal(pop(), b);
}

/* Request random paths of a tree: a victim must have no child in the cache. */
static void leaf_first(const char *name)
{
	static uint32_t parent[N];
	static uint16_t children[N];
	uint32_t chain[64], used = 0, seed = 12345;

	start(name);
	memset(children, 0, sizeof(children));
	for (unsigned request = 0; request < 3000; request++) {
		uint32_t n = 0, block;

		/* Walk down a tree with eight roots, along branches chosen at
		 * random. */
		seed = seed * 1103515245 + 12345;
		block = seed >> 16 & 7;
		for (uint32_t bits = seed >> 8; n < 5; bits >>= 2) {
			chain[n++] = block;
			block = block * 4 + 8 + (bits & 3);
			if (block >= N)
				break;
		}
		while (n-- > 0) {
			if (nodes[chain[n]].linked) {
				kv_policy_touch(&policy, chain[n]);
				continue;
			}
			put_under(chain[n], KV_NONE, n,
				  request * 1000000000ull + n);
			policy.burst = KV_NONE;
			parent[chain[n]] = n ? chain[n - 1] : KV_NONE;
			if (n)
				children[chain[n - 1]]++;
			used++;
		}
		while (used > 300) {
			uint32_t victim = pop();

			assert_int_equal(children[victim], 0);
			if (parent[victim] != KV_NONE)
				children[parent[victim]]--;
			used--;
		}
	}
}

static void no_policy_ever_orphans_a_block(void **state)
{
	(void)state;
	for (unsigned i = 0; kv_policy_name(i); i++)
		leaf_first(kv_policy_name(i));
}

static void what_may_not_go_is_passed_over(void **state)
{
	uint32_t held = 1;

	(void)state;
	start("lru");
	put(0, 0);
	put(1, 0);
	assert_int_equal(kv_policy_victim(&policy, not_this, &held), 0);
	kv_policy_remove(&policy, 0);
	assert_int_equal(kv_policy_victim(&policy, not_this, &held), KV_NONE);
}

static void a_victim_costs_little_where_most_may_not_go(void **state)
{
	uint32_t first = N / 2;

	(void)state;
	for (unsigned i = 0; kv_policy_name(i); i++) {
		start(kv_policy_name(i));
		/* The older half of the blocks may not be evicted, so the
		 * victims are in the other half. */
		for (uint32_t b = 0; b < N; b++)
			put(b, b * 1000000000ull);
		for (uint32_t n = 0; n < N / 2; n++) {
			uint32_t victim =
				kv_policy_victim(&policy, from, &first);

			assert_in_range(victim, first, N - 1);
			kv_policy_remove(&policy, victim);
		}
		assert_in_range(asked, N / 2, 2 * N);
	}
}

static void flru_keeps_what_was_used_often_longer(void **state)
{
	(void)state;
	start("flru");
	put(0, 0);
	for (unsigned i = 0; i < 3; i++)
		kv_policy_touch(&policy, 0);
	for (uint32_t i = 1; i < 5; i++)
		put(i, i * 1000000000ull);
	/* Block 0 is the oldest, but has four uses. */
	assert_int_equal(pop(), 1);
	start("lru");
	put(0, 0);
	for (uint32_t i = 1; i < 5; i++)
		put(i, i * 1000000000ull);
	assert_int_equal(pop(), 0);
}

static void uses_of_long_ago_count_less(void **state)
{
	(void)state;
	start("flru");
	put(0, 0);
	for (unsigned i = 0; i < 7; i++)
		kv_policy_touch(&policy, 0);
	assert_int_equal(nodes[0].uses, 8);
	ticks += 3 * 65536;
	kv_policy_touch(&policy, 0);
	/* 8 uses were halved three times, then one use was added: 2 */
	assert_int_equal(nodes[0].uses, 2);
}

/* Use some blocks once, and use others again after a fixed number of other
 * uses. */
static void lhd_learns_who_comes_back(void **state)
{
	uint32_t at = 0;

	(void)state;
	start("lhd");
	/* Use 64 heads of chains in turn, and between them blocks that are
	 * never used again; 512 blocks fit. */
	for (unsigned turn = 0; turn < 1000; turn++)
		for (uint32_t i = 0; i < 64; i++) {
			uint32_t once = 64 + at++ % (N - 64);

			if (nodes[i].linked)
				kv_policy_touch(&policy, i);
			else
				put_under(i, KV_NONE, 0, 0);
			policy.burst = KV_NONE;
			kv_policy_remove(&policy, once);
			put_under(once, KV_NONE, 40, 0);
			policy.burst = KV_NONE;
			while (eviction.blocks > 512)
				pop();
		}
	for (uint32_t i = 0; i < 64; i++)
		assert_true(nodes[i].linked);
	assert_true(kv_lhd_learned(&eviction, 11, 64) >
		    20 * kv_lhd_learned(&eviction, 1, 64));
}

static void what_ended_goes_first_and_from_its_tail(void **state)
{
	(void)state;
	for (unsigned i = 0; kv_policy_name(i); i++) {
		start(kv_policy_name(i));
		put(9, 0);
		for (uint32_t b = 0; b < 4; b++)
			put(b, 5000000000);
		for (uint32_t b = 4; b-- > 1;)
			kv_policy_end(&policy, b);
		/* a use cancels the hint that the chain has ended */
		kv_policy_touch(&policy, 2);
		assert_int_equal(pop(), 3);
		assert_int_equal(pop(), 1);
		assert_int_equal(eviction.ended, 2);
		assert_int_equal(pop(), 9);
	}
}

static void a_ghost_brings_its_uses_back(void **state)
{
	struct kv_arrival arrival = {.parent = KV_NONE};
	struct kv_ghost ghost;

	(void)state;
	start("flru");
	assert_int_equal(kv_ghost_init(&ghost, 64), 0);
	put(0, 0);
	kv_policy_touch(&policy, 0);
	kv_policy_touch(&policy, 0);
	kv_ghost_put(&ghost, 7ull << 32, kv_policy_past(&policy, 0));
	kv_policy_remove(&policy, 0);
	arrival.past = kv_ghost_take(&ghost, 7ull << 32);
	assert_int_equal(arrival.past.uses, 3);
	kv_policy_insert(&policy, 0, &arrival);
	assert_int_equal(nodes[0].uses, 4);
	assert_int_equal(eviction.remembered, 1);
	assert_int_equal(kv_ghost_take(&ghost, 7ull << 32).uses, 0);
	kv_ghost_fini(&ghost);
}

static void a_ghost_forgets_the_longest_gone(void **state)
{
	struct kv_ghost ghost;

	(void)state;
	assert_int_equal(kv_ghost_init(&ghost, 64), 0);
	for (uint64_t i = 0; i < 1000; i++)
		kv_ghost_put(&ghost, i << 32,
			     (struct kv_past){(uint32_t)i * 16, 1});
	for (uint64_t i = 0; i < 1000; i++) {
		struct kv_past past = kv_ghost_take(&ghost, i << 32);

		assert_int_equal(past.uses, i >= 1000 - 64);
		assert_int_equal(past.tick, i >= 1000 - 64 ? i * 16 : 0);
	}
	kv_ghost_fini(&ghost);
}

static void the_use_it_was_promoted_for_counts_once(void **state)
{
	struct kv_arrival arrival = {
		.parent = KV_NONE, .past = {0, 3}, .promoted = true};

	(void)state;
	start("flru");
	ticks = 1000;
	kv_policy_insert(&policy, 0, &arrival);
	kv_policy_touch(&policy, 0);
	assert_int_equal(nodes[0].uses, 4);
	kv_policy_touch(&policy, 0);
	assert_int_equal(nodes[0].uses, 5);
}

static void removing_twice_does_nothing(void **state)
{
	(void)state;
	start("lru");
	put(0, 0);
	put(1, 0);
	kv_policy_remove(&policy, 1);
	kv_policy_remove(&policy, 1);
	kv_policy_touch(&policy, 1);
	kv_policy_renew(&policy, 1);
	kv_policy_end(&policy, 1);
	assert_int_equal(pop(), 0);
	assert_int_equal(pop(), KV_NONE);
	assert_int_equal(eviction.blocks, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_unknown_policy_is_refused),
		cmocka_unit_test(an_empty_policy_has_no_victim),
		cmocka_unit_test(
			a_chain_sealed_in_one_burst_leaves_from_its_leaf),
		cmocka_unit_test(
			a_child_leaves_before_its_parent_whenever_it_was_sealed),
		cmocka_unit_test(an_older_burst_leaves_before_a_newer_one),
		cmocka_unit_test(chains_that_begin_in_one_burst_are_not_one),
		cmocka_unit_test(
			a_chain_touched_from_its_tail_leaves_from_its_leaf),
		cmocka_unit_test(
			a_use_that_ends_from_the_tail_leaves_from_its_leaf),
		cmocka_unit_test(no_policy_ever_orphans_a_block),
		cmocka_unit_test(what_may_not_go_is_passed_over),
		cmocka_unit_test(a_victim_costs_little_where_most_may_not_go),
		cmocka_unit_test(flru_keeps_what_was_used_often_longer),
		cmocka_unit_test(uses_of_long_ago_count_less),
		cmocka_unit_test(lhd_learns_who_comes_back),
		cmocka_unit_test(what_ended_goes_first_and_from_its_tail),
		cmocka_unit_test(a_ghost_brings_its_uses_back),
		cmocka_unit_test(a_ghost_forgets_the_longest_gone),
		cmocka_unit_test(the_use_it_was_promoted_for_counts_once),
		cmocka_unit_test(removing_twice_does_nothing),
	};

	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	kv_eviction_fini(&eviction);
	return failed;
}
