/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open.h - what a file or directory that is open through the mount holds.
 */
#ifndef KV_FS_MOUNT_OPEN_H
#define KV_FS_MOUNT_OPEN_H

#include <sys/queue.h>

#include "fs/mount/mount.h"
#include "fs/mount/upload.h"

enum kv_handle_kind {
	KV_HANDLE_BLOCK,  /* block, held and charged */
	KV_HANDLE_UPLOAD, /* upload, held and counted as opened */
	KV_HANDLE_TEXT,	  /* text, made at open */
	KV_HANDLE_DIR,	  /* nodes, as they were at open */
};

struct kv_handle {
	enum kv_handle_kind kind;
	union {
		struct {
			struct kv_block *block;
			struct kv_open_charge *charge;
		};
		struct kv_upload *upload;
		char *text;
		struct {
			uint64_t *nodes;
			size_t n, room;
		};
	};
	struct kv_account *account; /* held; of who opened it */
	size_t bytes;		    /* that it has */
	LIST_ENTRY(kv_handle) all;  /* mount->handles.lock */
};

struct kv_handles;

/* A copy of @from, which then owns what @from held.  -ENFILE beyond the share
 * of who asks, -ENOMEM: the caller still does. */
int kv_handle_new(fuse_req_t req, const struct kv_handle *from,
		  struct fuse_file_info *fi);
/* Give back what it holds, in the caller's memory. */
void kv_handle_drop(struct kv_mount *mount, struct kv_handle *handle);
void kv_handle_free(struct kv_mount *mount, struct kv_handle *handle);

int kv_handles_new(struct kv_handles **ret_handles); /* -ENOMEM */
/* With those that the kernel had no chance to release. */
void kv_handles_free(struct kv_mount *mount);

/* When the request was read that this thread answers; session.c sets it. */
extern _Thread_local uint64_t kv_request_arrived;

static inline struct kv_handle *kv_handle_of(const struct fuse_file_info *fi)
{
	return (struct kv_handle *)(uintptr_t)fi->fh;
}

#endif
