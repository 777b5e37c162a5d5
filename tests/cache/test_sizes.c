/* SPDX-License-Identifier: Apache-2.0 */
/* test_sizes.c - segment files are converted to another slot size: which files,
 * what is evicted, and what happens when the conversion fails. */
#include "cache/ssd/ssd.h"

#include <dlfcn.h>

#include "tests/cache/small_store.h"

#define SMALL 24000u
#define LARGE 300000u

/* ---- a fault: calls that clear parts of segment files fail ---- */

static _Atomic bool failing;
static _Atomic unsigned failed;

static bool fails(int fd)
{
	char link[32], path[256];
	ssize_t n;

	if (!failing)
		return false;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path));
	if (n < 4 || memcmp(path + n - 4, ".seg", 4) != 0)
		return false;
	errno = EIO;
	return true;
}

int fallocate(int fd, int mode, off_t offset, off_t len)
{
	static int (*real)(int, int, off_t, off_t);

	if (!real)
		real = (int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT,
							      "fallocate");
	if (mode != 0 && offset == 0 && fails(fd))
		return -1;
	return real(fd, mode, offset, len);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
	static ssize_t (*real)(int, const void *, size_t, off_t);

	if (!real)
		real = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(
			RTLD_NEXT, "pwrite");
	if (fails(fd)) {
		failed++;
		return -1;
	}
	return real(fd, data, n, offset);
}

/* ---- the store of a test, and its blocks ---- */

static int set_up(void **state)
{
	struct small *s = malloc(sizeof(*s));

	failing = false;
	failed = 0;
	small_new(s);
	s->config.dram = 64 << 20;
	s->config.ssd = 64 << 20;
	s->config.io_retry = 5000000;
	small_must_open(s);
	*state = s;
	return 0;
}

/* Save @n blocks from @from on, and wait until they are durable. */
static int save(struct small *s, unsigned from, unsigned n, size_t bytes)
{
	int r = 0;

	for (unsigned i = from; r == 0 && i < from + n; i++) {
		if (!small_durable(s, i))
			r = small_save_seed(s, i, i, bytes);
		if (r == -EEXIST)
			r = 0;
		if (i % 16 == 15 && r == 0)
			r = kv_space_sync(s->cache, s->space);
	}
	return r < 0 ? r : kv_space_sync(s->cache, s->space);
}

/* Return how many segment files have slots of the size that block @n needs. */
static unsigned files_of(struct small *s, unsigned n)
{
	struct kv_block *block = small_get(s, n);
	unsigned files;

	assert_non_null(block);
	kv_lock(s->cache);
	files = kv_segfile_at(s->cache, block->file)->class->n_files;
	kv_unlock(s->cache);
	kv_block_put(s->cache, block);
	return files;
}

static void a_change_of_size_that_failed_is_tried_again(void **state)
{
	struct small *s = *state;
	const unsigned files = (unsigned)(s->cache->ssd.file_budget >> 23);
	struct kv_cache_stats stats;

	assert_int_equal(save(s, 0, files * 300, SMALL), 0);
	assert_int_equal(small_stats(s).ssd_files, files);
	assert_int_equal(kv_space_clear(s->cache, s->space), 0);
	failing = true;
	for (unsigned i = 0; i < files * 25; i++)
		assert_int_equal(small_save_seed(s, 9000 + i, i, LARGE), 0);
	for (unsigned i = 0; i < 3000 && failed < 3 * files; i++)
		usleep(1000);
	assert_true(failed >= 3 * files);
	do
		stats = small_stats(s);
	while (!stats.ssd_degraded);
	assert_true(stats.ssd_unusable_files > 0);
	assert_true(stats.resize_failures >= stats.ssd_unusable_files);
	failing = false;
	for (unsigned i = 0; i < 1000 && small_stats(s).dirty_blocks; i++)
		usleep(10000);
	/* Save again until all files are usable: blocks may be evicted until
	 * the next try. */
	for (unsigned i = 0; i < 1000 && small_stats(s).ssd_unusable_files; i++)
		assert_int_equal(save(s, 9000, files * 25, LARGE), 0);
	assert_int_equal(save(s, 9000, files * 25, LARGE), 0);
	stats = small_stats(s);
	assert_int_equal(stats.ssd_unusable_files, 0);
	assert_false(stats.ssd_degraded);
	assert_int_equal(small_count_durable(s, 9000, files * 25), files * 25);
	assert_int_equal(files_of(s, 9000), files);
	assert_int_equal(small_close(s), 0);
	assert_int_equal(small_fsck(s, ""), 0);
}

