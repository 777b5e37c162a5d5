/* SPDX-License-Identifier: Apache-2.0 */
/*
 * partial_fill.h - a reserved block that comes in parts.
 *
 * Control thread only, but for kv_partial_fill_landed.
 */
#ifndef KV_FS_CONTROL_PARTIAL_FILL_H
#define KV_FS_CONTROL_PARTIAL_FILL_H

#include <stdatomic.h>

#include "cache/cache.h"
#include "common/coverage.h"

struct kv_partial_fill {
	struct kv_cache *cache; /* fixed */
	struct kv_fill *fill;	/* until sealed or dropped */
	uint64_t payload;	/* fixed: bytes of the tensors */
	struct kv_meta meta;	/* of the first part */
	struct kv_coverage claimed;
	unsigned refs;		 /* the table's, and one a part under way */
	_Atomic uint64_t landed; /* bytes copied */
};

/* Takes @fill over, with one reference.  -ENOMEM: it is still the caller's. */
int kv_partial_fill_new(struct kv_cache *cache, struct kv_fill *fill,
			uint64_t payload, struct kv_partial_fill **ret_partial);

/*
 * The bytes @at .. + @bytes of the tensors are about to be copied, by whoever
 * gets a reference here.  @meta must be that of the first part, but for its
 * time.  -EINVAL also: a range that is empty, ends outside, or of which a part
 * came before; -EEXIST all of it came before; -EFBIG too many holes; -ENOMEM.
 * Nothing changed then.
 */
int kv_partial_fill_claim(struct kv_partial_fill *partial,
			  const struct kv_meta *meta, uint64_t at,
			  uint64_t bytes);

/* Every byte has been claimed. */
bool kv_partial_fill_is_whole(const struct kv_partial_fill *partial);

/*
 * @bytes that were claimed are in the slot; any thread.  True for the call
 * after which nothing is missing: the fill is that caller's now.
 */
bool kv_partial_fill_landed(struct kv_partial_fill *partial, uint64_t bytes);

/* With the last reference the fill, if it did not seal, is dropped. */
void kv_partial_fill_put(struct kv_partial_fill *partial);

#endif
