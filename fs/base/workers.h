/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - a thread pool in which users take turns, and requests that wait.
 *
 * The pools do what FUSE workers and the control thread must not wait for: reads
 * from SSD, changes that sync, copies of saves.
 */
#ifndef KV_FS_BASE_WORKERS_H
#define KV_FS_BASE_WORKERS_H

#include <sys/queue.h>

#include "cache/core/account.h"
#include "cache/core/turns.h"
#include "common/copy.h"

struct kv_workers;
struct kv_work_queue;

/* Embedded in its owner, which leaves it alone until @run is called. */
struct kv_work {
	/* @hash: the thread's own; NULL unless the pool was made with one. */
	void (*run)(struct kv_work *work, struct kv_hash *hash);
	/* only workers.c uses these: */
	struct kv_workers *workers;
	struct kv_work_queue *queue; /* NULL: not queued */
	uint64_t cost;
	TAILQ_ENTRY(kv_work) link;
};

struct kv_workers_config {
	const char *name; /* of its threads, as ps -T shows it: 15 bytes */
	unsigned threads;
	unsigned each;	 /* for one user, at most; UINT_MAX: all */
	uint64_t turn;	 /* cost of a turn, at most */
	bool hashes;	 /* each thread has a hash state */
	bool timed;	 /* charge nanoseconds if they exceed the cost */
	unsigned guests; /* callers of kv_work_run at a time, at most */
};

/* @config must outlive the pool.  -ENOMEM, -EAGAIN. */
int kv_workers_new(const struct kv_workers_config *config,
		   struct kv_workers **ret_workers);
/* Run all submitted work, then free.  Takes NULL. */
void kv_workers_free(struct kv_workers *workers);

/* Run @work when it is @uid's turn; work of one user begins in order. */
void kv_work_submit(struct kv_workers *workers, struct kv_work *work,
		    uint32_t uid, uint64_t cost);
/*
 * Run @work on the calling thread, without a hash state.  False: it was not
 * run, because other work of @uid waits, or config->each of it is being run, or
 * there are config->guests callers.
 */
bool kv_work_run(struct kv_workers *workers, struct kv_work *work,
		 uint32_t uid);
/* Return true if @work had not begun: it will not be run. */
bool kv_work_withdraw(struct kv_work *work);

/* ---- requests that wait ---- */

struct kv_wait;

struct kv_wait_kind {
	/* Make the request end soon with @status, unless it has ended. */
	void (*cancel)(struct kv_wait *wait, int status);
	/* Give back what the request holds, before it is freed; or NULL. */
	void (*drop)(struct kv_wait *wait);
};

/* A request of a user that waits, of the mount or of the control socket; first in
 * its owner's structure. */
struct kv_wait {
	struct kv_work work; /* for requests that a pool runs */
	const struct kv_wait_kind *kind;
	struct kv_account *account; /* held; charged with @bytes */
	size_t bytes;
};

/*
 * Allocate a request of @bytes, zeroed, which begins with a kv_wait and is charged
 * to @account; the request takes over the caller's hold on the account, also on
 * an error.  @account may be NULL: -ENOMEM.  -ENOMEM, -ENOLCK beyond the user's
 * share.
 */
int kv_wait_new(struct kv_account *account, const struct kv_wait_kind *kind,
		size_t bytes, void *ret_wait);
void kv_wait_free(struct kv_wait *wait);

#endif
