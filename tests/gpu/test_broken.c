/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_broken.c - any driver call fails, alone or because the GPU's context breaks, so
 * that all later calls fail: every transfer ends with a status, which is never 0 for a
 * block that was not copied; nothing crashes, hangs or leaks; and a new pool of a whole
 * context works.
 */
#include <dirent.h>
#include <malloc.h>

#include "tests/gpu/memory.h"

#define BLOCKS 12u
#define LEFT 256u	 /* bytes that a round may leave */
#define NEW_KEYS 100000u /* numbers of the blocks that a round saves */

static const struct dims dims = {2, 4, 64, 8};
static struct world *w;
static struct engine e;
static kvfs_key old_keys[BLOCKS], new_keys[BLOCKS];
static int64_t pages[BLOCKS], reversed[BLOCKS];
static uint8_t
	*saved_image; /* the engine's memory when the old blocks were saved */
static uint32_t round_number;
static bool breaks; /* the error of this round is that of the context */

static void assert_status(int status)
{
	if (status != 0 && status != -EIO && status != -ENOMEM &&
	    status != -ECANCELED && status != -ETIMEDOUT && status != -ENOENT)
		fail_msg("status %d", status);
}

/* Wait for a transfer, if it began, and store the statuses of its blocks. */
static void finish(int begun, kvfs_xfer *xfer, enum kvfs_stage stage,
		   int statuses[BLOCKS])
{
	for (unsigned i = 0; i < BLOCKS; i++)
		statuses[i] = -EIO;
	if (begun < 0)
		return;
	assert_true(kvfs_xfer_wait(xfer, stage, 60 * SECOND) >= 0);
	for (unsigned i = 0; i < BLOCKS; i++) {
		statuses[i] = kvfs_xfer_status(xfer, i);
		assert_status(statuses[i]);
	}
	kvfs_xfer_free(xfer);
}

/* Map blocks to pages of the library, and write pages. */
static void use_own_pages(CUstream stream)
{
	kvfs_mapping *map = NULL;
	kvfs_pages *taken = NULL;
	kvfs_pool *pool = NULL;
	kvfs_xfer *xfer = NULL;

	if (kvfs_pool_reserve(e.session, "cuda", e.space, 4, BLOCKS, &pool) < 0)
		return;
	if (kvfs_map(pool, e.space, old_keys, BLOCKS, NULL, &map) == 0) {
		assert_true(kvfs_map_wait(map, 60 * SECOND) >= 0);
		(void)kvfs_map_order(map, stream);
		for (unsigned i = 0; i < BLOCKS; i++)
			assert_status(kvfs_map_status(map, i));
		if (kvfs_unmap(map, stream) < 0)
			assert_int_equal(kvfs_unmap(map, KVFS_NO_STREAM), 0);
	}
	if (kvfs_pages_take(pool, 2, &taken) == 0) {
		if (kvfs_pages_seal(taken, e.space, new_keys, NULL, 2,
				    KVFS_OPTS(.stream = stream), &xfer) == 0) {
			assert_true(kvfs_xfer_wait(xfer, KVFS_SEALED,
						   60 * SECOND) >= 0);
			kvfs_xfer_free(xfer);
		}
		kvfs_pages_free(taken);
	}
	kvfs_pool_close(pool);
}

/* Use the library as an engine does.  Store the statuses of a load into the pages,
 * and of a save from pages that no load writes. */
static void use(int loaded[BLOCKS], int saved[BLOCKS])
{
	const kvfs_query query = {e.space, old_keys, BLOCKS};
	struct kvfs_pool_info info = {.size = sizeof(info)};
	CUstream stream = NULL;
	kvfs_lease *lease = NULL;
	kvfs_xfer *xfer = NULL;
	int ignored[BLOCKS], r;

	finish(-EIO, NULL, 0, loaded);
	finish(-EIO, NULL, 0, saved);
	(void)gpu.cuStreamCreateWithPriority(&stream, CU_STREAM_NONBLOCKING, 0);
	if (engine_register(&e) < 0) {
		e.pool = NULL;
	} else {
		(void)kvfs_pool_staging(e.pool, 4 << 20, 3);
		r = kvfs_save(e.pool, e.space, new_keys, NULL, BLOCKS, reversed,
			      KVFS_OPTS(.stream = stream ? stream : CU_LEGACY),
			      &xfer);
		finish(r, xfer, KVFS_SEALED, saved);
		assert_int_equal(
			kvfs_acquire(&query, 1,
				     KVFS_OPTS(.deadline = 60 * SECOND),
				     &lease),
			0);
		assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), BLOCKS);
		r = kvfs_load(e.pool, lease, BLOCKS, pages,
			      KVFS_OPTS(.flags = KVFS_BY_LAYER), &xfer);
		if (r == 0 && stream != NULL)
			(void)kvfs_xfer_order(xfer, stream);
		finish(r, xfer, KVFS_COPIED, ignored);
		r = kvfs_load(e.pool, lease, BLOCKS, pages, NULL, &xfer);
		finish(r, xfer, KVFS_COPIED, loaded);
		r = kvfs_load(e.pool, lease, BLOCKS, pages, NULL, &xfer);
		if (r == 0)
			kvfs_xfer_cancel(xfer);
		finish(r, xfer, KVFS_COPIED, ignored);
		/* The cancelled load writes the same bytes as the one before. */
		kvfs_release(lease);
		assert_int_equal(kvfs_pool_info(e.pool, &info), 0);
		assert_int_equal(info.pages_loading, 0);
		assert_int_equal(info.pages_saving, 0);
		/* On a broken context no further pool is made. */
		if (breaks && gpu.cuCtxSynchronize() != CU_OK) {
			struct engine other = e;

			assert_true(engine_register(&other) < 0);
		}
	}
	use_own_pages(stream ? stream : CU_LEGACY);
	kvfs_pool_close(kv_steal(e.pool));
	if (stream != NULL)
		(void)gpu.cuStreamDestroy_v2(stream);
}

