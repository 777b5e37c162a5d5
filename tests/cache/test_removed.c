/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_removed.c - tombstones of blocks that users removed from shared spaces:
 * the newest ones are kept from mount to mount, until the block is saved again.
 *
 * OWNS      a small store for each test.
 *
 * LOCKING   none of its own.
 */
#include "cache/ssd/ssd.h"
#include <dlfcn.h>
#include <limits.h>
#include <sys/stat.h>

#include "tests/cache/small_store.h"

/* number of tombstones that a store of 32 MiB can keep */
#define PLACES ((32u << 20) / 64 / 64)

static int set_up(void **state)
{
	struct small *s = malloc(sizeof(*s));

	small_new(s);
	small_must_open(s);
	assert_int_equal(kv_space_set_shared(s->cache, s->space, true), 0);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct small *s = *state;

	if (s->cache) {
		kv_space_put(s->space);
		assert_int_equal(small_close(s), 0);
	}
	small_remove(s);
	free(s->why);
	free(s);
	return 0;
}

static void reopen(struct small *s)
{
	kv_space_put(s->space);
	assert_int_equal(small_close(s), 0);
	small_must_open(s);
}

static bool is_removed(struct small *s, unsigned n)
{
	const struct kv_key key = small_key(n);
	bool is;

	kv_lock(s->cache);
	is = kv_is_removed_locked(s->cache, s->space, &key);
	kv_unlock(s->cache);
	return is;
}

static void add(struct small *s, unsigned n)
{
	const struct kv_key key = small_key(n);

	kv_lock(s->cache);
	kv_removed_add_locked(s->cache, s->space, &key);
	kv_unlock(s->cache);
}

static off_t file_bytes(struct small *s)
{
	char path[128];
	struct stat st;

	snprintf(path, sizeof(path), "%s/removed", s->path);
	return stat(path, &st) < 0 ? -errno : st.st_size;
}

static void test_it_is_remembered_from_mount_to_mount(void **state)
{
	struct small *s = *state;

	for (unsigned n = 0; n < 20; n++)
		assert_int_equal(small_save(s, n), 0);
	for (unsigned n = 0; n < 10; n++)
		assert_int_equal(small_remove_block(s, n), 0);
	for (unsigned mount = 0; mount < 3; mount++) {
		for (unsigned n = 0; n < 20; n++)
			assert_int_equal(is_removed(s, n), n < 10);
		reopen(s);
	}
	/* A save of the block removes its tombstone, also after the next
	 * mount. */
	assert_int_equal(small_save(s, 3), 0);
	assert_false(is_removed(s, 3));
	reopen(s);
	assert_false(is_removed(s, 3));
	assert_true(is_removed(s, 4));
}

static void test_of_spaces_that_are_not_shared_nothing_is_kept(void **state)
{
	struct small *s = *state;

	assert_int_equal(kv_space_set_shared(s->cache, s->space, false), 0);
	assert_int_equal(small_save(s, 1), 0);
	assert_int_equal(small_remove_block(s, 1), 0);
	assert_false(is_removed(s, 1));
	reopen(s);
	assert_int_equal(file_bytes(s), -ENOENT);
}

static void test_what_others_bring_must_not_have_been_removed(void **state)
{
	struct small *s = *state;
	const struct kv_key key = small_key(1);
	struct kv_meta meta = {.tokens = 16};
	struct kv_digest digest = {{0}};
	struct kv_fill *fill;

	assert_int_equal(small_save(s, 1), 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(
			kv_fill_begin(s->cache, s->space, NULL, BYTES, &fill),
			0);
		fill->fetched = true;
		if (i == 0)
			assert_int_equal(small_remove_block(s, 1), 0);
		assert_int_equal(
			kv_fill_seal(s->cache, fill, &key, &meta, 8, &digest),
			-ESTALE);
		assert_int_equal(small_view(s, 1, BYTES), -ENOENT);
		assert_true(is_removed(s, 1));
	}
}

static void test_who_clears_a_space_removes_its_blocks(void **state)
{
	struct small *s = *state;
	struct kv_clear *clear;
	struct kv_block *open;

	for (unsigned n = 0; n < 300; n++)
		assert_int_equal(small_save(s, n), 0);
	open = small_get(s, 7);
	assert_int_equal(kv_clear_begin(s->cache, s->space, &clear), 0);
	while (kv_clear_some(s->cache, clear) > 0)
		;
	kv_clear_end(clear);
	kv_block_put(s->cache, open);
	for (unsigned n = 0; n < 300; n++)
		assert_true(is_removed(s, n));
}

