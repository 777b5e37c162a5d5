/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c - a few blocks of a save that go the way together.
 *
 * OWNS      a batch's extent of the staging memory, and the daemon's
 *           reservations for its blocks.
 *
 * STATES    of a batch:
 *
 *               (new) -> RESERVING kv_save_batch_locked
 *           RESERVING -> COPYING   reserved: for blocks that are not there yet
 *           RESERVING -> over      reserved: none of them is to be saved
 *           RESERVING -> UNWANTED  kv_save_batches_stop_locked
 *             COPYING -> SAVING    copy: pages are in staging
 *             COPYING -> over      copy: the connection is gone, or the
 *                                  device failed: then none of it is sent
 *             COPYING -> UNWANTED  kv_save_batches_stop_locked, if no thread
 *                                  has begun with it
 *              SAVING -> over      saved: the daemon has answered
 *              SAVING -> UNWANTED  give_up_locked: it has not, for long
 *            UNWANTED -> over      all of it is answered
 *
 * INVARIANTS
 *   (1) A block's status is final before it is counted as failed or sealed.
 *   (2) Pages are read while COPYING, whatever happens to the connection or the
 *       transfer meanwhile, and at no other time.
 *   (3) A block for which there is no room goes back to its transfer's todo,
 *       if that is to be waited for (kv_save_is_full): nothing waits here.
 *   (4) An extent is put back only by the reply that says the daemon is done
 *       with it; if that cannot come, its staging is abandoned as a whole.
 *   (5) The batch's hold has a tag if and only if the daemon holds something
 *       under it.
 *   (6) A batch that is UNWANTED has settled its blocks, and owns what it did
 *       before: its extent, and what the daemon has reserved or sealed for it.
 *
 * LOCKING   session->lock, but for copy, which has the extent for itself.
 */
#include "kernels/device/guard.h"
#include "kernels/transfer/batch.h"
#include "kernels/transfer/pool.h"
#include "kernels/transfer/save.h"
#include "kernels/transfer/save_message.h"
#include "kernels/transfer/submission.h"
#include "kernels/transfer/token_ids.h"
#include "kernels/session/space.h"

#define SEAL_GRACE_NS 1000000000u /* for an answer to what was copied */

enum batch_state { RESERVING, COPYING, SAVING, UNWANTED };

struct kv_save_batch {
	struct kv_call call; /* first */
	struct kv_call drop; /* of reservations that nobody waits for */
	LIST_ENTRY(kv_save_batch) others; /* in xfer->batches, if wanted */
	enum batch_state state;
	unsigned unanswered; /* UNWANTED: calls, and the job */
	struct kv_job job;
	bool begun;			 /* COPYING: pages are read */
	struct kv_submission submission; /* while COPYING */
	size_t submitted;		 /* blocks, of the transfer's count */
	struct kvfs_xfer *xfer;
	struct kv_stage *stage;
	struct kv_extent *extent;
	struct kv_hold *hold; /* of what this seals; NULL: nothing is held */
	uint64_t block_bytes; /* of staging */
	size_t n, reserved; /* reserved: whole blocks, of the session's count */
	uint32_t block[];   /* of the transfer */
};

/* Blocks of a batch, by what has become of them. */
struct tally {
	size_t good, present, bad;
};

/* Its blocks, as the daemon is told of them. */
static struct kv_save_message message_of(const struct kv_save_batch *batch)
{
	return (struct kv_save_message){
		.xfer = batch->xfer,
		.block = batch->block,
		.n = batch->n,
		.at = batch->extent->offset,
		.step = batch->block_bytes,
	};
}

static void end_locked(struct kv_save_batch *batch)
{
	struct kvfs_xfer *xfer = batch->xfer;
	struct kvfs_session *session = xfer->session;

	kv_assert_locked(&session->lock);
	if (batch->state != UNWANTED)
		LIST_REMOVE(batch, others);
	session->reserved -= batch->reserved;
	kv_stage_put(batch->stage, batch->extent);
	kv_hold_put_locked(batch->hold);
	free(batch);
	kv_save_pump_locked(session);
	kv_xfer_put_locked(xfer);
}

int kv_save_status(struct kvfs_xfer *xfer, int status)
{
	if (status == -ESTALE || status == -ENOENT)
		kv_lib_space_forget_locked(xfer->space);
	if (status == -EEXIST || status == -EALREADY)
		return KVFS_PRESENT;
	return status > 0 ? -EPROTO : status;
}

/* Settle a block that is saved whole, and count it in @tally. */
static void count(struct kvfs_xfer *xfer, uint32_t block, int status,
		  struct tally *tally)
{
	status = kv_save_status(xfer, status);
	if (status == KVFS_PRESENT)
		tally->present++;
	else if (status == 0)
		tally->good++;
	else
		tally->bad++;
	atomic_store(&xfer->status[block], status);
}

