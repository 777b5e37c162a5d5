/* SPDX-License-Identifier: Apache-2.0 */
/*
 * permit.h - the daemon's own check of who asks, besides default_permissions.
 */
#ifndef KV_FS_MOUNT_PERMIT_H
#define KV_FS_MOUNT_PERMIT_H

#include "fs/base/access.h"
#include "fs/mount/fuse.h"

/* The process that the thread @tid belongs to, or @tid if that cannot be seen;
 * 0: of another pid namespace, of which nothing is known. */
pid_t kv_process_of(pid_t tid);

/* The caller of @req with his groups; *@ret_groups is for the caller to free.
 */
struct kv_caller kv_permit_caller(fuse_req_t req, gid_t **ret_groups);

/* Whether the caller of @req may use the mount at all, and may make spaces: 0,
 * -EACCES.  To be asked at each use: the kernel knows names by itself that
 * others looked up. */
int kv_permit_mount(fuse_req_t req);
int kv_permit_make(fuse_req_t req);

/* Whether the caller of @req has the rights @want (R_OK, W_OK, X_OK) in the
 * space: 0, -EACCES. */
int kv_permit(fuse_req_t req, const struct kv_space_info *info, int want);

/* Whether the caller is an operator (access.h): 0, -EPERM. */
int kv_permit_operator(fuse_req_t req);

/* Whether the caller may give what he owns to the group @gid, as chown(2) has
 * it: 0, -EPERM. */
int kv_permit_group(fuse_req_t req, uint32_t gid);

/* Whether the caller owns the space, or has root's rights: 0, -EPERM. */
int kv_permit_owner(fuse_req_t req, const struct kv_space_info *info);
int kv_permit_block_owner(fuse_req_t req, struct kv_block *block);
/* Whether the caller may read the block's space: 0, -EACCES. */
int kv_permit_block_read(fuse_req_t req, struct kv_block *block);

#endif
