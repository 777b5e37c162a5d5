/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc.c - requests, questions on the look-up connection, and notices.
 *
 * OWNS      the table of calls that wait for a reply, and the queue of messages
 *           for which the socket had no room, with duplicates of their
 *           descriptors; not the calls.  session->lookup.
 *           session->notices: a notice is embedded in its lease or transfer, so
 *           posting one needs no memory.
 *
 * INVARIANTS
 *   (1) A call is in the table from a successful submit until its done runs,
 *       once: by its reply or by kv_rpc_break_locked.  A call whose message is
 *       still in the queue can be withdrawn instead.
 *   (2) While the queue holds a message, later messages are queued behind it.
 *   (3) A tag is not used twice in a session's life.
 *   (4) At most one question is in flight, and its reply is the next message:
 *       after a time-out or any other failure the look-up connection is closed,
 *       so that a late reply is not taken for the next one.
 *   (5) The look-up connection is to the same daemon as the asynchronous one.
 *   (6) A notice is in session->notices if and only if one of its stages is
 *       pending; each stage is reported once.
 *   (7) kvfs_fd stays readable as long as a notice is pending.
 *
 * LOCKING   session->lock for requests and notices, also while a message is sent,
 *           which never blocks.  kv_rpc_receive runs under receive_lock, and
 *           takes session->lock to handle a message.  lookup_lock for a
 *           question, held for the round trip.
 */
#include <fcntl.h>
#include <sys/socket.h>

#include "kernels/session/rpc.h"
#include "kernels/session/session.h"

#define HINTS_MAX 1024u /* queued messages at which hints are dropped */

struct kv_parcel {
	TAILQ_ENTRY(kv_parcel) others;
	struct kv_call *call; /* call that gets the reply; NULL: no reply */
	struct kv_packet packet;
	uint8_t items[];
};

/* Size of one item in a reply of each type; 0: the daemon sends no reply of
 * that type on the asynchronous connection. */
static const size_t reply_bytes[WIRE_TYPE_END] = {
	[WIRE_SPACE] = 1, /* bytes of the text after a wire_space */
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
	[WIRE_LIMIT] = 1,
	[WIRE_LIST] = 1,
	[WIRE_CHANGES] = 1,
	[WIRE_DROP] = sizeof(struct wire_status),
	[WIRE_FLUSH] = sizeof(struct wire_status),
	[WIRE_PREFETCH] = sizeof(struct wire_status),
};

/* Free a queued message that was sent or withdrawn. */
static void parcel_free_locked(struct kvfs_session *session,
			       struct kv_parcel *parcel)
{
	kv_assert_locked(&session->lock);
	TAILQ_REMOVE(&session->rpc.out, parcel, others);
	session->rpc.n_out--;
	if (parcel->call)
		parcel->call->parcel = NULL;
	kv_closep(&parcel->packet.fd);
	free(parcel);
}

/* Send @packet, or queue it if the socket is full or messages are queued. */
static int send_locked(struct kvfs_session *session,
		       const struct kv_packet *packet, struct kv_call *call)
{
	struct kv_parcel *parcel;
	int r = -EAGAIN;

	kv_assert_locked(&session->lock);
	if (session->link.fd < 0)
		return -ENOTCONN;
	if (TAILQ_EMPTY(&session->rpc.out))
		r = kv_link_send(session->link.fd, packet, MSG_DONTWAIT);
	if (r != -EAGAIN)
		return r < 0 ? -ENOTCONN : 0;
	parcel = malloc(sizeof(*parcel) + packet->bytes);
	if (!parcel)
		return -ENOMEM;
	parcel->packet = *packet;
	/* The caller may close its descriptor before the message is sent. */
	if (packet->fd >= 0)
		parcel->packet.fd = fcntl(packet->fd, F_DUPFD_CLOEXEC, 0);
	if (packet->fd >= 0 && parcel->packet.fd < 0) {
		free(parcel);
		return -EMFILE;
	}
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
	rpc->n_pending++;
	return 0;
}

/* Take a call out of the table of calls that wait for a reply. */
static void remove_call_locked(struct kv_rpc *rpc, struct kv_call *call)
{
	LIST_REMOVE(call, others);
	rpc->n_pending--;
}

