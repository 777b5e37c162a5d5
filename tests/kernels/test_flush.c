/* SPDX-License-Identifier: Apache-2.0 */
/* Flushes, saves that wait until their blocks are durable, and barriers (waits
 * for several saves). */
#include "tests/kernels/world.h"

static void arguments_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	assert_int_equal(kvfs_flush(NULL, KVFS_SEALED, NULL, &xfer), -EINVAL);
	assert_int_equal(kvfs_flush(w->space, KVFS_COPIED, NULL, &xfer),
			 -EINVAL);
	assert_int_equal(kvfs_flush(w->space, KVFS_SEALED, NULL, NULL),
			 -EINVAL);
}

static void without_a_daemon_nothing_becomes_durable(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	world_stop_daemon(w, SIGTERM);
	world_wait_connected(w->session, 0);
	assert_int_equal(kvfs_flush(w->space, KVFS_DURABLE, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ENOTCONN);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_flush(w->space, KVFS_SEALED, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, SECOND), 1);
	kvfs_xfer_free(xfer);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
}

static void what_was_durable_survives_a_kill(void **state)
{
	struct world *w = *state;
	kvfs_key keys[20];
	int64_t pages[20];
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	uint32_t i;

	world_chain(0, 20, keys, pages);
	for (i = 0; i < 20; i++)
		world_fill(w, i, i);
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 20, pages,
				   NULL, &xfer),
			 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, 20 * SECOND), 20);
	assert_int_equal(kvfs_xfer_status(xfer, 0), 0);
	kvfs_xfer_free(xfer);
	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	lease = world_acquire(w, 20, 20);
	for (i = 0; i < 20; i++)
		assert_true(world_is(kvfs_lease_data(lease, i, NULL), i));
	kvfs_release(lease);
}

static void a_barrier_is_past_when_earlier_saves_are_sealed(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	uint8_t states[PAGES];
	kvfs_query query = {w->space, keys, 150};
	kvfs_xfer *save, *barrier;

	world_chain(0, 150, keys, pages);
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 150, pages,
				   NULL, &save),
			 0);
	assert_int_equal(kvfs_flush(w->space, KVFS_SEALED, NULL, &barrier), 0);
	assert_int_equal(kvfs_xfer_wait(barrier, KVFS_SEALED, 20 * SECOND), 1);
	assert_int_equal(kvfs_xfer_poll(save, KVFS_SEALED), 1);
	assert_int_equal(kvfs_probe(&query, 1, states), 150);
	assert_int_equal(kvfs_xfer_status(barrier, 0), 0);
	kvfs_xfer_free(save);
	kvfs_xfer_free(barrier);
}

static void a_durable_barrier_covers_what_others_have_sealed(void **state)
{
	struct world *w = *state;
	kvfs_session *session;
	kvfs_space *space;
	kvfs_xfer *xfer;

	world_save(w, 5);
	assert_int_equal(kvfs_open(w->path, &session), 0);
	assert_int_equal(
		kvfs_space_open(session, w->space_name, NULL, 0, &space), 0);
	assert_int_equal(kvfs_flush(space, KVFS_DURABLE, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, 20 * SECOND), 1);
	assert_int_equal(kvfs_xfer_status(xfer, 0), 0);
	kvfs_xfer_free(xfer);
	kvfs_space_close(space);
	kvfs_close(session);
	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	kvfs_release(world_acquire(w, 5, 5));
}

static void durable_can_be_asked_for_later(void **state)
{
	struct world *w = *state;
	kvfs_key keys[5];
	int64_t pages[5];
	kvfs_xfer *xfer;
	int i;

	world_chain(0, 5, keys, pages);
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, 5, pages, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), 5);
	for (i = 0; i < 3000 && !kvfs_xfer_poll(xfer, KVFS_DURABLE); i++)
		usleep(10000);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, 0), 5);
	kvfs_xfer_free(xfer);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(arguments_that_cannot_be_are_refused),
		test(without_a_daemon_nothing_becomes_durable),
		test(what_was_durable_survives_a_kill),
		test(a_barrier_is_past_when_earlier_saves_are_sealed),
		test(a_durable_barrier_covers_what_others_have_sealed),
		test(durable_can_be_asked_for_later),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
