/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xfer.h - a transfer: blocks that are copied between pages and the daemon, and
 * the stage that each has reached; with the pools, requests, leases and waits
 * that transfers use.
 *
 * Functions named _locked, kv_xfers_drain and kv_save_batch_blocks are called
 * with session->lock held.
 */
#ifndef KV_KERNELS_TRANSFER_XFER_H
#define KV_KERNELS_TRANSFER_XFER_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "kernels/device/device.h"
#include "kernels/kvfs.h"
#include "kernels/session/rpc.h"
#include "kernels/session/session.h"
#include "common/layout.h"
#include "common/wire.h"

/* ---- pools: the pages of an engine, checked once against a layout, and the loan of
 * their memory to the daemon (pool.c) ---- */

struct kv_paged_pool;

/* Functions of the folder paged/, for pools of kvfs_pool_reserve. */
struct kv_paged_pool_ops {
	/* End maps and sets of pages; releases the lock until transfers end. */
	void (*close_locked)(struct kv_paged_pool *paged);
	void (*info_locked)(const struct kv_paged_pool *paged,
			    struct kvfs_pool_info *ret_info);
	/* Forget all blocks of the space @name, which was cleared. */
	void (*forget_locked)(struct kv_paged_pool *paged, const char *name);
	/* Free the memory of pages that the device has closed. */
	void (*free)(struct kv_paged_pool *paged,
		     const struct kvfs_device *device);
};

/* The loan of a pool's memory to the daemon; guarded by lock. */
struct kv_lending {
	int fd;		       /* the memory's file; -1: nothing is lent */
	struct wire_pool item; /* the loan; item.id names it in messages */
	const uint8_t *memory;
	struct kv_pool_offer *offer; /* the offer in flight; NULL: none */
	/* Connections that last got the offer, and that last accepted it; or
	 * 0. */
	uint64_t asked, taken;
	int refused; /* -errno of the last offer, or 0 */
};

struct kvfs_pool {
	/* fixed after register */
	struct kvfs_session *session;
	const struct kvfs_device *device;
	void *on_device; /* the device's handle of the pool, from its open */
	bool opened;	 /* the device's open has succeeded */
	struct kvfs_space *space; /* held; space whose layout the pool has */
	const struct kv_layout *layout;
	uint64_t pages;
	struct kvfs_strides strides;

	struct kv_lending lending;

	/* lock */
	uint8_t *seen; /* a bit for each page of a call; clear between calls */
	size_t busy;   /* number of transfers and fences that use the pool */
	uint32_t *loads, *saves; /* for each page, loads and saves in flight */
	uint64_t pages_loading, pages_saving;

	/* State of a pool of kvfs_pool_reserve, which chooses the pages itself;
	 * NULL: the engine chooses the pages. */
	struct kv_paged_pool *paged;
	const struct kv_paged_pool_ops *paged_ops;
	LIST_ENTRY(kvfs_pool) others; /* in session->pools */
};

/* Check @desc against @layout, and compute the strides of a block.  The caller
 * frees ret_strides->stride.
 * -EINVAL: as for kvfs_pool_register
 * -ENOMEM */
int kv_strides_new(const kvfs_pool_desc *desc, const struct kv_layout *layout,
		   struct kvfs_strides *ret_strides);

/* Register the hooks of this folder (struct kv_session_user) with @session. */
void kv_lib_transfers_use_locked(struct kvfs_session *session);

/* Register a pool whose description @desc was checked.  Only the first @there
 * pages have memory yet. */
int kv_lib_pool_register(kvfs_session *session, const kvfs_pool_desc *desc,
			 uint64_t there, kvfs_pool **ret_pool);

/* Check the @n @pages of a transfer: each must be inside the pool.  A load
 * (@loads) may skip pages (-1), and must not name a page twice.  Return the
 * number of pages that are not -1, or -EINVAL. */
long kv_lib_pool_check_pages_locked(struct kvfs_pool *pool,
				    const int64_t *pages, size_t n, bool loads);

/* Count these checked pages as in use (@begin), or no longer in use, by a load
 * (@loads) or save. */
void kv_lib_pool_use_locked(struct kvfs_pool *pool, const int64_t *pages,
			    size_t n, bool loads, bool begin);