/* None of its blocks gets to @stage. */
static void fail_locked(struct kv_save_batch *batch, enum kvfs_stage stage,
			int status)
{
	struct tally tally = {0};

	kv_assert_locked(&batch->xfer->session->lock);
	for (size_t i = 0; i < batch->n; i++)
		count(batch->xfer, batch->block[i], status, &tally);
	kv_xfer_fail_locked(batch->xfer, stage, batch->n);
}

/* Reserve or drop the batch's keys, as kv_save_message_keys_locked says. */
static int send_keys_locked(struct kv_save_batch *batch, struct kv_call *call,
			    enum wire_type type, uint64_t of)
{
	const struct kv_save_message message = message_of(batch);

	kv_assert_locked(&batch->xfer->session->lock);
	return kv_save_message_keys_locked(&message, call, type, of);
}

static void dropped(struct kv_call *call, int status, const void *items)
{
	(void)status;
	(void)items;
	end_locked((struct kv_save_batch *)call);
}

/* Give the reservations back and end. */
static void drop_locked(struct kv_save_batch *batch)
{
	kv_assert_locked(&batch->xfer->session->lock);
	batch->call.done = dropped;
	if (batch->n == 0 ||
	    send_keys_locked(batch, &batch->call, WIRE_DROP, 0) < 0)
		end_locked(batch);
}

/* ---- to the daemon ---- */

/* The hold has something to keep from the first block on that sealed. */
static void seal_holds(struct kv_save_batch *batch)
{
	if (batch->hold)
		batch->hold->tag = batch->call.tag;
}

static void saved(struct kv_call *call, int status, const void *items)
{
	struct kv_save_batch *batch = (struct kv_save_batch *)call;
	const struct wire_status *statuses = items;
	struct tally tally = {0};

	if (status < 0) {
		fail_locked(batch, KVFS_SEALED, status);
		drop_locked(batch);
		return;
	}
	for (size_t i = 0; i < batch->n; i++) {
		count(batch->xfer, batch->block[i], statuses[i].status, &tally);
		if (statuses[i].status != 0)
			continue;
		seal_holds(batch);
		kv_hold_block_locked(batch->xfer, batch->block[i], batch->hold);
	}
	kv_xfer_fail_locked(batch->xfer, KVFS_SEALED, tally.bad);
	kv_xfer_reach_locked(batch->xfer, KVFS_SEALED,
			     tally.good + tally.present);
	end_locked(batch);
}

/* The extent goes to the daemon.  -ENOTCONN, -ENOMEM. */
static int send_locked(struct kv_save_batch *batch)
{
	const struct kv_save_message message = message_of(batch);
	const struct kvfs_xfer *xfer = batch->xfer;

	kv_assert_locked(&batch->xfer->session->lock);
	batch->state = SAVING;
	if (!kv_session_is_live(xfer->session, xfer->generation))
		return -ENOTCONN;
	batch->call.done = saved;
	return kv_save_message_blocks_locked(&message, &batch->call);
}

/* ---- copying ---- */

static void copied_locked(struct kv_save_batch *batch)
{
	int r = send_locked(batch);

	kv_assert_locked(&batch->xfer->session->lock);
	kv_xfer_reach_locked(batch->xfer, KVFS_COPIED, batch->n);
	if (r < 0) {
		fail_locked(batch, KVFS_SEALED, r);
		end_locked(batch);
	}
}

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
	uint8_t *at = kv_stage_data(batch->stage) + batch->extent->offset;
	struct kvfs_copy copies[WIRE_BATCH];
	struct kvfs_batch on_device = {
		.strides = &pool->strides,
		.copies = copies,
		.n = batch->n,
		.event_wait = xfer->event_wait,
		.priority = xfer->priority,
	};

	for (size_t i = 0; i < batch->n; i++, at += batch->block_bytes) {
		kv_save_ids_put_behind(xfer, batch->block[i], at);
		copies[i].tensors = at;
		copies[i].pages =
			xfer->pages +
			(size_t)batch->block[i] * pool->strides.pages_per_block;
	}
	batch->submission.xfer = xfer;
	batch->submission.submitted_locked = submitted_locked;
	return kv_submission_run(&batch->submission, 0, &on_device, false);
}

static void answered_locked(struct kv_save_batch *batch)
{
	kv_assert_locked(&batch->xfer->session->lock);
	if (--batch->unanswered == 0)
		end_locked(batch);
}

/* False: it was stopped before its turn came, and may be gone. */
static bool begin_copy(struct kv_save_batch *batch)
{
	struct kvfs_session *session = batch->xfer->session;
	bool wanted;

	pthread_mutex_lock(&session->lock);
	wanted = batch->begun = batch->state != UNWANTED;
	if (!wanted)
		answered_locked(batch);
	pthread_mutex_unlock(&session->lock);
	return wanted;
}