/* Return how many blocks of @space from @from on are durable. */
static unsigned durable_in(struct small *s, struct kv_space *space,
			   unsigned from, unsigned n)
{
	struct kv_space *own = s->space;
	unsigned is;

	s->space = space;
	is = small_count_durable(s, from, n);
	s->space = own;
	return is;
}

/* While the only empty file cannot be converted, blocks that need it stay in
 * memory and their flushes fail, but blocks of other spaces become durable. */
static void a_change_of_size_that_fails_stops_one_space_only(void **state)
{
	struct small *s = *state;
	const unsigned files = (unsigned)(s->cache->ssd.file_budget >> 23);
	const unsigned in_file = (8u << 20) / (7 * KV_PAGE);
	const struct kv_quota all = {.reserve_ssd = files << 23};
	struct kv_space *small = s->space, *large;

	assert_int_equal(kv_space_create(s->cache, "large", 0, 0, 0755, &large),
			 0);
	assert_int_equal(kv_space_set_quota(s->cache, small, NULL, &all), 0);
	assert_int_equal(save(s, 0, files * in_file - 10, SMALL), 0);
	for (unsigned i = 0; i < files * in_file - 10; i++) {
		struct kv_block *block = small_get(s, i);

		if (!block)
			continue;
		if (block->file == 0)
			assert_int_equal(kv_block_remove(s->cache, block), 0);
		kv_block_put(s->cache, block);
	}
	assert_int_equal(kv_space_sync(s->cache, small), 0);
	failing = true;
	s->space = large;
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(small_save_seed(s, 9000 + i, i, LARGE), 0);
	assert_int_equal(kv_space_sync(s->cache, large), -EIO);
	s->space = small;
	for (unsigned i = 9000; i < 9005; i++) {
		assert_int_equal(small_save_seed(s, i, i, SMALL), 0);
		usleep(20000);
		assert_int_equal(kv_space_sync(s->cache, small), 0);
	}
	assert_int_equal(durable_in(s, small, 9000, 5), 5);
	assert_int_equal(kv_space_sync(s->cache, large), -EIO);
	assert_int_equal(durable_in(s, large, 9000, 5), 0);
	assert_int_equal(small_stats(s).ssd_unusable_files, 1);
	failing = false;
	for (unsigned i = 0; i < 1000 && durable_in(s, large, 9000, 5) < 5; i++)
		usleep(10000);
	assert_int_equal(kv_space_sync(s->cache, large), 0);
	assert_int_equal(durable_in(s, large, 9000, 5), 5);
	assert_int_equal(small_stats(s).ssd_unusable_files, 0);
}

/* ---- a new block size while another size has all files ---- */

#define OLD 100000u
#define NEW (3u << 20)

/* Read block @n, so that this counts as a use. */
static int use(struct small *s, unsigned n, size_t bytes)
{
	struct kv_block *block = small_get(s, n);

	if (!block)
		return -ENOENT;
	kv_block_touch(s->cache, block);
	kv_block_put(s->cache, block);
	return small_view(s, n, bytes);
}

/* Use @n blocks from @from on one after the other, and save those that are
 * missing. */
static void use_all(struct small *s, unsigned from, unsigned n, size_t bytes)
{
	for (unsigned i = from; i < from + n; i++) {
		if (small_durable(s, i))
			assert_int_equal(use(s, i, bytes), 0);
		else
			assert_int_equal(save(s, i, 1, bytes), 0);
		/* Drop the block from DRAM, or a sync would write it again
		 * after its eviction from SSD. */
		small_demote(s, i);
	}
}

static void fill(struct small *s, const char *evict, unsigned mib)
{
	assert_int_equal(small_close(s), 0);
	s->config.ssd = (uint64_t)mib << 20;
	s->config.evict = evict;
	small_must_open(s);
	for (unsigned i = 0; small_stats(s).evicted_ssd < 100; i += 16)
		use_all(s, i, 16, OLD);
}

