/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.h - tell the kernel which attributes it must forget.
 *
 * Notices name an inode, never a name: to forget a name the kernel takes the directory's
 * lock, which may be held by a process that waits for the daemon's answer.  If the daemon
 * is killed then, that thread keeps /dev/fuse open for ever and every process on the mount
 * hangs (observed).  After it has forgotten an inode's attributes, the kernel asks for
 * them, gets ESTALE if the inode is gone, and looks the name up again.
 */
#ifndef KV_FS_MOUNT_NOTIFY_H
#define KV_FS_MOUNT_NOTIFY_H

#include "fs/mount/mount.h"

struct kv_notify;

int kv_notify_new(struct kv_mount *mount,
		  struct kv_notify **ret_notify); /* -ENOMEM */
void kv_notify_free(struct kv_notify *notify);	  /* stopped, or NULL */

/* Start the thread, once; earlier notices are dropped.  Returns 0 or -EAGAIN. */
int kv_notify_start(struct kv_notify *notify, struct fuse_session *session);
/* Stop the thread, if it runs; later notices are dropped. */
void kv_notify_stop(struct kv_notify *notify);

/* Tell the kernel that the block @id is gone.  Never blocks.  When there are too many,
 * notices are dropped, and the kernel itself forgets the attributes after a second. */
void kv_notify_gone(struct kv_notify *notify, uint64_t id);

/* Tell the kernel that owner or mode of the space, its directories and blocks
 * have changed. */
void kv_notify_space(struct kv_notify *notify, struct kv_space *space);

#endif
