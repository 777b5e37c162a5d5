/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_ids.c - what the tokens of a save's blocks are.
 *
 * OWNS      xfer->ids: a copy of what the caller told, as staging has it.
 *
 * LOCKING   none: fixed after start.
 */
#include "common/block.h"
#include "kernels/transfer/batch.h"
#include "kernels/transfer/pool.h"
#include "kernels/transfer/token_ids.h"

#define ALIGN 8u

struct kv_save_ids {
	uint64_t each; /* bytes of a block's, a multiple of ALIGN */
	uint8_t data[];
};

_Static_assert(KVFS_EXTRAS_MAX == KV_EXTRAS_MAX, "kvfs.h tells the same");

static const uint8_t *of_block(const struct kvfs_xfer *xfer, size_t block)
{
	return xfer->ids->data + block * xfer->ids->each;
}

static int check(const kvfs_meta *meta, bool asked)
{
	if (!asked)
		return meta && (meta->token_ids || meta->extras ||
				meta->extras_len)
			       ? -EINVAL
			       : 0;
	if (!meta || !meta->token_ids || (!meta->extras && meta->extras_len))
		return -EINVAL;
	return meta->extras_len > KVFS_EXTRAS_MAX ? -E2BIG : 0;
}

static uint64_t bytes_of(const struct kvfs_xfer *xfer, const kvfs_meta *meta,
			 size_t i)
{
	return kv_round_up(
		kv_token_ids_bytes(xfer->blocks[i].tokens, meta[i].extras_len),
		ALIGN);
}

static void put(struct kv_token_ids *to, uint32_t n, const kvfs_meta *meta)
{
	to->n = n;
	to->extras_len = meta->extras_len;
	memcpy(to->ids, meta->token_ids, n * sizeof(to->ids[0]));
	if (meta->extras_len > 0)
		memcpy(to->ids + n, meta->extras, meta->extras_len);
}

int kv_save_ids_new(struct kvfs_xfer *xfer, const kvfs_meta *meta,
		    const struct kv_layout *layout)
{
	struct kv_save_ids *ids;
	uint64_t each = 0;
	int r;

	for (size_t i = 0; i < xfer->n; i++) {
		r = check(meta ? &meta[i] : NULL, layout->token_ids);
		if (r < 0)
			return r;
		if (layout->token_ids)
			each = KV_MAX(each, bytes_of(xfer, meta, i));
	}
	if (each == 0)
		return 0;
	ids = calloc(1, sizeof(*ids) + xfer->n * each);
	if (!ids)
		return -ENOMEM;
	ids->each = each;
	for (size_t i = 0; i < xfer->n; i++)
		put((struct kv_token_ids *)(ids->data + i * each),
		    xfer->blocks[i].tokens, &meta[i]);
	xfer->ids = ids;
	return 0;
}

uint64_t kv_save_ids_bytes(const struct kvfs_xfer *xfer)
{
	return xfer->ids ? xfer->ids->each : 0;
}

uint64_t kv_save_ids_most(const struct kv_layout *layout)
{
	return layout->token_ids
		       ? kv_round_up(kv_token_ids_bytes(layout->tokens,
							KV_EXTRAS_MAX),
				     ALIGN)
		       : 0;
}

uint64_t kv_save_room(const struct kvfs_xfer *xfer, uint64_t bytes)
{
	return kv_round_up(kv_round_up(bytes, ALIGN) + kv_save_ids_bytes(xfer),
			   KV_SAVE_ALIGN);
}

void kv_save_ids_put(const struct kvfs_xfer *xfer, size_t block, uint8_t *at)
{
	memcpy(at, of_block(xfer, block), xfer->ids->each);
}

void kv_save_ids_put_behind(const struct kvfs_xfer *xfer, size_t block,
			    uint8_t *at)
{
	if (xfer->ids)
		kv_save_ids_put(
			xfer, block,
			at + kv_round_up(xfer->pool->layout->payload, ALIGN));
}

uint16_t kv_save_ids_flags(const struct kvfs_xfer *xfer)
{
	return xfer->ids ? WIRE_WITH_IDS : 0;
}