static void what_is_not_used_gives_way_to_another_size(struct small *s,
						       const char *evict)
{
	unsigned files, n;

	fill(s, evict, 256);
	files = (unsigned)small_stats(s).ssd_files;
	/* all files but 1 are converted, and 2 % of the tier stay free */
	n = 2 * (files - 1) - 2;
	for (unsigned pass = 0; pass < 2; pass++)
		use_all(s, 90000, n, NEW);
	assert_int_equal(small_count_durable(s, 90000, n), n);
	small_check(s);
}

static void by_lru_old_blocks_give_way_to_another_size(void **state)
{
	what_is_not_used_gives_way_to_another_size(*state, "lru");
}

static void by_lhd_old_blocks_give_way_to_another_size(void **state)
{
	what_is_not_used_gives_way_to_another_size(*state, "lhd");
}

#define PINS 70u

static void scattered_pins_do_not_hold_up_another_size(void **state)
{
	struct small *s = *state;
	unsigned pinned[PINS], n = 0, at = 0;
	uint64_t began;

	fill(s, "lhd", 256);
	while (n < PINS) {
		struct kv_block *block = small_get(s, at);

		if (block && block->file != KV_NONE) {
			assert_int_equal(kv_block_demote(s->cache, block), 0);
			assert_int_equal(kv_block_pin(s->cache, block, true),
					 0);
			pinned[n++] = at;
			at += 30;
		} else {
			at++;
		}
		if (block)
			kv_block_put(s->cache, block);
		assert_true(at < 10000);
	}
	began = kv_now_ns();
	for (unsigned i = 0; i < 200; i++) {
		assert_int_equal(save(s, 90000 + i, 1, LARGE), 0);
		assert_true(small_durable(s, 90000 + i));
	}
	print_message("200 saves: %.2f s\n",
		      (double)(kv_now_ns() - began) / 1e9);
	assert_in_range(small_count_durable(s, 90000, 200), 195, 200);
	assert_true(kv_now_ns() - began < 10000000000u);
	for (unsigned i = 0; i < PINS; i++)
		assert_int_equal(small_view(s, pinned[i], OLD), 0);
	small_check(s);
}

/* Check the store once evictions and moves are over. */
static void settle_and_check(struct small *s)
{
	bool moving = true;

	for (unsigned i = 0; i < 1000 && (moving || small_busy(s)); i++) {
		usleep(10000);
		kv_lock(s->cache);
		moving = !TAILQ_EMPTY(&s->cache->ssd.moves.files);
		kv_unlock(s->cache);
	}
	small_check(s);
}

/* Blocks of several new sizes are saved one after the other: every size gets
 * files. */
