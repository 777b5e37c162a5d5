/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tier.h - declarations that the files of the remote tier share.
 *
 * remote.c runs the thread that talks to the backend, and retries; breaker.c gives up
 * tenants whose operations fail, or the backend; fetch.c fetches missing blocks; backup.c puts durable blocks; forget.c
 * deletes objects.
 */
#ifndef KV_CACHE_REMOTE_TIER_H
#define KV_CACHE_REMOTE_TIER_H

#include <stdatomic.h>

#include "cache/core/core.h"
#include "cache/core/turns.h"
#include "cache/remote/backend.h"

/* A job of the remote thread: an operation, and what to do at its end. */
struct kv_remote_job {
	struct kv_remote_op op; /* first member */
	uint32_t uid;		/* user that owns the space */
	bool trial; /* asks whether the backend works: no breaker counts it */
	/* Runs once, when the operation has ended for its caller; -ETIMEDOUT: the
	 * deadline is over. */
	void (*ended)(struct kv_remote *remote, struct kv_remote_job *job,
		      int status);
	/* Runs once after @ended, when the backend does not use the job's memory any
	 * more; mostly at once.  May free the job. */
	void (*given_back)(struct kv_remote *remote, struct kv_remote_job *job);
	/* remote.c's: */
	uint64_t began_ns, sent_ns, until_ns;
	uint64_t retry_ns; /* when to send the job again; 0: in flight */
	unsigned tries;
	bool abandoned; /* @ended has run, the backend still has the memory */
	uint64_t seen;	/* value of op.progress when it last changed */
	TAILQ_ENTRY(kv_remote_job) link; /* entry in remote->jobs */
};

#define KV_BREAKERS 257u /* most breakers; further users share the last one */

/* A circuit breaker, of the backend or of a tenant; see breaker.c. */
struct kv_breaker {
	/* First member; for breaker.c: a HEAD of an object or the backend. */
	struct kv_remote_job trial;
	uint32_t uid;	   /* constant */
	_Atomic bool open; /* open: no operation is sent */
	/* Send nothing before this time: the backend asked for a pause. */
	_Atomic uint64_t held_until_ns;
	uint64_t heard_ns; /* when the backend last answered this tenant */
	/* Put nothing before this time: the backend was full for the tenant. */
	_Atomic uint64_t full_until_ns;
	/* breaker.c's: */
	bool trying, told; /* a trial is in flight; a failure was printed */
	bool probe; /* the trial is of the backend: the tenant has failed */
	bool prompt; /* the tenant's last GET of an object took at most a second */
	_Atomic uint64_t full_ns; /* last pause of puts; 0: not full */
	uint64_t full_tell_ns; /* print no sooner; UINT64_MAX: printed last */
	unsigned failures, refusals, refused_puts; /* in a row, so far */
	uint64_t pause_ns, try_ns; /* pause before the next trial; its end */
	char name[KV_OBJECT_NAME_MAX + 1]; /* object of the last operation */
	char why[KV_REMOTE_FAILURE_MAX];
};

struct kv_remote {
	struct kv_cache *cache;		       /* constant */
	const struct kv_remote_driver *driver; /* constant */
	struct kv_ops *ops; /* constant: operations of the backend */
	pthread_t thread;   /* the remote thread */
	bool running;	    /* constant: the thread was started */
	_Atomic bool stop;
	/* Result of the first trial, 1 before its end; used at mount. */
	int answer;
	/* jobs under way; remote thread only */
	TAILQ_HEAD(, kv_remote_job) jobs;
	/* The first @n_breakers are in use: the backend's, then those of tenants. */
	struct kv_breaker breakers[KV_BREAKERS];
	_Atomic unsigned n_breakers;
	struct kv_fetch *fetch;		 /* fetch.c */
	struct kv_backups *backup;	 /* backup.c */
	TAILQ_HEAD(, kv_forget) forgets; /* forget.c */
	struct kv_turns forgetters;   /* queues of users that forget blocks */
	struct kv_remote_stats stats; /* guarded by cache->lock */
};

/* ---- calls of the rest of the cache; core/hooks.h has the others ---- */

/* Make the backend of config->remote, ask it whether it is there (three seconds), and
 * start the threads.  With remote_optional a backend that does not answer is an open
 * circuit breaker.  On failure *@ret_why is a message for the user (caller frees). */
int kv_remote_start(struct kv_cache *cache, char **ret_why);
/* End all waiting requests as misses.  Memory that the backend does not give back is
 * left to the backend. */
void kv_remote_stop(struct kv_cache *cache);

/* Offer all durable blocks of @space, which is shared, to the backend, unless
 * remote_write=none. */
void kv_remote_offer_locked(struct kv_cache *cache, struct kv_space *space);

