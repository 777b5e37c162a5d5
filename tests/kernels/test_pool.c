/* SPDX-License-Identifier: Apache-2.0 */
/* Registering a pool of the engine's memory.  test_strides.c tests the
 * views. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/kvfs.h"
#include "common/kv.h"

#define LAYOUT \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[4096]}]}"

static kvfs_session *session;
static kvfs_space *space;
static uint8_t memory[8 * 4096];
static kvfs_view view = {"k", memory, 4096, 4096, 1, 0};

static int setup(void **state)
{
	(void)state;
	return kvfs_open("/nonexistent", &session) |
	       kvfs_space_open(session, "s", LAYOUT, 0, &space);
}

static int teardown(void **state)
{
	(void)state;
	kvfs_space_close(space);
	kvfs_close(session);
	return 0;
}

static kvfs_pool_desc good(void)
{
	return (kvfs_pool_desc){
		.size = sizeof(kvfs_pool_desc),
		.device = "host",
		.space = space,
		.views = &view,
		.n_views = 1,
		.pages = 8,
		.pages_per_block = 1,
		.memory = memory,
		.memory_bytes = sizeof(memory),
	};
}

static int try_register(kvfs_pool_desc desc)
{
	kvfs_pool *pool;
	int r = kvfs_pool_register(session, &desc, &pool);

	if (r == 0)
		kvfs_pool_close(pool);
	return r;
}

static void a_descriptor_that_lacks_something_is_refused(void **state)
{
	kvfs_pool_desc desc;
	kvfs_pool *pool;

	(void)state;
	assert_int_equal(try_register(good()), 0);
	desc = good();
	desc.device = NULL;
	assert_int_equal(try_register(desc), -EINVAL);
	desc = good();
	desc.space = NULL;
	assert_int_equal(try_register(desc), -EINVAL);
	desc = good();
	desc.views = NULL;
	assert_int_equal(try_register(desc), -EINVAL);
	desc = good();
	desc.n_views = 0;
	assert_int_equal(try_register(desc), -EINVAL);
	desc = good();
	desc.pages = 0;
	assert_int_equal(try_register(desc), -EINVAL);
	desc = good();
	desc.pages_per_block = 0;
	assert_int_equal(try_register(desc), -EINVAL);
	desc = good();
	desc.pages = UINT64_MAX;
	assert_int_equal(try_register(desc), -EINVAL);
	desc = good();
	assert_int_equal(kvfs_pool_register(session, &desc, NULL), -EINVAL);
	assert_int_equal(kvfs_pool_register(NULL, &desc, &pool), -EINVAL);
	assert_int_equal(kvfs_pool_register(session, NULL, &pool), -EINVAL);
}

static void a_device_that_is_not_there_is_enodev(void **state)
{
	kvfs_pool_desc desc = good();

	(void)state;
	desc.device = "abacus";
	assert_int_equal(try_register(desc), -ENODEV);
}

static void an_end_outside_the_memory_is_refused(void **state)
{
	kvfs_pool_desc desc = good();

	(void)state;
	desc.pages = 9;
	assert_int_equal(try_register(desc), -EINVAL);
	desc.memory = NULL;
	assert_int_equal(try_register(desc), -EINVAL);
	desc.memory_bytes = 0;
	assert_int_equal(try_register(desc), 0);
}

static void a_space_of_another_session_is_refused(void **state)
{
	kvfs_pool_desc desc = good();
	kvfs_session *other;
	kvfs_pool *pool;

	(void)state;
	assert_int_equal(kvfs_open("/nonexistent", &other), 0);
	assert_int_equal(kvfs_pool_register(other, &desc, &pool), -EINVAL);
	kvfs_close(other);
}

static void the_pool_says_how_bytes_travel(void **state)
{
	kvfs_pool_desc desc = good();
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_pool *pool;

	(void)state;
	assert_int_equal(kvfs_pool_register(session, &desc, &pool), 0);
	assert_int_equal(kvfs_pool_info(pool, NULL), -EINVAL);
	assert_int_equal(kvfs_pool_info(NULL, &info), -EINVAL);
	assert_int_equal(kvfs_pool_info(pool, &info), 0);
	assert_string_equal(info.device, "host");
	assert_non_null(strstr(info.path, "streaming"));
	assert_int_equal(info.bytes_staging, 0);
	assert_int_equal(info.pages_loading + info.pages_saving, 0);
	kvfs_pool_close(pool);
	kvfs_pool_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_descriptor_that_lacks_something_is_refused),
		cmocka_unit_test(a_device_that_is_not_there_is_enodev),
		cmocka_unit_test(an_end_outside_the_memory_is_refused),
		cmocka_unit_test(a_space_of_another_session_is_refused),
		cmocka_unit_test(the_pool_says_how_bytes_travel),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
