/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to a device that works, that fails, or that is slow. */
#include "tests/kernels/fake_world.h"

#include <stdio.h>

static void *close_pool(void *pool)
{
	kvfs_pool_close(pool);
	return NULL;
}

static void assert_pages_saving(struct world *w, uint64_t n)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_saving, n);
}

static void a_pool_is_opened_and_closed_on_its_device(void **state)
{
	struct world *w = *state;
	kvfs_view view = {"k", w->memory, PAYLOAD, TENSOR, 1, 0};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "fake",
		.space = w->space,
		.views = &view,
		.n_views = 1,
		.pages = PAGES,
		.pages_per_block = 1,
	};
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_pool *pool;

	assert_int_equal(fake.pools, 1);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_string_equal(info.device, "fake");
	assert_string_equal(info.reason, "a fake");
	fake.open_error = -ENODEV;
	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), -EINVAL);
	/* invalid views are refused before the device opens a pool */
	assert_int_equal(fake.pools, 1);
	kvfs_pool_close(kv_steal(w->pool));
	assert_int_equal(fake.pools, 0);
	fake.open_error = 0;
	w->pool = fake_pool(w);
}

static void what_the_device_cannot_open_is_not_registered(void **state)
{
	struct world *w = *state;
	kvfs_view views[] = {
		{"k", w->memory, PAYLOAD, TENSOR, 1, 0},
		{"v", w->memory + TENSOR, PAYLOAD, TENSOR, 1, 0},
	};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "fake",
		.space = w->space,
		.views = views,
		.n_views = 2,
		.pages = PAGES,
		.pages_per_block = 1,
	};
	kvfs_pool *pool = NULL;

	fake.open_error = -ENODEV;
	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), -ENODEV);
	assert_null(pool);
	assert_int_equal(fake.pools, 1);
}

/* The device attaches the arena and the staging memory once, in any order, and
 * detaches both before they are unmapped (fake_detach reads a byte). */
static void a_device_knows_of_memory_while_it_is_mapped(void **state)
{
	struct world *w = *state;
	kvfs_pool *other = fake_pool(w);
	kvfs_lease *lease;
	int attached;

	world_wait_staged(w);
	world_save(w, 8);
	lease = world_acquire(w, 8, 8);
	/* the small staging memory may be attached as well as the large one */
	assert_in_range(fake.writable, 1, 2);
	assert_true(fake.attached >= 2);
	attached = fake.attached_ever;
	kvfs_pool_close(other);
	other = fake_pool(w);
	assert_int_equal(fake.attached_ever, attached);
	world_stop_daemon(w, SIGTERM);
	world_wait_connected(w->session, 0);
	kvfs_release(lease);
	wait_until(&fake.attached, 0);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	world_save(w, 8);
	kvfs_release(world_acquire(w, 8, 8));
	assert_true(fake.attached >= 2);
	kvfs_pool_close(other);
}

/* Wait until @value no longer changes, because staging memory comes and goes;
 * return the value. */
static int settled(const atomic_int *value)
{
	int now = *value, same = 0;

	for (int i = 0; i < 1000 && same < 30; i++) {
		usleep(10000);
		same = *value == now ? same + 1 : 0;
		now = *value;
	}
	return now;
}

/* A session with a host pool saves and leases; a device that joins later gets
 * all the memory of the session attached. */
static void memory_of_before_the_pool_is_told_of(void **state)
{
	struct world other = *(struct world *)*state;
	int before, writable;

	world_wait_staged(*state);
	before = settled(&fake.attached);
	writable = settled(&fake.writable);
	assert_int_equal(kvfs_open(other.path, &other.session), 0);
	world_wait_connected(other.session, 1);
	assert_int_equal(kvfs_space_open(other.session, other.space_name, NULL,
					 0, &other.space),
			 0);
	fake.session = other.session;
	other.pool = world_pool(&other, other.space);
	world_save(&other, 4);
	kvfs_release(world_acquire(&other, 4, 4));
	assert_int_equal(fake.attached, before);
	world_wait_staged(&other);
	kvfs_pool_close(other.pool);
	other.pool = fake_pool(&other);
	assert_true(fake.attached >= before + 2);
	assert_int_equal(settled(&fake.writable), writable + 1);
	kvfs_pool_close(other.pool);
	kvfs_space_close(other.space);
	kvfs_close(other.session);
	wait_until(&fake.attached, before);
	fake.session = ((struct world *)*state)->session;
}

