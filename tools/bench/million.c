/* SPDX-License-Identifier: Apache-2.0 */
/*
 * million.c - from the daemon's start until a mount of a million blocks
 * answers: after a clean end, and after SIGKILL.
 *
 * OWNS      a store of its own, for the time of the measurement.
 *
 * INVARIANTS
 *   (1) The index is cold each time, as far as the kernel lets go of it.
 *
 * LOCKING   none.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/clock.h"
#include "tools/bench/figures.h"
#include "tools/bench/sample.h"
#include "tools/bench/store.h"
#include "tools/bench/workdir.h"

#define BLOCKS 1000000u
#define ROUNDS 5
#define CHUNK (1u << 20)

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

/* What reading the index, and no more, takes. */
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

/* What is mounted is all of it. */
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
	snprintf(options, sizeof(options), "dram=64M,ssd=%llu",
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
