/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copier.h - the library's copy threads: one for each processor, four at most.
 */
#ifndef KV_KERNELS_DEVICE_COPIER_H
#define KV_KERNELS_DEVICE_COPIER_H

#include <sys/queue.h>

#include "common/kv.h"

struct kv_copier;

enum kv_job_kind { KV_JOB_LOAD, KV_JOB_SAVE };

/* Part of whatever is to be done.  @run has no lock held, and may free it. */
struct kv_job {
	TAILQ_ENTRY(kv_job) others;
	void (*run)(struct kv_job *job);
	enum kv_job_kind kind;
	int priority;
};

int kv_copier_new(struct kv_copier **ret_copier); /* -ENOMEM, -EAGAIN */

/* Runs every job submitted, then ends the threads.  Takes NULL. */
void kv_copier_free(struct kv_copier *copier);

unsigned kv_copier_threads(const struct kv_copier *copier);

/*
 * Jobs for loads begin before those for saves, higher priorities before lower
 * ones, else in the order they come; but one in KV_COPIER_FAIR is the one that
 * has waited longest, so that none waits for ever.  Any thread, any lock held.
 */
#define KV_COPIER_FAIR 8u
void kv_copier_submit(struct kv_copier *copier, struct kv_job *job);

/* Whether a job waits that comes before @job.  If that is a long one, it makes
 * way: it submits itself again and returns. */
bool kv_copier_presses(struct kv_copier *copier, const struct kv_job *job);

#endif
