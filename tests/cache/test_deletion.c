/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_deletion.c - removed blocks never return, and delay no saves or flushes
 * of others: neither during their deletion nor after a crash in its middle.
 *
 * OWNS      a cache on a small store for each test.
 *
 * LOCKING   none; `hold` and `held` are atomic.
 */
#include "cache/ssd/ssd.h"
#include "small_store.h"

#include <dlfcn.h>

#define MANY 300u
#define TINY 4096u
#define LARGE 300000u
#define FULL 4096u /* so many blocks fill all files */

/* ---- interposed calls: zeroing and scanning of slots can be held up ---- */

static _Atomic bool hold, held;

/* the thread that mounts the store; its calls are never held up */
static pthread_t mounter;

/* numbers of the next reads, and writes of segment files, that fail with EIO */
static _Atomic int reads_fail, writes_fail;

static bool is_segfile(int fd)
{
	char link[64], path[4096] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	return readlink(link, path, sizeof(path) - 1) > 0 &&
	       strstr(path, ".seg");
}

static void wait_here(void)
{
	while (hold && !pthread_equal(pthread_self(), mounter)) {
		held = true;
		usleep(1000);
	}
}

int fallocate(int fd, int mode, off_t offset, off_t len)
{
	static int (*real)(int, int, off_t, off_t);

	if (!real)
		real = (int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT,
							      "fallocate");
	/* the store allocates its files and memory by fallocate() with mode
	 * 0 */
	if (mode != 0 && writes_fail > 0) {
		errno = EOPNOTSUPP;
		return -1;
	}
	if (mode != 0)
		wait_here();
	return real(fd, mode, offset, len);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
	static ssize_t (*real)(int, const void *, size_t, off_t);

	if (!real)
		real = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(
			RTLD_NEXT, "pwrite");
	if (writes_fail > 0 && is_segfile(fd) && writes_fail-- > 0) {
		errno = EIO;
		return -1;
	}
	return real(fd, data, n, offset);
}

ssize_t pread(int fd, void *data, size_t n, off_t offset)
{
	static ssize_t (*real)(int, void *, size_t, off_t);

	if (!real)
		real = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT,
								     "pread");
	wait_here();
	if (reads_fail > 0 && !pthread_equal(pthread_self(), mounter) &&
	    reads_fail-- > 0) {
		errno = EIO;
		return -1;
	}
	return real(fd, data, n, offset);
}

/* ---- the store of a test, and its blocks ---- */

static int set_up(void **state)
{
	struct small *s = calloc(1, sizeof(*s));

	hold = held = false;
	reads_fail = writes_fail = 0;
	mounter = pthread_self();
	small_new(s);
	small_must_open(s);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	hold = false;
	return small_tear_down(state);
}

/* Let the committer delete at most @n records in a transaction. */
static void record_some(struct small *s, uint32_t n)
{
	kv_lock(s->cache);
	s->cache->ssd.deletions.budget = n;
	kv_unlock(s->cache);
}

/* Close the cache, and replace the store by a copy of the mounted store, as
 * SIGKILL would leave it. */
static void crash(struct small *s)
{
	char copy[72], command[200];

	snprintf(copy, sizeof(copy), "%s.copy", s->path);
	snprintf(command, sizeof(command), "cp -a --sparse=always %s %s",
		 s->path, copy);
	assert_int_equal(system(command), 0);
	hold = false;
	record_some(s, 32);
	small_close(s);
	small_remove(s);
	assert_int_equal(rename(copy, s->path), 0);
}

