/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reserve.c - a full SSD: every block reported as durable is durable, and
 * spaces give up blocks by their reserves.
 *
 * The store has three segment files: one is full of small blocks of space "s",
 * whose reserve is a little larger, two are full of large blocks of "t".
 */
#include "cache/ssd/ssd.h"
#include <sys/stat.h>

#include "tests/cache/small_store.h"

#define SMALL 341 /* number of small blocks that fill one file */
#define LARGE 14  /* number of large blocks that fill two files */
#define LARGE_BYTES (1u << 20)
#define MIB (1ull << 20)

static int set_up(void **state)
{
	struct small *s = malloc(sizeof(*s));

	small_new(s);
	s->config.dram = 64 << 20;
	small_must_open(s);
	*state = s;
	return 0;
}

static struct kv_space *space_of(struct small *s, const char *name,
				 uint64_t reserve)
{
	struct kv_quota quota = {.reserve_ssd = reserve};
	struct kv_space *space = kv_space_find(s->cache, name);

	if (!space)
		assert_int_equal(
			kv_space_create(s->cache, name, 0, 0, 0755, &space), 0);
	assert_int_equal(kv_space_set_quota(s->cache, space, NULL, &quota), 0);
	return space;
}

static int sync_block(struct small *s, unsigned n)
{
	struct kv_block *block = small_get(s, n);
	int r;

	assert_non_null(block);
	r = kv_block_sync(s->cache, block);
	kv_block_put(s->cache, block);
	return r;
}

/* Fill the store with small blocks of "s" and large ones of "t". "s" becomes
 * s->space; return "t". */
static struct kv_space *fill(struct small *s, uint64_t reserve_s,
			     uint64_t reserve_t)
{
	struct kv_space *small = space_of(s, "s", reserve_s);
	struct kv_space *large = space_of(s, "t", reserve_t);

	for (unsigned i = 0; i < SMALL; i++)
		assert_int_equal(small_save(s, i), 0);
	assert_int_equal(kv_space_sync(s->cache, small), 0);
	s->space = large;
	for (unsigned i = 0; i < LARGE; i++)
		assert_int_equal(small_save_seed(s, i, i, LARGE_BYTES), 0);
	assert_int_equal(kv_space_sync(s->cache, large), 0);
	s->space = small;
	assert_int_equal(small_count_durable(s, 0, SMALL), SMALL);
	return large;
}

static void hold(struct small *s, struct kv_space *space,
		 struct kv_block *blocks[LARGE])
{
	struct kv_space *mine = s->space;

	s->space = space;
	for (unsigned i = 0; i < LARGE; i++)
		blocks[i] = small_get(s, i);
	s->space = mine;
}

static void let_go(struct small *s, struct kv_block *blocks[LARGE])
{
	for (unsigned i = 0; i < LARGE; i++)
		if (blocks[i])
			kv_block_put(s->cache, blocks[i]);
}

static void
within_its_reserve_a_space_gives_nothing_up_for_what_is_in_use(void **state)
{
	struct small *s = *state;
	struct kv_space *large = fill(s, 9 * MIB, 0);
	struct kv_block *blocks[LARGE];

	hold(s, large, blocks);
	assert_int_equal(small_save(s, SMALL), 0);
	assert_int_equal(sync_block(s, SMALL), -ENOSPC);
	assert_int_equal(small_count_durable(s, 0, SMALL + 1), SMALL);
	let_go(s, blocks);
	/* The sync failed, but the daemon tries to write the block again. */
	while (!small_durable(s, SMALL))
		usleep(10000);
	assert_int_equal(small_count_durable(s, 0, SMALL + 1), SMALL + 1);
}

static void it_gives_up_its_own_when_others_have_but_their_due(void **state)
{
	struct small *s = *state;
	struct kv_space *large = fill(s, 9 * MIB, 15 * MIB);

	assert_int_equal(small_save(s, SMALL), 0);
	assert_int_equal(sync_block(s, SMALL), 0);
	assert_in_range(small_count_durable(s, 0, SMALL), SMALL - 8, SMALL - 1);
	s->space = large;
	assert_in_range(small_count_durable(s, 0, LARGE), LARGE - 1, LARGE);
}

static void pinned_blocks_are_moved_out_of_a_file_that_is_needed(void **state)
{
	struct small *s = *state;
	struct kv_space *small = s->space, *large = fill(s, 9 * MIB, 0);
	unsigned pinned[LARGE], n = 0;

	s->space = large;
	for (unsigned i = 0; i < LARGE; i++) {
		struct kv_block *block = small_get(s, i);

		if (block && block->slot_number == 3) {
			assert_int_equal(kv_block_pin(s->cache, block, true),
					 0);
			pinned[n++] = i;
		}
		if (block)
			kv_block_put(s->cache, block);
	}
	assert_int_equal(n, 2);
	s->space = small;
	assert_int_equal(small_save(s, SMALL), 0);
	assert_int_equal(sync_block(s, SMALL), 0);
	assert_int_equal(small_count_durable(s, 0, SMALL + 1), SMALL + 1);
	s->space = large;
	assert_in_range(small_count_durable(s, 0, LARGE), LARGE / 2 - 1,
			LARGE / 2);
	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(small_demote(s, pinned[i]), 0);
		assert_int_equal(small_view(s, pinned[i], LARGE_BYTES), 0);
	}
	assert_int_equal(small_stats(s).moved_ssd, 1);
}

