/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c - batches of a save's blocks, by way of staging or from lent pages.
 *
 * OWNS      a batch's extent of the staging memory, with the blocks or, for lent
 *           pages, with the blocks' token ids and a word that says whether the
 *           pages are lent.  The daemon's reservations for staged blocks.
 *
 * STATES    of a batch:
 *
 *               (new) -> RESERVING kv_save_batch_locked
 *               (new) -> SAVING    kv_save_batch_locked, of lent pages
 *               (new) -> QUEUED    kv_save_batch_locked, of a small save
 *           RESERVING -> QUEUED    reserved: some blocks are new to the daemon
 *           RESERVING -> over      reserved: no block is to be saved
 *              QUEUED -> COPYING   copy: a copy thread reads the pages
 *             COPYING -> SAVING    copy: the pages are in staging
 *              SAVING -> over      saved: the daemon has answered
 *                   * -> FAILED    fail_locked: an error; or the save is stopped,
 *                                  but the pages are not being copied
 *              FAILED -> over      with the last message or job of the batch
 *
 * INVARIANTS
 *   (1) A block's status is final before the block is counted as failed or
 *       sealed.
 *   (2) Pages are read only while COPYING or lent, whatever happens to the
 *       connection or the transfer meanwhile.
 *   (3) The word of a batch is WIRE_LENT if and only if its pages are lent.  The
 *       word is cleared before a block counts as COPIED or failed.
 *   (4) A block without room goes back to its transfer's todo list, if the save
 *       waits for room (is_full): no block waits in a batch.
 *   (5) An extent is put back only by the answer after which the daemon does
 *       not read it; without such an answer its staging is abandoned.
 *   (6) A FAILED batch has settled its blocks; it still owns its extent, and the
 *       daemon's reservations and leases.
 *
 * LOCKING   session->lock.  The copy thread has the batch's extent for itself.
 */
#include "kernels/device/device.h"
#include "kernels/transfer/xfer.h"

/* longest wait for the daemon's answer to a copied batch */
#define SEAL_GRACE_NS 1000000000u
#define BATCH_BYTES ((uint64_t)4 << 20)
/* bytes of the blocks in a WIRE_SAVE_PAGES message, at most */
#define LENT_BYTES ((uint64_t)8 << 20)
#define SMALL_BYTES ((uint64_t)256 << 10)
#define WORD_BYTES 64u /* a cache line for the WIRE_LENT word */
#define PAGES_ROOM                                         \
	(WIRE_MAX - (uint32_t)sizeof(struct wire_header) - \
	 (uint32_t)sizeof(struct wire_save_pages))

enum batch_state { RESERVING, QUEUED, COPYING, SAVING, FAILED };

struct kv_save_batch {
	struct kv_call call; /* first */
	struct kv_call drop; /* WIRE_DROP of a FAILED batch */
	/* in xfer->batches, unless the batch is FAILED */
	LIST_ENTRY(kv_save_batch) others;
	enum batch_state state;
	bool lent; /* fixed; the daemon copies from lent pages, not staging */
	/* fixed; the message that saves the blocks also reserves them */
	bool fresh;
	/* The blocks count as COPIED.  Until then the answer of a fresh batch may
	 * make them be copied again. */
	bool copied;
	unsigned refs; /* references of unanswered messages and of the job */
	struct kv_job job;
	struct kv_submission submission; /* while COPYING */
	size_t submitted; /* number of the batch's blocks in xfer->submitted */
	struct kvfs_xfer *xfer;
	struct kv_stage *stage;
	struct kv_extent *extent;
	uint64_t block_bytes; /* bytes of staging for each block */
	size_t n;
	size_t reserved;  /* number of its blocks in session->reserved */
	uint32_t block[]; /* indices of the blocks in the transfer */
};

/* Number of blocks of a batch by outcome. */
struct tally {
	size_t good, present, bad;
};

static uint8_t *extent_of(const struct kv_save_batch *batch)
{
	return batch->stage->base + batch->extent->offset;
}

/* Return the stage that the blocks of the batch have not reached. */
static enum kvfs_stage next_stage(const struct kv_save_batch *batch)
{
	return batch->copied ? KVFS_SEALED : KVFS_COPIED;
}

static void copied_locked(struct kv_save_batch *batch)
{
	if (batch->copied)
		return;
	batch->copied = true;
	kv_xfer_reach_locked(batch->xfer, KVFS_COPIED, batch->n);
}

