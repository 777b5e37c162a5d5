/* SPDX-License-Identifier: Apache-2.0 */
/*
 * permit.h - the daemon's own checks of callers' rights, besides
 * default_permissions.
 */
#ifndef KV_FS_MOUNT_PERMIT_H
#define KV_FS_MOUNT_PERMIT_H

#include "fs/base/access.h"
#include "fs/mount/mount.h"

/* Return the process of the thread @tid, or @tid if the process cannot be seen; 0 for a
 * thread of another pid namespace. */
pid_t kv_process_of(pid_t tid);

/* Return the caller of @req with its groups; the caller frees *@ret_groups. */
struct kv_caller kv_permit_caller(fuse_req_t req, gid_t **ret_groups);

/* Check that the caller of @req may use the mount and, if @make, may make spaces.
 * Returns 0 or -EACCES.  Call this at each use: the kernel resolves names by itself
 * that other users looked up. */
int kv_permit_mount(fuse_req_t req, bool make);

/* Check that the caller has the rights @want (R_OK, W_OK, X_OK) in the space; or may read
 * the block's space.  Return 0 or -EACCES. */
int kv_permit(fuse_req_t req, const struct kv_space_info *info, int want);
int kv_permit_block_read(fuse_req_t req, struct kv_block *block);

/* Check that the caller is an operator (access.h); may give its files to the group @gid,
 * as chown(2) decides; or owns the space, or the block's space, or has root's rights.
 * Return 0 or -EPERM. */
int kv_permit_operator(fuse_req_t req);
int kv_permit_group(fuse_req_t req, uint32_t gid);
int kv_permit_owner(fuse_req_t req, const struct kv_space_info *info);
int kv_permit_block_owner(fuse_req_t req, struct kv_block *block);

#endif
