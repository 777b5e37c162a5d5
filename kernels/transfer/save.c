/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - saves: checks, the queue of blocks that no batch has yet, and waiting
 * until blocks are durable; barriers.
 *
 * OWNS      the queue of saves with blocks to do; copies of token ids; the
 *           daemon's leases of sealed blocks (KVFS_HOLD).
 *
 * STATES    of a save with blocks to do:
 *
 *              ASKING -> SYNCING     asked: the id of the space has come late
 *             SYNCING -> QUEUED      begin_locked: the stream's work is over
 *             SYNCING -> RESTING     start_locked: a large save without a stream,
 *                                    which the reader thread begins at once
 *              QUEUED -> UNDER WAY   advance_locked, with its last batch
 *              QUEUED -> RESTING     kv_save_again_locked: there is no room
 *           UNDER WAY -> RESTING     the same
 *             RESTING -> QUEUED      rested_locked, some milliseconds later
 *                   * -> UNDER WAY   kv_save_take_locked: nothing is left to do
 *
 *           of a barrier: WAITING for the session's earlier saves, SEALED
 *           (look_at_barriers_locked), and, if asked for, DURABLE.
 *
 * INVARIANTS
 *   (1) A save is ASKING, SYNCING, QUEUED or RESTING if and only if it has
 *       blocks to do, and in session->saves when it is QUEUED: a save that waits
 *       for room (KVFS_MUST) does not delay the others.
 *   (2) Reservations are asked for only when their extent exists, and no more
 *       than the daemon grants one connection: the daemon keeps a bounded number
 *       for the session.
 *   (3) A tag in held is released once, when the caller has freed the transfer;
 *       if the connection is gone, so are the leases.
 *   (4) A transfer is flushed once, and only after every block has sealed or
 *       failed.
 *   (5) A block that was present belongs to the transfer, and is flushed.
 *
 * LOCKING   session->lock.
 */
#include "common/block.h"
#include "common/rate.h"
#include "kernels/transfer/xfer.h"

/* largest save that begins on the caller's thread */
#define SOON_BYTES ((uint64_t)4 << 20)
#define IDS_ALIGN 8u
#define PAUSE_FIRST_NS 2000000u
#define PAUSE_LAST_NS 100000000u

/* ---- token ids ---- */

_Static_assert(KVFS_EXTRAS_MAX == KV_EXTRAS_MAX, "kvfs.h has the same number");

/*
 * Copy the token ids of @meta (n entries, or NULL) to xfer->ids, if @layout
 * asks for ids.  The numbers of tokens are in xfer->blocks.
 * -EINVAL: @layout asks for ids and @meta has none, or the reverse
 * -E2BIG: more than KVFS_EXTRAS_MAX bytes of extras
 * -ENOMEM
 */
static int set_ids(struct kvfs_xfer *xfer, const kvfs_meta *meta,
		   const struct kv_layout *layout)
{
	uint64_t each = 0;

	for (size_t i = 0; i < xfer->n; i++) {
		const kvfs_meta *m = meta ? &meta[i] : NULL;

		if (!layout->token_ids) {
			if (m && (m->token_ids || m->extras || m->extras_len))
				return -EINVAL;
			continue;
		}
		if (!m || !m->token_ids || (!m->extras && m->extras_len))
			return -EINVAL;
		if (m->extras_len > KVFS_EXTRAS_MAX)
			return -E2BIG;
		each = KV_MAX(each, kv_token_ids_bytes(xfer->blocks[i].tokens,
						       m->extras_len));
	}
	if (each == 0)
		return 0;
	each = kv_round_up(each, IDS_ALIGN);
	xfer->ids = calloc(xfer->n, each);
	if (!xfer->ids)
		return -ENOMEM;
	xfer->ids_bytes = each;
	for (size_t i = 0; i < xfer->n; i++) {
		struct kv_token_ids *to = (void *)(xfer->ids + i * each);

		to->n = xfer->blocks[i].tokens;
		to->extras_len = meta[i].extras_len;
		memcpy(to->ids, meta[i].token_ids, to->n * sizeof(to->ids[0]));
		if (to->extras_len > 0)
			memcpy(to->ids + to->n, meta[i].extras, to->extras_len);
	}
	return 0;
}

