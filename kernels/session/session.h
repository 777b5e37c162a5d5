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

#include "common/layout.h"
#include "kernels/kvfs.h"
#include "kernels/session/rpc.h"

struct kvfs_device;
struct kv_copier;
struct kvfs_pool;
struct kv_stream_sync;
struct kv_stage;

TAILQ_HEAD(kv_xfers, kvfs_xfer);

/* Host memory that a device may know; embedded in the owner of the memory.  A
 * zeroed struct is not attached. */
struct kv_attached {
	TAILQ_ENTRY(kv_attached) others;
	const struct kvfs_device *device; /* NULL: not attached */
	void *base;
	void (*detached)(struct kvfs_session *session, struct kv_attached *a);
};
TAILQ_HEAD(kv_attached_list, kv_attached);

struct kv_mapped_segment {
	TAILQ_ENTRY(kv_mapped_segment) others;
	uint32_t id;
	uint64_t generation; /* number of the segment's connection */
	int error;	     /* -errno of a failed mmap(2), or 0 */
	const uint8_t *base; /* NULL: not mapped */
	uint64_t bytes;
	unsigned refs; /* held blocks and copies that use the segment */
	bool retired;  /* unmap the segment with the last reference */
	int kept;      /* lost connection's socket; -1: kept elsewhere */
	struct kv_attached attached;
};
TAILQ_HEAD(kv_mapped_segments, kv_mapped_segment);

/* A deadline, embedded in its owner and fired by the reader thread.  A zeroed
 * timer is stopped. */
struct kv_timer {
	LIST_ENTRY(kv_timer) others;
	uint64_t at; /* time to fire, by kv_now_ns; 0: stopped */
	/* Called with session->lock held, after the timer was stopped. */
	void (*fire)(struct kv_timer *timer);
};
LIST_HEAD(kv_timers, kv_timer);

/* Hooks of the folder transfer/, which the first pool or transfer of a session
 * registers. */
struct kv_session_user {
	/* The connection has ended, and all requests on it were answered with
	 * an error. */
	void (*broken_locked)(struct kvfs_session *session);
	/* A connection was made. */
	void (*connected_locked)(struct kvfs_session *session);
	/* The caller closes the session: end all transfers, and make no more
	 * staging.  Called with session->lock held; releases the lock
	 * meanwhile. */
	void (*closing)(struct kvfs_session *session);
	/* The reader thread has ended.  Called without a lock. */
	void (*closed)(struct kvfs_session *session);
	/* Called in the child of a fork(2), without a lock. */
	void (*forked)(struct kvfs_session *session);
	/* The space @name is about to be cleared. */
	void (*clearing_locked)(struct kvfs_session *session, const char *name);
	void (*cleared_locked)(struct kvfs_session *session, const char *name);
};

struct kvfs_session {
	/* fixed after open */
	char *path;
	unsigned fork_count; /* number of forks before kvfs_open */
	int epoll_fd;	     /* epoll in which the reader thread sleeps */
	int wake_fd;	     /* eventfd that ends the reader thread's sleep */
	int nudge_fd;	     /* eventfd that ends the borrower's sleep */
	pthread_t reader;
	TAILQ_ENTRY(kvfs_session) siblings; /* forks_lock */

	/* The look-up connection: a calling thread sends a question on it and
	 * receives the reply, with lookup_lock held. */
	pthread_mutex_t lookup_lock;
	struct kv_link lookup; /* lookup_lock */
	uint64_t lookup_tags;  /* lookup_lock */
	uint64_t quiet_until;  /* lookup_lock; look-ups miss until this time */

	/* Held from the receipt of a message until the message was handled, so
	 * that messages take effect in order. */
	pthread_mutex_t receive_lock;
	uint8_t *received; /* WIRE_MAX bytes, guarded by receive_lock */
	bool broken; /* the link must be closed; guarded by receive_lock */

	pthread_mutex_t lock;
	/* signalled when a lease, transfer or link changed */
	pthread_cond_t changed;

