/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_ids.h - what the tokens of a save's blocks are, on their way to
 * staging, from where the daemon takes them.
 *
 * xfer->ids is fixed after start: all calls from any thread.
 */
#ifndef KV_KERNELS_TRANSFER_TOKEN_IDS_H
#define KV_KERNELS_TRANSFER_TOKEN_IDS_H

#include "kernels/transfer/xfer.h"

/*
 * Copy what @meta (n items, or NULL) tells of the blocks of @xfer, whose tokens
 * are set; xfer->ids stays NULL where @layout does not ask for it.
 * -EINVAL: it does and @meta does not, or the reverse; -E2BIG: more extras than
 * KVFS_EXTRAS_MAX; -ENOMEM.
 */
int kv_save_ids_new(struct kvfs_xfer *xfer, const kvfs_meta *meta,
		    const struct kv_layout *layout);

/* Bytes of staging that those of a block take, a multiple of 8; 0: there are
 * none. */
uint64_t kv_save_ids_bytes(const struct kvfs_xfer *xfer);
/* The most that blocks of @layout take. */
uint64_t kv_save_ids_most(const struct kv_layout *layout);

/* Bytes of staging for @bytes of a block's tensors, and its ids behind them. */
uint64_t kv_save_room(const struct kvfs_xfer *xfer, uint64_t bytes);

/* Put those of @block at @at, which the daemon has been told; or at @at are the
 * block's bytes, or the ranges of its part: behind each. */
void kv_save_ids_put(const struct kvfs_xfer *xfer, size_t block, uint8_t *at);
void kv_save_ids_put_behind(const struct kvfs_xfer *xfer, size_t block,
			    uint8_t *at);

/* Flags of the messages that save. */
uint16_t kv_save_ids_flags(const struct kvfs_xfer *xfer);

#endif
