/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xfer.h - a transfer: blocks that are copied between pages and the daemon, and
 * the stage that each has reached.
 *
 * Functions named _locked, and kv_xfers_drain, are called with session->lock
 * held.
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

/* A thread in kvfs_xfer_wait copies pieces of its transfer, of at most this many
 * bytes, which take less time than waking a copy thread.  The jobs that it may
 * run have the transfer as their owner, and are copies in plain memory: a
 * plug-in's device may hang beyond the deadline. */
#define KV_HELP_BYTES (256u << 10)

/* Operations of one kind of transfer, such as loads; NULL: nothing to do.  All
 * but drop are called with session->lock held. */
struct kv_xfer_ops {
	/* true: the transfer reads pages, and SEALED and DURABLE come after
	 *       COPIED.  false: it writes pages, and ends with COPIED. */
	bool to_daemon;
	/* xfer->stopped was set: end the blocks that have not begun. */
	void (*stopped_locked)(struct kvfs_xfer *xfer);
	/* Every block is COPIED (or SEALED), or has failed. */
	void (*copied_locked)(struct kvfs_xfer *xfer);
	void (*sealed_locked)(struct kvfs_xfer *xfer);
	/* A caller waits until the transfer is DURABLE. */
	void (*want_durable_locked)(struct kvfs_xfer *xfer);
	/* Stop waiting for DURABLE: blocks that do not become DURABLE soon end
	 * with @status. */
	void (*stop_durable_locked)(struct kvfs_xfer *xfer, int status);
	/* The caller has freed the transfer. */
	void (*freed_locked)(struct kvfs_xfer *xfer);
	/* Free the fields that belong to this kind of transfer. */
	void (*drop)(struct kvfs_xfer *xfer);
};

struct kv_event_wait; /* stream_sync.c */
struct kv_submission; /* stream_sync.c */
struct kv_load;	      /* load.c */
struct kv_save_batch; /* batch.c */

struct kvfs_xfer {
	/* fixed after start */
	struct kvfs_session *session;
	const struct kv_xfer_ops *ops;
	size_t n;		  /* number of blocks; 1 for a barrier */
	struct kvfs_pool *pool;	  /* pool of a load or save; NULL once COPIED */
	struct kvfs_space *space; /* space, held by a save or barrier */
	uint32_t space_id;
	uint64_t generation; /* connection on which the transfer began */
	int64_t *pages;
	size_t n_pages; /* number of pages, skipped ones (-1) included */
	const struct kvfs_device *device; /* NULL: a transfer without pages */
	uint32_t first_layer, layers;	  /* layers of the layout to copy */
	struct kvfs_range *ranges; /* bytes of the chosen layers; NULL: all */
	size_t n_ranges;
	size_t steps; /* steps of a load layer by layer; otherwise 0 */
	uint32_t layers_a_step;
	unsigned flags; /* of kvfs_opts */
	int priority;
	struct wire_save *blocks; /* items of a save, without offsets */
	/* Of a save: token ids in the format of common/block.h, @ids_bytes (a
	 * multiple of 8; 0: none) for each block. */
	uint8_t *ids;
	uint64_t ids_bytes;
	uint64_t deadline_at;

	/* guarded by session->lock */
	TAILQ_ENTRY(kvfs_xfer) others; /* in session->active */
	TAILQ_ENTRY(kvfs_xfer) queue;  /* in session->saves or lease->waiting */
	bool active, queued;
	/* references of the caller, of being active, and of jobs, batches and
	 * calls */
	unsigned refs;
	/* for each stage, blocks that have neither reached it nor failed */
	size_t left[KVFS_DURABLE + 1];
	size_t got[KVFS_DURABLE + 1]; /* blocks that have reached the stage */
	struct kv_timer timer;
	struct kv_notice notice;
	/* Called once for each stage, when every block has reached it or
	 * failed; NULL: no function. */
	void (*over)(struct kvfs_xfer *xfer, enum kvfs_stage stage);
	void *owner; /* the map, fill or set that @over is called for */

	/* stream_sync.c */
	struct kv_event_wait *event_wait; /* fixed until COPIED; NULL: none */
	/* guarded by lock; the SUBMITTED batches */
	TAILQ_HEAD(, kv_submission) submissions;
	size_t submitted;   /* guarded by lock; SUBMITTED blocks, not COPIED */
	bool all_submitted; /* lock */
	size_t got_submitted; /* guarded by lock; not failed then */

	/* guarded by lock; save.c */
	struct kv_call ask; /* asks for space_id, if the look-up failed */
	bool asking;
	bool flush_asked; /* a caller waits until the transfer is DURABLE */
	bool flush_sent;
	struct kv_keys keys; /* guarded by lock; flush or prefetch */

	/* load */
	struct kvfs_lease *lease; /* until COPIED */
	size_t first;		  /* index in the lease of the first block */
	struct kv_load *load;

