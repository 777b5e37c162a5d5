/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - where a pool's pages live: a device is a table of calls.
 */
#ifndef KV_DEVICE_H
#define KV_DEVICE_H

#include "kv.h"

/*
 * A strided piece of a block.  Its bytes are, for each of the block's pages in
 * order, @count runs of @bytes: run s of page p is at
 * base + p * block_stride + s * segment_stride in the pool, and the piece
 * begins at @offset of the block's tensors.
 */
struct kv_piece {
	uint64_t offset;
	uint8_t *base;
	uint64_t block_stride;
	uint64_t bytes;
	uint64_t count;
	uint64_t segment_stride;
};

/* All of a block, in the order of its tensors' bytes. */
struct kv_pieces {
	uint32_t pages_per_block;
	size_t n;
	struct kv_piece *piece;
};

struct kv_device {
	const char *name; /* as in kvfs_pool_desc */
	const char *path; /* for kvfs_pool_info: how bytes travel */

	/* One block from @tensors to its @pages, or back; any thread, returns
	 * when done.  A page of -1 is passed over. */
	void (*load)(const struct kv_pieces *pieces, const int64_t *pages,
		     const uint8_t *tensors);
	void (*save)(const struct kv_pieces *pieces, const int64_t *pages,
		     uint8_t *tensors);
};

extern const struct kv_device kv_device_host;

/* NULL: there is none of that name. */
const struct kv_device *kv_device_find(const char *name);

#endif
