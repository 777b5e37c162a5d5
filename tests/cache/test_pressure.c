/* SPDX-License-Identifier: Apache-2.0 */
/* test_pressure.c - more demand than room: more readers of the mount than the
 * bounce pool has buffers for, and blocks of two sizes and two spaces on a full
 * SSD. */
#include "tests/cache/small_store.h"

#define MANY 24
#define LARGE (2u << 20)
#define LARGER (5u << 20)
#define READERS 12

static int set_up(void **state)
{
	struct small *s = malloc(sizeof(*s));

	small_new(s);
	s->config.ssd = 128 << 20;
	*state = s;
	return 0;
}

static size_t size_of(unsigned n)
{
	return n % 6 == 5 ? LARGER : LARGE;
}

/* ---- the bounce pool: buffers to read from SSD without a slot ---- */

struct reader {
	struct small *s;
	unsigned first;
	pthread_t thread;
	_Atomic unsigned wrong, exact;
};

/* Read blocks of different sizes, with two views (open reads) at a time. */
static void *read_all(void *arg)
{
	struct reader *r = arg;
	uint8_t *want = malloc(LARGER);

	for (unsigned i = 0; i < 2 * MANY; i++) {
		unsigned n = (r->first + i) % MANY;
		struct kv_block *block = small_get(r->s, n);
		struct kv_view view;

		if (!block ||
		    kv_view_get(r->s->cache, block, KV_VIEW_WAIT, &view) < 0) {
			r->wrong++;
			continue;
		}
		small_content(want, size_of(n), n);
		if (view.length != size_of(n) ||
		    memcmp(view.data, want, size_of(n)) != 0)
			r->wrong++;
		else
			r->exact++;
		kv_view_put(r->s->cache, &view);
		kv_block_put(r->s->cache, block);
	}
	free(want);
	return NULL;
}

static void readers_beyond_the_bounce_pool_take_turns(void **state)
{
	struct reader readers[READERS] = {0};
	struct small *s = *state;

	small_must_open(s);
	for (unsigned n = 0; n < MANY; n++) {
		assert_int_equal(small_save_seed(s, n, n, size_of(n)), 0);
		assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	}
	assert_int_equal(small_close(s), 0);
	small_must_open(s); /* after this mount the blocks are on SSD only */
	for (unsigned i = 0; i < READERS; i++) {
		readers[i].s = s;
		/* each two readers read the same blocks */
		readers[i].first = i / 2 * 4;
		assert_int_equal(pthread_create(&readers[i].thread, NULL,
						read_all, &readers[i]),
				 0);
	}
	for (unsigned i = 0; i < READERS; i++) {
		pthread_join(readers[i].thread, NULL);
		assert_int_equal(readers[i].wrong, 0);
		assert_int_equal(readers[i].exact, 2 * MANY);
	}
	/* A read through the mount brings no block into DRAM. */
	assert_int_equal(small_stats(s).dram_blocks, 0);
}

/* ---- blocks of two sizes and two spaces on a full SSD ---- */

/* Save block @n of @space and sync it.  Return whether it is durable. */
static bool durable(struct small *s, struct kv_space *space, unsigned n,
		    size_t bytes)
{
	struct kv_space *own = s->space;
	struct kv_block *block;
	int r;

	s->space = space;
	r = small_save_seed(s, n, n, bytes);
	if (r == 0)
		r = kv_space_sync(s->cache, space);
	block = r == 0 ? small_get(s, n) : NULL;
	if (block) {
		r = kv_block_stat(s->cache, block).durable ? 0 : -ENOSPC;
		kv_block_put(s->cache, block);
	}
	s->space = own;
	return r == 0 && block;
}

#define SMALL 60000u

static void what_is_guaranteed_is_had_in_any_size(void **state)
{
	const struct kv_quota quota = {.reserve_ssd = 24 << 20};
	struct small *s = *state;
	struct kv_space *mine;

	s->config.ssd = 64 << 20;
	small_must_open(s);
	assert_int_equal(kv_space_create(s->cache, "mine", 0, 0, 0755, &mine),
			 0);
	assert_int_equal(kv_space_set_quota(s->cache, mine, NULL, &quota), 0);
	/* Fill the SSD with small blocks of other users, with some of the space
	 * "mine" between them, so that no file can be converted without moving
	 * or evicting some of the latter. */
	for (unsigned n = 0; n < 1200; n++) {
		small_save_seed(s, n, n, SMALL);
		if (n % 60 == 59)
			assert_true(durable(s, mine, 100000 + n / 60, SMALL));
	}
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	for (unsigned n = 0; n < 8; n++)
		assert_true(durable(s, mine, 200000 + n, LARGE));
	/* Bytes of the space "mine" beyond its guarantee compete with other
	 * spaces. */
	for (unsigned n = 8; n < 24; n++)
		durable(s, mine, 200000 + n, LARGE);
	assert_in_range(kv_space_stat(s->cache, mine).bytes_ssd, 16 << 20,
			64 << 20);
	assert_true(small_stats(s).ssd_used <= s->config.ssd);
}

static void pinned_blocks_stay_when_their_file_is_wanted(void **state)
{
	struct small *s = *state;
	struct kv_block *block;

	s->config.ssd = 48 << 20;
	small_must_open(s);
	for (unsigned n = 0; n < 900; n++) {
		small_save_seed(s, n, n, SMALL);
		block = n % 300 == 0 ? small_get(s, n) : NULL;
		if (!block)
			continue;
		assert_int_equal(kv_block_pin(s->cache, block, true), 0);
		assert_int_equal(kv_block_sync(s->cache, block), 0);
		kv_block_put(s->cache, block);
	}
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	for (unsigned n = 0; n < 16; n++)
		durable(s, s->space, 200000 + n, LARGE);
	for (unsigned n = 0; n < 900; n += 300)
		assert_int_equal(small_view(s, n, SMALL), 0);
}

/* ---- blocks of another size replace removed blocks ---- */

#define TINY 4096u
#define BIG (2359296u) /* three such blocks fill a segment */
#define COME 20

static void segments_that_a_size_has_left_are_for_those_that_come(void **state)
{
	struct small *s = *state;
	unsigned there = 0;

	s->config.dram = 64 << 20;
	s->config.ssd = 0;
	small_must_open(s);
	while (small_stats(s).evicted_dram == 0)
		assert_int_equal(small_save_seed(s, there++, 0, TINY), 0);
	assert_int_equal(kv_space_clear(s->cache, s->space), 0);
	there = 0;
	for (unsigned n = 0; n < COME; n++)
		assert_int_equal(small_save_seed(s, n, n, BIG), 0);
	for (unsigned n = 0; n < COME; n++)
		there += small_view(s, n, BIG) == 0;
	assert_int_equal(there, COME);
}

/* ---- threads that are idle use no processor time ---- */

static uint64_t processor_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void a_cache_at_rest_uses_no_processor(void **state)
{
	struct small *s = *state;
	uint64_t before;

	small_must_open(s);
	while (small_stats(s).dram_segments < small_stats(s).dram_segments_max)
		usleep(1000);
	usleep(100000);
	before = processor_ns();
	usleep(1000000);
	assert_in_range(processor_ns() - before, 0, 100000000);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, small_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(readers_beyond_the_bounce_pool_take_turns),
		TEST(what_is_guaranteed_is_had_in_any_size),
		TEST(pinned_blocks_stay_when_their_file_is_wanted),
		TEST(a_cache_at_rest_uses_no_processor),
		TEST(segments_that_a_size_has_left_are_for_those_that_come),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
