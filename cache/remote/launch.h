/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.h - start a program that the daemon does not trust: with one descriptor, no
 * environment and no privileges, and killed when the daemon ends.
 */
#ifndef KV_CACHE_REMOTE_LAUNCH_H
#define KV_CACHE_REMOTE_LAUNCH_H

#include <sys/types.h>

#include "common/kv.h"

#define KV_LAUNCH_FD 3 /* its socket */

struct kv_launch {
	const char *argv[3]; /* up to NULL; the first is a path */
	uid_t uid;	     /* and group; ignored unless we are root */
	int fd;		     /* becomes KV_LAUNCH_FD; remains the caller's */
};

struct kv_child {
	pid_t pid; /* 0: none */
	int pidfd; /* readable when it has ended */
};

/*
 * Start the program in a session of its own, in /, with our standard error and no other
 * descriptor, and, if that is permitted, as the first process of a PID namespace.  The
 * program is killed when the calling thread ends.  Waits until it is executed, which may
 * take any time on a filesystem that hangs.  Returns 0 or -errno, such as -ENOENT,
 * -EACCES, -EPERM; *@ret_what is the member of @argv that the error is about.
 */
int kv_launch(const struct kv_launch *launch, struct kv_child *ret_child,
	      const char **ret_what);

/* Kill the child and its process group. */
void kv_child_kill(const struct kv_child *child);

/* Return whether it has ended; then @child is none.  *@ret_status: as of waitpid(2). */
bool kv_child_reap(struct kv_child *child, int *ret_status);

#endif
