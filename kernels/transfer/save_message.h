/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_message.h - what the daemon is told of blocks that are saved by way of
 * staging.
 */
#ifndef KV_KERNELS_TRANSFER_SAVE_MESSAGE_H
#define KV_KERNELS_TRANSFER_SAVE_MESSAGE_H

#include "kernels/device/device.h"
#include "kernels/transfer/xfer.h"

/* At most WIRE_BATCH blocks of a transfer in staging. */
struct kv_save_message {
	struct kvfs_xfer *xfer;
	const uint32_t *block; /* of the transfer */
	size_t n;
	uint64_t at, step; /* the first one's offset; on to the next */
};

/* Bytes of staging that a block of @xfer takes. */
uint64_t kv_save_block_bytes(const struct kvfs_xfer *xfer);

/*
 * Reserve or drop their keys (WIRE_RESERVE, WIRE_DROP); @of: only what the
 * message with that tag has reserved, if it is not 0.  @call->done runs with the
 * answer, a status a block.  Lock held.  -ENOTCONN, -ENOMEM: it will not.
 */
int kv_save_message_keys_locked(const struct kv_save_message *message,
				struct kv_call *call, enum wire_type type,
				uint64_t of);
/* Their bytes are in staging: the daemon may take them.  The same. */
int kv_save_message_blocks_locked(const struct kv_save_message *message,
				  struct kv_call *call);

#endif