static void test_the_newest_are_remembered(void **state)
{
	struct small *s = *state;
	const unsigned all = PLACES + 100;

	for (unsigned n = 0; n < all; n++)
		add(s, n);
	for (unsigned mount = 0; mount < 2; mount++) {
		for (unsigned n = 0; n < all; n++)
			assert_int_equal(is_removed(s, n), n >= 100);
		reopen(s);
	}
	assert_int_equal(file_bytes(s), PLACES * 64);
	/* If the file of tombstones is full, new ones replace the oldest
	 * ones. */
	add(s, all);
	for (unsigned n = 0; n <= all; n++)
		assert_int_equal(is_removed(s, n), n >= 101);
}

/* With a smaller cap the file keeps fewer tombstones. */
static void test_a_store_may_become_smaller_and_larger(void **state)
{
	struct small *s = *state;
	unsigned left = 0;

	for (unsigned n = 0; n < PLACES; n++)
		add(s, n);
	s->config.ssd = 24 << 20;
	reopen(s);
	for (unsigned n = 0; n < PLACES; n++)
		left += is_removed(s, n);
	assert_int_equal(left, PLACES / 4 * 3);
	assert_int_equal(file_bytes(s), PLACES / 4 * 3 * 64);
	s->config.ssd = 64 << 20;
	reopen(s);
	for (unsigned n = 0; n < PLACES; n++)
		add(s, 100000 + n);
	reopen(s);
	for (unsigned n = 0; n < PLACES; n++)
		assert_true(is_removed(s, 100000 + n));
}

static void test_places_that_are_damaged_are_passed_over(void **state)
{
	struct small *s = *state;
	char path[128];
	int fd;

	for (unsigned n = 0; n < 100; n++)
		add(s, n);
	kv_space_put(s->space);
	assert_int_equal(small_close(s), 0);
	snprintf(path, sizeof(path), "%s/removed", s->path);
	fd = open(path, O_RDWR);
	for (unsigned n = 0; n < 50; n++)
		assert_int_equal(pwrite(fd, "x", 1, n * 64 + n), 1);
	assert_int_equal(ftruncate(fd, 90 * 64 + 5), 0);
	close(fd);
	small_must_open(s);
	for (unsigned n = 0; n < 100; n++)
		assert_int_equal(is_removed(s, n), n >= 50 && n < 90);
	add(s, 5);
	reopen(s);
	assert_true(is_removed(s, 5));
}

/* ---- a filesystem on which calls fail ---- */

enum { NOTHING, WRITE, SYNC };
/* kind of call that fails on the file STORE/removed */
static _Atomic int failing;

static bool fails(int fd, int what)
{
	char link[64], name[PATH_MAX];
	ssize_t n;

	if (failing != what)
		return false;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, name, sizeof(name) - 1);
	name[KV_MAX(n, 0)] = 0;
	return strstr(name, "/removed");
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
	static ssize_t (*real)(int, const void *, size_t, off_t);

	if (!real)
		real = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(
			RTLD_NEXT, "pwrite");
	if (!fails(fd, WRITE))
		return real(fd, data, n, offset);
	errno = ENOSPC;
	return -1;
}

int fdatasync(int fd)
{
	static int (*real)(int);

	if (!real)
		real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	if (!fails(fd, SYNC))
		return real(fd);
	errno = EIO;
	return -1;
}

static void test_a_failed_write_fails_the_flush(void **state)
{
	struct small *s = *state;
	struct kv_space *other;

	assert_int_equal(kv_space_create(s->cache, "o", 0, 0, 0755, &other), 0);
	for (unsigned n = 0; n < 3; n++)
		assert_int_equal(small_save(s, n), 0);
	for (unsigned i = 0; i < 2; i++) {
		const int error = i == 0 ? -ENOSPC : -EIO;

		failing = i == 0 ? WRITE : SYNC;
		assert_int_equal(kv_space_sync(s->cache, s->space), 0);
		assert_int_equal(small_remove_block(s, i), 0);
		assert_int_equal(kv_space_sync(s->cache, s->space), error);
		assert_int_equal(kv_space_sync(s->cache, s->space), error);
		assert_int_equal(kv_space_sync(s->cache, other), 0);
		failing = NOTHING;
		assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	}
	assert_int_equal(small_remove_block(s, 2), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	kv_space_put(other);
	reopen(s);
	for (unsigned n = 0; n < 3; n++)
		assert_true(is_removed(s, n));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_it_is_remembered_from_mount_to_mount, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			test_of_spaces_that_are_not_shared_nothing_is_kept,
			set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_what_others_bring_must_not_have_been_removed,
			set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_who_clears_a_space_removes_its_blocks, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(test_the_newest_are_remembered,
						set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_a_store_may_become_smaller_and_larger, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			test_places_that_are_damaged_are_passed_over, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			test_a_failed_write_fails_the_flush, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
