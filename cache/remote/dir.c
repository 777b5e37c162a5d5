/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir.c - the backend in a directory: NFS, Lustre, a portable disk.
 *
 * An object is a file that is written in .part and then renamed.  Calls on such a
 * filesystem may take any time, so threads make them.
 *
 * Other users may write to the directory if the mount allows it (remote_unsafe), so no
 * path is followed as a whole: each part of a name is opened below its folder, without
 * links, and must belong to the owner of the directory or to the daemon's user.
 *
 * OWNS      the threads.
 *
 * INVARIANTS
 *   (1) An operation that succeeds was done in the directory to which the path leads.
 *   (2) A file or folder is used only if check_entry() accepted its descriptor.
 *
 * LOCKING   dir->ops.lock for two numbers; none during calls.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "cache/remote/backend.h"
#include "common/bytes.h"

#define PART ".part"
#define PART_SECONDS 86400 /* age at which files in .part are removed */
#define CHUNK (1u << 20)   /* bytes read between two checks of op->cancelled */
#define DEPTH 4u	   /* depth of folders that a removal enters */
#ifdef __SANITIZE_THREAD__ /* TSan assumes that all threads share descriptors */
#define OWN_FILES 0
#else
#define OWN_FILES 1
#endif
#define FOLDER (O_PATH | O_DIRECTORY)

/* A thread and its own descriptor of the directory. */
struct worker {
	struct dir *dir; /* constant */
	int root;	 /* descriptor of the directory; -1: not open */
	struct stat st;	 /* attributes of the directory @root */
};

struct dir {
	struct kv_ops ops; /* first member */
	char *path;	   /* constant, as are the next two */
	bool unsafe, writes;
	_Atomic bool swept; /* old files in .part have been removed */
	/* Under ops.lock: the last directory that had .part; zeros: none yet. */
	struct stat last;
	struct worker workers[KV_OPS_THREADS];
};

/* ---- files and folders ---- */

/* Set the cause of an operation's @error at @name; return the status. */
static int failed(struct kv_remote_op *op, const char *name, int error)
{
	const char *why = error == ELOOP ? "a symbolic link" : strerror(error);
	int status = -error;

	switch (error) {
	case ELOOP:
	case ENOTDIR:
	case EISDIR:
	case EACCES:
	case EPERM:
	case ENXIO:
		status = -EACCES;
		break;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
	case EROFS:
		status = -ENOSPC;
		break;
	case EAGAIN:
	case EBADMSG:
	case ECANCELED:
		status = -EIO;
	}
	return kv_op_failed(op, status, "%.80s: %s", name, why);
}

/* Open @name, which has no slash, in the folder @at, but not through a link.  Returns a
 * descriptor, or -1 with errno. */
