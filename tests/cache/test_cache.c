/* SPDX-License-Identifier: Apache-2.0 */
/* test_cache.c - the cache through the calls that fs/ makes, on a real store in
 * a temporary directory. */
#include "common/copy.h"
#include "tests/cache/one_cache.h"

#define BYTES 100000u

static int set_up(void **state)
{
	return one_set_up(state, "lhd");
}

static void content(uint8_t *data, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		data[i] = (uint8_t)(seed * 31 + i * 7 + (i >> 9));
}

static int save_bytes(struct one *f, unsigned n, unsigned seed, size_t bytes)
{
	struct kv_key key = one_key(n);
	struct kv_meta meta = {.position = n, .tokens = 16, .mtime_ns = 77};
	struct kv_digest digest;
	struct kv_fill *fill;
	int r = begin_alone(f->cache, f->space, bytes, &fill);

	if (r < 0)
		return r;
	content(kv_fill_data(fill), bytes, seed);
	digest = kv_digest_of(kv_fill_data(fill), bytes);
	return kv_fill_seal(f->cache, fill, &key, &meta, 8, &digest);
}

static int save(struct one *f, unsigned n)
{
	return save_bytes(f, n, n, BYTES);
}

static bool exact(struct one *f, struct kv_block *block, unsigned seed)
{
	static uint8_t want[BYTES];
	struct kv_view view;
	bool same;

	if (kv_view_get(f->cache, block, KV_VIEW_WAIT, &view) < 0)
		return false;
	content(want, BYTES, seed);
	same = view.length == BYTES && memcmp(view.data, want, BYTES) == 0;
	kv_view_put(f->cache, &view);
	return same;
}

static void check(struct one *f)
{
	kv_lock(f->cache);
	kv_arena_check_locked(f->cache);
	kv_unlock(f->cache);
}

static struct kv_acquire *acquire_new(struct one *f, unsigned from, unsigned n)
{
	struct kv_acquire *a = calloc(1, sizeof(*a) + n * sizeof(*a->wants));

	a->space = f->space;
	a->n = n;
	for (unsigned i = 0; i < n; i++)
		a->wants[i].key = one_key(from + i);
	return a;
}

static void settled(struct kv_acquire *acquire, void *arg)
{
	(void)acquire;
	atomic_store((_Atomic bool *)arg, true);
}

static void wait_acquire(struct one *f, struct kv_acquire *a)
{
	_Atomic bool done = false;

	a->done = settled;
	a->arg = &done;
	if (kv_acquire_submit(f->cache, a))
		while (!done)
			usleep(100);
	else
		kv_acquire_touch(f->cache, a);
}

static void a_sealed_block_is_found_with_its_bytes(void **state)
{
	struct one *f = *state;
	struct kv_block *block;

	assert_null(one_get(f, 1));
	assert_int_equal(save(f, 1), 0);
	block = one_get(f, 1);
	assert_non_null(block);
	assert_true(exact(f, block, 1));
	kv_block_put(f->cache, block);
	check(f);
}

static void the_first_writer_wins(void **state)
{
	struct one *f = *state;
	struct kv_block *block;

	assert_int_equal(save_bytes(f, 1, 1, BYTES), 0);
	assert_int_equal(save_bytes(f, 1, 1, BYTES), 1);
	assert_int_equal(save_bytes(f, 1, 2, BYTES), -EEXIST);
	block = one_get(f, 1);
	assert_true(exact(f, block, 1));
	kv_block_put(f->cache, block);
}

static void a_fill_is_neither_found_nor_reserved_twice(void **state)
{
	struct one *f = *state;
	struct kv_key key = one_key(9);
	struct kv_fill *fill, *other;
	uint8_t s;

	assert_int_equal(kv_fill_begin(f->cache, f->space, &key, BYTES, &fill),
			 0);
	assert_int_equal(kv_fill_begin(f->cache, f->space, &key, BYTES, &other),
			 -EALREADY);
	assert_null(one_get(f, 9));
	kv_probe(f->cache, f->space, &key, 1, &s);
	assert_int_equal(s, KV_SAVING);
	kv_fill_drop(f->cache, fill);
	kv_probe(f->cache, f->space, &key, 1, &s);
	assert_int_equal(s, KV_ABSENT);
	check(f);
}