uint64_t kv_save_ids_most(const struct kv_layout *layout)
{
	return layout->token_ids
		       ? kv_round_up(kv_token_ids_bytes(layout->tokens,
							KV_EXTRAS_MAX),
				     IDS_ALIGN)
		       : 0;
}

uint64_t kv_save_ids_offset(const struct kv_layout *layout)
{
	return kv_round_up(layout->payload, IDS_ALIGN);
}

uint64_t kv_save_block_bytes(const struct kvfs_xfer *xfer)
{
	return kv_round_up(kv_save_ids_offset(xfer->pool->layout) +
				   xfer->ids_bytes,
			   KV_SAVE_ALIGN);
}

void kv_save_ids_put(const struct kvfs_xfer *xfer, size_t block, uint8_t *at)
{
	if (xfer->ids)
		memcpy(at, xfer->ids + block * xfer->ids_bytes,
		       xfer->ids_bytes);
}

/* ---- blocks that a save has yet to send ---- */

static void unqueue_locked(struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	if (xfer->queued)
		TAILQ_REMOVE(&xfer->session->saves, xfer, queue);
	xfer->queued = false;
}

static void add_todo(struct kvfs_xfer *xfer, uint32_t block)
{
	xfer->todo[(xfer->todo_at + xfer->todo_n++) % xfer->n] = block;
}

void kv_save_take_locked(struct kvfs_xfer *xfer, uint32_t *ret_blocks, size_t n)
{
	kv_assert_locked(&xfer->session->lock);
	assert(n <= xfer->todo_n);
	for (size_t i = 0; i < n; i++) {
		ret_blocks[i] = xfer->todo[xfer->todo_at];
		xfer->todo_at = (xfer->todo_at + 1) % xfer->n;
		xfer->todo_n--;
	}
	if (n == 0 || xfer->todo_n > 0)
		return;
	unqueue_locked(xfer);
	kv_event_wait_stop_locked(xfer->event_wait);
	kv_timer_stop_locked(xfer->session, &xfer->again);
}

static void begin_locked(void *owner)
{
	struct kvfs_xfer *xfer = owner;

	kv_assert_locked(&xfer->session->lock);
	if (!xfer->queued)
		TAILQ_INSERT_TAIL(&xfer->session->saves, xfer, queue);
	xfer->queued = true;
	kv_save_pump_locked(xfer->session);
}

static void rested_locked(struct kv_timer *timer)
{
	begin_locked(kv_container(timer, struct kvfs_xfer, again));
}

/* The save leaves the queue, because its other blocks would find no room
 * either. */
void kv_save_again_locked(struct kvfs_xfer *xfer, uint32_t block)
{
	kv_assert_locked(&xfer->session->lock);
	add_todo(xfer, block);
	unqueue_locked(xfer);
	if (xfer->again.at != 0)
		return;
	xfer->pause = kv_backoff(xfer->pause, PAUSE_FIRST_NS, PAUSE_LAST_NS);
	xfer->again.fire = rested_locked;
	kv_timer_start_locked(xfer->session, &xfer->again,
			      kv_time_after(xfer->pause));
}

static void fail_todo_locked(struct kvfs_xfer *xfer, int status)
{
	const size_t n = xfer->todo_n;
	uint32_t block;

	kv_assert_locked(&xfer->session->lock);
	for (size_t i = 0; i < n; i++) {
		kv_save_take_locked(xfer, &block, 1);
		atomic_store(&xfer->status[block], status);
	}
	kv_xfer_fail_locked(xfer, KVFS_COPIED, n);
}

void kv_saves_fail_locked(struct kvfs_session *session, int status)
{
	struct kvfs_xfer *xfer;

	kv_assert_locked(&session->lock);
	while ((xfer = TAILQ_FIRST(&session->saves)))
		fail_todo_locked(xfer, status);
}

