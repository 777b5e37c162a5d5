/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts.c - blocks that are saved in parts.
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
#include "kernels/transfer/parts.h"
#include "kernels/transfer/pool.h"
#include "kernels/transfer/save.h"
#include "kernels/session/space.h"

#define DEAD_MAX 4096u /* kept; the oldest are forgotten */

struct kv_parted *kv_parts_find(struct kv_parts *parts,
				const struct kvfs_space *space,
				const struct wire_save *block)
{
	struct kv_parted *parted;

	LIST_FOREACH(parted, &parts->buckets[kv_parts_bucket(block)], others)
		if (parted->block.len == block->len &&
		    memcmp(parted->block.key, block->key, block->len) == 0 &&
		    strcmp(parted->space->name, space->name) == 0)
			return parted;
	return NULL;
}

/* Free it if nothing refers to it. */
static void tidy_locked(struct kv_parted *parted)
{
	if (parted->listed || !TAILQ_EMPTY(&parted->parts))
		return;
	kv_lib_space_put_locked(parted->space);
	kv_coverage_fini(&parted->claimed);
	free(parted);
}

static void unlist(struct kv_parted *parted)
{
	struct kv_parts *parts = parted->session->parts;

	if (!parted->listed)
		return;
	parted->listed = false;
	LIST_REMOVE(parted, others);
	if (kv_parted_is_live(parted))
		return;
	TAILQ_REMOVE(&parts->dead, parted, dead);
	parts->n_dead--;
}

void kv_parted_forget_locked(struct kv_parted *parted)
{
	unlist(parted);
	tidy_locked(parted);
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

static void settle_all_locked(struct kv_parted *parted)
{
	struct kv_part *part;

	do {
		TAILQ_FOREACH(part, &parted->parts, others)
			if (part->state != KV_PART_BATCH)
				break;
		if (part != NULL)
			settle_locked(part, parted->status);
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
static void drop_locked(const struct kv_parted *parted)
{
	struct kvfs_session *session = parted->session;
	struct wire_key key = {.len = parted->block.len};
	struct kv_packet packet = {
		.header = {.type = WIRE_DROP,
			   .count = 1,
			   .space = parted->space_id},
		.items = &key,
		.bytes = sizeof(key),
		.fd = -1,
	};
	struct drop *drop;

	if (!kv_session_is_live(session, parted->generation))
		return;
	drop = calloc(1, sizeof(*drop));
	if (drop == NULL)
		return;
	memcpy(key.key, parted->block.key, parted->block.len);
	drop->call.count = 1;
	drop->call.done = dropped;
	if (kv_rpc_submit_locked(session, &drop->call, &packet) < 0)
		free(drop);
}

void kv_parted_end_locked(struct kv_parted *parted, int status)
{
	struct kv_parts *parts = parted->session->parts;
	bool whole = kv_parted_is_whole(parted);

	if (!kv_parted_is_live(parted))
		return;
	if (parted->reserved && status < 0)
		drop_locked(parted);
	if (whole)
		unlist(parted);
	parted->status = status;
	if (!whole) {
		TAILQ_INSERT_TAIL(&parts->dead, parted, dead);
		parts->n_dead++;
	}
	settle_all_locked(parted);
	tidy_locked(parted);
	if (parts->n_dead > DEAD_MAX)
		kv_parted_forget_locked(TAILQ_FIRST(&parts->dead));
}

bool kv_part_is_reserved(const struct kv_part *part)
{
	return part->of->reserved;
}

bool kv_part_again_locked(struct kv_part *part)
{
	if (!kv_parted_is_live(part->of))
		return false;
	part->state = KV_PART_TODO;
	return true;
}

/* The reservation came too late for its block: nobody else's must go. */
static void late_locked(const struct kv_parted *parted)
{
	const struct kv_parted *other = kv_parts_find(
		parted->session->parts, parted->space, &parted->block);

	if (other == NULL || !kv_parted_is_live(other))
		drop_locked(parted);
}

bool kv_part_reserved_locked(struct kv_part *part, int status)
{
	struct kv_parted *parted = part->of;
	int stopped = atomic_load(&part->xfer->stopped);

	if (kv_parted_is_live(parted) && status == 0 &&
	    (stopped == 0 || parted->reserved)) {
		parted->reserved = true;
		return true;
	}
	if (kv_parted_is_live(parted)) {
		parted->reserved |= status == 0;
		kv_part_fail_locked(part, status == 0 ? stopped : status);
		return false;
	}
	if (status == 0)
		late_locked(parted);
	settle_locked(part, parted->status);
	tidy_locked(parted);
	return false;
}

bool kv_part_copied_locked(struct kv_part *part)
{
	struct kv_parted *parted = part->of;

	part->state = KV_PART_COPIED;
	if (kv_parted_is_live(parted))
		return true;
	settle_locked(part, parted->status);
	tidy_locked(parted);
	return false;
}

void kv_part_sealed_locked(struct kv_part *part, struct kv_hold *hold)
{
	struct kv_parted *parted = part->of;

	TAILQ_FOREACH(part, &parted->parts, others)
		kv_hold_block_locked(part->xfer,
				     (size_t)(part - part->xfer->part), hold);
	kv_parted_end_locked(parted, 0);
}

void kv_part_fail_locked(struct kv_part *part, int status)
{
	struct kv_parted *parted = part->of;

	if (part->state != KV_PART_BATCH) {
		kv_parted_end_locked(parted, status);
		return;
	}
	/* It is settled last: the block is there until then. */
	kv_parted_end_locked(parted, status);
	settle_locked(part, parted->status);
	tidy_locked(parted);
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
		     !kv_parted_is_whole(part->of)))
			kv_parted_end_locked(part->of, status);
	kv_xfer_put_locked(xfer);
}

/* One that is LIVE, and of which a part is missing if @lacking. */
static struct kv_parted *next_live(struct kv_parts *parts, size_t bucket,
				   bool lacking)
{
	struct kv_parted *parted;

	LIST_FOREACH(parted, &parts->buckets[bucket], others)
		if (kv_parted_is_live(parted) &&
		    !(lacking && kv_parted_is_whole(parted)))
			return parted;
	return NULL;
}

static void end_live_locked(struct kvfs_session *session, bool lacking,
			    int status)
{
	struct kv_parted *parted;
	size_t i;

	for (i = 0; session->parts != NULL && i < KV_PARTS_BUCKETS; i++)
		while ((parted = next_live(session->parts, i, lacking)) != NULL)
			kv_parted_end_locked(parted, status);
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
	struct kv_parted *parted;

	while (session->parts != NULL &&
	       (parted = TAILQ_FIRST(&session->parts->dead)) != NULL)
		kv_parted_forget_locked(parted);
	free(kv_steal(session->parts));
}
