/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.c - read(2) of whole files through the mount, against copies of them
 * on the filesystem that the store is on.
 *
 * OWNS      the copies, for the time of the measurement.
 *
 * LOCKING   none.
 */
#include "tools/bench/figures.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/bench/clock.h"
#include "tools/bench/report.h"
#include "tools/bench/run.h"

#define BUFFER (1u << 20)
#define ROUNDS 7
#define ROUNDS_QUICK 5

enum { MOUNT_FIRST, MOUNT_SECOND, PLAIN_FIRST, PLAIN_SECOND, SERIES };

/* Calls @visit with each block's open file below @root; sums its results. */
static long for_each_file(struct kv_bench_rig *rig, const char *root,
			  long (*visit)(int fd, int to, char *buffer), int to,
			  char *buffer)
{
	char path[PATH_MAX];
	long sum = 0, r;
	size_t i;
	int fd;

	for (i = 0; i < rig->size->blocks; i++) {
		kv_bench_rig_path(root, &rig->keys[i], path, sizeof(path));
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return -errno;
		r = visit(fd, to, buffer);
		close(fd);
		if (r < 0)
			return r;
		sum += r;
	}
	return sum;
}

static long read_file(int fd, int to, char *buffer)
{
	long sum = 0;
	ssize_t r;

	(void)to;
	while ((r = read(fd, buffer, BUFFER)) > 0)
		sum += r;
	return r < 0 ? -errno : sum;
}

static long drop_file(int fd, int to, char *buffer)
{
	(void)to;
	(void)buffer;
	return -posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

static int copy_file(const char *from, const char *to, char *buffer)
{
	int in = open(from, O_RDONLY | O_CLOEXEC), out, r = 0;
	ssize_t n;

	if (in < 0)
		return -errno;
	out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (out < 0)
		r = -errno;
	while (r == 0 && (n = read(in, buffer, BUFFER)) != 0) {
		if (n < 0)
			r = -errno;
		else if (write(out, buffer, (size_t)n) != n)
			r = -EIO;
	}
	close(in);
	if (out >= 0)
		close(out);
	return r;
}

/* The same tree as in the mount, synced. */
static int copy_files(struct kv_bench_rig *rig, const char *mount,
		      const char *plain, char *buffer)
{
	char from[PATH_MAX], to[PATH_MAX];
	int r = 0, fd;
	size_t i;

	if (mkdir(plain, 0700) < 0)
		return -errno;
	for (i = 0; i < rig->size->blocks && r == 0; i++) {
		kv_bench_rig_path(plain, &rig->keys[i], to, sizeof(to));
		*strrchr(to, '/') = 0;
		mkdir(to, 0700);
		kv_bench_rig_path(plain, &rig->keys[i], to, sizeof(to));
		kv_bench_rig_path(mount, &rig->keys[i], from, sizeof(from));
		r = copy_file(from, to, buffer);
	}
	fd = open(plain, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0) {
		syncfs(fd);
		close(fd);
	}
	return r;
}

/* First and second read of all files below @root, in GB/s. */
static int read_twice(struct kv_bench_rig *rig, const char *root, char *buffer,
		      double *ret_speeds)
{
	long bytes = for_each_file(rig, root, drop_file, -1, buffer);
	uint64_t begin;
	int i;

	for (i = 0; i < 2 && bytes >= 0; i++) {
		begin = kv_bench_now();
		bytes = for_each_file(rig, root, read_file, -1, buffer);
		ret_speeds[i] =
			(double)bytes / (double)(kv_bench_now() - begin);
	}
	return bytes < 0 ? (int)bytes : 0;
}

static void report(struct kv_bench_rig *rig, const char *figure_name,
		   struct kv_bench_sample *mount, struct kv_bench_sample *plain,
		   double goal)
{
	char name[64], against[64], words[32] = "";
	struct kv_bench_figure figure = {
		.name = name,
		.value = kv_bench_sample_median(mount),
		.reference = kv_bench_sample_median(plain),
		.unit = "GB/s",
		.against = against,
		.goal = words,
	};

	figure.ratio = figure.value / figure.reference;
	figure.met = figure.ratio >= goal;
	snprintf(name, sizeof(name), "%s_%s", figure_name, rig->size->suffix);
	snprintf(against, sizeof(against), "the same on %s",
		 kv_bench_filesystem(rig->bench->dir));
	if (goal > 0)
		snprintf(words, sizeof(words), "ratio >= %.1f", goal);
	kv_bench_report_add(rig->bench->report, &figure);
}

static int measure(struct kv_bench_rig *rig, const char *mount,
		   const char *plain, char *buffer)
{
	unsigned rounds = rig->bench->quick ? ROUNDS_QUICK : ROUNDS, round;
	struct kv_bench_sample series[SERIES] = {0};
	double speeds[SERIES];
	int r = 0, i;

	for (round = 0; round <= rounds && r == 0; round++) {
		r = read_twice(rig, mount, buffer, &speeds[MOUNT_FIRST]);
		if (r == 0)
			r = read_twice(rig, plain, buffer,
				       &speeds[PLAIN_FIRST]);
		for (i = 0; i < SERIES && round > 0; i++)
			kv_bench_sample_add(&series[i], speeds[i]);
	}
	if (r == 0) {
		report(rig, "read_mount_second", &series[MOUNT_SECOND],
		       &series[PLAIN_SECOND], 0.55);
		report(rig, "read_mount_first", &series[MOUNT_FIRST],
		       &series[PLAIN_FIRST], 0);
	}
	for (i = 0; i < SERIES; i++)
		kv_bench_sample_fini(&series[i]);
	return r;
}

int kv_bench_mount(struct kv_bench_rig *rig)
{
	char mount[PATH_MAX], plain[PATH_MAX];
	char *buffer = aligned_alloc(4096, BUFFER);
	int r;

	if (!buffer)
		return -ENOMEM;
	snprintf(mount, sizeof(mount), "%.4000s/" KV_BENCH_SPACE,
		 rig->daemon.mount);
	snprintf(plain, sizeof(plain), "%s/plain", rig->bench->dir);
	r = copy_files(rig, mount, plain, buffer);
	if (r == 0)
		r = measure(rig, mount, plain, buffer);
	kv_bench_remove(plain);
	free(buffer);
	return r;
}
