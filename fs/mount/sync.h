/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync.h - requests that end when something is durable, or in DRAM.
 *
 * Each call answers its request, at once or later, and only if it returns 0; on
 * an error, -ENOMEM or -ENOLCK, the caller does.
 */
#ifndef KV_FS_MOUNT_SYNC_H
#define KV_FS_MOUNT_SYNC_H

#include "fs/mount/fuse.h"
#include "fs/mount/mount.h"

/* Until all of @spaces are durable. */
int kv_sync_spaces(fuse_req_t req, struct kv_space *const *spaces, size_t n);
/* Until the block is. */
int kv_sync_block(fuse_req_t req, struct kv_block *block);
/* The same, and then its slot is freed: -EBUSY if it is leased. */
int kv_sync_demote(fuse_req_t req, struct kv_block *block);
/* Until it is in DRAM. */
int kv_sync_promote(fuse_req_t req, struct kv_block *block);

#endif
