/* SPDX-License-Identifier: Apache-2.0 */
/*
 * footprint.c - what the daemon itself costs: memory beyond its arena, and the
 * time from its start until a mount of a million blocks answers, after a clean
 * end and after SIGKILL.
 *
 * OWNS      a store of its own, made without a daemon, for the time of the
 *           measurement.
 *
 * INVARIANTS
 *   (1) The index is cold each time, as far as the kernel lets go of it.
 *
 * LOCKING   none.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "index/index.h"
#include "index/segfile.h"
#include "tools/bench/clock.h"
#include "tools/bench/run.h"
#include "tools/bench/figures.h"
#include "tools/bench/report.h"

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
	double allowed = 64 * MIB + 112.0 * (double)rig->saved;
	char name[64];
	struct kv_bench_figure figure = {
		.name = name,
		.value = (double)bytes / MIB,
		.reference = allowed / MIB,
		.unit = "MiB",
		.against = "64 MiB + 112 bytes a block",
		.ratio = allowed / (double)bytes,
		.goal = "ratio >= 1",
		.met = (double)bytes <= allowed,
	};

	if (bytes < 0)
		return (int)bytes;
	snprintf(name, sizeof(name), "memory_anon_%s", rig->size->suffix);
	kv_bench_report_add(rig->bench->report, &figure);
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

/* Used at any time within a week: the order on SSD says nothing of it. */
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

static int make_file(const char *dir, const struct kv_store_info *info,
		     uint32_t id)
{
	char path[PATH_MAX + 32];
	int fd, r;

	snprintf(path, sizeof(path), "%s/segments/%06u.seg", dir, id);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = ftruncate(fd, SEGMENT) < 0 ? -errno : 0;
	if (r == 0)
		r = kv_trailer_write(fd, id, info->store, SEGMENT, SLOT);
	close(fd);
	return r;
}

/* Records of the blocks @from .. @to, in one transaction. */
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

static int fill_index(const char *path, const struct kv_store_info *info,
		      uint64_t blocks)
{
	struct kv_store_info ignored;
	struct kv_index *index;
	uint64_t n;
	int r = kv_index_open(path, kv_index_map_bytes(info->cap), false, info,
			      &ignored, &index);

	for (n = 0; n < blocks && r == 0; n += A_BATCH)
		r = put_blocks(index, n, KV_MIN(n + A_BATCH, blocks));
	if (r == 0 || n > 0)
		kv_index_close(index);
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
	uint32_t id;
	int r;

	snprintf(path, sizeof(path), "%s/segments", dir);
	if (mkdir(dir, 0700) < 0 || mkdir(path, 0700) < 0)
		return -errno;
	snprintf(path, sizeof(path), "%s/index", dir);
	if (mkdir(path, 0700) < 0)
		return -errno;
	for (id = 0; id < files; id++) {
		r = make_file(dir, &info, id);
		if (r < 0)
			return r;
	}
	*ret_ssd = info.cap;
	return fill_index(path, &info, blocks);
}

struct samples {
	struct kv_bench_sample clean, killed, read; /* s */
};

static int open_index(const char *store)
{
	char path[PATH_MAX + 32];
	int fd;

	snprintf(path, sizeof(path), "%s/index/data.mdb", store);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return fd;
}

/* Reading the index, and no more: how long that takes. */
static int read_index(const char *store, struct kv_bench_sample *read_s)
{
	char *chunk = malloc(CHUNK);
	int fd = open_index(store);
	uint64_t begin = kv_bench_now();
	ssize_t n = chunk && fd >= 0 ? 1 : -1;

	while (n > 0)
		n = read(fd, chunk, CHUNK);
	kv_bench_sample_add(read_s, (double)(kv_bench_now() - begin) / 1e9);
	free(chunk);
	if (fd >= 0)
		close(fd);
	return n < 0 ? -EIO : 0;
}

