/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush.c - wait until sealed blocks are durable; barriers.
 *
 * OWNS      nothing: requests are calls of xfer->keys.
 *
 * STATES    of a barrier: WAITING for the session's earlier saves, SEALED
 *           (look_at_barriers_locked), and, if asked for, DURABLE.
 *
 * INVARIANTS
 *   (1) A transfer is flushed once, and only after every block has sealed or
 *       failed.
 *   (2) A block that was present belongs to the transfer, and is flushed.
 *
 * LOCKING   session->lock.
 */
#include "kernels/session/abi.h"
#include "kernels/session/space.h"
#include "kernels/transfer/save.h"

static const struct kv_xfer_ops barrier_ops;

static bool is_barrier(const struct kvfs_xfer *xfer)
{
	return xfer->ops == &barrier_ops;
}

/* Return whether block @i of the transfer is to be flushed: the block was
 * sealed, or was present. */
static bool is_wanted(const struct kvfs_xfer *xfer, size_t i)
{
	return is_barrier(xfer) || atomic_load(&xfer->status[i]) >= 0;
}

/* Count the blocks @first .. + @n that were flushed as durable or failed.  A
 * negative @status applies to every block; otherwise each block has its own in
 * @statuses (NULL: all succeeded). */
static void settle_range_locked(struct kvfs_xfer *xfer, size_t first, size_t n,
				int status, const struct wire_status *statuses)
{
	size_t good = 0, bad = 0;
	int s;

	kv_assert_locked(&xfer->session->lock);
	for (size_t i = first; i < first + n; i++) {
		if (!is_wanted(xfer, i))
			continue;
		s = status < 0 || !statuses ? status
					    : statuses[good + bad].status;
		if (s < 0)
			atomic_store(&xfer->status[i], s);
		else if (s == WIRE_EVICTED)
			atomic_store(&xfer->status[i], KVFS_EVICTED);
		else if (is_barrier(xfer))
			atomic_store(&xfer->status[i], 0);
		good += s >= 0;
		bad += s < 0;
	}
	kv_xfer_fail_locked(xfer, KVFS_DURABLE, bad);
	kv_xfer_reach_locked(xfer, KVFS_DURABLE, good);
}

static void settle_locked(struct kv_keys_call *call, int status,
			  const void *items)
{
	settle_range_locked(kv_container(call->keys, struct kvfs_xfer, keys),
			    call->first, call->n, status,
			    call->call.count == 0 ? NULL : items);
}

static const struct kv_keys_ops flush_ops = {
	.settle_locked = settle_locked,
	.get_locked = kv_xfer_keys_get_locked,
	.put_locked = kv_xfer_keys_put_locked,
};

static void flush_range_locked(struct kvfs_xfer *xfer,
			       struct kv_keys_call *call, size_t first)
{
	const struct wire_header like = {.type = WIRE_FLUSH,
					 .space = xfer->space_id};
	const bool live = kv_session_is_live(xfer->session, xfer->generation);
	struct wire_key items[WIRE_BATCH] = {0};
	size_t n = 0;

	kv_assert_locked(&xfer->session->lock);
	call->first = first;
	call->n = KV_MIN(xfer->n - first, (size_t)WIRE_BATCH);
	for (size_t i = first; i < first + call->n && !is_barrier(xfer); i++) {
		if (!is_wanted(xfer, i))
			continue;
		memcpy(items[n].key, xfer->blocks[i].key, xfer->blocks[i].len);
		items[n++].len = xfer->blocks[i].len;
	}
	/* A WIRE_FLUSH without keys flushes the whole space, as a barrier
	 * does. */
	if (n > 0 || is_barrier(xfer))
		kv_keys_ask_locked(call, &like, items, n, live ? 0 : -ENOTCONN);
}

/* Send the flush requests of @xfer, if every block has sealed or failed and a
 * caller waits for DURABLE. */
static void begin_locked(struct kvfs_xfer *xfer)
{
	const size_t n = (xfer->n + WIRE_BATCH - 1) / WIRE_BATCH;

	kv_assert_locked(&xfer->session->lock);
	if (!xfer->flush_asked || xfer->flush_sent ||
	    xfer->left[KVFS_SEALED] > 0 || xfer->left[KVFS_DURABLE] == 0)
		return;
	xfer->flush_sent = true;
	if (kv_keys_init(&xfer->keys, xfer->session, &flush_ops, n) < 0) {
		settle_range_locked(xfer, 0, xfer->n, -ENOMEM, NULL);
		return;
	}
	for (size_t i = 0; i < n; i++)
		flush_range_locked(xfer, &xfer->keys.calls[i], i * WIRE_BATCH);
}

void kv_flush_stop_locked(struct kvfs_xfer *xfer, int status)
{
	kv_assert_locked(&xfer->session->lock);
	if (xfer->keys.calls && xfer->left[KVFS_DURABLE] > 0)
		kv_keys_cancel_locked(&xfer->keys, status);
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

/* Complete the barriers that no unsealed save precedes any more, and the
 * stopped barriers. */
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
