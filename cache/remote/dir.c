/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir.c - a backend in a directory: NFS, Lustre, a portable disk.  The reference for other
 * backends.
 *
 * An object is a file, and its note the file NAME.digest beside it.  Both are written in
 * .part and then renamed, the note last: without a note there is no object.  Only the
 * daemon's user may read them.
 *
 * Calls on such a filesystem may take any time, so threads make them.
 *
 * OWNS      the threads; operations from submit to reap.
 *
 * INVARIANTS
 *   (1) An operation is queued, in flight on one thread, or done.
 *   (2) An operation that succeeds was done in the directory to which the path leads.
 *
 * LOCKING   dir->lock for the queues; none during calls.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>

#include "cache/remote/backend.h"
#include "common/bytes.h"
#include "common/copy.h"
#include "common/thread.h"

#define THREADS 8u
#define NOTE ".digest"
#define PART ".part"
#define PART_SECONDS 86400 /* after that its writer is dead */
#define OPEN_NS UINT64_C(3000000000)
#define END_NS UINT64_C(1000000000)
#define IN_PROGRESS 1

struct dir {
	char *path; /* fixed */
	int fd;	    /* fixed; the directory that it leads to */
	pthread_mutex_t lock;
	pthread_cond_t wake, ended;
	struct kv_remote_ops queued;
	struct kv_done done;
	unsigned under_way, running;
	bool stop;
	pthread_t threads[THREADS];
};

struct path {
	char text[KV_OBJECT_NAME_MAX + 64];
};

static struct path path_of(const struct kv_remote_op *op, const char *suffix)
{
	struct path path;

	snprintf(path.text, sizeof(path.text), "%s%s", op->name, suffix);
	return path;
}

/* Return a name that no other thread, process or node uses. */
static struct path temporary(void)
{
	static _Atomic unsigned counter;
	struct path path;
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(path.text, sizeof(path.text), PART "/%lx.%lx.%lx.%x",
		 (long)now.tv_sec, (long)now.tv_nsec, (long)getpid(),
		 counter++);
	return path;
}

/* ---- reading ---- */

static int open_at(const struct dir *dir, const char *path, int flags)
{
	int fd = openat(dir->fd, path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);

	return fd < 0 ? -errno : fd;
}

/* Read up to @n bytes; returns their number, or -errno.  By read(2), as tests use a pipe
 * for a server that hangs and goes on. */
static long read_all(int fd, void *data, size_t n)
{
	size_t done = 0;

	while (done < n) {
		ssize_t got = read(fd, (uint8_t *)data + done, n - done);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		done += (size_t)got;
	}
	return (long)done;
}

static int read_note(const struct dir *dir, struct kv_remote_op *op)
{
	const struct path path = path_of(op, NOTE);
	_cleanup_(kv_closep) int fd = open_at(dir, path.text, O_RDONLY);
	char note[KV_OBJECT_NOTE_MAX + 1];
	long n;

	if (fd < 0)
		return fd == -ENOTDIR ? -ENOENT : fd;
	n = read_all(fd, note, sizeof(note));
	return n < 0 ? (int)n : kv_object_read_note(op, note, (size_t)n);
}

static int get(const struct dir *dir, struct kv_remote_op *op)
{
	_cleanup_(kv_closep) int fd = -1;
	struct stat st;
	long n;
	int r = op->noted ? 0 : read_note(dir, op);

	if (r < 0)
		return r;
	if (op->length > op->room)
		return -EFBIG;
	fd = open_at(dir, op->name, O_RDONLY);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != op->length)
		return -EBADMSG;
	n = read_all(fd, op->data, op->length);
	return n < 0 ? (int)n : (uint64_t)n == op->length ? 0 : -EBADMSG;
}

/* ---- writing ---- */

