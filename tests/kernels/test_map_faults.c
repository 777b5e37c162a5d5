/* SPDX-License-Identifier: Apache-2.0 */
/* Paged pools whose copies fail, are cancelled or are slow, with streams. */
#include "tests/kernels/paged.h"
#include "kernels/session/session.h"
#include "tests/kernels/layered.h"

static void a_failed_copy_frees_its_page_and_is_nobodys_hit(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 3, 3);
	kvfs_mapping *a, *b;
	size_t i;

	world_save(w, 3);
	slow_shut(true);
	a = begin(w, pool, 0, 3, NULL);
	b = begin(w, pool, 0, 3, NULL);
	slow.fail = -EIO;
	slow_shut(false);
	assert_int_equal(kvfs_map_wait(a, LONG), 0);
	assert_int_equal(kvfs_map_wait(b, LONG), 0);
	for (i = 0; i < 3; i++) {
		assert_int_equal(kvfs_map_status(a, i), -EIO);
		assert_int_equal(kvfs_map_status(b, i), -EIO);
		assert_int_equal(kvfs_map_page(b, i), -EIO);
		assert_null(kvfs_map_addr(b, i, NULL));
	}
	assert_int_equal(info_of(pool).pages_free, 3);
	slow.fail = 0;
	unmap(a);
	a = map(w, pool, 0, 3, 3);
	for (i = 0; i < 3; i++)
		assert_true(is_block(a, i, (uint32_t)i));
	unmap(a);
	unmap(b);
	kvfs_pool_close(pool);
}

/* A cancel ends the wait, but the page is reused only after the copy. */
static void a_page_is_not_taken_before_its_copy_has_ended(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 1, 1);
	kvfs_pages *taken;
	kvfs_mapping *m;

	world_save(w, 1);
	slow_shut(true);
	m = begin(w, pool, 0, 1, NULL);
	wait_for_loads(1);
	kvfs_map_cancel(m);
	assert_int_equal(kvfs_map_wait(m, 0), 0);
	assert_int_equal(kvfs_map_status(m, 0), -ECANCELED);
	assert_null(kvfs_map_addr(m, 0, NULL));
	unmap(m);
	assert_int_equal(kvfs_pages_take(pool, 1, &taken), -ENOSPC);
	assert_int_equal(info_of(pool).pages_mapped, 1);
	slow_shut(false);
	wait_for_mapped(pool, 0);
	assert_int_equal(kvfs_pages_take(pool, 1, &taken), 0);
	kvfs_pages_free(taken);
	kvfs_pool_close(pool);
}

/* A load that was stopped, because its only map was cancelled, goes on for as
 * long as the device copies. */
static void a_map_of_pages_whose_load_was_stopped_gets_them(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, PAGES, PAGES);
	kvfs_mapping *a, *b;

	world_save(w, PAGES);
	slow_shut(true);
	a = begin(w, pool, 0, PAGES, NULL);
	wait_for_loads(1);
	kvfs_map_cancel(a);
	b = begin(w, pool, 0, PAGES, NULL);
	slow_shut(false);
	assert_int_equal(kvfs_map_wait(b, LONG), PAGES);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_true(is_block(b, i, i));
	unmap(a);
	unmap(b);
	kvfs_pool_close(pool);
}

static void what_others_wait_for_comes_although_its_first_left(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 4, 4);
	kvfs_mapping *a, *b;

	world_save(w, 4);
	slow_shut(true);
	a = begin(w, pool, 0, 4, NULL);
	b = begin(w, pool, 1, 3, NULL);
	unmap(a);
	assert_int_equal(kvfs_map_poll(b), 0);
	slow_shut(false);
	assert_int_equal(kvfs_map_wait(b, LONG), 3);
	assert_true(is_block(b, 2, 3));
	unmap(b);
	wait_for_mapped(pool, 0);
	kvfs_pool_close(pool);
}