static void copy(struct kv_job *job)
{
	struct kv_save_batch *batch =
		kv_container(job, struct kv_save_batch, job);
	struct kvfs_session *session = batch->xfer->session;
	int r;

	if (!begin_copy(batch))
		return;
	r = copy_pages(batch);
	pthread_mutex_lock(&session->lock);
	kv_xfer_unsubmit_locked(batch->xfer, batch->submitted);
	if (r < 0) {
		fail_locked(batch, KVFS_COPIED, r);
		drop_locked(batch);
	} else {
		copied_locked(batch);
	}
	pthread_mutex_unlock(&session->lock);
}

/* ---- reserving ---- */

/* -EBUSY: the daemon is making memory, which takes a moment.  The others mean
 * that there is no room now; a save with KVFS_MUST waits for room. */
bool kv_save_is_full(const struct kvfs_xfer *xfer, int status)
{
	if (status == -EBUSY)
		return true;
	return (xfer->flags & KVFS_MUST) &&
	       (status == -ENOSPC || status == -EAGAIN || status == -ENOLCK);
}

/* The answer of the daemon, or -EINPROGRESS: ask again some time. */
static int answer(struct kvfs_xfer *xfer, int status)
{
	return kv_save_is_full(xfer, status) ? -EINPROGRESS : status;
}

/* Keep the blocks that were reserved; settle the others. */
static void sort_out_locked(struct kv_save_batch *batch,
			    const struct wire_status *statuses)
{
	struct kvfs_xfer *xfer = batch->xfer;
	struct tally tally = {0};
	size_t kept = 0;

	kv_assert_locked(&batch->xfer->session->lock);
	for (size_t i = 0; i < batch->n; i++) {
		int status = answer(xfer, statuses[i].status);

		if (status == 0)
			batch->block[kept++] = batch->block[i];
		else if (status == -EINPROGRESS)
			kv_save_again_locked(xfer, batch->block[i]);
		else
			count(xfer, batch->block[i], status, &tally);
	}
	batch->n = kept;
	kv_xfer_fail_locked(xfer, KVFS_COPIED, tally.bad);
	kv_xfer_reach_locked(xfer, KVFS_COPIED, tally.present);
	kv_xfer_reach_locked(xfer, KVFS_SEALED, tally.present);
}

static void copy_locked(struct kv_save_batch *batch)
{
	kv_assert_locked(&batch->xfer->session->lock);
	batch->state = COPYING;
	kv_copier_submit(batch->xfer->session->copier, &batch->job);
}

static void reserved(struct kv_call *call, int status, const void *items)
{
	struct kv_save_batch *batch = (struct kv_save_batch *)call;
	struct kvfs_xfer *xfer = batch->xfer;

	if (status < 0) {
		fail_locked(batch, KVFS_COPIED, status);
		end_locked(batch);
		return;
	}
	sort_out_locked(batch, items);
	if (batch->n > 0)
		xfer->pause = 0;
	if (batch->n == 0)
		end_locked(batch);
	else
		copy_locked(batch);
}

static int batch_new(struct kvfs_xfer *xfer, struct kv_stage *stage, size_t n,
		     struct kv_save_batch **ret_batch)
{
	struct kv_save_batch *batch;
	int r = 0;

	batch = calloc(1, sizeof(*batch) + n * sizeof(batch->block[0]));
	if (!batch)
		return -ENOMEM;
	batch->call.done = reserved;
	batch->job.run = copy;
	batch->job.kind = KV_JOB_SAVE;
	batch->job.priority = xfer->priority;
	batch->xfer = xfer;
	batch->stage = stage;
	batch->block_bytes = kv_save_block_bytes(xfer);
	batch->n = n;
	if (xfer->flags & KVFS_HOLD)
		r = kv_hold_new(xfer, &batch->hold);
	if (r < 0)
		free(batch);
	else
		*ret_batch = batch;
	return r;
}

/* Nothing has begun. */
static void undo_locked(struct kv_save_batch *batch)
{
	kv_assert_locked(&batch->xfer->session->lock);
	if (batch->extent)
		kv_stage_put(batch->stage, batch->extent);
	kv_hold_put_locked(batch->hold);
	free(batch);
}

int kv_save_batch_locked(struct kvfs_xfer *xfer, struct kv_stage *stage,
			 size_t n)
{
	struct kv_save_batch *batch;
	int r;

	kv_assert_locked(&xfer->session->lock);
	r = batch_new(xfer, stage, n, &batch);
	if (r < 0)
		return r;
	r = kv_stage_get(stage, n * batch->block_bytes, &batch->extent);
	if (r < 0) {
		undo_locked(batch);
		return r;
	}
	kv_xfer_get_locked(xfer);
	LIST_INSERT_HEAD(&xfer->batches, batch, others);
	kv_save_take_locked(xfer, batch->block, n);
	batch->reserved = n;
	xfer->session->reserved += n;
	r = send_keys_locked(batch, &batch->call, WIRE_RESERVE, 0);
	if (r < 0) {
		xfer->session->reserved -= n;
		fail_locked(batch, KVFS_COPIED, r);
		LIST_REMOVE(batch, others);
		undo_locked(batch);
		kv_xfer_put_locked(xfer);
	}
	return r;
}

