/* SPDX-License-Identifier: Apache-2.0 */
/* wait.h - requests that wait for a thread of a pool, or for the cache. */
#ifndef KV_FS_BASE_WAIT_H
#define KV_FS_BASE_WAIT_H

#include "cache/cache.h"
#include "cache/core/account.h"
#include "cache/core/workers.h"

struct kv_wait;

struct kv_wait_kind {
	/* Do the work on a thread of a pool.  Returns the status, or 1 to be called
	 * again in the user's next turn.  NULL: the cache does the work. */
	int (*run)(struct kv_wait *wait);
	/* Make the work end soon with @status, unless it has ended.  NULL: the work
	 * cannot be cancelled. */
	void (*cancel)(struct kv_wait *wait, int status);
	/* Release all holds but those on account and space; NULL: none. */
	void (*fini)(struct kv_wait *wait);
};

/* A waiting request, of the mount or the control socket, begins with this. */
struct kv_wait {
	struct kv_work work; /* first */
	const struct kv_wait_kind *kind;
	/* Called by any thread when the work has ended, with wait->status. */
	void (*done)(struct kv_wait *wait);
	struct kv_account *account; /* held account; charged with @bytes */
	struct kv_space *space;	    /* held; NULL: no space */
	size_t bytes;
	int status;
	uint64_t cost; /* cost of one call of kind->run, in a user's turn */
};

/* Make a zeroed request of @bytes that begins with a kv_wait.  NULL as @account means that
 * memory is short.  Returns 0, -ENOMEM, or -ENOLCK beyond the user's share of memory. */
int kv_wait_new(struct kv_account *account, const struct kv_wait_kind *kind,
		void (*done)(struct kv_wait *wait), size_t bytes,
		void *ret_wait);
void kv_wait_free(struct kv_wait *wait);
/* Have a thread of @workers do the work. */
void kv_wait_run(struct kv_wait *wait, struct kv_workers *workers,
		 uint64_t cost);
void kv_wait_end(struct kv_wait *wait, int status); /* call wait->done */
/* Cancel the work if it can be cancelled. */
void kv_wait_cancel(struct kv_wait *wait, int status);
/* A kind->cancel for the work of a pool: end the work with @status unless a
 * thread has begun it. */
void kv_wait_withdraw(struct kv_wait *wait, int status);

#endif
