/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.c - the daemon under test, on a fresh store, and the directory below
 * which everything of one run lies.
 *
 * OWNS      the daemon's process, its store and mount point.
 *
 * LOCKING   none.
 */
#include "tools/bench/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench/clock.h"

#define TIMEOUT_MS 20000

int kv_bench_workdir_make(const char *dir, const char *build, char **ret_path)
{
	char template[PATH_MAX], *path;

	if (dir)
		snprintf(template, sizeof(template), "%s/kvfs-bench-XXXXXX",
			 dir);
	else
		snprintf(template, sizeof(template), "%s-bench-XXXXXX", build);
	if (!mkdtemp(template))
		return -errno;
	path = realpath(template, NULL);
	if (!path)
		return -errno;
	*ret_path = path;
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	remove(path);
	return 0;
}

void kv_bench_remove(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* A dead daemon's mount answers ENOTCONN. */
static int is_mounted(const char *mount, const char *path)
{
	struct stat at, above;

	if (stat(mount, &at) < 0)
		return errno != ENOENT;
	return stat(path, &above) == 0 && at.st_dev != above.st_dev;
}

/* Take away a mount, also one whose daemon is dead. */
static void unmount(const char *mount)
{
	pid_t pid;

	if (umount2(mount, MNT_DETACH) == 0)
		return;
	pid = fork();
	if (pid == 0) {
		execlp("fusermount3", "fusermount3", "-uzq", mount, NULL);
		_exit(127);
	}
	if (pid > 0)
		waitpid(pid, NULL, 0);
}

void kv_bench_workdir_remove(const char *path)
{
	char mount[PATH_MAX];

	snprintf(mount, sizeof(mount), "%s/mnt", path);
	if (is_mounted(mount, path))
		unmount(mount);
	kv_bench_remove(path);
}

const char *kv_bench_filesystem(const char *path)
{
	struct statfs fs;

	if (statfs(path, &fs) < 0)
		return "?";
	switch ((unsigned long)fs.f_type) {
	case EXT4_SUPER_MAGIC:
		return "ext4";
	case XFS_SUPER_MAGIC:
		return "xfs";
	case BTRFS_SUPER_MAGIC:
		return "btrfs";
	case TMPFS_MAGIC:
		return "tmpfs";
	case OVERLAYFS_SUPER_MAGIC:
		return "overlayfs";
	default:
		return "file system";
	}
}

static void show_last_words(const struct kv_bench_daemon *daemon)
{
	char line[512];
	FILE *f = fopen(daemon->log, "re");

	while (f && fgets(line, sizeof(line), f))
		fprintf(stderr, "kvfs: %s", line);
	if (f)
		fclose(f);
}

static int wait_for_mount(struct kv_bench_daemon *daemon)
{
	char control[PATH_MAX + 16];
	unsigned waited;

	snprintf(control, sizeof(control), "%s/.kvfs/control", daemon->mount);
	for (waited = 0; waited < TIMEOUT_MS; waited += 10) {
		if (access(control, F_OK) == 0)
			return 0;
		if (!kv_bench_child_alive(daemon->children, daemon->pid)) {
			show_last_words(daemon);
			return -EIO;
		}
		kv_bench_sleep_ms(10);
	}
	return -ETIMEDOUT;
}

int kv_bench_daemon_start(struct kv_bench_children *children, const char *build,
			  const char *dir, const char *options,
			  struct kv_bench_daemon *ret_daemon)
{
	struct kv_bench_daemon *daemon = ret_daemon;
	char program[PATH_MAX];
	char *argv[] = {program,       "-f",	      "-o", (char *)options,
			daemon->store, daemon->mount, NULL};
	int r;

	*daemon = (struct kv_bench_daemon){.children = children};
	snprintf(program, sizeof(program), "%s/kvfs", build);
	snprintf(daemon->store, sizeof(daemon->store), "%s/store", dir);
	snprintf(daemon->mount, sizeof(daemon->mount), "%s/mnt", dir);
	snprintf(daemon->log, sizeof(daemon->log), "%s/kvfs.log", dir);
	if (mkdir(daemon->mount, 0700) < 0 && errno != EEXIST)
		return -errno;
	unlink(daemon->log);
	r = kv_bench_child_start(children, argv, daemon->log, &daemon->pid);
	if (r == 0)
		r = wait_for_mount(daemon);
	return r;
}

void kv_bench_daemon_end(struct kv_bench_daemon *daemon)
{
	kv_bench_child_end(daemon->children, daemon->pid);
	daemon->pid = 0;
}

void kv_bench_daemon_kill(struct kv_bench_daemon *daemon)
{
	kill(daemon->pid, SIGKILL);
	kv_bench_child_wait(daemon->children, daemon->pid);
	unmount(daemon->mount);
	daemon->pid = 0;
}

void kv_bench_daemon_stop(struct kv_bench_daemon *daemon)
{
	if (daemon->pid <= 0)
		return;
	kv_bench_daemon_end(daemon);
	kv_bench_remove(daemon->store);
	*daemon = (struct kv_bench_daemon){0};
}

/* Processor time of all its threads, in clock ticks; -1: gone. */
static long ticks_of(const struct kv_bench_daemon *daemon)
{
	long user = -1, kernel = -1;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)daemon->pid);
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fscanf(f,
		   "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld "
		   "%ld",
		   &user, &kernel) != 2)
		user = kernel = -1;
	fclose(f);
	return user < 0 ? -1 : user + kernel;
}

/* The line @name of /proc/PID/status, in bytes; -errno. */
static long status_of(const struct kv_bench_daemon *daemon, const char *name)
{
	char path[64], line[256];
	long kib = 0;
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)daemon->pid);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	while (!found && fgets(line, sizeof(line), f))
		found = strncmp(line, name, strlen(name)) == 0 &&
			sscanf(line + strlen(name), ": %ld", &kib) == 1;
	fclose(f);
	return found ? kib * 1024 : -EIO;
}

void kv_bench_daemon_settle(const struct kv_bench_daemon *daemon,
			    uint64_t arena)
{
	long before = ticks_of(daemon), now, shared;
	unsigned waited, quiet = 0;

	for (waited = 0; waited < TIMEOUT_MS && quiet < 3; waited += 100) {
		kv_bench_sleep_ms(100);
		now = ticks_of(daemon);
		shared = status_of(daemon, "RssShmem") +
			 status_of(daemon, "HugetlbPages");
		quiet = now - before <= 1 && shared >= (long)arena ? quiet + 1
								   : 0;
		before = now;
	}
}

long kv_bench_daemon_anonymous(const struct kv_bench_daemon *daemon)
{
	return status_of(daemon, "RssAnon");
}
