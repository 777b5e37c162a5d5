/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secret.c - files with a password or a key.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "common/bytes.h"
#include "common/secret.h"

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
