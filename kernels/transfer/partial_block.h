/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts.h - blocks that are saved in parts: which transfers bring which bytes
 * of a block, and what becomes of all of them.
 *
 * All calls with session->lock held.
 */
#ifndef KV_KERNELS_TRANSFER_PARTIAL_BLOCK_H
#define KV_KERNELS_TRANSFER_PARTIAL_BLOCK_H

#include "common/coverage.h"
#include "kernels/transfer/hold.h"
#include "kernels/transfer/xfer.h"

struct kv_partial_block;

enum kv_part_state {
	KV_PART_NONE,	/* not a part, or over */
	KV_PART_TODO,	/* of the transfer's todo */
	KV_PART_BATCH,	/* of a batch that has not copied it */
	KV_PART_COPIED, /* waits for the others */
};

/* What one transfer brings of one block. */
struct kv_part {
	struct kv_partial_block *of;
	struct kv_partial_block
		*spare; /* if it is the first one; until it joins */
	struct kvfs_xfer *xfer;
	enum kv_part_state state;
	TAILQ_ENTRY(kv_part) others; /* in of->parts, unless NONE */
};

/*
 * Parts for all blocks of @xfer, which has ranges, and what else joining takes:
 * a block must not be without one of its parts for want of memory, or the
 * others would wait for it.  -ENOMEM.  Lock not needed.
 */
int kv_parts_new(struct kvfs_xfer *xfer);
void kv_parts_drop(struct kvfs_xfer *xfer); /* none of them is joined */

/*
 * Claim the bytes of block @i for @xfer, which is active; its part is TODO
 * then.  False: it is settled already, or waits as COPIED, since its bytes came
 * with another transfer.
 */
bool kv_part_join_locked(struct kvfs_xfer *xfer, size_t i);

/* Whether the daemon has reserved the block. */
bool kv_part_is_reserved(const struct kv_part *part);

/* There was no room for it: TODO again, if its block is not over. */
bool kv_part_again_locked(struct kv_part *part);

/* RESERVE said @status of a BATCH part, 0 or not.  Whether it goes on; if not,
 * it is settled. */
bool kv_part_reserved_locked(struct kv_part *part, int status);

/* A BATCH part is copied, and counted as such.  Whether it is to be sent; if
 * not, it is settled. */
bool kv_part_copied_locked(struct kv_part *part);

/* Its part was what was missing: the block is sealed, and held by @hold. */
void kv_part_sealed_locked(struct kv_part *part, struct kv_hold *hold);

/* The block will not seal: all parts of it end with @status.  One in a batch
 * does when it is copied, unless it is this one. */
void kv_part_fail_locked(struct kv_part *part, int status);

/* xfer->stopped is set: blocks that cannot seal without it end. */
void kv_parts_stop_locked(struct kvfs_xfer *xfer);

/* The connection is gone: every block ends with -ENOTCONN. */
void kv_parts_break_locked(struct kvfs_session *session);
/* No part comes any more: blocks that lack one end with -ECANCELED. */
void kv_parts_close_locked(struct kvfs_session *session);
/* Nothing is under way. */
void kv_parts_free_locked(struct kvfs_session *session);

/* ---- partial_block.c and join.c ---- */

#define KV_PARTS_BUCKETS 1024u

struct kv_partial_block {
	LIST_ENTRY(kv_partial_block) others; /* in its bucket, if listed */
	TAILQ_ENTRY(kv_partial_block) dead;  /* if DEAD and listed */
	bool listed;
	struct kvfs_session *session;
	struct kvfs_space *space; /* held */
	struct wire_save block;	  /* as the first part has it */
	unsigned flags;		  /* the first's */
	uint64_t generation, payload;
	uint32_t space_id;
	struct kv_coverage claimed;
	int status; /* -EINPROGRESS: LIVE */
	bool reserved;
	TAILQ_HEAD(, kv_part) parts; /* that are not over */
};

struct kv_parts {
	LIST_HEAD(, kv_partial_block) buckets[KV_PARTS_BUCKETS];
	TAILQ_HEAD(, kv_partial_block) dead; /* oldest first */
	size_t n_dead;
};

static inline bool
kv_partial_block_is_live(const struct kv_partial_block *partial)
{
	return partial->status == -EINPROGRESS;
}

static inline bool
kv_partial_block_is_whole(const struct kv_partial_block *partial)
{
	return kv_coverage_prefix(&partial->claimed) == partial->payload;
}

static inline unsigned kv_parts_bucket(const struct wire_save *block)
{
	uint32_t hash;

	memcpy(&hash, block->key, sizeof(hash));
	return hash % KV_PARTS_BUCKETS;
}

/* The one in the table, or NULL. */
struct kv_partial_block *kv_parts_find(struct kv_parts *parts,
				       const struct kvfs_space *space,
				       const struct wire_save *block);
/* Out of the table; freed now, or with its last part. */
void kv_partial_block_forget_locked(struct kv_partial_block *partial);
/* If it is LIVE: all its parts that are in no batch end with @status. */
void kv_partial_block_end_locked(struct kv_partial_block *partial, int status);

#endif
