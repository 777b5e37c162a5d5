/* SPDX-License-Identifier: Apache-2.0 */
/* test_faults.c - the driver fails, the daemon dies, or there is no GPU: every
 * block gets a status, nothing leaks, and other clients continue. */
#include "tests/gpu/memory.h"

#define BLOCKS 32u

/* Blocks of 256 KiB, each of which gets a copy call of its own. */
static const struct dims dims = {4, 8, 128, 16};
static struct engine e;
static struct standin_alive before;
static int64_t pages[BLOCKS];

static int setup(void **state)
{
	size_t i;

	before = gpu_alive();
	engine_open(&e, *state, "cuda", &shapes[2], &dims, BLOCKS);
	engine_fill(&e, 7);
	for (i = 0; i < BLOCKS; i++)
		pages[i] = (int64_t)i;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	gpu.hold(false);
	if (w->daemon == 0)
		world_start_daemon(w);
	engine_close(&e);
	gpu_assert_same(&before);
	return 0;
}

static void assert_nothing_held(void)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	assert_int_equal(kvfs_pool_info(e.pool, &info), 0);
	assert_int_equal(info.pages_loading, 0);
	assert_int_equal(info.pages_saving, 0);
}

/* Let the next driver call of the name @call fail. */
static void fail_one(const char *call)
{
	char text[64];

	snprintf(text, sizeof(text), "fail=%s:1:1", call);
	gpu_set(text);
}

/* Check that some blocks of a load fail and the others are right, and that the
 * next load loads all blocks. */
static void a_load_that_fails(const char *call)
{
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	unsigned failed = 0, i;

	engine_save(&e, BLOCKS, pages, KVFS_SEALED);
	lease = engine_acquire(&e, BLOCKS);
	fail_one(call);
	assert_int_equal(kvfs_load(e.pool, lease, BLOCKS, pages, NULL, &xfer),
			 0);
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND) >= 0);
	for (i = 0; i < BLOCKS; i++) {
		int status = kvfs_xfer_status(xfer, i);

		assert_true(status == 0 || status == -EIO);
		failed += status != 0;
	}
	assert_in_range(failed, 1, BLOCKS);
	kvfs_xfer_free(xfer);
	assert_nothing_held();
	assert_int_equal(kvfs_load(e.pool, lease, BLOCKS, pages, NULL, &xfer),
			 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
			 BLOCKS);
	kvfs_xfer_free(xfer);
	engine_assert_is_image(&e,
			       "after a load that failed, one that did not");
	kvfs_release(lease);
}

static void a_load_whose_copy_fails_says_so_of_its_blocks(void **state)
{
	(void)state;
	a_load_that_fails("cuMemcpyHtoDAsync_v2");
}

static void a_load_whose_kernel_fails_says_so_of_its_blocks(void **state)
{
	(void)state;
	a_load_that_fails("cuLaunchKernel");
}

/* A block that failed is absent, and can be saved again. */
static void a_save_whose_copy_fails_leaves_nothing(void **state)
{
	kvfs_key *keys = engine_keys(BLOCKS);
	kvfs_query query = {e.space, keys, BLOCKS};
	uint8_t states[BLOCKS];
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	unsigned failed = 0, i;

	(void)state;
	fail_one("cuMemcpyDtoHAsync_v2");
	assert_int_equal(kvfs_save(e.pool, e.space, keys, NULL, BLOCKS, pages,
				   NULL, &xfer),
			 0);
	assert_true(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND) >= 0);
	assert_true(kvfs_probe(&query, 1, states) >= 0);
	for (i = 0; i < BLOCKS; i++) {
		bool bad = kvfs_xfer_status(xfer, i) == -EIO;

		assert_int_equal(states[i] == KVFS_ABSENT, bad);
		failed += bad;
	}
	assert_in_range(failed, 1, BLOCKS);
	kvfs_xfer_free(xfer);
	assert_nothing_held();
	assert_int_equal(kvfs_save(e.pool, e.space, keys, NULL, BLOCKS, pages,
				   NULL, &xfer),
			 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND),
			 BLOCKS);
	kvfs_xfer_free(xfer);
	lease = engine_acquire(&e, BLOCKS);
	kvfs_release(lease);
	free(keys);
}

/* The slots stay mapped.  A copy in flight may end with -ESTALE: the library cannot
 * know whether the daemon died or uses the slots again. */