static void a_file_larger_than_a_segment_is_refused(void **state)
{
	struct one *f = *state;

	assert_int_equal(save_bytes(f, 1, 1, 9 << 20), -EFBIG);
}

static void durable_blocks_come_back_after_a_restart(void **state)
{
	struct one *f = *state;
	struct kv_block *block;
	struct kv_digest digest;
	struct kv_meta meta;

	for (unsigned i = 0; i < 50; i++)
		assert_int_equal(save(f, i), 0);
	one_reopen(f);
	for (unsigned i = 0; i < 50; i++) {
		block = one_get(f, i);
		assert_non_null(block);
		assert_true(exact(f, block, i));
		assert_int_equal(kv_block_stat(f->cache, block).tiers,
				 KV_TIER_SSD);
		assert_int_equal(kv_block_meta(f->cache, block, &meta, &digest),
				 0);
		assert_int_equal(meta.position, i);
		assert_int_equal(meta.mtime_ns, 77);
		kv_block_put(f->cache, block);
	}
}

static void sync_makes_a_block_durable(void **state)
{
	struct one *f = *state;
	struct kv_block *block;

	assert_int_equal(save(f, 3), 0);
	block = one_get(f, 3);
	assert_int_equal(kv_block_sync(f->cache, block), 0);
	assert_true(kv_block_stat(f->cache, block).durable);
	kv_block_put(f->cache, block);
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
}

static void a_removed_block_does_not_come_back(void **state)
{
	struct one *f = *state;
	struct kv_block *block;

	assert_int_equal(save(f, 3), 0);
	assert_int_equal(save(f, 4), 0);
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	block = one_get(f, 3);
	assert_int_equal(kv_block_remove(f->cache, block), 0);
	assert_int_equal(kv_block_remove(f->cache, block), -ENOENT);
	assert_true(exact(f, block, 3));
	kv_block_put(f->cache, block);
	assert_null(one_get(f, 3));
	one_reopen(f);
	assert_null(one_get(f, 3));
	block = one_get(f, 4);
	assert_non_null(block);
	kv_block_put(f->cache, block);
}

static void an_open_block_only_on_ssd_is_readable_after_removal(void **state)
{
	struct one *f = *state;
	struct kv_block *block;

	assert_int_equal(save(f, 3), 0);
	one_reopen(f);
	block = one_get(f, 3);
	assert_int_equal(kv_block_remove(f->cache, block), 0);
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	for (unsigned i = 100; i < 140; i++)
		assert_int_equal(save(f, i), 0);
	assert_true(exact(f, block, 3));
	kv_block_put(f->cache, block);
	check(f);
}

static void acquire_reads_from_ssd_and_leases(void **state)
{
	struct one *f = *state;
	struct kv_acquire *a;
	struct kv_cache_stats stats;

	for (unsigned i = 0; i < 40; i++)
		assert_int_equal(save(f, i), 0);
	one_reopen(f);
	a = acquire_new(f, 0, 41);
	wait_acquire(f, a);
	for (unsigned i = 0; i < 40; i++)
		assert_int_equal(a->wants[i].status, 0);
	assert_int_equal(a->wants[40].status, -ENOENT);
	kv_cache_stats(f->cache, &stats);
	assert_int_equal(stats.leases, 40);
	check(f);
	kv_acquire_release(f->cache, a);
	kv_cache_stats(f->cache, &stats);
	assert_int_equal(stats.leases, 0);
	check(f);
	free(a);
}

static void leases_leave_a_floor_of_evictable_slots(void **state)
{
	struct one *f = *state;
	struct kv_acquire *a = acquire_new(f, 0, 400);
	unsigned refused = 0;

	for (unsigned i = 0; i < 400; i++)
		save(f, i);
	kv_space_sync(f->cache, f->space);
	wait_acquire(f, a);
	for (unsigned i = 0; i < 400; i++)
		refused += a->wants[i].status == -ENOSPC;
	assert_true(refused > 0);
	assert_int_equal(save(f, 1000), 0);
	kv_acquire_release(f->cache, a);
	check(f);
	free(a);
}

