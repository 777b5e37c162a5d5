/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mountpoint.c - the directory to mount on, and umount.kvfs.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: one thread, before any other or in a process of its own.
 */
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <mntent.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "common/bytes.h"
#include "fs/daemon.h"
#include "index/sidecar.h"

#define NOTICE_NS \
	(UINT64_C(10) * 1000000000) /* for a daemon to notice the unmount */
#define POLL_US 10000
#define MOUNTS "/proc/self/mounts"
#define HELPER "/sbin/umount.kvfs"
#define STATUS_USAGE 1
#define STATUS_FAILED 32

extern char **environ;

enum { NOTHING, KVFS, OTHER_FUSE };

struct mounted {
	int kind;
	char path[PATH_MAX], store[PATH_MAX];
};

/* Find the topmost mount, which is the last line of @mounts, at @path (NULL: anywhere), of
 * @store (NULL: any).  Closes @mounts. */
static struct mounted find_mount(FILE *mounts, const char *path,
				 const char *store)
{
	struct mounted m = {NOTHING};
	char text[3 * PATH_MAX];
	struct mntent e;
	char *at;

	while (mounts && getmntent_r(mounts, &e, text, sizeof(text))) {
		/* The kernel also escapes '#', which the C library does not know. */
		while ((at = strstr(e.mnt_fsname, "\\043"))) {
			*at = '#';
			memmove(at + 1, at + 4, strlen(at + 4) + 1);
		}
		if ((path && strcmp(e.mnt_dir, path) != 0) ||
		    (store && strcmp(e.mnt_fsname, store) != 0))
			continue;
		m.kind = strcmp(e.mnt_type, "fuse.kvfs") == 0  ? KVFS
			 : strncmp(e.mnt_type, "fuse", 4) == 0 ? OTHER_FUSE
							       : NOTHING;
		snprintf(m.path, sizeof(m.path), "%s", e.mnt_dir);
		snprintf(m.store, sizeof(m.store), "%s", e.mnt_fsname);
	}
	if (mounts)
		endmntent(mounts);
	return m;
}

int kv_mounts_find(const char *text, const char *path)
{
	return find_mount(fmemopen((void *)text, strlen(text), "r"), path, NULL)
		.kind;
}

static int spawn(char *const argv[])
{
	int status;
	pid_t pid;

	if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0)
		return -ENOENT;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return status == 0 ? 0 : -EPERM;
}

/* ECONNABORTED: the request was in progress when the daemon died. */
static bool is_dead(int error)
{
	return error == ENOTCONN || error == ECONNABORTED;
}

/* Return @path as an absolute path.  realpath(3) of a dead mount may fail on the last
 * part, which is then copied. */
static char *absolute(const char *path)
{
	_cleanup_(kv_freep) char *copy = NULL, *copy2 = NULL, *parent = NULL;
	char *whole = realpath(path, NULL);

	if (whole || !is_dead(errno))
		return whole;
	copy = strdup(path);
	copy2 = strdup(path);
	if (!copy || !copy2)
		return NULL;
	parent = realpath(dirname(copy), NULL);
	if (!parent ||
	    asprintf(&whole, "%s/%s", strcmp(parent, "/") == 0 ? "" : parent,
		     basename(copy2)) < 0)
		return NULL;
	return whole;
}

static int fusermount(const char *path, bool lazy)
{
	char *argv[] = {(char *)"fusermount3", (char *)(lazy ? "-uz" : "-u"),
			(char *)"--", (char *)path, NULL};

	return spawn(argv);
}

void kv_mountpoint_detach(const char *path)
{
	if (umount2(path, MNT_DETACH) < 0)
		(void)fusermount(path, true);
}

bool kv_mountpoint_answers(const char *path)
{
	_cleanup_(kv_freep) char *name = NULL;
	struct statvfs fs;
	struct stat st;
	FILE *f = NULL;

	if (statvfs(path, &fs) < 0)
		return false;
	/* The kernel reads 128 KiB ahead on FUSE, and blocks are larger.  Only root
	 * can raise this; without it reads are slower. */
	if (stat(path, &st) == 0 &&
	    asprintf(&name, "/sys/class/bdi/%u:%u/read_ahead_kb",
		     major(st.st_dev), minor(st.st_dev)) >= 0)
		f = fopen(name, "we");
	if (f) {
		fprintf(f, "%u\n", KV_READAHEAD / 1024);
		fclose(f);
	}
	return true;
}

