/* SPDX-License-Identifier: Apache-2.0 */
/* Order with the caller's streams, on a device whose streams are the test's. */
#include "tests/kernels/fake_world.h"

/* What the kernel writes after the call is what is saved. */
static void a_save_reads_no_page_before_its_stream_is_done(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *xfer = begin_save(w, 0, 8, &opts);
	uint32_t i;

	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SECOND / 20),
			 -ETIMEDOUT);
	assert_int_equal(fake.saves, 0);
	for (i = 0; i < 8; i++)
		world_fill(w, i, i);
	slow.quiet = true;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 8);
	kvfs_xfer_free(xfer);
	xfer = begin_load(w, 8, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 8);
	assert_blocks_are_there(w, 8);
	kvfs_xfer_free(xfer);
}

static void a_load_writes_no_page_before_its_stream_is_done(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *xfer;

	world_save(w, 8);
	xfer = begin_load(w, 8, &opts);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SECOND / 20),
			 -ETIMEDOUT);
	assert_true(untouched(w, 8));
	assert_pages_loading(w, 8);
	slow.quiet = true;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 8);
	assert_blocks_are_there(w, 8);
	kvfs_xfer_free(xfer);
}

static void an_event_says_when_pages_are_quiet(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .event = &slow};
	kvfs_xfer *xfer;

	world_save(w, 4);
	xfer = begin_load(w, 4, &opts);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SECOND / 20),
			 -ETIMEDOUT);
	assert_true(untouched(w, 4));
	slow.quiet = true;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 4);
	kvfs_xfer_free(xfer);
}

/* Nobody looks at a stream that was over at the call; its event wait is gone.
 */
static void a_stream_that_is_done_holds_nothing_up(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *xfer;

	world_save(w, 4);
	slow.quiet = true;
	xfer = begin_load(w, 4, &opts);
	assert_int_equal(fake.event_waits, 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 4);
	kvfs_xfer_free(xfer);
}

/* More saves than there are copy threads; none of them has one. */
static void a_slow_stream_holds_up_nobody_else(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *saves[8], *load;
	uint32_t i;

	world_save(w, 16);
	for (i = 0; i < 8; i++)
		saves[i] = begin_save(w, 100 + 10 * i, 10, &opts);
	load = begin_load(w, 16, NULL);
	assert_int_equal(kvfs_xfer_wait(load, KVFS_COPIED, 60 * SECOND), 16);
	kvfs_xfer_free(load);
	load = begin_save(w, 500, 10, NULL);
	assert_int_equal(kvfs_xfer_wait(load, KVFS_SEALED, 60 * SECOND), 10);
	kvfs_xfer_free(load);
	slow.quiet = true;
	for (i = 0; i < 8; i++) {
		assert_int_equal(
			kvfs_xfer_wait(saves[i], KVFS_SEALED, 60 * SECOND), 10);
		kvfs_xfer_free(saves[i]);
	}
}

/* The pages are the engine's again, although the stream hangs. */
static void a_deadline_ends_the_wait_for_a_stream(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {
		.size = sizeof(opts), .stream = &slow, .deadline = SECOND / 50};
	kvfs_xfer *xfer;

	world_save(w, 4);
	fake.saves = 0;
	xfer = begin_load(w, 4, &opts);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 3), -ETIMEDOUT);
	assert_true(untouched(w, 4));
	assert_pages_loading(w, 0);
	kvfs_xfer_free(xfer);
	xfer = begin_save(w, 10, 4, &opts);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ETIMEDOUT);
	assert_int_equal(fake.saves, 0);
	kvfs_xfer_free(xfer);
	slow.quiet = true;
}

