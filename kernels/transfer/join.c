/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.c - which block a part belongs to, and whether its bytes are new.
 *
 * OWNS      a part's spare, until it joins.
 *
 * INVARIANTS
 *   (1) A part joins the block of its key that is in the table; bytes that were
 *       offered to a DEAD one before begin another.
 *
 * LOCKING   session->lock.
 */
#include "kernels/transfer/partial_block.h"
#include "kernels/transfer/pool.h"
#include "kernels/session/space.h"

static struct kv_partial_block *partial_block_new(struct kvfs_xfer *xfer,
						  size_t i)
{
	struct kv_parts *parts = xfer->session->parts;
	struct kv_partial_block *partial = kv_steal(xfer->part[i].spare);

	kv_lib_space_get_locked(xfer->space);
	partial->session = xfer->session;
	partial->space = xfer->space;
	partial->block = xfer->blocks[i];
	partial->flags = xfer->flags;
	partial->generation = xfer->generation;
	partial->space_id = xfer->space_id;
	partial->payload = xfer->pool->layout->payload;
	partial->status = -EINPROGRESS;
	partial->listed = true;
	TAILQ_INIT(&partial->parts);
	LIST_INSERT_HEAD(&parts->buckets[kv_parts_bucket(&partial->block)],
			 partial, others);
	return partial;
}

static int make_table(struct kvfs_session *session)
{
	struct kv_parts *parts = calloc(1, sizeof(*parts));

	if (parts == NULL)
		return -ENOMEM;
	TAILQ_INIT(&parts->dead);
	pthread_mutex_lock(&session->lock);
	if (session->parts == NULL)
		session->parts = kv_steal(parts);
	pthread_mutex_unlock(&session->lock);
	free(parts);
	return 0;
}

int kv_parts_new(struct kvfs_xfer *xfer)
{
	size_t i;

	xfer->part = calloc(xfer->n + 1, sizeof(*xfer->part));
	if (xfer->part == NULL)
		return -ENOMEM;
	for (i = 0; i < xfer->n; i++) {
		xfer->part[i].spare =
			calloc(1, sizeof(struct kv_partial_block));
		if (xfer->part[i].spare == NULL)
			return -ENOMEM;
	}
	return make_table(xfer->session);
}

void kv_parts_drop(struct kvfs_xfer *xfer)
{
	size_t i;

	for (i = 0; xfer->part != NULL && i < xfer->n; i++)
		free(xfer->part[i].spare);
	free(kv_steal(xfer->part));
}

/* How the bytes of @xfer meet those spoken for: 0 not at all, -EEXIST all of
 * them are, -EINVAL some. */
static int meet(const struct kv_partial_block *partial,
		const struct kvfs_xfer *xfer)
{
	size_t i, there = 0;
	int r;

	for (i = 0; i < xfer->n_ranges; i++) {
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
	       (partial->flags & KVFS_HOLD) == (xfer->flags & KVFS_HOLD);
}

static int claim(struct kv_partial_block *partial, const struct kvfs_xfer *xfer)
{
	size_t i;
	int r = 0;

	for (i = 0; i < xfer->n_ranges && r == 0; i++)
		r = kv_coverage_claim(&partial->claimed, xfer->ranges[i].from,
				      xfer->ranges[i].to);
	return r;
}

/* The block that block @i of @xfer is a part of, made if need be; how their
 * bytes meet. */
static int find_block(struct kvfs_xfer *xfer, size_t i,
		      struct kv_partial_block **ret_block)
{
	struct kv_partial_block *partial = kv_parts_find(
		xfer->session->parts, xfer->space, &xfer->blocks[i]);
	int r = 0;

	if (partial != NULL)
		r = meet(partial, xfer);
	if (partial != NULL && !kv_partial_block_is_live(partial) && r < 0) {
		kv_partial_block_forget_locked(partial);
		partial = NULL;
	}
	if (partial == NULL) {
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

	free(kv_steal(part->spare));
	if (r == 0) {
		r = claim(partial, xfer);
		if (r < 0)
			kv_partial_block_end_locked(partial, r);
	}
	if (r < 0 && r != -EEXIST) {
		refuse_locked(xfer, i, r);
		return false;
	}
	if (!kv_partial_block_is_live(partial)) {
		status = partial->status;
		if (kv_partial_block_is_whole(partial))
			kv_partial_block_forget_locked(partial);
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
