/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xfer.h - a transfer: blocks on their way, and the stage of each.
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
 * Operations of one kind of transfer.  NULL: nothing to do.  All but drop with
 * session->lock held.
 */
struct kv_xfer_ops {
	/* Blocks go to the daemon: pages are read, and SEALED and DURABLE come
	 * after COPIED.  Otherwise pages are written, and the transfer ends with
	 * COPIED. */
	bool to_daemon;
	/* The event wait (stream_sync.h) is over. */
	void (*event_over_locked)(struct kvfs_xfer *xfer);
	/* xfer->stopped was set: end the blocks that have not begun. */
	void (*stopped_locked)(struct kvfs_xfer *xfer);
	/* Every block is COPIED, or SEALED, or has failed. */
	void (*copied_locked)(struct kvfs_xfer *xfer);
	void (*sealed_locked)(struct kvfs_xfer *xfer);
	/* A caller waits for DURABLE. */
	void (*want_durable_locked)(struct kvfs_xfer *xfer);
	/* No caller waits any more: blocks that are not DURABLE soon end with
	 * @status. */
	void (*stop_durable_locked)(struct kvfs_xfer *xfer, int status);
	/* Of a load layer by layer: whether all blocks of the step are copied or
	 * have failed.  Any thread, lock not needed. */
	bool (*step_is_over)(const struct kvfs_xfer *xfer, size_t step);
	/* The same: whether the device was given all of the step. */
	bool (*step_is_submitted)(const struct kvfs_xfer *xfer, size_t step);
	/* The caller has freed the transfer. */
	void (*freed_locked)(struct kvfs_xfer *xfer);
	/* Free the fields of the kind: the transfer is being freed. */
	void (*drop)(struct kvfs_xfer *xfer);
};

/* Place of an event wait in a stream: of two in one stream the one with the
 * lower number ends first. */
struct kv_stream_place {
	const void *stream; /* NULL: in no stream that is known */
	uint64_t number;
};

struct kv_submission; /* stream_sync.c */
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
	uint64_t generation; /* of the connection at the start */
	int64_t *pages;
	size_t n_pages;			  /* -1 included */
	const struct kvfs_device *device; /* the pool's; NULL: no pages */
	uint32_t first_layer, layers;	  /* of the layout */
	struct kvfs_range *ranges;	  /* of those layers; NULL: all bytes */
	size_t n_ranges;
	size_t steps; /* of a load layer by layer; else 0 */
	uint32_t layers_a_step;
	unsigned flags; /* of kvfs_opts */
	int priority;
	struct wire_save *blocks; /* save: but for offsets in the staging */
	struct kv_save_ids *ids;  /* save; NULL: no token ids */
	uint64_t deadline_at;

	/* lock */
	TAILQ_ENTRY(kvfs_xfer) others; /* in session->active */
	TAILQ_ENTRY(kvfs_xfer) queue;  /* in session->saves, lease->waiting */
	bool active, queued;
	unsigned refs; /* the caller; being active; jobs, batches, calls */
	size_t left[KVFS_DURABLE + 1]; /* by stage: not there, and not failed */
	size_t got[KVFS_DURABLE + 1];  /* by stage: blocks that reached it */
	struct kv_timer timer;
	struct kv_notice notice;
	/* Called once for each stage that every block has reached, or failed.
	 * NULL: no function. */
	void (*over)(struct kvfs_xfer *xfer, enum kvfs_stage stage);
	void *owner; /* for over: a map */

	/* stream_sync.c */
	void *event_wait;	       /* fixed until COPIED; NULL: none */
	struct kv_stream_place place;  /* of the event wait; fixed */
	bool event_over;	       /* lock: the event wait is done */
	bool waits_for_event;	       /* lock: in sync->waiting */
	struct kvfs_pool *event_pool;  /* lock: busy until the event wait is
					  freed */
	TAILQ_ENTRY(kvfs_xfer) synced; /* in a list of sync */
	TAILQ_HEAD(, kv_submission) submissions; /* lock: SUBMITTED ones */
	size_t submitted;     /* lock: of left[COPIED], the device has them */
	bool all_submitted;   /* lock */
	size_t got_submitted; /* lock: blocks that had not failed by then */

	/* lock: flush.c */
	bool flush_asked; /* a caller waits for DURABLE */
	bool flush_sent;
	struct kv_keys keys; /* lock: requests to flush, or of a prefetch */

	/* load */
	struct kvfs_lease *lease; /* until COPIED */
	size_t first;		  /* in the lease */
	struct kv_load *load;

	/* save; lock */
	uint32_t *todo;		/* ring of blocks that are in no batch */
	size_t todo_at, todo_n; /* first entry, and number of entries */
	struct kv_timer again;	/* runs while the save waits for room */
	uint64_t pause;		/* before the next try; 0: there was room */
	LIST_HEAD(, kv_save_batch) batches; /* under way, and wanted */
	struct kv_hold **held;		    /* by block; NULL: no KVFS_HOLD */

	_Atomic unsigned layer_waiters; /* threads that wait for steps */
	_Atomic int stopped;  /* 0, or the status of blocks not begun yet */
	_Atomic int status[]; /* of the blocks; the block's owner writes */
};

