/* SPDX-License-Identifier: Apache-2.0 */
/* Events of transfers that have a user value: one event for each, and none of a
 * transfer that was freed. */
#include <poll.h>

#include "tests/kernels/world.h"

#define MANY 2000u
#define THREADS 4

static bool is_readable(kvfs_session *session)
{
	struct pollfd fd = {.fd = kvfs_fd(session), .events = POLLIN};

	return poll(&fd, 1, 0) == 1;
}

/* Return the session's next event; fail if there is none. */
static kvfs_event next(kvfs_session *session)
{
	struct pollfd fd = {.fd = kvfs_fd(session), .events = POLLIN};
	kvfs_event event;

	while (kvfs_reap(session, &event, 1) == 0)
		assert_int_equal(poll(&fd, 1, 60000), 1);
	for (size_t i = 0; i < KV_ARRAY_LEN(event.reserved); i++)
		assert_int_equal(event.reserved[i], 0);
	return event;
}

static void assert_next(kvfs_session *session, uint32_t what, uint32_t stage,
			uint64_t user, int64_t result)
{
	const kvfs_event event = next(session);

	assert_int_equal(event.user, user);
	assert_int_equal(event.what, what);
	assert_int_equal(event.stage, stage);
	assert_int_equal(event.result, result);
}

static void assert_nothing(kvfs_session *session)
{
	kvfs_event event;

	assert_int_equal(kvfs_reap(session, &event, 1), 0);
	assert_false(is_readable(session));
}

static kvfs_xfer *save(struct world *w, uint32_t first, size_t n, uint64_t user)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_xfer *xfer;

	world_chain(first, n, keys, pages);
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, n, pages,
				   KVFS_OPTS(.user = user), &xfer),
			 0);
	return xfer;
}

static kvfs_lease *lease(struct world *w, size_t n, uint64_t user)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	const kvfs_query query = {.space = w->space, .keys = keys, .n = n};
	kvfs_lease *lease;

	world_chain(0, n, keys, pages);
	assert_int_equal(
		kvfs_acquire(&query, 1,
			     KVFS_OPTS(.user = user, .deadline = 60 * SECOND),
			     &lease),
		0);
	return lease;
}

static kvfs_xfer *load(struct world *w, kvfs_lease *l, size_t n, uint64_t user)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_xfer *xfer;

	world_chain(0, n, keys, pages);
	assert_int_equal(
		kvfs_load(w->pool, l, n, pages, KVFS_OPTS(.user = user), &xfer),
		0);
	return xfer;
}

static void each_stage_is_told_once_by_its_word(void **state)
{
	struct world *w = *state;
	kvfs_xfer *saved = save(w, 0, 8, 11), *loaded, *flushed;
	kvfs_lease *l;

	assert_next(w->session, KVFS_EVENT_XFER, KVFS_COPIED, 11, 8);
	assert_next(w->session, KVFS_EVENT_XFER, KVFS_SEALED, 11, 8);
	assert_nothing(w->session);
	kvfs_xfer_poll(saved, KVFS_DURABLE);
	assert_next(w->session, KVFS_EVENT_XFER, KVFS_DURABLE, 11, 8);
	l = lease(w, 9, UINT64_MAX);
	assert_next(w->session, KVFS_EVENT_LEASE, 0, UINT64_MAX, 8);
	loaded = load(w, l, 9, 13);
	assert_next(w->session, KVFS_EVENT_XFER, KVFS_COPIED, 13, 8);
	assert_int_equal(kvfs_flush(w->space, KVFS_DURABLE,
				    KVFS_OPTS(.user = 14), &flushed),
			 0);
	assert_next(w->session, KVFS_EVENT_XFER, KVFS_DURABLE, 14, 1);
	/* Waiting for a stage that was reported does not report it again. */
	assert_int_equal(kvfs_xfer_wait(saved, KVFS_DURABLE, KVFS_FOREVER), 8);
	assert_int_equal(kvfs_xfer_wait(loaded, KVFS_COPIED, KVFS_FOREVER), 8);
	assert_nothing(w->session);
	kvfs_xfer_free(flushed);
	kvfs_xfer_free(loaded);
	kvfs_xfer_free(saved);
	kvfs_release(l);
}