/* Make the directories above @name. */
static int make_parents(const struct dir *dir, const char *name)
{
	char path[KV_OBJECT_NAME_MAX + 1];

	for (const char *at = name; (at = strchr(at, '/')); at++) {
		memcpy(path, name, (size_t)(at - name));
		path[at - name] = '\0';
		if (mkdirat(dir->fd, path, 0700) < 0 && errno != EEXIST)
			return -errno;
	}
	return 0;
}

static int create(const struct dir *dir, const char *path, const void *data,
		  size_t n)
{
	int fd = open_at(dir, path, O_WRONLY | O_CREAT | O_EXCL);
	int r;

	if (fd < 0)
		return fd;
	r = kv_write_all(fd, data, n);
	/* NFS reports a full disk here. */
	if (close(fd) < 0 && r == 0)
		r = -errno;
	return r;
}

/* Rename @part to @path, unless that exists.  Not every filesystem has links. */
static int name_first(const struct dir *dir, const struct path *part,
		      const struct path *path)
{
	if (linkat(dir->fd, part->text, dir->fd, path->text, 0) == 0)
		return 0;
	if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS &&
	    errno != EMLINK)
		return -errno;
	return renameat2(dir->fd, part->text, dir->fd, path->text,
			 RENAME_NOREPLACE) < 0
		       ? -errno
		       : 0;
}

/* Write a whole file under the name @path; with @first only if that does not exist. */
static int put_file(const struct dir *dir, const struct path *path,
		    const void *data, size_t n, bool first)
{
	const struct path part = temporary();
	int r = create(dir, part.text, data, n);

	if (r == 0 && first)
		r = name_first(dir, &part, path);
	else if (r == 0 &&
		 renameat(dir->fd, part.text, dir->fd, path->text) < 0)
		r = -errno;
	if (r < 0 || first)
		unlinkat(dir->fd, part.text, 0);
	return r;
}

/* Put the note of an object without one: its writer has died, or is about to put the same
 * note. */
static int mend(const struct dir *dir, const struct kv_remote_op *op)
{
	struct kv_remote_op there = *op;
	const struct path note_path = path_of(op, NOTE);
	_cleanup_(kv_freep) uint8_t *data = NULL;
	_cleanup_(kv_closep) int fd = -1;
	char note[KV_OBJECT_NOTE_MAX];
	ssize_t n;
	int r = read_note(dir, &there);

	if (r != -ENOENT && r != -EBADMSG)
		return r;
	fd = open_at(dir, op->name, O_RDONLY | O_NONBLOCK);
	if (fd < 0)
		return fd;
	data = malloc(KV_LAYOUT_TEXT_MAX);
	n = data ? read_all(fd, data, KV_LAYOUT_TEXT_MAX) : -ENOMEM;
	if (n <= 0 || n == KV_LAYOUT_TEXT_MAX)
		return n < 0 ? (int)n : -EBADMSG;
	there.length = (uint64_t)n;
	there.digest = kv_digest_of(data, (size_t)n);
	return put_file(dir, &note_path, note, kv_object_note(&there, note),
			false);
}

static int try_to_put(const struct dir *dir, struct kv_remote_op *op)
{
	const struct path path = path_of(op, ""), note_path = path_of(op, NOTE);
	char note[KV_OBJECT_NOTE_MAX];
	size_t n = kv_object_note(op, note);
	int r = make_parents(dir, op->name);

	if (r == 0)
		r = put_file(dir, &path, op->data, op->length,
			     op->call == KV_REMOTE_PUBLISH);
	if (r == -EEXIST)
		mend(dir, op);
	return r < 0 ? r : put_file(dir, &note_path, note, n, false);
}

/* As try_to_put, also if another process has removed all files of the directory. */
static int put(const struct dir *dir, struct kv_remote_op *op)
{
	int r = try_to_put(dir, op);

	if (r != -ENOENT)
		return r;
	if (mkdirat(dir->fd, PART, 0700) < 0 && errno != EEXIST)
		return -errno;
	return try_to_put(dir, op);
}