/* Free a batch that no answer and no job refers to any more. */
static void free_locked(struct kv_save_batch *batch)
{
	kv_assert_locked(&batch->xfer->session->lock);
	batch->xfer->session->reserved -= batch->reserved;
	if (batch->extent)
		kv_stage_put(batch->stage, batch->extent);
	free(batch);
}

/* Drop the reference of an answer or of the job.  The last ends the batch. */
static void put_locked(struct kv_save_batch *batch)
{
	struct kvfs_xfer *xfer = batch->xfer;

	kv_assert_locked(&xfer->session->lock);
	if (--batch->refs > 0)
		return;
	if (batch->state != FAILED)
		LIST_REMOVE(batch, others);
	free_locked(batch);
	kv_save_pump_locked(xfer->session);
	kv_xfer_put_locked(xfer);
}

/* Set block @block's status from the daemon's @status; count it in @tally. */
static void count(struct kvfs_xfer *xfer, uint32_t block, int status,
		  struct tally *tally)
{
	if (status == -ESTALE || status == -ENOENT)
		kv_lib_space_forget_locked(xfer->space);
	if (status == -EEXIST || status == -EALREADY)
		status = KVFS_PRESENT;
	else if (status == -EBUSY) /* the pages cannot be copied again */
		status = -ENOSPC;
	else if (status > 0)
		status = -EPROTO;
	if (status == KVFS_PRESENT)
		tally->present++;
	else if (status == 0)
		tally->good++;
	else
		tally->bad++;
	atomic_store(&xfer->status[block], status);
}

/* Take lent pages back: from now on the daemon seals only blocks that it has
 * copied already. */
static void take_back(struct kv_save_batch *batch)
{
	if (!batch->lent)
		return;
	__atomic_store_n((uint32_t *)(void *)extent_of(batch), 0,
			 __ATOMIC_SEQ_CST);
	__sync_synchronize(); /* barrier: before the engine writes to pages */
}

/* Fail all blocks of the batch, of which none has reached @stage. */
static void fail_locked(struct kv_save_batch *batch, enum kvfs_stage stage,
			int status)
{
	struct tally tally = {0};

	kv_assert_locked(&batch->xfer->session->lock);
	take_back(batch);
	batch->state = FAILED;
	LIST_REMOVE(batch, others);
	for (size_t i = 0; i < batch->n; i++)
		count(batch->xfer, batch->block[i], status, &tally);
	kv_xfer_fail_locked(batch->xfer, stage, batch->n);
}

/* ---- messages ---- */

static uint16_t reserve_flags(const struct kvfs_xfer *xfer)
{
	return (uint16_t)(((xfer->flags & KVFS_MUST) ? WIRE_MUST : 0) |
			  ((xfer->flags & KVFS_HOLD) ? WIRE_HOLD : 0));
}

/* Send a WIRE_RESERVE or WIRE_DROP for the batch's keys; call->done gets a
 * status for each key.  @of: drop only reservations of the message with this
 * tag; 0: of any message.
 * -ENOTCONN, -ENOMEM: nothing was sent */
static int send_keys_locked(struct kv_save_batch *batch, struct kv_call *call,
			    enum wire_type type, uint64_t of)
{
	struct kvfs_xfer *xfer = batch->xfer;
	struct wire_key keys[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = type,
			   .flags = type == WIRE_RESERVE ? reserve_flags(xfer)
							 : 0,
			   .count = (uint32_t)batch->n,
			   .space = xfer->space_id,
			   .arg = of},
		.items = keys,
		.bytes = batch->n * sizeof(keys[0]),
		.fd = -1,
	};

	kv_assert_locked(&xfer->session->lock);
	memset(keys, 0, packet.bytes);
	for (size_t i = 0; i < batch->n; i++) {
		const struct wire_save *block = &xfer->blocks[batch->block[i]];

		memcpy(keys[i].key, block->key, block->len);
		keys[i].len = block->len;
	}
	call->count = (uint32_t)batch->n;
	return kv_rpc_submit_locked(xfer->session, call, &packet);
}

/* Return the bytes that one block takes in a WIRE_SAVE_PAGES message. */
static size_t pages_bytes(const struct kvfs_xfer *xfer)
{
	return sizeof(struct wire_save) +
	       xfer->pool->strides.pages_per_block * sizeof(uint64_t);
}

