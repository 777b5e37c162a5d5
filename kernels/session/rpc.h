/* SPDX-License-Identifier: Apache-2.0 */
/* rpc.h - requests on the asynchronous connection, questions on the look-up
 * connection, and notices, which become events of kvfs_reap. */
#ifndef KV_KERNELS_SESSION_RPC_H
#define KV_KERNELS_SESSION_RPC_H

#include <sys/queue.h>

#include "kernels/session/link.h"
#include "common/kv.h"
#include "common/wire.h"
#include "kernels/kvfs.h"

struct kvfs_session;
struct kv_parcel; /* a message that waits for room in the socket */

/* A request without its reply.  Embedded in its owner, which must keep it until
 * @done has run or the request was withdrawn. */
struct kv_call {
	LIST_ENTRY(kv_call) others;
	struct kv_parcel *parcel; /* the queued message; NULL: it was sent */
	uint64_t tag;		  /* of the message; never 0 once submitted */
	/* Number of items that a successful reply must have; during @done, the
	 * number of items that the reply has. */
	uint32_t count;
	bool at_most; /* a successful reply may also have fewer items */
	/* Called exactly once, with session->lock held; may free the call.
	 * @status < 0: the error (-ENOTCONN: the connection broke).  Otherwise
	 * @items are the items of the reply, valid during the call. */
	void (*done)(struct kv_call *call, int status, const void *items);
};

struct kv_rpc {
	LIST_HEAD(, kv_call) pending[256]; /* by tag */
	size_t n_pending;
	TAILQ_HEAD(, kv_parcel) out;
	size_t n_out;
	uint64_t tags;
};

/* Send @packet with a new tag; call->done is called with the reply.  Never
 * blocks.
 * -ENOTCONN, -ENOMEM: nothing was sent, and call->done will not be called */
int kv_rpc_submit_locked(struct kvfs_session *session, struct kv_call *call,
			 struct kv_packet *packet);

/* Withdraw a request whose message is still queued, so that call->done is not
 * called.  Return false if the message was sent. */
bool kv_rpc_withdraw_locked(struct kvfs_session *session, struct kv_call *call);

/* Return whether hints may be sent: no more than a thousand messages are
 * queued, which only happens if the daemon hangs. */
bool kv_rpc_takes_hints_locked(const struct kvfs_session *session);

/* Send a message that has no reply, if possible: errors are ignored. */
void kv_rpc_post_locked(struct kvfs_session *session, struct kv_packet *packet);

/* Send a message that consists of a type and a tag. */
void kv_rpc_post_tag_locked(struct kvfs_session *session, enum wire_type type,
			    uint64_t tag);

/* Send queued messages until the socket is full.  Return 1 if some remain
 * queued. */
int kv_rpc_push_locked(struct kvfs_session *session);

/* End every pending request with -ENOTCONN, after the connection has ended. */
void kv_rpc_break_locked(struct kvfs_session *session);

/* Receive and handle one message.  The caller holds receive_lock.
 * 1: a message was handled
 * 0: there is no message
 * -errno: the connection must be closed */
int kv_rpc_receive(struct kvfs_session *session);

/* ---- questions ---- */

/*
 * Send @question on the look-up connection, and wait at most one second for the
 * reply.  Return the number of bytes in the reply's items, or the reply's
 * status if that is negative.  question->header becomes the header of the
 * reply.
 * -ENOTCONN: no daemon is connected
 * -EMFILE, -ENFILE, -ENOMEM: the process cannot open a connection
 * -ETIMEDOUT: no reply; for one second from now on all questions fail at once
 */
struct kv_question {
	struct wire_header header;
	const void *items;
	size_t bytes;
	void *reply;
	size_t room;
};
long kv_ask(struct kvfs_session *session, struct kv_question *question);

/* Return whether the connected daemon hangs, by sending it an empty look-up.
 * Takes 20 microseconds if the daemon answers, else at most two seconds. */
bool kv_ask_hangs(struct kvfs_session *session);
#define KV_LOOK_NS 250000000u /* period at which waiting threads check that */

/* ---- notices ---- */

/* An event for kvfs_reap, embedded in a lease or transfer.  A zeroed notice is
 * never reported. */
struct kv_notice {
	/* in session->notices while @pending is not 0 */
	TAILQ_ENTRY(kv_notice) others;
	uint64_t user;	  /* kvfs_opts.user; 0: report nothing */
	uint32_t what;	  /* enum kvfs_event_what */
	unsigned stages;  /* bit set of stages that are not posted yet */
	unsigned pending; /* bit set of stages that kvfs_reap has to report */
	uint64_t n;
	int64_t result[KVFS_SUBMITTED + 1];
};
TAILQ_HEAD(kv_notices, kv_notice);

#define KV_NOTICE_ALL \
	(1u << KVFS_COPIED | 1u << KVFS_SEALED | 1u << KVFS_DURABLE)

/* Report that @result blocks have reached @stage (0 for a lease), and that no
 * more will. */
void kv_notice_post_locked(struct kvfs_session *session,
			   struct kv_notice *notice, unsigned stage,
			   int64_t result);

/* Forget stages that were not reaped yet, so that the notice's owner can be
 * freed. */
void kv_notice_drop_locked(struct kvfs_session *session,
			   struct kv_notice *notice);

#endif
