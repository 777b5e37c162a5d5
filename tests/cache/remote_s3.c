/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_s3.c ENDPOINT - the remote tier's backend in the bucket "kvfs" of a
 * server that verifies signatures.  The current directory has the files "good"
 * and "bad" of credentials.  tests/mount/remote_s3.sh starts it.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include "tests/cache/backend.h"

static const char *endpoint;

static int open_url(const char *bucket, const char *credentials,
		    void **ret_backend, char **ret_why)
{
	char url[300];

	snprintf(url, sizeof(url),
		 "//%s?endpoint=%s&region=eu-test-1&credentials=%s", bucket,
		 endpoint, credentials);
	driver = &kv_remote_s3;
	return driver->open(url, ret_backend, ret_why);
}

static int set_up(void **state)
{
	char *why = NULL;
	int r = open_url("kvfs/some/prefix", "good", &backend, &why);

	(void)state;
	if (r < 0)
		fail_msg("%s", why);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	return driver->close(backend);
}

static void test_whose_signature_is_wrong_may_not(void **state)
{
	_cleanup_(kv_freep) char *why = NULL;
	void *other;

	(void)state;
	assert_int_equal(open_url("kvfs", "bad", &other, &why), -EACCES);
	assert_non_null(strstr(why, "/kvfs/: Permission denied"));
}

static void test_a_bucket_that_is_not_there_is_named(void **state)
{
	_cleanup_(kv_freep) char *why = NULL;
	void *other;

	(void)state;
	assert_int_equal(open_url("no-such", "good", &other, &why), -ENOENT);
	assert_non_null(strstr(why, "/no-such/: No such file"));
}

static void test_names_are_not_parts_of_urls(void **state)
{
	static const char *const names[] = {
		"a b/s/k", "a%2e/s/k", "a?b/s/k", "a+b/s/k", "\xc3\xa4/s/k",
	};
	char room[8];
	uint64_t n;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(names); i++) {
		assert_int_equal(put(names[i], KV_REMOTE_PUT, "bytes", 5), 0);
		assert_int_equal(get(names[i], room, sizeof(room), &n), 0);
		assert_int_equal(status_of(KV_REMOTE_REMOVE, names[i]), 0);
		assert_int_equal(status_of(KV_REMOTE_EXISTS, names[i]),
				 -ENOENT);
	}
}

/* A large object is refused unread, and the connection stays open. */
static void test_what_has_no_room_costs_nobody_else(void **state)
{
	static uint8_t large[3 << 20];
	char room[8];
	uint64_t n;

	(void)state;
	assert_int_equal(put("1/s/l", KV_REMOTE_PUT, large, sizeof(large)), 0);
	assert_int_equal(put("1/s/k", KV_REMOTE_PUT, "bytes", 5), 0);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(get("1/s/l", room, sizeof(room), &n), -EFBIG);
		assert_int_equal(get("1/s/k", room, sizeof(room), &n), 0);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		BACKEND_TESTS,
		cmocka_unit_test(test_names_are_not_parts_of_urls),
		cmocka_unit_test(test_what_has_no_room_costs_nobody_else),
		cmocka_unit_test(test_whose_signature_is_wrong_may_not),
		cmocka_unit_test(test_a_bucket_that_is_not_there_is_named),
	};

	if (argc != 2)
		return 2;
	endpoint = argv[1];
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