static void a_deadline_is_the_maps_own(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 2);
	const kvfs_opts soon = {.size = sizeof(soon), .deadline = 20000000};
	kvfs_mapping *a, *b;

	world_save(w, 2);
	slow_shut(true);
	a = begin(w, pool, 0, 2, &soon);
	b = begin(w, pool, 0, 2, NULL);
	assert_int_equal(kvfs_map_wait(a, LONG), 0);
	assert_int_equal(kvfs_map_status(a, 1), -ETIMEDOUT);
	assert_int_equal(kvfs_map_poll(b), 0);
	slow_shut(false);
	assert_int_equal(kvfs_map_wait(b, LONG), 2);
	assert_true(is_block(b, 1, 1));
	unmap(a);
	unmap(b);
	kvfs_pool_close(pool);
}

static void a_pool_is_closed_with_all_that_is_mapped_in_it(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 8, 8);
	kvfs_pages *taken;

	world_save(w, 4);
	map(w, pool, 0, 2, 2);
	assert_int_equal(kvfs_pages_take(pool, 2, &taken), 0);
	begin(w, pool, 2, 2, NULL);
	kvfs_pool_close(pool);
}

static void without_a_daemon_pages_are_still_hits(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 8, 8);
	kvfs_mapping *a, *b, *c;
	size_t i;

	world_save(w, 8);
	a = map(w, pool, 0, 4, 4);
	slow_shut(true);
	b = begin(w, pool, 4, 2, NULL);
	wait_for_loads(5);
	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	slow_shut(false);
	/* The copies of blocks that were in flight may succeed or fail. */
	assert_true(kvfs_map_wait(b, LONG) >= 0);
	for (i = 0; i < 2; i++)
		assert_true(kvfs_map_status(b, i) < 0 ||
			    is_block(b, i, 4 + (uint32_t)i));
	c = map(w, pool, 0, 4, 4);
	assert_true(is_block(c, 3, 3));
	unmap(c);
	unmap(b);
	c = map(w, pool, 6, 2, 0);
	assert_true(kvfs_map_status(c, 0) == -ENOENT ||
		    kvfs_map_status(c, 0) == -ENOTCONN);
	unmap(c);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	assert_true(is_block(a, 2, 2));
	unmap(a);
	world_save(w, 8);
	a = map(w, pool, 0, 8, 8);
	assert_true(is_block(a, 7, 7));
	unmap(a);
	assert_int_equal(info_of(pool).pages_mapped, 0);
	kvfs_pool_close(pool);
}

static void in_the_child_of_a_fork_there_is_nothing(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 2), *other;
	const kvfs_key key = world_key(0);
	kvfs_mapping *m, *again;
	kvfs_pages *taken;
	int status;
	pid_t pid;

	world_save(w, 1);
	m = map(w, pool, 0, 1, 1);
	assert_int_equal(kvfs_pages_take(pool, 1, &taken), 0);
	pid = fork();
	if (pid == 0) {
		bool good = kvfs_map_status(m, 0) == -EBADF &&
			    kvfs_map_page(m, 0) == -EBADF &&
			    kvfs_map_addr(m, 0, NULL) == NULL &&
			    kvfs_map_wait(m, 0) == -EBADF &&
			    kvfs_unmap(m, NULL) == -EBADF &&
			    kvfs_pages_page(taken, 0) == -EBADF &&
			    kvfs_pages_drop(taken, NULL) == -EBADF &&
			    kvfs_pages_take(pool, 1, &taken) == -EBADF &&
			    kvfs_pool_reserve(w->session, "host", w->space, 1,
					      1, &other) == -EBADF &&
			    kvfs_map(pool, w->space, &key, 1, NULL, &again) ==
				    -EBADF;

		kvfs_pages_free(taken);
		kvfs_pool_close(pool);
		_exit(good ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(is_block(m, 0, 0));
	unmap(m);
	kvfs_pages_free(taken);
	kvfs_pool_close(pool);
}

/* ---- maps and streams ---- */

static void a_device_without_streams_says_so(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 2);
	const kvfs_key key = world_key(0);
	kvfs_opts opts = {.size = sizeof(opts), .stream = &opts};
	kvfs_mapping *m;
	kvfs_pages *taken;

	world_save(w, 1);
	assert_int_equal(kvfs_map(pool, w->space, &key, 1, &opts, &m),
			 -EOPNOTSUPP);
	m = map(w, pool, 0, 1, 1);
	assert_int_equal(kvfs_map_order(m, &opts), -EOPNOTSUPP);
	assert_int_equal(kvfs_unmap(m, &opts), -EOPNOTSUPP);
	assert_true(is_block(m, 0, 0));
	assert_int_equal(kvfs_pages_take(pool, 1, &taken), 0);
	assert_int_equal(kvfs_pages_drop(taken, &opts), -EOPNOTSUPP);
	assert_int_equal(kvfs_pages_drop(taken, NULL), 0);
	kvfs_pages_free(taken);
	unmap(m);
	kvfs_pool_close(pool);
}

