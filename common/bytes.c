/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytes.c - bytes as hex digits, to and from files, and over sockets.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: every function works on its arguments only.
 */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <stdarg.h>
#include <stdio.h>

#include "common/bytes.h"

void kv_hex(const uint8_t *bytes, size_t n, char *text)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < n; i++) {
		*text++ = digits[bytes[i] >> 4];
		*text++ = digits[bytes[i] & 15];
	}
	*text = '\0';
}

static int nibble_of(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	if (digit >= 'a' && digit <= 'f')
		return digit - 'a' + 10;
	return -1;
}

int kv_unhex(const char *text, size_t n, uint8_t *bytes)
{
	for (size_t i = 0; i < n; i++) {
		int high = nibble_of(text[2 * i]);
		int low = high < 0 ? -1 : nibble_of(text[2 * i + 1]);

		if (low < 0)
			return -EINVAL;
		bytes[i] = (uint8_t)(high << 4 | low);
	}
	return 0;
}

int kv_write_all(int fd, const void *data, size_t n)
{
	const uint8_t *at = data;

	while (n > 0) {
		ssize_t put = write(fd, at, n);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		at += put;
		n -= (size_t)put;
	}
	return 0;
}

long kv_read_at(int fd, uint64_t at, void *data, size_t n)
{
	size_t done = 0;

	while (done < n) {
		ssize_t got = pread(fd, (uint8_t *)data + done, n - done,
				    (off_t)(at + done));

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

int kv_secret_read(const char *path, char *text, size_t room, char **ret_why)
{
	_cleanup_(kv_closep) int fd =
		open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st) < 0)
		return kv_why(ret_why, -errno, "%s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		return kv_why(ret_why, -EINVAL, "not a file");
	if (st.st_uid != geteuid() && st.st_uid != 0)
		return kv_why(ret_why, -EACCES,
			      "it belongs to user %u, and must belong to user "
			      "%u or root",
			      st.st_uid, geteuid());
	if (st.st_mode & 077)
		return kv_why(ret_why, -EACCES,
			      "its mode is %04o, and must be 0600",
			      st.st_mode & 07777);
	n = read(fd, text, room);
	if (n < 0)
		return kv_why(ret_why, -errno, "%s", strerror(errno));
	if ((size_t)n == room)
		return kv_why(ret_why, -EINVAL, "longer than %zu bytes",
			      room - 1);
	text[n] = '\0';
	return (int)n;
}

int kv_send_parts(int socket, struct iovec *parts, size_t n, int fd, int flags)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct msghdr m = {.msg_iov = parts, .msg_iovlen = n};
	struct cmsghdr *c;
	ssize_t sent;

	if (fd >= 0) {
		m.msg_control = control.room;
		m.msg_controllen = sizeof(control.room);
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	do
		sent = sendmsg(socket, &m, flags | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : 0;
}

ssize_t kv_receive_parts(int socket, struct iovec *parts, size_t n, int flags,
			 int *ret_flags, int ret_fds[KV_FDS_MAX],
			 size_t *ret_n_fds)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(KV_FDS_MAX * sizeof(int))];
	} control;
	struct msghdr m = {.msg_iov = parts,
			   .msg_iovlen = n,
			   .msg_control = control.room,
			   .msg_controllen = sizeof(control.room)};
	ssize_t bytes;
	size_t room;

	*ret_n_fds = 0;
	/* Retry after ECONNRESET (the peer closed with data unread): messages
	 * that the peer sent can still be read. */
	do
		bytes = recvmsg(socket, &m, flags | MSG_CMSG_CLOEXEC);
	while (bytes < 0 && (errno == EINTR || errno == ECONNRESET));
	if (bytes < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		room = c->cmsg_len - CMSG_LEN(0);
		memcpy(ret_fds + *ret_n_fds, CMSG_DATA(c), room);
		*ret_n_fds += room / sizeof(int);
	}
	*ret_flags = m.msg_flags;
	return bytes;
}

int kv_why(char **ret_why, int r, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (vasprintf(ret_why, format, args) < 0)
		*ret_why = NULL;
	va_end(args);
	/* Paths and URLs can contain control characters. */
	for (char *c = *ret_why; c && *c; c++)
		if ((unsigned char)*c < ' ')
			*c = '?';
	return r;
}