	/* All fields from here on are guarded by lock.  A change of link needs
	 * receive_lock as well. */
	struct kv_link link;
	char socket_path[KV_SOCKET_PATH_MAX];
	uint64_t generations;  /* connections so far */
	_Atomic uint64_t live; /* number of the open connection; 0: none */
	_Atomic int lost;      /* error of the last attempt to connect */
	/* -EPROTONOSUPPORT or -EPERM if a daemon exists that cannot be used;
	 * else 0 */
	_Atomic int refused;
	bool tried; /* at least one attempt to connect has ended */
	bool closing;
	/* A thread in kv_session_wait has borrowed the socket: it receives the
	 * messages, and the reader thread sleeps on. */
	bool borrowed;
	unsigned heirs; /* waiting threads that may borrow the socket */
	_Atomic bool borrower_sleeps; /* the borrower polls; set with lock */
	bool wants_room; /* the reader thread waits for room in the socket */
	uint64_t sleeps_until; /* time when the reader thread wakes by itself */
	int event_fd;	       /* -1 until kvfs_fd */
	unsigned completed; /* leases and transfers ended since kvfs_process */
	bool link_changed;  /* connection changed since the last kvfs_process */
	bool link_unreaped; /* connection changed since kvfs_reap */
	struct kv_notices notices; /* rpc.c */
	struct kv_rpc rpc;
	struct kv_timers timers;
	/* mapped_segment.c */
	struct kv_mapped_segments mappings;
	/* device of attached memory; NULL: end the detacher */
	const struct kvfs_device *attacher;
	struct kv_attached_list detaching;
	pthread_cond_t detach;
	pthread_t detacher;
	/* connection on which WIRE_REGISTERS asked for open segments, or 0 */
	uint64_t asked_open;
	const struct kv_session_user *user; /* NULL until the first pool */
	struct kv_copier *copier;	    /* NULL until the first pool */
	/* sync thread; NULL: no pool has streams */
	struct kv_stream_sync *stream_sync;
	struct kv_stage *stage; /* staging memory of this connection, or NULL */
	struct kv_stage *stage_next; /* next staging, unknown to the daemon */
	bool stage_making, stage_growing;
	bool stage_full; /* a save did not fit into @stage */
	/* bytes of the largest block that a pool saves by staging; 0: there is
	 * no such pool */
	uint64_t stage_payload;
	uint64_t stage_grows_at; /* earliest time to try to grow @stage */
	bool staging_asked;	 /* kvfs_pool_staging was called */
	uint64_t staging_bytes;	 /* smallest size of staging */
	struct kv_xfers active;	 /* transfers in flight, oldest first */
	struct kv_xfers saves; /* saves with blocks to reserve, oldest first */
	size_t reserved;       /* blocks that the daemon reserves for saves */
	LIST_HEAD(, kvfs_pool) pools;
	uint32_t lending_ids;
};

/* Wait on @cond until the time @at (UINT64_MAX: without limit); session->lock
 * is released meanwhile.  Return 0 or -ETIMEDOUT. */
int kv_session_wait_for(struct kvfs_session *session, pthread_cond_t *cond,
			uint64_t at);

/* Check a handle's session.
 * 0: the session may be used
 * -EINVAL: @session is NULL
 * -EBADF: the session was opened by the parent of this process */
int kv_session_check(const struct kvfs_session *session);

/* Return whether connection number @generation still exists.  Any thread. */
static inline bool kv_session_is_live(struct kvfs_session *session,
				      uint64_t generation)
{
	return generation != 0 && atomic_load(&session->live) == generation;
}

/* Wake the reader thread; any thread. */
void kv_session_wake(struct kvfs_session *session);

/* Count a completed lease or transfer; make kvfs_fd readable, wake waiters. */
void kv_session_completed_locked(struct kvfs_session *session);

/* Wake the threads in kv_session_wait: something changed. */
void kv_session_changed_locked(struct kvfs_session *session);

/* Make kvfs_fd unreadable.  Return the number of leases and transfers that have
 * completed since the last call. */
unsigned kv_session_clear_news_locked(struct kvfs_session *session);

/* Return 1, 0 or -errno, as kvfs_connection does. */
int kv_session_state_locked(const struct kvfs_session *session);

/* Return the time @deadline nanoseconds from now; UINT64_MAX: never. */
uint64_t kv_time_after(uint64_t deadline);

