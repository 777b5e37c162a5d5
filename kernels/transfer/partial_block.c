/* SPDX-License-Identifier: Apache-2.0 */
/*
 * partial_block.c - blocks that are saved in parts.
 *
 * OWNS      the table of such blocks, which bytes of each are spoken for, and
 *           a part's spare until it joins.  The daemon keeps a map of its own:
 *           what it is told it checks.
 *
 * STATES    of a block:
 *
 *              LIVE -> SEALED   kv_part_sealed_locked
 *              LIVE -> DEAD     end_locked, with the status of all its parts
 *
 *           A DEAD block stays in the table until all its bytes have been
 *           offered, so that parts begun later share the fate of those before
 *           (a block may not be made of what came before and after a clear or a
 *           restart).  Bytes that were offered before begin it anew.
 *
 *           of a part: see kv_part_state; those of a block that ends are
 *           settled at once, but for those in a batch: their pages are being
 *           read.
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
#include "common/coverage.h"
#include "kernels/transfer/partial_block.h"
#include "kernels/transfer/pool.h"
#include "kernels/transfer/save.h"
#include "kernels/transfer/token_ids.h"
#include "kernels/session/space.h"

#define DEAD_MAX 4096u /* kept; the oldest are forgotten */
#define BUCKETS 1024u

struct kv_partial_block {
	LIST_ENTRY(kv_partial_block) others; /* in its bucket, if listed */
	TAILQ_ENTRY(kv_partial_block) dead;  /* if DEAD and listed */
	bool listed;
	struct kvfs_session *session;
	struct kvfs_space *space; /* held */
	struct wire_save block;	  /* as the first part has it */
	uint64_t ids_hash;	  /* of its tokens, the same */
	unsigned flags;		  /* the first's */
	uint64_t generation, payload;
	uint32_t space_id;
	struct kv_coverage claimed;
	int status; /* -EINPROGRESS: LIVE */
	bool reserved;
	bool counted; /* by the session: it is reserved, or is to be */
	TAILQ_HEAD(, kv_part) parts; /* that are not over */
};

struct kv_parts {
	LIST_HEAD(, kv_partial_block) buckets[BUCKETS];
	TAILQ_HEAD(, kv_partial_block) dead; /* oldest first */
	size_t n_dead;
};

static bool is_live(const struct kv_partial_block *partial)
{
	return partial->status == -EINPROGRESS;
}

static bool is_whole(const struct kv_partial_block *partial)
{
	return kv_coverage_prefix(&partial->claimed) == partial->payload;
}

static unsigned bucket_of(const struct wire_save *block)
{
	uint32_t hash;

	memcpy(&hash, block->key, sizeof(hash));
	return hash % BUCKETS;
}

/* The one in the table, or NULL. */
static struct kv_partial_block *find(struct kv_parts *parts,
				     const struct kvfs_space *space,
				     const struct wire_save *block)
{
	struct kv_partial_block *partial;

	LIST_FOREACH(partial, &parts->buckets[bucket_of(block)], others)
		if (partial->block.len == block->len &&
		    memcmp(partial->block.key, block->key, block->len) == 0 &&
		    strcmp(partial->space->name, space->name) == 0)
			return partial;
	return NULL;
}

/* Free it if nothing refers to it. */
static void tidy_locked(struct kv_partial_block *partial)
{
	kv_assert_locked(&partial->session->lock);
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
	if (is_live(partial))
		return;
	TAILQ_REMOVE(&parts->dead, partial, dead);
	parts->n_dead--;
}

/* Out of the table; freed now, or with its last part. */
static void forget_locked(struct kv_partial_block *partial)
{
	kv_assert_locked(&partial->session->lock);
	unlist(partial);
	tidy_locked(partial);
}

/* Whether it is among those that the daemon has reserved, or will. */
static void count_locked(struct kv_partial_block *partial, bool counted)
{
	struct kvfs_session *session = partial->session;

	kv_assert_locked(&session->lock);
	session->reserved_in_parts += counted;
	session->reserved_in_parts -= partial->counted;
	partial->counted = counted;
}

