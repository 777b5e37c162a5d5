/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tier.h - what the files of the remote tier share.
 *
 * remote.c has the thread that talks to backends; look.c asks what they have,
 * get.c brings it, backup.c hands over what became durable, offer.c what was so
 * before, adopt.c has nodes agree on a seed; names.c says what objects are called, and
 * shunned.c remembers what not to ask for.
 */
#ifndef KV_CACHE_REMOTE_TIER_H
#define KV_CACHE_REMOTE_TIER_H

#include <stdatomic.h>

#include "cache/remote/backend.h"
#include "cache/remote/remote.h"

/* A backend, by the order in which they are asked. */
struct kv_remote_backend {
	const struct kv_remote_driver *driver; /* fixed */
	void *state;			       /* fixed, once it is there */
	const char *rest;   /* fixed: of its URL, behind the scheme */
	_Atomic bool there; /* it is open; else nobody calls it */
	const char *url;    /* fixed; shown, without secrets */
	/* The breaker, the thread's: after a row of failures nobody asks it any
	 * more, but a trial does once a second. */
	unsigned failures;
	uint64_t tried_ns;
	bool trying;
	uint64_t told_ns; /* when a failure was told of last; 0: never */
	struct kv_remote_stats stats; /* cache->lock */
};

/* An operation of the tier's: what is to be done when it has ended. */
struct kv_remote_job {
	struct kv_remote_op op; /* first */
	unsigned backend;
	uint64_t began_ns, until_ns;
	/* @ended has run with -ETIMEDOUT, but its memory is the backend's until
	 * it is reaped, and @given_back runs. */
	bool abandoned;
	void (*ended)(struct kv_remote *remote, struct kv_remote_job *job,
		      int status);
	void (*given_back)(struct kv_remote *remote, struct kv_remote_job *job);
	TAILQ_ENTRY(kv_remote_job) link; /* of remote->jobs */
};
TAILQ_HEAD(kv_remote_jobs, kv_remote_job);

struct kv_remote_look;
struct kv_backup;
struct kv_offer;
TAILQ_HEAD(kv_remote_gets, kv_remote_get);
TAILQ_HEAD(kv_remote_looks, kv_remote_look);
TAILQ_HEAD(kv_backups, kv_backup);
TAILQ_HEAD(kv_offers, kv_offer);
TAILQ_HEAD(kv_forgets, kv_forget);

enum kv_get_state { GET_LOOKING, GET_QUEUED, GET_GETTING, GET_LANDED };

/* A block that is looked for, and then brought. */
struct kv_remote_get {
	struct kv_remote_job job;     /* first; the thread's */
	enum kv_get_state state;      /* cache->lock */
	struct kv_want *wants;	      /* cache->lock */
	struct kv_remote_get *bucket; /* cache->lock */
	struct kv_remote_look *look;  /* until it is found, or decided */
	size_t at;		      /* in the look */
	struct kv_key key;	      /* fixed */
	struct kv_space *space;	      /* fixed; held */
	uint32_t uid;		      /* fixed: the space's owner's */
	uint32_t asker;		      /* fixed: whose turn it takes */
	uint64_t hash;		      /* fixed */
	struct get_queue *queue;      /* held, while it is QUEUED */
	struct kv_turn *turn;	      /* its user's, while it is under way */
	uint64_t share; /* of the memory and the number for gets */
	bool found, damaged;
	bool asked; /* and no answer is here */
	bool ended; /* nothing is left to do but to free it */
	uint64_t since_ns;
	TAILQ_ENTRY(kv_remote_get) link; /* of queued or landed */
};

#define KV_ABSENT_NS UINT64_C(1000000000) /* not to be asked for again */
#define KV_DAMAGED_NS UINT64_C(10000000000)
#define GET_BUCKETS 4096u

