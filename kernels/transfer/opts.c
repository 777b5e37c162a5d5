/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opts.c - what a caller's options mean for a transfer, and which bytes of a
 * block belong to which layers of the model.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) Every byte of a block belongs to one layer.
 *
 * LOCKING   none: the transfer is the caller's alone, and layouts never change.
 */
#include "kernels/transfer/opts.h"
#include "kernels/transfer/stream_sync.h"

#define STEP_BYTES ((uint64_t)4 << 20) /* of all blocks, at least */

/* ---- layers ---- */

/* The first dimension that all tensors have, or 0. */
static uint32_t common_dimension(const struct kv_layout *layout)
{
	uint64_t common = 0;

	for (uint32_t i = 0; i < layout->n_tensors; i++) {
		const struct kv_tensor *tensor = &layout->tensors[i];

		if (tensor->ndim == 0 || tensor->shape[0] > UINT32_MAX ||
		    (common != 0 && tensor->shape[0] != common))
			return 0;
		common = tensor->shape[0];
	}
	return (uint32_t)common;
}

uint32_t kv_layout_layers(const struct kv_layout *layout)
{
	uint32_t common = common_dimension(layout);

	assert(layout->n_tensors > 0);
	return common != 0 ? common : layout->n_tensors;
}

/* Ranges that touch are one. */
static size_t add(struct kv_range *ranges, size_t n, uint64_t from, uint64_t to)
{
	if (n > 0 && ranges[n - 1].to == from) {
		ranges[n - 1].to = to;
		return n;
	}
	ranges[n] = (struct kv_range){.from = from, .to = to};
	return n + 1;
}

size_t kv_layout_ranges(const struct kv_layout *layout, uint32_t first,
			uint32_t n, struct kv_range *ret_ranges)
{
	uint32_t common = common_dimension(layout);
	const struct kv_tensor *tensor;
	size_t ranges = 0;
	uint64_t layer;

	for (uint32_t i = 0; common != 0 && n > 0 && i < layout->n_tensors;
	     i++) {
		tensor = &layout->tensors[i];
		layer = tensor->bytes / common;
		ranges = add(ret_ranges, ranges, tensor->offset + first * layer,
			     tensor->offset + (first + n) * layer);
	}
	for (uint32_t i = first; common == 0 && i < first + n; i++) {
		tensor = &layout->tensors[i];
		ranges = add(ret_ranges, ranges, tensor->offset,
			     tensor->offset + tensor->bytes);
	}
	return ranges;
}

/* ---- options ---- */

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
	if (!xfer->ranges)
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
	uint32_t a_step = (uint32_t)KV_MIN(n, xfer->layers);

	assert(a_step > 0);
	xfer->layers_a_step = a_step;
	xfer->steps = (xfer->layers + a_step - 1) / a_step;
}

int kv_opts_take(struct kvfs_xfer *xfer, const struct kvfs_pool *pool,
		 const kvfs_opts *opts, unsigned flags)
{
	int r;

	xfer->device = pool->device;
	xfer->layers = kv_layout_layers(pool->layout);
	if (opts) {
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
