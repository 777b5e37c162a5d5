/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft.h - the content of a file that is being written through the mount, from its
 * first byte to the sealed block.
 *
 * Writes come in any order.  Until the header, which has the length, is complete,
 * bytes are kept in memory that is charged to their user; later writes go straight
 * to the block's slot.  A file with a hole is never sealed.
 *
 * Threads: any; calls on one draft exclude each other.
 */
#ifndef KV_FS_MOUNT_DRAFT_H
#define KV_FS_MOUNT_DRAFT_H

#include "cache/cache.h"
#include "cache/core/account.h"

struct kv_draft;

/* Make a draft of the block @key of @space, or without @key of the space's layout.
 * @account is the writer's, and must outlive the draft.  -ENOMEM. */
int kv_draft_new(struct kv_cache *cache, struct kv_space *space,
		 const struct kv_key *key, struct kv_account *account,
		 struct kv_draft **ret_draft);
void kv_draft_free(
	struct kv_draft *draft); /* takes NULL; drops unsealed bytes */

/*
 * Returns 0, or:
 *   -EINVAL, -EBADMSG, -EFBIG   not safetensors, not of the space's layout, past its
 *                               end or too large: the file can only be begun anew
 *   -EBUSY, -EAGAIN   no room now, beyond the space's rate: repeat the call later
 *   -ENOSPC no room, -EPERM sealed, -ENOMEM, -EROFS
 */
int kv_draft_write(struct kv_draft *draft, const void *data, size_t n,
		   uint64_t offset);

/* Copy at most @n bytes and return their number, 0 at the end.  Holes are zeros.  A
 * sealed draft reads its block: -EIO, -EBADMSG, -ENOENT. */
ssize_t kv_draft_read(struct kv_draft *draft, void *data, size_t n,
		      uint64_t offset);

uint64_t kv_draft_size(struct kv_draft *draft); /* where the last byte ends */

/* Forget everything written: 0, -EPERM sealed. */
int kv_draft_reset(struct kv_draft *draft);

/* Returns 1 complete and valid, or sealed; 0 nothing written; -EINVAL incomplete, or
 * an error of kv_draft_write. */
int kv_draft_check(struct kv_draft *draft);

/*
 * Seal the draft if it is complete.  Returns as kv_draft_check; 1 when it is visible,
 * and *@ret_new whether it was absent before.  -EEXIST the key has other bytes,
 * -ESTALE; -EPERM the layout shares the space, which its writer may not.  @mtime_ns
 * 0 is now.  A layout waits for the disk, a block does not.
 */
int kv_draft_seal(struct kv_draft *draft, int64_t mtime_ns, bool *ret_new);

/* The sealed block, held for the caller; NULL if it is not sealed or gone. */
struct kv_block *kv_draft_block(struct kv_draft *draft);

#endif
