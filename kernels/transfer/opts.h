/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opts.h - what a caller's options mean for a transfer.
 */
#ifndef KV_KERNELS_TRANSFER_OPTS_H
#define KV_KERNELS_TRANSFER_OPTS_H

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

#endif
