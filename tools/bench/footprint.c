/* SPDX-License-Identifier: Apache-2.0 */
/*
 * footprint.c - costs of the daemon itself: memory beyond its arena, and the
 * time from its start until a mount of a million blocks answers, after a clean
 * end and after SIGKILL.
 *
 * OWNS      a store of its own, made without a daemon, for the time of the
 *           measurement.
 *
 * INVARIANTS
 *   (1) The index is dropped from the page cache before each mount, as far as
 *       the kernel does that.
 *
 * LOCKING   none.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "index/index.h"
#include "index/segfile.h"
#include "tools/bench/bench.h"

#define MIB (1024.0 * 1024.0)
#define BLOCKS 1000000u
#define ROUNDS 5
#define CHUNK (1u << 20)
#define SEGMENT (256u << 20)
#define SLOT (4u * KV_PAGE)
#define A_BATCH 65536u
#define SPARE_FILES 4u

int kv_bench_anonymous(struct kv_bench_rig *rig)
{
	long bytes = kv_bench_daemon_anonymous(&rig->daemon);

	if (bytes < 0)
		return (int)bytes;
	kv_bench_report_add(
		rig->bench->report,
		&(struct kv_bench_figure){
			.name = "memory_anon",
			.suffix = rig->size->suffix,
			.value = (double)bytes / MIB,
			.reference = 64 + 112.0 * (double)rig->saved / MIB,
			.unit = "MiB",
			.against = "64 MiB + 112 bytes a block",
			.least_ratio = 1});
	kv_bench_report_note(rig->bench->report, "%llu blocks saved",
			     (unsigned long long)rig->saved);
	return 0;
}

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* A block's record.  Times of use are spread over a week, in no relation to the
 * order on SSD. */
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
		.atime = (uint32_t)(1700000000 + mix(n / 1000) % 604800),
	};
	unsigned i;

	for (i = 0; i < 2; i++) {
		uint64_t word = mix(n * 2 + i), before = mix(n * 2 - 2 + i);

		memcpy(record.key + i * 8, &word, 8);
		memcpy(record.parent + i * 8, &before, 8);
	}
	return record;
}

/* Put the records of the blocks @from .. @to in one transaction. */
static int put_blocks(struct kv_index *index, uint64_t from, uint64_t to)
{
	const uint32_t slots = kv_segfile_slots_of(SEGMENT, SLOT);
	const struct kv_space_record space = {.id = 1, .mode = 0755};
	struct kv_txn *batch;
	uint64_t n;
	int r = kv_txn_begin(index, &batch);

	if (r < 0)
		return r;
	if (from == 0)
		r = kv_txn_put_space(batch, &space, "million", "");
	for (n = from; n < to && r == 0; n++) {
		const struct kv_slot_record record = record_of(n);
		const struct kv_segfile_record file = {
			.id = (uint32_t)(n / slots),
			.slots = slots,
			.slot_bytes = SLOT};

		if (n % slots == 0)
			r = kv_txn_put_segfile(batch, &file);
		if (r == 0)
			r = kv_txn_put_slot(
				batch,
				kv_slot_id(file.id, (uint32_t)(n % slots)),
				&record);
	}
	if (r == 0)
		return kv_txn_commit(batch);
	kv_txn_abort(batch);
	return r;
}

int kv_bench_store_make(const char *dir, uint64_t blocks, uint64_t *ret_ssd)
{
	const uint32_t slots = kv_segfile_slots_of(SEGMENT, SLOT);
	const uint32_t files = (uint32_t)((blocks + slots - 1) / slots);
	struct kv_store_info info = {
		.store = "a million blocks",
		.segment_bytes = SEGMENT,
		.next_generation = 1ull << 32,
		.next_space = 2,
		.version = KV_FORMAT_VERSION,
		.clean = true,
		/* A part of the cap is the index's. */
		.cap = (uint64_t)(files + SPARE_FILES) * SEGMENT / 22 * 23,
	};
	char path[PATH_MAX + 32];
	struct kv_store_info ignored;
	struct kv_index *index;
	uint64_t n;
	uint32_t id;
	int fd, r;

	snprintf(path, sizeof(path), "%s/segments", dir);
	if (mkdir(dir, 0700) < 0 || mkdir(path, 0700) < 0)
		return -errno;
	snprintf(path, sizeof(path), "%s/index", dir);
	if (mkdir(path, 0700) < 0)
		return -errno;
	for (id = 0; id < files; id++) {
		snprintf(path, sizeof(path), "%s/segments/%06u.seg", dir, id);
		fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		if (fd < 0)
			return -errno;
		r = ftruncate(fd, SEGMENT) < 0 ? -errno : 0;
		if (r == 0)
			r = kv_trailer_write(fd, id, info.store, SEGMENT, SLOT);
		close(fd);
		if (r < 0)
			return r;
	}
	*ret_ssd = info.cap;
	snprintf(path, sizeof(path), "%s/index", dir);
	r = kv_index_open(path, kv_index_map_bytes(info.cap), false, &info,
			  &ignored, &index);
	if (r < 0)
		return r;
	for (n = 0; n < blocks && r == 0; n += A_BATCH)
		r = put_blocks(index, n, KV_MIN(n + A_BATCH, blocks));
	kv_index_close(index);
	return r;
}

