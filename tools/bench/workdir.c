/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workdir.c - the directory below which everything of one run lies.
 *
 * OWNS      nothing in memory.
 *
 * LOCKING   none.
 */
#include "tools/bench/workdir.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

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

void kv_bench_unmount(const char *mount)
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
		kv_bench_unmount(mount);
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
