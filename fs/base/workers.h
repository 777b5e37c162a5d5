/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - a thread pool in which users take turns.
 *
 * Pools do work that FUSE threads and the control thread must not wait for: reads from
 * SSD, changes that sync, copies of saves.
 */
#ifndef KV_FS_BASE_WORKERS_H
#define KV_FS_BASE_WORKERS_H

#include <sys/queue.h>

#include "cache/core/turns.h"
#include "common/copy.h"

struct kv_workers;
struct kv_work_queue;

/* Work for a pool, embedded in its owner, which must not touch it until @run is
 * called. */
struct kv_work {
	/* @hash: the hash state of the thread, or NULL if config->hashes is not
	 * set. */
	void (*run)(struct kv_work *work, struct kv_hash *hash);
	/* Only workers.c uses the following fields: */
	struct kv_workers *workers;
	struct kv_work_queue *queue; /* NULL: not queued */
	uint64_t cost;
	TAILQ_ENTRY(kv_work) link;
};

struct kv_workers_config {
	const char *name; /* name of the threads in ps -T: at most 15 bytes */
	unsigned threads;
	/* most works of one user run at a time; UINT_MAX: no limit */
	unsigned each;
	uint64_t turn; /* largest cost of a turn */
	bool hashes;   /* each thread has a hash state */
	/* charge the time in nanoseconds if that exceeds the cost */
	bool timed;
	unsigned guests; /* most calls of kv_work_run at a time */
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
 * not run, because other work of the user waits, or config->each works of the user or
 * config->guests calls are being run.
 */
bool kv_work_run(struct kv_workers *workers, struct kv_work *work,
		 uint32_t uid);
/* Return true if @work had not begun; then it is never run. */
bool kv_work_withdraw(struct kv_work *work);

#endif