static void who_has_more_than_his_due_gives_a_whole_file(void **state)
{
	struct small *s = *state;
	struct kv_space *large = fill(s, 9 * MIB, 7 * MIB);

	assert_int_equal(small_save(s, SMALL), 0);
	assert_int_equal(sync_block(s, SMALL), 0);
	assert_int_equal(small_count_durable(s, 0, SMALL + 1), SMALL + 1);
	s->space = large;
	assert_in_range(small_count_durable(s, 0, LARGE), 6, LARGE - 6);
}

static void what_is_in_dram_too_leaves_the_ssd_last(void **state)
{
	struct small *s = *state;
	unsigned n = 0, lost = 0;

	while (small_stats(s).evicted_ssd < 150) {
		assert_int_equal(small_save(s, n), 0);
		assert_int_equal(sync_block(s, n), 0);
		if (n >= 60)
			small_demote(s, n);
		n++;
	}
	for (unsigned i = 0; i < 60; i++)
		lost += !small_durable(s, i);
	assert_int_equal(lost, 0);
	assert_true(small_count_durable(s, 60, 150) < 10);
}

/* ---- flushes ---- */

static void stall(struct small *s, int by)
{
	kv_lock(s->cache);
	s->cache->ssd.writing += (uint32_t)by;
	pthread_cond_signal(&s->cache->ssd.write);
	kv_unlock(s->cache);
}

static void flushed(struct kv_flush *flush, int status)
{
	(void)status;
	atomic_store((_Atomic bool *)flush->arg, true);
}

/* A flush also writes blocks beyond the budget of ssd_write= that were queued
 * before the flush. */
static void a_flush_gets_what_is_queued_past_the_budget(void **state)
{
	struct small *s = *state;
	_Atomic bool done = false;
	struct kv_flush flush = {.done = flushed, .arg = &done};

	assert_int_equal(small_close(s), 0);
	s->config.ssd_write = 4096;
	small_must_open(s);
	stall(s, 1000); /* the writer begins no more writes */
	assert_int_equal(small_save(s, 1), 0);
	kv_flush_submit(s->cache, s->space, &flush);
	assert_int_equal(small_save(s, 2), 0);
	stall(s, -1000);
	while (!done || small_busy(s))
		usleep(1000);
	assert_int_equal(flush.status, 0);
	assert_true(small_durable(s, 1));
	assert_false(small_durable(s, 2));
	assert_int_equal(small_stats(s).unwritten_budget, 1);
}

/* A flush of a space beyond its quota fails, whether its blocks were queued
 * before the flush or after. */
static void a_flush_is_told_what_a_quota_refuses(void **state)
{
	struct small *s = *state;
	struct kv_quota quota = {.quota_ssd = 4096};
	_Atomic bool done = false;
	struct kv_flush flush = {.done = flushed, .arg = &done};

	assert_int_equal(kv_space_set_quota(s->cache, s->space, NULL, &quota),
			 0);
	stall(s, 1000);
	assert_int_equal(small_save(s, 1), 0);
	kv_flush_submit(s->cache, s->space, &flush);
	stall(s, -1000);
	while (!done)
		usleep(1000);
	assert_int_equal(flush.status, -ENOSPC);
	assert_false(small_durable(s, 1));
}

/* ---- a space without room must not fail flushes of others ---- */

#define ROUNDS 59

/* Make a space without room: all bytes are guaranteed to others. */
static struct kv_space *without_room(struct small *s)
{
	struct kv_space *space;

	fill(s, 9 * MIB, 15 * MIB);
	assert_int_equal(kv_space_create(s->cache, "none", 7, 7, 0755, &space),
			 0);
	return space;
}

static int save_in(struct small *s, struct kv_space *space, unsigned n)
{
	struct kv_space *mine = s->space;
	int r;

	s->space = space;
	r = small_save(s, n);
	s->space = mine;
	return r;
}

static void no_flush_fails_for_want_of_room_of_another_space(void **state)
{
	struct small *s = *state;
	struct kv_space *none = without_room(s);
	unsigned failed = 0;

	assert_int_equal(save_in(s, none, 0), 0);
	assert_int_equal(kv_space_sync(s->cache, none), -ENOSPC);
	for (unsigned i = 0; i < ROUNDS; i++) {
		assert_int_equal(save_in(s, none, 1 + i), 0);
		assert_int_equal(small_save(s, SMALL + i), 0);
		failed += kv_space_sync(s->cache, s->space) < 0;
		failed += sync_block(s, SMALL + i) < 0;
		failed += !small_durable(s, SMALL + i);
	}
	assert_int_equal(failed, 0);
	assert_false(small_stats(s).ssd_degraded);
	assert_int_equal(small_stats(s).io_errors, 0);
	assert_int_equal(kv_space_sync(s->cache, none), -ENOSPC);
}