/* ---- lending: the daemon saves from a pool's pages, which it maps ---- */

/* Lend memory that the library allocated to the daemon: @bytes of at most
 * @max_bytes exist at @memory.  Takes over @fd, a descriptor of the memory's
 * file.  Does nothing if the daemon could not save from that memory.  The
 * caller holds no lock. */
void kv_lending_own(struct kvfs_pool *pool, int fd, const void *memory,
		    uint64_t bytes, uint64_t max_bytes);

/* Offer the pool's memory to the daemon, once for each connection. */
void kv_lending_offer_locked(struct kvfs_pool *pool);
/* Return whether connection @generation's daemon has accepted the offer. */
bool kv_lending_is_taken_locked(const struct kvfs_pool *pool,
				uint64_t generation);

/* ---- asynchronous requests about any number of keys, with one message for each
 * WIRE_BATCH keys; a request can be cancelled, and is given up when the daemon does
 * not answer ---- */

enum kv_keys_state {
	KV_KEYS_OVER,  /* call is settled, and no answer will come */
	KV_KEYS_ASKED, /* message was sent to the daemon, call is not settled */
	/* call was settled without the daemon, which may still answer */
	KV_KEYS_ABANDONED
};

/* One message of a request, about its keys @first .. + @n. */
struct kv_keys_call {
	struct kv_call call; /* first */
	struct kv_keys *keys;
	/* space of the keys, held; NULL: the owner holds it */
	struct kvfs_space *space;
	size_t first, n;
	enum kv_keys_state state;
	bool held; /* the daemon holds blocks under call.tag */
};

/* Operations of the struct that embeds a request, such as a lease. */
struct kv_keys_ops {
	/* Set the outcome of the call's keys: @status if that is negative, else
	 * one status for each key in @items.  Called once for each call. */
	void (*settle_locked)(struct kv_keys_call *call, int status,
			      const void *items);
	/* Handle an answer about the first keys (WIRE_MORE); may be NULL. */
	void (*part_locked)(struct kv_call *call, const void *items);
	/* Handle the daemon's late answer to an ABANDONED call; may be NULL. */
	void (*late_locked)(struct kv_keys_call *call, int status,
			    const void *items);
	/* Take and drop a reference to the owner, for a call that is not
	 * OVER. */
	void (*get_locked)(struct kv_keys *keys);
	void (*put_locked)(struct kv_keys *keys);
};

/* A request, embedded in its owner.  Zeroed memory has no calls. */
struct kv_keys {
	struct kvfs_session *session;
	const struct kv_keys_ops *ops;
	uint64_t generation; /* connection of all calls; 0: no call was sent */
	size_t n;
	struct kv_keys_call *calls;
	int cancelled; /* status given by the first cancel; 0: not cancelled */
	struct kv_timer timer; /* fires when the request is to be given up */
};

/* Allocate @n calls.  No lock needed.  -ENOMEM. */
int kv_keys_init(struct kv_keys *keys, struct kvfs_session *session,
		 const struct kv_keys_ops *ops, size_t n);
/* Free the calls, none of which is ASKED or ABANDONED. */
void kv_keys_fini_locked(struct kv_keys *keys);

/* Return how many calls kv_keys_ask_queries makes.  No lock needed. */
size_t kv_keys_count(const kvfs_query *queries, size_t n_queries);
/* Send messages like @like about all keys of @queries.  Call without a lock. */
void kv_keys_ask_queries(struct kv_keys *keys, const kvfs_query *queries,
			 size_t n_queries, const struct wire_header *like);
/* Send @call about the @n @items.  If @status is negative, or the request was
 * cancelled, settle the call at once instead. */
void kv_keys_ask_locked(struct kv_keys_call *call,
			const struct wire_header *like, struct wire_key *items,
			size_t n, int status);

/* Give the request up if it is not settled @deadline nanoseconds and a grace
 * period from now.  The grace period is there because the daemon also keeps the
 * deadline, and answers. */
void kv_keys_deadline_locked(struct kv_keys *keys, uint64_t deadline);
/* Cancel the request: settle calls that were not sent with @status, and ask the
 * daemon to cancel the others.  Calls that the daemon does not confirm soon are
 * given up.  Later cancels do nothing. */
void kv_keys_cancel_locked(struct kv_keys *keys, int status);

