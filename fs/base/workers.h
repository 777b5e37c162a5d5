/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - a thread pool in which users take turns, and requests that wait.
 *
 * Pools do work that FUSE threads and the control thread must not wait for: reads from
 * SSD, changes that sync, copies of saves.
 */
#ifndef KV_FS_BASE_WORKERS_H
#define KV_FS_BASE_WORKERS_H

#include <sys/queue.h>

#include "cache/cache.h"
#include "cache/core/account.h"
#include "cache/core/turns.h"
#include "common/copy.h"

struct kv_workers;
struct kv_work_queue;

/* Work for a pool, in its owner's memory, which belongs to the pool until
 * @run. */
struct kv_work {
	/* @hash: the thread's hash state; NULL if config->hashes is not set. */
	void (*run)(struct kv_work *work, struct kv_hash *hash);
	/* Only workers.c uses the following fields: */
	struct kv_workers *workers;
	struct kv_work_queue *queue; /* queue of its user; NULL: not queued */
	uint64_t cost;
	TAILQ_ENTRY(kv_work) link;
};

struct kv_workers_config {
	const char *name; /* name of the threads in ps -T: at most 15 bytes */
	unsigned threads;
	/* most work items of a user that run at once; UINT_MAX: no limit */
	unsigned each;
	uint64_t turn; /* largest sum of costs in a user's turn */
	bool hashes;   /* each thread has a hash state, for kv_work.run */
	/* charge the run time of work (ns), if that is more than its cost */
	bool timed;
	unsigned guests; /* most threads in kv_work_run at a time */
};

/* Make a pool.  @config must outlive the pool.  Returns 0, -ENOMEM or -EAGAIN. */
int kv_workers_new(const struct kv_workers_config *config,
		   struct kv_workers **ret_workers);
/* Run all submitted work, then free the pool.  Takes NULL. */
void kv_workers_free(struct kv_workers *workers);

/* Run @work on a thread of the pool when it is the user's turn; work of one user
 * begins in order. */
void kv_work_submit(struct kv_workers *workers, struct kv_work *work,
		    uint32_t uid, uint64_t cost);
/*
 * Run @work on the calling thread, without a hash state.  Returns false if the work was
 * not run, because other work of the user waits, config->each work items of the user are
 * being run, or config->guests threads are in this function.
 */
bool kv_work_run(struct kv_workers *workers, struct kv_work *work,
		 uint32_t uid);

/* ---- requests that wait: for a thread of a pool, or for the cache ---- */

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
