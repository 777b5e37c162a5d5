/* SPDX-License-Identifier: Apache-2.0 */
/*
 * readers.h - reads through the mount that need the SSD, on threads of their
 * own.
 */
#ifndef KV_FS_MOUNT_READERS_H
#define KV_FS_MOUNT_READERS_H

#include "fs/mount/fuse.h"
#include "fs/mount/mount.h"

struct kv_workers;

/* Answer @req with the bytes of @block, at once if they are in memory. */
void kv_read_block(fuse_req_t req, struct kv_block *block, size_t size,
		   uint64_t offset);

/* Who reads from SSD.  -ENOMEM, -EAGAIN. */
int kv_readers_new(struct kv_workers **ret_readers);

#endif