/* ---- event waits, for work that the device must end before a transfer or a page's
 * new use begins, and submissions, for streams that continue after copies
 * (stream_sync.c) ---- */

struct kv_stream_sync;

/* Start the session's sync thread, if it does not run.  -ENOMEM, -EAGAIN. */
int kv_stream_sync_start_locked(struct kvfs_session *session);
/* End the sync thread.  No transfer may be under way.  Takes NULL. */
void kv_stream_sync_free(struct kv_stream_sync *sync);

/* Return the stream that a caller's handle @stream means: for NULL without an
 * @event the device's default stream, for KVFS_NO_STREAM no stream (NULL).
 * -EINVAL: both a stream and an event are given
 * -EOPNOTSUPP: the device has no streams */
int kv_stream_sync_resolve(const struct kvfs_device *device, void *stream,
			   const void *event, void **ret_stream);

/* An event wait: the end of work that a stream was given, or of an event. */
struct kv_event_wait {
	TAILQ_ENTRY(kv_event_wait) others; /* lock */
	struct kvfs_pool *pool; /* busy once the event wait has begun */
	void *handle;		/* the device's handle of the event wait */
	/* Of two event waits in the same stream the one with the lower number
	 * is done first.  NULL: the stream is not known. */
	const void *stream;
	uint64_t number;
	/* true: the owner calls kv_event_wait_end_locked, when the device has
	 * used the handle.  false: the event wait ends when it is done. */
	bool kept;
	bool begun, waiting; /* lock */
	void (*done_locked)(void *owner);
	void *owner;
};

/*
 * Make an event wait for the work that @stream was given so far, or for @event,
 * as in kv_stream_sync_resolve.  *@ret_wait is NULL if there is nothing to wait
 * for; all functions below take NULL.  The caller holds no lock.
 * -EINVAL, -EOPNOTSUPP: as kv_stream_sync_resolve
 * -ENOMEM, errors of the device
 */
int kv_event_wait_new(struct kvfs_pool *pool, void *stream, void *event,
		      struct kv_event_wait **ret_wait);
/* Free an event wait that has neither begun nor ended.  No lock held. */
void kv_event_wait_free(struct kv_event_wait *wait);

/* Call @done_locked(@owner) when the work is over, on the sync thread; or now,
 * if there is nothing to wait for. */
void kv_event_wait_begin_locked(struct kv_event_wait *wait,
				void (*done_locked)(void *owner), void *owner);
/* Cancel the call of done_locked.  Return false if it was made before. */
bool kv_event_wait_stop_locked(struct kv_event_wait *wait);
/* Have the sync thread free an event wait that has not begun or has ended. */
void kv_event_wait_end_locked(struct kv_event_wait *wait);

#define KV_ALL_STEPS SIZE_MAX

/* A batch that the device copies, embedded in the job that copies it.  Zeroed
 * memory is a submission at rest. */
struct kv_submission {
	TAILQ_ENTRY(kv_submission) others; /* lock; in xfer->submissions */
	struct kvfs_xfer *xfer;
	size_t step;
	void *fence;	/* guarded by lock; event wait for the batch's end */
	unsigned users; /* lock; callers that order streams after it */
	bool told;	/* guarded by lock; submitted_locked was called */
	/* Called once for each batch, when the device was given all of it. */
	void (*submitted_locked)(struct kv_submission *submission);
};

/* Have the device copy @batch, of step @step of the submission's transfer, to
 * the pages (@loads) or from them.  Meanwhile streams can be ordered after the
 * copies.  A batch without blocks counts as submitted.  -EIO. */
int kv_submission_run(struct kv_submission *submission, size_t step,
		      struct kvfs_batch *batch, bool loads);

/* Replace *@stream, a caller's handle, by the stream that the handle means.
 * -EINVAL: the handle means no stream, or @device is NULL
 * -EOPNOTSUPP: streams of @device cannot be ordered */
int kv_submission_check(const struct kvfs_device *device, void **stream);
/*
 * Order the work that @stream is given from now on after step @step of @xfer,
 * or after all steps (KV_ALL_STEPS).  The caller has a reference to @xfer.
 * Releases the lock while the device is called.
 * -EAGAIN: not all of the copies are submitted, and nothing was ordered
 * errors of the device
 */
