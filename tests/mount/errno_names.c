/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errno_names.c SPACE KEY FILE - calls on names: each call that is not in kvfs-space(5)
 * must return its errno.
 *
 * OWNS      nothing that outlives a case: each case closes and removes what it made.
 *
 * LOCKING   none.
 */
#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/mount/errno.h"

static int try_open(const char *path, int flags)
{
	int fd = open(path, flags, 0600), r = fd < 0 ? errno : 0;

	if (fd >= 0)
		close(fd);
	return r;
}

static int open_for_writing(void)
{
	return try_open(block, O_WRONLY);
}

static int open_for_both(void)
{
	return try_open(block, O_RDWR);
}

static int open_to_truncate(void)
{
	return try_open(block, O_WRONLY | O_CREAT | O_TRUNC);
}

static int open_to_read_and_truncate(void)
{
	return try_open(block, O_RDONLY | O_TRUNC);
}

static int open_to_append(void)
{
	return try_open(block, O_WRONLY | O_APPEND);
}

static int open_exclusively(void)
{
	return try_open(block, O_WRONLY | O_CREAT | O_EXCL);
}

static int open_as_directory(void)
{
	return try_open(block, O_RDONLY | O_DIRECTORY);
}

static int open_directory_for_writing(void)
{
	return try_open(dir, O_WRONLY);
}

static int open_tmpfile(void)
{
	return try_open(dir, O_TMPFILE | O_WRONLY);
}

static int truncate_to_zero(void)
{
	return err(truncate(block, 0));
}

static int truncate_longer(void)
{
	return err(truncate(block, 1 << 30));
}

static int hard_link(void)
{
	return err(link(block, absent));
}

static int soft_link(void)
{
	return err(symlink("x", absent));
}

static int soft_link_in_a_space(void)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/link", space);
	return err(symlink("x", path));
}

static int make_file_by_mknod(void)
{
	int r = err(mknod(absent, S_IFREG | 0600, 0));

	return r != 0 ? r : err(unlink(absent));
}

static int make_device(void)
{
	return err(mknod(absent, S_IFCHR | 0600, 0x103));
}

static int make_fifo(void)
{
	return err(mkfifo(absent, 0600));
}

static int bind_socket(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), r;

	assert(chdir(dir) == 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s",
		 strrchr(absent, '/') + 1);
	r = err(bind(fd, (struct sockaddr *)&address, sizeof(address)));
	close(fd);
	assert(chdir("/") == 0);
	return r;
}

static int rename_block(void)
{
	return err(rename(block, absent));
}

static int rename_block_to_directory(void)
{
	return err(rename(block, other_dir));
}

static int rename_directory(void)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/fe", space);
	return err(rename(dir, path));
}

static int rename_space(void)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s-renamed", space);
	return err(rename(space, path));
}

static int exchange(void)
{
	return err(renameat2(AT_FDCWD, block, AT_FDCWD, other_dir,
			     RENAME_EXCHANGE));
}

static int mkdir_over_block(void)
{
	return err(mkdir(block, 0700));
}

static int rmdir_block(void)
{
	return err(rmdir(block));
}

static int unlink_directory(void)
{
	return err(unlink(dir));
}

static int rmdir_full_directory(void)
{
	return err(rmdir(dir));
}

static int read_link(void)
{
	char buffer[64];

	return err(readlink(block, buffer, sizeof(buffer)));
}

static int list_block(void)
{
	DIR *d = opendir(block);

	if (d != NULL)
		closedir(d);
	return d == NULL ? errno : 0;
}

static int look_below_block(void)
{
	char path[4096];
	struct stat st;

	snprintf(path, sizeof(path), "%s/x", block);
	return err(stat(path, &st));
}

static const struct kv_case cases[] = {
	CASE(open_for_writing, EPERM),
	CASE(open_for_both, EPERM),
	CASE(open_to_truncate, EPERM),
	CASE(open_to_read_and_truncate, EPERM),
	CASE(open_to_append, EPERM),
	CASE(open_exclusively, EEXIST),
	CASE(open_as_directory, ENOTDIR),
	CASE(open_directory_for_writing, EISDIR),
	CASE(open_tmpfile, EOPNOTSUPP),
	CASE(truncate_to_zero, EPERM),
	CASE(truncate_longer, EPERM),
	CASE(hard_link, EPERM),
	CASE(soft_link, EPERM),
	CASE(soft_link_in_a_space, EPERM),
	CASE(make_file_by_mknod, 0),
	CASE(make_device, EPERM),
	CASE(make_fifo, EPERM),
	CASE(bind_socket, EPERM),
	CASE(rename_block, EPERM),
	CASE(rename_block_to_directory, EISDIR),
	CASE(rename_directory, EPERM),
	CASE(rename_space, EPERM),
	CASE(exchange, EINVAL),
	CASE(mkdir_over_block, EEXIST),
	CASE(rmdir_block, ENOTDIR),
	CASE(unlink_directory, EISDIR),
	CASE(rmdir_full_directory, ENOTEMPTY),
	CASE(read_link, EINVAL),
	CASE(list_block, ENOTDIR),
	CASE(look_below_block, ENOTDIR),
};

int main(int argc, char **argv)
{
	return run_cases(argc, argv, cases, KV_ARRAY_LEN(cases));
}
