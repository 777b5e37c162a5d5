/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.h - a program that the daemon starts and does not trust: with one
 * descriptor, no environment, no privileges, and no life of its own.
 */
#ifndef KV_CACHE_REMOTE_LAUNCH_H
#define KV_CACHE_REMOTE_LAUNCH_H

#include <sys/types.h>

#include "common/kv.h"

#define KV_LAUNCH_FD 3 /* what it finds its socket as */

struct kv_launch {
	const char *argv[3]; /* up to NULL; the first is a path */
	uid_t uid;	     /* and group; of no effect unless we are root */
	int fd; /* becomes KV_LAUNCH_FD there; remains the caller's */
};

struct kv_child {
	pid_t pid; /* 0: none, and there is nothing to kill */
	int pidfd; /* readable when it has ended */
};

/*
 * Start it in a session of its own, in /, with standard error as ours and nothing
 * else open, and, if we may make that, as the first process of a PID namespace.  It
 * is killed when the calling thread ends.  Waits until it is executed, which may
 * take any time on a filesystem that hangs; but not for longer than the process
 * lives.  -errno, also of what could not be done on its side: such as -ENOENT,
 * -EACCES, -EPERM; *@ret_what is the one of @argv that it is about.
 */
int kv_launch(const struct kv_launch *launch, struct kv_child *ret_child,
	      const char **ret_what);

/* Kill it, and what it has started, if that has not left its group. */
void kv_child_kill(const struct kv_child *child);

/* Whether it has ended; then it is forgotten, and @child is none.  @ret_status
 * is as waitpid gives it. */
bool kv_child_reap(struct kv_child *child, int *ret_status);

#endif
