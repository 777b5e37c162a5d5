/* SPDX-License-Identifier: Apache-2.0 */
/*
 * asked.h - what a helper was asked for and has not answered, each with its place
 * in the landing memory.
 */
#ifndef KV_CACHE_REMOTE_ASKED_H
#define KV_CACHE_REMOTE_ASKED_H

#include "cache/remote/helper.h"
#include "cache/remote/landing.h"

struct kv_errand {
	struct kv_remote_op *op; /* NULL: cancelled */
	uint64_t id;
	enum kv_remote_call call;
	struct kv_place place; /* of a note and so many bytes */
	uint64_t bytes;
	uint64_t since_ns;
	bool busy, tell; /* its owner's; tell: that it was cancelled */
	TAILQ_ENTRY(kv_errand) link;
};
TAILQ_HEAD(kv_errands, kv_errand);

/* A part of its owner. */
struct kv_asked {
	struct kv_landing landing;
	struct kv_errands asked, unused; /* asked: the oldest first */
	uint64_t next_id;
	bool clears; /* who is asked knows KV_REMOTE_CLEAR */
	struct kv_errand all[KV_HELPER_REQUESTS];
};

/* Without memory: kv_landing_make. */
void kv_asked_init(struct kv_asked *asked);

/*
 * A request for @op, with room for its bytes, where all memory is @landing bytes.
 * -EAGAIN: there is no room now; -EFBIG: never; -EOPNOTSUPP: it does not do that.
 */
int kv_asked_add(struct kv_asked *asked, struct kv_remote_op *op,
		 uint64_t landing, struct kv_errand **ret_request);
/* The one with that id; NULL. */
struct kv_errand *kv_asked_find(struct kv_asked *asked, uint64_t id);
/* It was answered, or never will be. */
void kv_asked_forget(struct kv_asked *asked, struct kv_errand *request);

/* What is put, and what stands beside it, goes there. */
void kv_asked_fill(const struct kv_asked *asked,
		   const struct kv_errand *request);
/*
 * What came goes to the operation.  Its status, 0 or -errno, after all that the
 * answer says was looked at: -EBADMSG, -EFBIG, or the answer's own.
 */
int kv_asked_land(const struct kv_asked *asked, const struct kv_errand *request,
		  const struct kv_helper_answer *answer);

#endif
