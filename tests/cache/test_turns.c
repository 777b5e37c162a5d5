/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_turns.c - deficit round robin between the queues of users.
 *
 * OWNS      its queues.
 *
 * LOCKING   none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cache/core/turns.h"

#define AMOUNT 100

struct queue {
	/* must be the first field: its address is cast to this struct */
	struct kv_turn turn;
	bool made;
	uint64_t done;
};

static struct kv_turns turns;
static struct queue *a, *b;

static void make(struct kv_turn *turn)
{
	((struct queue *)turn)->made = true;
}

static int set_up(void **state)
{
	(void)state;
	assert_int_equal(
		kv_turns_init(&turns, sizeof(struct queue), AMOUNT, make), 0);
	a = (struct queue *)kv_turn_get(&turns, 1000);
	b = (struct queue *)kv_turn_get(&turns, 1064);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	kv_turn_stop(&turns, &a->turn);
	kv_turn_stop(&turns, &b->turn);
	kv_turn_put(&turns, &a->turn);
	kv_turn_put(&turns, &b->turn);
	assert_null(kv_turns_next(&turns));
	kv_turns_fini(&turns);
	return 0;
}

/* Take @n steps, each of the queue whose turn it is.  A step of queue A costs
 * @cost_a, a step of B @cost_b. */
static void work(size_t n, uint64_t cost_a, uint64_t cost_b)
{
	struct queue *queue;
	uint64_t cost;

	kv_turn_start(&turns, &a->turn);
	kv_turn_start(&turns, &b->turn);
	while (n--) {
		queue = (struct queue *)kv_turns_next(&turns);
		cost = queue == a ? cost_a : cost_b;
		queue->done += cost;
		kv_turn_charge(&queue->turn, cost);
	}
}

static void users_have_queues_of_their_own(void **state)
{
	(void)state;
	assert_true(a->made && b->made);
	assert_ptr_not_equal(a, b);
	assert_ptr_equal(kv_turn_get(&turns, 1000), &a->turn);
	kv_turn_put(&turns, &a->turn);
}

static void turns_are_of_equal_cost(void **state)
{
	(void)state;
	work(10000, 10, 10);
	assert_in_range(a->done, b->done - AMOUNT, b->done + AMOUNT);
}

static void who_has_larger_pieces_waits_for_more_turns(void **state)
{
	(void)state;
	work(10000, 1000, 10);
	assert_in_range(a->done, b->done - 2000, b->done + 2000);
}

static void who_is_alone_has_every_turn(void **state)
{
	(void)state;
	kv_turn_start(&turns, &a->turn);
	for (int i = 0; i < 100; i++) {
		assert_ptr_equal(kv_turns_next(&turns), &a->turn);
		kv_turn_charge(&a->turn, 7 * AMOUNT);
	}
	kv_turn_stop(&turns, &a->turn);
	assert_null(kv_turns_next(&turns));
}

static void who_yields_comes_after_the_others(void **state)
{
	(void)state;
	work(1, 1, 1);
	assert_ptr_equal(kv_turns_next(&turns), &a->turn);
	kv_turns_yield(&turns);
	assert_ptr_equal(kv_turns_next(&turns), &b->turn);
}

/* When all queues resume, queues that have done no work yet come first.
 * Otherwise the first queue would do all its work first if few requests run at
 * a time. */
static void who_got_nothing_comes_first_when_all_go_on(void **state)
{
	struct kv_turn *c = kv_turn_get(&turns, 5), *got[7];
	struct kv_turn *all[] = {&a->turn, &b->turn, c};

	(void)state;
	for (size_t i = 0; i < 3; i++)
		kv_turn_start(&turns, all[i]);
	for (size_t round = 0; round < 7; round++) {
		got[round] = kv_turns_next(&turns);
		kv_turn_charge(got[round], 1);
		/* Stop one queue after the other. */
		for (size_t i = 0; i < 3; i++) {
			all[i] = kv_turns_next(&turns);
			kv_turn_stop(&turns, all[i]);
		}
		for (size_t i = 0; i < 3; i++)
			kv_turn_resume(&turns, all[i]);
	}
	for (size_t round = 0; round < 7; round++)
		assert_ptr_equal(got[round], round % 3 == 0   ? &a->turn
					     : round % 3 == 1 ? &b->turn
							      : c);
	kv_turn_stop(&turns, c);
	kv_turn_put(&turns, c);
}

/* A queue whose requests never end leaves the others their share of the
 * resources. */
static void who_has_very_much_under_way_leaves_some_to_others(void **state)
{
	struct kv_turn *turn, *c;
	unsigned of_a = 0, of_b = 0;

	(void)state;
	kv_turn_start(&turns, &a->turn);
	while ((turn = kv_turns_next_within(&turns, 85))) {
		kv_turn_begin(&turns, turn, 1);
		kv_turn_charge(turn, 1);
		of_a++;
	}
	assert_int_equal(of_a, 64);
	kv_turn_start(&turns, &b->turn);
	while ((turn = kv_turns_next_within(&turns, 85))) {
		assert_ptr_equal(turn, &b->turn);
		kv_turn_begin(&turns, turn, 1);
		kv_turn_charge(turn, 1);
		of_b++;
	}
	assert_int_equal(of_b, 16);
	/* Other queues can begin requests, however much two queues have in
	 * flight. */
	kv_turn_begin(&turns, &b->turn, 5);
	c = kv_turn_get(&turns, 5);
	kv_turn_start(&turns, c);
	assert_ptr_equal(kv_turns_next_within(&turns, 85), c);
	kv_turn_begin(&turns, c, 1);
	assert_null(kv_turns_next_within(&turns, 85));
	kv_turn_end(&turns, c, 1);
	kv_turn_stop(&turns, c);
	kv_turn_put(&turns, c);
	kv_turn_end(&turns, &b->turn, 5);
	while (of_b-- > 0)
		kv_turn_end(&turns, &b->turn, 1);
	assert_ptr_equal(kv_turns_next_within(&turns, 85), &b->turn);
	while (of_a-- > 0)
		kv_turn_end(&turns, &a->turn, 1);
	assert_int_equal(turns.out, 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(users_have_queues_of_their_own),
		TEST(turns_are_of_equal_cost),
		TEST(who_has_larger_pieces_waits_for_more_turns),
		TEST(who_is_alone_has_every_turn),
		TEST(who_yields_comes_after_the_others),
		TEST(who_has_very_much_under_way_leaves_some_to_others),
		TEST(who_got_nothing_comes_first_when_all_go_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
