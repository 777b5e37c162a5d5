/* SPDX-License-Identifier: Apache-2.0 */
/* The paths of bytes between host memory and pages of the GPU, and their
 * failures. */
#include <sys/wait.h>

#include <stdatomic.h>

#include "tests/gpu/rig.h"

#define CHUNK ((uint64_t)16 << 20)

/* Return whether @at is mapped read-only. */
static bool is_read_only(const void *at)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t from, to;
	char rights[5], line[512];
	bool is = false;

	while (fgets(line, sizeof(line), maps) != NULL)
		if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 &&
		    (uintptr_t)at >= from && (uintptr_t)at < to)
			is = strcmp(rights, "r--s") == 0;
	fclose(maps);
	return is;
}

/* ---- the path of the bytes: registered or staged memory ---- */

/* Return how many allocations, streams and events were made since @then. */
static uint64_t made_since(const struct standin_alive *then)
{
	struct standin_alive now = gpu_alive();

	return now.host - then->host + now.device - then->device + now.streams -
	       then->streams + now.events - then->events;
}

/* Batches create no allocation, stream or event: all exist before the first batch. */
static void memory_that_is_not_attached_goes_through_staging(void **state)
{
	struct standin_alive made;

	(void)state;
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	rig_staging(&rig);
	made = gpu_alive();
	rig_check_load(&rig, 0, RIG_BLOCKS, 1);
	rig_fill_pool(&rig, 2);
	rig_check_save(&rig, RIG_BLOCKS);
	assert_int_equal(made_since(&made), 0);
	assert_string_equal(rig_info(&rig).path, "pinned staging, DMA");
	assert_true(rig_info(&rig).bytes_pinned >= 16 << 20);
}

static void an_arena_that_is_registered_needs_no_staging(void **state)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};
	struct standin_alive made = gpu_alive();

	(void)state;
	rig_arena_to_register(&rig, RIG_BLOCKS * RIG_BLOCK);
	rig_staging(&rig);
	rig.device->attach(rig.arena, rig.arena_bytes, false);
	rig.device->attach(rig.staging, rig.staging_bytes, true);
	rig_wait_tried(&rig, rig.arena_bytes + rig.staging_bytes);
	info = rig_info(&rig);
	if (info.bytes_refused > 0)
		skip(); /* a real GPU that registers neither kind of memory */
	rig_check_load(&rig, 0, RIG_BLOCKS, 3);
	rig_fill_pool(&rig, 4);
	rig_check_save(&rig, RIG_BLOCKS);
	info = rig_info(&rig);
	assert_string_equal(info.path, "registered arena, DMA");
	assert_int_equal(made_since(&made), 0);
}

static void a_device_that_cannot_register_it_uses_staging_and_says_so(void **s)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	(void)s;
	rig_needs_faults();
	rig.device->close(rig.pool);
	gpu_set("readonly=0");
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	rig.device->attach(rig.arena, rig.arena_bytes, false);
	rig_wait_tried(&rig, rig.arena_bytes);
	rig_check_load(&rig, 0, RIG_BLOCKS, 5);
	info = rig_info(&rig);
	assert_int_equal(info.bytes_refused, rig.arena_bytes);
	assert_string_equal(info.path, "pinned staging, DMA");
	assert_non_null(strstr(info.reason, "mount with arena=rw"));
	assert_true(is_read_only(rig.arena));
}

static void with_arena_rw_it_is_registered_and_read_only_again(void **state)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	(void)state;
	rig_needs_faults();
	rig.device->close(rig.pool);
	gpu_set("readonly=0");
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, false);
	rig.device->attach(rig.arena, rig.arena_bytes, false);
	rig_wait_tried(&rig, rig.arena_bytes);
	rig_check_load(&rig, 0, RIG_BLOCKS, 6);
	info = rig_info(&rig);
	assert_int_equal(info.bytes_registered, rig.arena_bytes);
	assert_string_equal(info.path, "registered arena, DMA");
	assert_string_equal(info.reason,
			    "the owner's memory, registered while it was "
			    "writable");
	assert_true(is_read_only(rig.arena));
}

