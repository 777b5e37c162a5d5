/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask.c - one question and its answer, on the look-up connection.
 *
 * OWNS      session->lookup.
 *
 * INVARIANTS
 *   (1) At most one question is under way, and its reply is the next message:
 *       after a time-out or any other failure the connection is closed, so
 *       that a late reply cannot be taken for the next one's.
 *   (2) It is connected to the same daemon as the asynchronous connection is.
 *
 * LOCKING   lookup_lock, held for the round trip: that is what it is for.
 */
#include "kernels/session/ask.h"
#include "kernels/session/session.h"

#define QUIET_NS 1000000000u

/* The daemon that the other connection has found is the one to ask. */
static int connect_locked(struct kvfs_session *session)
{
	struct kv_link_versions theirs;
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
	if (session->lookup.fd >= 0 && session->lookup.epoch == epoch)
		return 0;
	kv_link_close(&session->lookup);
	r = kv_link_open(path, &session->lookup, &theirs);
	if (r < 0)
		return r == -EAGAIN ? -ETIMEDOUT : kv_link_lost(r);
	if (session->lookup.epoch == epoch)
		return 0;
	kv_link_close(&session->lookup);
	return -ENOTCONN;
}

static int round_trip_locked(struct kvfs_session *session,
			     struct kv_question *question,
			     struct kv_packet *packet)
{
	uint64_t tag = ++session->lookup_tags;
	int r;

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

static int try_locked(struct kvfs_session *session,
		      struct kv_question *question, struct kv_packet *packet)
{
	int r = connect_locked(session);

	return r < 0 ? r : round_trip_locked(session, question, packet);
}

/* A connection that was closed while nobody asked is no reason for a miss. */
static long ask_locked(struct kvfs_session *session,
		       struct kv_question *question)
{
	struct kv_packet packet;
	bool reused = session->lookup.fd >= 0;
	int r;

	if (kv_now_ns() < session->quiet_until)
		return -ETIMEDOUT;
	r = try_locked(session, question, &packet);
	if (reused && (r == -ENOTCONN || r == -EPIPE || r == -ECONNRESET)) {
		kv_link_close(&session->lookup);
		r = try_locked(session, question, &packet);
	}
	if (r < 0) {
		kv_link_close(&session->lookup);
		if (r == -EAGAIN || r == -ETIMEDOUT) {
			session->quiet_until = kv_now_ns() + QUIET_NS;
			return -ETIMEDOUT;
		}
		return kv_link_lost(r);
	}
	question->header = packet.header;
	/* Nobody cancels questions: the daemon is ending. */
	if (packet.header.status == -ECANCELED)
		return -ENOTCONN;
	return packet.header.status < 0 ? packet.header.status
					: (long)packet.bytes;
}

long kv_ask(struct kvfs_session *session, struct kv_question *question)
{
	long n;

	if (atomic_load(&session->live) == 0)
		return atomic_load(&session->lost);
	pthread_mutex_lock(&session->lookup_lock);
	n = ask_locked(session, question);
	pthread_mutex_unlock(&session->lookup_lock);
	return n;
}

bool kv_ask_hangs(struct kvfs_session *session)
{
	struct kv_question nothing = {.header = {.type = WIRE_PROBE}};

	return kv_ask(session, &nothing) == -ETIMEDOUT;
}
