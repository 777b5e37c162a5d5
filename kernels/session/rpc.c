/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc.c - requests under way on the session's asynchronous connection.
 *
 * OWNS      the table of calls that wait for a reply, and the queue of
 *           messages that the socket had no room for.  Not the calls.
 *
 * INVARIANTS
 *   (1) A call is in the table from a successful submit until its done runs,
 *       and done runs once: by its reply, or by kv_rpc_break_locked; or until
 *       it is withdrawn, which only one is whose message is in the queue.
 *   (2) While the queue holds a message, later ones go behind it.
 *   (3) A tag is not used twice in a session's life.
 *
 * LOCKING   all under session->lock, which is held while a message is handed
 *           to the kernel: that never waits.  kv_rpc_receive runs under
 *           receive_lock and takes session->lock for the effect.
 */
#include <sys/socket.h>

#include "kernels/session/mapped_segment.h"
#include "kernels/session/rpc.h"
#include "kernels/session/session.h"

#define HINTS_MAX 1024u /* messages that wait: then hints are not given */

struct kv_parcel {
	TAILQ_ENTRY(kv_parcel) others;
	struct kv_call *call; /* NULL: it has no reply */
	struct kv_packet packet;
	uint8_t items[];
};

/* Bytes of one item in a reply; 0: a type that this connection never asks. */
static const size_t reply_bytes[WIRE_TYPE_END] = {
	[WIRE_ACQUIRE] = sizeof(struct wire_place),
	[WIRE_STAGING] = 1,
	[WIRE_CLEAR] = 1,
	[WIRE_SPACE_REMOVE] = 1,
	[WIRE_RESERVE] = sizeof(struct wire_status),
	[WIRE_SAVE] = sizeof(struct wire_status),
	[WIRE_POOL] = 1,
	[WIRE_SAVE_PAGES] = sizeof(struct wire_status),
	[WIRE_TOKEN_IDS] = 1,
	[WIRE_FORGET] = sizeof(struct wire_forgot),
	[WIRE_DROP] = sizeof(struct wire_status),
	[WIRE_FLUSH] = sizeof(struct wire_status),
	[WIRE_PREFETCH] = sizeof(struct wire_status),
};

void kv_rpc_init(struct kv_rpc *rpc)
{
	for (size_t i = 0; i < KV_ARRAY_LEN(rpc->pending); i++)
		LIST_INIT(&rpc->pending[i]);
	TAILQ_INIT(&rpc->out);
}

static int queue_locked(struct kvfs_session *session,
			const struct kv_packet *packet, struct kv_call *call)
{
	struct kv_parcel *parcel;

	kv_assert_locked(&session->lock);
	parcel = malloc(sizeof(*parcel) + packet->bytes);
	if (!parcel)
		return -ENOMEM;
	parcel->packet = *packet;
	parcel->call = call;
	if (call)
		call->parcel = parcel;
	if (packet->bytes > 0)
		memcpy(parcel->items, packet->items, packet->bytes);
	parcel->packet.items = parcel->items;
	TAILQ_INSERT_TAIL(&session->rpc.out, parcel, others);
	session->rpc.n_out++;
	kv_session_wake(session);
	return 0;
}

/* Sent, or not to be sent any more. */
static void parcel_free_locked(struct kvfs_session *session,
			       struct kv_parcel *parcel)
{
	kv_assert_locked(&session->lock);
	TAILQ_REMOVE(&session->rpc.out, parcel, others);
	session->rpc.n_out--;
	if (parcel->call)
		parcel->call->parcel = NULL;
	free(parcel);
}

static int send_locked(struct kvfs_session *session,
		       const struct kv_packet *packet, struct kv_call *call)
{
	int r = -EAGAIN;

	kv_assert_locked(&session->lock);
	if (session->link.fd < 0)
		return -ENOTCONN;
	if (TAILQ_EMPTY(&session->rpc.out))
		r = kv_link_send(session->link.fd, packet, MSG_DONTWAIT);
	if (r == -EAGAIN)
		return queue_locked(session, packet, call);
	return r < 0 ? -ENOTCONN : 0;
}

int kv_rpc_submit_locked(struct kvfs_session *session, struct kv_call *call,
			 struct kv_packet *packet)
{
	struct kv_rpc *rpc = &session->rpc;
	int r;

	kv_assert_locked(&session->lock);
	call->tag = ++rpc->tags;
	call->parcel = NULL;
	packet->header.tag = call->tag;
	r = send_locked(session, packet, call);
	if (r < 0)
		return r;
	LIST_INSERT_HEAD(&rpc->pending[call->tag % KV_ARRAY_LEN(rpc->pending)],
			 call, others);
	return 0;
}