static void a_load_does_not_wait_for_the_registration(void **state)
{
	size_t i;

	(void)state;
	rig_arena_to_register(&rig, 3 * CHUNK);
	rig.device->attach(rig.arena, rig.arena_bytes, false);
	for (i = 0; i < 8; i++)
		rig_check_load(&rig, i * RIG_BLOCK, 4, 10 * i);
}

/* Blocks that cross the end of the refused chunk go through staging as well. */
static void a_chunk_that_is_refused_goes_through_staging(void **state)
{
	(void)state;
	rig_needs_faults();
	gpu_set("fail=cuMemHostRegister_v2:2:801");
	rig_arena_to_register(&rig, 2 * CHUNK + 4 * RIG_BLOCK);
	rig.device->attach(rig.arena, rig.arena_bytes, false);
	rig_wait_tried(&rig, rig.arena_bytes);
	assert_int_equal(rig_info(&rig).bytes_refused, CHUNK);
	rig_check_load(&rig, 0, 4, 20);
	rig_check_load(&rig, CHUNK - 2 * RIG_BLOCK - 4096, 6, 30);
	rig_check_load(&rig, 2 * CHUNK - 3 * RIG_BLOCK - 8192, 6, 40);
	rig_check_load(&rig, 2 * CHUNK, 4, 50);
	assert_string_equal(rig_info(&rig).path, "registered arena, DMA");
}

static void a_chunk_without_memory_is_tried_again(void **state)
{
	struct kvfs_pool_info info;
	unsigned i;

	(void)state;
	rig_needs_faults();
	/* Each chunk fails, and then the first one again. */
	for (i = 0; i < 3; i++)
		gpu_set("fail=cuMemHostRegister_v2:1:2");
	rig_arena_to_register(&rig, 2 * CHUNK);
	rig.device->attach(rig.arena, rig.arena_bytes, false);
	rig_wait_tried(&rig, rig.arena_bytes);
	assert_int_equal(rig_info(&rig).bytes_refused, 2 * CHUNK);
	assert_string_equal(rig_info(&rig).reason,
			    "the driver lacks memory for it, and is asked "
			    "again");
	rig_check_load(&rig, 0, 4, 21);
	for (i = 0; i < 1000; i++) {
		info = rig_info(&rig);
		if (info.bytes_registered == rig.arena_bytes)
			break;
		usleep(10000);
	}
	assert_int_equal(info.bytes_registered, rig.arena_bytes);
	assert_int_equal(info.bytes_refused, 0);
	assert_string_equal(info.path, "registered arena, DMA");
	rig_check_load(&rig, CHUNK - RIG_BLOCK / 2, 4, 22);
}

/* The stand-in holds the context while it registers, for 16 ms a chunk. */
static void launches_of_the_engine_wait_for_one_chunk_only(void **state)
{
	const unsigned chunks = 24;
	CUstream stream = gpu_stream();
	unsigned after[25] = {0}, stalled = 0, done;

	(void)state;
	rig_needs_faults();
	gpu_set("sync=register,cost=1000");
	rig_arena_to_register(&rig, chunks * CHUNK);
	rig.device->attach(rig.arena, rig.arena_bytes, false);
	do {
		gpu_spin(stream, 1000);
		GPU_OK(cuStreamSynchronize, stream);
		done = (unsigned)(rig_info(&rig).bytes_registered / CHUNK);
		after[done]++;
	} while (done < chunks);
	for (done = 1; done < chunks; done++)
		stalled += after[done] == 0;
	if (stalled > chunks / 2)
		fail_msg("no launch between two chunks, %u times", stalled);
	GPU_OK(cuStreamDestroy_v2, stream);
	gpu_set_again();
}

static void a_block_may_lie_in_two_chunks(void **state)
{
	(void)state;
	rig_arena_to_register(&rig, 2 * CHUNK);
	rig.device->attach(rig.arena, rig.arena_bytes, false);
	rig_wait_tried(&rig, rig.arena_bytes);
	rig_check_load(&rig, CHUNK - RIG_BLOCK / 2, 1, 55);
	rig_check_load(&rig, CHUNK - RIG_BLOCK + 4096, 3, 56);
	rig_check_load(&rig, CHUNK - 2 * RIG_PIECE, 3, 57);
}

