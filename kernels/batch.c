/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c - a few blocks of a save that go the way together.
 *
 * OWNS      a batch's extent of the staging memory, and the daemon's
 *           reservations for its blocks.
 *
 * STATES    of a batch:
 *
 *           RESERVING -> COPYING   reserved: for blocks that are not there yet
 *           RESERVING -> over      reserved: none of them is to be saved
 *             COPYING -> SAVING    copy: pages are in staging
 *             COPYING -> over      copy: the connection is gone
 *              SAVING -> over      saved
 *
 * INVARIANTS
 *   (1) A block's status is final before it is counted as failed or sealed.
 *   (2) Pages are read between RESERVING and the end of copy, whatever happens
 *       to the connection or the transfer meanwhile.
 *   (3) An extent is put back only by the reply that says the daemon is done
 *       with it; if that cannot come, its staging is abandoned as a whole.
 *
 * LOCKING   session->lock, but for copy, which has the extent for itself.
 */
#include "kernels/batch.h"
#include "kernels/pool.h"
#include "kernels/save.h"
#include "kernels/space.h"

struct batch {
	struct kv_call call; /* first */
	struct kv_job job;
	struct kvfs_xfer *xfer;
	struct kv_stage *stage;
	struct kv_extent *extent;
	uint64_t stride;
	size_t n;
	uint32_t block[]; /* of the transfer */
};

/* What has become of a batch's blocks. */
struct tally {
	size_t good, present, bad;
};

static void end_locked(struct batch *batch)
{
	struct kvfs_xfer *xfer = batch->xfer;
	struct kvfs_session *session = xfer->session;

	kv_stage_put(batch->stage, batch->extent);
	free(batch);
	kv_save_pump_locked(session);
	kv_xfer_put_locked(xfer);
}

/* The status that a caller sees for what the daemon said of a block. */
static void count(struct kvfs_xfer *xfer, uint32_t block, int status,
		  struct tally *tally)
{
	if (status == -EEXIST || status == -EALREADY)
		status = KVFS_PRESENT;
	else if (status > 0)
		status = -EPROTO;
	if (status == KVFS_PRESENT)
		tally->present++;
	else if (status == 0)
		tally->good++;
	else
		tally->bad++;
	if (status == -ESTALE || status == -ENOENT)
		kv_lib_space_forget_locked(xfer->space);
	atomic_store(&xfer->status[block], status);
}

static void fail_locked(struct batch *batch, enum kvfs_stage stage, int status)
{
	struct tally tally = {0};
	size_t i;

	for (i = 0; i < batch->n; i++)
		count(batch->xfer, batch->block[i], status, &tally);
	kv_xfer_fail_locked(batch->xfer, stage, batch->n);
}

static void add_key(struct wire_key *key, const struct wire_save *block)
{
	memset(key, 0, sizeof(*key));
	memcpy(key->key, block->key, block->len);
	key->len = block->len;
}

/* Reserve or drop: the batch's keys, and its call for the reply. */
static int send_keys_locked(struct batch *batch, enum wire_type type)
{
	struct kvfs_xfer *xfer = batch->xfer;
	struct wire_key keys[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = type,
			   .count = (uint32_t)batch->n,
			   .space = xfer->space_id},
		.items = keys,
		.bytes = batch->n * sizeof(keys[0]),
		.fd = -1,
	};
	size_t i;

	for (i = 0; i < batch->n; i++)
		add_key(&keys[i], &xfer->blocks[batch->block[i]]);
	batch->call.count = (uint32_t)batch->n;
	return kv_rpc_submit_locked(xfer->session, &batch->call, &packet);
}

static void dropped(struct kv_call *call, int status, const void *items)
{
	(void)status;
	(void)items;
	end_locked((struct batch *)call);
}

/* Give the reservations back and end. */
static void drop_locked(struct batch *batch)
{
	batch->call.done = dropped;
	if (batch->n == 0 || send_keys_locked(batch, WIRE_DROP) < 0)
		end_locked(batch);
}

static void saved(struct kv_call *call, int status, const void *items)
{
	struct batch *batch = (struct batch *)call;
	const struct wire_status *statuses = items;
	struct tally tally = {0};
	size_t i;

	if (status < 0) {
		fail_locked(batch, KVFS_SEALED, status);
		drop_locked(batch);
		return;
	}
	for (i = 0; i < batch->n; i++)
		count(batch->xfer, batch->block[i], statuses[i].status, &tally);
	kv_xfer_fail_locked(batch->xfer, KVFS_SEALED, tally.bad);
	kv_xfer_reach_locked(batch->xfer, KVFS_SEALED,
			     tally.good + tally.present);
	end_locked(batch);
}