/* Send WIRE_SAVE_PAGES, which names the lent pages of the batch's blocks. */
static int send_pages_locked(struct kv_save_batch *batch)
{
	_cleanup_(kv_freep) struct wire_save_pages *what = NULL;
	struct kvfs_xfer *xfer = batch->xfer;
	const size_t each = xfer->pool->strides.pages_per_block;
	size_t bytes = batch->n * pages_bytes(xfer);
	struct kv_packet packet = {
		.header = {.type = WIRE_SAVE_PAGES,
			   .flags = reserve_flags(xfer) |
				    (xfer->ids ? WIRE_WITH_IDS : 0),
			   .count = (uint32_t)bytes,
			   .space = xfer->space_id},
		.bytes = sizeof(*what) + bytes,
		.fd = -1,
	};
	struct wire_save *blocks;
	uint64_t *pages;

	kv_assert_locked(&xfer->session->lock);
	packet.items = what = malloc(packet.bytes);
	if (!what)
		return -ENOMEM;
	*what = (struct wire_save_pages){
		.pool = xfer->pool->lending.item.id,
		.n = (uint32_t)batch->n,
		.lent = batch->extent->offset,
	};
	blocks = (struct wire_save *)(what + 1);
	pages = (uint64_t *)(blocks + batch->n);
	for (size_t i = 0; i < batch->n; i++) {
		blocks[i] = xfer->blocks[batch->block[i]];
		blocks[i].offset = batch->extent->offset + WORD_BYTES +
				   i * xfer->ids_bytes;
		for (size_t p = 0; p < each; p++)
			*pages++ =
				(uint64_t)
					xfer->pages[batch->block[i] * each + p];
	}
	batch->call.count = (uint32_t)batch->n;
	return kv_rpc_submit_locked(xfer->session, &batch->call, &packet);
}

/* ---- saving ---- */

/* Return whether the daemon's @status means that the block is to be tried
 * again: the daemon is making memory (-EBUSY), or there is no room and the save
 * waits for room (KVFS_MUST). */
static bool is_full(const struct kvfs_xfer *xfer, int status)
{
	if (status == -EBUSY)
		return true;
	return (xfer->flags & KVFS_MUST) &&
	       (status == -ENOSPC || status == -EAGAIN || status == -ENOLCK);
}

/* Handle the reply to a WIRE_DROP. */
static void dropped(struct kv_call *call, int status, const void *items)
{
	(void)status;
	(void)items;
	put_locked(kv_container(call, struct kv_save_batch, drop));
}

/* Give the reservations of a FAILED batch back to the daemon.  @of: as in
 * send_keys_locked.  Without memory for the message, the reservations end with
 * the connection.  On a later connection the same keys can be reserved for
 * another save. */
static void drop_locked(struct kv_save_batch *batch, uint64_t of)
{
	struct kvfs_xfer *xfer = batch->xfer;

	kv_assert_locked(&xfer->session->lock);
	batch->drop.done = dropped;
	if (!batch->fresh &&
	    kv_session_is_live(xfer->session, xfer->generation) &&
	    send_keys_locked(batch, &batch->drop, WIRE_DROP, of) == 0)
		batch->refs++;
}

/* Handle the reply to WIRE_SAVE or WIRE_SAVE_PAGES. */
static void saved(struct kv_call *call, int status, const void *items)
{
	struct kv_save_batch *batch = (struct kv_save_batch *)call;
	const enum kvfs_stage stage = next_stage(batch);
	const struct wire_status *statuses = items;
	struct kvfs_xfer *xfer = batch->xfer;
	struct tally tally = {0};

	for (size_t i = 0; status >= 0 && i < batch->n; i++) {
		if (!(xfer->flags & KVFS_HOLD) || statuses[i].status != 0)
			continue;
		/* The daemon has also sealed blocks of a FAILED batch, which
		 * its save does not hold. */
		if (batch->state == FAILED)
			kv_rpc_post_tag_locked(xfer->session, WIRE_RELEASE,
					       call->tag);
		else
			kv_save_hold_locked(xfer, batch->block[i], call->tag);
		break;
	}
	if (status < 0) {
		if (batch->state != FAILED)
			fail_locked(batch, stage, status);
		drop_locked(batch, 0);
	}
	if (batch->state == FAILED) {
		put_locked(batch);
		return;
	}
	take_back(batch);
	for (size_t i = 0; i < batch->n; i++)
		if (!batch->copied && is_full(xfer, statuses[i].status))
			kv_save_again_locked(xfer, batch->block[i]);
		else
			count(xfer, batch->block[i], statuses[i].status,
			      &tally);
	tally.good += tally.present;
	if (batch->fresh && tally.good > 0)
		xfer->pause = 0;
	kv_xfer_fail_locked(xfer, stage, tally.bad);
	if (!batch->copied)
		kv_xfer_reach_locked(xfer, KVFS_COPIED, tally.good);
	kv_xfer_reach_locked(xfer, KVFS_SEALED, tally.good);
	put_locked(batch);
}

