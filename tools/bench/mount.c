/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.c - figures of the mount and of the daemon itself: read(2) of whole
 * files against copies on the store's filesystem; the daemon's memory without
 * the arena; and the time until a mount of a million blocks answers.
 *
 * OWNS      the copies, and a store of a million blocks, made without a daemon,
 *           for the time of the measurement.
 *
 * INVARIANTS
 *   (1) The index is dropped from the page cache before each timed mount, as
 *       far as the kernel does that.
 *
 * LOCKING   none: one thread measures.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "index/index.h"
#include "index/segfile.h"
#include "tools/bench/bench.h"

/* ---- reading files ---- */

#define BUFFER (1u << 20)

enum { MOUNT_FIRST, MOUNT_SECOND, PLAIN_FIRST, PLAIN_SECOND, READ_SERIES };

struct reading {
	struct kv_bench_rig *rig;
	/* paths of the mount's space, and of the copies of its files */
	char mount[PATH_MAX], plain[PATH_MAX];
	char *buffer;
};

/* Read all files below @root, or drop them from the page cache.  Return the
 * number of bytes read. */
static long read_files(struct reading *reading, const char *root, bool drop)
{
	struct kv_bench_rig *rig = reading->rig;
	char path[PATH_MAX];
	long sum = 0;
	ssize_t n;
	int fd;

	for (size_t i = 0; i < rig->size->blocks; i++) {
		kv_bench_rig_path(root, &rig->keys[i], path, sizeof(path));
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return -errno;
		n = drop ? -posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) : 0;
		while (!drop && (n = read(fd, reading->buffer, BUFFER)) > 0)
			sum += n;
		if (n < 0 && !drop)
			n = -errno;
		close(fd);
		if (n < 0)
			return n;
	}
	return sum;
}

/* Read all files twice from the mount and twice from the copies, in GB/s. */
static int read_round(void *arg, double *ret_speeds)
{
	struct reading *reading = arg;
	long bytes = 0;

	for (int i = 0; i < READ_SERIES && bytes >= 0; i++) {
		const char *root =
			i < PLAIN_FIRST ? reading->mount : reading->plain;
		uint64_t begin;

		if (i == MOUNT_FIRST || i == PLAIN_FIRST)
			bytes = read_files(reading, root, true);
		begin = kv_now_ns();
		if (bytes >= 0)
			bytes = read_files(reading, root, false);
		ret_speeds[i] = (double)bytes / (double)(kv_now_ns() - begin);
	}
	return bytes < 0 ? (int)bytes : 0;
}

int kv_bench_mount(struct kv_bench_rig *rig)
{
	struct kv_bench_sample samples[READ_SERIES] = {0};
	struct reading reading = {.rig = rig,
				  .buffer = aligned_alloc(4096, BUFFER)};
	char log[PATH_MAX];
	char line[3 * PATH_MAX + 64];
	char *argv[] = {(char *)"sh", (char *)"-c", line, NULL};
	int r;

	if (!reading.buffer)
		return -ENOMEM;
	snprintf(reading.mount, sizeof(reading.mount),
		 "%.4000s/" KV_BENCH_SPACE, rig->daemon.mount);
	snprintf(reading.plain, sizeof(reading.plain), "%s/plain",
		 rig->bench->dir);
	snprintf(log, sizeof(log), "%s/log", rig->bench->dir);
	snprintf(line, sizeof(line), "cp -r %s %s && sync -f %s", reading.mount,
		 reading.plain, reading.plain);
	r = kv_bench_child_run(argv, log);
	if (r == 0)
		r = kv_bench_rounds(read_round, &reading, rig->bench->rounds,
				    samples, READ_SERIES);
	if (r == 0) {
		struct kv_bench_figure figure = {
			.name = "read_mount_second",
			.suffix = rig->size->suffix,
			.unit = "GB/s",
			.value = kv_bench_sample_median(&samples[MOUNT_SECOND]),
			.reference =
				kv_bench_sample_median(&samples[PLAIN_SECOND]),
			.against = "the same on the store's filesystem",
			.least_ratio = 0.55};

		kv_bench_report_add(rig->bench->report, &figure);
		figure.name = "read_mount_first";
		figure.value = kv_bench_sample_median(&samples[MOUNT_FIRST]);
		figure.reference =
			kv_bench_sample_median(&samples[PLAIN_FIRST]);
		figure.least_ratio = 0;
		kv_bench_report_add(rig->bench->report, &figure);
	}
	kv_bench_remove(reading.plain);
	kv_bench_samples_free(samples, READ_SERIES);
	free(reading.buffer);
	return r;
}

