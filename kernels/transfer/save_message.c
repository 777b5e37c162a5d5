/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_message.c - what the daemon is told of blocks that are saved by way of
 * staging.
 *
 * OWNS      nothing beyond a call.
 *
 * LOCKING   session->lock.
 */
#include "kernels/transfer/pool.h"
#include "kernels/transfer/save_message.h"
#include "kernels/transfer/token_ids.h"

uint64_t kv_save_block_bytes(const struct kvfs_xfer *xfer)
{
	return kv_save_room(xfer, xfer->pool->layout->payload);
}

static void add_key(struct wire_key *key, const struct wire_save *block)
{
	memset(key, 0, sizeof(*key));
	memcpy(key->key, block->key, block->len);
	key->len = block->len;
}

static uint16_t reserve_flags(const struct kvfs_xfer *xfer)
{
	unsigned flags = 0;

	if (xfer->flags & KVFS_MUST)
		flags |= WIRE_MUST;
	if (xfer->flags & KVFS_HOLD)
		flags |= WIRE_HOLD;
	return (uint16_t)flags;
}

int kv_save_message_keys_locked(const struct kv_save_message *message,
				struct kv_call *call, enum wire_type type,
				uint64_t of)
{
	struct kvfs_xfer *xfer = message->xfer;
	struct wire_key keys[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = type,
			   .count = (uint32_t)message->n,
			   .space = xfer->space_id,
			   .arg = of},
		.items = keys,
		.bytes = message->n * sizeof(keys[0]),
		.fd = -1,
	};

	kv_assert_locked(&message->xfer->session->lock);
	if (type == WIRE_RESERVE)
		packet.header.flags = reserve_flags(xfer);
	for (size_t i = 0; i < message->n; i++)
		add_key(&keys[i], &xfer->blocks[message->block[i]]);
	call->count = (uint32_t)message->n;
	return kv_rpc_submit_locked(xfer->session, call, &packet);
}

int kv_save_message_blocks_locked(const struct kv_save_message *message,
				  struct kv_call *call)
{
	struct kvfs_xfer *xfer = message->xfer;
	struct wire_save blocks[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = WIRE_SAVE,
			   .flags = kv_save_ids_flags(xfer),
			   .count = (uint32_t)message->n,
			   .space = xfer->space_id},
		.items = blocks,
		.bytes = message->n * sizeof(blocks[0]),
		.fd = -1,
	};

	kv_assert_locked(&message->xfer->session->lock);
	for (size_t i = 0; i < message->n; i++) {
		blocks[i] = xfer->blocks[message->block[i]];
		blocks[i].offset = message->at + i * message->step;
	}
	call->count = (uint32_t)message->n;
	return kv_rpc_submit_locked(xfer->session, call, &packet);
}