/* Make a transfer of @n blocks, with the caller's reference only.  -ENOMEM. */
int kv_xfer_new(struct kvfs_session *session, const struct kv_xfer_ops *ops,
		size_t n, struct kvfs_xfer **ret_xfer);
/* Free a transfer that was never activated.  Takes NULL. */
void kv_xfer_free(struct kvfs_xfer *xfer);
void kv_xfer_freep(struct kvfs_xfer **xfer);

/* Have kvfs_reap report these stages with the word @user, unless that is 0;
 * call it before the transfer is activated. */
void kv_xfer_tell_locked(struct kvfs_xfer *xfer, enum kvfs_event_what what,
			 uint64_t user, unsigned stages);

/* Begin: the transfer is under way, and its pages count as in use. */
void kv_xfer_activate_locked(struct kvfs_xfer *xfer);

void kv_xfer_get_locked(struct kvfs_xfer *xfer);
void kv_xfer_put_locked(struct kvfs_xfer *xfer);
/* The same for the owner of xfer->keys. */
void kv_xfer_keys_get_locked(struct kv_keys *keys);
void kv_xfer_keys_put_locked(struct kv_keys *keys);

/* @n more blocks have reached @stage; their statuses are set. */
void kv_xfer_reach_locked(struct kvfs_xfer *xfer, enum kvfs_stage stage,
			  size_t n);
/* The device was given @n more of the blocks that are not COPIED yet; or has
 * ended @n of them, which is called before they count as COPIED or failed. */
void kv_xfer_submit_locked(struct kvfs_xfer *xfer, size_t n);
void kv_xfer_unsubmit_locked(struct kvfs_xfer *xfer, size_t n);
/* Whether the device was given all blocks: only its copies touch the pages. */
bool kv_xfer_is_submitted_locked(const struct kvfs_xfer *xfer);

/* @good blocks have reached all stages, and @bad blocks fail, of a transfer
 * that ends with COPIED. */
void kv_xfer_over_locked(struct kvfs_xfer *xfer, size_t good, size_t bad);

/* @n blocks will never reach @stage or a later one; their statuses are set. */
void kv_xfer_fail_locked(struct kvfs_xfer *xfer, enum kvfs_stage stage,
			 size_t n);

/*
 * Wait until no transfer uses pages of @pool, or, with NULL, until no transfer
 * of the session is under way.  If the daemon hangs, blocks that have not begun
 * end with -ETIMEDOUT; so do, after five seconds, blocks that wait for a
 * stream, which may never end.
 */
void kv_xfers_drain(struct kvfs_session *session, struct kvfs_pool *pool);

/* A step of @xfer is over: wake its waiters.  No lock held. */
void kv_xfer_step_over(struct kvfs_xfer *xfer);
/* Check that @layer is one of the layers of @xfer.  -EINVAL, -EBADF. */
int kv_xfer_check_layer(const struct kvfs_xfer *xfer, uint32_t layer);

/* Copy @pages, pages_per_block of @pool for each block.  -EINVAL, -ENOMEM. */
int kv_xfer_set_pages(struct kvfs_xfer *xfer, const struct kvfs_pool *pool,
		      const int64_t *pages);

/* End the blocks that have not begun with @status. */
void kv_xfer_stop_locked(struct kvfs_xfer *xfer, int status);

/*
 * Set deadline, layers, priority, flags (of which the kind knows @flags) and
 * order of a transfer of @pool from @opts.  On the caller's thread, no lock
 * held, before the transfer is activated.  -EINVAL: no such layers, other
 * flags; errors of kv_stream_sync_take.
 */
int kv_opts_take(struct kvfs_xfer *xfer, const struct kvfs_pool *pool,
		 const kvfs_opts *opts, unsigned flags);

/*
 * Put the bytes of the layers @first .. + @n, which must exist, into
 * @ret_ranges, which has room for layout->layer_pieces: ascending, apart, not
 * empty.  Return the number of ranges.
 */
size_t kv_layout_ranges(const struct kv_layout *layout, uint32_t first,
			uint32_t n, struct kvfs_range *ret_ranges);

#endif
