/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush.c - waiting for what is sealed to be durable, and barriers.
 *
 * OWNS      the requests that flush.
 *
 * STATES    of a chunk, which is a request:
 *
 *              (new) -> ASKED      begin_locked
 *              ASKED -> over       flushed
 *              ASKED -> ABANDONED  give_up_locked: the daemon is silent
 *          ABANDONED -> over       flushed
 *
 * STATES    of a barrier: WAITING for the session's earlier saves, SEALED
 *           (look_at_barriers_locked), and if asked for DURABLE (flushed).
 *
 * INVARIANTS
 *   (1) A transfer is flushed once, and only after every block has sealed or
 *       failed.
 *   (2) A block that was present counts as the transfer's: it is flushed, too.
 *
 * LOCKING   session->lock.
 */
#include "kernels/session/abi.h"
#include "kernels/transfer/flush.h"
#include "kernels/session/space.h"
#include "kernels/transfer/xfer.h"

static const struct kv_xfer_ops barrier_ops;

static bool is_barrier(const struct kvfs_xfer *xfer)
{
	return xfer->ops == &barrier_ops;
}

/* The blocks that go in one message. */
struct kv_flush_chunk {
	struct kv_call call; /* first */
	struct kvfs_xfer *xfer;
	LIST_ENTRY(kv_flush_chunk) others; /* in xfer->flushing, if ASKED */
	bool abandoned;
	size_t n;
	uint32_t block[WIRE_BATCH];
};

static void settle_locked(struct kv_flush_chunk *chunk, int status,
			  const struct wire_status *statuses)
{
	struct kvfs_xfer *xfer = chunk->xfer;
	size_t bad = 0;
	int s;

	kv_assert_locked(&chunk->xfer->session->lock);
	for (size_t i = 0; i < chunk->n; i++) {
		s = status < 0 || !statuses ? status : statuses[i].status;
		bad += s < 0;
		if (s < 0)
			atomic_store(&xfer->status[chunk->block[i]], s);
		else if (s == WIRE_EVICTED)
			atomic_store(&xfer->status[chunk->block[i]],
				     KVFS_EVICTED);
		else if (is_barrier(xfer))
			atomic_store(&xfer->status[0], 0);
	}
	kv_xfer_fail_locked(xfer, KVFS_DURABLE, bad);
	kv_xfer_reach_locked(xfer, KVFS_DURABLE, chunk->n - bad);
}

static void flushed(struct kv_call *call, int status, const void *items)
{
	struct kv_flush_chunk *chunk = (struct kv_flush_chunk *)call;
	struct kvfs_xfer *xfer = chunk->xfer;

	if (!chunk->abandoned) {
		LIST_REMOVE(chunk, others);
		settle_locked(chunk, status,
			      chunk->call.count == 0 ? NULL : items);
	}
	free(chunk);
	kv_xfer_put_locked(xfer);
}

static int send_chunk_locked(struct kv_flush_chunk *chunk)
{
	struct kvfs_xfer *xfer = chunk->xfer;
	struct wire_key keys[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = WIRE_FLUSH, .space = xfer->space_id},
		.items = keys,
		.fd = -1,
	};

	kv_assert_locked(&chunk->xfer->session->lock);
	if (!kv_session_is_live(xfer->session, xfer->generation))
		return -ENOTCONN;
	if (!is_barrier(xfer)) {
		packet.header.count = (uint32_t)chunk->n;
		packet.bytes = chunk->n * sizeof(keys[0]);
		memset(keys, 0, packet.bytes);
	}
	for (size_t i = 0; i < packet.header.count; i++) {
		const struct wire_save *block = &xfer->blocks[chunk->block[i]];

		memcpy(keys[i].key, block->key, block->len);
		keys[i].len = block->len;
	}
	chunk->call.count = packet.header.count;
	chunk->call.done = flushed;
	return kv_rpc_submit_locked(xfer->session, &chunk->call, &packet);
}

/* The next blocks from *@at on that have sealed; none: n is 0. */
static void fill_chunk(struct kv_flush_chunk *chunk, size_t *at)
{
	struct kvfs_xfer *xfer = chunk->xfer;

	for (; *at < xfer->n && chunk->n < WIRE_BATCH; (*at)++)
		if (is_barrier(xfer) || atomic_load(&xfer->status[*at]) >= 0)
			chunk->block[chunk->n++] = (uint32_t)*at;
}

static void fail_from_locked(struct kvfs_xfer *xfer, size_t at, int status)
{
	size_t n = 0;

	kv_assert_locked(&xfer->session->lock);
	for (size_t i = at; i < xfer->n; i++)
		if (is_barrier(xfer) || atomic_load(&xfer->status[i]) >= 0) {
			atomic_store(&xfer->status[i], status);
			n++;
		}
	kv_xfer_fail_locked(xfer, KVFS_DURABLE, n);
}

/* Everything is sealed: flush if that was asked for. */
static void begin_locked(struct kvfs_xfer *xfer)
{
	struct kv_flush_chunk *chunk;
	size_t at = 0;
	int r;

	kv_assert_locked(&xfer->session->lock);
	if (!xfer->flush_asked || xfer->flush_sent ||
	    xfer->left[KVFS_SEALED] > 0 || xfer->left[KVFS_DURABLE] == 0)
		return;
	xfer->flush_sent = true;
	while (at < xfer->n) {
		chunk = calloc(1, sizeof(*chunk));
		if (!chunk) {
			fail_from_locked(xfer, at, -ENOMEM);
			return;
		}
		chunk->xfer = xfer;
		fill_chunk(chunk, &at);
		r = chunk->n > 0 ? send_chunk_locked(chunk) : -ENOENT;
		if (r < 0) {
			settle_locked(chunk, r, NULL);
			free(chunk);
		} else {
			kv_xfer_get_locked(xfer);
			LIST_INSERT_HEAD(&xfer->flushing, chunk, others);
		}
	}
}

