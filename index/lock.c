/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.c - STORE/lock: who has the store.
 *
 * The lock is an OFD lock on all of STORE/lock, which is never unlinked, and
 * flock(2) on STORE besides: a file may be deleted by whoever should not.  An
 * owner that is ending lets go of one byte, far behind the file's end.
 *
 * OWNS      nothing: descriptors are the callers'.
 *
 * LOCKING   none of its own.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "index/lock.h"

#define GOING_ON \
	((off_t)1 << 40) /* the byte that an ending owner lets go of \
			  */
#define NOTICE_NS \
	(UINT64_C(3) * 1000000000) /* until an owner knows its end \
				    */
#define ENDING_NS (UINT64_C(30) * 1000000000)
#define POLL_US 10000

static int try_once(int store, bool write, int *ret_fd)
{
	struct flock lock = {.l_type = write ? F_WRLCK : F_RDLCK};
	_cleanup_(kv_closep) int fd = -1;
	struct stat st;

	if (flock(store, (write ? LOCK_EX : LOCK_SH) | LOCK_NB) < 0 &&
	    errno == EWOULDBLOCK)
		return -EBUSY;
	fd = openat(store, "lock",
		    (write ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC |
			    O_NOFOLLOW | O_NONBLOCK,
		    0600);
	if (fd < 0 && errno == ENOENT && !write) {
		*ret_fd = -1;
		return 0;
	}
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return -EINVAL;
	if (fcntl(fd, F_OFD_SETLK, &lock) < 0)
		return errno == EAGAIN || errno == EACCES ? -EBUSY : -errno;
	*ret_fd = kv_steal_fd(&fd);
	return 0;
}

static bool is_locked(int fd, off_t start)
{
	struct flock lock = {.l_type = F_WRLCK, .l_start = start, .l_len = 1};

	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

enum kv_lock_state kv_lock_look(int fd)
{
	if (!is_locked(fd, 0))
		return KV_LOCK_FREE;
	return is_locked(fd, GOING_ON) ? KV_LOCK_HELD : KV_LOCK_ENDING;
}

static int open_to_look(int store)
{
	return openat(store, "lock",
		      O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

long kv_lock_owner(int store)
{
	_cleanup_(kv_closep) int fd = open_to_look(store);
	char text[32] = {0};

	if (fd < 0 || pread(fd, text, sizeof(text) - 1, 0) < 0)
		return 0;
	return strtol(text, NULL, 10);
}

static bool is_ending(int store)
{
	_cleanup_(kv_closep) int fd = open_to_look(store);

	return fd >= 0 && kv_lock_look(fd) == KV_LOCK_ENDING;
}

int kv_lock_take(int store, bool write, const struct kv_lock_wait *wait,
		 int *ret_fd)
{
	uint64_t until_ns = kv_now_ns() + NOTICE_NS;
	bool ending = false;
	int r;

	while ((r = try_once(store, write, ret_fd)) == -EBUSY &&
	       kv_now_ns() < until_ns) {
		flock(store, LOCK_UN);
		if (!ending && is_ending(store)) {
			ending = true;
			until_ns = kv_now_ns() + ENDING_NS;
			if (wait->waiting)
				wait->waiting(wait->arg, kv_lock_owner(store));
		}
		usleep(POLL_US);
	}
	return r;
}

void kv_lock_end(int fd)
{
	struct flock lock = {
		.l_type = F_UNLCK, .l_start = GOING_ON, .l_len = 1};

	(void)fcntl(fd, F_OFD_SETLK, &lock);
}