static void a_cancel_ends_the_wait_for_a_stream(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *load, *save;

	world_save(w, 4);
	fake.saves = 0;
	load = begin_load(w, 4, &opts);
	save = begin_save(w, 10, 4, &opts);
	kvfs_xfer_cancel(load);
	kvfs_xfer_cancel(save);
	assert_int_equal(kvfs_xfer_poll(load, KVFS_COPIED), 1);
	assert_int_equal(kvfs_xfer_poll(save, KVFS_SEALED), 1);
	assert_int_equal(kvfs_xfer_status(load, 0), -ECANCELED);
	assert_int_equal(kvfs_xfer_status(save, 0), -ECANCELED);
	assert_true(untouched(w, 4));
	slow.quiet = true;
	usleep(10000);
	assert_true(untouched(w, 4));
	assert_int_equal(fake.saves, 0);
	kvfs_xfer_free(load);
	kvfs_xfer_free(save);
}

static void work_after_a_load_waits_until_it_is_copied(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *xfer;

	world_save(w, 4);
	xfer = begin_load(w, 4, &opts);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	assert_int_equal(kvfs_xfer_order_layer(xfer, 7, &compute), 0);
	assert_int_equal(fake.semaphores, 1); /* of all of it, once */
	assert_int_equal(compute.waits, 3);
	assert_int_equal(compute.held, 3);
	kvfs_xfer_free(xfer); /* it goes on by itself */
	usleep(10000);
	assert_int_equal(compute.held, 3);
	slow.quiet = true;
	wait_until(&compute.held, 0);
	assert_blocks_are_there(w, 4);
	wait_until(&fake.semaphores, 0);
	wait_until(&fake.event_waits, 0);
}

static void work_after_a_save_waits_until_it_is_copied(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *xfer = begin_save(w, 0, 8, &opts);

	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	assert_int_equal(compute.held, 1);
	slow.quiet = true;
	wait_until(&compute.held, 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 8);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	assert_int_equal(compute.waits, 1); /* what is over makes nobody wait */
	kvfs_xfer_free(xfer);
}

static void a_transfer_that_failed_holds_nobody_up(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *xfer;

	world_save(w, 4);
	xfer = begin_load(w, 4, &opts);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	kvfs_xfer_cancel(xfer);
	wait_until(&compute.held, 0);
	kvfs_xfer_free(xfer);
	slow.quiet = true;
}

/* The second step is held up: the first is over all the same. */
static void a_layer_is_waited_for_by_itself(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {
		.size = sizeof(opts), .stream = &slow, .flags = KVFS_BY_LAYER};
	struct fake_stream early = {false}, late = {false};
	kvfs_xfer *xfer;

	world_save(w, BLOCKS);
	xfer = begin_load(w, BLOCKS, &opts);
	assert_int_equal(kvfs_xfer_order_layer(xfer, 0, &early), 0);
	assert_int_equal(kvfs_xfer_order_layer(xfer, LAST_LAYER, &late), 0);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	assert_int_equal(kvfs_xfer_order_layer(xfer, LAST_LAYER + 1, &late),
			 -EINVAL);
	assert_int_equal(fake.semaphores, 3);
	fake.held_from = 1; /* not the first layer's */
	slow.quiet = true;
	wait_until(&early.held, 0);
	assert_int_equal(late.held, 1);
	assert_int_equal(compute.held, 1);
	fake.held_from = UINT64_MAX;
	wait_until(&late.held, 0);
	wait_until(&compute.held, 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
			 BLOCKS);
	assert_blocks_are_there(w, BLOCKS);
	kvfs_xfer_free(xfer);
}

