/* SPDX-License-Identifier: Apache-2.0 */
/*
 * changes.h - changes of spaces and users, which wait for the disk, on threads
 * of their own.
 */
#ifndef KV_FS_MOUNT_CHANGES_H
#define KV_FS_MOUNT_CHANGES_H

#include <sys/stat.h>

#include "fs/mount/fuse.h"
#include "fs/mount/mount.h"

struct kv_upload;
struct kv_workers;

/* What a handler was asked for; it uses as much of this as it needs. */
struct kv_change {
	/* Make it, and reply as a handler does. */
	void (*make)(fuse_req_t req, const struct kv_change *change);
	fuse_ino_t ino, other; /* a parent, or a node; a second one */
	const char *name, *text;
	unsigned flags;
	struct stat attr;
	struct kv_upload *upload; /* open until the reply */
};

/*
 * Have a thread make the change, of which a copy is kept until then.  One that
 * has not begun ends with EINTR when its caller is interrupted or the mount
 * ends; beyond the user's share of memory it fails with ENOLCK.
 */
void kv_change_later(fuse_req_t req, const struct kv_change *change);

/* Who makes them.  -ENOMEM, -EAGAIN. */
int kv_changes_new(struct kv_workers **ret_changes);

#endif
