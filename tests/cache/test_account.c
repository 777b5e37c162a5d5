/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_account.c - fair shares of finite resources.
 *
 * OWNS      its accounts.
 *
 * LOCKING   none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cache/core/account.h"

#define A 1001
#define B 1002
#define C 1003
#define WHAT KV_FINITE_OPENS

static struct kv_accounts *accounts;
static struct kv_account *a, *b, *c, *own;

static int set_up(void **state)
{
	(void)state;
	assert_int_equal(kv_accounts_new(&accounts), 0);
	a = kv_account_get(accounts, A);
	b = kv_account_get(accounts, B);
	c = kv_account_get(accounts, C);
	own = kv_account_get(accounts, geteuid());
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	kv_account_put(a);
	kv_account_put(b);
	kv_account_put(c);
	kv_account_put(own);
	kv_accounts_free(accounts);
	return 0;
}

/* Charge the account one unit at a time until a charge is refused.  Return the
 * number of units charged. */
static uint64_t take_all(struct kv_account *account)
{
	uint64_t n = 0;

	while (kv_account_charge(account, WHAT, 1) == 0)
		n++;
	return n;
}

static void one_alone_gets_half_of_what_is_not_kept_for_operators(void **state)
{
	uint64_t total = kv_finite_total(WHAT), n = take_all(a);

	(void)state;
	assert_in_range(n, total * 15 / 32 - 1, total * 15 / 32 + 1);
	assert_int_equal(kv_account_charge(a, WHAT, 1), -ENOLCK);
	assert_int_equal(kv_accounts_used(accounts, WHAT), n);
}

static void two_who_take_turns_get_a_third_each(void **state)
{
	uint64_t total = kv_finite_total(WHAT), n = 0, m = 0;
	int r, s;

	(void)state;
	do {
		r = kv_account_charge(a, WHAT, 1);
		s = kv_account_charge(b, WHAT, 1);
		n += r == 0;
		m += s == 0;
	} while (r == 0 || s == 0);
	assert_in_range(n, total * 15 / 48 - 2, total * 15 / 48 + 2);
	assert_in_range(m, total * 15 / 48 - 2, total * 15 / 48 + 2);
}

static void who_comes_last_gets_some_and_an_operator_the_rest(void **state)
{
	uint64_t total = kv_finite_total(WHAT), n;

	(void)state;
	n = take_all(a);
	n += take_all(b);
	assert_true(take_all(c) > total / 16);
	n = kv_accounts_used(accounts, WHAT);
	assert_true(n <= total - total / 16);
	assert_int_equal(take_all(own), total - n);
	assert_int_equal(kv_account_charge(own, WHAT, 1), -ENOLCK);
}

static void what_is_given_back_can_be_taken_again(void **state)
{
	uint64_t n = take_all(a);

	(void)state;
	kv_account_credit(a, WHAT, n);
	assert_int_equal(kv_accounts_used(accounts, WHAT), 0);
	assert_int_equal(take_all(b), n);
}

static void root_that_is_squashed_has_a_share_as_any_other(void **state)
{
	struct kv_account *root;

	(void)state;
	kv_accounts_set(accounts, true, UINT64_MAX);
	root = kv_account_get(accounts, 0);
	assert_in_range(take_all(root), 1, kv_finite_total(WHAT) / 2);
	kv_account_put(root);
}

static void a_part_is_left_over_by_all_but_operators(void **state)
{
	const uint64_t total = 1000, spare = 100;
	uint64_t n = 0;

	(void)state;
	while (kv_account_fits(a, WHAT, total, 1, spare)) {
		kv_account_take(a, WHAT, 1);
		n++;
	}
	assert_true(n > 0);
	assert_true(kv_account_fits(a, WHAT, total, spare, 0));
	assert_false(kv_account_fits(a, WHAT, total, spare + 1, 0));
	assert_true(kv_account_fits(own, WHAT, total, total - n, total));
	assert_true(kv_account_fits(NULL, WHAT, total, total, total));
	assert_int_equal(kv_account_held(NULL, WHAT), 0);
	kv_account_credit(a, WHAT, n);
}

static void no_number_overflows(void **state)
{
	(void)state;
	assert_int_equal(kv_account_charge(a, WHAT, UINT64_MAX), -ENOLCK);
	assert_int_equal(kv_account_charge(own, WHAT, UINT64_MAX), -ENOLCK);
	assert_int_equal(kv_accounts_used(accounts, WHAT), 0);
}

static void an_account_lasts_until_its_last_holder_lets_go(void **state)
{
	struct kv_account *again = kv_account_get(accounts, A);

	(void)state;
	assert_ptr_equal(again, a);
	assert_int_equal(kv_account_charge(again, WHAT, 5), 0);
	kv_account_put(again);
	kv_account_credit(a, WHAT, 5);
	kv_account_put(NULL);
}

static void memory_has_the_total_that_was_set(void **state)
{
	(void)state;
	kv_accounts_set(accounts, false, 1 << 20);
	assert_int_equal(kv_account_charge(a, KV_FINITE_MEMORY, 1 << 20),
			 -ENOLCK);
	assert_int_equal(kv_account_charge(a, KV_FINITE_MEMORY, 1 << 18), 0);
	assert_int_equal(kv_account_charge(b, KV_FINITE_MEMORY, 1 << 18), 0);
	assert_int_equal(kv_account_charge(b, KV_FINITE_MEMORY, 1 << 19),
			 -ENOLCK);
	kv_account_credit(a, KV_FINITE_MEMORY, 1 << 18);
	kv_account_credit(b, KV_FINITE_MEMORY, 1 << 18);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(one_alone_gets_half_of_what_is_not_kept_for_operators),
		TEST(two_who_take_turns_get_a_third_each),
		TEST(who_comes_last_gets_some_and_an_operator_the_rest),
		TEST(what_is_given_back_can_be_taken_again),
		TEST(root_that_is_squashed_has_a_share_as_any_other),
		TEST(a_part_is_left_over_by_all_but_operators),
		TEST(memory_has_the_total_that_was_set),
		TEST(no_number_overflows),
		TEST(an_account_lasts_until_its_last_holder_lets_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
