/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd.c - many processes that repeat one operation, and one process that measures how
 * long a call takes.
 *
 *     crowd PROCESSES read|stat|list|xattr|write PATH
 *           until the input ends; print how many calls succeeded.  Started by
 *           root: run as uid 4001, each process with a gid of its own.  For
 *           "write" PATH is the directory 01 of a space
 *     crowd time CALLS PATH      print the p50 and p99 of open, read to the end and
 *                                close, in microseconds; the kernel's cached pages
 *                                of the file are dropped before each call
 *
 * OWNS      its processes.
 *
 * LOCKING   none: one thread a process.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "common/kv.h"

static char bytes[1 << 20];

static bool read_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = 0;

	if (fd < 0)
		return false;
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	while ((n = read(fd, bytes, sizeof(bytes))) > 0)
		;
	close(fd);
	return n == 0;
}

static bool stat_file(const char *path)
{
	struct statx st;

	return statx(AT_FDCWD, path, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS,
		     &st) == 0;
}

static bool list_dir(const char *path)
{
	DIR *dir = opendir(path);

	if (!dir)
		return false;
	while (readdir(dir))
		;
	closedir(dir);
	return true;
}

static bool get_xattr(const char *path)
{
	return getxattr(path, "user.kvfs.rate.put", bytes, sizeof(bytes)) >= 0;
}

/* Write a file that is never complete, so that the daemon must answer every
 * write. */
static bool write_file(const char *path)
{
	static char name[4096];
	int fd;

	snprintf(name, sizeof(name), "%s/01%030x", path, getpid());
	fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return false;
	(void)!pwrite(fd, bytes, sizeof(bytes), 0);
	unlink(name);
	close(fd);
	return true;
}

static const struct {
	const char *name;
	bool (*act)(const char *path);
} acts[] = {{"read", read_file},
	    {"stat", stat_file},
	    {"list", list_dir},
	    {"xattr", get_xattr},
	    {"write", write_file}};

static int by_value(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static int measure(size_t n, const char *path)
{
	uint64_t *took = calloc(n, sizeof(*took));

	for (size_t i = 0; took && i < n; i++) {
		const uint64_t began = kv_now_ns();

		if (!read_file(path)) {
			perror(path);
			return 1;
		}
		took[i] = kv_now_ns() - began;
	}
	if (!took || n == 0)
		return 2;
	qsort(took, n, sizeof(*took), by_value);
	printf("%.1f %.1f\n", (double)took[n / 2] / 1e3,
	       (double)took[n * 99 / 100] / 1e3);
	free(took);
	return 0;
}

int main(int argc, char **argv)
{
	struct {
		_Atomic uint64_t done;
		_Atomic bool stop;
	} * all;
	const pid_t self = getpid();
	size_t act = 0;

	if (argc == 4 && strcmp(argv[1], "time") == 0)
		return measure(strtoul(argv[2], NULL, 10), argv[3]);
	while (argc == 4 && act < KV_ARRAY_LEN(acts) &&
	       strcmp(argv[2], acts[act].name) != 0)
		act++;
	if (argc != 4 || act == KV_ARRAY_LEN(acts))
		return 2;
	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED)
		return 1;
	for (long n = strtol(argv[1], NULL, 10); n > 0; n--)
		if (fork() == 0) {
			if (getuid() == 0 &&
			    (setgroups(0, NULL) < 0 ||
			     setgid(4001 + (gid_t)n) < 0 || setuid(4001) < 0))
				_exit(1);
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != self)
				_exit(1);
			while (!all->stop)
				all->done += acts[act].act(argv[3]);
			_exit(0);
		}
	while (read(STDIN_FILENO, bytes, sizeof(bytes)) > 0)
		;
	all->stop = true;
	while (wait(NULL) > 0)
		;
	printf("%llu\n", (unsigned long long)all->done);
	return 0;
}