struct kv_remote {
	struct kv_cache *cache; /* fixed */
	struct kv_remote_backend backends[KV_REMOTES_MAX];
	unsigned n;		  /* fixed */
	pthread_t thread;	  /* the one for backends */
	int wake;		  /* eventfd; fixed */
	struct kv_reopen *reopen; /* NULL: no backend was missing */
	bool running;
	_Atomic bool stop;
	/* cache->lock */
	struct kv_remote_get *gets[GET_BUCKETS];
	struct kv_remote_looks fresh;
	struct kv_shunned *shunned;
	/* Of the thread's. */
	struct kv_remote_jobs jobs; /* under way */
	struct kv_turns looks;	    /* of users, with looks to be asked for */
	struct kv_turns fetches;    /* of users, with gets that are queued */
	struct kv_remote_gets landed;
	uint64_t landing, landing_max; /* bytes of memory for gets */
	unsigned getting;	       /* gets under way */
	double credit;		       /* bytes that may be fetched now */
	uint64_t credit_ns;
	struct kv_hash *hash;
	struct {
		struct kv_forgets fresh; /* cache->lock */
		struct kv_forgets begun;
	} forgets;
	/* adopt.c; cache->lock */
	TAILQ_HEAD(, ask) asks;
	_Atomic bool hurry; /* nobody waits any more */
	pthread_cond_t answer;
	/* backup.c */
	struct {
		pthread_t thread;
		pthread_cond_t more; /* cache->lock */
		bool running;
		struct kv_backups busy; /* the thread's */
		/* cache->lock, with what follows: of users */
		struct kv_turns waiting;
		struct kv_backups ready, unread;
		unsigned n_waiting;
		unsigned flushing;   /* spaces, at the end */
		bool ending;	     /* only what is new is handed over */
		pthread_cond_t over; /* some of it is */
	} backup;
	/* offer.c; cache->lock */
	struct {
		struct kv_turns walkers; /* users */
		struct kv_offers later;
		LIST_HEAD(, kv_offer) all;
		uint64_t look_ns; /* when to look at those next */
	} offers;
};

/* ---- remote.c ---- */

void kv_remote_wake(struct kv_remote *remote);
/* Whether the backend is asked.  A thread's call, as the next. */
bool kv_remote_is_open(struct kv_remote *remote, unsigned backend);
/* Give @job, all but ended of which is set, to its backend for @ns at most. */
void kv_remote_submit(struct kv_remote *remote, struct kv_remote_job *job,
		      uint64_t ns);

/* Whether anything is to be handed over. */
bool kv_remote_writes(const struct kv_remote *remote);
/* As the driver's open; with @writes what cannot be written to fails. */
int kv_remote_open(const struct kv_remote_driver *driver, const char *rest,
		   bool writes, void **ret_state, char **ret_why);

/* ---- reopen.c ---- */

/* Go on trying to open those that are not there, and tell of it. */
int kv_reopen_start(struct kv_remote *remote);
void kv_reopen_stop(struct kv_remote *remote);

/* ---- look.c ---- */

/* As core/hooks.h has them. */
int kv_look_want_locked(struct kv_cache *cache, struct kv_want *want);
void kv_look_begin_locked(struct kv_cache *cache, struct kv_acquire *acquire);

int kv_looks_init(struct kv_remote *remote);
void kv_looks_fini(struct kv_remote *remote);
/* Begin what is new, and go on with what waits. */
void kv_looks_run(struct kv_remote *remote);
/* How a get went that was begun without a question: with 0 it is the look's no more. */
void kv_look_fetched(struct kv_remote *remote, struct kv_remote_get *get,
		     int status);
/* All that is not under way is over. */
void kv_looks_stop(struct kv_remote *remote);

/* ---- get.c ---- */

/* As core/hooks.h has them. */
bool kv_get_may_locked(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_key *key);
bool kv_get_is_coming_locked(struct kv_cache *cache, struct kv_space *space,
			     const struct kv_key *key);

int kv_gets_init(struct kv_remote *remote);
void kv_gets_fini(struct kv_remote *remote);
/* The get of this key; NULL: there is none. */
struct kv_remote_get *kv_get_find_locked(struct kv_remote *remote,
					 const struct kv_space *space,
					 const struct kv_key *key,
					 uint64_t hash);
/* A new one, of which there is none; NULL: no memory. */
struct kv_remote_get *kv_get_new_locked(struct kv_remote *remote,
					struct kv_space *space,
					const struct kv_key *key,
					uint64_t hash);
/* It is missed, and was never asked for. */
void kv_get_forget_locked(struct kv_remote *remote, struct kv_remote_get *get);
/* It was found, or is a look's still, and is worth it: bring it when it is its user's
 * turn. */
void kv_get_fetch(struct kv_remote *remote, struct kv_remote_get *get);
/*
 * Tell who waits: with @came it is here, and they look again.  Not to be asked
 * for again in @shun_ns.  Its memory goes when no backend has it any more.
 */
