/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opts.c - what a caller's options mean for a transfer.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: the transfer is the caller's alone.
 */
#include "kernels/transfer/layers.h"
#include "kernels/transfer/opts.h"
#include "kernels/transfer/stream_sync.h"

#define STEP_BYTES ((uint64_t)4 << 20) /* of all blocks, at least */

static int take_layers(struct kvfs_xfer *xfer, const struct kv_layout *layout,
		       const kvfs_opts *opts)
{
	uint32_t all = kv_layout_layers(layout);

	if (opts->layers == 0)
		return opts->first_layer == 0 ? 0 : -EINVAL;
	if (opts->first_layer >= all || opts->layers > all - opts->first_layer)
		return -EINVAL;
	xfer->first_layer = opts->first_layer;
	xfer->layers = opts->layers;
	if (opts->layers == all)
		return 0;
	xfer->ranges = malloc(layout->n_tensors * sizeof(*xfer->ranges));
	if (xfer->ranges == NULL)
		return -ENOMEM;
	xfer->n_ranges = kv_layout_ranges(layout, xfer->first_layer,
					  xfer->layers, xfer->ranges);
	return 0;
}

/* As many layers at a time as are worth the trouble. */
static void make_steps(struct kvfs_xfer *xfer, const struct kv_layout *layout)
{
	uint64_t layer = layout->payload / kv_layout_layers(layout);
	uint64_t n = STEP_BYTES / KV_MAX(layer * xfer->n, (uint64_t)1) + 1;

	xfer->layers_a_step = (uint32_t)KV_MIN(n, xfer->layers);
	xfer->steps =
		(xfer->layers + xfer->layers_a_step - 1) / xfer->layers_a_step;
}

int kv_opts_take(struct kvfs_xfer *xfer, const struct kvfs_pool *pool,
		 const kvfs_opts *opts, unsigned flags)
{
	int r;

	xfer->device = pool->device;
	xfer->layers = kv_layout_layers(pool->layout);
	if (opts != NULL) {
		if ((opts->flags & ~flags) != 0)
			return -EINVAL;
		r = take_layers(xfer, pool->layout, opts);
		if (r < 0)
			return r;
		if (opts->deadline != 0)
			xfer->deadline_at = kv_time_after(opts->deadline);
		xfer->flags = opts->flags;
		xfer->priority = opts->priority;
		if (opts->flags & KVFS_BY_LAYER)
			make_steps(xfer, pool->layout);
	}
	return kv_stream_sync_take(xfer, pool, opts);
}
