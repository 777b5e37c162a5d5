/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - a thread pool in which users take turns.
 *
 * It does what FUSE workers and the control thread must not wait for: reads
 * from SSD, changes that sync, copies of saves.
 */
#ifndef KV_FS_BASE_WORKERS_H
#define KV_FS_BASE_WORKERS_H

#include <sys/queue.h>

#include "cache/core/turns.h"
#include "common/copy.h"

struct kv_workers;
struct kv_work_queue;

/* In the owner's memory, which must leave it alone until @run is called. */
struct kv_work {
	/* @hash: the thread's own; NULL unless the pool was made with one. */
	void (*run)(struct kv_work *work, struct kv_hash *hash);
	/* workers.c's own */
	struct kv_workers *workers;
	struct kv_work_queue *queue; /* NULL: not queued */
	uint64_t cost;
	TAILQ_ENTRY(kv_work) link;
};

struct kv_workers_config {
	const char *name; /* of its threads, as ps -T shows it: 15 bytes */
	unsigned threads;
	unsigned each; /* for one user, at most; UINT_MAX: all */
	uint64_t turn; /* what a turn may cost */
	bool hashes;   /* each thread has a hash state */
	bool timed;    /* a nanosecond costs 1, if that is more than the cost */
	unsigned guests; /* callers of kv_work_run at a time, at most */
};

/* @config stays the caller's until the pool is freed.  -ENOMEM, -EAGAIN. */
int kv_workers_new(const struct kv_workers_config *config,
		   struct kv_workers **ret_workers);
/* Runs what was submitted before it returns.  Takes NULL. */
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
/* True: @work had not begun, and never will. */
bool kv_work_withdraw(struct kv_work *work);

#endif
