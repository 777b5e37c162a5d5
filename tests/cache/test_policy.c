/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "cache/policy.h"

#define N 64

static struct kv_node nodes[N];
static uint32_t ticks;
static struct kv_policy policy;

static struct kv_node *node_of(void *arg, uint32_t block)
{
	(void)arg;
	return &nodes[block];
}

static void start(const char *name)
{
	memset(nodes, 0, sizeof(nodes));
	ticks = 0;
	assert_int_equal(kv_policy_init(&policy, name, &ticks, node_of, NULL),
			 0);
}

static bool any(void *arg, uint32_t block)
{
	(void)arg;
	(void)block;
	return true;
}

static bool not_this(void *arg, uint32_t block)
{
	return block != *(uint32_t *)arg;
}

static uint32_t pop(void)
{
	uint32_t victim = kv_policy_victim(&policy, any, NULL);

	if (victim != KV_NONE)
		kv_policy_remove(&policy, victim);
	return victim;
}

static void an_unknown_policy_is_refused(void **state)
{
	(void)state;
	assert_int_equal(kv_policy_init(&policy, "mru", &ticks, node_of, NULL),
			 -EINVAL);
}

static void an_empty_policy_has_no_victim(void **state)
{
	(void)state;
	start("lru");
	assert_int_equal(pop(), KV_NONE);
	assert_int_equal(kv_policy_age(&policy), 0);
}

static void a_chain_sealed_in_one_burst_leaves_from_its_leaf(void **state)
{
	(void)state;
	start("lru");
	for (uint32_t i = 0; i < 8; i++)
		kv_policy_insert(&policy, i, 1000);
	for (uint32_t i = 8; i-- > 0;)
		assert_int_equal(pop(), i);
	assert_int_equal(pop(), KV_NONE);
}

static void an_older_burst_leaves_before_a_newer_one(void **state)
{
	(void)state;
	start("lru");
	kv_policy_insert(&policy, 0, 0);
	kv_policy_insert(&policy, 1, 0);
	kv_policy_insert(&policy, 2, 5000000000);
	kv_policy_insert(&policy, 3, 5000000000);
	assert_int_equal(pop(), 1);
	assert_int_equal(pop(), 0);
	assert_int_equal(pop(), 3);
	assert_int_equal(pop(), 2);
}

static void a_chain_touched_from_its_tail_leaves_from_its_leaf(void **state)
{
	(void)state;
	start("lru");
	for (uint32_t i = 0; i < 4; i++)
		kv_policy_insert(&policy, i, i * 1000000000ull);
	for (uint32_t i = 4; i-- > 0;)
		kv_policy_touch(&policy, i, 1);
	for (uint32_t i = 4; i-- > 0;)
		assert_int_equal(pop(), i);
}

static void what_may_not_go_is_passed_over(void **state)
{
	uint32_t held = 1;

	(void)state;
	start("lru");
	kv_policy_insert(&policy, 0, 0);
	kv_policy_insert(&policy, 1, 0);
	assert_int_equal(kv_policy_victim(&policy, not_this, &held), 0);
	kv_policy_remove(&policy, 0);
	assert_int_equal(kv_policy_victim(&policy, not_this, &held), KV_NONE);
}

static void flru_keeps_what_was_used_often_longer(void **state)
{
	(void)state;
	start("flru");
	kv_policy_insert(&policy, 0, 0);
	kv_policy_touch(&policy, 0, 1);
	kv_policy_touch(&policy, 0, 2);
	kv_policy_touch(&policy, 0, 3);
	for (uint32_t i = 1; i < 5; i++)
		kv_policy_insert(&policy, i, i * 1000000000ull);
	/* Block 0 is the oldest, but has four uses. */
	assert_int_equal(pop(), 1);
	start("lru");
	kv_policy_insert(&policy, 0, 0);
	for (uint32_t i = 1; i < 5; i++)
		kv_policy_insert(&policy, i, i * 1000000000ull);
	assert_int_equal(pop(), 0);
}

static void removing_twice_does_nothing(void **state)
{
	(void)state;
	start("lru");
	kv_policy_insert(&policy, 0, 0);
	kv_policy_insert(&policy, 1, 0);
	kv_policy_remove(&policy, 1);
	kv_policy_remove(&policy, 1);
	kv_policy_touch(&policy, 1, 1);
	assert_int_equal(pop(), 0);
	assert_int_equal(pop(), KV_NONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_unknown_policy_is_refused),
		cmocka_unit_test(an_empty_policy_has_no_victim),
		cmocka_unit_test(
			a_chain_sealed_in_one_burst_leaves_from_its_leaf),
		cmocka_unit_test(an_older_burst_leaves_before_a_newer_one),
		cmocka_unit_test(
			a_chain_touched_from_its_tail_leaves_from_its_leaf),
		cmocka_unit_test(what_may_not_go_is_passed_over),
		cmocka_unit_test(flru_keeps_what_was_used_often_longer),
		cmocka_unit_test(removing_twice_does_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