static void a_full_cache_evicts_on_both_tiers_and_keeps_its_cap(void **state)
{
	struct one *f = *state;
	struct kv_cache_stats stats;
	struct kv_block *block;
	unsigned found = 0;

	/* save 150 MB of blocks into an SSD tier of 64 MB */
	for (unsigned i = 0; i < 1500; i++)
		assert_int_equal(save(f, i), 0);
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	kv_cache_stats(f->cache, &stats);
	assert_true(stats.evicted_ssd > 0 && stats.evicted_dram > 0);
	assert_true(stats.ssd_files * (8ull << 20) <= f->config.ssd);
	check(f);
	one_reopen(f);
	for (unsigned i = 0; i < 1500; i++) {
		block = one_get(f, i);
		if (!block)
			continue;
		found++;
		assert_true(exact(f, block, i));
		kv_block_put(f->cache, block);
	}
	assert_true(found > 300);
}

/* Empty files with slots of one size get slots of another size before any block
 * is evicted. */
static void nothing_is_evicted_while_files_are_empty(void **state)
{
	struct one *f = *state;
	struct kv_cache_stats stats;
	struct kv_block *block;
	uint64_t before;

	for (unsigned i = 0; i < 500; i++)
		assert_int_equal(save(f, i), 0);
	/* Write all blocks to SSD, so that they get files: a block that is
	 * removed before its write needs none. */
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	for (unsigned i = 0; i < 500; i++) {
		block = one_get(f, i);
		if (!block)
			continue;
		assert_int_equal(kv_block_remove(f->cache, block), 0);
		kv_block_put(f->cache, block);
	}
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	kv_cache_stats(f->cache, &stats);
	assert_true((stats.ssd_files + 2) * (8ull << 20) > f->config.ssd);
	before = stats.evicted_ssd;
	for (unsigned i = 1000; i < 1100; i++) {
		assert_int_equal(save_bytes(f, i, i, 3 * BYTES), 0);
		if (i % 20 == 0)
			kv_space_sync(f->cache, f->space);
	}
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	kv_cache_stats(f->cache, &stats);
	assert_int_equal(stats.evicted_ssd, before);
	check(f);
}

static void two_sizes_share_the_tiers(void **state)
{
	struct one *f = *state;

	for (unsigned i = 0; i < 600; i++)
		assert_int_equal(save(f, i), 0);
	for (unsigned i = 2000; i < 2030; i++)
		assert_int_equal(save_bytes(f, i, i, 2000000), 0);
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	check(f);
}

static void flip(struct one *f, const char *file, long at)
{
	char path[128];
	FILE *s;
	int c;

	snprintf(path, sizeof(path), "%s/segments/%s", f->path, file);
	s = fopen(path, "r+");
	assert_non_null(s);
	fseek(s, at, SEEK_SET);
	c = fgetc(s);
	fseek(s, at, SEEK_SET);
	fputc(c ^ 1, s);
	fclose(s);
}

static uint64_t dram_used(struct one *f)
{
	struct kv_cache_stats stats;

	kv_cache_stats(f->cache, &stats);
	return stats.dram_used;
}

/* The kernel closes a file as soon as a read has its reply: before the daemon's
 * view ends. */
static void a_view_may_end_after_the_last_close_of_a_removed_block(void **state)
{
	struct one *f = *state;
	const uint64_t used = dram_used(f);

	for (unsigned durable = 0; durable < 2; durable++) {
		struct kv_block *block;
		struct kv_view view;

		assert_int_equal(save(f, 1), 0);
		block = one_get(f, 1);
		if (durable)
			assert_int_equal(kv_block_sync(f->cache, block), 0);
		assert_int_equal(
			kv_view_get(f->cache, block, KV_VIEW_TRY, &view), 0);
		assert_int_equal(kv_block_remove(f->cache, block), 0);
		kv_block_put(f->cache, block);
		kv_view_put(f->cache, &view);
		assert_int_equal(kv_space_sync(f->cache, f->space), 0);
		assert_int_equal(dram_used(f), used);
		check(f);
	}
	for (unsigned i = 2; i < 500; i++)
		assert_int_equal(save(f, i), 0);
}

