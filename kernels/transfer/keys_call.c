/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys_call.c - an asynchronous request about any number of keys.
 *
 * OWNS      the calls of a request, one for each message.
 *
 * STATES    of a call:
 *
 *               (new) -> ASKED      kv_keys_ask_locked
 *               (new) -> OVER       kv_keys_ask_locked: it cannot be sent
 *               ASKED -> OVER       done: the daemon has answered
 *               ASKED -> OVER       abandon_locked: it had not been sent
 *               ASKED -> ABANDONED  abandon_locked: the daemon is silent
 *           ABANDONED -> OVER       done
 *
 * INVARIANTS
 *   (1) A call is settled once, before it is OVER or ABANDONED.
 *   (2) Each call that is not OVER has a reference to the owner.
 *   (3) All calls that were ASKED are of one connection.
 *
 * LOCKING   session->lock.
 */
#include "kernels/transfer/xfer.h"

int kv_keys_init(struct kv_keys *keys, struct kvfs_session *session,
		 const struct kv_keys_ops *ops, size_t n)
{
	keys->calls = calloc(n + 1, sizeof(*keys->calls));
	if (!keys->calls)
		return -ENOMEM;
	keys->session = session;
	keys->ops = ops;
	keys->n = n;
	for (size_t i = 0; i < n; i++)
		keys->calls[i].keys = keys;
	return 0;
}

void kv_keys_fini_locked(struct kv_keys *keys)
{
	if (!keys->calls)
		return;
	kv_assert_locked(&keys->session->lock);
	kv_timer_stop_locked(keys->session, &keys->timer);
	for (size_t i = 0; i < keys->n; i++)
		if (keys->calls[i].space)
			kv_lib_space_put_locked(keys->calls[i].space);
	free(kv_steal(keys->calls));
}

/* Handle the daemon's answer, or the end of the connection. */
static void done(struct kv_call *kv_call, int status, const void *items)
{
	struct kv_keys_call *call = (struct kv_keys_call *)kv_call;
	struct kv_keys *keys = call->keys;
	const bool late = call->state == KV_KEYS_ABANDONED;

	call->state = KV_KEYS_OVER;
	if (!late)
		keys->ops->settle_locked(call, status, items);
	else if (keys->ops->late_locked)
		keys->ops->late_locked(call, status, items);
	keys->ops->put_locked(keys);
}

void kv_keys_ask_locked(struct kv_keys_call *call,
			const struct wire_header *like, struct wire_key *items,
			size_t n, int status)
{
	struct kv_keys *keys = call->keys;
	struct kv_packet packet = {
		.header = *like,
		.items = items,
		.bytes = n * sizeof(items[0]),
		.fd = -1,
	};
	int r = status < 0 ? status : keys->cancelled;

	kv_assert_locked(&keys->session->lock);
	packet.header.count = call->call.count = (uint32_t)n;
	call->call.done = done;
	if (r == 0)
		r = kv_rpc_submit_locked(keys->session, &call->call, &packet);
	if (r < 0) {
		keys->ops->settle_locked(call, r, NULL);
		return;
	}
	keys->ops->get_locked(keys);
	call->state = KV_KEYS_ASKED;
}

size_t kv_keys_count(const kvfs_query *queries, size_t n_queries)
{
	size_t calls = 0;

	for (size_t i = 0; i < n_queries; i++)
		calls += (queries[i].n + WIRE_BATCH - 1) / WIRE_BATCH;
	return calls;
}

void kv_keys_ask_queries(struct kv_keys *keys, const kvfs_query *queries,
			 size_t n_queries, const struct wire_header *like)
{
	struct kvfs_session *session = keys->session;
	struct kv_keys_call *call = keys->calls;
	struct wire_header header = *like;
	struct wire_key items[WIRE_BATCH];
	uint64_t generation;
	size_t first = 0;
	int r;

	for (const kvfs_query *q = queries; q < queries + n_queries; q++) {
		r = kv_lib_space_miss(
			kv_lib_space_id(q->space, &header.space, &generation));
		pthread_mutex_lock(&session->lock);
		for (size_t i = 0; i < q->n; i += call++->n) {
			call->space = q->space;
			kv_lib_space_get_locked(q->space);
			call->first = first + i;
			call->n = KV_MIN(q->n - i, (size_t)WIRE_BATCH);
			kv_wire_keys(q->keys + i, call->n, items);
			if (r == 0 &&
			    (!kv_session_is_live(session, generation) ||
			     (keys->generation != 0 &&
			      keys->generation != generation)))
				r = -ENOTCONN;
			if (r == 0)
				keys->generation = generation;
			kv_keys_ask_locked(call, &header, items, call->n, r);
		}
		pthread_mutex_unlock(&session->lock);
		first += q->n;
	}
}

/* ---- ending calls without the daemon ---- */

/* Settle @call here: withdraw its message, or ignore the daemon's answer. */
static void abandon_locked(struct kv_keys_call *call, int status)
{
	struct kv_keys *keys = call->keys;
	bool unsent = kv_rpc_withdraw_locked(keys->session, &call->call);

	kv_assert_locked(&keys->session->lock);
	call->state = unsent ? KV_KEYS_OVER : KV_KEYS_ABANDONED;
	if (!unsent && keys->cancelled == 0)
		kv_rpc_post_tag_locked(keys->session, WIRE_CANCEL,
				       call->call.tag);
	keys->ops->settle_locked(call, status, NULL);
	if (unsent)
		keys->ops->put_locked(keys);
}

static void give_up_locked(struct kv_timer *timer)
{
	struct kv_keys *keys = kv_container(timer, struct kv_keys, timer);
	int status = keys->cancelled != 0 ? keys->cancelled : -ETIMEDOUT;

	kv_assert_locked(&keys->session->lock);
	keys->ops->get_locked(keys);
	for (size_t i = 0; i < keys->n; i++)
		if (keys->calls[i].state == KV_KEYS_ASKED)
			abandon_locked(&keys->calls[i], status);
	keys->ops->put_locked(keys);
}

void kv_keys_deadline_locked(struct kv_keys *keys, uint64_t deadline)
{
	kv_assert_locked(&keys->session->lock);
	keys->timer.fire = give_up_locked;
	if (deadline < UINT64_MAX - KV_GRACE_NS)
		kv_timer_start_locked(keys->session, &keys->timer,
				      kv_time_after(deadline + KV_GRACE_NS));
}

void kv_keys_cancel_locked(struct kv_keys *keys, int status)
{
	struct kv_keys_call *call;

	kv_assert_locked(&keys->session->lock);
	if (keys->cancelled != 0)
		return;
	keys->ops->get_locked(keys);
	keys->cancelled = status;
	kv_keys_deadline_locked(keys, 0);
	for (call = keys->calls; call < keys->calls + keys->n; call++) {
		if (call->state != KV_KEYS_ASKED)
			continue;
		if (call->call.parcel)
			abandon_locked(call, status);
		else
			kv_rpc_post_tag_locked(keys->session, WIRE_CANCEL,
					       call->call.tag);
	}
	keys->ops->put_locked(keys);
}