/* ---- remote.c ---- */

void kv_remote_wake(struct kv_remote *remote);
/* Submit @job, whose op, uid, ended and given_back are set, for @ns at most.  An operation
 * that failed is retried twice with back-off, within the deadline, a GET only as long as
 * kv_fetch_is_wanted().  Called by the remote thread. */
void kv_remote_submit(struct kv_remote *remote, struct kv_remote_job *job,
		      uint64_t ns);
/* Set the name of @job, whose uid is set, to that of the object of @key in @space; @key NULL:
 * to "TENANT/2-SPACE/", with which all names of the space begin.  Without memory the name
 * is "", and the job will end as cancelled.  Called by the remote thread. */
void kv_remote_name(struct kv_remote *remote, struct kv_remote_job *job,
		    struct kv_space *space, const struct kv_key *key);

/*
 * ---- breaker.c: circuit breakers: whose operations are sent ----
 *
 * Each tenant has a breaker, and so has the backend.  After eight failures of a
 * tenant in a row, or eight refused GETs, its breaker opens; a probe of the backend
 * follows, and if it fails only the backend's breaker opens.  Trials close it.
 *
 * The backend's breaker is open until its first trial has succeeded.  All calls but the
 * first two are made by the remote thread, or before it begins.
 */

/* Return whether operations of the space owner @uid are sent: neither the breaker of the
 * backend nor that of the tenant is open, and the tier does not stop.  Any thread; takes
 * no lock. */
bool kv_remote_is_open(struct kv_remote *remote, uint32_t uid);
/* Return whether puts of user @uid are sent: not while the backend is full. */
bool kv_remote_takes(struct kv_remote *remote, uint32_t uid);

/* Return the breaker of the user @uid; it lives as long as the remote tier. */
struct kv_breaker *kv_breaker_of(struct kv_remote *remote, uint32_t uid);
/* Count the final outcome of @job. */
void kv_breaker_note(struct kv_remote *remote, const struct kv_remote_job *job,
		     int status);
/* Return whether @status means that the backend or the network failed. */
bool kv_remote_has_failed(int status);
/* Describe the failure of @job. */
void kv_remote_describe(const struct kv_remote_job *job, int status,
			char text[KV_REMOTE_FAILURE_MAX]);

/* Begin the trials that are due; return when the next trial is due. */
uint64_t kv_trials_run(struct kv_remote *remote);

/* Return why nothing is sent for @uid, or "". */
const char *kv_remote_why(struct kv_remote *remote, uint32_t uid);

/* ---- fetch.c ---- */

/* core/hooks.h documents these calls. */
int kv_fetch_want_locked(struct kv_cache *cache, struct kv_want *want);
void kv_fetch_begin_locked(struct kv_cache *cache, struct kv_acquire *acquire);
bool kv_fetch_may_locked(struct kv_cache *cache, struct kv_space *space,
			 const struct kv_key *key);
bool kv_fetch_is_coming_locked(struct kv_cache *cache, struct kv_space *space,
			       const struct kv_key *key);

int kv_fetch_init(struct kv_remote *remote);
void kv_fetch_fini(struct kv_remote *remote); /* even if init failed */
/* Seal the blocks that have arrived, and begin GETs; at the end, end all that is not in
 * flight.  Return when to call it again without an event, in the time of
 * kv_now_ns(); UINT64_MAX: never. */
uint64_t kv_fetch_run(struct kv_remote *remote);

/* Return whether somebody waits for the end of @job; true unless it is a GET. */
bool kv_fetch_is_wanted(struct kv_remote *remote,
			const struct kv_remote_job *job);
/* Forget that the backend lacks the object with this kv_key_hash: the block is durable here,
 * or with @put that its object is damaged: another one was put. */
void kv_fetch_present_locked(struct kv_remote *remote, uint64_t hash, bool put);
bool kv_fetch_is_damaged_locked(struct kv_remote *remote, uint64_t hash);

/* ---- backup.c ---- */

/* core/hooks.h documents this call. */
void kv_backup_durable_locked(struct kv_cache *cache,
			      const struct kv_block *block);

int kv_backup_init(struct kv_remote *remote);
void kv_backup_fini(struct kv_remote *remote); /* even if init failed */
int kv_backup_start(struct kv_remote *remote);
/* Spend up to two seconds on blocks that wait, then end the backup thread. */
void kv_backup_stop(struct kv_remote *remote);
/* Begin to put blocks that are ready.  Called by the remote thread. */
void kv_backup_run(struct kv_remote *remote);

/* ---- forget.c ---- */

/* Begin operations of forgets, and end forgets that have none left. */
void kv_forgets_run(struct kv_remote *remote);

#endif