static void a_damaged_block_is_a_miss_and_can_be_saved_again(void **state)
{
	struct one *f = *state;
	struct kv_block *block;
	struct kv_view view;
	struct kv_cache_stats stats;

	assert_int_equal(save(f, 3), 0);
	kv_cache_close(f->cache);
	flip(f, "000000.seg", 5000);
	one_open(f);
	block = one_get(f, 3);
	assert_non_null(block);
	assert_int_equal(kv_view_get(f->cache, block, KV_VIEW_WAIT, &view),
			 -EBADMSG);
	kv_block_put(f->cache, block);
	assert_null(one_get(f, 3));
	kv_cache_stats(f->cache, &stats);
	assert_int_equal(stats.corrupt, 1);
	assert_int_equal(save(f, 3), 0);
	block = one_get(f, 3);
	assert_true(exact(f, block, 3));
	kv_block_put(f->cache, block);
	check(f);
}

static void a_save_begun_before_a_clear_never_seals(void **state)
{
	struct one *f = *state;
	struct kv_key key = one_key(5);
	struct kv_meta meta = {0};
	struct kv_digest digest = {0};
	struct kv_fill *fill;

	assert_int_equal(save(f, 1), 0);
	assert_int_equal(kv_fill_begin(f->cache, f->space, &key, BYTES, &fill),
			 0);
	assert_int_equal(kv_space_clear(f->cache, f->space), 0);
	assert_int_equal(kv_fill_seal(f->cache, fill, &key, &meta, 8, &digest),
			 -ESTALE);
	assert_null(one_get(f, 1));
	assert_null(one_get(f, 5));
	check(f);
}

/* Only users with both the r and the x bit may lease blocks. */
static void chmod_moves_blocks_to_segments_of_their_own(void **state)
{
	static const uint32_t modes[] = {0700, 0755, 0744};
	struct one *f = *state;
	uint32_t before = KV_NONE;

	assert_int_equal(save(f, 0), 0);
	for (unsigned i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		struct kv_acquire *a = acquire_new(f, 0, 1);

		assert_int_equal(
			kv_space_chown(f->cache, f->space, 0, 0, modes[i]), 0);
		wait_acquire(f, a);
		assert_int_equal(a->wants[0].status, 0);
		assert_int_not_equal(a->wants[0].segment, before);
		before = a->wants[0].segment;
		kv_acquire_release(f->cache, a);
		free(a);
	}
	check(f);
}

static void a_second_cache_on_the_store_is_refused(void **state)
{
	struct one *f = *state;
	struct kv_cache *other;
	char *why = NULL;

	assert_int_equal(kv_cache_open(&f->config, &other, &why), -EBUSY);
	assert_non_null(strstr(why, "in use"));
	free(why);
}

static void a_directory_of_something_else_is_refused(void **state)
{
	struct one *f = *state;
	char path[] = "kvfs-else-XXXXXX", file[64], *why = NULL;
	struct kv_cache_config config = f->config;
	struct kv_cache *other;

	assert_non_null(mkdtemp(path));
	snprintf(file, sizeof(file), "%s/letter", path);
	fclose(fopen(file, "w"));
	config.store = path;
	assert_int_equal(kv_cache_open(&config, &other, &why), -EEXIST);
	free(why);
	assert_int_equal(remove(file), 0);
	assert_int_equal(rmdir(path), 0);
}

static void without_an_ssd_everything_stays_in_dram(void **state)
{
	struct one *f = *state;
	struct kv_cache_stats stats;
	struct kv_block *block;
	unsigned n = 0;

	kv_cache_close(f->cache);
	tree_remove(f->path);
	f->config.ssd = 0;
	one_open(f);
	for (unsigned i = 0; i < 600; i++)
		assert_int_equal(save(f, i), 0);
	/* Blocks that were saved in one burst count as one chain, whose head is
	 * kept: find the first block that is left. */
	while (n < 600 && !(block = one_get(f, n)))
		n++;
	assert_true(n < 600 && exact(f, block, n));
	assert_int_equal(kv_block_sync(f->cache, block), -EOPNOTSUPP);
	kv_block_put(f->cache, block);
	kv_cache_stats(f->cache, &stats);
	assert_true(stats.evicted_dram > 200 && stats.dram_used <= 32 << 20);
	check(f);
}

