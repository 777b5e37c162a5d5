/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc.h - requests under way on the session's asynchronous connection.
 */
#ifndef KV_KERNELS_SESSION_RPC_H
#define KV_KERNELS_SESSION_RPC_H

#include <sys/queue.h>

#include "kernels/session/link.h"
#include "common/kv.h"

struct kvfs_session;
struct kv_parcel; /* a message that waits for room in the socket */

/* Part of whatever asks; lives until @done has run, or it is withdrawn. */
struct kv_call {
	LIST_ENTRY(kv_call) others;
	struct kv_parcel *parcel; /* its message, until that is sent; or NULL */
	uint64_t tag;		  /* never 0 once submitted */
	uint32_t count;		  /* items that a reply without an error has */
	bool at_most;		  /* or fewer: when done runs, how many */
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

void kv_rpc_init(struct kv_rpc *rpc);

/*
 * Send packet (its tag is filled in here) and run call->done on its reply.
 * Never blocks.  -ENOTCONN or -ENOMEM: not sent, @done will not run.
 */
int kv_rpc_submit_locked(struct kvfs_session *session, struct kv_call *call,
			 struct kv_packet *packet);

/* Take @call back if its message has not been sent: @done will not run. */
bool kv_rpc_withdraw_locked(struct kvfs_session *session, struct kv_call *call);

/* Whether a hint can be sent: none is where a thousand messages wait for a
 * daemon that hangs. */
bool kv_rpc_takes_hints_locked(const struct kvfs_session *session);

/* Send a message that has no reply; best effort. */
void kv_rpc_post_locked(struct kvfs_session *session, struct kv_packet *packet);

/* The same for the messages that consist of a type and a tag. */
void kv_rpc_post_tag_locked(struct kvfs_session *session, enum wire_type type,
			    uint64_t tag);

/* Send what waits; 1 if something still does. */
int kv_rpc_push_locked(struct kvfs_session *session);

/* The connection is gone: every request ends with -ENOTCONN. */
void kv_rpc_break_locked(struct kvfs_session *session);

/*
 * Take one message off the socket and do what it says.  1 done, 0 there is
 * none, -errno the connection must be closed.  Caller holds receive_lock.
 */
int kv_rpc_receive(struct kvfs_session *session);

#endif
