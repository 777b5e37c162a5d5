/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ingest.h - threads for what must not hold up the control thread: copying and
 * hashing saves, and the few cache calls that wait.
 */
#ifndef KV_FS_CONTROL_INGEST_H
#define KV_FS_CONTROL_INGEST_H

#include "common/copy.h"

#define KV_INGEST_THREADS 4 /* or as many as there are CPUs, if fewer */

struct kv_ingest;

/* In the owner's memory, untouched by it until @work runs. */
struct kv_ingest_job {
	struct kv_ingest_job *next;
	/* On a thread of the pool, with that thread's hash state. */
	void (*work)(struct kv_ingest_job *job, struct kv_hash *hash);
};

/* -ENOMEM, -EAGAIN (no thread can be made). */
int kv_ingest_start(struct kv_ingest **ret_ingest);
/* Finishes every job added before, then frees.  Takes NULL. */
void kv_ingest_stop(struct kv_ingest *ingest);

/* Jobs begin in the order in which they were added.  Any thread. */
void kv_ingest_add(struct kv_ingest *ingest, struct kv_ingest_job *job);

#endif
