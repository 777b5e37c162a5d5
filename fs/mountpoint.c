/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mountpoint.c - is this a place to mount on?
 *
 * OWNS      nothing.
 *
 * LOCKING   none: runs before any thread.
 */
#include <libgen.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "fs/mountpoint.h"

extern char **environ;

enum { NOTHING, KVFS, OTHER_FUSE };

__attribute__((format(printf, 3, 4))) static int
refuse(int error, char **ret_why, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (vasprintf(ret_why, format, args) < 0)
		*ret_why = NULL;
	va_end(args);
	return error;
}

/* mountinfo writes blank, tab, newline and backslash as \ooo. */
static bool same_path(const char *field, size_t len, const char *path)
{
	size_t i = 0;

	while (i < len && *path != '\0') {
		char c = field[i++];

		if (c == '\\' && i + 3 <= len) {
			c = (char)((field[i] - '0') << 6 |
				   (field[i + 1] - '0') << 3 |
				   (field[i + 2] - '0'));
			i += 3;
		}
		if (c != *path++)
			return false;
	}
	return i == len && *path == '\0';
}

/* 36 35 98:0 /root /mount/point options - type source super-options */
static int kind_of_line(const char *line, size_t len, const char *path)
{
	const char *end = line + len, *p = line, *dash, *blank;

	for (int i = 0; i < 4; i++) {
		p = memchr(p, ' ', (size_t)(end - p));
		if (!p)
			return -1;
		p++;
	}
	blank = memchr(p, ' ', (size_t)(end - p));
	if (!blank || !same_path(p, (size_t)(blank - p), path))
		return -1;
	dash = memmem(blank, (size_t)(end - blank), " - ", 3);
	if (!dash)
		return -1;
	dash += 3;
	if (strncmp(dash, "fuse.kvfs ", 10) == 0)
		return KVFS;
	return strncmp(dash, "fuse", 4) == 0 ? OTHER_FUSE : NOTHING;
}

int kv_mountinfo_find(const char *text, const char *path)
{
	int found = NOTHING; /* the last line is what is on top */

	while (*text != '\0') {
		size_t len = strcspn(text, "\n");
		int kind = kind_of_line(text, len, path);

		if (kind >= 0)
			found = kind;
		text += len + (text[len] == '\n');
	}
	return found;
}

static char *read_mountinfo(void)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *text = NULL;
	size_t room = 0;
	ssize_t n;

	if (!f)
		return NULL;
	n = getdelim(&text, &room, '\0', f);
	fclose(f);
	if (n < 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* A request that was under way when the daemon died says ECONNABORTED. */
static bool is_dead(int error)
{
	return error == ENOTCONN || error == ECONNABORTED;
}

/* realpath() of a dead mount may fail on its last part: then that is kept. */
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

static void detach(const char *path)
{
	char *argv[] = {(char *)"fusermount3", (char *)"-uz", (char *)"--",
			(char *)path, NULL};
	int status;
	pid_t pid;

	if (umount2(path, MNT_DETACH) == 0)
		return;
	if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) == 0)
		waitpid(pid, &status, 0);
}

/* Whether @inner is @outer or lies below it. */
static bool lies_in(const char *inner, const char *outer)
{
	size_t n = strlen(outer);

	return strncmp(inner, outer, n) == 0 &&
	       (inner[n] == '\0' || inner[n] == '/' || strcmp(outer, "/") == 0);
}

static int check_free(const char *path, const char *as_typed, char **ret_why)
{
	_cleanup_(kv_freep) char *mounts = read_mountinfo();
	int kind = mounts ? kv_mountinfo_find(mounts, path) : NOTHING;
	struct statvfs fs;

	/* Not stat: the kernel may still know the attributes of a dead one. */
	if (kind == KVFS && statvfs(path, &fs) < 0 && is_dead(errno)) {
		detach(path);
		return 0;
	}
	if (kind == KVFS)
		return refuse(-EBUSY, ret_why, "%s: a kvfs is mounted there",
			      as_typed);
	if (kind == OTHER_FUSE)
		return refuse(-EBUSY, ret_why,
			      "%s: another FUSE filesystem is mounted there",
			      as_typed);
	return 0;
}

int kv_mountpoint_check(const char *path, const char *store, char **ret_path,
			char **ret_why)
{
	_cleanup_(kv_freep) char *whole = absolute(path);
	_cleanup_(kv_freep) char *real_store = NULL;
	struct stat st;
	int r;

	if (!whole)
		return refuse(-errno, ret_why, "%s: %s", path, strerror(errno));
	r = check_free(whole, path, ret_why);
	if (r < 0)
		return r;
	if (stat(whole, &st) < 0)
		return refuse(-errno, ret_why, "%s: %s", path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return refuse(-ENOTDIR, ret_why, "%s: not a directory", path);
	real_store = realpath(store, NULL);
	if (real_store)
		store = real_store;
	if (lies_in(store, whole) || lies_in(whole, store))
		return refuse(-EINVAL, ret_why,
			      "%s: STORE and MOUNTPOINT lie in each other",
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

int kv_mountpoint_remount(const char *path, bool read_only, char **ret_why)
{
	_cleanup_(kv_freep) char *whole = path ? absolute(path) : NULL;
	_cleanup_(kv_freep) char *mounts = read_mountinfo();
	unsigned long flags = MS_REMOUNT | MS_NOSUID | MS_NODEV;
	struct statvfs fs;

	if (!whole || !mounts || kv_mountinfo_find(mounts, whole) != KVFS)
		return refuse(-EINVAL, ret_why, "%s: no kvfs is mounted there",
			      path ? path : "none");
	if (statvfs(whole, &fs) == 0 && (fs.f_flag & ST_NOEXEC))
		flags |= MS_NOEXEC;
	if (mount("none", whole, NULL, flags | (read_only ? MS_RDONLY : 0),
		  NULL) < 0)
		return refuse(-errno, ret_why, "%s: cannot remount it: %s",
			      path, strerror(errno));
	return 0;
}
