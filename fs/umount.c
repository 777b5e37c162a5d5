/* SPDX-License-Identifier: Apache-2.0 */
/*
 * umount.c - what umount(8) calls to unmount a kvfs.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: one thread.
 */
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "fs/umount.h"
#include "index/lock.h"

#define NOTICE_NS                                                  \
	(UINT64_C(3) * 1000000000) /* until a daemon knows its end \
				    */
#define POLL_US 10000
#define HELPER "/sbin/umount.kvfs"
#define STATUS_USAGE 1
#define STATUS_FAILED 32

extern char **environ;

struct mounted {
	char device[32], point[PATH_MAX], store[PATH_MAX];
};

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

/* Without helper and system call, mount(8) only notes the word. */
void kv_umount_announce(const char *store, const char *path)
{
	char *argv[] = {(char *)"mount",
			(char *)"-if",
			(char *)"--no-canonicalize",
			(char *)"-t",
			(char *)"fuse.kvfs",
			(char *)"-o",
			(char *)"helper=kvfs",
			(char *)"--",
			(char *)store,
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

/* mountinfo writes blank, tab, newline and backslash as \ooo. */
static void unescape(char *text)
{
	unsigned code;
	char *to = text;

	for (; *text != '\0'; text++)
		if (sscanf(text, "\\%3o", &code) == 1) {
			*to++ = (char)code;
			text += 3;
		} else {
			*to++ = *text;
		}
	*to = '\0';
}

static bool parse_line(const char *line, struct mounted *m)
{
	const char *dash = strstr(line, " - fuse.kvfs ");

	if (!dash || sscanf(dash, " - %*s %4095s", m->store) != 1 ||
	    sscanf(line, "%*d %*d %31s %*s %4095s", m->device, m->point) != 2)
		return false;
	unescape(m->point);
	unescape(m->store);
	return true;
}

/* The last of kvfs at @path, or of device @device; which is NULL matters not.
 */
static bool find(const char *path, const char *device, struct mounted *ret_m)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	_cleanup_(kv_freep) char *line = NULL;
	struct mounted m;
	size_t room = 0;
	bool found = false;

	while (f && getline(&line, &room, f) > 0)
		if (parse_line(line, &m) &&
		    (!path || strcmp(m.point, path) == 0) &&
		    (!device || strcmp(m.device, device) == 0)) {
			*ret_m = m;
			found = true;
		}
	if (f)
		fclose(f);
	return found;
}

/* What cannot be made durable is no reason to stay mounted, but to say so. */
static void sync_spaces(const char *path)
{
	_cleanup_(kv_closep) int fd =
		open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd >= 0 && fsync(fd) < 0 &&
	    (errno == EIO || errno == ENOSPC || errno == ETIMEDOUT))
		complain(path, "not all of it is durable", errno);
}

static int unmount(const char *path, int flags)
{
	char *argv[] = {(char *)"fusermount3",
			(char *)(flags & MNT_DETACH ? "-uz" : "-u"),
			(char *)"--", (char *)path, NULL};

	if (umount2(path, flags) == 0)
		return 0;
	if (errno != EPERM)
		return complain(path, "cannot unmount", errno);
	return spawn(argv) < 0 ? STATUS_FAILED : 0;
}

static int open_lock(const char *store)
{
	_cleanup_(kv_freep) char *path = NULL;

	if (asprintf(&path, "%s/lock", store) < 0)
		return -1;
	return open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/* A daemon that is mounted elsewhere too, in another namespace perhaps, does
 * not end. */
static void wait_for_store(const struct mounted *m, int lock)
{
	uint64_t until_ns = kv_now_ns() + NOTICE_NS;
	enum kv_lock_state state;
	struct mounted other;

	if (lock < 0 || find(NULL, m->device, &other))
		return;
	while ((state = kv_lock_look(lock)) != KV_LOCK_FREE &&
	       (state == KV_LOCK_ENDING || kv_now_ns() < until_ns))
		usleep(POLL_US);
}

static int run(const char *path, int flags)
{
	_cleanup_(kv_freep) char *whole = realpath(path, NULL);
	_cleanup_(kv_closep) int lock = -1;
	struct mounted m = {0};
	int r;

	if (whole)
		path = whole;
	if (!find(path, NULL, &m))
		return complain(path, "no kvfs is mounted there", EINVAL);
	lock = open_lock(m.store);
	if (flags == UMOUNT_NOFOLLOW)
		sync_spaces(path);
	r = unmount(path, flags);
	if (r == 0 && !(flags & MNT_DETACH))
		wait_for_store(&m, lock);
	return r;
}

int kv_umount_main(int argc, char **argv)
{
	int flags = UMOUNT_NOFOLLOW, c;

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
	return run(argv[optind], flags);
}
