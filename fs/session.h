/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - one FUSE session, from mount(2) to unmount.
 */
#ifndef KV_FS_SESSION_H
#define KV_FS_SESSION_H

#include "fs/daemon.h"

/*
 * Block the signals that end the daemon, in this thread and in threads that it starts
 * later.  Call this first.
 */
void kv_session_block_signals(void);

/*
 * Mount at @path (NULL: no FUSE) and serve until the mount is unmounted or a signal comes.
 * @ready runs once the mount answers, on a thread that answers no FUSE requests.  On
 * failure *@ret_why is one line for the user (caller frees).
 */
int kv_session_run(struct kv_daemon *daemon, const char *path,
		   void (*ready)(void *arg), void *arg, char **ret_why);

#endif
