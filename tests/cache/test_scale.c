/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_scale.c - the cost of a call does not grow with the number of blocks.
 *
 * Costs are the calling thread's processor time, which a busy machine does not
 * change much.
 *
 * OWNS      a cache on a small store for each test.
 *
 * LOCKING   none: one thread.
 */
#include "cache/ssd/ssd.h"
#include "small_store.h"

#define TINY 4000u /* bytes of a small block, whose slot has 8 KiB */
#ifndef FEW
#define FEW 500u
#define MANY 8000u
#endif
#define TIMED 250u

static int set_up(void **state)
{
	struct small *s = malloc(sizeof(*s));

	small_new(s);
	s->config.ssd = (uint64_t)MANY << 16;
	small_must_open(s);
	*state = s;
	return 0;
}

static uint64_t processor_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Measure with @n removed files open: the ns to look up the record of such a
 * file, and the ns to close such a file. */
static void cost_with_open_files(struct small *s, unsigned n,
				 uint64_t *ret_look, uint64_t *ret_close)
{
	struct kv_block **blocks = malloc(n * sizeof(*blocks));
	struct kv_digest digest;
	struct kv_meta meta;
	uint64_t begun;

	for (unsigned i = 0; i < n; i++)
		must(small_save_seed(s, i, i, TINY) == 0);
	must(kv_space_sync(s->cache, s->space) == 0);
	for (unsigned i = 0; i < n; i++) {
		blocks[i] = small_get(s, i);
		must(blocks[i]);
	}
	for (unsigned i = 0; i < n; i++) {
		must(kv_block_demote(s->cache, blocks[i]) == 0);
		must(kv_block_remove(s->cache, blocks[i]) == 0);
	}
	begun = processor_ns();
	for (unsigned i = 0; i < TIMED; i++)
		must(kv_block_meta(s->cache, blocks[i], &meta, &digest) == 0 &&
		     meta.position == i);
	*ret_look = (processor_ns() - begun) / TIMED;
	begun = processor_ns();
	for (unsigned i = 0; i < TIMED; i++)
		kv_block_put(s->cache, blocks[i]);
	*ret_close = (processor_ns() - begun) / TIMED;
	for (unsigned i = TIMED; i < n; i++)
		kv_block_put(s->cache, blocks[i]);
	must(kv_space_sync(s->cache, s->space) == 0);
	free(blocks);
}

static void removed_files_that_are_open_slow_nobody_down(void **state)
{
	struct small *s = *state;
	uint64_t few[2], many[2];

	cost_with_open_files(s, FEW, &few[0], &few[1]);
	cost_with_open_files(s, MANY, &many[0], &many[1]);
	print_message("%u open: look-up %llu ns, close %llu ns; "
		      "%u: %llu ns, %llu ns\n",
		      FEW, (unsigned long long)few[0],
		      (unsigned long long)few[1], MANY,
		      (unsigned long long)many[0], (unsigned long long)many[1]);
	assert_true(many[0] < 3 * few[0] + 3000);
	assert_true(many[1] < 3 * few[1] + 3000);
}

/* After saves and removals, each slot of a segment file leads to the block in
 * it. */
static void a_file_knows_its_blocks(void **state)
{
	struct small *s = *state;
	struct kv_cache *cache = s->cache;
	unsigned n = 0;

	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = round; i < FEW; i++)
			(void)small_save_seed(s, i, i, TINY);
		must(kv_space_sync(cache, s->space) == 0);
		for (unsigned i = round; i < FEW; i += 2 + round)
			must(small_remove_block(s, i) == 0);
		must(kv_space_sync(cache, s->space) == 0);
	}
	must(small_close(s) == 0);
	small_must_open(s);
	cache = s->cache;
	kv_lock(cache);
	for (uint32_t id = 0; id < cache->ssd.n_files; id++) {
		const struct kv_segfile *file = kv_segfile_at(cache, id);

		for (uint32_t i = 0; file && i < file->slots; i++)
			n += kv_extent_block(cache, file, i) != NULL;
	}
	assert_int_equal(n, s->space->blocks);
	kv_unlock(cache);
	small_check(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, small_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(removed_files_that_are_open_slow_nobody_down),
		TEST(a_file_knows_its_blocks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
