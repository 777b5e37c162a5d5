/* SPDX-License-Identifier: Apache-2.0 */
/* Order between transfers and the caller's streams, on the fake device. */
#include "tests/kernels/fake_world.h"

/* A stream that has no work left when the load begins is not polled, and its
 * event wait is freed. */
static void a_stream_that_is_done_holds_nothing_up(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *xfer;

	world_save(w, 4);
	slow.quiet = true;
	/* hold up all loads: no batch begins, so no event wait is made */
	fake.held_from = 0;
	xfer = begin_load(w, 4, &opts);
	assert_int_equal(fake.event_waits, 0);
	fake.held_from = UINT64_MAX;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 4);
	kvfs_xfer_free(xfer);
}

/* More saves wait for a stream than there are copy threads, but the saves
 * occupy none of the threads. */
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

/* The engine gets the pages back although the stream hangs. */
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

/* After the close no memory is read or written, whatever the stream does. */
static void a_pool_closes_though_a_stream_is_never_over(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *load, *save;

	world_save(w, 4);
	fake.saves = 0;
	load = begin_load(w, 4, &opts);
	save = begin_save(w, 10, 4, &opts);
	kvfs_pool_close(kv_steal(w->pool));
	assert_int_equal(kvfs_xfer_status(load, 3), -ETIMEDOUT);
	assert_int_equal(kvfs_xfer_status(save, 0), -ETIMEDOUT);
	assert_int_equal(fake.event_waits, 0);
	slow.quiet = true;
	usleep(10000);
	assert_true(untouched(w, 4));
	assert_int_equal(fake.saves, 0);
	kvfs_xfer_free(load);
	kvfs_xfer_free(save);
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

/* A stream cannot be ordered after copies not yet submitted: they may have to
 * wait for the stream. */
static void what_is_not_submitted_orders_nothing(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *xfer;

	world_save(w, 4);
	fake.running_from = 0;
	xfer = begin_load(w, 4, &opts);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), -EAGAIN);
	assert_int_equal(kvfs_xfer_order_layer(xfer, 7, &compute), -EAGAIN);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_SUBMITTED), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SUBMITTED, SECOND / 50),
			 -ETIMEDOUT);
	assert_int_equal(compute.waits, 0);
	slow.quiet = true;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SUBMITTED, 60 * SECOND), 4);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 0);
	fake.running_from = UINT64_MAX;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 4);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_SUBMITTED), 1);
	kvfs_xfer_free(xfer);
}

static void wait_quiet(struct fake_stream *copy)
{
	int i;

	assert_non_null(copy);
	for (i = 0; i < 60000 && !copy->quiet; i++)
		usleep(1000);
	assert_true(copy->quiet);
}

static void work_after_a_load_waits_until_it_is_copied(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;
	int units;

	world_save(w, 4);
	fake.submitted = 0;
	fake.running_from = 0;
	xfer = begin_load(w, 4, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SUBMITTED, 60 * SECOND), 4);
	units = fake.submitted;
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	/* stream `compute` waits for each batch of the transfer */
	assert_int_equal(compute.waits, units);
	assert_int_equal(kvfs_xfer_order_layer(xfer, 7, &compute), 0);
	assert_int_equal(compute.waits, 2 * units);
	assert_false(compute.after->quiet);
	/* the transfer continues after its handle was freed */
	kvfs_xfer_free(xfer);
	usleep(10000);
	assert_false(compute.after->quiet);
	fake.running_from = UINT64_MAX;
	wait_quiet(compute.after);
	wait_until(&fake.event_waits, 0);
	assert_blocks_are_there(w, 4);
}

static void work_after_a_save_waits_until_it_is_copied(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;
	int waits;

	fake.saves_held = fake.saves_running = true;
	xfer = begin_save(w, 0, 8, NULL);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), -EAGAIN);
	fake.saves_held = false;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SUBMITTED, 60 * SECOND), 8);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	waits = compute.waits;
	assert_true(waits > 0);
	assert_false(compute.after->quiet);
	fake.saves_running = false;
	wait_quiet(compute.after);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 8);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	/* stream `compute` does not wait for copies that have ended */
	assert_int_equal(compute.waits, waits);
	kvfs_xfer_free(xfer);
}

static void a_transfer_that_failed_holds_nobody_up(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *xfer;

	world_save(w, 4);
	xfer = begin_load(w, 4, &opts);
	kvfs_xfer_cancel(xfer);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SUBMITTED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	assert_int_equal(compute.waits, 0);
	kvfs_xfer_free(xfer);
	slow.quiet = true;
}

/* A wait for SUBMITTED ends if the device fails before it reports that
 * stage. */
