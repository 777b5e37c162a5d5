/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - a connection to the daemon, its messages, and the search for a socket.
 *
 * OWNS      the descriptor of a link; the finder's thread, and its memory, which
 *           can outlive the session.  Not the meaning of messages (rpc.c) nor
 *           when to connect (session.c).
 *
 * STATES    of a finder:
 *
 *           LOOKING -> DONE   run_finder      kv_finder_end joins and frees it
 *           LOOKING -> LEFT   kv_finder_end   run_finder frees it later
 *
 * INVARIANTS
 *   (1) The daemon of an open link has answered HELLO with a version of ours,
 *       and runs as root or as our own user, or as another user whose socket lies
 *       in directories that only root and our user can change.  In a user
 *       namespace the overflow user counts as root.
 *   (2) A descriptor that came with a refused message is closed here.
 *   (3) An abandoned finder thread uses only its own memory, and the library,
 *       which is never unloaded (-z nodelete).
 *
 * LOCKING   none: the owner of a link serializes senders and receivers, and the
 *           state of a finder is atomic.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

#include "common/bytes.h"
#include "kernels/session/rpc.h"
#include "common/thread.h"

int kv_link_find(const char *path, char ret_socket[KV_SOCKET_PATH_MAX])
{
	char link[KV_SOCKET_PATH_MAX], target[KV_SOCKET_PATH_MAX];
	ssize_t len;
	int n;

	n = snprintf(link, sizeof(link), "%s/.kvfs/control", path);
	if (n < 0 || (size_t)n >= sizeof(link))
		return -ENAMETOOLONG;
	len = readlink(link, target, sizeof(target) - 1);
	if (len < 0) {
		strcpy(ret_socket, path);
		return 0;
	}
	target[len] = '\0';
	if (target[0] == '/')
		n = snprintf(ret_socket, KV_SOCKET_PATH_MAX, "%s", target);
	else
		n = snprintf(ret_socket, KV_SOCKET_PATH_MAX, "%s/.kvfs/%s",
			     path, target);
	return n < KV_SOCKET_PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* Connect to the socket @path.  A path of more than the 107 bytes that an
 * address holds is replaced by a name in /proc/self/fd. */
static int connect_to(int fd, const char *path)
{
	_cleanup_(kv_closep) int at = -1;
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (strlen(path) < sizeof(address.sun_path)) {
		strcpy(address.sun_path, path);
	} else {
		at = open(path, O_PATH | O_CLOEXEC);
		if (at < 0)
			return -errno;
		snprintf(address.sun_path, sizeof(address.sun_path),
			 "/proc/self/fd/%d", at);
	}
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	return 0;
}

/* Return whether only root, our own user and the user @hidden can create or
 * rename files in the directory @path. */
static bool is_guarded(const char *path, uint32_t hidden)
{
	struct stat st;

	return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) &&
	       !(st.st_mode & (S_IWGRP | S_IWOTH)) &&
	       (st.st_uid == 0 || st.st_uid == geteuid() ||
		st.st_uid == hidden);
}

/*
 * Check the socket of a daemon of another user: @owner owns the socket, and all
 * directories above the socket are guarded, so that root has chosen the daemon.  The
 * overflow user stands for root and for every user outside our user namespace: a user
 * outside the namespace who owns one of the directories can still deceive us.
 */
static int check_path(const char *path, uint32_t owner)
{
	const uint32_t hidden = kv_user_is_hidden(owner) ? owner : 0;
	char dir[PATH_MAX];
	struct stat st;
	size_t len = strlen(path);

	if (path[0] != '/' || len >= sizeof(dir))
		return -EPERM;
	if (lstat(path, &st) < 0 || !S_ISSOCK(st.st_mode) || st.st_uid != owner)
		return -EPERM;
	memcpy(dir, path, len + 1);
	for (char *slash = strrchr(dir, '/'); slash != dir;
	     slash = strrchr(dir, '/')) {
		*slash = '\0';
		if (!is_guarded(dir, hidden))
			return -EPERM;
	}
	return is_guarded("/", hidden) ? 0 : -EPERM;
}

int kv_link_open(const char *socket_path, struct kv_link *ret_link,
		 struct wire_hello *ret_hello)
{
	_cleanup_(kv_closep) int fd = -1;
	struct timeval second = {.tv_sec = 1};
	struct wire_hello hello = {.version = WIRE_VERSION,
				   .oldest = WIRE_OLDEST};
	struct kv_packet packet = {
		.header = {.type = WIRE_HELLO, .count = 1},
		.items = &hello,
		.bytes = sizeof(hello),
		.fd = -1,
	};
	struct ucred cred;
	socklen_t len = sizeof(cred);
	char path[PATH_MAX];
	int r;

