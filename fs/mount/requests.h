/* SPDX-License-Identifier: Apache-2.0 */
/*
 * requests.h - the kernel's requests: read as fast as they come, and answered
 * by threads for which users take turns.
 */
#ifndef KV_FS_MOUNT_REQUESTS_H
#define KV_FS_MOUNT_REQUESTS_H

#include "fs/mount/fuse.h"
#include "fs/mount/mount.h"

struct kv_requests;

/* Answer the requests of @fuse, which is mounted.  -ENOMEM, -EAGAIN. */
int kv_requests_new(struct kv_mount *mount, struct fuse_session *fuse,
		    struct kv_requests **ret_requests);
/* Wait until the mount is gone (0), until kv_requests_end (0), or until requests
 * cannot be read any more (-errno). */
int kv_requests_wait(struct kv_requests *requests);
void kv_requests_end(struct kv_requests *requests);
/* Answers what was read before it returns.  Takes NULL. */
void kv_requests_free(struct kv_requests *requests);

/* When the request was read that the calling thread answers. */
uint64_t kv_request_arrived(void);

#endif