int kv_submission_order_locked(struct kvfs_xfer *xfer, size_t step,
			       void *stream);

/* ---- transfers ---- */

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
	/* Count blocks as COPIED whose pages are read again only if the daemon
	 * has no room. */
	void (*leave_pages_locked)(struct kvfs_xfer *xfer);
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
	const struct kvfs_device *device; /* of the pages; NULL: no pages */
	uint32_t first_layer, layers;	  /* layers of the layout to copy */
	struct kvfs_range *ranges; /* bytes of the chosen layers; NULL: all */
	size_t n_ranges;
	size_t steps; /* steps of a load layer by layer; otherwise 0 */
	uint32_t layers_a_step;
	unsigned flags; /* flags of kvfs_opts */
	int priority;
	/* message items of a save's blocks, without offsets */
	struct wire_save *blocks;
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
	/* for each stage, number of blocks that have neither reached it nor
	 * failed */
	size_t left[KVFS_DURABLE + 1];
	/* number of blocks that have reached the stage */
	size_t got[KVFS_DURABLE + 1];
	struct kv_timer timer;
	struct kv_notice notice;
	/* Called once for each stage, when every block has reached it or
	 * failed; NULL: no function. */
	void (*over)(struct kvfs_xfer *xfer, enum kvfs_stage stage);
	void *owner; /* the map, fill or set that @over is called for */

	/* stream_sync.c */
	/* wait before the copies; fixed until COPIED; or NULL */
	struct kv_event_wait *event_wait;
	/* guarded by lock; the SUBMITTED batches */
	TAILQ_HEAD(, kv_submission) submissions;
	size_t submitted; /* lock; number of blocks SUBMITTED but not COPIED */
	bool all_submitted; /* lock */
	/* lock; number of blocks not failed when SUBMITTED */
	size_t got_submitted;

	/* guarded by lock; only save.c uses these fields */
	struct kv_call ask; /* request for space_id, after a failed look-up */
	bool asking;
	bool flush_asked; /* a caller waits until the transfer is DURABLE */
	bool flush_sent;
	/* guarded by lock; requests of a flush or prefetch */
	struct kv_keys keys;

	/* load */
	struct kvfs_lease *lease; /* until COPIED */
	size_t first;		  /* index in the lease of the first block */
	struct kv_load *load;

	/* save; lock */
	uint32_t *todo; /* ring buffer of blocks that are in no batch */
	/* in @todo: first index and number of entries */
	size_t todo_at, todo_n;
	struct kv_timer again; /* runs while the save waits for room */
	uint64_t pause; /* nanoseconds until the next try; 0: there was room */
	LIST_HEAD(, kv_save_batch) batches; /* batches that have not FAILED */
	/* For one block of each message with sealed blocks, the tag of their
	 * lease; NULL: no KVFS_HOLD, or freed. */
	uint64_t *held;

	_Atomic unsigned layer_waiters; /* threads that wait for a step */
	_Atomic int stopped; /* status for blocks that have not begun, or 0 */
	/* status of each block, written by the block's job or batch */
	_Atomic int status[];
};

/* Make a transfer of @n blocks, with one reference, the caller's.  -ENOMEM. */
int kv_xfer_new(struct kvfs_session *session, const struct kv_xfer_ops *ops,
		size_t n, struct kvfs_xfer **ret_xfer);
/* Free a transfer that was never activated.  Takes NULL. */
void kv_xfer_free(struct kvfs_xfer *xfer);
void kv_xfer_freep(struct kvfs_xfer **xfer);

/* Have kvfs_reap report the bit set @stages with the number @user (0: no
 * report).  Call this before the transfer is activated. */
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
/* Return whether the device has all blocks: only its copies touch the pages. */
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
/* Wake the threads that wait for a step of @xfer, which is over.  Unlocked. */
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

/* ---- leases, for which the daemon holds blocks in DRAM (lease.c) ---- */

/* A block of a lease, which does not change once it has arrived. */
struct kv_held {
	int status;			   /* -EINPROGRESS: not arrived */
	uint32_t call;			   /* index in lease->keys.calls */
	struct kv_mapped_segment *mapping; /* NULL: @status is not 0 */
	const uint8_t *file;
	uint64_t length, payload; /* bytes of the file; offset of its tensors */
	uint8_t from;		  /* enum kvfs_state; see kvfs_lease_states */
};

