/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ingest.h - threads for what must not hold up the control thread: copying and
 * hashing saves, and the few cache calls that wait.
 *
 * Users take turns.  Jobs that wait have threads of their own, of which a user
 * has one at a time.
 */
#ifndef KV_FS_CONTROL_INGEST_H
#define KV_FS_CONTROL_INGEST_H

#include <sys/queue.h>

#include "common/copy.h"

#define KV_INGEST_COPIERS 4 /* or as many as there are CPUs, if fewer */
#define KV_INGEST_WAITERS 4

struct kv_ingest;

/* In the owner's memory, untouched by it until @work runs. */
struct kv_ingest_job {
	/* On a thread of the pool, with that thread's hash state. */
	void (*work)(struct kv_ingest_job *job, struct kv_hash *hash);
	uint32_t uid;
	uint64_t bytes; /* to be copied */
	bool waits;	/* for the disk, not for the processor */
	/* ingest's own */
	TAILQ_ENTRY(kv_ingest_job) link;
	struct kv_turn *turn; /* NULL: not queued */
};

/* -ENOMEM, -EAGAIN (no thread can be made). */
int kv_ingest_start(struct kv_ingest **ret_ingest);
/* Finishes every job added before, then frees.  Takes NULL. */
void kv_ingest_stop(struct kv_ingest *ingest);

/* Jobs of one user, that wait or do not, begin in the order in which they were
 * added.  Any thread. */
void kv_ingest_add(struct kv_ingest *ingest, struct kv_ingest_job *job);
/* Whether @job had not begun, and never will.  By who adds, and not after its
 * end. */
bool kv_ingest_cancel(struct kv_ingest *ingest, struct kv_ingest_job *job);

#endif
