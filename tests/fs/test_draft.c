/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_draft.c - drafts, the files of the mount that are still being written:
 * their content, over a real cache without a store, and their names.
 *
 * OWNS      one cache for each test.
 *
 * LOCKING   none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <jansson.h>

#include "common/copy.h"
#include "fs/mount/mount.h"

#define FILE_BYTES 300000u
#define KEY_TEXT "ab000000000000000000000000000001"

struct fixture {
	struct kv_cache *cache;
	struct kv_space *space;
	struct kv_uploads *uploads;
	struct kv_key key;
	struct kv_account *account;
	uint8_t file[FILE_BYTES]; /* the file of a valid block */
};

static _Atomic bool sweeper_dawdles;

/* Interpose the clock: the sweeper is preempted after each look at it. */
int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
	int r = (int)syscall(SYS_clock_gettime, clock, ret_time);
	char name[16];

	if (sweeper_dawdles && prctl(PR_GET_NAME, name) == 0 &&
	    strcmp(name, "kvfs-sweep") == 0)
		usleep(20000);
	return r;
}

static unsigned parsed; /* headers */

/* Interpose jansson's parser, to count its calls. */
json_t *json_loadb(const char *text, size_t n, size_t flags,
		   json_error_t *ret_error)
{
	json_t *(*real)(const char *, size_t, size_t, json_error_t *);

	*(void **)&real = dlsym(RTLD_NEXT, "json_loadb");
	parsed++;
	return real(text, n, flags, ret_error);
}

/* Write to a draft as the mount does, which retries when there may be room. */
static int write_draft(struct kv_draft *draft, const void *data, size_t n,
		       uint64_t offset)
{
	int r;

	while ((r = kv_draft_write(draft, data, n, offset)) == -EBUSY)
		usleep(1000);
	return r;
}

static void make_file(uint8_t *file, uint64_t bytes)
{
	char header[200];
	uint64_t n = 128;

	memset(header, ' ', sizeof(header));
	n = (uint64_t)snprintf(header, sizeof(header),
			       "{\"kv\":{\"dtype\":\"U8\",\"shape\":[%u],"
			       "\"data_offsets\":[0,%u]}}",
			       (unsigned)(bytes - 136),
			       (unsigned)(bytes - 136));
	header[n] = ' ';
	n = 128;
	memcpy(file, &n, 8);
	memcpy(file + 8, header, 128);
	for (uint64_t i = 136; i < bytes; i++)
		file[i] = (uint8_t)(i * 7 + 1);
}

static int setup(void **state)
{
	struct kv_cache_config config = {.dram = 64u << 20,
					 .segment = 8u << 20,
					 .hugepages = KV_HUGE_OFF,
					 .evict = "lru"};
	struct fixture *f = calloc(1, sizeof(*f));
	char *why = NULL;

	if (kv_cache_open(&config, &f->cache, &why) < 0) {
		fprintf(stderr, "%s\n", why);
		return -1;
	}
	assert_int_equal(kv_space_create(f->cache, "s", 1, 1, 0700, &f->space),
			 0);
	assert_int_equal(kv_uploads_new(f->cache, &f->uploads), 0);
	f->account = kv_account_get(kv_cache_accounts(f->cache), 1001);
	assert_int_equal(kv_key_parse(KEY_TEXT, &f->key), 0);
	make_file(f->file, FILE_BYTES);
	*state = f;
	return 0;
}

static uint64_t heads(struct fixture *f)
{
	return kv_accounts_used(kv_cache_accounts(f->cache), KV_FINITE_MEMORY);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	kv_uploads_free(f->uploads);
	assert_int_equal(heads(f), 0);
	kv_account_put(f->account);
	kv_cache_close(f->cache);
	free(f);
	return 0;
}

static struct kv_draft *new_draft(struct fixture *f)
{
	struct kv_draft *draft;

	assert_int_equal(
		kv_draft_new(f->cache, f->space, &f->key, f->account, &draft),
		0);
	return draft;
}

