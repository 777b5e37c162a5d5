/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: statuses, pointers, and the events that end a lease. */
#include "tests/kernels/world.h"

/* Return the number of leased blocks that the daemon's statistics have. */
static long leases(struct world *w)
{
	char *text, *at;
	long n = -1;

	assert_int_equal(kvfs_stats(w->session, &text), 0);
	at = strstr(text, "held ");
	if (at != NULL)
		sscanf(at, "held %ld leased", &n);
	free(text);
	return n;
}

static void wait_for_no_leases(struct world *w)
{
	long n;

	for (int i = 0; (n = leases(w)) > 0 && i < 3000; i++)
		usleep(10000);
	assert_int_equal(n, 0);
}

static void arguments_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0), bad = {.len = 17};
	kvfs_query query = {w->space, &key, 1};
	kvfs_lease *lease;

	assert_int_equal(
		kvfs_acquire(NULL, 1, KVFS_OPTS(.deadline = 1), &lease),
		-EINVAL);
	assert_int_equal(
		kvfs_acquire(&query, 0, KVFS_OPTS(.deadline = 1), &lease),
		-EINVAL);
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.flags = 4, .deadline = 1),
				      &lease),
			 -EINVAL);
	assert_int_equal(
		kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = 1), NULL),
		-EINVAL);
	query.keys = &bad;
	assert_int_equal(
		kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = 1), &lease),
		-EINVAL);
	query.keys = NULL;
	assert_int_equal(
		kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = 1), &lease),
		-EINVAL);
	query.space = NULL;
	assert_int_equal(
		kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = 1), &lease),
		-EINVAL);
}

static void an_unknown_handle_or_index_is_einval(void **state)
{
	struct world *w = *state;
	kvfs_lease *lease;

	assert_int_equal(kvfs_lease_poll(NULL), -EINVAL);
	assert_int_equal(kvfs_lease_wait(NULL, 0), -EINVAL);
	assert_int_equal(kvfs_lease_status(NULL, 0), -EINVAL);
	assert_null(kvfs_lease_data(NULL, 0, NULL));
	kvfs_lease_cancel(NULL);
	kvfs_release(NULL);
	world_save(w, 1);
	lease = world_acquire(w, 1, 1);
	assert_int_equal(kvfs_lease_status(lease, 1), -EINVAL);
	assert_null(kvfs_lease_data(lease, 1, NULL));
	kvfs_release(lease);
}

static void a_block_that_is_absent_has_a_status_and_no_pointer(void **state)
{
	struct world *w = *state;
	kvfs_lease *lease;
	uint64_t bytes;

	world_save(w, 2);
	lease = world_acquire(w, 3, 2);
	assert_int_equal(kvfs_lease_poll(lease), 1);
	assert_int_equal(kvfs_lease_status(lease, 2), -ENOENT);
	assert_null(kvfs_lease_data(lease, 2, &bytes));
	assert_null(kvfs_lease_file(lease, 2, &bytes));
	kvfs_release(lease);
}

static void pointers_show_the_tensors_and_the_whole_file(void **state)
{
	struct world *w = *state;
	const uint8_t *data, *file;
	kvfs_lease *lease;
	uint64_t bytes, length, head;
	uint32_t i;

	world_save(w, 20);
	lease = world_acquire(w, 20, 20);
	for (i = 0; i < 20; i++) {
		data = kvfs_lease_data(lease, i, &bytes);
		assert_int_equal(bytes, PAYLOAD);
		assert_true(world_is(data, i));
		file = kvfs_lease_file(lease, i, &length);
		memcpy(&head, file, sizeof(head));
		assert_ptr_equal(file + 8 + head, data);
		assert_int_equal(length, 8 + head + bytes);
	}
	kvfs_release(lease);
}

/* Each key has its own status, whatever the order of the keys. */
static void results_are_in_the_order_of_the_keys_asked(void **state)
{
	struct world *w = *state;
	kvfs_key keys[3] = {world_key(7), world_key(100), world_key(3)};
	kvfs_key more[2] = {world_key(9), world_key(0)};
	kvfs_query queries[2] = {{w->space, keys, 3}, {w->space, more, 2}};
	kvfs_lease *lease;

	world_save(w, 10);
	assert_int_equal(
		kvfs_acquire(queries, 2, KVFS_OPTS(.deadline = SECOND), &lease),
		0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), 4);
	assert_true(world_is(kvfs_lease_data(lease, 0, NULL), 7));
	assert_int_equal(kvfs_lease_status(lease, 1), -ENOENT);
	assert_true(world_is(kvfs_lease_data(lease, 2, NULL), 3));
	assert_true(world_is(kvfs_lease_data(lease, 3, NULL), 9));
	assert_true(world_is(kvfs_lease_data(lease, 4, NULL), 0));
	kvfs_release(lease);
}

static void more_keys_than_a_message_holds_are_one_lease(void **state)
{
	struct world *w = *state;
	kvfs_key keys[1500];
	kvfs_query query = {w->space, keys, 1500};
	kvfs_lease *lease;
	size_t i;

	world_save(w, 10);
	for (i = 0; i < 1500; i++)
		keys[i] = world_key((uint32_t)(i % 150));
	assert_int_equal(
		kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = SECOND), &lease),
		0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), 100);
	assert_true(world_is(kvfs_lease_data(lease, 1359, NULL), 9));
	assert_int_equal(kvfs_lease_status(lease, 1360), -ENOENT);
	kvfs_release(lease);
	wait_for_no_leases(w);
}

