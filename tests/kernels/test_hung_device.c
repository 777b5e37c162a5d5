/* SPDX-License-Identifier: Apache-2.0 */
/* test_hung_device.c - a device that hangs: copies that the device does not
 * have end in time, and the device keeps the pages of its own copies. */
#include "kernels/device/device.h"
#include "tests/kernels/layered.h"

#include "tests/kernels/fake_world.h"

#define N 200u
#define SHORT (SECOND / 50)

/* Return how many of @n blocks ended with @status; the others must be under
 * way. */
static size_t ended_with(kvfs_xfer *xfer, size_t n, int status)
{
	size_t ended = 0, i;
	int s;

	for (i = 0; i < n; i++) {
		s = kvfs_xfer_status(xfer, i);
		assert_true(s == status || s == -EINPROGRESS);
		ended += s == status;
	}
	return ended;
}

/* Wait until @n blocks ended with @status, or until a time limit. */
static size_t wait_ended(kvfs_xfer *xfer, size_t n, int status)
{
	const long ended = kvfs_xfer_wait_some(xfer, 1, 60 * SECOND);

	assert_int_equal(ended_with(xfer, n, status), ended);
	return (size_t)ended;
}

/* Begin a load and let all copy threads hang in the device. */
static kvfs_xfer *hang_in_load(struct world *w, size_t n, const kvfs_opts *opts)
{
	kvfs_xfer *xfer;

	world_save(w, (uint32_t)n);
	fake.loads = 0;
	fake.held_from = 0;
	xfer = begin_load(w, n, opts);
	wait_until(&fake.loads, (int)kv_copier_threads(w->session->copier));
	return xfer;
}

static void recover(void)
{
	fake.saves_held = false;
	fake.held_from = UINT64_MAX;
}

/* Check that loaded blocks are right, and pages of others untouched. */
static void assert_pages(struct world *w, kvfs_xfer *xfer, size_t n)
{
	size_t i, k;

	for (i = 0; i < n; i++) {
		if (kvfs_xfer_status(xfer, i) == 0) {
			assert_true(world_page_is(w, (int64_t)i, (uint32_t)i));
			continue;
		}
		for (k = 0; k < PAYLOAD; k++)
			assert_int_equal(w->memory[i * PAYLOAD + k], 0xee);
	}
}

static void a_loads_deadline_ends_what_has_not_begun(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = SECOND};
	kvfs_xfer *xfer = hang_in_load(w, N, &opts);
	size_t ended = wait_ended(xfer, N, -ETIMEDOUT);

	/* The device keeps a unit of 8 blocks for each copy thread, and the
	 * pages of these blocks. */
	assert_in_range(ended, N - 4 * 8, N - 1);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SHORT), -ETIMEDOUT);
	assert_pages_loading(w, N);
	assert_int_equal(kvfs_xfer_wait_some(xfer, ended, SHORT), ended);
	recover();
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
			 N - ended);
	assert_pages(w, xfer, N);
	assert_pages_loading(w, 0);
	kvfs_xfer_free(xfer);
}

static void so_does_a_cancel(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer = hang_in_load(w, N, NULL);
	size_t ended;

	kvfs_xfer_cancel(xfer);
	ended = ended_with(xfer, N, -ECANCELED);
	assert_in_range(ended, N - 4 * 8, N - 1);
	kvfs_xfer_cancel(xfer);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 0);
	recover();
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
			 N - ended);
	assert_pages(w, xfer, N);
	kvfs_xfer_free(xfer);
}

static void a_load_that_no_thread_has_begun_is_over_at_once(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = SHORT};
	const kvfs_opts layers = {.size = sizeof(layers),
				  .flags = KVFS_BY_LAYER,
				  .deadline = SHORT};
	kvfs_xfer *hung = hang_in_load(w, N, NULL), *xfer;
	int64_t pages[] = {N, N + 1, N + 2, N + 3};
	kvfs_lease *lease;
	int loads = fake.loads;

	for (int i = 0; i < 2; i++) {
		lease = world_acquire(w, 4, 4);
		assert_int_equal(kvfs_load(w->pool, lease, 4, pages,
					   i == 0 ? &opts : &layers, &xfer),
				 0);
		kvfs_release(lease);
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
				 0);
		assert_int_equal(ended_with(xfer, 4, -ETIMEDOUT), 4);
		assert_int_equal(kvfs_xfer_poll(xfer, KVFS_SUBMITTED), 1);
		assert_int_equal(kvfs_xfer_poll_layer(xfer, 0), 1);
		kvfs_xfer_free(xfer);
		assert_pages_loading(w, N);
	}
	assert_int_equal(fake.loads, loads);
	recover();
	assert_int_equal(kvfs_xfer_wait(hung, KVFS_COPIED, 60 * SECOND), N);
	assert_pages(w, hung, N);
	kvfs_xfer_free(hung);
}

