/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_index.c - opening and reading the index.
 *
 * OWNS      nothing but its fixture.
 *
 * LOCKING   none of its own.
 */
#include <fcntl.h>
#include <lmdb.h>
#include <sys/stat.h>

#include "tests/index/index_fixture.h"

/* Change a record by LMDB itself, with the index closed. */
static void poke(struct fixture *f, const char *name, MDB_val key,
		 MDB_val value)
{
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi dbi;

	kv_index_close(kv_steal(f->index));
	assert_int_equal(mdb_env_create(&env), 0);
	mdb_env_set_maxdbs(env, 8);
	mdb_env_set_mapsize(env, MAP);
	assert_int_equal(mdb_env_open(env, f->directory, 0, 0600), 0);
	assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
	assert_int_equal(mdb_dbi_open(txn, name, MDB_CREATE, &dbi), 0);
	assert_int_equal(mdb_put(txn, dbi, &key, &value, 0), 0);
	assert_int_equal(mdb_txn_commit(txn), 0);
	mdb_env_close(env);
}

static uint64_t sum_of_file(const char *path)
{
	_cleanup_(kv_closep) int fd = open(path, O_RDONLY);
	uint64_t sum = 14695981039346656037u;
	uint8_t bytes[4096];
	ssize_t n;

	while ((n = read(fd, bytes, sizeof(bytes))) > 0)
		for (ssize_t i = 0; i < n; i++)
			sum = (sum ^ bytes[i]) * 1099511628211u;
	return sum;
}

/* ---- files in place of the index that are no index ---- */

static void overwrite_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void a_foreign_file_is_ebadmsg_and_untouched(void **state)
{
	struct fixture *f = *state;
	uint64_t before;

	kv_index_close(kv_steal(f->index));
	overwrite_file(f->data, "short");
	assert_int_equal(open_again(f, false), -EBADMSG);
	memset(f->text, 'x', sizeof(f->text) - 1);
	overwrite_file(f->data, f->text);
	before = sum_of_file(f->data);
	assert_int_equal(open_again(f, false), -EBADMSG);
	assert_int_equal(open_again(f, true), -EBADMSG);
	assert_true(sum_of_file(f->data) == before);
}

static void anothers_lmdb_is_ebadmsg_and_untouched(void **state)
{
	struct fixture *f = *state;
	uint64_t before;

	kv_index_close(kv_steal(f->index));
	unlink(f->data);
	poke(f, NULL, (MDB_val){3, "key"}, (MDB_val){5, "value"});
	before = sum_of_file(f->data);
	assert_int_equal(open_again(f, false), -EBADMSG);
	assert_true(sum_of_file(f->data) == before);
	unlink(f->data);
	poke(f, "meta", (MDB_val){3, "key"}, (MDB_val){5, "value"});
	assert_int_equal(open_again(f, false), -EBADMSG);
	poke(f, "meta", (MDB_val){5, "store"}, (MDB_val){5, "value"});
	assert_int_equal(open_again(f, false), -EBADMSG);
}

static void a_damaged_store_record_is_ebadmsg(void **state)
{
	struct fixture *f = *state;
	struct kv_store_record record = {.magic = KV_STORE_MAGIC,
					 .version = KV_FORMAT_VERSION};

	poke(f, "meta", (MDB_val){5, "store"},
	     (MDB_val){sizeof(record), &record});
	assert_int_equal(open_again(f, false), -EBADMSG);
	poke(f, "meta", (MDB_val){5, "store"},
	     (MDB_val){sizeof(record) - 1, &record});
	assert_int_equal(open_again(f, false), -EBADMSG);
}

static void a_newer_format_is_enotsup_and_untouched(void **state)
{
	struct fixture *f = *state;
	struct kv_store_record record = {.magic = KV_STORE_MAGIC,
					 .version = KV_FORMAT_VERSION + 1};
	uint64_t before;

	poke(f, "meta", (MDB_val){5, "store"}, (MDB_val){20, &record});
	before = sum_of_file(f->data);
	assert_int_equal(open_again(f, false), -ENOTSUP);
	assert_int_equal(open_again(f, true), -ENOTSUP);
	assert_true(sum_of_file(f->data) == before);
}

static void an_older_format_is_enotsup_and_untouched(void **state)
{
	struct fixture *f = *state;
	struct kv_store_info older = fresh;
	uint64_t before;

	for (older.version = 1; older.version < KV_FORMAT_VERSION;
	     older.version++) {
		assert_int_equal(commit_info(f, &older), 0);
		before = sum_of_file(f->data);
		assert_int_equal(open_again(f, true), -ENOTSUP);
		assert_int_equal(open_again(f, false), -ENOTSUP);
		assert_true(sum_of_file(f->data) == before);
		unlink(f->data);
		assert_int_equal(kv_index_open(f->directory, MAP, false, &fresh,
					       &f->info, &f->index),
				 0);
	}
}

