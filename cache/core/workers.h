/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - a thread pool in which users take turns.
 *
 * Pools do work that FUSE threads and the control thread must not wait for: reads from
 * SSD and their check, changes that sync, copies of saves.
 */
#ifndef KV_CACHE_CORE_WORKERS_H
#define KV_CACHE_CORE_WORKERS_H

#include <sys/queue.h>

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
/* Take submitted @work back.  Returns false if a thread has begun it. */
bool kv_work_withdraw(struct kv_work *work);

#endif