/* ---- copying ---- */

static void submitted_locked(struct kv_submission *submission)
{
	struct kv_save_batch *batch =
		kv_container(submission, struct kv_save_batch, submission);

	kv_assert_locked(&batch->xfer->session->lock);
	batch->submitted = batch->n;
	kv_xfer_submit_locked(batch->xfer, batch->n);
}

static int copy_pages(struct kv_save_batch *batch)
{
	struct kvfs_xfer *xfer = batch->xfer;
	const struct kvfs_pool *pool = xfer->pool;
	uint8_t *at = extent_of(batch);
	struct kvfs_copy copies[WIRE_BATCH];
	struct kvfs_batch on_device = {
		.strides = &pool->strides,
		.copies = copies,
		.n = batch->n,
		.event_wait =
			xfer->event_wait ? xfer->event_wait->handle : NULL,
		.priority = xfer->priority,
	};

	for (size_t i = 0; i < batch->n; i++, at += batch->block_bytes) {
		kv_save_ids_put(xfer, batch->block[i],
				at + kv_save_ids_offset(pool->layout));
		copies[i].tensors = at;
		copies[i].pages =
			xfer->pages +
			(size_t)batch->block[i] * pool->strides.pages_per_block;
	}
	batch->submission.xfer = xfer;
	batch->submission.submitted_locked = submitted_locked;
	return kv_submission_run(&batch->submission, 0, &on_device, false);
}

/* Copy the pages of a batch to staging, and send the blocks to the daemon.
 * Runs on a copy thread. */
static void copy(struct kv_job *job)
{
	struct kv_save_batch *batch =
		kv_container(job, struct kv_save_batch, job);
	struct kvfs_xfer *xfer = batch->xfer;
	struct kvfs_session *session = xfer->session;
	struct wire_save blocks[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = WIRE_SAVE,
			   .flags = (xfer->ids ? WIRE_WITH_IDS : 0) |
				    (batch->fresh
					     ? WIRE_FRESH | reserve_flags(xfer)
					     : 0),
			   .count = (uint32_t)batch->n,
			   .space = xfer->space_id},
		.items = blocks,
		.bytes = batch->n * sizeof(blocks[0]),
		.fd = -1,
	};
	int r;

	pthread_mutex_lock(&session->lock);
	if (batch->state == FAILED) {
		put_locked(batch);
		pthread_mutex_unlock(&session->lock);
		return;
	}
	batch->state = COPYING;
	pthread_mutex_unlock(&session->lock);
	r = copy_pages(batch);
	pthread_mutex_lock(&session->lock);
	kv_xfer_unsubmit_locked(xfer, batch->submitted);
	/* The daemon knows nothing of a fresh batch yet: after a clear it would
	 * seal the blocks. */
	if (r == 0 && batch->fresh)
		r = atomic_load(&xfer->stopped);
	batch->call.done = saved;
	batch->call.count = (uint32_t)batch->n;
	for (size_t i = 0; i < batch->n; i++) {
		blocks[i] = xfer->blocks[batch->block[i]];
		blocks[i].offset =
			batch->extent->offset + i * batch->block_bytes;
	}
	if (r == 0) {
		batch->state = SAVING;
		/* abandoned: the connection is lost, or the daemon refused the
		 * stage */
		r = batch->stage->abandoned
			    ? -ENOTCONN
			    : kv_rpc_submit_locked(session, &batch->call,
						   &packet);
		if (!batch->fresh)
			copied_locked(batch);
	}
	if (r < 0) {
		fail_locked(batch, next_stage(batch), r);
		drop_locked(batch, 0);
		put_locked(batch);
	}
	pthread_mutex_unlock(&session->lock);
}

