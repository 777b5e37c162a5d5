/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tokens.c - token ids in the index: put and deleted together with the
 * records of their blocks, and rebuilt from the blocks' headers.
 *
 * OWNS      nothing but its fixtures.
 *
 * LOCKING   none: one thread.
 */
#include "store_fixture.h"

#include "common/block.h"
#include "common/copy.h"
#include "index/env.h"

#define LAYOUT                                                                \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[16384]}]," \
	"\"tokens\":16,\"token_ids\":true}"

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

/* Return the first token id of slot @id; 0: the slot has no token ids or no
 * record. */
static uint32_t first_of(struct kv_index *index, uint64_t id)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	struct kv_slot_record record;

	if (kv_index_get(index, id, &record, &ids) < 0 || !ids)
		return 0;
	assert_memory_equal(kv_token_ids_extras(ids), "abc", 3);
	return ids->ids[0];
}

static void they_are_there_with_their_record(void **state)
{
	struct fixture *f = *state;
	struct kv_token_ids *ids = NULL;
	struct kv_slot_record record;

	assert_int_equal(kv_index_get(f->index, 5, &record, &ids), -ENOENT);
	assert_int_equal(put(f->index, 5, 16, 700), 0);
	assert_int_equal(put(f->index, 6, 8192, 900), 0);
	assert_int_equal(put_slots(f, 7, 1), 0);
	assert_int_equal(open_again(f, true), 0);
	assert_int_equal(first_of(f->index, 5), 700);
	assert_int_equal(first_of(f->index, 6), 900);
	assert_int_equal(kv_index_get(f->index, 7, &record, &ids), 0);
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
		assert_int_equal(kv_txn_delete(batch, KV_PART_SLOTS, id), 0);
		assert_int_equal(kv_txn_delete(batch, KV_PART_TOKENS, id), 0);
	}
	assert_int_equal(kv_txn_commit(batch), 0);
	assert_int_equal(all_of(f, &damaged), 50);
	assert_int_equal(damaged, 0);
}

/* Damage token ids by LMDB itself, as a fault of the disk would. */
static void spoil(struct fixture *f, uint64_t id)
{
	MDB_val key = {sizeof(id), &id}, value;
	char copy[4096];
	MDB_txn *txn;

	assert_int_equal(mdb_txn_begin(f->index->env, NULL, 0, &txn), 0);
	assert_int_equal(
		mdb_get(txn, f->index->parts[KV_PART_TOKENS], &key, &value), 0);
	memcpy(copy, value.mv_data, value.mv_size);
	copy[30] ^= 1;
	value.mv_data = copy;
	assert_int_equal(
		mdb_put(txn, f->index->parts[KV_PART_TOKENS], &key, &value, 0),
		0);
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
	assert_int_equal(kv_index_get(f->index, 5, &record, NULL), 0);
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
		assert_int_equal(kv_txn_delete(batch, KV_PART_SLOTS, id), 0);
		assert_int_equal(kv_txn_delete(batch, KV_PART_TOKENS, id), 0);
		assert_int_equal(kv_txn_commit(batch), 0);
	}
	assert_int_equal(put(f->index, 1, 2000, 1), 0);
}

/* Put records of the slots from @id on, without those token ids that do not
 * fit.  Return 0 if the records do not fit. */
static unsigned put_what_fits(struct fixture *f, uint64_t id, unsigned slots,
			      uint32_t n)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = make(n, 1);
	struct kv_txn *batch;
	unsigned put = 0;

	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	for (; put < slots && kv_txn_has_room(batch, KV_PUT_FAR); put++) {
		const struct kv_slot_record record = slot_record(id + put);

		if (kv_txn_has_room_for_ids(batch, n, 3, KV_PUT_FAR))
			assert_int_equal(kv_txn_put_token_ids(batch, id + put,
							      record.generation,
							      ids),
					 0);
		assert_int_equal(kv_txn_put_slot(batch, id + put, &record), 0);
	}
	assert_int_equal(kv_txn_commit(batch), 0);
	return put == slots ? put : 0;
}

/* Long token ids need adjacent free pages, and many free pages need not be
 * adjacent: token ids that were accepted must never make the commit fail. */
static void what_has_room_is_put_however_torn_the_map_is(void **state)
{
	struct fixture *f = *state;
	struct kv_txn *batch;
	uint64_t n = 0;

	kv_index_close(kv_steal(f->index));
	unlink(f->data);
	assert_int_equal(kv_index_open(f->directory, 16u << 20, false, &fresh,
				       &f->info, &f->index),
			 0);
	while (put_what_fits(f, n, 200, 600))
		n += 200;
	for (uint64_t id = 0; id < n; id += 200) {
		assert_int_equal(kv_txn_begin(f->index, &batch), 0);
		for (uint64_t i = id; i < id + 200; i += 2)
			assert_int_equal(
				kv_txn_delete(batch, KV_PART_TOKENS, i), 0);
		assert_int_equal(kv_txn_commit(batch), 0);
	}
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(put_what_fits(f, n + i * 200, 200, 8000), 200);
}

static void an_index_without_their_database_is_damaged(void **state)
{
	struct fixture *f = *state;
	MDB_txn *txn;

	assert_int_equal(put_slots(f, 1, 10), 0);
	assert_int_equal(mdb_txn_begin(f->index->env, NULL, 0, &txn), 0);
	assert_int_equal(mdb_drop(txn, f->index->parts[KV_PART_TOKENS], 1), 0);
	assert_int_equal(mdb_txn_commit(txn), 0);
	assert_int_equal(open_again(f, false), -EBADMSG);
}

/* The index stores token ids that take at most a 96th of the block's bytes.  A
 * short value counts twice, a long value takes whole pages. */
