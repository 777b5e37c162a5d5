/* SPDX-License-Identifier: Apache-2.0 */
/* test_scrub.c - the scrub finds damage in blocks that no client reads, at its
 * rate, in the order of the disk, and also while writes are always queued. */
#include "cache/ssd/ssd.h"
#include "tests/cache/faulty.h"
#include "tests/cache/small_store.h"

#define MANY 200u
#define LENGTH 50000u

static int set_up(void **state)
{
	struct small *s = malloc(sizeof(*s));

	small_new(s);
	s->config.io = &disk_backend;
	small_must_open(s);
	/* Reuse some slots, so that the order of blocks on disk differs from
	 * that of their numbers. */
	for (unsigned i = 0; i < MANY; i++)
		must(small_save_seed(s, i, i, LENGTH) == 0);
	must(kv_space_sync(s->cache, s->space) == 0);
	for (unsigned i = 0; i < MANY; i += 3)
		must(small_remove_block(s, i) == 0);
	must(kv_space_sync(s->cache, s->space) == 0);
	for (unsigned i = 0; i < MANY; i += 3)
		must(small_save_seed(s, i, i, LENGTH) == 0);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	disk_behave();
	return small_tear_down(state);
}

static void reopen(struct small *s, uint64_t scrub)
{
	if (s->cache)
		must(small_close(s) == 0);
	s->config.scrub = scrub;
	small_must_open(s);
}

static void damage_while_closed(struct small *s, unsigned n)
{
	struct kv_block *block = small_get(s, n);
	uint64_t at = block->slot_number *
		      kv_segfile_at(s->cache, block->file)->slot_bytes;
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/segments/%06u.seg", s->path,
		 block->file);
	kv_block_put(s->cache, block);
	must(small_close(s) == 0);
	fd = open(path, O_RDWR | O_CLOEXEC);
	must(pwrite(fd, "rot", 3, (off_t)at + KV_PAGE + 99) == 3);
	close(fd);
}

static bool there(struct small *s, unsigned n)
{
	struct kv_block *block = small_get(s, n);

	if (block)
		kv_block_put(s->cache, block);
	return block != NULL;
}

static void wait_for_passes(struct small *s, uint64_t n)
{
	while (small_stats(s).scrub_passes < n)
		usleep(10000);
}

static void P7_a_damaged_block_that_nobody_reads_is_found(void **state)
{
	struct small *s = *state;
	struct kv_cache_stats stats;

	kv_space_sync(s->cache, s->space);
	damage_while_closed(s, 77);
	reopen(s, 1 << 30);
	wait_for_passes(s, 1);
	stats = small_stats(s);
	assert_int_equal(stats.scrub_corrupt, 1);
	assert_int_equal(stats.corrupt, 1);
	assert_true(stats.scrub_ended_ns > 0);
	assert_true(stats.scrubbed >= MANY * LENGTH);
	assert_false(there(s, 77));
	assert_int_equal(small_view(s, 76, LENGTH), 0);
	assert_int_equal(small_save_seed(s, 77, 77, LENGTH), 0);
	assert_int_equal(small_view(s, 77, LENGTH), 0);
}

static void with_scrub_0_it_is_not(void **state)
{
	struct small *s = *state;

	kv_space_sync(s->cache, s->space);
	damage_while_closed(s, 77);
	reopen(s, 0);
	sleep(2);
	assert_true(there(s, 77));
	assert_int_equal(small_stats(s).scrubbed, 0);
	assert_int_equal(small_stats(s).corrupt, 0);
}

static void it_keeps_to_its_rate(void **state)
{
	struct small *s = *state;
	const uint64_t rate = 1 << 20;
	uint64_t begun, ns, bytes;

	kv_space_sync(s->cache, s->space);
	must(small_close(s) == 0);
	begun = kv_now_ns();
	reopen(s, rate);
	sleep(3);
	while (small_stats(s).scrubbed == 0)
		usleep(10000);
	bytes = small_stats(s).scrubbed;
	ns = kv_now_ns() - begun;
	print_message("scrub=1M: %.2f MiB/s over %.1f s\n",
		      (double)bytes / (double)ns * 1e9 / (1 << 20),
		      (double)ns / 1e9);
	assert_true((double)bytes <= (double)rate * (double)ns / 1e9 + 65536);
}

static void it_reads_in_the_order_of_the_disk(void **state)
{
	struct small *s = *state;

	kv_space_sync(s->cache, s->space);
	must(small_close(s) == 0);
	disk.reads = disk.backwards = 0;
	reopen(s, 1 << 30);
	wait_for_passes(s, 1);
	/* Offsets of the reads go down only at a new file and at a new pass of
	 * the scrub. */
	assert_true(disk.reads >= MANY);
	assert_true(disk.backwards <= 2 * small_stats(s).ssd_files);
}

static void a_tier_that_is_always_busy_is_scrubbed_too(void **state)
{
	struct small *s = *state;

	kv_space_sync(s->cache, s->space);
	must(small_close(s) == 0);
	disk_misbehave(FAULT_NEVER, 1, 1);
	disk.only = KV_IO_WRITE;
	reopen(s, 64 << 20);
	assert_int_equal(small_save_seed(s, 999, 999, LENGTH), 0);
	wait_for_passes(s, 1);
	assert_true(small_stats(s).dirty_blocks > 0);
}

static void it_stops_at_once_however_slow_it_is(void **state)
{
	struct small *s = *state;

	kv_space_sync(s->cache, s->space);
	reopen(s, 1);
	while (small_stats(s).scrubbed == 0)
		usleep(10000);
	reopen(s, 0);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(P7_a_damaged_block_that_nobody_reads_is_found),
		TEST(with_scrub_0_it_is_not),
		TEST(it_keeps_to_its_rate),
		TEST(it_reads_in_the_order_of_the_disk),
		TEST(a_tier_that_is_always_busy_is_scrubbed_too),
		TEST(it_stops_at_once_however_slow_it_is),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
