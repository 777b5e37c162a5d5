/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xfer.h - a transfer: blocks on their way, and how far each has got.
 *
 * All calls with session->lock held.
 */
#ifndef KV_XFER_H
#define KV_XFER_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "kernels/copier.h"
#include "kernels/kvfs.h"
#include "kernels/rpc.h"
#include "kernels/session.h"
#include "kernels/timer.h"
#include "wire.h"

/* The first three bring blocks in: they are over when that is done. */
enum kv_xfer_kind {
	KV_XFER_LOAD,
	KV_XFER_RESTORE,
	KV_XFER_PREFETCH,
	KV_XFER_SAVE,
	KV_XFER_BARRIER,
};

static inline bool kv_xfer_brings_in(enum kv_xfer_kind kind)
{
	return kind <= KV_XFER_PREFETCH;
}

struct kv_load_job;	 /* load.c */
struct kv_prefetch_part; /* prefetch.c */

struct kvfs_xfer {
	/* fixed after start */
	struct kvfs_session *session;
	enum kv_xfer_kind kind;
	size_t n;		  /* blocks; 1 for a barrier */
	struct kvfs_pool *pool;	  /* load, save: until COPIED */
	struct kvfs_space *space; /* save, barrier: held */
	uint32_t space_id;
	uint64_t generation; /* of the connection it began on */
	int64_t *pages;
	uint64_t n_pages;	  /* of them not -1 */
	struct wire_save *blocks; /* save: offsets are filled in as they go */
	uint64_t deadline_at;

	/* lock */
	TAILQ_ENTRY(kvfs_xfer) others; /* in session->active */
	TAILQ_ENTRY(kvfs_xfer) queue;  /* in session->saves, lease->waiting */
	bool active, queued;
	unsigned refs; /* the caller's; being active; jobs, batches, calls */
	size_t left[KVFS_DURABLE + 1]; /* by stage: blocks neither there nor
					  failed */
	size_t got[KVFS_DURABLE + 1];  /* by stage: blocks that are there */
	struct kv_timer timer;

	/* Flushing, flush.c */
	bool flush_asked; /* lock: somebody waits for DURABLE */
	bool flush_sent;  /* lock */

	/* load */
	struct kvfs_lease *lease; /* until COPIED */
	size_t first;		  /* in the lease */
	atomic_size_t next;	  /* block that the next free job takes */
	struct kv_load_job *jobs;

	/* prefetch */
	struct kv_prefetch_part *parts;
	size_t n_parts;

	/* save; lock */
	size_t reserved; /* blocks that are in batches, or past them */

	_Atomic int stopped;  /* 0, or why blocks not begun yet shall fail */
	_Atomic int status[]; /* of the blocks; written by who has them */
};

/* A transfer of @n blocks that nothing has happened to; the caller's
 * reference only.  -ENOMEM. */
int kv_xfer_new(struct kvfs_session *session, enum kv_xfer_kind kind, size_t n,
		struct kvfs_xfer **ret_xfer);
/* One that was never activated.  Takes NULL. */
void kv_xfer_free(struct kvfs_xfer *xfer);

/* It is under way from here on.  Pages are counted as the pool's here. */
void kv_xfer_activate_locked(struct kvfs_xfer *xfer);

void kv_xfer_get_locked(struct kvfs_xfer *xfer);
void kv_xfer_put_locked(struct kvfs_xfer *xfer);

/* @n more blocks have come to @stage; their statuses are set. */
void kv_xfer_reach_locked(struct kvfs_xfer *xfer, enum kvfs_stage stage,
			  size_t n);
/* @n blocks will never come to @stage or a later one; their statuses are set.
 */
void kv_xfer_fail_locked(struct kvfs_xfer *xfer, enum kvfs_stage stage,
			 size_t n);

/* Blocks not begun end with @status. */
void kv_xfer_stop_locked(struct kvfs_xfer *xfer, int status);

#endif