static void a_missing_directory_is_enoent(void **state)
{
	struct fixture *f = *state;
	struct kv_index *index;

	assert_int_equal(kv_index_open("/var/tmp/kvfs-no-such", MAP, false,
				       &fresh, &f->info, &index),
			 -ENOENT);
}

/* ---- records of slots, spaces and segment files ---- */

static void a_slot_that_is_not_there_is_enoent(void **state)
{
	struct fixture *f = *state;
	struct kv_slot_record record;

	assert_int_equal(kv_index_get(f->index, 5, &record, NULL), -ENOENT);
}

static void a_damaged_record_is_ebadmsg_passed_over_and_counted(void **state)
{
	struct fixture *f = *state;
	struct kv_slot_record record = slot_record(2);
	struct seen seen = {0};
	uint64_t id = 2;

	assert_int_equal(put_slots(f, 0, 5), 0);
	poke(f, "slots", (MDB_val){sizeof(id), &id},
	     (MDB_val){sizeof(record), &record});
	poke(f, "spaces", (MDB_val){sizeof(id), &id}, (MDB_val){72, f->text});
	poke(f, "spaces", (MDB_val){3, "abc"}, (MDB_val){2, "xx"});
	poke(f, "segments", (MDB_val){sizeof(id), &id}, (MDB_val){2, "xx"});
	assert_int_equal(open_again(f, false), 0);
	assert_int_equal(kv_index_get(f->index, 2, &record, NULL), -EBADMSG);
	assert_int_equal(walk(f, &seen), 0);
	assert_int_equal(seen.slots, 4);
	assert_int_equal(seen.spaces, 0);
	assert_int_equal(seen.segments, 0);
	assert_int_equal(seen.damaged, 4);
}

static void a_record_under_anothers_key_is_damaged(void **state)
{
	struct fixture *f = *state;
	struct kv_slot_record record;
	uint64_t id = 9;

	assert_int_equal(put_slots(f, 0, 5), 0);
	assert_int_equal(kv_index_get(f->index, 3, &record, NULL), 0);
	poke(f, "slots", (MDB_val){sizeof(id), &id},
	     (MDB_val){sizeof(record), &record});
	assert_int_equal(open_again(f, false), 0);
	assert_int_equal(kv_index_get(f->index, 9, &record, NULL), -EBADMSG);
}

static void what_was_committed_is_there_after_opening_again(void **state)
{
	struct fixture *f = *state;
	struct kv_slot_record want = slot_record(77), record;
	struct kv_store_info info = fresh;

	assert_memory_equal(f->info.store, fresh.store, 16);
	assert_int_equal(put_slots(f, 0, 100), 0);
	info.next_generation = 1234;
	info.mounts = 3;
	info.clean = false;
	assert_int_equal(commit_info(f, &info), 0);
	assert_int_equal(open_again(f, false), 0);
	assert_int_equal(kv_index_get(f->index, 77, &record, NULL), 0);
	record.checksum = 0;
	assert_memory_equal(&record, &want, sizeof(record));
	assert_memory_equal(f->info.store, fresh.store, 16);
	assert_true(f->info.cap == fresh.cap);
	assert_true(f->info.segment_bytes == fresh.segment_bytes);
	assert_int_equal(f->info.next_generation, 1234);
	assert_int_equal(f->info.next_space, 1);
	assert_int_equal(f->info.mounts, 3);
	assert_false(f->info.clean);
}

static void a_walk_is_in_key_order_and_shows_all(void **state)
{
	struct fixture *f = *state;
	struct seen seen = {0};

	assert_int_equal(put_slots(f, kv_slot_id(256, 0), 300), 0);
	assert_int_equal(put_slots(f, kv_slot_id(2, 250), 300), 0);
	assert_int_equal(put_slots(f, kv_slot_id(1, 0), 2), 0);
	assert_int_equal(delete_slots(f, kv_slot_id(2, 250), 100, 2), 0);
	assert_int_equal(delete_slots(f, 12345, 1, 1), 0);
	assert_int_equal(walk(f, &seen), 0);
	assert_int_equal(seen.slots, 502);
	assert_int_equal(seen.damaged, 0);
	assert_false(seen.disorder);
	assert_true(seen.last == kv_slot_id(256, 299));
}

static void a_visitor_can_end_the_walk(void **state)
{
	struct fixture *f = *state;
	struct seen seen = {.stop = 5};

	assert_int_equal(put_slots(f, 0, 10), 0);
	assert_int_equal(walk(f, &seen), 5);
	assert_int_equal(seen.slots, 1);
}