static void those_that_are_few_beside_their_block_are_taken(void **state)
{
	static const struct {
		uint32_t n, extras_len;
		/* bytes of the smallest file with token ids in the index */
		uint64_t least;
	} rows[] = {
		{1, 0, 96 * 2 * 44},	     {16, 0, 96 * 2 * 104},
		{16, 64, 96 * 2 * 168},	     {64, 0, 96 * 2 * 296},
		{64, 64, 96 * 2 * 360},	     {510, 0, 96 * KV_PAGE},
		{8192, 0, 96 * 9 * KV_PAGE}, {8192, 2048, 96 * 9 * KV_PAGE},
	};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(rows); i++) {
		assert_true(kv_index_takes_token_ids(
			rows[i].n, rows[i].extras_len, rows[i].least));
		assert_false(kv_index_takes_token_ids(
			rows[i].n, rows[i].extras_len, rows[i].least - 1));
	}
}

/* ---- token ids in a rebuilt index ---- */

#define SLOT_BYTES (8 * KV_PAGE)
#define FILE_AT(slot_number) ((off_t)(slot_number)*SLOT_BYTES + KV_PAGE)

/* Make the file of a block with token ids from @first on; caller frees. */
static uint8_t *make_file(uint32_t first, struct kv_slot_record *record)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	_cleanup_(kv_freep) struct kv_token_ids *ids = make(16, first);
	struct kv_key key = {.b = "k", .len = 16};
	struct kv_meta meta = {.tokens = 16, .ids = ids};
	struct kv_digest digest;
	uint8_t *file;

	assert_int_equal(kv_layout_parse(LAYOUT, strlen(LAYOUT), &layout), 0);
	record->payload = (uint32_t)kv_block_header_bytes(layout);
	record->length = record->payload + layout->payload;
	record->tokens = 16;
	file = malloc(record->length);
	assert_int_equal(kv_block_header_write(layout, &key, &meta, file), 0);
	memset(file + record->payload, (int)first, layout->payload);
	digest = kv_digest_of(file, record->length);
	memcpy(record->digest, digest.b, sizeof(digest.b));
	return file;
}

/* Put a block with key @key into slot @slot_number of file 0. */
static void add_block_of(struct store *s, uint32_t slot_number, uint64_t key,
			 struct kv_slot_record record, uint32_t first)
{
	_cleanup_(kv_freep) uint8_t *file = make_file(first, &record);
	int fd = store_open_file(s, 0);

	memcpy(record.key, &key, sizeof(key));
	assert_int_equal(pwrite(fd, file, record.length, FILE_AT(slot_number)),
			 record.length);
	close(fd);
	store_write_at(s, 0, (off_t)slot_number * SLOT_BYTES, &record);
}

static void add_block(struct store *s, uint32_t slot_number, uint32_t space,
		      uint64_t generation, uint32_t first)
{
	add_block_of(s, slot_number, slot_number,
		     store_record(space, slot_number, generation), first);
}

/* Change the byte at @at of the block's file, as a fault of the disk would. */
static void damage(struct store *s, uint32_t slot_number, off_t at)
{
	int fd = store_open_file(s, 0);
	uint8_t byte;

	assert_int_equal(pread(fd, &byte, 1, FILE_AT(slot_number) + at), 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, FILE_AT(slot_number) + at), 1);
	close(fd);
}

static void add_file(struct store *s)
{
	const struct kv_space_record record = {.id = 5, .mode = 0700};
	int fd = store_open_file(s, 0);

	assert_int_equal(ftruncate(fd, SEGMENT), 0);
	assert_int_equal(
		kv_trailer_write(fd, 0, store_info.store, SEGMENT, SLOT_BYTES),
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
	/* this space's layout has no token ids */
	add_block(s, 3, 1, 102, 9000);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.blocks, 3);
	assert_int_equal(first_of(s->made, 1), 7000);
	assert_int_equal(first_of(s->made, 2), 8000);
	assert_int_equal(first_of(s->made, 3), 0);
}

static void of_two_with_one_key_the_newer_ones_stay(void **state)
{
	struct store *s = *state;

	add_file(s);
	add_block(s, 1, 5, 100, 7000);
	add_block_of(s, 2, 1, store_record(5, 2, 101), 8000);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.duplicates, 1);
	assert_int_equal(first_of(s->made, 1), 0);
	assert_int_equal(first_of(s->made, 2), 8000);
}

/* Damage the blocks: another token id in one, no valid header in one, other
 * tensors in one.  A rebuild must take no token ids from any of them. */
static void what_has_not_its_digest_is_left_out(void **state)
{
	struct store *s = *state;
	struct kv_slot_record record = {0};
	_cleanup_(kv_freep) uint8_t *file = make_file(6000, &record);
	const uint8_t *id = memmem(file, record.payload, "\"6000,", 6);

	add_file(s);
	for (uint32_t i = 1; i <= 4; i++)
		add_block(s, i, 5, 100 + i, 6000);
	damage(s, 1, id + 1 - file);
	damage(s, 2, 8);
	damage(s, 3, (off_t)record.length - 1);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.blocks, 1);
	assert_int_equal(s->rebuild.damaged, 3);
	for (uint32_t i = 1; i <= 3; i++)
		assert_int_equal(first_of(s->made, i), 0);
	assert_int_equal(first_of(s->made, 4), 6000);
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
		TEST(what_has_room_is_put_however_torn_the_map_is),
		TEST(an_index_without_their_database_is_damaged),
		TEST(those_that_are_few_beside_their_block_are_taken),
		STORE_TEST(they_come_back_from_the_headers),
		STORE_TEST(of_two_with_one_key_the_newer_ones_stay),
		STORE_TEST(what_has_not_its_digest_is_left_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
