/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.h - the memory in which blocks are gathered for the daemon: stages,
 * each a memfd that is sealed against shrinking and used as a ring of extents,
 * and the stages of a session.
 *
 * A stage belongs to one connection: when that breaks, the daemon may still be
 * reading, so the memory is never written again but left to the daemon.
 *
 * Threads: kv_stage_new and kv_stage_grow on any thread; all else with
 * session->lock held.
 */
#ifndef KV_KERNELS_TRANSFER_STAGING_H
#define KV_KERNELS_TRANSFER_STAGING_H

#include <sys/queue.h>

#include "common/kv.h"
#include "kernels/session/mapped_segment.h"

#define KV_STAGE_BYTES ((uint64_t)64 << 20)
#define KV_STAGE_FIRST ((uint64_t)1 << 20)
/* The most that all sessions of a process have in grown stages whose size no
 * caller has set. */
#define KV_STAGE_SHARE ((uint64_t)256 << 20)

struct kv_extent {
	TAILQ_ENTRY(kv_extent) others;
	uint64_t offset;
	bool free;
};

struct kvfs_session;

/* Other files only read the fields. */
struct kv_stage {
	int fd;
	uint8_t *base;
	uint64_t bytes;
	uint64_t share; /* of shared */
	bool huge;
	bool abandoned;
	struct kvfs_session *session; /* NULL: attached to no device */
	struct kv_attached attached;
	uint64_t head;			 /* end of the youngest extent */
	TAILQ_HEAD(, kv_extent) extents; /* oldest first */
};

/* Whether @bytes are in proportion to the machine's memory. */
bool kv_stage_may_be(uint64_t bytes);

/* Make a stage of at least @bytes, touched and zero.  -ENOMEM (also for more
 * than a quarter of the machine's memory, or than the process may have) and
 * errors of memfd_create. */
int kv_stage_new(uint64_t bytes, struct kv_stage **ret_stage);
/* The same in large pages.  Unless the caller @asked for the size, the stage
 * counts against KV_STAGE_SHARE: -EDQUOT. */
int kv_stage_grow(uint64_t bytes, bool asked, struct kv_stage **ret_stage);
/* No thread writes to it.  Takes NULL. */
void kv_stage_free(struct kv_stage *stage);

/* Give the stage to @session, whose device registers its memory. */
void kv_stage_attach_locked(struct kv_stage *stage,
			    struct kvfs_session *session);

/* Get the next @bytes of the ring.  -EAGAIN until older extents are put back,
 * -ENOMEM. */
int kv_stage_get(struct kv_stage *stage, uint64_t bytes,
		 struct kv_extent **ret_extent);
void kv_stage_put(struct kv_stage *stage, struct kv_extent *extent);

/* Free the stage now, or when its last extent is put back.  Takes NULL. */
void kv_stage_abandon(struct kv_stage *stage);

/* Close the descriptor in the child of a fork.  Takes NULL. */
void kv_stage_forked(struct kv_stage *stage);

/* ---- the stages of a session ---- */

/* Call when there is a pool, and perhaps a connection: have staging made for
 * blocks of session->stage_payload bytes before the first save comes. */
void kv_staging_begin_locked(struct kvfs_session *session);
/* Have staging made for blocks of @payload bytes, of session->staging_bytes at
 * least, before a save needs it. */
void kv_staging_prepare_locked(struct kvfs_session *session, uint64_t payload);
/* Wait until no stage is being made, without the lock meanwhile. */
void kv_staging_wait_grown(struct kvfs_session *session);

/*
 * 0: session->stage has room for two blocks of @block_bytes.
 * -EAGAIN: a stage is being made or drained; saves are pumped then.
 * -ENOMEM, -ENOTCONN.
 */
int kv_staging_need_locked(struct kvfs_session *session, uint64_t block_bytes);
/* Begin a larger stage, unless one is under way or has just failed. */
void kv_staging_grow_locked(struct kvfs_session *session, uint64_t block_bytes);
/* Replace an empty stage by the one that is ready.  -ENOMEM, -ENOTCONN: the
 * daemon could not be sent its descriptor. */
int kv_staging_swap_locked(struct kvfs_session *session);

#endif
