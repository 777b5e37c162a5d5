/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask.c - one question after the other for a daemon, on its socket.
 *
 * OWNS      nothing that outlives a call.
 *
 * LOCKING   none.
 */
#include <stdio.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include "fs/ask.h"

int kv_ask(int fd, struct wire_header header, void *items, size_t *bytes,
	   size_t room, uint32_t *ret_count)
{
	struct iovec iov[2] = {{&header, sizeof(header)}, {items, *bytes}};
	const struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
	ssize_t n;

	if (sendmsg(fd, &message, MSG_NOSIGNAL) < 0)
		return -errno;
	iov[1].iov_len = room;
	n = readv(fd, iov, 2);
	if (n < 0)
		return -errno;
	if (n == 0)
		return -ECONNRESET;
	if ((size_t)n < sizeof(header) || !(header.flags & WIRE_REPLY))
		return -EPROTO;
	*bytes = (size_t)n - sizeof(header);
	if (ret_count)
		*ret_count = header.count;
	return header.status;
}

int kv_ask_connect(const char *path)
{
	struct wire_header header = {.type = WIRE_HELLO, .count = 1, .tag = 1};
	struct wire_hello hello = {.version = WIRE_VERSION};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	_cleanup_(kv_closep) int fd = -1;
	size_t bytes = sizeof(hello);
	int r;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 ||
	    connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	r = kv_ask(fd, header, &hello, &bytes, sizeof(hello), NULL);
	if (r == -ECONNRESET)
		return -EACCES; /* as kvfs does with whom it does not let in */
	return r < 0 ? r : kv_steal_fd(&fd);
}

int kv_ask_socket_of(const char *path, char *socket, size_t room)
{
	_cleanup_(kv_freep) char *link = NULL;
	ssize_t n;

	if (asprintf(&link, "%s/.kvfs/control", path) < 0)
		return -ENOMEM;
	n = readlink(link, socket, room);
	if (n < 0)
		return -errno;
	if ((size_t)n >= room)
		return -ENAMETOOLONG;
	socket[n] = '\0';
	return 0;
}
