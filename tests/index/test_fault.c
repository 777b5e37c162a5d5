/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fault.c - an index whose file cannot be read any more: calls fail without
 * SIGBUS, and succeed again when the file can be read.
 *
 * The test truncates the file of an open index, so that its pages cannot be
 * read, as on a disk that has failed.
 *
 * OWNS      nothing but its fixture.
 *
 * LOCKING   none: one thread.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/index/index_fixture.h"

#define SLOTS 20000
#define KEPT (2 * KV_PAGE) /* the two meta pages of an LMDB file */

/* Memory that LMDB had allocated when the fault came leaks; see index/env.c. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "detect_leaks=0";
}

struct saved {
	void *bytes;
	size_t n;
};

static struct saved cut_off(const struct fixture *f)
{
	struct saved saved;
	struct stat st;
	int fd = open(f->data, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0 && fstat(fd, &st) == 0);
	saved.n = (size_t)st.st_size;
	saved.bytes = malloc(saved.n);
	assert_int_equal(pread(fd, saved.bytes, saved.n, 0), saved.n);
	assert_int_equal(ftruncate(fd, KEPT), 0);
	close(fd);
	return saved;
}

static void restore(const struct fixture *f, struct saved saved)
{
	int fd = open(f->data, O_RDWR | O_CLOEXEC);

	assert_int_equal(pwrite(fd, saved.bytes, saved.n, 0), saved.n);
	close(fd);
	free(saved.bytes);
}

static void get_from_what_is_cut_off(struct fixture *f)
{
	struct kv_slot_record record;
	struct saved saved;

	saved = cut_off(f);
	assert_int_equal(kv_index_get(f->index, 5, &record, NULL), -EIO);
	assert_true(kv_index_get(f->index, 5, &record, NULL) < 0);
	restore(f, saved);
	assert_int_equal(kv_index_get(f->index, 5, &record, NULL), 0);
	assert_int_equal(record.generation, slot_record(5).generation);
}

static void change_what_is_cut_off(struct fixture *f)
{
	struct kv_txn *batch;
	struct saved saved;

	saved = cut_off(f);
	assert_int_equal(put_slots(f, SLOTS, 10), -EIO);
	assert_true(put_slots(f, SLOTS, 10) < 0);
	restore(f, saved);

	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	saved = cut_off(f);
	assert_int_equal(kv_txn_delete(batch, KV_PART_SLOTS, 10000), -EIO);
	assert_int_equal(kv_txn_delete(batch, KV_PART_SLOTS, 1), -EIO);
	assert_true(kv_txn_commit(batch) < 0);
	restore(f, saved);
}

/* A thread that replaced the environment during its own batch would wait for
 * itself. */
static void get_during_a_batch(struct fixture *f)
{
	struct kv_slot_record record;
	struct kv_txn *batch;
	struct saved saved;

	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	saved = cut_off(f);
	assert_int_equal(kv_index_get(f->index, 5, &record, NULL), -EIO);
	restore(f, saved);
	assert_int_equal(kv_index_get(f->index, 5, &record, NULL), -EIO);
	kv_txn_abort(batch);
	assert_int_equal(kv_index_get(f->index, 5, &record, NULL), 0);
}

/* All checks are in one test, because cmocka replaces SIGBUS's handler before
 * each test. */
static void an_index_that_cannot_be_read_fails_and_works_again(void **state)
{
	struct fixture *f = *state;
	struct seen seen = {0};

	assert_int_equal(put_slots(f, 0, SLOTS), 0);
	get_from_what_is_cut_off(f);
	change_what_is_cut_off(f);
	get_during_a_batch(f);
	assert_int_equal(put_slots(f, SLOTS, 10), 0);
	assert_int_equal(walk(f, &seen), 0);
	assert_int_equal(seen.slots, SLOTS + 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_index_that_cannot_be_read_fails_and_works_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
