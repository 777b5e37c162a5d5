/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount_million.c - how long a mount takes with many blocks.
 *
 *   mount_million DIR [BLOCKS]
 *
 * Makes a store in DIR whose index has so many records of small blocks (the
 * segment files are sparse), and opens the cache on it three times after a
 * clean end and three times after a crash, the index cold each time as far as
 * the kernel lets go of it.  Prints the medians.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "cache/core.h"
#include "index/beside.h"
#include "index/segfile.h"

#define SEGMENT (256u << 20)
#define SLOT (4u * KV_PAGE)
#define A_BATCH 65536u
#define TRIES 3

static struct kv_store_info info = {
	.store = "a million blocks",
	.segment_bytes = SEGMENT,
	.next_generation = 1ull << 32,
	.next_space = 2,
	.version = KV_FORMAT_VERSION,
	.clean = true,
};

static void must(int r, const char *what)
{
	if (r >= 0)
		return;
	fprintf(stderr, "mount_million: %s: %s\n", what, strerror(-r));
	exit(1);
}

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static struct kv_slot_record record_of(uint64_t n)
{
	struct kv_slot_record record = {
		.generation = n + 1,
		.length = KV_PAGE,
		.space = 1,
		.position = (uint32_t)(n % 1000),
		.key_len = 16,
		.parent_len = 16,
		.tokens = 16,
		.atime = (uint32_t)(1700000000 + n / 1000),
	};

	for (unsigned i = 0; i < 2; i++) {
		uint64_t word = mix(n * 2 + i), before = mix(n * 2 - 2 + i);

		memcpy(record.key + i * 8, &word, 8);
		memcpy(record.parent + i * 8, &before, 8);
	}
	return record;
}

static void make_files(const char *dir, uint32_t files)
{
	char path[4096];

	for (uint32_t id = 0; id < files; id++) {
		int fd;

		snprintf(path, sizeof(path), "%s/segments/%06u.seg", dir, id);
		fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		must(fd < 0 ? -errno : 0, path);
		must(ftruncate(fd, SEGMENT) < 0 ? -errno : 0, path);
		must(kv_trailer_write(fd, id, info.store, SEGMENT, SLOT), path);
		close(fd);
	}
}

static void fill(struct kv_index *index, uint64_t blocks)
{
	const uint32_t slots = kv_segment_slots_of(SEGMENT, SLOT);
	const struct kv_space_record space = {.id = 1, .mode = 0755};
	struct kv_batch *batch = NULL;

	must(kv_batch_begin(index, &batch), "begin");
	must(kv_batch_put_space(batch, &space, "s", ""), "space");
	for (uint64_t n = 0; n < blocks; n++) {
		const struct kv_slot_record record = record_of(n);
		const struct kv_segment_record file = {
			.id = (uint32_t)(n / slots),
			.slots = slots,
			.slot_bytes = SLOT};

		if (n % A_BATCH == A_BATCH - 1) {
			must(kv_batch_commit(batch), "commit");
			must(kv_batch_begin(index, &batch), "begin");
		}
		if (n % slots == 0)
			must(kv_batch_put_segment(batch, &file), "file");
		must(kv_batch_put_slot(
			     batch, kv_slot_id(file.id, (uint32_t)(n % slots)),
			     &record),
		     "slot");
	}
	must(kv_batch_commit(batch), "commit");
}

static void make(const char *dir, uint64_t blocks)
{
	const uint32_t slots = kv_segment_slots_of(SEGMENT, SLOT);
	struct kv_store_info ignored;
	struct kv_index *index;
	char path[4096];

	info.cap = (blocks / slots + 4) * SEGMENT / 22 * 23;
	mkdir(dir, 0700);
	snprintf(path, sizeof(path), "%s/segments", dir);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/index", dir);
	mkdir(path, 0700);
	make_files(dir, (uint32_t)((blocks + slots - 1) / slots));
	must(kv_index_open(path, kv_index_map_bytes(info.cap), false, &info,
			   &ignored, &index),
	     "open");
	fill(index, blocks);
	kv_index_close(index);
}

static void set_clean(const char *dir, bool clean)
{
	struct kv_batch *batch;
	struct kv_store_info now;
	struct kv_index *index;
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/index", dir);
	must(kv_index_open(path, kv_index_map_bytes(info.cap), false, NULL,
			   &now, &index),
	     "open");
	now.clean = clean;
	must(kv_batch_begin(index, &batch), "begin");
	must(kv_batch_put_info(batch, &now), "info");
	must(kv_batch_commit(batch), "commit");
	kv_index_close(index);
	snprintf(path, sizeof(path), "%s/index/data.mdb", dir);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double time_mount(const char *dir, uint64_t blocks, bool clean)
{
	const struct kv_cache_config config = {
		.store = dir,
		.dram = 16 << 20,
		.ssd = info.cap,
		.ssd_given = true,
		.segment = SEGMENT,
		.hugepages = KV_HUGE_OFF,
		.evict = "flru",
	};
	double times[TRIES];

	for (unsigned i = 0; i < TRIES; i++) {
		struct kv_cache_stats stats;
		struct kv_cache *cache;
		double cpu;
		uint64_t from;
		char *why;

		set_clean(dir, clean);
		cpu = cpu_seconds();
		from = kv_now_ns();
		must(kv_cache_open(&config, &cache, &why), "mount");
		times[i] = (double)(kv_now_ns() - from) / 1e9;
		fprintf(stderr, "%.2f s, %.2f of a processor\n", times[i],
			cpu_seconds() - cpu);
		kv_cache_stats(cache, &stats);
		if (stats.blocks != blocks)
			must(-EIO, "blocks are missing");
		kv_cache_close(cache);
	}
	qsort(times, TRIES, sizeof(*times), by_value);
	return times[TRIES / 2];
}

int main(int argc, char **argv)
{
	uint64_t blocks = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000000;

	if (argc < 2 || !blocks) {
		fprintf(stderr, "usage: mount_million DIR [BLOCKS]\n");
		return 2;
	}
	make(argv[1], blocks);
	printf("mount of %llu blocks: %.2f s after a clean end, ",
	       (unsigned long long)blocks, time_mount(argv[1], blocks, true));
	printf("%.2f s after a crash\n", time_mount(argv[1], blocks, false));
	return 0;
}
