/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - the state of one session, shared by all parts of the library.
 *
 * Lock order: lookup_lock, receive_lock, lock, then the copier's own.
 */
#ifndef KV_KERNELS_SESSION_SESSION_H
#define KV_KERNELS_SESSION_SESSION_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "kernels/session/mapped_segment.h"
#include "kernels/kvfs.h"
#include "kernels/session/link.h"
#include "kernels/session/rpc.h"

struct kv_copier;
struct kvfs_pool;
struct kv_stream_sync;
struct kv_stage;

TAILQ_HEAD(kv_xfers, kvfs_xfer);

/* A deadline that the reader thread keeps, embedded in its owner; zeroed, the
 * timer is stopped. */
struct kv_timer {
	LIST_ENTRY(kv_timer) others;
	uint64_t at;			      /* kv_now_ns; 0: stopped */
	void (*fire)(struct kv_timer *timer); /* stopped; lock held */
};
LIST_HEAD(kv_timers, kv_timer);

/* Hooks of the folder above; transfers register them with the first pool. */
struct kv_session_user {
	/* The connection and all requests have ended. */
	void (*broken_locked)(struct kvfs_session *session);
	/* There is a connection. */
	void (*connected_locked)(struct kvfs_session *session);
	/* The caller closes the session: end all transfers, and make no more
	 * staging.  Lock held, but released meanwhile. */
	void (*closing)(struct kvfs_session *session);
	/* The reader thread has ended.  No lock held. */
	void (*closed)(struct kvfs_session *session);
	/* In the child of a fork.  No lock held. */
	void (*forked)(struct kvfs_session *session);
	/* There is memory for kv_detach_work. */
	void (*detaching_locked)(struct kvfs_session *session);
	/* The space of that name is about to be cleared; has been cleared. */
	void (*clearing_locked)(struct kvfs_session *session, const char *name);
	void (*cleared_locked)(struct kvfs_session *session, const char *name);
};

struct kvfs_session {
	/* fixed after open */
	char *path;
	unsigned fork_count; /* forks before it was opened */
	int wake_fd;	     /* interrupts the reader thread's sleep */
	pthread_t reader;
	TAILQ_ENTRY(kvfs_session) siblings; /* forks_lock */

	/* The look-up connection, used by the calling thread alone. */
	pthread_mutex_t lookup_lock;
	struct kv_link lookup; /* lookup_lock */
	uint64_t lookup_tags;  /* lookup_lock */
	uint64_t quiet_until;  /* lookup_lock: misses after a time-out */

	/* Held from receiving a message until it was handled, so that messages
	 * take effect in order. */
	pthread_mutex_t receive_lock;
	uint8_t *received; /* receive_lock: WIRE_MAX bytes */
	bool broken;	   /* receive_lock: the link must be closed */

	pthread_mutex_t lock;
	pthread_cond_t changed; /* a completion, or a change of the link */

	/* lock, and everything below; link also needs receive_lock to change */
	struct kv_link link;
	char socket_path[KV_SOCKET_PATH_MAX];
	uint64_t generations;  /* connections so far */
	_Atomic uint64_t live; /* this connection's number, 0: not connected */
	_Atomic int lost;      /* why it is not: as kv_link_lost */
	_Atomic int refused;   /* 0, or why the daemon there cannot be used:
				  -EPROTONOSUPPORT, -EPERM */
	bool tried;	       /* to connect, at least once */
	bool closing;
	uint64_t sleeps_until;	   /* the reader thread */
	int event_fd;		   /* -1 until kvfs_fd */
	unsigned completed;	   /* since the last kvfs_process */
	bool link_changed;	   /* the same; or since kvfs_open */
	bool link_unreaped;	   /* the same, for kvfs_reap */
	struct kv_notices notices; /* rpc.c */
	struct kv_rpc rpc;
	struct kv_timers timers;
	struct kv_mapped_segments mappings, unmapped; /* mapped_segment.c */
	const struct kvfs_device *attacher; /* mapped_segment.c; or NULL */
	struct kv_attached_list detaching;  /* mapped_segment.c */
	uint64_t asked_open; /* connection with a request for writable memory */
	const struct kv_session_user *user; /* NULL until the first transfer */
	struct kv_copier *copier;	    /* NULL until the first pool */
	struct kv_stream_sync
		*stream_sync;	/* NULL until the first pool with streams */
	struct kv_stage *stage; /* of this connection, or NULL */
	struct kv_stage *stage_next; /* not offered yet; or NULL */
	bool stage_making, stage_growing;
	bool stage_full; /* a save did not fit */
	uint64_t
		stage_payload; /* of the largest block that a pool has; 0: there
				   was no pool yet */
	uint64_t stage_grows_at; /* not before: it could not grow */
	bool staging_asked;	 /* the caller said how much that shall be: */
	uint64_t staging_bytes;	 /* that it has at least */
	struct kv_xfers active;	 /* in flight, oldest first */
	struct kv_xfers saves; /* with blocks still to reserve, oldest first */
	size_t reserved;       /* blocks that the daemon has, or was asked to */
	LIST_HEAD(, kvfs_pool) paged;	  /* pools with pages of our own */
	LIST_HEAD(, kv_lending) lendings; /* of pools with a descriptor */
	uint32_t lending_ids;
};

/* Wait on @cond until @at (UINT64_MAX: for ever), without the lock meanwhile.
 * Returns 0 or -ETIMEDOUT. */
int kv_session_wait_for(struct kvfs_session *session, pthread_cond_t *cond,
			uint64_t at);

/* 0; -EINVAL: NULL; -EBADF: a handle of the parent, used after fork. */
int kv_session_check(const struct kvfs_session *session);

/* Return whether connection @generation is live; any thread. */
static inline bool kv_session_is_live(struct kvfs_session *session,
				      uint64_t generation)
{
	return generation != 0 && atomic_load(&session->live) == generation;
}

/* Wake the reader thread; any thread. */
void kv_session_wake(struct kvfs_session *session);

/* Wake waiters and kvfs_fd: a lease or transfer has made progress. */
void kv_session_completed_locked(struct kvfs_session *session);

/* Make kvfs_fd unreadable.  Return the number of completions since then. */
unsigned kv_session_clear_news_locked(struct kvfs_session *session);

/* Return 1, 0 or -errno, as kvfs_connection does. */
int kv_session_state_locked(const struct kvfs_session *session);

/* Return the time @deadline nanoseconds from now; UINT64_MAX: never. */
uint64_t kv_time_after(uint64_t deadline);

/* Wait on session->changed, as kv_session_wait_for. */
int kv_session_wait(struct kvfs_session *session, uint64_t at);

/* The daemon enforces deadlines and answers cancels; the library waits this much
 * longer for the answer, so that every wait ends within 50 ms of its deadline. */
#define KV_GRACE_NS 40000000u

/* Run @fire at @at; UINT64_MAX: never. */
void kv_timer_start_locked(struct kvfs_session *session, struct kv_timer *timer,
			   uint64_t at);
void kv_timer_stop_locked(struct kvfs_session *session, struct kv_timer *timer);

#endif