/* Return true if @inner is @outer or lies below it. */
static bool lies_in(const char *inner, const char *outer)
{
	size_t n = strlen(outer);

	return strncmp(inner, outer, n) == 0 &&
	       (inner[n] == '\0' || inner[n] == '/' || strcmp(outer, "/") == 0);
}

int kv_mountpoint_check(const char *path, const char *store, char **ret_path,
			char **ret_why)
{
	_cleanup_(kv_freep) char *whole = absolute(path);
	_cleanup_(kv_freep) char *real_store = NULL;
	struct statvfs fs;
	struct stat st;
	int kind;

	if (!whole)
		return kv_why(ret_why, -errno, "%s: %s", path, strerror(errno));
	kind = find_mount(setmntent(MOUNTS, "re"), whole, NULL).kind;
	/* Not stat(2): the kernel may still have the attributes of a dead mount. */
	if (kind == KVFS && statvfs(whole, &fs) < 0 && is_dead(errno)) {
		kv_mountpoint_detach(whole);
		kind = NOTHING;
	}
	if (kind == KVFS)
		return kv_why(ret_why, -EBUSY,
			      "%s: a kvfs is mounted there already", path);
	if (kind == OTHER_FUSE)
		return kv_why(ret_why, -EBUSY,
			      "%s: another FUSE filesystem is mounted "
			      "there already",
			      path);
	if (stat(whole, &st) < 0)
		return kv_why(ret_why, -errno, "%s: %s", path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return kv_why(ret_why, -ENOTDIR, "%s: not a directory", path);
	real_store = realpath(store, NULL);
	if (real_store)
		store = real_store;
	if (lies_in(store, whole) || lies_in(whole, store))
		return kv_why(ret_why, -EINVAL,
			      "%s: STORE and MOUNTPOINT must not contain "
			      "each other",
			      path);
	*ret_path = kv_steal(whole);
	return 0;
}

int kv_mountpoint_covers(const char *mountpoint, const char *file)
{
	_cleanup_(kv_freep) char *copy = strdup(file), *dir = NULL;

	if (!copy)
		return -ENOMEM;
	dir = realpath(dirname(copy), NULL);
	return dir ? lies_in(dir, mountpoint) : lies_in(file, mountpoint);
}

/* ---- unmounting ---- */

/* Make umount(8) call umount.kvfs.  With -if, mount(8) calls no helper and no
 * mount(2), and only records the option helper=; with bind also for a copy of a part. */
void kv_umount_announce(const char *path)
{
	char *argv[] = {(char *)"mount",
			(char *)"-if",
			(char *)"--no-canonicalize",
			(char *)"-o",
			(char *)"bind,helper=kvfs",
			(char *)"--",
			(char *)path,
			(char *)path,
			NULL};

	if (geteuid() == 0 && access(HELPER, X_OK) == 0)
		(void)spawn(argv);
}

bool kv_umount_called(const char *name)
{
	const char *slash = strrchr(name, '/');

	return strcmp(slash ? slash + 1 : name, "umount.kvfs") == 0;
}

static int complain(const char *path, const char *what, int error)
{
	fprintf(stderr, "umount.kvfs: %s: %s: %s\n", path, what,
		strerror(error));
	return STATUS_FAILED;
}

/* Write all blocks to SSD.  Return the errno, and in *@ret_n how many blocks are not
 * durable then; -1: unknown. */
static int sync_spaces(const char *path, long long *ret_n)
{
	_cleanup_(kv_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	_cleanup_(kv_freep) char *name = NULL, *line = NULL;
	long long dirty = -1, alone = -1;
	size_t room = 0;
	FILE *f = NULL;
	int error;

	if (fd >= 0 && fsync(fd) == 0)
		return 0;
	error = errno;
	if (is_dead(error))
		return error;
	if (asprintf(&name, "%s/.kvfs/metrics", path) >= 0)
		f = fopen(name, "re");
	while (f && getline(&line, &room, f) > 0) {
		(void)sscanf(line, "kvfs_dirty_blocks %lld", &dirty);
		(void)sscanf(line, "kvfs_dram_alone_blocks %lld", &alone);
	}
	if (f)
		fclose(f);
	*ret_n = dirty < 0 || alone < 0 ? -1 : dirty + alone;
	return error;
}

/* Report @n blocks that could not be written, which did not keep the mount from being
 * unmounted.  Return the exit status. */
static int report(const char *path, long long n, int error)
{
	char what[96];

	if (error == 0 || is_dead(error))
		return 0;
	if (error == EOPNOTSUPP || error == ENOSPC) {
		if (n > 0)
			fprintf(stderr, "umount.kvfs: %s: %lld blocks %s\n",
				path, n,
				error == ENOSPC
					? "found no room on SSD, and end with "
					  "the mount"
					: "are lost, as they are in memory "
					  "only (ssd=0)");
		return 0;
	}
	if (n > 0)
		snprintf(what, sizeof(what),
			 "%lld blocks are not durable, and are lost", n);
	else
		snprintf(what, sizeof(what), "some blocks may not be durable");
	return complain(path, what, error);
}

/* Wait until the daemon has ended; return false if another namespace has the mount.
 * A daemon that has unlocked the store is still closing its files. */
static bool wait_for_store(const char *store, int lock, int owner)
{
	struct pollfd ended = {.fd = owner, .events = POLLIN};
	uint64_t until_ns = kv_now_ns() + NOTICE_NS;
	enum kv_lock_state state;

	while ((state = kv_lock_look(lock)) != KV_LOCK_FREE &&
	       (state == KV_LOCK_ENDING || kv_now_ns() < until_ns))
		usleep(POLL_US);
	if (state == KV_LOCK_FREE && owner >= 0)
		(void)poll(&ended, 1, (int)(NOTICE_NS / 1000000));
	else if (state == KV_LOCK_HELD)
		complain(store, "another mount namespace has the mount", EBUSY);
	return state == KV_LOCK_FREE;
}

int kv_umount_main(int argc, char **argv)
{
	_cleanup_(kv_freep) char *whole = NULL;
	_cleanup_(kv_closep) int store = -1, lock = -1, owner = -1;
	int flags = UMOUNT_NOFOLLOW, c, error = 0, left = 0;
	struct mounted m, copy;
	long long lost = -1, n;
	const char *path;
	long pid;

	while ((c = getopt(argc, argv, "flnrvN:t:")) != -1) {
		if (c == 'l')
			flags |= MNT_DETACH;
		else if (c == 'f')
			flags |= MNT_FORCE;
		else if (c == '?')
			return STATUS_USAGE;
	}
	if (optind != argc - 1) {
		fprintf(stderr, "usage: umount.kvfs [-fl] MOUNTPOINT\n");
		return STATUS_USAGE;
	}
	path = argv[optind];
	whole = realpath(path, NULL);
	if (whole)
		path = whole;
	m = find_mount(setmntent(MOUNTS, "re"), path, NULL);
	if (m.kind != KVFS)
		return complain(path, "no kvfs is mounted there", EINVAL);
	/* The file `lock` has the pid of the process that has locked the store. */
	store = open(m.store, O_PATH | O_DIRECTORY | O_CLOEXEC);
	lock = openat(store, "lock",
		      O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	pid = kv_lock_owner(store);
	owner = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
	if (flags == UMOUNT_NOFOLLOW)
		error = sync_spaces(path, &lost);
	if (umount2(path, flags) < 0) {
		if (errno != EPERM)
			return complain(path, "cannot unmount", errno);
		if (fusermount(path, flags & MNT_DETACH) < 0)
			return STATUS_FAILED;
	}
	if (flags & MNT_DETACH)
		return 0;
	/* The daemon goes on for a copy of the mount, whose umount then waits. */
	copy = find_mount(setmntent(MOUNTS, "re"), NULL, m.store);
	if (copy.kind == KVFS)
		kv_umount_announce(copy.path);
	else if (lock >= 0 && wait_for_store(m.store, lock, owner) &&
		 owner >= 0 && flags == UMOUNT_NOFOLLOW && !is_dead(error) &&
		 kv_lock_lost(lock, pid, &n, &left) == 0) {
		/* Squashed root may not sync all; the daemon's end does.  A store
		 * that became read-only has no result. */
		lost = n < 0 ? lost : n;
		error = n >= 0 ? left : error ? error : EIO;
	}
	return report(path, lost, error);
}
