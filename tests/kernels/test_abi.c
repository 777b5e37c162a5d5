/* SPDX-License-Identifier: Apache-2.0 */
/* Programs built with an older or newer header: sizes of structs, reserved
 * fields, version. */
#include "tests/kernels/world.h"

#include <sys/mman.h>

/* Return memory for a struct of @size that ends at an unmapped page. */
static void *at_the_edge(size_t size)
{
	uint8_t *two = mmap(NULL, 8192, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(two, MAP_FAILED);
	assert_int_equal(munmap(two + 4096, 4096), 0);
	return two + 4096 - size;
}

static void at_the_edge_free(void *at)
{
	munmap((void *)((uintptr_t)at & ~(uintptr_t)4095), 4096);
}

static void the_number_and_the_text_are_one_version(void **state)
{
	char text[32];

	(void)state;
	assert_int_equal(kvfs_version(), KVFS_VERSION);
	snprintf(text, sizeof(text), "%u.%u.%u", KVFS_VERSION >> 16,
		 KVFS_VERSION >> 8 & 255, KVFS_VERSION & 255);
	assert_string_equal(kvfs_version_text(), text);
}

/* Programs built with an older header use these numbers for stages of a
 * transfer. */
_Static_assert(KVFS_COPIED == 1 && KVFS_SEALED == 2 && KVFS_DURABLE == 3 &&
		       KVFS_SUBMITTED == 4,
	       "a stage's number has changed");

static long try_opts(struct world *w, const kvfs_opts *opts)
{
	const kvfs_key key = world_key(7);
	const kvfs_query query = {.space = w->space, .keys = &key, .n = 1};
	kvfs_lease *lease = NULL;
	long r = kvfs_acquire(&query, 1, opts, &lease);

	if (r < 0)
		assert_null(lease);
	else
		kvfs_release(lease);
	return r;
}

static void options_of_any_size_are_read_no_further_than_it(void **state)
{
	const size_t sizes[] = {sizeof(size_t),
				16,
				17,
				sizeof(kvfs_opts) - 8,
				sizeof(kvfs_opts),
				sizeof(kvfs_opts) + 8,
				4096};
	struct world *w = *state;

	for (size_t i = 0; i < KV_ARRAY_LEN(sizes); i++) {
		uint8_t *opts = at_the_edge(sizes[i]);

		memset(opts, 0, sizes[i]);
		memcpy(opts, &sizes[i], sizeof(sizes[i]));
		assert_int_equal(try_opts(w, (const kvfs_opts *)opts), 0);
		if (sizes[i] > sizeof(kvfs_opts)) {
			opts[sizes[i] - 1] = 1;
			assert_int_equal(try_opts(w, (const kvfs_opts *)opts),
					 -E2BIG);
		}
		at_the_edge_free(opts);
	}
}

static void sizes_that_are_none_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {0};
	struct kvfs_pool_info info = {0};
	kvfs_pool_desc desc = {.device = "host", .space = w->space};
	kvfs_pool *pool = NULL;

	assert_int_equal(try_opts(w, &opts), -EINVAL);
	opts.size = sizeof(size_t) - 1;
	assert_int_equal(try_opts(w, &opts), -EINVAL);
	opts.size = 4097;
	assert_int_equal(try_opts(w, &opts), -E2BIG);
	opts.size = SIZE_MAX;
	assert_int_equal(try_opts(w, &opts), -E2BIG);
	assert_int_equal(kvfs_pool_info(w->pool, &info), -EINVAL);
	info.size = SIZE_MAX;
	assert_int_equal(kvfs_pool_info(w->pool, &info), -E2BIG);
	assert_null(info.device);
	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), -EINVAL);
	desc.size = SIZE_MAX;
	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), -E2BIG);
	assert_null(pool);
}

static void of_a_result_no_more_than_its_size_is_written(void **state)
{
	const size_t known = sizeof(struct kvfs_pool_info);
	struct world *w = *state;
	uint8_t memory[4096];

	for (size_t size = sizeof(size_t); size <= known + 64; size += 8) {
		memset(memory, 0xaa, sizeof(memory));
		memcpy(memory, &size, sizeof(size));
		assert_int_equal(
			kvfs_pool_info(w->pool,
				       (struct kvfs_pool_info *)memory),
			0);
		assert_memory_equal(memory, &size, sizeof(size));
		for (size_t i = size; i < sizeof(memory); i++)
			assert_int_equal(memory[i], 0xaa);
		for (size_t i = known; i < size; i++)
			assert_int_equal(memory[i], 0);
	}
}