/* Detach memory while the plug-in's thread that registers it is at any step. */
static void what_is_detached_is_registered_no_more(void **state)
{
	unsigned i;

	(void)state;
	rig_arena_to_register(&rig, 64 * CHUNK);
	for (i = 0; i < 40; i++) {
		rig.device->attach(rig.arena, rig.arena_bytes, false);
		usleep(i * 50);
		rig.device->detach(rig.arena);
		if (gpu.alive != NULL)
			assert_int_equal(gpu_alive().registered,
					 rig.before.registered);
		assert_int_equal(rig_info(&rig).bytes_registered, 0);
	}
	rig_check_load(&rig, 0, 2, 60);
}

/* ---- streams of the caller ---- */

static void wait_for_word(void *word)
{
	while (!atomic_load((atomic_bool *)word))
		usleep(1000);
}

/* Load like rig_check_load, but do not read the pool afterwards, because
 * reading would wait for all streams. */
static void load_beside(uint64_t seed)
{
	struct rig_batch b;

	rig_make_load(&rig, &b, 0, RIG_BLOCKS, seed);
	assert_int_equal(rig.device->load(rig.pool, &b.batch), 0);
	rig_on_image(&rig, &b, true);
}

static void save_beside(void)
{
	struct rig_batch b;

	rig_make(&rig, &b, rig.staging, RIG_BLOCK, 2, RIG_BLOCKS);
	assert_int_equal(rig.device->save(rig.pool, &b.batch), 0);
}

/* The test blocks a stream of the caller.  A driver may wait for all streams
 * when an object is made, freed or launched for the first time: a load or save
 * must do none of these. */
static void no_batch_waits_for_the_stream_of_another(void **state)
{
	CUstream stream = gpu_stream();
	atomic_bool go_on = false;

	(void)state;
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	rig_staging(&rig);
	rig.device->close(rig.pool);
	gpu_set("sync=all,queues=1");
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	GPU_OK(cuLaunchHostFunc, stream, wait_for_word, &go_on);
	load_beside(1);
	save_beside();
	assert_int_equal(gpu.cuStreamQuery(stream), CU_NOT_READY);
	atomic_store(&go_on, true);
	GPU_OK(cuStreamSynchronize, stream);
	rig_assert_is_image(&rig);
	GPU_OK(cuStreamDestroy_v2, stream);
	gpu_set_again();
}

/* ---- failures ---- */

static void load_fails(const char *fault, int error)
{
	struct rig_batch b;
	size_t i;

	rig_read(&rig);
	rig_make(&rig, &b, rig.arena, RIG_BLOCK, 3, RIG_BLOCKS);
	for (i = 0; i < RIG_BLOCKS; i++)
		rig_fill(rig.alias + i * RIG_BLOCK, 99 + i);
	gpu_set(fault);
	assert_int_equal(rig.device->load(rig.pool, &b.batch), error);
}

/* No copy is in flight when a failure is reported. */
static void nothing_lands_after_a_load_has_failed(void **state)
{
	(void)state;
	rig_needs_faults();
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	gpu_set("delay=3000");
	load_fails("fail=cuMemcpyHtoDAsync_v2:4:1", -EIO);
	assert_int_equal(gpu.pending(), 0);
	rig_read(&rig);
	memcpy(rig.image, rig.now, RIG_BYTES);
	usleep(20000);
	rig_assert_is_image(&rig);
	/* After the failure the copy stream works again. */
	rig_check_load(&rig, 0, RIG_BLOCKS, 70);
}

static void a_save_that_failed_writes_nothing_afterwards(void **state)
{
	struct rig_batch b;

	(void)state;
	rig_needs_faults();
	rig_staging(&rig);
	rig_fill_pool(&rig, 7);
	gpu_set("delay=3000,fail=cuMemcpyDtoHAsync_v2:3:1");
	rig_make(&rig, &b, rig.staging, RIG_BLOCK, 0, RIG_BLOCKS);
	assert_int_equal(rig.device->save(rig.pool, &b.batch), -EIO);
	assert_int_equal(gpu.pending(), 0);
	memset(rig.staging, 0x11, rig.staging_bytes);
	usleep(20000);
	assert_int_equal(rig.staging[0], 0x11);
	assert_int_equal(rig.staging[rig.staging_bytes - 1], 0x11);
	rig_check_save(&rig, RIG_BLOCKS);
}

