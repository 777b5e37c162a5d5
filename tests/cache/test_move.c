/* SPDX-License-Identifier: Apache-2.0 */
/* test_move.c - empty a segment file: blocks that must not be evicted are
 * moved, and can be read or removed meanwhile. */
#include "cache/ssd/ssd.h"

#include "tests/cache/faulty.h"
#include "tests/cache/small_store.h"

#define ALL 900u /* almost fills three files of 341 slots each */
#define STEP 5u	 /* every fifth block is pinned or held open */

static bool no_memory; /* true: the cache's arrays cannot grow */

void *reallocarray(void *p, size_t n, size_t size)
{
	return no_memory ? NULL : realloc(p, n * size);
}

static int set_up(void **state)
{
	struct small *s = malloc(sizeof(*s));

	small_new(s);
	s->config.dram = 64 << 20;
	small_must_open(s);
	for (unsigned i = 0; i < ALL; i++)
		assert_int_equal(small_save(s, i), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	for (unsigned i = 0; i < ALL; i++)
		assert_int_equal(small_demote(s, i), 0);
	*state = s;
	return 0;
}

static void pin_some(struct small *s)
{
	for (unsigned i = 0; i < ALL; i += STEP) {
		struct kv_block *block = small_get(s, i);

		assert_int_equal(kv_block_pin(s->cache, block, true), 0);
		kv_block_put(s->cache, block);
	}
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
}

static struct kv_segfile *vacate(struct small *s)
{
	struct kv_segfile *file;

	kv_lock(s->cache);
	file = s->cache->ssd.files[0];
	kv_segfile_empty_locked(s->cache, file, file->class, s->space, NULL,
				false);
	kv_unlock(s->cache);
	return file;
}

/* Return whether the segment file is empty. */
static bool vacated(struct small *s, const struct kv_segfile *file)
{
	bool busy = true, empty = false;

	while (busy) {
		kv_lock(s->cache);
		busy = file->emptying;
		empty = !file->used;
		kv_unlock(s->cache);
		usleep(1000);
	}
	while (small_busy(s))
		usleep(1000);
	return empty;
}

/* Check that each block that is pinned or held is on SSD with its bytes. */
static void check_kept(struct small *s)
{
	small_check(s);
	for (unsigned i = 0; i < ALL; i += STEP) {
		small_demote(s, i);
		assert_int_equal(small_view(s, i, BYTES), 0);
	}
}

static void what_is_pinned_is_moved_and_the_rest_evicted(void **state)
{
	struct small *s = *state;

	pin_some(s);
	assert_true(vacated(s, vacate(s)));
	assert_in_range(small_stats(s).moved_ssd, 60, 80);
	check_kept(s);
	assert_int_equal(small_close(s), 0);
	assert_int_equal(small_fsck(s, ""), 0);
	small_must_open(s);
	check_kept(s);
	for (unsigned i = 0; i < ALL; i += STEP) {
		struct kv_block *block = small_get(s, i);

		assert_true(kv_block_stat(s->cache, block).pinned);
		kv_block_put(s->cache, block);
	}
}

/* A listing in the order of the SSD may miss a block that is moved meanwhile: the
 * subscribers of changes hear of it. */
static void what_is_moved_is_told(void **state)
{
	static struct kv_key keys[4 * ALL];
	struct small *s = *state;
	struct kv_feed *feed;
	uint64_t cursor = 0;
	unsigned told = 0;
	long n;

	pin_some(s);
	assert_int_equal(kv_feed_get(s->cache, s->space, &feed), 0);
	assert_int_equal(kv_feed_read(s->cache, feed, &cursor, keys, 1, NULL),
			 -ESTALE);
	assert_true(vacated(s, vacate(s)));
	n = kv_feed_read(s->cache, feed, &cursor, keys, KV_ARRAY_LEN(keys),
			 NULL);
	for (unsigned i = 0; i < ALL; i += STEP)
		for (long k = 0; k < n; k++) {
			const struct kv_key key = small_key(i);

			if (!kv_key_equal(&keys[k], &key))
				continue;
			told++;
			break;
		}
	assert_int_equal(told, small_stats(s).moved_ssd);
	kv_feed_put(s->cache, feed);
}

/* Blocks that are open are moved, and readers get the same bytes although the
 * old slots are reused. */
static void what_is_open_is_moved_and_can_be_read(void **state)
{
	struct small *s = *state;
	struct kv_block *held[ALL / STEP];

	for (unsigned i = 0; i < ALL / STEP; i++)
		held[i] = small_get(s, i * STEP);
	assert_true(vacated(s, vacate(s)));
	for (unsigned i = 0; i < ALL; i += STEP)
		assert_int_equal(small_view(s, i, BYTES), 0);
	for (unsigned i = 0; i < ALL / STEP; i++)
		kv_block_put(s->cache, held[i]);
	check_kept(s);
}

static void what_is_in_memory_too_is_moved(void **state)
{
	struct small *s = *state;

	pin_some(s);
	assert_int_equal(small_acquire(s, 0, 300, BYTES, NULL), 300);
	assert_true(vacated(s, vacate(s)));
	check_kept(s);
}

/* A read into memory that begins while the move is committed gets the block, and
 * the block is lost in neither slot. */
static void what_is_read_meanwhile_is_moved(void **state)
{
	struct small *s = *state;
	struct kv_segfile *file;
	int status[ALL];
	bool busy = true, commit;

	pin_some(s);
	file = vacate(s);
	while (busy) {
		kv_lock(s->cache);
		busy = file->emptying;
		commit = s->cache->ssd.moves.n > 8;
		kv_unlock(s->cache);
		if (!commit)
			continue;
		for (unsigned i = 0; i < ALL; i += STEP) {
			small_acquire(s, i, 1, BYTES, status);
			assert_int_equal(status[0], 0);
			(void)small_demote(s, i);
		}
	}
	(void)vacated(s, file);
	assert_int_equal(small_stats(s).corrupt, 0);
	check_kept(s);
}

/* A block removed during its move stays removed; its new slot becomes free. */
static void what_is_removed_meanwhile_stays_away(void **state)
{
	struct small *s = *state;
	struct kv_segfile *file;

	pin_some(s);
	file = vacate(s);
	for (unsigned i = 0; i < ALL; i += STEP) {
		assert_int_equal(small_remove_block(s, i), 0);
		if (i % 50 == 0)
			usleep(2000);
	}
	assert_true(vacated(s, file));
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	small_check(s);
	assert_int_equal(small_close(s), 0);
	assert_int_equal(small_fsck(s, ""), 0);
	small_must_open(s);
	for (unsigned i = 0; i < ALL; i += STEP)
		assert_null(small_get(s, i));
}

static void *let_go(void *arg)
{
	sleep(2);
	disk_behave();
	return arg;
}

/* Blocks are removed while their copies are being written.  After a sync they
 * stay away although the machine stops and the index is lost. */
static void what_is_removed_meanwhile_is_not_rebuilt(void **state)
{
	struct small *s = *state, copy;
	struct kv_segfile *file;
	char command[240];
	pthread_t thread;
	bool held = false;

	assert_int_equal(small_close(s), 0);
	s->config.io = &disk_backend;
	small_must_open(s);
	pin_some(s);
	disk_misbehave(FAULT_NEVER, 3, 1);
	disk.only = KV_IO_WRITE;
	disk.above = KV_PAGE; /* zeros for prologues do not fail */
	file = vacate(s);
	while (!held) {
		usleep(1000);
		pthread_mutex_lock(&disk.lock);
		held = disk.n_held;
		pthread_mutex_unlock(&disk.lock);
	}
	for (unsigned i = 0; i < ALL; i += STEP)
		assert_int_equal(small_remove_block(s, i), 0);
	assert_int_equal(pthread_create(&thread, NULL, let_go, NULL), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	small_new(&copy);
	snprintf(command, sizeof(command), "cp -r %s/. %s && rm -r %s/index*",
		 s->path, copy.path, copy.path);
	assert_int_equal(system(command), 0);
	pthread_join(thread, NULL);
	small_must_open(&copy);
	for (unsigned i = 0; i < ALL; i += STEP)
		assert_null(small_get(&copy, i));
	assert_int_equal(small_close(&copy), 0);
	small_remove(&copy);
	free(copy.why);
	(void)vacated(s, file);
	small_check(s);
}

/* Evicted blocks whose deletions cannot be queued free no slots: do not evict
 * more and more blocks. */
static void without_memory_few_blocks_are_evicted(void **state)
{
	struct small *s = *state;
	const uint64_t slot_bytes = s->cache->ssd.files[0]->slot_bytes;
	uint64_t taken[200], evicted;
	uint32_t file, slot;
	unsigned n = 0;

	kv_lock(s->cache);
	no_memory = true;
	while (n < 200 && kv_extent_take(s->cache, s->space, slot_bytes, &file,
					 &slot) == 0)
		taken[n++] = kv_slot_id(file, slot);
	no_memory = false;
	evicted = s->cache->stats.evicted_ssd;
	while (n > 0)
		kv_extent_give_up_locked(s->cache, s->space, taken[--n]);
	kv_unlock(s->cache);
	assert_in_range(evicted, 1, 100);
}

/* If the other files lack room for the blocks of the file that is to be
 * emptied, the blocks stay, and the file is used as before. */
static void without_room_nothing_is_lost(void **state)
{
	struct small *s = *state;
	struct kv_block *held[ALL];
	struct kv_segfile *file;

	for (unsigned i = 0; i < ALL; i++)
		held[i] = small_get(s, i);
	file = vacate(s);
	assert_false(vacated(s, file));
	assert_null(file->heir);
	for (unsigned i = 0; i < ALL; i++) {
		assert_int_equal(small_view(s, i, BYTES), 0);
		kv_block_put(s->cache, held[i]);
	}
	small_check(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, small_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_is_pinned_is_moved_and_the_rest_evicted),
		TEST(what_is_moved_is_told),
		TEST(what_is_open_is_moved_and_can_be_read),
		TEST(what_is_in_memory_too_is_moved),
		TEST(what_is_read_meanwhile_is_moved),
		TEST(what_is_removed_meanwhile_stays_away),
		TEST(what_is_removed_meanwhile_is_not_rebuilt),
		TEST(without_memory_few_blocks_are_evicted),
		TEST(without_room_nothing_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