static int open_entry(int at, const char *name, int flags)
{
	if (!(flags & O_PATH))
		flags |= O_NOCTTY | O_NONBLOCK; /* do not wait for a FIFO */
	return openat(at, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* Check the type and owner of the open entry @name. */
static int check_entry(const struct worker *w, struct kv_remote_op *op, int fd,
		       const char *name, mode_t type, struct stat *ret)
{
	if (fstat(fd, ret) < 0)
		return failed(op, name, errno);
	if ((ret->st_mode & S_IFMT) != type)
		return kv_op_failed(op, -EACCES, "%.80s: not a %s", name,
				    type == S_IFREG ? "file" : "folder");
	if (ret->st_uid != w->st.st_uid && ret->st_uid != geteuid())
		return kv_op_failed(op, -EACCES, "%.80s: belongs to user %u",
				    name, ret->st_uid);
	return 0;
}

/* Open the folder @name in @at; with @make it is made if it is absent. */
static int open_folder(const struct worker *w, struct kv_remote_op *op, int at,
		       const char *name, int flags, bool make)
{
	_cleanup_(kv_closep) int fd = open_entry(at, name, flags);
	struct stat st;
	int r;

	if (fd < 0 && errno == ENOENT && make) {
		if (mkdirat(at, name, 0700) < 0 && errno != EEXIST)
			return failed(op, name, errno);
		fd = open_entry(at, name, flags);
	}
	if (fd < 0)
		return failed(op, name, errno);
	r = check_entry(w, op, fd, name, S_IFDIR, &st);
	return r < 0 ? r : kv_steal_fd(&fd);
}

/* Open the folder of the object, or of the folder, that @op names.  @last is set to the
 * last part of the name.  Returns a descriptor or a status. */
static int open_parent(const struct worker *w, struct kv_remote_op *op,
		       bool make, char last[KV_OBJECT_NAME_MAX + 1])
{
	_cleanup_(kv_closep) int at = fcntl(w->root, F_DUPFD_CLOEXEC, 0);
	char name[KV_OBJECT_NAME_MAX + 1], *rest = name, *part;
	size_t n = strlen(op->name);

	memcpy(name, op->name, n + 1);
	if (!*name || *name == '/' || *name == '.' || strstr(name, "//") ||
	    strstr(name, "/."))
		return kv_op_failed(op, -EACCES, "%.80s: not a name", name);
	if (n > 0 && name[n - 1] == '/')
		name[n - 1] = '\0';
	if (at < 0)
		return failed(op, ".", errno);
	while ((part = strsep(&rest, "/"))) {
		int below;

		if (!rest)
			break;
		below = open_folder(w, op, at, part, FOLDER, make);
		if (below < 0)
			return below;
		close(at);
		at = below;
	}
	strcpy(last, part);
	return kv_steal_fd(&at);
}

/* ---- operations ---- */

/* Do a GET or HEAD. */
static int get(const struct worker *w, struct kv_remote_op *op)
{
	char last[KV_OBJECT_NAME_MAX + 1];
	_cleanup_(kv_closep) int at = open_parent(w, op, false, last), fd = -1;
	struct stat st;
	long n;
	int r;

	if (at < 0)
		return at;
	fd = open_entry(at, last, O_RDONLY);
	if (fd < 0)
		return failed(op, last, errno);
	r = check_entry(w, op, fd, last, S_IFREG, &st);
	if (r < 0)
		return r;
	op->length = (uint64_t)st.st_size;
	if (op->call == KV_REMOTE_HEAD)
		return 0;
	if (op->length == 0)
		return kv_op_failed(op, -EBADMSG, "%.80s: empty", last);
	r = kv_op_room(&w->dir->ops, op, op->length);
	if (r < 0)
		return r;
	for (uint64_t done = 0; done < op->length; done += (uint64_t)n) {
		n = kv_read_at(fd, done, op->data + done,
			       KV_MIN(op->length - done, CHUNK));
		if (op->cancelled)
			return -ECANCELED;
		if (n < 0)
			return failed(op, last, (int)-n);
		if (n == 0)
			return kv_op_failed(op, -EBADMSG,
					    "%.80s: was cut while it was read",
					    last);
		atomic_fetch_add(&op->progress, (uint64_t)n);
	}
	return 0;
}

/* The folder .part concerns all objects: a wrong one is a failure of the backend. */
static int open_part(const struct worker *w, struct kv_remote_op *op, int flags,
		     bool make)
{
	int r = open_folder(w, op, w->root, PART, flags, make);

	return r == -EACCES || r == -ENOENT ? -EIO : r;
}

static int put(const struct worker *w, struct kv_remote_op *op)
{
	char last[KV_OBJECT_NAME_MAX + 1], name[33];
	uint8_t random[16];
	_cleanup_(kv_closep) int at = open_parent(w, op, true, last), part = -1;
	int fd, r = 0;

	if (at < 0)
		return at;
	part = open_part(w, op, FOLDER, true);
	if (part < 0)
		return part;
	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		return failed(op, PART, errno);
	kv_hex(random, sizeof(random), name);
	fd = open_entry(part, name, O_WRONLY | O_CREAT | O_EXCL);
	if (fd < 0)
		return failed(op, PART, errno);
	for (size_t i = 0; i < KV_ARRAY_LEN(op->parts) && r == 0; i++)
		r = kv_write_all(fd, op->parts[i].iov_base,
				 op->parts[i].iov_len);
	/* NFS reports a full disk at close(2). */
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r < 0)
		r = failed(op, PART, -r);
	else if (op->cancelled)
		r = -ECANCELED;
	/* Try again if another process has removed the folder meanwhile. */
	for (int tries = 0; r == 0; tries++) {
		if (renameat(part, name, at, last) == 0)
			return 0;
		if (errno != ENOENT || tries == 2) {
			r = failed(op, last, errno);
			break;
		}
		close(at);
		at = open_parent(w, op, true, last);
		r = at < 0 ? at : 0;
	}
	unlinkat(part, name, 0);
	return r;
}

/* Remove the folder @name in @at with all below it.  The list of a folder that
 * changes may be incomplete: repeat until the folder is empty. */
static int remove_folder(const struct worker *w, struct kv_remote_op *op,
			 int at, const char *name, unsigned depth)
{
	const int flags = O_RDONLY | O_DIRECTORY;
	struct dirent *entry;

	while (!op->cancelled) {
		int fd = open_folder(w, op, at, name, flags, false), r = 0;
		DIR *folder;

		if (fd < 0)
			return fd;
		folder = fdopendir(fd);
		if (!folder) {
			r = failed(op, name, errno);
			close(fd);
			return r;
		}
		while (r == 0 && !op->cancelled && (entry = readdir(folder))) {
			const char *below = entry->d_name;

			if (strcmp(below, ".") == 0 || strcmp(below, "..") == 0)
				continue;
			if (unlinkat(fd, below, 0) == 0)
				op->length++;
			else if (depth > 0 &&
				 (errno == EISDIR || errno == EPERM))
				r = remove_folder(w, op, fd, below, depth - 1);
			else
				r = failed(op, below, errno);
			if (r == -ENOENT) /* another process removed it */
				r = 0;
		}
		closedir(folder);
		if (r < 0)
			return r;
		if (unlinkat(at, name, AT_REMOVEDIR) == 0)
			return 0;
		if (errno != ENOTEMPTY)
			return failed(op, name, errno);
	}
	return -ECANCELED;
}

/* Do a DELETE of an object, or of a folder with all below it. */
static int remove_object(const struct worker *w, struct kv_remote_op *op)
{
	char last[KV_OBJECT_NAME_MAX + 1];
	_cleanup_(kv_closep) int at = open_parent(w, op, false, last);

	if (at < 0)
		return at;
	if (op->name[strlen(op->name) - 1] == '/')
		return remove_folder(w, op, at, last, DEPTH);
	return unlinkat(at, last, 0) < 0 ? failed(op, last, errno) : 0;
}

/* ---- the directory ---- */

/* Close the descriptor of the directory in *@w, unless @w points to NULL. */
static void close_root(struct worker **w)
{
	if (*w)
		kv_closep(&(*w)->root);
}

/*
 * Open the directory, and make .part there.  A later, other directory at the path (a
 * mount came or went) must have .part already.  -ENOTCONN, -EPERM.
 */
static int open_root(struct worker *w, struct kv_remote_op *op)
{
	struct dir *dir = w->dir;
	_cleanup_(close_root) struct worker *wrong = w;
	_cleanup_(kv_closep) int part = -1;
	struct stat last;
	bool known, other;

	close_root(&wrong);
	w->root = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (w->root < 0 || fstat(w->root, &w->st) < 0)
		return kv_op_failed(op, -ENOTCONN, "%.80s: %s", dir->path,
				    strerror(errno));
	if ((w->st.st_mode & 022) && !dir->unsafe)
		return kv_op_failed(op, -EPERM,
				    "%.80s: others may write to it (mode "
				    "%04o): chmod go-w, or remote_unsafe",
				    dir->path, w->st.st_mode & 07777);
	pthread_mutex_lock(&dir->ops.lock);
	last = dir->last;
	pthread_mutex_unlock(&dir->ops.lock);
	/* Accept another directory only if it has .part and the same owner. */
	known = last.st_ino;
	other = known &&
		(last.st_ino != w->st.st_ino || last.st_dev != w->st.st_dev);
	part = open_part(w, op, FOLDER, dir->writes && !other);
	if (other && (part < 0 || last.st_uid != w->st.st_uid))
		return kv_op_failed(op, -ENOTCONN,
				    "%.80s: another directory stands there, "
				    "without " PART " or with another owner",
				    dir->path);
	/* Only the first directory must be writable; later ones serve reads. */
	if (dir->writes && !known &&
	    (part < 0 || faccessat(part, ".", W_OK | X_OK, AT_EACCESS) < 0)) {
		if (part >= 0)
			kv_op_failed(op, 0, "%.80s: not writable: %s",
				     dir->path, strerror(errno));
		return -ENOTCONN; /* open_part may have set the cause */
	}
	pthread_mutex_lock(&dir->ops.lock);
	if (part >= 0)
		dir->last = w->st;
	pthread_mutex_unlock(&dir->ops.lock);
	wrong = NULL;
	return 0;
}

/* Remove files in .part whose writers have died. */
static void sweep(const struct worker *w, struct kv_remote_op *op)
{
	int fd = open_part(w, op, O_RDONLY | O_DIRECTORY, false);
	DIR *parts = fd < 0 ? NULL : fdopendir(fd);
	const time_t now = time(NULL);
	struct dirent *entry;
	struct stat st;

	while (parts && (entry = readdir(parts)))
		if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISREG(st.st_mode) && st.st_mtime + PART_SECONDS < now)
			unlinkat(fd, entry->d_name, 0);
	if (parts)
		closedir(parts);
	else if (fd >= 0)
		close(fd);
}

