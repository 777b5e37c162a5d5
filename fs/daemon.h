/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.h - a daemon that serves one store, and its FUSE session. */
#ifndef KV_FS_DAEMON_H
#define KV_FS_DAEMON_H

#include "fs/mount/mount.h"
#include "fs/options.h"

struct kv_gate;

struct kv_daemon {
	/* fixed after open, as are all fields except `control` */
	const struct kv_options *options;
	struct kv_cache *cache;
	struct kv_mount *mount;
	char *control_path;

	/* Held for reading by the cache's callbacks, on the cache's threads. */
	pthread_rwlock_t lock;
	struct kv_control *control; /* lock */
};

/* Open the store and start the control socket.  @options and @gate must outlive the
 * daemon.  On failure *@ret_why is one line for the user (caller frees). */
int kv_daemon_open(const struct kv_options *options, struct kv_gate *gate,
		   struct kv_daemon **ret_daemon, char **ret_why);
/* Wait until everything is written, and close.  Takes NULL. */
void kv_daemon_close(struct kv_daemon *daemon);

/* ---- one FUSE session, from mount(2) to unmount ---- */

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