/* Return whether page @page of the two images is the same. */
static bool is_same_page(const uint8_t *a, const uint8_t *b, uint64_t page)
{
	uint8_t *one = malloc(shape_page_bytes(&e.shape) + 1);
	uint8_t *two = malloc(shape_page_bytes(&e.shape) + 1);
	bool same;

	shape_page(&e.shape, (uint8_t *)a, page, one, false);
	shape_page(&e.shape, (uint8_t *)b, page, two, false);
	same = memcmp(one, two, shape_page_bytes(&e.shape)) == 0;
	free(one);
	free(two);
	return same;
}

/* Check the bytes of all blocks whose status was 0, on the repaired device. */
static void check(unsigned n, const int loaded[BLOCKS], const int saved[BLOCKS])
{
	uint8_t *now = malloc(e.shape.bytes);
	kvfs_query query = {e.space, new_keys, BLOCKS};
	uint8_t states[BLOCKS];
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	engine_read(&e, now);
	for (unsigned i = 0; i < BLOCKS; i++)
		if (loaded[i] == 0 &&
		    !is_same_page(now, saved_image, (uint64_t)pages[i]))
			fail_msg("call %u: block %u was not loaded", n, i);
	/* Blocks that were saved hold what their pages held. */
	assert_true(kvfs_probe(&query, 1, states) >= 0);
	assert_int_equal(engine_register(&e), 0);
	for (unsigned i = 0; i < BLOCKS; i++) {
		if (saved[i] != 0) {
			if (i > 1) /* the first two were also sealed */
				assert_int_equal(states[i], KVFS_ABSENT);
			continue;
		}
		query = (kvfs_query){e.space, &new_keys[i], 1};
		assert_int_equal(
			kvfs_acquire(&query, 1,
				     KVFS_OPTS(.deadline = 60 * SECOND),
				     &lease),
			0);
		assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), 1);
		assert_int_equal(
			kvfs_load(e.pool, lease, 1, &reversed[i], NULL, &xfer),
			0);
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
				 1);
		kvfs_xfer_free(xfer);
		kvfs_release(lease);
	}
	kvfs_pool_close(kv_steal(e.pool));
	engine_read(&e, now);
	for (unsigned i = 0; i < BLOCKS; i++)
		if (saved[i] == 0 &&
		    !is_same_page(now, e.image, (uint64_t)reversed[i]))
			fail_msg("call %u: block %u was not saved", n, i);
	free(now);
}

/* Open the engine's memory in the space of the old blocks, with new contents. */
static void begin_round(void)
{
	for (unsigned i = 0; i < BLOCKS; i++)
		new_keys[i] = world_key(NEW_KEYS + round_number * BLOCKS + i);
	round_number++;
	shape_make(&shapes[2], &dims, 2 * BLOCKS, gpu_alloc(e.shape.bytes),
		   &e.shape);
	engine_fill(&e, 1000 + round_number);
}

/* Return the number of threads, or of files but memory of the GPU, which a broken
 * context keeps. */
static unsigned count(const char *folder)
{
	DIR *all = opendir(folder);
	struct dirent *entry;
	char target[64];
	unsigned n = 0;
	ssize_t len;

	while ((entry = readdir(all)) != NULL) {
		len = readlinkat(dirfd(all), entry->d_name, target,
				 sizeof(target));
		n += len < 14 || memcmp(target, "/memfd:device ", 14) != 0;
	}
	closedir(all);
	return n;
}

enum way { BREAKS, BREAKS_CLOSED, FAILS };

/* Break the context at the @n-th call, or let only this call fail; 0: no call.
 * Return the number of calls. */
