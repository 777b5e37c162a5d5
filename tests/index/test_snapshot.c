/* SPDX-License-Identifier: Apache-2.0 */
/* test_snapshot.c - records of snapshots in the index. */
#include "tests/index/index_fixture.h"

#define LONG_ONE 20000u

struct found {
	unsigned n;
	uint64_t id[4];
	uint32_t count[4];
	char name[4][16];
	bool items_right;
};

static struct kv_snapshot_item item(uint32_t i)
{
	struct kv_snapshot_item it = {.position = i * 2, .key_len = 32};

	memset(it.key, (int)(i % 251), sizeof(it.key));
	return it;
}

static int see(void *arg, const struct kv_snapshot_record *record,
	       const char *name, const struct kv_snapshot_item *items)
{
	struct found *found = arg;
	unsigned n = found->n++;

	assert_true(n < 4);
	found->id[n] = record->id;
	found->count[n] = record->count;
	strcpy(found->name[n], name);
	for (uint32_t i = 0; i < record->count; i++) {
		struct kv_snapshot_item it = item(i);

		found->items_right &= memcmp(&items[i], &it, sizeof(it)) == 0;
	}
	return 0;
}

static struct found find_all(struct fixture *f, uint64_t *ret_damaged)
{
	struct found found = {.items_right = true};
	struct kv_index_visitor visitor = {.arg = &found, .snapshot = see};

	assert_int_equal(kv_index_walk(f->index, &visitor, ret_damaged), 0);
	return found;
}

static void put(struct fixture *f, uint64_t id, const char *name,
		uint32_t count)
{
	_cleanup_(kv_freep) struct kv_snapshot_item *items =
		calloc(count + 1, sizeof(*items));
	struct kv_snapshot_record record = {
		.id = id, .space = 7, .count = count, .mtime_ns = 5};
	struct kv_txn *batch;

	for (uint32_t i = 0; i < count; i++)
		items[i] = item(i);
	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	assert_int_equal(kv_txn_put_snapshot(batch, &record, name, items), 0);
	assert_int_equal(kv_txn_commit(batch), 0);
}

static void what_was_put_is_seen_and_what_was_deleted_is_not(void **state)
{
	struct fixture *f = *state;
	struct kv_txn *batch;
	uint64_t damaged;
	struct found found;

	put(f, 3, "long", LONG_ONE);
	put(f, 1, "empty", 0);
	put(f, 2, "gone", 3);
	/* one of the snapshot's items is left out */
	put(f, 3, "long", LONG_ONE - 1);
	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	assert_int_equal(kv_txn_delete(batch, KV_PART_SNAPSHOTS, 2), 0);
	assert_int_equal(kv_txn_delete(batch, KV_PART_SNAPSHOTS, 99), 0);
	assert_int_equal(kv_txn_commit(batch), 0);
	assert_int_equal(open_again(f, false), 0);
	found = find_all(f, &damaged);
	assert_int_equal(damaged, 0);
	assert_int_equal(found.n, 2);
	assert_int_equal(found.id[0], 1);
	assert_string_equal(found.name[0], "empty");
	assert_int_equal(found.count[0], 0);
	assert_string_equal(found.name[1], "long");
	assert_int_equal(found.count[1], LONG_ONE - 1);
	assert_true(found.items_right);
}

/* Change one byte of @text, which occurs once in the index's file. */
static void damage(struct fixture *f, const char *text, size_t n, long offset)
{
	char *data, *at;
	long size;
	FILE *file = fopen(f->data, "r+");

	assert_non_null(file);
	fseek(file, 0, SEEK_END);
	size = ftell(file);
	data = malloc((size_t)size);
	rewind(file);
	assert_int_equal(fread(data, 1, (size_t)size, file), size);
	at = memmem(data, (size_t)size, text, n);
	assert_non_null(at);
	fseek(file, at - data + offset, SEEK_SET);
	fputc(at[offset] ^ 1, file);
	fclose(file);
	free(data);
}

static void a_damaged_one_is_passed_over_and_counted(void **state)
{
	struct fixture *f = *state;
	const struct kv_snapshot_item it = item(77);
	uint64_t damaged;
	struct found found;

	put(f, 1, "whole", 5);
	put(f, 2, "hurt", 100);
	kv_index_close(kv_steal(f->index));
	damage(f, (const char *)&it, sizeof(it), 3);
	assert_int_equal(kv_index_open(f->directory, MAP, false, &fresh,
				       &f->info, &f->index),
			 0);
	found = find_all(f, &damaged);
	assert_int_equal(damaged, 1);
	assert_int_equal(found.n, 1);
	assert_string_equal(found.name[0], "whole");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_was_put_is_seen_and_what_was_deleted_is_not),
		TEST(a_damaged_one_is_passed_over_and_counted),
	};

	return cmocka_run_group_tests_name("index/snapshot", tests, NULL, NULL);
}
