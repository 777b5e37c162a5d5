/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.h - tells the kernel which attributes it must forget.
 *
 * Only by inode, never by name: to forget a name the kernel takes the
 * directory's lock, which a process may hold that waits for our answer.  If we
 * are killed then, that thread keeps /dev/fuse open for ever and every process
 * on the mount hangs (seen).  An inode whose attributes are forgotten is asked
 * for anew, we answer ESTALE, and the kernel looks the name up again.
 */
#ifndef KV_FS_MOUNT_NOTIFY_H
#define KV_FS_MOUNT_NOTIFY_H

#include "fs/mount/fuse.h"
#include "fs/mount/mount.h"

struct kv_notify;

int kv_notify_new(struct kv_mount *mount,
		  struct kv_notify **ret_notify); /* -ENOMEM */
void kv_notify_free(struct kv_notify *notify);	  /* stopped, or NULL */

/* Once.  What is told before or after is nobody's concern.  -EAGAIN. */
int kv_notify_start(struct kv_notify *notify, struct fuse_session *session);
/* Tell the kernel no more.  One that is not started, or stopped, stays so. */
void kv_notify_stop(struct kv_notify *notify);

/* The block is gone.  Never blocks; what comes in a flood is left to the
 * kernel's own second. */
void kv_notify_gone(struct kv_notify *notify, uint64_t id);

/* Owner or mode of the space changed, and so those of all that is in it. */
void kv_notify_space(struct kv_notify *notify, struct kv_space *space);

#endif