static int advance_locked(struct kvfs_xfer *xfer)
{
	struct kvfs_session *session = xfer->session;
	uint64_t block_bytes = kv_save_block_bytes(xfer);
	bool lent;
	size_t n;
	int r;

	kv_assert_locked(&session->lock);
	if (!kv_session_is_live(session, xfer->generation))
		return -ENOTCONN;
	kv_lending_offer_locked(xfer->pool);
	lent = kv_lending_is_taken_locked(xfer->pool, xfer->generation);
	if (lent) /* lent pages need staging only for a word and for token ids */
		block_bytes = KV_SAVE_ALIGN + xfer->ids_bytes;
	r = kv_staging_need_locked(session, block_bytes);
	if (r < 0)
		return r;
	if (!lent && (session->staging_asked ||
		      xfer->todo_n * block_bytes > session->stage->bytes / 2))
		kv_staging_grow_locked(session, block_bytes);
	n = kv_save_batch_blocks(xfer, lent);
	if (n == 0)
		return -EAGAIN;
	r = kv_save_batch_locked(xfer, n, lent);
	if (r == -EAGAIN && !lent) {
		session->stage_full = true;
		kv_staging_grow_locked(session, block_bytes);
	}
	return r;
}

void kv_save_pump_locked(struct kvfs_session *session)
{
	struct kvfs_xfer *xfer;
	int r = 0;

	kv_assert_locked(&session->lock);
	while (r != -EAGAIN && (xfer = TAILQ_FIRST(&session->saves))) {
		kv_xfer_get_locked(xfer);
		r = advance_locked(xfer);
		if (r < 0 && r != -EAGAIN)
			fail_todo_locked(xfer, r);
		kv_xfer_put_locked(xfer);
	}
	/* The last save has left the small stage: change to the large one. */
	if (TAILQ_EMPTY(&session->saves))
		kv_staging_swap_locked(session);
}

/* ---- holds ---- */

void kv_save_hold_locked(struct kvfs_xfer *xfer, uint32_t block, uint64_t tag)
{
	kv_assert_locked(&xfer->session->lock);
	if (xfer->held)
		xfer->held[block] = tag;
	else if (kv_session_is_live(xfer->session, xfer->generation))
		kv_rpc_post_tag_locked(xfer->session, WIRE_RELEASE, tag);
}

/* Release the leases of a transfer that its caller has freed.  Blocks that seal
 * later are not held. */
static void end_holds_locked(struct kvfs_xfer *xfer)
{
	_cleanup_(kv_freep) uint64_t *held = kv_steal(xfer->held);

	kv_assert_locked(&xfer->session->lock);
	/* Release from the last block to the first, so that a parent is more
	 * recent than its children. */
	for (size_t i = xfer->n; held && i-- > 0;)
		if (held[i] != 0)
			kv_save_hold_locked(xfer, (uint32_t)i, held[i]);
}

/* ---- flushes: until the blocks are durable ---- */

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
static void settle_durable_locked(struct kvfs_xfer *xfer, size_t first,
				  size_t n, int status,
				  const struct wire_status *statuses)
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

static void flushed_locked(struct kv_keys_call *call, int status,
			   const void *items)
{
	settle_durable_locked(kv_container(call->keys, struct kvfs_xfer, keys),
			      call->first, call->n, status,
			      call->call.count == 0 ? NULL : items);
}

static const struct kv_keys_ops flush_ops = {
	.settle_locked = flushed_locked,
	.get_locked = kv_xfer_keys_get_locked,
	.put_locked = kv_xfer_keys_put_locked,
};

/* Send the flush requests of @xfer, if every block has sealed or failed and a
 * caller waits for DURABLE. */
