/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lazy.c - serve a directory by FUSE, with the fault that the file FAULT names while it
 * exists: every call waits (an empty FAULT), is refused ("refusing"), or takes 80 ms
 * ("late"); a KiB a second is read and written of each file ("slow"); or no write succeeds
 * ("full").
 *
 *   lazy DIRECTORY FAULT MOUNTPOINT     until it is unmounted
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#define FUSE_USE_VERSION 312
#include <dirent.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <stdio.h>
#include <sys/stat.h>

#include "common/kv.h"

#define SLICE_US 10000u
#define LATE_US 80000u

static int root;
static const char *trouble;

/* Return true if the file `trouble` names the fault @what.  The fault "" means
 * that no call is answered. */
static bool is_fault(const char *what)
{
	char said[16] = "";
	int fd = open(trouble, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, said, sizeof(said) - 1);

	if (fd >= 0)
		close(fd);
	said[strcspn(said, "\n")] = '\0';
	return n >= 0 && strcmp(said, what) == 0;
}

/* Wait as the fault demands, and return the path below the directory; when calls
 * are refused, a path that cannot exist. */
static const char *below(const char *path)
{
	while (is_fault(""))
		usleep(SLICE_US);
	if (is_fault("late"))
		usleep(LATE_US);
	if (is_fault("refusing"))
		return "/dev/null/refused";
	return path[1] ? path + 1 : ".";
}

static void take_time(size_t bytes)
{
	for (size_t us = 0; us < bytes * 1000 && is_fault("slow");
	     us += SLICE_US)
		usleep(SLICE_US);
}

static int result(int r)
{
	if (r < 0)
		return errno == ENOTDIR ? -EACCES : -errno;
	return 0;
}

static int lazy_getattr(const char *path, struct stat *st,
			struct fuse_file_info *fi)
{
	(void)fi;
	return result(fstatat(root, below(path), st, AT_SYMLINK_NOFOLLOW));
}

static int lazy_mkdir(const char *path, mode_t mode)
{
	return result(mkdirat(root, below(path), mode));
}

static int lazy_unlink(const char *path)
{
	return result(unlinkat(root, below(path), 0));
}

static int lazy_rename(const char *from, const char *to, unsigned flags)
{
	return result(renameat2(root, below(from), root, to + 1, flags));
}

static int opened(struct fuse_file_info *fi, int fd)
{
	fi->fh = (uint64_t)fd;
	return result(fd);
}

static int lazy_open(const char *path, struct fuse_file_info *fi)
{
	return opened(fi, openat(root, below(path), fi->flags & ~O_NOFOLLOW));
}

static int lazy_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
	return opened(fi, openat(root, below(path), fi->flags | O_CREAT, mode));
}

static int lazy_read(const char *path, char *data, size_t n, off_t at,
		     struct fuse_file_info *fi)
{
	ssize_t got;

	below(path);
	take_time(n);
	got = pread((int)fi->fh, data, n, at);
	return got < 0 ? -errno : (int)got;
}

static int lazy_write(const char *path, const char *data, size_t n, off_t at,
		      struct fuse_file_info *fi)
{
	ssize_t put;

	below(path);
	if (is_fault("full"))
		return -ENOSPC;
	take_time(n);
	put = pwrite((int)fi->fh, data, n, at);
	return put < 0 ? -errno : (int)put;
}

static int lazy_release(const char *path, struct fuse_file_info *fi)
{
	(void)path;
	close((int)fi->fh);
	return 0;
}

static int lazy_readdir(const char *path, void *list, fuse_fill_dir_t add,
			off_t at, struct fuse_file_info *fi,
			enum fuse_readdir_flags flags)
{
	int fd = openat(root, below(path), O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	(void)at;
	(void)fi;
	(void)flags;
	if (!dir)
		return result(-1);
	while ((entry = readdir(dir)))
		add(list, entry->d_name, NULL, 0, 0);
	closedir(dir);
	return 0;
}

static void *lazy_init(struct fuse_conn_info *connection,
		       struct fuse_config *config)
{
	(void)connection;
	config->entry_timeout = config->attr_timeout = 0;
	config->negative_timeout = 0;
	return NULL;
}

static const struct fuse_operations calls = {
	.init = lazy_init,
	.getattr = lazy_getattr,
	.mkdir = lazy_mkdir,
	.unlink = lazy_unlink,
	.rename = lazy_rename,
	.open = lazy_open,
	.create = lazy_create,
	.read = lazy_read,
	.write = lazy_write,
	.release = lazy_release,
	.readdir = lazy_readdir,
};

int main(int argc, char **argv)
{
	char *args[] = {argv[0], (char *)"-f", NULL, NULL};

	if (argc != 4)
		return 1;
	root = open(argv[1], O_RDONLY | O_DIRECTORY);
	trouble = argv[2];
	args[2] = argv[3];
	return root < 0 ? 1 : fuse_main(3, args, &calls, NULL);
}