static void each_of_several_new_sizes_gets_room(void **state)
{
	static const size_t sizes[] = {SMALL, LARGE, 1000000, NEW};
	struct small *s = *state;

	fill(s, "lru", 256);
	for (unsigned i = 0; i < 16; i++)
		for (unsigned k = 0; k < KV_ARRAY_LEN(sizes); k++)
			assert_int_equal(small_save_seed(s,
							 90000 + 1000 * k + i,
							 i, sizes[k]),
					 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	for (unsigned k = 0; k < KV_ARRAY_LEN(sizes); k++)
		assert_int_equal(small_count_durable(s, 90000 + 1000 * k, 16),
				 16);
	settle_and_check(s);
}

/* Use blocks of two sizes one after the other, of each size more than the tier
 * holds. */
static void two_sizes_of_equal_use_keep_their_files(void **state)
{
	struct small *s = *state;
	unsigned changes = 0, all, files = 0, last = 0;

	fill(s, "lru", 256);
	all = (unsigned)small_stats(s).ssd_files;
	for (unsigned i = 0; i < 30 * all; i++) {
		/* Use one block of 3 MiB for every 32 blocks of 96 KiB. */
		use_all(s, 32 * (i % (4 * all)), 32, OLD);
		use_all(s, 90000 + i % (4 * all), 1, NEW);
		files = files_of(s, 90000 + i % (4 * all));
		changes += i > 0 && files != last;
		last = files;
	}
	print_message("%u of %u files, %u changes\n", files, all, changes);
	assert_in_range(files, all / 4, all * 3 / 4);
	assert_in_range(changes, 0, all);
	settle_and_check(s);
}

/* ---- slots of different sizes for one block ---- */

/* three sizes in one power of two, and a block for which none is left */
static const size_t some_sizes[] = {300000, 330000, 360000};
#define FOURTH 400000u

/* Save and pin block 0 while three other sizes of its power of two are in use:
 * its slot is larger than it need be. */
static struct kv_block *save_in_large_slot(struct small *s,
					   struct kv_fill *fills[3])
{
	struct kv_block *block;

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(begin_alone(s->cache, s->space, some_sizes[i],
					     &fills[i]),
				 0);
	assert_int_equal(small_save_seed(s, 0, 0, FOURTH), 0);
	block = small_get(s, 0);
	assert_non_null(block);
	assert_int_equal(kv_block_pin(s->cache, block, true), 0);
	kv_lock(s->cache);
	must(block->slot->segment->class->slot_bytes == 1 << 19);
	kv_unlock(s->cache);
	return block;
}

/* Check that the pinned block has a smaller slot now, and what is charged for
 * pins before and after it is unpinned. */
static void check_and_unpin(struct small *s, struct kv_block *block)
{
	kv_lock(s->cache);
	must(block->slot);
	must(block->slot->segment->class->slot_bytes < 1 << 19);
	kv_arena_check_locked(s->cache);
	kv_unlock(s->cache);
	assert_int_equal(kv_block_pin(s->cache, block, false), 0);
	kv_lock(s->cache);
	must(s->cache->ssd.pinned == 0);
	kv_arena_check_locked(s->cache);
	kv_unlock(s->cache);
	kv_block_put(s->cache, block);
}

static void a_pin_is_charged_for_the_slot_after_a_move(void **state)
{
	struct small *s = *state;
	struct kv_block *block;
	struct kv_fill *fills[3];

	assert_int_equal(small_close(s), 0);
	s->config.dram = 32 << 20; /* a segment for each of four sizes */
	s->config.writeback = KV_WRITEBACK_NONE;
	small_must_open(s);
	block = save_in_large_slot(s, fills);
	/* Let another power of two take the segment of one of the sizes. */
	kv_fill_drop(s->cache, fills[0]);
	assert_int_equal(small_save_seed(s, 1, 1, SMALL), 0);
	kv_fill_drop(s->cache, fills[1]);
	kv_fill_drop(s->cache, fills[2]);
	/* Blocks of a space with other rights go to other segments. */
	assert_int_equal(kv_space_chown(s->cache, s->space, 0, 0, 0700), 0);
	check_and_unpin(s, block);
}

static void a_pin_is_charged_for_the_slot_after_damage_on_ssd(void **state)
{
	struct small *s = *state;
	struct kv_block *block;
	struct kv_fill *fills[3];
	struct kv_segfile *file;
	uint8_t *data = kv_pages_new(1 << 19);

	block = save_in_large_slot(s, fills);
	kv_block_put(s->cache, block);
	for (unsigned i = 0; i < 3; i++)
		kv_fill_drop(s->cache, fills[i]);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_close(s), 0);
	small_must_open(s);
	assert_int_equal(small_acquire(s, 0, 1, FOURTH, NULL), 1);
	block = small_get(s, 0);
	file = kv_segfile_at(s->cache, block->file);
	assert_int_equal(file->slot_bytes, 1 << 19);
	assert_int_equal(pwrite(file->fd, data, KV_PAGE,
				(off_t)(block->slot_number * file->slot_bytes)),
			 KV_PAGE);
	assert_int_equal(kv_block_fetch(s->cache, block, &data, 1 << 19),
			 -EBADMSG);
	kv_pages_free(data, 1 << 19);
	check_and_unpin(s, block);
}

/* ---- the hit rate of a trace of several sizes, against kvfs-replay ---- */

/* bytes of a unit of the trace, which fills a slot; 128 slots fill a file */
#define UNIT 65536u
#define REQUESTS 6000u

struct object {
	unsigned number, units;
};

static unsigned next_random(unsigned *seed)
{
	*seed = *seed * 1664525 + 1013904223;
	return *seed >> 8;
}

/* Make a trace of requests for objects of 1, 4 and 16 units, a few of which are
 * requested often.  Most of the first third are small objects, most of the
 * second third large ones. */
