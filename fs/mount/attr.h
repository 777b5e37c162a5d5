/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attr.h - what stat(2) shows of a node.
 */
#ifndef KV_FS_MOUNT_ATTR_H
#define KV_FS_MOUNT_ATTR_H

#include <sys/stat.h>

#include "fs/mount/mount.h"
#include "fs/mount/node.h"

/*
 * Fill in the attributes of any node; @ret_timeout (or NULL) is how many seconds the
 * kernel may keep them.  Returns 0, -ESTALE if the node is gone, or -EIO.
 */
int kv_attr_of(struct kv_mount *mount, uint64_t ino, struct stat *ret_attr,
	       double *ret_timeout);
void kv_attr_block(const struct kv_block_info *info, struct stat *ret_attr);

/* Get the space of @node, which is a space or a node below one other than a block or an
 * upload, if both still exist.  Returns 0 or -ESTALE. */
int kv_attr_space(struct kv_mount *mount, const struct kv_node *node,
		  struct kv_space **ret_space, struct kv_space_info *ret_info);

struct timespec kv_attr_time(int64_t ns);
void kv_attr_times(struct stat *st, int64_t mtime_ns, int64_t atime_ns);

#define KV_TIMEOUT_SPACE 1.0
#define KV_TIMEOUT_BLOCK 1.0  /* seconds; blocks and two-digit directories */
#define KV_TIMEOUT_FIXED 60.0 /* .kvfs */

/* Return how many seconds the kernel may keep the name of a node whose attributes it may
 * keep for @attr_timeout.  0 for snapshots: clients create and drop them by the socket. */
double kv_name_timeout(uint64_t ino, double attr_timeout);

#define KV_TENANT_NAME 11 /* room for a user's id in decimal and a NUL */

#endif
