/* SPDX-License-Identifier: Apache-2.0 */
/* test_changed.c - a client writes into memory that the daemon gave it: each
 * changed block fails alone. */
#include <sys/mman.h>

#include "tests/kernels/world.h"

#define N 24u

static int begin(void **state)
{
	/* Let the daemon write to SSD only on request. */
	return world_begin(state, "dram=64M,ssd=256M,segment=8M,arena=rw,"
				  "writeback=none,hugepages=off");
}

static void change(kvfs_lease *lease, size_t i)
{
	uint8_t *at = (uint8_t *)kvfs_lease_data(lease, i, NULL);
	uint8_t *page = (uint8_t *)((uintptr_t)at & ~(uintptr_t)(KV_PAGE - 1));

	assert_non_null(at);
	assert_int_equal(mprotect(page, KV_PAGE, PROT_READ | PROT_WRITE), 0);
	at[1]++;
	assert_int_equal(mprotect(page, KV_PAGE, PROT_READ), 0);
}

static kvfs_xfer *save(struct world *w)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_xfer *xfer;

	world_chain(0, N, keys, pages);
	for (uint32_t i = 0; i < N; i++)
		world_fill(w, i, i);
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, N, pages, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), N);
	return xfer;
}

static void each_block_has_its_own_durable_status(void **state)
{
	struct world *w = *state;
	kvfs_xfer *first = save(w), *second;
	kvfs_lease *lease = world_acquire(w, N, N);

	change(lease, 3);
	change(lease, 17);
	kvfs_release(lease);
	assert_int_equal(kvfs_xfer_wait(first, KVFS_DURABLE, 60 * SECOND),
			 N - 2);
	for (size_t i = 0; i < N; i++)
		assert_int_equal(kvfs_xfer_status(first, i),
				 i == 3 || i == 17 ? -EBADMSG : 0);
	/* The daemon dropped the changed block: a save succeeds again. */
	second = save(w);
	assert_int_equal(kvfs_xfer_status(second, 3), 0);
	assert_int_equal(kvfs_xfer_status(second, 4), KVFS_PRESENT);
	assert_int_equal(kvfs_xfer_wait(second, KVFS_DURABLE, 60 * SECOND), N);
	kvfs_xfer_free(first);
	kvfs_xfer_free(second);
}

/* A barrier has a single status, even if only one of its blocks fails. */
static void a_barrier_is_told(void **state)
{
	struct world *w = *state;
	kvfs_xfer *saved = save(w), *barrier;
	kvfs_lease *lease = world_acquire(w, N, N);

	change(lease, 5);
	kvfs_release(lease);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(
			kvfs_flush(w->space, KVFS_DURABLE, NULL, &barrier), 0);
		assert_int_equal(
			kvfs_xfer_wait(barrier, KVFS_DURABLE, 60 * SECOND), i);
		assert_int_equal(kvfs_xfer_status(barrier, 0),
				 i == 0 ? -EBADMSG : 0);
		kvfs_xfer_free(barrier);
	}
	kvfs_xfer_free(saved);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(each_block_has_its_own_durable_status),
		test(a_barrier_is_told),
	};

	return cmocka_run_group_tests(tests, begin, world_group_teardown);
}
