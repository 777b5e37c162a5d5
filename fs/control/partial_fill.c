/* SPDX-License-Identifier: Apache-2.0 */
/*
 * partial_fill.c - a reserved block that comes in parts.
 *
 * OWNS      the fill, until every byte has landed, and the map of what has been
 *           claimed.
 *
 * STATES    of a byte of the tensors:
 *
 *            MISSING -> CLAIMED   kv_partial_fill_claim    (control thread)
 *            CLAIMED -> LANDED    kv_partial_fill_landed   (an ingest thread)
 *
 * INVARIANTS
 *   (1) A byte is claimed once, so that no two parts are written to one place
 *       and `landed` is the number of bytes that are there (R57).
 *   (2) Nobody but who claimed them writes to bytes of the slot.
 *   (3) The block is sealed by the call that lands its last byte, and by no
 *       other: when a byte is missing for ever, it never is.
 *
 * LOCKING   none: control thread only; `landed` is atomic, and the fill goes
 *           over to the thread that finds it complete.
 */
#include "fs/control/partial_fill.h"

int kv_partial_fill_new(struct kv_cache *cache, struct kv_fill *fill,
			uint64_t payload, struct kv_partial_fill **ret_partial)
{
	struct kv_partial_fill *partial = calloc(1, sizeof(*partial));

	if (!partial)
		return -ENOMEM;
	partial->cache = cache;
	partial->fill = fill;
	partial->payload = payload;
	partial->refs = 1;
	*ret_partial = partial;
	return 0;
}

static bool same_meta(const struct kv_meta *a, const struct kv_meta *b)
{
	return kv_key_equal(&a->parent, &b->parent) &&
	       a->position == b->position && a->tokens == b->tokens;
}

int kv_partial_fill_claim(struct kv_partial_fill *partial,
			  const struct kv_meta *meta, uint64_t at,
			  uint64_t bytes)
{
	bool first = partial->claimed.n == 0;
	int r;

	if (at > partial->payload || bytes > partial->payload - at ||
	    (!first && !same_meta(&partial->meta, meta)))
		return -EINVAL;
	r = kv_coverage_claim(&partial->claimed, at, at + bytes);
	if (r < 0)
		return r;
	if (first)
		partial->meta = *meta;
	partial->refs++;
	return 0;
}

bool kv_partial_fill_is_whole(const struct kv_partial_fill *partial)
{
	return kv_coverage_prefix(&partial->claimed) == partial->payload;
}

bool kv_partial_fill_landed(struct kv_partial_fill *partial, uint64_t bytes)
{
	return atomic_fetch_add(&partial->landed, bytes) + bytes ==
	       partial->payload;
}

void kv_partial_fill_put(struct kv_partial_fill *partial)
{
	if (--partial->refs > 0)
		return;
	if (partial->fill)
		kv_fill_drop(partial->cache, partial->fill);
	kv_coverage_fini(&partial->claimed);
	free(partial);
}
