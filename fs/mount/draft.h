/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft.h - the content of a file that is being written through the mount,
 * from its first byte to the sealed block.
 *
 * Writes come in any order.  Until the header says how long the file is, bytes
 * wait in memory of the daemon's (charged to their user); from then on they
 * go straight to the slot that the block will have.  A hole never seals.
 *
 * Threads: any; calls on one draft exclude each other.
 */
#ifndef KV_FS_MOUNT_DRAFT_H
#define KV_FS_MOUNT_DRAFT_H

#include "cache/cache.h"
#include "cache/core/account.h"

struct kv_draft;

/* A block of @space under @key; with @key NULL the space's layout.  @account,
 * its writer's, which outlives it, has its head.  -ENOMEM. */
int kv_draft_new(struct kv_cache *cache, struct kv_space *space,
		 const struct kv_key *key, struct kv_account *account,
		 struct kv_draft **ret_draft);
void kv_draft_free(
	struct kv_draft *draft); /* takes NULL; drops what is unsealed */

/*
 * 0, or: -EINVAL not safetensors, -EBADMSG not of the space's layout, -EFBIG
 * past its end or too large, -ENOSPC no room, -EBUSY none now, -EAGAIN beyond
 * the space's rate: again as it was, later; -EPERM sealed, -ENOMEM, -EROFS. The
 * first three stick: the file can only be begun anew.
 */
int kv_draft_write(struct kv_draft *draft, const void *data, size_t n,
		   uint64_t offset);

/* Copy at most @n bytes; returns how many, 0 at the end.  Holes are zeros.
 * A sealed draft reads its block: -EIO, -EBADMSG, -ENOENT. */
ssize_t kv_draft_read(struct kv_draft *draft, void *data, size_t n,
		      uint64_t offset);

uint64_t kv_draft_size(struct kv_draft *draft); /* where the last byte ends */

/* Forget everything written: 0, -EPERM sealed. */
int kv_draft_reset(struct kv_draft *draft);

/* 1 complete and valid (or sealed), 0 nothing written; -EINVAL incomplete, and
 * the errors of kv_draft_write. */
int kv_draft_check(struct kv_draft *draft);

/*
 * Seal if complete.  Returns as kv_draft_check, and 1 when it is visible:
 * *@ret_new says whether it was not there before.  -EEXIST other bytes are
 * there, -ESTALE; -EPERM a layout that shares the space, of who may not.
 * @mtime_ns: 0: now.  A layout's waits for the disk; the others do not.
 */
int kv_draft_seal(struct kv_draft *draft, int64_t mtime_ns, bool *ret_new);

/* The sealed block, held for the caller; NULL if it is not sealed or gone. */
struct kv_block *kv_draft_block(struct kv_draft *draft);

#endif
