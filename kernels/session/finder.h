/* SPDX-License-Identifier: Apache-2.0 */
/*
 * finder.h - a look for the control socket, in a thread that may be left behind.
 *
 * A call on the mount of a daemon that hangs does not return before the daemon
 * goes on or dies, and nothing but the end of the process interrupts it.
 */
#ifndef KV_KERNELS_SESSION_FINDER_H
#define KV_KERNELS_SESSION_FINDER_H

#include "kernels/session/link.h"

struct kv_finder;

/* Begin to look for the socket of @path, as kv_link_find does; @wake_fd is an
 * eventfd (borrowed until kv_finder_end) that is written when it is found, or
 * not.  -ENOMEM, -EAGAIN: no thread. */
int kv_finder_start(const char *path, int wake_fd,
		    struct kv_finder **ret_finder);

/* Whether kv_finder_end has a result to give; any thread. */
bool kv_finder_is_done(const struct kv_finder *finder);

/*
 * The end of it: the socket's path, without symbolic links, or why there is
 * none, as kv_link_find and realpath(3) say; -ETIMEDOUT if it still looks: then
 * the thread is left to itself, and to what the call waits for.  Does not wait.
 */
int kv_finder_end(struct kv_finder *finder,
		  char ret_socket[KV_SOCKET_PATH_MAX]);

#endif
