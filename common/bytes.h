/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytes.h - bytes as hex digits, to and from files and over sockets, and texts
 * for the user.
 *
 * Shared by the daemon, libkvfs and the tools.
 */
#ifndef KV_COMMON_BYTES_H
#define KV_COMMON_BYTES_H

#include "common/kv.h"

/* Write @bytes as 2 * @n lowercase digits and a NUL. */
void kv_hex(const uint8_t *bytes, size_t n, char *text);

/* Parse 2 * @n digits of 0-9a-f into @n bytes; -EINVAL. */
int kv_unhex(const char *text, size_t n, uint8_t *bytes);

/* Write all @n bytes to @fd.  After an error an unknown part is written. */
int kv_write_all(int fd, const void *data, size_t n);

/* Read @n bytes of @fd from @at on, or fewer at the end of the file.  Return how
 * many, or -errno. */
long kv_read_at(int fd, uint64_t at, void *data, size_t n);

/*
 * Read the file @path into @text, and add a NUL.  Returns the number of bytes, or with a
 * cause for the user (caller frees) -EACCES: not a file of this user or root, or others may
 * read it; -EINVAL: not a file, or not shorter than @room; errors of open(2).
 */
int kv_secret_read(const char *path, char *text, size_t room, char **ret_why);

struct iovec;

/* Most descriptors in a message: the kernel's SCM_MAX_FD. */
#define KV_FDS_MAX 253

/*
 * Send the @n parts to @socket as one message, with the descriptor @fd unless it
 * is -1.  @flags: as for sendmsg(2), besides MSG_NOSIGNAL.  Returns 0 or -errno.
 */
int kv_send_parts(int socket, struct iovec *parts, size_t n, int fd, int flags);

/*
 * Receive a message into the @n parts, and its descriptors.  @flags: as for recvmsg(2).
 * Returns the bytes, or -errno; *@ret_n_fds is set in any case.
 */
ssize_t kv_receive_parts(int socket, struct iovec *parts, size_t n, int flags,
			 int *ret_flags, int ret_fds[KV_FDS_MAX],
			 size_t *ret_n_fds);

/* Format a reason for the user into *@ret_why (caller frees; NULL: no memory), as
 * one line: control characters become '?'.  Returns @r. */
int kv_why(char **ret_why, int r, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