static uint64_t break_at(unsigned n, enum way way)
{
	/* 806: the MPS server has died. */
	static const int codes[] = {700, 806, 1, 2, 999};
	int loaded[BLOCKS], saved[BLOCKS];
	uint64_t calls;
	char text[64];

	begin_round();
	breaks = way != FAILS;
	calls = gpu.calls("*");
	snprintf(text, sizeof(text), "enterable=%d,%s=%u:%d",
		 way != BREAKS_CLOSED, breaks ? "break" : "once", n,
		 codes[breaks ? n / 3 % 2 : 2 + n / 3 % 3]);
	gpu_set(text);
	use(loaded, saved);
	calls = gpu.calls("*") - calls;
	assert_int_equal(gpu.bugs(), 0);
	gpu.forgive();
	while (gpu.pending() > 0)
		usleep(1000);
	check(n, loaded, saved);
	if (n == 0)
		for (unsigned i = 0; i < BLOCKS; i++)
			assert_true(loaded[i] == 0 && saved[i] == 0);
	gpu_reset();
	return calls;
}

static unsigned step = 5;

static void a_call_that_fails_harms_nothing(void **state)
{
	uint64_t calls, used = 0;
	unsigned threads = 0, files = 0, rounds = 0;

	(void)state;
	(void)break_at(0, FAILS);
	calls = break_at(0, FAILS);
	print_message("%lu calls\n", calls);
	for (unsigned n = 1; n <= calls; n += step, rounds++) {
		(void)break_at(n, n % 3);
		if (n > calls / 4 && threads == 0) {
			threads = count("/proc/self/task");
			files = count("/proc/self/fd");
			used = mallinfo2().uordblks;
			rounds = 0;
		}
	}
	/* A leak of each round would have added up by now.  The stand-in keeps memory
	 * that could not be freed, with a record of each. */
	assert_in_range(count("/proc/self/task"), 1, threads + 1);
	assert_in_range(count("/proc/self/fd"), 1, files + 1);
	print_message("%ld bytes more in %u rounds\n",
		      (long)(mallinfo2().uordblks - used), rounds);
	assert_true(mallinfo2().uordblks < used + rounds * LEFT + (4 << 10));
	(void)break_at(0, FAILS);
}

/* The device breaks while all copies are held up: none of them runs. */
static void work_that_waits_when_the_context_breaks_is_dropped(void **state)
{
	const kvfs_query query = {e.space, old_keys, BLOCKS};
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	uint64_t copied;

	(void)state;
	begin_round();
	assert_int_equal(engine_register(&e), 0);
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.deadline = 60 * SECOND),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), BLOCKS);
	gpu.hold(true);
	copied = gpu.copied(false) + gpu.copied(true);
	assert_int_equal(kvfs_load(e.pool, lease, BLOCKS, pages, NULL, &xfer),
			 0);
	for (unsigned i = 0; i < 20000 && gpu.pending() == 0; i++)
		usleep(1000);
	gpu_set("break=1:719");
	assert_int_equal(gpu.cuCtxSynchronize(), 719);
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND) >= 0);
	for (unsigned i = 0; i < BLOCKS; i++)
		assert_int_equal(kvfs_xfer_status(xfer, i), -EIO);
	assert_int_equal(gpu.copied(false) + gpu.copied(true), copied);
	kvfs_xfer_free(xfer);
	gpu.hold(false);
	/* Later transfers fail at once. */
	assert_int_equal(kvfs_load(e.pool, lease, BLOCKS, pages, NULL, &xfer),
			 -EIO);
	kvfs_release(lease);
	kvfs_pool_close(kv_steal(e.pool));
	gpu.forgive();
	gpu_reset();
	(void)break_at(0, FAILS);
}

static int group(void **state)
{
	int r = world_begin(state, "dram=64M,ssd=0,segment=8M,hugepages=off");

	if (r < 0)
		return r;
	w = *state;
	for (unsigned i = 0; i < BLOCKS; i++) {
		old_keys[i] = world_key(i);
		pages[i] = i;
		reversed[i] = 2 * BLOCKS - 1 - i;
	}
	engine_open(&e, w, "cuda", &shapes[2], &dims, 2 * BLOCKS);
	engine_fill(&e, 7);
	saved_image = malloc(e.shape.bytes);
	memcpy(saved_image, e.image, e.shape.bytes);
	engine_save(&e, BLOCKS, pages, KVFS_SEALED);
	kvfs_pool_close(kv_steal(e.pool));
	gpu_free(e.shape.base);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			work_that_waits_when_the_context_breaks_is_dropped),
		cmocka_unit_test(a_call_that_fails_harms_nothing),
	};

	/* Threads cache no free memory, so that leaks can be counted. */
	setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
	gpu_begin(argv);
	if (gpu_is_real()) {
		puts("a real driver does not break when it is told to");
		return 77;
	}
	/* One of so many calls; "all": every call, in 90 seconds. */
	if (argc > 1)
		step = strcmp(argv[1], "all") == 0 ? 1 : 17;
	if (gpu_open() < 0)
		return 1;
	return cmocka_run_group_tests(tests, group, world_group_teardown);
}