/* ---- memory ---- */

#define MIB (1024.0 * 1024.0)

int kv_bench_anonymous(struct kv_bench_rig *rig)
{
	long bytes = kv_bench_daemon_memory(&rig->daemon, "RssAnon");

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

/* ---- a store of very many blocks ---- */

#define BLOCKS 1000000u
#define SEGMENT (256u << 20)
#define SLOT (4u * KV_PAGE)
#define BATCH 65536u
#define SPARE_FILES 8u /* room for segment files that the daemon keeps free */

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* Return record @n.  Times of use are spread over a week, not in SSD order. */
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

/* Make the store BENCH/store: an index of @blocks small blocks, in chains of
 * 1,000, and sparse segment files, since nobody reads them.  @ret_options: the
 * daemon's mount options for the store.  -errno. */
static int make_store(struct kv_bench *bench, uint64_t blocks,
		      char ret_options[64])
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
		/* The index takes a share of ssd=, here 1/23. */
		.cap = (uint64_t)(files + SPARE_FILES) * SEGMENT / 22 * 23,
	};
	char dir[PATH_MAX], path[PATH_MAX + 32];
	struct kv_store_info ignored;
	struct kv_index *index;
	uint64_t n;
	uint32_t id;
	int fd, r;

	/* No scrubbing: it would find every block of the empty files
	 * damaged. */
	snprintf(ret_options, 64, "dram=64M,scrub=0,ssd=%llu",
		 (unsigned long long)info.cap);
	snprintf(dir, sizeof(dir), "%s/store", bench->dir);
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
	snprintf(path, sizeof(path), "%s/index", dir);
	r = kv_index_open(path, kv_index_map_bytes(info.cap), false, &info,
			  &ignored, &index);
	if (r < 0)
		return r;
	for (n = 0; n < blocks && r == 0; n += BATCH)
		r = put_blocks(index, n, KV_MIN(n + BATCH, blocks));
	kv_index_close(index);
	return r;
}

/* ---- the start of the daemon ---- */

#define STARTS 5

enum { CLEAN, KILLED, INDEX, START_SERIES };

struct million {
	struct kv_bench *bench;
	char store[PATH_MAX], options[64];
};

/* Drop the index's file from the page cache and open the file. */
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

/* Time a start of the daemon.  -EIO unless all blocks are mounted. */
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
	begin = kv_now_ns();
	r = kv_bench_daemon_start(million->bench, million->options, daemon);
	*ret_seconds = (double)(kv_now_ns() - begin) / 1e9;
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

/* Time reading the index, a start after a clean end, and one after SIGKILL. */
static int million_round(void *arg, double *ret_seconds)
{
	struct million *million = arg;
	struct kv_bench_daemon daemon;
	char *chunk = malloc(BUFFER);
	int fd = open_index(million), r;
	uint64_t begin = kv_now_ns();
	ssize_t n = chunk && fd >= 0 ? 1 : -1;

	while (n > 0)
		n = read(fd, chunk, BUFFER);
	ret_seconds[INDEX] = (double)(kv_now_ns() - begin) / 1e9;
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
		kv_bench_child_end(&daemon.pid);
	return r;
}

int kv_bench_million(struct kv_bench *bench)
{
	static const struct kv_bench_figure figures[] = {
		{.name = "mount_clean_1m", .most = 1},
		{.name = "mount_killed_1m", .most = 3},
	};
	struct kv_bench_sample samples[START_SERIES] = {0};
	struct million million = {.bench = bench};
	int r = make_store(bench, BLOCKS, million.options);

	snprintf(million.store, sizeof(million.store), "%s/store", bench->dir);
	if (r == 0)
		r = kv_bench_rounds(million_round, &million, STARTS, samples,
				    START_SERIES);
	for (int i = CLEAN; i <= KILLED && r == 0; i++) {
		struct kv_bench_figure figure = figures[i];

		figure.value = kv_bench_sample_median(&samples[i]);
		figure.reference = kv_bench_sample_median(&samples[INDEX]);
		figure.unit = "s";
		figure.against = "reading its index, cold";
		kv_bench_report_add(bench->report, &figure);
		kv_bench_report_note(
			bench->report, "p10 %.2f, p90 %.2f s",
			kv_bench_sample_percentile(&samples[i], 10),
			kv_bench_sample_percentile(&samples[i], 90));
	}
	kv_bench_remove(million.store);
	kv_bench_samples_free(samples, START_SERIES);
	return r;
}