static void begin_flush_locked(struct kvfs_xfer *xfer)
{
	const struct wire_header like = {.type = WIRE_FLUSH,
					 .space = xfer->space_id};
	const bool live = kv_session_is_live(xfer->session, xfer->generation);
	const size_t calls = (xfer->n + WIRE_BATCH - 1) / WIRE_BATCH;
	struct wire_key items[WIRE_BATCH];
	struct kv_keys_call *call;
	size_t n, first = 0;

	kv_assert_locked(&xfer->session->lock);
	if (!xfer->flush_asked || xfer->flush_sent ||
	    xfer->left[KVFS_SEALED] > 0 || xfer->left[KVFS_DURABLE] == 0)
		return;
	xfer->flush_sent = true;
	if (kv_keys_init(&xfer->keys, xfer->session, &flush_ops, calls) < 0) {
		settle_durable_locked(xfer, 0, xfer->n, -ENOMEM, NULL);
		return;
	}
	for (call = xfer->keys.calls; first < xfer->n; first += call++->n) {
		call->first = first;
		call->n = KV_MIN(xfer->n - first, (size_t)WIRE_BATCH);
		memset(items, 0, sizeof(items));
		n = 0;
		for (size_t i = first; i < first + call->n && !is_barrier(xfer);
		     i++) {
			const struct wire_save *block = &xfer->blocks[i];

			if (!is_wanted(xfer, i))
				continue;
			memcpy(items[n].key, block->key, block->len);
			items[n++].len = block->len;
		}
		/* A WIRE_FLUSH without keys flushes the whole space, as a
		 * barrier does. */
		if (n > 0 || is_barrier(xfer))
			kv_keys_ask_locked(call, &like, items, n,
					   live ? 0 : -ENOTCONN);
	}
}

static void stop_durable_locked(struct kvfs_xfer *xfer, int status)
{
	kv_assert_locked(&xfer->session->lock);
	if (xfer->left[KVFS_DURABLE] == 0)
		return;
	if (xfer->keys.calls)
		kv_keys_cancel_locked(&xfer->keys, status);
	else if (xfer->flush_asked) /* cancel a flush that is not sent yet */
		xfer->keys.cancelled = status;
}