struct kvfs_lease {
	struct kvfs_session *session;
	size_t n;
	_Atomic bool settled;
	unsigned refs;	  /* guarded by lock */
	unsigned loads;	  /* loads that hold the lease; guarded by lock */
	bool released;	  /* lock; cancelled when no load holds the lease */
	size_t unsettled; /* guarded by lock; number of unanswered messages */
	size_t arrived;	  /* lock; number of blocks before the first to come */
	long held;	  /* blocks held; guarded by lock until settled */
	struct kv_notice notice; /* lock */
	struct kv_xfers waiting; /* lock; loads that wait for the lease */
	struct kv_keys keys;	 /* lock */
	struct kv_held items[];
};

/* Keep the lease for a load until kv_lease_put_locked; the last load of a lease
 * that was released cancels the lease. */
void kv_lease_get_locked(struct kvfs_lease *lease);
void kv_lease_put_locked(struct kvfs_lease *lease);

/* Do the work of kvfs_release with session->lock held. */
void kv_lease_release_locked(struct kvfs_lease *lease);

/* Copy the blocks of the load @xfer that have arrived, once the stream's earlier
 * work is over.  (load.c) */
void kv_load_begin_locked(struct kvfs_xfer *xfer);
/* Do the work of kvfs_load, also for a pool of kvfs_pool_reserve.  (load.c) */
int kv_lib_load(kvfs_pool *pool, kvfs_lease *lease, size_t n,
		const int64_t *pages, const kvfs_opts *opts,
		kvfs_xfer **ret_xfer);

/* ---- saves: pages go to the daemon, which seals them as blocks and can lease the
 * sealed blocks (KVFS_HOLD) ---- */

#define KV_SAVE_ALIGN 64u

/* Do the work of kvfs_save, also for a pool of kvfs_pool_reserve. */
int kv_lib_save(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys,
		const kvfs_meta *meta, size_t n, const int64_t *pages,
		const kvfs_opts *opts, kvfs_xfer **ret_xfer);

/* Begin batches of queued saves, as many as the staging has room for. */
void kv_save_pump_locked(struct kvfs_session *session);

/* Fail all blocks that are in no batch with @status: there is no staging. */
void kv_saves_fail_locked(struct kvfs_session *session, int status);

/* Stop the session's saves to the space @name: blocks end with -ESTALE. */
void kv_saves_stop_locked(struct kvfs_session *session, const char *name);

/* Take @n blocks from the list of blocks that are in no batch. */
void kv_save_take_locked(struct kvfs_xfer *xfer, uint32_t *ret_blocks,
			 size_t n);
/* Put a block that found no room back in the list, to be tried again after some
 * milliseconds. */
void kv_save_again_locked(struct kvfs_xfer *xfer, uint32_t block);

/* Return the most bytes that the ids of a block of @layout take. */
uint64_t kv_save_ids_most(const struct kv_layout *layout);
/* Return the offset of a block's ids from its first byte in staging. */
uint64_t kv_save_ids_offset(const struct kv_layout *layout);
/* Copy the ids of block @block to @at, if the save has ids. */
void kv_save_ids_put(const struct kvfs_xfer *xfer, size_t block, uint8_t *at);

/* Return the bytes of staging for a block of @xfer with its ids. */
uint64_t kv_save_block_bytes(const struct kvfs_xfer *xfer);

/* Keep the daemon's lease of the blocks that the message @tag has sealed, of
 * which @block is one, until the transfer is freed.  Release the lease now if the
 * transfer was freed. */
void kv_save_hold_locked(struct kvfs_xfer *xfer, uint32_t block, uint64_t tag);

/* Return the number of blocks for the next batch, from @lent pages or by way of
 * session->stage.  0: other batches must end first. */
size_t kv_save_batch_blocks(const struct kvfs_xfer *xfer, bool lent);

/*
 * Begin to save the next @n blocks.  At its end the batch frees its staging and
 * calls kv_save_pump_locked.
 * -EAGAIN: no room in the staging now
 * -ENOMEM: nothing was begun
 * other errors: these blocks have failed
 */
int kv_save_batch_locked(struct kvfs_xfer *xfer, size_t n, bool lent);

