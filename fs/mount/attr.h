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
 * Fill @ret_attr for any node; @ret_timeout (may be NULL) is how many seconds
 * the kernel may keep it.  -ESTALE if the node is gone, -EIO.
 */
int kv_attr_of(struct kv_mount *mount, uint64_t ino, struct stat *ret_attr,
	       double *ret_timeout);
void kv_attr_block(const struct kv_block_info *info, struct stat *ret_attr);

/* The space that a space's node, or one below it that is no file, lies in, if
 * it is still there: 0, -ESTALE. */
int kv_attr_space(struct kv_mount *mount, const struct kv_node *node,
		  struct kv_space **ret_space, struct kv_space_info *ret_info);

struct timespec kv_attr_time(int64_t ns);
void kv_attr_times(struct stat *st, int64_t mtime_ns, int64_t atime_ns);

#define KV_TIMEOUT_SPACE 1.0
#define KV_TIMEOUT_BLOCK 1.0  /* blocks and two-digit directories */
#define KV_TIMEOUT_FIXED 60.0 /* .kvfs */

/* How long the kernel may keep the name of a node whose attributes it may keep
 * for @attr_timeout: a snapshot's not at all, they come and go by the socket.
 */
double kv_name_timeout(uint64_t ino, double attr_timeout);

#define KV_TENANT_NAME 11 /* a user's id in decimal, and a NUL */

#endif
