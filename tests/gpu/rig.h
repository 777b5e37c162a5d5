/* SPDX-License-Identifier: Apache-2.0 */
/* rig.h - the device "cuda" without daemon and library: an arena, staging, a
 * pool in device memory, and the pool's expected contents. */
#ifndef KV_TESTS_GPU_RIG_H
#define KV_TESTS_GPU_RIG_H

#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>

#include "kernels/device/device.h"
#include "kernels/kvfs.h"
#include "tests/gpu/gpu.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define RIG_LAYERS 4u
/* bytes of a piece that a kernel copies */
#define RIG_PIECE ((uint64_t)24 << 10)
/* bytes of a piece that is large enough for a copy call instead of a kernel */
#define RIG_LONG ((uint64_t)1 << 20)
#define RIG_BLOCK (RIG_LAYERS * RIG_PIECE + RIG_LONG)
#define RIG_PAGES 24u
#define RIG_BYTES (RIG_PAGES * RIG_BLOCK)
#define RIG_BLOCKS 16u

struct rig {
	const struct kvfs_device *device;
	void *pool;
	CUdeviceptr memory;
	CUdeviceptr copy; /* copy of the pool's memory, which one test needs */
	kvfs_view views[RIG_LAYERS + 1];
	kvfs_pool_desc desc;
	struct kvfs_stride strides[RIG_LAYERS + 1], on_host[RIG_LAYERS + 1];
	uint8_t *image, *now; /* expected and actual contents of the pool */
	uint8_t *arena;	      /* address of the arena, mapped for reading */
	/* the daemon's writable mapping of the staging memory */
	uint8_t *alias;
	uint64_t arena_bytes;
	uint8_t *staging;
	uint64_t staging_bytes;
	/* numbers of driver objects that existed before the rig was opened */
	struct standin_alive before;
};

static inline void *rig_map(int fd, uint64_t bytes, int protection)
{
	void *at = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);

	assert_ptr_not_equal(at, MAP_FAILED);
	return at;
}

/* Make an arena that clients can only read, as with arena=sealed, or write to
 * (@sealed is false), as with arena=rw. */
static inline void rig_arena(struct rig *rig, uint64_t bytes, bool sealed)
{
	int fd = memfd_create("rig-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int seals = F_SEAL_SHRINK | F_SEAL_GROW;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	rig->alias = rig_map(fd, bytes, PROT_READ | PROT_WRITE);
	if (sealed)
		seals |= F_SEAL_FUTURE_WRITE;
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	rig->arena = rig_map(fd, bytes, PROT_READ);
	rig->arena_bytes = bytes;
	close(fd);
}

/* Make an arena that the device can register: a sealed one, if the device
 * registers read-only memory. */
static inline void rig_arena_to_register(struct rig *rig, uint64_t bytes)
{
	int value = 0;

	assert_int_equal(
		gpu.plugins_attribute(&value, CU_READ_ONLY_HOST_REGISTER, 0),
		CU_OK);
	rig_arena(rig, bytes, value != 0);
}

static inline void rig_staging(struct rig *rig)
{
	rig->staging_bytes = RIG_BLOCKS * RIG_BLOCK;
	rig->staging = mmap(NULL, rig->staging_bytes, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(rig->staging, MAP_FAILED);
	memset(rig->staging, 0x77, rig->staging_bytes);
}

static inline void rig_layout(struct rig *rig)
{
	uint64_t offset = 0, at = 0, bytes;
	size_t i;

	for (i = 0; i <= RIG_LAYERS; i++) {
		bytes = i < RIG_LAYERS ? RIG_PIECE : RIG_LONG;
		rig->views[i] = (kvfs_view){
			"t", (void *)(rig->memory + at), bytes, bytes, 1, 0};
		rig->strides[i] = (struct kvfs_stride){
			offset, (void *)(rig->memory + at), bytes, bytes, 1, 0};
		rig->on_host[i] = rig->strides[i];
		rig->on_host[i].base = rig->image + at;
		offset += bytes;
		at += RIG_PAGES * bytes;
	}
	rig->desc = (kvfs_pool_desc){
		.size = sizeof(kvfs_pool_desc),
		.device = "cuda",
		.views = rig->views,
		.n_views = RIG_LAYERS + 1,
		.pages = RIG_PAGES,
		.pages_per_block = 1,
	};
}

/* Fill the block with bytes that depend on @seed. */
static inline void rig_fill(uint8_t *at, uint64_t seed)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1, i;

	for (i = 0; i < RIG_BLOCK; i += 8) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(at + i, &x, 8);
	}
}

/* Make all that a pool on a device with all features needs. */
static inline void rig_prepare(struct rig *rig)
{
	memset(rig, 0, sizeof(*rig));
	gpu_set("readonly=1,memops=1,delay=100");
	rig->before = gpu_alive();
	rig->device = kv_device_find("cuda");
	assert_non_null(rig->device);
	rig->memory = gpu_alloc(RIG_BYTES);
	rig->image = malloc(RIG_BYTES);
	rig->now = malloc(RIG_BYTES);
	memset(rig->image, 0x3c, RIG_BYTES);
	GPU_OK(cuMemcpyHtoD_v2, rig->memory, rig->image, RIG_BYTES);
	rig_layout(rig);
}

static inline void rig_open(struct rig *rig)
{
	rig_prepare(rig);
	assert_int_equal(rig->device->open(&rig->desc, &rig->pool), 0);
}

