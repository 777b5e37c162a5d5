/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.h - tells the kernel which attributes it must forget.
 *
 * By inode only, never by name: to forget a name the kernel takes the directory's
 * lock, which a process may hold that waits for our answer.  If the daemon is killed
 * then, that thread keeps /dev/fuse open for ever and every process on the mount
 * hangs (seen).  After the attributes of an inode are forgotten, the kernel asks for
 * them, gets ESTALE if the inode is gone, and looks the name up again.
 */
#ifndef KV_FS_MOUNT_NOTIFY_H
#define KV_FS_MOUNT_NOTIFY_H

#include "fs/mount/mount.h"

struct kv_notify;

int kv_notify_new(struct kv_mount *mount,
		  struct kv_notify **ret_notify); /* -ENOMEM */
void kv_notify_free(struct kv_notify *notify);	  /* stopped, or NULL */

/* Start the thread, once; notices before are dropped.  -EAGAIN. */
int kv_notify_start(struct kv_notify *notify, struct fuse_session *session);
/* Stop the thread, if it runs: later notices are dropped. */
void kv_notify_stop(struct kv_notify *notify);

/* The block is gone.  Never blocks; in a flood, notices are dropped, and the kernel
 * forgets the attributes after a second by itself. */
void kv_notify_gone(struct kv_notify *notify, uint64_t id);

/* Owner or mode of the space changed, and so those of its directories and blocks. */
void kv_notify_space(struct kv_notify *notify, struct kv_space *space);

#endif
