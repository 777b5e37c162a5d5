/* SPDX-License-Identifier: Apache-2.0 */
/* test_stores.c - a store with a second directory: which of the two gets a block, by
 * free slots, queued bytes and speed; and failed writes to one of them. */
#include "tests/cache/faulty.h"
#include "tests/cache/small_store.h"

#include <dlfcn.h>

#define SLOT (KV_PAGE + 20480u) /* bytes of a slot of a block of BYTES */
#define FIRST 400u /* blocks saved before: they fill the first file, in STORE */

static char more[PATH_MAX]; /* second directory */

/* ---- an interposed fsync, which can fail below the second directory ---- */

static unsigned syncs_left; /* calls until one fails; 0: none fails */

int fsync(int fd)
{
	static int (*real)(int);

	if (!real)
		real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
	if (syncs_left && disk_is_below(fd, more) && --syncs_left == 0) {
		errno = EIO;
		return -1;
	}
	return real(fd);
}

static void save(struct small *s, unsigned from, unsigned to)
{
	for (unsigned n = from; n < to; n++)
		assert_int_equal(small_save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
}

static int set_up(void **state)
{
	struct small *s = malloc(sizeof(*s));

	small_new(s);
	must(realpath(s->path, more));
	strcat(more, ".more");
	s->config.more[0] = more;
	s->config.n_more = 1;
	s->config.ssd = 96 << 20;
	s->config.io = &disk_backend;
	s->config.io_retry = 5000000;
	small_must_open(s);
	save(s, 0, FIRST);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	int r;

	disk_behave();
	disk.us = disk.us_below = 0;
	r = small_tear_down(state);
	tree_remove(more);
	return r;
}

/* ---- free slots ---- */

#define OTHERS 100u

static void
a_free_slot_of_an_idle_directory_is_found_behind_many_others(void **state)
{
	struct small *s = *state;
	struct kv_ssd *ssd = &s->cache->ssd;
	struct kv_segfile others[OTHERS] = {0};
	struct kv_ssd_class *class;
	uint32_t file = 0, slot = 0;
	int r;

	kv_lock(s->cache);
	class = ssd->files[0]->class;
	for (unsigned i = 0; i < OTHERS; i++) {
		others[i].device = &ssd->devices[0];
		others[i].class = class;
		others[i].slots = 1;
		TAILQ_INSERT_HEAD(&class->files[0], &others[i], link);
	}
	ssd->devices[0].writing += 64 << 20;
	r = kv_extent_take(s->cache, s->space, SLOT, &file, &slot);
	ssd->devices[0].writing -= 64 << 20;
	for (unsigned i = 0; i < OTHERS; i++)
		TAILQ_REMOVE(&class->files[0], &others[i], link);
	if (r == 0)
		kv_extent_give_up_locked(s->cache, s->space,
					 kv_slot_id(file, slot));
	kv_unlock(s->cache);
	assert_int_equal(r, 0);
	assert_ptr_equal(kv_segfile_at(s->cache, file)->device,
			 &ssd->devices[1]);
}

/* ---- speed ---- */

#define QUICK_US 2000u
#define SLOW_US 40000u

static int set_up_unlike(void **state)
{
	disk.us = QUICK_US;
	disk.us_below = SLOW_US;
	disk.slow = more;
	return set_up(state);
}

static int set_up_alike(void **state)
{
	disk.us = disk.us_below = QUICK_US;
	disk.slow = more;
	return set_up(state);
}

/* Return how many of the blocks @from to @to are in the second directory. */
static unsigned count_more(struct small *s, unsigned from, unsigned to)
{
	unsigned there = 0;

	for (unsigned n = from; n < to; n++) {
		struct kv_block *block = small_get(s, n);

		kv_lock(s->cache);
		there += kv_device_of(s->cache, block) ==
			 &s->cache->ssd.devices[1];
		kv_unlock(s->cache);
		kv_block_put(s->cache, block);
	}
	return there;
}

static void a_slow_directory_gets_a_part_by_its_speed(void **state)
{
	struct small *s = *state;
	unsigned there;

	save(s, FIRST, FIRST + 200);
	save(s, FIRST + 200, FIRST + 500);
	there = count_more(s, FIRST + 200, FIRST + 500);
	assert_in_range(there, 1, 120);
}

static void single_blocks_go_to_the_quick_directory(void **state)
{
	struct small *s = *state;

	save(s, FIRST, FIRST + 200);
	small_save_durable(s, FIRST + 200, FIRST + 260, BYTES);
	assert_in_range(count_more(s, FIRST + 200, FIRST + 260), 0, 10);
}

static void directories_of_one_speed_get_equal_parts(void **state)
{
	struct small *s = *state;
	unsigned there;

	save(s, FIRST, FIRST + 200);
	save(s, FIRST + 200, FIRST + 500);
	there = count_more(s, FIRST + 200, FIRST + 500);
	assert_in_range(there, 90, 210);
}

static void a_directory_that_was_slow_once_is_used_again(void **state)
{
	struct small *s = *state;
	struct kv_device *device = &s->cache->ssd.devices[1];
	unsigned there;

	save(s, FIRST, FIRST + 200);
	while (small_busy(s))
		usleep(1000);
	kv_lock(s->cache);
	device->busy_ns += 1e12;
	device->since -= 11000000000; /* the last write ended 11 s ago */
	kv_unlock(s->cache);
	save(s, FIRST + 200, FIRST + 500);
	there = count_more(s, FIRST + 200, FIRST + 500);
	assert_true(there >= 60);
}

/* ---- failed writes ---- */

/* Let @n writes to the second directory fail with @error, those of at most @above
 * bytes apart, while blocks are saved there. */
static void fail_writes(struct small *s, unsigned n, int error, uint64_t above)
{
	kv_lock(s->cache);
	s->cache->ssd.devices[1].busy_ns =
		1; /* writes go there, so fast it is */
	kv_unlock(s->cache);
	disk_misbehave(FAULT_EIO, 1, n);
	disk.error = error;
	disk.only = KV_IO_WRITE;
	disk.above = above;
	disk.below = more;
	save(s, FIRST, FIRST + 20);
	while (small_busy(s))
		usleep(1000);
	assert_true(inject.failed > 0);
	assert_int_equal(small_count_durable(s, FIRST, 20), 20);
}

static void a_single_failed_write_is_repeated(void **state)
{
	struct small *s = *state;

	fail_writes(s, 1, EIO, KV_PAGE);
	assert_false(small_stats(s).ssd_degraded);
	assert_int_equal(small_stats(s).io_errors, 1);
	assert_int_equal(small_stats(s).bad_slots, 0);
	small_check(s);
}

static void a_directory_that_takes_no_write_fails(void **state)
{
	struct small *s = *state;

	fail_writes(s, UINT32_MAX / 2, EIO, 0);
	assert_string_equal(small_stats(s).ssd_state, "a directory failed");
}

static void a_directory_that_is_read_only_fails_at_once(void **state)
{
	struct small *s = *state;

	fail_writes(s, 1, EROFS, 0);
	assert_string_equal(small_stats(s).ssd_state, "a directory failed");
}

/* ---- blocks of a directory that failed ---- */

/* Return a block of the second directory that is also in memory. */
static unsigned one_there(struct small *s)
{
	unsigned n = 0;

	while (!count_more(s, n, n + 1))
		n++;
	return n;
}

/* Let the second directory fail, and wait until block @n is durable in STORE. */
static void fail_and_rewrite(struct small *s, unsigned n)
{
	fail_writes(s, 1, EROFS, 0);
	while (!small_durable(s, n) || count_more(s, n, n + 1))
		usleep(1000);
}

static void open_again(struct small *s)
{
	disk_behave();
	assert_int_equal(small_close(s), 0);
	small_must_open(s);
	assert_false(small_stats(s).ssd_degraded);
}

static void a_removed_block_stays_away_when_its_directory_is_back(void **state)
{
	struct small *s = *state;
	const unsigned n = one_there(s);

	fail_and_rewrite(s, n);
	assert_int_equal(small_remove_block(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	open_again(s);
	assert_null(small_get(s, n));
	assert_int_equal(small_view(s, n + 1, BYTES), 0);
	small_check(s);
}

static void so_does_one_that_was_not_yet_written_again(void **state)
{
	struct small *s = *state;
	const unsigned n = one_there(s);

	disk.us = 300000;
	kv_lock(s->cache);
	(void)kv_device_fail_locked(s->cache, &s->cache->ssd.devices[1],
				    -EROFS);
	kv_unlock(s->cache);
	while (small_durable(s, n))
		usleep(1000);
	assert_int_equal(small_remove_block(s, n), 0);
	disk.us = 0;
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	open_again(s);
	assert_null(small_get(s, n));
	small_check(s);
}

static void a_pin_of_a_block_that_was_written_again_stays(void **state)
{
	struct small *s = *state;
	const unsigned n = one_there(s);
	struct kv_block *block;

	fail_and_rewrite(s, n);
	block = small_get(s, n);
	assert_int_equal(kv_block_pin(s->cache, block, true), 0);
	assert_int_equal(kv_block_sync(s->cache, block), 0);
	kv_block_put(s->cache, block);
	open_again(s);
	block = small_get(s, n);
	assert_non_null(block);
	assert_true(kv_block_stat(s->cache, block).pinned);
	kv_block_put(s->cache, block);
	assert_int_equal(small_view(s, n, BYTES), 0);
	small_check(s);
}

/* ---- a directory that was away ---- */

static int no_memory(struct kv_ring *ring)
{
	(void)ring;
	return -ENOMEM;
}

static void run_in_more(const char *command)
{
	char all[2 * PATH_MAX];

	snprintf(all, sizeof(all), "cd %s/segments && %s", more, command);
	assert_int_equal(system(all), 0);
}

/* Remove a block in the second directory, then bring its file back as it was
 * before the removal.  Return the block's number. */
static unsigned remove_and_bring_back(struct small *s)
{
	unsigned n = 0;

	while (!count_more(s, n, n + 1))
		n++;
	assert_int_equal(small_close(s), 0);
	run_in_more("mkdir old && cp *.seg old");
	small_must_open(s);
	assert_int_equal(small_remove_block(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_close(s), 0);
	run_in_more("mv old/* . && rmdir old");
	return n;
}

/* Mount, lose the index, and look for block @n. */
static void must_be_swept(struct small *s, unsigned n)
{
	char path[128];

	small_must_open(s);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_close(s), 0);
	snprintf(path, sizeof(path), "%s/index/data.mdb", s->path);
	assert_int_equal(unlink(path), 0);
	small_must_open(s);
	assert_null(small_get(s, n));
}

static void what_a_failed_mount_did_not_sweep_is_swept_by_the_next(void **state)
{
	static const struct kv_ring_backend failing = {.start = no_memory};
	struct small *s = *state;
	const unsigned n = remove_and_bring_back(s);

	s->config.n_more = 0;
	small_must_open(s);
	assert_int_equal(small_close(s), 0);
	s->config.n_more = 1;
	s->config.io = &failing;
	assert_int_equal(small_open(s), -ENOMEM);
	s->config.io = &disk_backend;
	must_be_swept(s, n);
}

static void a_directory_whose_record_is_damaged_is_swept(void **state)
{
	struct small *s = *state;
	const unsigned n = remove_and_bring_back(s);

	run_in_more("echo damaged > store");
	must_be_swept(s, n);
}

/* The mount cannot sync the record of the directory, which the disk has. */
static void a_directory_that_fails_in_the_mount_is_swept_later(void **state)
{
	struct small *s = *state;
	unsigned n = 0;

	while (!count_more(s, n, n + 1))
		n++;
	assert_int_equal(small_close(s), 0);
	syncs_left = 4;
	small_must_open(s);
	assert_int_equal(syncs_left, 0);
	assert_true(small_stats(s).ssd_degraded);
	assert_int_equal(small_remove_block(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_close(s), 0);
	must_be_swept(s, n);
}

/* ---- slots that cannot be zeroed ---- */

/* Let @n_writes writes to the second directory fail while a block there is removed and
 * the removal is flushed.  Return the block's number. */
static unsigned fail_zeroing(struct small *s, unsigned n_writes, int status)
{
	unsigned n = 0;

	while (!count_more(s, n, n + 1))
		n++;
	disk_misbehave(FAULT_EIO, 1, n_writes);
	disk.only = KV_IO_WRITE;
	disk.below = more;
	assert_int_equal(small_remove_block(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), status);
	assert_int_equal(inject.failed, n_writes);
	assert_false(small_busy(s));
	assert_false(small_stats(s).ssd_degraded);
	return n;
}

static void a_flush_waits_until_a_slot_is_zeroed_again(void **state)
{
	struct small *s = *state;

	/* One try while the removed block is open, and one after that. */
	fail_zeroing(s, 2, 0);
	assert_int_equal(small_stats(s).bad_slots, 0);
	small_check(s);
}

/* The removed block may return after a lost index, so the flush fails, and the
 * next mount sweeps. */
static void a_slot_that_cannot_be_zeroed_is_not_used_again(void **state)
{
	struct small *s = *state;
	unsigned n;

	/* One try while the removed block is open, and three after that. */
	n = fail_zeroing(s, 4, -EIO);
	assert_int_equal(small_stats(s).bad_slots, 1);
	small_check(s);
	assert_int_equal(small_close(s), 0);
	must_be_swept(s, n);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_free_slot_of_an_idle_directory_is_found_behind_many_others,
			set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_slow_directory_gets_a_part_by_its_speed,
			set_up_unlike, tear_down),
		cmocka_unit_test_setup_teardown(
			single_blocks_go_to_the_quick_directory, set_up_unlike,
			tear_down),
		cmocka_unit_test_setup_teardown(
			directories_of_one_speed_get_equal_parts, set_up_alike,
			tear_down),
		cmocka_unit_test_setup_teardown(
			a_directory_that_was_slow_once_is_used_again,
			set_up_alike, tear_down),
		cmocka_unit_test_setup_teardown(
			a_single_failed_write_is_repeated, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_flush_waits_until_a_slot_is_zeroed_again, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			a_slot_that_cannot_be_zeroed_is_not_used_again, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			a_directory_that_takes_no_write_fails, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			a_directory_that_is_read_only_fails_at_once, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			a_removed_block_stays_away_when_its_directory_is_back,
			set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			so_does_one_that_was_not_yet_written_again, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			a_pin_of_a_block_that_was_written_again_stays, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			what_a_failed_mount_did_not_sweep_is_swept_by_the_next,
			set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_directory_whose_record_is_damaged_is_swept, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			a_directory_that_fails_in_the_mount_is_swept_later,
			set_up, tear_down),
	};

	alarm(100);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
