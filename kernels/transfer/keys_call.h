/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys_call.h - an asynchronous request about any number of keys: one message
 * for each WIRE_BATCH of them, which can be cancelled, and given up when the
 * daemon is silent.
 *
 * All calls with session->lock held, but where the comment says otherwise.
 */
#ifndef KV_KERNELS_TRANSFER_KEYS_CALL_H
#define KV_KERNELS_TRANSFER_KEYS_CALL_H

#include "kernels/kvfs.h"
#include "kernels/session/rpc.h"
#include "kernels/session/session.h"

enum kv_keys_state {
	KV_KEYS_OVER,	  /* settled, and no answer is to come */
	KV_KEYS_ASKED,	  /* neither */
	KV_KEYS_ABANDONED /* settled without the daemon; it may still answer */
};

/* One message, about the keys @first .. + @n of the request. */
struct kv_keys_call {
	struct kv_call call; /* first */
	struct kv_keys *keys;
	struct kvfs_space *space; /* held; NULL: the request's owner holds it */
	size_t first, n;
	enum kv_keys_state state;
	bool held; /* a lease: the daemon holds blocks under the call's tag */
};

/* The part of a request's owner. */
struct kv_keys_ops {
	/* The keys of @call have an outcome: @status < 0 for all, or that of
	 * each in the reply's @items.  Once for each call. */
	void (*settle_locked)(struct kv_keys_call *call, int status,
			      const void *items);
	/* The daemon has answered an ABANDONED call.  NULL: nothing to do. */
	void (*late_locked)(struct kv_keys_call *call, int status,
			    const void *items);
	/* A reference to the owner for each call that is not OVER. */
	void (*get_locked)(struct kv_keys *keys);
	void (*put_locked)(struct kv_keys *keys);
};

/* Part of the owner; zeroed memory is a request without calls. */
struct kv_keys {
	struct kvfs_session *session;
	const struct kv_keys_ops *ops;
	uint64_t generation; /* of the connection; 0: nothing was asked yet */
	size_t n;
	struct kv_keys_call *calls;
	int cancelled;	       /* 0, or the status that ends the request */
	struct kv_timer timer; /* gives the request up */
};

/* Make room for @n calls.  -ENOMEM.  No lock needed. */
int kv_keys_init(struct kv_keys *keys, struct kvfs_session *session,
		 const struct kv_keys_ops *ops, size_t n);
/* Free what the calls have: none is ASKED or ABANDONED. */
void kv_keys_fini_locked(struct kv_keys *keys);

/* How many calls kv_keys_ask_queries makes.  No lock needed. */
size_t kv_keys_count(const kvfs_query *queries, size_t n_queries);
/* Ask about all keys of @queries with messages like @like.  No lock held. */
void kv_keys_ask_queries(struct kv_keys *keys, const kvfs_query *queries,
			 size_t n_queries, const struct wire_header *like);
/* Send @call about the @n @items, or settle it at once with @status, if that is
 * negative, or the request is cancelled. */
void kv_keys_ask_locked(struct kv_keys_call *call,
			const struct wire_header *like, struct wire_key *items,
			size_t n, int status);

/* Give the request up @grace after @deadline nanoseconds from now, unless all
 * is settled by then: the daemon keeps deadlines, and answers, by itself. */
void kv_keys_deadline_locked(struct kv_keys *keys, uint64_t deadline);
/* Settle calls that were not sent with @status, and cancel the others: what the
 * daemon does not confirm soon is given up.  Only the first cancel counts. */
void kv_keys_cancel_locked(struct kv_keys *keys, int status);

#endif