static void what_a_call_has_no_use_for_is_refused(void **state)
{
	struct world *w = *state;
	const kvfs_key key = world_key(7);
	const kvfs_query query = {.space = w->space, .keys = &key, .n = 1};
	kvfs_xfer *xfer = NULL;

	assert_int_equal(try_opts(w, KVFS_OPTS(.flags = KVFS_MUST)), -EINVAL);
	assert_int_equal(try_opts(w, KVFS_OPTS(.flags = 1u << 31)), -EINVAL);
	assert_int_equal(try_opts(w, KVFS_OPTS(.first = 1)), -EINVAL);
	assert_int_equal(try_opts(w, KVFS_OPTS(.priority = 1)), -EINVAL);
	assert_int_equal(try_opts(w, KVFS_OPTS(.stream = w)), -EINVAL);
	assert_int_equal(kvfs_prefetch(&query, 1,
				       KVFS_OPTS(.flags = KVFS_WAIT_SAVING),
				       &xfer),
			 -EINVAL);
	assert_int_equal(kvfs_flush(w->space, KVFS_SEALED,
				    KVFS_OPTS(.deadline = 1), &xfer),
			 -EINVAL);
	assert_null(xfer);
}

static void reserved_fields_must_be_zero(void **state)
{
	struct world *w = *state;
	const kvfs_key key = world_key(7);
	const int64_t page = 0;
	kvfs_query query = {.space = w->space, .keys = &key, .n = 1};
	kvfs_meta meta = {.reserved_more = {0, 0, 0, 1}};
	kvfs_extra extra = {.tag = "lora", .reserved = {1}};
	const uint32_t tokens[64] = {0};
	kvfs_key out;
	kvfs_xfer *xfer = NULL;
	uint8_t states;

	for (size_t i = 0; i < KV_ARRAY_LEN(query.reserved); i++) {
		query.reserved[i] = 1;
		assert_int_equal(kvfs_probe(&query, 1, &states), -EINVAL);
		assert_int_equal(kvfs_match(&query, 1), -EINVAL);
		query.reserved[i] = 0;
	}
	assert_int_equal(kvfs_save(w->pool, w->space, &key, &meta, 1, &page,
				   NULL, &xfer),
			 -EINVAL);
	/* Extras beside token ids need a space that keeps token ids. */
	meta = (kvfs_meta){.extras_len = 1};
	assert_int_equal(kvfs_save(w->pool, w->space, &key, &meta, 1, &page,
				   NULL, &xfer),
			 -EINVAL);
	assert_null(xfer);
	assert_int_equal(
		kvfs_key_chain(w->space, NULL, tokens, 64, &extra, 1, &out, 1),
		-EINVAL);
}

static void views_must_be_zero_where_they_are_reserved(void **state)
{
	struct world *w = *state;
	kvfs_view views[] = {
		{.tensor = "k",
		 .base = w->memory,
		 .block_stride = PAYLOAD,
		 .bytes = TENSOR,
		 .count = 1,
		 .reserved = {0, 1}},
		{.tensor = "v",
		 .base = w->memory + TENSOR,
		 .block_stride = PAYLOAD,
		 .bytes = TENSOR,
		 .count = 1},
	};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .space = w->space,
			       .views = views,
			       .n_views = 2,
			       .pages = 1,
			       .pages_per_block = 1};
	kvfs_pool *pool = NULL;

	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), -EINVAL);
	views[0].reserved[1] = 0;
	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), 0);
	kvfs_pool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
		test(the_number_and_the_text_are_one_version),
		test(options_of_any_size_are_read_no_further_than_it),
		test(sizes_that_are_none_are_refused),
		test(of_a_result_no_more_than_its_size_is_written),
		test(what_a_call_has_no_use_for_is_refused),
		test(reserved_fields_must_be_zero),
		test(views_must_be_zero_where_they_are_reserved),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
