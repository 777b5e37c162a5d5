/* SPDX-License-Identifier: Apache-2.0 */
/* All calls at once from many threads, and frees during callbacks. */
#include <stdatomic.h>

#include "tests/kernels/world.h"

static atomic_bool over;

static void *reap_all(void *arg)
{
	kvfs_event events[3];

	while (!over) {
		long n = kvfs_reap(arg, events, 3);

		assert_in_range(n, 0, 3);
		for (long i = 0; i < n; i++)
			assert_true(events[i].what >= KVFS_EVENT_CONNECTION &&
				    events[i].what <= KVFS_EVENT_MAP &&
				    events[i].result <= (int64_t)256);
	}
	return NULL;
}

static void *list_all(void *arg)
{
	kvfs_key keys[100];
	uint64_t cursor = 0;

	while (!over) {
		long n = kvfs_space_keys(arg, &cursor, keys, 100);

		assert_in_range(n, 0, 100);
		for (long i = 0; i < n; i++)
			assert_int_equal(keys[i].len, 16);
	}
	return NULL;
}

static void
what_is_freed_under_reapers_and_listed_under_savers_is_fine(void **state)
{
	struct world *w = *state;
	pthread_t threads[4];
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {.space = w->space, .keys = keys, .n = 64};

	over = false;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL,
						i < 2 ? reap_all : list_all,
						i < 2 ? (void *)w->session
						      : (void *)w->space),
				 0);
	for (uint32_t i = 0; i < 400; i++) {
		kvfs_lease *lease;
		kvfs_xfer *saved, *loaded, *ahead;

		world_chain(i * 64 % 4096, 64, keys, pages);
		assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 64,
					   pages, KVFS_OPTS(.user = i + 1),
					   &saved),
				 0);
		assert_int_equal(
			kvfs_acquire(&query, 1,
				     KVFS_OPTS(.user = i + 1,
					       .flags = KVFS_WAIT_SAVING),
				     &lease),
			0);
		assert_int_equal(kvfs_load(w->pool, lease, 64, pages,
					   KVFS_OPTS(.user = i + 1), &loaded),
				 0);
		assert_int_equal(kvfs_prefetch(&query, 1,
					       KVFS_OPTS(.user = i + 1),
					       &ahead),
				 0);
		if (i % 3 == 0)
			kvfs_xfer_wait(loaded, KVFS_COPIED, SECOND);
		kvfs_xfer_free(ahead);
		kvfs_release(lease);
		kvfs_xfer_free(loaded);
		kvfs_xfer_free(saved);
		if (i % 50 == 49)
			kvfs_evict(w->space, keys, 64, NULL);
	}
	over = true;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(kvfs_space_clear(w->space), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			what_is_freed_under_reapers_and_listed_under_savers_is_fine,
			world_setup, world_teardown),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