/* Return whether the path still leads to the directory that @w has open. */
static bool is_there(const struct worker *w)
{
	const int flags = AT_STATX_DONT_SYNC;
	struct statx st;

	return statx(AT_FDCWD, w->dir->path, flags, STATX_INO, &st) == 0 &&
	       st.stx_ino == w->st.st_ino &&
	       makedev(st.stx_dev_major, st.stx_dev_minor) == w->st.st_dev;
}

static int run(struct worker *w, struct kv_remote_op *op)
{
	bool again = false;
	int r;

	if (op->call == KV_REMOTE_HEAD && !op->name[0]) {
		r = open_root(w, op);
		if (r == 0 && w->dir->writes &&
		    !atomic_exchange(&w->dir->swept, true))
			sweep(w, op);
		return r;
	}
	r = w->root < 0 ? open_root(w, op) : 0;
	while (r == 0) {
		r = op->call == KV_REMOTE_PUT	   ? put(w, op)
		    : op->call == KV_REMOTE_DELETE ? remove_object(w, op)
						   : get(w, op);
		if (r == -ENOENT && op->call == KV_REMOTE_PUT)
			r = -EIO;
		if (is_there(w))
			return r;
		/* The path leads to another directory now: repeat the operation
		 * there, unless a GET has its memory already. */
		r = open_root(w, op);
		if (r == 0 && (again || op->data))
			return kv_op_failed(op, -ENOTCONN,
					    "%.80s: another directory stands "
					    "there now, which is taken",
					    w->dir->path);
		again = true;
	}
	return r;
}