/* A block whose copy failed is not sealed, and its page is unchanged. */
static void a_failed_load_fails_its_blocks_and_no_others(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;
	size_t i;

	world_save(w, 40);
	fake.load_error = -EIO;
	xfer = begin_load(w, 40, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 0);
	for (i = 0; i < 40; i++)
		assert_int_equal(kvfs_xfer_status(xfer, i), -EIO);
	assert_pages_loading(w, 0);
	kvfs_xfer_free(xfer);
	fake.load_error = 0;
	xfer = begin_load(w, 40, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 40);
	assert_blocks_are_there(w, 40);
	kvfs_xfer_free(xfer);
}

/* The library replaces invalid results of a device by -EIO. Other numbers could
 * stand for a block that is pending or for a reserved status. */
static void what_a_device_may_not_answer_is_eio(void **state)
{
	static const int answers[] = {1,	INT32_MAX, -EINPROGRESS,
				      -EAGAIN,	-ENOENT,   -ECANCELED,
				      INT32_MIN};
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	int64_t page = 0;
	size_t i;

	world_save(w, 4);
	for (i = 0; i < KV_ARRAY_LEN(answers); i++) {
		fake.load_error = fake.save_error = answers[i];
		xfer = begin_load(w, 4, NULL);
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
				 0);
		assert_int_equal(kvfs_xfer_status(xfer, 3), -EIO);
		kvfs_xfer_free(xfer);
		xfer = begin_save(w, 100, 4, NULL);
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND),
				 0);
		assert_int_equal(kvfs_xfer_status(xfer, 3), -EIO);
		kvfs_xfer_free(xfer);
	}
	fake.load_error = fake.save_error = 0;
	lease = world_acquire(w, 1, 1);
	fake.event_wait_error = 1;
	assert_int_equal(kvfs_load(w->pool, lease, 1, &page, &opts, &xfer),
			 -EIO);
	kvfs_release(lease);
	assert_pages_loading(w, 0);
}

/* A device may report a batch as submitted twice, or without an event wait. */
static void a_batch_is_submitted_once(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	world_save(w, 8);
	fake.submits = FAKE_NOTHING;
	xfer = begin_load(w, 8, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 8);
	assert_int_equal(kvfs_xfer_order(xfer, &compute), 0);
	assert_int_equal(compute.waits, 0);
	kvfs_xfer_free(xfer);
	fake.submits = FAKE_TWICE;
	xfer = begin_load(w, 8, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 8);
	assert_blocks_are_there(w, 8);
	kvfs_xfer_free(xfer);
}

/* One copy of the load's first step fails: its blocks stay failed after the
 * second step, and the load keeps their pages until all copies have ended. */
static void a_block_that_failed_in_one_layer_has_failed(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_BY_LAYER};
	kvfs_xfer *xfer;
	size_t i, failed = 0;

	world_save(w, BLOCKS);
	/* the device holds up the second step of the load */
	fake.held_from = 1;
	fake.one_load_error = -EIO;
	xfer = begin_load(w, BLOCKS, &opts);
	wait_until(&fake.one_load_error, 0);
	for (i = 0; i < BLOCKS; i++)
		assert_true(kvfs_xfer_status(xfer, i) != 0);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 0);
	assert_pages_loading(w, BLOCKS);
	fake.held_from = UINT64_MAX;
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND) > 0);
	for (i = 0; i < BLOCKS; i++) {
		failed += kvfs_xfer_status(xfer, i) == -EIO;
		if (kvfs_xfer_status(xfer, i) == 0)
			assert_true(world_page_is(w, (int64_t)i, (uint32_t)i));
	}
	assert_in_range(failed, 1, BLOCKS - 1);
	kvfs_xfer_free(xfer);
}

/* A wait for a layer needs no stream of the device. */
static void a_layer_is_waited_for_while_others_are_to_come(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_BY_LAYER};
	kvfs_xfer *xfer;

	world_save(w, BLOCKS);
	/* the device holds up the second step of the load */
	fake.held_from = 1;
	xfer = begin_load(w, BLOCKS, &opts);
	assert_int_equal(kvfs_xfer_wait_layer(xfer, 0, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_poll_layer(xfer, 0), 1);
	assert_int_equal(kvfs_xfer_poll_layer(xfer, LAST_LAYER), 0);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 0);
	assert_int_equal(kvfs_xfer_wait_layer(xfer, LAST_LAYER, SECOND / 50),
			 -ETIMEDOUT);
	assert_int_equal(kvfs_xfer_wait_layer(xfer, LAST_LAYER + 1, 0),
			 -EINVAL);
	fake.held_from = UINT64_MAX;
	assert_int_equal(kvfs_xfer_wait_layer(xfer, LAST_LAYER, 60 * SECOND),
			 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
			 BLOCKS);
	kvfs_xfer_free(xfer);
	xfer = begin_load(w, BLOCKS, NULL);
	assert_int_equal(kvfs_xfer_wait_layer(xfer, 7, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 1);
	kvfs_xfer_free(xfer);
}

