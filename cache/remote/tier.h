/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tier.h - what the files of the remote tier share.
 *
 * remote.c has the thread that talks to the backends, and the names of objects.
 * fetch.c finds missing blocks and fetches them; backup.c puts durable blocks;
 * adopt.c agrees on a seed with other nodes; forget.c removes blocks everywhere.
 */
#ifndef KV_CACHE_REMOTE_TIER_H
#define KV_CACHE_REMOTE_TIER_H

#include <stdatomic.h>

#include "cache/core/turns.h"
#include "cache/remote/backend.h"
#include "cache/remote/remote.h"

/* A backend, in the order in which they are asked. */
struct kv_remote_backend {
	const struct kv_remote_driver *driver; /* fixed */
	void *state;			       /* fixed, once it is there */
	const char *rest;   /* fixed: its URL behind the scheme */
	_Atomic bool there; /* open: the driver's functions may be called */
	const char *url;    /* fixed; shown, without secrets */
	/* Circuit breaker, the thread's: after KV_REMOTE_FAILURES failures in a row
	 * only a trial a second reaches the backend. */
	unsigned failures;
	uint64_t tried_ns;
	bool trying;
	uint64_t told_ns; /* when a failure was last printed; 0: never */
	struct kv_remote_stats stats; /* cache->lock */
};

/* An operation, and what to do when it has ended. */
struct kv_remote_job {
	struct kv_remote_op op; /* first */
	unsigned backend;
	uint64_t began_ns, until_ns;
	/* @ended has run with -ETIMEDOUT.  The memory is the backend's until it is
	 * reaped, and @given_back runs. */
	bool abandoned;
	void (*ended)(struct kv_remote *remote, struct kv_remote_job *job,
		      int status);
	void (*given_back)(struct kv_remote *remote, struct kv_remote_job *job);
	TAILQ_ENTRY(kv_remote_job) link; /* of remote->jobs */
};

/* An item in its user's queue. */
struct kv_queued {
	struct kv_queue *queue; /* held; NULL: in none */
	TAILQ_ENTRY(kv_queued) link;
};

/* A user's queue in a kv_turns. */
struct kv_queue {
	struct kv_turn turn; /* first */
	TAILQ_HEAD(, kv_queued) items;
	unsigned n;
};

TAILQ_HEAD(kv_remote_jobs, kv_remote_job);
TAILQ_HEAD(kv_backups, kv_backup);
TAILQ_HEAD(kv_forgets, kv_forget);

struct kv_remote {
	struct kv_cache *cache; /* fixed */
	struct kv_remote_backend backends[KV_REMOTES_MAX];
	unsigned n;		  /* fixed */
	pthread_t thread;	  /* talks to the backends */
	int wake;		  /* eventfd; fixed */
	struct kv_reopen *reopen; /* NULL: no backend was missing */
	bool running;
	_Atomic bool stop;
	struct kv_remote_jobs
		jobs;		 /* in flight; the thread's, as the next two */
	struct kv_turns looks;	 /* queues of looks */
	struct kv_turns fetches; /* queues of gets */
	struct kv_fetch *fetch;	 /* fetch.c */
	struct {
		struct kv_forgets fresh; /* cache->lock */
		struct kv_forgets begun;
	} forgets;
	/* adopt.c; cache->lock */
	TAILQ_HEAD(, ask) asks;
	_Atomic bool hurry; /* callers do not wait any more */
	pthread_cond_t answer;
	/* backup.c */
	struct {
		pthread_t thread;
		pthread_cond_t more; /* cache->lock */
		bool running;
		struct kv_backups busy; /* the remote thread's */
		/* cache->lock, as all that follows */
		struct kv_turns waiting;
		struct kv_backups ready, unread;
		unsigned n_waiting;
		unsigned flushing;   /* spaces, at unmount */
		bool ending;	     /* put new blocks only */
		pthread_cond_t over; /* a block or a flush has ended */
	} backup;
	struct {		     /* cache->lock */
		struct kv_turns due; /* queues of offers */
		TAILQ_HEAD(, kv_offer) later;
		LIST_HEAD(, kv_offer) all;
		uint64_t look_ns; /* when to look at `later` next */
	} offers;
};

/* ---- remote.c ---- */