/* ---- threads ---- */

static void *worker(void *arg)
{
	struct worker *w = arg;
	struct kv_ops *ops = &w->dir->ops;
	const unsigned event = (unsigned)ops->event;
	struct kv_remote_op *op;

	/* If this thread hangs, the process ends without it, and the descriptors of
	 * the process must be closed then: the thread keeps none but the eventfd. */
	if (OWN_FILES && unshare(CLONE_FILES) == 0) {
		if (event > 0)
			close_range(0, event - 1, 0);
		close_range(event + 1, ~0u, 0);
	}
	while ((op = kv_ops_take(ops, true)))
		kv_ops_end(ops, op, run(w, op));
	close_root(&w);
	return NULL;
}

/* ---- the driver's table of calls ---- */

static int dir_close(struct kv_ops *ops)
{
	struct dir *dir = (struct dir *)ops;
	int r = kv_ops_fini(&dir->ops);

	if (r < 0)
		return r;
	free(dir->path);
	free(dir);
	return 0;
}

static int dir_make(const char *scheme, const char *path,
		    const struct kv_remote_config *config,
		    struct kv_ops **ret_ops, char **ret_why)
{
	struct dir *dir = calloc(1, sizeof(*dir));
	int r;

	(void)scheme;
	*ret_why = NULL;
	if (!dir)
		return -ENOMEM;
	dir->unsafe = config->unsafe;
	dir->writes = config->write != KV_WRITEBACK_NONE;
	dir->path = strdup(path);
	r = kv_ops_init(&dir->ops, NULL);
	if (r == 0 && !dir->path)
		r = -ENOMEM;
	for (unsigned i = 0; i < KV_OPS_THREADS && r == 0; i++) {
		struct worker *w = &dir->workers[i];

		w->dir = dir;
		w->root = -1;
		r = kv_ops_start(&dir->ops, "kvfs-dir", worker, w);
	}
	if (r < 0) {
		dir_close(&dir->ops);
		return kv_why(ret_why, r, "%s", strerror(-r));
	}
	*ret_ops = &dir->ops;
	return 0;
}

const struct kv_remote_driver kv_remote_dir = {
	.scheme = "dir",
	.make = dir_make,
	.close = dir_close,
};