static void every_call_that_fails_fails_the_batch_and_no_other(void **state)
{
	static const char *const faults[] = {
		"fail=cuMemcpyHtoDAsync_v2:1:1",
		"fail=cuLaunchKernel:1:1",
		"fail=cuEventRecord:1:1",
		"fail=cuEventSynchronize:1:1",
	};
	struct rig_batch b;
	size_t i;
	int r;

	(void)state;
	rig_needs_faults();
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	for (i = 0; i < KV_ARRAY_LEN(faults); i++) {
		rig.device->close(rig.pool);
		assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
		rig_make(&rig, &b, rig.arena, RIG_BLOCK, 3, RIG_BLOCKS);
		gpu_set(faults[i]);
		r = rig.device->load(rig.pool, &b.batch);
		if (r != -EIO && r != -ENOMEM)
			fail_msg("%s: %d", faults[i], r);
		assert_int_equal(gpu.pending(), 0);
		rig_read(&rig);
		memcpy(rig.image, rig.now, RIG_BYTES);
		rig_check_load(&rig, 0, RIG_BLOCKS, 100 * i);
	}
}

static void with_little_memory_left_staging_is_smaller(void **state)
{
	char memory[64];

	(void)state;
	rig_needs_faults();
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	rig.device->close(rig.pool);
	snprintf(memory, sizeof(memory), "memory=%lu",
		 gpu_alive().device_bytes + (3 << 20));
	gpu_set(memory);
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	rig_check_load(&rig, 0, RIG_BLOCKS, 80);
	assert_true(gpu_alive().device_bytes >=
		    rig.before.device_bytes + (2 << 20));
	gpu_set("memory=8589934592");
}

static void without_any_memory_the_device_is_not_opened(void **state)
{
	char memory[64];

	(void)state;
	rig_needs_faults();
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	rig.device->close(rig.pool);
	snprintf(memory, sizeof(memory), "memory=%lu",
		 gpu_alive().device_bytes);
	gpu_set(memory);
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), -ENOMEM);
	gpu_set("memory=8589934592");
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
	rig_check_load(&rig, 0, RIG_BLOCKS, 81);
}

/* Run this test in a process of its own, because the context cannot be
 * repaired. */
static int use_a_broken_context(void)
{
	struct rig_batch b;
	uint64_t calls;

	rig_open(&rig);
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	rig_make(&rig, &b, rig.arena, RIG_BLOCK, 3, RIG_BLOCKS);
	gpu_set("fail=cuEventSynchronize:1:700");
	gpu_set("fail=cuStreamSynchronize:1:700");
	if (rig.device->load(rig.pool, &b.batch) != -EIO)
		return 1;
	/* The load fails at once, without a call to the device. */
	calls = gpu.calls("cuCtxPushCurrent_v2");
	if (rig.device->load(rig.pool, &b.batch) != -EIO ||
	    rig.device->save(rig.pool, &b.batch) != -EIO ||
	    gpu.calls("cuCtxPushCurrent_v2") != calls)
		return 2;
	if (strcmp(rig_info(&rig).reason, "the GPU's context has failed") != 0)
		return 3;
	/* The stand-in's operations continue: wait for them. */
	while (gpu.pending() > 0)
		usleep(1000);
	rig.device->close(rig.pool);
	return 0;
}

