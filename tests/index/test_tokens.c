/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tokens.c - what blocks' tokens are, beside their records: with them or
 * not at all, gone with them, and made anew from the blocks' headers.
 *
 * OWNS      nothing but its fixtures.
 *
 * LOCKING   none: one thread.
 */
#include "store_fixture.h"

#include "common/block.h"
#include "index/env.h"

#define LAYOUT                                                            \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[8]}]," \
	"\"tokens\":512,\"token_ids\":true}"

static struct kv_token_ids *make(uint32_t n, uint32_t first)
{
	struct kv_token_ids *ids = malloc(kv_token_ids_bytes(n, 3));

	ids->n = n;
	ids->extras_len = 3;
	for (uint32_t i = 0; i < n; i++)
		ids->ids[i] = first + i;
	memcpy(ids->ids + n, "abc", 3);
	return ids;
}

static int put(struct kv_index *index, uint64_t id, uint32_t n, uint32_t first)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = make(n, first);
	const struct kv_slot_record record = slot_record(id);
	struct kv_txn *batch;
	int r = kv_txn_begin(index, &batch);

	if (r == 0)
		r = kv_txn_put_slot(batch, id, &record);
	if (r == 0)
		r = kv_txn_put_token_ids(batch, id, record.generation, ids);
	return r < 0 ? kv_txn_abort(batch), r : kv_txn_commit(batch);
}

/* The first of them; 0: there are none, or no record. */
static uint32_t first_of(struct kv_index *index, uint64_t id)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	struct kv_slot_record record;

	if (kv_index_get_token_ids(index, id, &record, &ids) < 0 || !ids)
		return 0;
	assert_memory_equal(kv_token_ids_extras(ids), "abc", 3);
	return ids->ids[0];
}

static void they_are_there_with_their_record(void **state)
{
	struct fixture *f = *state;
	struct kv_token_ids *ids = NULL;
	struct kv_slot_record record;

	assert_int_equal(kv_index_get_token_ids(f->index, 5, &record, &ids),
			 -ENOENT);
	assert_int_equal(put(f->index, 5, 16, 700), 0);
	assert_int_equal(put(f->index, 6, 8192, 900), 0);
	assert_int_equal(put_slots(f, 7, 1), 0);
	assert_int_equal(open_again(f, true), 0);
	assert_int_equal(first_of(f->index, 5), 700);
	assert_int_equal(first_of(f->index, 6), 900);
	assert_int_equal(kv_index_get_token_ids(f->index, 7, &record, &ids), 0);
	assert_null(ids);
	assert_memory_equal(record.key, "\7\0\0\0", 4);
}

static void those_of_another_writing_of_the_slot_do_not_count(void **state)
{
	struct fixture *f = *state;
	struct kv_slot_record record = slot_record(5);
	struct kv_txn *batch;

	assert_int_equal(put(f->index, 5, 16, 700), 0);
	record.generation++;
	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	assert_int_equal(kv_txn_put_slot(batch, 5, &record), 0);
	assert_int_equal(kv_txn_commit(batch), 0);
	assert_int_equal(first_of(f->index, 5), 0);
}

static void an_aborted_batch_leaves_none(void **state)
{
	struct fixture *f = *state;
	_cleanup_(kv_freep) struct kv_token_ids *ids = make(16, 1);
	struct kv_txn *batch;

	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	assert_int_equal(kv_txn_put_token_ids(batch, 5, 16, ids), 0);
	kv_txn_abort(batch);
	assert_int_equal(put_slots(f, 5, 1), 0);
	assert_int_equal(first_of(f->index, 5), 0);
}

static int count(void *arg, uint64_t slot_id, uint64_t generation,
		 const struct kv_token_ids *ids)
{
	assert_int_equal(generation, slot_record(slot_id).generation);
	assert_int_equal(ids->extras_len, 3);
	++*(uint64_t *)arg;
	return 0;
}

static uint64_t all_of(struct fixture *f, uint64_t *ret_damaged)
{
	uint64_t n = 0;
	const struct kv_index_visitor visitor = {.arg = &n, .tokens = count};

	assert_int_equal(kv_index_walk(f->index, &visitor, ret_damaged), 0);
	return n;
}

