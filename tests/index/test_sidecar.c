/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sidecar.c - the files beside the index and the trailers of segment
 * files: each field is checked when its file is read; calls may read or write
 * fewer bytes than requested.
 */
#include <dlfcn.h>
#include <lmdb.h>
#include <xxhash.h>

#include "index/env.h"
#include "store_fixture.h"

/* Number of calls that will fail with EINTR, and the most bytes that one call
 * reads or writes. */
static _Atomic int interrupts;
static _Atomic size_t at_most; /* 0: calls read or write any number of bytes */

static bool interrupted(void)
{
	if (!interrupts)
		return false;
	interrupts--;
	errno = EINTR;
	return true;
}

#define REAL(name)                     \
	static __typeof__(&name) real; \
	if (!real)                     \
	real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t read(int fd, void *data, size_t n)
{
	REAL(read);
	return interrupted() ? -1
			     : real(fd, data, at_most ? KV_MIN(n, at_most) : n);
}

ssize_t write(int fd, const void *data, size_t n)
{
	REAL(write);
	return interrupted() ? -1
			     : real(fd, data, at_most ? KV_MIN(n, at_most) : n);
}

ssize_t pread(int fd, void *data, size_t n, off_t at)
{
	REAL(pread);
	return interrupted()
		       ? -1
		       : real(fd, data, at_most ? KV_MIN(n, at_most) : n, at);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
	REAL(pwrite);
	return interrupted()
		       ? -1
		       : real(fd, data, at_most ? KV_MIN(n, at_most) : n, at);
}

static void calls_that_do_less_are_made_again(void **state)
{
	_cleanup_(kv_freep) char *name = NULL, *layout = NULL;
	const struct kv_space_record record = {.id = 9, .mode = 0700};
	struct kv_space_record got;
	struct kv_trailer trailer;
	struct store *s = *state;
	int fd;

	at_most = 7;
	interrupts = 1;
	assert_int_equal(kv_space_file_write(s->spaces, &record, "nine", ""),
			 0);
	interrupts = 1;
	assert_int_equal(kv_space_file_read(s->spaces, 9, &got, &name, &layout),
			 0);
	assert_string_equal(name, "nine");
	at_most = 0;

	store_add_file(s, 0);
	fd = store_open_file(s, 0);
	interrupts = 1;
	assert_int_equal(
		kv_trailer_write(fd, 0, store_info.store, SEGMENT, SLOT), 0);
	interrupts = 1;
	assert_int_equal(kv_trailer_read(fd, 0, &trailer), 0);
	/* A page of a file that is written in part only is an error. */
	at_most = 100;
	assert_int_equal(kv_trailer_read(fd, 0, &trailer), 0);
	assert_int_equal(
		kv_trailer_write(fd, 0, store_info.store, SEGMENT, SLOT),
		-ENOSPC);
	at_most = 0;
	close(fd);
}

static int read_space(struct store *s, uint32_t id)
{
	_cleanup_(kv_freep) char *name = NULL, *layout = NULL;
	struct kv_space_record record;

	return kv_space_file_read(s->spaces, id, &record, &name, &layout);
}

static void only_a_small_regular_file_is_read(void **state)
{
	struct store *s = *state;
	int fd;

	assert_int_equal(read_space(s, 1), 0);
	assert_int_equal(symlinkat("000001", s->spaces, "000003"), 0);
	assert_int_equal(read_space(s, 3), -EBADMSG);
	assert_int_equal(mkfifoat(s->spaces, "000004", 0600), 0);
	assert_int_equal(read_space(s, 4), -EBADMSG);
	assert_int_equal(mkdirat(s->spaces, "000005", 0700), 0);
	assert_int_equal(read_space(s, 5), -EBADMSG);
	fd = openat(s->spaces, "000006", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	/* the space's file is empty */
	assert_int_equal(read_space(s, 6), -EBADMSG);
	assert_int_equal(ftruncate(fd, 2 << 20), 0);
	assert_int_equal(read_space(s, 6), -EBADMSG);
	close(fd);
	assert_int_equal(read_space(s, 7), -ENOENT);
	assert_int_equal(kv_space_file_remove(s->spaces, 7), 0);
	assert_int_equal(kv_space_file_remove(s->spaces, 5), -EISDIR);
}

static void only_the_very_name_is_a_spaces(void **state)
{
	static const char *const odd[] = {
		"0",	       "000000", "00001",      "0000001", "00000a",
		"99999999999", "",	 "4294967296", "-00001",  "000001.tmp"};
	uint32_t id;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(odd); i++)
		assert_false(kv_space_file_parse(odd[i], &id));
	assert_true(kv_space_file_parse("000001", &id));
	assert_int_equal(id, 1);
	assert_true(kv_space_file_parse("4294967295", &id));
	assert_int_equal(id, UINT32_MAX);
}

/* ---- trailers of segment files ---- */

static int read_changed(int fd, const struct kv_trailer *changed)
{
	_Alignas(KV_PAGE) uint8_t page[KV_PAGE] = {0};
	struct kv_trailer trailer = *changed;

	trailer.checksum =
		XXH3_64bits(&trailer, offsetof(struct kv_trailer, checksum));
	memcpy(page, &trailer, sizeof(trailer));
	assert_int_equal(pwrite(fd, page, sizeof(page), SEGMENT), KV_PAGE);
	return kv_trailer_read(fd, 0, &trailer);
}

#define CHANGED(field, value)                     \
	({                                        \
		struct kv_trailer changed = good; \
		changed.field = value;            \
		read_changed(fd, &changed);       \
	})