static int send_blocks_locked(struct batch *batch)
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

	if (!kv_session_is_live(xfer->session, xfer->generation))
		return -ENOTCONN;
	for (i = 0; i < batch->n; i++) {
		blocks[i] = xfer->blocks[batch->block[i]];
		blocks[i].offset = batch->extent->offset + i * batch->stride;
	}
	batch->call.count = (uint32_t)batch->n;
	batch->call.done = saved;
	return kv_rpc_submit_locked(xfer->session, &batch->call, &packet);
}

static void copy(struct kv_job *job)
{
	struct batch *batch =
		(struct batch *)((char *)job - offsetof(struct batch, job));
	struct kvfs_xfer *xfer = batch->xfer;
	struct kvfs_session *session = xfer->session;
	const struct kvfs_pool *pool = xfer->pool;
	uint8_t *at = kv_stage_data(batch->stage) + batch->extent->offset;
	struct kv_copy copies[WIRE_BATCH];
	const struct kv_batch on_device = {
		.pieces = &pool->pieces, .copies = copies, .n = batch->n};
	size_t i;
	int r;

	for (i = 0; i < batch->n; i++) {
		copies[i].tensors = at + i * batch->stride;
		copies[i].pages =
			xfer->pages +
			(size_t)batch->block[i] * pool->pieces.pages_per_block;
	}
	(void)pool->device->save(pool->on_device, &on_device);
	pthread_mutex_lock(&session->lock);
	r = send_blocks_locked(batch);
	kv_xfer_reach_locked(xfer, KVFS_COPIED, batch->n);
	if (r < 0) {
		fail_locked(batch, KVFS_SEALED, r);
		end_locked(batch);
	}
	pthread_mutex_unlock(&session->lock);
}

/* Keep the blocks that were reserved; settle the others. */
static void sort_out_locked(struct batch *batch,
			    const struct wire_status *statuses)
{
	struct kvfs_xfer *xfer = batch->xfer;
	struct tally tally = {0};
	size_t i, kept = 0;

	for (i = 0; i < batch->n; i++) {
		if (statuses[i].status == 0)
			batch->block[kept++] = batch->block[i];
		else
			count(xfer, batch->block[i], statuses[i].status,
			      &tally);
	}
	batch->n = kept;
	kv_xfer_fail_locked(xfer, KVFS_COPIED, tally.bad);
	kv_xfer_reach_locked(xfer, KVFS_COPIED, tally.present);
	kv_xfer_reach_locked(xfer, KVFS_SEALED, tally.present);
}

static void reserved(struct kv_call *call, int status, const void *items)
{
	struct batch *batch = (struct batch *)call;
	struct kvfs_xfer *xfer = batch->xfer;
	int stopped = atomic_load(&xfer->stopped);

	if (status < 0) {
		fail_locked(batch, KVFS_COPIED, status);
		end_locked(batch);
		return;
	}
	sort_out_locked(batch, items);
	if (stopped != 0) {
		fail_locked(batch, KVFS_COPIED, stopped);
		drop_locked(batch);
	} else if (batch->n == 0) {
		end_locked(batch);
	} else {
		kv_copier_submit(xfer->session->copier, &batch->job);
	}
}

int kv_save_batch_locked(struct kvfs_xfer *xfer, struct kv_stage *stage,
			 size_t n, uint64_t stride)
{
	_cleanup_(kv_freep) struct batch *batch = NULL;
	size_t i;
	int r;

	batch = calloc(1, sizeof(*batch) + n * sizeof(batch->block[0]));
	if (batch == NULL)
		return -ENOMEM;
	batch->call.done = reserved;
	batch->job.run = copy;
	batch->xfer = xfer;
	batch->stage = stage;
	batch->stride = stride;
	batch->n = n;
	for (i = 0; i < n; i++)
		batch->block[i] = (uint32_t)(xfer->reserved + i);
	r = kv_stage_get(stage, n * stride, &batch->extent);
	if (r < 0)
		return r;
	r = send_keys_locked(batch, WIRE_RESERVE);
	if (r < 0) {
		kv_stage_put(stage, batch->extent);
		return r;
	}
	kv_xfer_get_locked(xfer);
	xfer->reserved += n;
	batch = NULL;
	return 0;
}