/* All of it must have been mounted. */
static int count_blocks(const struct kv_bench_daemon *daemon)
{
	static const char what[] = "kvfs_blocks{tier=\"ssd\"} ";
	char path[PATH_MAX + 32], line[256];
	unsigned long blocks = 0;
	FILE *metrics;

	snprintf(path, sizeof(path), "%s/.kvfs/metrics", daemon->mount);
	metrics = fopen(path, "re");
	while (metrics && fgets(line, sizeof(line), metrics))
		if (strncmp(line, what, strlen(what)) == 0)
			blocks = strtoul(line + strlen(what), NULL, 10);
	if (metrics)
		fclose(metrics);
	return blocks == BLOCKS ? 0 : -EIO;
}

static int start(struct kv_bench *bench, const char *options,
		 struct kv_bench_daemon *daemon, struct kv_bench_sample *s)
{
	char store[PATH_MAX];
	uint64_t begin;
	int fd, r;

	snprintf(store, sizeof(store), "%s/store", bench->dir);
	fd = open_index(store);
	if (fd >= 0)
		close(fd);
	begin = kv_bench_now();
	r = kv_bench_daemon_start(&bench->children, bench->build, bench->dir,
				  options, daemon);
	kv_bench_sample_add(s, (double)(kv_bench_now() - begin) / 1e9);
	return r < 0 ? r : count_blocks(daemon);
}

/* Clean, killed, and again: each end is the other's beginning. */
static int measure(struct kv_bench *bench, const char *store,
		   const char *options, struct samples *samples)
{
	struct kv_bench_daemon daemon;
	unsigned round;
	int r = 0;

	for (round = 0; round < ROUNDS && r == 0; round++) {
		r = read_index(store, &samples->read);
		if (r == 0)
			r = start(bench, options, &daemon, &samples->clean);
		if (r < 0)
			break;
		kv_bench_daemon_kill(&daemon);
		r = start(bench, options, &daemon, &samples->killed);
		if (r == 0)
			kv_bench_daemon_end(&daemon);
	}
	return r;
}

static void report(struct kv_bench *bench, const char *name,
		   struct kv_bench_sample *mount,
		   struct kv_bench_sample *read_s, double most)
{
	char goal[32];
	struct kv_bench_figure figure = {
		.name = name,
		.value = kv_bench_sample_median(mount),
		.reference = kv_bench_sample_median(read_s),
		.unit = "s",
		.against = "reading its index, cold",
		.goal = goal,
	};

	snprintf(goal, sizeof(goal), "<= %.0f s", most);
	figure.ratio = figure.reference / figure.value;
	figure.met = figure.value <= most;
	kv_bench_report_add(bench->report, &figure);
	kv_bench_report_note(bench->report, "p10 %.2f, p90 %.2f s",
			     kv_bench_sample_percentile(mount, 10),
			     kv_bench_sample_percentile(mount, 90));
}

int kv_bench_million(struct kv_bench *bench)
{
	struct samples samples = {0};
	char store[PATH_MAX], options[64];
	uint64_t ssd = 0;
	int r;

	snprintf(store, sizeof(store), "%s/store", bench->dir);
	r = kv_bench_store_make(store, BLOCKS, &ssd);
	/* There is nothing in the files that scrubbing would find to be sound.
	 */
	snprintf(options, sizeof(options), "dram=64M,scrub=0,ssd=%llu",
		 (unsigned long long)ssd);
	if (r == 0)
		r = measure(bench, store, options, &samples);
	if (r == 0) {
		report(bench, "mount_clean_1m", &samples.clean, &samples.read,
		       1);
		report(bench, "mount_killed_1m", &samples.killed, &samples.read,
		       3);
	}
	kv_bench_remove(store);
	kv_bench_sample_fini(&samples.clean);
	kv_bench_sample_fini(&samples.killed);
	kv_bench_sample_fini(&samples.read);
	return r;
}
