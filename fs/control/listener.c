/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.c - bind the control socket, and remove it again.
 *
 * OWNS      the listening descriptor, the socket file, and the directory around
 *           it if that had to be made.
 *
 * LOCKING   none: opened and closed by the thread that starts the daemon.
 */
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "fs/control/listener.h"

#define BACKLOG 128

/* Make the missing directories above @path; whether the last one was. */
static int make_parents(const char *path, bool *ret_made)
{
	_cleanup_(kv_freep) char *copy = strdup(path);
	char *slash;

	*ret_made = false;
	if (!copy)
		return -ENOMEM;
	for (slash = strchr(copy + 1, '/'); slash;
	     slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		*ret_made = mkdir(copy, 0755) == 0;
		if (!*ret_made && errno != EEXIST)
			return -errno;
		/* Whatever the umask is: other users connect, too. */
		if (*ret_made && chmod(copy, 0755) < 0)
			return -errno;
		*slash = '/';
	}
	return 0;
}

/* Whether somebody listens at @address: 0 nobody, -EADDRINUSE, or an error. */
static int answers(const struct sockaddr_un *address)
{
	_cleanup_(kv_closep) int fd = -1;

	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) ==
	    0)
		return -EADDRINUSE;
	if (errno == ECONNREFUSED)
		return 0;
	/* A full backlog, or a socket of another type: alive. */
	return errno == EAGAIN || errno == EPROTOTYPE ? -EADDRINUSE : -errno;
}

static int sweep(const struct sockaddr_un *address, char **ret_why)
{
	const char *path = address->sun_path;
	struct stat st;
	int r;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	r = S_ISSOCK(st.st_mode) ? answers(address) : -EEXIST;
	if (r == -EEXIST &&
	    asprintf(ret_why, "control socket %s: there is something else",
		     path) < 0)
		*ret_why = NULL;
	if (r == -EADDRINUSE &&
	    asprintf(ret_why, "control socket %s: another daemon answers there",
		     path) < 0)
		*ret_why = NULL;
	if (r == 0 && unlink(path) < 0)
		r = -errno;
	return r;
}

static int bind_and_listen(struct kv_listener *listener,
			   const struct sockaddr_un *address)
{
	struct stat st;

	listener->fd = socket(AF_UNIX,
			      SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (listener->fd < 0)
		return -errno;
	if (bind(listener->fd, (const struct sockaddr *)address,
		 sizeof(*address)) < 0)
		return -errno;
	if (lstat(address->sun_path, &st) < 0)
		return -errno;
	listener->dev = st.st_dev;
	listener->ino = st.st_ino;
	listener->path = strdup(address->sun_path);
	if (!listener->path)
		return -ENOMEM;
	if (chmod(address->sun_path, 0666) < 0 ||
	    listen(listener->fd, BACKLOG) < 0)
		return -errno;
	return 0;
}

int kv_listener_open(struct kv_listener *listener, const char *path,
		     char **ret_why)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int r;

	*listener = (struct kv_listener){.fd = -1};
	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path) + 1);
	r = make_parents(path, &listener->made_dir);
	if (r == 0)
		r = sweep(&address, ret_why);
	if (r == 0)
		r = bind_and_listen(listener, &address);
	if (r < 0)
		kv_listener_close(listener);
	return r;
}

void kv_listener_close(struct kv_listener *listener)
{
	struct stat st;
	char *slash;

	if (listener->path && lstat(listener->path, &st) == 0 &&
	    st.st_dev == listener->dev && st.st_ino == listener->ino)
		unlink(listener->path);
	if (listener->path && listener->made_dir) {
		slash = strrchr(listener->path, '/');
		*slash = '\0';
		rmdir(listener->path);
	}
	kv_closep(&listener->fd);
	free(listener->path);
	*listener = (struct kv_listener){.fd = -1};
}