/* ---- beginning ---- */

/* Handle the reply to WIRE_RESERVE: copy the blocks that are reserved. */
static void reserved(struct kv_call *call, int status, const void *items)
{
	struct kv_save_batch *batch = (struct kv_save_batch *)call;
	const struct wire_status *statuses = items;
	struct kvfs_xfer *xfer = batch->xfer;
	struct tally tally = {0};
	size_t kept = 0;

	if (status < 0 && batch->state != FAILED)
		fail_locked(batch, KVFS_COPIED, status);
	if (batch->state == FAILED) {
		put_locked(batch);
		return;
	}
	for (size_t i = 0; i < batch->n; i++) {
		if (is_full(xfer, statuses[i].status))
			kv_save_again_locked(xfer, batch->block[i]);
		else if (statuses[i].status == 0)
			batch->block[kept++] = batch->block[i];
		else
			count(xfer, batch->block[i], statuses[i].status,
			      &tally);
	}
	batch->n = kept;
	kv_xfer_fail_locked(xfer, KVFS_COPIED, tally.bad);
	kv_xfer_reach_locked(xfer, KVFS_COPIED, tally.present);
	kv_xfer_reach_locked(xfer, KVFS_SEALED, tally.present);
	if (kept == 0) {
		put_locked(batch);
		return;
	}
	xfer->pause = 0;
	batch->state = QUEUED;
	kv_copier_submit(xfer->session->copier, &batch->job);
}

/* Return whether one message reserves and saves all blocks of the save: a round
 * trip less.  A block without room is copied again then, but pages that are
 * SUBMITTED may change behind their copy. */
static bool is_small(const struct kvfs_xfer *xfer)
{
	return !xfer->device->order && xfer->n <= WIRE_BATCH &&
	       xfer->n * kv_save_block_bytes(xfer) <= SMALL_BYTES;
}

size_t kv_save_batch_blocks(const struct kvfs_xfer *xfer, bool lent)
{
	const struct kvfs_session *session = xfer->session;
	const uint64_t half = session->stage->bytes / 2;
	const uint64_t ids = xfer->ids_bytes;
	size_t n, threads;

	if (lent) {
		n = KV_MAX(LENT_BYTES / xfer->pool->layout->payload, 1u);
		n = KV_MIN(n, PAGES_ROOM / pages_bytes(xfer));
		if (ids > 0)
			n = KV_MIN(n, half / ids);
		n = KV_MAX(n, 1u);
	} else {
		/* Small saves are spread over the copy threads.  Large ones are
		 * cut, so that the daemon reads one batch while the next is
		 * copied. */
		threads = kv_copier_threads(session->copier);
		n = KV_MIN(BATCH_BYTES, half) / kv_save_block_bytes(xfer);
		if (!is_small(xfer))
			n = KV_MIN(n, (xfer->n + threads - 1) / threads);
		n = KV_MAX(n, 1u);
		n = KV_MIN(n, WIRE_RESERVED_MAX - session->reserved);
	}
	return KV_MIN(KV_MIN(n, (size_t)WIRE_BATCH), xfer->todo_n);
}

