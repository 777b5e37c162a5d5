/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hidden.h - layouts that somebody has removed.
 *
 * A layout stays as long as its space: rm of it succeeds and does nothing.  But
 * programs that replace a file remove it and make it anew, and would try for
 * ever if it were still there.  So for the process that removed one it is gone
 * until it makes one, or for ten seconds.
 *
 * Threads: any.
 */
#ifndef KV_FS_MOUNT_HIDDEN_H
#define KV_FS_MOUNT_HIDDEN_H

#include "common/kv.h"
#include "fs/mount/fuse.h"

struct kv_hidden;

int kv_hidden_new(struct kv_hidden **ret_hidden); /* -ENOMEM */
void kv_hidden_free(struct kv_hidden *hidden);	  /* takes NULL */

/* The caller @ctx has removed the layout of @space; what was remembered longest
 * ago may be forgotten for it. */
void kv_hidden_add(struct kv_hidden *hidden, uint32_t space,
		   const struct fuse_ctx *ctx);
bool kv_hidden_from(struct kv_hidden *hidden, uint32_t space,
		    const struct fuse_ctx *ctx);
/* The caller @ctx makes a layout. */
void kv_hidden_end(struct kv_hidden *hidden, uint32_t space,
		   const struct fuse_ctx *ctx);

#endif