static void a_context_that_has_failed_answers_at_once(void **state)
{
	int status = -1;
	pid_t child;

	(void)state;
	rig_needs_faults();
	child = fork();
	if (child == 0) {
		setenv("KVFS_RIG_BROKEN", "1", 1);
		execl("/proc/self/exe", "test_paths", NULL);
		_exit(127);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* ---- opening ---- */

static void memory_of_the_host_is_no_pool_of_the_device(void **state)
{
	kvfs_pool_desc desc = rig.desc;
	kvfs_view view = rig.views[0];
	void *pool;

	(void)state;
	desc.views = &view;
	desc.n_views = 1;
	view.base = rig.image;
	assert_int_equal(rig.device->open(&desc, &pool), -EINVAL);
	desc.device = "cuda:0";
	assert_int_equal(rig.device->open(&desc, &pool), -EINVAL);
	/* The end of this view lies outside of the device's memory. */
	view = rig.views[0];
	view.bytes = (uint64_t)1 << 40;
	assert_int_equal(rig.device->open(&desc, &pool), -EINVAL);
}

static void a_device_that_is_not_there_is_not_opened(void **state)
{
	kvfs_pool_desc desc = rig.desc;
	void *pool;

	(void)state;
	desc.device = "cuda:99";
	assert_int_equal(rig.device->open(&desc, &pool), -ENODEV);
	desc.device = "cuda:";
	assert_int_equal(rig.device->open(&desc, &pool), -ENODEV);
	desc.device = "cuda:0x";
	assert_int_equal(rig.device->open(&desc, &pool), -ENODEV);
	desc.device = "cuda:-1";
	assert_int_equal(rig.device->open(&desc, &pool), -ENODEV);
	desc.device = "cuda:0";
	assert_int_equal(rig.device->open(&desc, &pool), 0);
	rig.device->close(pool);
	assert_null(kv_device_find("cudax"));
	assert_null(kv_device_find("../cuda"));
}

static void an_open_that_fails_leaves_nothing(void **state)
{
	static const char *const faults[] = {
		"fail=cuDevicePrimaryCtxRetain:1:2",
		"fail=cuModuleLoadData:1:300",
		"fail=cuModuleGetFunction:2:500",
		"fail=cuCtxGetStreamPriorityRange:1:1",
		"fail=cuStreamCreateWithPriority:1:2",
		"fail=cuStreamCreateWithPriority:2:2",
		"fail=cuEventCreate:1:2",
		"fail=cuEventCreate:2:2",
		"fail=cuMemAlloc_v2:1:1",
		"fail=cuMemHostAlloc:1:2",
		"fail=cuMemHostAlloc:2:2",
		"fail=cuMemHostAlloc:3:2",
		"fail=cuMemcpyHtoDAsync_v2:1:1",
		"fail=cuLaunchKernel:1:1",
		"fail=cuLaunchKernel:2:1",
	};
	struct standin_alive now;
	size_t i;
	void *pool;

	(void)state;
	rig_needs_faults();
	rig.device->close(rig.pool);
	for (i = 0; i < KV_ARRAY_LEN(faults); i++) {
		rig.desc.device = "cuda:0";
		gpu_set(faults[i]);
		assert_true(rig.device->open(&rig.desc, &pool) < 0);
		now = gpu_alive();
		assert_int_equal(now.modules, rig.before.modules);
		assert_int_equal(now.streams, rig.before.streams);
		assert_int_equal(now.events, rig.before.events);
		assert_int_equal(now.host, rig.before.host);
	}
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
}

/* The library prints the remedy once, because an errno alone does not tell
 * it. */
static void a_driver_that_is_too_old_is_said_to_be(void **state)
{
	char text[512] = "";
	FILE *said = tmpfile();
	int before_it = dup(2), i;
	void *pool;

	(void)state;
	rig_needs_faults();
	rig.device->close(rig.pool);
	fflush(stderr);
	assert_true(dup2(fileno(said), 2) == 2);
	rig.desc.device = "cuda:0";
	for (i = 0; i < 3; i++) {
		gpu_set("fail=cuModuleLoadData:1:222,"
			"fail=cuModuleLoadData:1:222");
		assert_int_equal(rig.device->open(&rig.desc, &pool), -ENODEV);
	}
	assert_true(dup2(before_it, 2) == 2);
	rewind(said);
	assert_true(fread(text, 1, sizeof(text) - 1, said) > 0);
	fclose(said);
	close(before_it);
	assert_non_null(strstr(text, "error 222"));
	assert_non_null(strstr(text, "need one for CUDA 11.0 (R450) or later "
				     "(this one is for CUDA 13.0)"));
	assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
	assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
}

/* Load the kernels as text after the errors of drivers that cannot read the code,
 * and after no other error. */
static void a_driver_that_cannot_read_the_code_gets_text(void **state)
{
	static const int refusals[] = {200, 209, 218, 221, 222,
				       223, 1,	 2,   300, 719};
	char fault[64];
	uint64_t calls;
	size_t i;
	int r;

	(void)state;
	rig_needs_faults();
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	rig.desc.device = "cuda:0";
	for (i = 0; i < KV_ARRAY_LEN(refusals); i++) {
		rig.device->close(rig.pool);
		calls = gpu.calls("cuModuleLoadData");
		snprintf(fault, sizeof(fault), "fail=cuModuleLoadData:1:%d",
			 refusals[i]);
		gpu_set(fault);
		r = rig.device->open(&rig.desc, &rig.pool);
		assert_int_equal(gpu.calls("cuModuleLoadData") - calls,
				 i < 6 ? 2 : 1);
		assert_true(i < 6 ? r == 0 : r == -EIO || r == -ENOMEM);
		if (r < 0)
			assert_int_equal(rig.device->open(&rig.desc, &rig.pool),
					 0);
		rig_check_load(&rig, 0, RIG_BLOCKS, i);
	}
}

/* The plug-in also works on GPUs newer than nvcc knows, and with the oldest
 * driver of each GPU: that of CUDA 11.0, if the driver knows the GPU. */
static void every_generation_has_code_or_text(void **state)
{
	static const char *const generations[] = {
		"arch=75,version=11000",  "arch=80,version=11000",
		"arch=87,version=11040",  "arch=90,version=11080",
		"arch=75,version=12000",  "arch=90,version=12000",
		"arch=100,version=12080", "arch=103,version=12090",
		"arch=75,version=13000",  "arch=90,version=13000",
		"arch=121,version=13000", "arch=130,version=13000",
	};
	size_t i;

	(void)state;
	rig_needs_faults();
	rig_arena(&rig, RIG_BLOCKS * RIG_BLOCK, true);
	for (i = 0; i < KV_ARRAY_LEN(generations); i++) {
		rig.device->close(rig.pool);
		gpu_set(generations[i]);
		assert_int_equal(rig.device->open(&rig.desc, &rig.pool), 0);
		rig_check_load(&rig, 0, RIG_BLOCKS, i);
	}
	gpu_set("arch=90,version=13000");
}

static void a_child_never_touches_the_driver(void **state)
{
	int status = -1;
	void *pool;
	pid_t child = fork();

	(void)state;
	if (child == 0)
		_exit(rig.device->open(&rig.desc, &pool) == -ENODEV ? 0 : 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

#define TEST(name) \
	cmocka_unit_test_setup_teardown(name, rig_set_up, rig_tear_down)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(memory_that_is_not_attached_goes_through_staging),
		TEST(an_arena_that_is_registered_needs_no_staging),
		TEST(a_device_that_cannot_register_it_uses_staging_and_says_so),
		TEST(with_arena_rw_it_is_registered_and_read_only_again),
		TEST(a_load_does_not_wait_for_the_registration),
		TEST(a_chunk_that_is_refused_goes_through_staging),
		TEST(a_chunk_without_memory_is_tried_again),
		TEST(launches_of_the_engine_wait_for_one_chunk_only),
		TEST(a_block_may_lie_in_two_chunks),
		TEST(what_is_detached_is_registered_no_more),
		TEST(no_batch_waits_for_the_stream_of_another),
		TEST(nothing_lands_after_a_load_has_failed),
		TEST(a_save_that_failed_writes_nothing_afterwards),
		TEST(every_call_that_fails_fails_the_batch_and_no_other),
		TEST(with_little_memory_left_staging_is_smaller),
		TEST(without_any_memory_the_device_is_not_opened),
		TEST(a_context_that_has_failed_answers_at_once),
		TEST(memory_of_the_host_is_no_pool_of_the_device),
		TEST(a_device_that_is_not_there_is_not_opened),
		TEST(every_generation_has_code_or_text),
		TEST(a_driver_that_is_too_old_is_said_to_be),
		TEST(a_driver_that_cannot_read_the_code_gets_text),
		TEST(an_open_that_fails_leaves_nothing),
		TEST(a_child_never_touches_the_driver),
	};

	(void)argc;
	gpu_begin(argv);
	if (gpu_open() < 0)
		return 77;
	if (getenv("KVFS_RIG_BROKEN") != NULL)
		return use_a_broken_context();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