static void so_is_a_save(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = SHORT};
	kvfs_xfer *hung = hang_in_load(w, N, NULL), *xfer;
	const int64_t pages[] = {N, N + 1, N + 2, N + 3};
	struct kvfs_pool_info info = {.size = sizeof(info)};

	xfer = begin_save_pages(w, 1000, 4, pages, &opts);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 0);
	assert_int_equal(ended_with(xfer, 4, -ETIMEDOUT), 4);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_saving, 0);
	/* The reservations of the save end without waiting for the copy
	 * threads. */
	world_wait_stat(w, "being saved", 0);
	recover();
	assert_int_equal(kvfs_xfer_wait(hung, KVFS_COPIED, 60 * SECOND), N);
	kvfs_xfer_free(hung);
	/* Save other bytes under the keys of the save that hung. */
	xfer = begin_save_pages(w, 1000, 4, pages, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 4);
	assert_int_equal(kvfs_xfer_status(xfer, 0), 0);
	kvfs_xfer_free(xfer);
}

/* The first step hangs: the load does not wait for layers of the second. */
static void a_load_by_layer_ends_too(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_BY_LAYER};
	kvfs_xfer *xfer = hang_in_load(w, BLOCKS, &opts);

	assert_int_equal(kvfs_xfer_poll_layer(xfer, LAST_LAYER), 0);
	kvfs_xfer_cancel(xfer);
	assert_int_equal(kvfs_xfer_poll_layer(xfer, LAST_LAYER), 1);
	assert_int_equal(kvfs_xfer_poll_layer(xfer, 0), 0);
	assert_int_equal(ended_with(xfer, BLOCKS, -ECANCELED), BLOCKS);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 0);
	assert_pages_loading(w, BLOCKS);
	recover();
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 0);
	assert_pages_loading(w, 0);
	kvfs_xfer_free(xfer);
}

/* Streams can be ordered after the copies that the device has begun. */
static void what_the_device_has_can_be_ordered_after_a_cancel(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;
	size_t ended;

	world_save(w, N);
	fake.submitted = 0;
	fake.running_from = 0;
	xfer = begin_load(w, N, NULL);
	wait_until(&fake.submitted, (int)kv_copier_threads(w->session->copier));
	assert_int_equal(kvfs_xfer_order(xfer, &compute), -EAGAIN);
	kvfs_xfer_cancel(xfer);
	ended = ended_with(xfer, N, -ECANCELED);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SUBMITTED, 60 * SECOND),
			 N - ended);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	assert_int_equal(compute.waits, fake.submitted);
	fake.running_from = UINT64_MAX;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
			 N - ended);
	kvfs_xfer_free(xfer);
}

/* Cancel a load at any moment, by layer or not, beside other loads. */
static void whenever_it_is_stopped_every_block_ends_once(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts)};
	const kvfs_opts urgent = {.size = sizeof(urgent), .priority = 1};
	kvfs_xfer *xfer, *other;
	int64_t pages[] = {N, N + 1};
	kvfs_lease *lease;
	size_t good, i;
	long r;

	world_save(w, N);
	for (unsigned round = 0; round < 60; round++) {
		opts.flags = round % 2 ? KVFS_BY_LAYER : 0;
		xfer = begin_load(w, N, &opts);
		lease = world_acquire(w, 2, 2);
		assert_int_equal(
			kvfs_load(w->pool, lease, 2, pages, &urgent, &other),
			0);
		kvfs_release(lease);
		usleep(round * 100);
		kvfs_xfer_cancel(xfer);
		r = kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND);
		for (good = i = 0; i < N; i++)
			good += kvfs_xfer_status(xfer, i) == 0;
		assert_int_equal(r, good);
		if (round % 2 == 0)
			assert_pages(w, xfer, N);
		kvfs_xfer_free(xfer);
		assert_int_equal(
			kvfs_xfer_wait(other, KVFS_COPIED, 60 * SECOND), 2);
		kvfs_xfer_free(other);
		assert_pages_loading(w, 0);
	}
}

/* The large staging memory, which a thread of its own makes, may be ready
 * before the copy threads make the small one, which then must not replace the
 * large one. */
static void a_small_stage_that_is_made_late_is_not_used(void **state)
{
	struct world *w = *state;
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_xfer *xfer = hang_in_load(w, N, NULL);
	bool making = true;

	world_stop_daemon(w, SIGTERM);
	world_wait_connected(w->session, 0);
	/* As if the old connection had ended while staging was made for it. */
	pthread_mutex_lock(&w->session->lock);
	w->session->stage_grows_at = kv_time_after(3600 * SECOND);
	pthread_mutex_unlock(&w->session->lock);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	world_wait_staged(w);
	recover();
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND) >= 0);
	kvfs_xfer_free(xfer);
	while (making) {
		usleep(10000);
		pthread_mutex_lock(&w->session->lock);
		making = w->session->stage_making;
		pthread_mutex_unlock(&w->session->lock);
	}
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_true(info.bytes_staging >= 64u << 20);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, fake_setup, fake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_loads_deadline_ends_what_has_not_begun),
		test(so_does_a_cancel),
		test(a_load_that_no_thread_has_begun_is_over_at_once),
		test(so_is_a_save),
		test(a_load_by_layer_ends_too),
		test(what_the_device_has_can_be_ordered_after_a_cancel),
		test(whenever_it_is_stopped_every_block_ends_once),
		test(a_small_stage_that_is_made_late_is_not_used),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