/* Sleep until something changed, which may be nothing of interest, or until
 * the time @at; session->lock is released meanwhile.  If replies are expected
 * and no other thread does so, this thread receives them: that saves waking the
 * reader thread first.  Return 0 or -ETIMEDOUT. */
int kv_session_wait(struct kvfs_session *session, uint64_t at);

/* The daemon enforces deadlines and answers cancels.  The library waits this
 * many nanoseconds longer for the daemon's answer, so that every wait ends
 * within 50 ms of its deadline. */
#define KV_GRACE_NS 40000000u

/* Call timer->fire at the time @at; UINT64_MAX: never.  A timer that runs is
 * restarted. */
void kv_timer_start_locked(struct kvfs_session *session, struct kv_timer *timer,
			   uint64_t at);
void kv_timer_stop_locked(struct kvfs_session *session, struct kv_timer *timer);

/* ---- arena segments of the daemon, mapped read-only (mapped_segment.c) ----
 *
 * These functions and those for attached memory are called with session->lock held. */

/*
 * Map a segment that the daemon has sent in @fd, which the caller closes.
 * @lost: the process could not receive a descriptor.  Without a descriptor or
 * address space the segment is given back to the daemon, which sends it again
 * with the next acquired block.  A segment that is not sealed against shrinking
 * is ignored.
 */
void kv_mapped_segment_add_locked(struct kvfs_session *session,
				  const struct wire_segment *segment, int fd,
				  bool lost);

/* Unmap the segment @id as soon as no block of it is held: the daemon wants its
 * memory back. */
void kv_mapped_segment_retire_locked(struct kvfs_session *session, uint32_t id);

/* Retire all segments, because the connection to their daemon has ended.  Takes
 * over its socket @fd (-1: none), and closes the socket when no segment of the
 * connection is in use. */
void kv_mapped_segment_retire_all_locked(struct kvfs_session *session, int fd);

/* Take a reference to the segment @id of this connection, in which the @length
 * bytes at @offset must lie.
 * -EMFILE, -ENOMEM and errors of mmap(2): the segment could not be mapped
 * -EIO: no such segment, or no such bytes in it */
int kv_mapped_segment_get_locked(struct kvfs_session *session, uint32_t id,
				 uint64_t offset, uint64_t length,
				 struct kv_mapped_segment **ret_mapped);
void kv_mapped_segment_put_locked(struct kvfs_session *session,
				  struct kv_mapped_segment *mapping);

/* ---- memory attached to a device ---- */

/* Note that the session has a pool on @device.  The first device that can
 * attach memory gets all segments, present and future, and a thread to detach
 * them.  -EAGAIN: the thread cannot start. */
int kv_attach_device_locked(struct kvfs_session *session,
			    const struct kvfs_device *device);
/* Detach the remaining memory from devices, and end the detacher thread. */
void kv_attach_end(struct kvfs_session *session);

/* Ask the daemon for segments that may be mapped writable, if the device needs
 * that; once for each connection.  Call this after a connection, a new pool, or
 * a newly attached segment. */
void kv_attach_ask_locked(struct kvfs_session *session);

/* Attach host memory to the session's device, before copies read it or
 * (@writable) write it. */
void kv_attach_locked(struct kvfs_session *session, struct kv_attached *a,
		      const void *base, uint64_t bytes, bool writable);

/* Detach memory that no copy uses any more from its device.  Return false if
 * the memory is not attached.  Otherwise return true; a thread without a lock
 * calls @detached when the device has released the memory. */
bool kv_detach_locked(struct kvfs_session *session, struct kv_attached *a,
		      void (*detached)(struct kvfs_session *session,
				       struct kv_attached *a));

/* ---- the record of a space: its name, layout and id (space.c) ---- */

struct kv_layout_seen; /* a layout that callers may still use */

struct kvfs_space {
	kvfs_session *session;
	char *name, *text; /* fixed; @text: the caller's layout, or "" */
	unsigned flags;	   /* fixed; flags and mode given to kvfs_space_open */
	unsigned refs;	   /* guarded by lock */
	uint32_t id;	   /* guarded by lock; the daemon's id of the space */
	uint64_t known_by; /* lock; connection on which @id is valid */
	/* guarded by lock; last values that the daemon has reported, if @told */
	uint32_t uid, mode;
	bool told;
	struct kv_layout_seen *layouts; /* newest first; guarded by lock */
};