/* ---- what becomes of parts ---- */

/* The transfer may be gone after this. */
static void settle_locked(struct kv_part *part, int status)
{
	enum kv_part_state state = part->state;
	struct kvfs_xfer *xfer = part->xfer;
	bool good = status >= 0;

	kv_assert_locked(&part->xfer->session->lock);
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

	kv_assert_locked(&partial->session->lock);
	do {
		TAILQ_FOREACH(part, &partial->parts, others)
			if (part->state != KV_PART_BATCH)
				break;
		if (part)
			settle_locked(part, partial->status);
	} while (part);
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

	kv_assert_locked(&session->lock);
	if (!kv_session_is_live(session, partial->generation))
		return;
	drop = calloc(1, sizeof(*drop));
	if (!drop)
		return;
	memcpy(key.key, partial->block.key, partial->block.len);
	drop->call.count = 1;
	drop->call.done = dropped;
	if (kv_rpc_submit_locked(session, &drop->call, &packet) < 0)
		free(drop);
}

/* If it is LIVE: all its parts that are in no batch end with @status. */
static void end_locked(struct kv_partial_block *partial, int status)
{
	struct kv_parts *parts = partial->session->parts;
	bool whole = is_whole(partial);

	kv_assert_locked(&partial->session->lock);
	if (!is_live(partial))
		return;
	if (partial->reserved && status < 0)
		drop_locked(partial);
	count_locked(partial, false);
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
		forget_locked(TAILQ_FIRST(&parts->dead));
}

bool kv_part_reserve_locked(struct kv_part *part)
{
	kv_assert_locked(&part->xfer->session->lock);
	if (is_live(part->of))
		count_locked(part->of, true);
	return part->of->reserved;
}

bool kv_part_again_locked(struct kv_part *part)
{
	kv_assert_locked(&part->xfer->session->lock);
	if (!is_live(part->of))
		return false;
	if (!part->of->reserved)
		count_locked(part->of, false);
	part->state = KV_PART_TODO;
	return true;
}

/* The reservation came too late for its block: nobody else's must go. */
static void late_locked(const struct kv_partial_block *partial)
{
	const struct kv_partial_block *other =
		find(partial->session->parts, partial->space, &partial->block);

	kv_assert_locked(&partial->session->lock);
	if (!other || !is_live(other))
		drop_locked(partial);
}

