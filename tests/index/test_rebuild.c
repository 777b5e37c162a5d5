/* SPDX-License-Identifier: Apache-2.0 */
/* test_rebuild.c - an index made anew from the segment files. */
#include "store_fixture.h"

static bool has(struct store *s, uint32_t file, uint32_t slot_number,
		uint64_t generation)
{
	struct kv_slot_record record;

	return kv_index_get(s->made, kv_slot_id(file, slot_number), &record,
			    NULL) == 0 &&
	       record.generation == generation;
}

static void what_was_durable_is_back(void **state)
{
	struct store *s = *state;
	struct kv_slot_record record = store_record(2, 77, 500), got;

	record.parent[3] = 9;
	record.parent_len = 32;
	record.tokens = 16;
	record.digest[0] = 0xaa;
	store_add_file(s, 0);
	store_add_file(s, 3);
	store_put(s, 0, 5, store_record(1, 1, 100));
	store_put(s, 3, 0, record);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.blocks, 2);
	assert_int_equal(s->rebuild.spaces, 2);
	assert_int_equal(s->rebuild.files, 2);
	assert_true(has(s, 0, 5, 100));
	assert_int_equal(kv_index_get(s->made, kv_slot_id(3, 0), &got, NULL),
			 0);
	assert_int_equal(got.parent[3], 9);
	assert_int_equal(got.parent_len, 32);
	assert_int_equal(got.tokens, 16);
	assert_int_equal(got.digest[0], 0xaa);
	assert_int_equal(got.mtime_ns, record.mtime_ns);
	assert_memory_equal(s->info.store, store_info.store, 16);
	assert_int_equal(s->info.cap, store_info.cap);
	assert_false(s->info.clean);
}

static void spaces_come_with_owner_and_mode(void **state)
{
	struct store *s = *state;
	struct fixture f;
	struct seen *seen = calloc(1, sizeof(*seen));

	assert_int_equal(kv_space_file_remove(s->spaces, 1), 0);
	assert_int_equal(store_rebuild(s), 0);
	f.index = s->made;
	assert_int_equal(walk(&f, seen), 0);
	assert_int_equal(seen->spaces, 1);
	assert_string_equal(seen->name, "two");
	assert_int_equal(seen->space.uid, 7);
	assert_int_equal(seen->space.mode, 0700);
	free(seen);
}

static void a_prologue_of_zeros_stays_away(void **state)
{
	struct store *s = *state;
	int fd;

	store_add_file(s, 0);
	store_put(s, 0, 1, store_record(1, 1, 10));
	store_put(s, 0, 2, store_record(1, 2, 11));
	fd = store_open_file(s, 0);
	assert_int_equal(kv_segfile_zero(fd, SLOT, 1), 0);
	close(fd);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.blocks, 1);
	assert_false(has(s, 0, 1, 10));
	assert_true(has(s, 0, 2, 11));
}

static void of_two_with_one_key_the_newer_stays(void **state)
{
	struct store *s = *state;

	store_add_file(s, 0);
	store_put(s, 0, 1, store_record(1, 1, 30));
	store_put(s, 0, 2, store_record(1, 1, 10));
	store_put(s, 0, 3, store_record(1, 1, 20));
	/* a block of another space */
	store_put(s, 0, 4, store_record(2, 1, 15));
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.duplicates, 2);
	assert_int_equal(s->rebuild.blocks, 2);
	assert_true(has(s, 0, 1, 30));
	assert_true(has(s, 0, 4, 15));
	assert_false(has(s, 0, 2, 10));
	assert_false(has(s, 0, 3, 20));
}

static void what_has_no_space_is_left_out(void **state)
{
	struct store *s = *state;

	store_add_file(s, 0);
	store_put(s, 0, 1, store_record(9, 1, 10));
	store_put(s, 0, 2, store_record(0, 1, 10));
	store_put(s, 0, 3, store_record(UINT32_MAX, 1, 10));
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.blocks, 0);
	assert_int_equal(s->rebuild.strays, 3);
	assert_int_equal(s->info.next_space, 10);
}

static void impossible_numbers_are_left_out(void **state)
{
	struct store *s = *state;
	struct kv_slot_record record = store_record(1, 1, 10);

	store_add_file(s, 0);
	/* with its prologue, the block is longer than the slot */
	record.length = SLOT;
	store_put(s, 0, 1, record);
	record.length = UINT64_MAX - 100;
	store_put(s, 0, 2, record);
	record.length = 0;
	store_put(s, 0, 3, record);
	record = store_record(1, 1, UINT64_MAX - 1);
	store_put(s, 0, 4, record);
	record = store_record(1, 1, 10);
	record.key_len = 31;
	store_put(s, 0, 5, record);
	record = store_record(1, 1, 10);
	record.payload = 6000;
	store_put(s, 0, 6, record);
	record = store_record(1, 1, 10);
	/* with its prologue, the block just fits into the slot */
	record.length = 2 * KV_PAGE;
	store_put(s, 0, 7, record);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.strays, 6);
	assert_int_equal(s->rebuild.blocks, 1);
	assert_true(s->info.next_generation < UINT64_MAX / 2);
}

