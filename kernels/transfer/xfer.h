/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xfer.h - a transfer: blocks on their way, and how far each has got.
 *
 * Calls in _locked, and kv_xfers_drain, with session->lock held.
 */
#ifndef KV_KERNELS_TRANSFER_XFER_H
#define KV_KERNELS_TRANSFER_XFER_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "kernels/device/device.h"
#include "kernels/kvfs.h"
#include "kernels/session/rpc.h"
#include "kernels/session/session.h"
#include "kernels/transfer/keys_call.h"
#include "common/layout.h"
#include "common/wire.h"

struct kvfs_xfer;

/*
 * The turns of a transfer, for its kind.  NULL: nothing.  All but drop with
 * session->lock held.
 */
struct kv_xfer_ops {
	/* Blocks go to the daemon: SEALED and DURABLE come after COPIED,
	 * and pages are read.  Else it is over when COPIED, and pages are
	 * written. */
	bool to_daemon;
	/* The event wait, as stream_sync.h says, is over. */
	void (*event_over_locked)(struct kvfs_xfer *xfer);
	/* xfer->stopped was set: what has not begun ends now. */
	void (*stopped_locked)(struct kvfs_xfer *xfer);
	/* Every block is COPIED, or SEALED, or has failed. */
	void (*copied_locked)(struct kvfs_xfer *xfer);
	void (*sealed_locked)(struct kvfs_xfer *xfer);
	/* Somebody waits for DURABLE. */
	void (*want_durable_locked)(struct kvfs_xfer *xfer);
	/* Nobody does any more: what is not DURABLE soon ends with @status. */
	void (*stop_durable_locked)(struct kvfs_xfer *xfer, int status);
	/* Of one that goes layer by layer: all blocks of that step have come,
	 * or failed.  Any thread, without the lock, too. */
	bool (*step_is_over)(const struct kvfs_xfer *xfer, size_t step);
	/* The same: the device has been given all of that step. */
	bool (*step_is_submitted)(const struct kvfs_xfer *xfer, size_t step);
	/* The caller has freed it. */
	void (*freed_locked)(struct kvfs_xfer *xfer);
	/* Free what is the kind's own: the transfer is being freed. */
	void (*drop)(struct kvfs_xfer *xfer);
};

/* Where in a stream an event wait is: of two in one stream the one that was made
 * first is done first. */
struct kv_stream_place {
	const void *stream; /* NULL: in none that others are in */
	uint64_t number;
};

struct kvfs_device;
struct kv_submission; /* submission.c */
struct kv_hold;	      /* save.c */
struct kv_load;	      /* load.c */
struct kv_save_batch; /* batch.c */
struct kv_save_ids;   /* save.c */

struct kvfs_xfer {
	/* fixed after start */
	struct kvfs_session *session;
	const struct kv_xfer_ops *ops;
	size_t n;		  /* blocks; 1 for a barrier */
	struct kvfs_pool *pool;	  /* load, save: until COPIED */
	struct kvfs_space *space; /* save, barrier: held */
	uint32_t space_id;
	uint64_t generation; /* of the connection it began on */
	int64_t *pages;
	size_t n_pages;			  /* -1 included */
	const struct kvfs_device *device; /* the pool's; NULL: no pages */
	uint32_t first_layer, layers;	  /* of the layout; all, if not said */
	struct kvfs_range *ranges;	  /* of those layers; NULL: all of it */
	size_t n_ranges;
	size_t steps; /* it goes layer by layer in so many; else 0 */
	uint32_t layers_a_step;
	unsigned flags; /* of kvfs_opts */
	int priority;
	struct wire_save *blocks; /* save: offsets are filled in as they go */
	struct kv_save_ids *ids;  /* save; NULL: tokens are not told */
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
	struct kv_notice notice;
	/* For whoever built on it, once a stage: every block has reached it, or
	 * failed.  NULL: nobody. */
	void (*over)(struct kvfs_xfer *xfer, enum kvfs_stage stage);
	void *owner; /* over's, a map's */

	/* stream_sync.c */
	void *event_wait; /* fixed until COPIED; NULL: nothing to wait for */
	struct kv_stream_place place;  /* of the event wait; fixed */
	bool event_over;	       /* lock: the event wait is done */
	bool waits_for_event;	       /* lock: in sync->waiting */
	struct kvfs_pool *event_pool;  /* lock: busy until the event wait is
					     freed; NULL: it is not over */
	TAILQ_ENTRY(kvfs_xfer) synced; /* in one of sync's lists */

	/* submission.c; lock */
	TAILQ_HEAD(, kv_submission) submissions; /* the device has them */
	size_t submitted; /* of left[COPIED], blocks that it has all of */
	bool all_submitted;
	size_t got_submitted; /* blocks that were not failed when it became so */

