/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opts.h - what a caller's options mean for a transfer, and which bytes of a
 * block belong to which layers of the model.
 */
#ifndef KV_KERNELS_TRANSFER_OPTS_H
#define KV_KERNELS_TRANSFER_OPTS_H

#include "common/layout.h"
#include "kernels/device/device.h"
#include "kernels/transfer/pool.h"
#include "kernels/transfer/xfer.h"

/*
 * Take over @opts (NULL: none) for a transfer of @pool: deadline, layers,
 * priority, flags (of which it knows @flags) and order.  On the caller's
 * thread, no lock held, before the transfer is activated.
 * -EINVAL: layers that are not there, other flags; errors of
 * kv_stream_sync_take.
 */
int kv_opts_take(struct kvfs_xfer *xfer, const struct kvfs_pool *pool,
		 const kvfs_opts *opts, unsigned flags);

/*
 * How many layers a block of @layout has.  Layer l is index l of the first
 * dimension where all tensors have the same one, else tensor l.
 */
uint32_t kv_layout_layers(const struct kv_layout *layout);

/*
 * The bytes of layers @first .. + @n, which must be there, into @ret_ranges:
 * room for layout->n_tensors.  Ascending, apart, none of them empty.  Returns
 * how many ranges that are.
 */
size_t kv_layout_ranges(const struct kv_layout *layout, uint32_t first,
			uint32_t n, struct kv_range *ret_ranges);

#endif