bool kv_part_reserved_locked(struct kv_part *part, int status)
{
	struct kv_partial_block *partial = part->of;
	int stopped = atomic_load(&part->xfer->stopped);

	kv_assert_locked(&part->xfer->session->lock);
	if (is_live(partial) && status == 0 &&
	    (stopped == 0 || partial->reserved)) {
		partial->reserved = true;
		return true;
	}
	if (is_live(partial)) {
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

	kv_assert_locked(&part->xfer->session->lock);
	part->state = KV_PART_COPIED;
	if (is_live(partial))
		return true;
	settle_locked(part, partial->status);
	tidy_locked(partial);
	return false;
}

void kv_part_sealed_locked(struct kv_part *part, struct kv_hold *hold)
{
	struct kv_partial_block *partial = part->of;

	kv_assert_locked(&part->xfer->session->lock);
	TAILQ_FOREACH(part, &partial->parts, others)
		kv_hold_block_locked(part->xfer,
				     (size_t)(part - part->xfer->part), hold);
	end_locked(partial, 0);
}

void kv_part_fail_locked(struct kv_part *part, int status)
{
	struct kv_partial_block *partial = part->of;

	kv_assert_locked(&part->xfer->session->lock);
	if (part->state != KV_PART_BATCH) {
		end_locked(partial, status);
		return;
	}
	/* The part is settled last: the block is there until then. */
	end_locked(partial, status);
	settle_locked(part, partial->status);
	tidy_locked(partial);
}

/* ---- ends ---- */

void kv_parts_stop_locked(struct kvfs_xfer *xfer)
{
	int status = atomic_load(&xfer->stopped);
	struct kv_part *part;

	kv_assert_locked(&xfer->session->lock);
	kv_xfer_get_locked(xfer);
	for (part = xfer->part; part < xfer->part + xfer->n; part++)
		if (part->state == KV_PART_TODO ||
		    (part->state != KV_PART_NONE && !is_whole(part->of)))
			end_locked(part->of, status);
	kv_xfer_put_locked(xfer);
}

void kv_parts_give_up_locked(struct kvfs_xfer *xfer)
{
	int status = atomic_load(&xfer->stopped);
	struct kv_part *part;

	kv_assert_locked(&xfer->session->lock);
	kv_xfer_get_locked(xfer);
	for (part = xfer->part; part < xfer->part + xfer->n; part++)
		if (part->state != KV_PART_NONE)
			end_locked(part->of, status);
	kv_xfer_put_locked(xfer);
}

/* A block that is LIVE, and of which a part is missing if @lacking. */
static struct kv_partial_block *next_live(struct kv_parts *parts, size_t bucket,
					  bool lacking)
{
	struct kv_partial_block *partial;

	LIST_FOREACH(partial, &parts->buckets[bucket], others)
		if (is_live(partial) && !(lacking && is_whole(partial)))
			return partial;
	return NULL;
}

static void end_live_locked(struct kvfs_session *session, bool lacking,
			    int status)
{
	struct kv_partial_block *partial;

	kv_assert_locked(&session->lock);
	for (size_t i = 0; session->parts && i < BUCKETS; i++)
		while ((partial = next_live(session->parts, i, lacking)))
			end_locked(partial, status);
}

void kv_parts_break_locked(struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	end_live_locked(session, false, -ENOTCONN);
}

void kv_parts_close_locked(struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	end_live_locked(session, true, -ECANCELED);
}

void kv_parts_free_locked(struct kvfs_session *session)
{
	struct kv_partial_block *partial;

	kv_assert_locked(&session->lock);
	while (session->parts && (partial = TAILQ_FIRST(&session->parts->dead)))
		forget_locked(partial);
	free(kv_steal(session->parts));
}

/* ---- joining ---- */

static struct kv_partial_block *partial_block_new(struct kvfs_xfer *xfer,
						  size_t i)
{
	struct kv_parts *parts = xfer->session->parts;
	struct kv_partial_block *partial = kv_steal(xfer->part[i].spare);

	kv_lib_space_get_locked(xfer->space);
	partial->session = xfer->session;
	partial->space = xfer->space;
	partial->block = xfer->blocks[i];
	partial->ids_hash = kv_save_ids_hash(xfer, i);
	partial->flags = xfer->flags;
	partial->generation = xfer->generation;
	partial->space_id = xfer->space_id;
	partial->payload = xfer->pool->layout->payload;
	partial->status = -EINPROGRESS;
	partial->listed = true;
	TAILQ_INIT(&partial->parts);
	LIST_INSERT_HEAD(&parts->buckets[bucket_of(&partial->block)], partial,
			 others);
	return partial;
}

static int make_table(struct kvfs_session *session)
{
	struct kv_parts *parts = calloc(1, sizeof(*parts));

	if (!parts)
		return -ENOMEM;
	TAILQ_INIT(&parts->dead);
	pthread_mutex_lock(&session->lock);
	if (!session->parts)
		session->parts = kv_steal(parts);
	pthread_mutex_unlock(&session->lock);
	free(parts);
	return 0;
}

int kv_parts_new(struct kvfs_xfer *xfer)
{
	xfer->part = calloc(xfer->n + 1, sizeof(*xfer->part));
	if (!xfer->part)
		return -ENOMEM;
	for (size_t i = 0; i < xfer->n; i++) {
		xfer->part[i].spare =
			calloc(1, sizeof(struct kv_partial_block));
		if (!xfer->part[i].spare)
			return -ENOMEM;
	}
	return make_table(xfer->session);
}

void kv_parts_drop(struct kvfs_xfer *xfer)
{
	for (size_t i = 0; xfer->part && i < xfer->n; i++)
		free(xfer->part[i].spare);
	free(kv_steal(xfer->part));
}

/* How the bytes of @xfer meet those spoken for: 0 not at all, -EEXIST all of
 * them are, -EINVAL some. */
static int meet(const struct kv_partial_block *partial,
		const struct kvfs_xfer *xfer)
{
	size_t there = 0;
	int r;

	for (size_t i = 0; i < xfer->n_ranges; i++) {
		r = kv_coverage_look(&partial->claimed, xfer->ranges[i].from,
				     xfer->ranges[i].to);
		if (r == -EINVAL)
			return r;
		there += r == -EEXIST;
	}
	if (there == 0)
		return 0;
	return there == xfer->n_ranges ? -EEXIST : -EINVAL;
}

static bool same(const struct kv_partial_block *partial,
		 const struct kvfs_xfer *xfer, size_t i)
{
	const struct wire_save *a = &partial->block, *b = &xfer->blocks[i];

	return a->parent_len == b->parent_len && a->position == b->position &&
	       a->tokens == b->tokens &&
	       memcmp(a->parent, b->parent, sizeof(a->parent)) == 0 &&
	       partial->ids_hash == kv_save_ids_hash(xfer, i) &&
	       (partial->flags & KVFS_HOLD) == (xfer->flags & KVFS_HOLD);
}

static int claim(struct kv_partial_block *partial, const struct kvfs_xfer *xfer)
{
	int r = 0;

	for (size_t i = 0; i < xfer->n_ranges && r == 0; i++)
		r = kv_coverage_claim(&partial->claimed, xfer->ranges[i].from,
				      xfer->ranges[i].to);
	return r;
}

/* The block that block @i of @xfer is a part of, made if need be; how their
 * bytes meet. */
static int find_block(struct kvfs_xfer *xfer, size_t i,
		      struct kv_partial_block **ret_block)
{
	struct kv_partial_block *partial =
		find(xfer->session->parts, xfer->space, &xfer->blocks[i]);
	int r = 0;

	if (partial)
		r = meet(partial, xfer);
	if (partial && !is_live(partial) && r < 0) {
		forget_locked(partial);
		partial = NULL;
	}
	if (!partial) {
		partial = partial_block_new(xfer, i);
		r = 0;
	} else if (!same(partial, xfer, i)) {
		r = -EINVAL;
	}
	*ret_block = partial;
	return r;
}

/* Neither a part of a block nor settled before. */
static void refuse_locked(struct kvfs_xfer *xfer, size_t i, int status)
{
	kv_assert_locked(&xfer->session->lock);
	atomic_store(&xfer->status[i], status);
	if (status >= 0) {
		kv_xfer_reach_locked(xfer, KVFS_COPIED, 1);
		kv_xfer_reach_locked(xfer, KVFS_SEALED, 1);
	} else {
		kv_xfer_fail_locked(xfer, KVFS_COPIED, 1);
	}
}

bool kv_part_join_locked(struct kvfs_xfer *xfer, size_t i)
{
	struct kv_part *part = &xfer->part[i];
	struct kv_partial_block *partial = NULL;
	int r = find_block(xfer, i, &partial), status;

	kv_assert_locked(&xfer->session->lock);
	free(kv_steal(part->spare));
	if (r == 0) {
		r = claim(partial, xfer);
		if (r < 0)
			end_locked(partial, r);
	}
	if (r < 0 && r != -EEXIST) {
		refuse_locked(xfer, i, r);
		return false;
	}
	if (!is_live(partial)) {
		status = partial->status;
		if (is_whole(partial))
			forget_locked(partial);
		refuse_locked(xfer, i, status);
		return false;
	}
	part->of = partial;
	part->xfer = xfer;
	part->state = r == 0 ? KV_PART_TODO : KV_PART_COPIED;
	TAILQ_INSERT_TAIL(&partial->parts, part, others);
	if (r == -EEXIST)
		kv_xfer_reach_locked(xfer, KVFS_COPIED, 1);
	return r == 0;
}
