/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - threads that do what workers of FUSE must not wait for.
 *
 * A job is a parked request.  Users with jobs take turns, and none has more
 * than some of the threads at once.
 */
#ifndef KV_FS_MOUNT_WORKERS_H
#define KV_FS_MOUNT_WORKERS_H

#include "fs/mount/parked.h"

struct kv_workers;
struct kv_job_queue;

struct kv_job {
	struct kv_parked parked; /* first */
	/* workers.c's own */
	struct kv_workers *workers;
	struct kv_job_queue *queue;
	uint64_t cost;
	TAILQ_ENTRY(kv_job) link;
};

struct kv_work {
	const char *name; /* of its threads, as ps -T shows it: 15 bytes */
	unsigned threads, each; /* how many; for one user, at most, or all */
	uint64_t turn;		/* what a turn may cost */
	/* Do it: claim the request, answer it, put it.  By a thread. */
	void (*run)(struct kv_job *job);
};

/* @work stays the caller's, and until the workers are free.  -ENOMEM,
 * -EAGAIN. */
int kv_workers_new(const struct kv_work *work, struct kv_workers **ret_workers);
/* What was submitted has been called off, or is run before it returns.  Takes
 * NULL. */
void kv_workers_free(struct kv_workers *workers);

/* Run @job when it is @uid's turn; the caller arms it then. */
void kv_job_submit(struct kv_workers *workers, struct kv_job *job, uint32_t uid,
		   uint64_t cost);
/* A kv_parked_kind's cancel, of a job: it is answered at once, unless it was
 * claimed, and not run, unless a thread has it. */
void kv_job_cancel(struct kv_parked *parked, int status);

#endif