static void they_are_deleted(void **state)
{
	struct fixture *f = *state;
	struct kv_txn *batch;
	uint64_t damaged;

	for (uint64_t id = 0; id < 100; id++)
		assert_int_equal(put(f->index, id, 600, 1), 0);
	assert_int_equal(all_of(f, &damaged), 100);
	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	for (uint64_t id = 0; id < 200; id += 2) {
		assert_int_equal(kv_txn_delete_slot(batch, id), 0);
		assert_int_equal(kv_txn_delete_token_ids(batch, id), 0);
	}
	assert_int_equal(kv_txn_commit(batch), 0);
	assert_int_equal(all_of(f, &damaged), 50);
	assert_int_equal(damaged, 0);
}

/* The database itself, as a fault of the disk would leave it. */
static void spoil(struct fixture *f, uint64_t id)
{
	MDB_val key = {sizeof(id), &id}, value;
	char copy[4096];
	MDB_txn *txn;

	assert_int_equal(mdb_txn_begin(f->index->env, NULL, 0, &txn), 0);
	assert_int_equal(mdb_get(txn, f->index->tokens, &key, &value), 0);
	memcpy(copy, value.mv_data, value.mv_size);
	copy[30] ^= 1;
	value.mv_data = copy;
	assert_int_equal(mdb_put(txn, f->index->tokens, &key, &value, 0), 0);
	assert_int_equal(mdb_txn_commit(txn), 0);
}

static void damaged_ones_are_as_if_they_were_not_there(void **state)
{
	struct fixture *f = *state;
	struct kv_slot_record record;
	uint64_t damaged;

	assert_int_equal(put(f->index, 5, 16, 700), 0);
	assert_int_equal(put(f->index, 6, 16, 800), 0);
	spoil(f, 5);
	assert_int_equal(first_of(f->index, 5), 0);
	assert_int_equal(kv_index_get(f->index, 5, &record), 0);
	assert_int_equal(first_of(f->index, 6), 800);
	assert_int_equal(all_of(f, &damaged), 1);
	assert_int_equal(damaged, 1);
}

static void a_full_map_is_enospc_and_all_of_it_can_be_deleted(void **state)
{
	struct fixture *f = *state;
	uint64_t n = 0;
	int r;

	kv_index_close(kv_steal(f->index));
	unlink(f->data);
	assert_int_equal(kv_index_open(f->directory, 16u << 20, false, &fresh,
				       &f->info, &f->index),
			 0);
	while ((r = put(f->index, n, 2000, 1)) == 0)
		n++;
	assert_int_equal(r, -ENOSPC);
	assert_true(n > 500);
	for (uint64_t id = 0; id < n; id++) {
		struct kv_txn *batch;

		assert_int_equal(kv_txn_begin(f->index, &batch), 0);
		assert_int_equal(kv_txn_delete_slot(batch, id), 0);
		assert_int_equal(kv_txn_delete_token_ids(batch, id), 0);
		assert_int_equal(kv_txn_commit(batch), 0);
	}
	assert_int_equal(put(f->index, 1, 2000, 1), 0);
}

/* An index as format 2 has it: without the database. */
static void an_older_index_gets_room_for_them(void **state)
{
	struct fixture *f = *state;
	struct kv_store_info info = fresh;
	struct kv_slot_record record;
	struct kv_token_ids *ids;
	MDB_txn *txn;

	info.version = 2;
	assert_int_equal(put_slots(f, 1, 10), 0);
	assert_int_equal(commit_info(f, &info), 0);
	assert_int_equal(mdb_txn_begin(f->index->env, NULL, 0, &txn), 0);
	assert_int_equal(mdb_drop(txn, f->index->tokens, 1), 0);
	assert_int_equal(mdb_txn_commit(txn), 0);
	assert_int_equal(open_again(f, true), 0);
	assert_int_equal(f->info.version, 2);
	assert_int_equal(kv_index_get_token_ids(f->index, 3, &record, &ids), 0);
	assert_null(ids);
	assert_int_equal(open_again(f, false), 0);
	assert_int_equal(put(f->index, 3, 16, 700), 0);
	assert_int_equal(first_of(f->index, 3), 700);
	/* Format 3 has it, or is damaged. */
	info.version = 3;
	assert_int_equal(commit_info(f, &info), 0);
	assert_int_equal(mdb_txn_begin(f->index->env, NULL, 0, &txn), 0);
	assert_int_equal(mdb_drop(txn, f->index->tokens, 1), 0);
	assert_int_equal(mdb_txn_commit(txn), 0);
	assert_int_equal(open_again(f, false), -EBADMSG);
}