/* Count the blocks in staging as COPIED: their pages are not copied again. */
void kv_save_leave_pages_locked(struct kvfs_xfer *xfer);

/* Stop the batches of @xfer with the status xfer->stopped, without the daemon:
 * end blocks whose pages are not being copied, and take lent pages back.
 * Blocks under copy end with the daemon's answer, or a second after their
 * copy; those of a small save end with their copy. */
void kv_save_batches_stop_locked(struct kvfs_xfer *xfer);

/* ---- stages, the memory in which blocks are gathered for the daemon ---- */

/*
 * A stage is a memfd that is sealed against shrinking, and is used as a ring of
 * extents.  Each stage belongs to one connection: when the connection breaks, the
 * daemon may still be reading, so the memory is never written again.
 *
 * Any thread may call kv_stage_new; other functions of stages need session->lock.
 */

#define KV_STAGE_BYTES ((uint64_t)64 << 20)
#define KV_STAGE_FIRST ((uint64_t)1 << 20)
/* The most bytes in grown stages of all sessions of a process, not counting
 * stages whose size a caller has set. */
#define KV_STAGE_SHARE ((uint64_t)256 << 20)

struct kv_extent {
	TAILQ_ENTRY(kv_extent) others;
	uint64_t offset;
	bool free;
};

/* Only staging.c writes to the fields. */
struct kv_stage {
	int fd;
	uint8_t *base;
	uint64_t bytes;
	uint64_t share; /* bytes that count against KV_STAGE_SHARE */
	bool huge;
	bool abandoned;
	uint64_t offer;		      /* tag of the WIRE_STAGING message */
	struct kvfs_session *session; /* of @attached; NULL: not attached */
	struct kv_attached attached;
	uint64_t head; /* offset of the youngest extent's end */
	TAILQ_HEAD(, kv_extent) extents; /* oldest first */
};

/* Return whether @bytes of memory are in proportion to the machine's memory: a
 * quarter at most. */
bool kv_stage_may_be(uint64_t bytes);

/*
 * Make a stage of at least @bytes, with all pages present.  @large: in huge pages
 * if possible.  @shares: the stage counts against KV_STAGE_SHARE.
 * -EDQUOT: KV_STAGE_SHARE would be exceeded
 * -ENOMEM: too little memory, more than a quarter of the machine's, or more
 *          than the process may have
 * errors of memfd_create(2)
 */
int kv_stage_new(uint64_t bytes, bool large, bool shares,
		 struct kv_stage **ret_stage);
/* Free a stage that no thread writes to.  Takes NULL. */
void kv_stage_free(struct kv_stage *stage);

/* Give the stage to @session, and attach its memory to the session's device. */
void kv_stage_attach_locked(struct kv_stage *stage,
			    struct kvfs_session *session);

/* Get the next @bytes of the ring.
 * -EAGAIN: older extents must be put back before
 * -ENOMEM */
int kv_stage_get(struct kv_stage *stage, uint64_t bytes,
		 struct kv_extent **ret_extent);
void kv_stage_put(struct kv_stage *stage, struct kv_extent *extent);

/* Free the stage when its last extent is put back, or now.  Takes NULL. */
void kv_stage_abandon(struct kv_stage *stage);

/* ---- the stages of a session ---- */

/* Make staging for blocks of session->stage_payload bytes, before the first
 * save comes.  Call this after a pool was registered, and after each
 * connection. */
void kv_staging_begin_locked(struct kvfs_session *session);

/*
 * Make sure that session->stage has room for two blocks of @block_bytes.
 * 0: there is room
 * -EAGAIN: a stage is being made, or is not empty yet; then kv_save_pump_locked
 *          will be called
 * -ENOMEM, -ENOTCONN
 */
int kv_staging_need_locked(struct kvfs_session *session, uint64_t block_bytes);
/* Begin to make a larger stage, unless one is being made or the last attempt
 * has just failed. */
void kv_staging_grow_locked(struct kvfs_session *session, uint64_t block_bytes);
/* Replace session->stage, if it is empty, by session->stage_next.
 * -ENOMEM, -ENOTCONN: the new descriptor could not be sent to the daemon */
int kv_staging_swap_locked(struct kvfs_session *session);

#endif