	/* Resolve symbolic links once: the path that is connected to is also the
	 * one that is checked. */
	if (!realpath(socket_path, path))
		return -errno;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof(second));
	r = connect_to(fd, path);
	if (r < 0)
		return r;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -errno;
	if (kv_user_is_hidden(cred.uid) ||
	    (cred.uid != 0 && cred.uid != geteuid()))
		r = check_path(path, cred.uid);
	if (r == 0)
		r = kv_link_send(fd, &packet, 0);
	if (r == 0)
		r = kv_link_receive(fd, &packet, 0);
	if (r < 0)
		return r;
	kv_closep(&packet.fd);
	if (packet.header.type != WIRE_HELLO || packet.bytes != sizeof(hello) ||
	    (packet.header.status < 0 &&
	     packet.header.status != -EPROTONOSUPPORT))
		return -EPROTO;
	if (hello.oldest == 0)
		hello.oldest = hello.version;
	*ret_hello = hello;
	if (packet.header.status < 0 || hello.version < WIRE_OLDEST ||
	    hello.version > WIRE_VERSION)
		return -EPROTONOSUPPORT;
	*ret_link =
		(struct kv_link){.fd = kv_steal_fd(&fd), .epoch = hello.epoch};
	return 0;
}

int kv_link_lost(int r)
{
	return r == -EMFILE || r == -ENFILE || r == -ENOMEM ? r : -ENOTCONN;
}

int kv_link_send(int fd, const struct kv_packet *packet, int flags)
{
	struct iovec parts[2] = {
		{(void *)&packet->header, sizeof(packet->header)},
		{packet->items, packet->bytes},
	};
	int r = kv_send_parts(fd, parts, 2, packet->fd, flags);

	/* no memory now, or too many descriptors in flight */
	if (r == -ENOBUFS || r == -ENOMEM || r == -ETOOMANYREFS)
		return flags & MSG_DONTWAIT ? -EAGAIN : r;
	return r;
}

int kv_link_receive(int fd, struct kv_packet *packet, int flags)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(4 * sizeof(int))];
	} control;
	struct iovec iov[2] = {
		{&packet->header, sizeof(packet->header)},
		{packet->items, packet->bytes},
	};
	struct msghdr message = {
		.msg_iov = iov,
		.msg_iovlen = 2,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	_cleanup_(kv_closep) int passed = -1;
	struct cmsghdr *cmsg;
	size_t fds;
	ssize_t n;
	int got;

	do
		n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | flags);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? -EAGAIN : -ENOTCONN;
	/* Keep the first descriptor, and close any others. */
	for (cmsg = CMSG_FIRSTHDR(&message); cmsg;
	     cmsg = CMSG_NXTHDR(&message, cmsg)) {
		if (cmsg->cmsg_level != SOL_SOCKET ||
		    cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		fds = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < fds; i++) {
			memcpy(&got, CMSG_DATA(cmsg) + i * sizeof(int),
			       sizeof(int));
			if (passed < 0)
				passed = got;
			else
				close(got);
		}
	}
	if (n == 0)
		return -ENOTCONN;
	if ((size_t)n < sizeof(packet->header) ||
	    (message.msg_flags & MSG_TRUNC))
		return -EPROTO;
	packet->bytes = (size_t)n - sizeof(packet->header);
	packet->fd_lost = message.msg_flags & MSG_CTRUNC;
	packet->fd = kv_steal_fd(&passed);
	return 0;
}

/* ---- finder ---- */

_Static_assert(KV_SOCKET_PATH_MAX >= PATH_MAX,
	       "realpath writes PATH_MAX bytes");

enum state { LOOKING, DONE, LEFT };

struct kv_finder {
	_Atomic enum state state;
	pthread_t thread;
	int wake_fd, result;
	char socket[KV_SOCKET_PATH_MAX];
	char path[];
};

static void *run_finder(void *arg)
{
	struct kv_finder *finder = arg;
	enum state looking = LOOKING;
	char named[KV_SOCKET_PATH_MAX];

	finder->result = kv_link_find(finder->path, named);
	if (finder->result == 0 && !realpath(named, finder->socket))
		finder->result = -errno;
	if (atomic_compare_exchange_strong(&finder->state, &looking, DONE))
		eventfd_write(finder->wake_fd, 1);
	else
		free(finder);
	return NULL;
}

int kv_finder_start(const char *path, int wake_fd,
		    struct kv_finder **ret_finder)
{
	_cleanup_(kv_freep) struct kv_finder *finder =
		calloc(1, sizeof(*finder) + strlen(path) + 1);
	int r;

	if (!finder)
		return -ENOMEM;
	finder->wake_fd = wake_fd;
	strcpy(finder->path, path);
	r = kv_thread_start(&finder->thread, "kvfs-finder", run_finder, finder);
	if (r < 0)
		return r;
	*ret_finder = kv_steal(finder);
	return 0;
}

bool kv_finder_is_done(const struct kv_finder *finder)
{
	return atomic_load(&finder->state) == DONE;
}

int kv_finder_end(struct kv_finder *finder, char ret_socket[KV_SOCKET_PATH_MAX])
{
	const pthread_t thread = finder->thread;
	enum state looking = LOOKING;
	int r;

	if (atomic_compare_exchange_strong(&finder->state, &looking, LEFT)) {
		pthread_detach(thread);
		return -ETIMEDOUT;
	}
	pthread_join(thread, NULL);
	r = finder->result;
	if (r == 0)
		strcpy(ret_socket, finder->socket);
	free(finder);
	return r;
}