/* A caller whose stream waits gets the address of a page before its bytes are
 * loaded. */
static void a_stream_that_waits_may_have_the_address(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 4, 4);
	struct slow_stream stream = {0};
	kvfs_mapping *a, *b;
	const uint8_t *at;
	int r;

	world_save(w, 4);
	slow_shut(true);
	a = begin(w, pool, 1, 1, NULL);
	b = begin(w, pool, 1, 1, NULL);
	assert_null(kvfs_map_addr(b, 0, NULL));
	while ((r = kvfs_map_order(b, &stream)) == -EAGAIN)
		usleep(1000);
	assert_int_equal(r, 0);
	at = kvfs_map_addr(b, 0, NULL);
	assert_non_null(at);
	assert_null(kvfs_map_addr(a, 0, NULL));
	assert_false(stream.waits->over);
	slow_shut(false);
	assert_int_equal(kvfs_map_wait(b, LONG), 1);
	assert_true(stream.waits->over);
	assert_true(world_is(at, 1));
	assert_ptr_equal(kvfs_map_addr(b, 0, NULL), at);
	unmap(a);
	unmap(b);
	kvfs_pool_close(pool);
}

/* A map cannot order streams after copies that are not yet submitted. */
static void a_map_orders_nothing_before_it_is_submitted(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 2);
	struct slow_stream stream = {0};
	kvfs_mapping *m;

	world_save(w, 2);
	slow_shut(true);
	slow.kept = true;
	m = begin(w, pool, 0, 2, NULL);
	wait_for_loads(1);
	assert_int_equal(kvfs_map_order(m, &stream), -EAGAIN);
	assert_null(stream.waits);
	assert_null(kvfs_map_addr(m, 0, NULL));
	kvfs_map_cancel(m);
	assert_null(kvfs_map_addr(m, 0, NULL));
	assert_int_equal(kvfs_map_order(m, &stream), 0);
	assert_null(stream.waits);
	unmap(m);
	slow_shut(false);
	kvfs_pool_close(pool);
}

/* Blocks that are loaded again wait for no stream, also not for the default
 * stream. */
static void a_second_load_waits_for_no_stream(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, PAGES, PAGES);
	const kvfs_opts opts = {.size = sizeof(opts), .stream = KVFS_NO_STREAM};
	kvfs_mapping *a, *b;
	long loaded;

	world_save(w, PAGES);
	slow_default.over = false;
	slow_shut(true);
	a = begin(w, pool, 0, PAGES, &opts);
	wait_for_loads(1);
	kvfs_map_cancel(a);
	b = begin(w, pool, 0, PAGES, &opts);
	slow_shut(false);
	loaded = kvfs_map_wait(b, LONG);
	slow_default.over = true; /* kvfs_unmap waits for it */
	assert_int_equal(loaded, PAGES);
	unmap(a);
	unmap(b);
	kvfs_pool_close(pool);
}