	/* Flushing, flush.c */
	bool flush_asked; /* lock: somebody waits for DURABLE */
	bool flush_sent;  /* lock */

	/* load */
	struct kvfs_lease *lease; /* until COPIED */
	size_t first;		  /* in the lease */
	struct kv_load *load;

	struct kv_keys keys; /* lock: of a prefetch, or to flush */

	/* save; lock */
	uint32_t *todo;		/* ring of blocks that are in no batch yet */
	size_t todo_at, todo_n; /* its first entry, and how many it has */
	struct kv_timer again;	/* runs while it waits for room */
	uint64_t pause;		/* before it tries again; 0: there was room */
	LIST_HEAD(, kv_save_batch) batches; /* under way, and wanted */
	struct kv_hold **held; /* by block; NULL: nothing is to be held */

	_Atomic unsigned layer_waiters; /* who waits for steps */
	_Atomic int stopped;  /* 0, or why blocks not begun yet shall fail */
	_Atomic int status[]; /* of the blocks; written by who has them */
};

/* A transfer of @n blocks that nothing has happened to; the caller's
 * reference only.  -ENOMEM. */
int kv_xfer_new(struct kvfs_session *session, const struct kv_xfer_ops *ops,
		size_t n, struct kvfs_xfer **ret_xfer);
/* Free one that was never activated.  Takes NULL. */
void kv_xfer_free(struct kvfs_xfer *xfer);
void kv_xfer_freep(struct kvfs_xfer **xfer);

/* kvfs_reap is to tell of these stages by @user, if that is not 0; before it is
 * activated. */
void kv_xfer_tell_locked(struct kvfs_xfer *xfer, enum kvfs_event_what what,
			 uint64_t user, unsigned stages);

/* Begin: it is under way from here on.  Pages are counted as the pool's here.
 */
void kv_xfer_activate_locked(struct kvfs_xfer *xfer);

void kv_xfer_get_locked(struct kvfs_xfer *xfer);
void kv_xfer_put_locked(struct kvfs_xfer *xfer);
/* The same for the owner of xfer->keys. */
void kv_xfer_keys_get_locked(struct kv_keys *keys);
void kv_xfer_keys_put_locked(struct kv_keys *keys);

/* @n more blocks have come to @stage; their statuses are set. */
void kv_xfer_reach_locked(struct kvfs_xfer *xfer, enum kvfs_stage stage,
			  size_t n);
/* The device has been given all of @n more blocks of those not COPIED yet; or
 * has done with them, which is told before they are counted as COPIED or
 * failed. */
void kv_xfer_submit_locked(struct kvfs_xfer *xfer, size_t n);
void kv_xfer_unsubmit_locked(struct kvfs_xfer *xfer, size_t n);
/* Whether it has been given all there is: nothing more of the pages will be
 * touched but by what was given to the device. */
bool kv_xfer_is_submitted_locked(const struct kvfs_xfer *xfer);

/* @n blocks will never come to @stage or a later one; their statuses are set.
 */
void kv_xfer_fail_locked(struct kvfs_xfer *xfer, enum kvfs_stage stage,
			 size_t n);

/*
 * Wait until no transfer uses pages of @pool, or NULL: until none of the
 * session's is under way.  If the daemon answers nothing meanwhile, they are
 * not waited for: what has not begun ends with -ETIMEDOUT.  So does after five
 * seconds what waits for a stream, which may never be over.
 */
void kv_xfers_drain(struct kvfs_session *session, struct kvfs_pool *pool);

/* A step of @xfer is over: tell who waits for that.  No lock held. */
void kv_xfer_step_over(struct kvfs_xfer *xfer);

/* Blocks not begun end with @status. */
void kv_xfer_stop_locked(struct kvfs_xfer *xfer, int status);

/*
 * Take over @opts (NULL: none) for a transfer of @pool: deadline, layers,
 * priority, flags (of which it knows @flags) and order.  On the caller's
 * thread, no lock held, before the transfer is activated.
 * -EINVAL: layers that are not there, other flags; errors of
 * kv_stream_sync_take.
 */
int kv_opts_take(struct kvfs_xfer *xfer, const struct kvfs_pool *pool,
		 const kvfs_opts *opts, unsigned flags);

/*
 * The bytes of layers @first .. + @n, which must be there, into @ret_ranges:
 * room for layout->layer_pieces.  Ascending, apart, none of them empty.  Returns
 * how many ranges that are.
 */
size_t kv_layout_ranges(const struct kv_layout *layout, uint32_t first,
			uint32_t n, struct kvfs_range *ret_ranges);

#endif