static void save_many(struct small *s)
{
	for (unsigned n = 0; n < MANY; n++)
		assert_int_equal(small_save_seed(s, n, n, TINY), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
}

static struct kv_space *other_space(struct small *s)
{
	struct kv_space *space = kv_space_find(s->cache, "other");

	if (!space)
		assert_int_equal(
			kv_space_create(s->cache, "other", 0, 0, 0755, &space),
			0);
	return space;
}

/* Save block @n of @space, and wait until it is durable. */
static void save_durably(struct small *s, struct kv_space *space, unsigned n)
{
	struct kv_space *own = s->space;
	struct kv_block *block;

	s->space = space;
	assert_int_equal(small_save_seed(s, n, n, TINY), 0);
	block = small_get(s, n);
	assert_non_null(block);
	assert_int_equal(kv_block_sync(s->cache, block), 0);
	kv_block_put(s->cache, block);
	s->space = own;
}

static unsigned present(struct small *s)
{
	unsigned n = 0;

	for (unsigned i = 0; i < MANY; i++)
		n += small_view(s, i, TINY) == 0;
	return n;
}

struct waiting {
	struct kv_flush flush;
	int status;
	_Atomic bool over;
};

static void over(struct kv_flush *flush, int status)
{
	struct waiting *waiting = (struct waiting *)flush;

	waiting->status = status;
	waiting->over = true;
}

static void wait_until_held(void)
{
	while (!held)
		usleep(1000);
}

static void others_do_not_wait_for_what_a_space_deletes(void **state)
{
	struct small *s = *state;
	struct kv_space *other = other_space(s);
	struct waiting waiting = {.flush.done = over};

	save_many(s);
	hold = true;
	assert_int_equal(kv_space_clear(s->cache, s->space), 0);
	kv_flush_submit(s->cache, s->space, &waiting.flush);
	wait_until_held();
	save_durably(s, other, 1);
	assert_int_equal(kv_space_sync(s->cache, other), 0);
	assert_false(waiting.over);
	hold = false;
	while (!waiting.over)
		usleep(1000);
	assert_int_equal(waiting.status, 0);
	assert_int_equal(present(s), 0);
	while (small_busy(s))
		usleep(1000);
	small_check(s);
}

/* Save block 7 again while the deletion of its removed version is held up. */
static void save_again_before_it_is_deleted(struct small *s)
{
	struct kv_block *block;

	save_many(s);
	record_some(s, 0);
	assert_int_equal(small_remove_block(s, 7), 0);
	assert_int_equal(small_save_seed(s, 7, 7007, TINY), 0);
	block = small_get(s, 7);
	assert_int_equal(kv_block_sync(s->cache, block), 0);
	kv_block_put(s->cache, block);
}

static uint8_t first_byte(struct small *s, unsigned n)
{
	struct kv_block *block = small_get(s, n);
	struct kv_view view;
	uint8_t byte;

	assert_non_null(block);
	assert_int_equal(kv_view_get(s->cache, block, KV_VIEW_WAIT, &view), 0);
	byte = view.data[0];
	kv_view_put(s->cache, &view);
	kv_block_put(s->cache, block);
	return byte;
}

static void of_two_records_of_a_key_the_later_one_counts(void **state)
{
	struct small *s = *state;
	uint8_t later[8];

	small_content(later, sizeof(later), 7007);
	save_again_before_it_is_deleted(s);
	crash(s);
	small_must_open(s);
	assert_int_equal(first_byte(s, 7), later[0]);
	/* When the later block is removed, the older block of the same key must
	 * not reappear. */
	assert_int_equal(small_remove_block(s, 7), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	while (small_busy(s))
		usleep(1000);
	small_check(s);
	crash(s);
	small_must_open(s);
	assert_null(small_get(s, 7));
	assert_int_equal(small_close(s), 0);
	small_must_open(s);
	assert_null(small_get(s, 7));
	assert_int_equal(present(s), MANY - 1);
}

static void a_read_only_mount_sees_the_later_of_two(void **state)
{
	struct small *s = *state;
	uint8_t later[8];

	small_content(later, sizeof(later), 7007);
	save_again_before_it_is_deleted(s);
	crash(s);
	s->config.read_only = true;
	small_must_open(s);
	assert_int_equal(first_byte(s, 7), later[0]);
	assert_int_equal(small_close(s), 0);
	s->config.read_only = false;
	small_must_open(s);
	assert_int_equal(first_byte(s, 7), later[0]);
}

static void a_clear_spares_what_is_saved_after_it_began(void **state)
{
	struct small *s = *state;
	struct kv_clear *clear;
	int r;

	save_many(s);
	assert_int_equal(kv_clear_begin(s->cache, s->space, &clear), 0);
	assert_int_equal(small_save_seed(s, MANY + 1, MANY + 1, TINY), 0);
	do
		r = kv_clear_some(s->cache, clear);
	while (r > 0);
	assert_int_equal(r, 0);
	kv_clear_end(clear);
	assert_int_equal(present(s), 0);
	assert_int_equal(small_view(s, MANY + 1, TINY), 0);
}

static void an_open_block_can_be_read_after_a_clear(void **state)
{
	struct small *s = *state;
	struct kv_block *block;
	struct kv_view view;
	uint8_t want[TINY];

	save_many(s);
	assert_int_equal(small_demote(s, 5), 0);
	block = small_get(s, 5);
	assert_int_equal(kv_space_clear(s->cache, s->space), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	small_content(want, sizeof(want), 5);
	assert_int_equal(kv_view_get(s->cache, block, KV_VIEW_WAIT, &view), 0);
	assert_memory_equal(view.data, want, sizeof(want));
	kv_view_put(s->cache, &view);
	kv_block_put(s->cache, block);
	assert_null(small_get(s, 5));
}

static uint64_t deletions(struct small *s)
{
	uint64_t n;

	kv_lock(s->cache);
	n = s->cache->ssd.deletions.n;
	kv_unlock(s->cache);
	return n;
}

static void deletions_collect_until_somebody_waits(void **state)
{
	struct small *s = *state;
	uint64_t begun, n;

	save_many(s);
	begun = kv_now_ns();
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(small_remove_block(s, i), 0);
	usleep(300000);
	n = deletions(s);
	if (kv_now_ns() - begun <
	    900000000u) /* check only if the machine was not busy */
		assert_true(n >= 10);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(deletions(s), 0);
	/* Removed blocks are soon deleted from SSD even if no caller
	 * flushes. */
	assert_int_equal(small_remove_block(s, 10), 0);
	while (deletions(s) > 0)
		usleep(10000);
	small_check(s);
}

static void a_pin_does_not_wait_for_deletions_to_collect(void **state)
{
	struct small *s = *state;
	uint64_t took = UINT64_MAX;

	save_many(s);
	/* Measure up to three times: on a busy machine any of them may be
	 * slow. */
	for (unsigned try = 0; try < 3 && took > 900000000u; try++) {
		struct kv_block *block = small_get(s, 100 + try);
		const uint64_t begun = kv_now_ns();

		assert_int_equal(small_remove_block(s, try), 0);
		usleep(20000);
		assert_int_equal(kv_block_pin(s->cache, block, true), 0);
		while (small_busy(s))
			usleep(1000);
		took = kv_now_ns() - begun;
		kv_block_put(s->cache, block);
	}
	assert_true(took < 900000000u);
}

static void a_removal_wakes_nobody_while_a_batch_is_in_hand(void **state)
{
	struct small *s = *state;
	bool noted = true;

	save_many(s);
	hold = true;
	assert_int_equal(kv_space_clear(s->cache, s->space), 0);
	wait_until_held();
	save_durably(s, s->space, 1);
	while (noted) { /* wait until the committer has no work */
		usleep(1000);
		kv_lock(s->cache);
		noted = s->cache->ssd.noted;
		kv_unlock(s->cache);
	}
	assert_int_equal(small_remove_block(s, 1), 0);
	kv_lock(s->cache);
	assert_false(s->cache->ssd.noted);
	kv_unlock(s->cache);
	hold = false;
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(deletions(s), 0);
}

/* ---- removed blocks after a crash ---- */

/* Flush while the sweep is held up, then let it go on. */
static int flush_during_sweep(struct small *s)
{
	struct waiting waiting = {.flush.done = over};

	kv_flush_submit(s->cache, s->space, &waiting.flush);
	usleep(50000);
	assert_false(waiting.over);
	hold = false;
	while (!waiting.over)
		usleep(1000);
	return waiting.status;
}

/* The index is rebuilt from the prologues on SSD: no block may be found. */
static void lose_index(struct small *s)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/index/data.mdb", s->path);
	assert_int_equal(unlink(path), 0);
	small_must_open(s);
	assert_int_equal(present(s), 0);
}

static void the_first_save_after_a_crash_waits_for_no_sweep(void **state)
{
	struct small *s = *state;

	save_many(s);
	assert_int_equal(kv_space_clear(s->cache, s->space), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	save_durably(s, s->space, 1);
	crash(s);
	hold = true;
	small_must_open(s);
	wait_until_held();
	save_durably(s, other_space(s), 2);
	/* A flush waits for the sweep: unswept slots may hold an older copy of
	 * a removed block. */
	assert_int_equal(small_remove_block(s, 1), 0);
	assert_int_equal(flush_during_sweep(s), 0);
}

/* After a crash, free slots hold prologues of removed blocks: these blocks must
 * not return when the slots are reused. */
static void what_a_crash_left_is_swept_before_its_slot_is_taken(void **state)
{
	struct small *s = *state;

	save_many(s);
	hold = true; /* hold up the deletion before it zeroes prologues */
	assert_int_equal(kv_space_clear(s->cache, s->space), 0);
	wait_until_held();
	crash(s);
	small_must_open(s);
	assert_int_equal(present(s), 0);
	save_durably(s, s->space, 3);
	assert_int_equal(small_remove_block(s, 3), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	crash(s);
	lose_index(s);
}

/* Wait until the records of all removed blocks are deleted. */
static void wait_until_recorded(struct small *s)
{
	bool over = false;

	while (!over) {
		usleep(1000);
		kv_lock(s->cache);
		over = TAILQ_EMPTY(&s->cache->ssd.deletions.to_record);
		kv_unlock(s->cache);
	}
}

/* Crash between the deletion of records and the zeroing of prologues, mount, and
 * let the sweep begin. */
static void begin_sweep_after_crash(struct small *s)
{
	save_many(s);
	hold = true;
	assert_int_equal(kv_space_clear(s->cache, s->space), 0);
	wait_until_held();
	wait_until_recorded(s);
	crash(s);
	hold = true;
	held = false;
	small_must_open(s);
	wait_until_held();
	assert_int_equal(present(s), 0);
}

/* A block that is evicted from SSD only is written again while the deletion of its
 * former record waits for other deletions of its space. */
static void a_pin_counts_beside_the_record_of_a_former_slot(void **state)
{
	struct small *s = *state;
	struct kv_block *block;

	save_many(s);
	hold = true;
	kv_lock(s->cache);
	for (unsigned n = 0; n < 20; n++)
		kv_ssd_evict_own_locked(s->cache, s->space);
	kv_unlock(s->cache);
	wait_until_held();
	for (bool more = true; more && small_durable(s, 100);) {
		kv_lock(s->cache);
		more = kv_ssd_evict_own_locked(s->cache, s->space);
		kv_unlock(s->cache);
	}
	assert_false(small_durable(s, 100));
	block = small_get(s, 100);
	assert_non_null(block);
	assert_int_equal(kv_block_pin(s->cache, block, true), 0);
	assert_int_equal(kv_block_sync(s->cache, block), 0);
	kv_block_put(s->cache, block);
	crash(s);
	small_must_open(s);
	block = small_get(s, 100);
	assert_non_null(block);
	assert_true(kv_block_stat(s->cache, block).pinned);
	kv_block_put(s->cache, block);
	assert_int_equal(small_view(s, 100, TINY), 0);
	while (small_busy(s))
		usleep(1000);
	small_check(s);
}

/* A flush of the next mount makes earlier removals durable. */
static void a_flush_after_a_crash_covers_earlier_removals(void **state)
{
	struct small *s = *state;

	begin_sweep_after_crash(s);
	assert_int_equal(flush_during_sweep(s), 0);
	crash(s);
	lose_index(s);
}

static void a_sweep_that_fails_fails_the_flush_and_is_done_again(void **state)
{
	struct small *s = *state;

	begin_sweep_after_crash(s);
	writes_fail = 1;
	assert_int_equal(flush_during_sweep(s), -EIO);
	assert_int_equal(writes_fail, 0);
	assert_int_equal(small_close(s), 0);
	small_must_open(s);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_close(s), 0);
	lose_index(s);
}

static void the_sweep_zeroes_what_it_cannot_read(void **state)
{
	struct small *s = *state;

	begin_sweep_after_crash(s);
	reads_fail = MANY / 2;
	assert_int_equal(flush_during_sweep(s), 0);
	assert_int_equal(reads_fail, 0);
	assert_int_equal(small_close(s), 0);
	lose_index(s);
}

/* While one file is swept, another unswept file gets a new slot size. */
static void a_file_that_cannot_be_cleared_is_swept_again(void **state)
{
	struct small *s = *state;
	struct waiting waiting = {.flush.done = over};

	for (unsigned n = MANY; n < FULL; n++)
		assert_int_equal(small_save_seed(s, n, n, TINY), 0);
	begin_sweep_after_crash(s);
	assert_int_equal(s->cache->ssd.n_unswept, s->cache->ssd.live_files);
	writes_fail = 1;
	assert_int_equal(small_save_seed(s, FULL, FULL, LARGE), 0);
	kv_flush_submit(s->cache, s->space, &waiting.flush);
	while (!small_stats(s).resize_failures)
		usleep(1000);
	hold = false;
	while (!waiting.over)
		usleep(1000);
	assert_int_equal(waiting.status, -EIO);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_close(s), 0);
	small_must_open(s);
	assert_true(s->cache->after_crash);
	assert_int_equal(small_view(s, FULL, LARGE), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(others_do_not_wait_for_what_a_space_deletes),
		TEST(of_two_records_of_a_key_the_later_one_counts),
		TEST(a_read_only_mount_sees_the_later_of_two),
		TEST(a_clear_spares_what_is_saved_after_it_began),
		TEST(an_open_block_can_be_read_after_a_clear),
		TEST(deletions_collect_until_somebody_waits),
		TEST(a_pin_does_not_wait_for_deletions_to_collect),
		TEST(a_removal_wakes_nobody_while_a_batch_is_in_hand),
		TEST(the_first_save_after_a_crash_waits_for_no_sweep),
		TEST(what_a_crash_left_is_swept_before_its_slot_is_taken),
		TEST(a_flush_after_a_crash_covers_earlier_removals),
		TEST(a_pin_counts_beside_the_record_of_a_former_slot),
		TEST(a_sweep_that_fails_fails_the_flush_and_is_done_again),
		TEST(the_sweep_zeroes_what_it_cannot_read),
		TEST(a_file_that_cannot_be_cleared_is_swept_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
