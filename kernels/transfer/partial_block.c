/* SPDX-License-Identifier: Apache-2.0 */
/*
 * partial_block.c - blocks that are saved in parts.
 *
 * OWNS      the table of such blocks, and which bytes of each are spoken for.
 *           The daemon keeps a map of its own: what it is told it checks.
 *
 * STATES    of a block:
 *
 *              LIVE -> SEALED   kv_part_sealed_locked
 *              LIVE -> DEAD     end_locked, with the status of all its parts
 *
 *           A DEAD block stays in the table until all its bytes have been
 *           offered, so that parts begun later share the fate of those before
 *           (a block may not be made of what came before and after a clear or a
 *           restart).  Bytes that were offered before begin it anew (join.c).
 *
 *           of a part: see kv_part_state; those of a block that ends are
 * settled at once, but for those in a batch: their pages are being read.
 *
 * INVARIANTS
 *   (1) A block in the table is LIVE or DEAD; there is one for a key.
 *   (2) Each byte of a block is brought by one part; others that offer all of
 *       the same bytes wait with it.
 *   (3) A reservation of a LIVE block that ends is dropped, before another
 *       block of its key can ask for one.
 *
 * LOCKING   session->lock.
 */
#include "kernels/transfer/partial_block.h"
#include "kernels/transfer/pool.h"
#include "kernels/transfer/save.h"
#include "kernels/session/space.h"

#define DEAD_MAX 4096u /* kept; the oldest are forgotten */

struct kv_partial_block *kv_parts_find(struct kv_parts *parts,
				       const struct kvfs_space *space,
				       const struct wire_save *block)
{
	struct kv_partial_block *partial;

	LIST_FOREACH(partial, &parts->buckets[kv_parts_bucket(block)], others)
		if (partial->block.len == block->len &&
		    memcmp(partial->block.key, block->key, block->len) == 0 &&
		    strcmp(partial->space->name, space->name) == 0)
			return partial;
	return NULL;
}

/* Free it if nothing refers to it. */
static void tidy_locked(struct kv_partial_block *partial)
{
	if (partial->listed || !TAILQ_EMPTY(&partial->parts))
		return;
	kv_lib_space_put_locked(partial->space);
	kv_coverage_fini(&partial->claimed);
	free(partial);
}

static void unlist(struct kv_partial_block *partial)
{
	struct kv_parts *parts = partial->session->parts;

	if (!partial->listed)
		return;
	partial->listed = false;
	LIST_REMOVE(partial, others);
	if (kv_partial_block_is_live(partial))
		return;
	TAILQ_REMOVE(&parts->dead, partial, dead);
	parts->n_dead--;
}

void kv_partial_block_forget_locked(struct kv_partial_block *partial)
{
	unlist(partial);
	tidy_locked(partial);
}

/* ---- what becomes of parts ---- */

/* The transfer may be gone after this. */
static void settle_locked(struct kv_part *part, int status)
{
	enum kv_part_state state = part->state;
	struct kvfs_xfer *xfer = part->xfer;
	bool good = status >= 0;

	TAILQ_REMOVE(&part->of->parts, part, others);
	part->state = KV_PART_NONE;
	atomic_store(&xfer->status[part - xfer->part], status);
	kv_xfer_get_locked(xfer);
	if (state == KV_PART_TODO)
		kv_save_less_todo_locked(xfer);
	if (state != KV_PART_COPIED && good)
		kv_xfer_reach_locked(xfer, KVFS_COPIED, 1);
	if (good)
		kv_xfer_reach_locked(xfer, KVFS_SEALED, 1);
	else
		kv_xfer_fail_locked(
			xfer,
			state == KV_PART_COPIED ? KVFS_SEALED : KVFS_COPIED, 1);
	kv_xfer_put_locked(xfer);
}

static void settle_all_locked(struct kv_partial_block *partial)
{
	struct kv_part *part;

	do {
		TAILQ_FOREACH(part, &partial->parts, others)
			if (part->state != KV_PART_BATCH)
				break;
		if (part != NULL)
			settle_locked(part, partial->status);
	} while (part != NULL);
}

struct drop {
	struct kv_call call; /* first */
};

static void dropped(struct kv_call *call, int status, const void *items)
{
	(void)status;
	(void)items;
	free(call);
}

/* Without memory for it the reservation goes with the connection. */
static void drop_locked(const struct kv_partial_block *partial)
{
	struct kvfs_session *session = partial->session;
	struct wire_key key = {.len = partial->block.len};
	struct kv_packet packet = {
		.header = {.type = WIRE_DROP,
			   .count = 1,
			   .space = partial->space_id},
		.items = &key,
		.bytes = sizeof(key),
		.fd = -1,
	};
	struct drop *drop;

	if (!kv_session_is_live(session, partial->generation))
		return;
	drop = calloc(1, sizeof(*drop));
	if (drop == NULL)
		return;
	memcpy(key.key, partial->block.key, partial->block.len);
	drop->call.count = 1;
	drop->call.done = dropped;
	if (kv_rpc_submit_locked(session, &drop->call, &packet) < 0)
		free(drop);
}