enum { CLEAN, KILLED, READ, SERIES };

struct million {
	struct kv_bench *bench;
	char store[PATH_MAX], options[64];
};

/* Open the index's file, dropped from the page cache. */
static int open_index(const struct million *million)
{
	char path[PATH_MAX + 32];
	int fd;

	snprintf(path, sizeof(path), "%s/index/data.mdb", million->store);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return fd;
}

/* Time a start of the daemon, which must have mounted all blocks. */
static int start_daemon(struct million *million, struct kv_bench_daemon *daemon,
			double *ret_seconds)
{
	static const char what[] = "kvfs_blocks{tier=\"ssd\"} ";
	char path[PATH_MAX + 32], line[256];
	unsigned long blocks = 0;
	int fd = open_index(million), r;
	uint64_t begin;
	FILE *metrics;

	if (fd >= 0)
		close(fd);
	begin = kv_bench_now();
	r = kv_bench_daemon_start(million->bench, million->options, daemon);
	*ret_seconds = (double)(kv_bench_now() - begin) / 1e9;
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s/.kvfs/metrics", daemon->mount);
	metrics = fopen(path, "re");
	while (metrics && fgets(line, sizeof(line), metrics))
		if (strncmp(line, what, strlen(what)) == 0)
			blocks = strtoul(line + strlen(what), NULL, 10);
	if (metrics)
		fclose(metrics);
	return blocks == BLOCKS ? 0 : -EIO;
}

/* Read the index; start after a clean end, then after SIGKILL. */
static int million_round(void *arg, unsigned round, double *ret_seconds)
{
	struct million *million = arg;
	struct kv_bench_daemon daemon;
	char *chunk = malloc(CHUNK);
	int fd = open_index(million), r;
	uint64_t begin = kv_bench_now();
	ssize_t n = chunk && fd >= 0 ? 1 : -1;

	(void)round;
	while (n > 0)
		n = read(fd, chunk, CHUNK);
	ret_seconds[READ] = (double)(kv_bench_now() - begin) / 1e9;
	free(chunk);
	if (fd >= 0)
		close(fd);
	if (n < 0)
		return -EIO;
	r = start_daemon(million, &daemon, &ret_seconds[CLEAN]);
	if (r < 0)
		return r;
	kv_bench_daemon_kill(&daemon);
	r = start_daemon(million, &daemon, &ret_seconds[KILLED]);
	if (r == 0)
		kv_bench_daemon_end(&daemon);
	return r;
}

int kv_bench_million(struct kv_bench *bench)
{
	static const struct kv_bench_figure figures[] = {
		{.name = "mount_clean_1m", .most = 1},
		{.name = "mount_killed_1m", .most = 3},
	};
	struct kv_bench_sample samples[SERIES] = {0};
	struct million million = {.bench = bench};
	uint64_t ssd = 0;
	int r;

	snprintf(million.store, sizeof(million.store), "%s/store", bench->dir);
	r = kv_bench_store_make(million.store, BLOCKS, &ssd);
	/* The files are empty: scrubbing would find every block damaged. */
	snprintf(million.options, sizeof(million.options),
		 "dram=64M,scrub=0,ssd=%llu", (unsigned long long)ssd);
	if (r == 0)
		r = kv_bench_rounds(million_round, &million, ROUNDS, samples,
				    SERIES);
	for (int i = CLEAN; i <= KILLED && r == 0; i++) {
		struct kv_bench_figure figure = figures[i];

		figure.value = kv_bench_sample_median(&samples[i]);
		figure.reference = kv_bench_sample_median(&samples[READ]);
		figure.unit = "s";
		figure.against = "reading its index, cold";
		kv_bench_report_add(bench->report, &figure);
		kv_bench_report_note(
			bench->report, "p10 %.2f, p90 %.2f s",
			kv_bench_sample_percentile(&samples[i], 10),
			kv_bench_sample_percentile(&samples[i], 90));
	}
	kv_bench_remove(million.store);
	kv_bench_samples_free(samples, SERIES);
	return r;
}