static void a_batch_that_fails_is_submitted_all_the_same(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	world_save(w, 8);
	fake.one_load_error = -EIO;
	fake.running_from = 0;
	xfer = begin_load(w, 8, NULL);
	assert_true(kvfs_xfer_wait(xfer, KVFS_SUBMITTED, 60 * SECOND) > 0);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	fake.running_from = UINT64_MAX;
	assert_in_range(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 1, 7);
	kvfs_xfer_free(xfer);
}

/* A transfer reaches SUBMITTED although some of its blocks are missing. */
static void blocks_that_are_missing_do_not_hold_the_stage_up(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	const kvfs_query query = {w->space, keys, 8};
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 5);
	world_chain(0, 8, keys, pages);
	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	fake.submitted = 0;
	fake.running_from = 0;
	assert_int_equal(kvfs_load(w->pool, lease, 8, pages, NULL, &xfer), 0);
	kvfs_release(lease);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SUBMITTED, 60 * SECOND), 5);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	assert_int_equal(compute.waits, fake.submitted);
	fake.running_from = UINT64_MAX;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 5);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SUBMITTED, 0), 5);
	kvfs_xfer_free(xfer);
}

/* Absent blocks are not submitted, with and without KVFS_BY_LAYER. */
static void what_is_absent_is_not_told_as_submitted(void **state)
{
	struct world *w = *state;
	kvfs_opts asks = {
		.size = sizeof(asks), .user = 1, .flags = KVFS_TELL_SUBMITTED};
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	const kvfs_query query = {w->space, keys, 8};
	kvfs_event events[4];
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	for (uint32_t there = 0; there < 8; there += 3) {
		if (there > 0)
			world_save(w, there);
		world_chain(0, 8, keys, pages);
		assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
		while (kvfs_reap(w->session, events, 4) > 0)
			continue;
		asks.flags ^= KVFS_BY_LAYER;
		assert_int_equal(
			kvfs_load(w->pool, lease, 8, pages, &asks, &xfer), 0);
		kvfs_release(lease);
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
				 there);
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SUBMITTED, 0),
				 there);
		assert_int_equal(kvfs_reap(w->session, events, 4), 2);
		assert_int_equal(events[0].stage, KVFS_SUBMITTED);
		assert_int_equal(events[0].result, there);
		assert_int_equal(events[0].n, 8);
		kvfs_xfer_free(xfer);
	}
}

/* The second step of the load is held up: a stream can wait for the first step
 * alone. */
static void a_layer_is_waited_for_by_itself(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_BY_LAYER};
	struct fake_stream early = {false}, late = {false};
	kvfs_xfer *xfer;
	int i, r;

	world_save(w, BLOCKS);
	fake.submitted = 0;
	fake.running_from = 0;
	fake.held_from = 1; /* hold up the copies of all layers but the first */
	xfer = begin_load(w, BLOCKS, &opts);
	wait_for_some(&fake.submitted);
	fake.running_from = 1;
	for (i = 0; i < 60000; i++) {
		r = kvfs_xfer_order_layer(xfer, 0, &early);
		if (r != -EAGAIN)
			break;
		usleep(1000);
	}
	assert_int_equal(r, 0);
	assert_int_equal(kvfs_xfer_order_layer(xfer, LAST_LAYER, &late),
			 -EAGAIN);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), -EAGAIN);
	assert_int_equal(kvfs_xfer_order_layer(xfer, LAST_LAYER + 1, &late),
			 -EINVAL);
	assert_int_equal(late.waits + compute.waits, 0);
	fake.held_from = fake.running_from = UINT64_MAX;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SUBMITTED, 60 * SECOND),
			 BLOCKS);
	assert_int_equal(kvfs_xfer_order_layer(xfer, LAST_LAYER, &late), 0);
	if (late.waits > 0)
		wait_quiet(late.after);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
			 BLOCKS);
	assert_blocks_are_there(w, BLOCKS);
	kvfs_xfer_free(xfer);
}

static void a_pool_is_closed_after_its_marks(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {
		.size = sizeof(opts), .stream = &slow, .deadline = SECOND / 50};
	kvfs_xfer *xfer;

	world_save(w, 4);
	xfer = begin_load(w, 4, &opts);
	/* fake_close counts event waits that were not freed */
	kvfs_pool_close(kv_steal(w->pool));
	assert_int_equal(fake.pools, 0);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	assert_int_equal(compute.waits, 0);
	kvfs_xfer_free(xfer);
	slow.quiet = true;
}

/* Events of a transfer and their order; SUBMITTED is only for a caller that
 * asks for it. */
