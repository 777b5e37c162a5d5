/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errno_files.c SPACE KEY FILE - calls on open files and attributes: each call that is not
 * in kvfs-space(5) must return its errno.
 *
 * OWNS      nothing that outlives a case: each case closes and removes what it made.
 *
 * LOCKING   none.
 */
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "tests/mount/errno.h"

/* Open a block, run a call on it, close. */
#define ON(flags, call)                              \
	({                                           \
		int fd = open(block, flags), result; \
		assert(fd >= 0);                     \
		result = err(call);                  \
		close(fd);                           \
		result;                              \
	})

static int ftruncate_read_only(void)
{
	return ON(O_RDONLY, ftruncate(fd, 0));
}

static int write_read_only(void)
{
	return ON(O_RDONLY, write(fd, "x", 1));
}

static int fallocate_read_only(void)
{
	return ON(O_RDONLY, fallocate(fd, 0, 0, 4096));
}

static int draft(void)
{
	int fd = open(absent, O_RDWR | O_CREAT | O_EXCL, 0600);

	assert(fd >= 0);
	return fd;
}

static int fallocate_draft(void)
{
	int fd = draft(), r = err(fallocate(fd, 0, 0, 4096));

	close(fd);
	return r;
}

static int punch_draft(void)
{
	int fd = draft();
	int r = err(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			      4096));

	close(fd);
	return r;
}

static int grow_draft(void)
{
	int fd = draft(), r = err(ftruncate(fd, 4096));

	close(fd);
	return r;
}

static int map_draft_shared(void)
{
	int fd = draft(), r;
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	r = p == MAP_FAILED ? errno : 0;
	close(fd);
	return r;
}

static int write_draft_past_any_block(void)
{
	int fd = draft(), r = err(pwrite(fd, "x", 1, INT64_MAX - 4096));

	close(fd);
	return r;
}

static int clone_to_draft(void)
{
	int from = open(block, O_RDONLY), fd = draft();
	int r = err(ioctl(fd, FICLONE, from));

	close(fd);
	close(from);
	return r;
}

static int copy_range_to_draft(void)
{
	int from = open(block, O_RDONLY), fd = draft(), r;
	struct stat st;
	ssize_t n;

	fstat(from, &st);
	do
		n = copy_file_range(from, NULL, fd, NULL, (size_t)st.st_size,
				    0);
	while (n > 0);
	r = err(n);
	r = r != 0 ? r : err(close(fd));
	close(from);
	return r != 0 ? r : err(unlink(absent));
}

static int send_file(void)
{
	int from = open(sample, O_RDONLY), fd = draft(), r;
	struct stat st;
	ssize_t n;

	fstat(from, &st);
	do
		n = sendfile(fd, from, NULL, (size_t)st.st_size);
	while (n > 0);
	r = err(n);
	r = r != 0 ? r : err(close(fd));
	close(from);
	return r != 0 ? r : err(unlink(absent));
}

static int map_for_writing(void)
{
	void *p = MAP_FAILED;
	int r = ON(O_RDONLY, ((p = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
					MAP_SHARED, fd, 0)) == MAP_FAILED
				      ? -1
				      : 0));

	if (p != MAP_FAILED)
		munmap(p, 4096);
	return r;
}

static int map_privately(void)
{
	char *p = MAP_FAILED;
	int r = ON(O_RDONLY, ((p = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
					MAP_PRIVATE, fd, 0)) == MAP_FAILED
				      ? -1
				      : 0));

	if (p == MAP_FAILED)
		return r;
	p[0]++;
	munmap(p, 4096);
	return r;
}

static int run_as_program(void)
{
	char *argv[] = {block, NULL};

	execv(block, argv);
	return errno;
}

static int some_ioctl(void)
{
	return ON(O_RDONLY, ioctl(fd, 0x5301));
}

static int ioctl_on_directory(void)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY), r = err(ioctl(fd, 0x5301));

	close(fd);
	return r;
}

static int get_flags(void)
{
	int flags;

	return ON(O_RDONLY, ioctl(fd, FS_IOC_GETFLAGS, &flags));
}