/* A failed save seals no block, and its reservations and its staging memory are
 * freed: the test saves more than that memory holds. */
static void a_failed_save_leaves_nothing_behind(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, 128};
	uint8_t states[128];
	kvfs_xfer *xfer;
	int i;

	world_chain(0, 128, keys, pages);
	fake.save_error = -EIO;
	for (i = 0; i < 10; i++) {
		xfer = begin_save(w, 0, 128, NULL);
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND),
				 0);
		assert_int_equal(kvfs_xfer_status(xfer, 127), -EIO);
		kvfs_xfer_free(xfer);
	}
	assert_pages_saving(w, 0);
	assert_int_equal(kvfs_probe(&query, 1, states), 0);
	assert_int_equal(kvfs_match(&query, 1), 0);
	fake.save_error = 0;
	xfer = begin_save(w, 0, 128, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 128);
	/* 0 means absent: the failed save has left no block */
	for (i = 0; i < 128; i++)
		assert_int_equal(kvfs_xfer_status(xfer, (size_t)i), 0);
	kvfs_xfer_free(xfer);
}

/* After a cancel or a deadline, a load keeps the pages that the device still
 * writes. */
static void pages_stay_the_loads_until_the_device_is_done(void **state)
{
	struct world *w = *state;
	kvfs_opts soon = {.size = sizeof(soon), .deadline = SECOND / 50};
	kvfs_xfer *a, *b;

	world_save(w, 2);
	fake.held_from = 0;
	a = begin_load(w, 1, NULL);
	wait_for_some(&fake.loads);
	b = begin_load(w, 1, &soon);
	kvfs_xfer_cancel(a);
	usleep(50000);
	assert_int_equal(kvfs_xfer_poll(a, KVFS_COPIED), 0);
	assert_true(kvfs_xfer_status(a, 0) == -EINPROGRESS);
	assert_pages_loading(w, 1);
	fake.held_from = UINT64_MAX;
	assert_int_equal(kvfs_xfer_wait(a, KVFS_COPIED, 60 * SECOND), 1);
	assert_true(kvfs_xfer_wait(b, KVFS_COPIED, 60 * SECOND) >= 0);
	assert_blocks_are_there(w, 1);
	assert_pages_loading(w, 0);
	kvfs_xfer_free(a);
	kvfs_xfer_free(b);
}

static void pages_stay_the_saves_until_the_device_is_done(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	fake.saves_held = true;
	xfer = begin_save(w, 0, 4, NULL);
	wait_for_some(&fake.saves);
	kvfs_xfer_cancel(xfer);
	usleep(10000);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 0);
	assert_pages_saving(w, 4);
	fake.saves_held = false;
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND) >= 0);
	assert_pages_saving(w, 0);
	kvfs_xfer_free(xfer);
}

/* Without streams the message of a small save also reserves its blocks.  The
 * message is not sent if the space was cleared during the copy. */
static void a_small_save_copied_across_a_clear_never_seals(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	kvfs_xfer *xfer;
	uint8_t found;

	fake_device.order = NULL;
	fake.saves_held = true;
	xfer = begin_save(w, 0, 1, NULL);
	wait_for_some(&fake.saves);
	assert_int_equal(kvfs_space_clear(w->space), 0);
	fake.saves_held = false;
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ESTALE);
	assert_int_equal(kvfs_probe(&query, 1, &found), 0);
	assert_int_equal(found, KVFS_ABSENT);
	kvfs_xfer_free(xfer);
}

/* A load keeps its pages when another load of them is cancelled. */
static void transfers_are_counted_by_their_owner(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *waits, *other;

	world_save(w, 8);
	waits = begin_load(w, 8, &opts);
	assert_pages_loading(w, 8);
	other = begin_load(w, 4, &opts);
	/* the second load has the same pages as the first one */
	assert_pages_loading(w, 8);
	kvfs_xfer_cancel(other);
	assert_pages_loading(w, 8);
	kvfs_xfer_free(other);
	/* free the transfer before its end: the load keeps its pages */
	kvfs_xfer_free(waits);
	assert_pages_loading(w, 8);
	slow.quiet = true;
	kvfs_pool_close(kv_steal(w->pool));
	assert_blocks_are_there(w, 8);
}