static void what_is_no_safetensors_file_fails_and_goes_on_failing(void **state)
{
	struct fixture *f = *state;
	struct kv_draft *draft = new_draft(f);
	bool is_new;

	assert_int_equal(write_draft(draft, "not a file at all", 17, 0),
			 -EINVAL);
	assert_int_equal(write_draft(draft, f->file, 1000, 0), -EINVAL);
	assert_int_equal(kv_draft_check(draft), -EINVAL);
	assert_int_equal(kv_draft_seal(draft, 0, &is_new), -EINVAL);
	assert_int_equal(kv_draft_reset(draft), 0);
	assert_int_equal(kv_draft_check(draft), 0);
	assert_int_equal(write_draft(draft, f->file, FILE_BYTES, 0), 0);
	assert_int_equal(kv_draft_check(draft), 1);
	kv_draft_free(draft);
}

static void a_byte_past_the_end_is_too_big(void **state)
{
	struct fixture *f = *state;
	struct kv_draft *draft = new_draft(f);

	assert_int_equal(write_draft(draft, f->file, FILE_BYTES, 0), 0);
	assert_int_equal(write_draft(draft, "x", 1, FILE_BYTES), -EFBIG);
	assert_int_equal(kv_draft_check(draft), -EFBIG);
	kv_draft_reset(draft);
	assert_int_equal(write_draft(draft, "x", 1, INT64_MAX), -EFBIG);
	assert_int_equal(write_draft(draft, "x", 1, UINT64_MAX), -EFBIG);
	kv_draft_free(draft);
}

static void a_hole_never_seals(void **state)
{
	struct fixture *f = *state;
	struct kv_draft *draft = new_draft(f);
	bool is_new;

	write_draft(draft, f->file, 5000, 0);
	write_draft(draft, f->file + 5001, FILE_BYTES - 5001, 5001);
	assert_int_equal(kv_draft_seal(draft, 0, &is_new), -EINVAL);
	assert_int_equal(write_draft(draft, f->file + 5000, 1, 5000), 0);
	assert_int_equal(kv_draft_seal(draft, 0, &is_new), 1);
	assert_true(is_new);
	kv_draft_free(draft);
}

static void heads_are_bounded_by_their_users_share(void **state)
{
	struct fixture *f = *state;
	uint64_t total = kv_finite_total(KV_FINITE_MEMORY);
	struct kv_draft *drafts[128] = {0};
	uint64_t at = (UINT64_C(4) << 20) - 1;
	int r = 0;
	size_t n;

	/* Bytes of the tensors that arrive far behind the header wait in memory
	 * until the header is complete. */
	for (n = 0; n < KV_ARRAY_LEN(drafts) && r == 0; n++) {
		drafts[n] = new_draft(f);
		r = write_draft(drafts[n], "x", 1, at);
	}
	assert_int_equal(r, -ENOSPC);
	assert_in_range(heads(f), total / 3, total / 2);
	for (size_t i = 0; i < n; i++)
		kv_draft_free(drafts[i]);
	assert_int_equal(heads(f), 0);
}

static void
a_header_written_over_before_the_seal_is_looked_at_again(void **state)
{
	struct fixture *f = *state;
	struct kv_draft *draft = new_draft(f);
	bool is_new;

	write_draft(draft, f->file, FILE_BYTES, 0);
	write_draft(draft, "\1", 1, 0);
	assert_int_equal(kv_draft_seal(draft, 0, &is_new), -EINVAL);
	kv_draft_free(draft);
}

static void a_write_that_waits_for_the_rate_parses_its_header_once(void **state)
{
	struct fixture *f = *state;
	const struct kv_quota slow = {.rate_put = 1000}, none = {0};
	struct kv_draft *draft = new_draft(f), *first = new_draft(f);
	bool is_new;

	assert_int_equal(kv_space_set_quota(f->cache, f->space, NULL, &slow),
			 0);
	assert_int_equal(write_draft(first, f->file, 1000, 0), 0);
	parsed = 0;
	for (int i = 0; i < 100; i++)
		assert_int_equal(kv_draft_write(draft, f->file, 100000, 0),
				 -EAGAIN);
	assert_int_equal(parsed, 1);
	/* Another header, of a file that is shorter, replaces the first. */
	make_file(f->file, FILE_BYTES - 1);
	assert_int_equal(kv_draft_write(draft, f->file, 1000, 0), -EAGAIN);
	assert_int_equal(parsed, 2);
	assert_int_equal(kv_space_set_quota(f->cache, f->space, NULL, &none),
			 0);
	assert_int_equal(write_draft(draft, f->file, FILE_BYTES - 1, 0), 0);
	assert_int_equal(parsed, 2);
	assert_int_equal(kv_draft_seal(draft, 0, &is_new), 1);
	kv_draft_free(draft);
	kv_draft_free(first);
}