/* Return the daemon's id of the space, valid on connection *@ret_generation.
 * Asks the daemon if the connection has changed.  The caller holds no lock.
 * -ENOTCONN: no daemon answers
 * -ENOENT, -EACCES, -EEXIST, -EROFS, -EINVAL: as kvfs_space_open */
int kv_lib_space_id(struct kvfs_space *space, uint32_t *ret_id,
		    uint64_t *ret_generation);

/* Send the question of kv_lib_space_id on the asynchronous connection, which has
 * no time-out.  In call->done, a status of 0 or more comes with a wire_space
 * and call->count bytes behind it, for kv_lib_space_take_locked.
 * -ENOTCONN, -ENOMEM: as kv_rpc_submit_locked */
int kv_lib_space_submit_locked(struct kvfs_space *space, struct kv_call *call);

/* Store what the daemon of connection @generation replied about the space: @head
 * and the @n bytes behind it.
 * -ESTALE: stored, but the space has not the tensors of @like (NULL: any)
 * -EPROTO, -ENOMEM, errors of kv_layout_parse: nothing was stored */
int kv_lib_space_take_locked(struct kvfs_space *space, uint64_t generation,
			     const struct wire_space *head, long n,
			     const struct kv_layout *like);

/* Ask a question about the space, as kv_ask does.  Errors also as for
 * kv_lib_space_id. */
long kv_space_ask(struct kvfs_space *space, struct kv_question *question);

/* Translate an error of kv_lib_space_id for look-ups of blocks: a space that
 * the caller may not read counts as absent (-ENOENT). */
int kv_lib_space_miss(int r);

/* Forget the space's id, because the daemon does not know the id any more.  The
 * next use asks the daemon again. */
void kv_lib_space_forget_locked(struct kvfs_space *space);

/* Return the current layout, valid while the space exists; NULL: untyped. */
const struct kv_layout *kv_lib_space_layout(struct kvfs_space *space);

/* Return whether @a and @b have the same tensors in the same order. */
bool kv_lib_layout_same_tensors(const struct kv_layout *a,
				const struct kv_layout *b);

void kv_lib_space_get_locked(struct kvfs_space *space);
void kv_lib_space_put_locked(struct kvfs_space *space);

/* ---- checks and conversions of keys (query.c) ---- */

#define KV_QUERY_KEYS_MAX ((size_t)KVFS_KEYS_MAX)

/*
 * Check @queries.  Return the number of their keys, and the session (NULL without
 * a query).  -EINVAL: a null, a key whose length is not 16 or 32, spaces of
 * different sessions, too many keys; -EBADF.
 */
long kv_queries_check(const kvfs_query *queries, size_t n_queries,
		      kvfs_session **ret_session);

/* Return whether there are at most KV_QUERY_KEYS_MAX keys of 16 or 32 bytes. */
bool kv_wire_keys_are_valid(const kvfs_key *keys, size_t n);

/* Convert @n keys to the form of messages. */
void kv_wire_keys(const kvfs_key *keys, size_t n, struct wire_key *ret_keys);

/* ---- structs of a caller that was built against another kvfs.h (abi.c) ---- */

/*
 * Copy the caller's struct @from, whose first member is its size, to the
 * library's struct of @known bytes at @ret.  Members that the caller's struct
 * lacks become zero.
 * -EINVAL: the size is too small for the size member itself
 * -E2BIG: the caller set a member that the library does not know, or the size
 * is more than 4096
 */
int kv_abi_in(void *ret, size_t known, const void *from);

/* Copy the caller's options @opts to @ret_opts as kv_abi_in does.  Without
 * options (NULL) all members are zero. */
int kv_abi_opts(kvfs_opts *ret_opts, const kvfs_opts *opts);

/* Return whether @opts sets only deadline, user and the flags in @flags. */
bool kv_abi_opts_are_plain(const kvfs_opts *opts, unsigned flags);

/* Copy the library's struct @from of @known bytes to the caller's struct @ret,
 * up to the size in @ret.  Members that the library lacks become zero.  Errors
 * as for kv_abi_in. */
int kv_abi_out(void *ret, const void *from, size_t known);

bool kv_abi_is_zero(const void *reserved, size_t bytes);

#endif