static void want_durable_locked(struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	if (xfer->flush_asked || xfer->left[KVFS_DURABLE] == 0)
		return;
	xfer->flush_asked = true;
	if (!xfer->active)
		kv_xfer_activate_locked(xfer);
	begin_flush_locked(xfer);
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

/* Complete the barriers that no unsealed save precedes any more. */
static void look_at_barriers_locked(struct kvfs_session *session)
{
	struct kvfs_xfer *x, *next;

	kv_assert_locked(&session->lock);
	for (x = TAILQ_FIRST(&session->active); x; x = next) {
		next = TAILQ_NEXT(x, others);
		if (!is_barrier(x) || x->left[KVFS_SEALED] == 0 || x->asking ||
		    !is_past_locked(x))
			continue;
		if (!x->flush_asked)
			atomic_store(&x->status[0], 0);
		kv_xfer_reach_locked(x, KVFS_COPIED, 1);
		kv_xfer_reach_locked(x, KVFS_SEALED, 1);
	}
}

static void sealed_locked(struct kvfs_xfer *save)
{
	kv_assert_locked(&save->session->lock);
	look_at_barriers_locked(save->session);
	begin_flush_locked(save);
}

static void barrier_stopped_locked(struct kvfs_xfer *barrier)
{
	kv_assert_locked(&barrier->session->lock);
	if (barrier->left[KVFS_SEALED] == 0)
		return;
	atomic_store(&barrier->status[0], atomic_load(&barrier->stopped));
	kv_xfer_fail_locked(barrier, KVFS_COPIED, 1);
}

/* Begin a save, now that the daemon's id of its space is known. */
static void start_locked(struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	/* Begin a small save on this thread, and leave a large one to the
	 * reader thread: the caller's time is an engine's step, and every batch
	 * costs a message to the daemon.  The copies of a large save take longer
	 * than the reader thread takes to wake. */
	if (xfer->event_wait ||
	    xfer->n * kv_save_block_bytes(xfer) <= SOON_BYTES) {
		kv_event_wait_begin_locked(xfer->event_wait, begin_locked,
					   xfer);
	} else {
		xfer->again.fire = rested_locked;
		kv_timer_start_locked(xfer->session, &xfer->again, kv_now_ns());
	}
}

/* Handle the daemon's reply to ask_locked, with the id of a space. */
static void asked(struct kv_call *call, int status, const void *items)
{
	struct kvfs_xfer *xfer = kv_container(call, struct kvfs_xfer, ask);

	xfer->asking = false;
	if (status >= 0) {
		xfer->generation = atomic_load(&xfer->session->live);
		status = kv_lib_space_take_locked(
			xfer->space, xfer->generation, items, call->count,
			xfer->pool ? xfer->pool->layout : NULL);
		xfer->space_id = xfer->space->id;
	}
	if (is_barrier(xfer))
		look_at_barriers_locked(xfer->session);
	else if (status < 0) /* -ECANCELED: the daemon is shutting down */
		fail_todo_locked(xfer,
				 status == -ECANCELED ? -ENOTCONN : status);
	else if (xfer->todo_n > 0)
		start_locked(xfer);
	kv_xfer_put_locked(xfer);
}

/* Ask a daemon that is connected, but did not answer a look-up in time, for the
 * space of a save or barrier.  Returns 0, or @status, the look-up's error, if
 * that has another cause. */
static int ask_locked(struct kvfs_xfer *xfer, int status)
{
	kv_assert_locked(&xfer->session->lock);
	if (status != kv_link_lost(status) ||
	    atomic_load(&xfer->session->live) == 0)
		return status;
	xfer->ask.done = asked;
	status = kv_lib_space_submit_locked(xfer->space, &xfer->ask);
	if (status < 0)
		return status;
	kv_xfer_get_locked(xfer);
	xfer->asking = true;
	return 0;
}

static const struct kv_xfer_ops barrier_ops = {
	.to_daemon = true,
	.stopped_locked = barrier_stopped_locked,
	.sealed_locked = begin_flush_locked,
	.want_durable_locked = want_durable_locked,
	.stop_durable_locked = stop_durable_locked,
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
	if (r < 0 && xfer->flush_asked)
		(void)ask_locked(xfer, r);
	kv_xfer_tell_locked(xfer, KVFS_EVENT_XFER, known.user, 1u << stage);
	kv_xfer_activate_locked(xfer);
	look_at_barriers_locked(space->session);
	pthread_mutex_unlock(&space->session->lock);
	*ret_xfer = xfer;
	return 0;
}

/* ---- saves ---- */

static void stopped_locked(struct kvfs_xfer *xfer)
{
	kv_assert_locked(&xfer->session->lock);
	kv_xfer_get_locked(xfer);
	fail_todo_locked(xfer, atomic_load(&xfer->stopped));
	kv_save_batches_stop_locked(xfer);
	kv_xfer_put_locked(xfer);
}

static void drop(struct kvfs_xfer *xfer)
{
	free(xfer->blocks);
	free(xfer->ids);
	free(xfer->todo);
	free(xfer->held);
}

static const struct kv_xfer_ops save_ops = {
	.to_daemon = true,
	.stopped_locked = stopped_locked,
	.leave_pages_locked = kv_save_leave_pages_locked,
	.sealed_locked = sealed_locked,
	.want_durable_locked = want_durable_locked,
	.stop_durable_locked = stop_durable_locked,
	.freed_locked = end_holds_locked,
	.drop = drop,
};

void kv_saves_stop_locked(struct kvfs_session *session, const char *name)
{
	struct kvfs_xfer *xfer;

	kv_assert_locked(&session->lock);
	/* Stopping one save may end others, so search from the start each
	 * time. */
	do {
		TAILQ_FOREACH(xfer, &session->active, others)
			if (xfer->ops == &save_ops && xfer->stopped == 0 &&
			    strcmp(xfer->space->name, name) == 0)
				break;
		if (xfer)
			kv_xfer_stop_locked(xfer, -ESTALE);
	} while (xfer);
}

/* ---- starting a save ---- */

static int set_blocks(struct kvfs_xfer *xfer, const kvfs_key *keys,
		      const kvfs_meta *meta, const struct kv_layout *layout)
{
	const uint32_t tokens = layout->tokens;

	xfer->blocks = calloc(xfer->n + 1, sizeof(*xfer->blocks));
	if (!xfer->blocks)
		return -ENOMEM;
	for (size_t i = 0; i < xfer->n; i++) {
		const kvfs_key *parent = i == 0 ? NULL : &keys[i - 1];
		const kvfs_meta *m = meta ? &meta[i] : NULL;
		struct wire_save *block = &xfer->blocks[i];

		memcpy(block->key, keys[i].bytes, keys[i].len);
		block->len = keys[i].len;
		block->position = m ? m->position : (uint32_t)i;
		block->tokens = m && m->tokens ? m->tokens : tokens;
		if (m && m->parent.len != KVFS_CHAIN)
			parent = m->parent.len == 0 ? NULL : &m->parent;
		if ((m && !kv_abi_is_zero(m->reserved_more,
					  sizeof(m->reserved_more))) ||
		    (parent && parent->len != block->len) ||
		    (tokens != 0 && block->tokens > tokens))
			return -EINVAL;
		if (!parent)
			continue;
		memcpy(block->parent, parent->bytes, parent->len);
		block->parent_len = parent->len;
	}
	return set_ids(xfer, meta, layout);
}

int kv_lib_save(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys,
		const kvfs_meta *meta, size_t n, const int64_t *pages,
		const kvfs_opts *opts, kvfs_xfer **ret_xfer)
{
	_cleanup_(kv_xfer_freep) struct kvfs_xfer *xfer = NULL;
	const unsigned flags = KVFS_MUST | KVFS_HOLD | KVFS_TELL_SUBMITTED;
	const struct kv_layout *layout;
	kvfs_opts known = {0};
	int r = kv_session_check(pool ? pool->session : NULL), status;
	long used;

	if (r < 0)
		return r;
	if (!space || space->session != pool->session || n > UINT32_MAX ||
	    !kv_wire_keys_are_valid(keys, n))
		return -EINVAL;
	r = kv_abi_opts(&known, opts);
	if (r < 0)
		return r;
	if (known.layers != 0)
		return -EOPNOTSUPP;
	if (!ret_xfer)
		return -EINVAL;
	r = kv_xfer_new(pool->session, &save_ops, n, &xfer);
	if (r == 0)
		r = kv_xfer_set_pages(xfer, pool, pages);
	if (r == 0)
		r = kv_opts_take(xfer, pool, &known, flags);
	if (r < 0)
		return r;
	/* The layout is checked after this question: the space may be another
	 * one by now. */
	status = kv_lib_space_id(space, &xfer->space_id, &xfer->generation);
	layout = kv_lib_space_layout(space);
	if (!kv_lib_layout_same_tensors(layout, pool->layout))
		return -EINVAL;
	r = set_blocks(xfer, keys, meta, layout);
	if (r < 0)
		return r;
	xfer->todo = calloc(n + 1, sizeof(*xfer->todo));
	if (xfer->flags & KVFS_HOLD)
		xfer->held = calloc(n + 1, sizeof(*xfer->held));
	if (!xfer->todo || ((xfer->flags & KVFS_HOLD) && !xfer->held))
		return -ENOMEM;
	pthread_mutex_lock(&pool->session->lock);
	if (status == 0 && space->id != xfer->space_id)
		status = -ESTALE; /* the layout may be of another id */
	used = kv_lib_pool_check_pages_locked(pool, xfer->pages, xfer->n_pages,
					      false);
	if (used >= 0)
		kv_xfer_tell_locked(xfer, KVFS_EVENT_XFER, known.user,
				    KV_NOTICE_ALL);
	if (used >= 0 && n > 0) {
		kv_lib_space_get_locked(space);
		xfer->space = space;
		xfer->pool = pool;
		kv_xfer_activate_locked(xfer);
		for (size_t i = 0; i < n; i++)
			add_todo(xfer, (uint32_t)i);
		if (status < 0)
			status = ask_locked(xfer, status);
		if (status < 0)
			fail_todo_locked(xfer, status);
		else if (!xfer->asking)
			start_locked(xfer);
	}
	pthread_mutex_unlock(&pool->session->lock);
	if (used < 0)
		return (int)used;
	*ret_xfer = kv_steal(xfer);
	return 0;
}

int kvfs_save(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys,
	      const kvfs_meta *meta, size_t n, const int64_t *pages,
	      const kvfs_opts *opts, kvfs_xfer **ret_xfer)
{
	if (kv_session_check(pool ? pool->session : NULL) == 0 && pool->paged)
		return -EINVAL;
	return kv_lib_save(pool, space, keys, meta, n, pages, opts, ret_xfer);
}