static void what_has_no_word_is_not_told(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer = save(w, 0, 4, 0);
	kvfs_lease *l;
	kvfs_event event;

	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 4);
	kvfs_xfer_free(xfer);
	l = lease(w, 4, 0);
	assert_int_equal(kvfs_lease_wait(l, KVFS_FOREVER), 4);
	kvfs_release(l);
	assert_true(is_readable(w->session));
	assert_int_equal(kvfs_reap(w->session, &event, 1), 0);
	assert_false(is_readable(w->session));
}

static void what_was_freed_tells_no_more(void **state)
{
	struct world *w = *state;
	kvfs_xfer *over = save(w, 0, 4, 5);
	kvfs_lease *l;
	kvfs_event events[8];

	assert_int_equal(kvfs_xfer_wait(over, KVFS_SEALED, 60 * SECOND), 4);
	kvfs_xfer_free(over);
	kvfs_xfer_free(save(w, 10, 200, 6));
	l = lease(w, 4, 7);
	assert_int_equal(kvfs_lease_wait(l, KVFS_FOREVER), 4);
	kvfs_release(l);
	kvfs_release(lease(w, 200, 8));
	kvfs_pool_close(kv_steal(w->pool));
	assert_int_equal(kvfs_reap(w->session, events, 8), 0);
}

static void transfers_of_nothing_are_told_too(void **state)
{
	struct world *w = *state;
	kvfs_lease *l = lease(w, 0, 21);
	kvfs_xfer *loaded = load(w, l, 0, 22), *saved = save(w, 0, 0, 23);

	assert_next(w->session, KVFS_EVENT_LEASE, 0, 21, 0);
	assert_next(w->session, KVFS_EVENT_XFER, KVFS_COPIED, 22, 0);
	assert_next(w->session, KVFS_EVENT_XFER, KVFS_COPIED, 23, 0);
	assert_next(w->session, KVFS_EVENT_XFER, KVFS_SEALED, 23, 0);
	assert_next(w->session, KVFS_EVENT_XFER, KVFS_DURABLE, 23, 0);
	assert_nothing(w->session);
	kvfs_xfer_free(saved);
	kvfs_xfer_free(loaded);
	kvfs_release(l);
}

static void a_few_at_a_time_leave_the_descriptor_readable(void **state)
{
	struct world *w = *state;
	kvfs_lease *leases[10];
	kvfs_event events[4];

	for (uint64_t i = 0; i < 10; i++) {
		leases[i] = lease(w, 1, i + 1);
		assert_int_equal(kvfs_lease_wait(leases[i], KVFS_FOREVER), 0);
	}
	assert_int_equal(kvfs_reap(w->session, NULL, 0), 0);
	assert_int_equal(kvfs_reap(w->session, NULL, 1), -EINVAL);
	assert_int_equal(kvfs_reap(NULL, events, 4), -EINVAL);
	for (uint64_t i = 0; i < 10; i += 4) {
		assert_true(is_readable(w->session));
		assert_int_equal(kvfs_reap(w->session, events, 4),
				 KV_MIN(10 - i, 4u));
		for (uint64_t k = 0; k < 4 && i + k < 10; k++)
			assert_int_equal(events[k].user, i + k + 1);
	}
	assert_nothing(w->session);
	for (size_t i = 0; i < 10; i++)
		kvfs_release(leases[i]);
}

/* A map reports one event, and none for the leases and loads that it makes
 * inside. */
