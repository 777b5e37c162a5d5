/* SPDX-License-Identifier: Apache-2.0 */
/*
 * submit.c - the second half of a batch: what is in staging goes to the daemon,
 * and what it says of each block is its status.
 *
 * OWNS      nothing: the batch is batch.c's.
 *
 * INVARIANTS
 *   (1) A block's status is final before it is counted as failed or sealed.
 *   (2) The batch's hold has a tag if and only if the daemon holds something
 *       under it.
 *
 * LOCKING   session->lock.
 */
#include "kernels/transfer/batch.h"

/* The hold has something to keep from the first block on that sealed. */
static void seal_holds(struct kv_save_batch *batch)
{
	if (batch->hold != NULL)
		batch->hold->tag = batch->call.tag;
}

/* What was said of the strides of a part: an error, 0 if its block is sealed,
 * or WIRE_TAKEN. */
static int verdict(const struct wire_status *statuses, size_t n)
{
	int all = WIRE_TAKEN;
	size_t i;

	for (i = 0; i < n; i++) {
		if (statuses[i].status < 0 || statuses[i].status > WIRE_TAKEN)
			return statuses[i].status;
		if (statuses[i].status == 0)
			all = 0;
	}
	return all;
}

static void parts_saved(struct kv_call *call, int status, const void *items)
{
	struct kv_save_batch *batch = (struct kv_save_batch *)call;
	const struct wire_status *statuses = items;
	size_t i, n = batch->xfer->n_ranges;
	struct kv_part *part;
	int r;

	if (status < 0) {
		kv_save_batch_fail_locked(batch, KVFS_SEALED, status);
		kv_save_batch_end_locked(batch);
		return;
	}
	for (i = 0; i < batch->n; i++) {
		part = kv_save_batch_part(batch, i);
		r = verdict(statuses + i * n, n);
		if (r == 0)
			seal_holds(batch);
		if (r == WIRE_TAKEN || part->state == KV_PART_NONE)
			continue;
		if (r == 0)
			kv_part_sealed_locked(part, batch->hold);
		else
			kv_part_fail_locked(
				part, kv_save_batch_status(batch->xfer, r));
	}
	kv_save_batch_end_locked(batch);
}

static void saved(struct kv_call *call, int status, const void *items)
{
	struct kv_save_batch *batch = (struct kv_save_batch *)call;
	const struct wire_status *statuses = items;
	struct kv_save_tally tally = {0};
	size_t i;

	if (status < 0) {
		kv_save_batch_fail_locked(batch, KVFS_SEALED, status);
		kv_save_batch_drop_locked(batch);
		return;
	}
	for (i = 0; i < batch->n; i++) {
		kv_save_batch_count(batch->xfer, batch->block[i],
				    statuses[i].status, &tally);
		if (statuses[i].status != 0)
			continue;
		seal_holds(batch);
		kv_hold_block_locked(batch->xfer, batch->block[i], batch->hold);
	}
	kv_xfer_fail_locked(batch->xfer, KVFS_SEALED, tally.bad);
	kv_xfer_reach_locked(batch->xfer, KVFS_SEALED,
			     tally.good + tally.present);
	kv_save_batch_end_locked(batch);
}

static void add_parts(const struct kv_save_batch *batch, size_t i,
		      struct wire_part *items)
{
	const struct kvfs_xfer *xfer = batch->xfer;
	uint64_t at = batch->extent->offset + i * batch->stride;
	size_t r;

	for (r = 0; r < xfer->n_ranges; r++) {
		items[r] = (struct wire_part){
			.block = xfer->blocks[batch->block[i]],
			.at = xfer->ranges[r].from,
			.bytes = kv_save_range_bytes(&xfer->ranges[r]),
		};
		items[r].block.offset = at;
		at += kv_round_up(items[r].bytes, KV_SAVE_ALIGN);
	}
}

static int send_parts_locked(struct kv_save_batch *batch)
{
	struct kvfs_xfer *xfer = batch->xfer;
	size_t i, n = batch->n * xfer->n_ranges;
	struct wire_part items[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = WIRE_SAVE_PART,
			   .count = (uint32_t)n,
			   .space = xfer->space_id},
		.items = items,
		.bytes = n * sizeof(items[0]),
		.fd = -1,
	};

	for (i = 0; i < batch->n; i++)
		add_parts(batch, i, items + i * xfer->n_ranges);
	batch->call.count = (uint32_t)n;
	batch->call.done = parts_saved;
	return kv_rpc_submit_locked(xfer->session, &batch->call, &packet);
}

static int send_whole_locked(struct kv_save_batch *batch)
{
	struct kvfs_xfer *xfer = batch->xfer;
	struct wire_save blocks[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = WIRE_SAVE,
			   .count = (uint32_t)batch->n,
			   .space = xfer->space_id},
		.items = blocks,
		.bytes = batch->n * sizeof(blocks[0]),
		.fd = -1,
	};
	size_t i;

	for (i = 0; i < batch->n; i++) {
		blocks[i] = xfer->blocks[batch->block[i]];
		blocks[i].offset = batch->extent->offset + i * batch->stride;
	}
	batch->call.count = (uint32_t)batch->n;
	batch->call.done = saved;
	return kv_rpc_submit_locked(xfer->session, &batch->call, &packet);
}

int kv_save_batch_send_locked(struct kv_save_batch *batch)
{
	const struct kvfs_xfer *xfer = batch->xfer;

	if (!kv_session_is_live(xfer->session, xfer->generation))
		return -ENOTCONN;
	return xfer->part != NULL ? send_parts_locked(batch)
				  : send_whole_locked(batch);
}