/* Without a stream only three loads are begun at a time: the daemon leases only
 * their blocks. */
static void maps_without_a_stream_lease_few_blocks_at_a_time(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, PAGES, PAGES);
	const kvfs_opts opts = {.size = sizeof(opts), .stream = KVFS_NO_STREAM};
	kvfs_mapping *maps[5];
	long leased;

	world_save(w, 5);
	slow_shut(true);
	for (uint32_t i = 0; i < 5; i++)
		maps[i] = begin(w, pool, i, 1, &opts);
	wait_for_loads(1);
	usleep(100000);
	leased = world_stat(w, "leased");
	slow_shut(false);
	assert_in_range(leased, 1, 3);
	for (uint32_t i = 0; i < 5; i++) {
		assert_int_equal(kvfs_map_wait(maps[i], LONG), 1);
		unmap(maps[i]);
	}
	kvfs_pool_close(pool);
}

/* A page that a stream still reads is not overwritten. */
static void a_page_is_taken_only_after_the_streams_work(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 2);
	struct slow_stream one = {0}, two = {0};
	kvfs_mapping *a, *b;
	kvfs_pages *taken;

	world_save(w, 4);
	a = map(w, pool, 0, 2, 2);
	b = map(w, pool, 0, 1, 1);
	assert_int_equal(kvfs_unmap(a, &one), 0);
	assert_int_equal(kvfs_unmap(b, &two), 0);
	assert_int_equal(info_of(pool).pages_mapped, 2);
	assert_int_equal(kvfs_pages_take(pool, 1, &taken), -ENOSPC);
	/* the pages still hold their blocks, so nothing is loaded */
	unmap(map(w, pool, 0, 2, 2));
	assert_int_equal(slow.loads, 2);
	one.over = true;
	wait_for_mapped(pool, 1);
	unmap(map(w, pool, 2, 2, 1));
	two.over = true;
	wait_for_mapped(pool, 0);
	unmap(map(w, pool, 2, 2, 2));
	kvfs_pool_close(pool);
}

static void *end_soon(void *stream)
{
	usleep(50000);
	((struct slow_stream *)stream)->over = true;
	return NULL;
}

static void a_pool_is_closed_only_after_the_streams_work(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2, 2);
	struct slow_stream stream = {0};
	kvfs_pages *taken;
	pthread_t thread;

	world_save(w, 1);
	assert_int_equal(kvfs_unmap(map(w, pool, 0, 1, 1), &stream), 0);
	assert_int_equal(kvfs_pages_take(pool, 1, &taken), 0);
	assert_int_equal(kvfs_pages_drop(taken, &stream), 0);
	kvfs_pages_free(taken);
	pthread_create(&thread, NULL, end_soon, &stream);
	kvfs_pool_close(pool);
	assert_true(stream.over);
	pthread_join(thread, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(a_failed_copy_frees_its_page_and_is_nobodys_hit),
		T(a_page_is_not_taken_before_its_copy_has_ended),
		T(a_map_of_pages_whose_load_was_stopped_gets_them),
		T(what_others_wait_for_comes_although_its_first_left),
		T(a_deadline_is_the_maps_own),
		T(a_pool_is_closed_with_all_that_is_mapped_in_it),
		T(without_a_daemon_pages_are_still_hits),
		T(in_the_child_of_a_fork_there_is_nothing),
		cmocka_unit_test_setup_teardown(
			a_device_without_streams_says_so, setup_plain,
			teardown_plain),
		T(a_stream_that_waits_may_have_the_address),
		T(a_map_orders_nothing_before_it_is_submitted),
		T(a_second_load_waits_for_no_stream),
		T(maps_without_a_stream_lease_few_blocks_at_a_time),
		T(a_page_is_taken_only_after_the_streams_work),
		T(a_pool_is_closed_only_after_the_streams_work),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