static void a_restore_waits_for_its_stream_and_is_waited_for(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_xfer *xfer;

	world_save(w, 8);
	world_chain(0, 8, keys, pages);
	assert_int_equal(kvfs_snapshot(w->space, "s", keys, NULL, 8, NULL), 0);
	memset(w->memory, 0xee, (size_t)PAGES * PAYLOAD);
	assert_int_equal(kvfs_restore(w->pool, w->space, "s", NULL, 8, pages,
				      &opts, &xfer),
			 0);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SECOND / 20),
			 -ETIMEDOUT);
	assert_true(untouched(w, 8));
	assert_int_equal(compute.held, 1);
	slow.quiet = true;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 8);
	wait_until(&compute.held, 0);
	assert_blocks_are_there(w, 8);
	kvfs_xfer_free(xfer);
	slow.quiet = false;
	assert_int_equal(kvfs_restore(w->pool, w->space, "s", NULL, 8, pages,
				      &opts, &xfer),
			 0);
	kvfs_xfer_cancel(xfer);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 7), -ECANCELED);
	kvfs_xfer_free(xfer);
	slow.quiet = true;
}

static void a_pool_is_closed_after_its_marks_and_gates(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {
		.size = sizeof(opts), .stream = &slow, .deadline = SECOND / 50};
	kvfs_xfer *xfer;

	world_save(w, 4);
	xfer = begin_load(w, 4, &opts);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	kvfs_pool_close(kv_steal(w->pool)); /* fake_close counts what is left */
	assert_int_equal(compute.held, 0);
	assert_int_equal(fake.pools, 0);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	kvfs_xfer_free(xfer);
	slow.quiet = true;
}

static void what_cannot_be_ordered_is_refused(void **state)
{
	struct world *w = *state;
	kvfs_opts both = {
		.size = sizeof(both), .stream = &slow, .event = &slow};
	kvfs_opts one = {.size = sizeof(one), .stream = &slow};
	kvfs_pool *host = world_pool(w, w->space);
	int64_t page = 0;
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 1);
	lease = world_acquire(w, 1, 1);
	assert_int_equal(kvfs_load(w->pool, lease, 1, &page, &both, &xfer),
			 -EINVAL);
	assert_int_equal(kvfs_load(host, lease, 1, &page, &one, &xfer),
			 -EOPNOTSUPP);
	fake.event_wait_error = -ENOMEM;
	assert_int_equal(kvfs_load(w->pool, lease, 1, &page, &one, &xfer),
			 -ENOMEM);
	fake.event_wait_error = 0;
	page = PAGES; /* the event wait is made, and given back */
	assert_int_equal(kvfs_load(w->pool, lease, 1, &page, &one, &xfer),
			 -EINVAL);
	page = 0;
	assert_int_equal(kvfs_load(host, lease, 1, &page, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), -EOPNOTSUPP);
	assert_int_equal(kvfs_xfer_order_layer(xfer, 0, &compute), -EOPNOTSUPP);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_flush(w->space, KVFS_SEALED, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), -EINVAL);
	assert_int_equal(kvfs_xfer_order(NULL, &compute), -EINVAL);
	kvfs_xfer_free(xfer);
	one.stream = &slow;
	assert_int_equal(kvfs_load(w->pool, lease, 1, &page, &one, &xfer), 0);
	fake.gate_error = -ENOMEM;
	assert_int_equal(kvfs_xfer_order(xfer, &compute), -ENOMEM);
	slow.quiet = true;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 1);
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
	kvfs_pool_close(host);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, fake_setup, fake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_save_reads_no_page_before_its_stream_is_done),
		test(a_load_writes_no_page_before_its_stream_is_done),
		test(an_event_says_when_pages_are_quiet),
		test(a_stream_that_is_done_holds_nothing_up),
		test(a_slow_stream_holds_up_nobody_else),
		test(a_deadline_ends_the_wait_for_a_stream),
		test(a_cancel_ends_the_wait_for_a_stream),
		test(work_after_a_load_waits_until_it_is_copied),
		test(work_after_a_save_waits_until_it_is_copied),
		test(a_transfer_that_failed_holds_nobody_up),
		test(a_layer_is_waited_for_by_itself),
		test(a_restore_waits_for_its_stream_and_is_waited_for),
		test(a_pool_is_closed_after_its_marks_and_gates),
		test(what_cannot_be_ordered_is_refused),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