static void a_trailers_numbers_agree_or_it_is_none(void **state)
{
	struct kv_trailer good, got;
	struct store *s = *state;
	int fd;

	store_add_file(s, 0);
	fd = store_open_file(s, 0);
	assert_int_equal(kv_trailer_read(fd, 0, &good), 0);
	assert_int_equal(read_changed(fd, &good), 0);
	assert_int_equal(CHANGED(magic, 1), -EBADMSG);
	assert_int_equal(CHANGED(version, KV_FORMAT_VERSION + 1), -ENOTSUP);
	assert_int_equal(CHANGED(id, 1), -EUCLEAN);
	assert_int_equal(CHANGED(segment_bytes, SEGMENT / 2), -EBADMSG);
	assert_int_equal(CHANGED(slot_bytes, KV_PAGE), -EBADMSG);
	assert_int_equal(CHANGED(slot_bytes, SLOT + 1), -EBADMSG);
	assert_int_equal(CHANGED(slot_bytes, 2 * SEGMENT), -EBADMSG);
	assert_int_equal(CHANGED(slots, good.slots + 1), -EBADMSG);

	assert_int_equal(ftruncate(fd, SEGMENT + 1), 0);
	assert_int_equal(kv_trailer_read(fd, 0, &got), -EBADMSG);
	assert_int_equal(ftruncate(fd, KV_PAGE), 0);
	assert_int_equal(kv_trailer_read(fd, 0, &got), -EBADMSG);
	close(fd);
	assert_int_equal(kv_trailer_read(s->fd, 0, &got), -EBADMSG);
}

static void a_record_fits_its_slot_or_is_none(void **state)
{
	const struct kv_slot_record good = store_record(1, 1, 1);
	struct kv_slot_record r = good;

	(void)state;
	assert_true(kv_record_fits(&r, SLOT));
	r.key_len = 20;
	assert_false(kv_record_fits(&r, SLOT));
	r.key_len = 32;
	assert_true(kv_record_fits(&r, SLOT));
	r.parent_len = 16;
	assert_true(kv_record_fits(&r, SLOT));
	r.parent_len = 31;
	assert_false(kv_record_fits(&r, SLOT));
	r = good;
	r.length = SLOT;
	assert_false(kv_record_fits(&r, SLOT));
	r = good;
	r.payload = (uint32_t)r.length + 1;
	assert_false(kv_record_fits(&r, SLOT));
	r = good;
	r.generation = UINT64_MAX;
	assert_false(kv_record_fits(&r, SLOT));
}

static void a_store_files_numbers_are_possible_or_it_is_none(void **state)
{
	struct kv_store_info info, odd = store_info;
	struct store *s = *state;

	assert_int_equal(kv_store_file_read(s->fd, &info), 0);
	odd.segment_bytes = 0;
	assert_int_equal(kv_store_file_write(s->fd, &odd), 0);
	assert_int_equal(kv_store_file_read(s->fd, &info), -EBADMSG);
	assert_false(kv_store_file_there(s->fd));
	odd.segment_bytes = SEGMENT + 1;
	assert_int_equal(kv_store_file_write(s->fd, &odd), 0);
	assert_int_equal(kv_store_file_read(s->fd, &info), -EBADMSG);
	odd.segment_bytes = 2 * KV_SEGMENT_MAX;
	assert_int_equal(kv_store_file_write(s->fd, &odd), 0);
	assert_int_equal(kv_store_file_read(s->fd, &info), -EBADMSG);
}

/* ---- errors of LMDB ---- */

static void each_of_lmdbs_numbers_becomes_one_of_ours(void **state)
{
	(void)state;
	assert_int_equal(kv_env_errno(MDB_SUCCESS), 0);
	assert_int_equal(kv_env_errno(MDB_NOTFOUND), -ENOENT);
	assert_int_equal(kv_env_errno(MDB_MAP_FULL), -ENOSPC);
	assert_int_equal(kv_env_errno(MDB_TXN_FULL), -ENOSPC);
	assert_int_equal(kv_env_errno(EDQUOT), -ENOSPC);
	assert_int_equal(kv_env_errno(MDB_READERS_FULL), -ENOMEM);
	assert_int_equal(kv_env_errno(MDB_CORRUPTED), -EBADMSG);
	assert_int_equal(kv_env_errno(MDB_PAGE_NOTFOUND), -EBADMSG);
	assert_int_equal(kv_env_errno(MDB_INVALID), -EBADMSG);
	assert_int_equal(kv_env_errno(MDB_VERSION_MISMATCH), -EBADMSG);
	assert_int_equal(kv_env_errno(MDB_INCOMPATIBLE), -EBADMSG);
	assert_int_equal(kv_env_errno(MDB_BAD_VALSIZE), -EBADMSG);
	assert_int_equal(kv_env_errno(EACCES), -EACCES);
	assert_int_equal(kv_env_errno(MDB_BAD_TXN), -EIO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(calls_that_do_less_are_made_again),
		STORE_TEST(only_a_small_regular_file_is_read),
		cmocka_unit_test(only_the_very_name_is_a_spaces),
		STORE_TEST(a_trailers_numbers_agree_or_it_is_none),
		cmocka_unit_test(a_record_fits_its_slot_or_is_none),
		STORE_TEST(a_store_files_numbers_are_possible_or_it_is_none),
		cmocka_unit_test(each_of_lmdbs_numbers_becomes_one_of_ours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
