/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft.h - the content of a file that is being written through the mount, from its
 * first byte to the sealed block.
 *
 * Writes come in any order.  Until the header, which has the length, is complete, bytes
 * are kept in memory that is charged to their user; later writes go straight to the
 * block's slot.  A file with a hole is never sealed.
 *
 * Any thread may call these functions; calls on one draft exclude each other.
 */
#ifndef KV_FS_MOUNT_DRAFT_H
#define KV_FS_MOUNT_DRAFT_H

#include "cache/cache.h"
#include "cache/core/account.h"

struct kv_draft;

/* Make a draft of the block @key of @space, or with @key NULL of the space's layout.
 * @account is the writer's, and must outlive the draft.  Returns 0 or -ENOMEM. */
int kv_draft_new(struct kv_cache *cache, struct kv_space *space,
		 const struct kv_key *key, struct kv_account *account,
		 struct kv_draft **ret_draft);
void kv_draft_free(
	struct kv_draft *draft); /* takes NULL; drops unsealed bytes */

/*
 * Write to the draft.  Returns 0, or:
 *   -EINVAL, -EBADMSG, -EFBIG   not safetensors, not of the space's layout, past its
 *                               end or too large: the file must be written anew
 *   -EBUSY    no room now: repeat the call later
 *   -EAGAIN   beyond the space's rate: repeat the call later
 *   -ENOSPC   no room
 *   -EPERM    the draft is sealed
 *   -ENOMEM, -EROFS
 */
int kv_draft_write(struct kv_draft *draft, const void *data, size_t n,
		   uint64_t offset);

/* Copy at most @n bytes and return their number, 0 at the end of the file.  Holes read as
 * zeros.  A sealed draft reads its block, which may fail with -EIO, -EBADMSG or -ENOENT. */
ssize_t kv_draft_read(struct kv_draft *draft, void *data, size_t n,
		      uint64_t offset);

/* end of the last byte written */
uint64_t kv_draft_size(struct kv_draft *draft);

/* Forget all written bytes.  Returns 0, or -EPERM if the draft is sealed. */
int kv_draft_reset(struct kv_draft *draft);

/* Returns 1 if the draft is complete and valid, or sealed; 0 if nothing was written;
 * -EINVAL if it is incomplete; or an error of kv_draft_write. */
int kv_draft_check(struct kv_draft *draft);

/*
 * Seal the draft if it is complete, with the time @mtime_ns (0: now).  Returns as
 * kv_draft_check: 1 when the block or layout is visible, with *@ret_new true if it was
 * absent before; or:
 *   -EEXIST  the key has other bytes
 *   -EPERM   the layout shares the space, but the writer may not
 *   -ESTALE  the space was removed
 * Sealing a layout waits for the disk, sealing a block does not.
 */
int kv_draft_seal(struct kv_draft *draft, int64_t mtime_ns, bool *ret_new);

/* Return the sealed block, held for the caller; NULL if it is not sealed or gone. */
struct kv_block *kv_draft_block(struct kv_draft *draft);

#endif
