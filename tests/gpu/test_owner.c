/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_owner.c - a GPU that does not register read-only memory: with
 * arena=auto, a user's own blocks lie in memory that the GPU registers.
 *
 * OWNS      the effective user of its own thread.
 *
 * LOCKING   none: one thread, beside the library's.
 */
#include <sys/stat.h>
#include <sys/syscall.h>

#include "tests/gpu/memory.h"

#define OWNER 1001
#define BLOCKS 24u
#define OPTIONS "dram=128M,segment=8M,hugepages=off,ssd=0,scrub=0,allow=1001"

static const struct dims middle = {2, 4, 64, 8};
static int64_t pages[BLOCKS];

/* Change the user of this thread, but not that of the library's threads. */
static void become(uid_t uid)
{
	assert_int_equal(syscall(SYS_setresuid, -1, uid, -1), 0);
}

static int begin(void **state, const char *options, uid_t uid)
{
	struct world *w;
	int r = world_begin(state, options);

	w = *state;
	if (r < 0 || chmod(w->dir, 0755) < 0)
		return -1;
	become(uid);
	for (size_t i = 0; i < BLOCKS; i++)
		pages[i] = (int64_t)i;
	return kvfs_open(w->path, &w->session);
}

static int set_up(void **state)
{
	return begin(state, OPTIONS, OWNER);
}

static int set_up_root(void **state)
{
	return begin(state, OPTIONS, 0);
}

static int set_up_root_rw(void **state)
{
	return begin(state, OPTIONS ",arena=rw", 0);
}

static int tear_down(void **state)
{
	struct world *w = *state;

	become(0);
	kvfs_close(w->session);
	return world_group_teardown(state);
}

/* Return the pool's info once all memory is registered or refused. */
static struct kvfs_pool_info info_when_tried(struct engine *e)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	for (unsigned i = 0; i < 3000; i++) {
		assert_int_equal(kvfs_pool_info(e->pool, &info), 0);
		if (strcmp(info.reason, "nothing of the arena has been "
					"registered yet") != 0)
			break;
		usleep(10000);
	}
	return info;
}

/* Set the memory between the pages to 0xa5. */
static void keep_pages_only(struct engine *e)
{
	uint8_t *image = malloc(e->shape.bytes);
	uint8_t *page = malloc(shape_page_bytes(&e->shape));

	memset(image, 0xa5, e->shape.bytes);
	for (uint64_t i = 0; i < BLOCKS; i++) {
		shape_page(&e->shape, e->image, i, page, false);
		shape_page(&e->shape, image, i, page, true);
	}
	free(page);
	free(e->image);
	e->image = image;
}

static void there_and_back(struct engine *e)
{
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	engine_fill(e, 7);
	engine_save(e, BLOCKS, pages, KVFS_SEALED);
	keep_pages_only(e);
	lease = engine_acquire(e, BLOCKS);
	for (unsigned round = 0; round < 3; round++) {
		GPU_OK(cuMemsetD8Async, e->shape.base, 0xa5, e->shape.bytes,
		       CU_LEGACY);
		GPU_OK(cuCtxSynchronize);
		assert_int_equal(
			kvfs_load(e->pool, lease, BLOCKS, pages, NULL, &xfer),
			0);
		assert_int_equal(
			kvfs_xfer_wait(xfer, KVFS_COPIED, 120 * SECOND),
			BLOCKS);
		for (size_t i = 0; i < BLOCKS; i++)
			assert_int_equal(kvfs_xfer_status(xfer, i), 0);
		kvfs_xfer_free(xfer);
		engine_assert_is_image(e, "a load");
		/* Wait for the registration, for which the first load did not
		 * wait. */
		(void)info_when_tried(e);
	}
	kvfs_release(lease);
}

static void assert_registered_while_writable(struct engine *e)
{
	struct kvfs_pool_info info = info_when_tried(e);

	assert_string_equal(info.path, "registered arena, DMA");
	assert_non_null(strstr(info.reason, "while it was writable"));
	assert_int_equal(info.bytes_refused, 0);
}

static void an_owners_memory_is_registered_while_it_is_writable(void **state)
{
	struct engine e;

	engine_open(&e, *state, "cuda", &shapes[0], &middle, BLOCKS);
	there_and_back(&e);
	assert_registered_while_writable(&e);
	engine_close(&e);
}

static void the_memory_of_the_next_daemon_is_registered_too(void **state)
{
	struct world *w = *state;
	struct engine e;

	engine_open(&e, w, "cuda", &shapes[0], &middle, BLOCKS);
	there_and_back(&e);
	become(0);
	world_stop_daemon(w, SIGKILL);
	world_start_daemon(w);
	become(OWNER);
	engine_close(&e);
	engine_open(&e, w, "cuda", &shapes[0], &middle, BLOCKS);
	there_and_back(&e);
	assert_registered_while_writable(&e);
	engine_close(&e);
}

/* Every root of a container without a user namespace is the same uid 0. */
static void roots_memory_stays_sealed_and_the_reason_names_the_remedy(void **s)
{
	struct kvfs_pool_info info;
	struct engine e;

	engine_open(&e, *s, "cuda", &shapes[0], &middle, BLOCKS);
	there_and_back(&e);
	info = info_when_tried(&e);
	assert_string_equal(info.path, "pinned staging, DMA");
	assert_string_equal(info.reason,
			    "the device registers writable memory only: mount "
			    "with arena=rw, or run as another user than root "
			    "with a private space");
	engine_close(&e);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(an_owners_memory_is_registered_while_it_is_writable),
		TEST(the_memory_of_the_next_daemon_is_registered_too),
		cmocka_unit_test_setup_teardown(
			roots_memory_stays_sealed_and_the_reason_names_the_remedy,
			set_up_root, tear_down),
		/* With arena=rw root gets the memory like other users. */
		cmocka_unit_test_setup_teardown(
			an_owners_memory_is_registered_while_it_is_writable,
			set_up_root_rw, tear_down),
	};

	(void)argc;
	gpu_begin(argv);
	if (gpu_is_real() || geteuid() != 0) {
		print_message("needs the stand-in, and root\n");
		return 77;
	}
	if (gpu_open() < 0)
		return 1;
	gpu_set("readonly=0");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
