/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_dir.c - the remote tier's backend in a directory, and what it finds
 * there that it did not put.
 *
 * OWNS      a directory.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/cache/backend.h"
#include "tests/tree.h"

static char root[64], away[80];

static int set_up(void **state)
{
	char *why = NULL;

	(void)state;
	snprintf(root, sizeof(root), "kvfs-remote.XXXXXX");
	if (!mkdtemp(root))
		return -1;
	snprintf(away, sizeof(away), "%s.away", root);
	driver = &kv_remote_dir;
	return driver->open(root, &backend, &why);
}

static int tear_down(void **state)
{
	int r = driver->close(backend);

	(void)state;
	tree_remove(root);
	tree_remove(away);
	return r;
}

static void overwrite(const char *name, const char *text)
{
	char path[300];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void test_what_was_not_put_so_is_refused(void **state)
{
	static const char *const notes[] = {
		"",
		"x",
		"00112233445566778899aabbccddeeff",
		"00112233445566778899aabbccddeeff "
		"00000000000000000000000000000000\n",
		"00112233445566778899aabbccddeeff "
		"00000000000000000000000000000000 \n",
		"00112233445566778899aabbccddeeff "
		"00000000000000000000000000000000 5",
		"00112233445566778899aabbccddeeff "
		"00000000000000000000000000000000 -5\n",
		"00112233445566778899aabbccddeeff "
		"00000000000000000000000000000000 5 \n",
		"00112233445566778899aabbccddeeff "
		"0000000000000000000000000000000g 5\n",
		"00112233445566778899aabbccddeeff "
		"00000000000000000000000000000000 99999999999999999999\n",
		"10112233445566778899aabbccddeeff "
		"00000000000000000000000000000000 5\n",
	};
	char room[100];
	uint64_t n;

	(void)state;
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	for (size_t i = 0; i < KV_ARRAY_LEN(notes); i++) {
		overwrite(OBJECT ".digest", notes[i]);
		assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), -EBADMSG);
		assert_int_equal(get(OBJECT, room, sizeof(room), &n), -EBADMSG);
	}
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	overwrite(OBJECT, "byte");
	assert_int_equal(get(OBJECT, room, sizeof(room), &n), -EBADMSG);
	overwrite(OBJECT, "bytes!");
	assert_int_equal(get(OBJECT, room, sizeof(room), &n), -EBADMSG);
	overwrite(OBJECT, "Bytes"); /* same length: only the digest differs */
	assert_int_equal(get(OBJECT, room, sizeof(room), &n), -EBADMSG);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	assert_int_equal(get(OBJECT, room, sizeof(room), &n), 0);
}

static void test_a_layout_without_its_note_is_mended(void **state)
{
	char path[300];

	(void)state;
	snprintf(path, sizeof(path), "%s/7/s/.layout.digest", root);
	publish_again(path, "first");
}

static void test_only_its_user_reads_it(void **state)
{
	struct stat st;
	char path[300];

	(void)state;
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	snprintf(path, sizeof(path), "%s/" OBJECT, root);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	snprintf(path, sizeof(path), "%s/1000", root);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
}

static void test_what_dead_writers_left_goes_after_a_day(void **state)
{
	const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	char path[300], *why = NULL;
	void *other;

	(void)state;
	overwrite(".part/old", "x");
	overwrite(".part/new", "x");
	snprintf(path, sizeof(path), "%s/.part/old", root);
	assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
	assert_int_equal(driver->open(root, &other, &why), 0);
	assert_int_equal(driver->close(other), 0);
	assert_int_not_equal(access(path, F_OK), 0);
	snprintf(path, sizeof(path), "%s/.part/new", root);
	assert_int_equal(access(path, F_OK), 0);
}

static void test_a_directory_that_is_not_there_is_told_of(void **state)
{
	char *why = NULL;
	void *other;

	(void)state;
	assert_int_equal(driver->open("no/such", &other, &why), -ENOENT);
	assert_non_null(strstr(why, "No such file"));
	free(why);
}

static const char *why_of(enum kv_remote_call call)
{
	struct kv_remote_op op = op_of(call, OBJECT);

	assert_int_equal(do_op(&op), -ENOTCONN);
	assert_non_null(op.why);
	return op.why;
}

/* Refuse operations if the directory was moved away or replaced. */
static void test_another_directory_is_not_taken_without_part(void **state)
{
	char part[80];

	(void)state;
	snprintf(part, sizeof(part), "%s/.part", root);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	assert_int_equal(rename(root, away), 0);
	assert_non_null(strstr(why_of(KV_REMOTE_EXISTS), "gone"));
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "other", 5), -ENOTCONN);
	assert_int_equal(mkdir(root, 0700), 0);
	assert_non_null(strstr(why_of(KV_REMOTE_EXISTS), "without .part"));
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "other", 5), -ENOTCONN);
	assert_int_equal(mkdir(part, 0700), 0);
	why_of(KV_REMOTE_EXISTS);
	assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), -ENOENT);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	tree_remove(root);
	assert_int_equal(rename(away, root), 0);
	why_of(KV_REMOTE_EXISTS);
	assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), 0);
}

static void test_part_is_made_again(void **state)
{
	char part[80];

	(void)state;
	snprintf(part, sizeof(part), "%s/.part", root);
	tree_remove(part);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BACKEND_TESTS,
		cmocka_unit_test(test_what_is_not_as_noted_is_refused),
		cmocka_unit_test(test_what_was_not_put_so_is_refused),
		cmocka_unit_test(test_a_layout_without_its_note_is_mended),
		cmocka_unit_test(test_only_its_user_reads_it),
		cmocka_unit_test(test_what_dead_writers_left_goes_after_a_day),
		cmocka_unit_test(test_a_directory_that_is_not_there_is_told_of),
		cmocka_unit_test(test_part_is_made_again),
		cmocka_unit_test(
			test_another_directory_is_not_taken_without_part),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