int kv_save_batch_locked(struct kvfs_xfer *xfer, size_t n, bool lent)
{
	struct kvfs_session *session = xfer->session;
	const uint64_t ids = xfer->ids_bytes;
	struct kv_save_batch *batch;
	int r;

	kv_assert_locked(&session->lock);
	batch = calloc(1, sizeof(*batch) + n * sizeof(batch->block[0]));
	if (!batch)
		return -ENOMEM;
	batch->lent = lent;
	batch->fresh = lent || is_small(xfer);
	batch->refs = 1;
	batch->call.done = lent ? saved : reserved;
	batch->state = lent ? SAVING : batch->fresh ? QUEUED : RESERVING;
	batch->job.run = copy;
	batch->job.kind = KV_JOB_SAVE;
	if (xfer->device == &kv_device_host &&
	    n * kv_save_block_bytes(xfer) <= KV_HELP_BYTES)
		batch->job.owner = xfer;
	batch->job.priority = xfer->priority;
	batch->xfer = xfer;
	batch->stage = session->stage;
	batch->block_bytes = kv_save_block_bytes(xfer);
	batch->n = n;
	r = kv_stage_get(batch->stage,
			 lent ? kv_round_up(WORD_BYTES + n * ids, KV_SAVE_ALIGN)
			      : n * batch->block_bytes,
			 &batch->extent);
	if (r < 0) {
		free_locked(batch);
		return r;
	}
	kv_xfer_get_locked(xfer);
	LIST_INSERT_HEAD(&xfer->batches, batch, others);
	kv_save_take_locked(xfer, batch->block, n);
	if (lent) {
		for (size_t i = 0; i < n; i++)
			kv_save_ids_put(xfer, batch->block[i],
					extent_of(batch) + WORD_BYTES +
						i * ids);
		__atomic_store_n((uint32_t *)(void *)extent_of(batch),
				 WIRE_LENT, __ATOMIC_SEQ_CST);
		r = send_pages_locked(batch);
	} else if (batch->fresh) {
		kv_copier_submit(session->copier, &batch->job);
	} else {
		batch->reserved = n;
		session->reserved += n;
		r = send_keys_locked(batch, &batch->call, WIRE_RESERVE, 0);
	}
	if (r < 0) {
		fail_locked(batch, KVFS_COPIED, r);
		free_locked(batch);
		kv_xfer_put_locked(xfer);
	}
	return r;
}

/* ---- stopping ---- */

/*
 * Give up a batch of which no page is read: RESERVING, or QUEUED.  The
 * reservations are dropped right behind the request, so that the next save of
 * the same keys does not find the keys reserved.
 */
static void give_back_locked(struct kv_save_batch *batch, int status)
{
	const bool reserving = batch->state == RESERVING;

	kv_assert_locked(&batch->xfer->session->lock);
	fail_locked(batch, KVFS_COPIED, status);
	if (reserving &&
	    kv_rpc_withdraw_locked(batch->xfer->session, &batch->call))
		put_locked(batch);
	else
		drop_locked(batch, reserving ? batch->call.tag : 0);
}

/* Give up a SAVING batch.  The daemon may still seal its blocks; the answer is
 * ignored. */
static void leave_locked(struct kv_save_batch *batch, int status)
{
	kv_assert_locked(&batch->xfer->session->lock);
	fail_locked(batch, next_stage(batch), status);
	if (!kv_rpc_withdraw_locked(batch->xfer->session, &batch->call))
		return;
	drop_locked(batch, 0);
	put_locked(batch);
}

static void give_up_locked(struct kv_timer *timer)
{
	struct kvfs_xfer *xfer = kv_container(timer, struct kvfs_xfer, timer);
	struct kv_save_batch *batch, *next;

	kv_assert_locked(&xfer->session->lock);
	kv_xfer_get_locked(xfer);
	for (batch = LIST_FIRST(&xfer->batches); batch; batch = next) {
		next = LIST_NEXT(batch, others);
		if (batch->state == SAVING)
			leave_locked(batch, atomic_load(&xfer->stopped));
	}
	/* Reserved blocks are sent when their copies end; wait as long again
	 * for the daemon's answers to them. */
	if (xfer->left[KVFS_SEALED] > 0)
		kv_timer_start_locked(xfer->session, timer,
				      kv_time_after(SEAL_GRACE_NS));
	kv_xfer_put_locked(xfer);
}

void kv_save_leave_pages_locked(struct kvfs_xfer *xfer)
{
	struct kv_save_batch *batch;

	kv_assert_locked(&xfer->session->lock);
	LIST_FOREACH(batch, &xfer->batches, others)
		if (batch->state == SAVING && !batch->lent)
			copied_locked(batch);
}

void kv_save_batches_stop_locked(struct kvfs_xfer *xfer)
{
	int stopped = atomic_load(&xfer->stopped);
	struct kv_save_batch *batch, *next;

	kv_save_leave_pages_locked(xfer);
	for (batch = LIST_FIRST(&xfer->batches); batch; batch = next) {
		next = LIST_NEXT(batch, others);
		if (batch->lent)
			leave_locked(batch, stopped);
		else if (batch->state == RESERVING || batch->state == QUEUED)
			give_back_locked(batch, stopped);
	}
	if (xfer->left[KVFS_SEALED] == 0)
		return;
	xfer->timer.fire = give_up_locked;
	kv_timer_start_locked(xfer->session, &xfer->timer,
			      kv_time_after(SEAL_GRACE_NS));
}