static void nothing_is_given_twice(void **state)
{
	struct store *s = *state;

	store_add_file(s, 0);
	store_put(s, 0, 1, store_record(1, 1, 123456));
	assert_int_equal(store_rebuild(s), 0);
	assert_true(s->info.next_generation > 123456);
	assert_int_equal(s->info.next_space, 3);
	assert_int_equal(store_add_space(s, 8, "eight"), 0);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->info.next_space, 9);
}

/* A user who knows the store's id can write prologues into its own blocks. */
static void a_forged_prologue_within_a_block_is_not_looked_at(void **state)
{
	struct store *s = *state;
	struct kv_slot_record forged = store_record(1, 666, 999);

	store_add_file(s, 0);
	store_put(s, 0, 1, store_record(2, 1, 10));
	for (unsigned page = 1; page < SLOT / KV_PAGE; page++)
		store_write_at(s, 0, SLOT + page * KV_PAGE, &forged);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.blocks, 1);
	assert_int_equal(s->rebuild.strays, 0);
}

static void a_forged_trailer_in_a_block_is_none(void **state)
{
	struct store *s = *state;
	int fd = store_open_file(s, 0);

	assert_int_equal(kv_trailer_write(fd, 0, store_info.store,
					  SEGMENT - KV_PAGE, SLOT),
			 0);
	close(fd);
	store_put(s, 0, 1, store_record(1, 1, 10));
	assert_int_equal(store_rebuild(s), -EUCLEAN);
	assert_int_equal(s->rebuild.odd_files, 1);
	assert_int_equal(unlinkat(s->fd, "store", 0), 0);
	assert_int_equal(store_rebuild(s), -EUCLEAN);
}

static void a_trailer_ends_a_file_that_was_too_long(void **state)
{
	struct kv_trailer trailer;
	_cleanup_(kv_closep) int fd = store_open_file(*state, 0);

	assert_int_equal(ftruncate(fd, SEGMENT + KV_PAGE + 4), 0);
	assert_int_equal(kv_trailer_read(fd, 0, &trailer), -EBADMSG);
	assert_int_equal(
		kv_trailer_write(fd, 0, store_info.store, SEGMENT, SLOT), 0);
	assert_int_equal(kv_trailer_read(fd, 0, &trailer), 0);
}

static void files_of_others_are_left_out(void **state)
{
	struct store *s = *state;
	uint8_t other[16] = {1};
	int fd = store_open_file(s, 1);

	assert_int_equal(kv_trailer_write(fd, 1, other, SEGMENT, SLOT), 0);
	close(fd);
	/* segment file 2 gets the trailer of file 5 */
	fd = store_open_file(s, 2);
	assert_int_equal(
		kv_trailer_write(fd, 5, store_info.store, SEGMENT, SLOT), 0);
	close(fd);
	fd = store_open_file(s, 3); /* segment file 3 gets no trailer */
	assert_int_equal(ftruncate(fd, SEGMENT), 0);
	close(fd);
	assert_int_equal(symlinkat("000001.seg", s->fd, "segments/000004.seg"),
			 0);
	assert_int_equal(mkdirat(s->fd, "segments/000006.seg", 0700), 0);
	store_add_file(s, 7);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.files, 1);
	assert_int_equal(s->rebuild.odd_files, 5);
}

static void another_format_is_left_alone(void **state)
{
	struct store *s = *state;
	struct kv_store_info other = store_info;
	struct kv_trailer trailer = {.magic = KV_TRAILER_MAGIC,
				     .version = KV_FORMAT_VERSION + 1};
	int fd;

	assert_int_equal(store_rebuild(s), 0);
	store_add_file(s, 0);
	fd = store_open_file(s, 0);
	assert_int_equal(pwrite(fd, &trailer, sizeof(trailer), SEGMENT),
			 sizeof(trailer));
	close(fd);
	assert_int_equal(store_rebuild(s), -ENOTSUP);
	assert_int_equal(faccessat(s->fd, "index/data.mdb", F_OK, 0), 0);
	store_add_file(s, 0);
	for (other.version = KV_FORMAT_VERSION - 1;
	     other.version <= KV_FORMAT_VERSION + 1; other.version += 2) {
		assert_int_equal(kv_store_file_write(s->fd, &other), 0);
		assert_int_equal(store_rebuild(s), -ENOTSUP);
		assert_int_equal(faccessat(s->fd, "index/data.mdb", F_OK, 0),
				 0);
	}
}