/* ---- stopping ---- */

static void unwant_locked(struct kv_save_batch *batch)
{
	kv_assert_locked(&batch->xfer->session->lock);
	batch->state = UNWANTED;
	LIST_REMOVE(batch, others);
}

static void unwanted_reserved(struct kv_call *call, int status,
			      const void *items)
{
	(void)status;
	(void)items;
	answered_locked((struct kv_save_batch *)call);
}

static void unwanted_dropped(struct kv_call *call, int status,
			     const void *items)
{
	(void)status;
	(void)items;
	answered_locked(kv_container(call, struct kv_save_batch, drop));
}

/*
 * Blocks that are asked for now are given back right behind the question: a
 * save of the same keys that begins next does not meet them.  Without memory to
 * ask, they go with the connection.
 */
static void give_back_locked(struct kv_save_batch *batch)
{
	kv_assert_locked(&batch->xfer->session->lock);
	unwant_locked(batch);
	if (kv_rpc_withdraw_locked(batch->xfer->session, &batch->call)) {
		end_locked(batch);
		return;
	}
	batch->unanswered = 1;
	batch->call.done = unwanted_reserved;
	batch->drop.done = unwanted_dropped;
	if (send_keys_locked(batch, &batch->drop, WIRE_DROP, batch->call.tag) ==
	    0)
		batch->unanswered++;
}

/* No thread has begun to copy it, and none may come for long: the job ends when
 * one does, without a look at the pages. */
static void take_back_locked(struct kv_save_batch *batch)
{
	kv_assert_locked(&batch->xfer->session->lock);
	unwant_locked(batch);
	batch->unanswered = 1;
	batch->drop.done = unwanted_dropped;
	if (send_keys_locked(batch, &batch->drop, WIRE_DROP, 0) == 0)
		batch->unanswered++;
}

static void unwanted_saved(struct kv_call *call, int status, const void *items)
{
	struct kv_save_batch *batch = (struct kv_save_batch *)call;
	const struct wire_status *statuses = items;

	if (status < 0) {
		drop_locked(batch);
		return;
	}
	for (size_t i = 0; i < batch->n; i++)
		if (statuses[i].status == 0)
			seal_holds(batch);
	end_locked(batch);
}

/* The batch may be sealed yet; nobody will know. */
static void leave_locked(struct kv_save_batch *batch, int status)
{
	kv_assert_locked(&batch->xfer->session->lock);
	fail_locked(batch, KVFS_SEALED, status);
	unwant_locked(batch);
	batch->call.done = unwanted_saved;
	if (kv_rpc_withdraw_locked(batch->xfer->session, &batch->call))
		drop_locked(batch);
}

static void give_up_locked(struct kv_timer *timer)
{
	struct kvfs_xfer *xfer = kv_container(timer, struct kvfs_xfer, timer);
	int stopped = atomic_load(&xfer->stopped);
	struct kv_save_batch *batch, *next;

	kv_assert_locked(&xfer->session->lock);
	kv_xfer_get_locked(xfer);
	for (batch = LIST_FIRST(&xfer->batches); batch; batch = next) {
		next = LIST_NEXT(batch, others);
		if (batch->state == SAVING)
			leave_locked(batch, stopped);
	}
	/* Copies under way are sent, and have as long. */
	if (xfer->left[KVFS_SEALED] > 0)
		kv_timer_start_locked(xfer->session, timer,
				      kv_time_after(SEAL_GRACE_NS));
	kv_xfer_put_locked(xfer);
}

void kv_save_batches_stop_locked(struct kvfs_xfer *xfer)
{
	int stopped = atomic_load(&xfer->stopped);
	struct kv_save_batch *batch, *next;

	kv_assert_locked(&xfer->session->lock);
	for (batch = LIST_FIRST(&xfer->batches); batch; batch = next) {
		next = LIST_NEXT(batch, others);
		if (batch->state != RESERVING &&
		    (batch->state != COPYING || batch->begun))
			continue;
		fail_locked(batch, KVFS_COPIED, stopped);
		if (batch->state == RESERVING)
			give_back_locked(batch);
		else
			take_back_locked(batch);
	}
	if (xfer->left[KVFS_SEALED] == 0)
		return;
	xfer->timer.fire = give_up_locked;
	kv_timer_start_locked(xfer->session, &xfer->timer,
			      kv_time_after(SEAL_GRACE_NS));
}