static int remove_object(const struct dir *dir, const struct kv_remote_op *op)
{
	const struct path note = path_of(op, NOTE);
	int r = 0;

	if (unlinkat(dir->fd, note.text, 0) < 0)
		r = -errno;
	if (unlinkat(dir->fd, op->name, 0) < 0 && errno != ENOENT)
		return -errno;
	return r;
}

/* Remove the files of the folder; returns their number, or -errno. */
static int remove_files(int fd, DIR *folder)
{
	struct dirent *entry;
	int n = 0, r = 0;

	rewinddir(folder);
	while ((entry = readdir(folder))) {
		if (entry->d_name[0] == '.')
			continue;
		if (unlinkat(fd, entry->d_name, 0) == 0)
			n++;
		else if (errno != ENOENT)
			r = -errno;
	}
	return r < 0 ? r : n;
}

/* Remove all objects of a space.  A folder that changes may not list all files: repeat
 * until none is left. */
static int clear(const struct dir *dir, const struct kv_remote_op *op)
{
	struct path path = path_of(op, "");
	int fd, n, all = 0;
	DIR *folder;

	*strrchr(path.text, '/') = '\0';
	fd = open_at(dir, path.text, O_RDONLY | O_DIRECTORY);
	folder = fd < 0 ? NULL : fdopendir(fd);
	if (!folder) {
		n = fd < 0 ? fd : -errno;
		if (fd >= 0)
			close(fd);
		return n;
	}
	while ((n = remove_files(fd, folder)) > 0)
		all += n;
	closedir(folder);
	return n < 0 ? n : all ? 0 : -ENOENT;
}

/* ---- threads ---- */

static int open_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static int identify(int fd, const char *path, struct statx *ret)
{
	const int flags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;

	return statx(fd, path, flags, STATX_INO, ret) < 0 ? -errno : 0;
}

/* The path leads elsewhere, or the filesystem was unmounted.  Take the present
 * directory, if it has .part, which the directory below a mount point has not.  Returns a
 * message for the user. */
