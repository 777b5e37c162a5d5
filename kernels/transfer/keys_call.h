/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys_call.h - an asynchronous request about any number of keys, with one
 * message for each WIRE_BATCH keys.  A request can be cancelled, and is given
 * up when the daemon does not answer.
 *
 * All functions are called with session->lock held, unless their comment says
 * otherwise.
 */
#ifndef KV_KERNELS_TRANSFER_KEYS_CALL_H
#define KV_KERNELS_TRANSFER_KEYS_CALL_H

#include "kernels/kvfs.h"
#include "kernels/session/rpc.h"
#include "kernels/session/session.h"

enum kv_keys_state {
	KV_KEYS_OVER,  /* call is settled, and no answer will come */
	KV_KEYS_ASKED, /* message was sent to the daemon, call is not settled */
	/* call was settled without the daemon, which may still answer */
	KV_KEYS_ABANDONED
};

/* One message of a request, about its keys @first .. + @n. */
struct kv_keys_call {
	struct kv_call call; /* first */
	struct kv_keys *keys;
	struct kvfs_space *space; /* held; NULL: the owner holds it */
	size_t first, n;
	enum kv_keys_state state;
	bool held; /* the daemon holds blocks under call.tag */
};

/* Operations of the struct that embeds a request, such as a lease. */
struct kv_keys_ops {
	/* Set the outcome of the call's keys: @status if that is negative, else
	 * one status for each key in @items.  Called once for each call. */
	void (*settle_locked)(struct kv_keys_call *call, int status,
			      const void *items);
	/* Handle the daemon's late answer to an ABANDONED call; may be NULL. */
	void (*late_locked)(struct kv_keys_call *call, int status,
			    const void *items);
	/* Take and drop a reference to the owner; each call that is not OVER
	 * has one. */
	void (*get_locked)(struct kv_keys *keys);
	void (*put_locked)(struct kv_keys *keys);
};

/* A request, embedded in its owner.  Zeroed memory is a request without
 * calls. */
struct kv_keys {
	struct kvfs_session *session;
	const struct kv_keys_ops *ops;
	uint64_t generation; /* connection of all calls; 0: no call was sent */
	size_t n;
	struct kv_keys_call *calls;
	int cancelled; /* status given by the first cancel; 0: not cancelled */
	struct kv_timer timer; /* fires when the request must be given up */
};

/* Allocate @n calls.  No lock needed.  -ENOMEM. */
int kv_keys_init(struct kv_keys *keys, struct kvfs_session *session,
		 const struct kv_keys_ops *ops, size_t n);
/* Free the calls, none of which is ASKED or ABANDONED. */
void kv_keys_fini_locked(struct kv_keys *keys);

/* Return the number of calls that kv_keys_ask_queries makes.  No lock
 * needed. */
size_t kv_keys_count(const kvfs_query *queries, size_t n_queries);
/* Send messages like @like about all keys of @queries.  The caller holds no
 * lock. */
void kv_keys_ask_queries(struct kv_keys *keys, const kvfs_query *queries,
			 size_t n_queries, const struct wire_header *like);
/* Send @call about the @n @items.  If @status is negative, or the request was
 * cancelled, settle the call at once instead. */
void kv_keys_ask_locked(struct kv_keys_call *call,
			const struct wire_header *like, struct wire_key *items,
			size_t n, int status);

/* Give the request up if it is not settled @deadline nanoseconds and a grace
 * period from now.  The grace period is there because the daemon also keeps the
 * deadline, and answers. */
void kv_keys_deadline_locked(struct kv_keys *keys, uint64_t deadline);
/* Cancel the request: settle calls that were not sent with @status, and ask the
 * daemon to cancel the others.  Calls that the daemon does not confirm soon are
 * given up.  Later cancels do nothing. */
void kv_keys_cancel_locked(struct kv_keys *keys, int status);

#endif
