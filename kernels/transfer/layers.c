/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layers.c - which bytes of a block belong to which layers of the model.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) Every byte of a block belongs to one layer.
 *
 * LOCKING   none: layouts never change.
 */
#include "kernels/transfer/layers.h"

/* The first dimension that all tensors have, or 0. */
static uint32_t common_dimension(const struct kv_layout *layout)
{
	uint64_t common = 0;
	uint32_t i;

	for (i = 0; i < layout->n_tensors; i++) {
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
	uint32_t common = common_dimension(layout), i;
	const struct kv_tensor *tensor;
	size_t ranges = 0;
	uint64_t layer;

	for (i = 0; common != 0 && n > 0 && i < layout->n_tensors; i++) {
		tensor = &layout->tensors[i];
		layer = tensor->bytes / common;
		ranges = add(ret_ranges, ranges, tensor->offset + first * layer,
			     tensor->offset + (first + n) * layer);
	}
	for (i = first; common == 0 && i < first + n; i++) {
		tensor = &layout->tensors[i];
		ranges = add(ret_ranges, ranges, tensor->offset,
			     tensor->offset + tensor->bytes);
	}
	return ranges;
}
