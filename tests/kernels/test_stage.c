/* SPDX-License-Identifier: Apache-2.0 */
/* The ring from which staging memory is allocated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <cmocka.h>

#include "kernels/transfer/xfer.h"

#define SIZE ((uint64_t)4 << 20)
#define MIB ((uint64_t)1 << 20)

static int setup(void **state)
{
	struct kv_stage *stage;

	if (kv_stage_new(SIZE, false, false, &stage) < 0)
		return -1;
	*state = stage;
	return 0;
}

static int teardown(void **state)
{
	kv_stage_free(*state);
	return 0;
}

static struct kv_extent *get(struct kv_stage *stage, uint64_t bytes)
{
	struct kv_extent *extent;

	assert_int_equal(kv_stage_get(stage, bytes, &extent), 0);
	return extent;
}

static void more_than_there_is_waits(void **state)
{
	struct kv_extent *extent;

	assert_int_equal(kv_stage_get(*state, SIZE + 1, &extent), -EAGAIN);
	get(*state, SIZE);
	assert_int_equal(kv_stage_get(*state, 1, &extent), -EAGAIN);
}

static void absurd_sizes_are_refused(void **state)
{
	struct kv_stage *stage;

	(void)state;
	assert_true(kv_stage_new(UINT64_MAX, false, false, &stage) < 0);
	assert_true(kv_stage_new((uint64_t)1 << 60, false, false, &stage) < 0);
}

static void it_cannot_be_shrunk_or_grown(void **state)
{
	int fd = ((struct kv_stage *)*state)->fd,
	    seals = fcntl(fd, F_GET_SEALS);

	assert_true(seals & F_SEAL_SHRINK);
	assert_true(seals & F_SEAL_GROW);
	assert_true(seals & F_SEAL_FUTURE_WRITE);
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

static void extents_do_not_overlap_and_come_back_in_ring_order(void **state)
{
	struct kv_stage *stage = *state;
	struct kv_extent *a = get(stage, MIB), *b = get(stage, 2 * MIB), *c, *d;

	assert_int_equal(a->offset, 0);
	assert_int_equal(b->offset, MIB);
	assert_int_equal(kv_stage_get(stage, 2 * MIB, &c), -EAGAIN);
	kv_stage_put(stage, a);
	c = get(stage, MIB);
	assert_int_equal(c->offset, 3 * MIB);
	d = get(stage, MIB);
	assert_int_equal(d->offset, 0);
	assert_int_equal(kv_stage_get(stage, 1, &a), -EAGAIN);
	kv_stage_put(stage, d);
	kv_stage_put(stage, c);
	/* Allocations are freed in ring order: while the oldest one, b, is in
	 * use, the ring has no free room. */
	assert_int_equal(kv_stage_get(stage, 1, &a), -EAGAIN);
	kv_stage_put(stage, b);
	assert_true(TAILQ_EMPTY(&stage->extents));
	get(stage, SIZE);
}

static void an_abandoned_one_goes_with_its_last_extent(void **state)
{
	struct kv_extent *a = get(*state, MIB), *b = get(*state, MIB), *c;
	struct kv_stage *stage = *state;
	int fd = stage->fd;

	*state = NULL;
	kv_stage_abandon(stage);
	assert_int_equal(kv_stage_get(stage, 1, &c), -EAGAIN);
	kv_stage_put(stage, a);
	stage->base[b->offset] = 1;
	assert_true(fcntl(fd, F_GETFD) >= 0);
	kv_stage_put(stage, b);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	kv_stage_abandon(NULL);
	kv_stage_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(more_than_there_is_waits, setup,
						teardown),
		cmocka_unit_test(absurd_sizes_are_refused),
		cmocka_unit_test_setup_teardown(it_cannot_be_shrunk_or_grown,
						setup, teardown),
		cmocka_unit_test_setup_teardown(
			extents_do_not_overlap_and_come_back_in_ring_order,
			setup, teardown),
		cmocka_unit_test_setup_teardown(
			an_abandoned_one_goes_with_its_last_extent, setup,
			teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
