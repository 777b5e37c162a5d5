/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_periodic.c - threads that tick.
 *
 * OWNS      nothing.
 *
 * LOCKING   none; counters are atomic.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/periodic.h"

#define MILLISECOND 1000000u
#define LONG (UINT64_C(3600) * 1000 * MILLISECOND)

struct clock {
	struct kv_periodic periodic;
	_Atomic int ticks;
	_Atomic bool rests;
};

static void tick(void *arg)
{
	struct clock *c = arg;

	c->ticks++;
}

static void tick_for_ever(void *arg)
{
	struct clock *c = arg;

	c->ticks++;
	while (!kv_periodic_stopping(&c->periodic)) {
		c->rests = true;
		kv_periodic_rest(&c->periodic, LONG);
	}
}

static void wait_for(struct clock *c, int ticks)
{
	while (c->ticks < ticks)
		usleep(1000);
}

static void it_ticks_at_once_and_when_woken(void **state)
{
	struct clock c = {0};

	(void)state;
	assert_int_equal(
		kv_periodic_start(&c.periodic, "clock", LONG, tick, &c), 0);
	wait_for(&c, 1);
	for (int i = 2; i < 10; i++) {
		kv_periodic_wake(&c.periodic);
		wait_for(&c, i);
	}
	kv_periodic_stop(&c.periodic);
	assert_int_equal(c.ticks, 9);
}

static void it_ticks_whenever_a_period_has_passed(void **state)
{
	struct clock c = {0};

	(void)state;
	assert_int_equal(
		kv_periodic_start(&c.periodic, "clock", MILLISECOND, tick, &c),
		0);
	wait_for(&c, 5);
	kv_periodic_stop(&c.periodic);
}

static void a_stop_ends_the_rest_within_a_tick(void **state)
{
	struct clock c = {0};

	(void)state;
	assert_int_equal(kv_periodic_start(&c.periodic, "clock", LONG,
					   tick_for_ever, &c),
			 0);
	while (!c.rests)
		usleep(1000);
	kv_periodic_stop(&c.periodic);
	assert_int_equal(c.ticks, 1);
}

static void one_at_rest_is_neither_woken_nor_stopped(void **state)
{
	struct kv_periodic periodic = {0};

	(void)state;
	kv_periodic_wake(&periodic);
	kv_periodic_stop(&periodic);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_ticks_at_once_and_when_woken),
		cmocka_unit_test(it_ticks_whenever_a_period_has_passed),
		cmocka_unit_test(a_stop_ends_the_rest_within_a_tick),
		cmocka_unit_test(one_at_rest_is_neither_woken_nor_stopped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
