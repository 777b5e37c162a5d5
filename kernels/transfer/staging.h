/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.h - stages, the memory in which blocks are gathered for the daemon.
 * A stage is a memfd that is sealed against shrinking, and is used as a ring of
 * extents.
 *
 * A stage belongs to one connection: when the connection breaks, the daemon may
 * still be reading, so the memory is never written again.
 *
 * Threads: kv_stage_new may be called on any thread, all other functions with
 * session->lock held.
 */
#ifndef KV_KERNELS_TRANSFER_STAGING_H
#define KV_KERNELS_TRANSFER_STAGING_H

#include <sys/queue.h>

#include "kernels/session/session.h"

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