static int fiemap(void)
{
	struct fiemap map = {.fm_length = 4096};

	return ON(O_RDONLY, ioctl(fd, FS_IOC_FIEMAP, &map));
}

static int flock_exclusively(void)
{
	return ON(O_RDONLY, flock(fd, LOCK_EX | LOCK_NB));
}

static int lock_for_reading(void)
{
	struct flock lock = {.l_type = F_RDLCK};

	return ON(O_RDONLY, fcntl(fd, F_SETLK, &lock));
}

static int seek_data_past_the_end(void)
{
	return ON(O_RDONLY, lseek(fd, INT64_C(1) << 40, SEEK_DATA));
}

static int seek_hole_past_the_end(void)
{
	return ON(O_RDONLY, lseek(fd, INT64_C(1) << 40, SEEK_HOLE));
}

static int sync_file(void)
{
	return ON(O_RDONLY, fsync(fd) | fdatasync(fd));
}

static int sync_fs(void)
{
	return ON(O_RDONLY, syncfs(fd));
}

static int advise(void)
{
	return ON(O_RDONLY,
		  posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED) == 0 ? 0 : -1);
}

static int set_acl(void)
{
	static const char acl[] = "\2\0\0\0\1\0\6\0\377\377\377\377"
				  "\4\0\4\0\377\377\377\377"
				  "\40\0\4\0\377\377\377\377";

	return err(setxattr(block, "system.posix_acl_access", acl,
			    sizeof(acl) - 1, 0));
}

static int set_user_attribute(void)
{
	return err(setxattr(block, "user.other", "x", 1, 0));
}

static int get_into_too_small_a_buffer(void)
{
	char c;

	return err(getxattr(block, "user.kvfs.digest", &c, 1));
}

static int list_into_too_small_a_buffer(void)
{
	char c;

	return err(listxattr(block, &c, 1));
}

static int create_the_pin(void)
{
	return err(setxattr(block, "user.kvfs.pin", "0", 1, XATTR_CREATE));
}

static int replace_the_pin(void)
{
	return err(setxattr(block, "user.kvfs.pin", "0", 1, XATTR_REPLACE));
}

static int remove_unknown_attribute(void)
{
	return err(removexattr(block, "user.other"));
}

static int change_mode(void)
{
	return err(chmod(block, 0777));
}

static int change_times(void)
{
	return err(utimensat(AT_FDCWD, block, NULL, 0));
}

static const struct kv_case cases[] = {
	CASE(ftruncate_read_only, EINVAL),
	CASE(write_read_only, EBADF),
	CASE(fallocate_read_only, EBADF),
	CASE(fallocate_draft, EOPNOTSUPP),
	CASE(punch_draft, EOPNOTSUPP),
	CASE(grow_draft, EINVAL),
	CASE(map_draft_shared, ENODEV),
	CASE(write_draft_past_any_block, EFBIG),
	CASE(clone_to_draft, EOPNOTSUPP),
	CASE(copy_range_to_draft, 0),
	CASE(send_file, 0),
	CASE(map_for_writing, EACCES),
	CASE(map_privately, 0),
	CASE(run_as_program, EACCES),
	CASE(some_ioctl, ENOTTY),
	CASE(ioctl_on_directory, ENOTTY),
	CASE(get_flags, ENOTTY),
	CASE(fiemap, EOPNOTSUPP),
	CASE(flock_exclusively, 0),
	CASE(lock_for_reading, 0),
	CASE(seek_data_past_the_end, ENXIO),
	CASE(seek_hole_past_the_end, ENXIO),
	CASE(sync_file, 0),
	CASE(sync_fs, 0),
	CASE(advise, 0),
	CASE(set_acl, EOPNOTSUPP),
	CASE(set_user_attribute, EOPNOTSUPP),
	CASE(get_into_too_small_a_buffer, ERANGE),
	CASE(list_into_too_small_a_buffer, ERANGE),
	CASE(create_the_pin, EEXIST),
	CASE(replace_the_pin, 0),
	CASE(remove_unknown_attribute, ENODATA),
	CASE(change_mode, 0),
	CASE(change_times, 0),
};

int main(int argc, char **argv)
{
	return run_cases(argc, argv, cases, KV_ARRAY_LEN(cases));
}