static void a_map_is_told_as_one(void **state)
{
	struct world *w = *state;
	kvfs_key keys[8];
	int64_t pages[8];
	kvfs_mapping *map;
	kvfs_pool *pool;
	int statuses[8];

	world_save(w, 7);
	world_chain(0, 8, keys, pages);
	assert_int_equal(
		kvfs_pool_reserve(w->session, "host", w->space, 8, 8, &pool),
		0);
	assert_int_equal(
		kvfs_map(pool, w->space, keys, 8, KVFS_OPTS(.user = 31), &map),
		0);
	assert_next(w->session, KVFS_EVENT_MAP, KVFS_COPIED, 31, 7);
	assert_int_equal(kvfs_map_statuses(map, 0, 8, statuses), 7);
	assert_int_equal(statuses[6], 0);
	assert_int_equal(statuses[7], -ENOENT);
	assert_int_equal(kvfs_unmap(map, NULL), 0);
	assert_int_equal(
		kvfs_map(pool, w->space, keys, 8, KVFS_OPTS(.user = 32), &map),
		0);
	kvfs_pool_close(pool);
	assert_nothing(w->session);
}

static void the_connection_is_told_first_and_once(void **state)
{
	struct world *w = *state;
	kvfs_lease *l = lease(w, 1, 41);
	kvfs_xfer *lost;
	kvfs_event event;

	assert_int_equal(kvfs_lease_wait(l, KVFS_FOREVER), 0);
	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	event = next(w->session);
	assert_int_equal(event.what, KVFS_EVENT_CONNECTION);
	assert_int_equal(event.user, 0);
	assert_int_equal(event.result, 0);
	assert_int_equal(event.generation, 1);
	assert_next(w->session, KVFS_EVENT_LEASE, 0, 41, 0);
	lost = save(w, 0, 3, 42);
	assert_next(w->session, KVFS_EVENT_XFER, KVFS_COPIED, 42, 0);
	assert_next(w->session, KVFS_EVENT_XFER, KVFS_SEALED, 42, 0);
	assert_next(w->session, KVFS_EVENT_XFER, KVFS_DURABLE, 42, 0);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	event = next(w->session);
	assert_int_equal(event.what, KVFS_EVENT_CONNECTION);
	assert_int_equal(event.result, 1);
	assert_int_equal(event.generation, 2);
	assert_nothing(w->session);
	kvfs_xfer_free(lost);
	kvfs_release(l);
}

static void statuses_come_in_one_call(void **state)
{
	struct world *w = *state;
	int statuses[6] = {9, 9, 9, 9, 9, 9};
	kvfs_xfer *xfer;
	kvfs_lease *l;

	world_save(w, 4);
	l = world_acquire(w, 6, 4);
	assert_int_equal(kvfs_lease_statuses(l, 1, 4, statuses), 3);
	assert_int_equal(statuses[2], 0);
	assert_int_equal(statuses[3], -ENOENT);
	assert_int_equal(statuses[4], 9);
	xfer = save(w, 2, 4, 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 4);
	assert_int_equal(kvfs_xfer_statuses(xfer, 0, 4, statuses), 4);
	assert_int_equal(statuses[1], KVFS_PRESENT);
	assert_int_equal(statuses[2], 0);
	assert_int_equal(kvfs_xfer_statuses(xfer, 4, 0, NULL), 0);
	assert_int_equal(kvfs_xfer_statuses(xfer, 5, 0, statuses), -EINVAL);
	assert_int_equal(kvfs_xfer_statuses(xfer, 1, SIZE_MAX, statuses),
			 -EINVAL);
	assert_int_equal(kvfs_xfer_statuses(xfer, 0, 1, NULL), -EINVAL);
	assert_int_equal(kvfs_lease_statuses(l, SIZE_MAX, 1, statuses),
			 -EINVAL);
	assert_int_equal(kvfs_lease_statuses(NULL, 0, 0, NULL), -EINVAL);
	kvfs_xfer_free(xfer);
	kvfs_release(l);
}

