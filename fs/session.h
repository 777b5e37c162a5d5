/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - one FUSE session, from mount(2) to unmount.
 */
#ifndef KV_FS_SESSION_H
#define KV_FS_SESSION_H

#include "fs/daemon.h"

/*
 * Block the signals that end the daemon, in this thread and those it starts.
 * Call first.
 */
void kv_session_block_signals(void);

/*
 * Mount at @path (NULL: no FUSE) and serve until it is unmounted or a signal
 * ends it.  @ready runs once the mount answers, on another thread than FUSE's.
 * On failure *@ret_why is one line for the user (caller frees).
 */
int kv_session_run(struct kv_daemon *daemon, const char *path,
		   void (*ready)(void *arg), void *arg, char **ret_why);

#endif
