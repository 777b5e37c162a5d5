/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc.h - requests on the asynchronous connection, questions on the look-up
 * connection, and notices for kvfs_reap.
 */
#ifndef KV_KERNELS_SESSION_RPC_H
#define KV_KERNELS_SESSION_RPC_H

#include <sys/queue.h>

#include "kernels/session/link.h"
#include "common/kv.h"
#include "common/wire.h"
#include "kernels/kvfs.h"

struct kvfs_session;
struct kv_parcel; /* a message that waits for room in the socket */

/* Embedded in its owner; lives until @done has run, or it is withdrawn. */
struct kv_call {
	LIST_ENTRY(kv_call) others;
	struct kv_parcel *parcel; /* the message while it is queued; or NULL */
	uint64_t tag;		  /* never 0 once submitted */
	uint32_t count;		  /* items in a successful reply */
	bool at_most;		  /* or fewer: done finds the number in count */
	/*
	 * Runs exactly once, session->lock held.  @status < 0: why there is no
	 * answer (-ENOTCONN: the connection broke); else @items are the
	 * reply's, valid during the call.  May free the call.
	 */
	void (*done)(struct kv_call *call, int status, const void *items);
};

struct kv_rpc {
	LIST_HEAD(, kv_call) pending[256]; /* by tag */
	TAILQ_HEAD(, kv_parcel) out;
	size_t n_out;
	uint64_t tags;
};

/*
 * Send packet (its tag is filled in here) and run call->done on its reply.
 * Never blocks.  -ENOTCONN or -ENOMEM: not sent, @done will not run.
 */
int kv_rpc_submit_locked(struct kvfs_session *session, struct kv_call *call,
			 struct kv_packet *packet);

/* Take @call back if its message has not been sent: @done will not run. */
bool kv_rpc_withdraw_locked(struct kvfs_session *session, struct kv_call *call);

/* Return whether hints may be sent: not while a thousand messages are queued for
 * a daemon that hangs. */
bool kv_rpc_takes_hints_locked(const struct kvfs_session *session);

/* Send a message that has no reply; best effort. */
void kv_rpc_post_locked(struct kvfs_session *session, struct kv_packet *packet);

/* Send a message that consists of a type and a tag. */
void kv_rpc_post_tag_locked(struct kvfs_session *session, enum wire_type type,
			    uint64_t tag);

/* Send queued messages.  Return 1 if some are still queued. */
int kv_rpc_push_locked(struct kvfs_session *session);

/* End every request with -ENOTCONN: the connection has ended. */
void kv_rpc_break_locked(struct kvfs_session *session);

/*
 * Receive and handle one message.  The caller holds receive_lock.
 * 1: handled
 * 0: there is none
 * -errno: the connection must be closed
 */
int kv_rpc_receive(struct kvfs_session *session);

/* ---- questions ---- */

/*
 * Send @question and wait at most a second for the reply.  Return the bytes of
 * the reply's items, or its status if that is an error; @header becomes the
 * reply's.
 * -ENOTCONN: no daemon
 * -EMFILE, -ENFILE, -ENOMEM: no means to connect to the daemon
 * -ETIMEDOUT: no reply; for the next second questions fail at once
 */
struct kv_question {
	struct wire_header header;
	const void *items;
	size_t bytes;
	void *reply;
	size_t room;
};
long kv_ask(struct kvfs_session *session, struct kv_question *question);

/* Return whether the daemon does not answer.  Takes two seconds at most, and 20
 * microseconds if it answers. */
bool kv_ask_hangs(struct kvfs_session *session);
/* How often a wait for the daemon checks that. */
#define KV_LOOK_NS 250000000u

/* ---- notices ---- */

/* An event for kvfs_reap, embedded in a lease or a transfer; zeroed, it was not
 * asked for. */
struct kv_notice {
	TAILQ_ENTRY(kv_notice) others; /* in session->notices, if pending */
	uint64_t user;	  /* the caller's value; 0: not asked for */
	uint32_t what;	  /* enum kvfs_event_what */
	unsigned stages;  /* bits of stages still to come */
	unsigned pending; /* bits of stages to be reaped */
	uint64_t n;
	int64_t result[KVFS_SUBMITTED + 1];
};
TAILQ_HEAD(kv_notices, kv_notice);

#define KV_NOTICE_ALL \
	(1u << KVFS_COPIED | 1u << KVFS_SEALED | 1u << KVFS_DURABLE)

/* @result blocks have reached @stage (a lease: 0), and no more will. */
void kv_notice_post_locked(struct kvfs_session *session,
			   struct kv_notice *notice, unsigned stage,
			   int64_t result);

/* Drop pending stages: the owner can be freed. */
void kv_notice_drop_locked(struct kvfs_session *session,
			   struct kv_notice *notice);

#endif