/* Stop all writes while the writer skips the space @none for want of room, so
 * that it goes on skipping @none: a retry would clear no_room, and no write
 * would set it again. */
static bool stall_without_room(struct small *s, struct kv_space *none)
{
	bool is;

	kv_lock(s->cache);
	is = none->no_room && s->cache->ssd.stalled > 0;
	if (is) {
		s->cache->ssd.writing += 1000;
		none->rests_until = UINT64_MAX;
	}
	kv_unlock(s->cache);
	return is;
}

static void only_what_has_no_room_on_ssd_gives_way_in_dram(void **state)
{
	struct small *s = *state;
	struct kv_space *none = without_room(s);
	unsigned n = 0, here = 0;

	assert_int_equal(save_in(s, none, n++), 0);
	while (!stall_without_room(s, none))
		usleep(1000);
	for (unsigned i = 0; i < ROUNDS; i++)
		assert_int_equal(small_save(s, SMALL + i), 0);
	while (small_stats(s).dropped_saves < 100) {
		int r = save_in(s, none, n++);

		if (r ==
		    -ENOSPC) /* the writer is trying to write @none again */
			usleep(1000);
		else
			assert_int_equal(r, 0);
	}
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct kv_block *block = small_get(s, SMALL + i);

		here += block != NULL;
		if (block)
			kv_block_put(s->cache, block);
	}
	assert_int_equal(here, ROUNDS);
	stall(s, -1000);
}

/* ---- very small blocks: the index is full before the segment files ---- */

#define TINY 4000
#define TINY_BLOCKS 9000u

static void open_wide(struct small *s)
{
	assert_int_equal(small_close(s), 0);
	small_remove(s);
	assert_int_equal(mkdir(s->path, 0700), 0);
	s->config.dram = 16 << 20;
	s->config.ssd = 64 << 20;
	small_must_open(s);
}

static void
blocks_so_small_that_the_index_fills_drive_each_other_out(void **state)
{
	struct small *s = *state;
	unsigned n, stay;

	open_wide(s);
	for (n = 0; n < TINY_BLOCKS; n++) {
		assert_int_equal(small_save_seed(s, n, n, TINY), 0);
		if (n % 50 == 49)
			assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	}
	stay = small_count_durable(s, 0, TINY_BLOCKS);
	assert_in_range(stay, 1000, TINY_BLOCKS - 1000);
	assert_int_equal(small_count_durable(s, TINY_BLOCKS - 500, 500), 500);
	assert_int_equal(small_stats(s).io_errors, 0);
	assert_false(small_stats(s).ssd_degraded);
	assert_int_equal(small_close(s), 0);
	small_must_open(s);
	assert_int_equal(small_count_durable(s, 0, TINY_BLOCKS), stay);
	for (n = TINY_BLOCKS - 500; n < TINY_BLOCKS; n++)
		assert_int_equal(small_view(s, n, TINY), 0);
}

/* Blocks of a new size get whole files although the index is full. */
static void larger_ones_find_room_in_an_index_full_of_small_ones(void **state)
{
	struct small *s = *state;
	unsigned n;

	open_wide(s);
	for (n = 0; n < TINY_BLOCKS; n++) {
		assert_int_equal(small_save_seed(s, n, n, TINY), 0);
		if (n % 100 == 99)
			assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	}
	for (n = 0; n < 400; n++) {
		assert_int_equal(small_save(s, 100000 + n), 0);
		assert_int_equal(sync_block(s, 100000 + n), 0);
	}
	assert_int_equal(small_count_durable(s, 100300, 100), 100);
	assert_int_equal(small_stats(s).io_errors, 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, small_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(within_its_reserve_a_space_gives_nothing_up_for_what_is_in_use),
		TEST(it_gives_up_its_own_when_others_have_but_their_due),
		TEST(pinned_blocks_are_moved_out_of_a_file_that_is_needed),
		TEST(who_has_more_than_his_due_gives_a_whole_file),
		TEST(what_is_in_dram_too_leaves_the_ssd_last),
		TEST(a_flush_gets_what_is_queued_past_the_budget),
		TEST(a_flush_is_told_what_a_quota_refuses),
		TEST(no_flush_fails_for_want_of_room_of_another_space),
		TEST(only_what_has_no_room_on_ssd_gives_way_in_dram),
		TEST(blocks_so_small_that_the_index_fills_drive_each_other_out),
		TEST(larger_ones_find_room_in_an_index_full_of_small_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