static void a_quota_is_met_within_seconds(void **state)
{
	struct one *f = *state;
	struct kv_quota quota = {.quota_dram = 2 << 20, .quota_ssd = 4 << 20};
	struct kv_space_info info;

	assert_int_equal(kv_space_set_quota(f->cache, f->space, NULL, &quota),
			 0);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(save(f, i), 0);
	kv_space_sync(f->cache, f->space);
	for (unsigned waited = 0;; waited++) {
		info = kv_space_stat(f->cache, f->space);
		if (info.bytes_dram <= quota.quota_dram &&
		    info.bytes_ssd <= quota.quota_ssd)
			break;
		assert_true(waited < 300);
		usleep(100000);
	}
	assert_true(info.bytes_ssd > 0);
	quota.reserve_dram = 1ull << 40;
	assert_int_equal(kv_space_set_quota(f->cache, f->space, NULL, &quota),
			 -ENOSPC);
	check(f);
}

static void beyond_its_budget_the_ssd_gets_only_what_is_waited_for(void **state)
{
	struct one *f = *state;
	struct kv_space_info info;
	struct kv_block *block;

	kv_cache_close(f->cache);
	f->config.ssd_write = 1 << 20;
	one_open(f);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(save(f, i), 0);
	do { /* the write may take any time on a slow disk */
		usleep(100000);
		info = kv_space_stat(f->cache, f->space);
	} while (info.bytes_ssd == 0);
	assert_true(info.bytes_ssd <= 1 << 20);
	block = one_get(f, 19);
	assert_false(kv_block_stat(f->cache, block).durable);
	assert_int_equal(kv_block_sync(f->cache, block), 0);
	kv_block_put(f->cache, block);
	check(f);
}

static void pins_survive_eviction_and_restart(void **state)
{
	struct one *f = *state;
	struct kv_block *block;

	assert_int_equal(save(f, 0), 0);
	block = one_get(f, 0);
	assert_int_equal(kv_block_pin(f->cache, block, true), 0);
	kv_block_put(f->cache, block);
	for (unsigned i = 1; i < 1200; i++)
		assert_int_equal(save(f, i), 0);
	one_reopen(f);
	block = one_get(f, 0);
	assert_non_null(block);
	assert_true(kv_block_stat(f->cache, block).pinned);
	assert_true(exact(f, block, 0));
	kv_block_put(f->cache, block);
	check(f);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, set_up, one_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_file_larger_than_a_segment_is_refused),
		TEST(a_second_cache_on_the_store_is_refused),
		TEST(a_directory_of_something_else_is_refused),
		TEST(a_sealed_block_is_found_with_its_bytes),
		TEST(the_first_writer_wins),
		TEST(a_fill_is_neither_found_nor_reserved_twice),
		TEST(durable_blocks_come_back_after_a_restart),
		TEST(sync_makes_a_block_durable),
		TEST(a_removed_block_does_not_come_back),
		TEST(an_open_block_only_on_ssd_is_readable_after_removal),
		TEST(acquire_reads_from_ssd_and_leases),
		TEST(leases_leave_a_floor_of_evictable_slots),
		TEST(a_full_cache_evicts_on_both_tiers_and_keeps_its_cap),
		TEST(nothing_is_evicted_while_files_are_empty),
		TEST(two_sizes_share_the_tiers),
		TEST(a_view_may_end_after_the_last_close_of_a_removed_block),
		TEST(a_damaged_block_is_a_miss_and_can_be_saved_again),
		TEST(a_save_begun_before_a_clear_never_seals),
		TEST(chmod_moves_blocks_to_segments_of_their_own),
		TEST(without_an_ssd_everything_stays_in_dram),
		TEST(a_quota_is_met_within_seconds),
		TEST(beyond_its_budget_the_ssd_gets_only_what_is_waited_for),
		TEST(pins_survive_eviction_and_restart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
