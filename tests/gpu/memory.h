/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - an engine's memory for tests, on the host or on the GPU, and pools
 * in it.
 */
#ifndef KV_TESTS_GPU_MEMORY_H
#define KV_TESTS_GPU_MEMORY_H

#include "tests/kernels/world.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/shapes.h"

/* An engine's memory, and a pool of one shape over all of it. */
struct engine {
	const char *device; /* name of the device: "host" or "cuda" */
	struct pool_shape shape;
	/* expected contents of the engine's memory, on the host */
	uint8_t *image;
	kvfs_session *session;
	bool own_session;
	kvfs_space *space;
	kvfs_pool *pool;
};

static inline bool engine_is_host(const struct engine *e)
{
	return strcmp(e->device, "host") == 0;
}

static inline uint64_t engine_memory(const char *device, uint64_t bytes)
{
	if (strcmp(device, "host") == 0)
		return (uintptr_t)aligned_alloc(
			KV_PAGE, (bytes + KV_PAGE - 1) & ~(KV_PAGE - 1ull));
	return gpu_alloc(bytes);
}

/* Copy the image (the expected contents) to the engine's memory, or the
 * engine's memory to @to. */
static inline void engine_write(struct engine *e)
{
	if (engine_is_host(e))
		memcpy((void *)e->shape.base, e->image, e->shape.bytes);
	else
		GPU_OK(cuMemcpyHtoD_v2, e->shape.base, e->image,
		       e->shape.bytes);
}

static inline void engine_read(const struct engine *e, uint8_t *to)
{
	if (engine_is_host(e))
		memcpy(to, (void *)e->shape.base, e->shape.bytes);
	else
		GPU_OK(cuMemcpyDtoH_v2, to, e->shape.base, e->shape.bytes);
}

/* Fill the image with pseudo-random bytes: every eight bytes differ. */
static inline void engine_fill(struct engine *e, uint64_t seed)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1, i;

	for (i = 0; i + 8 <= e->shape.bytes; i += 8) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(e->image + i, &x, 8);
	}
	engine_write(e);
}

/* Check that the engine's memory equals the image. */
static inline void engine_assert_is_image(const struct engine *e,
					  const char *when)
{
	uint8_t *now = malloc(e->shape.bytes);
	uint64_t i;

	engine_read(e, now);
	for (i = 0; i < e->shape.bytes; i++)
		if (now[i] != e->image[i])
			fail_msg("%s: byte %lu of %lu is %02x, not %02x", when,
				 i, e->shape.bytes, now[i], e->image[i]);
	free(now);
}

static inline int engine_register(struct engine *e)
{
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = e->device,
		.space = e->space,
		.views = e->shape.views,
		.n_views = e->shape.n_views,
		.pages = e->shape.pages,
		.pages_per_block = e->shape.pages_per_block,
		.memory = (void *)e->shape.base,
		.memory_bytes = e->shape.bytes,
	};

	return kvfs_pool_register(e->session, &desc, &e->pool);
}

/* Open a space, and a session if @w has none; the daemon must run. */
static inline void engine_open(struct engine *e, struct world *w,
			       const char *device, const struct shape *shape,
			       const struct dims *dims, uint64_t pages)
{
	char name[32];

	memset(e, 0, sizeof(*e));
	e->device = device;
	shape_make(shape, dims, pages, 0, &e->shape);
	shape_make(shape, dims, pages, engine_memory(device, e->shape.bytes),
		   &e->shape);
	e->image = malloc(e->shape.bytes);
	assert_non_null(e->image);
	memset(e->image, 0xe1, e->shape.bytes);
	engine_write(e);
	e->session = w->session;
	e->own_session = w->session == NULL;
	if (e->own_session)
		assert_int_equal(kvfs_open(w->path, &e->session), 0);
	world_wait_connected(e->session, 1);
	snprintf(name, sizeof(name), "e%u", w->spaces++);
	assert_int_equal(kvfs_space_open(e->session, name, e->shape.layout,
					 KVFS_CREATE | 0700, &e->space),
			 0);
	assert_int_equal(kvfs_space_payload(e->space), e->shape.block);
	assert_int_equal(engine_register(e), 0);
}

static inline void engine_close(struct engine *e)
{
	kvfs_pool_close(e->pool);
	(void)kvfs_space_clear(e->space);
	kvfs_space_close(e->space);
	if (e->own_session)
		kvfs_close(e->session);
	free(e->image);
	if (engine_is_host(e))
		free((void *)e->shape.base);
	else
		gpu_free(e->shape.base);
}

/* ---- pages ---- */

/* Return @n different page numbers of a pool of @pages, partly in order. */
static inline int64_t *engine_pages(size_t n, uint64_t pages, unsigned seed)
{
	int64_t *all = calloc(pages, sizeof(*all)), swap;
	uint64_t i, j;

	for (i = 0; i < pages; i++)
		all[i] = (int64_t)i;
	for (i = pages / 3; i + 1 < pages; i++) {
		seed = seed * 1103515245u + 12345u;
		j = i + (seed >> 8) % (pages - i);
		swap = all[i];
		all[i] = all[j];
		all[j] = swap;
	}
	/* Move the first third of the page numbers, which is in order, to the
	 * end. */
	for (i = 0; i < n / 2; i++) {
		swap = all[i];
		all[i] = all[n - 1 - i];
		all[n - 1 - i] = swap;
	}
	return all;
}

static inline kvfs_key *engine_keys(size_t n)
{
	kvfs_key *keys = calloc(n, sizeof(*keys));
	size_t i;

	for (i = 0; i < n; i++)
		keys[i] = world_key((uint32_t)i);
	return keys;
}

/* Save blocks 0 .. @n - 1 from @pages, and wait for @stage. */
static inline void engine_save(struct engine *e, size_t n, const int64_t *pages,
			       enum kvfs_stage stage)
{
	kvfs_key *keys = engine_keys(n);
	kvfs_xfer *xfer;
	size_t i;

	assert_int_equal(
		kvfs_save(e->pool, e->space, keys, NULL, n, pages, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, stage, 120 * SECOND), n);
	for (i = 0; i < n; i++)
		assert_int_equal(kvfs_xfer_status(xfer, i), 0);
	kvfs_xfer_free(xfer);
	free(keys);
}

static inline kvfs_lease *engine_acquire(struct engine *e, size_t n)
{
	kvfs_key *keys = engine_keys(n);
	kvfs_query query = {e->space, keys, n};
	kvfs_lease *lease;

	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.deadline = 60 * SECOND),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), n);
	free(keys);
	return lease;
}

#endif