/* The daemon has not even confirmed the cancel. */
static void give_up_locked(struct kv_timer *timer)
{
	struct kvfs_xfer *xfer = kv_container(timer, struct kvfs_xfer, timer);
	struct kv_flush_chunk *chunk;

	kv_assert_locked(&xfer->session->lock);
	kv_xfer_get_locked(xfer);
	while ((chunk = LIST_FIRST(&xfer->flushing))) {
		LIST_REMOVE(chunk, others);
		chunk->abandoned = true;
		settle_locked(chunk, xfer->flush_stopped, NULL);
		if (!kv_rpc_withdraw_locked(xfer->session, &chunk->call))
			continue;
		free(chunk);
		kv_xfer_put_locked(xfer);
	}
	kv_xfer_put_locked(xfer);
}

void kv_flush_stop_locked(struct kvfs_xfer *xfer, int status)
{
	struct kv_flush_chunk *chunk;

	kv_assert_locked(&xfer->session->lock);
	if (LIST_EMPTY(&xfer->flushing) || xfer->flush_stopped != 0)
		return;
	xfer->flush_stopped = status;
	LIST_FOREACH(chunk, &xfer->flushing, others)
		if (!chunk->call.parcel)
			kv_rpc_post_tag_locked(xfer->session, WIRE_CANCEL,
					       chunk->call.tag);
	xfer->timer.fire = give_up_locked;
	kv_timer_start_locked(xfer->session, &xfer->timer,
			      kv_time_after(KV_GRACE_NS));
}

void kv_flush_ask_locked(struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	if (xfer->flush_asked || xfer->left[KVFS_DURABLE] == 0)
		return;
	xfer->flush_asked = true;
	if (!xfer->active)
		kv_xfer_activate_locked(xfer);
	begin_locked(xfer);
}

/* ---- barriers ---- */

static bool is_past_locked(const struct kvfs_xfer *barrier)
{
	const struct kvfs_xfer *x;

	kv_assert_locked(&barrier->session->lock);
	TAILQ_FOREACH(x, &barrier->session->active, others) {
		if (x == barrier)
			return true;
		if (x->ops->to_daemon && !is_barrier(x) &&
		    x->left[KVFS_SEALED] > 0 &&
		    strcmp(x->space->name, barrier->space->name) == 0)
			return false;
	}
	return true;
}

/* A save has sealed, or a barrier was stopped: see which barriers are past. */
static void look_at_barriers_locked(struct kvfs_session *session)
{
	struct kvfs_xfer *x, *next;
	int stopped;

	kv_assert_locked(&session->lock);
	for (x = TAILQ_FIRST(&session->active); x; x = next) {
		next = TAILQ_NEXT(x, others);
		if (!is_barrier(x) || x->left[KVFS_SEALED] == 0)
			continue;
		stopped = atomic_load(&x->stopped);
		if (stopped != 0) {
			atomic_store(&x->status[0], stopped);
			kv_xfer_fail_locked(x, KVFS_COPIED, 1);
		} else if (is_past_locked(x)) {
			if (!x->flush_asked)
				atomic_store(&x->status[0], 0);
			kv_xfer_reach_locked(x, KVFS_COPIED, 1);
			kv_xfer_reach_locked(x, KVFS_SEALED, 1);
		}
	}
}

void kv_flush_saved_locked(struct kvfs_xfer *save)
{
	kv_assert_locked(&save->session->lock);
	look_at_barriers_locked(save->session);
	begin_locked(save);
}

static void stopped_locked(struct kvfs_xfer *barrier)
{
	kv_assert_locked(&barrier->session->lock);
	look_at_barriers_locked(barrier->session);
}

static const struct kv_xfer_ops barrier_ops = {
	.to_daemon = true,
	.stopped_locked = stopped_locked,
	.sealed_locked = begin_locked,
	.want_durable_locked = kv_flush_ask_locked,
	.stop_durable_locked = kv_flush_stop_locked,
};

int kvfs_flush(kvfs_space *space, enum kvfs_stage stage, const kvfs_opts *opts,
	       kvfs_xfer **ret_xfer)
{
	struct kvfs_xfer *xfer;
	kvfs_opts known = {0};
	int r = kv_session_check(space ? space->session : NULL);

	if (r == 0)
		r = kv_abi_opts(&known, opts);
	if (r < 0)
		return r;
	if (!ret_xfer || known.deadline != 0 ||
	    !kv_abi_opts_are_plain(&known, 0) ||
	    (stage != KVFS_SEALED && stage != KVFS_DURABLE))
		return -EINVAL;
	r = kv_xfer_new(space->session, &barrier_ops, 1, &xfer);
	if (r < 0)
		return r;
	r = kv_lib_space_id(space, &xfer->space_id, &xfer->generation);
	pthread_mutex_lock(&space->session->lock);
	kv_lib_space_get_locked(space);
	xfer->space = space;
	if (r < 0)
		xfer->generation = 0;
	xfer->flush_asked = stage == KVFS_DURABLE;
	kv_xfer_tell_locked(xfer, KVFS_EVENT_XFER, known.user, 1u << stage);
	kv_xfer_activate_locked(xfer);
	look_at_barriers_locked(space->session);
	pthread_mutex_unlock(&space->session->lock);
	*ret_xfer = xfer;
	return 0;
}
