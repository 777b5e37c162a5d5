/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.h - maps: blocks that are kept in pages of a paged pool while in use.
 */
#ifndef KV_KERNELS_PAGED_MAP_H
#define KV_KERNELS_PAGED_MAP_H

#include "kernels/paged/paged_pool.h"
#include "kernels/paged/page_fill.h"
#include "kernels/transfer/xfer.h"

struct kvfs_mapping {
	struct kv_paged_pool *paged;
	struct kvfs_xfer *xfer; /* a block is COPIED once its page holds it */
	LIST_ENTRY(kvfs_mapping)
	/* guarded by lock; in paged->maps until kvfs_unmap */
	others;
	bool ordered; /* guarded by lock; a stream waits for the blocks */
	size_t n;
	struct kv_use uses[]; /* lock */
};

/* End all maps of a pool that is being closed. */
void kv_maps_end_locked(struct kv_paged_pool *paged);

#endif
