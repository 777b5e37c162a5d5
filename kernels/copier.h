/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copier.h - the library's copy threads: one for each processor, four at most.
 */
#ifndef KV_COPIER_H
#define KV_COPIER_H

#include <sys/queue.h>

#include "kv.h"

struct kv_copier;

/* Part of whatever is to be done.  @run has no lock held, and may free it. */
struct kv_job {
	STAILQ_ENTRY(kv_job) next;
	void (*run)(struct kv_job *job);
};

int kv_copier_new(struct kv_copier **ret_copier); /* -ENOMEM, -EAGAIN */

/* Runs every job submitted, then ends the threads.  Takes NULL. */
void kv_copier_free(struct kv_copier *copier);

unsigned kv_copier_threads(const struct kv_copier *copier);

/* Jobs begin in the order they come.  Any thread, any lock held. */
void kv_copier_submit(struct kv_copier *copier, struct kv_job *job);

#endif
