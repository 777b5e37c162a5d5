/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - the engine's paged memory, as described once and checked.
 */
#ifndef KV_LIB_POOL_H
#define KV_LIB_POOL_H

#include "kernels/device.h"
#include "kernels/kvfs.h"
#include "kernels/pieces.h"
#include "layout.h"

struct kvfs_pool {
	/* fixed after register */
	struct kvfs_session *session;
	const struct kv_device *device;
	void *on_device;	  /* what its open made of this pool */
	struct kvfs_space *space; /* held: its layout is this pool's */
	const struct kv_layout *layout;
	uint64_t pages;
	struct kv_pieces pieces;

	/* lock */
	uint8_t *seen; /* a bit a page, all clear between calls */
	size_t busy;   /* transfers that still use pages */
	uint64_t pages_loading, pages_saving;
};

/*
 * Check the @n pages of a transfer: each inside the pool; for one that @loads
 * none twice, but it may have -1.  Returns how many are not -1, or -EINVAL.
 */
long kv_lib_pool_check_pages_locked(struct kvfs_pool *pool,
				    const int64_t *pages, size_t n, bool loads);

#endif
