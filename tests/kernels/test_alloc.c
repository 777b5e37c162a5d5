/* SPDX-License-Identifier: Apache-2.0 */
/* run.sh: long */
/* libkvfs without memory, against a real daemon with memory: a call fails or
 * misses, and bytes that arrive are right. */
#include "tests/alloc.h"
#include "tests/kernels/world.h"

#define BLOCKS 4

/* A client with its own session, whose calls may fail for want of memory. */
struct client {
	struct world *w;
	kvfs_session *session;
	kvfs_space *space;
	kvfs_pool *pool;
};

/* Errors of a library without memory: -ENOMEM, or the result of a connection, a
 * thread or a mapping that could not be made. */
#define ALLOC_MISS(r)                                                    \
	alloc_among(r, 0, -ENOMEM, -ENOENT, -ENOTCONN, -EAGAIN, -ENOSPC, \
		    -ESTALE)

static kvfs_pool *make_pool(struct client *c)
{
	struct world *w = c->w;
	kvfs_view views[] = {
		{"k", w->memory, PAYLOAD, TENSOR, 1, 0},
		{"v", w->memory + TENSOR, PAYLOAD, TENSOR, 1, 0},
	};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "host",
		.space = c->space,
		.views = views,
		.n_views = 2,
		.pages = PAGES,
		.pages_per_block = 1,
	};
	kvfs_pool *pool = NULL;
	int r = kvfs_pool_register(c->session, &desc, &pool);

	alloc_among(r, 0, -ENOMEM, -EAGAIN);
	return pool;
}

static void save(struct client *c)
{
	kvfs_key keys[BLOCKS];
	int64_t pages[BLOCKS];
	kvfs_xfer *xfer;
	int r;

	world_chain(0, BLOCKS, keys, pages);
	r = kvfs_save(c->pool, c->space, keys, NULL, BLOCKS, pages, NULL,
		      &xfer);
	ALLOC_MISS(r);
	if (r < 0)
		return;
	alloc_must(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND) >= 0);
	for (size_t i = 0; i < BLOCKS; i++) {
		r = kvfs_xfer_status(xfer, i);
		if (r != KVFS_PRESENT)
			ALLOC_MISS(r);
	}
	kvfs_xfer_free(xfer);
}

static void load(struct client *c)
{
	kvfs_key keys[BLOCKS];
	int64_t pages[BLOCKS];
	kvfs_query query = {c->space, keys, BLOCKS};
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	const void *data;
	uint64_t bytes;
	int r;

	world_chain(0, BLOCKS, keys, pages);
	for (size_t i = 0; i < BLOCKS; i++)
		pages[i] += BLOCKS;
	r = kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = 10 * SECOND), &lease);
	ALLOC_MISS(r);
	if (r < 0)
		return;
	alloc_must(kvfs_lease_wait(lease, 20 * SECOND) >= 0);
	for (size_t i = 0; i < BLOCKS; i++) {
		data = kvfs_lease_data(lease, i, &bytes);
		if (data)
			alloc_must(bytes == PAYLOAD &&
				   world_is(data, (uint32_t)i));
	}
	r = kvfs_load(c->pool, lease, BLOCKS, pages, NULL, &xfer);
	ALLOC_MISS(r);
	if (r == 0) {
		alloc_must(kvfs_xfer_wait(xfer, KVFS_COPIED, 20 * SECOND) >= 0);
		for (size_t i = 0; i < BLOCKS; i++)
			if (kvfs_xfer_status(xfer, i) == 0)
				alloc_must(world_page_is(c->w, pages[i],
							 (uint32_t)i));
		kvfs_xfer_free(xfer);
	}
	kvfs_release(lease);
}

static void map_pages(struct client *c, kvfs_pool *pool)
{
	kvfs_key keys[BLOCKS];
	int64_t pages[BLOCKS];
	kvfs_mapping *map;
	int r;

	world_chain(0, BLOCKS, keys, pages);
	r = kvfs_map(pool, c->space, keys, BLOCKS, NULL, &map);
	ALLOC_MISS(r);
	if (r < 0)
		return;
	alloc_must(kvfs_map_wait(map, 20 * SECOND) >= 0);
	for (size_t i = 0; i < BLOCKS; i++) {
		r = kvfs_map_status(map, i);
		if (r != -EIO) /* -EIO: the segment could not be mapped */
			ALLOC_MISS(r);
		if (kvfs_map_addr(map, i, NULL))
			alloc_must(world_is(kvfs_map_addr(map, i, NULL),
					    (uint32_t)i));
	}
	alloc_must(kvfs_unmap(map, NULL) == 0);
}