	/* save; lock */
	uint32_t *todo;		/* ring buffer of blocks that are in no batch */
	size_t todo_at, todo_n; /* first index and number of entries */
	struct kv_timer again;	/* runs while the save waits for room */
	uint64_t pause; /* nanoseconds until the next try; 0: there was room */
	LIST_HEAD(, kv_save_batch) batches; /* batches that have not FAILED */
	/* For one block of each message with sealed blocks, the tag of their
	 * lease; NULL: no KVFS_HOLD, or freed. */
	uint64_t *held;

	_Atomic unsigned layer_waiters; /* threads that wait for a step */
	_Atomic int stopped;		/* status of unbegun blocks, or 0 */
	/* of each block; written by the job or batch that has the block */
	_Atomic int status[];
};

/* Make a transfer of @n blocks, with one reference, the caller's.  -ENOMEM. */
int kv_xfer_new(struct kvfs_session *session, const struct kv_xfer_ops *ops,
		size_t n, struct kvfs_xfer **ret_xfer);
/* Free a transfer that was never activated.  Takes NULL. */
void kv_xfer_free(struct kvfs_xfer *xfer);
void kv_xfer_freep(struct kvfs_xfer **xfer);

/* Have kvfs_reap report the bit set @stages with the word @user (0: no report).
 * Call this before the transfer is activated. */
void kv_xfer_tell_locked(struct kvfs_xfer *xfer, enum kvfs_event_what what,
			 uint64_t user, unsigned stages);

/* Put the transfer in session->active, and count its pages as in use. */
void kv_xfer_activate_locked(struct kvfs_xfer *xfer);

void kv_xfer_get_locked(struct kvfs_xfer *xfer);
void kv_xfer_put_locked(struct kvfs_xfer *xfer);
/* Take and drop a reference to the transfer that embeds @keys. */
void kv_xfer_keys_get_locked(struct kv_keys *keys);
void kv_xfer_keys_put_locked(struct kv_keys *keys);

/* Count @n more blocks, whose statuses are set, as having reached @stage. */
void kv_xfer_reach_locked(struct kvfs_xfer *xfer, enum kvfs_stage stage,
			  size_t n);
/* Count @n more blocks as given to the device but not COPIED; or (unsubmit)
 * count @n less, before they are counted as COPIED or failed. */
void kv_xfer_submit_locked(struct kvfs_xfer *xfer, size_t n);
void kv_xfer_unsubmit_locked(struct kvfs_xfer *xfer, size_t n);
/* Return whether the device was given all blocks, so that only its copies touch
 * the pages. */
bool kv_xfer_is_submitted_locked(const struct kvfs_xfer *xfer);

/* End a transfer that ends with COPIED: @good blocks have succeeded and @bad
 * blocks failed. */
void kv_xfer_over_locked(struct kvfs_xfer *xfer, size_t good, size_t bad);

/* Count @n blocks, whose statuses are set, as failed before @stage. */
void kv_xfer_fail_locked(struct kvfs_xfer *xfer, enum kvfs_stage stage,
			 size_t n);

/* Wait until no transfer uses pages of @pool or, if that is NULL, until no
 * transfer of the session is under way.  If the daemon hangs, blocks that have
 * not begun end with -ETIMEDOUT.  Blocks that wait for a stream end so after
 * five seconds, because the stream may never end. */
void kv_xfers_drain(struct kvfs_session *session, struct kvfs_pool *pool);

/* Return whether all blocks of a step of a load layer by layer are copied or have
 * failed (any thread, lock not needed), or whether the device was given all of
 * the step.  (load.c) */
bool kv_load_step_is_over(const struct kvfs_xfer *xfer, size_t step);
bool kv_load_step_is_submitted_locked(const struct kvfs_xfer *xfer,
				      size_t step);
/* Wake the threads that wait for a step of @xfer, which is over.  No lock
 * held. */
void kv_xfer_step_over(struct kvfs_xfer *xfer);
/* Check that @layer is one of the layers of @xfer.  -EINVAL, -EBADF. */
int kv_xfer_check_layer(const struct kvfs_xfer *xfer, uint32_t layer);

/* Store a copy of @pages, of which each block has
 * pool->strides.pages_per_block.  -EINVAL, -ENOMEM. */
int kv_xfer_set_pages(struct kvfs_xfer *xfer, const struct kvfs_pool *pool,
		      const int64_t *pages);

/* Set xfer->stopped, and end the blocks that have not begun with @status. */
void kv_xfer_stop_locked(struct kvfs_xfer *xfer, int status);

/*
 * Set deadline, layers, priority, flags and event wait of a transfer of @pool
 * from @opts.  @flags: the flags that this kind of transfer knows.  Call this
 * on the caller's thread, without a lock, before the transfer is activated.
 * -EINVAL: no such layers, or other flags
 * errors of kv_event_wait_new
 */
int kv_opts_take(struct kvfs_xfer *xfer, struct kvfs_pool *pool,
		 const kvfs_opts *opts, unsigned flags);

/* Store the byte ranges of the layers @first .. + @n, which must exist, in
 * @ret_ranges, which has room for layout->layer_pieces ranges.  The ranges
 * ascend, do not touch and are not empty.  Return their number. */
size_t kv_layout_ranges(const struct kv_layout *layout, uint32_t first,
			uint32_t n, struct kvfs_range *ret_ranges);

#endif
