/* SPDX-License-Identifier: Apache-2.0 */
/*
 * userns.c - users that this process cannot tell apart.
 *
 * OWNS      nothing: /proc is read each time, because a process can enter
 *           another namespace.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <stdio.h>

#include "common/kv.h"

#define OVERFLOW_UID 65534u /* the default */

/* Read the beginning of a file as text; the text is empty if the file cannot be
 * read. */
static void read_text(const char *path, char *text, size_t room)
{
	_cleanup_(kv_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, room - 1);

	text[n > 0 ? n : 0] = '\0';
}

bool kv_uid_map_is_whole(const char *text)
{
	unsigned long inside, outside, count;
	unsigned long long sum = 0;
	int n;

	while (sscanf(text, "%lu %lu %lu%n", &inside, &outside, &count, &n) ==
	       3) {
		sum += count;
		text += n;
	}
	return sum >= UINT32_MAX; /* UINT32_MAX is no valid user id */
}

bool kv_user_is_hidden(uint32_t uid)
{
	unsigned overflow = OVERFLOW_UID;
	char text[4096];

	read_text("/proc/sys/kernel/overflowuid", text, sizeof(text));
	(void)sscanf(text, "%u", &overflow);
	if (uid != overflow)
		return false;
	read_text("/proc/self/uid_map", text, sizeof(text));
	return !kv_uid_map_is_whole(text);
}