static void a_lease_tells_where_its_blocks_were(void **state)
{
	static const uint8_t wanted[] = {KVFS_DRAM, KVFS_DRAM,	 KVFS_SSD,
					 KVFS_SSD,  KVFS_ABSENT, KVFS_ABSENT};
	struct world *w = *state;
	uint8_t states[6] = {9, 9, 9, 9, 9, 9};
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	kvfs_lease *l;

	world_save(w, 4);
	world_stop_daemon(w, SIGTERM);
	world_wait_connected(w->session, 0);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	l = world_acquire(w, 2, 2);
	assert_int_equal(kvfs_lease_states(l, 1, 1, states), 0);
	assert_int_equal(states[0], KVFS_SSD);
	assert_int_equal(states[1], 9);
	assert_int_equal(kvfs_lease_states(l, 1, 2, states), -EINVAL);
	assert_int_equal(kvfs_lease_states(l, 0, 1, NULL), -EINVAL);
	assert_int_equal(kvfs_lease_states(NULL, 0, 0, NULL), -EINVAL);
	kvfs_release(l);
	l = world_acquire(w, 6, 4);
	assert_int_equal(kvfs_lease_states(l, 0, 6, states), 0);
	assert_memory_equal(states, wanted, sizeof(wanted));
	kvfs_release(l);
	assert_int_equal(
		kvfs_acquire(&query, 1, KVFS_OPTS(.flags = KVFS_AGAIN), &l), 0);
	assert_int_equal(kvfs_lease_wait(l, KVFS_FOREVER), 1);
	assert_int_equal(kvfs_lease_states(l, 0, 1, states), 0);
	assert_int_equal(states[0], KVFS_ABSENT);
	kvfs_release(l);
}

/* ---- events reaped by many threads ---- */

struct reaper {
	kvfs_session *session;
	_Atomic unsigned *seen; /* number of events for each user value */
	_Atomic unsigned *total;
};

static void *reap(void *arg)
{
	struct reaper *reaper = arg;
	kvfs_event events[7];
	uint64_t until = kv_now_ns() + 60 * SECOND;
	long n;

	while (*reaper->total < MANY && kv_now_ns() < until) {
		n = kvfs_reap(reaper->session, events, KV_ARRAY_LEN(events));
		for (long i = 0; i < n; i++)
			reaper->seen[events[i].user]++;
		*reaper->total += (unsigned)KV_MAX(n, 0);
	}
	return NULL;
}

static void each_event_goes_to_one_thread(void **state)
{
	struct world *w = *state;
	static _Atomic unsigned seen[MANY + 1], total;
	struct reaper reaper = {w->session, seen, &total};
	kvfs_lease **leases = calloc(MANY, sizeof(*leases));
	pthread_t threads[THREADS];

	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, reap, &reaper), 0);
	for (uint64_t i = 0; i < MANY; i++) {
		leases[i] = lease(w, 1, i + 1);
		if (i >= 50)
			assert_int_equal(
				kvfs_lease_wait(leases[i - 50], 60 * SECOND),
				0);
	}
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (size_t i = 1; i <= MANY; i++)
		assert_int_equal(seen[i], 1);
	assert_nothing(w->session);
	for (size_t i = 0; i < MANY; i++)
		kvfs_release(leases[i]);
	free(leases);
}

static void in_the_child_of_a_fork_nothing_is_reaped(void **state)
{
	struct world *w = *state;
	kvfs_lease *l = lease(w, 1, 51);
	kvfs_event event;
	int status;
	pid_t pid;

	assert_int_equal(kvfs_lease_wait(l, KVFS_FOREVER), 0);
	pid = fork();
	if (pid == 0)
		_exit(kvfs_reap(w->session, &event, 1) != -EBADF ||
		      kvfs_lease_statuses(l, 0, 0, NULL) != -EBADF);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_next(w->session, KVFS_EVENT_LEASE, 0, 51, 0);
	kvfs_release(l);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(each_stage_is_told_once_by_its_word),
		test(what_has_no_word_is_not_told),
		test(what_was_freed_tells_no_more),
		test(transfers_of_nothing_are_told_too),
		test(a_few_at_a_time_leave_the_descriptor_readable),
		test(a_map_is_told_as_one),
		test(the_connection_is_told_first_and_once),
		test(statuses_come_in_one_call),
		test(a_lease_tells_where_its_blocks_were),
		test(each_event_goes_to_one_thread),
		test(in_the_child_of_a_fork_nothing_is_reaped),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
