/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open.c - the store's directories and its lock.
 *
 * A check changes nothing: it locks for reading, which keeps a daemon out and
 * needs no right to write.
 *
 * OWNS     the descriptors of struct fsck.
 * LOCKING  STORE/lock, as the daemon takes it.
 */
#include "tools/fsck/fsck.h"
#include "index/sidecar.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/stat.h>

int fsck_error(const char *format, ...)
{
	va_list args;

	fsck_progress_end();
	fprintf(stderr, "kvfs-fsck: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\n");
	return -EIO;
}

static int in_use(struct fsck *f)
{
	_cleanup_(kv_closep) int fd =
		openat(f->store, "lock",
		       O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	char pid[32] = {0};

	if (fd < 0 || pread(fd, pid, sizeof(pid) - 1, 0) < 0)
		pid[0] = 0;
	return fsck_error("%s: in use by a daemon (pid %ld): umount it first",
			  f->path, strtol(pid, NULL, 10));
}

static int take_lock(struct fsck *f)
{
	const bool write = f->repair || f->rebuild;
	struct flock lock = {.l_type = write ? F_WRLCK : F_RDLCK};
	struct stat st;

	if (flock(f->store, (write ? LOCK_EX : LOCK_SH) | LOCK_NB) < 0 &&
	    errno == EWOULDBLOCK)
		return in_use(f);
	f->lock = openat(f->store, "lock",
			 (write ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC |
				 O_NOFOLLOW | O_NONBLOCK,
			 0600);
	if (f->lock < 0 && errno == ENOENT)
		return 0; /* nobody ever mounted it */
	if (f->lock < 0)
		return fsck_error("%s: cannot lock it: %s", f->path,
				  strerror(errno));
	if (fstat(f->lock, &st) < 0 || !S_ISREG(st.st_mode))
		return fsck_error("%s: its lock is not a file", f->path);
	if (fcntl(f->lock, F_OFD_SETLK, &lock) == 0)
		return 0;
	if (errno != EAGAIN && errno != EACCES)
		return fsck_error("%s: cannot lock it: %s", f->path,
				  strerror(errno));
	return in_use(f);
}

static int open_dir(struct fsck *f, const char *name)
{
	int fd = openat(f->store, name,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

	return fd < 0 ? -errno : fd;
}

static bool is_store(const struct fsck *f)
{
	return faccessat(f->store, "index", F_OK, AT_SYMLINK_NOFOLLOW) == 0 ||
	       kv_store_file_there(f->store);
}

int fsck_open(struct fsck *f)
{
	int index;

	f->store = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->store < 0)
		return fsck_error("%s: %s", f->path, strerror(errno));
	if (!is_store(f))
		return fsck_error("%s: not a kvfs store", f->path);
	if (take_lock(f) < 0)
		return -EIO;
	index = open_dir(f, "index");
	if (index >= 0)
		close(index);
	f->segments_dir = open_dir(f, "segments");
	f->spaces_dir = f->repair ? kv_spaces_dir(f->store, true)
				  : open_dir(f, "spaces");
	if ((index < 0 && index != -ENOENT) ||
	    (f->segments_dir < 0 && f->segments_dir != -ENOENT) ||
	    (f->spaces_dir < 0 && f->spaces_dir != -ENOENT))
		return fsck_error("%s: index, segments and spaces must be "
				  "directories that one may read",
				  f->path);
	if (snprintf(f->index_path, sizeof(f->index_path), "%s/index",
		     f->path) >= (int)sizeof(f->index_path))
		return fsck_error("%s: the name is too long", f->path);
	return 0;
}

void fsck_close(struct fsck *f)
{
	const int fds[] = {f->segments_dir, f->spaces_dir, f->lock, f->store};

	for (size_t i = 0; i < KV_ARRAY_LEN(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	for (size_t i = 0; i < f->n_spaces; i++) {
		free(f->spaces[i].name);
		free(f->spaces[i].layout);
	}
	free(f->spaces);
	free(f->entries);
	free(f->segments);
	free(f->bad_slots);
	free(f->stale);
	free(f->stray_files);
	free(f->unknown);
}

int fsck_more(void *array, size_t n, size_t size)
{
	void **data = array;
	void *bigger;

	if (n & (n - 1))
		return 0;
	bigger = reallocarray(*data, n ? n * 2 : 1, size);
	if (!bigger)
		return -ENOMEM;
	*data = bigger;
	return 0;
}
