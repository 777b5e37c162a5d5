/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_txn.c - writing to the index, also where there is no room.
 *
 * OWNS      nothing but its fixture.
 *
 * LOCKING   LMDB's, between the readers and the writer.
 */
#include "tests/index/index_fixture.h"

static void what_was_aborted_or_failed_is_not_there(void **state)
{
	struct fixture *f = *state;
	struct kv_slot_record record = slot_record(1);
	struct kv_txn *batch;

	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	assert_int_equal(kv_txn_put_slot(batch, 1, &record), 0);
	kv_txn_abort(batch);
	kv_txn_abort(NULL);
	assert_int_equal(kv_index_get(f->index, 1, &record, NULL), -ENOENT);
}

static void a_full_map_is_enospc_and_deletes_still_commit(void **state)
{
	struct fixture *f = *state;
	struct kv_store_info info = fresh;
	struct kv_slot_record record;
	uint64_t from = 0, kept;
	int r;

	kv_index_close(kv_steal(f->index));
	unlink(f->data);
	assert_int_equal(kv_index_open(f->directory, 16u << 20, false, &fresh,
				       &f->info, &f->index),
			 0);
	while ((r = put_slots(f, from, 64)) == 0)
		from += 64;
	assert_int_equal(r, -ENOSPC);
	assert_true(from > 10000);
	assert_true(kv_index_bytes(f->index) <= 16u << 20);
	kept = from;

	info.mounts = 9;
	assert_int_equal(commit_info(f, &info), 0);
	/* Each of these records lies on another leaf page of LMDB's tree, so
	 * that each deletion copies a page. */
	for (uint64_t i = 0; i < 20; i++)
		assert_int_equal(delete_slots(f, i, 300, kept / 300), 0);
	assert_int_equal(kv_index_get(f->index, 0, &record, NULL), -ENOENT);
	assert_int_equal(delete_slots(f, 0, 5000, 1), 0);
	assert_int_equal(put_slots(f, 0, 1000), 0);
}

static void a_failed_batch_does_not_commit(void **state)
{
	struct fixture *f = *state;
	struct kv_slot_record record = slot_record(1 << 20);
	struct kv_txn *batch;
	int r = 0;

	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	for (uint64_t id = 0; r == 0; id++)
		r = kv_txn_put_slot(batch, id, &record);
	assert_int_equal(r, -ENOSPC);
	assert_int_equal(kv_txn_commit(batch), -ENOSPC);
	assert_int_equal(kv_index_get(f->index, 0, &record, NULL), -ENOENT);
}

static void a_smaller_map_than_the_file_can_still_delete(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(put_slots(f, 0, 50000), 0);
	kv_index_close(kv_steal(f->index));
	assert_int_equal(kv_index_open(f->directory, 1u << 20, false, &fresh,
				       &f->info, &f->index),
			 0);
	assert_int_equal(put_slots(f, 60000, 5000), -ENOSPC);
	for (uint64_t id = 0; id < 50000; id += 250)
		assert_int_equal(delete_slots(f, id, 250, 1), 0);
}

static void a_full_disk_is_enospc_and_what_was_there_stays(void **state)
{
	struct fixture *f = *state;
	struct seen seen = {0};
	uint64_t from = 0;
	int r;

	kv_index_close(kv_steal(f->index));
	unlink(f->data);
	unlink(f->lock);
	if (mount("kvfs-test", f->directory, "tmpfs", 0, "size=2m") < 0)
		skip();
	f->mounted = true;
	r = open_again(f, false);
	while (r == 0 && (r = put_slots(f, from, 64)) == 0)
		from += 64;
	if (walk(f, &seen) < 0)
		seen.slots = 0;
	kv_index_close(kv_steal(f->index));
	assert_int_equal(r, -ENOSPC);
	assert_true(from > 1000);
	assert_int_equal(seen.slots, from);
	assert_int_equal(seen.damaged, 0);
}

struct reader {
	struct fixture *f;
	int failures;
};

static void *read_all_the_time(void *arg)
{
	struct reader *reader = arg;
	struct kv_slot_record record;

	for (unsigned i = 0; i < 3000; i++)
		reader->failures += kv_index_get(reader->f->index, i % 50,
						 &record, NULL) != 0 ||
				    record.length != 1000 + i % 50;
	return NULL;
}

static void any_thread_can_get_while_one_commits(void **state)
{
	struct reader readers[4];
	pthread_t threads[4];

	assert_int_equal(put_slots(*state, 0, 50), 0);
	for (unsigned i = 0; i < 4; i++) {
		readers[i] = (struct reader){*state, 0};
		pthread_create(&threads[i], NULL, read_all_the_time,
			       &readers[i]);
	}
	for (uint64_t i = 0; i < 10; i++) {
		assert_int_equal(put_slots(*state, 0, 1000), 0);
		assert_int_equal(delete_slots(*state, 50, 950, 1), 0);
	}
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(readers[i].failures, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_failed_batch_does_not_commit),
		TEST(what_was_aborted_or_failed_is_not_there),
		TEST(a_full_map_is_enospc_and_deletes_still_commit),
		TEST(a_smaller_map_than_the_file_can_still_delete),
		TEST(a_full_disk_is_enospc_and_what_was_there_stays),
		TEST(any_thread_can_get_while_one_commits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