static void a_daemon_that_dies_under_a_copy_does_no_harm(void **state)
{
	struct world *w = *state;
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	unsigned i;

	engine_save(&e, BLOCKS, pages, KVFS_SEALED);
	lease = engine_acquire(&e, BLOCKS);
	GPU_OK(cuMemsetD8Async, e.shape.base, 0xe1, e.shape.bytes, CU_LEGACY);
	GPU_OK(cuCtxSynchronize);
	gpu.hold(true);
	assert_int_equal(kvfs_load(e.pool, lease, BLOCKS, pages, NULL, &xfer),
			 0);
	for (i = 0; i < 20000 && gpu.pending() == 0; i++)
		usleep(1000);
	world_stop_daemon(w, SIGKILL);
	gpu.hold(false);
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND) >= 0);
	for (i = 0; i < BLOCKS; i++)
		assert_true(kvfs_xfer_status(xfer, i) == 0 ||
			    kvfs_xfer_status(xfer, i) == -ESTALE);
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
	assert_nothing_held();
}

/* The child of a fork makes no driver call, whatever it calls. */
static void a_child_of_a_fork_makes_no_driver_call(void **state)
{
	struct world *w = *state;
	struct kvfs_pool_info info = {.size = sizeof(info)};
	uint64_t calls;
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	int status = -1;
	pid_t child;

	engine_save(&e, BLOCKS, pages, KVFS_SEALED);
	lease = engine_acquire(&e, BLOCKS);
	child = fork();
	if (child == 0) {
		alarm(60);
		calls = gpu.calls("*");
		if (kvfs_load(e.pool, lease, BLOCKS, pages, NULL, &xfer) >= 0)
			_exit(1);
		(void)kvfs_pool_info(e.pool, &info);
		kvfs_release(lease);
		kvfs_pool_close(e.pool);
		kvfs_space_close(e.space);
		kvfs_close(w->session);
		_exit(gpu.calls("*") == calls && gpu.bugs() == 0 ? 0 : 2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	kvfs_release(lease);
}

static int register_as(const char *device, uint64_t base)
{
	struct pool_shape shape = e.shape;
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = device,
		.space = e.space,
		.views = shape.views,
		.n_views = shape.n_views,
		.pages = BLOCKS,
		.pages_per_block = 1,
	};
	kvfs_pool *pool = NULL;
	size_t i;
	int r;

	for (i = 0; i < shape.n_views; i++)
		shape.views[i].base =
			(uint8_t *)shape.views[i].base - shape.base + base;
	r = kvfs_pool_register(e.session, &desc, &pool);
	kvfs_pool_close(pool);
	return r;
}

static void a_pool_of_no_device_memory_is_refused(void **state)
{
	void *host = malloc(e.shape.bytes);

	(void)state;
	assert_int_equal(register_as("cuda", e.shape.base), 0);
	assert_int_equal(register_as("cuda:0", e.shape.base), 0);
	assert_int_equal(register_as("cuda:7", e.shape.base), -ENODEV);
	assert_int_equal(register_as("cuda:", e.shape.base), -ENODEV);
	assert_int_equal(register_as("cudas", e.shape.base), -ENODEV);
	assert_true(register_as("cuda", (uintptr_t)host) < 0);
	assert_int_equal(register_as("cuda:0", (uintptr_t)host), -EINVAL);
	free(host);
}

/* Run this test in a process of its own, whose driver has no device. */
static int no_device(void)
{
	struct world *w = NULL;
	int r;

	setenv("KVFS_STANDIN", "devices=0", 1);
	if (world_begin((void **)&w, "dram=64M,ssd=0,hugepages=off") < 0)
		return 1;
	engine_open(&e, w, "host", &shapes[0], &dims, 4);
	r = register_as("cuda", e.shape.base) == -ENODEV &&
			    register_as("cuda:0", e.shape.base) == -ENODEV
		    ? 0
		    : 1;
	engine_close(&e);
	world_group_teardown((void **)&w);
	return r;
}

static void without_a_device_there_is_none(void **state)
{
	char *const argv[] = {"test_faults", "no-device", NULL};
	char text[512] = "";
	FILE *said = tmpfile();
	int status;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		dup2(fileno(said), 2);
		execv("/proc/self/exe", argv);
		_exit(127);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(pread(fileno(said), text, sizeof(text) - 1, 0) > 0);
	fclose(said);
	assert_non_null(strstr(text, "no driver that can be used: "));
}

static int group(void **state)
{
	return world_begin(state, "dram=64M,ssd=0,segment=8M,hugepages=off");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(a_load_whose_copy_fails_says_so_of_its_blocks),
		TEST(a_load_whose_kernel_fails_says_so_of_its_blocks),
		TEST(a_save_whose_copy_fails_leaves_nothing),
		TEST(a_daemon_that_dies_under_a_copy_does_no_harm),
		TEST(a_child_of_a_fork_makes_no_driver_call),
		TEST(a_pool_of_no_device_memory_is_refused),
		TEST(without_a_device_there_is_none),
	};

	gpu_begin(argv);
	if (argc > 1 && strcmp(argv[1], "no-device") == 0)
		return no_device();
	if (gpu_is_real()) {
		puts("a real driver does not fail when it is told to");
		return 77;
	}
	if (gpu_open() < 0)
		return 1;
	return cmocka_run_group_tests(tests, group, world_group_teardown);
}