static void submitted_is_reaped_by_who_asked_for_it(void **state)
{
	struct world *w = *state;
	kvfs_opts asks = {
		.size = sizeof(asks), .user = 1, .flags = KVFS_TELL_SUBMITTED};
	kvfs_opts plain = {.size = sizeof(plain), .user = 2};
	kvfs_event events[8];
	kvfs_xfer *a, *b;

	world_save(w, 4);
	while (kvfs_reap(w->session, events, 8) > 0)
		continue;
	fake.running_from = 0;
	a = begin_load(w, 4, &asks);
	assert_int_equal(kvfs_xfer_wait(a, KVFS_SUBMITTED, 60 * SECOND), 4);
	assert_int_equal(kvfs_reap(w->session, events, 8), 1);
	assert_int_equal(events[0].stage, KVFS_SUBMITTED);
	assert_int_equal(events[0].result, 4);
	fake.running_from = UINT64_MAX;
	assert_int_equal(kvfs_xfer_wait(a, KVFS_COPIED, 60 * SECOND), 4);
	b = begin_load(w, 4, &plain);
	assert_int_equal(kvfs_xfer_wait(b, KVFS_COPIED, 60 * SECOND), 4);
	kvfs_xfer_free(a);
	assert_int_equal(kvfs_reap(w->session, events, 8), 1);
	assert_int_equal(events[0].user, 2);
	assert_int_equal(events[0].stage, KVFS_COPIED);
	kvfs_xfer_free(b);
	a = begin_load(w, 4, &asks);
	assert_int_equal(kvfs_xfer_wait(a, KVFS_COPIED, 60 * SECOND), 4);
	assert_int_equal(kvfs_reap(w->session, events, 8), 2);
	assert_int_equal(events[0].stage, KVFS_SUBMITTED);
	assert_int_equal(events[1].stage, KVFS_COPIED);
	kvfs_xfer_free(a);
}

static void *order_until_it_does(void *arg)
{
	struct fake_stream stream = {false};
	int r;

	do
		r = kvfs_xfer_order(arg, &stream);
	while (r == -EAGAIN);
	return (void *)(intptr_t)r;
}

/* Order streams at any point of a copy thread's work on a transfer. */
static void streams_are_ordered_while_batches_come_and_go(void **state)
{
	struct world *w = *state;
	pthread_t threads[3];
	kvfs_xfer *xfer;
	void *r;
	int round, i;

	world_save(w, 32);
	for (round = 0; round < 30; round++) {
		xfer = begin_load(w, 32, NULL);
		for (i = 0; i < 3; i++)
			pthread_create(&threads[i], NULL, order_until_it_does,
				       xfer);
		for (i = 0; i < 3; i++) {
			pthread_join(threads[i], &r);
			assert_null(r);
		}
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
				 32);
		kvfs_xfer_free(xfer);
	}
	assert_blocks_are_there(w, 32);
	assert_int_equal(fake.event_waits, 0);
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
	/* the page is invalid: the event wait is made, and freed again */
	page = PAGES;
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
	fake.running_from = 0;
	assert_int_equal(kvfs_load(w->pool, lease, 1, &page, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SUBMITTED, 60 * SECOND), 1);
	fake.order_error = -EBUSY;
	assert_int_equal(kvfs_xfer_order(xfer, &compute), -EBUSY);
	fake.running_from = UINT64_MAX;
	assert_int_equal(kvfs_xfer_order(xfer, NULL), -EINVAL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 1);
	/* After the transfer has ended, kvfs_xfer_order makes no device
	 * call. */
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	assert_int_equal(kvfs_xfer_order(xfer, NULL), -EINVAL);
	assert_int_equal(kvfs_xfer_order_layer(xfer, 0, NULL), -EINVAL);
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
	kvfs_pool_close(host);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, fake_setup, fake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_stream_that_is_done_holds_nothing_up),
		test(a_slow_stream_holds_up_nobody_else),
		test(a_deadline_ends_the_wait_for_a_stream),
		test(a_pool_closes_though_a_stream_is_never_over),
		test(a_cancel_ends_the_wait_for_a_stream),
		test(what_is_not_submitted_orders_nothing),
		test(work_after_a_load_waits_until_it_is_copied),
		test(work_after_a_save_waits_until_it_is_copied),
		test(a_transfer_that_failed_holds_nobody_up),
		test(a_batch_that_fails_is_submitted_all_the_same),
		test(blocks_that_are_missing_do_not_hold_the_stage_up),
		test(what_is_absent_is_not_told_as_submitted),
		test(a_layer_is_waited_for_by_itself),
		test(a_pool_is_closed_after_its_marks),
		test(submitted_is_reaped_by_who_asked_for_it),
		test(streams_are_ordered_while_batches_come_and_go),
		test(what_cannot_be_ordered_is_refused),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