void kv_partial_block_end_locked(struct kv_partial_block *partial, int status)
{
	struct kv_parts *parts = partial->session->parts;
	bool whole = kv_partial_block_is_whole(partial);

	if (!kv_partial_block_is_live(partial))
		return;
	if (partial->reserved && status < 0)
		drop_locked(partial);
	if (whole)
		unlist(partial);
	partial->status = status;
	if (!whole) {
		TAILQ_INSERT_TAIL(&parts->dead, partial, dead);
		parts->n_dead++;
	}
	settle_all_locked(partial);
	tidy_locked(partial);
	if (parts->n_dead > DEAD_MAX)
		kv_partial_block_forget_locked(TAILQ_FIRST(&parts->dead));
}

bool kv_part_is_reserved(const struct kv_part *part)
{
	return part->of->reserved;
}

bool kv_part_again_locked(struct kv_part *part)
{
	if (!kv_partial_block_is_live(part->of))
		return false;
	part->state = KV_PART_TODO;
	return true;
}

/* The reservation came too late for its block: nobody else's must go. */
static void late_locked(const struct kv_partial_block *partial)
{
	const struct kv_partial_block *other = kv_parts_find(
		partial->session->parts, partial->space, &partial->block);

	if (other == NULL || !kv_partial_block_is_live(other))
		drop_locked(partial);
}

bool kv_part_reserved_locked(struct kv_part *part, int status)
{
	struct kv_partial_block *partial = part->of;
	int stopped = atomic_load(&part->xfer->stopped);

	if (kv_partial_block_is_live(partial) && status == 0 &&
	    (stopped == 0 || partial->reserved)) {
		partial->reserved = true;
		return true;
	}
	if (kv_partial_block_is_live(partial)) {
		partial->reserved |= status == 0;
		kv_part_fail_locked(part, status == 0 ? stopped : status);
		return false;
	}
	if (status == 0)
		late_locked(partial);
	settle_locked(part, partial->status);
	tidy_locked(partial);
	return false;
}

bool kv_part_copied_locked(struct kv_part *part)
{
	struct kv_partial_block *partial = part->of;

	part->state = KV_PART_COPIED;
	if (kv_partial_block_is_live(partial))
		return true;
	settle_locked(part, partial->status);
	tidy_locked(partial);
	return false;
}

void kv_part_sealed_locked(struct kv_part *part, struct kv_hold *hold)
{
	struct kv_partial_block *partial = part->of;

	TAILQ_FOREACH(part, &partial->parts, others)
		kv_hold_block_locked(part->xfer,
				     (size_t)(part - part->xfer->part), hold);
	kv_partial_block_end_locked(partial, 0);
}

void kv_part_fail_locked(struct kv_part *part, int status)
{
	struct kv_partial_block *partial = part->of;

	if (part->state != KV_PART_BATCH) {
		kv_partial_block_end_locked(partial, status);
		return;
	}
	/* It is settled last: the block is there until then. */
	kv_partial_block_end_locked(partial, status);
	settle_locked(part, partial->status);
	tidy_locked(partial);
}

/* ---- ends ---- */

void kv_parts_stop_locked(struct kvfs_xfer *xfer)
{
	int status = atomic_load(&xfer->stopped);
	struct kv_part *part;

	kv_xfer_get_locked(xfer);
	for (part = xfer->part; part < xfer->part + xfer->n; part++)
		if (part->state == KV_PART_TODO ||
		    (part->state != KV_PART_NONE &&
		     !kv_partial_block_is_whole(part->of)))
			kv_partial_block_end_locked(part->of, status);
	kv_xfer_put_locked(xfer);
}

/* One that is LIVE, and of which a part is missing if @lacking. */
static struct kv_partial_block *next_live(struct kv_parts *parts, size_t bucket,
					  bool lacking)
{
	struct kv_partial_block *partial;

	LIST_FOREACH(partial, &parts->buckets[bucket], others)
		if (kv_partial_block_is_live(partial) &&
		    !(lacking && kv_partial_block_is_whole(partial)))
			return partial;
	return NULL;
}

static void end_live_locked(struct kvfs_session *session, bool lacking,
			    int status)
{
	struct kv_partial_block *partial;
	size_t i;

	for (i = 0; session->parts != NULL && i < KV_PARTS_BUCKETS; i++)
		while ((partial = next_live(session->parts, i, lacking)) !=
		       NULL)
			kv_partial_block_end_locked(partial, status);
}

void kv_parts_break_locked(struct kvfs_session *session)
{
	end_live_locked(session, false, -ENOTCONN);
}

void kv_parts_close_locked(struct kvfs_session *session)
{
	end_live_locked(session, true, -ECANCELED);
}

void kv_parts_free_locked(struct kvfs_session *session)
{
	struct kv_partial_block *partial;

	while (session->parts != NULL &&
	       (partial = TAILQ_FIRST(&session->parts->dead)) != NULL)
		kv_partial_block_forget_locked(partial);
	free(kv_steal(session->parts));
}