static void make_trace(struct object trace[REQUESTS])
{
	static const unsigned units[] = {1, 4, 16}, n[] = {4000, 1000, 250};
	static const unsigned first[] = {200000, 210000, 220000};
	/* Of each 10 requests in a third of the trace: number of requests for
	 * objects of each size. */
	static const unsigned mix[3][3] = {{7, 2, 1}, {1, 2, 7}, {4, 3, 3}};
	unsigned seed = 7;

	for (unsigned i = 0; i < REQUESTS; i++) {
		const unsigned *part = mix[3 * i / REQUESTS];
		const unsigned draw = next_random(&seed) % 10;
		const unsigned k = draw < part[0]	      ? 0
				   : draw < part[0] + part[1] ? 1
							      : 2;
		const double x = (double)(next_random(&seed) % 10000) / 10000;

		trace[i].number = first[k] + (unsigned)(x * x * x * n[k]);
		trace[i].units = units[k];
	}
}

/* Return the hit rate of the trace in kvfs-replay, where an object is a chain
 * of as many blocks as it has units. */
static double replayed(const struct small *s, const struct object *trace,
		       const char *evict, unsigned capacity)
{
	const char *b = getenv("B");
	char path[96], command[300];
	unsigned long hits, asked;
	FILE *f;

	snprintf(path, sizeof(path), "%s/trace", s->path);
	f = fopen(path, "we");
	assert_non_null(f);
	for (unsigned i = 0; i < REQUESTS; i++) {
		fprintf(f,
			"{\"input_length\": %u, \"block_size\": 1, "
			"\"hash_ids\": [%u",
			trace[i].units, trace[i].number * 16);
		for (unsigned k = 1; k < trace[i].units; k++)
			fprintf(f, ", %u", trace[i].number * 16 + k);
		fprintf(f, "]}\n");
	}
	fclose(f);
	snprintf(command, sizeof(command),
		 "%s/kvfs-replay --policy %s --blocks %u %s", b ? b : "build",
		 evict, capacity, path);
	f = popen(command, "r");
	assert_non_null(f);
	assert_int_equal(fscanf(f,
				"policy=%*s blocks=%*u requests=%*u hits=%lu "
				"blocks_asked=%lu",
				&hits, &asked),
			 2);
	pclose(f);
	return (double)hits / (double)asked;
}

static double lived(struct small *s, const struct object *trace)
{
	uint64_t hits = 0, asked = 0;

	for (unsigned i = 0; i < REQUESTS; i++) {
		const unsigned n = trace[i].number;
		const size_t bytes = trace[i].units * UNIT - KV_PAGE;

		asked += trace[i].units;
		if (use(s, n, bytes) == 0) {
			hits += trace[i].units;
			continue;
		}
		assert_int_equal(small_save_seed(s, n, n, bytes), 0);
		assert_int_equal(kv_space_sync(s->cache, s->space), 0);
		assert_int_equal(small_demote(s, n), 0);
	}
	return (double)hits / (double)asked;
}

static void a_trace_of_several_sizes_hits_as_replayed(struct small *s,
						      const char *evict)
{
	struct object *trace = malloc(REQUESTS * sizeof(*trace));
	double live, computed;
	unsigned units;

	make_trace(trace);
	fill(s, evict, 256);
	units = (unsigned)(s->cache->ssd.file_budget / s->config.segment *
			   (s->config.segment / UNIT));
	computed = replayed(s, trace, evict, units);
	live = lived(s, trace);
	print_message("%s: hit rate %.4f, kvfs-replay %.4f, %llu moved\n",
		      evict, live, computed,
		      (unsigned long long)small_stats(s).moved_ssd);
	assert_true(live >= 0.95 * computed);
	free(trace);
}

static void by_lru_a_trace_hits_as_replayed(void **state)
{
	a_trace_of_several_sizes_hits_as_replayed(*state, "lru");
}

static void by_lhd_a_trace_hits_as_replayed(void **state)
{
	a_trace_of_several_sizes_hits_as_replayed(*state, "lhd");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, small_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_change_of_size_that_failed_is_tried_again),
		TEST(a_change_of_size_that_fails_stops_one_space_only),
		TEST(by_lru_old_blocks_give_way_to_another_size),
		TEST(by_lhd_old_blocks_give_way_to_another_size),
		TEST(scattered_pins_do_not_hold_up_another_size),
		TEST(each_of_several_new_sizes_gets_room),
		TEST(two_sizes_of_equal_use_keep_their_files),
		TEST(a_pin_is_charged_for_the_slot_after_a_move),
		TEST(a_pin_is_charged_for_the_slot_after_damage_on_ssd),
		TEST(by_lru_a_trace_hits_as_replayed),
		TEST(by_lhd_a_trace_hits_as_replayed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