static void seal_pages(struct client *c, kvfs_pool *pool)
{
	const kvfs_key key = world_key(BLOCKS);
	kvfs_pages *pages;
	kvfs_xfer *xfer;
	int r = kvfs_pages_take(pool, 2, &pages);

	ALLOC_MISS(r);
	if (r < 0)
		return;
	for (size_t i = 0; i < PAYLOAD; i++)
		((uint8_t *)kvfs_pages_addr(pages, 0, NULL))[i] =
			world_byte(BLOCKS, i);
	r = kvfs_pages_seal(pages, c->space, &key, NULL, 1, NULL, &xfer);
	ALLOC_MISS(r);
	if (r == 0) {
		alloc_must(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND) >= 0);
		kvfs_xfer_free(xfer);
	}
	kvfs_pages_free(pages);
}

/* Reserve a pool, map blocks and save pages, each of which may fail.
 * Afterwards, check that all pages of the pool can be taken. */
static void reserve(struct client *c)
{
	kvfs_pages *all;
	kvfs_pool *pool;
	int r = kvfs_pool_reserve(c->session, "host", c->space, 2, BLOCKS,
				  &pool);

	ALLOC_MISS(r);
	if (r < 0)
		return;
	map_pages(c, pool);
	seal_pages(c, pool);
	r = kvfs_pages_take(pool, BLOCKS, &all);
	alloc_among(r, 0, -ENOMEM);
	if (r == 0)
		kvfs_pages_free(all);
	kvfs_pool_close(pool);
}

static void ask(struct client *c)
{
	kvfs_key keys[BLOCKS];
	int64_t pages[BLOCKS];
	kvfs_query query = {c->space, keys, BLOCKS};
	uint8_t states[BLOCKS];
	int statuses[BLOCKS];
	kvfs_xfer *xfer;
	char *text;
	int r;

	world_chain(0, BLOCKS, keys, pages);
	alloc_must(kvfs_probe(&query, 1, states) <= BLOCKS);
	alloc_must(kvfs_match(&query, 1) <= BLOCKS);
	r = kvfs_stats(c->session, &text);
	ALLOC_MISS(r);
	if (r == 0)
		free(text);
	r = kvfs_flush(c->space, KVFS_DURABLE, NULL, &xfer);
	ALLOC_MISS(r);
	if (r == 0) {
		alloc_must(kvfs_xfer_wait(xfer, KVFS_DURABLE, 20 * SECOND) >=
			   0);
		kvfs_xfer_free(xfer);
	}
	kvfs_pin(c->space, keys, 0, BLOCKS, statuses);
	kvfs_unpin(c->space, keys, 0, BLOCKS, statuses);
	kvfs_evict(c->space, keys, BLOCKS, statuses);
}

static void use(void *arg)
{
	struct client *c = arg;
	int r = kvfs_open(c->w->path, &c->session);

	alloc_among(r, 0, -ENOMEM, -EAGAIN);
	if (r < 0)
		return;
	r = kvfs_space_open(c->session, c->w->space_name, WORLD_LAYOUT,
			    KVFS_CREATE | 0700, &c->space);
	alloc_among(r, 0, -ENOMEM,
		    -EINVAL /* no memory in jansson, see layout.h */);
	if (r == 0) {
		c->pool = make_pool(c);
		if (c->pool) {
			save(c);
			load(c);
			reserve(c);
		}
		ask(c);
		kvfs_pool_close(kv_steal(c->pool));
		kvfs_space_close(kv_steal(c->space));
	}
	kvfs_close(kv_steal(c->session));
}

/* Write the blocks' bytes to the pages that are saved, and other bytes to the
 * pages that blocks are loaded to. */
static void fill(void *arg)
{
	struct client *c = arg;

	for (uint32_t i = 0; i < BLOCKS; i++)
		world_fill(c->w, i, i);
	memset(c->w->memory + (size_t)BLOCKS * PAYLOAD, 0xee,
	       (size_t)BLOCKS * PAYLOAD);
}

static void a_session_goes_on_or_misses(void **state)
{
	const struct alloc_script script = {use, fill, NULL};
	struct client c = {.w = *state};
	long one, many;

	one = alloc_every(&script, &c, 1);
	many = alloc_every(&script, &c, 1000);
	print_message("%ld + %ld runs with a fault\n", one, many);
	assert_true(one > 10 && many > 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_session_goes_on_or_misses,
						world_setup, world_teardown),
	};

	if (alloc_skip())
		return 77;
	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
