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

static void make(const char *bucket, const char *credentials)
{
	static const struct kv_remote_config config = {0};
	char url[300], *why = NULL;

	snprintf(url, sizeof(url),
		 "//%s?endpoint=%s&region=eu-test-1&credentials=%s", bucket,
		 endpoint, credentials);
	driver = &kv_remote_s3;
	if (driver->make(driver->scheme, url, &config, &backend, &why) < 0)
		fail_msg("%s", why);
}

static int set_up(void **state)
{
	(void)state;
	make("kvfs/some/prefix", "good");
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	return driver->close(backend);
}

static void test_a_wrong_signature_is_reported(void **state)
{
	void *good = backend;

	(void)state;
	make("kvfs", "bad");
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EPERM,
		  "SignatureDoesNotMatch (403)");
	must_fail(put_of(OBJECT, "bytes", 5), -EPERM, "SignatureDoesNotMatch");
	assert_int_equal(driver->close(backend), 0);
	backend = good;
}

/* The file of credentials is read again after an answer that refuses them. */
static void test_credentials_are_read_again(void **state)
{
	void *good = backend;

	(void)state;
	assert_int_equal(system("cp -p bad as"), 0);
	make("kvfs", "as");
	must_fail(put_of(OBJECT, "bytes", 5), -EPERM, "SignatureDoesNotMatch");
	assert_int_equal(system("cp -p good as"), 0);
	usleep(1100000);
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	assert_int_equal(status_of(KV_REMOTE_DELETE, OBJECT), 0);
	assert_int_equal(driver->close(backend), 0);
	backend = good;
}

static void test_a_missing_bucket_is_a_failure(void **state)
{
	void *good = backend;

	(void)state;
	make("no-such", "good");
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EIO, "NoSuchBucket (404)");
	must_fail(put_of(OBJECT, "bytes", 5), -EIO, "NoSuchBucket (404)");
	must_fail(op_of(KV_REMOTE_GET, OBJECT), -EIO, "NoSuchBucket (404)");
	must_fail(op_of(KV_REMOTE_DELETE, "1/2-s/"), -EIO, "NoSuchBucket");
	assert_int_equal(driver->close(backend), 0);
	backend = good;
}

/* Remove more objects than one page of a listing has. */
static void test_a_large_folder_is_removed(void **state)
{
	enum { OBJECTS = 1100 };
	static struct kv_remote_op ops[OBJECTS];
	char name[100];

	(void)state;
	for (size_t i = 0; i < OBJECTS; i++) {
		snprintf(name, sizeof(name), "1/2-s/%032zx", i);
		ops[i] = put_of(name, "bytes", 5);
		kv_ops_submit(backend, &ops[i]);
	}
	await(OBJECTS);
	/* A busy server of a few threads refuses connections: like remote.c, repeat
	 * a failed put. */
	for (size_t i = 0; i < OBJECTS; i++) {
		for (int try = 0; try < 3 && ops[i].status < 0; try++)
			ops[i].status = put(ops[i].name, "bytes", 5);
		assert_int_equal(ops[i].status, 0);
	}
	assert_int_equal(status_of(KV_REMOTE_DELETE, "1/2-s/"), 0);
	for (size_t i = 0; i < OBJECTS; i += 100)
		assert_int_equal(status_of(KV_REMOTE_HEAD, ops[i].name),
				 -ENOENT);
	assert_int_equal(status_of(KV_REMOTE_DELETE, "1/2-s/"), -ENOENT);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		BACKEND_TESTS,
		cmocka_unit_test(test_a_wrong_signature_is_reported),
		cmocka_unit_test(test_credentials_are_read_again),
		cmocka_unit_test(test_a_missing_bucket_is_a_failure),
		cmocka_unit_test(test_a_large_folder_is_removed),
	};

	if (argc != 2)
		return 2;
	endpoint = argv[1];
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
