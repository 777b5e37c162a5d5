/* SPDX-License-Identifier: Apache-2.0 */
/*
 * breaker.h - circuit breakers: whose operations are sent.
 *
 * Each tenant has a breaker, and so has the backend.  After eight failures of a tenant in
 * a row, or eight refusals, the tenant is given up, and the backend is probed.  If the
 * probe fails, too, the backend is given up instead.  Trials tell when to go on.
 *
 * All calls but kv_remote_is_open (tier.h) are made by the remote thread, or before it
 * was started.
 */
#ifndef KV_CACHE_REMOTE_BREAKER_H
#define KV_CACHE_REMOTE_BREAKER_H

#include "cache/remote/tier.h"

struct kv_breaker {
	uint32_t uid;	   /* fixed */
	_Atomic bool open; /* given up */
	/* Nothing is sent before this time, as the backend asked; remote.c. */
	_Atomic uint64_t held_until_ns;
	uint64_t heard_ns; /* of the last sign of life for this tenant */
	/* Nothing is put before this time: the backend was full for this tenant. */
	_Atomic uint64_t full_until_ns;
	/* breaker.c's: */
	bool trying, told;	     /* a trial is in flight; the user knows */
	bool full;		     /* and the user knows */
	uint64_t full_ns;	     /* the last pause of puts */
	unsigned failures, refusals; /* in a row */
	uint64_t pause_ns, try_ns;   /* before the next trial; when */
	uint64_t changed_ns;
	char name[KV_OBJECT_NAME_MAX + 1]; /* of the last operation's object */
	char why[KV_REMOTE_FAILURE_MAX];
};

int kv_breakers_init(struct kv_remote *remote); /* -ENOMEM */
void kv_breakers_fini(struct kv_remote *remote);

/* Return the breaker of the tenant @uid; it lives as long as the tier. */
struct kv_breaker *kv_breaker_of(struct kv_remote *remote, uint32_t uid);
/* Count the outcome of @job, which was not retried, or not again. */
void kv_breaker_note(struct kv_remote *remote, const struct kv_remote_job *job,
		     int status);
/* Return whether @status means that the backend or the network failed. */
bool kv_remote_has_failed(const struct kv_remote_job *job, int status);
/* Describe the failure of @job. */
void kv_remote_describe(const struct kv_remote_job *job, int status,
			char text[KV_REMOTE_FAILURE_MAX]);

/* Ask whether the backend is there, for @ns at most.  Its breaker is open until it
 * answers. */
void kv_breakers_ask(struct kv_remote *remote, uint64_t ns);
/* Return the answer: 0, or -errno and *@ret_why; 1: not yet. */
int kv_breakers_answer(struct kv_remote *remote, const char **ret_why);
/* Begin the trials that are due; return when the next one is. */
uint64_t kv_trials_run(struct kv_remote *remote);

#endif