bool kv_rpc_withdraw_locked(struct kvfs_session *session, struct kv_call *call)
{
	kv_assert_locked(&session->lock);
	if (!call->parcel)
		return false;
	parcel_free_locked(session, call->parcel);
	remove_call_locked(&session->rpc, call);
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
		/* A lost message would never be answered: have the receiving
		 * thread find the end of the connection. */
		if (r < 0)
			shutdown(session->link.fd, SHUT_RDWR);
		parcel_free_locked(session, parcel);
	}
	return 0;
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
			remove_call_locked(rpc, call);
			call->done(call, -ENOTCONN, NULL);
		}
}

static int take_reply_locked(struct kvfs_session *session,
			     const struct kv_packet *packet)
{
	const struct wire_header *header = &packet->header;
	const size_t head = header->type == WIRE_SPACE && header->status >= 0
				    ? sizeof(struct wire_space)
				    : 0;
	struct kv_rpc *rpc = &session->rpc;
	struct kv_call *call;

	kv_assert_locked(&session->lock);
	if (header->type >= WIRE_TYPE_END || reply_bytes[header->type] == 0 ||
	    packet->bytes != head + header->count * reply_bytes[header->type])
		return -EPROTO;
	LIST_FOREACH(call,
		     &rpc->pending[header->tag % KV_ARRAY_LEN(rpc->pending)],
		     others)
		if (call->tag == header->tag)
			break;
	if (!call)
		return -EPROTO;
	if (header->status == WIRE_MORE && call->part &&
	    header->count == call->count) {
		call->part(call, packet->items);
		return 0;
	}
	remove_call_locked(rpc, call);
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

int kv_rpc_receive(struct kvfs_session *session)
{
	struct kv_packet packet = {
		.items = session->received,
		.bytes = WIRE_MAX,
	};
	const struct wire_segment *segment = packet.items;
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
	else if (packet.header.count != 1 || packet.bytes != sizeof(*segment))
		r = -EPROTO;
	else if (packet.header.type == WIRE_RETIRE)
		kv_mapped_segment_retire_locked(session, segment->id);
	else if (packet.header.type == WIRE_SEGMENT)
		kv_mapped_segment_add_locked(session, segment, packet.fd,
					     packet.fd_lost);
	else
		r = -EPROTO;
	pthread_mutex_unlock(&session->lock);
	kv_closep(&packet.fd);
	session->broken = r < 0;
	return r < 0 ? r : 1;
}

/* ---- questions ---- */

#define QUIET_NS 1000000000u

/* Send @question on the look-up connection and receive the reply into @packet.
 * If necessary, first connect to the daemon of the asynchronous connection. */
static int try_locked(struct kvfs_session *session,
		      struct kv_question *question, struct kv_packet *packet)
{
	const uint64_t tag = ++session->lookup_tags;
	struct wire_hello theirs;
	char path[KV_SOCKET_PATH_MAX];
	uint64_t epoch;
	int r, fd;

	kv_assert_locked(&session->lookup_lock);
	pthread_mutex_lock(&session->lock);
	strcpy(path, session->socket_path);
	epoch = session->link.epoch;
	fd = session->link.fd;
	pthread_mutex_unlock(&session->lock);
	if (fd < 0)
		return -ENOTCONN;
	if (session->lookup.fd < 0 || session->lookup.epoch != epoch) {
		kv_closep(&session->lookup.fd);
		r = kv_link_open(path, &session->lookup, &theirs);
		if (r < 0)
			return r == -EAGAIN ? -ETIMEDOUT : kv_link_lost(r);
		if (session->lookup.epoch != epoch) {
			kv_closep(&session->lookup.fd);
			return -ENOTCONN;
		}
	}
	packet->header = question->header;
	packet->header.tag = tag;
	packet->items = (void *)question->items;
	packet->bytes = question->bytes;
	packet->fd = -1;
	r = kv_link_send(session->lookup.fd, packet, 0);
	if (r < 0)
		return r;
	packet->items = question->reply;
	packet->bytes = question->room;
	r = kv_link_receive(session->lookup.fd, packet, 0);
	if (r < 0)
		return r;
	kv_closep(&packet->fd);
	if (!(packet->header.flags & WIRE_REPLY) || packet->header.tag != tag ||
	    packet->header.type != question->header.type)
		return -EPROTO;
	return 0;
}

long kv_ask(struct kvfs_session *session, struct kv_question *question)
{
	struct kv_packet packet = {0};
	bool reused;
	int r = -ETIMEDOUT;

	if (atomic_load(&session->live) == 0)
		return atomic_load(&session->lost);
	pthread_mutex_lock(&session->lookup_lock);
	reused = session->lookup.fd >= 0;
	if (kv_now_ns() >= session->quiet_until) {
		r = try_locked(session, question, &packet);
		/* The daemon has closed the connection since the last question:
		 * connect again, once. */
		if (reused &&
		    (r == -ENOTCONN || r == -EPIPE || r == -ECONNRESET)) {
			kv_closep(&session->lookup.fd);
			r = try_locked(session, question, &packet);
		}
		if (r < 0)
			kv_closep(&session->lookup.fd);
		if (r == -EAGAIN || r == -ETIMEDOUT) {
			session->quiet_until = kv_now_ns() + QUIET_NS;
			r = -ETIMEDOUT;
		}
	}
	pthread_mutex_unlock(&session->lookup_lock);
	if (r < 0)
		return r == -ETIMEDOUT ? r : kv_link_lost(r);
	question->header = packet.header;
	/* The daemon cancels a question only when it is shutting down. */
	if (packet.header.status == -ECANCELED)
		return -ENOTCONN;
	return packet.header.status < 0 ? packet.header.status
					: (long)packet.bytes;
}

bool kv_ask_hangs(struct kvfs_session *session)
{
	struct kv_question nothing = {.header = {.type = WIRE_PROBE}};

	return kv_ask(session, &nothing) == -ETIMEDOUT;
}

/* ---- notices ---- */

void kv_notice_post_locked(struct kvfs_session *session,
			   struct kv_notice *notice, unsigned stage,
			   int64_t result)
{
	kv_assert_locked(&session->lock);
	if (notice->user == 0 || !(notice->stages & 1u << stage))
		return;
	if (notice->pending == 0)
		TAILQ_INSERT_TAIL(&session->notices, notice, others);
	notice->stages &= ~(1u << stage);
	notice->pending |= 1u << stage;
	notice->result[stage] = result;
}

void kv_notice_drop_locked(struct kvfs_session *session,
			   struct kv_notice *notice)
{
	kv_assert_locked(&session->lock);
	if (notice->pending != 0)
		TAILQ_REMOVE(&session->notices, notice, others);
	notice->pending = 0;
	notice->user = 0;
}

long kvfs_reap(kvfs_session *session, kvfs_event *ret_events, size_t n)
{
	struct kv_notice *notice;
	unsigned stage;
	size_t got = 0;
	int r = kv_session_check(session);

	if (r < 0)
		return r;
	if (n == 0)
		return 0;
	if (!ret_events)
		return -EINVAL;
	pthread_mutex_lock(&session->lock);
	if (session->link_unreaped)
		ret_events[got++] =
			(kvfs_event){.what = KVFS_EVENT_CONNECTION,
				     .result = kv_session_state_locked(session),
				     .generation = session->generations};
	session->link_unreaped = false;
	while (got < n && (notice = TAILQ_FIRST(&session->notices))) {
		/* SUBMITTED is reported before the other stages of a
		 * transfer. */
		stage = notice->pending & 1u << KVFS_SUBMITTED
				? KVFS_SUBMITTED
				: (unsigned)__builtin_ctz(notice->pending);
		ret_events[got++] =
			(kvfs_event){.what = notice->what,
				     .stage = stage,
				     .user = notice->user,
				     .result = notice->result[stage],
				     .n = notice->n,
				     .generation = session->generations};
		notice->pending &= ~(1u << stage);
		if (notice->pending == 0)
			TAILQ_REMOVE(&session->notices, notice, others);
	}
	if (TAILQ_EMPTY(&session->notices))
		kv_session_clear_news_locked(session);
	pthread_mutex_unlock(&session->lock);
	return (long)got;
}