void kv_get_end(struct kv_remote *remote, struct kv_remote_get *get, bool came,
		uint64_t shun_ns);
/* What has come since the last time, and what can go on. */
void kv_gets_run(struct kv_remote *remote);
bool kv_gets_busy(const struct kv_remote *remote);
/* All that is not under way is over. */
void kv_gets_stop(struct kv_remote *remote);

/* ---- backup.c ---- */

/* As core/hooks.h has them. */
void kv_backup_durable_locked(struct kv_cache *cache,
			      const struct kv_block *block);
void kv_backup_used_locked(struct kv_cache *cache,
			   const struct kv_block *block);

int kv_backup_init(struct kv_remote *remote);
int kv_backup_start(struct kv_remote *remote);
void kv_backup_stop(struct kv_remote *remote);
void kv_backups_run(struct kv_remote *remote);

void kv_backups_free(struct kv_remote *remote);

/* Whether a block that is durable is one that backends are to have. */
bool kv_backup_wants(const struct kv_cache *cache,
		     const struct kv_block *block);
/* Hand @key over for @offer, to the backend @backend alone, and say so by
 * kv_offer_ended_locked.  False: there is no room. */
bool kv_backup_again_locked(struct kv_remote *remote, struct kv_offer *offer,
			    unsigned backend, struct kv_space *space,
			    const struct kv_key *key);
/* Whether there is for a page of this user's, behind what is new. */
bool kv_backup_has_room_locked(struct kv_remote *remote, uint32_t uid);

/* Whether @key, NULL: any block of @space, is being handed over. */
bool kv_backup_is_under_way(const struct kv_remote *remote,
			    const struct kv_space *space,
			    const struct kv_key *key);

/* ---- offer.c ---- */

int kv_offers_init(struct kv_remote *remote);
void kv_offers_fini(struct kv_remote *remote);
/* At mount: all spaces that are shared. */
void kv_offers_adopt(struct kv_remote *remote);
/* The backend does not have all of @space: offer it, from the beginning. */
void kv_offer_again_locked(struct kv_remote *remote, struct kv_space *space,
			   unsigned backend);
/* A block of it is over; with @failed it is to be offered again. */
void kv_offer_ended_locked(struct kv_remote *remote, struct kv_offer *offer,
			   bool failed);
/* Some of it; lets go of the lock.  False: there is nothing to do now. */
bool kv_offers_run(struct kv_remote *remote);

/* ---- forget.c ---- */

void kv_forgets_run(struct kv_remote *remote);
bool kv_forgets_busy(const struct kv_remote *remote);
/* All of them end. */
void kv_forgets_stop(struct kv_remote *remote);

/* ---- adopt.c ---- */

void kv_asks_run(struct kv_remote *remote);

/* ---- names.c ---- */

uint32_t kv_remote_user(struct kv_cache *cache, const struct kv_space *space);

/* What begins the names of a space's objects, "TENANT/SPACE/". */
#define KV_REMOTE_PREFIX_MAX (KV_OBJECT_TENANT_MAX + 1 + 64 + 1)
int kv_remote_prefix(struct kv_cache *cache, struct kv_space *space,
		     char prefix[KV_REMOTE_PREFIX_MAX + 1]);
/* The same of a space with another layout (NULL: none). */
int kv_remote_prefix_of(struct kv_cache *cache, struct kv_space *space,
			const char *layout,
			char prefix[KV_REMOTE_PREFIX_MAX + 1]);

/* ---- shunned.c ---- */

int kv_shunned_new(struct kv_shunned **ret_shunned);
void kv_shunned_free(struct kv_shunned *shunned);
/* Do not ask for it until @until_ns. */
void kv_shun(struct kv_shunned *shunned, uint64_t hash, uint64_t until_ns);
void kv_shun_not(struct kv_shunned *shunned, uint64_t hash);
bool kv_is_shunned(const struct kv_shunned *shunned, uint64_t hash);
/* What @backend has of it is damaged, until it was put there anew. */
void kv_damaged(struct kv_shunned *shunned, uint64_t hash, unsigned backend);
void kv_mended(struct kv_shunned *shunned, uint64_t hash, unsigned backend);
bool kv_is_damaged(const struct kv_shunned *shunned, uint64_t hash,
		   unsigned backend);

#endif