/* ---- made anew ---- */

/* A block with a header in slot @slot_number of file 0. */
static void add_block(struct store *s, uint32_t slot_number, uint32_t space,
		      uint64_t generation, uint32_t first)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	_cleanup_(kv_freep) struct kv_token_ids *ids = make(512, first);
	_cleanup_(kv_freep) uint8_t *header = NULL;
	struct kv_slot_record record =
		store_record(space, slot_number, generation);
	struct kv_key key = {.b = "k", .len = 16};
	struct kv_meta meta = {.tokens = 512, .ids = ids};
	int fd = store_open_file(s, 0);

	assert_int_equal(kv_layout_parse(LAYOUT, strlen(LAYOUT), &layout), 0);
	record.payload = (uint32_t)kv_block_header_bytes(layout);
	record.length = record.payload + layout->payload;
	header = malloc(record.payload);
	assert_int_equal(kv_block_header_write(layout, &key, &meta, header), 0);
	assert_int_equal(pwrite(fd, header, record.payload,
				(off_t)slot_number * 8 * KV_PAGE + KV_PAGE),
			 record.payload);
	close(fd);
	store_write_at(s, 0, (off_t)slot_number * 8 * KV_PAGE, &record);
}

static void add_file(struct store *s)
{
	const struct kv_space_record record = {.id = 5, .mode = 0700};
	int fd = store_open_file(s, 0);

	assert_int_equal(ftruncate(fd, SEGMENT), 0);
	assert_int_equal(
		kv_trailer_write(fd, 0, store_info.store, SEGMENT, 8 * KV_PAGE),
		0);
	close(fd);
	assert_int_equal(
		kv_space_file_write(s->spaces, &record, "five", LAYOUT), 0);
}

static void they_come_back_from_the_headers(void **state)
{
	struct store *s = *state;

	add_file(s);
	add_block(s, 1, 5, 100, 7000);
	add_block(s, 2, 5, 101, 8000);
	add_block(s, 3, 1, 102, 9000); /* its space does not have them */
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.blocks, 3);
	assert_int_equal(first_of(s->made, 1), 7000);
	assert_int_equal(first_of(s->made, 2), 8000);
	assert_int_equal(first_of(s->made, 3), 0);
}

static void of_two_with_one_key_the_newer_ones_stay(void **state)
{
	struct store *s = *state;
	struct kv_slot_record record;

	add_file(s);
	add_block(s, 1, 5, 100, 7000);
	add_block(s, 2, 5, 101, 8000);
	/* Slot 2 has the key of slot 1. */
	record = store_record(5, 1, 101);
	record.payload = 12288;
	record.length = 12296;
	store_write_at(s, 0, 2 * 8 * KV_PAGE, &record);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.duplicates, 1);
	assert_int_equal(first_of(s->made, 1), 0);
	assert_int_equal(first_of(s->made, 2), 8000);
}

static void a_damaged_header_is_no_reason_to_fail(void **state)
{
	struct store *s = *state;
	int fd;

	add_file(s);
	add_block(s, 1, 5, 100, 7000);
	add_block(s, 2, 5, 101, 8000);
	fd = store_open_file(s, 0);
	assert_int_equal(
		pwrite(fd, "\xff\xff\xff\xff\xff", 5, 8 * KV_PAGE + KV_PAGE),
		5);
	close(fd);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.blocks, 2);
	assert_int_equal(first_of(s->made, 1), 0);
	assert_int_equal(first_of(s->made, 2), 8000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(they_are_there_with_their_record),
		TEST(those_of_another_writing_of_the_slot_do_not_count),
		TEST(an_aborted_batch_leaves_none),
		TEST(they_are_deleted),
		TEST(damaged_ones_are_as_if_they_were_not_there),
		TEST(a_full_map_is_enospc_and_all_of_it_can_be_deleted),
		TEST(an_older_index_gets_room_for_them),
		STORE_TEST(they_come_back_from_the_headers),
		STORE_TEST(of_two_with_one_key_the_newer_ones_stay),
		STORE_TEST(a_damaged_header_is_no_reason_to_fail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
