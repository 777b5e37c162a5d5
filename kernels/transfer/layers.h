/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layers.h - which bytes of a block belong to which layers of the model.
 */
#ifndef KV_KERNELS_TRANSFER_LAYERS_H
#define KV_KERNELS_TRANSFER_LAYERS_H

#include "kernels/device/device.h"
#include "common/layout.h"

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
