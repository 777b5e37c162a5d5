/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open.h - handles: the state of a file or directory that is open through the
 * mount.
 */
#ifndef KV_FS_MOUNT_OPEN_H
#define KV_FS_MOUNT_OPEN_H

#include <sys/queue.h>

#include "fs/mount/mount.h"
#include "fs/mount/upload.h"

enum kv_handle_kind {
	KV_HANDLE_BLOCK,  /* `block`, held and charged */
	KV_HANDLE_UPLOAD, /* `upload`, held and counted as opened */
	KV_HANDLE_TEXT,	  /* `text`, made at open */
	KV_HANDLE_DIR,	  /* `nodes`, listed at open */
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
	struct kv_account *account; /* held; of the user who opened the file */
	size_t bytes;		    /* that it has */
	LIST_ENTRY(kv_handle) all;  /* mount->handles.lock */
};

struct kv_handles;

/* Make a handle for @req, a copy of @from, and take over what @from holds.  Returns 0,
 * -ENOMEM, or -ENFILE beyond the user's share; on an error the caller keeps @from's holds. */
int kv_handle_new(fuse_req_t req, const struct kv_handle *from,
		  struct fuse_file_info *fi);
void kv_handle_free(struct kv_mount *mount, struct kv_handle *handle);

int kv_handles_new(struct kv_handles **ret_handles); /* -ENOMEM */
/* Free the table, with the handles that the kernel did not release. */
void kv_handles_free(struct kv_mount *mount);

static inline struct kv_handle *kv_handle_of(const struct fuse_file_info *fi)
{
	return (struct kv_handle *)(uintptr_t)fi->fh;
}

#endif