static void trailers_tell_what_the_store_is(void **state)
{
	struct store *s = *state;

	store_add_file(s, 0);
	store_put(s, 0, 1, store_record(1, 1, 10));
	assert_int_equal(unlinkat(s->fd, "store", 0), 0);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.blocks, 1);
	assert_memory_equal(s->info.store, store_info.store, 16);
	assert_int_equal(s->info.segment_bytes, SEGMENT);
	assert_int_equal(s->info.next_space, 3);
}

static void a_damaged_space_file_is_left_out(void **state)
{
	struct store *s = *state;
	int fd;

	store_add_file(s, 0);
	store_put(s, 0, 1, store_record(1, 1, 10));
	store_put(s, 0, 2, store_record(2, 1, 11));
	fd = openat(s->spaces, "000001", O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, "x", 1, 20), 1);
	close(fd);
	assert_int_equal(renameat(s->spaces, "000002", s->spaces, "000004"), 0);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.spaces, 0);
	assert_int_equal(s->rebuild.strays, 2);
}

static void a_small_old_index_can_be_kept(void **state)
{
	struct store *s = *state;
	struct kv_rebuild rebuild = {
		.store_fd = s->fd, .path = s->path, .keep = true};
	int fd = openat(s->fd, "index/data.mdb", O_WRONLY | O_CREAT | O_CLOEXEC,
			0600);

	assert_int_equal(write(fd, "odd", 3), 3);
	assert_int_equal(kv_rebuild(&rebuild), 0);
	assert_int_equal(faccessat(s->fd, KV_DAMAGED_NAME, F_OK, 0), 0);
	close(fd);
	fd = openat(s->fd, "index/data.mdb", O_WRONLY | O_CLOEXEC);
	assert_int_equal(ftruncate(fd, 1 << 20), 0);
	assert_int_equal(kv_rebuild(&rebuild), 0);
	assert_int_equal(faccessat(s->fd, KV_DAMAGED_NAME, F_OK, 0), -1);
	close(fd);
}

static void a_cleared_file_has_no_prologue_left(void **state)
{
	struct store *s = *state;
	struct kv_slot_record forged = store_record(1, 1, 10);
	struct kv_found found[64];
	int fd;

	store_add_file(s, 0);
	for (unsigned page = 0; page < SEGMENT / KV_PAGE; page++)
		store_write_at(s, 0, (off_t)page * KV_PAGE, &forged);
	fd = store_open_file(s, 0);
	assert_int_equal(kv_segfile_clear(fd, SEGMENT, 8 * KV_PAGE), 0);
	kv_segfile_scan(fd, store_info.store, 8 * KV_PAGE, 0, 64, NULL, found);
	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(found[i].state, KV_FOUND_ZERO);
	close(fd);
}

static void only_the_very_names_are_names(void **state)
{
	const char *const odd[] = {
		"0.seg",      "0000001.seg", "000001.seg ",
		"000001.se",  "-00001.seg",  ".",
		"00000a.seg", "000001",	     "99999999999.seg"};
	uint32_t id;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(odd); i++)
		assert_false(kv_segfile_parse(odd[i], &id));
	assert_true(kv_segfile_parse("000012.seg", &id));
	assert_int_equal(id, 12);
	assert_true(kv_segfile_parse("1234567.seg", &id));
	assert_int_equal(id, 1234567);
	assert_false(kv_space_file_parse("000000", &id));
	assert_false(kv_space_file_parse("000001.tmp", &id));
	assert_true(kv_space_file_parse("000021", &id));
	assert_int_equal(id, 21);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(what_was_durable_is_back),
		STORE_TEST(spaces_come_with_owner_and_mode),
		STORE_TEST(a_prologue_of_zeros_stays_away),
		STORE_TEST(of_two_with_one_key_the_newer_stays),
		STORE_TEST(what_has_no_space_is_left_out),
		STORE_TEST(impossible_numbers_are_left_out),
		STORE_TEST(nothing_is_given_twice),
		STORE_TEST(a_forged_prologue_within_a_block_is_not_looked_at),
		STORE_TEST(a_forged_trailer_in_a_block_is_none),
		STORE_TEST(a_trailer_ends_a_file_that_was_too_long),
		STORE_TEST(files_of_others_are_left_out),
		STORE_TEST(another_format_is_left_alone),
		STORE_TEST(trailers_tell_what_the_store_is),
		STORE_TEST(a_damaged_space_file_is_left_out),
		STORE_TEST(a_small_old_index_can_be_kept),
		STORE_TEST(a_cleared_file_has_no_prologue_left),
		cmocka_unit_test(only_the_very_names_are_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