static const char *look_again(const struct dir *dir)
{
	_cleanup_(kv_closep) int fd = open_directory(dir->path);
	struct stat st;

	if (fd < 0)
		return "the directory is gone, or cannot be opened";
	if (fstatat(fd, PART, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISDIR(st.st_mode))
		return "another directory stands there, without " PART;
	dup3(fd, dir->fd, O_CLOEXEC);
	return "another directory stands there now, which is taken";
}

static int run(const struct dir *dir, struct kv_remote_op *op)
{
	switch (op->call) {
	case KV_REMOTE_EXISTS:
		return read_note(dir, op);
	case KV_REMOTE_GET:
		return get(dir, op);
	case KV_REMOTE_PUT:
	case KV_REMOTE_PUBLISH:
		return put(dir, op);
	case KV_REMOTE_CLEAR:
		return clear(dir, op);
	default:
		return remove_object(dir, op);
	}
}

/* As run; -ENOTCONN: the path leads to another directory by now. */
static int run_there(const struct dir *dir, struct kv_remote_op *op)
{
	struct statx before, after;
	int r = identify(dir->fd, "", &before);

	if (r == 0)
		r = run(dir, op);
	if (r != -ENOTCONN && r != -ESTALE &&
	    identify(AT_FDCWD, dir->path, &after) == 0 &&
	    before.stx_ino == after.stx_ino &&
	    before.stx_dev_major == after.stx_dev_major &&
	    before.stx_dev_minor == after.stx_dev_minor)
		return r;
	op->why = look_again(dir);
	return -ENOTCONN;
}

static void *worker(void *arg)
{
	struct dir *dir = arg;
	struct kv_remote_op *op;
	int r;

	pthread_mutex_lock(&dir->lock);
	while (!dir->stop) {
		op = TAILQ_FIRST(&dir->queued);
		if (!op) {
			pthread_cond_wait(&dir->wake, &dir->lock);
			continue;
		}
		TAILQ_REMOVE(&dir->queued, op, link);
		dir->under_way++;
		pthread_mutex_unlock(&dir->lock);
		r = run_there(dir, op);
		pthread_mutex_lock(&dir->lock);
		dir->under_way--;
		kv_done_add(&dir->done, op, r);
	}
	dir->running--;
	pthread_cond_signal(&dir->ended);
	pthread_mutex_unlock(&dir->lock);
	return NULL;
}

/* ---- the table ---- */

static void dir_submit(void *backend, struct kv_remote_op *const *ops, size_t n)
{
	struct dir *dir = backend;

	pthread_mutex_lock(&dir->lock);
	for (size_t i = 0; i < n; i++) {
		ops[i]->cancelled = false;
		TAILQ_INSERT_TAIL(&dir->queued, ops[i], link);
	}
	pthread_cond_broadcast(&dir->wake);
	pthread_mutex_unlock(&dir->lock);
}

/* An operation that has begun is not interrupted. */
static void dir_cancel(void *backend, struct kv_remote_op *op)
{
	struct dir *dir = backend;
	struct kv_remote_op *queued;

	pthread_mutex_lock(&dir->lock);
	TAILQ_FOREACH(queued, &dir->queued, link)
		if (queued == op)
			break;
	if (queued) {
		TAILQ_REMOVE(&dir->queued, op, link);
		kv_done_add(&dir->done, op, -ECANCELED);
	}
	pthread_mutex_unlock(&dir->lock);
}

static int dir_fd(void *backend)
{
	return ((struct dir *)backend)->done.event;
}

static size_t dir_reap(void *backend, struct kv_remote_op **ret_ops, size_t max)
{
	struct dir *dir = backend;
	size_t n;

	pthread_mutex_lock(&dir->lock);
	n = kv_done_reap(&dir->done, ret_ops, max);
	pthread_mutex_unlock(&dir->lock);
	return n;
}

static int dir_close(void *backend)
{
	struct dir *dir = backend;
	const uint64_t until = kv_now_ns() + END_NS;
	bool hang;
	int r = 0;

	pthread_mutex_lock(&dir->lock);
	dir->stop = true;
	pthread_cond_broadcast(&dir->wake);
	while (dir->running && r == 0)
		r = kv_cond_wait_until(&dir->ended, &dir->lock, until);
	hang = dir->running;
	pthread_mutex_unlock(&dir->lock);
	if (hang)
		return -EBUSY;
	for (unsigned i = 0; i < THREADS; i++)
		if (dir->threads[i])
			pthread_join(dir->threads[i], NULL);
	if (dir->fd >= 0)
		close(dir->fd);
	kv_done_fini(&dir->done);
	pthread_mutex_destroy(&dir->lock);
	pthread_cond_destroy(&dir->wake);
	pthread_cond_destroy(&dir->ended);
	free(dir->path);
	free(dir);
	return 0;
}

/* ---- opening ---- */

/* The first look at the directory, by a thread of its own, which may hang. */
struct opening {
	pthread_mutex_t lock;
	pthread_cond_t ended;
	char *path;
	int status; /* IN_PROGRESS, 0 or -errno */
	bool left;  /* the thread frees it */
};

static void opening_free(struct opening *opening)
{
	pthread_mutex_destroy(&opening->lock);
	pthread_cond_destroy(&opening->ended);
	free(opening->path);
	free(opening);
}

/* Make .part, and remove files there of writers that have died, as far as permitted. */
static int look_at(const char *path)
{
	_cleanup_(kv_closep) int fd = open_directory(path);
	const time_t now = time(NULL);
	struct dirent *entry;
	struct stat st;
	DIR *parts;
	int in;

	if (fd < 0)
		return fd;
	if (mkdirat(fd, PART, 0700) < 0 && errno != EEXIST && errno != EACCES &&
	    errno != EPERM && errno != EROFS)
		return -errno;
	in = open_at(&(struct dir){.fd = fd}, PART, O_RDONLY | O_DIRECTORY);
	parts = in < 0 ? NULL : fdopendir(in);
	while (parts && (entry = readdir(parts)))
		if (fstatat(in, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISREG(st.st_mode) && st.st_mtime + PART_SECONDS < now)
			unlinkat(in, entry->d_name, 0);
	if (parts)
		closedir(parts);
	else if (in >= 0)
		close(in);
	return 0;
}

static void *opener(void *arg)
{
	struct opening *opening = arg;
	bool left;
	int r;

	/* If the thread hangs, the process ends without it, and its descriptors must
	 * be closed then: have none of them here. */
	if (unshare(CLONE_FILES) == 0)
		close_range(0, ~0u, 0);
	r = look_at(opening->path);
	pthread_mutex_lock(&opening->lock);
	opening->status = r;
	left = opening->left;
	pthread_cond_signal(&opening->ended);
	pthread_mutex_unlock(&opening->lock);
	if (left)
		opening_free(opening);
	return NULL;
}

/* Open the directory within OPEN_NS; returns a descriptor, or -errno. */
static int open_in_time(const char *path)
{
	struct opening *opening = calloc(1, sizeof(*opening));
	const uint64_t until = kv_now_ns() + OPEN_NS;
	pthread_t thread;
	bool left;
	int r;

	if (!opening)
		return -ENOMEM;
	pthread_mutex_init(&opening->lock, NULL);
	kv_cond_init(&opening->ended);
	opening->status = IN_PROGRESS;
	opening->path = strdup(path);
	r = opening->path
		    ? kv_thread_start(&thread, "kvfs-dir", opener, opening)
		    : -ENOMEM;
	if (r < 0) {
		opening_free(opening);
		return r;
	}
	pthread_detach(thread);
	pthread_mutex_lock(&opening->lock);
	while (opening->status == IN_PROGRESS && r == 0)
		r = kv_cond_wait_until(&opening->ended, &opening->lock, until);
	left = opening->left = opening->status == IN_PROGRESS;
	r = left ? -ETIMEDOUT : opening->status;
	pthread_mutex_unlock(&opening->lock);
	if (!left)
		opening_free(opening);
	return r < 0 ? r : open_directory(path);
}

static int dir_open(const char *url, void **ret_backend, char **ret_why)
{
	struct dir *dir = calloc(1, sizeof(*dir));
	int r;

	*ret_why = NULL;
	if (!dir)
		return -ENOMEM;
	pthread_mutex_init(&dir->lock, NULL);
	pthread_cond_init(&dir->wake, NULL);
	kv_cond_init(&dir->ended);
	TAILQ_INIT(&dir->queued);
	dir->fd = -1;
	r = kv_done_init(&dir->done);
	if (r == 0)
		r = dir->fd = open_in_time(url);
	if (r >= 0) {
		dir->path = strdup(url);
		r = dir->path ? 0 : -ENOMEM;
	}
	for (unsigned i = 0; i < THREADS && r == 0; i++) {
		dir->running++;
		r = kv_thread_start(&dir->threads[i], "kvfs-dir", worker, dir);
		if (r < 0) {
			dir->threads[i] = 0;
			dir->running--;
		}
	}
	if (r < 0) {
		dir_close(dir);
		return kv_why(ret_why, r, "%s", strerror(-r));
	}
	*ret_backend = dir;
	return 0;
}

static int dir_may_write(void *backend)
{
	const struct dir *dir = backend;

	if (faccessat(dir->fd, PART, W_OK | X_OK, AT_EACCESS) < 0 ||
	    faccessat(dir->fd, ".", W_OK | X_OK, AT_EACCESS) < 0)
		return -errno;
	return 0;
}

const struct kv_remote_driver kv_remote_dir = {
	.scheme = "dir",
	.open = dir_open,
	.may_write = dir_may_write,
	.submit = dir_submit,
	.cancel = dir_cancel,
	.fd = dir_fd,
	.reap = dir_reap,
	.close = dir_close,
};