/* Close the rig and check that no object is left in the driver. */
static inline void rig_close(struct rig *rig)
{
	if (rig->arena != NULL) {
		rig->device->detach(rig->arena);
		munmap(rig->arena, rig->arena_bytes);
		munmap(rig->alias, rig->arena_bytes);
	}
	if (rig->staging != NULL) {
		rig->device->detach(rig->staging);
		munmap(rig->staging, rig->staging_bytes);
	}
	rig->device->close(rig->pool);
	gpu_free(rig->memory);
	free(rig->image);
	free(rig->now);
	gpu_assert_same(&rig->before);
}

/* Fill the whole pool, and its expected contents, with bytes that depend on
 * @seed. */
static inline void rig_fill_pool(struct rig *rig, uint64_t seed)
{
	uint64_t at;

	for (at = 0; at < RIG_BYTES; at += RIG_BLOCK)
		rig_fill(rig->image + at, seed + at);
	GPU_OK(cuMemcpyHtoD_v2, rig->memory, rig->image, RIG_BYTES);
}

static inline struct kvfs_pool_info rig_info(struct rig *rig)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	rig->device->info(rig->pool, &info);
	return info;
}

/* Wait until the device has registered @bytes of the attached memory, or failed
 * to register them. */
static inline void rig_wait_tried(struct rig *rig, uint64_t bytes)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};
	int i;

	for (i = 0; i < 60000; i++) {
		info = rig_info(rig);
		if (info.bytes_registered + info.bytes_refused >= bytes)
			return;
		usleep(1000);
	}
	fail_msg("%lu and %lu bytes of %lu", info.bytes_registered,
		 info.bytes_refused, bytes);
}

/* ---- batches ---- */

/* A batch of @n blocks in host memory, which begin at @host and are @stride
 * bytes apart, for pages @first .. @first + @n - 1. */
struct rig_batch {
	struct kvfs_copy copies[RIG_BLOCKS];
	int64_t pages[RIG_BLOCKS];
	struct kvfs_strides strides;
	struct kvfs_batch batch;
};

static inline void rig_make(struct rig *rig, struct rig_batch *b, uint8_t *host,
			    uint64_t stride, int64_t first, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++) {
		b->pages[i] = first + (int64_t)((i * 5) % n);
		b->copies[i] =
			(struct kvfs_copy){host + i * stride, &b->pages[i]};
	}
	b->strides = (struct kvfs_strides){1, RIG_LAYERS + 1, rig->strides};
	b->batch = (struct kvfs_batch){
		.strides = &b->strides, .copies = b->copies, .n = n};
}

/* Make a load of @n blocks with new bytes at offset @at of the arena. */
static inline void rig_make_load(struct rig *rig, struct rig_batch *b,
				 uint64_t at, size_t n, uint64_t seed)
{
	size_t i;

	for (i = 0; i < n; i++)
		rig_fill(rig->alias + at + i * RIG_BLOCK, seed + i);
	rig_make(rig, b, rig->arena + at, RIG_BLOCK, 3, n);
}

/* Let the device "host" run the batch, with the image (the pool's expected
 * contents) in place of the pool. */
static inline void rig_on_image(struct rig *rig, const struct rig_batch *b,
				bool loads)
{
	const struct kvfs_strides strides = {1, RIG_LAYERS + 1, rig->on_host};
	struct kvfs_batch batch = b->batch;

	batch.strides = &strides;
	assert_int_equal(loads ? kv_device_host.load(NULL, &batch)
			       : kv_device_host.save(NULL, &batch),
			 0);
}

static inline void rig_read(struct rig *rig)
{
	GPU_OK(cuMemcpyDtoH_v2, rig->now, rig->memory, RIG_BYTES);
}

static inline void rig_assert_is_image(struct rig *rig)
{
	rig_read(rig);
	assert_true(memcmp(rig->now, rig->image, RIG_BYTES) == 0);
}

/* Load @n blocks at offset @at of the arena, and check the whole pool. */
static inline void rig_check_load(struct rig *rig, uint64_t at, size_t n,
				  uint64_t seed)
{
	struct rig_batch b;

	rig_make_load(rig, &b, at, n, seed);
	assert_int_equal(rig->device->load(rig->pool, &b.batch), 0);
	rig_on_image(rig, &b, true);
	rig_assert_is_image(rig);
}

/* Save @n blocks to the staging memory, and check that memory. */
static inline void rig_check_save(struct rig *rig, size_t n)
{
	uint8_t *want = malloc(n * RIG_BLOCK);
	struct rig_batch b;

	assert_non_null(want);
	rig_make(rig, &b, want, RIG_BLOCK, 2, n);
	rig_on_image(rig, &b, false);
	rig_make(rig, &b, rig->staging, RIG_BLOCK, 2, n);
	assert_int_equal(rig->device->save(rig->pool, &b.batch), 0);
	assert_true(memcmp(want, rig->staging, n * RIG_BLOCK) == 0);
	free(want);
}

/* ---- the rig of a test program ---- */

static struct rig rig;

static inline int rig_set_up(void **state)
{
	(void)state;
	rig_open(&rig);
	return 0;
}

static inline int rig_tear_down(void **state)
{
	(void)state;
	rig_close(&rig);
	return 0;
}

/* Skip the test on a real driver, which has no faults on demand. */
static inline void rig_needs_faults(void)
{
	if (gpu.set == NULL)
		skip();
}

#endif