static void spaces_and_segments_come_back_whole(void **state)
{
	struct fixture *f = *state;
	struct kv_space_record space = {.id = 300,
					.uid = 5,
					.mode = 0750,
					.quota.quota_ssd = 1ull << 40};
	struct kv_segfile_record segment = {
		.id = 9, .slots = 100, .slot_bytes = 4096 * 577};
	struct seen seen = {0};
	struct kv_txn *batch;

	memset(f->text, 'j', 60000);
	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	assert_int_equal(kv_txn_put_space(batch, &space, "name", f->text), 0);
	assert_int_equal(kv_txn_put_segfile(batch, &segment), 0);
	assert_int_equal(kv_txn_commit(batch), 0);
	assert_int_equal(walk(f, &seen), 0);
	assert_int_equal(seen.spaces, 1);
	assert_int_equal(seen.space.uid, 5);
	assert_true(seen.space.quota.quota_ssd == 1ull << 40);
	assert_string_equal(seen.name, "name");
	assert_string_equal(seen.layout, f->text);
	assert_int_equal(seen.segments, 1);
	assert_int_equal(seen.segment.slots, 100);

	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	assert_int_equal(kv_txn_put_space(batch, &space, "other", NULL), 0);
	assert_int_equal(kv_txn_delete(batch, KV_PART_SEGMENTS, 9), 0);
	assert_int_equal(kv_txn_commit(batch), 0);
	seen = (struct seen){0};
	assert_int_equal(walk(f, &seen), 0);
	assert_string_equal(seen.name, "other");
	assert_string_equal(seen.layout, "");
	assert_int_equal(seen.segments, 0);

	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	assert_int_equal(kv_txn_delete(batch, KV_PART_SPACES, 300), 0);
	assert_int_equal(kv_txn_commit(batch), 0);
	seen = (struct seen){0};
	assert_int_equal(walk(f, &seen), 0);
	assert_int_equal(seen.spaces, 0);
}

/* ---- opening and closing the index's file ---- */

static void read_only_reads_and_changes_nothing(void **state)
{
	struct fixture *f = *state;
	struct seen seen = {0};
	struct kv_txn *batch;
	uint64_t before;

	assert_int_equal(put_slots(f, 0, 100), 0);
	kv_index_close(kv_steal(f->index));
	unlink(f->lock);
	before = sum_of_file(f->data);
	assert_int_equal(open_again(f, true), 0);
	assert_int_equal(kv_txn_begin(f->index, &batch), -EROFS);
	assert_int_equal(walk(f, &seen), 0);
	assert_int_equal(seen.slots, 100);
	assert_true(sum_of_file(f->data) == before);
	assert_int_equal(access(f->lock, F_OK), -1);
}

static uint64_t resident_file_pages(void)
{
	FILE *statm = fopen("/proc/self/statm", "re");
	unsigned long size, resident, shared = 0;

	assert_int_equal(
		fscanf(statm, "%lu %lu %lu", &size, &resident, &shared), 3);
	fclose(statm);
	return shared;
}

static void a_walk_leaves_no_pages_of_lmdb_in_memory(void **state)
{
	struct fixture *f = *state;
	struct seen seen = {0};
	uint64_t before = resident_file_pages();

	for (uint64_t id = 0; id < 100000; id += 10000)
		assert_int_equal(put_slots(f, id, 10000), 0);
	assert_true(kv_index_bytes(f->index) > 4000 * KV_PAGE);
	assert_int_equal(walk(f, &seen), 0);
	assert_true(resident_file_pages() < before + 1000);
}

static void the_files_are_the_owners_alone(void **state)
{
	struct fixture *f = *state;
	struct stat st;

	assert_int_equal(stat(f->data, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	kv_index_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_foreign_file_is_ebadmsg_and_untouched),
		TEST(anothers_lmdb_is_ebadmsg_and_untouched),
		TEST(a_damaged_store_record_is_ebadmsg),
		TEST(a_newer_format_is_enotsup_and_untouched),
		TEST(an_older_format_is_enotsup_and_untouched),
		TEST(a_missing_directory_is_enoent),
		TEST(a_slot_that_is_not_there_is_enoent),
		TEST(a_damaged_record_is_ebadmsg_passed_over_and_counted),
		TEST(a_record_under_anothers_key_is_damaged),
		TEST(what_was_committed_is_there_after_opening_again),
		TEST(a_walk_is_in_key_order_and_shows_all),
		TEST(a_visitor_can_end_the_walk),
		TEST(spaces_and_segments_come_back_whole),
		TEST(read_only_reads_and_changes_nothing),
		TEST(a_walk_leaves_no_pages_of_lmdb_in_memory),
		TEST(the_files_are_the_owners_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