bool kv_rpc_withdraw_locked(struct kvfs_session *session, struct kv_call *call)
{
	kv_assert_locked(&session->lock);
	if (!call->parcel)
		return false;
	parcel_free_locked(session, call->parcel);
	LIST_REMOVE(call, others);
	return true;
}

bool kv_rpc_takes_hints_locked(const struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	return session->rpc.n_out < HINTS_MAX;
}

void kv_rpc_post_locked(struct kvfs_session *session, struct kv_packet *packet)
{
	kv_assert_locked(&session->lock);
	send_locked(session, packet, NULL);
}

void kv_rpc_post_tag_locked(struct kvfs_session *session, enum wire_type type,
			    uint64_t tag)
{
	struct kv_packet packet = {
		.header = {.type = type, .tag = tag},
		.fd = -1,
	};

	kv_assert_locked(&session->lock);
	kv_rpc_post_locked(session, &packet);
}

int kv_rpc_push_locked(struct kvfs_session *session)
{
	struct kv_parcel *parcel;
	int r;

	kv_assert_locked(&session->lock);
	while ((parcel = TAILQ_FIRST(&session->rpc.out))) {
		r = kv_link_send(session->link.fd, &parcel->packet,
				 MSG_DONTWAIT);
		if (r == -EAGAIN)
			return 1;
		parcel_free_locked(session, parcel);
	}
	return 0;
}

static struct kv_call *take_locked(struct kvfs_session *session, uint64_t tag)
{
	struct kv_rpc *rpc = &session->rpc;
	struct kv_call *call;

	kv_assert_locked(&session->lock);
	LIST_FOREACH(call, &rpc->pending[tag % KV_ARRAY_LEN(rpc->pending)],
		     others)
		if (call->tag == tag) {
			LIST_REMOVE(call, others);
			return call;
		}
	return NULL;
}

void kv_rpc_break_locked(struct kvfs_session *session)
{
	struct kv_rpc *rpc = &session->rpc;
	struct kv_parcel *parcel;
	struct kv_call *call;

	kv_assert_locked(&session->lock);
	while ((parcel = TAILQ_FIRST(&rpc->out)))
		parcel_free_locked(session, parcel);
	for (size_t i = 0; i < KV_ARRAY_LEN(rpc->pending); i++)
		while ((call = LIST_FIRST(&rpc->pending[i]))) {
			LIST_REMOVE(call, others);
			call->done(call, -ENOTCONN, NULL);
		}
}

static int take_reply_locked(struct kvfs_session *session,
			     const struct kv_packet *packet)
{
	const struct wire_header *header = &packet->header;
	struct kv_call *call;

	kv_assert_locked(&session->lock);
	if (header->type >= WIRE_TYPE_END || reply_bytes[header->type] == 0 ||
	    packet->bytes != header->count * reply_bytes[header->type])
		return -EPROTO;
	call = take_locked(session, header->tag);
	if (!call)
		return -EPROTO;
	if (header->status >= 0 &&
	    (call->at_most ? header->count > call->count
			   : header->count != call->count)) {
		call->done(call, -EPROTO, NULL);
		return -EPROTO;
	}
	call->count = header->count;
	call->done(call, KV_MIN(header->status, 0), packet->items);
	return 0;
}

static int take_segment_locked(struct kvfs_session *session,
			       const struct kv_packet *packet)
{
	const struct wire_segment *segment = packet->items;

	kv_assert_locked(&session->lock);
	if (packet->header.count != 1 || packet->bytes != sizeof(*segment))
		return -EPROTO;
	if (packet->header.type == WIRE_RETIRE)
		kv_mapped_segment_retire_locked(session, segment->id);
	else
		kv_mapped_segment_add_locked(session, segment, packet->fd,
					     packet->fd_lost);
	return 0;
}

int kv_rpc_receive(struct kvfs_session *session)
{
	struct kv_packet packet = {
		.items = session->received,
		.bytes = WIRE_MAX,
	};
	int r;

	kv_assert_locked(&session->receive_lock);
	if (session->link.fd < 0)
		return 0;
	if (session->broken)
		return -EPROTO;
	r = kv_link_receive(session->link.fd, &packet, MSG_DONTWAIT);
	if (r == -EAGAIN)
		return 0;
	session->broken = r < 0;
	if (r < 0)
		return r;
	pthread_mutex_lock(&session->lock);
	if (packet.header.flags & WIRE_REPLY)
		r = take_reply_locked(session, &packet);
	else if (packet.header.type == WIRE_SEGMENT ||
		 packet.header.type == WIRE_RETIRE)
		r = take_segment_locked(session, &packet);
	else
		r = -EPROTO;
	pthread_mutex_unlock(&session->lock);
	kv_closep(&packet.fd);
	session->broken = r < 0;
	return r < 0 ? r : 1;
}