/* An engine that counts free pages and pages in flight never counts a page
 * twice, and gets each page back when nobody uses it. */
static void pages_in_flight_are_charged_once(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	kvfs_xfer *a, *b, *load;

	world_save(w, 6);
	/* Save the pages of two requests whose first eight pages are the
	 * same. */
	a = begin_save(w, 100, 8, &opts);
	b = begin_save(w, 200, 12, &opts);
	assert_pages_saving(w, 12);
	kvfs_xfer_cancel(b);
	assert_pages_saving(w, 8); /* save a still uses the first eight */
	load = begin_load(w, 6, &opts);
	assert_pages_loading(w, 6); /* loads and saves are counted separately */
	assert_pages_saving(w, 8);
	kvfs_xfer_cancel(a);
	assert_pages_saving(w, 0);
	slow.quiet = true;
	assert_int_equal(kvfs_xfer_wait(load, KVFS_COPIED, 60 * SECOND), 6);
	assert_pages_loading(w, 0);
	kvfs_xfer_free(a);
	kvfs_xfer_free(b);
	kvfs_xfer_free(load);
}

/* Unmap the pages before the calls: a call that reads a page would crash. */
static void no_call_touches_a_page(void **state)
{
	struct world *w = *state;
	const size_t bytes = (size_t)PAGES * PAYLOAD;
	kvfs_opts opts = {.size = sizeof(opts), .stream = &slow};
	int64_t pages[64];
	kvfs_lease *lease;
	kvfs_xfer *load, *save;
	void *old = w->memory;
	size_t i;

	for (i = 0; i < 64; i++)
		pages[i] = (int64_t)i;
	world_save(w, 64);
	kvfs_pool_close(w->pool);
	w->memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
			 -1, 0);
	assert_ptr_not_equal(w->memory, MAP_FAILED);
	w->pool = fake_pool(w);
	lease = world_acquire(w, 64, 64);
	assert_int_equal(kvfs_load(w->pool, lease, 64, pages, &opts, &load), 0);
	for (i = 0; i < 64; i++)
		pages[i] += 64;
	save = begin_save_pages(w, 300, 64, pages, &opts);
	assert_int_equal(kvfs_xfer_poll(load, KVFS_COPIED), 0);
	assert_int_equal(kvfs_xfer_status(save, 0), -EINPROGRESS);
	assert_int_equal(mprotect(w->memory, bytes, PROT_READ | PROT_WRITE), 0);
	slow.quiet = true;
	assert_int_equal(kvfs_xfer_wait(load, KVFS_COPIED, 60 * SECOND), 64);
	assert_int_equal(kvfs_xfer_wait(save, KVFS_SEALED, 60 * SECOND), 64);
	assert_blocks_are_there(w, 64);
	kvfs_xfer_free(load);
	kvfs_xfer_free(save);
	kvfs_release(lease);
	kvfs_pool_close(kv_steal(w->pool));
	munmap(w->memory, bytes);
	w->memory = old;
}

static void closing_a_pool_waits_for_what_is_in_flight(void **state)
{
	struct world *w = *state;
	pthread_t thread;
	kvfs_xfer *xfer;

	world_save(w, 4);
	fake.held_from = 0;
	xfer = begin_load(w, 4, NULL);
	wait_for_some(&fake.loads);
	pthread_create(&thread, NULL, close_pool, w->pool);
	usleep(50000);
	assert_int_equal(fake.pools, 1);
	fake.held_from = UINT64_MAX;
	pthread_join(thread, NULL);
	w->pool = NULL;
	assert_int_equal(fake.pools, 0);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 1);
	assert_blocks_are_there(w, 4);
	kvfs_xfer_free(xfer);
}

static void a_device_gets_as_many_blocks_as_it_likes(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	world_save(w, 100);
	fake.batch_max = 0;
	xfer = begin_load(w, 100, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 100);
	assert_int_equal(fake.batch_max, (1u << 20) / PAYLOAD);
	assert_int_equal(fake.ranges_max, 0);
	assert_blocks_are_there(w, 100);
	kvfs_xfer_free(xfer);
}