static void order_and_size_of_writes_do_not_matter(void **state)
{
	static const size_t steps[] = {1 << 20, 65536, 4096, 1000, 7777};
	struct fixture *f = *state;
	struct kv_digest want = kv_digest_of(f->file, FILE_BYTES), digest;
	struct kv_block *block;
	struct kv_meta meta;
	bool is_new;

	for (size_t i = 0; i < KV_ARRAY_LEN(steps) * 2; i++) {
		size_t step = steps[i / 2], n = FILE_BYTES / step + 1;
		struct kv_draft *draft = new_draft(f);

		for (size_t k = 0; k < n; k++) {
			size_t at = (i % 2 ? n - 1 - k : k) * step;

			assert_int_equal(
				write_draft(draft, f->file + at,
					    KV_MIN(step, FILE_BYTES - at), at),
				0);
		}
		assert_int_equal(kv_draft_size(draft), FILE_BYTES);
		assert_int_equal(kv_draft_seal(draft, 99, &is_new), 1);
		assert_int_equal(is_new, i == 0);
		block = kv_draft_block(draft);
		assert_non_null(block);
		assert_int_equal(kv_block_meta(f->cache, block, &meta, &digest),
				 0);
		assert_memory_equal(&digest, &want, sizeof(want));
		assert_int_equal(meta.mtime_ns, 99);
		kv_block_put(f->cache, block);
		kv_draft_free(draft);
	}
}

static void other_bytes_of_a_sealed_key_are_refused(void **state)
{
	struct fixture *f = *state;
	struct kv_draft *draft = new_draft(f), *other = new_draft(f);
	bool is_new;

	write_draft(draft, f->file, FILE_BYTES, 0);
	assert_int_equal(kv_draft_seal(draft, 0, &is_new), 1);
	f->file[FILE_BYTES - 1] ^= 1;
	write_draft(other, f->file, FILE_BYTES, 0);
	assert_int_equal(kv_draft_seal(other, 0, &is_new), -EEXIST);
	assert_int_equal(write_draft(draft, "x", 1, 0), -EPERM);
	assert_int_equal(kv_draft_reset(draft), -EPERM);
	kv_draft_free(draft);
	kv_draft_free(other);
}

static void what_was_written_reads_back_before_and_after_the_seal(void **state)
{
	struct fixture *f = *state;
	struct kv_draft *draft = new_draft(f);
	uint8_t got[1000];
	bool is_new;

	write_draft(draft, f->file, 100, 0);
	write_draft(draft, f->file + 200, 100, 200);
	memset(got, 0xff, sizeof(got));
	assert_int_equal(kv_draft_read(draft, got, 1000, 50), 250);
	assert_memory_equal(got, f->file + 50, 50);
	assert_int_equal(got[50], 0); /* the hole in the file reads as zeros */
	assert_memory_equal(got + 150, f->file + 200, 100);
	write_draft(draft, f->file, FILE_BYTES, 0);
	assert_int_equal(kv_draft_read(draft, got, 1000, FILE_BYTES - 10), 10);
	kv_draft_seal(draft, 0, &is_new);
	assert_int_equal(kv_draft_read(draft, got, 1000, 5000), 1000);
	assert_memory_equal(got, f->file + 5000, 1000);
	assert_int_equal(kv_draft_read(draft, got, 1000, FILE_BYTES), 0);
	kv_draft_free(draft);
}

static struct kv_upload *create(struct fixture *f, const char *text, uid_t uid,
				int expected)
{
	struct fuse_ctx ctx = {.uid = uid, .gid = uid, .pid = getpid()};
	struct kv_upload *upload = NULL;
	struct kv_name name;

	assert_int_equal(kv_name_parse(text, 0xab, &name), 0);
	assert_int_equal(kv_upload_create(f->uploads, f->space, text, &name,
					  &ctx, 0644, &upload),
			 expected);
	return upload;
}

static void an_upload_resolves_for_its_maker_alone(void **state)
{
	struct fixture *f = *state;
	struct kv_upload *mine = create(f, KEY_TEXT, 7, 0), *found;

	create(f, KEY_TEXT, 7, -EEXIST);
	assert_int_equal(
		kv_upload_find(f->uploads, f->space, KEY_TEXT, 8, &found),
		-ENOENT);
	assert_int_equal(
		kv_upload_find(f->uploads, f->space, KEY_TEXT, 7, &found), 0);
	assert_ptr_equal(found, mine);
	kv_upload_put(found);
	kv_upload_closed(create(f, KEY_TEXT, 8, 0), false);
	kv_upload_closed(mine, false);
	assert_int_equal(
		kv_upload_find(f->uploads, f->space, KEY_TEXT, 7, &found),
		-ENOENT);
}

