/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio.c - what the disk gives: fio with O_DIRECT, io_uring, queue depth 32.
 *
 * OWNS      the fio process, and its output file while it is read.
 *
 * INVARIANTS
 *   (1) fio has what the daemon has: 2 MiB pages and registered buffers.
 *       With neither it is half as fast (measured), and no reference.
 *
 * LOCKING   none.
 */
#include "tools/bench/fio.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define CHUNK (1u << 20)

static int write_all(int fd, const char *data, size_t n)
{
	ssize_t r;

	for (; n; data += r, n -= (size_t)r) {
		r = write(fd, data, n);
		if (r < 0)
			return -errno;
	}
	return 0;
}

int kv_bench_fio_file(const char *path, uint64_t bytes)
{
	char *chunk = malloc(CHUNK);
	uint64_t done;
	int r = 0, fd;

	if (!chunk)
		return -ENOMEM;
	for (done = 0; done < CHUNK; done += 256)
		if (getrandom(chunk + done, 256, 0) != 256)
			r = -EIO;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		r = -errno;
	for (done = 0; done < bytes && r == 0; done += CHUNK)
		r = write_all(fd, chunk, CHUNK);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	/* fio should find the disk's bytes, not ours in memory. */
	if (r == 0)
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (fd >= 0)
		close(fd);
	free(chunk);
	return r;
}

/* The number after "bw_bytes" in the object @section of fio's JSON. */
static int parse_speed(const char *path, const char *section, double *ret_speed)
{
	char text[65536], *at;
	FILE *f = fopen(path, "re");
	size_t n;

	if (!f)
		return -errno;
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = 0;
	at = strstr(text, section);
	at = at ? strstr(at, "\"bw_bytes\"") : NULL;
	at = at ? strchr(at, ':') : NULL;
	if (!at)
		return -EIO;
	*ret_speed = strtod(at + 1, NULL) / 1e9;
	return *ret_speed > 0 ? 0 : -EIO;
}

static int run_fio(struct kv_bench_children *children, char *const argv[],
		   const char *path, const char *section, double *ret_speed)
{
	char log[PATH_MAX];
	pid_t pid;
	int r;

	snprintf(log, sizeof(log), "%s.json", path);
	r = kv_bench_child_start(children, argv, log, &pid);
	if (r < 0)
		return r;
	r = kv_bench_child_wait(children, pid);
	if (r == 0)
		r = parse_speed(log, section, ret_speed);
	else
		r = -EIO;
	unlink(log);
	return r;
}

/* @writers: 0 reads. */
static int fio(struct kv_bench_children *children, const char *path,
	       uint64_t block, uint64_t bytes, unsigned writers,
	       double *ret_speed)
{
	const bool writing = writers > 0;
	const unsigned n = writing ? writers : 1;
	const uint64_t part = bytes / n;
	char name[PATH_MAX + 16], bs[32], size[32], jobs[32], next[48];
	char *argv[] = {"env",
			"GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
			"fio",
			"--name=reference",
			"--ioengine=io_uring",
			"--direct=1",
			"--iodepth=32",
			"--registerfiles=1",
			"--output-format=json",
			name,
			bs,
			size,
			jobs,
			next,
			"--group_reporting",
			writing ? "--rw=write" : "--rw=read",
			writing ? "--end_fsync=1" : "--end_fsync=0",
			"--fixedbufs=1",
			NULL};
	const char *section = writing ? "\"write\" :" : "\"read\" :";
	size_t last = sizeof(argv) / sizeof(argv[0]) - 2;
	int r;

	snprintf(name, sizeof(name), "--filename=%s", path);
	snprintf(bs, sizeof(bs), "--bs=%llu", (unsigned long long)block);
	snprintf(size, sizeof(size), "--size=%llu", (unsigned long long)part);
	snprintf(jobs, sizeof(jobs), "--numjobs=%u", n);
	snprintf(next, sizeof(next), "--offset_increment=%llu",
		 (unsigned long long)part);
	r = run_fio(children, argv, path, section, ret_speed);
	if (r != -EIO)
		return r;
	/* Without privileges the limit of locked memory may be too low. */
	argv[last] = NULL;
	return run_fio(children, argv, path, section, ret_speed);
}

int kv_bench_fio_read(struct kv_bench_children *children, const char *path,
		      uint64_t block, uint64_t bytes, double *ret_speed)
{
	return fio(children, path, block, bytes, 0, ret_speed);
}

int kv_bench_fio_write(struct kv_bench_children *children, const char *path,
		       uint64_t block, uint64_t bytes, unsigned writers,
		       double *ret_speed)
{
	int r = 0, fd;

	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (fallocate(fd, 0, 0, (off_t)bytes) < 0 || fsync(fd) < 0)
		r = -errno;
	close(fd);
	if (r == 0)
		r = fio(children, path, block, bytes, writers, ret_speed);
	unlink(path);
	return r;
}