static void no_keys_at_all_settle_at_once(void **state)
{
	struct world *w = *state;
	kvfs_query query = {w->space, NULL, 0};
	kvfs_lease *lease;

	assert_int_equal(
		kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = 1), &lease), 0);
	assert_int_equal(kvfs_lease_poll(lease), 1);
	assert_int_equal(kvfs_lease_wait(lease, 0), 0);
	kvfs_release(lease);
}

static void every_lease_ends_with_its_release_or_its_session(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	kvfs_lease *lease, *other;
	int i;

	world_save(w, 5);
	lease = world_acquire(w, 5, 5);
	other = world_acquire(w, 7, 5);
	assert_true(leases(w) > 0);
	kvfs_release(lease);
	kvfs_release(other);
	wait_for_no_leases(w);
	for (i = 0; i < 100; i++) {
		assert_int_equal(kvfs_acquire(&query, 1,
					      KVFS_OPTS(.deadline = SECOND),
					      &lease),
				 0);
		kvfs_release(lease);
	}
	/* The daemon answers in order: when it has answered this request, it
	 * has answered all earlier ones. */
	kvfs_release(world_acquire(w, 1, 1));
	wait_for_no_leases(w);
}

/* The load owns the lease, which ends with the load. */
static void a_load_gives_the_lease_back_when_it_is_done(void **state)
{
	struct world *w = *state;
	int64_t pages[5] = {0, 1, 2, 3, 4};
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 5);
	lease = world_acquire(w, 5, 5);
	assert_int_equal(kvfs_load(w->pool, lease, 5, pages, NULL, &xfer), 0);
	kvfs_release(lease);
	kvfs_xfer_free(xfer);
	wait_for_no_leases(w);
}

static void a_waiting_lease_can_be_cancelled(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	kvfs_lease *lease;

	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.flags = KVFS_WAIT_SAVING),
				      &lease),
			 0);
	kvfs_lease_cancel(lease);
	assert_int_equal(kvfs_lease_wait(lease, 5 * SECOND), 0);
	assert_true(kvfs_lease_status(lease, 0) == -ECANCELED ||
		    kvfs_lease_status(lease, 0) == -ENOENT);
	kvfs_release(lease);
}

/* A frozen daemon does not answer: the lease expires by its own clock.  The
 * daemon's late answer releases the blocks. */
static void a_daemon_that_does_not_answer_in_time_is_a_miss(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	uint64_t before;
	kvfs_lease *lease;

	world_save(w, 1);
	world_freeze(w);
	before = kv_now_ns();
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.deadline = 3 * SECOND),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_status(lease, 0), -EINPROGRESS);
	assert_int_equal(kvfs_lease_wait(lease, SECOND / 100), -ETIMEDOUT);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), 0);
	assert_true(kv_now_ns() - before < 20 * SECOND);
	assert_int_equal(kvfs_lease_status(lease, 0), -ETIMEDOUT);
	kvfs_release(lease);
	world_thaw(w);
	/* The daemon has answered the first acquire before the second. */
	kvfs_release(world_acquire(w, 1, 1));
	wait_for_no_leases(w);
}

static void pointers_outlive_the_daemon_and_old_leases_load_no_more(void **s)
{
	struct world *w = *s;
	int64_t page = 9;
	const uint8_t *data;
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 1);
	lease = world_acquire(w, 1, 1);
	data = kvfs_lease_data(lease, 0, NULL);
	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	assert_true(world_is(data, 0));
	assert_int_equal(kvfs_lease_status(lease, 0), 0);
	assert_ptr_equal(kvfs_lease_data(lease, 0, NULL), data);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	assert_int_equal(kvfs_load(w->pool, lease, 1, &page, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ESTALE);
	kvfs_xfer_free(xfer);
	assert_true(world_is(data, 0));
	kvfs_release(lease);
}

static void a_lease_under_way_ends_with_the_daemon(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	kvfs_lease *lease;

	world_freeze(w);
	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	world_stop_daemon(w, SIGKILL);
	assert_int_equal(kvfs_lease_wait(lease, 5 * SECOND), 0);
	assert_int_equal(kvfs_lease_status(lease, 0), -ENOTCONN);
	kvfs_release(lease);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
}

static void two_sessions_lease_the_same_blocks(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_session *session;
	kvfs_lease *lease, *mine;
	kvfs_space *space;
	kvfs_query query;

	world_save(w, 1);
	mine = world_acquire(w, 1, 1);
	assert_int_equal(kvfs_open(w->path, &session), 0);
	assert_int_equal(
		kvfs_space_open(session, w->space_name, NULL, 0, &space), 0);
	query = (kvfs_query){space, &key, 1};
	assert_int_equal(
		kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = SECOND), &lease),
		0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), 1);
	kvfs_release(mine);
	assert_true(world_is(kvfs_lease_data(lease, 0, NULL), 0));
	kvfs_release(lease);
	kvfs_space_close(space);
	kvfs_close(session);
	wait_for_no_leases(w);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(arguments_that_cannot_be_are_refused),
		test(an_unknown_handle_or_index_is_einval),
		test(a_block_that_is_absent_has_a_status_and_no_pointer),
		test(a_waiting_lease_can_be_cancelled),
		test(a_daemon_that_does_not_answer_in_time_is_a_miss),
		test(a_lease_under_way_ends_with_the_daemon),
		test(pointers_outlive_the_daemon_and_old_leases_load_no_more),
		test(pointers_show_the_tensors_and_the_whole_file),
		test(results_are_in_the_order_of_the_keys_asked),
		test(more_keys_than_a_message_holds_are_one_lease),
		test(no_keys_at_all_settle_at_once),
		test(every_lease_ends_with_its_release_or_its_session),
		test(a_load_gives_the_lease_back_when_it_is_done),
		test(two_sessions_lease_the_same_blocks),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