void kv_remote_wake(struct kv_remote *remote);
/* Return whether the backend is asked.  The thread's call, as the next one. */
bool kv_remote_is_open(struct kv_remote *remote, unsigned backend);
/* Submit @job, all but `ended` of which is set, to its backend for @ns at most. */
void kv_remote_submit(struct kv_remote *remote, struct kv_remote_job *job,
		      uint64_t ns);
/* Return whether blocks are to be put to the backends. */
bool kv_remote_writes(const struct kv_remote *remote);

/* Make queues with turns of @amount.  -ENOMEM. */
int kv_queues_init(struct kv_turns *turns, int64_t amount);
void kv_enqueue(struct kv_turns *turns, uint32_t uid, struct kv_queued *item);
void kv_dequeue(struct kv_turns *turns, struct kv_queued *item);
struct kv_queued *kv_queue_first(struct kv_turn *turn);
unsigned kv_queue_length(struct kv_turns *turns, uint32_t uid);

uint32_t kv_remote_user(struct kv_cache *cache, const struct kv_space *space);

/* "TENANT/SPACE/", with which the names of a space's objects begin. */
#define KV_REMOTE_PREFIX_MAX (KV_OBJECT_TENANT_MAX + 1 + 64 + 1)
int kv_remote_prefix(struct kv_cache *cache, struct kv_space *space,
		     char prefix[KV_REMOTE_PREFIX_MAX + 1]);
/* The same for another @layout (NULL: none) of the space. */
int kv_remote_prefix_of(struct kv_cache *cache, struct kv_space *space,
			const char *layout,
			char prefix[KV_REMOTE_PREFIX_MAX + 1]);
/* Set the name of @op to that of the object of @key. */
void kv_remote_name(struct kv_remote_op *op, const char *prefix,
		    const struct kv_key *key);

/* ---- fetch.c ---- */

/* As core/hooks.h has them. */
int kv_fetch_want_locked(struct kv_cache *cache, struct kv_want *want);
void kv_fetch_begin_locked(struct kv_cache *cache, struct kv_acquire *acquire);
bool kv_fetch_may_locked(struct kv_cache *cache, struct kv_space *space,
			 const struct kv_key *key);
bool kv_fetch_is_coming_locked(struct kv_cache *cache, struct kv_space *space,
			       const struct kv_key *key);

int kv_fetch_init(struct kv_remote *remote);
void kv_fetch_fini(struct kv_remote *remote); /* takes half-built ones */
/* Send EXISTS requests. */
void kv_fetch_ask(struct kv_remote *remote);
/* Seal what has landed, and begin gets. */
void kv_fetch_get(struct kv_remote *remote);
/* Return whether a get waits for memory, for the rate or for a slot. */
bool kv_fetch_is_busy(const struct kv_remote *remote);
/* End all that is not in flight. */
void kv_fetch_stop(struct kv_remote *remote);

/* The object was saved here: forget that backends do not have it. */
void kv_fetch_present_locked(struct kv_remote *remote, uint64_t hash);
/* Note that the object of @backend is damaged, or has been put anew. */
void kv_fetch_damaged(struct kv_remote *remote, uint64_t hash, unsigned backend,
		      bool damaged);
bool kv_fetch_is_damaged(struct kv_remote *remote, uint64_t hash,
			 unsigned backend);

/* ---- backup.c ---- */

/* As core/hooks.h has them. */
void kv_backup_durable_locked(struct kv_cache *cache,
			      const struct kv_block *block);
void kv_backup_used_locked(struct kv_cache *cache,
			   const struct kv_block *block);

int kv_backup_init(struct kv_remote *remote);
void kv_backup_fini(struct kv_remote *remote);
int kv_backup_start(struct kv_remote *remote);
void kv_backup_stop(struct kv_remote *remote);
/* Begin to put what is ready. */
void kv_backups_run(struct kv_remote *remote);
void kv_backups_free(struct kv_remote *remote);

/* Return whether @key, or, if NULL, any block of @space, is being put. */
bool kv_backup_is_under_way(const struct kv_remote *remote,
			    const struct kv_space *space,
			    const struct kv_key *key);

/* ---- forget.c ---- */

void kv_forgets_run(struct kv_remote *remote);

/* ---- adopt.c ---- */

void kv_asks_run(struct kv_remote *remote);

#endif