static void a_restart_takes_the_name_and_leaves_the_old_bytes(void **state)
{
	struct fixture *f = *state;
	struct kv_upload *old = create(f, KEY_TEXT, 7, 0), *fresh, *found;
	struct fuse_ctx ctx = {.uid = 7, .gid = 7, .pid = getpid()};
	bool is_new;

	write_draft(old->draft, f->file, 1000, 0);
	assert_int_equal(kv_upload_restart(old, &ctx, &fresh), 0);
	assert_int_equal(kv_upload_get(f->uploads, old->serial, &found), 0);
	assert_ptr_equal(found, fresh);
	kv_upload_put(found);
	assert_int_equal(kv_draft_size(fresh->draft), 0);
	write_draft(old->draft, f->file + 1000, FILE_BYTES - 1000, 1000);
	assert_int_equal(kv_upload_seal(old, &is_new), 1);
	assert_int_equal(kv_upload_restart(old, &ctx, &found), -ESTALE);
	kv_upload_closed(old, false);
	kv_upload_closed(fresh, false);
}

static void an_unlinked_upload_seals_nothing(void **state)
{
	struct fixture *f = *state;
	struct kv_upload *upload = create(f, KEY_TEXT, 7, 0);
	struct kv_block *block;
	bool is_new;

	write_draft(upload->draft, f->file, FILE_BYTES, 0);
	kv_upload_unlink(upload);
	assert_int_equal(kv_upload_seal(upload, &is_new), 0);
	assert_int_equal(kv_block_get(f->cache, f->space, &f->key, &block),
			 -ENOENT);
	kv_upload_closed(upload, false);
}

static void only_a_complete_staging_file_outlives_its_close(void **state)
{
	static const char temp[] = "." KEY_TEXT ".x";
	struct fixture *f = *state;
	struct kv_upload *upload = create(f, temp, 7, 0);
	bool is_new;

	write_draft(upload->draft, f->file, 1000, 0);
	kv_upload_closed(upload, false);
	assert_int_equal(kv_upload_find(f->uploads, f->space, temp, 7, &upload),
			 -ENOENT);
	upload = create(f, temp, 7, 0);
	write_draft(upload->draft, f->file, FILE_BYTES, 0);
	kv_upload_closed(upload, false);
	assert_int_equal(kv_upload_find(f->uploads, f->space, temp, 7, &upload),
			 0);
	assert_int_equal(kv_upload_seal(upload, &is_new), 1);
	kv_upload_unlink(upload);
	kv_upload_put(upload);
}

static void a_file_that_is_used_while_the_sweeper_looks_stays(void **state)
{
	const char *temp = "." KEY_TEXT ".part";
	struct fixture *f = *state;
	struct kv_upload *upload = create(f, temp, 7, 0), *found;
	const uint64_t serial = upload->serial, since = kv_now_ns();

	kv_upload_closed(upload, true);
	sweeper_dawdles = true;
	while (kv_now_ns() - since < UINT64_C(2500000000)) {
		assert_int_equal(kv_upload_get(f->uploads, serial, &found), 0);
		kv_upload_put(found);
		usleep(1000);
	}
	sweeper_dawdles = false;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_is_no_safetensors_file_fails_and_goes_on_failing),
		TEST(a_byte_past_the_end_is_too_big),
		TEST(a_hole_never_seals),
		TEST(heads_are_bounded_by_their_users_share),
		TEST(a_header_written_over_before_the_seal_is_looked_at_again),
		TEST(a_write_that_waits_for_the_rate_parses_its_header_once),
		TEST(order_and_size_of_writes_do_not_matter),
		TEST(other_bytes_of_a_sealed_key_are_refused),
		TEST(what_was_written_reads_back_before_and_after_the_seal),
		TEST(an_upload_resolves_for_its_maker_alone),
		TEST(a_restart_takes_the_name_and_leaves_the_old_bytes),
		TEST(an_unlinked_upload_seals_nothing),
		TEST(only_a_complete_staging_file_outlives_its_close),
		TEST(a_file_that_is_used_while_the_sweeper_looks_stays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