static void flags_and_layers_that_are_not_there_are_refused(void **state)
{
	struct world *w = *state;
	const kvfs_opts bad[] = {
		{.first_layer = LAST_LAYER + 1, .layers = 1},
		{.first_layer = LAST_LAYER, .layers = 2},
		{.first_layer = 1, .layers = UINT32_MAX},
		{.first_layer = 1},
		{.flags = KVFS_MUST},
		{.flags = KVFS_HOLD},
		{.flags = 1u << 31},
	};
	int64_t page = 0;
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	size_t i;

	world_save(w, 1);
	lease = world_acquire(w, 1, 1);
	for (i = 0; i < KV_ARRAY_LEN(bad); i++)
		assert_int_equal(
			kvfs_load(w->pool, lease, 1, &page, &bad[i], &xfer),
			-EINVAL);
	kvfs_release(lease);
}

/* The layers are the first dimension of each tensor.  Loading layers 100 to 149
 * writes bytes 100 .. 149 of each tensor. */
static void a_load_of_some_layers_touches_no_others(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {
		.size = sizeof(opts), .first_layer = 100, .layers = 50};
	const uint8_t *k = w->memory, *v = w->memory + TENSOR;
	kvfs_xfer *xfer;
	size_t i;

	world_save(w, 1);
	xfer = begin_load(w, 1, &opts);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 1);
	assert_int_equal(fake.ranges_max, 2);
	for (i = 0; i < TENSOR; i++) {
		bool in = i >= 100 && i < 150;

		assert_int_equal(k[i], in ? world_byte(0, i) : 0xee);
		assert_int_equal(v[i], in ? world_byte(0, TENSOR + i) : 0xee);
	}
	kvfs_xfer_free(xfer);
}

/* Hold all copy threads, then check the order in which the loads begin. */
static void a_load_of_higher_priority_goes_first(void **state)
{
	struct world *w = *state;
	kvfs_opts low = {.size = sizeof(low), .priority = -1},
		  high = {.size = sizeof(high), .priority = 7};
	kvfs_xfer *xfers[10];
	struct kvfs_pool_info info = {.size = sizeof(info)};
	unsigned i, k, first_high = 0, last_low = 0;

	world_save(w, BLOCKS);
	fake.held_from = 0;
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	xfers[0] = begin_load(w, BLOCKS, NULL);
	/* each copy thread copies a part of the load */
	wait_until(&fake.loads, (int)info.threads);
	for (i = 1; i < 5; i++)
		xfers[i] = begin_load(w, 1, &low);
	for (; i < 10; i++)
		xfers[i] = begin_load(w, 1, &high);
	fake.held_from = UINT64_MAX;
	for (i = 0; i < 10; i++) {
		assert_true(kvfs_xfer_wait(xfers[i], KVFS_COPIED, 60 * SECOND) >
			    0);
		kvfs_xfer_free(xfers[i]);
	}
	for (k = 0;
	     k < (unsigned)fake.loads && k < KV_ARRAY_LEN(fake.priorities);
	     k++) {
		if (fake.priorities[k] == 7 && first_high == 0)
			first_high = k;
		if (fake.priorities[k] == -1)
			last_low = k;
	}
	/* After its current unit of copying, the long load lets the urgent load
	 * go first. */
	assert_in_range(first_high, info.threads, info.threads + 1);
	assert_true(last_low > first_high);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, fake_setup, fake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_pool_is_opened_and_closed_on_its_device),
		test(what_the_device_cannot_open_is_not_registered),
		test(a_device_knows_of_memory_while_it_is_mapped),
		test(memory_of_before_the_pool_is_told_of),
		test(a_failed_load_fails_its_blocks_and_no_others),
		test(what_a_device_may_not_answer_is_eio),
		test(a_batch_is_submitted_once),
		test(a_block_that_failed_in_one_layer_has_failed),
		test(a_layer_is_waited_for_while_others_are_to_come),
		test(a_failed_save_leaves_nothing_behind),
		test(pages_stay_the_loads_until_the_device_is_done),
		test(pages_stay_the_saves_until_the_device_is_done),
		test(a_small_save_copied_across_a_clear_never_seals),
		test(transfers_are_counted_by_their_owner),
		test(pages_in_flight_are_charged_once),
		test(no_call_touches_a_page),
		test(closing_a_pool_waits_for_what_is_in_flight),
		test(a_device_gets_as_many_blocks_as_it_likes),
		test(flags_and_layers_that_are_not_there_are_refused),
		test(a_load_of_some_layers_touches_no_others),
		test(a_load_of_higher_priority_goes_first),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
